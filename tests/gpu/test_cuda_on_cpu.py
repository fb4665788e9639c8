"""What running CUDA kernels on the CPU finds: every fault of cuda_on_cpu/faults.cu, and none where there is none."""

import numpy as np
import pytest
from backends import missing
from cuda_on_cpu import emulator

pytestmark = pytest.mark.sampled(5)

BLOCK = 64


@pytest.fixture(scope="module")
def compiler():
    reason = emulator.why_not()
    if reason is not None:
        missing("cuda", reason)


@pytest.fixture(
    scope="module", params=["", *(pytest.param(name, marks=pytest.mark.slow) for name in ("address", "thread"))]
)
def module(request, compiler):
    return emulator.Module("faults", request.param, sources=emulator.HERE)


@pytest.fixture
def launch(module):
    def launch(kernel, *arguments, seed=1, removed=0, grid=1, block=BLOCK, shared=4 * BLOCK):
        module.seed, module.removed = seed, removed
        grid, block = (grid, 1, 1), (block, 1, 1)
        module.launch(kernel, grid=grid, block=block, shared=shared, arguments=arguments, like=None)

    return launch


def numbers(n=BLOCK):
    return np.arange(n, dtype=np.float32)


def test_a_right_kernel_is_right(launch):
    x, out = numbers(3 * BLOCK), np.full(3, np.nan, np.float32)
    for seed in range(3):
        launch("block_sum", x, out, grid=3, seed=seed)
        np.testing.assert_array_equal(out, x.reshape(3, BLOCK).sum(1))


def test_a_missing_barrier(launch, module):
    out = np.zeros(1, np.float32)
    if module.sanitizer == "thread":
        with pytest.raises(emulator.LaunchError, match=r"data race(.|\n)*faults\.cu"):
            launch("block_sum", numbers(), out, removed=1)
        return
    wrong = 0
    for seed in range(1, 6):
        launch("block_sum", numbers(), out, removed=1, seed=seed)
        wrong += out[0] != numbers().sum()  # NaN too
    assert wrong


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ("some_leave", r"SYNC\(1\) not reached by all threads"),
        ("two_barriers", r"wait in SYNC\(\d\) and SYNC\(\d\)"),
        ("lane_has_left", "a lane in the mask has exited"),
        ("lane_not_in_mask", "the calling lane is not in its mask"),
        ("reads_outside_mask", "reads a lane outside its mask"),
        ("different_collectives", "barriers that do not match"),
    ],
)
def test_collectives_that_do_not_fit(launch, kernel, message):
    arguments = () if kernel in ("some_leave", "two_barriers") else (np.zeros(BLOCK, np.int32),)
    with pytest.raises(emulator.LaunchError, match=message):
        launch(kernel, *arguments)


def test_a_shuffle_orders_no_memory(launch, module):
    out = np.zeros(32, np.float32)
    launch("read_of_lane_0", numbers(), out, np.int32(1), block=32)
    assert (out == 0).all()
    if module.sanitizer == "thread":
        with pytest.raises(emulator.LaunchError, match="data race"):
            launch("read_of_lane_0", numbers(), out, np.int32(0), block=32)


def test_accesses_beyond_an_array(launch, module):
    out = np.zeros(BLOCK, np.float32)
    launch("beyond_shared", out, shared=4 * BLOCK + 4)
    if module.sanitizer == "address":
        with pytest.raises(emulator.LaunchError, match="heap-buffer-overflow"):
            launch("beyond_shared", out)
        with pytest.raises(emulator.LaunchError, match="heap-buffer-overflow"):
            launch("beyond_shared", out[:-1], shared=4 * BLOCK + 4)


def test_unaligned_accesses(launch, module):
    x, out = numbers(4 * BLOCK + 4), np.zeros(BLOCK, np.float32)
    begin = -x.ctypes.data % 16 // 4  # of the first aligned element
    launch("loads_16", x[begin:], out, np.int32(0))
    assert (out == x[begin + 3]).all()
    if module.sanitizer == "address":
        with pytest.raises(emulator.LaunchError, match="misaligned address"):
            launch("loads_16", x[begin:], out, np.int32(1))
    with pytest.raises(emulator.LaunchError, match="asynchronous copy is not aligned"):
        launch("copies_16", x[begin:], out, np.int32(1), np.int32(1), shared=16 * BLOCK)


def test_a_copy_that_is_not_waited_for(launch):
    x, out = numbers(4 * BLOCK + 4), np.zeros(BLOCK, np.float32)
    begin = -x.ctypes.data % 16 // 4
    launch("copies_16", x[begin:], out, np.int32(0), np.int32(1), shared=16 * BLOCK)
    np.testing.assert_array_equal(out, x[begin : begin + 4 * BLOCK : 4])
    launch("copies_16", x[begin:], out, np.int32(0), np.int32(0), shared=16 * BLOCK)
    assert np.isnan(out).all()


def test_blocks_of_a_cluster(launch, module):
    """Each tells the other; without their barrier one may not have begun, without the wait one may have ended."""
    how = {"block": 32, "shared": 32}
    for seed in range(4):
        out = np.zeros(4 * 32, np.int32)
        launch("other_block", out, np.int32(16), np.int32(1), grid=4, seed=seed, **how)
        np.testing.assert_array_equal(out.reshape(4, 32)[:, 0], [1, 0, 3, 2])

    def without(barrier):
        for seed in range(1, 8):
            launch("other_block", out, np.int32(16), np.int32(1), grid=2, seed=seed, removed=barrier, **how)

    with pytest.raises(emulator.LaunchError, match=r"a store to a block that has (not begun|ended)"):
        without(2)
    with pytest.raises(emulator.LaunchError, match="a store to a block that has ended"):
        without(3)


@pytest.mark.parametrize(
    ("kernel", "arguments", "message"),
    [
        ("other_block", (np.int32(32), np.int32(1)), "barriers that do not match"),
        ("other_block", (np.int32(16), np.int32(2)), "a store to a block that has ended"),
        ("other_block_has_ended", (), "a store to a block that has ended"),
        ("a_block_leaves", (), r"CLUSTER_SYNC\(2\) not reached by all threads"),
    ],
)
def test_clusters_that_go_wrong(launch, kernel, arguments, message):
    out = () if not arguments else (np.zeros(64, np.int32),)
    with pytest.raises(emulator.LaunchError, match=message):
        launch(kernel, *out, *arguments, grid=2, block=32, shared=32)


# Elements of the fragments of mma.m16n8k16 and m16n8k32 that register i of a lane has, n in each, PTX ISA 9.7.14.5.8
# and 9.7.14.5.10: t is the lane's place in its group of four.
def fragments(a, b, n):
    group, t = np.divmod(np.arange(32), 4)
    of_a = [[a[group + 8 * (i % 2), n * t + 4 * n * (i // 2) + e] for e in range(n)] for i in range(4)]
    of_b = [[b[n * t + 4 * n * i + e, group] for e in range(n)] for i in range(2)]
    return np.array(of_a).transpose(2, 0, 1), np.array(of_b).transpose(2, 0, 1)


@pytest.mark.parametrize(
    ("kernel", "dtype", "kind", "largest"),
    [("product_of_matrices", np.float16, np.float32, 9), ("product_of_int8", np.int8, np.int32, 128)],
)
def test_products_of_matrices(launch, kernel, dtype, kind, largest):
    rng, n = np.random.default_rng(0), 4 // dtype().itemsize
    a, b = (rng.integers(-largest, largest, shape) for shape in ((16, 8 * n), (8 * n, 8)))
    c = np.zeros((32, 4), kind)
    of_a, of_b = (np.ascontiguousarray(x, dtype).reshape(32, -1) for x in fragments(a, b, n))
    launch(kernel, of_a, of_b, c, block=32)
    group, t = np.divmod(np.arange(32), 4)
    for i in range(4):
        np.testing.assert_array_equal(c[:, i], (a @ b)[group + 8 * (i // 2), 2 * t + i % 2])


def test_launches_that_cannot_be(launch):
    x, out = numbers(), np.zeros(1, np.float32)
    with pytest.raises(emulator.LaunchError, match="takes arguments p8p8, got p8f4"):
        launch("block_sum", x, 1.0)
    with pytest.raises(emulator.LaunchError, match="no kernel"):
        launch("nothing")
    with pytest.raises(emulator.LaunchError, match="bytes of dynamic shared memory"):
        launch("block_sum", x, out, shared=emulator.MAX_SHARED + 1)
    with pytest.raises(emulator.LaunchError, match="2048 threads"):
        launch("block_sum", x, out, block=2048)
    with pytest.raises(TypeError, match="no bool"):
        launch("block_sum", x, True)
