"""The figures of the paper's Table 1, whose models are GPT-2's four."""

from __future__ import annotations

from collections.abc import Sequence

from .labels import FIRST, NONE, PREDICTIVE, RERANK

MODELS = ("GPT-2 S", "GPT-2 M", "GPT-2 L", "GPT-2 XL")
# Perplexity by text and method, a column for each model: of words on WikiText-103, else of tokens.
TABLE = {
    "WikiText-103": {
        NONE: (37.5, 26.3, 22.0, 20.0),
        FIRST: (29.6, 21.5, 18.1, 16.6),
        RERANK: (28.6, 20.8, 17.6, 16.1),
        PREDICTIVE: (26.8, 19.7, 16.6, 15.4),
    },
    "RealNews": {
        NONE: (21.3, 15.7, 13.6, 12.4),
        FIRST: (16.1, 12.4, 10.9, 10.1),
        RERANK: (15.5, 12.0, 10.6, 9.8),
    },
    "ArXiv": {
        NONE: (12.0, 9.3, 8.4, 7.8),
        FIRST: (10.9, 8.6, 7.8, 7.2),
        RERANK: (10.1, 8.0, 7.3, 6.8),
    },
    "Stack Exchange": {
        NONE: (12.8, 8.8, 8.5, 8.0),
        FIRST: (11.3, 8.1, 7.8, 7.4),
        RERANK: (10.6, 7.7, 7.4, 7.1),
    },
    "FreeLaw": {
        NONE: (13.0, 9.6, 8.7, 8.0),
        FIRST: (9.6, 7.4, 6.8, 6.4),
        RERANK: (8.8, 6.9, 6.4, 6.0),
    },
}


def changes(text: str, method: str, rival: str) -> list[float]:
    """Return by what share a method changes the perplexity of another, for each model; [] where the paper has none."""
    rows = TABLE[text]
    if method not in rows or rival not in rows:
        return []
    return [ours / theirs - 1 for ours, theirs in zip(rows[method], rows[rival], strict=True)]


def said(text: str, method: str, rival: str) -> str:
    """Return the smallest and the largest of the changes, as a table has them."""
    found: Sequence[float] = changes(text, method, rival)
    return f"{max(found):+.1%} to {min(found):+.1%}" if found else ""
