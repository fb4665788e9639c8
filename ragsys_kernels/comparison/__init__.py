"""Rules of selection compared on one's own corpus and queries: a table, a recommendation, a report."""

from .files import compare_files
from .result import Comparison
from .run import compare

__all__ = ["Comparison", "compare", "compare_files"]
