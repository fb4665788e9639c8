"""The figures of the paper's Table 1 for the texts that are run here; it has three more."""

from __future__ import annotations

from .labels import FIRST, NONE, PREDICTIVE, RERANK

# Perplexity by text and method, of words on WikiText-103, else of tokens: GPT-2 S, M, L and XL.
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
}


def said(text: str, method: str, rival: str) -> str:
    """Return by what shares a method changes the perplexity of another, from the least to the most; "" where the paper
    has none."""
    rows = TABLE[text]
    if method not in rows or rival not in rows:
        return ""
    found = [ours / theirs - 1 for ours, theirs in zip(rows[method], rows[rival], strict=True)]
    return f"{max(found):+.1%} to {min(found):+.1%}"
