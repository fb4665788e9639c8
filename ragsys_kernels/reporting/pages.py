"""What a page is made of, each part as Markdown and as HTML; in texts and cells `code` and **bold** are marked."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

MARKS = {"▲": "good", "▼": "bad"}  # classes that a page may give colours


class Part(Protocol):
    """A part of a page."""

    def markdown(self) -> str: ...

    def html(self) -> str: ...


class Text(NamedTuple):
    text: str
    kind: str = ""  # its class

    def markdown(self) -> str:
        return self.text

    def html(self) -> str:
        return f"<p{of_class(self.kind)}>{inline(self.text)}</p>"


class Heading(NamedTuple):
    text: str

    def markdown(self) -> str:
        return f"## {self.text}"

    def html(self) -> str:
        return f"<h2>{inline(self.text)}</h2>"


class Notes(NamedTuple):
    lines: Sequence[str]

    def markdown(self) -> str:
        return "\n".join(f"- {line}" for line in self.lines)

    def html(self) -> str:
        return "<ul>" + "".join(f"<li>{inline(line)}</li>" for line in self.lines) + "</ul>"


class Table(NamedTuple):
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: bool = True  # in all columns but the first

    def markdown(self) -> str:
        lines = [[*self.header], ["---", *["---:" if self.numbers else "---"] * (len(self.header) - 1)], *self.rows]
        return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)

    def html(self) -> str:
        head = "".join(f"<th>{inline(cell)}</th>" for cell in self.header)
        body = "".join("<tr>" + "".join(f"<td>{inline(cell)}</td>" for cell in row) + "</tr>\n" for row in self.rows)
        kind = of_class("" if self.numbers else "text")
        return f"<table{kind}><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"


class Figure(NamedTuple):
    file: str
    caption: str
    svg: str = ""  # that stands in the page of HTML

    def markdown(self) -> str:
        return f"![{self.caption}]({self.file})"

    def html(self) -> str:
        image = self.svg or f'<img src="{html.escape(self.file)}" alt="{html.escape(self.caption)}">'
        return f"<figure>{image}<figcaption>{inline(self.caption)}</figcaption></figure>"


def markdown(title: str, parts: Iterable[Part]) -> str:
    """Return a page in Markdown."""
    return "\n\n".join([f"# {title}", *(part.markdown() for part in parts)]) + "\n"


def document(title: str, style: str, body: str, head: str = "") -> str:
    """Return a page of HTML."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">{head}<title>{html.escape(title)}</title>'
        f"<style>{style}</style></head>\n<body>{body}\n</body></html>\n"
    )


def inline(text: str) -> str:
    """Return text as HTML."""
    escaped = html.escape(text, quote=False)
    escaped = re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped)
    escaped = re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", escaped)
    for sign, kind in MARKS.items():
        escaped = escaped.replace(sign, f'<span class="{kind}">{sign}</span>')
    return escaped


def of_class(kind: str) -> str:
    """Return the attribute of a tag that has a class, nothing without one."""
    return kind and f' class="{kind}"'
