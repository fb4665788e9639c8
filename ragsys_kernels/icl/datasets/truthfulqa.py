"""TruthfulQA: questions with correct and incorrect answers."""

from __future__ import annotations

import csv
import io
from itertools import accumulate
from typing import Any, Literal, NamedTuple

import numpy as np

from ..._base.types import NDArray as Array
from ..._base.types import PathLike
from ._files import File, Hub, read

_FILE = "truthfulqa/TruthfulQA_v1.csv"
_COLUMNS = ("Question", "Best Answer", "Correct Answers", "Incorrect Answers")
_HUB_COLUMNS = ("question", "best_answer", "correct_answers", "incorrect_answers")
_HUB = Hub("truthfulqa/truthful_qa", "generation", ("validation",), _HUB_COLUMNS)


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
    found = read("truthfulqa", (_FILE,), folder, _HUB if which == "clean" else None)
    rows: list[tuple[str, str, list[str], list[str]]] = []
    if isinstance(found[0], File):
        place, source = str(found[0].path), {found[0].path.name: found[0].sha256}
        for number, row in enumerate(csv.DictReader(io.StringIO(found[0].text, newline="")), 2):
            values = [row.get(name) for name in _COLUMNS]
            if None in values:
                lacking = _COLUMNS[values.index(None)]
                raise ValueError(f"data must hold the column {lacking!r}, got none in row {number} of {place}")
            question, best, correct, incorrect = map(str, values)
            rows.append((question, best, correct.split(";"), incorrect.split(";")))
    else:
        place, source = _HUB.name, {_HUB.name: ""}
        columns: list[list[Any]] = [[row[name] for row in found] for name in _HUB_COLUMNS]  # type: ignore[call-overload]
        rows = list(zip(*columns, strict=True))
    if not rows:
        raise ValueError(f"data must hold questions, got none in {place}")
    return _laid_out(rows, which == "clean", place, source)


def _laid_out(
    rows: list[tuple[str, str, list[str], list[str]]], clean: bool, place: str, source: dict[str, str]
) -> TruthfulQA:
    questions, answers, is_correct, sizes, bests = [], list[str](), list[bool](), [], []
    for number, (question, best, *kinds) in enumerate(rows, 2):
        correct, incorrect = ([answer.strip() for answer in some] for some in kinds)
        if clean:
            correct, incorrect = (list(dict.fromkeys(filter(None, some))) for some in (correct, incorrect))
        if not question.strip() or not any(correct) or not any(incorrect):
            raise ValueError(f"data must hold a question with both kinds of answers, got row {number} of {place}")
        if best.strip() not in correct:
            raise ValueError(f"data must hold the best answer among the correct ones, got row {number} of {place}")
        bests.append(len(answers) + correct.index(best.strip()))
        questions.append(question.strip())
        answers += [*correct, *incorrect]
        is_correct += [True] * len(correct) + [False] * len(incorrect)
        sizes.append(len(correct) + len(incorrect))
    cu_questions = np.array([0, *accumulate(sizes)], np.int64)
    return TruthfulQA(questions, answers, np.array(is_correct), cu_questions, np.array(bests, np.int64), source)
