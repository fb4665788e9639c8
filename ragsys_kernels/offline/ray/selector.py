"""Selection as a step of a Ray Data pipeline of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pyarrow as pa

import ragsys_kernels as rk

from ..._base import checks, env
from ..._base.types import Backend, Decay, Method, Moment, PathLike, RelevanceScale, Seconds, Storage
from ..._base.types import NDArray as Array
from ..._base.warn import muted
from ...corpus import recency
from ...corpus.ids import Ids, make
from ...selection import quotas
from ...selection.parameters import SCALES
from ...selection.request import Request
from .. import sources
from .._device import Selector
from .._held import check_unique, takeable
from .._options import UNMET, absolute, as_map, of_groups, plain_request
from ..build import columns_of, loaded, words_of
from . import holders
from ._ray import import_ray
from .options import WAIT

_OP = "selector_for_ray"
_RESULT = ("ids", "scores", "relevance", "redundancy")


def selector_for_ray(
    corpus: rk.Corpus | PathLike,
    *,
    bias: PathLike | None = None,
    groups: PathLike | None = None,
    costs: PathLike | None = None,
    time: PathLike | None = None,
    vector_column: str | None = None,
    id_column: str | None = None,
    bias_column: str | None = None,
    group_column: str | None = None,
    cost_column: str | None = None,
    time_column: str | None = None,
    metric: Literal["cosine", "dot"] | None = None,
    dtype: Storage | None = None,
    device: str | None = None,
    query_column: str = "embedding",
    query_group_column: str | None = None,
    candidate_column: str | None = None,
    relevance_column: str | None = None,
    relevance_scale: RelevanceScale = "as-is",
    candidate_ids: bool = False,
    k: int = 6,
    method: Method = "mmr",
    pool: int | Literal["all", "certified"] | None = 100,
    lambda_d: float | None = None,
    lambda_b: float | None = None,
    max_per_group: int | Mapping[Any, int] | None = None,
    min_per_group: int | Mapping[Any, int] | None = None,
    budget: float | None = None,
    max_similarity: float | None = None,
    min_relevance: float | None = None,
    nearest: bool = False,
    scale: float | None = None,
    gamma: float | None = None,
    window: int | None = None,
    noise: float | None = None,
    min_gain: float | None = None,
    kind: Literal["facility", "cover", "xquad"] | None = None,
    density: bool = False,
    eps: float | None = None,
    half_life: Seconds | None = None,
    now: Moment | None = None,
    decay: Decay = "exp",
    decay_floor: float = 0.0,
    backend: Backend = "auto",
    num_threads: int | None = None,
    memory: int | str | None = None,
    search_parameters: str | None = None,
    exact: bool = False,
) -> type:
    """Make a class for `map_batches` of Ray Data that adds to each batch of queries the rows picked for them.

    The corpus goes into Ray's object store, once on each node; the actors of a node share it.

    Parameters
    ----------
    corpus : Corpus or path
        Or the file, folder or URL of its vectors, as in `select`, or the folder of a saved corpus; those below up to
        `dtype` are then as there.
    device : str, optional
        "cuda": the actors hold and select on it, with a copy each; give them GPUs (``num_gpus=1``).
    query_column : str
        Column of the batches with the query vectors: arrays (D,) or lists of D floats.
    query_group_column : str, optional
        Column with the queries' groups, integers or strings; needs groups of the corpus.
    candidate_column : str, optional
        Column with the rows of the corpus to choose from: arrays or lists of integers, of any length; -1 is padding.
    relevance_column : str, optional
        Column with the relevance of each candidate, instead of its cosine to the query: arrays or lists of numbers.
    relevance_scale : {"as-is", "minmax", "zscore", "rank"}
        How to rescale it, as in `mmr`.
    candidate_ids : bool
        The candidates are ids of the corpus, integers or strings.
    k : int
    method, pool, lambda_d, lambda_b, max_per_group, min_per_group, budget, max_similarity, min_relevance, nearest, \
        scale, gamma, window, noise, min_gain, kind, density, eps, half_life, decay, decay_floor, backend
        As in `select`; pool None, like "all", is the whole corpus.
    now : float, datetime or datetime64, optional
        As in `select`. Default: when this is called.
    num_threads : int, optional
        Default: as many as the CPUs of the actor, which Ray sets.
    memory : int or str, optional
        Bytes, as a number or as "2G", that an actor may hold of a corpus in segments, a folder or its URL. Actors
        with some of the segments each are spread over the nodes and search for all batches, as in `select`, so that no
        node needs to have the whole corpus. They live as long as the class, verify what they hold, and reserve a CPU
        each where that leaves one. One that is lost is started again; if that takes more than 45 seconds, the pipeline
        ends with an error. Only with pools that are searched for, or candidates.
    search_parameters, exact
        As in `select`.

    Returns
    -------
    type
        Called with a batch, a dict of NumPy columns (`map_batches`'s default), it returns the batch with four columns
        more: ``ids``, the picks of each query, best first, as ids of `id_column` or of the corpus, else row numbers;
        ``scores``, ``relevance`` and ``redundancy`` as in `Selection`, float32 values; lists of `k` values, fewer where
        there are fewer candidates. With ``nearest`` that column too; with ``min_per_group`` ``unmet``, a map from the
        groups, as text, to how many picks they lack.

    Raises
    ------
    ValueError, TypeError, OSError, ModuleNotFoundError
        Here for files and options, in the pipeline for a batch.

    Notes
    -----
    Actors that hold all CPUs of a cluster leave none for the pipeline's other tasks, which then wait for ever: leave
    at least one free. `ragsys_kernels.offline.select` with ``engine="ray"`` is a whole job, that can be resumed.

    Examples
    --------
    >>> queries = ray.data.read_parquet("queries.parquet")
    >>> Selector = offline.selector_for_ray("docs.parquet", query_column="vector", k=6, pool=100)
    >>> picks = queries.map_batches(
    ...     Selector, batch_size=1024, num_cpus=2, compute=ray.data.ActorPoolStrategy(size=4)
    ... )
    >>> picks.write_parquet("picks")
    """
    ray = import_ray(_OP)
    request = recency.dated(plain_request(_OP, Request(
        checks.choice(_OP, "method", method, rk.METHODS), None, None, k, relevance_scale=relevance_scale,
        lambda_d=lambda_d, lambda_b=lambda_b, max_per_group=max_per_group, min_per_group=min_per_group, budget=budget,
        max_similarity=max_similarity, min_relevance=min_relevance, nearest=nearest, scale=scale, gamma=gamma,
        window=window, noise=noise, min_gain=min_gain, kind=kind, density=density, eps=eps, half_life=half_life,
        now=now, decay=decay, decay_floor=decay_floor, backend=backend, num_threads=num_threads,
    )))  # fmt: skip
    if checks.choice(_OP, "relevance_scale", request.relevance_scale, SCALES) != "as-is" and relevance_column is None:
        raise ValueError(f"{_OP}: relevance_scale must come with relevance_column, got {relevance_scale!r} alone")
    if relevance_column is not None and candidate_column is None:
        raise ValueError(f"{_OP}: relevance_column must come with candidate_column, got {relevance_column!r} alone")
    whole = None if isinstance(pool, str) and pool == "all" else pool
    given: dict[str, Any] = {
        "bias": bias, "groups": groups, "costs": costs, "time": time, "vector_column": vector_column,
        "id_column": id_column, "bias_column": bias_column, "group_column": group_column, "cost_column": cost_column,
        "time_column": time_column, "metric": metric, "dtype": dtype,
    }  # fmt: skip
    ids: Any = None
    index = False if checks.flag(_OP, "exact", exact) else search_parameters
    if memory is not None:
        memory = checks.size(_OP, "memory", memory)
        if device is not None or (whole is None and candidate_column is None):
            raise ValueError(f"{_OP}: memory must come with pools and without a device, got {memory}")
        if whole == "certified":
            raise ValueError(f"{_OP}: pool 'certified' must come without memory, got {memory}")
    saved: rk.Corpus | None = None
    if not isinstance(corpus, rk.Corpus):
        with words_of(_OP):
            saved = sources.saved(corpus, given, True, memory, num_threads, spread=memory is not None)
    if isinstance(corpus, rk.Corpus):
        if memory is not None:
            raise ValueError(f"{_OP}: memory must be left out with a Corpus, got {memory}")
        for name, value in given.items():
            if value is not None:
                raise ValueError(f"{_OP}: {name} must be left out with a Corpus, got {value!r}")
    elif saved is not None:
        if memory is None:
            corpus = saved
        else:
            corpus, *_ = holders.held(
                _OP, absolute(corpus), saved, memory,
                cpus=None, beside=(1, {"CPU": 1}), wait=WAIT, threads=num_threads, instruction_set=None, verify=True,
            )  # fmt: skip
            ids = None if corpus.ids.kind == "row" else corpus.ids
    elif memory is not None:
        raise ValueError(f"{_OP}: memory must come with a corpus of corpus build, got {memory} and {corpus}")
    else:
        held = {name: value for name in ("metric", "dtype") if (value := given.pop(name)) is not None}
        with words_of(_OP):
            vectors, columns = columns_of(corpus, given)
            column = columns.pop("ids", None)
            corpus = loaded(vectors, columns, held)
        if column is not None:
            found = column.whole()
            check_unique(_OP, found, column)
            ids = takeable(found)
    lookup = None
    if checks.flag(_OP, "candidate_ids", candidate_ids):
        own = ids is None or memory is not None
        lookup = corpus.ids if own else make(_OP, ids, len(corpus))
        if candidate_column is None or lookup.kind == "row":
            raise ValueError(
                f"{_OP}: candidate_ids must come with candidate_column and ids of the corpus, got column "
                f"{candidate_column!r} and {lookup!r}"
            )
    request = of_groups(_OP, request, corpus.group_names is not None)
    _check(corpus, request, whole, candidate_column, query_group_column, index)
    reference = ray.put((corpus, ids, lookup))
    lists = (*_RESULT, "nearest") if request.nearest else _RESULT
    result = (*lists, "unmet") if request.min_per_group is not None else lists

    class RaySelector:
        """Adds picks to batches of queries."""

        def __init__(self) -> None:
            held, ids, self._lookup = ray.get(reference)
            self._ids = sources.id_values(held.ids) if ids is None else ids
            self._corpus = Selector(held, device)
            self._request = request.changed(num_threads=request.num_threads or env.omp_threads())

        def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
            for name in filter(None, (query_column, query_group_column, candidate_column, relevance_column)):
                if name not in batch:
                    raise ValueError(f"{_OP}: batches must have a column {name!r}, got {list(batch)}")
            taken = [name for name in result if name in batch]
            if taken:
                raise ValueError(f"{_OP}: batches must not have the columns of the result, got {taken}")
            candidates: Any = None if candidate_column is None else batch[candidate_column]
            if candidates is not None and self._lookup is not None:
                candidates = _rows(candidates, self._lookup, candidate_column)
            relevance = None if relevance_column is None else batch[relevance_column]
            if relevance is not None and [*map(len, relevance)] != [*map(len, candidates)]:
                raise ValueError(f"{_OP}: {relevance_column} must have a number for each of the candidates, got others")
            asked = self._request.changed(
                queries=_stacked(batch[query_column], query_column),
                candidates=None if candidates is None else _padded(candidates, np.int64, -1),
                relevance=None if relevance is None else _padded(relevance, np.float32, 0),
                query_groups=None if query_group_column is None else np.asarray(batch[query_group_column]),
            )
            picks = self._corpus.select(asked, whole, index)
            found = {**batch, **_lists(picks, self._ids, lists)}
            if picks.unmet is not None:
                found["unmet"] = pa.array(map(as_map, picks.unmet), UNMET)
            return found

    return RaySelector


def _check(
    corpus: rk.Corpus,
    request: Request,
    pool: int | str | None,
    candidate_column: str | None,
    group_column: str | None,
    index: Any,
) -> None:
    """Let the library check the options, on one query."""
    groups = np.zeros(1, np.int64) if corpus.group_names is None else [""]
    asked = request.changed(
        queries=np.zeros((1, corpus.dims), np.float32),
        candidates=None if candidate_column is None else np.zeros((1, 1), np.int64),
        query_groups=None if group_column is None else groups,
        relevance_scale="as-is",  # there is no relevance here
    )
    quotas.warn_of_unknown(_OP, request, corpus)
    with muted(rk.PoolSizeWarning):
        Selector(corpus, None).select(asked, pool, index)


def _stacked(column: Any, name: str) -> Array:
    """Return vectors as one array; Ray gives columns of lists as arrays of arrays."""
    try:
        array = np.asarray(column if column.dtype != object else np.stack(list(column)))
    except ValueError as error:
        raise ValueError(f"{_OP}: {name} must have vectors of one length, got {error}") from error
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _rows(column: Any, lookup: Ids, name: str | None) -> Array:
    """Return the rows of the corpus for lists of its ids."""
    found = np.empty(len(column), object)
    for query, wanted in enumerate(column):
        try:
            found[query] = lookup.rows_of(wanted)
        except (ValueError, TypeError) as error:
            raise type(error)(
                f"{_OP}: {name} must be lists of ids of the corpus, got for query {query}: {error}"
            ) from error
    return found


def _padded(column: Any, dtype: type, padding: int) -> Array:
    if column.dtype != object:
        return np.asarray(column)
    width = max((len(row) for row in column), default=0)
    rows: list[Array] = [
        np.pad(np.asarray(row, dtype), (0, width - len(row)), constant_values=padding) for row in column
    ]
    return np.stack(rows) if rows else np.zeros((0, 0), dtype)


def _lists(picks: rk.Selection, ids: Any, names: tuple[str, ...]) -> dict[str, Array]:
    """Return the picks without padding, as columns of Python lists, which Ray stores as lists."""
    columns = {name: np.empty(len(picks.lengths), object) for name in names}
    real = np.arange(picks.indices.shape[1]) < picks.lengths[:, None]
    picked = picks.indices[real]
    named = picked.tolist() if ids is None else ids.take(pa.array(picked)).to_pylist()
    ends = np.cumsum(picks.lengths)
    for row, length in enumerate(picks.lengths):
        columns["ids"][row] = named[ends[row] - length : ends[row]]
        for name in names[1:]:
            columns[name][row] = getattr(picks, name)[row, :length].tolist()
    return columns
