"""The table of which backend `auto` takes for arrays on a device, as benchmarks/gpu writes it by bounds or times."""

from pathlib import Path

import pytest

from ragsys_kernels._gpu import preference
from ragsys_kernels._gpu.preference import Pools

TABLE = {("mmr", "float16"): (Pools(129, 200, 384), Pools(201, 300, 64))}

pytest.importorskip("torch")

from benchmarks.gpu import preference as writer  # noqa: E402


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
    rows = [timed(60, backend="triton", P=1000), timed(50, P=1000), timed(30, P=1000, variant="corpus=dense")]
    rows += [
        timed(5, P=1000, variant="corpus=dense, one block a multiprocessor"),
        timed(1, P=1000, variant="corpus=lost"),
    ]
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
