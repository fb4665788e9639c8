"""The papers' tables made again: each evaluation writes one report folder."""

from ragsys_kernels.evaluation.ragsys import ragsys
from ragsys_kernels.evaluation.ralm import ralm
from ragsys_kernels.evaluation.vrsd import vrsd

__all__ = ["ragsys", "ralm", "vrsd"]
