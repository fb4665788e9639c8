"""The rules of regime a, a file for each; `objective.py` says what one has."""

from .mmr import MMR
from .objective import Objective
from .vrsd import VRSD

OBJECTIVES: dict[str, Objective] = {"mmr": MMR, "vrsd": VRSD}
