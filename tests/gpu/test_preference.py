"""Which backend `auto` takes for arrays on a device: by shape, by one table, which benchmarks/gpu writes."""

from pathlib import Path

import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels import _dispatch, testing
from ragsys_kernels._base import arrays as _arrays
from ragsys_kernels._gpu import preference
from ragsys_kernels._gpu.preference import Pools

TABLE = {("mmr", "float16"): (Pools(129, 200, 384), Pools(201, 300, 64))}

torch = pytest.importorskip("torch")

from benchmarks.gpu import preference as writer  # noqa: E402


@pytest.fixture
def tabled(monkeypatch):
    monkeypatch.setattr(preference, "TABLE", TABLE)


@pytest.mark.parametrize(
    ("call", "first"),
    [
        (("mmr", "float16", 129, 384), "cuda"),
        (("mmr", "bfloat16", 200, 1), "cuda"),
        (("mmr", "float16", 201, 65), "triton"),
        (("mmr", "float16", 300, 64), "cuda"),
        (("mmr", "float16", 128, 64), "triton"),
        (("mmr", "float16", 301, 64), "triton"),
        (("mmr", "float32", 150, 64), "triton"),
        (("vrsd", "float16", 150, 64), "triton"),
        (None, "triton"),
    ],
)
def test_auto_goes_by_the_shape(tabled, monkeypatch, call, first):
    pytest.importorskip("triton")
    can_run = {"triton": True, "cuda": True}
    monkeypatch.setattr(_dispatch, "why_not", lambda name: None if can_run[name] else "it is not installed")
    assert _dispatch.choose("mmr", "selection", "cuda:0", "auto", call)[0] == first
    other = "triton" if first == "cuda" else "cuda"
    assert _dispatch.choose("mmr", "selection", "cuda:0", other, call)[0] == other  # asked for by name
    can_run[first] = False
    assert _dispatch.choose("mmr", "selection", "cuda:0", "auto", call)[0] == other
    with pytest.raises(rk.BackendUnavailableError, match="it is not installed"):
        _dispatch.choose("mmr", "selection", "cuda:0", first, call)


class Cupy:
    """An array as CuPy's look, of another library than torch."""

    def __init__(self, array):
        self.shape, self.dtype = array.shape, array.dtype


@pytest.mark.parametrize("library", [torch.as_tensor, Cupy], ids=["torch", "cupy"])
def test_calls_are_described_alike_whatever_the_library(library):
    problem = testing.selection_problem(2, 8, 3, 5, dtype="float16")
    arrays = {name: library(problem[name]) for name in ("embeddings", "candidates")}
    assert preference.of("mmr", arrays) == ("mmr", "float16", 8, 5)
    dense = {"embeddings": library(np.zeros((2, 7, 6), np.float32)), "candidates": None}
    assert preference.of("vrsd", dense) == ("vrsd", "float32", 7, 6)
    assert preference.of("mmr", {**arrays, "candidates": None}) is None  # the whole corpus
    for bad in ([[1, 2]], 3, library(np.zeros(4, int))):
        assert preference.of("mmr", {**arrays, "candidates": bad}) is None
    assert preference.of("mmr", {**arrays, "embeddings": [[1.0]]}) is None


def test_public_calls_tell_their_shape(place, tabled, monkeypatch):
    asked = []

    def choose(op, family, device, backend, call, lacking):
        asked.append((op, device, call))
        raise rk.BackendUnavailableError("no more is needed")

    monkeypatch.setattr(_dispatch, "choose", choose)
    for on in (torch.as_tensor, np.asarray):
        problem = testing.selection_problem(2, 150, 3, 5)
        problem = {name: on(x) if isinstance(x, np.ndarray) else x for name, x in problem.items()}
        with pytest.raises(rk.BackendUnavailableError):
            rk.mmr(**problem)
    assert asked == [("mmr", "cuda:0", ("mmr", "float32", 150, 5)), ("mmr", "cpu", None)]


def test_bits_of_16_bit_floats_reach_torch_from_another_library(monkeypatch):
    """CuPy's arrays of bfloat16 are given to torch as integers, as which all versions can hand them over."""
    bits = np.array([0x3F80, 0xC000], np.uint16)

    class Array(Cupy):
        def __init__(self, array, dtype):
            super().__init__(array)
            self.array, self.dtype = array, dtype

        def view(self, dtype):
            return self.array.view(dtype)

    monkeypatch.setattr(_arrays, "device_of", lambda x: "cuda:0")
    tensor, dtype = _arrays.Torch("cpu").view("mmr", "queries", Array(bits, "bfloat16"))
    assert dtype == "bfloat16"
    assert tensor.tolist() == [1.0, -2.0]


# --- The table.


def test_the_table_is_what_the_kernels_need():
    pytest.importorskip("triton")
    source, table = writer.choice()
    again = "run `python -m benchmarks.gpu.preference`"
    assert (source, table) == (preference.SOURCE, preference.TABLE), again


def test_intervals_of_pools_with_the_same_dimensions_are_one(monkeypatch):
    monkeypatch.setattr(writer, "POOLS", (0, 10, 20, 30, 40))
    monkeypatch.setattr(writer, "DIMS", (1, 2, 3))
    least = {10: 9, 20: 2, 30: 2, 40: 1}  # dimensions from which Triton is as fast
    table = writer.table(lambda op, dtype, P, D: 2.0 if least[P] > D else 1.0)
    assert table["mmr", "float32"] == (Pools(1, 10, 3), Pools(11, 30, 1))
    assert writer.table(lambda *_: 1.0) == {}


def timed(us, *, op="mmr", P=100, K=10, Q=2_000, backend="cuda", variant="", state="", **more):
    """A row of gpu.csv."""
    contender = ", ".join(filter(None, (writer.OURS, variant)))
    shape = str(writer.Shape(P, K, 384, "float16", Q))
    row = {"op": op, "dtype": "float16", "device": "x", "backend": backend, "contender": contender, "shape": shape}
    row |= {"iqr_us": "", "spread": "", "commit": "0123abc", "date": "2026-12-01", **more}
    return {**row, "us": "" if us is None else str(us), "state": state}


def test_times_take_the_place_of_bounds():
    assert writer.by_times([]) is None
    assert writer.by_times([timed(8)]) is None
    times = {("triton", 100): 8, ("cuda", 100): 20, ("triton", 1000): 300, ("cuda", 1000): 100}
    faster = writer.by_times([timed(us, P=P, backend=backend) for (backend, P), us in times.items()])
    assert faster("mmr", "float16", 128, 384) == 0.4
    assert faster("mmr", "float16", 300, 768) == 3.0
    assert faster("vrsd", "float16", 300, 768) == 1.0


@pytest.mark.parametrize("more", [{"commit": "4567def"}, {"date": "2026-12-02"}])
def test_only_times_of_one_run_are_compared(more):
    assert writer.by_times([timed(60, backend="triton"), timed(30, **more)]) is None


@pytest.mark.parametrize(("more", "noise"), [({}, 0.03), ({"iqr_us": "5"}, 0.1), ({"spread": "0.2"}, 0.2)])
def test_times_that_differ_by_no_more_than_they_vary_are_the_same(more, noise):
    for share, first in ((noise - 0.01, False), (noise + 0.01, True)):
        rows = [timed(50 * (1 + share), backend="triton"), timed(50, **more)]
        assert (writer.by_times(rows)("mmr", "float16", 100, 384) > 1) == first
        assert bool(writer.table(writer.by_times(rows), writer.TIMED_MARGIN)) == first
    assert writer.by_times([timed(50, backend="triton"), timed(51)])("mmr", "float16", 100, 384) < 1


def test_backends_are_compared_by_the_fastest_form_that_the_package_has():
    rows = [timed(60, backend="triton", P=1000), timed(50, P=1000), timed(30, P=1000, variant="pools=held")]
    rows += [timed(5, P=1000, variant="pools=held, one block a multiprocessor"), timed(1, P=1000, variant="pools=lost")]
    for some in (rows, rows[::-1]):
        assert writer.by_times(some)("mmr", "float16", 1000, 384) == 2.0


def test_a_form_without_a_time_is_none():
    rows = [timed(60, backend="triton"), timed(None, state="wrong")]
    assert writer.by_times(rows) is None


@pytest.mark.parametrize(("us", "ratio"), [(90.0, 2.0), (90.1, 0.0)])
def test_a_form_above_its_limit_is_not_the_first(us, ratio):
    """Nor do times of other shapes make it the first."""
    rows = [timed(180, backend="triton"), timed(us), timed(180, backend="triton", P=20), timed(18, P=20)]
    rows += [timed(180, backend="triton", Q=100_000), timed(18, Q=100_000)]
    assert writer.by_times(rows)("mmr", "float16", 100, 384) == pytest.approx(ratio)


def test_times_of_one_shape_are_compared():
    """Not those of other numbers of picks or queries, and of several shapes those of the usual one."""
    rows = [timed(100, backend="triton", Q=Q, K=K) for Q, K in ((20_000, 10), (2_000, 10), (500, 1))]
    rows += [timed(10, Q=20_000), timed(50, Q=2_000), timed(1, Q=500, K=1)]
    for some in (rows, rows[::-1]):
        assert writer.by_times(some)("mmr", "float16", 100, 384) == 2.0
    assert writer.by_times([timed(100, backend="triton", K=1), timed(10, K=10)]) is None


def test_the_table_is_written_into_its_module():
    text = Path(preference.__file__).read_text(encoding="utf-8")
    assert writer.written(text, preference.SOURCE, preference.TABLE) == text
    scope = {}
    other = writer.written(text, "by chance", TABLE)
    exec(compile(other, "preference", "exec"), scope)
    assert (scope["SOURCE"], scope["order"](("mmr", "float16", 150, 64))[0]) == ("by chance", "cuda")
    empty = writer.written(other, "by nothing", {})
    exec(compile(empty, "preference", "exec"), scope)
    assert scope["TABLE"] == {}
    assert scope["described"]() == "triton; by nothing"
