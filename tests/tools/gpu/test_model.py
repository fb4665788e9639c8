"""The model of the GPU: its arithmetic on figures made by hand, and what it says of the ledgers at hand."""

import math

import pytest

from benchmarks.gpu import compiled, model, shapes, static
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


# Of one warp and 255 registers: eight live on a multiprocessor, two on a scheduler. Of 168 and 80 registers: 12 and 24.
KERNEL = Compiled("a gram kernel", "sm_90", 32, 255, 0, 0, 0)


@pytest.mark.parametrize(("warps", "cycles"), [(0.5, 2.25), (2, 2.25), (3, 1.675), (4, 1.1), (16, 1.1)])
def test_slots_of_a_scheduler(warps, cycles):
    assert model.slot(warps) == pytest.approx(cycles)


def test_seconds_of_each_limit(case):
    # 10 + 3 x 100 + 12 x 20 instructions of each of 1,056 warps, by 528 schedulers of which each has two.
    found = model.seconds(model.Work(case(), (3, 12)), KERNEL, ("10", "100M", "20"))
    assert found["instructions"] == pytest.approx(2 * 550 * 2.25 / 1.98e9)
    assert found["memory"] == pytest.approx(42e6 / 4.2e12)
    assert found["products"] == pytest.approx(989e6 / 989e12)
    assert found["cache"] == pytest.approx(45e6 / (5120 * 1.755e9))
    # Twice as many and a few: the third wave takes as long as the others.
    again = model.seconds(model.Work(case(programs=2 * 1056 + 132), (3, 12)), KERNEL, ("10", "100M", "20"))
    assert again["instructions"] == pytest.approx(3 * found["instructions"])
    # Fewer than a scheduler could take choose from fewer.
    many = Compiled("a gram kernel", "sm_90", 32, 80, 0, 0, 0)
    assert model.seconds(model.Work(case(), (3, 12)), many, ("10", "100M", "20")) == found
    most = model.seconds(model.Work(case(programs=24 * 132), (3, 12)), many, ("10", "100M", "20"))
    assert most["instructions"] == pytest.approx(24 / 4 * 550 * 1.1 / 1.98e9)
    assert "instructions" not in model.seconds(model.Work(case(), None), KERNEL, ())


def test_code_of_its_own_for_each_warp(case):
    four = Compiled("a gram kernel", "sm_90", 128, 126, 0, 0, 0)
    # 1,000 + 3 x 200 + 3 x 240 + 10 x 50 + 7 + 1 x 9 instructions of four warps together.
    work = model.Work(case(), marked={"MB": 3, "RS": 10})
    sizes = ("1000S", "200MB", "240MB", "50RS", "7", "9RSB")
    assert model.of_a_warp(work, four.name, sizes, 4) == pytest.approx(2836 / 4)
    found = model.seconds(work, four, sizes)["instructions"]
    assert found == pytest.approx(2 * 2836 / 4 * 4 * 1.1 / 1.98e9)  # four blocks at a time, four warps on a scheduler


def test_loops_that_are_no_longer_those_that_were_looked_at(case):
    with pytest.raises(SystemExit, match="a gram kernel has 1 loops by now, of 100 instructions: say in"):
        model.seconds(model.Work(case(), (3, 12)), KERNEL, ("10", "100"))


def test_what_is_kept_of_machine_code():
    """Each loop by itself: its length, and whether it has matrix instructions, reductions, stores, barriers."""
    listing = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_0:
        /*0010*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
.L_x_1:
        /*0020*/                   HGMMA.64x128x16.F32 R24, gdesc[UR4] ;
        /*0030*/               @P0 BRA `(.L_x_1) ;
        /*0040*/                   REDUX.MAX.S32 UR4, R2 ;
        /*0050*/               @P1 BRA `(.L_x_0) ;
        /*0060*/                   STG.E R2, R4 ;
        /*0070*/                   EXIT ;
"""
    assert model.count(Compiled("rsk", "sm_90", 0, 32, 0, 0, 0, asm=listing)) == "3 3RB 2M"


def form_of(case, **changed):
    given = {"works": (model.Work(case(), (3, 12)), model.Work(case(once=420e6), times=2)), "launches": 3, "empty": 1}
    return model.Form(shapes.Pools(100, 10, 384, "float16"), "triton", **{**given, **changed})


def test_a_call_is_its_launches(case):
    us, limits = model.predict(form_of(case), {KERNEL.name: KERNEL}, {KERNEL.name: ("10", "100M", "20")})
    # 10 µs of memory, which take longer than the instructions; twice 100; three launches and one that finds nothing.
    assert us == pytest.approx(10 + 2 * 100 + 3 * 4.4 + 2)
    assert limits == "memory"


def test_what_was_measured_stands_beside_it(case):
    texts = compiled.LEDGER.texts(compiled.row_of(Task("sm_90", "a", "digest"), KERNEL, "triton 3.9.0"))
    counted = [{"kernel": KERNEL.name, "compiler": "triton 3.9.0", "source": "digest", "instructions": "10 100M 20"}]
    row = {"op": "mmr", "backend": "triton", "shape": "N2000003-D384-P100-K10-Q2000", "dtype": "float16"}
    row |= {"device": "NVIDIA H200", "contender": "ragsys_kernels", "us": "290", "graph_us": "280"}
    forms = [form_of(case), form_of(case, measured=None)]

    def found(measured):
        return model.predictions([texts], counted, measured, forms)

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
