"""Runs select_tool on the problems of select_problems.py and judges its answers.

The answers must be the same bytes for any number of threads and with any bounds. In the repository root:
``PYTHONPATH=.:tests python -m cpp.select_driver --help``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from . import tool
from .select_checks import Case, Select
from .select_problems import all_cases, threaded_cases


def judge(cases: Sequence[Case], answers: bytes) -> None:
    found = tool.fields_of(answers, (case.num_fields for case in cases))
    for number, (case, fields) in enumerate(zip(cases, found, strict=True)):
        try:
            case.judge(*fields)
        except AssertionError as error:
            shape = f"{case.problem.op}, {case.problem.rows.data.shape}" if isinstance(case, Select) else ""
            raise AssertionError(f"problem {number} ({type(case).__name__} {shape}): {error}") from error


class Tool(tool.Tool):
    """A built select_tool."""

    MAGIC = b"RSKPROB1"

    def answers(self, isa: str, threads: int, bounds: str = "automatic") -> tuple[bytes, list[int]]:
        """What the tool wrote; the dot products done, the rows read, the products of codes."""
        path = self.folder / f"answers-{isa}-{threads}-{bounds}.bin"
        arguments = ["--isa", isa, "--threads", str(threads), "--bounds", bounds]
        work = self.run(*arguments, str(self.problems), str(path))
        return path.read_bytes(), [int(count) for count in work.split()]

    def check(self, isa: str, threads: list[int]) -> None:
        answers, _ = self.answers(isa, threads[0])
        judge(self.cases, answers)
        for count in threads[1:]:
            assert self.answers(isa, count)[0] == answers, f"{isa}: {threads[0]} and {count} threads answer differently"
        dense, dense_work = self.answers(isa, threads[0], "dense")
        pruned, pruned_work = self.answers(isa, threads[-1], "pruned")
        assert dense == answers, f"{isa}: without bounds it answers differently"
        assert pruned == answers, f"{isa}: pruned, it answers differently"
        assert pruned_work[0] < dense_work[0], f"{isa}: pruned, it works {pruned_work}, dense {dense_work}"
        coded, coded_work = self.answers(isa, threads[-1], "coded")
        assert coded == answers, f"{isa}: with codes it answers differently"
        assert self.answers(isa, threads[-1], "coarse")[0] == answers, f"{isa}: with 4-bit codes it answers differently"
        fewer = coded_work[0] < dense_work[0] and coded_work[1] < dense_work[1] and coded_work[2] > dense_work[2] == 0
        assert fewer, f"{isa}: with codes it works {coded_work}, dense {dense_work}"


def check_neon(objdump: str, binary: str) -> int:
    """Assert that some kernel of each storage type has the eight vector multiply-adds of four rows."""
    kernel = r"(?=.*rsk::base::).*?<(?:rsk::base::)?(float|f16|bf16|i8)[,>]"
    instruction = r"\tfmla\tv\d+\.4s, v\d+\.4s, v\d+\.4s$"
    return tool.neon_multiply_adds(objdump, binary, kernel, ("float", "f16", "bf16", "i8"), instruction, 8)


def make(command: list[str], folder: Path, only_threaded: bool) -> Tool:
    return Tool(command, folder, list(threaded_cases(np.random.default_rng(0))) if only_threaded else all_cases())


if __name__ == "__main__":
    tool.main(__doc__, make, check_neon)
