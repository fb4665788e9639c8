"""The rules of regime a, a file for each; `objective.py` says what one has."""

from __future__ import annotations

from typing import Any

from .coverage import COVER, FACILITY, XQUAD
from .dpp import DPP
from .mmr import MMR
from .msd import MSD
from .objective import Objective
from .sift import SIFT
from .ssd import SSD
from .vrsd import VRSD

OBJECTIVES: dict[str, Objective] = {
    "mmr": MMR,
    "vrsd": VRSD,
    "msd": MSD,
    "dpp": DPP,
    "ssd": SSD,
    "sift": SIFT,
    "facility": FACILITY,
    "cover": COVER,
    "xquad": XQUAD,
}


def rule_of(problem: Any) -> str:
    """Return the name of a problem's rule here, where kinds of coverage are rules of their own."""
    return str(problem.options.kind if problem.op == "coverage" else problem.op)
