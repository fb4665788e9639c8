"""The files of a selection job, and what they and its options must be before it starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, NoReturn

import numpy as np

import ragsys_kernels as rk

from .._base.warn import muted
from ..corpus import retrieve
from ..corpus.certified import BACKENDS
from ..selection.parameters import DEFAULTS, LIMITS
from ..selection.problem import COLUMNS
from ..selection.request import Request
from . import sources
from ._device import Selector
from ._options import OF_CORPUS, JobSpec, of_groups
from .sources import Column
from .spread import Spread


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The opened columns of all input files; they agree in their numbers of rows.

    ``held`` is how the corpus is held, metric and dtype; ``saved`` is a corpus that was saved, with what belongs to it.
    ``usable`` tells which rows of the corpus are left out. ``own`` are the vectors of each query's candidates, which
    are then all there is: ``corpus`` is this column.
    """

    corpus: Column
    corpus_ids: Column | None = None
    bias: Column | None = None
    groups: Column | None = None
    costs: Column | None = None
    time: Column | None = None
    queries: Column
    query_ids: Column | None = None
    query_groups: Column | None = None
    candidates: Column | sources.Fused | None = None
    index: sources.Index | None = None
    held: dict[str, Any]
    saved: rk.Corpus | None = None
    usable: sources.Usable = field(default_factory=sources.Usable)
    own: Column | None = None
    relevance: Column | None = None

    @classmethod
    @sources.one_version()
    def open(
        cls,
        spec: JobSpec,
        verify: bool = False,
        saved: rk.Corpus | None = None,
        known: sources.Usable | None = None,
    ) -> Inputs:
        """Open the files; refuse, from their headers alone, what does not fit together.

        With ``verify`` all bytes of a saved corpus are compared with its checksums: once for all workers of a job.
        ``saved`` is that corpus where it has been opened before, and ``known`` what a look at the rows found, if some
        may be left out.
        """
        if spec.candidate_vector_column is not None:
            return cls._of_own(spec)
        corpus = spec.corpus
        if corpus is None:
            raise ValueError("select: corpus must be given unless candidates come with their vectors, got none")
        held: dict[str, Any] = {"metric": "cosine", "dtype": "float32"}
        vectors: Column
        ids: Column | None
        if saved is None:
            own = {name: getattr(spec, name) for name in OF_CORPUS}
            spread = spec.engine == "ray" and spec.memory is not None
            saved = sources.saved(corpus, own, verify, spec.memory, spec.request.num_threads, spread)
        if saved is None and spec.memory is not None:
            raise ValueError(f"select: memory must come with a corpus of corpus build, got {spec.memory} and {corpus}")
        if saved is None:
            usual = spec.bad_rows == "skip"
            vectors = sources.vectors(corpus, "corpus", spec.vector_column, usual=usual, bytes_stay=True)
            ids = sources.ids(corpus, "corpus", spec.id_column)
        else:
            vectors, ids = sources.saved_columns(corpus, saved)
            held = {name: getattr(saved, name) for name in held}
        held.update({name: value for name in held if (value := getattr(spec, name)) is not None})
        signs = held["dtype"] == "binary"  # queries may be such as well
        # Where bad rows are skipped, the first query may be one.
        dims = vectors.dims if spec.on_error == "skip" and not signs else None
        of_rows = {"corpus": vectors, "corpus_ids": ids, **sources.of_rows(corpus, vars(spec))}
        skips = spec.skips if saved is None else ("raise", "error")
        usable = sources.usable("corpus", of_rows, *skips, named="corpus_ids", known=known)
        if usable.kept is not None and spec.index is not None:
            raise ValueError(f"select: index must be over rows that can be used, got {min(usable.skipped.values())}")
        inputs = cls(
            **usable.columns,
            queries=sources.vectors(spec.queries, "queries", spec.query_vector_column, dims, bytes_stay=signs),
            **_of_queries(spec, spec.candidate_ids),
            index=None if spec.index is None else sources.Index(spec.index, vectors.rows),
            held=held,
            saved=saved,
            usable=usable,
        )
        inputs._check_sizes()
        return inputs

    @classmethod
    def _of_own(cls, spec: JobSpec) -> Inputs:
        """Open the files of a job whose candidates come with their vectors."""
        for name in ("corpus", "index", "memory", "device", *(name for name in OF_CORPUS if name != "metric")):
            if (value := getattr(spec, name)) is not None:
                raise ValueError(f"select: {name} must be left out with candidate_vector_column, got {value}")
        file: Any = spec.candidates
        if file is None:
            raise ValueError("select: candidate_vector_column must come with candidates, got none")
        if isinstance(file, tuple):
            raise ValueError(f"select: candidate_vector_column must come with one file of candidates, got {len(file)}")
        queries = sources.vectors(spec.queries, "queries", spec.query_vector_column)
        own = sources.vector_lists(file, str(spec.candidate_vector_column), queries.dims)
        held = {"metric": spec.metric or "cosine", "dtype": "float32"}
        inputs = cls(corpus=own, own=own, queries=queries, **_of_queries(spec, True), held=held)
        inputs._check_sizes()
        return inputs

    def opened(self) -> dict[str, Column | sources.Index]:
        """Return the opened columns, and the index, by name."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        others = ("held", "saved", "usable", "own")
        return {name: column for name, column in found.items() if column is not None and name not in others}

    @property
    def named(self) -> bool:
        """Whether the rows' groups are strings."""
        if self.groups is not None:
            return _is_text(self.groups)
        return getattr(self.saved, "group_names", None) is not None

    def has(self, name: str) -> bool:
        """Whether the rows of the corpus have bias, groups, costs or times."""
        return getattr(self, name) is not None or getattr(self.saved, name, None) is not None

    def certifies(self, spec: JobSpec) -> bool:
        """Return whether the job proves picks to be those of the whole corpus, as `Corpus.select` does by itself."""
        own_search = self.candidates is None and self.index is None and spec.pool != "all"
        own_search = own_search and not self.by_own_index(spec)
        on_host = spec.device is None and spec.request.backend in BACKENDS
        own_search = own_search and spec.request.min_per_group is None  # which bounds say nothing of
        return own_search and on_host and (spec.request.op, self.held["metric"]) == ("mmr", "cosine")

    def by_own_index(self, spec: JobSpec) -> bool:
        """Return whether the index of a saved corpus finds the pools."""
        own = getattr(self.saved, "_index", None) is not None and not spec.exact
        searched = self.candidates is None and self.index is None and not isinstance(spec.pool, str)
        return own and searched and spec.device is None and spec.request.backend != "triton"

    def notices(self, spec: JobSpec) -> Iterator[str]:
        """Say where rows have no ids although their file has columns, and where candidates are no ids: the column may
        have another name, and the candidates be ids."""
        columns = (("corpus", self.corpus, self.corpus_ids, "id_column"),
                   ("queries", self.queries, self.query_ids, "query_id_column"))  # fmt: skip
        for argument, vectors, ids, option in columns:
            no_columns = argument == "corpus" and (self.saved is not None or self.own is not None)
            if ids is None and not no_columns and sources.Place(vectors.path, argument).suffix != ".npy":
                yield (
                    f"select: the ids of {argument} are row numbers, for {vectors.path} has no column 'id'; "
                    f"{option} names another"
                )
        numbered = self.corpus_ids is None or (self.usable.kept is not None and not self.usable.ids)
        if self.candidates is not None and not numbered and not spec.candidate_ids:
            assert self.corpus_ids is not None
            yield f"select: {sources.ROW_NUMBERS.format(self.corpus_ids.path)}"

    def _check_sizes(self) -> None:
        for argument, column in (("corpus", self.corpus), ("queries", self.queries)):
            if not column.rows:
                raise ValueError(f"select: {argument} must have at least one row, got none in {column.path}")
            if not column.dims:
                raise ValueError(f"select: {argument} must have at least one dimension, got none in {column.path}")
        # Eight dimensions of a binary corpus may be one byte, on either side.
        several = (1, 8, 1 / 8) if self.held["dtype"] == "binary" else (1,)
        if self.queries.dims not in [self.corpus.dims * times for times in several]:
            raise ValueError(
                f"select: queries must have the corpus's {self.corpus.dims} dimensions, "
                f"got {self.queries.dims} in {self.queries.path}"
            )
        owners = {
            "corpus": ("corpus_ids", *COLUMNS),
            "queries": ("query_ids", "query_groups", "candidates", "relevance"),
        }
        for owner, argument in ((owner, argument) for owner, arguments in owners.items() for argument in arguments):
            dependent, expected = getattr(self, argument), getattr(self, owner).rows
            if dependent is not None and dependent.rows != expected:
                raise ValueError(
                    f"select: {argument} must have one row for each of the {expected} rows of {owner}, "
                    f"got {dependent.rows} in {dependent.path}"
                )


def _of_queries(spec: JobSpec, ids: bool) -> dict[str, Any]:
    """Open what belongs to the queries; the candidates may be any ids if `ids`."""
    candidates, relevance = _candidates(spec, ids)
    return {
        "query_ids": sources.ids(spec.queries, "queries", spec.query_id_column),
        "query_groups": sources.numbers("query_groups", str, spec.query_groups, spec.query_group_column, spec.queries),
        "candidates": candidates,
        "relevance": relevance,
    }


def _candidates(spec: JobSpec, ids: bool) -> tuple[Column | sources.Fused | None, Column | None]:
    """Open the candidates, which may be any ids if `ids`, and their relevance; of several files these are fused."""
    several = spec.candidates if isinstance(spec.candidates, tuple) else (spec.candidates,)
    opened = [
        (
            sources.candidate_lists(file, spec.candidate_column, ids),
            sources.candidate_scores(file, spec.relevance_column),
        )
        for file in several
    ]
    if len(opened) == 1:
        for name in ("fusion", "fusion_weights"):
            if name in spec.unusual():
                raise ValueError(f"select: {name} must come with several files of candidates, got one or none")
        return opened[0]
    columns, scores = zip(*opened, strict=True)
    return sources.Fused(columns, scores, spec.fusion, spec.fusion_weights), None


def check_options(spec: JobSpec, inputs: Inputs) -> None:
    """Refuse options that cannot be with these inputs, before any work is done on the files."""
    spec.check_reading()
    spec.check_picking()
    _check_together(spec, inputs)
    # With Ray this process may be where no GPU is.
    elsewhere = spec.engine == "ray" and spec.device is not None
    device, backend = (None, "auto") if elsewhere else (spec.device, spec.request.backend)
    k, pool = spec.request.k, pool_of(spec, inputs)
    with muted(rk.PoolSizeWarning):
        # The library checks the rest, on one zero row.
        dims = inputs.corpus.dims * (8 if inputs.held["dtype"] == "binary" else 1)
        zero = np.zeros((1, dims), np.float32)
        groups = [""] if inputs.named else np.zeros(1, np.int64)
        columns: dict[str, Any] = {"groups": groups, "costs": np.zeros(1), "time": np.full(1, np.nan)}
        corpus = rk.Corpus(zero, **columns, **inputs.held)
        # There is no relevance here.
        request = of_groups("select", spec.request, inputs.named)
        request = request.changed(queries=zero, backend=backend, relevance_scale="as-is")
        Selector(corpus, device).select(request, pool)
    if inputs.by_own_index(spec) and inputs.saved is not None:  # which is opened, and takes the parameters
        one = Request("select", np.zeros((1, inputs.corpus.dims), np.float32), inputs.saved, 1)
        tried = inputs.saved.try_index if isinstance(inputs.saved, Spread) else inputs.saved._search
        tried(one, spec.search_parameters)
    # Warn as the library does, but before hours of work.
    leaves_out = any(getattr(spec.request, name) is not None for name in LIMITS)
    if isinstance(pool, int) and pool <= k and not leaves_out:
        raise ValueError(f"select: pool must be above k = {k}, or its rows only get another order, got {pool}")


def _check_together(spec: JobSpec, inputs: Inputs) -> None:
    """Refuse options that the inputs, or options of another group, leave without effect."""

    def refuse(name: str, rule: str, got: object) -> NoReturn:
        raise ValueError(f"select: {name} must {rule}, got {got}")

    candidates, index, own = inputs.candidates, inputs.index, inputs.own
    request = spec.request
    if candidates is not None and spec.pool is not None:
        refuse("pool", "be left out when candidates are given", spec.pool)
    scored = inputs.relevance is not None or isinstance(candidates, sources.Fused) or request.half_life is not None
    if request.relevance_scale != "as-is" and not scored:
        refuse("relevance_scale", "come with relevance_column", f"{request.relevance_scale!r} alone")
    if spec.relevance_column is not None and spec.unknown_ids == "skip" and spec.skips != ("raise", "error"):
        refuse("relevance_column", "come without unknown_ids where rows are skipped", "both")
    if spec.candidate_ids and own is not None:
        refuse("candidate_ids", "be left out with candidate_vector_column", "both")
    if spec.candidate_ids and candidates is None:
        refuse("candidate_ids", "come with candidates", "candidate_ids alone")
    if spec.candidate_ids and inputs.corpus_ids is None:
        refuse("candidate_ids", "come with ids of the corpus", f"none in {inputs.corpus.path}")
    if index is not None and candidates is not None:
        refuse("index", "be left out when candidates are given", index.path)
    if index is not None and isinstance(spec.pool, str):
        refuse("index", "come with a pool", f"pool {spec.pool!r} and {index.path}")
    if index is not None and spec.device is not None:
        refuse("index", "be left out with a device", index.path)
    if candidates is not None and spec.exact:
        refuse("exact", "be left out when candidates are given", "exact=True")
    if index is not None and spec.exact:
        refuse("index", "be left out with exact", index.path)
    if spec.search_parameters is not None and not inputs.by_own_index(spec):
        rule = "come with a corpus whose own index finds the pools, on the host"
        refuse("search_parameters", rule, repr(spec.search_parameters))
    if inputs.query_groups is not None:
        if not inputs.has("groups"):
            refuse("query_groups", "come with groups", f"{inputs.query_groups.path} alone")
        if _is_text(inputs.query_groups) != inputs.named:
            rule = f"be {'strings' if inputs.named else 'integers'} as groups are"
            refuse("query_groups", rule, f"others in {inputs.query_groups.path}")
    quotas = {name: x for name in ("max_per_group", "min_per_group") if (x := getattr(request, name)) is not None}
    for name, value in quotas.items() if not inputs.has("groups") else ():
        refuse(name, "come with groups", f"{value} alone")
    if inputs.groups is not None and inputs.query_groups is None and not quotas:
        refuse("groups", "come with query_groups, max_per_group or min_per_group", "groups alone")
    budget = request.budget
    if (budget is not None and not inputs.has("costs")) or (budget is None and inputs.costs is not None):
        got = f"a budget of {budget} alone" if inputs.costs is None else "costs alone"
        refuse("costs and budget", "come together", got)
    if request.half_life is not None and not inputs.has("time"):
        refuse("half_life", "come with times of the corpus", f"{request.half_life} alone")
    if request.half_life is None and inputs.time is not None:
        refuse("time", "come with half_life", "time alone")
    if spec.memory is not None and (spec.device is not None or spec.pool == "all" or index is not None):
        other = (
            f"device {spec.device!r}" if spec.device else "index" if index else "pool 'all': give pool a number of rows"
        )
        refuse("memory", f"be left out with {other}", spec.memory)
    if spec.pool == "certified" and isinstance(inputs.saved, Spread):
        refuse("pool 'certified'", "come without memory where the corpus is a URL", spec.memory)
    if spec.pool == "certified" and request.min_per_group is not None:
        refuse("pool 'certified'", "come without min_per_group", f"{request.min_per_group}")
    if spec.pool == "certified" and spec.device is not None:
        refuse("pool 'certified'", "come without a device", repr(spec.device))
    if inputs.bias is not None and "bias" not in DEFAULTS[request.op]:
        refuse("bias", f"be left out with method {request.op!r}", inputs.bias.path)


def pool_of(spec: JobSpec, inputs: Inputs) -> int | str | None:
    """Return the pool as `Corpus.select` takes it."""
    if inputs.candidates is not None or spec.pool == "all":
        return None
    return 100 if spec.pool is None else spec.pool


def selection_options(spec: JobSpec, inputs: Inputs) -> dict[str, Any]:
    """Return what the manifest says of the selection: what is given, and what jobs have named from the first, given or
    not. So the job of an earlier version keeps its key where a new option is not given."""
    asked = retrieve.completed(spec.request)
    named = ("max_per_group", *(name for name in ("lambda_d", "lambda_b") if name in DEFAULTS[asked.op]))
    always = {"method": asked.op, "pool": pool_of(spec, inputs), **{name: getattr(asked, name) for name in named}}
    return {**spec.given(), **always}


def _is_text(groups: Column) -> bool:
    return not isinstance(next(iter(groups.chunks(1, 0, 1, {}))), np.ndarray)
