"""The methods of In-Context RALM that are compared: what each puts before a window, and what the model makes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from ragsys_kernels._base.types import NDArray as Array
from ragsys_kernels.icl.language_model import LanguageModel
from ragsys_kernels.icl.ralm import Ralm, Text, Window, sliding_windows
from ragsys_kernels.icl.retrievers import BM25Retriever, DenseRetriever

from .._run import Progress
from . import labels
from .plans import Documents, Plan, Runs
from .ranking import predicted, scored_by
from .report import Halves, RalmResult, RalmSizes


def chosen_windows(size: int, sizes: RalmSizes) -> list[Window]:
    """Return windows evenly spread over a text of `size` tokens, without the first and the shorter ones."""
    whole = [
        window for window in sliding_windows(size, sizes.window, sizes.target)[1:]
        if window.end - window.start == sizes.window
    ]  # fmt: skip
    if len(whole) < sizes.windows:
        raise ValueError(f"ralm: windows must be at most the {len(whole)} of the text, got {sizes.windows}")
    return [whole[i] for i in np.linspace(0, len(whole) - 1, sizes.windows).astype(np.int64)]


def own_articles(
    system: Ralm, text: Text, articles: Sequence[str], windows: Sequence[Window], sizes: RalmSizes
) -> dict[int, Documents]:
    """Return, by place, the piece of its own article that BM25 finds outside of a window, of a document's size.

    What a document on the subject is worth, for comparison: no collection without the evaluated text has it. The pieces
    become documents of the system, after those of the collection.
    """
    borders = np.searchsorted(text.ends, np.cumsum([0, *map(len, articles)]), side="right")  # in tokens
    size, found = sizes.document, dict[int, Documents]()
    for window in windows:
        article = int(np.searchsorted(borders, window.begin, side="right"))
        begins = range(int(borders[article - 1]), int(borders[article]) - size + 1, size)
        outside = [at for at in begins if at + size <= window.start or at >= window.end]
        pieces = [system.tokenizer.decode(text.tokens[at : at + size]) for at in outside]
        if pieces:
            places = list(range(window.begin, window.end, sizes.stride))
            best = BM25Retriever(pieces).search(system.queries(text, places), 1).ids[:, 0].tolist()
            for place, i in zip(places, best, strict=True):
                if i >= 0:
                    found[place] = (system.add(pieces[i]),)
    return found


def evaluate(
    system: Ralm,
    text: Text,
    windows: Sequence[Window],
    sizes: RalmSizes,
    *,
    dense: Sequence[DenseRetriever] = (),
    ranker: LanguageModel | None = None,
    ranker_name: str = "",
    own: Mapping[int, Documents] | None = None,
    unit: Literal["word", "token"] = "word",
    seed: int = 0,
    progress: Progress | None = None,
) -> RalmResult:
    """Run every method on every window.

    `dense` has a retriever for each encoder, of which the first also serves MMR and the trained ranker; `ranker` is a
    second model that ranks; `own` is what `own_articles` found.
    """
    runs, stride = Runs(system, text, windows, sizes.past), sizes.stride
    main = runs.places(stride)
    every = sorted({place for one in (stride, *sizes.strides) for place in runs.places(one)})
    found = system.retrieve(text, every, sizes.candidates)
    ranked = {place: ids[ids >= 0].tolist() for place, ids in zip(every, found.ids, strict=True)}
    top = dict(zip(every, np.maximum(found.scores[:, 0], 0).tolist(), strict=True))  # 0 where nothing is found
    first = {place: ids[:1] for place, ids in ranked.items()}
    collection = len(system.documents) - len(own or {})
    any_passage = np.random.default_rng(seed).integers(collection, size=(len(main), 1)).tolist()
    plans = {
        labels.NONE: runs.plan(stride, {}),
        labels.ANY: runs.plan(stride, dict(zip(main, any_passage, strict=True))),
        labels.FIRST: runs.plan(stride, first),
        labels.PAIR: runs.plan(stride, {place: ids[:2] for place, ids in ranked.items()}),
    }
    plans[labels.SHORT] = runs.moved(plans[labels.FIRST], 1, keep=False)
    # In front of the windows, which stay whole, where the model has room.
    plans[labels.FRONT] = runs.moved(plans[labels.FIRST], -1, keep=True)
    if own is not None:
        plans[labels.OWN] = runs.plan(stride, own)
    longer = system.queries(text, main, sizes.dense_query)
    for at, each in enumerate(dense):
        vectors = each.encoder.encode(longer)
        label = labels.DENSE if at == 0 else f"{labels.FURTHER}{each.encoder.name}), first"
        plans[label] = runs.plan(stride, _by_place(main, each.nearest(vectors, 1).ids))
        if at == 0:
            pool = np.array([[*ranked[place], *[-1] * sizes.candidates][: sizes.candidates] for place in main])
            pair = labels.RULE.select(vectors, each.corpus, 2, candidates=pool).indices
            plans[labels.DIVERSE] = runs.plan(stride, _by_place(main, pair))
    by_stride = {one: runs.plan(one, first) for one in sizes.strides}
    by_query = {
        length: runs.plan(stride, _by_place(main, system.retrieve(text, main, 1, length).ids))
        for length in sizes.queries
    }
    candidates = [
        runs.plan(stride, {place: ids[i : i + 1] for place, ids in ranked.items()}) for i in range(sizes.candidates)
    ]
    runs.make([*plans.values(), *by_stride.values(), *by_query.values(), *candidates], progress)

    # A piece for which nothing is found has one candidate, no document.
    valid = np.array([[[bool(ids) for ids in row] for row in plan.documents] for plan in candidates])
    valid[0] = True
    target = np.stack([runs.target(plan) for plan in candidates])  # (candidates, Q, pieces)
    rank = {labels.RERANK: np.stack([runs.before(plan) for plan in candidates]), labels.ORACLE: target}
    if ranker is not None:
        rank[f"{labels.BY}{ranker_name}"] = scored_by(ranker, system, text, candidates, progress)
    if dense and len(windows) > 1:
        rank[labels.PREDICTIVE] = predicted(system, dense[0].encoder, system.queries(text, main), candidates, target)
    by_ranked: dict[str, dict[int, Array]] = {rule: {} for rule in (labels.RANDOM, *rank)}
    picks = {label: plan.documents for label, plan in plans.items() if label != labels.SHORT}
    for number in _numbers(sizes.candidates):
        counted = valid[:number]
        # What to expect of a document taken at random: the mean over all.
        mean = np.where(counted, target[:number], 0).sum(axis=0) / counted.sum(axis=0)
        by_ranked[labels.RANDOM][number] = -mean.sum(axis=1)
        for rule, values in rank.items():
            best = np.argmax(np.where(counted, values[:number], -np.inf), axis=0)  # (Q, pieces), the first of equals
            by_ranked[rule][number] = -np.take_along_axis(target, best[None], axis=0)[0].sum(axis=1)
            picks[rule] = [
                [candidates[i].documents[q][j] for j, i in enumerate(row)] for q, row in enumerate(best.tolist())
            ]
    nll = {label: runs.nll(plan) for label, plan in plans.items()}
    nll |= {rule: values[sizes.candidates] for rule, values in by_ranked.items()}
    return RalmResult(
        nll={label: nll[label] for label in sorted(nll, key=labels.order)},
        picks=picks,
        words=text.words(windows),
        tokens=np.array([window.end - window.begin for window in windows]),
        top_scores=np.array([top[place] for place in main]).reshape(len(windows), -1).mean(axis=1),
        by_stride={one: runs.nll(plan) for one, plan in by_stride.items()},
        by_query={length: runs.nll(plan) for length, plan in by_query.items()},
        by_ranked=by_ranked,
        halves=_halves(runs, candidates, valid, stride),
        runs=len(runs),
        unit=unit,
    )


def _halves(runs: Runs, candidates: Sequence[Plan], valid: Array, stride: int) -> Halves | None:
    """Choose the document by the first half of each piece and judge it by the second, which the choice has not seen."""
    if stride < 2:
        return None
    before, after = (np.stack(each) for each in zip(*map(runs.halves, candidates), strict=True))
    best = np.argmax(np.where(valid, before, -np.inf), axis=0)  # (Q, pieces)
    chosen = np.take_along_axis(after, best[None], axis=0)[0]
    tokens = np.full(len(after[0]), after[0].shape[1] * (stride - stride // 2))
    return Halves(-after[0].sum(axis=1), -chosen.sum(axis=1), tokens)


def _by_place(places: Sequence[int], ids: Array) -> dict[int, list[int]]:
    return {place: row[row >= 0].tolist() for place, row in zip(places, ids, strict=True)}


def _numbers(candidates: int) -> list[int]:
    """Return the powers of two up to the number of candidates, and that number."""
    return [*(1 << i for i in range(candidates.bit_length()) if 1 << i < candidates), candidates]
