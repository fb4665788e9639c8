"""Near-duplicates taken out of a data set: `duplicates` over files."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

import ragsys_kernels as rk

from .._base import checks
from .._base.types import PathLike, Storage
from . import _whole, sources
from .build import words_of

_OP = "dedupe"


@dataclass(frozen=True)
class DedupeSummary:
    """What was removed; as text, one line. ``seconds`` is the time to find it, ``corpus_seconds`` that to read rows."""

    rows: int
    kept: int
    threshold: float
    seconds: float
    corpus_seconds: float
    out: Path
    recall: float | None = None

    @property
    def removed(self) -> int:
        return self.rows - self.kept

    def __str__(self) -> str:
        share = 100 * self.removed / max(1, self.rows)
        recall = "" if self.recall is None else f", the index finds {100 * self.recall:.1f} % of similar pairs"
        rows = checks.counted(self.rows, "row")
        return (
            f"{self.kept} of {rows} kept, {self.removed} removed ({share:.1f} %) at {self.threshold:g} in "
            f"{self.seconds:.2f} s (corpus read in {self.corpus_seconds:.2f} s){recall} -> {self.out}"
        )


def dedupe(
    corpus: PathLike,
    out: PathLike,
    *,
    threshold: float,
    quality: str | None = None,
    removed: PathLike | None = None,
    pairs: PathLike | None = None,
    groups: bool = False,
    rows: bool = False,
    index: PathLike | None = None,
    neighbors: int | None = None,
    vector_column: str | None = None,
    id_column: str | None = None,
    metric: Literal["cosine", "dot"] | None = None,
    dtype: Storage | None = None,
    backend: str = "auto",
    num_threads: int | None = None,
    memory: int | str | None = None,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> DedupeSummary:
    """Write the rows of a file of which no two are as similar as a threshold, and what stands for the others.

    Parameters
    ----------
    corpus : path or URL
        Vectors, in any format that `select` takes, or the folder of a saved corpus.
    out : path
        ``.parquet`` of the rows that are kept: ``row``, its number, and ``id``. Must not exist unless `overwrite`, as
        the other files.
    threshold : float
        As of `duplicates`.
    quality : str, optional
        Column of the corpus with the quality of each row: the best of similar rows is kept, not the first. Of a saved
        corpus "bias".
    removed : path, optional
        ``.parquet`` of the others: ``row``, ``id``; ``of``, the id of the row that stands for it; ``similarity``.
    pairs : path, optional
        ``.parquet`` of all similar pairs: their ids ``a`` and ``b``, and ``similarity``.
    groups : bool
        Add ``group``, the lowest row that a row is connected with by similar pairs, to the rows kept and removed.
    rows : bool
        Write the columns of the corpus, a table, too. They keep their names; where one is called as one of ours, ours
        is ``dedupe_row`` and so on, but for ``id``, which is the same.
    index : path, optional
        FAISS or usearch index over the corpus that finds ``neighbors`` rows of each: approximate, with its recall.
    vector_column, id_column : str, optional
        Columns of the corpus.
    metric, dtype
        As of `build_corpus`; of a saved corpus its own.
    memory : int or str, optional
        Refuse a corpus whose rows take more bytes than these, such as "2G", before they are read; the error names the
        types of which they take no more. What else is read and kept of each row comes on top.
    neighbors, backend, num_threads, progress
        As of `duplicates`.

    Returns
    -------
    DedupeSummary

    Raises
    ------
    ValueError, TypeError, OSError
        Files that cannot be read, or what `duplicates` refuses.
    """
    if neighbors is not None and index is None:
        raise ValueError(f"{_OP}: neighbors must come with index, got {checks.shown(neighbors)} alone")
    outs = {"out": out, "removed": removed, "pairs": pairs}
    inputs = {"corpus": corpus, "index": index}
    places = _whole.targets(_OP, outs, inputs, checks.flag(_OP, "overwrite", overwrite))
    place, others, of_pairs = places["out"], places.get("removed"), places.get("pairs")
    with_rows = checks.flag(_OP, "rows", rows)
    checks.function(_OP, "progress", progress)
    most = None if memory is None else checks.size(_OP, "memory", memory)
    start = time.perf_counter()
    with words_of(_OP):
        table = sources.table(corpus) if with_rows else None
        columns = {"vector_column": vector_column, "id_column": id_column}
        held = _whole.opened(corpus, quality, columns, metric, dtype, most)
        opened = None if index is None else sources.Index(index, len(held)).of(held)
    loaded = time.perf_counter()
    found = rk.duplicates(
        held, threshold, quality=held.bias if quality else None, pairs=of_pairs is not None, groups=groups,
        index=opened, neighbors=neighbors, metric=held.metric, backend=backend,  # type: ignore[arg-type]
        num_threads=num_threads, progress=progress,
    )  # fmt: skip
    end = time.perf_counter()
    if others is not None:
        own = {"of": _whole.ids_of(held, found.of), "similarity": pa.array(found.similarity)}
        _whole.write_rows(_OP, others, {**_of_rows(held, found, found.removed), **own}, found.removed, table, id_column)
    if of_pairs is not None and found.pairs is not None:
        a, b = (_whole.ids_of(held, found.pairs[:, at]) for at in (0, 1))
        _whole.write(of_pairs, {"a": a, "b": b, "similarity": pa.array(found.pair_similarity)})
    _whole.write_rows(_OP, place, _of_rows(held, found, found.kept), found.kept, table, id_column)
    return DedupeSummary(held.num_live, len(found.kept), threshold, end - loaded, loaded - start, place, found.recall)


def _of_rows(held: rk.Corpus, found: rk.Duplicates, rows: np.ndarray) -> dict[str, pa.Array]:
    own = {"row": pa.array(rows), "id": _whole.ids_of(held, rows)}
    return own if found.groups is None else {**own, "group": pa.array(found.groups[rows])}
