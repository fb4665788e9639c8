"""In-Context RALM: documents before a text on WikiText-103 (the paper's Table 1, Figures 3, 5, 6 and 7)."""

from ragsys_kernels.evaluation.ralm.report import RalmSizes
from ragsys_kernels.evaluation.ralm.run import QUICK, RalmSummary, ralm

__all__ = ["QUICK", "RalmSizes", "RalmSummary", "ralm"]
