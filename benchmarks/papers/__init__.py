"""The papers' tables, reproduced: each evaluation writes one report folder."""

from .aicl import FULL, QUICK, Sizes, aicl
from .boolq import boolq
from .ragsys import ragsys
from .ralm import ralm
from .vrsd import vrsd, vrsd_answers

__all__ = ["FULL", "QUICK", "Sizes", "aicl", "boolq", "ragsys", "ralm", "vrsd", "vrsd_answers"]
