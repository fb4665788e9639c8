"""The papers' tables made again: each evaluation writes one report folder."""

from ragsys_kernels.evaluation.aicl import FULL, QUICK, Sizes, aicl
from ragsys_kernels.evaluation.ragsys import ragsys
from ragsys_kernels.evaluation.ralm import ralm
from ragsys_kernels.evaluation.vrsd import vrsd, vrsd_answers

__all__ = ["FULL", "QUICK", "Sizes", "aicl", "ragsys", "ralm", "vrsd", "vrsd_answers"]
