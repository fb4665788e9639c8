"""The parts of a report that only a comparison has, and the page of HTML: it needs nothing else, in light and dark."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import NamedTuple

from ..reporting.pages import MARKS, Part, Table, document, inline, of_class
from .advice import Advice
from .examples import Example, Pick
from .measures import Measure
from .plot import ON_DARK
from .result import Comparison
from .settings import TOP, Setting
from .table import Figure


def page(title: str, parts: Sequence[Part]) -> str:
    """Return the page of HTML."""
    dark = "; ".join(f"--{family}: {colour}" for family, colour in ON_DARK.items())
    style = "\n" + files(__package__).joinpath("page.css").read_text("utf-8").replace("/* DARK */", dark)
    body = "\n".join(["", f"<h1>{inline(title)}</h1>", *(part.html() for part in parts)])
    return document(title, style, body, '<meta name="viewport" content="width=device-width, initial-scale=1">')


class Recommended(NamedTuple):
    """The recommendation and its rule."""

    advice: Advice

    def markdown(self) -> str:
        return f"{self.advice.words}\n\n{self.advice.rule}"

    def html(self) -> str:
        words, rule = inline(self.advice.words), inline(self.advice.rule)
        return f'<div class="advice"><p>{words}</p>\n<p class="soft">{rule}</p></div>'


class Plain(Table):
    """A table of what is no measure of the methods."""

    def html(self) -> str:
        lines = ("".join(f"<td>{inline(cell)}</td>" for cell in row) for row in self.rows)
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        return _scrolled(self.header, f"<tbody>{body}</tbody>", "" if self.numbers else "plain")


class Measured(NamedTuple):
    """The table of the methods' measures, or of their differences from top-k."""

    found: Comparison
    differences: bool

    @property
    def columns(self) -> list[Measure]:
        """The measures; of differences those of which more or less is better."""
        return [measure for measure in self.found.columns if measure.better or not self.differences]

    @property
    def header(self) -> list[str]:
        return ["method", *(measure.label for measure in self.columns)]

    def markdown(self) -> str:
        rows = []
        for setting in self._settings():
            chosen = setting.name == self.found.advice.setting and not self.differences
            label = f"**{setting.label}**" if chosen else setting.label
            rows.append([label, *(self._text(setting, measure) for measure in self.columns)])
        return Table(self.header, rows).markdown()

    def html(self) -> str:
        rows = []
        for setting in self._settings():
            cells = "".join(self._cell(setting, measure) for measure in self.columns)
            kind = "chosen" if setting.name == self.found.advice.setting else ""
            rows.append(f"<tr{of_class(kind)}><td>{inline(setting.label)}</td>{cells}</tr>")
        return _scrolled(self.header, "\n<tbody>{}</tbody>".format("\n".join(rows)))

    def _settings(self) -> Iterator[Setting]:
        return (setting for setting in self.found.settings if not self.differences or setting.name != TOP)

    def _shown(self, setting: Setting, measure: Measure) -> tuple[str, tuple[str, str], str]:
        """Return a mean, the ends of its interval, and the mark of a difference."""
        figure = self.found.figures[setting.name].get(measure.name)
        if figure is None:
            return "–", ("–", "–"), ""
        interval = figure.difference if self.differences else figure.mean
        mean, low, high = (measure.shown(value, signed=self.differences) for value in interval)
        return mean, (low, high), mark(figure, measure) if self.differences else ""

    def _text(self, setting: Setting, measure: Measure) -> str:
        mean, ends, sign = self._shown(setting, measure)
        return f"{mean} [{', '.join(ends)}] {sign}".strip() if self.differences and mean != "–" else mean

    def _cell(self, setting: Setting, measure: Measure) -> str:
        mean, ends, sign = self._shown(setting, measure)
        below = "" if "–" in ends else f"<small>{', '.join(ends)}</small>"
        return f"<td{of_class(MARKS.get(sign, ''))}>{mean}{sign and f' {sign}'}{below}</td>"


def mark(figure: Figure, measure: Measure) -> str:
    """Return ▲ where a method is certainly better than top-k, ▼ where it is worse; not where the difference that is
    shown is 0."""
    nothing = not set(measure.shown(figure.difference.mean)) & set("123456789")
    return "" if nothing else {1: "▲", -1: "▼"}.get(figure.sign * measure.better, "")


class SideBySide(NamedTuple):
    """A query with the picks of some methods."""

    example: Example

    def markdown(self) -> str:
        name, text, picks = self.example
        lines = [f"**{_escaped(name)}**" + (f": {_escaped(text)}" if text else ""), ""]
        for label, some in picks.items():
            lines.append(f"- {label}")
            for number, pick in enumerate(some, 1):
                marks = (" \\*" if pick.new else "") + (" ✓" if pick.relevant else "")
                lines.append(f"    {number}. {_escaped(pick.name)}{marks}{pick.text and f' {_escaped(pick.text)}'}")
        return "\n".join(lines)

    def html(self) -> str:
        name, text, picks = self.example
        cards = []
        for label, some in picks.items():
            items = "".join(_pick(pick) for pick in some)
            cards.append(f'<div class="card"><b>{inline(label)}</b><ol>{items}</ol></div>')
        return f'<h3>{html.escape(f"{name}: {text}" if text else name)}</h3><div class="cards">{"".join(cards)}</div>'


def _pick(pick: Pick) -> str:
    marks = (" *" if pick.new else "") + (" ✓" if pick.relevant else "")
    text = pick.text and f"<span>{html.escape(pick.text)}</span>"
    return (
        f'<li{of_class("new" if pick.new else "")}><span class="id">{html.escape(pick.name)}{marks}</span>{text}</li>'
    )


def _scrolled(header: Sequence[str], body: str, kind: str = "") -> str:
    head = "".join(f"<th>{inline(cell)}</th>" for cell in header)
    return f'<div class="scroll"><table{of_class(kind)}><thead><tr>{head}</tr></thead>{body}</table></div>'


def _escaped(text: str) -> str:
    """Return text that Markdown leaves as it is."""
    for sign in "\\`*_[]<>#|":
        text = text.replace(sign, f"\\{sign}")
    return text
