"""The report in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from .examples import RULE, Example
from .settings import TOP
from .words import Report, mark


def page(report: Report) -> str:
    """Return the page; its plot is ``curve.png`` beside it."""
    parts = [f"# {report.title}", report.about, report.advice.words, report.advice.rule]
    parts += ["## The trade-off", f"![{report.caption}](curve.png)"]
    parts += ["## What each method picks", *report.before_table, _means(report)]
    parts += ["## Against top-k", report.before_differences, _differences(report)]
    if report.examples:
        parts += ["## Examples", f"{RULE} {report.example_marks}".strip()]
        parts += [_example(example) for example in report.examples]
    for section in report.sections:
        parts += [f"## {section.title}", *section.texts]
        if section.rows:
            parts.append(_table(section.header, section.rows, numbers=section.numbers))
        if section.notes:
            parts.append("\n".join(f"- {note}" for note in section.notes))
    return "\n\n".join(parts) + "\n"


def _means(report: Report) -> str:
    rows = []
    for setting in report.settings:
        found = report.figures[setting.name]
        cells = [m.shown(found[m.name].mean.mean) if m.name in found else "–" for m in report.columns]
        chosen = setting.name == report.advice.setting
        rows.append([f"**{setting.label}**" if chosen else setting.label, *cells])
    return _table(["method", *(measure.label for measure in report.columns)], rows)


def _differences(report: Report) -> str:
    rows = []
    for setting in report.settings:
        if setting.name == TOP:
            continue
        cells = []
        for measure in report.comparable:
            figure = report.figures[setting.name].get(measure.name)
            if figure is None:
                cells.append("–")
                continue
            low, mean, high = (
                measure.shown(value, signed=True)
                for value in (figure.difference.low, figure.difference.mean, figure.difference.high)
            )
            cells.append(mean if mean == "–" else f"{mean} [{low}, {high}] {mark(figure, measure)}".strip())
        rows.append([setting.label, *cells])
    return _table(["method", *(measure.label for measure in report.comparable)], rows)


def _example(example: Example) -> str:
    head = f"**{_plain(example.name)}**" + (f": {_plain(example.text)}" if example.text else "")
    lines = [head, ""]
    for label, picks in example.picks.items():
        lines.append(f"- {label}")
        for number, pick in enumerate(picks, 1):
            marks = (" \\*" if pick.new else "") + (" ✓" if pick.relevant else "")
            text = f" {_plain(pick.text)}" if pick.text else ""
            lines.append(f"    {number}. {_plain(pick.name)}{marks}{text}")
    return "\n".join(lines)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = True) -> str:
    rule = ["---", *["---:" if numbers else "---"] * (len(header) - 1)]
    lines = [header, rule, *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _plain(text: str) -> str:
    """Return text that Markdown leaves as it is."""
    for sign in "\\`*_[]<>#|":
        text = text.replace(sign, f"\\{sign}")
    return text
