"""`compare_files`: a comparison of files, in any format that jobs read."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .._base.checks import flag
from .._base.extras import needed
from .._base.files import check_local, lines_of
from .._base.types import BadRows, Metric, OnDuplicate, PathLike
from ..corpus import Corpus
from .result import Comparison
from .run import Progress, compare
from .settings import OP

_log = logging.getLogger(__name__)


def compare_files(
    corpus: PathLike,
    queries: PathLike,
    out: PathLike,
    *,
    candidates: PathLike | None = None,
    candidate_ids: bool = False,
    qrels: PathLike | None = None,
    bias: PathLike | None = None,
    texts: PathLike | None = None,
    query_texts: PathLike | None = None,
    vector_column: str | None = None,
    id_column: str | None = None,
    bias_column: str | None = None,
    text_column: str | None = None,
    query_vector_column: str | None = None,
    query_id_column: str | None = None,
    query_text_column: str | None = None,
    candidate_column: str | None = None,
    k: int = 6,
    pool: int | None = None,
    methods: Sequence[str] | None = None,
    lambda_b: float = 0.95,
    metric: Metric | None = None,
    sample: int | None = 1000,
    seed: int = 0,
    max_loss: float = 0.05,
    peers: bool = True,
    whole: int = 50,
    num_threads: int | None = 1,
    overwrite: bool = False,
    title: str | None = None,
    bad_rows: BadRows = "raise",
    on_duplicate: OnDuplicate = "error",
    progress: Progress | None = None,
) -> Comparison:
    """Compare rules of selection on files, and write the report to a folder; see `compare`.

    Parameters
    ----------
    corpus, queries : path or URL
        Vectors, in any format of `ragsys_kernels.offline.select`. The corpus may be a folder of `Corpus.save`.
    out : path
        Local folder of the report: new, empty, or of an earlier run, which goes on.
    candidates, qrels : path, optional
        Pools of another retriever; relevance judgements in the format of TREC.
    candidate_ids : bool
        The candidates are ids of the corpus, as the picks of a job are, not row numbers.
    bias : path or URL, optional
        Quality of each row.
    texts, query_texts : path or URL, optional
        What examples show: a ``.txt`` file of a line for each row, or a file with a column.
    vector_column, id_column, bias_column, query_vector_column, query_id_column, candidate_column : str, optional
        As of `ragsys_kernels.offline.select`.
    text_column, query_text_column : str, optional
        Column in the file of ``texts``, else of ``corpus``; in that of ``query_texts``, else of ``queries``. Default:
        "text", where the file is named.
    metric : {"cosine", "dot"}, optional
        Default: that of a saved corpus, else "cosine".
    bad_rows : {"raise", "skip"}
        How to treat rows of the corpus, and queries, that cannot be used: "skip" leaves them out, and
        ``OUT.skipped.csv`` lists them with number, id and reason.
    on_duplicate : {"error", "first", "last"}
        How to treat rows of the corpus with the same id: an error, or keep only the first, or the last.
    k, pool, methods, lambda_b, sample, seed, max_loss, peers, whole, num_threads, overwrite, title, progress
        As of `compare`.

    Returns
    -------
    Comparison

    Raises
    ------
    ValueError, FileNotFoundError
        Files that cannot be read or do not fit each other, and what `compare` raises.
    """
    given: dict[str, Any] = {
        "qrels": qrels, "k": k, "pool": pool, "methods": methods, "lambda_b": lambda_b, "sample": sample,
        "seed": seed, "max_loss": max_loss, "peers": peers, "whole": whole, "num_threads": num_threads, "out": out,
        "overwrite": overwrite, "progress": progress,
    }  # fmt: skip
    check_local(OP, "out", out)
    with needed(OP, "compare", "pyarrow"):
        from ..offline import sources
        from ..offline.sinks import skipped_list, write_skipped
    paths = {"corpus": corpus, "queries": queries, "candidates": candidates, "qrels": qrels, "bias": bias}
    shown = {"texts": texts, "query_texts": query_texts}
    try:
        sources.check_apart(OP, {"out": out, **skipped_list(out, (bad_rows, on_duplicate))}, {**paths, **shown})
        of_rows = {"vector_column": vector_column, "id_column": id_column, "bias": bias, "bias_column": bias_column}
        saved = sources.saved(corpus, {**of_rows, "metric": metric})
        skips = bad_rows == "skip"
        usable = sources.Usable()
        if saved is None:
            with sources.one_version():
                named = {
                    "corpus": sources.vectors(corpus, "corpus", vector_column, usual=skips, bytes_stay=True),
                    "bias": sources.numbers("bias", float, bias, bias_column, corpus),
                    "ids": sources.ids(corpus, "corpus", id_column),
                }
            usable = sources.usable("corpus", named, bad_rows, on_duplicate)
            vectors, quality, ids = (usable.columns[name] for name in named)
            held = {"ids": None if ids is None else ids.whole(), "metric": metric or "cosine"}
            rows = sources.load_corpus(vectors, quality, None, held)
        else:
            rows = saved
        wanted = sources.vectors(queries, "queries", query_vector_column, usual=skips)
        of_queries = {"queries": wanted, "ids": sources.ids(queries, "queries", query_id_column)}
        answered = sources.usable("queries", of_queries, bad_rows)
        asked, names = (answered.columns[name] for name in of_queries)
        number = wanted.rows
        by_ids = flag(OP, "candidate_ids", candidate_ids)
        pools = sources.candidate_lists(candidates, candidate_column, by_ids)
        if by_ids and pools is None:
            raise ValueError("candidate_ids must come with candidates, got candidate_ids alone")
        if pools is not None and not by_ids and rows.ids.kind != "row" and (usable.kept is None or usable.ids):
            _log.info(f"{OP}: {sources.ROW_NUMBERS.format(corpus)}")
        given["query_ids"] = None if names is None else names.whole().to_pylist()
        given["candidates"] = None if pools is None else _pools(pools, by_ids, rows, usable, number)
        given["texts"] = _texts("texts", texts, text_column, corpus, len(rows) + len(usable.skipped), usable.kept)
        given["query_texts"] = _texts("query_texts", query_texts, query_text_column, queries, number, answered.kept)
        if answered.kept is not None and given["candidates"] is not None:
            given["candidates"] = given["candidates"][answered.kept]
        loaded = asked.whole()
        write_skipped(OP, out, (bad_rows, on_duplicate), corpus=usable, queries=answered)
    except (ValueError, FileNotFoundError) as error:  # words of the files are those of `select`
        raise type(error)(f"{OP}: {str(error).removeprefix('select: ').removeprefix(f'{OP}: ')}") from error
    return compare(
        rows,
        loaded,
        **given,
        title=f"Which rule for {Path(corpus).name}?" if title is None else title,
        about={name: str(path) for name, path in paths.items() if path is not None},
    )


def _pools(column: Any, by_ids: bool, corpus: Corpus, usable: Any, queries: int) -> Any:
    """Return the candidates of a column as rows (Q, P) of the corpus."""
    if by_ids and corpus.ids.kind == "row":
        raise ValueError(f"candidate_ids must come with ids of the corpus, got none for {column.path}")
    if column.rows != queries:
        raise ValueError(
            f"candidates must have one row for each of the {queries} queries, got {column.rows} in {column.path}"
        )
    if not queries:  # which `compare` refuses
        return None
    return next(usable.listed(column, corpus.ids if by_ids else None).chunks(queries)).padded()


class _Lines:
    """Texts of an Arrow column or a list, each made when it is asked for; those of the rows that are kept."""

    def __init__(self, column: Any, kept: Any) -> None:
        self._column, self._rows = column, range(len(column)) if kept is None else kept

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: int) -> str:
        text = self._column[int(self._rows[place])]
        return str(text.as_py() if hasattr(text, "as_py") else text)


def _texts(argument: str, file: PathLike | None, column: str | None, owner: PathLike, rows: int, kept: Any) -> Any:
    if file is None and column is None:
        return None
    path = owner if file is None else file
    found: Any
    if str(path).endswith(".txt"):
        if column is not None:
            raise ValueError(f"{argument} must have columns to have one {column!r}, got {path}")
        if not Path(path).is_file():
            raise FileNotFoundError(f"{argument} must be an existing file, got {path}")
        found = lines_of(Path(path).read_bytes())
    else:
        from ..offline import sources

        read = sources.ids(path, argument, "text" if column is None else column)
        assert read is not None  # None is for columns that are not named
        found = read.whole()
    if len(found) != rows:
        raise ValueError(f"{argument} must have one text for each of {rows} rows, got {len(found)} in {path}")
    return _Lines(found, kept)
