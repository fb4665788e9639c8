"""Prompt templates as data: an instruction, demonstrations, and the query that the model continues."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from string import Formatter
from typing import Any

from .._base.types import PathLike


@dataclass(frozen=True)
class PromptTemplate:
    """The form of a prompt and of what is scored after it.

    The prompt is the instruction, the demonstrations in the order given, and the query, joined by `separator`; without
    an instruction it begins with the first demonstration. Each text has fields in braces, ``{question}``; braces of the
    text itself are doubled. Values stand as they are, braces too.

    Parameters
    ----------
    demonstration : str
        One demonstration.
    query : str
        What the model continues. Without white space at its end: tokens have theirs in front.
    continuation : str
        What is scored after the query.
    instruction : str
        Without fields.
    separator : str

    Examples
    --------
    >>> QA.prompt({"question": "Is ice cold?"}, [{"question": "Is fire hot?", "answer": "Yes"}])
    'Q: Is fire hot?\\nA: Yes\\n\\nQ: Is ice cold?\\nA:'
    >>> QA.answer({"answer": "Yes"})
    ' Yes'
    """

    demonstration: str
    query: str
    continuation: str
    instruction: str = ""
    separator: str = "\n\n"

    def __post_init__(self) -> None:
        for field in fields(self):
            text = getattr(self, field.name)
            if not isinstance(text, str):
                raise TypeError(f"PromptTemplate: {field.name} must be a str, got {type(text).__name__}")
        for name in ("demonstration", "query", "continuation"):
            if not _names(name, getattr(self, name)):
                raise ValueError(f"PromptTemplate: {name} must have a field in braces, got {getattr(self, name)!r}")
        if self.query != self.query.rstrip():
            raise ValueError(f"PromptTemplate: query must end without white space, got {self.query!r}")

    def prompt(self, query: Mapping[str, str], demonstrations: Sequence[Mapping[str, str]] = ()) -> str:
        """Return the text before the continuation.

        Raises
        ------
        ValueError, TypeError
            A field without a value, a value that is no string.
        """
        parts = [self.instruction] if self.instruction else []
        parts += [_filled("demonstration", self.demonstration, values) for values in demonstrations]
        return self.separator.join([*parts, _filled("query", self.query, query)])

    def answer(self, values: Mapping[str, str]) -> str:
        """Return the text to score after the prompt."""
        return _filled("continuation", self.continuation, values)

    @classmethod
    def from_file(cls, path: PathLike) -> PromptTemplate:
        """Read the fields from a ``.json`` or ``.toml`` file (TOML needs Python 3.11).

        Raises
        ------
        OSError, ValueError, TypeError
            There is no such file, or it does not hold a template.
        """
        values = read_table("PromptTemplate", path)
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(values) - set(known))
        missing = [name for name in known[:3] if name not in values]
        if unknown or missing:
            problem = f"the unknown {unknown[0]!r}" if unknown else f"no {missing[0]!r}"
            raise ValueError(f"PromptTemplate: file must have {', '.join(known)}, got {problem} in {path}")
        return cls(**values)


def read_table(op: str, path: PathLike) -> dict[str, Any]:
    """Return the content of a ``.json`` or ``.toml`` file whose top is a table."""
    file = Path(path)
    kind = file.suffix.lower()
    if kind not in (".json", ".toml"):
        raise ValueError(f"{op}: file must be .json or .toml, got {file}")
    try:
        text = file.read_text("utf-8")
        if kind == ".json":
            values = json.loads(text)
        elif sys.version_info >= (3, 11):
            import tomllib

            values = tomllib.loads(text)
        else:
            raise ValueError("TOML needs Python 3.11")
    except ValueError as error:
        raise ValueError(f"{op}: file must be readable as {kind[1:].upper()}, got {file}: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{op}: file must hold a table, got {type(values).__name__} in {file}")
    return values


def _names(name: str, text: str) -> list[str]:
    """Return the fields of a text; each must be a plain name."""
    try:
        parts = [part for part in Formatter().parse(text) if part[1] is not None]
    except ValueError as error:
        raise ValueError(f"PromptTemplate: {name} must have fields in braces, got {text!r}: {error}") from None
    for _, field, form, conversion in parts:
        if not str(field).isidentifier() or form or conversion:
            raise ValueError(f"PromptTemplate: {name} must name its fields plainly, got {field!r} in {text!r}")
    return [str(part[1]) for part in parts]


def _filled(name: str, text: str, values: Mapping[str, str]) -> str:
    for field in _names(name, text):
        if field not in values:
            raise ValueError(f"prompt: {name} must have a value for {field!r}, got {', '.join(values) or 'none'}")
        if not isinstance(values[field], str):
            raise TypeError(f"prompt: {field} must be a str, got {type(values[field]).__name__}")
    return text.format_map(values)


# TruthfulQA's form, which RAGSys uses.
QA = PromptTemplate("Q: {question}\nA: {answer}", "Q: {question}\nA:", " {answer}")
# Texts with labels in words (adaptive in-context learning).
CLASSIFICATION = PromptTemplate("Text: {text}\nLabel: {label}", "Text: {text}\nLabel:", " {label}")
# Passages before the text that they help to continue (In-Context RALM); title and text on a line each.
DOCUMENTS = PromptTemplate("{title}\n{text}", "{prefix}", "{target}", separator="\n")
TEMPLATES = {"qa": QA, "classification": CLASSIFICATION, "documents": DOCUMENTS}
