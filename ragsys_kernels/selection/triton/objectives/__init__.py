"""The rules of regime a, a file for each; `objective.py` says what one has."""

from __future__ import annotations

from typing import Any

from .coverage import COVER, FACILITY, XQUAD
from .dpp import DPP
from .mmr import MMR
from .msd import MSD
from .objective import Objective
from .sift import SIFT
from .ssd import SSD, SSD_WINDOW
from .vrsd import VRSD

OBJECTIVES: dict[str, Objective] = {
    "mmr": MMR,
    "vrsd": VRSD,
    "msd": MSD,
    "dpp": DPP,
    "ssd": SSD,
    "ssd window": SSD_WINDOW,
    "sift": SIFT,
    "facility": FACILITY,
    "cover": COVER,
    "xquad": XQUAD,
}


def rule_of(problem: Any) -> str:
    """Return the name of a problem's rule here, where SSD in a window and kinds of coverage are rules of their own."""
    if problem.op == "ssd" and 0 < problem.options.window < most_taken(problem):
        return "ssd window"
    return str(problem.options.kind if problem.op == "coverage" else problem.op)


def most_taken(problem: Any) -> int:
    """Return how many picks and initial items a query has at most, padding of the latter included."""
    initial = problem.constraints.initial
    return int(problem.k) + (0 if initial is None else int(initial.shape[1]))
