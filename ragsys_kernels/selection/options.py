"""What belongs to one rule alone, checked: an object per rule, which travels with the problem."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from .._base import arrays
from .._base.arrays import Place
from .._base.checks import choice, count, expect_shape, flag, floats, good_values, shown
from .parameters import BY_NAME, KINDS, ONE_BY_ONE
from .problem import Rows, unit
from .request import Request

_MOST = float(np.finfo(np.float32).max)

# What values of items may be: of rows, but for dense pools, and of the candidates of each query.
Shapes = tuple[tuple[tuple[int, ...], str], ...]


@dataclasses.dataclass(slots=True, eq=False)
class Options:
    def take(self, queries: np.ndarray | slice) -> Any:
        """Return the options of some of the queries."""
        return self

    def of_items(self, change: Callable[[Any], Any]) -> Any:
        """Return the options with other values of items."""
        return self


@dataclasses.dataclass(slots=True, eq=False)
class Dpp(Options):
    scale: float
    quality: Any = None  # (N,) or (Q, P) float32; None: by z-scores
    window: int = 0  # 0: all picks

    def take(self, queries: np.ndarray | slice) -> Dpp:
        per_query = self.quality is not None and self.quality.ndim == 2
        return Dpp(self.scale, self.quality[queries] if per_query else self.quality, self.window)

    def of_items(self, change: Callable[[Any], Any]) -> Dpp:
        return Dpp(self.scale, None if self.quality is None else change(self.quality), self.window)


@dataclasses.dataclass(slots=True, eq=False)
class Ssd(Options):
    gamma: float
    window: int  # 0: all picks


@dataclasses.dataclass(slots=True, eq=False)
class Sift(Options):
    noise: float
    min_gain: float


@dataclasses.dataclass(slots=True, eq=False)
class Gist(Options):
    eps: float


class Graph(NamedTuple):
    """Which rows each row covers, with similarities above 0: row i the rows ``rows[begin[i] : begin[i + 1]]``."""

    begin: np.ndarray  # (N + 1,) int64
    rows: np.ndarray  # (E,) int32
    similarity: np.ndarray  # (E,) float32


@dataclasses.dataclass(slots=True, eq=False)
class Coverage(Options):
    kind: str  # one of KINDS
    gamma: float
    density: bool
    aspects: Any = None  # (Q, A, D) float32, of unit length for cosines; None: the items that may be picked
    weights: Any = None  # (Q, A) float32; None: 1 for "cover", else one over the number of aspects
    graph: Graph | None = None  # in the place of all similarities of the items to one another

    def take(self, queries: np.ndarray | slice) -> Coverage:
        aspects, weights = (None if x is None else x[queries] for x in (self.aspects, self.weights))
        return Coverage(self.kind, self.gamma, self.density, aspects, weights, self.graph)


def _float_of(op: str, name: str, x: Any) -> float:
    if not isinstance(x, (float, int)) or isinstance(x, bool):
        try:
            array, dtype = arrays.host_view(op, name, arrays.to_host(x))
        except TypeError:  # what is no array of numbers
            array, dtype = np.array(()), ""
        if array.shape or array.dtype.kind == "b":
            raise TypeError(f"{op}: {name} must be a number, got {shown(x)}")
        x = (arrays.widen(array, dtype) if dtype == "bfloat16" else array).item()
    try:
        return float(x)
    except OverflowError:  # of an integer
        return np.inf if x > 0 else -np.inf


def number(op: str, name: str, x: Any) -> float:
    """Check one number of an option; return it in float32, as the kernels take it."""
    value, parameter = _float_of(op, name, x), BY_NAME[name]
    if not parameter.holds(op, value):
        raise ValueError(f"{op}: {name} must be {parameter.rule_of(op)}, got {shown(x)}")
    rounded = float(np.float32(value)) if abs(value) <= _MOST else np.inf
    if rounded == np.inf or not parameter.holds(op, rounded):
        raise ValueError(
            f"{op}: {name} must be {parameter.rule_of(op)} and within the range of float32, got {shown(x)}"
        )
    return rounded


def _width(op: str, window: Any) -> int:
    return 0 if window is None else count(op, "window", window)


def dpp(op: str, quality: Any, scale: Any, window: Any = None) -> Callable[..., Dpp]:
    """Return the function that makes the options once the sizes of the problem are known."""
    factor = number(op, "scale", scale)
    width = _width(op, window)
    if isinstance(quality, str):
        choice(op, "quality", quality, ("zscore",))
        return lambda *_: Dpp(factor, window=width)

    def made(shapes: Shapes, rows: Rows, place: Place, errors: dict[int, str] | None) -> Dpp:
        array = floats(op, "quality", quality, place)
        expect_shape(op, "quality", array, *shapes)
        if isinstance(array, np.ndarray):
            good = (array > 0) & np.isfinite(array)
            good_values(op, "quality", array, good, "finite and above 0", errors)
            array = array if good.all() else np.where(good, array, 1)
        return Dpp(factor, array, width)

    return made


def ssd(op: str, gamma: Any, window: Any) -> Callable[..., Ssd]:
    factor = number(op, "gamma", gamma)
    width = _width(op, window)
    return lambda *_: Ssd(factor, width)


def sift(op: str, noise: Any, min_gain: Any) -> Callable[..., Sift]:
    variance = number(op, "noise", noise)
    least = number(op, "min_gain", min_gain)
    return lambda *_: Sift(variance, least)


def gist(op: str, eps: Any, *others: Any) -> Callable[..., Gist]:
    for name, value in zip(ONE_BY_ONE, others, strict=True):
        if value is not None:
            raise ValueError(f"{op}: {name} must be left out with the rule 'gist', got {shown(value)}")
    step = number(op, "eps", eps)
    return lambda *_: Gist(step)


def coverage(
    op: str, kind: Any, aspects: Any, weights: Any, gamma: Any, density: Any, budget: Any, graph: Graph | None = None
) -> Callable[..., Coverage]:
    name = choice(op, "kind", kind, KINDS)
    power = number(op, "gamma", gamma)
    by_cost = flag(op, "density", density)
    if by_cost and budget is None:
        raise ValueError(f"{op}: density must come with a budget, got budget=None")
    if aspects is None and weights is not None:
        raise ValueError(f"{op}: weights must come with aspects, got aspects=None")
    if aspects is None:
        return lambda *_: Coverage(name, power, by_cost, graph=graph)

    def made(shapes: Shapes, rows: Rows, place: Place, errors: dict[int, str] | None) -> Coverage:
        array = floats(op, "aspects", aspects, place)
        num_queries, dims = shapes[-1][0][0], rows.dims
        if array.ndim != 3 or array.shape[0] != num_queries or array.shape[2] != dims or array.shape[1] == 0:
            raise ValueError(
                f"{op}: aspects must have shape (Q, A, D) = ({num_queries}, any, {dims}), got {tuple(array.shape)}"
            )
        share = None
        if weights is not None:
            share = floats(op, "weights", weights, place)
            expect_shape(op, "weights", share, (tuple(array.shape[:2]), "(Q, A)"))
        if isinstance(array, np.ndarray):
            good = np.asarray(np.isfinite(array).all(axis=2))
            good_values(op, "aspects", array, good, "finite", errors)
            array = array if good.all() else np.where(good[:, :, None], array, 0)
            if rows.metric == "cosine":
                array = unit(array).astype(np.float32)
        if isinstance(share, np.ndarray):
            good = (share >= 0) & np.isfinite(share)
            good_values(op, "weights", share, good, "finite and at least 0", errors)
            share = share if good.all() else np.where(good, share, 0)
        return Coverage(name, power, by_cost, array, share)

    return made


# What makes the options of each rule, and out of which arguments.
_OF_RULES: dict[str, tuple[Callable[..., Any], Callable[[Request], tuple[Any, ...]]]] = {
    "dpp": (dpp, attrgetter("quality", "scale", "window")),
    "ssd": (ssd, attrgetter("gamma", "window")),
    "sift": (sift, attrgetter("noise", "min_gain")),
    "gist": (gist, attrgetter("eps", *ONE_BY_ONE)),
    "coverage": (coverage, attrgetter("kind", "aspects", "weights", "gamma", "density", "budget", "graph")),
}


def of_rule(request: Request) -> Any:
    """Return what makes the options of a request's rule; None for a rule that has none."""
    if request.op not in _OF_RULES:
        return None
    make, values = _OF_RULES[request.op]
    return make(request.op, *values(request))
