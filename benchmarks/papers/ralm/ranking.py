"""What ranks the documents that BM25 found, beside the model itself: a smaller model, a trained ranker."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ragsys_kernels._base.types import NDArray as Array
from ragsys_kernels.icl.encoders import Encoder
from ragsys_kernels.icl.language_model import LanguageModel
from ragsys_kernels.icl.ralm import Ralm, Text
from ragsys_kernels.icl.ranker import PredictiveRanker
from ragsys_kernels.icl.storage.portions import portions

from .._run import Progress
from .plans import Plan

FOLDS = 5  # blocks of windows that are ranked by a head trained on the others
_BLOCK = 16  # documents scored in one call: what a killed run loses at most


def predicted(
    system: Ralm, encoder: Encoder, queries: Sequence[str], candidates: Sequence[Plan], target: Array
) -> Array:
    """Return how a `PredictiveRanker` ranks the candidates of each piece, (candidates, Q, pieces).

    What ranks a window was trained on the others' targets but for its neighbours: the windows are cut into `FOLDS`
    blocks, in the order of the text, and each block is ranked by a head that was trained on the rest.
    """
    number, size, pieces = target.shape
    rows = [[one[j] for one in each if one[j]] for each in zip(*(p.documents for p in candidates), strict=True)
            for j in range(pieces)]  # fmt: skip
    texts = [[system.documents[i] for (i,) in row] for row in rows]
    logp = [values[: len(row)] for row, values in zip(rows, target.reshape(number, -1).T, strict=True)]
    blocks = min(FOLDS, size)
    block = np.repeat(np.arange(size) * blocks // size, pieces)
    found = np.zeros((len(rows), number))
    for one in range(blocks):
        train, test = np.flatnonzero(block != one).tolist(), np.flatnonzero(block == one).tolist()
        ranker = PredictiveRanker(encoder)
        if any(rows[i] for i in train):
            ranker.fit([queries[i] for i in train], [texts[i] for i in train], [logp[i] for i in train])
        scores = ranker.score([queries[i] for i in test], [texts[i] for i in test])
        for i, values in zip(test, scores, strict=True):
            found[i, : len(values)] = values
    return np.asarray(found.T.reshape(number, size, pieces))


def scored_by(
    ranker: LanguageModel, system: Ralm, text: Text, candidates: Sequence[Plan], progress: Progress | None = None
) -> Array:
    """Return another model's log-probability of the past before each piece after each candidate.

    As `Runs.before` of the model itself, (candidates, Q, pieces), in texts instead of tokens: the models' tokens may
    not be the same.
    """
    decode, past = system.tokenizer.decode, system.past_tokens
    pairs: list[tuple[str, str]] = []
    for plan in candidates:
        for row in plan.runs:
            for j, (window, ids) in enumerate(row):
                place, document = window.begin + j * plan.stride, system.document(ids)
                before = text.tokens[window.start + len(document) : place - past].tolist()
                pairs.append((decode([*document, *before]), decode(text.tokens[place - past : place])))
    distinct = list(dict.fromkeys(pairs))
    found: dict[tuple[str, str], float] = {}
    for part in portions(len(distinct), _BLOCK, progress):
        some = distinct[part]
        found.update(zip(some, ranker.score(*map(list, zip(*some, strict=True))).sum.tolist(), strict=True))
    values = np.array([found[pair] for pair in pairs])
    return values.reshape(len(candidates), len(candidates[0].runs), -1)
