"""`Corpus`: embeddings that are normalised and checked once, with exact search and selection."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import Any, Literal, cast

import numpy as np

from .._base import arrays as _arrays
from .._base import checks
from .._base.arrays import HOST
from .._base.hints import hinted
from .._base.tables import padded
from .._base.types import (
    Array,
    ArrayLike,
    Backend,
    Decay,
    MaxPerGroup,
    Method,
    Metric,
    MinPerGroup,
    Moment,
    OnError,
    PathLike,
    RelevanceScale,
    Seconds,
    Storage,
)
from .._gpu.plans import planned
from ..selection import METHODS, quotas
from ..selection.parameters import DEFAULTS
from ..selection.problem import COLUMNS, Rows, SearchResult, Selection
from ..selection.request import Request
from ..selection.route import Route
from . import faiss_index, folder, retrieve, search, segments, subset, windows
from .folder_index import FolderIndex
from .ids import Ids, make
from .joined_ids import Joined
from .rows import as_is, check_type, columns, encoded, lies_on, moved, place_of, store


class Corpus(Rows):
    """Rows normalised and checked once, with their bias, groups, ids, costs and times.

    Parameters
    ----------
    embeddings : (N, D) float32 | float16 | bfloat16 | int8 | uint8, or (N, D / 8) packed signs
        Read in blocks, so a memory-mapped file need not fit in memory besides the corpus. float64 (also from lists of
        numbers) is converted to float32 block by block, with a `ConversionWarning`. int8 and uint8, from quantising
        encoders, are read as numbers; ``dtype="int8"`` stores int8 unchanged. With ``dtype="binary"`` they are packed
        signs: 8 dimensions per byte, most significant bit first, as from `numpy.packbits` and the encoder precision
        "ubinary"; int8 is the same minus 128, the precision "binary".
    bias : (N,) floating point, optional
        Quality of each row; `mmr`, `search` and `select` use it by default.
    groups : (N,) integers or str, optional
        Group of each row, such as its source, for ``query_groups`` and ``max_per_group``. Each distinct string is
        stored once.
    metric : {"cosine", "dot"}
        "cosine" stores unit rows (a zero row stays zero). "dot" stores rows as given, and shares the memory of
        contiguous embeddings of the same dtype.
    dtype : {"float32", "float16", "bfloat16", "int8", "binary"}
        Storage type. 16-bit rows halve the memory and its traffic, int8 rows quarter it. Each rounded row has a float32
        scale: under "cosine" it makes the row a unit vector again, under "dot" (int8 only) it restores the largest
        element. "binary" (on the host, "cosine") keeps a bit a dimension, 1 for what is above 0: rows are vectors of 1
        and -1, and the cosine of two is 1 - 2 h / D with h the bits that differ. Queries are floats (Q, D) as they are,
        or packed signs (Q, D / 8).
    device : None | "cpu" | "cuda" | "cuda:0" | ...
        Where the rows are kept; None: where the embeddings are. On a device they are torch tensors, `search` and
        `select` take queries on that device, and embeddings on the host are normalised there block by block.
    ids : (N,) integers or str, optional
        Unique names of the rows outside the corpus. Integers have 64 bits and must not be -1, which means no row. All
        calls take and return rows; ``corpus.ids[rows]`` and `rows_of` translate.
    costs : (N,) floats or integers, optional
        Cost of picking each row, such as its number of tokens: finite and at least 0, stored as float64.
    time : (N,) datetime64, floats or integers, optional
        When each row was written, for ``half_life``: numbers are seconds since 1970, datetime64 is in UTC. Stored as
        float64. NaT or NaN: the row has no time, and counts as older than all others.

    Attributes
    ----------
    ids : Ids
        ``ids[rows]`` gives the ids of rows, given as an integer array of any shape: an int64 array, or an object array
        of str. Row -1 gives -1, or None among strings. Without ids the rows are their own.
    groups : (N,) int64, or None
    group_names : Ids, or None
        Of groups that are strings ``group_names[groups[rows]]`` gives those of rows; ``groups`` are their numbers.

    Notes
    -----
    Under "cosine" rows of floats also get 8-bit codes, D + 12 bytes a row in whole cache lines: about 25 % more memory
    for float32 rows, 50 % for 16-bit rows, on the host. The codes show the kernels which rows they need not read.
    Results are exact with and without them.

    Raises
    ------
    ValueError
        NaN or inf in a row (the first is named), a corpus without rows, values beyond the range of ``dtype``.
    TypeError
        An argument of the wrong kind or element type.

    Examples
    --------
    >>> import numpy as np, ragsys_kernels as rk
    >>> corpus = rk.Corpus(np.eye(3, dtype=np.float32))
    >>> corpus.search(np.array([[0, 1, 0.5]], np.float32), 2)[0]
    array([[1, 2]])
    """

    @hinted("Corpus")
    def __init__(
        self,
        embeddings: ArrayLike,
        bias: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        metric: Metric = "cosine",
        dtype: Storage = "float32",
        device: str | None = None,
        *,
        ids: ArrayLike | Sequence[str] | None = None,
        costs: ArrayLike | None = None,
        time: ArrayLike | None = None,
    ) -> None:
        op = "Corpus"
        checks.choice(op, "metric", metric, ("cosine", "dot"))
        checks.choice(op, "dtype", dtype, _arrays.CORPUS_STORAGE)
        own = {"bias": bias, "groups": groups, "costs": costs, "time": time}
        source = checks.same_device(op, {"embeddings": embeddings, **own})
        place = place_of(op, source if device is None else device)
        if source != "cpu" and place is HOST:
            raise ValueError(f"{op}: embeddings must be on the host with device='cpu', got {source}; copy them first")
        check_type(op, dtype, metric, place)
        data, scales, max_norm = store(*as_is(op, embeddings, HOST if source == "cpu" else place), metric, dtype, place)
        codes, code_error = encoded(place, data, dtype, metric, scales)
        super().__init__(
            data,
            dtype,
            metric,
            "as_given" if scales is None else "scaled",
            scales,
            max_norm=max_norm,
            codes=codes,
            code_error=code_error,
            **columns(op, own, len(data), place),
        )
        object.__setattr__(self, "ids", make(op, ids, len(data)))

    ids: Ids
    _parts: segments.Parts | None = None  # of a corpus in segments
    _memory: int | None = None  # bytes that mapped rows may take
    _index: FolderIndex | None = None  # of the folder that it was loaded from

    def __len__(self) -> int:
        return len(self.data)

    @property
    def num_live(self) -> int:
        """How many of the N rows are not deleted."""
        if self.live is None:
            return len(self.data)
        of, counted = vars(self).get("_counted", (None, 0))
        if of is not self.live:  # a copy may have that of its original
            counted = int(self.live.sum())
            object.__setattr__(self, "_counted", (self.live, counted))
        return cast(int, counted)

    def rows_of(self, ids: ArrayLike | str | Sequence[Any], *, unknown: Literal["raise", "pad"] = "raise") -> Array:
        """Return the rows of some ids, to be given as ``candidates`` or ``initial``.

        Parameters
        ----------
        ids : an id, or ids in an array or list of any shape
            Integers or strings, as those of the corpus are; without ids, rows. -1, or None among strings, is padding.
        unknown : {"raise", "pad"}
            How to treat an id that is not in the corpus. "pad": it becomes -1.

        Returns
        -------
        int64 array of the shape of ``ids``, on the host
            -1 for padding.

        Raises
        ------
        ValueError
            An id is not in the corpus; the first is named.
        TypeError
            Integers where the corpus has strings, or strings where it has integers.

        Notes
        -----
        O(log N) an id: a search in sorted keys, which are made with the corpus and saved with it.

        Examples
        --------
        >>> import numpy as np, ragsys_kernels as rk
        >>> corpus = rk.Corpus(np.eye(3, dtype=np.float32), ids=["a", "b", "c"])
        >>> corpus.rows_of(["c", "a"])
        array([2, 0])
        >>> corpus.ids[[[2, 0, -1]]]
        array([['c', 'a', None]], dtype=object)
        """
        return self.ids.rows_of(ids, unknown)

    @property
    def device(self) -> str:
        """The device of the rows, or ``"cpu"``."""
        return _arrays.device_of(self.data)

    def to(self, device: str) -> Corpus:
        """Return the corpus on another device, or itself if it is there. On the host its codes are made again."""
        place = place_of("Corpus", device)
        check_type("Corpus", self.dtype, self.metric, place)
        return self if lies_on(self, place) else moved(self, place, (*folder.ARRAYS, "live"))

    def __repr__(self) -> str:
        extras = "".join(f", {name}" for name in COLUMNS if getattr(self, name) is not None)
        extras = extras if self.group_names is None else extras.replace("groups", "groups=str")
        extras += f", ids={self.ids.kind}" if self.ids.kind != "row" else ""
        extras += f", deleted={len(self) - self.num_live}" if self.live is not None else ""
        extras += "" if self._index is None else f", index={str(self._index)!r}"
        extras += "" if self.device == "cpu" else f", device={self.device!r}"
        return f"Corpus(N={len(self)}, D={self.dims}, metric={self.metric!r}, dtype={self.dtype!r}{extras})"

    @planned("search")
    def search(
        self,
        queries: ArrayLike,
        n: int,
        *,
        lambda_b: float | ArrayLike = 0.95,
        query_groups: ArrayLike | None = None,
        allowed: ArrayLike | None = None,
        exclude: ArrayLike | None = None,
        index: Any = None,
        backend: Backend = "auto",
        num_threads: int | None = None,
        on_error: OnError = "raise",
    ) -> SearchResult:
        """Return the n rows of largest relevance with bias, exactly, or those that an index finds.

        Parameters
        ----------
        queries : (Q, D)
        n : int
            Rows per query, at least 1; above N the rest is padding, up to 65,536.
        lambda_b : float or (Q,), in [0, 1]
            Weight of relevance against the corpus's bias; without a bias it has no effect.
        query_groups : (Q,) integers or str, optional
            Rows of the query's own group are left out.
        allowed, exclude : (N,) or (Q, N) bool, or (M,) or (Q, M) int32 | int64, optional
            Rows that may, or may not, be found, as in `mmr`. The result has the n best allowed rows, or fewer if there
            are no more.
        index : False, str, faiss.Index, usearch.index.Index or Corpus, optional
            Default: the index that the folder of the corpus was built with (``corpus build --index``), if it has one
            and rows are on the host; ``False``: the exact search. Text: that index with other parameters than it was
            built with, as FAISS's ParameterSpace takes them ("nprobe=32"); what it finds depends neither on the batch
            nor on threads. Another index finds the rows, which are then ranked and scored as by the exact search; it is
            made by `to_faiss`, or the caller's own over the same N rows in their order: with D + 1 columns, the last
            for the bias as `to_faiss` stores it, with D columns, which finds rows by relevance alone, or with fewer,
            the first ones (Matryoshka), to which
            those of the queries go. Its metric is the inner product; of unit rows without the bias it may be L2, or
            usearch's "cos". The numbers of an IndexIDMap, of an inverted file and the keys of usearch are row numbers
            or the corpus's integer ids; they may lack deleted rows. The library's own threads and settings
            (``efSearch``, ``nprobe``, ``expansion_search``) apply. A Corpus has the same N rows in their order, such as
            their signs (``dtype="binary"``) or first dimensions: ``search(queries, 40, index=signs).indices[:, :10]``
            are the 10 best of 40. Before the first search the vectors of 32 rows are compared with those of the
            corpus, for which an index must be able to give them back (``reconstruct``); another is taken as it is. They
            are compared again if the number of rows, the columns or the metric change; an index whose rows are
            replaced by as many others is not compared again.
        backend, num_threads, on_error
            As in `mmr`. "reference" multiplies with NumPy and the threads of its BLAS, "triton" with a kernel, "cuda"
            with torch.

        Returns
        -------
        SearchResult
            A tuple. ``indices`` (Q, n) int64: best first, ties to the lowest row; -1 where the corpus has no more rows,
            or the index finds no more. ``scores`` (Q, n) float32: v; -inf where there is no row. ``errors``: as in
            `mmr`.

        Notes
        -----
        The CPU kernels take rows in blocks, each against all queries, with the dot product of selection; codes, where
        the corpus has them, show which rows must be read. A row's score does not depend on what else is in the batch.
        O(Q N D) time; one query takes 1.6 to 2 times as long as reading the codes. The ids and scores of about 2 n rows
        are kept per thread and query of a block, of at most 256 queries.
        """
        return self._search(Request(
            "search", queries, self, n, query_groups=query_groups, allowed=allowed, exclude=exclude, backend=backend,
            num_threads=num_threads, on_error=on_error, lambda_b=lambda_b,
        ), index)  # fmt: skip

    def _search(self, request: Request, index: Any, route: Route | None = None) -> SearchResult:
        return search.search(request, index, route)

    @planned("select")
    def select(
        self,
        queries: ArrayLike | None,
        k: int | ArrayLike,
        *,
        method: Method = "mmr",
        pool: int | Literal["certified"] | None = 100,
        candidates: ArrayLike | None = None,
        index: Any = None,
        relevance: ArrayLike | None = None,
        relevance_scale: RelevanceScale = "as-is",
        bias: ArrayLike | None = None,
        lambda_d: float | ArrayLike | None = None,
        lambda_b: float | ArrayLike = 0.95,
        groups: ArrayLike | None = None,
        query_groups: ArrayLike | None = None,
        max_per_group: MaxPerGroup | None = None,
        min_per_group: MinPerGroup | None = None,
        initial: ArrayLike | None = None,
        allowed: ArrayLike | None = None,
        exclude: ArrayLike | None = None,
        costs: ArrayLike | None = None,
        budget: float | ArrayLike | None = None,
        max_similarity: float | ArrayLike | None = None,
        min_relevance: float | ArrayLike | None = None,
        nearest: bool = False,
        quality: ArrayLike | None = None,
        scale: float | None = None,
        gamma: float | None = None,
        window: int | None = None,
        noise: float | None = None,
        min_gain: float | None = None,
        kind: str | None = None,
        aspects: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        density: bool | None = None,
        eps: float | None = None,
        half_life: Seconds | None = None,
        now: Moment | None = None,
        decay: Decay = "exp",
        decay_floor: float = 0.0,
        metric: Metric = "cosine",
        check_values: bool | None = None,
        backend: Backend = "auto",
        num_threads: int | None = None,
        on_error: OnError = "raise",
    ) -> Selection:
        """Retrieve the ``pool`` best rows of each query, and select k of them.

        Parameters
        ----------
        queries : (Q, D)
        k : int or (Q,) integers
        method : {"mmr", "vrsd", "msd", "dpp", "ssd", "sift", "coverage", "gist"}
        pool : int, None or "certified"
            Rows retrieved by `search` (VRSD, SIFT: by relevance alone). None: the whole corpus is the pool, exactly.
            "certified" (MMR with cosines on the host): pools grow, at most to the whole corpus, until every query's
            picks are proven to be those of the whole corpus.
        candidates : (Q, P) int32 | int64, optional
            Pools already retrieved; ``pool`` then has no effect.
        index : False, str, faiss.Index, usearch.index.Index or Corpus, optional
            Retrieves the pools, as in `search`. With ``pool=None`` or "certified" the corpus's own is not used.
        relevance, relevance_scale, bias, lambda_d, lambda_b, groups, query_groups, max_per_group, min_per_group, \
            initial, allowed, exclude, costs, budget, max_similarity, min_relevance, nearest, metric, check_values
            As in `mmr`; VRSD and SIFT do not take ``bias``, ``lambda_d`` and ``lambda_b``. The default of ``lambda_d``
            depends on the rule. With ``relevance`` nothing is retrieved; without ``candidates`` it has a value for
            every row. ``bias``, ``groups``, ``costs`` replace the corpus's; with a retrieved pool they and ``quality``
            are (N,), groups also (N, L). ``min_per_group`` holds among the rows of the pool: of a group with few rows
            near the query it may have none; ``pool=None`` has all. "certified" does not take it.
        quality, scale, gamma, window, noise, min_gain, kind, aspects, weights, density, eps : optional
            Options of one rule, as in its function.
        half_life : float, timedelta or timedelta64, optional
            Seconds after which a candidate keeps half of its relevance, computed or given, by the ``time`` of its row.
            It falls as by `decayed`, before ``min_relevance`` and ``relevance_scale`` apply. Pools are retrieved as
            without it: a larger one has more recent rows, and with ``pool=None`` or "certified" the picks are those of
            all rows. Rows of the future have the age 0. Computed relevance below 0 stays as it is, given one is an
            error. A `RelevanceRangeWarning`, on the host, says where no candidate of a query keeps a thousandth of the
            relevance, and where all times are of the future.
        now : float, datetime or datetime64, optional
            The time that ages are counted from, seconds since 1970; without a zone, in UTC. Default: that of the call.
        decay : {"exp", "gauss", "linear"}
        decay_floor : float, in [0, 1]
            ``kind`` and ``floor`` of `decayed`: relevance is multiplied by the larger of the decay and the floor.
        backend, num_threads, on_error
            As in `mmr`.

        Returns
        -------
        Selection
            As from the function of that name. ``certified`` is known with ``pool=None``, and if this call retrieved
            MMR's pools exactly, with cosines and on the host; then ``pool_needed`` is known too.
        """
        checks.choice("select", "method", method, METHODS)
        if lambda_d is None:
            lambda_d = DEFAULTS[method].get("lambda_d")
        request = Request(
            method, queries, self, k, candidates, relevance, relevance_scale, groups, query_groups, max_per_group,
            min_per_group, padded(initial), padded(allowed), padded(exclude), costs, budget, max_similarity,
            min_relevance, metric, check_values, backend, num_threads, on_error, None, bias, lambda_d, lambda_b, None,
            quality, scale, gamma, window, noise, min_gain, kind, aspects, weights, density, eps, nearest, half_life,
            now, decay, decay_floor,
        )  # fmt: skip
        quotas.warn_of_unknown("select", request, self)
        return self._select(request, pool, index)

    def _select(self, request: Request, pool: Any, index: Any) -> Selection:
        return retrieve.select(self, request, pool, index)

    @hinted("subset", "search", *METHODS)
    def subset(
        self,
        k: int,
        *,
        rule: Method = "mmr",
        targets: ArrayLike | None = None,
        target_relevance: Literal["mean", "max"] = "mean",
        neighbors: int | None = None,
        index: Any = None,
        relevance_scale: RelevanceScale = "as-is",
        bias: ArrayLike | None = None,
        lambda_d: float | None = None,
        lambda_b: float = 0.95,
        groups: ArrayLike | None = None,
        max_per_group: MaxPerGroup | None = None,
        min_per_group: MinPerGroup | None = None,
        initial: ArrayLike | None = None,
        allowed: ArrayLike | None = None,
        exclude: ArrayLike | None = None,
        costs: ArrayLike | None = None,
        budget: float | None = None,
        max_similarity: float | None = None,
        min_relevance: float | None = None,
        nearest: bool = False,
        quality: ArrayLike | None = None,
        scale: float | None = None,
        gamma: float | None = None,
        window: int | None = None,
        noise: float | None = None,
        min_gain: float | None = None,
        kind: str | None = None,
        aspects: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        density: bool | None = None,
        eps: float | None = None,
        backend: Backend = "auto",
        num_threads: int | None = None,
    ) -> Selection:
        """Choose k rows of the whole corpus without a query, exactly: a spread of it, by quality if rows have a bias.

        Relevance r_i is 0, or that to some targets. So MMR weighs quality against redundancy: row i is worth::

            w_i = lambda_d * (1 - lambda_b) * b_i - (1 - lambda_d) * max over picks C of cos(e_i, e_C)

        With ``lambda_b=0`` it is lambda_d alone that weighs the two. ``lambda_d=0`` is the farthest-first traversal,
        the greedy 2-approximation of k-center by angle, from the row of most quality, or the first.

        Parameters
        ----------
        k : int
        rule : {"mmr", "vrsd", "msd", "dpp", "ssd", "sift", "coverage", "gist"}
            VRSD and SIFT need targets: their query is the mean of these, each scaled to length 1 for cosines.
        targets : (T, D) numbers, optional
            Vectors that the rows are to be relevant to, such as those of a task's examples; on the host.
        target_relevance : {"mean", "max"}
            With targets: relevance of a row is the mean of its similarities to them, or the largest.
        neighbors : int, optional
            Of coverage, for more rows than the 131,072 whose similarities are all compared, or to take less time: the
            similarity of row i to a pick j counts if j is i itself, or one of the so many other rows of largest
            similarity to i (ties to the lowest row); else it is 0, as negative ones are. "facility" is then the mean
            over the rows of the largest that counts. The other rows are those that may be picked, and ``initial``. 64
            is usual; N - 1 or more give the coverage by all similarities.
        index : False, faiss.Index, usearch.index.Index or Corpus, optional
            With ``neighbors``: finds them, as in `search`: the corpus's own by default, False for the exact search,
            which takes O(N² D) time. Picks by neighbors that an index found are not `certified`.
        initial : (S,) or (1, S) int32 | int64, optional
            Rows already chosen: they count as earlier picks and are not returned.
        bias, lambda_d, lambda_b, groups, max_per_group, min_per_group, allowed, exclude, costs, budget, \
            max_similarity, min_relevance, nearest, relevance_scale, backend, num_threads
            As in `select`. The scale is that of the relevance to targets, and ``min_relevance`` bounds it: neither goes
            without targets.
        quality, scale, gamma, window, noise, min_gain, kind, aspects, weights, density, eps : optional
            Options of one rule, as in its function. The ``quality`` of DPP takes the place of that by the bias.

        Returns
        -------
        Selection
            Of one query: arrays (1, K), in the order of the picks.

        Raises
        ------
        ValueError, TypeError, BackendUnavailableError
            As `select`; targets of another length, or with NaN or inf.

        Notes
        -----
        The same, to the bit, as ``select(None, k, relevance=zeros, pool=None)`` with zeros (1, N). O(k N D) time at
        most: upper bounds spare most products. Relevance to targets takes O(T N D) more, for the mean O(N D). All rows
        are read for many picks, also where `load` was given ``memory``. With ``neighbors`` m, after the search,
        O(N m + k N) time at most and 32 N m bytes.

        Examples
        --------
        >>> import numpy as np, ragsys_kernels as rk
        >>> rows = np.array([[1, 0], [0.9, 0.1], [0, 1], [-1, 0.2]], np.float32)
        >>> rk.Corpus(rows).subset(3, lambda_d=0).indices
        array([[0, 3, 2]])
        """
        checks.choice("subset", "rule", rule, METHODS)
        if lambda_d is None:
            lambda_d = DEFAULTS[rule].get("lambda_d")
        initial = padded(subset.one_query(initial))
        request = Request(
            rule, None, self, k, relevance_scale=relevance_scale, groups=groups, max_per_group=max_per_group,
            min_per_group=min_per_group, initial=initial, allowed=padded(allowed), exclude=padded(exclude), costs=costs,
            budget=budget, max_similarity=max_similarity, min_relevance=min_relevance, backend=backend,
            num_threads=num_threads, bias=bias, lambda_d=lambda_d, lambda_b=lambda_b, quality=quality, scale=scale,
            gamma=gamma, window=window, noise=noise, min_gain=min_gain, kind=kind, aspects=aspects, weights=weights,
            density=density, eps=eps, nearest=nearest,
        )  # fmt: skip
        quotas.warn_of_unknown("subset", request, self)
        return subset.subset(request, targets, target_relevance, neighbors, index)

    def to_faiss(self, index: Any = None) -> Any:
        """Make a FAISS index over the rows for `search` and `select`, the exact bias included (RAGSys, section 5.3).

        Row i of the index is [e_i, b_i / 64]. Its inner product with a query [lambda_b q, 64 (1 - lambda_b)] is v_i for
        any lambda_b (q a unit vector under "cosine"). Without a bias rows are e_i.

        Parameters
        ----------
        index : None | str | faiss.Index
            None: ``IndexFlatIP``. Or a factory string, such as "HNSW32,Flat" or "IVF64,Flat". Or an empty index for
            inner products over D columns, D + 1 with a bias; it is trained if it needs that, and filled in place.

        Returns
        -------
        faiss.Index
            Its ids are the rows of the corpus.

        Raises
        ------
        ModuleNotFoundError
            faiss is not installed.
        ValueError
            A factory string that FAISS refuses; an index of another metric or width; one that is not empty, or that
            cannot be built from so few rows.

        Notes
        -----
        Rows are widened to float32 in blocks of 16 MB; training takes a fixed sample of 256 rows per centroid. The 64
        keeps the bias from dominating the graph or the clusters of an approximate index. Where the bias dominates v
        itself (a low lambda_b, a wide bias) such indexes find less: compare with the exact `search`.

        Examples
        --------
        >>> index = corpus.to_faiss("HNSW32,Flat")
        >>> corpus.select(queries, 6, pool=100, index=index)
        """
        return faiss_index.build("to_faiss", self, index)

    def append(
        self,
        embeddings: ArrayLike | Corpus,
        bias: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        *,
        ids: ArrayLike | Sequence[str] | None = None,
        costs: ArrayLike | None = None,
        time: ArrayLike | None = None,
        on_duplicate: Literal["error", "replace"] = "error",
    ) -> Corpus:
        """Return a corpus with more rows, numbered from N on; this one stays as it is.

        Parameters
        ----------
        embeddings : (M, D) float32 | float16 | bfloat16, or a Corpus
            Stored as the rows of this corpus are. A corpus has its own bias, groups, ids, costs and times.
        bias, groups, costs, time : (M,), optional
            As of `Corpus`; given if and only if this corpus has them.
        ids : (M,) integers or str, optional
            As of `Corpus`; given if and only if this corpus has ids of that kind.
        on_duplicate : {"error", "replace"}
            How to treat an id that is already in the corpus. "replace": its old row is deleted.

        Returns
        -------
        Corpus
            On the host. It shares the memory of existing rows that come from a folder or an earlier append: the first
            call for a corpus made from arrays copies its rows, and later calls copy only the new rows.

        Raises
        ------
        ValueError
            An id that is there already; rows of another metric, dtype or D, or with other columns.

        Examples
        --------
        >>> import numpy as np, ragsys_kernels as rk
        >>> corpus = rk.Corpus(np.eye(3, dtype=np.float32), ids=["a", "b", "c"])
        >>> newer = corpus.append(np.array([[1, 1, 0]], np.float32), ids=["b"], on_duplicate="replace")
        >>> len(newer), newer.num_live, newer.rows_of("b")
        (4, 3, array(3))
        """
        op = "append"
        checks.choice(op, "on_duplicate", on_duplicate, segments.DUPLICATES)
        if self.device != "cpu":
            raise ValueError(f"{op}: the corpus must be on the host, got one on {self.device}")
        own: dict[str, Any] = {"bias": bias, "groups": groups, "costs": costs, "time": time}
        if isinstance(embeddings, Corpus):
            for name, value in {**own, "ids": ids}.items():
                if value is not None:
                    raise ValueError(f"{op}: {name} must be left out with a Corpus, got an array")
            new = embeddings.to("cpu")
        else:
            kind: Any = self.dtype
            new = Corpus(embeddings, metric=cast(Metric, self.metric), dtype=kind, device="cpu", ids=ids, **own)
        longer = segments.appended((self, self.ids, self._parts), (new, new.ids), on_duplicate, op)
        return type(self)._of(dataclasses.replace(longer, index=self._index))

    def delete(self, ids: ArrayLike | str | Sequence[Any], *, unknown: Literal["raise", "skip"] = "raise") -> Corpus:
        """Return a corpus without some rows; this one stays as it is.

        The others keep their numbers, and N counts the deleted ones, which are never found or picked; `rows_of` does
        not know them. All memory is shared.

        Parameters
        ----------
        ids : an id, or ids in an array or list of any shape
            As of `rows_of`; without ids, rows.
        unknown : {"raise", "skip"}
            How to treat an id that is not in the corpus, or already deleted.

        Raises
        ------
        ValueError
            An id is not in the corpus; the first is named.
        TypeError
            Integers where the corpus has strings, or strings where it has integers.

        Examples
        --------
        >>> import numpy as np, ragsys_kernels as rk
        >>> corpus = rk.Corpus(np.eye(3, dtype=np.float32), ids=["a", "b", "c"]).delete(["b"])
        >>> corpus.search(np.array([[0, 1, 0.5]], np.float32), 3).indices
        array([[ 2,  0, -1]])
        """
        checks.choice("delete", "unknown", unknown, ("raise", "skip"))
        try:
            rows = np.unique(self.ids.rows_of(ids, "raise" if unknown == "raise" else "pad"))
        except (ValueError, TypeError) as error:
            if not str(error).startswith("rows_of: "):
                raise
            raise type(error)(f"delete: {str(error).removeprefix('rows_of: ')}") from None
        rows = rows[rows >= 0]
        if not rows.size:
            return self
        live = segments.without(self, rows)
        names = self.ids.with_live(live) if isinstance(self.ids, Joined) else Joined([self.ids], live)
        norm = segments.remaining_norm(self, live, rows) if self.device == "cpu" else self.max_norm
        place = place_of("delete", self.device)
        return _arrays.changed(self, live=place.upload(live), ids=names, max_norm=norm)

    def save(self, path: PathLike, *, overwrite: bool = False) -> None:
        """Write the corpus to a folder that `load` maps into memory.

        The save is atomic: the folder is written under a temporary name, synced and renamed. A process killed at any
        moment leaves the old corpus or the new one; the next `save` to the path removes leftovers. An existing folder
        is an error, or with ``overwrite`` replaced if it holds only a saved corpus.

        A corpus in segments is saved as one piece, without its deleted rows, so later rows get lower numbers.

        Raises
        ------
        FileExistsError
            The path exists and must not be replaced.
        OSError
            The folder cannot be written, as on a full disk; what was there is as it was.
        """
        rows, ids = segments.whole(self.to("cpu"), self.ids)
        folder.save(rows, ids, path, checks.flag("Corpus", "overwrite", overwrite))

    @classmethod
    def load(cls, path: PathLike, device: str = "cpu", *, verify: bool = False, memory: int | None = None) -> Corpus:
        """Return the corpus saved in a folder: its arrays mapped into memory and read as they are used, or on a device.

        The folder was written by `save`, or is in segments (``ragsys-kernels corpus build --rows-per-segment``); then
        the corpus is its current version, whatever is written to it later. From a URL that fsspec opens, as
        ``s3://bucket/corpus``, its files are copied to a temporary folder, which has no name when the call returns, and
        are verified.

        Names, sizes, headers, the description and a sample of the rows of each array are checked. If the folder has up
        to 1 MB, or with ``verify``, all bytes are read, at some 2 GB/s, and checked, and the ids must be unique.

        With ``memory``, a limit in bytes, the corpus can be larger than that. `search` then reads the rows in windows,
        once per call for all queries, so pass many queries; `select` also reads the rows of the pools. The memory of a
        window is released after its search. ``pool=None``, which "certified" falls back to for some queries, reads all
        rows for each pick and exceeds this limit.

        Raises
        ------
        ValueError
            The folder does not hold a corpus, or one that is damaged.
        OSError
            The URL cannot be read, or the disk has no room for its files.
        """
        op = "Corpus"
        if memory is not None:
            memory = checks.count(op, "memory", memory)
            if device != "cpu":
                raise ValueError(f"{op}: memory must be left out with a device, got {device!r}")
        corpus = cls._of(segments.load(path, checks.flag(op, "verify", verify))).to(device)
        if memory is not None:
            object.__setattr__(corpus, "_memory", memory)
        return corpus

    def _copied(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return copies of some rows, given in ascending order, of each array by its name."""
        return windows.copied(self, rows, cast(int, self._memory))

    @classmethod
    def _of(cls, opened: segments.Opened) -> Corpus:
        corpus = cls.__new__(cls)
        vars(corpus).update(vars(opened.rows), ids=opened.ids, _parts=opened.parts, _index=opened.index)
        return corpus


def reloaded(path: PathLike, verify: bool, compared: set[str] | None) -> Corpus:
    """Return what `Corpus.load` does; of segments, only those not in ``compared`` are verified, and then added."""
    return Corpus._of(segments.load(path, verify, compared))


_reading = threading.RLock()


class _Unread(Corpus):
    """What `loaded_when_used` returns, until any attribute of it is asked for."""

    def __getattribute__(self, name: str) -> Any:
        with _reading:
            if type(self) is _Unread:
                found = object.__getattribute__(self, "__dict__")
                corpus = Corpus.load(found["path"])
                found.clear()
                found.update(vars(corpus))
                object.__setattr__(self, "__class__", Corpus)
        return object.__getattribute__(self, name)


def loaded_when_used(path: PathLike) -> Corpus:
    """Return what `Corpus.load` does, at its first use: to open 1,000 segments takes longer than to append to them."""
    corpus: Corpus = _Unread.__new__(_Unread)
    object.__getattribute__(corpus, "__dict__")["path"] = path
    return corpus


def part(
    path: PathLike, description: dict[str, Any], numbers: range, group_names: Ids | None, verify: bool = False
) -> Corpus:
    """Return some segments of a version of a folder, `segments.version_of`, as a corpus of their own.

    ``group_names``: those of the whole corpus, which the numbers of groups are of.
    """
    return Corpus._of(segments.part(path, description, numbers, group_names, verify))
