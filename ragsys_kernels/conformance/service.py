"""A service that speaks ``/v1/select``: its corpus must have the rows of all sets, which `vectors` gives."""

from __future__ import annotations

from functools import cache

import numpy as np

from .._base.extras import needed
from .adapters import Adapter
from .probe import CannotAskError
from .sets import EQUAL_ROWS, NAN_ROW, POOLS, STAGES, ZERO_ROW
from .variants import Question


@cache
def _places() -> dict[tuple[tuple[float, ...], ...], int]:
    """Return where the rows of each set begin in `vectors`."""
    questions = [question for stage in STAGES for question in stage.questions]
    found: dict[tuple[tuple[float, ...], ...], int] = {}
    begin = 0
    for question in (*questions, EQUAL_ROWS, ZERO_ROW, *POOLS):
        if question.rows not in found:
            found[question.rows] = begin
            begin += len(question.rows)
    return found


def vectors() -> np.ndarray:
    """Return the rows of all designed sets, (M, 8) float32: the corpus of a service that `conform_service` asks.

    The row numbers are the ids.
    """
    return np.concatenate([np.array(rows, np.float32) for rows in _places()])


class Service(Adapter):
    """Asks ``/v1/select`` by the client, with the rows of a set as candidates."""

    name, takes, weight, pages = "/v1/select", "either", "lambda_d", True

    def __init__(self, url: str, corpus: str | None, token: str | None) -> None:
        with needed("conform", "serve"):
            from ..serving import Client

        self._client = Client(url, corpus=corpus, token=token, wire="json")

    def close(self) -> None:
        self._client.close()

    def ask(self, question: Question, shown: tuple[int, ...] = ()) -> list[int | None]:
        if question.rows == NAN_ROW.rows:
            raise CannotAskError("a corpus holds no NaN")
        begin, n = _places()[question.rows], len(question.rows)
        candidates = [list(range(begin, begin + n))]
        picks = self._client.select(
            np.array([question.query], np.float32) if question.scores is None else None,
            question.k,
            candidates=candidates,
            lambda_d=question.weight,
            relevance=None if question.scores is None else [list(question.scores)],
            initial=[[begin + i for i in shown]] if shown else None,
        )
        found = picks.ids[0, : picks.lengths[0]]
        return [int(i) - begin for i in found]
