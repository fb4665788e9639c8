"""What queries must be, whichever way they came: the rules for all of them, and the checks of each column."""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from ...selection import METHODS
from ...selection.parameters import BY_NAME, OPTIONS, Parameter
from ...selection.parameters import DEFAULTS as OF_RULE
from ..corpora import Served
from ..kernel import OF_CANDIDATES, PADDING
from ..limits import Limits, RefusedError, invalid, shown

DEFAULTS: dict[str, Any] = {"method": "mmr", "k": 6, "pool": 100, "lambda_d": None, "lambda_b": 0.95}
# What fields may be that are a word.
_WORDS = {
    "unknown": ("error", "skip"), **{name: BY_NAME[name].choices for name in ("metric", "relevance_scale")}
}  # fmt: skip
# Fields that are an option of one rule or two.
OF_ONE_RULE = tuple(option.name for option in OPTIONS)
ID_LISTS = ("candidates", "initial", "allowed", "exclude")
WEIGHTS = ("lambda_d", "lambda_b", "budget", "max_similarity")
FIELDS = frozenset((*DEFAULTS, *WEIGHTS, *_WORDS, *OF_ONE_RULE, *ID_LISTS)) | {
    "max_per_group",
    "query",
    "query_id",
    "vectors",
    *OF_CANDIDATES,
    "cursor",
}
# What may stand beside the queries of a request, for all of them; its route takes the last three.
BESIDE = FIELDS - {"vectors"} | {"corpus", "queries", "texts"}
# What is one value for all queries of a block.
SHARED = frozenset(("method", "pool", "max_per_group", *_WORDS, *OF_ONE_RULE))
# The most dimensions of vectors in a query, and values along an axis of a tensor: NumPy multiplies whatever a shape
# has.
MOST_DIMS = 1_000_000
_OPTIONS = frozenset(OF_ONE_RULE)
# Fields that some rules do not have.
OF_RULES = _OPTIONS | {"lambda_d", "lambda_b", "quality"}
_LACKS = {name: OF_RULES.difference(method.parameters) for name, method in METHODS.items()}
_MOST_COUNT = 1 << 31
_MOST_FLOAT32 = float(np.finfo(np.float32).max)
_MOST_BUDGET = float(np.finfo(np.float64).max)  # JSON has integers beyond it


# Sets of rules that are kept for later requests, and the longest of them.
_KEPT, _LONGEST = 256, 400


def rules_of(op: str, common: Mapping[str, Any], served: Served, limits: Limits) -> Rules:
    """Return the checks of a request, reused from an earlier request with equal rules if they are still kept."""
    text = text_of(op, common) if len(common) < 8 else ""
    if len(text) > _LONGEST:
        text = ""
    rules = served.kept.get(op + text) if text else None
    if rules is None:
        rules = Rules(op, common, served, limits)
        if text:
            if len(served.kept) >= _KEPT:
                served.kept.clear()
            served.kept[op + text] = rules
    return cast(Rules, rules)


def text_of(op: str, common: Mapping[str, Any]) -> str:
    """Return a text that is equal for requests with equal rules."""
    try:
        return repr(common)
    except RecursionError:
        raise invalid(op, "body", "nest lists less deeply", "more levels than can be read") from None


class Shared(NamedTuple):
    """What is one value for all queries of a block."""

    method: str
    pool: int | None
    max_per_group: int | None
    skips: bool  # whether unknown ids are left out
    metric: str | None  # of vectors that come with the queries
    scale: str  # of relevance
    options: tuple[tuple[str, Any], ...]  # of the rule alone, by their names


class Rules:
    """The checks of one request: ``common`` holds for queries that do not say otherwise.

    Raises
    ------
    RefusedError
        From every method: the argument, and the rule that it breaks.
    """

    def __init__(self, op: str, common: Mapping[str, Any], served: Served, limits: Limits) -> None:
        self.op, self.served, self.limits = op, served, limits
        self._rule: Shared | None = None
        self.known(common, BESIDE)
        if common.get("vectors") is not None:  # each query would have a copy
            raise self.invalid("vectors", "stand in each of the queries", "one beside them")
        self.common = {**DEFAULTS, **{name: x for name, x in common.items() if x is not None or name == "pool"}}
        # Bad ones may be refused here: they are wrong for all queries without their own.
        given = {name: self.common[name] for name in ("k", "lambda_d", "lambda_b") if self.common[name] is not None}
        self._numbers = {name: self.number(name, [x])[0].item() for name, x in given.items()}
        self._rule = self.shared({})
        self._of_rules = {name: x for name, x in common.items() if name in OF_RULES and x is not None}
        self._fits(self._rule.method, {})
        # What else stands beside the queries and not in them.
        self.columns = {name: x for name, x in self.common.items() if name not in DEFAULTS and name not in SHARED}

    def invalid(self, name: str, rule: str, got: object) -> RefusedError:
        return invalid(self.op, name, rule, got)

    def known(self, names: Iterable[str], taken: Collection[str] = FIELDS) -> None:
        """Refuse unknown fields; the error names those that are ``taken`` where they stand."""
        for name in names:
            if name not in FIELDS:
                raise self.invalid(name[:100], f"be one of {', '.join(sorted(taken))}", "another field")

    def numbers(self, own: Mapping[str, Sequence[Any]], of_rule: Mapping[str, Any], method: str) -> dict[str, Any]:
        """Return k and the weights, of queries with these of their own: one of all, or arrays (n,) as `number` has.

        ``of_rule``: options that these queries have, which must be those of the rule as well.
        """
        found = {name: self.number(name, values) for name, values in own.items()}
        self._fits(method, {**of_rule, **{name: values[0] for name, values in own.items()}})
        return {"lambda_d": OF_RULE[method].get("lambda_d", 1.0), **self._numbers, **found}

    def _fits(self, method: str, own: Mapping[str, Any]) -> None:
        """Refuse weights and options that a rule does not have, those of all queries too."""
        lacks = _LACKS[method]
        for given, whose in ((own, ""), (self._of_rules, " for all queries")):
            for name, value in given.items():
                if name in lacks and value is not None:
                    raise self.invalid(name, f"be left out: {method} has none", f"{shown(value)}{whose}")

    def number(self, name: str, values: Sequence[Any]) -> np.ndarray:
        """Return the values of a field that is a number: int64 of k, float64 of budgets, float32 of the others."""
        if name == "k":
            return self.counts(name, values, self.limits.k)
        if name == "budget" and self.served.corpus.costs is None:
            raise self.invalid(name, "be left out: the corpus has no costs", shown(values[0]))
        if not set(map(type, values)) <= {int, float}:
            raise self.invalid(name, "be a number", wrong(values, int, float))
        low, high = (parameter := BY_NAME[name]).range_of("")
        if not all(low <= x <= high for x in values):
            got = shown(next(x for x in values if not low <= x <= high))
            raise self.invalid(name, f"be {parameter.rule_of('')}", got)
        if name == "budget":
            return np.array([min(x, _MOST_BUDGET) for x in values], np.float64)
        return np.array(values, np.float32)

    def shared(self, first: Mapping[str, Any]) -> Shared:
        """Return what queries with these fields have in common."""
        if SHARED.isdisjoint(first) and self._rule is not None:
            return self._rule
        method, cap, *words = (
            self.common.get(name) if first.get(name) is None else first[name]
            for name in ("method", "max_per_group", *_WORDS)
        )
        for (name, choices), word in zip(_WORDS.items(), words, strict=True):
            if word is not None and (type(word) is not str or word not in choices):
                raise self.invalid(name, f"be one of {', '.join(map(repr, choices))}", shown(word))
        unknown, metric, scale = words
        pool = first.get("pool", self.common["pool"])  # null is a value of it
        if not isinstance(method, str) or method not in METHODS:
            raise self.invalid("method", f"be one of {', '.join(map(repr, METHODS))}", shown(method))
        if cap is not None:
            self.counts("max_per_group", [cap], _MOST_COUNT)
            if self.served.corpus.groups is None:
                raise self.invalid("max_per_group", "be left out: the corpus has no groups", cap)
        if pool is not None:
            self.counts("pool", [pool], self.limits.pool)
        skips = (unknown or self.served.unknown) == "skip"
        return Shared(method, pool, cap, skips, metric, scale or "as-is", self._options(first, method))

    def _options(self, first: Mapping[str, Any], method: str) -> tuple[tuple[str, Any], ...]:
        """Return the options of a rule, checked; those that it does not have are refused by `numbers`."""
        if _OPTIONS.isdisjoint(first) and _OPTIONS.isdisjoint(self.common):
            return ()
        given = ((each, first.get(each.name)) for each in OPTIONS)
        given = ((each, self.common.get(each.name) if value is None else value) for each, value in given)
        return tuple((each.name, self._option(each, value, method)) for each, value in given if value is not None)

    def _option(self, option: Parameter, value: Any, method: str) -> Any:
        name, kinds = option.name, {"number": (int, float), "count": (int,), "flag": (bool,), "choice": (str,)}
        what = {"number": "a number", "count": "an integer", "flag": "true or false"}.get(option.kind, "a word")
        if type(value) not in kinds[option.kind]:
            raise self.invalid(name, f"be {what}", shown(value))
        if option.kind == "choice" and value not in option.choices:
            raise self.invalid(name, f"be one of {', '.join(map(repr, option.choices))}", shown(value))
        if option.kind == "count":
            self.counts(name, [value], _MOST_COUNT)
        elif option.kind == "number" and not (option.holds(method, value) and option.holds(method, _float32(value))):
            limits = " and within the range of float32" if option.holds(method, value) else ""
            raise self.invalid(name, f"be {option.rule_of(method)}{limits}", shown(value))
        return value

    def has_corpus(self) -> None:
        """Refuse queries without vectors where there is no corpus."""
        if self.served.nothing:
            raise self.invalid("corpus", self.served.nothing, "none, and no vectors")

    def rows(self, name: str, ids: np.ndarray | list[Any], skips: bool = False) -> np.ndarray:
        """Return the rows of ids, int64 or strings, all of them known; with ``skips`` -1 for those that are not."""
        if self.served.named != isinstance(ids, list) and len(ids):
            raise self.invalid(
                name, f"be ids, {'strings' if self.served.named else 'integers'} in this corpus", "others"
            )
        rows = self.served.rows_of(ids)
        if rows is not ids and not skips and rows.size and rows.min() < 0:
            raise self.invalid(name, "be ids of the corpus", shown(plain(ids[int(rows.argmin())])))
        return rows

    def within(self, name: str, lengths: list[int]) -> None:
        """Refuse lists of ids that are too long."""
        if max(lengths) > self.limits.candidates:
            what = "rows" if name == "vectors" else "ids"
            raise self.invalid(name, f"have 0 to {self.limits.candidates} {what}", max(lengths))

    def id_rows(
        self, name: str, ids: np.ndarray | list[Any], lengths: list[int], skipped: dict[int, dict[Any, None]] | None
    ) -> np.ndarray:
        """Return the rows of lists of ids, given end to end, one list a row and padded with -1.

        Unknown ids are collected in ``skipped`` and get row -1; with None they are an error.
        """
        self.within(name, lengths)
        rows = self.rows(name, ids, skipped is not None)
        if skipped is not None and rows.size and rows.min() < 0:
            ends = np.cumsum(lengths)
            for place in np.flatnonzero(rows < 0).tolist():
                query = int(np.searchsorted(ends, place, side="right"))
                skipped.setdefault(query, {})[plain(ids[place])] = None
        return padded(rows, lengths, -1)

    def scores(
        self, name: str, values: np.ndarray, lengths: list[int], lengths_of_candidates: list[int] | None
    ) -> np.ndarray:
        """Return numbers of candidates, given end to end, one list a row as the candidates are."""
        if lengths_of_candidates is None:
            raise self.invalid(name, "come with candidates", f"{name} alone")
        if lengths != lengths_of_candidates:
            raise self.invalid(name, "have a number for each of the candidates", "another length")
        if name == "quality" and not (values > 0).all():
            raise self.invalid(name, "be finite and above 0", shown(float(values[~(values > 0)][0])))
        return padded(self.finite(name, values), lengths, PADDING[name])

    def finite(self, name: str, values: np.ndarray) -> np.ndarray:
        """Refuse NaN, and what float32 cannot hold."""
        if not np.logical_and.reduce(np.isfinite(values), axis=None):  # `all` has a detour through Python
            raise self.invalid(name, "be finite float32", "NaN or inf")
        return values

    def counts(self, name: str, values: Sequence[Any], most: int) -> np.ndarray:
        """Return whole numbers of at least 1."""
        if not set(map(type, values)) <= {int}:
            raise self.invalid(name, "be an integer", wrong(values, int))
        if min(values) < 1 or max(values) > most:
            raise self.invalid(name, f"be within [1, {most}]", next(x for x in values if not 1 <= x <= most))
        return np.array(values, np.int64)

    def flat(self, name: str, values: Iterable[Any], code: str) -> np.ndarray:
        """Return Python's integers ("q") or numbers ("f") as an array; booleans are refused."""
        given, dtype = tuple(values), np.int64 if code == "q" else np.float32
        kinds = (int,) if code == "q" else (int, float)
        if set(map(type, given)) <= set(kinds):
            try:  # three times as fast as `array.array`, and neither converts text
                return np.frombuffer(struct.pack(f"{len(given)}{code}", *given), dtype)
            except struct.error:
                pass
        what = "integers of 64 bits" if code == "q" else "numbers"
        raise self.invalid(name, f"be {what}", wrong(given, *kinds))


def _float32(value: float) -> float:
    """Return a number as the kernels take it; NaN, which no rule allows, for one that they cannot."""
    return float(np.float32(value)) if abs(value) <= _MOST_FLOAT32 else math.nan


def padded(flat: np.ndarray, lengths: list[int], padding: float | None) -> np.ndarray:
    """Return lists that stand end to end as rows."""
    width = max(lengths)
    if min(lengths) == width:
        return flat.reshape(len(lengths), width)
    rows = np.full((len(lengths), width), padding, flat.dtype)
    rows[np.arange(width) < np.array(lengths)[:, None]] = flat
    return rows


def plain(value: Any) -> Any:
    """Return an id as Python has it."""
    return value.item() if isinstance(value, np.generic) else value


def wrong(values: Sequence[Any], *kinds: type) -> str:
    """Return what an error says of the first value of another type."""
    return next((shown(x) for x in values if type(x) not in kinds), "one beyond their range")
