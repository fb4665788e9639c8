"""In-Context RALM: questions with retrieved passages before them, as in the paper's section 7, on BoolQ."""

from .report import BoolQResult
from .run import QUICK_QUESTIONS, BoolQSummary, boolq

__all__ = ["QUICK_QUESTIONS", "BoolQResult", "BoolQSummary", "boolq"]
