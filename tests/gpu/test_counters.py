"""Counts that kernels leave at zero: of each stream its own, of each captured graph its own."""

import contextlib
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ragsys_kernels._base import arrays  # noqa: E402
from ragsys_kernels._gpu import counters  # noqa: E402


class There(contextlib.nullcontext):
    """A device, as torch and CuPy have them."""

    def __init__(self, index):
        super().__init__()
        self.type, self.index, self.id = "cuda", index, index


@pytest.fixture(params=["torch", "cupy"])
def on(request, monkeypatch):
    """Returns what is given on a stream of a device that is not there."""
    state = SimpleNamespace(stream=0, captured=False)
    monkeypatch.setattr(counters, "_counts", {})
    monkeypatch.setattr(arrays, "library_of", lambda x: request.param)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: state.captured)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=state.stream))
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda size, dtype, device: zeros(size, dtype=dtype))
    stream = SimpleNamespace(is_capturing=lambda: state.captured)
    cuda = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=state.stream, **vars(stream)))
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda, zeros=np.zeros))

    def given(stream, size=8, index=0, captured=False):
        state.stream, state.captured = stream, captured
        like = SimpleNamespace(device=There(index), **({"is_cuda": True} if request.param == "torch" else {}))
        return counters.zeros(like, size)

    return given


def test_a_stream_has_its_own(on):
    first = on(1)
    assert on(1) is first
    assert len({id(x) for x in (first, on(2), on(1, index=1))}) == 3
    assert str(first.dtype).endswith("int32")
    assert not first.any()


def test_more_are_new_ones(on):
    first = on(1, 10_000)
    assert len(first) >= 10_000
    assert on(1, len(first)) is first
    more = on(1, len(first) + 1)
    assert len(more) > len(first)
    assert on(1) is more


def test_a_graph_has_its_own(on):
    first = on(1)
    captured = [on(1, 5, captured=True) for _ in range(2)]
    assert [len(x) for x in captured] == [5, 5]
    assert captured[0] is not captured[1]
    assert on(1) is first


def test_threads_that_interpret_have_their_own(monkeypatch):
    monkeypatch.setattr(counters, "_counts", {})
    found = []
    threads = [threading.Thread(target=lambda: found.append(counters.zeros(torch.empty(0), 4))) for _ in range(2)]
    barrier = threading.Barrier(2)  # a thread that has ended would leave its number to the next
    for thread in threads:
        run = thread.run
        thread.run = lambda run=run: (run(), barrier.wait())
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] is not found[1]
