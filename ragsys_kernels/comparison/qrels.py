"""Relevance judgements in the format of TREC, and their place among the rows of a corpus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import ragsys_kernels as rk

from .._base import checks
from .._base.files import lines_of
from .._base.types import NDArray as Array
from .._base.types import PathLike
from ..corpus.ids import integer
from ..metrics import alpha_ndcg, ndcg, recall, reciprocal_rank
from .settings import OP


class Judgement(NamedTuple):
    """A line of a file of judgements; names as they stand there."""

    query: str
    subtopic: str
    document: str
    grade: int


def read(path: PathLike) -> list[Judgement]:
    """Read judgements: ``query subtopic document grade`` in each line, separated by blanks.

    The second field is "0" in most files. Files for diversity have the number of a subtopic there. A grade above 0 is
    relevant. A line of another form is a ValueError with its number.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"{OP}: qrels must be an existing file, got {path}")
    found = []
    for number, line in enumerate(lines_of(Path(path).read_bytes()), 1):
        fields = line.replace("\t", " ").split(" ")  # other blanks may be in ids
        if not any(fields):
            continue
        try:
            query, subtopic, document, grade = filter(None, fields)
            found.append(Judgement(query, subtopic, document, checks.whole(OP, "qrels", int(grade))))
        except ValueError:
            raise ValueError(
                f"{OP}: qrels must have lines of query, 0 or subtopic, document and a whole number of 64 bits, "
                f"got {line.strip()[:80]!r} in line {number} of {path}"
            ) from None
    if not found:
        raise ValueError(f"{OP}: qrels must have at least one line, got none in {path}")
    return found


def given(qrels: PathLike | Mapping[Any, Mapping[Any, int]]) -> list[Judgement]:
    """Return judgements of a file, or of a dictionary of grades by document by query."""
    if not isinstance(qrels, Mapping):
        return read(qrels)
    found = [
        Judgement(str(query), "0", str(document), checks.whole(OP, "qrels", grade, "grades that are integers"))
        for query, grades in qrels.items()
        for document, grade in grades.items()
    ]
    if not found:
        raise ValueError(f"{OP}: qrels must have at least one judgement, got none")
    return found


class Judged(NamedTuple):
    """The judgements of some queries, end to end: those of query q are ``cu[q]`` to ``cu[q + 1]``."""

    rows: Array  # (J,) int64, of the corpus; below -1 for documents that it has not, each another number
    grades: Array  # (J,) int64
    subtopics: Array  # (J,) int64, from 0
    cu: Array  # (Q + 1,) int64
    num_subtopics: int

    @property
    def absent(self) -> int:
        """How many relevant documents the corpus has not."""
        return len(np.unique(self.rows[(self.rows < 0) & (self.grades > 0)]))

    def relevant_rows(self, q: int) -> set[int]:
        """Return the rows that are relevant to a query."""
        return {row for row, grade in self._of(q).items() if grade > 0}

    def of(self, some: Array) -> Judged:
        """Return the judgements of some of the queries, each as often as it is named."""
        sizes = np.diff(self.cu)[some]
        cu = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        places = np.repeat(self.cu[some] - cu[:-1], sizes) + np.arange(cu[-1])
        return Judged(self.rows[places], self.grades[places], self.subtopics[places], cu, self.num_subtopics)

    def measures(self, indices: Array) -> dict[str, Array]:
        """Return nDCG, recall and reciprocal rank of picks (Q, K), alpha-nDCG where there are subtopics; NaN for
        queries without a relevant document."""
        each = [self._of(q) for q in range(len(self.cu) - 1)]
        cu = np.concatenate([[0], np.cumsum([len(best) for best in each])]).astype(np.int64)
        best = np.array([grade for known in each for grade in known.values()], np.float64)
        grades = np.array(
            [[known.get(row, 0) for row in picks] for known, picks in zip(each, indices.tolist(), strict=True)],
            np.float64,
        ).reshape(indices.shape)
        found = {"ndcg": ndcg(grades, best, cu), "recall": recall(grades, best, cu), "mrr": reciprocal_rank(grades)}
        found["mrr"][np.isnan(found["ndcg"])] = np.nan
        if self.num_subtopics > 1:
            found["alpha_ndcg"] = np.array([self._alpha_ndcg(q, picks) for q, picks in enumerate(indices)])
        return found

    def _of(self, q: int) -> dict[int, int]:
        """Return the best grade of each document of a query, over its subtopics; below 0 is not relevant."""
        found: dict[int, int] = {}
        part = slice(self.cu[q], self.cu[q + 1])
        for row, grade in zip(self.rows[part].tolist(), self.grades[part].tolist(), strict=True):
            found[row] = max(found.get(row, 0), grade)
        return found

    def _alpha_ndcg(self, q: int, picks: Array) -> float:
        part = slice(self.cu[q], self.cu[q + 1])
        relevant = self.grades[part] > 0
        if not relevant.any():
            return float("nan")
        judged, subtopics = self.rows[part][relevant], self.subtopics[part][relevant]
        items, places = np.unique(np.concatenate((judged, picks)), return_inverse=True)
        covers = np.zeros((len(items), self.num_subtopics), np.bool_)
        covers[places[: len(judged)], subtopics] = True
        local = np.where(picks < 0, -1, places[len(judged) :])
        return float(alpha_ndcg(local[None], covers)[0])


def relevant_queries(judgements: Sequence[Judgement]) -> set[str]:
    """Return the queries that have a relevant document."""
    return {each.query for each in judgements if each.grade > 0}


def placed(judgements: Sequence[Judgement], query_ids: Sequence[str], corpus: rk.Corpus) -> Judged:
    """Find the queries and the rows that judgements speak of; some judgement is of one of the queries.

    Where no document has a name that occurs in the judgements, ids are likely missing: a ValueError.
    """
    number = {name: q for q, name in enumerate(query_ids)}
    ours = [each for each in judgements if each.query in number]
    documents = {name: place for place, name in enumerate(dict.fromkeys(each.document for each in ours))}
    row_of = _rows(corpus, list(documents))
    if (row_of < 0).all():
        raise ValueError(
            f"{OP}: qrels must name documents by the ids of the corpus, got {ours[0].document!r} and so on where the "
            f"first row is {str(corpus.ids[np.array([0])][0])!r}"
        )
    row_of = np.where(row_of < 0, -2 - np.arange(len(row_of)), row_of)  # documents that are not there stay apart
    subtopics = {name: place for place, name in enumerate(dict.fromkeys(each.subtopic for each in ours))}
    of_query = np.array([number[each.query] for each in ours])
    order = np.argsort(of_query, kind="stable")
    return Judged(
        rows=row_of[[documents[ours[i].document] for i in order]],
        grades=np.array([ours[i].grade for i in order], np.int64),
        subtopics=np.array([subtopics[ours[i].subtopic] for i in order], np.int64),
        cu=np.searchsorted(of_query[order], np.arange(len(query_ids) + 1)).astype(np.int64),
        num_subtopics=len(subtopics),
    )


def _rows(corpus: rk.Corpus, names: list[str]) -> Array:
    if corpus.ids.kind == "str":
        return np.asarray(corpus.rows_of(names, unknown="pad"))
    numbers = [integer(name) for name in names]
    return np.asarray(corpus.rows_of([-1 if number is None else number for number in numbers], unknown="pad"))
