"""BoolQ's validation questions and their Wikipedia passages, which are a collection to retrieve from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from ..._base.types import PathLike
from ._files import Hub, json_lines, read


class Passage(NamedTuple):
    """A piece of an article, "" its title where that is not known."""

    title: str
    text: str

    @property
    def document(self) -> str:
        """As it is put before a text: the title, if any, on a line of its own."""
        return f"{self.title}\n{self.text}" if self.title else self.text


class BoolQ(NamedTuple):
    """Q questions that are answered by yes or no, and the collection of their distinct passages."""

    questions: list[str]  # as they are: in lower case, without a question mark
    answers: list[bool]
    own: list[int]  # position of each question's passage in the collection
    passages: list[Passage]
    source: dict[str, str]  # file or data set: sha256 of its content, or "" where it was fetched


def boolq_passages(folder: PathLike | None = None) -> tuple[list[Passage], dict[str, str]]:
    """Return the distinct Wikipedia passages of BoolQ's validation questions in their order, and their source.

    Parameters
    ----------
    folder : path, optional
        Holds ``boolq/BoolQdev.jsonl``, as it is or with ``.gz``. Default: `data_folder`. Fetched with the package
        ``datasets`` where it lacks, without titles.

    Raises
    ------
    FileNotFoundError, ValueError
        Those of `wikitext`.
    """
    items, source = _items(folder, {"passage": str}, "passages with titles")
    return list(_positions(items)), source


def boolq_questions(folder: PathLike | None = None) -> BoolQ:
    """Return BoolQ's validation questions with their answers, and where each one's passage is in `boolq_passages`.

    Parameters
    ----------
    folder : path, optional
        See `boolq_passages`.

    Raises
    ------
    FileNotFoundError, ValueError
        Those of `wikitext`.
    """
    columns = {"question": str, "answer": bool, "passage": str}
    items, source = _items(folder, columns, "questions, answers that are true or false, and passages with titles")
    places = _positions(items)
    return BoolQ(
        [item["question"] for item in items],
        [item["answer"] for item in items],
        [places[_passage(item)] for item in items],
        list(places),
        source,
    )


def _passage(item: Mapping[str, Any]) -> Passage:
    return Passage(item.get("title", ""), item["passage"])


def _positions(items: Iterable[Mapping[str, Any]]) -> dict[Passage, int]:
    return {passage: place for place, passage in enumerate(dict.fromkeys(map(_passage, items)))}


def _items(folder: PathLike | None, columns: Mapping[str, type], what: str) -> tuple[list[Any], dict[str, str]]:
    hub = Hub("google/boolq", None, ("validation",), tuple(columns))

    def checked(item: Any) -> Any:
        for name, kind in {"title": str, **columns}.items():
            if not isinstance(item[name], kind):
                raise TypeError(f"{name} is of {type(item[name]).__name__}")
        return item

    return read("boolq", {"boolq/BoolQdev.jsonl": partial(json_lines, what, checked)}, folder, hub)
