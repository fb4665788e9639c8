"""The model of the GPU: its arithmetic on figures made by hand, and what it says of the ledgers at hand."""

import math

import pytest
from machine_code import machine_code

from benchmarks.gpu import compiled, forms, goals, model, shapes, static
from benchmarks.gpu.compilation import Task
from benchmarks.gpu.resources import Compiled
from benchmarks.harness import ledger


@pytest.fixture
def case():
    """A case with 1,056 programs, on 132 multiprocessors: eight of each."""

    def made(**changed):
        given = {
            "op": "mmr", "shape": "P100", "dtype": "float16", "words": ("gram",), "unit": "queries", "units": 10,
            "programs": 1056, "floor": 1e6, "once": 42e6, "flops": 989e6, "matrix": True, "cached": 45e6,
        }  # fmt: skip
        return static.Case(**{**given, **changed})

    return made


# Of one warp and 255 registers: eight live on a multiprocessor, two on a scheduler. Of 80 registers: 24.
KERNEL = Compiled("a gram kernel", "sm_90", 32, 255, 0, 0, 0)
# 10 + 3 x 100 + 12 x 20 = 550 instructions, 50 + 3 x 300 + 12 x 60 = 1,670 cycles of one warp; 1,310 where loads in
# loops are cached.
COUNT = model.Count(("10", "100M", "20"), (50.0, 300.0, 60.0), (20.0, 180.0, 60.0))


def test_seconds_of_each_limit(case):
    # 1,056 warps on 528 schedulers: each takes its own cycles, and those in which the other one issues.
    found = model.seconds(model.Work(case(), (3, 12)), KERNEL, COUNT)
    assert found["latency"] == pytest.approx((1670 + 550) / 1.98e9)
    assert found["memory"] == pytest.approx(42e6 / 4.2e12)
    assert found["products"] == pytest.approx(989e6 / 989e12)
    assert found["cache"] == pytest.approx(45e6 / (5120 * 1.98e9))
    cached = model.seconds(model.Work(case(), (3, 12), cached=True), KERNEL, COUNT)
    assert cached["latency"] == pytest.approx((1310 + 550) / 1.98e9)
    # Twice as many and a few: the third wave takes as long as the others.
    again = model.seconds(model.Work(case(programs=2 * 1056 + 132), (3, 12)), KERNEL, COUNT)
    assert again["latency"] == pytest.approx(3 * found["latency"])
    # Fewer than a scheduler could take share it; of one nobody waits for another.
    many = Compiled("a gram kernel", "sm_90", 32, 80, 0, 0, 0)
    assert model.seconds(model.Work(case(), (3, 12)), many, COUNT) == found
    one = model.seconds(model.Work(case(programs=132), (3, 12)), many, COUNT)
    assert one["latency"] == pytest.approx(1670 / 1.98e9)
    # Six warps issue for longer than one waits.
    most = model.seconds(model.Work(case(programs=24 * 132), (3, 12)), many, COUNT)
    assert most["instructions"] == pytest.approx((1670 + 5 * 550) / 1.98e9)
    assert "latency" not in most
    assert set(model.seconds(model.Work(case(), None), KERNEL, None)) == {"memory", "products", "cache"}


def test_a_kernel_that_was_not_counted(case):
    with pytest.raises(SystemExit, match=r"model\.csv lacks a gram kernel: run"):
        model.seconds(model.Work(case(), (3, 12)), KERNEL, None)


def test_code_of_its_own_for_each_warp(case):
    four = Compiled("a gram kernel", "sm_90", 128, 126, 0, 0, 0)
    # 1,000 + 3 x 200 + 3 x 240 + 10 x 50 + 7 + 1 x 9 instructions of four warps together; cycles likewise.
    work = model.Work(case(), marked={"MB": 3, "RS": 10})
    cycles = (4000.0, 700.0, 800.0, 300.0, 20.0, 30.0)
    count = model.Count(("1000S", "200MB", "240MB", "50RS", "7", "9RSB"), cycles, cycles)
    alone = 4000 + 3 * 700 + 3 * 800 + 10 * 300 + 20 + 30
    assert model.of_a_warp(work, four.name, count, 4) == pytest.approx((2836 / 4, alone / 4))
    # Four blocks at a time, four warps on a scheduler; 1,056 programs are two waves.
    found = model.seconds(work, four, count)["latency"]
    assert found == pytest.approx(2 * (alone + 3 * 2836) / 4 / 1.98e9)


def test_loops_that_are_no_longer_those_that_were_looked_at(case):
    with pytest.raises(SystemExit, match="a gram kernel has 1 loops by now, of 100 instructions: say in"):
        model.seconds(model.Work(case(), (3, 12)), KERNEL, model.Count(("10", "100"), (1.0, 1.0), (1.0, 1.0)))


def test_what_is_kept_of_machine_code():
    """Each loop by itself: its length, and whether it has matrix instructions, reductions, stores, barriers; cycles."""
    listing = machine_code(
        ("LDG.E R1, desc[UR4][R2.64]", {"sets": 0}),
        ("MOV R2, R1", {"waits": {0}}),
        ".L_x_0:",
        ("BAR.SYNC.DEFER_BLOCKING 0x0", {"stall": 5}),
        ".L_x_1:",
        ("HGMMA.64x128x16.F32 R24, gdesc[UR4]", {}),
        ("@P0 BRA `(.L_x_1)", {"stall": 5}),
        ("REDUX.MAX.S32 UR4, R2", {}),
        ("@P1 BRA `(.L_x_0)", {"stall": 4}),
        ("STG.E R2, R4", {}),
    )
    assert model.count(listing) == {"instructions": "3 3RB 2M", "chain": "481 35 6", "cached": "43 35 6"}


def form_of(case, **changed):
    given = {"works": (model.Work(case(), (3, 12)), model.Work(case(once=420e6), times=2)), "launches": 3, "empty": 1}
    return model.Form(shapes.Pools(100, 10, 384, "float16"), "triton", **{**given, **changed})


def test_a_call_is_its_launches(case):
    us, limits = model.predict(form_of(case), {KERNEL.name: KERNEL}, {KERNEL.name: COUNT})
    # 10 µs of memory, which take longer than the instructions; twice 100; three launches and one that finds nothing.
    assert us == pytest.approx(10 + 2 * 100 + 3 * 4.4 + 2)
    assert limits == "memory"


def test_what_was_measured_stands_beside_it(case):
    texts = compiled.LEDGER.texts(compiled.row_of(Task("sm_90", "a", "digest"), KERNEL, "triton 3.9.0"))
    counted = [{"kernel": KERNEL.name, "compiler": "triton 3.9.0", "source": "digest", "instructions": "10 100M 20"}]
    counted[0] |= {"chain": "50 300 60", "cached": "50 180 60"}
    row = {"op": "mmr", "backend": "triton", "shape": "N2000003-D384-P100-K10-Q2000", "dtype": "float16"}
    row |= {"device": "NVIDIA H200", "contender": "ragsys_kernels", "us": "290", "graph_us": "280"}
    calls = [form_of(case), form_of(case, measured=None)]

    def found(measured):
        return model.predictions([texts], counted, measured, calls)

    near, unknown = found([row])
    assert near.us == pytest.approx(225.2)
    assert (near.measured, near.off, near.understood) == (280, pytest.approx(225.2 / 280 - 1), True)
    assert (unknown.measured, unknown.understood) == (None, True)
    assert math.isnan(unknown.off)
    assert not found([{**row, "graph_us": "", "us": "301"}])[0].understood
    assert found([{**row, "device": "NVIDIA H100"}])[0].measured is None
    counted[0]["source"] = "another"
    with pytest.raises(SystemExit, match=r"model\.csv has counts of kernels that have changed since: a gram kernel"):
        found([row])


# --- What is kept.


def read(name):
    return ledger.read(ledger.RESULTS / f"{name}.csv")


# What the model does not explain, and by how much it is off.
NOT_UNDERSTOOD = {("mmr N100000-D384-Pall-K6-Q256, float16", "triton")}


def test_what_was_measured_is_predicted_or_named_as_not_understood():
    pytest.importorskip("triton")
    found = model.predictions(*(read(name) for name in ("compiled", "model", "gpu")))
    off = {(one.form.name, one.form.backend): one.off for one in found if not one.understood}
    assert set(off) == NOT_UNDERSTOOD
    assert sum(one.measured is not None for one in found) >= 14


def test_all_kernels_of_the_model_are_counted():
    pytest.importorskip("triton")
    rows = {row["kernel"]: row for row in model._of_hopper(read("compiled"))}
    counted = {row["kernel"]: row for row in read("model")}
    wanted = {w.case.kernel(rows) for form in model.forms() for w in form.works if w.counted}
    assert set(counted) == wanted
    assert all(counted[name][x] == rows[name][x] for name in wanted for x in ("source", "compiler"))


# The launches of a search by values, of many kernels, are not described. Changes (`forms.CHANGES`) are not compiled.
WITHOUT = {("search N100000-D384-Pall-K100-Q256, float16", "triton, search=values")}


def test_what_the_race_times_is_predicted():
    pytest.importorskip("triton")
    known = {(form.name, form.backend, form.variant) for form in model.forms()}
    timed = {(goal.title, form) for goal in goals.GOALS for form in forms.of(goal.shape) if not form.change}
    assert {(title, form.name) for title, form in timed if (title, *form[:2]) not in known} == WITHOUT
