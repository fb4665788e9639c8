"""The folder of a `Corpus` from files: vectors, and what belongs to their rows."""

from __future__ import annotations

from typing import Any

import ragsys_kernels as rk

from .. import _checks
from .._files import check_local
from .._types import Metric, Storage
from . import sources
from .sources import Column, PathLike

_OP = "build_corpus"


def build_corpus(
    corpus: PathLike,
    out: PathLike,
    *,
    ids: PathLike | None = None,
    bias: PathLike | None = None,
    groups: PathLike | None = None,
    costs: PathLike | None = None,
    vector_column: str | None = None,
    id_column: str | None = None,
    bias_column: str | None = None,
    group_column: str | None = None,
    cost_column: str | None = None,
    metric: Metric = "cosine",
    dtype: Storage = "float32",
    overwrite: bool = False,
) -> rk.Corpus:
    """Write the vectors of a file, with their ids, bias, groups and costs, as a folder that `Corpus.load` maps.

    Parameters
    ----------
    corpus : path or URL
        Vectors (N, D), in any format that `select` takes.
    out : path
        The folder, a local one; see `Corpus.save`.
    ids, bias, groups, costs : path or URL, optional
        Files of what belongs to the rows: integers or strings, floats, integers, floats or integers. The first may be
        any such file but a ``.npy`` file of strings.
    vector_column, id_column, bias_column, group_column, cost_column : str, optional
        Columns, in the files of ``ids`` to ``costs`` where given, else in that of ``corpus``. Ids are in the column
        "id" by default; where there is none, rows are known by their numbers.
    metric, dtype
        As of `Corpus`.
    overwrite : bool
        Replace a saved corpus at `out`.

    Returns
    -------
    Corpus
        As loaded from the folder.

    Raises
    ------
    ValueError, TypeError
        A file that cannot be read, or holds what `Corpus` refuses; an id that occurs twice is named.
    FileExistsError
        ``out`` exists and must not be replaced.
    """
    check_local(_OP, "out", out)
    try:
        made = _read(
            sources.vectors(corpus, "corpus", vector_column),
            {
                "bias": sources.numbers("bias", float, bias, bias_column, corpus),
                "groups": sources.numbers("groups", int, groups, group_column, corpus),
                "ids": _ids(corpus, ids, id_column),
                "costs": sources.numbers("costs", None, costs, cost_column, corpus),
            },
            {"metric": metric, "dtype": dtype},
        )
    except (ValueError, FileNotFoundError) as error:  # words of the files are those of `select`
        raise type(error)(f"{_OP}: {str(error).removeprefix('select: ')}") from error
    made.save(out, overwrite=_checks.flag(_OP, "overwrite", overwrite))
    return rk.Corpus.load(out)


def _read(vectors: Column, columns: dict[str, Column | None], options: dict[str, Any]) -> rk.Corpus:
    given = {name: column for name, column in columns.items() if column is not None}
    for name, column in given.items():
        if column.rows != vectors.rows:
            raise ValueError(
                f"{name} must have one row for each of the {vectors.rows} rows of corpus, "
                f"got {column.rows} in {column.path}"
            )
    more: dict[str, Any] = {name: given[name].whole() for name in ("ids", "costs") if name in given}
    return sources.load_corpus(vectors, columns["bias"], columns["groups"], {**more, **options})


def _ids(corpus: PathLike, file: PathLike | None, column: str | None) -> Column | None:
    if file is None:
        return sources.ids(corpus, "corpus", column)
    if sources.Place(file, "ids").suffix == ".npy":
        return sources.numbers("ids", int, file, column, corpus)
    return sources.ids(file, "ids", column)
