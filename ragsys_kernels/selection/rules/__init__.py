"""The rules in float64, a class each with the state of one query, like the formulas: ``reference.py`` runs them.

A rule's ``values`` are of all items that the query may pick, and the pick is the first of the largest. A value of -inf
is an item that the rule itself does not pick. ``take`` tells it of an initial item or a pick, with the similarity of
every item to it; ``score``, ``relevance`` and ``redundancy`` are reported of a pick before it is taken.
"""

from __future__ import annotations

from collections.abc import Callable

from ..problem import Problem
from .coverage import coverage
from .dpp import DPP
from .mmr import MMR
from .msd import MSD
from .pool import Pool
from .rule import Rule
from .sift import SIFT
from .ssd import SSD
from .vrsd import VRSD

RULES: dict[str, Callable[[Problem, int, Pool], Rule]] = {
    "mmr": MMR,
    "vrsd": VRSD,
    "msd": MSD,
    "dpp": DPP,
    "ssd": SSD,
    "sift": SIFT,
    "coverage": coverage,
}
