"""The options of components that other libraries' pipelines are made of: arguments of the table without arrays.

What has a value for each item is read from its metadata, by a key, or for costs counted from its text.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from .._base import checks
from .._base.arrays import HOST
from ..corpus.retrieve import completed
from ..selection import quotas, validate
from ..selection.options import of_rule
from ..selection.parameters import BY_GROUP, BY_NAME, OF_RESULT, OPTIONS, RECENCY, RULES, SCALARS, Parameter
from ..selection.request import Request

# Entries of metadata, and the arguments whose values for the items are there.
KEYS = {"bias_key": "bias", "group_key": "groups", "cost_key": "costs", "quality_key": "quality"}
# Of these, numbers.
NUMBERS = ("bias_key", "cost_key", "quality_key")
# What one number, word or flag says. The weight of relevance has other libraries' names, and vectors are compared by
# their cosine: stores have a metric, under this name, of their own.
_WITHOUT = ("lambda_d", "metric", *OF_RESULT, *(each.name for each in RECENCY))
PARAMETERS = tuple(parameter for parameter in SCALARS if parameter.name not in _WITHOUT)
# The options and their defaults; None, for one that only some rules have, stands for that of the rule.
DEFAULTS: dict[str, Any] = {
    "method": "mmr",
    **dict.fromkeys(KEYS),
    "token_counter": None,
    **{each.name: None if each in OPTIONS else each.default for each in PARAMETERS},
}
_LARGEST = float(np.finfo(np.float32).max)


def _number(op: str, name: str, value: Any) -> float:
    number = checks.number(op, name, value)
    return value if isinstance(value, int) else number  # as errors show it


def _choice(op: str, name: str, value: Any) -> str:
    return checks.choice(op, name, value, BY_NAME[name].choices)


def _by_group(op: str, name: str, value: Mapping[Any, Any]) -> dict[Any, int]:
    if (kinds := set(map(type, value))) not in ({str}, {int}, set()):
        got = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise TypeError(f"{op}: {name} must name groups by strings, or by integers, got {got}")
    return {key: checks.whole(op, name, number, "an integer for each group") for key, number in value.items()}


def _kinds_of_names(options: Mapping[str, Any]) -> set[type]:
    """Return by what options name single groups."""
    return {type(group) for name in BY_GROUP if isinstance(options[name], dict) for group in options[name]}


_KINDS: dict[str, Callable[[str, str, Any], Any]] = {
    "number": _number, "count": checks.count, "choice": _choice, "flag": checks.flag
}  # fmt: skip


def annotation(parameter: Parameter) -> Any:
    """Return the type of a parameter's value."""
    kinds = {"number": float, "count": int, "flag": bool}
    found: Any = Literal[parameter.choices] if parameter.kind == "choice" else kinds[parameter.kind]
    if parameter.by_group:
        found |= dict[str | int, int]
    return found if DEFAULTS[parameter.name] is not None else found | None


def named(call: Callable[..., Any]) -> Callable[..., Any]:
    """Name the options, and their defaults, in the signature of a call: ``**options`` says no more than they do."""
    signature = inspect.signature(call)
    *own, others = signature.parameters.values()
    options = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=x) for name, x in DEFAULTS.items()]
    rest = [] if others.name == "options" else [others]
    call.__signature__ = signature.replace(parameters=[*own, *options, *rest])  # type: ignore[attr-defined]
    return call


def of(owner: Any) -> dict[str, Any]:
    """Return the options that an object has as attributes."""
    return {name: getattr(owner, name) for name in DEFAULTS}


def are_usual(options: Mapping[str, Any]) -> bool:
    """Return whether options ask for no more than MMR; without a bias its weight says nothing."""
    return all(options.get(name, x) == x for name, x in DEFAULTS.items() if name != "lambda_b")


def checked(op: str, given: Mapping[str, Any], weight: tuple[str, Any], relevance: tuple[str, bool]) -> dict[str, Any]:
    """Return the weight and all options with Python's own values; refuse what no call could take.

    The library says what is wrong with them, by the names that the component has.

    Parameters
    ----------
    weight
        The component's name of the weight of relevance, and its value.
    relevance
        What the component calls given relevance, and whether it is given.
    """
    if unknown := sorted(set(given) - set(DEFAULTS)):
        raise TypeError(f"{op}: got an unexpected keyword argument {unknown[0]!r}")
    found = DEFAULTS | dict(given)
    method = checks.choice(op, "method", found["method"], RULES)
    for parameter in PARAMETERS:
        if (value := found[parameter.name]) is not None:
            by_group = parameter.by_group and isinstance(value, Mapping)
            found[parameter.name] = (_by_group if by_group else _KINDS[parameter.kind])(op, parameter.name, value)
    for name in KEYS:
        key = found[name]
        if key is not None and not isinstance(key, str):
            raise TypeError(f"{op}: {name} must be a string, got {checks.shown(key)}")
    counter = found["token_counter"]
    if counter is not None and not callable(counter):
        raise TypeError(f"{op}: token_counter must be a function of a text, got {checks.shown(counter)}")
    if counter is not None and found["cost_key"] is not None:
        raise ValueError(f"{op}: token_counter must come without cost_key, got both")
    _fits(op, method, found)
    name, found[name] = weight[0], _number(op, *weight)
    names = {"lambda_d": name, "relevance": relevance[0]} | {argument: key for key, argument in KEYS.items()}
    items: dict[str, Any] = {argument: np.ones(1) for key, argument in KEYS.items() if found[key] is not None}
    items |= {"groups": [""] if str in _kinds_of_names(found) else np.zeros(1, np.int64)} if "groups" in items else {}
    items |= {"costs": np.ones(1)} if counter is not None else {}
    items |= {"relevance": np.ones((1, 1))} if relevance[1] else {}
    try:
        one = np.ones((1, 1), np.float32)
        whole = request(method, one, one, 1, found[name], **items, **of_call(found))
        validate.problem_of(whole, HOST, options=of_rule(whole))
    except (TypeError, ValueError) as error:
        told = str(error).partition(": ")[2]
        told = re.sub(rf"\b({'|'.join(names)})\b", lambda match: names[match[0]], told)
        raise type(error)(f"{op}: {told}") from None
    return found


def _fits(op: str, method: str, options: Mapping[str, Any]) -> None:
    """Refuse options that the rule does not have, and those that lack another, by the names of a component."""
    for name, value in options.items():
        argument = "costs" if name == "token_counter" else KEYS.get(name, name)
        if argument in BY_NAME and value != DEFAULTS[name] and method not in BY_NAME[argument].rules:
            got = checks.shown(value)
            raise ValueError(f"{op}: {name} must be left out with method {method!r}, got {got}")
    costs = next((name for name in ("cost_key", "token_counter") if options[name] is not None), None)
    if costs is not None and options["budget"] is None:
        raise ValueError(f"{op}: {costs} must come with a budget, got {costs} alone")
    if costs is None and options["budget"] is not None:
        raise ValueError(f"{op}: budget must come with cost_key or token_counter, got neither")
    if (key := options["group_key"]) is not None and options["max_per_group"] is options["min_per_group"] is None:
        raise ValueError(f"{op}: group_key must come with max_per_group or min_per_group, got {key!r} alone")


def of_call(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the options that are the same for all items."""
    return {parameter.name: options[parameter.name] for parameter in PARAMETERS}


def request(op: str, queries: Any, rows: Any, k: int, weight: float, **given: Any) -> Request:
    """Return a request with the defaults of its rule; a rule without a weight of relevance leaves it out."""
    lambda_d = weight if op in BY_NAME["lambda_d"].rules else None
    return completed(Request(op, queries, rows, k, **{"lambda_d": lambda_d, "lambda_b": None} | given))


def of_items(
    op: str, options: Mapping[str, Any], metadata: Sequence[Mapping[str, Any]], texts: Callable[[], Iterable[str]]
) -> dict[str, Any]:
    """Return the arguments of a selection among items that have metadata and texts, all but vectors and relevance."""
    found = {"method": options["method"], **of_call(options)}
    least = {"cost_key": 0.0}
    found |= {KEYS[name]: numbers(op, metadata, options[name], least.get(name, -_LARGEST)) for name in NUMBERS}
    if (groups := column(op, metadata, options["group_key"])) is not None:
        are_named = bool(groups and _kinds_of_names(options))
        found["groups"] = (_all_named if are_named else _numbered)(op, options["group_key"], groups)
        if are_named and type(groups[0]) is int:  # JSON, as which components are saved, has no other names than text
            found |= {name: quotas.with_integers(op, name, found[name]) for name in BY_GROUP}
    if (count := options["token_counter"]) is not None:
        found["costs"] = [checks.number(op, "what token_counter returns", count(text)) for text in texts()]
        if odd := [cost for cost in found["costs"] if not 0 <= cost <= _LARGEST]:
            raise ValueError(f"{op}: what token_counter returns must be at least 0, got {odd[0]:g}")
    return found


def _numbered(op: str, key: str, values: list[Any]) -> list[int]:
    """Return the numbers of the groups whose names are in metadata."""
    known: dict[Any, int] = {}
    found = []
    for i, value in enumerate(values):
        try:
            found.append(known.setdefault(value, len(known)))
        except TypeError:
            rule, got = f"a name or number as {key!r}", f"{checks.shown(value)} in item {i}"
            raise TypeError(f"{op}: the metadata of every item must have {rule}, got {got}") from None
    return found


def _all_named(op: str, key: str, values: list[Any]) -> list[Any]:
    """Return the names of groups, of which options name some."""
    odd = [i for i, value in enumerate(values) if type(value) is not type(values[0]) or type(value) not in (str, int)]
    if odd:
        got = f"{checks.shown(values[odd[0]])} in item {odd[0]}"
        raise TypeError(f"{op}: the metadata of all items must have strings, or all integers, as {key!r}, got {got}")
    return values


def column(op: str, metadata: Sequence[Mapping[str, Any]], key: str | None) -> list[Any] | None:
    """Return one entry of the metadata of each item, which all of them must have; None without a key."""
    if key is None:
        return None
    values = [each.get(key) for each in metadata]
    if None in (value if value is None else 0 for value in values):
        missing = next(i for i, value in enumerate(values) if value is None)
        raise ValueError(f"{op}: the metadata of every item must have {key!r}, got none in item {missing}")
    return values


def numbers(
    op: str, metadata: Sequence[Mapping[str, Any]], key: str | None, least: float = -_LARGEST
) -> list[float] | None:
    """Return such a column of numbers of at least so much."""
    values = column(op, metadata, key)
    if values is None:
        return None
    found = []
    for i, value in enumerate(values):
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not least <= number <= _LARGEST:
            range_of = "of at least 0" if least == 0 else "within the range of float32"
            rule, got = f"a number {range_of}", f"{checks.shown(value)} in item {i}"
            raise ValueError(f"{op}: the metadata of every item must have {rule} as {key!r}, got {got}")
        found.append(number)
    return found
