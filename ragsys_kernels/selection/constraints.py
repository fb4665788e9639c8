"""What limits which items may be picked, for every rule, as one object that travels to the backends."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from .._base import arrays
from .._base.arrays import HOST, Place
from .._base.checks import count, doubles, expect_shape, good_values, ids, integers, one_or_each, per_query, shown
from .._base.tables import holds_text, numbered, texts
from . import filters, quotas
from .filters import Filter
from .parameters import BY_NAME
from .quotas import Quotas
from .request import Request

# Arguments that need groups.
_OF_GROUPS = ("query_groups", "max_per_group", "min_per_group")
_CEILING, _LEAST = (BY_NAME[name].range_of("mmr") for name in ("max_similarity", "min_relevance"))


@dataclasses.dataclass(slots=True, eq=False)  # eq: arrays have none; without it NONE may be a default
class Constraints:
    """Checked arguments that limit what may be picked; None and 0 limit nothing.

    A backend gets `NONE`, one object for all calls, where a call has none of them: it must not be written to.
    """

    initial: Any = None  # (Q, S) int32 | int64, -1: padding
    groups: Any = None  # (N,) int64, of the first level; only with one of the next two
    query_groups: Any = None  # (Q,) int64
    max_per_group: int = 0  # 0: no cap, or those of quotas
    quotas: Quotas | None = None
    filter: Filter | None = None  # of a whole corpus; pools have -1 in the place of what may not be picked
    costs: Any = None  # (N,) or (Q, P) float64
    budget: Any = None  # (Q,) float64, with costs
    max_similarity: Any = None  # (Q,) float32; inf bars nothing
    min_relevance: Any = None  # (Q,) float32, of relevance that is computed; pools lack what is given less

    def take(self, queries: np.ndarray | slice, pools: tuple[int, int] | None) -> Constraints:
        """Return the constraints of some of the queries; ``pools`` is the shape (Q, P) of dense pools, else None."""
        if self is NONE:
            return NONE
        names = ("initial", "query_groups", "budget", "max_similarity", "min_relevance")
        changes = {name: array[queries] for name in names if (array := getattr(self, name)) is not None}
        if self.filter is not None:
            changes["filter"] = self.filter.take(queries)
        if self.costs is not None and self.costs.ndim == 2:
            changes["costs"] = self.costs[queries]
        if pools is not None and self.groups is not None:
            changes["groups"] = self.groups.reshape(pools)[queries].reshape(-1)
        if self.quotas is not None:
            changes["quotas"] = self.quotas.take(queries, pools)
        return dataclasses.replace(self, **changes)

    def filtered(self, found: Filter | None) -> Constraints:
        """Return these constraints with another filter of a whole corpus, or with none."""
        return self if found is self.filter else dataclasses.replace(self, filter=found)

    def item_costs(self, q: int, rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return what it costs to pick some items."""
        assert self.costs is not None
        found: np.ndarray = self.costs[rows] if self.costs.ndim == 1 else self.costs[q, positions]
        return found


NONE = Constraints()


def read(
    request: Request,
    candidates: Any,
    relevance: Any,
    rows: Any,
    shape: tuple[int, int, int, int],
    place: Place,
    errors: dict[int, str] | None,
) -> tuple[Constraints, Any]:
    """Return the constraints that a request describes, and the candidates without what may not be picked.

    ``relevance``: as it is given, on no other scale. ``rows``: the `Rows`, which may have groups and costs of their
    own. ``shape``: queries, positions of a pool, rows, and positions of dense pools, or 0.
    """
    op, groups, query_groups = request.op, request.groups, request.query_groups
    costs, budget, max_similarity = request.costs, request.budget, request.max_similarity
    initial, allowed, exclude = request.initial, request.allowed, request.exclude
    num_queries, pool, num_rows, pool_stride = shape
    items = ((num_queries, pool), "(Q, P)")
    found = Constraints()

    name = used_by(op, request)
    names, of_levels = rows.group_names, None
    if groups is not None:
        names = None
        if holds_text(groups):
            strings, groups = numbered(op, "groups", groups)
            names = {string: number for number, string in enumerate(strings)}
        array = integers(op, "groups", groups, place, " or strings")
        shape_of = items if pool_stride else ((num_rows,), "(N,)")
        if array.ndim == len(shape_of[0]) + 1 and array.shape[-1]:
            of_shape = (*shape_of[0], array.shape[-1]), "(Q, P, L)" if pool_stride else "(N, L)"
            expect_shape(op, "groups", array, of_shape)
            of_levels = array.reshape(-1, array.shape[-1])
            found.groups = place.packed(of_levels[:, 0])
        else:
            expect_shape(op, "groups", array, shape_of)
            found.groups = array.reshape(-1)
    elif name is not None:
        found.groups = rows.groups
        if rows.groups is None:
            raise ValueError(f"{op}: {name} must come with groups, got groups=None")
    if query_groups is not None:
        found.query_groups = integers(op, "query_groups", _of_queries(op, query_groups, names), place)
        expect_shape(op, "query_groups", found.query_groups, ((num_queries,), "(Q,)"))
    cap = request.max_per_group
    of_groups = isinstance(cap, Mapping) or (cap is not None and of_levels is not None)
    if of_groups or request.min_per_group is not None:
        if place is not HOST:
            quotas.refuse(op, "on a device")
        levels = found.groups[None] if of_levels is None else np.ascontiguousarray(of_levels.T)
        found.quotas = quotas.read(request, levels, of_levels is not None, names, candidates)
    elif cap is not None:
        found.max_per_group = count(op, "max_per_group", cap)

    if initial is not None:
        shown_before = ids(op, "initial", initial, num_queries, place)
        if shown_before.shape[1]:  # an array without columns has no memory to point to
            found.initial = shown_before

    if allowed is not None or exclude is not None or rows.live is not None:
        whole = not pool_stride and candidates is None
        allows = filters.read(op, allowed, exclude, num_queries, pool_stride or num_rows, place, errors, whole)
        if rows.live is not None:
            allows.mask = rows.live if allows.mask is None else place.packed(allows.mask & rows.live)
        if whole:
            found.filter = allows
        else:
            candidates = filters.restricted(allows, candidates, num_queries, place)

    if max_similarity is not None:
        most = per_query(op, "max_similarity", max_similarity, num_queries, *_CEILING, place, errors)
        # No cosine is above 1, but rounded ones are: a ceiling of 1 bars nothing.
        cosine = rows.metric == "cosine"
        found.max_similarity = filters.library_of_array(most).where(most >= 1, np.inf, most) if cosine else most
    if request.min_relevance is not None:
        least = per_query(op, "min_relevance", request.min_relevance, num_queries, *_LEAST, place, errors)
        if relevance is None:
            found.min_relevance = least
        else:
            if found.quotas is not None:
                found.quotas.pools = candidates, found.filter, pool
            kept = ~(relevance < least[:, None])  # NaN stays, to be found as such
            allows = Filter(pool_stride or num_rows, kept)
            if candidates is not None:
                candidates = np.where(kept, candidates, -1)
            elif pool_stride:
                candidates = filters.restricted(allows, None, num_queries, place)
            else:
                found.filter = allows.and_also(found.filter)
    if budget is not None:
        found.budget = _budget(op, budget, num_queries, place, errors)
        if costs is None and rows.costs is None:
            raise ValueError(f"{op}: budget must come with costs, got costs=None")
        found.costs = rows.costs if costs is None else _costs(op, costs, items, pool_stride, num_rows, place, errors)
    elif costs is not None:
        raise ValueError(f"{op}: costs must come with a budget, got budget=None")
    return found, candidates


def used_by(op: str, request: Request) -> str | None:
    """Return the first argument that needs groups, if there is one; refuse groups without it."""
    name = next((name for name in _OF_GROUPS if getattr(request, name) is not None), None)
    if request.groups is not None and name is None:
        raise ValueError(f"{op}: groups must come with {', '.join(_OF_GROUPS[:-1])} or {_OF_GROUPS[-1]}, got none")
    return name


def _of_queries(op: str, groups: Any, names: Any) -> Any:
    """Return the groups of queries as numbers of names, -1 for what no row has; integers as they are."""
    if names is None:
        if holds_text(groups):
            raise TypeError(f"{op}: query_groups must be integers as the groups of rows are, got strings")
        return groups
    strings = texts(arrays.to_host(groups))
    for q, each in enumerate(strings.flat):
        if each is not None and not isinstance(each, str):
            rule = "strings as the groups of rows are, or None"
            raise TypeError(f"{op}: query_groups must be {rule}, got {shown(each)} in row {q}")
    if isinstance(names, dict):
        return np.array([names.get(each, -1) for each in strings.flat], np.int64).reshape(strings.shape)
    return names.rows_of(strings, unknown="pad")


def _costs(
    op: str,
    given: Any,
    items: tuple[tuple[int, ...], str],
    pool_stride: int,
    num_rows: int,
    place: Place,
    errors: dict[int, str] | None,
) -> Any:
    """Return what items cost, checked on the host: they may be anything where there are no candidates."""
    costs = doubles(op, "costs", given, place)
    expect_shape(op, "costs", costs, *(() if pool_stride else (((num_rows,), "(N,)"),)), items)
    if not isinstance(costs, np.ndarray):
        return costs
    good = (costs >= 0) & (costs < np.inf)
    good_values(op, "costs", costs, good, "finite and at least 0", errors)
    return costs if good.all() else np.where(good, costs, 0.0)


def _budget(op: str, given: Any, num_queries: int, place: Place, errors: dict[int, str] | None) -> Any:
    """Return a number, or one per query, of at least 0, as (Q,) float64; values on a device are not checked."""
    if place is not HOST and arrays.device_of(given) != "cpu":
        on_device = doubles(op, "budget", given, place)
        expect_shape(op, "budget", on_device, ((num_queries,), "(Q,)"))
        return on_device
    if isinstance(given, (bool, str)):
        raise TypeError(f"{op}: budget must be a number or an array of shape (Q,), got {shown(given)}")
    array = doubles(op, "budget", np.asarray(given) if isinstance(given, (int, float)) else given)
    good = np.asarray(array >= 0)  # inf is no budget at all
    return place.upload(np.array(one_or_each(op, "budget", array, good, num_queries, "at least 0", 0.0, errors)))
