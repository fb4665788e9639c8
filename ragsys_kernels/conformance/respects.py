"""The respects in which functions called MMR differ, their values in words, and the definition of the textbook."""

from __future__ import annotations

from typing import NamedTuple


class Respect(NamedTuple):
    """A respect, its values by their short names, and those that the textbook allows; None: it does not say."""

    title: str
    values: dict[str, str]
    textbook: frozenset[str] | None


DEFINITION = "MMR = argmax over items i not yet picked of λ Sim1(i, query) - (1-λ) max over picks j of Sim2(i, j)"
SOURCE = (
    "J. Carbonell and J. Goldstein, The Use of MMR, Diversity-Based Reranking for Reordering Documents and Producing "
    "Summaries, SIGIR 1998, doi:10.1145/290941.291025"
)

_SIMILARITY = {
    "cosine": "cosine",
    "dot": "dot product: rows must be unit vectors",
    "euclidean": "minus the distance",
    "squared": "minus the squared distance",
}

RESPECTS: dict[str, Respect] = {
    "first": Respect(
        "First pick",
        {
            "relevance": "the most relevant, at any λ",
            "weighted": "the largest λ · relevance: a tie where λ leaves none of it",
            "position": "the first of the list",
        },
        frozenset({"relevance", "weighted"}),
    ),
    "penalty": Respect(
        "Penalty",
        {
            "max": "largest similarity to a pick",
            "mean": "mean similarity to the picks",
            "last": "similarity to the last pick",
            "sum": "sum of the similarities to the picks",
            "min": "smallest similarity to a pick",
            "first": "similarity to the first pick",
            "none": "none: the most relevant are picked",
        },
        frozenset({"max"}),
    ),
    "weighs": Respect(
        "The weight λ",
        {
            "relevance": "weighs relevance: λ r - (1-λ) s",
            "diversity": "weighs diversity: (1-λ) r - λ s",
            "penalty": "weighs the penalty alone: r - λ s",
            "gain": "weighs relevance alone: λ r - s",
            "nothing": "is ignored: r - s",
            "no relevance": "is ignored, and so is relevance after the first pick: -s",
        },
        frozenset({"relevance"}),
    ),
    "zero_weight": Respect(
        "λ = 0",
        {"zero": "means 0", "default": "means that none was given: 0.5"},
        frozenset({"zero"}),
    ),
    "negative": Respect(
        "Negative similarity of items",
        {
            "kept": "counts as it is",
            "zero": "counts as 0",
            "absolute": "counts as positive",
            "shifted": "moved to [0, 1] with all others",
        },
        frozenset({"kept"}),
    ),
    "relevance": Respect(
        "Relevance",
        {**_SIMILARITY, "given": "what the caller gives"},
        frozenset({*_SIMILARITY, "given"}),
    ),
    "similarity": Respect("Similarity of items", _SIMILARITY, frozenset(_SIMILARITY)),
    "first_ties": Respect("Ties of the first pick", {"lowest": "lowest position", "highest": "highest position"}, None),
    "ties": Respect(
        "Ties of later picks",
        {
            "lowest": "lowest position",
            "highest": "highest position",
            "more relevant, lowest": "the more relevant, then the lowest position",
            "more relevant, highest": "the more relevant, then the highest position",
            "less relevant, lowest": "the less relevant, then the lowest position",
            "less relevant, highest": "the less relevant, then the highest position",
            "list": "the last of the list, in which the last item takes the place of one that is picked",
            "ranked list": "the last of a ranked list, in which the last item takes the place of one that is picked",
        },
        None,
    ),
    "pool": Respect(
        "Pool",
        {
            "all": "all candidates",
            "k": "the k most relevant alone, so that MMR only reorders them",
            "k, highest": "the k most relevant alone, so that MMR only reorders them; of a tie the highest position",
        },
        frozenset({"all"}),
    ),
    "duplicates": Respect("Equal rows", {"kept": "kept", "removed": "removed"}, frozenset({"kept"})),
    "order": Respect(
        "Order of the answer",
        {
            "picks": "as picked",
            "relevance": "by relevance",
            "input": "by position",
            "reversed": "last pick first",
        },
        frozenset({"picks"}),
    ),
    "more": Respect(
        "k above the number of candidates",
        {"shorter": "all of them", "padded": "padded", "error": "an error", "repeats": "items are repeated"},
        None,
    ),
    "none": Respect(
        "k = 0", {"none": "no picks", "one": "one pick", "all": "all candidates", "error": "an error"}, None
    ),
    "zero_row": Respect(
        "A row of zeros",
        {
            "zero": "has similarity 0",
            "first": "is picked first",
            "last": "is picked last",
            "left out": "is left out",
            "repeats": "makes items repeat",
            "error": "is an error",
        },
        None,
    ),
    "nan_row": Respect(
        "A row with NaN",
        {
            "first": "is picked first",
            "last": "is picked last",
            "zero": "has similarity 0",
            "left out": "is left out",
            "repeats": "makes items repeat",
            "error": "is an error",
        },
        None,
    ),
    "again": Respect(
        "The same question again", {"same": "has the same answer", "differs": "may have another answer"}, None
    ),
    "pages": Respect(
        "Second page",
        {
            "continues": "continues the first: its picks count",
            "anew": "starts anew without the items of the first",
            "repeats": "repeats items of the first",
            "empty": "is empty",
            "not offered": "not offered: ask for more picks",
        },
        None,
    ),
}
