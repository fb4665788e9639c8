"""VRSD: the picks by the cosine of their sum (the paper's Tables 1 and 3), and the answers after them (Table 2)."""

from .answers import AnswersSummary, vrsd_answers
from .picks import VrsdSummary, vrsd

__all__ = ["AnswersSummary", "VrsdSummary", "vrsd", "vrsd_answers"]
