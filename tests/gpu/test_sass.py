"""Counts of instructions in machine code, against a listing counted by hand."""

import pytest

from ragsys_kernels._gpu import sass

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


def test_counts():
    assert sass.count(LISTING, (3, 12)) == 5 + 3 * 3 + 12 * 3
    assert sass.count(LISTING, (3, 12), "HMMA") == 24
    assert sass.count(LISTING, (3, 12), r"^LD[CG]\b") == 1 + 3
    with pytest.raises(ValueError, match=r"the kernel has 2 loops \(.*: 3 in 0, 3 in 1\), got 1"):
        sass.count(LISTING, (3,))
