"""In-Context RALM: documents before a text on WikiText-103 (the paper's Table 1, Figures 3, 5, 6 and 7)."""

from .report import RalmSizes
from .run import QUICK, RalmSummary, ralm

__all__ = ["QUICK", "RalmSizes", "RalmSummary", "ralm"]
