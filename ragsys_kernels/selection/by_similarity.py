"""Selection from given similarities instead of vectors.

A pool has no rows then: `Rows` stands for Q pools of P positions, and its ``similarity`` is a matrix (Q, P, P), or a
function that returns the similarities of a pool's items to one of them. The backends for vectors do not support it.
`reference` does; this module has the same rules in float32 for all queries of a call at once: by the compiled kernel on
the host, or NumPy without it, and by torch on a device. A pick reads one row of each matrix; coverage reads all rows.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from .. import _dispatch
from .._base import arrays
from .._base.arrays import HOST, Place
from .._base.checks import floats, ids, shape_text
from . import definite, quotas, validate
from .filters import arange, library_of_array
from .problem import Problem, Rows, Selection
from .relevance import check_scale, scaled
from .request import Request
from .rules.pool import ROUNDING, given_row

RULES = ("mmr", "msd", "dpp", "coverage")
# The rules and kinds of coverage that `_C` has.
_COMPILED = ("mmr", "msd", "dpp", "facility", "cover", "xquad")
_NEGATIVE = 3  # the status from `_C` of a query with a negative determinant
# Bytes of what coverage keeps of some queries at a time: a matrix of each.
_BLOCK_BYTES = 1 << 26


class Called:
    """A function instead of matrices: ``function(ids, id)`` returns the similarities of ids (n,) to one id."""

    def __init__(self, function: Callable[[np.ndarray, int], Any], of_items: np.ndarray) -> None:
        self.function, self.of_items = function, of_items  # (Q, P), -1: padding

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.of_items.shape, self.of_items.shape[1])

    def __getitem__(self, queries: Any) -> Called:
        return Called(self.function, self.of_items[queries])

    def of(self, op: str, q: int, positions: np.ndarray, j: int) -> np.ndarray:
        """Return the similarities of some items of a query to one, (n,) float64."""
        items = self.of_items[q, positions]
        found = np.asarray(self.function(items, int(self.of_items[q, j])), np.float64)
        if found.shape != items.shape:
            raise ValueError(
                f"{op}: similarity must give one value for each of {len(items)} ids, got shape "
                f"{shape_text(found.shape)}"
            )
        return found


def rows_of(request: Request, place: Place, errors: dict[int, str] | None, check: bool) -> tuple[Rows, Any]:
    """Return what stands for the rows of a call with similarities, and its candidates, the names of the positions.

    ``check``: look at the values of candidates on a device.
    """
    op, similarity, candidates, metric = request.op, request.similarity, request.candidates, request.metric
    if op not in RULES:
        raise ValueError(f"{op}: similarity must be left out, for the rule needs vectors; it is of {', '.join(RULES)}")
    for name in ("queries", "embeddings"):
        if getattr(request, name) is not None:
            raise ValueError(f"{op}: {name} must be left out with similarity, got an array")
    if request.aspects is not None:
        raise ValueError(f"{op}: aspects must be left out with similarity, which has no vectors, got an array")
    if request.relevance is None:
        raise ValueError(f"{op}: relevance must come with similarity, got relevance=None")
    names = None if candidates is None else ids(op, "candidates", candidates, None, place)
    sparse = hasattr(similarity, "tocsr")
    if names is not None and (sparse or check or place is HOST):
        names = _checked_names(op, names, similarity.shape[0] if sparse else None, place, errors)
    if sparse:
        similarity = of_sparse(op, similarity, names, metric)
    if callable(similarity):
        if place is not HOST:
            raise ValueError(f"{op}: similarity must be an array with arrays on a device, got a function")
        if names is None:
            raise ValueError(f"{op}: candidates must come with similarity that is a function of ids, got none")
        matrices: Any = Called(similarity, np.asarray(names))
        num_queries, pool = names.shape
    else:
        matrices = floats(op, "similarity", similarity, place)
        if matrices.ndim != 3 or matrices.shape[1] != matrices.shape[2] or 0 in tuple(matrices.shape):
            raise ValueError(
                f"{op}: similarity must have shape (Q, P, P), got {shape_text(tuple(matrices.shape))}"
                f"{'; use similarity[None] for one query' if matrices.ndim == 2 else ''}"
            )
        num_queries, pool = matrices.shape[:2]
    if names is not None and tuple(names.shape) != (num_queries, pool):
        raise ValueError(
            f"{op}: candidates must have shape (Q, P) = ({num_queries}, {pool}) as similarity has, got "
            f"{shape_text(tuple(names.shape))}"
        )
    nothing = place.upload(np.zeros((num_queries * pool, 1), np.float32))
    rows = arrays.changed(Rows.of(nothing, "float32", metric, "as_given"), similarity=matrices, max_norm=1.0)
    return rows, names


def _checked_names(op: str, names: Any, num_rows: int | None, place: Place, errors: dict[int, str] | None) -> Any:
    """Return candidates (Q, P); raise for the first bad query, or with ``errors`` note it and remove its candidates.

    ``num_rows``: the number of rows, if names are rows; None: any number from 0 on is a name.
    """
    found = np.asarray(arrays.to_host(names))
    bad = validate.suspicious(found, num_rows)
    if not bad.any():
        return names
    for q in np.flatnonzero(bad).tolist():
        try:
            validate.listed(op, "candidates", found[q], num_rows, "" if errors is not None else f" for query {q}")
        except ValueError as error:
            if errors is None:
                raise
            errors.setdefault(q, str(error))
            found = np.where(np.arange(len(found))[:, None] == q, -1, found)
    return place.upload(found)


def backend_of(op: str, device: str, backend: str) -> tuple[str, Any]:
    """Return the name of the backend of a call with similarities, and what runs it."""
    (asked, told), on_host = _asked(backend), device == "cpu"
    if asked not in (("auto", "cpu", "reference") if on_host else ("auto",)):
        others = "'cpu' and 'reference' do" if on_host else "on a device only 'auto' does"
        raise _dispatch.BackendUnavailableError(
            f"{op}: backend {told} was requested but its kernels take no similarity; {others}"
        )
    if asked == "reference":
        return asked, _dispatch.module_of("selection", asked)
    return "cpu" if on_host else "torch", sys.modules[__name__]


def _asked(backend: str) -> tuple[str, str]:
    """Return the backend that is asked for, by the argument or the environment, and how errors name it."""
    return _dispatch.wanted(backend, _dispatch.NAMES["selection"])


def problem_of(
    request: Request, place: Place, errors: dict[int, str] | None, options: Any, check: bool
) -> tuple[Problem, Any]:
    """Return the problem of a call with similarities, and its candidates, which are the names of the positions."""
    rows, names = rows_of(request, place, errors, check)
    of_positions = request.changed(embeddings=rows, candidates=None, relevance_scale="as-is")
    problem = validate.problem_of(of_positions, place, errors, options)
    if names is not None:  # positions without a name are left out
        library = library_of_array(problem.lambda_d)
        positions = problem.candidates
        if positions is None:
            positions = library.broadcast_to(arange(library, problem.pool, problem.lambda_d), names.shape)
        problem.candidates = library.where(names >= 0, positions, -1)
        limits = problem.constraints.quotas
        if limits is not None and limits.pools is not None:
            all_items = np.arange(problem.pool) if limits.pools[0] is None else limits.pools[0]
            limits.pools = np.where(names >= 0, all_items, -1), *limits.pools[1:]
    scale = request.relevance_scale
    if scale != "as-is":  # of items, which the problem has no candidates for
        check_scale(request.op, scale, request.relevance)
        problem.relevance = scaled(problem.relevance, names, None, scale, place)
    return problem, names


def implementation_of(problem: Problem, name: str, backend: str) -> Any:
    """Return the reference for what only it has, a function, density, or quotas without a kernel; else None."""
    if not isinstance(problem.rows.similarity, Called) and not getattr(problem.options, "density", False):
        if problem.constraints.quotas is None or (why := _dispatch.why_not("cpu")) is None:
            return None
        if _asked(backend)[0] == "cpu":
            quotas.refuse(problem.op, f"without compiled kernels: {why}")
        return _dispatch.module_of("selection", "reference")
    if name == "torch" or _asked(backend)[0] == "cpu":
        rule = "a function, or density, must come with arrays on the host and without backend 'cpu'"
        raise _dispatch.BackendUnavailableError(f"{problem.op}: similarity that is {rule}")
    return _dispatch.module_of("selection", "reference")


def named(result: Selection, names: Any) -> Selection:
    """Return picks with their positions replaced by names."""
    indices = result.indices
    library = library_of_array(indices)
    some = names[arange(library, len(indices), indices)[:, None], indices.clip(0)]
    return result._replace(indices=library.where(indices < 0, indices, some))


def of_sparse(op: str, matrix: Any, names: Any, metric: str) -> Any:
    """Return the similarities between the rows of a SciPy sparse matrix that candidates (Q, P) name."""
    if names is None:
        raise ValueError(f"{op}: candidates must come with similarity of sparse rows, got none")
    rows = matrix.tocsr().astype(np.float64)
    if metric == "cosine":
        norms = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1))).reshape(-1)
        scale = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)
        rows = rows.multiply(scale[:, None]).tocsr()
    wanted = np.asarray(arrays.to_host(names))
    found = np.zeros((*wanted.shape, wanted.shape[1]), np.float32)
    for q, each in enumerate(wanted):
        items = np.flatnonzero(each >= 0)
        pool = rows[each[items]]
        found[q][np.ix_(items, items)] = (pool @ pool.T).toarray()
    return found


# --- The rules, for all queries at once.


def select(problem: Problem, num_threads: int) -> Selection:
    """Return the picks of every query. Ties go to the lowest position; NaN and inf are an error on the host."""
    kind = getattr(problem.options, "kind", None)
    on_host = isinstance(problem.relevance, np.ndarray)
    compiled = on_host and (kind or problem.op) in _COMPILED and _dispatch.why_not("cpu") is None
    if on_host:
        _check_values(problem, not compiled and problem.op == "dpp")
    if compiled:
        return _compiled(problem, num_threads)
    if kind is None or problem.num_queries <= (step := max(1, _BLOCK_BYTES // (4 * problem.pool**2))):
        return _select(problem)
    parts = [_select(problem.take(slice(begin, begin + step))) for begin in range(0, problem.num_queries, step)]
    library = library_of_array(problem.lambda_d)
    return Selection(*(library.concatenate(fields) for fields in zip(*parts, strict=True)))


@dataclasses.dataclass(slots=True, eq=False)
class Given:
    """What the compiled kernel needs beside a problem (``GivenArgs`` in csrc/cpu/selection/given.h)."""

    values: np.ndarray  # (Q, P) float32: relevance with bias
    weights: np.ndarray | None  # (Q, P) float32, for DPP: the quality of each item
    open: np.ndarray | None  # (Q, P) bool: which items may be picked; None: all
    least_left: float = ROUNDING
    unequal: float = definite.UNEQUAL
    negative: float = definite.NEGATIVE
    sound: float = definite.SOUND
    pairs: int = definite.PAIRS


def _compiled(problem: Problem, num_threads: int) -> Selection:
    """Return the picks by the compiled kernel."""
    state, weights = _State(problem), None
    if problem.op == "dpp":
        weights = np.ascontiguousarray(np.broadcast_to(_weights(state), state.shape), np.float32)
    items = Given(np.ascontiguousarray(state.v, np.float32), weights, None if state.open.all() else state.open)
    *fields, status = _dispatch.extension().select_given(problem, items, num_threads)
    picks = Selection(*fields)
    for q in np.flatnonzero(status).tolist():
        _check(problem, q, picks)
        validate.values(problem, q)  # what `definite.check` looks at
        if status[q] == _NEGATIVE:
            definite.refuse_negative(problem.op, f" for query {q}")
        _refuse_pair(problem, q, _taken(problem, q, picks))
    return picks


def _refuse_pair(problem: Problem, q: int, taken: list[int]) -> NoReturn:
    """Raise for the pair that differs most: of the first item taken and others, else of those that are looked at."""
    pairs, positions = problem.rows.similarity[q].astype(np.float64), problem.eligible(q)[1]
    first, others = np.repeat(taken[:1], len(taken[1:])), np.asarray(taken[1:])
    if not len(others):
        (first,), (others,), _ = definite.pairs(np.isin(np.arange(problem.pool), positions)[None])
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = abs(pairs[first, others] - pairs[others, first])
        at = int(np.argmax(np.nan_to_num(apart / abs(pairs[first, first] * pairs[others, others]) ** 0.5)))
    i, j = int(first[at]), int(others[at])
    definite.refuse_unequal(problem.op, i, j, pairs[i, j], pairs[j, i], f" for query {q}")


def _taken(problem: Problem, q: int, picks: Selection) -> list[int]:
    """Return the positions of the initial items and the picks of a query."""
    initial = problem.initial_rows(q) - q * problem.pool_stride
    return [*initial.tolist(), *picks.indices[q, : picks.lengths[q]].tolist()]


def _check_values(problem: Problem, pairs: bool) -> None:
    """Raise for the first query with a bad value; of similarities, those of ``pairs`` if it is set."""
    bad = ~np.isfinite(problem.relevance).all(axis=1)
    if problem.bias is not None:
        bad |= ~np.isfinite(problem.bias.reshape(bad.shape[0], -1)).all(axis=1)
    if problem.constraints.initial is not None:
        bad |= validate.suspicious(problem.constraints.initial, problem.pool)
    if pairs:
        state = _State(problem)
        items = state.open if problem.constraints.initial is None else state.open & ~_initial(state)
        bad |= definite.suspicious(problem.rows.similarity, items)
    for q in np.flatnonzero(bad):
        validate.values(problem, int(q))


mmr = msd = dpp = coverage = select


class _State:
    """What is known of the items of all queries; arrays (Q, P) unless something else is said."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.x = problem, library_of_array(problem.lambda_d)
        self.shape = problem.num_queries, problem.pool
        limits = problem.constraints
        weight = problem.lambda_d[:, None]
        self.v = problem.relevance
        if problem.bias is not None:
            share = problem.lambda_b[:, None]
            self.v = share * problem.relevance + (1 - share) * problem.bias.reshape(self.shape)
        self.weight = weight
        self.open = self.v == self.v  # an item whose value is NaN is never picked
        if problem.candidates is not None:
            self.open = self.open & (problem.candidates >= 0)
        if limits.query_groups is not None:
            self.open = self.open & (limits.groups.reshape(self.shape) != limits.query_groups[:, None])
        self.groups = limits.groups.reshape(self.shape) if limits.max_per_group else None
        self.picked: list[Any] = []  # positions (Q,), -1: none
        self.costs = None if limits.costs is None else limits.costs.reshape(self.shape)
        self.spent = 0.0
        self.nearest = None if limits.max_similarity is None else self.full(-np.inf)
        self.met = self.x.zeros_like(problem.lambda_d)  # (Q,) how many picks and initial items there are

    def full(self, value: float) -> Any:
        return self.x.full_like(self.v, value)

    def row(self, j: Any) -> Any:
        """Return the similarities of all items to one of each query, given by positions (Q,)."""
        queries = arange(self.x, self.shape[0], j)
        return self.problem.rows.similarity[queries, j]

    def free(self) -> Any:
        """Return which items may be picked now."""
        limits, found = self.problem.constraints, self.open
        if self.costs is not None:
            found = found & (self.spent + self.costs <= limits.budget[:, None])
        if self.nearest is not None:
            found = found & (self.nearest <= limits.max_similarity[:, None])
        return found

    def take(self, j: Any, made: Any, initial: bool = False) -> Any:
        """Count a pick of the queries where one was made; return the similarities to it."""
        x, limits = self.x, self.problem.constraints
        positions = arange(x, self.shape[1], j)[None, :]
        here = made[:, None] & (positions == j[:, None])
        self.open = self.open & ~here
        self.met = self.met + made
        similarity = self.row(j)
        if self.nearest is not None:
            self.nearest = x.where(made[:, None], x.maximum(self.nearest, similarity), self.nearest)
        if self.costs is not None and not initial:
            self.spent = self.spent + x.where(here, self.costs, 0 * self.costs).sum(1)[:, None]
        if self.groups is not None:
            self.picked.append(x.where(made, j, -1))
            own = self.groups[arange(x, self.shape[0], j), j]
            count = sum(
                (self.groups[arange(x, self.shape[0], j), each.clip(0)] == own) & (each >= 0) for each in self.picked
            )
            full = made & (count >= limits.max_per_group)
            self.open = self.open & ~(full[:, None] & (self.groups == own[:, None]))
        return similarity


class _Rule:
    def scores(self, state: _State, values: Any) -> Any:
        """Return what is reported of picks of these values, (Q,)."""
        return values

    def redundancy(self, state: _State) -> Any:
        """Return that of all items; None: the rule has none of its own."""
        return None


class _Nearest(_Rule):
    def __init__(self, state: _State) -> None:
        self.m = state.full(-np.inf)

    def values(self, state: _State) -> Any:
        x, some = state.x, state.met[:, None] > 0
        return x.where(some, state.weight * state.v - (1 - state.weight) * x.where(some, self.m, 0 * state.v), state.v)

    def scores(self, state: _State, values: Any) -> Any:
        return state.x.where(state.met > 0, values, state.weight[:, 0] * values)

    def redundancy(self, state: _State) -> Any:
        return state.x.where(state.met[:, None] > 0, self.m, 0 * state.v)

    def take(self, state: _State, j: Any, similarity: Any, made: Any) -> None:
        self.m = state.x.where(made[:, None], state.x.maximum(self.m, similarity), self.m)


class _Sum(_Nearest):
    def __init__(self, state: _State) -> None:
        self.sums = state.full(0.0)
        self.one = 1.0 if state.problem.rows.metric == "cosine" else 0.0

    def values(self, state: _State) -> Any:
        distances = self.one * state.met[:, None] - self.sums
        return state.x.where(state.met[:, None] > 0, state.weight * state.v + (1 - state.weight) * distances, state.v)

    def redundancy(self, state: _State) -> Any:
        return self.sums / state.met[:, None].clip(1)

    def take(self, state: _State, j: Any, similarity: Any, made: Any) -> None:
        self.sums = self.sums + made[:, None] * similarity


class _Determinant(_Rule):
    def __init__(self, state: _State) -> None:
        x, problem = state.x, state.problem
        positions = arange(x, problem.pool, problem.lambda_d)
        own = problem.rows.similarity[:, positions, positions]
        self.weights = _weights(state)
        self.first = self.weights**2 * own
        self.d = self.first
        self.factor: list[Any] = []
        # Of the last items taken: which, similarities to them, in which queries, and what number each has there.
        self.last: list[tuple[Any, Any, Any, Any]] = []
        self.number, self.steps = 0 * state.met, 0
        initial = problem.constraints.initial
        self.most_last = problem.options.window + (0 if initial is None else initial.shape[1])  # these may be padding
        # What the picks show about the matrices, on the host: the first item taken (-1: none yet), and whether each
        # item taken had enough left, (Q,).
        self.items, self.leader, self.sound = state.open, 0 * state.met - 1, state.met == 0

    def values(self, state: _State) -> Any:
        return state.x.where(self.d > ROUNDING * self.first, self.d, state.full(-np.inf))

    def take(self, state: _State, j: Any, similarity: Any, made: Any) -> None:
        window = state.problem.options.window
        if window:
            self.number, self.steps = self.number + made, self.steps + 1
            self.last = [*self.last, (j, similarity, made, self.number)][-self.most_last :]
        if not window or self.steps <= window:
            return self._count(state, j, similarity, made)
        self.d, self.factor, self.sound = self.first, [], self.sound & (self.number <= window)
        for item, row, taken, number in self.last:
            self._count(state, item, row, taken & (number > self.number - window))
        return None

    def _count(self, state: _State, j: Any, similarity: Any, made: Any) -> None:
        x, queries = state.x, arange(state.x, state.shape[0], j)
        d, taken = self.d[queries, j], made
        made = made & (d > ROUNDING * self.first[queries, j])  # else an initial item that those before it span
        left = self.weights * similarity * self.weights[queries, j][:, None]
        for column in self.factor:
            left = left - column * column[queries, j][:, None]
        column = x.where(made[:, None], left / x.sqrt(x.where(made, d, 0 * d + 1))[:, None], 0 * left)
        self.factor.append(column)
        self.sound = self.sound & ~(made & (d < definite.SOUND * self.first[queries, j]))
        self.d = self.d - column**2
        if x is np:
            self._look(state.problem, queries, j, taken)

    def _look(self, problem: Problem, queries: Any, j: Any, taken: Any) -> None:
        """Refuse matrices that what was read for item j shows to be not symmetric or to have a negative determinant."""
        pairs = problem.rows.similarity
        self.leader = np.where(taken & (self.leader < 0), j, self.leader).astype(np.int64)
        i = self.leader.clip(0)
        one, other = pairs[queries, i, j], pairs[queries, j, i]
        differ = taken & definite.unequal(one, other, pairs[queries, i, i] * pairs[queries, j, j])
        for q in np.flatnonzero(differ).tolist():
            definite.refuse_unequal(problem.op, int(i[q]), int(j[q]), one[q], other[q], f" for query {q}")
        negative = self.sound[:, None] & self.items & (self.d < -definite.NEGATIVE * self.first)
        for q in np.flatnonzero(negative.any(axis=1)).tolist():
            definite.refuse_negative(problem.op, f" for query {q}")


class _Cover(_Rule):
    def __init__(self, state: _State) -> None:
        options = state.problem.options
        self.kind, self.gamma = options.kind, options.gamma
        may = state.open if state.problem.constraints.initial is None else state.open & ~_initial(state)
        # Of pick, item: both are items here.
        self.S = state.x.where(may[:, None, :], state.problem.rows.similarity, state.full(0)[:, None, :]).clip(0)
        if state.problem.rows.metric == "cosine" or self.kind == "xquad":
            self.S = self.S.clip(0, 1)
        count = may.sum(1)[:, None].clip(1)
        self.weights = may / (1 if self.kind == "cover" else count)
        self.state = state.full(1.0 if self.kind == "xquad" else 0.0)

    def values(self, state: _State) -> Any:
        S, before = self.S, self.state[:, None, :]
        if self.kind == "facility":
            added = (S - before).clip(0)
        elif self.kind == "cover":
            added = (before + S) ** self.gamma - before**self.gamma
        else:
            added = S * before
        gain = (added * self.weights[:, None, :]).sum(2)
        return state.weight * state.v + (1 - state.weight) * gain

    def take(self, state: _State, j: Any, similarity: Any, made: Any) -> None:
        x, of_pick = state.x, self.S[arange(state.x, state.shape[0], j), j]
        if self.kind == "facility":
            new = x.maximum(self.state, of_pick)
        elif self.kind == "cover":
            new = self.state + of_pick
        else:
            new = self.state * (1 - of_pick)
        self.state = x.where(made[:, None], new, self.state)


_OF_RULE: dict[str, Any] = {"mmr": _Nearest, "msd": _Sum, "dpp": _Determinant, "coverage": _Cover}


def _initial(state: _State) -> Any:
    """Return which items count as picked before the first."""
    x, initial = state.x, state.problem.constraints.initial
    positions = arange(x, state.shape[1], initial)
    return (initial[:, :, None] == positions[None, None, :]).any(1)


def _weights(state: _State) -> Any:
    """Return the quality of the items of `dpp`."""
    options = state.problem.options
    if options.quality is None:
        return state.x.exp(options.scale * state.weight * _z(state))
    return options.quality.reshape(state.shape)


def _z(state: _State) -> Any:
    """Return how many standard deviations v is above its mean, of the items that may be picked; see `Pool.z`."""
    x, may = state.x, state.open
    if state.problem.constraints.initial is not None:
        may = may & ~_initial(state)
    v = x.asarray(state.v, dtype=x.float64)
    count = may.sum(1).clip(1)[:, None]
    v = x.where(may, v, 0 * v)
    mean = v.sum(1)[:, None] / count
    apart = x.where(may, v - mean, 0 * v)
    deviation = x.sqrt((apart**2).sum(1)[:, None] / count) + np.finfo(np.float32).eps * x.amax(abs(v), 1)[:, None]
    z = x.where(deviation > 0, apart / x.where(deviation > 0, deviation, 0 * deviation + 1), 0 * apart)
    return x.asarray(z, dtype=x.float32)


def _select(problem: Problem) -> Selection:
    state = _State(problem)
    x, limits = state.x, problem.constraints
    rule = _OF_RULE[problem.op](state)
    if limits.initial is not None:
        for column in range(limits.initial.shape[1]):
            j = x.asarray(limits.initial[:, column], dtype=x.int64)
            made = j >= 0
            rule.take(state, j.clip(0), state.take(j.clip(0), made, True), made)
    fields = [arrays.full(state.v, (state.shape[0], problem.k), value, dtype) for value, dtype in Selection.PADDING]
    lengths: Any = 0
    for step in range(problem.k):
        free = state.free()
        if problem.ks is not None:
            free = free & (problem.ks > step)[:, None]
        values = x.where(free, rule.values(state), state.full(-np.inf))
        j = values.argmax(1)  # the first of the largest
        at = arange(x, state.shape[0], j), j
        best = values[at]
        made = best > -np.inf
        redundancy = rule.redundancy(state)
        if redundancy is None and state.nearest is not None:
            redundancy = x.where(state.nearest > -np.inf, state.nearest, 0 * state.v)
        found = (
            j,
            rule.scores(state, best),
            state.v[at],
            state.v[at] * np.nan if redundancy is None else redundancy[at],
        )
        for field, each, (value, _) in zip(fields, found, Selection.PADDING, strict=True):
            field[:, step] = x.where(made, each, value)
        lengths = lengths + made
        rule.take(state, j, state.take(j, made), made)
    picks = Selection(*[*fields, x.asarray(lengths, dtype=x.int32)])
    if x is np:
        for q in range(problem.num_queries):
            _check(problem, q, picks)
    return picks


def _check(problem: Problem, q: int, picks: Selection) -> None:
    """Raise if a row that was read for a query is not finite."""
    taken = _taken(problem, q, picks)
    positions = np.union1d(problem.eligible(q)[1], problem.initial_rows(q) - q * problem.pool_stride)
    for j in [*taken, *(positions.tolist() if problem.op == "coverage" else [])]:
        given_row(problem, q, positions, j)
