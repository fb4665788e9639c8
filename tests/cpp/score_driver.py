"""Runs score_tool on the problems of score_problems.py and judges its answers.

The answers must be the same bytes for any number of threads, and those of a slot the same with other slots beside it or
none. In the repository root: ``PYTHONPATH=.:tests python -m cpp.score_driver --help``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from . import tool
from .score_problems import all_cases, describe, threaded_cases, with_tops

FIELDS = ("ref", "max", "sum", "weighted", "target", "rank", "top", "top columns")
BYTES = (4, 4, 8, 8, 4, 8, 4, 8)  # of an element


class Tool(tool.Tool):
    """A built score_tool."""

    MAGIC = b"RSKSCOR1"

    def answers(self, isa: str, threads: int) -> list[list[bytes]]:
        path = self.folder / f"score_answers-{isa}-{threads}.bin"
        self.run("--isa", isa, "--threads", str(threads), str(self.problems), str(path))
        return tool.fields_of(path.read_bytes(), [len(FIELDS)] * len(self.cases))

    def check(self, isa: str, threads: list[int]) -> None:
        answers = self.answers(isa, threads[0])
        for number, (case, fields) in enumerate(zip(self.cases, answers, strict=True)):
            try:
                with np.errstate(all="ignore"):
                    case.judge(*fields)
            except AssertionError as error:
                raise AssertionError(f"{isa}, problem {number} ({describe(case)}): {error}") from error
        for count in threads[1:]:
            assert self.answers(isa, count) == answers, f"{isa}: {threads[0]} and {count} threads differ"
        self.check_alone(isa, threads[-1], answers)

    def check_alone(self, isa: str, threads: int, answers: list[list[bytes]]) -> None:
        """A slot on its own has the bytes that it has among others."""
        few = [(case, fields) for case, fields in zip(self.cases, answers, strict=True) if len(case.rows) <= 20]
        folder = self.folder / "alone"
        folder.mkdir(exist_ok=True)
        alone = Tool(self.command, folder, [case.slot(len(case.rows) // 2) for case, _ in few])
        for (case, fields), found in zip(few, alone.answers(isa, threads), strict=True):
            j = len(case.rows) // 2
            pairs = slice(*(int(end) for end in case.pair_begin[j : j + 2]))
            for name, field, part, item in zip(FIELDS, fields, found, BYTES, strict=True):
                each = case.top if "top" in name else 1
                end = pairs if name in ("target", "rank") else slice(j * each, (j + 1) * each)
                expected = field[end.start * item : end.stop * item]
                assert part == expected, f"{isa}: {name} of a slot of {describe(case)} differs alone"


def check_neon(objdump: str, binary: str) -> int:
    """Assert that some kernel of each weight type has the 18 vector multiply-adds of a tile."""
    elements = ("float", "rsk::base::f16", "rsk::base::bf16")
    kernel = rf"Widening<({'|'.join(elements)})>"
    return tool.neon_multiply_adds(objdump, binary, kernel, elements, r"\tfmla\tv\d+\.4s, v\d+\.4s, v\d+\.", 18)


def make(command: list[str], folder: Path, only_threaded: bool) -> Tool:
    return Tool(command, folder, with_tops(threaded_cases(np.random.default_rng(0))) if only_threaded else all_cases())


if __name__ == "__main__":
    tool.main(__doc__, make, check_neon)
