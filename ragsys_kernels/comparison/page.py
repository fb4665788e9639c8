"""The report as one page of HTML that needs nothing else, in light and dark, on a phone and on a desk."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from .examples import RULE, Example, Pick
from .measures import Measure
from .plot import ON_DARK
from .settings import TOP, Setting
from .table import Figure, Figures
from .words import MARKS, Report, mark

_STYLE = """
:root { color-scheme: light dark; --ink: #222; --soft: #5a5a5a; --line: #e2e2e2; --back: #fff; --card: #f6f7f9;
  --good: #176d34; --bad: #a3261f; --accent: #08519c }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e4e4; --soft: #a6a6a6; --line: #3a3d42; --back: #16181b;
  --card: #202327; --good: #6fcf8b; --bad: #ff9a90; --accent: #7db8f0; DARK } }
* { box-sizing: border-box }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--back); margin: 0 auto;
  max-width: 78rem; padding: 1.2rem clamp(.8rem, 3vw, 2rem) 4rem }
h1 { font-size: clamp(1.35rem, 4vw, 1.8rem); line-height: 1.25; margin: .6rem 0 .2rem }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .6rem; padding-bottom: .25rem; border-bottom: 1px solid var(--line) }
h3 { font-size: 1rem; margin: 1.6rem 0 .5rem }
p, li { max-width: 46rem } p { margin: .6rem 0 } .soft, figcaption { color: var(--soft); font-size: .9rem }
.advice { background: var(--card); border-left: 4px solid var(--accent); padding: .7rem 1.1rem; border-radius: 4px;
  max-width: 50rem }
.scroll { overflow-x: auto; margin: 1rem 0; -webkit-overflow-scrolling: touch }
table { border-collapse: separate; border-spacing: 0; font-variant-numeric: tabular-nums; font-size: .9rem }
th, td { padding: .34rem .45rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap;
  vertical-align: top }
thead th { border-bottom: 2px solid var(--soft); vertical-align: bottom; white-space: normal }
tr > :first-child { text-align: left; position: sticky; left: 0; background: var(--back); white-space: normal;
  min-width: 7rem; z-index: 1 }
@media (min-width: 60rem) { tr > :first-child { white-space: nowrap } }
tr.chosen > * { background: var(--card) } tr.chosen > :first-child { font-weight: 600 }
td small { display: block; color: var(--soft); font-size: .76rem }
.good { color: var(--good) } .bad { color: var(--bad) }
.plain th, .plain td { text-align: left; white-space: normal }
figure { margin: 1rem 0; max-width: 46rem } figure svg { width: 100%; height: auto; display: block }
.cards { display: grid; gap: .8rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 15.5rem), 1fr)) }
@media (max-width: 40rem) { .cards { display: flex; overflow-x: auto; scroll-snap-type: x mandatory }
  .card { flex: 0 0 82%; scroll-snap-align: start } }
.card { background: var(--card); border-radius: 6px; padding: .6rem .8rem; min-width: 0 }
.card b { display: block; font-size: .88rem } .card ol { margin: .35rem 0 0; padding-left: 1.35rem; font-size: .86rem }
.card li { margin: .28rem 0; overflow-wrap: anywhere; line-height: 1.4 }
.new::marker { color: var(--accent); font-weight: 700 } .new .id { color: var(--accent) }
.id { font-weight: 600 } .id + span::before { content: " " }
code { background: var(--card); padding: 0 .25em; border-radius: 3px; overflow-wrap: anywhere }
""".replace("DARK", "; ".join(f"--{family}: {colour}" for family, colour in ON_DARK.items()))


def page(report: Report) -> str:
    """Return the page."""
    parts = [f"<h1>{_text(report.title)}</h1>", f'<p class="soft">{_text(report.about)}</p>']
    parts.append(f'<div class="advice"><p>{_text(report.advice.words)}</p>')
    parts.append(f'<p class="soft">{_text(report.advice.rule)}</p></div>')
    parts += [
        "<h2>The trade-off</h2>",
        f"<figure>{report.svg}<figcaption>{_text(report.caption)}</figcaption></figure>",
    ]
    parts += ["<h2>What each method picks</h2>", *(f"<p>{_text(text)}</p>" for text in report.before_table)]
    parts.append(_table(report, differences=False))
    parts += ["<h2>Against top-k</h2>", f"<p>{_text(report.before_differences)}</p>", _table(report, differences=True)]
    if report.examples:
        parts += ["<h2>Examples</h2>", f"<p>{_text(RULE)} {_text(report.example_marks)}</p>"]
        parts += [_example(example) for example in report.examples]
    for section in report.sections:
        parts.append(f"<h2>{_text(section.title)}</h2>")
        parts += [f"<p>{_text(text)}</p>" for text in section.texts]
        if section.rows:
            parts.append(_plain(section.header, section.rows, numbers=section.numbers))
        if section.notes:
            parts.append("<ul>" + "".join(f"<li>{_text(note)}</li>" for note in section.notes) + "</ul>")
    title = html.escape(report.title)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _table(report: Report, *, differences: bool) -> str:
    columns = report.comparable if differences else report.columns
    head = "".join(f"<th>{_text(measure.label)}</th>" for measure in columns)
    rows = []
    for setting in report.settings:
        if differences and setting.name == TOP:
            continue
        cells = "".join(_cell(report.figures, setting, measure, differences) for measure in columns)
        kind = ' class="chosen"' if setting.name == report.advice.setting else ""
        rows.append(f"<tr{kind}><td>{_text(setting.label)}</td>{cells}</tr>")
    body = "\n".join(rows)
    return (
        f'<div class="scroll"><table><thead><tr><th>method</th>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>'
    )


def _cell(figures: Figures, setting: Setting, measure: Measure, differences: bool) -> str:
    figure: Figure | None = figures[setting.name].get(measure.name)
    if figure is None:
        return "<td>–</td>"
    interval = figure.difference if differences else figure.mean
    sign = mark(figure, measure) if differences else ""
    kind = {"▲": ' class="good"', "▼": ' class="bad"'}.get(sign, "")
    value = measure.shown(interval.mean, signed=differences)
    ends = f"{measure.shown(interval.low, signed=differences)}, {measure.shown(interval.high, signed=differences)}"
    ends = "" if "–" in ends.split(", ") else f"<small>{ends}</small>"
    return f"<td{kind}>{value}{sign and ' ' + sign}{ends}</td>"


def _example(example: Example) -> str:
    head = f"{example.name}: {example.text}" if example.text else example.name
    cards = []
    for label, picks in example.picks.items():
        items = "".join(_pick(pick) for pick in picks)
        cards.append(f'<div class="card"><b>{_text(label)}</b><ol>{items}</ol></div>')
    return f'<h3>{html.escape(head)}</h3><div class="cards">{"".join(cards)}</div>'


def _pick(pick: Pick) -> str:
    marks = ("" if not pick.new else " *") + (" ✓" if pick.relevant else "")
    text = f"<span>{html.escape(pick.text)}</span>" if pick.text else ""
    kind = ' class="new"' if pick.new else ""
    return f'<li{kind}><span class="id">{html.escape(pick.name)}{marks}</span>{text}</li>'


def _plain(header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool) -> str:
    head = "".join(f"<th>{_text(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    kind = "" if numbers else ' class="plain"'
    return f'<div class="scroll"><table{kind}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _text(text: str) -> str:
    """Return text with `code` and **bold** as Markdown marks them."""
    escaped = html.escape(text, quote=False)
    escaped = re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped)
    escaped = re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", escaped)
    for sign, kind in MARKS.items():
        escaped = escaped.replace(sign, f'<span class="{kind}">{sign}</span>')
    return escaped
