"""What is compared: rules of selection with their weights, by name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .._base.checks import shown
from ..selection import METHODS
from ..selection.parameters import BY_NAME

OP = "compare"
TOP, NEAREST, RANDOM = "top-k", "nearest", "random"  # what takes part always; of a corpus without bias not the second
NEAR = 0.95  # two picks of a larger cosine are near-duplicates


class _Rule(NamedTuple):
    """What a name stands for."""

    label: str
    rule: str  # one of `METHODS`
    arguments: dict[str, Any]  # None: the number that is given
    usual: tuple[float, ...] = ()  # numbers, empty where there are none


# λ means something else in each rule. These span what each does between top-k and its most diverse picks.
_RULES = {
    "mmr": _Rule("MMR", "mmr", {"lambda_d": None}, (0.9, 0.75, 0.5, 0.25)),
    "msd": _Rule("MSD", "msd", {"lambda_d": None}, (0.9, 0.75)),
    "dpp": _Rule("DPP", "dpp", {"lambda_d": None}, (0.9, 0.5)),
    "ssd": _Rule("SSD", "ssd", {"lambda_d": None}, (0.75, 0.5)),
    "facility": _Rule("Facility location", "coverage", {"lambda_d": None, "kind": "facility"}, (0.5, 0.25)),
    "cover": _Rule("COVER", "coverage", {"lambda_d": None, "kind": "cover"}, (0.9, 0.5)),
    "xquad": _Rule("xQuAD", "coverage", {"lambda_d": None, "kind": "xquad"}, (0.5, 0.25)),
    "gist": _Rule("GIST", "gist", {"lambda_d": None}, (0.25, 0.1)),
    "ceiling": _Rule("Top-k, ceiling", "mmr", {"lambda_d": 1.0, "max_similarity": None}, (NEAR,)),
    "vrsd": _Rule("VRSD", "vrsd", {}),
    "sift": _Rule("SIFT", "sift", {}),
}
_GROUPS = {"coverage": ("facility", "cover", "xquad"), "all": tuple(_RULES)}
_NAME = re.compile(r"([a-z-]+)(?::(.+))?")


class Setting(NamedTuple):
    """A rule with its arguments."""

    name: str  # as it is asked for, and of its file
    label: str  # in tables
    rule: str  # one of `METHODS`, or "random"
    arguments: dict[str, Any]

    @property
    def lambda_d(self) -> float | None:
        """The weight of relevance, where the rule has one that was given."""
        value = self.arguments.get("lambda_d")
        return float(value) if isinstance(value, (int, float)) else None


def settings(
    methods: Sequence[str] | Mapping[str, tuple[str, Mapping[str, Any]]] | None, *, biased: bool
) -> tuple[Setting, ...]:
    """Return what is compared: top-k (MMR with λ = 1) and random picks always, then what is asked for as in `compare`.

    Where rows have a bias, top-k by relevance alone takes part too.
    """
    found = {TOP: Setting(TOP, "Top-k (λ = 1)", "mmr", {"lambda_d": 1.0})}
    if biased:
        arguments = {"lambda_d": 1.0, "lambda_b": 1.0}
        found[NEAREST] = Setting(NEAREST, "Top-k without bias", "mmr", arguments)
    found[RANDOM] = Setting(RANDOM, "Random of the pool", RANDOM, {})
    if isinstance(methods, str):
        raise TypeError(f"{OP}: methods must be a list of names, got {shown(methods)}")
    asked = _custom(methods) if isinstance(methods, Mapping) else _named(methods)
    for setting in asked:
        found.setdefault(setting.name, setting)
    return tuple(found.values())


def _named(methods: Iterable[str] | None) -> Iterable[Setting]:
    for text in ("all",) if methods is None else methods:
        match = _NAME.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise ValueError(f"{OP}: methods must be names like mmr:0.5, got {shown(text)}")
        name, values = match.groups()
        for one in _GROUPS.get(name, (name,)):
            yield from _of(one, values, text)


def _of(name: str, values: str | None, text: str) -> Iterable[Setting]:
    """Yield the settings of a name: one for each number."""
    if name in (TOP, RANDOM) and values is None:
        return
    known = _RULES.get(name)
    if known is None or (values is not None and not known.usual):
        names = ", ".join((TOP, RANDOM, *_RULES, *_GROUPS))
        raise ValueError(f"{OP}: methods must be among {names}, with λ as in mmr:0.5, got {shown(text)}")
    if not known.usual:
        yield Setting(name, known.label, known.rule, {})
    try:
        numbers = known.usual if values is None else [float(value) for value in values.split("/")]
    except ValueError:
        raise ValueError(f"{OP}: methods must have numbers after the colon, as in mmr:0.5, got {text!r}") from None
    for number in numbers:
        arguments = {key: number if value is None else value for key, value in known.arguments.items()}
        of = BY_NAME[next(key for key, value in known.arguments.items() if value is None)]
        if not of.holds(known.rule, number):
            raise ValueError(f"{OP}: methods must have numbers {of.rule_of(known.rule)}, got {text!r}")
        if name == "mmr" and number == 1:  # top-k, which is there
            continue
        label = f"{known.label} {number:g}" if name == "ceiling" else f"{known.label}, λ {number:g}"
        yield Setting(f"{name}:{number:g}", label, known.rule, arguments)


def _custom(methods: Mapping[str, Any]) -> Iterable[Setting]:
    """Yield the caller's own settings: a label for each, and the rule with its arguments."""
    for label, given in methods.items():
        if str(label) in (TOP, NEAREST, RANDOM):
            raise ValueError(f"{OP}: methods must have labels other than {TOP}, {NEAREST} and {RANDOM}, got {label!r}")
        try:
            rule, arguments = given
            arguments = dict(arguments)
        except (TypeError, ValueError):
            raise TypeError(
                f"{OP}: methods must map labels to a rule and a dictionary of its arguments, got {shown(given)} for "
                f"{label!r}"
            ) from None
        if rule not in METHODS:
            raise ValueError(
                f"{OP}: methods must have rules among {', '.join(METHODS)}, got {shown(rule)} for {label!r}"
            )
        yield Setting(str(label), str(label), rule, arguments)
