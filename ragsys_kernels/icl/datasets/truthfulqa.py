"""TruthfulQA: questions with correct and incorrect answers."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from itertools import accumulate
from operator import itemgetter
from typing import Any, Literal, NamedTuple

import numpy as np

from ..._base.types import NDArray as Array
from ..._base.types import PathLike
from ._files import File, Hub, read

_FILE = "truthfulqa/TruthfulQA_v1.csv"
_COLUMNS = ("Question", "Best Answer", "Correct Answers", "Incorrect Answers")
_HUB_COLUMNS = ("question", "best_answer", "correct_answers", "incorrect_answers")
_HUB = Hub("truthfulqa/truthful_qa", "generation", ("validation",), _HUB_COLUMNS)

_Entry = tuple[str, str, list[str], list[str]]  # question, best answer, correct answers, incorrect answers


class TruthfulQA(NamedTuple):
    """Q questions with A answers end to end, a question's correct ones first."""

    questions: list[str]
    answers: list[str]
    is_correct: Array  # (A,) bool
    cu_questions: Array  # (Q + 1,) int64; answers cu_questions[q] to cu_questions[q + 1] are those of question q
    best: Array  # (Q,) int64, position among all answers of the one that TruthfulQA calls the best
    source: dict[str, str]  # file or data set: sha256 of its content, or "" where it was fetched

    @property
    def pairs(self) -> tuple[Array, Array]:
        """Question and answer of each correct answer: (N,) positions each."""
        owners = np.repeat(np.arange(len(self.questions)), np.diff(self.cu_questions))
        return owners[self.is_correct], np.flatnonzero(self.is_correct)

    def answers_to(self, question: int) -> list[str]:
        begin, end = self.cu_questions[question : question + 2]
        return self.answers[begin:end]

    @property
    def triplets(self) -> int:
        """Number of (question, correct answer, incorrect answer)."""
        correct = np.add.reduceat(self.is_correct.astype(np.int64), self.cu_questions[:-1])
        return int((correct * (np.diff(self.cu_questions) - correct)).sum())


def truthfulqa(which: Literal["clean", "paper"] = "clean", folder: PathLike | None = None) -> TruthfulQA:
    """Return the 817 questions of TruthfulQA (first published version 1, of October 2021).

    The file has the answers of a question as one text, separated by semicolons. "paper" splits it and keeps every
    piece, which gives the numbers that RAGSys prints: 2,846 correct answers and 12,485 triplets (question, correct,
    incorrect); 24 of these answers are empty, and a few repeat another. "clean" leaves those out: 2,837 and 12,352.

    Parameters
    ----------
    which : {"clean", "paper"}
    folder : path, optional
        Holds ``truthfulqa/TruthfulQA_v1.csv``, as it is or with ``.gz``. Default: `data_folder`. Where the folder lacks
        it, "clean" is fetched with the package ``datasets``; that copy has the answers split already, without empty
        ones, so it cannot serve for "paper".

    Raises
    ------
    FileNotFoundError
        The set is missing; the message says what to pass.
    ValueError
        A row without a question or without both kinds of answers, or whose best answer is not among the correct ones.
    """
    if which not in ("clean", "paper"):
        raise ValueError(f"truthfulqa: which must be clean or paper, got {which!r}")
    clean = which == "clean"

    def of_file(file: File) -> Iterator[_Entry]:
        return _entries(_rows(file), clean, file.path)

    def of_hub(rows: list[Any]) -> Iterator[_Entry]:
        return _entries(map(itemgetter(*_HUB_COLUMNS), rows), clean, _HUB.name)

    entries, source = read("truthfulqa", {_FILE: of_file}, folder, _HUB if clean else None, of_hub)
    answers, is_correct, bests = list[str](), list[bool](), []
    for _, best, correct, incorrect in entries:
        bests.append(len(answers) + correct.index(best))
        answers += [*correct, *incorrect]
        is_correct += [True] * len(correct) + [False] * len(incorrect)
    sizes = (len(correct) + len(incorrect) for *_, correct, incorrect in entries)
    cu_questions = np.array([0, *accumulate(sizes)], np.int64)
    questions = [question for question, *_ in entries]
    return TruthfulQA(questions, answers, np.array(is_correct), cu_questions, np.array(bests, np.int64), source)


def _rows(file: File) -> Iterator[_Entry]:
    for number, row in enumerate(csv.DictReader(io.StringIO(file.text, newline="")), 2):
        values = [row.get(name) for name in _COLUMNS]
        if None in values:
            lacking = _COLUMNS[values.index(None)]
            raise ValueError(f"data must hold the column {lacking!r}, got none in row {number} of {file.path}")
        question, best, correct, incorrect = map(str, values)
        yield question, best, correct.split(";"), incorrect.split(";")


def _entries(rows: Iterable[_Entry], clean: bool, place: object) -> Iterator[_Entry]:
    """Yield rows without white space around their texts; `clean` leaves out empty answers and those given twice."""
    number = 1
    for number, (question, best, *kinds) in enumerate(rows, 2):
        correct, incorrect = ([answer.strip() for answer in some] for some in kinds)
        if clean:
            correct, incorrect = (list(dict.fromkeys(filter(None, some))) for some in (correct, incorrect))
        if not question.strip() or not any(correct) or not any(incorrect):
            raise ValueError(f"data must hold a question with both kinds of answers, got row {number} of {place}")
        if best.strip() not in correct:
            raise ValueError(f"data must hold the best answer among the correct ones, got row {number} of {place}")
        yield question.strip(), best.strip(), correct, incorrect
    if number == 1:
        raise ValueError(f"data must hold questions, got none in {place}")
