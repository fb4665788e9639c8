"""A part of a data set, chosen without queries: `Corpus.subset` over files."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from .._base import checks
from .._base.types import Method, PathLike, RelevanceScale, Storage
from ..corpus.subset import check_toward
from ..selection import continued, quotas
from ..selection.methods import METHODS
from . import _whole, sources
from .build import words_of
from .picks import Picks

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
    earlier: int = 0  # of those chosen, taken over from ``OUT.picks``

    def __str__(self) -> str:
        fewer = f" (of k = {self.k})" if self.chosen < self.k else ""
        before = f", {self.earlier} of them chosen before" if self.earlier else ""
        cost = "" if self.cost is None else f", which cost {self.cost:g}"
        lacking = ", ".join(f"{group}: {n}" for group, n in (self.unmet or {}).items())
        unmet = f", groups that lack rows: {lacking}" if lacking else ""
        return (
            f"{self.chosen}{fewer} of {checks.counted(self.rows, 'row')} in {self.seconds:.2f} s (corpus read in "
            f"{self.corpus_seconds:.2f} s){before}, {self.rule}{cost}{unmet} -> {self.out}"
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
    memory: int | str | None = None,
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
    memory : int or str, optional
        Refuse a corpus whose rows take more bytes than these, such as "2G", before they are read; the error names the
        types of which they take no more. What else is read and kept of each row comes on top.
    k, rule, target_relevance, neighbors, relevance_scale, lambda_d, lambda_b, max_per_group, min_per_group, budget, \
        max_similarity, min_relevance, scale, gamma, window, noise, min_gain, kind, density, eps, backend, num_threads
        As of `Corpus.subset`.
    progress : callable, optional
        Called with the rows chosen and k, first when the corpus is in memory, by another thread while rows are chosen.

    Returns
    -------
    SubsetSummary

    Raises
    ------
    ValueError, TypeError, OSError
        Files that cannot be read, or what `Corpus.subset` refuses; with ``OUT.picks``, inputs, options or a version
        other than those of the call that wrote it.

    Notes
    -----
    The picks so far are kept in ``OUT.picks`` every 5 seconds, and where the call is interrupted after so long. The
    same call then goes on from them, once it has compared the rows with them, and keeps what it adds however soon it is
    interrupted; the result has the same bits as one that was not interrupted. With `overwrite` the picks of another
    call are discarded. Not for coverage and GIST, which do not choose pick by pick, nor for the reference backend.
    """
    if checks.flag(_OP, "exact", exact) and (neighbors is None or index is not None):
        need = "with neighbors" if neighbors is None else "without index"
        raise ValueError(f"{_OP}: exact must come {need}, got exact=True")
    check_toward(targets, target_relevance, relevance_scale, min_relevance)
    for name, given, needs in (
        ("target_column", target_column, {"targets": targets}),
        ("group_column", group_column, {"max_per_group": max_per_group, "min_per_group": min_per_group}),
        ("cost_column", cost_column, {"budget": budget}),
    ):
        if given is not None and all(value is None for value in needs.values()):
            raise ValueError(f"{_OP}: {name} must come with {' or '.join(needs)}, got {given!r} alone")
    named = {"initial": initial, "allowed": allowed, "exclude": exclude}
    inputs = {"corpus": corpus, "targets": targets, "index": index, **named}
    place = _whole.targets(_OP, {"out": out}, inputs, checks.flag(_OP, "overwrite", overwrite))["out"]
    with_rows = checks.flag(_OP, "rows", rows)
    checks.function(_OP, "progress", progress)
    most = None if memory is None else checks.size(_OP, "memory", memory)
    checks.choice(_OP, "rule", rule, METHODS)
    start = time.perf_counter()
    columns = {
        "vector_column": vector_column, "id_column": id_column, "group_column": group_column,
        "cost_column": cost_column,
    }  # fmt: skip
    with words_of(_OP):
        table = sources.table(corpus) if with_rows else None
        held = _whole.opened(corpus, quality, columns, metric, dtype, most)
        opened: Any = None if index is None else sources.Index(index, len(held)).of(held)
        wanted = None if targets is None else sources.vectors(targets, "targets", target_column, held.dims).whole()
        listed: dict[str, Any] = {
            name: _whole.rows_named(held, name, file, once=name == "initial") for name, file in named.items()
        }
    limits: dict[str, Any] = {"max_per_group": max_per_group, "min_per_group": min_per_group}
    if held.group_names is None:  # command lines have text alone
        limits = {name: quotas.with_integers(_OP, name, each) for name, each in limits.items()}
    options: dict[str, Any] = {
        "rule": rule, "target_relevance": target_relevance, "neighbors": neighbors, "relevance_scale": relevance_scale,
        "lambda_d": lambda_d, "lambda_b": lambda_b, "budget": budget, "max_similarity": max_similarity,
        "min_relevance": min_relevance, "scale": scale, "gamma": gamma, "window": window, "noise": noise,
        "min_gain": min_gain, "kind": kind, "density": density or None, "eps": eps, "backend": backend, **limits,
    }  # fmt: skip
    picks = None
    if rule in continued.RULES:
        number = min(checks.count(_OP, "k", k), len(held))
        picks = Picks(_OP, place, number, held, options, {"targets": wanted, **listed})
        picks.resume(overwrite)
    earlier = 0 if picks is None else picks.made
    loaded = time.perf_counter()
    if progress is not None:
        progress(earlier, k)
    with nullcontext() if picks is None else picks.followed(progress):
        found = held.subset(
            k, targets=wanted, index=False if exact else opened, num_threads=num_threads, **options, **listed
        )
    end = time.perf_counter()
    number = int(found.lengths[0])
    chosen = found.indices[0, :number]
    own = {
        "rank": pa.array(np.arange(1, number + 1, dtype=np.int32)),
        "id": _whole.ids_of(held, chosen),
        "row": pa.array(chosen),
        "score": pa.array(found.scores[0, :number]),
        "relevance": pa.array(found.relevance[0, :number]),
        "redundancy": pa.array(found.redundancy[0, :number]),
    }
    _whole.write_rows(_OP, place, own, chosen, table, id_column)
    if picks is not None:
        picks.remove()
    if progress is not None:
        progress(k, k)
    cost = None if found.cost is None else float(found.cost[0])
    unmet = None if found.unmet is None else found.unmet[0]
    return SubsetSummary(held.num_live, number, k, rule, end - loaded, loaded - start, place, cost, unmet, earlier)
