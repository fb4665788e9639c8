"""Rules of selection compared on one's own corpus and queries: a table, a recommendation, a report."""

from .result import Comparison
from .run import compare

__all__ = ["Comparison", "compare"]
