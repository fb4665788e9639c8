"""What a report says, whatever it is written in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .advice import Advice
from .examples import Example
from .measures import Measure
from .settings import Setting
from .table import Figure, Figures

MARKS = {"▲": "good", "▼": "bad"}


@dataclass(frozen=True)
class Section:
    """A part of the report that all formats write alike."""

    title: str
    texts: Sequence[str] = ()
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()
    numbers: bool = True  # in all columns but the first


@dataclass(frozen=True)
class Report:
    """A report; in texts `code` and **bold** are marked as in Markdown."""

    title: str
    about: str
    advice: Advice
    settings: Sequence[Setting]
    columns: Sequence[Measure]
    figures: Figures
    before_table: Sequence[str]
    before_differences: str
    caption: str
    svg: str
    examples: Sequence[Example] = ()
    example_marks: str = ""
    sections: Sequence[Section] = field(default_factory=tuple)

    @property
    def comparable(self) -> list[Measure]:
        """The columns of which more or less is better."""
        return [measure for measure in self.columns if measure.better]


def mark(figure: Figure, measure: Measure) -> str:
    """Return ▲ where a method is certainly better than top-k, ▼ where it is worse; not where the difference that is
    shown is 0."""
    nothing = not set(measure.shown(figure.difference.mean)) & set("123456789")
    return "" if nothing else {1: "▲", -1: "▼"}.get(figure.sign * measure.better, "")
