"""Loops in machine code, against a listing counted by hand."""

from benchmarks.gpu import sass

LISTING = """
.text.kernel:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   MOV R2, R1 ;
.L_x_2:
        /*0020*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0030*/               @P0 BRA `(.L_x_1) ;
.L_x_0:
        /*0040*/                   HMMA.16816.F32 R4, R4, R8, R4 ;
        /*0050*/              @!P1 HMMA.16816.F32 R4, R4, R8, R4 ;
        /*0060*/               @P0 BRA `(.L_x_0) ;
.L_x_1:
        /*0070*/               @P2 BRA `(.L_x_2) ;
        /*0080*/                   STG.E R2, R4 ;
        /*0090*/                   EXIT ;
.L_x_3:
        /*00a0*/                   BRA `(.L_x_3);
"""


def test_loops_and_what_is_in_them():
    outside, (outer, inner) = sass.loops(LISTING)
    assert [name.split(".")[0] for name in outside] == ["LDC", "MOV", "STG", "EXIT", "BRA"]
    assert (outer.own, outer.outer) == (("LDG.E.128", "BRA", "BRA"), ())
    assert (inner.own, inner.outer) == (("HMMA.16816.F32", "HMMA.16816.F32", "BRA"), (0,))


SKIPPED = """
.L_x_0:
        /*0000*/                   ISETP.NE R1, R2 ;
        /*0010*/               @P0 BRA `(.L_x_1) ;
        /*0020*/                   HMMA.16816.F32 R4, R4, R8, R4 ;
        /*0030*/                   HMMA.16816.F32 R4, R4, R8, R4 ;
.L_x_1:
        /*0040*/               @P1 BRA `(.L_x_2) ;
        /*0050*/                   FADD R1, R1, R2 ;
.L_x_2:
        /*0060*/               @P2 BRA `(.L_x_4) ;
        /*0070*/                   MOV R1, R2 ;
        /*0080*/               @P3 BRA `(.L_x_0) ;
        /*0090*/               @P4 BRA `(.L_x_4) ;
        /*00a0*/                   MOV R3, R2 ;
.L_x_3:
        /*00b0*/                   HMMA.16816.F32 R4, R4, R8, R4 ;
        /*00c0*/               @P0 BRA `(.L_x_3) ;
.L_x_4:
        /*00d0*/                   EXIT ;
"""


def test_products_that_a_branch_skips_are_a_part():
    """What skips other things is none, nor what leads out of a loop, nor a guard around a loop with the products."""
    outside, parts = sass.parts(SKIPPED)
    assert len(outside) == 3
    assert [(part.first, part.last, part.outer, len(part.own)) for part in parts] == [
        (0, 8, (), 7),
        (2, 3, (0,), 2),
        (11, 12, (), 2),
    ]
    assert sum(len(part.own) for part in parts) + len(outside) == 14


def test_long_stretches_that_a_branch_skips_are_parts_of_a_kernel_without_loops(monkeypatch):
    monkeypatch.setattr(sass, "LONG", 2)
    outside, parts = sass.parts(SKIPPED.replace("(.L_x_0)", "(.L_x_4)").replace("(.L_x_3)", "(.L_x_4)"))
    # From the branch at 0010 on, not the one instruction after 0040; all that the last three lead past.
    assert [(part.first, part.last, len(part.own)) for part in parts] == [
        (2, 3, 2),
        (7, 12, 2),
        (9, 12, 1),
        (10, 12, 3),
    ]
    assert len(outside) == 14 - 8
