"""What a comparison came to."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from .._base.types import NDArray as Array
from . import table
from .advice import Advice
from .curve import Curve
from .examples import Example
from .measures import MEASURES, Measure
from .peers import Peer
from .problem import Problem
from .settings import Setting
from .sizes import Sizes
from .table import Figures

_IN_TEXT = ("relevance", "similarity", "sum", "near_duplicates", "ndcg", "alpha_ndcg", "recall", "overlap", "time")


@dataclass(frozen=True)
class Comparison:
    """What methods do to the picks of the same queries out of the same pools; as text a table and the recommendation.

    Attributes
    ----------
    settings : tuple of Setting
        The methods: ``name``, ``label``, ``rule`` and ``arguments``.
    query_ids : list of str
        The queries that took part, Q of them.
    indices : dict of str to (Q, K) int64
        The picks of each method, by its name.
    values : dict of str to dict of str to (Q,) float64
        The measures of each method, one value a query.
    figures : dict of str to dict of str to Figure
        Their means and the differences from top-k, with intervals.
    advice : Advice
        ``setting``, the name of the method to take, ``words`` and ``rule``.
    curve : Curve
        MMR at every λ_d: ``ends`` (B,) float64 and ``values``, the means of measures up to each end.
    sizes : Sizes, or None
        How often picks out of pools of some sizes are those of the whole corpus.
    peers : list of Peer
        Calls of other libraries on the same pools, with times in µs a query.
    examples : list of Example
    problem : Problem
        What all methods chose from: ``queries``, ``candidates``, ``corpus`` and so on.
    out : path, or None
        The folder of the report.
    """

    title: str
    settings: tuple[Setting, ...]
    query_ids: list[str]
    indices: dict[str, Array]
    values: dict[str, dict[str, Array]]
    figures: Figures
    advice: Advice
    curve: Curve = field(repr=False)
    peers: list[Peer] = field(repr=False)
    sizes: Sizes | None = field(repr=False)
    examples: list[Example] = field(repr=False)
    problem: Problem = field(repr=False)
    samples: int
    level: float
    max_loss: float
    out: Path | None

    @property
    def columns(self) -> list[Measure]:
        """The measures that have values."""
        return table.columns(self.figures)

    @property
    def useful(self) -> str | None:
        """The measure by which picks are useful, with judgements."""
        return table.usefulness(self.figures)

    def __str__(self) -> str:
        shown = [MEASURES[name] for name in _IN_TEXT if any(name in found for found in self.figures.values())]
        rows = [["", *(measure.label for measure in shown)]]
        for setting in self.settings:
            found = self.figures[setting.name]
            rows.append([setting.label, *(m.shown(found[m.name].mean.mean) if m.name in found else "–" for m in shown)])
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
        words = self.advice.words.replace("**", "")
        return "\n".join([*lines, "", words, *([] if self.out is None else ["", f"-> {self.out / 'report.html'}"])])
