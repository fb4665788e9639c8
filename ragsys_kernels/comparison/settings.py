"""What is compared: rules of selection with their weights, by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .._base.checks import shown
from ..selection import METHODS

OP = "compare"
TOP, NEAREST, RANDOM = "top-k", "nearest", "random"  # what takes part always; of a corpus without bias not the second
NEAR = 0.95  # two picks of a larger cosine are near-duplicates

_KINDS = ("facility", "cover", "xquad")
_LABELS = {
    "mmr": "MMR", "vrsd": "VRSD", "msd": "MSD", "dpp": "DPP", "ssd": "SSD", "sift": "SIFT",
    "gist": "GIST", "facility": "Facility location", "cover": "COVER", "xquad": "xQuAD", "ceiling": "Top-k, ceiling",
}  # fmt: skip
# λ means something else in each rule. These span what each does between top-k and its most diverse picks.
_LAMBDAS = {
    "mmr": (0.9, 0.75, 0.5, 0.25), "msd": (0.9, 0.75), "dpp": (0.9, 0.5), "ssd": (0.75, 0.5), "facility": (0.5, 0.25),
    "cover": (0.9, 0.5), "xquad": (0.5, 0.25), "gist": (0.25, 0.1),
}  # fmt: skip
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
    """Return what is compared: top-k (MMR with λ = 1) and random picks always, then what is asked for.

    Parameters
    ----------
    methods : sequence of str, or mapping, optional
        As in `compare`.
    biased : bool
        Whether rows have a bias; then top-k by relevance alone takes part too.
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
    for text in (*_LAMBDAS, "ceiling", "vrsd", "sift") if methods is None else methods:
        match = _NAME.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise ValueError(f"{OP}: methods must be names like mmr:0.5, got {shown(text)}")
        name, values = match.groups()
        if name == "all" and values is None:
            yield from _named(None)
        elif name == "coverage":
            yield from (setting for kind in _KINDS for setting in _of(kind, values, text))
        else:
            yield from _of(name, values, text)


def _of(name: str, values: str | None, text: str) -> Iterable[Setting]:
    """Yield the settings of a name: one for each λ."""
    if name in (TOP, RANDOM) and values is None:
        return
    if name in ("vrsd", "sift") and values is None:
        yield Setting(name, _LABELS[name], name, {})
        return
    if name == "ceiling":
        yield from _each(name, values, text, (NEAR,), -1.0, lambda x: ("mmr", {"lambda_d": 1.0, "max_similarity": x}))
        return
    if name not in _LAMBDAS:
        known = ", ".join((TOP, RANDOM, *_LAMBDAS, "coverage", "ceiling", "vrsd", "sift", "all"))
        raise ValueError(f"{OP}: methods must be among {known}, with λ as in mmr:0.5, got {shown(text)}")

    def made(weight: float) -> tuple[str, dict[str, Any]]:
        if name in _KINDS:
            return "coverage", {"lambda_d": weight, "kind": name}
        return name, {"lambda_d": weight}

    yield from _each(name, values, text, _LAMBDAS[name], 0.0, made)


def _each(
    name: str,
    values: str | None,
    text: str,
    usual: tuple[float, ...],
    least: float,
    made: Callable[[float], tuple[str, dict[str, Any]]],
) -> Iterable[Setting]:
    try:
        numbers = usual if values is None else [float(value) for value in values.split("/")]
    except ValueError:
        raise ValueError(f"{OP}: methods must have numbers after the colon, as in mmr:0.5, got {text!r}") from None
    for number in numbers:
        if not least <= number <= 1:
            raise ValueError(f"{OP}: methods must have numbers within [{least:g}, 1], got {text!r}")
        if name == "mmr" and number == 1:  # top-k, which is there
            continue
        rule, arguments = made(number)
        mark = "" if name == "ceiling" else "λ "
        yield Setting(
            f"{name}:{number:g}", f"{_LABELS[name]}{' ' if not mark else ', '}{mark}{number:g}", rule, arguments
        )


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
