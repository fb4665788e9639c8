"""A part of a data set, chosen without queries: `Corpus.subset` over files."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from .._base import checks
from .._base.types import Method, PathLike, RelevanceScale, Storage
from ..selection import quotas
from . import _whole, sources
from .build import words_of

_OP = "subset"


@dataclass(frozen=True)
class SubsetSummary:
    """What was chosen; as text, one line. ``seconds`` is the time to choose, ``corpus_seconds`` to read the corpus."""

    rows: int
    chosen: int
    k: int
    rule: str
    seconds: float
    corpus_seconds: float
    out: Path
    cost: float | None = None
    unmet: dict[Any, int] | None = None  # with ``min_per_group``: how many rows groups lack

    def __str__(self) -> str:
        fewer = f" (of k = {self.k})" if self.chosen < self.k else ""
        cost = "" if self.cost is None else f", which cost {self.cost:g}"
        lacking = ", ".join(f"{group}: {n}" for group, n in (self.unmet or {}).items())
        unmet = f", groups that lack rows: {lacking}" if lacking else ""
        return (
            f"{self.chosen}{fewer} of {self.rows} rows in {self.seconds:.2f} s (corpus read in "
            f"{self.corpus_seconds:.2f} s), {self.rule}{cost}{unmet} -> {self.out}"
        )


def subset(
    corpus: PathLike,
    out: PathLike,
    *,
    k: int,
    rule: Method = "mmr",
    quality: str | None = None,
    targets: PathLike | None = None,
    target_relevance: Literal["mean", "max"] = "mean",
    neighbors: int | None = None,
    index: PathLike | None = None,
    exact: bool = False,
    relevance_scale: RelevanceScale = "as-is",
    initial: PathLike | None = None,
    allowed: PathLike | None = None,
    exclude: PathLike | None = None,
    rows: bool = False,
    vector_column: str | None = None,
    id_column: str | None = None,
    group_column: str | None = None,
    cost_column: str | None = None,
    target_column: str | None = None,
    lambda_d: float | None = None,
    lambda_b: float = 0.95,
    max_per_group: int | Mapping[Any, int] | None = None,
    min_per_group: int | Mapping[Any, int] | None = None,
    budget: float | None = None,
    max_similarity: float | None = None,
    min_relevance: float | None = None,
    scale: float | None = None,
    gamma: float | None = None,
    window: int | None = None,
    noise: float | None = None,
    min_gain: float | None = None,
    kind: Literal["facility", "cover", "xquad"] | None = None,
    density: bool = False,
    eps: float | None = None,
    metric: Literal["cosine", "dot"] | None = None,
    dtype: Storage | None = None,
    backend: str = "auto",
    num_threads: int | None = None,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> SubsetSummary:
    """Choose k rows of a file without queries, and write them in the order in which they were chosen.

    Parameters
    ----------
    corpus : path or URL
        Vectors, in any format that `select` takes, or the folder of a saved corpus. They are held in memory.
    out : path
        ``.parquet`` with the columns ``rank``, from 1; ``id``; ``row``, its number; ``score``, the value of each row
        when it was chosen; ``relevance``, with quality; ``redundancy``. Must not exist unless `overwrite`.
    quality : str, optional
        Column of the corpus with the quality of each row, its bias. Of a saved corpus "bias", which counts anyway.
    targets : path or URL, optional
        Vectors that rows are to be relevant to, as of `Corpus.subset`.
    initial, allowed, exclude : path, optional
        Ids of rows already chosen, of the only ones to choose from, of those not to choose: a text file of one a line,
        or a file with a column ``id``. Row numbers where the corpus has no ids.
    index : path, optional
        FAISS or usearch index over the corpus that finds the ``neighbors`` of each row. Default: that of a corpus of
        `build_corpus` with ``index``, else the exact search.
    exact : bool
        Find the neighbors exactly, also where the corpus has an index.
    rows : bool
        Write the columns of the corpus, a table, too. They keep their names; where one is called as one of ours, ours
        is ``subset_score`` and so on, but for ``id``, which is the same.
    vector_column, id_column, group_column, cost_column, target_column : str, optional
        Columns of the corpus, and of the targets' vectors.
    metric, dtype
        As of `build_corpus`; of a saved corpus its own.
    k, rule, target_relevance, neighbors, relevance_scale, lambda_d, lambda_b, max_per_group, min_per_group, budget, \
        max_similarity, min_relevance, scale, gamma, window, noise, min_gain, kind, density, eps, backend, num_threads
        As of `Corpus.subset`.
    progress : callable, optional
        Called with the steps done, of two: the corpus is read, the rows are chosen.

    Returns
    -------
    SubsetSummary

    Raises
    ------
    ValueError, TypeError, OSError
        Files that cannot be read, or what `Corpus.subset` refuses.
    """
    if checks.flag(_OP, "exact", exact) and (neighbors is None or index is not None):
        need = "with neighbors" if neighbors is None else "without index"
        raise ValueError(f"{_OP}: exact must come {need}, got exact=True")
    named = {"initial": initial, "allowed": allowed, "exclude": exclude}
    inputs = {"corpus": corpus, "targets": targets, "index": index, **named}
    place = _whole.targets(_OP, {"out": out}, inputs, checks.flag(_OP, "overwrite", overwrite))["out"]
    with_rows = checks.flag(_OP, "rows", rows)
    start = time.perf_counter()
    columns = {
        "vector_column": vector_column, "id_column": id_column, "group_column": group_column,
        "cost_column": cost_column,
    }  # fmt: skip
    with words_of(_OP):
        table = sources.table(corpus) if with_rows else None
        held = _whole.opened(corpus, quality, columns, metric, dtype)
        opened: Any = None if index is None else sources.Index(index, len(held)).of(held)
        wanted = None if targets is None else sources.vectors(targets, "targets", target_column, held.dims).whole()
        given: dict[str, Any] = {
            name: _whole.rows_named(held, name, file, once=name == "initial") for name, file in named.items()
        }
    limits: dict[str, Any] = {"max_per_group": max_per_group, "min_per_group": min_per_group}
    if held.group_names is None:  # command lines have text alone
        limits = {name: quotas.with_integers(_OP, name, each) for name, each in limits.items()}
    loaded = time.perf_counter()
    _tell(progress, 1)
    found = held.subset(
        k, rule=rule, targets=wanted, target_relevance=target_relevance, neighbors=neighbors,
        index=False if exact else opened,
        relevance_scale=relevance_scale,
        lambda_d=lambda_d, lambda_b=lambda_b, budget=budget, max_similarity=max_similarity, min_relevance=min_relevance,
        scale=scale, gamma=gamma, window=window,
        noise=noise, min_gain=min_gain, kind=kind, density=density or None, eps=eps, backend=backend,  # type: ignore[arg-type]
        num_threads=num_threads, **limits, **given,
    )  # fmt: skip
    end = time.perf_counter()
    number = int(found.lengths[0])
    picks = found.indices[0, :number]
    own = {
        "rank": pa.array(np.arange(1, number + 1, dtype=np.int32)),
        "id": _whole.ids_of(held, picks),
        "row": pa.array(picks),
        "score": pa.array(found.scores[0, :number]),
        "relevance": pa.array(found.relevance[0, :number]),
        "redundancy": pa.array(found.redundancy[0, :number]),
    }
    _whole.write_rows(_OP, place, own, picks, table, id_column)
    _tell(progress, 2)
    cost = None if found.cost is None else float(found.cost[0])
    unmet = None if found.unmet is None else found.unmet[0]
    return SubsetSummary(held.num_live, number, k, rule, end - loaded, loaded - start, place, cost, unmet)


def _tell(progress: Callable[[int, int], None] | None, done: int) -> None:
    if progress is not None:
        progress(done, 2)
