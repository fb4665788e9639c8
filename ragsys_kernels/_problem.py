"""Where the types of results had their home: pickles of then look for them here."""

from .selection.problem import SearchResult, Selection

__all__ = ["SearchResult", "Selection"]
