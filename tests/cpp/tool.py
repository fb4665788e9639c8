"""What the drivers share: files of problems and answers, a built tool, its disassembly, its command line."""

from __future__ import annotations

import argparse
import re
import shlex
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np


class Writer:
    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def words(self, *values: int) -> None:
        self.parts.append(struct.pack(f"<{len(values)}q", *values))

    def arrays(self, *arrays: np.ndarray | None) -> None:
        for array in arrays:
            data = b"" if array is None else np.ascontiguousarray(array).tobytes()
            self.words(-1 if array is None else len(data))
            self.parts.append(data)


def fields_of(answers: bytes, counts: Iterable[int]) -> list[list[bytes]]:
    """Return the fields that a tool has written, so many for each problem."""
    offset, found = 0, []
    for count in counts:
        fields = []
        for _ in range(count):
            size = struct.unpack_from("<q", answers, offset)[0]
            fields.append(answers[offset + 8 : offset + 8 + size])
            offset += 8 + size
        found.append(fields)
    assert offset == len(answers), "answers to problems that were not asked"
    return found


def strided(elements: np.ndarray, gap: int, between: Any) -> np.ndarray:
    """Return rows `gap` elements apart; a kernel that reads what is between them shows it."""
    rows = np.full((len(elements), elements.shape[1] + gap), between, elements.dtype)[:, : elements.shape[1]]
    rows[:] = elements
    return rows


def stride_of(rows: np.ndarray | None) -> int:
    return 0 if rows is None else rows.strides[0] // rows.itemsize


def memory_of(rows: np.ndarray | None) -> np.ndarray | None:
    """Return all elements of strided rows, with those between them."""
    if rows is None:
        return None
    size = (len(rows) - 1) * stride_of(rows) + rows.shape[1]
    return np.lib.stride_tricks.as_strided(rows, (size,), (rows.itemsize,))


class Tool:
    """A built tool: the command that runs it, its problems and the folder of its files."""

    MAGIC: bytes

    def __init__(self, command: list[str], folder: Path, cases: Sequence[Any]) -> None:
        self.command, self.folder, self.cases = command, folder, cases
        self.problems = folder / f"{self.MAGIC.decode().lower()}.bin"
        out = Writer()
        out.parts.append(self.MAGIC)
        out.words(len(cases))
        for case in cases:
            case.write(out)
        self.problems.write_bytes(b"".join(out.parts))

    def run(self, *arguments: str) -> str:
        done = subprocess.run([*self.command, *arguments], capture_output=True, text=True, timeout=900)
        ended_well = done.returncode == 0 and not done.stderr
        assert ended_well, f"exit status {done.returncode}\n{done.stderr}{done.stdout}"
        return done.stdout

    def isas(self) -> list[str]:
        return self.run("--list").split()

    def check(self, isa: str, threads: list[int]) -> None:
        raise NotImplementedError


def neon_multiply_adds(
    objdump: str, binary: str, kernel: str, elements: Iterable[str], instruction: str, least: int
) -> int:
    """Return how many vector multiply-adds the largest kernels have, one for each storage type.

    The regular expression `kernel` finds the type in the name of a kernel. Each type must have at least `least`.
    """
    listing = subprocess.run([objdump, "-d", "-C", binary], capture_output=True, text=True, check=True).stdout
    most = dict.fromkeys(elements, 0)
    for function in listing.split("\n\n"):
        element = re.search(kernel, function.lstrip().partition("\n")[0])
        if element:
            most[element[1]] = max(most[element[1]], len(re.findall(instruction, function, re.MULTILINE)))
    assert min(most.values()) >= least, f"vector multiply-adds in the largest kernel of each type: {most}"
    return sum(most.values())


def main(
    description: str | None,
    make: Callable[[list[str], Path, bool], Tool],
    check_neon: Callable[[str, str], int],
) -> None:
    """Check a tool as the command line says. `make` builds the Tool, only with the threaded problems if told so."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("tool", help="path of the tool")
    parser.add_argument("--runner", default="", help="command that runs it, such as an emulator")
    parser.add_argument("--threads", default="1,2,7", help="numbers of threads to compare")
    parser.add_argument("--only-threaded", action="store_true", help="only the problems for which threads are started")
    parser.add_argument("--objdump", help="disassembler: assert that the base kernels are NEON")
    options = parser.parse_args()
    try:
        if options.objdump:
            print(f"{options.tool}: {check_neon(options.objdump, options.tool)} NEON multiply-adds")
        tool = make([*shlex.split(options.runner), options.tool], Path(options.tool).parent, options.only_threaded)
        for isa in tool.isas():
            tool.check(isa, [int(count) for count in options.threads.split(",")])
            print(f"{options.tool}: {isa}: {len(tool.cases)} problems, threads {options.threads}: as expected")
    except AssertionError as error:
        sys.exit(f"{Path(options.tool).name}: {error}")
