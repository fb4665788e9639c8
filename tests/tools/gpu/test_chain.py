"""Cycles of one warp alone, against listings whose cycles are added up by hand."""

import pytest
from machine_code import machine_code

from benchmarks.gpu import chain, sass


def cycles(*lines, passes=1, **given):
    return chain.cycles(sass.instructions(machine_code(*lines)), passes, **given)


def test_cycles_that_the_compiler_waits():
    assert cycles(("FADD R0, R0, R1", {"stall": 4}), ("FADD R0, R0, R1", {"stall": 0}), ("NOP", {"stall": 15})) == 20


def test_results_of_shuffles_are_waited_for_one_after_the_other():
    step = [
        ("SHFL.BFLY PT, R1, R0, 0x10, 0x1f", {"sets": 0}),  # at 0, there at 23
        ("FADD R0, R0, R1", {"stall": 4, "waits": {0}}),  # at 23
    ]
    assert cycles(*step) == 27
    assert cycles(*step * 5) == 5 * 27
    # The second runs while the first is on its way; both are there at 24.
    two = (("SHFL.BFLY PT, R1, R0, 0x1, 0x1f", {"sets": 0}), ("SHFL.BFLY PT, R3, R2, 0x1, 0x1f", {"sets": 1}))
    assert cycles(*two, ("FADD R0, R3, R1", {"stall": 4, "waits": {0, 1}})) == 1 + 23 + 4
    # Of one scoreboard all that set it are waited for.
    two = (two[0], ("SHFL.BFLY PT, R3, R2, 0x1, 0x1f", {"sets": 0}))
    assert cycles(*two, ("FADD R0, R3, R1", {"stall": 4, "waits": {0}})) == 1 + 23 + 4


def test_a_round_trip_through_shared_memory():
    found = cycles(
        ("STS [R2], R0", {"reads": 2, "stall": 2}),
        ("MOV R0, R1", {"waits": {2}, "stall": 2}),  # at 10: R0 has been read
        ("BAR.SYNC.DEFER_BLOCKING 0x0", {"stall": 6}),  # at 12, until 37
        ("LDS R1, [R2]", {"sets": 1, "stall": 1}),  # at 43
        ("FADD R0, R0, R1", {"waits": {1}, "stall": 4}),  # at 72
    )
    assert found == 76


@pytest.mark.parametrize(
    ("name", "latency"),
    [("LDG.E.128", 479), ("LDC", 23), ("LDS", 29), ("LDSM.16.M88.4", 33), ("MUFU.EX2", 23),
     ("ATOMS.ADD", 29), ("ATOMG.E.ADD", 479), ("LDL", 479), ("SYNCS.PHASECHK.TRANS64.TRYWAIT", 180)],
)  # fmt: skip
def test_latencies(name, latency):
    lines = ((f"{name} R1, [R2]", {"sets": 0}), ("MOV R0, R1", {"waits": {0}}))
    assert cycles(*lines) == latency + 1
    far = name.startswith(("LDG.", "ATOMG", "LDL"))
    assert cycles(*lines, memory=50) == (50 if far else latency) + 1


COPIES = [
    ("LDGSTS.E.128 [R1], desc[UR4][R2.64]", {}),
    ("LDGDEPBAR", {"sets": 0}),
]


def copies(left):
    return [*COPIES, (f"DEPBAR.LE SB0, {left}", {"stall": 4})]


def test_copies_that_are_ahead():
    """A slice is waited for one pass, or two, after its copy began."""
    assert cycles(*copies("0x0")) == 479 + 4
    assert cycles(*copies("0x1")) == 1 + 1 + 4  # it is not waited for
    # The pass in which a slice arrives cannot end sooner than 479 cycles after the copy, which began so much earlier.
    assert cycles(*copies("0x0"), passes=8) == 483
    assert cycles(*copies("0x1"), passes=8) == pytest.approx(483 / 2, abs=3)
    assert cycles(*copies("0x3"), passes=8) == pytest.approx(483 / 4, abs=3)
    long = [("FADD R0, R0, R1", {"stall": 15})] * 40
    assert cycles(*copies("0x1"), *long, passes=8) == 606


def test_products_of_a_group_of_warps():
    product, last = "HGMMA.64x128x16.F32 R24, gdesc[UR4], R24", "HGMMA.64x128x16.F32 R24, gdesc[UR4], R24, gsb0"
    wait = ("WARPGROUP.DEPBAR.LE gsb0, 0x0", {"stall": 3})
    # 64 cycles of the matrix unit each, one after the other; 32 until the last sums are there.
    assert cycles((product, {}), (product, {}), (last, {}), wait) == 3 * 64 + 32 + 3
    assert cycles((last.replace("64x128", "64x256"), {}), wait) == 128 + 32 + 3
    assert cycles((last, {}), (wait[0].replace("0x0", "0x1"), wait[1])) == 4
    # Nothing waits.
    assert cycles((last, {}), ("FADD R0, R0, R1", {"stall": 4})) == 5


def test_a_loop_that_loads_for_its_next_turn():
    """The load of a turn is waited for at the beginning of the next: its 479 cycles are a turn."""
    turn = [("FADD R0, R0, R1", {"waits": {0}, "stall": 4}), ("LDG.E R1, desc[UR4][R2.64]", {"sets": 0, "stall": 6})]
    assert cycles(*turn) == 10
    assert cycles(*turn, passes=8) == 479 + 4


def test_a_listing_without_encodings():
    with pytest.raises(ValueError, match="MOV has no encoding"):
        chain.cycles(sass.instructions("        /*0000*/   MOV R1, R2 ;"))
