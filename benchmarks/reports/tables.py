"""Tables in Markdown, and how numbers read in them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.harness.contender import OURS
from benchmarks.reports.runs import Race


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], texts: Sequence[int] = (0,), tight: bool = False
) -> str:
    """Return a table; ``texts``: the columns that are no numbers, ``tight``: no spaces in the line below the header."""
    rule = ["---" if column in texts else "---:" for column in range(len(header))]
    lines = ["| " + " | ".join(cells) + " |" for cells in (header, rule, *rows)]
    if tight:
        lines[1] = lines[1].replace(" ", "")
    return "\n".join(lines)


def write(path: Path, title: str, about: str, *parts: str) -> None:
    """Write a page: title, a paragraph that is broken into lines, the parts below each other."""
    text = "\n\n".join([f"# {title}", textwrap.fill(about, 120, break_on_hyphens=False), *parts])
    path.write_text(text + "\n", encoding="utf-8")


def wanted(limit: str, at_least: bool) -> str:
    """Return what a bar asks for."""
    return f"{'≥' if at_least else '≤'} {limit}"


def met(value: float, limit: float, at_least: bool) -> str:
    """Return whether a value meets a bar."""
    return "yes" if (value >= limit if at_least else value <= limit) else "**no**"


def micros(value: float) -> str:
    """Return microseconds with three digits or more."""
    if np.isnan(value):
        return ""
    return f"{value:.1f}" if value < 99.5 else f"{value:,.0f}"


def factor(value: float) -> str:
    """Return how many times, with three digits or fewer."""
    return f"{value:.2f}" if value < 2 else f"{value:.1f}" if value < 20 else f"{value:,.0f}"


def count(value: float) -> str:
    """Return a number of three digits with its unit: 1234567 is 1.23 M."""
    for unit, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"


def time(race: Race, contender: str, dtype: str = "float32") -> str:
    """Return a contender's microseconds a query, nothing where it was not measured."""
    return micros(race.number("us_per_query", contender, dtype))


def compared(race: Race, contender: str, over: str = OURS) -> str:
    """Return a contender's microseconds a query, and in brackets its time over that of another."""
    found = time(race, contender)
    return found and f"{found} ({factor(race.ratio(contender, over))}x)"


def faster(race: Race, contender: str, than: str) -> str:
    """Return a contender's microseconds a query, and in brackets how many times as long another takes."""
    return f"{time(race, contender)} ({factor(race.ratio(than, contender))}x)"
