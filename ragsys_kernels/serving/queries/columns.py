"""Blocks of queries, with the same checks in the same order for JSON and Arrow.

Each format implements `Columns`, which returns the fields of the queries as arrays. If a column has a bad value, the
block is split in halves until the bad query is found, so that valid requests pay nothing for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ...selection.parameters import RECENCY
from ...selection.request import Request
from ..asked import Asked
from ..fields import ID_LISTS, LACKS, NUMBERS, OF_ASPECTS, OF_CANDIDATES, OF_VECTORS, VECTORS
from ..kernel import Block
from ..limits import RefusedError, failed, shown
from .own_vectors import Given
from .rules import Hits, Rules, Shared

Ids = np.ndarray | list[Any]  # int64, or a list of strings
_NUMBERS = ("k", *NUMBERS)
# What limits picks, and the values of items that it goes by.
_LIMITS = {"max_per_group": "groups", "min_per_group": "groups", "query_groups": "groups", "budget": "costs"}
# Fields of queries that lack others, or exclude them.
_ODD = {"lists", *OF_VECTORS, *_LIMITS}


class Columns(Protocol):
    """Queries that give the same fields, in columns.

    Attributes
    ----------
    order : tuple of str
        The order in which the vectors (by their name in this format), ``query_id``, the numbers of candidates and the
        aspects are read. If several of them are bad, the error is about the first.
    first : mapping
        The `SHARED` fields of these queries, if they have any of their own.
    fields : collection of str
        Names of the fields that the queries have, themselves or by the rules for all; complete after `given`.
    """

    order: tuple[str, ...]
    first: Mapping[str, Any]
    fields: Collection[str]

    def __getitem__(self, part: slice) -> Columns: ...

    def given(self, metric: str) -> Given | None:
        """Return the candidates that come with their vectors. Called before any other method but `numbers`."""

    def ids(self, name: str, named: bool | None) -> tuple[Ids, list[int]]:
        """Return lists of ids end to end, strings if they are ``named`` (None: as the first is), and their lengths."""

    def hits(self, named: bool) -> list[Hits]:
        """Return what each of several retrievers found; of as many for each query, scores for all or for none."""

    def of_queries(self, name: str, named: bool | None) -> Ids:
        """Return an id of each query."""

    def vectors(self, dims: int) -> np.ndarray:
        """Return the queries' vectors (n, D) float32, finite."""

    def values(self, name: str) -> tuple[np.ndarray, list[int]]:
        """Return lists of float32, costs of float64, end to end, and the length of each."""

    def aspects(self, name: str, dims: int) -> tuple[np.ndarray, list[int]]:
        """Return lists of vectors (n, D) float32 end to end, and the length of each; all have the same."""

    def numbers(self, name: str) -> Sequence[Any]:
        """Return a number for each query, not checked yet."""


def add_block(asked: Asked, rules: Rules, columns: Columns, positions: Sequence[int]) -> None:
    """Add some queries of a request as a block; each bad query gets an error instead."""
    try:
        block = block_of(rules, columns, len(positions))
    except Exception as error:  # any error belongs to one of the queries
        if len(positions) == 1:
            why = error if isinstance(error, RefusedError) else failed(f"{rules.op}: reading a query", error)
            asked.errors[positions[0]] = why.kept()
            return
        middle = len(positions) // 2
        for part in (slice(0, middle), slice(middle, None)):
            add_block(asked, rules, columns[part], positions[part])
    else:
        asked.add(block, positions, rules.limits)


def block_of(rules: Rules, columns: Columns, n: int) -> Block:
    """Return the block of n queries.

    Raises
    ------
    RefusedError
        One of them is bad.
    """
    rules.known(columns.first)
    shared, served = rules.shared(columns.first), rules.served
    lacking = LACKS[shared.method].intersection(columns.fields)
    rules.fits(shared.method, _shown(rules, columns, sorted(lacking)) if lacking else {})
    given, fields = columns.given(shared.metric or "cosine"), columns.fields
    if given is None:
        named, dims, lengths = served.named, served.dims, None
    else:
        named, dims, lengths = given.named, int(given.rows.data.shape[1]), given.lengths
    _refuse_odd(rules, shared, columns, given is not None)
    lists: dict[str, Any] = {} if given is None else {"candidates": given.candidates}
    skipped: dict[int, dict[Any, None]] | None = {} if shared.skips else None
    values: dict[str, Any] = {}
    if "lists" in fields:
        lists["candidates"], values["relevance"] = rules.fused(columns.hits(named), shared.fusion, skipped)
    for name in filter(fields.__contains__, ID_LISTS):
        if name not in lists:
            ids, sizes = columns.ids(name, named)
            lists[name] = (given or rules).id_rows(name, ids, sizes, skipped)
            if name == "candidates":
                lengths = sizes
    vectors = query_rows = numbers_of_aspects = None
    names = served.corpus.group_names if given is None else None
    for name in filter(fields.__contains__, columns.order):
        if name == "groups":
            groups, sizes = columns.ids(name, None)
            of_queries = columns.of_queries("query_groups", None) if "query_groups" in fields else None
            numbered, values["query_groups"], names = rules.groups(groups, of_queries, shared.options)
            values[name] = rules.scores(name, numbered, sizes, lengths)
        elif name in OF_CANDIDATES:
            values[name] = rules.scores(name, *columns.values(name), lengths)
        elif name in VECTORS:
            flat, numbers_of_aspects = columns.aspects(name, dims)
            values[name] = rules.aspects(name, flat, numbers_of_aspects)
        elif name in OF_ASPECTS:
            values[name] = rules.scores(name, *columns.values(name), numbers_of_aspects, "aspects")
        elif name != "query_id":
            vectors = columns.vectors(dims)
        elif given is not None:
            raise rules.invalid("query_id", "be left out with vectors", "both")
        else:
            query_rows = rules.rows("query_id", columns.of_queries("query_id", named))
    if vectors is not None and query_rows is not None:
        raise rules.invalid("query", "come without query_id", "both")
    if shared.method == "mmr" and "relevance" in values:  # which stands for the products with the query
        vectors = None
    elif query_rows is not None:
        vectors = served.vectors_of(query_rows)
    elif vectors is None:
        raise rules.invalid("query", "be given, or query_id", "neither")
    own = {name: columns.numbers(name) for name in filter(fields.__contains__, _NUMBERS)}
    numbers = rules.numbers(own, shared.method)
    rows = served.corpus if given is None else given.rows
    options = rules.quotas(shared.options, names, given is not None)
    request = Request(shared.method, vectors, rows, **numbers, **lists, **values, **options)
    left_out = {q: list(ids) for q, ids in skipped.items()} if skipped else None
    pool = None if "candidates" in lists else shared.pool
    group_names = list(names) if isinstance(names, dict) else None
    return Block(served, request, n, pool, None if given is None else given.names, left_out, group_names=group_names)


def _shown(rules: Rules, columns: Columns, names: Sequence[str]) -> dict[str, Any]:
    """Return what an error shows of fields that queries have themselves."""
    own = [name for name in names if name in columns.first or name not in rules.columns]
    return {name: columns.numbers(name)[0] if name in NUMBERS else columns.first.get(name, []) for name in own}


def _refuse_odd(rules: Rules, shared: Shared, columns: Columns, own_vectors: bool) -> None:
    """Refuse fields that exclude each other, and those that lack another."""
    fields = columns.fields
    if not shared.options and not shared.fusion and shared.metric is None and _ODD.isdisjoint(fields):
        return
    given = {*fields, *shared.options}
    if "lists" in given:
        for name in ("vectors", "candidates", "relevance"):
            if name in given:
                raise rules.invalid("lists", f"come without {name}", "both")
    elif shared.fusion:
        name = "fusion" if "method" in shared.fusion else "fusion_weights"
        raise rules.invalid(name, "come with lists", f"{name} alone")
    scale = shared.options.get("relevance_scale", "as-is")
    if scale != "as-is" and given.isdisjoint(("relevance", "lists", "half_life")):
        raise rules.invalid("relevance_scale", "come with relevance", f"{scale!r} alone")
    if shared.options.get("density") and shared.method == "coverage" and "budget" not in fields:
        raise rules.invalid("density", "come with a budget", "density alone")
    if not own_vectors and shared.metric not in (None, rules.served.corpus.metric):
        rule = f"be left out without vectors: that of the corpus is {rules.served.corpus.metric!r}"
        raise rules.invalid("metric", rule, repr(shared.metric))
    _refuse_undated(rules, shared, own_vectors, given)
    for name in () if own_vectors else OF_VECTORS:
        if name in given:
            raise rules.invalid(name, "come with vectors", f"{name} alone")
    for limit, name in _LIMITS.items():
        if limit in given and own_vectors and name not in given:
            raise rules.invalid(limit, f"come with {name} of the vectors", f"{limit} alone")
        if limit in given and not own_vectors and getattr(rules.served.corpus, name) is None:
            got = shown(shared.options[limit] if limit in shared.options else columns.numbers(limit)[0])
            raise rules.invalid(limit, f"be left out: the corpus has no {name}", got)
    for name in ("groups", "costs"):
        if name in given and given.isdisjoint(limits := [limit for limit in _LIMITS if _LIMITS[limit] == name]):
            raise rules.invalid(name, f"come with {' or '.join(limits)}", f"{name} alone")


def _refuse_undated(rules: Rules, shared: Shared, own_vectors: bool, given: Collection[str]) -> None:
    """Refuse a half-life where there are no times, and what says more of one that is not there."""
    if "half_life" not in given:
        for each in RECENCY:
            if each.name in given:
                raise rules.invalid(each.name, "come with half_life", f"{each.name} alone")
        return
    corpus, got = rules.served.corpus, shared.options["half_life"]
    if own_vectors or corpus.time is None:
        raise rules.invalid(
            "half_life", f"be left out: {'vectors have' if own_vectors else 'the corpus has'} no times", got
        )
    if shared.method == "vrsd" and corpus.metric == "dot" and not {"relevance", "lists"} & {*given}:
        raise rules.invalid("half_life", "come with relevance for vrsd and metric 'dot'", got)
