"""VRSD's question sets: ARC-DA, OpenBookQA and Puzzle."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from ..._base.types import PathLike
from ._files import Hub, json_lines, read

OPTIONS = " The option can be: "  # between OpenBookQA's question and its options, which ". " joins


class QuestionSet(NamedTuple):
    """Questions, and the items to choose from for each: other questions with their answers."""

    name: str
    title: str
    questions: list[str]
    answers: list[str]
    pool: list[str]  # "question->answer"
    source: dict[str, str]  # file or data set: sha256 of its content, or "" where it was fetched


class _Source(NamedTuple):
    title: str
    files: tuple[str, ...]  # in the data folder; without .gz
    item: Callable[[Any], tuple[str, str]]  # of a line of a file
    hub: Hub | None = None
    hub_item: Callable[[Any], tuple[str, str]] | None = None  # of a row of the hub's data set


def vrsd_set(name: str, folder: PathLike | None = None) -> QuestionSet:
    """Return one of VRSD's sets: "arc-da", "openbookqa" or "puzzle".

    Every item is one string ``question->answer``, in the order train, test, dev. The first fifth of the items are the
    queries, by their text before ``->``; the rest is the pool. ARC-DA's several answers are joined by ". ";
    OpenBookQA's question is ``stem? The option can be: c1. c2. c3. c4``.

    Parameters
    ----------
    name : {"arc-da", "openbookqa", "puzzle"}
    folder : path, optional
        Holds ``arc_da/ARC{train,test,dev}.jsonl``, ``openbookqa/OpenBookQA{train,test,dev}.jsonl`` and
        ``puzzle/puzzle.jsonl``, each as it is or with ``.gz``. Default: `data_folder`. OpenBookQA is fetched with the
        package ``datasets`` where the folder lacks it.

    Raises
    ------
    FileNotFoundError
        The set is missing; the message says what to pass.
    ValueError
        A line that is not an item of the set; the message names file and line.
    """
    if name not in _VRSD:
        raise ValueError(f"set must be one of {', '.join(_VRSD)}, got {name!r}")
    source = _VRSD[name]
    files = dict.fromkeys(source.files, partial(json_lines, "items of the set", source.item))
    items, hashes = read(name, files, folder, source.hub, partial(map, source.hub_item or source.item))
    size = len(items) // 5
    if not size:
        raise ValueError(f"set {name} must have at least 5 items, got {len(items)}")
    # As VRSD's script has it, the query is what comes before the first arrow, which may be one in the question.
    strings = [f"{question}->{answer}" for question, answer in items]
    parts = [text.partition("->") for text in strings[:size]]
    questions, answers = [question for question, _, _ in parts], [answer for _, _, answer in parts]
    return QuestionSet(name, source.title, questions, answers, strings[size:], hashes)


def _arc(line: Any) -> tuple[str, str]:
    return line["question"], ". ".join(line["answers"])


def _openbook(line: Any) -> tuple[str, str]:
    choices = line["question"]["choices"]
    return _options(
        line["question"]["stem"], [choice["text"] for choice in choices], [choice["label"] for choice in choices],
        line["answerKey"],
    )  # fmt: skip


def _openbook_hub(row: Any) -> tuple[str, str]:
    return _options(row["question_stem"], row["choices"]["text"], row["choices"]["label"], row["answerKey"])


def _options(stem: str, texts: list[str], labels: list[str], key: str) -> tuple[str, str]:
    answer = ""
    with suppress(ValueError):
        answer = texts[labels.index(key)]
    return f"{stem}?{OPTIONS}{'. '.join(texts)}", answer


def _puzzle(line: Any) -> tuple[str, str]:
    question, answer = (message["content"] for message in line["messages"][:2])
    return question, answer


_ORDER = ("train", "test", "dev")
_VRSD = {
    "arc-da": _Source("ARC-DA", tuple(f"arc_da/ARC{split}.jsonl" for split in _ORDER), _arc),
    "openbookqa": _Source(
        "OpenBookQA",
        tuple(f"openbookqa/OpenBookQA{split}.jsonl" for split in _ORDER),
        _openbook,
        Hub("allenai/openbookqa", "main", ("train", "test", "validation"), ("question_stem", "choices", "answerKey")),
        _openbook_hub,
    ),
    "puzzle": _Source("Puzzle", ("puzzle/puzzle.jsonl",), _puzzle),
}
VRSD_SETS = tuple(_VRSD)
