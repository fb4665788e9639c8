"""The table of what a selection may be asked for, beside queries, rows and k: each argument once, for every entrance.

The signatures of the public functions repeat names and defaults, for editors and `help`; a test holds them to this.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from .._base import times

RULES = ("mmr", "vrsd", "msd", "dpp", "ssd", "sift", "coverage", "gist")
WEIGHTED = tuple(rule for rule in RULES if rule not in ("vrsd", "sift"))
# Rules that choose one pick after the other. GIST, which chooses them together, refuses what only these have.
_ONE_BY_ONE = tuple(rule for rule in RULES if rule != "gist")
_OF_ALL = (RULES, _ONE_BY_ONE)
SCALES = ("as-is", "minmax", "zscore", "rank")
DECAYS = ("exp", "gauss", "linear")
KINDS = ("facility", "cover", "xquad")


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


_LARGEST = 3.4028234663852886e38  # of float32


class Parameter(NamedTuple):
    """An argument of a selection, wherever it is given."""

    name: str
    help: str
    kind: Literal["number", "count", "choice", "flag", "ids", "values", "vectors"]
    of: Literal["call", "query", "item", "candidate", "aspect"] = "call"  # what may have a value of its own
    rules: tuple[str, ...] = RULES  # those that take it
    default: Any = None  # or of each rule that has one of its own
    low: float = -math.inf
    high: Any = math.inf  # or of each rule that has one of its own
    above: bool = False  # whether a number must be above ``low``
    choices: tuple[str, ...] = ()
    everywhere: bool = True  # whether every backend takes it
    by_group: bool = False  # whether a mapping may have the values of single groups

    @property
    def axes(self) -> int:
        """How many axes the argument has where each query has a value of its own; 0 where none can have one."""
        own = {"call": 0, "query": 1, "item": 2, "candidate": 2, "aspect": 2}[self.of]
        return own + (self.kind in ("ids", "vectors"))

    def default_of(self, rule: str) -> Any:
        return self.default.get(rule) if isinstance(self.default, dict) else self.default

    def range_of(self, rule: str) -> tuple[float, float]:
        """Return what a number must be within."""
        return self.low, self.high.get(rule, math.inf) if isinstance(self.high, dict) else self.high

    def rule_of(self, rule: str) -> str:
        """Return what an error says that a number must be."""
        low, high = self.range_of(rule)
        if high == _LARGEST:
            return "within the range of float32"
        if self.name == "now":
            return times.RULE
        if self.above:
            return f"above {low:g}" + (f" and at most {high:g}" if high < math.inf else "")
        return f"within [{low:g}, {high:g}]" if high < math.inf else f"at least {low:g}"

    def rules_text(self) -> str:
        """Return of which rules it is, where it is not of all."""
        others = [rule for rule in RULES if rule not in self.rules]
        if not others:
            return ""
        return f"of {_listed(self.rules)}" if len(self.rules) < len(others) else f"not of {_listed(others)}"

    def default_text(self) -> str:
        """Return the default, or those of the rules."""
        if not isinstance(self.default, dict):
            return "none" if self.default is None else str(self.default)
        of = {x: [rule for rule in self.default if self.default[rule] == x] for x in self.default.values()}
        return ", ".join(f"{x:g} for {_listed(rules)}" for x, rules in of.items())

    def holds(self, rule: str, number: float) -> bool:
        low, high = self.range_of(rule)
        return (low < number if self.above else low <= number) and number <= high


TABLE = (
    Parameter("candidates", "Ids to choose from; nothing is retrieved then", "ids", "query"),
    Parameter("relevance", "A score for each candidate, instead of cos(query, item)", "values", "candidate"),
    Parameter(
        "relevance_scale", "How relevance is rescaled over the candidates of a query", "choice", default="as-is",
        choices=SCALES,
    ),
    Parameter("bias", "Quality of each item", "values", "item", WEIGHTED),
    Parameter(
        "lambda_d", "Weight of relevance against redundancy", "number", "query", WEIGHTED,
        {"mmr": 0.75, "msd": 0.75, "dpp": 0.5, "ssd": 0.5, "coverage": 0.5, "gist": 0.25}, 0, 1,
    ),
    Parameter("lambda_b", "Weight of relevance against the bias", "number", "query", WEIGHTED, 0.95, 0, 1),
    Parameter("groups", "Group of each item", "values", "item"),
    Parameter("query_groups", "Group of each query, whose items it does not get", "values", "query"),
    Parameter("max_per_group", "The most picks of one group", "count", "call", _ONE_BY_ONE, None, 1, by_group=True),
    Parameter(
        "min_per_group", "The least picks of each group that has the items", "count", "call", _ONE_BY_ONE, None, 1,
        everywhere=False, by_group=True,
    ),
    Parameter("initial", "Ids already shown: never picked, and picks are unlike them", "ids", "query", _ONE_BY_ONE),
    Parameter("allowed", "The only ids that may be picked", "ids", "query"),
    Parameter("exclude", "Ids that must not be picked", "ids", "query"),
    Parameter("costs", "Cost of each item", "values", "item", _ONE_BY_ONE),
    Parameter(
        "budget", "The most that the picks of a query cost together, by the costs of items", "number", "query",
        _ONE_BY_ONE, None, 0, everywhere=False,
    ),
    Parameter(
        "max_similarity", "The largest similarity of a pick to an earlier one", "number", "query", _ONE_BY_ONE, None,
        -1, 1, everywhere=False,
    ),
    Parameter(
        "min_relevance", "The least relevance of a pick, before it is rescaled; items of less are left out", "number",
        "query", low=-_LARGEST, high=_LARGEST, everywhere=False,
    ),
    Parameter(
        "nearest", "Whether the result says which earlier pick each is most similar to", "flag", default=False
    ),
    Parameter("quality", "Quality of each item, instead of that by z-scores", "values", "item", ("dpp",), "zscore"),
    Parameter("scale", "Weight of the z-scores", "number", "call", ("dpp",), 1.0, 0),
    Parameter("noise", "Variance of an observation", "number", "call", ("sift",), 0.01, 0, above=True),
    Parameter("min_gain", "The least by which a pick lowers the variance", "number", "call", ("sift",), 0.0, 0),
    Parameter("kind", "Measure of coverage", "choice", "call", ("coverage",), "facility", choices=KINDS),
    Parameter("aspects", "What is to be covered, else the items", "vectors", "aspect", ("coverage",)),
    Parameter("weights", "Weight of each aspect", "values", "aspect", ("coverage",), low=0),
    Parameter(
        "gamma", "Weight of the volume; exponent of coverage's kind cover", "number", "call", ("ssd", "coverage"),
        {"ssd": 1.0, "coverage": 0.5}, 0, {"coverage": 1}, above=True,
    ),
    Parameter("window", "How many of the last picks count, else all", "count", "call", ("dpp", "ssd"), None, 1),
    Parameter("density", "Whether the largest value per cost is picked", "flag", "call", ("coverage",), False),
    Parameter("eps", "Step of the distances that are tried", "number", "call", ("gist",), 0.1, 0, 1, above=True),
    Parameter("metric", "Similarity of vectors", "choice", default="cosine", choices=("cosine", "dot")),
)  # fmt: skip
# What a corpus whose rows have times takes beside these; a function gets what `decayed` returns as relevance.
RECENCY = (
    Parameter(
        "half_life", "Seconds after which an item keeps half of its relevance, by the times of the corpus", "number",
        low=0, above=True,
    ),
    Parameter(
        "now", "The time, in seconds since 1970, at which items have their age", "number",
        low=-times.MOST, high=times.MOST,
    ),
    Parameter("decay", "How relevance falls with the age", "choice", default="exp", choices=DECAYS),
    Parameter("decay_floor", "The least share of relevance that an item keeps", "number", default=0.0, low=0, high=1),
)  # fmt: skip
BY_NAME = {parameter.name: parameter for parameter in (*TABLE, *RECENCY)}
# What one number, word or flag says, for all queries of a call: what jobs and the command line take beside files.
SCALARS = tuple(each for each in (*TABLE, *RECENCY) if each.kind in ("number", "count", "choice", "flag"))
# Of these, what a mapping may say of single groups. Its names are text in JSON and on command lines.
BY_GROUP = tuple(each.name for each in SCALARS if each.by_group)
# Of these, limits: with one of them fewer than k items may be picked though there are more.
LIMITS = tuple(each.name for each in SCALARS if each.default is None and each.rules in _OF_ALL and each in TABLE)
# What asks for more of the result, and changes no pick.
OF_RESULT = ("nearest",)
# What a backend may lack; a certificate is asked for by pools alone.
NOT_EVERYWHERE = (*(parameter.name for parameter in TABLE if not parameter.everywhere), "outside")
ONE_BY_ONE = tuple(parameter.name for parameter in TABLE if parameter.rules is _ONE_BY_ONE)
# What a rule has beyond the arguments of all rules.
OF_RULES = tuple(parameter for parameter in TABLE if parameter.rules not in _OF_ALL)
OWN = {rule: tuple(each.name for each in OF_RULES if rule in each.rules) for rule in RULES}
DEFAULTS = {rule: {each.name: each.default_of(rule) for each in OF_RULES if rule in each.rules} for rule in RULES}
# Of these, what is one number, word or flag of a call, which travels anywhere.
OPTIONS = tuple(parameter for parameter in OF_RULES if parameter.of == "call")
