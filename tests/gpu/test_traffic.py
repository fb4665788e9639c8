"""The count of bytes that kernels move, on kernels whose count is known."""

import interpreted
import pytest

triton, torch = pytest.importorskip("triton"), pytest.importorskip("torch")
import triton.language as tl  # noqa: E402
from traffic import SECTOR_BYTES, counted  # noqa: E402

pytestmark = pytest.mark.slow


@triton.jit
def copy_kernel(source, target, n, times, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    for _ in range(times):
        tl.store(target + i, tl.load(source + i, mask=i < n), mask=i < n)


@triton.jit
def gather_kernel(source, ids, total, D, BLOCK: tl.constexpr):
    d = tl.arange(0, BLOCK)
    row = tl.load(ids + tl.program_id(0))
    x = tl.load(source + row * D + d[None, :] + tl.zeros([4, 1], tl.int32), mask=(d < D)[None, :], other=0.0)
    tl.atomic_add(total, tl.sum(x))


def test_a_copy_moves_every_sector_once_a_pass():
    source, target = torch.ones(100), torch.zeros(100)
    with counted(source=source, target=target) as moved:
        copy_kernel[(2,)](source, target, 100, 3, BLOCK=64)
    assert torch.equal(source, target)
    assert moved.read["source"] == moved.written["target"] == 3 * 13 * SECTOR_BYTES  # 400 bytes are 12.5 sectors
    assert moved.read["others"] == moved.written["others"] == 0
    assert moved.launches == {"copy_kernel": 1}


def test_lanes_that_load_the_same_bytes_count_once():
    source, ids, total = torch.ones(6, 16), torch.tensor([4, 1, 4]), torch.zeros(1)
    with counted(source=source) as moved:
        gather_kernel[(3,)](source, ids, total, 16, BLOCK=16)
    assert moved.read["source"] == 3 * 16 * 4
    assert moved.read["others"] == 3 * 2 * SECTOR_BYTES  # an id and the total
    assert moved.written["others"] == 3 * SECTOR_BYTES


def test_nothing_is_counted_outside_the_block():
    source, target = torch.ones(64), torch.zeros(64)
    with counted(source=source) as moved:
        pass
    copy_kernel[(1,)](source, target, 64, 1, BLOCK=64)
    assert not moved.read
    assert not moved.launches


interpreted.elsewhere(globals())
