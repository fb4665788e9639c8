"""The methods of the In-Context RALM evaluation by name, their order, and which are compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ragsys_kernels.icl.retrievers import Rule

RULE = Rule("mmr", 0.5)
NONE, SHORT, ANY = "no document", "no document, prefix as short", "any passage"
FIRST, RANDOM, RERANK, ORACLE = "BM25, first", "BM25, random", "BM25, reranked", "BM25, oracle"
FRONT, PREDICTIVE = "BM25, first, in front", "BM25, predictive"
DENSE, PAIR, DIVERSE = "dense, first", "BM25, first two", f"BM25, two by {RULE.label}"
OWN = "own article"
BY, FURTHER = f"{RERANK} by ", "dense ("  # how the names of methods of a second model and of a further encoder begin
_ORDER = (NONE, SHORT, ANY, RANDOM, FIRST, FRONT, RERANK, BY, PREDICTIVE, ORACLE, DENSE, FURTHER, PAIR, DIVERSE, OWN)


def order(label: str) -> int:
    """Return the place of a method in tables."""
    if label in _ORDER:
        return _ORDER.index(label)
    return _ORDER.index(BY if label.startswith(BY) else FURTHER)


def beginning(labels: Iterable[str], start: str) -> list[str]:
    """Return the methods whose names begin so: with `BY`, or `FURTHER`."""
    return [label for label in labels if label.startswith(start)]


# (method, rival, what their difference says)
_PAIRS = (
    (FIRST, NONE, "what retrieval is worth in all"),
    (RERANK, NONE, "the same with reranking"),
    (RERANK, FIRST, "what zero-shot reranking adds"),
    (PREDICTIVE, FIRST, "what a ranker adds that was trained on the model's own signal"),
    (PREDICTIVE, RERANK, "the same against zero-shot reranking"),
    (ORACLE, FIRST, "what a perfect choice would bring"),
    (ORACLE, RERANK, "what a perfect choice would add to zero-shot reranking"),
    (SHORT, NONE, "the price of the prefix that a document overwrites"),
    (FIRST, SHORT, "what the document says, the prefix being as short"),
    (FRONT, NONE, "a document in front of the whole window, for which the model has room"),
    (FRONT, FIRST, "the same against the document over the window's first tokens"),
    (FIRST, ANY, "what retrieval says, against any passage of the collection"),
    (OWN, NONE, "what a document on the subject is worth, which the collection has not"),
    (FIRST, DENSE, "BM25 against the dense retriever"),
    (DIVERSE, PAIR, "two documents of half the length by MMR, against BM25's first two"),
    (PAIR, FIRST, "two documents of half the length against one"),
)


def pairs(labels: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Return the comparisons of a run: those of methods that it has."""
    known = list(labels)
    others = [(FIRST, label, "BM25 against the further dense retriever") for label in beginning(known, FURTHER)]
    for label in beginning(known, BY):
        others += [(label, FIRST, "what zero-shot reranking by a second model adds"),
                   (label, RERANK, "the same against reranking by the model itself")]  # fmt: skip
    return (pair for pair in (*_PAIRS, *others) if pair[0] in known and pair[1] in known)
