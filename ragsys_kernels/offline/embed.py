"""The embed job: read texts, encode them, write vectors beside them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from .._base import checks
from .._base.files import check_local
from .._base.types import BadRows, PathLike
from ..icl import CachedEncoder, Encoder
from ..icl.encoders import open_encoder
from . import text_files
from .sinks import skipped_list, write_skipped
from .sources import BAD_ROWS, Usable, check_apart

_FILE = "vectors.parquet"  # in a folder


@dataclass(frozen=True)
class EmbedSummary:
    """What a job did; as text, one line. ``model_seconds`` is the time to load the model, ``seconds`` to encode."""

    texts: int
    new: int
    dims: int
    seconds: float
    model_seconds: float
    model: str
    out: Path

    def __str__(self) -> str:
        rate = f" ({self.new / self.seconds:.0f} texts/s)" if self.new else ""
        texts = checks.counted(self.texts, "text")
        return (
            f"{texts}, {self.new} of them new, in {self.seconds:.2f} s{rate}, model loaded in "
            f"{self.model_seconds:.2f} s, {self.dims} dimensions, model {self.model} -> {self.out}"
        )


def embed(
    *,
    texts: PathLike,
    model: str | Encoder,
    out: PathLike,
    text_column: str = "text",
    vector_column: str = "embedding",
    id_column: str | None = None,
    model_name: str | None = None,
    cache: PathLike | None = None,
    batch_size: int = 32,
    num_threads: int | None = None,
    overwrite: bool = False,
    bad_rows: BadRows = "raise",
    progress: Callable[[int, int], None] | None = None,
) -> EmbedSummary:
    """Write the vector of every text of a file, for ``select``, ``compare`` and ``corpus build``.

    Vectors are kept in a cache, found by model and text, as they are made: a job that was stopped or killed resumes
    when it is run again, and equal texts have equal vectors. `out` appears when the job is complete.

    Parameters
    ----------
    texts : path
        ``.parquet``, ``.csv`` with a header, or ``.jsonl``; held in memory.
    model : str or Encoder
        "minilm", "mpnet" (see `icl.packaged`), a name of sentence-transformers, a folder, or the URL of an API with
        OpenAI's ``/embeddings``, which needs `model_name`.
    out : path
        ``.parquet`` with the columns of `texts` and the vectors; ``.npy`` (N, D) float32; or a folder, which gets
        ``vectors.parquet``. Must not exist unless `overwrite`.
    text_column, vector_column : str
        Columns of the texts, and of the vectors, which must be new.
    id_column : str, optional
        Column of the ids, which stay as they are written: 007 in a CSV is no 7. Default: "id", if there is one.
    model_name : str, optional
        Name of the model on the server.
    cache : path, optional
        File of vectors to use and to keep. Processes that are given the same divide the texts among them. Default: a
        hidden one beside `out`, removed when the job is complete.
    batch_size, num_threads
        Texts in a pass or a request; torch's threads.
    overwrite : bool
        Replace a file at `out`.
    bad_rows : {"raise", "skip"}
        How to treat a row without a text. "skip": leave it out of the result, and ``OUT.skipped.csv`` lists it with its
        number, id and the reason.
    progress : callable, optional
        Called with the new texts done and their number.

    Returns
    -------
    EmbedSummary

    Raises
    ------
    ValueError, TypeError, OSError, ModuleNotFoundError
        Everything that can be checked without the model is, before it is loaded.
    """
    op, source, target = "embed", Path(texts), Path(out).resolve()
    for argument, path in (("texts", texts), ("out", out)):
        check_local(op, argument, path)
    if not target.suffix:
        target = target / _FILE
    if target.suffix.lower() not in text_files.OUTPUTS:
        raise ValueError(f"{op}: out must be a folder or a {' or '.join(text_files.OUTPUTS)} file, got {out}")
    folder = target.parent if target.name != _FILE else target.parent.parent
    check_apart(op, {"out": target, "cache": cache, **skipped_list(target, (bad_rows,))}, {"texts": texts})
    text_files.check_out(op, out, target, folder, overwrite)
    table = text_files.read(op, "texts", source, (text_column,), id_column)
    if id_column is not None and id_column not in table.column_names:
        raise ValueError(f"{op}: texts must have the column {id_column!r}, got {table.column_names} in {source}")
    checks.choice(op, "bad_rows", bad_rows, BAD_ROWS)
    checks.function(op, "progress", progress)
    blank: list[int] | None = [] if bad_rows == "skip" else None
    sentences = text_files.texts(op, "texts", table, text_column, source, blank)
    usable = _usable(table, blank or [], id_column or "id")
    if usable.kept is not None:
        if not sentences:
            raise ValueError(f"{op}: texts must hold text in a row of {text_column!r}, got none in {source}")
        table = table.take(pa.array(usable.kept))
    if vector_column in table.column_names:
        raise ValueError(f"{op}: vector_column must be new, got {vector_column!r}, which is in {source}")
    start = time.perf_counter()
    encoder = open_encoder(op, model, name=model_name, batch_size=batch_size, num_threads=num_threads)
    loaded = time.perf_counter()
    target.parent.mkdir(exist_ok=True)
    kept = Path(cache) if cache is not None else folder / f".{Path(out).name}.vectors"
    with CachedEncoder(encoder, kept, progress=progress) as cached:
        rows = cached.encode(sentences)
    end = time.perf_counter()
    column = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])
    text_files.write(target, rows, table, vector_column, column)
    write_skipped(op, target, (bad_rows,), texts=usable)
    if cache is None:
        kept.unlink(missing_ok=True)
    return EmbedSummary(
        texts=len(rows),
        new=cached.misses,
        dims=rows.shape[1],
        seconds=end - loaded,
        model_seconds=loaded - start,
        model=encoder.name,
        out=target,
    )


def _usable(table: pa.Table, blank: list[int], id_column: str) -> Usable:
    """Return which rows are left out."""
    if not blank:
        return Usable()
    ids = {}
    if id_column in table.column_names:
        ids = dict(zip(blank, table[id_column].take(pa.array(blank)).to_pylist(), strict=True))
    kept = np.setdiff1d(np.arange(len(table)), blank)
    return Usable({}, kept, dict.fromkeys(blank, "texts must hold text, got none"), ids)
