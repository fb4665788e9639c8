"""The former home of the result types, where older pickles look for them."""

from .selection.problem import SearchResult, Selection

__all__ = ["SearchResult", "Selection"]
