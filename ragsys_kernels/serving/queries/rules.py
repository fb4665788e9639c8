"""What queries must be, whichever way they came: the rules for all of them, and the checks of each column."""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..._base import times
from ..._dispatch import BackendUnavailableError
from ...selection import METHODS, quotas
from ...selection.fusion import FUSIONS, fuse
from ...selection.parameters import BY_GROUP, BY_NAME, Parameter
from ...selection.parameters import DEFAULTS as OF_RULE
from ..corpora import Served
from ..fields import (
    ID_LISTS,
    LACKS,
    NUMBERS,
    OF_ASPECTS,
    OF_CALL,
    OF_CANDIDATES,
    OF_VECTORS,
    PADDING,
    TYPES,
    VECTORS,
    ByGroup,
    wording,
)
from ..kernel import argument_of, with_id
from ..limits import UNKNOWN_ID, Limits, RefusedError, invalid, shown

DEFAULTS: dict[str, Any] = {
    "method": "mmr", "k": 6, "pool": 100, "lambda_d": None, "lambda_b": BY_NAME["lambda_b"].default
}  # fmt: skip
_WORDS = (
    Parameter("unknown", "", "choice", choices=("error", "skip")),
    Parameter("fusion", "", "choice", choices=FUSIONS),
)
# What is one value for all queries of a block.
SHARED = frozenset(("method", "pool", "unknown", "fusion", "fusion_weights", *OF_CALL))
FIELDS = frozenset((*DEFAULTS, *SHARED, *NUMBERS, *ID_LISTS, *OF_CANDIDATES, *OF_ASPECTS, *OF_VECTORS, *VECTORS)) | {
    "query",
    "query_id",
    "vectors",
    "lists",
    "cursor",
}
# Vectors of a query, and what comes with them: beside the queries of a request, each of these would have a copy.
_OWN = frozenset(("vectors", *VECTORS, *OF_VECTORS))
# What may stand beside the queries of a request, for all of them; its route takes the last three.
BESIDE = FIELDS - _OWN | {"corpus", "queries", "texts"}
# What stands in the URL of a request whose body is Arrow.
OF_URL = ("corpus", "k", *NUMBERS, *sorted(SHARED))
# The most dimensions of vectors in a query, and values along an axis of a tensor: NumPy multiplies whatever a shape
# has.
MOST_DIMS = 1_000_000
MOST_LISTS = 64  # that are fused for a query
_MOST_COUNT = (1 << 63) - 1  # as in the library
_MOST_FLOAT32 = float(np.finfo(np.float32).max)
_MOST_BUDGET = float(np.finfo(np.float64).max)  # JSON has integers beyond it


# Sets of rules that are kept for later requests, which share them, and the longest of them as text.
_KEPT, _LONGEST = 256, 4096


def rules_of(op: str, common: Mapping[str, Any], served: Served, limits: Limits) -> Rules:
    """Return the checks of a request, reused from an earlier request with equal rules if they are still kept."""
    try:
        text = op + repr(common)  # equal for requests with equal rules
    except RecursionError:
        raise invalid(op, "body", "nest lists less deeply", "more levels than can be read") from None
    rules: Rules | None = served.kept.get(text)
    if rules is None:
        rules = Rules(op, common, served, limits)
        if len(text) <= _LONGEST:
            if len(served.kept) >= _KEPT:
                served.kept.clear()
            served.kept[text] = rules
    return rules


class Hits(NamedTuple):
    """What a retriever found for each of some queries, end to end."""

    ids: np.ndarray | list[Any]
    lengths: list[int]
    scores: np.ndarray | None  # float64
    of_scores: list[int]  # their lengths


class Shared(NamedTuple):
    """What is one value for all queries of a block."""

    method: str
    pool: int | None
    skips: bool  # whether unknown ids are left out
    metric: str | None  # of vectors that come with the queries
    fusion: Mapping[str, Any]  # arguments of `fuse`
    options: Mapping[str, Any]  # the other arguments that are one value, as far as they are given


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
        for name in sorted(_OWN):
            if common.get(name) is not None:
                raise self.invalid(name, "stand in each of the queries", "one beside them")
        self.common = {**DEFAULTS, **{name: x for name, x in common.items() if x is not None or name == "pool"}}
        # Bad ones may be refused here: they are wrong for all queries without their own.
        given = {name: self.common[name] for name in ("k", "lambda_d", "lambda_b") if self.common[name] is not None}
        self._numbers = {name: self.number(name, [x])[0].item() for name, x in given.items()}
        self._of_all: dict[str, dict[str, Any]] = {}  # by rule, of queries without numbers of their own
        self._rule = self.shared({})
        self._beside = {name: x for name, x in common.items() if x is not None}
        # What else stands beside the queries and not in them.
        self.columns = {name: x for name, x in self.common.items() if name not in DEFAULTS and name not in SHARED}

    def invalid(self, name: str, rule: str, got: object) -> RefusedError:
        return invalid(self.op, name, rule, got)

    def known(self, given: Mapping[str, Any], taken: Collection[str] = FIELDS) -> None:
        """Refuse unknown fields; the error names those that are ``taken`` where they stand."""
        for name in given:
            if name not in FIELDS:
                raise self.invalid(name[:100], f"be one of {', '.join(sorted(taken))}", shown(given[name]))

    def numbers(self, own: Mapping[str, Sequence[Any]], method: str) -> dict[str, Any]:
        """Return k and the weights, of queries with these of their own: one of all, or arrays (n,) as `number` has."""
        found = self._of_all.get(method)
        if found is None:
            found = {"lambda_d": OF_RULE[method].get("lambda_d"), **self._numbers}
            found |= dict.fromkeys(LACKS[method].intersection(found))
            self._of_all[method] = found
        if not own:
            return found
        read = {name: self.number(name, values) for name, values in own.items()}
        return {**found, **read, **dict.fromkeys(LACKS[method].intersection(read))}

    def fits(self, method: str, own: Mapping[str, Any]) -> None:
        """Refuse fields that a rule does not have: those of queries, given with a value to show, and of all queries."""
        lacks = LACKS[method]
        if lacks.isdisjoint(own) and lacks.isdisjoint(self._beside):
            return
        for given, whose in ((own, ""), (self._beside, " for all queries")):
            for name in given:
                if name in lacks:
                    raise self.invalid(name, f"be left out: {method} has none", f"{shown(given[name])}{whose}")

    def number(self, name: str, values: Sequence[Any]) -> np.ndarray:
        """Return the values of a field that is a number: int64 of k, float64 of budgets, float32 of the others."""
        if name == "k":
            return self.counts(name, values, self.limits.k)
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
        given = {name: self.common.get(name) if first.get(name) is None else first[name] for name in SHARED - {"pool"}}
        method, weights = given.pop("method"), given.pop("fusion_weights")
        words = {each.name: given.pop(each.name) for each in _WORDS}
        for each in _WORDS:
            if words[each.name] is not None:
                self._option(each, words[each.name], "")
        if weights is not None:
            if type(weights) is not list:
                raise self.invalid("fusion_weights", "be a list of numbers", shown(weights))
            weights = self.flat("fusion_weights", weights, "d")
        pool = first.get("pool", self.common["pool"])  # null is a value of it
        if not isinstance(method, str) or method not in METHODS:
            raise self.invalid("method", f"be one of {', '.join(map(repr, METHODS))}", shown(method))
        if pool is not None:
            if type(pool) is not int:
                raise self.invalid("pool", "be an integer, or null for the whole corpus", shown(pool))
            self.counts("pool", [pool], self.limits.pool)
        options = {name: self._option(OF_CALL[name], x, method) for name, x in given.items() if x is not None}
        skips = (words["unknown"] or self.served.unknown) == "skip"
        fusion = {name: x for name, x in (("method", words["fusion"]), ("weights", weights)) if x is not None}
        return Shared(method, pool, skips, options.pop("metric", None), fusion, options)

    def _option(self, option: Parameter, value: Any, method: str) -> Any:
        """Return an argument that is one value, checked; whether its rule has it is `fits`."""
        name = option.name
        if option.kind == "choice":
            if type(value) is not str or value not in option.choices:
                raise self.invalid(name, f"be one of {', '.join(map(repr, option.choices))}", shown(value))
            return value
        if option.by_group and type(value) is dict:
            return self._by_group(name, value)
        if type(value) not in TYPES[option.kind][1]:
            raise self.invalid(name, f"be {wording(option)}", shown(value))
        if option.kind == "count":
            self.counts(name, [value], _MOST_COUNT)
        elif option.kind == "number" and not (option.holds(method, value) and option.holds(method, _float32(value))):
            limits = " and within the range of float32" if option.holds(method, value) else ""
            unit = times.likely_unit(value) if name == "now" else ""
            raise self.invalid(name, f"be {option.rule_of(method)}{limits}", f"{shown(value)}{unit}")
        return value

    def _by_group(self, name: str, given: dict[Any, Any]) -> ByGroup:
        """Return what an object says of groups; whether these have such names is found by `quotas`."""
        if len(given) > self.limits.candidates:
            raise self.invalid(name, f"name 0 to {self.limits.candidates} groups", len(given))
        for number in given.values():
            if type(number) is not int:
                large = type(number) is float and abs(number) > _MOST_COUNT  # as JSON's longer integers are read
                what = "an integer of 64 bits" if large else "an integer"
                raise self.invalid(name, f"be {what} for each group", shown(number))
            if number < 0 or number > _MOST_COUNT:
                rule = "be at least 0" if number < 0 else f"be within [0, {_MOST_COUNT}]"
                raise self.invalid(name, f"{rule} for each group", number)
        return ByGroup(given)

    def quotas(self, options: Mapping[str, Any], names: Any, own_vectors: bool) -> Mapping[str, Any]:
        """Return options with what they say of groups as the library takes it: by the names that a corpus has, or else
        by the numbers of ``names``; integers where these are None.

        Refuse what the library would refuse in the call of the kernels, which the block may share.
        """
        if options.keys().isdisjoint(BY_GROUP):
            return options
        given = {name: options[name] for name in BY_GROUP if name in options}
        if "min_per_group" not in given and not any(isinstance(each, ByGroup) for each in given.values()):
            return options
        try:
            if names is None:
                given = {name: quotas.with_integers(self.op, name, each) for name, each in given.items()}
            quotas.check(self.op, given.get("max_per_group"), given.get("min_per_group"), names)
            if not own_vectors and self.served.corpus.device != "cpu":
                quotas.refuse(self.op, "on a device")
        except (TypeError, ValueError, BackendUnavailableError) as error:
            raise RefusedError(422, str(error), argument_of(str(error))) from None
        if own_vectors:
            given = {name: quotas.by_number(each, names) for name, each in given.items()}
        return {**options, **{name: ByGroup(x) if isinstance(x, dict) else x for name, x in given.items()}}

    def has_corpus(self) -> None:
        """Refuse queries without vectors where there is no corpus."""
        if self.served.nothing:
            raise self.invalid("corpus", self.served.nothing, "none, and no vectors")

    def has_dims(self, name: str, dims: int, *lengths: int) -> None:
        """Refuse vectors of another length."""
        if set(lengths) - {dims}:
            got = next(length for length in lengths if length != dims)
            raise self.invalid(name, f"have the corpus's {dims} dimensions, or those of its vectors", got)

    def rows(self, name: str, ids: np.ndarray | list[Any], skips: bool = False) -> np.ndarray:
        """Return the rows of ids, int64 or strings, all of them known; with ``skips`` -1 for those that are not."""
        if self.served.named != isinstance(ids, list) and len(ids):
            kind = "strings" if self.served.named else "integers"
            raise self.invalid(name, f"be ids, {kind} in this corpus", shown(plain(ids[0])))
        rows = self.served.rows_of(ids)
        if rows is not ids and not skips and rows.size and rows.min() < 0:
            got = shown(plain(ids[int(rows.argmin())]))
            raise invalid(self.op, name, "be ids of the corpus", got, UNKNOWN_ID)
        return rows

    def within(self, name: str, lengths: list[int]) -> None:
        """Refuse lists of ids that are too long."""
        if max(lengths) > self.limits.candidates:
            what = "rows" if name in _OWN else "ids"
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

    def fused(
        self, hits: Sequence[Hits], fusion: Mapping[str, Any], skipped: dict[int, dict[Any, None]] | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the candidates (n, P) of queries, and their relevance, fused from what several retrievers found."""
        self.within("lists", [sum(max(each.lengths) for each in hits)])
        lists = []
        for ids, lengths, scores, of_scores in hits:
            if scores is not None and of_scores != lengths:
                raise self.invalid("lists.scores", "be a number for each of the ids", "another length")
            rows = self.id_rows("lists.ids", ids, lengths, skipped)
            lists.append((rows, None if scores is None else padded(scores, lengths, 0.0)))
        try:
            found = fuse(lists, **fusion)
        except ValueError as error:  # about one query, where it counts
            text = str(error).removeprefix("fuse: ").removesuffix(" for query 0")
            if text.startswith("weights"):
                raise RefusedError(422, f"{self.op}: fusion_{text}", "fusion_weights") from None
            raise RefusedError(422, f"{self.op}: {with_id(text, self.served.ids_of)}", "lists") from None
        return found.candidates, found.relevance

    def scores(
        self, name: str, values: np.ndarray, lengths: list[int], others: list[int] | None, whose: str = "candidates"
    ) -> np.ndarray:
        """Return numbers of candidates, given end to end, one list a row as the candidates are; or of ``whose``."""
        if others is None:
            raise self.invalid(name, f"come with {whose}", f"{name} alone")
        if lengths != others:
            what = "group" if name == "groups" else "number"
            got = next(f"{n} for {m}" for n, m in zip(lengths, others, strict=True) if n != m)
            raise self.invalid(name, f"have a {what} for each of the {whose}", got)
        if name == "quality" and not (values > 0).all():
            raise self.invalid(name, "be finite and above 0", shown(float(values[~(values > 0)][0])))
        if (whose == "aspects" or name == "costs") and not (values >= 0).all():
            raise self.invalid(name, "be finite and at least 0", shown(float(values[~(values >= 0)][0])))
        return padded(self.finite(name, values), lengths, PADDING.get(name))

    def groups(
        self, groups: np.ndarray | list[Any], of_queries: np.ndarray | list[Any] | None, options: Mapping[str, Any]
    ) -> tuple[np.ndarray, np.ndarray | None, dict[str, int] | None]:
        """Return the groups of candidates, end to end, and those of queries as integers, and the numbers of strings.

        Those that ``options`` name come first, so that blocks with equal options have equal numbers of them. Where
        there are no candidates names may be any.
        """
        if of_queries is not None and len(groups) and type(groups) is not type(of_queries):
            kind = "strings" if isinstance(groups, list) else "integers"
            raise self.invalid("query_groups", f"be {kind} as groups are", "others")
        numbers: dict[Any, int] | None = None
        if isinstance(groups, list) or not len(groups):
            named = set().union(*(x for name in BY_GROUP if isinstance(x := options.get(name), ByGroup)))
            numbers = {each: number for number, each in enumerate(sorted(named))}
            groups = np.fromiter((numbers.setdefault(each, len(numbers)) for each in groups), np.int64, len(groups))
        if isinstance(of_queries, list):
            of_queries = np.array([(numbers or {}).get(each, -1) for each in of_queries], np.int64)
        return groups, of_queries, numbers

    def aspects(self, name: str, vectors: np.ndarray, lengths: list[int]) -> np.ndarray:
        """Return vectors (n, A, D) of queries that have equally many, given end to end."""
        if min(lengths) < 1 or max(lengths) > self.limits.candidates:
            got = next(n for n in lengths if not 1 <= n <= self.limits.candidates)
            raise self.invalid(name, f"have 1 to {self.limits.candidates} rows", got)
        return self.finite(name, vectors).reshape(len(lengths), lengths[0], -1)

    def finite(self, name: str, values: np.ndarray) -> np.ndarray:
        """Refuse NaN, and what float32 cannot hold."""
        if not np.logical_and.reduce(np.isfinite(values), axis=None):  # `all` has a detour through Python
            raise self.invalid(name, f"be finite {'float64' if name == 'costs' else 'float32'}", "NaN or inf")
        return values

    def counts(self, name: str, values: Sequence[Any], most: int) -> np.ndarray:
        """Return whole numbers of at least 1."""
        if not set(map(type, values)) <= {int}:
            raise self.invalid(name, "be an integer", wrong(values, int))
        if min(values) < 1 or max(values) > most:
            rule = "be at least 1" if most == _MOST_COUNT >= max(values) else f"be within [1, {most}]"
            raise self.invalid(name, rule, next(x for x in values if not 1 <= x <= most))
        return np.array(values, np.int64)

    def flat(self, name: str, values: Iterable[Any], code: str) -> np.ndarray:
        """Return Python's integers ("q") or numbers ("f", "d") as an array of this type; booleans are refused."""
        given, dtype = tuple(values), np.dtype(code)
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
