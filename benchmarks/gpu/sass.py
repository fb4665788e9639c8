"""Warp instructions in NVIDIA machine code: those of each loop, and those of none."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_LINE = re.compile(r"^\s*(?:(\.L_x_\w+):|/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*))")
_ENCODED = re.compile(r"^\s*/\* 0x([0-9a-f]{16}) \*/")  # the second half of an instruction, below it


class Instruction(NamedTuple):
    name: str
    operands: str
    control: int | None  # how the compiler schedules it (`chain.py`); None: the listing has no encodings


class Loop(NamedTuple):
    """Instructions ``first`` to ``last`` of a kernel, run again and again; ``outer`` loops are around it."""

    first: int
    last: int
    outer: tuple[int, ...]
    own: tuple[str, ...]  # the instructions of no inner loop, by name
    places: tuple[int, ...]  # where they are


def loops(sass: str) -> tuple[tuple[str, ...], list[Loop]]:
    """Return the instructions outside of all loops of one kernel, and its loops in the order of their beginnings.

    ``sass`` is what `nvdisasm -c` prints of it. A loop goes from a label to the last branch back to it.
    """
    names, branches = listed(sass)
    ends: dict[int, int] = {}
    for at, target in branches:
        if target < at:
            ends[target] = max(at, ends.get(target, 0))
    return _divided(names, ends.items())


def parts(sass: str) -> tuple[tuple[str, ...], list[Loop]]:
    """Return the same, where what a branch skips counts as a loop too if it has matrix instructions of its own.

    In a kernel without loops it does if it has LONG instructions or more. Such a stretch runs as often as it is not
    skipped.
    """
    names, branches = listed(sass)
    _, found = loops(sass)
    spans = {(loop.first, loop.last) for loop in found}
    for at, target in branches:
        first, last = at + 1, target - 1
        inside = [loop for loop in found if first <= loop.first and loop.last <= last]
        within = [i for i in range(first, target) if not any(loop.first <= i <= loop.last for loop in inside)]
        around = [loop for loop in found if loop.first <= at <= loop.last]
        counts = any(MATRIX.search(names[i]) for i in within) if found else len(within) >= LONG
        if counts and all(last <= loop.last for loop in around):
            spans.add((first, last))
    return _divided(names, spans)


LONG = 64
MATRIX = re.compile("^(HMMA|HGMMA|IMMA|IGMMA|UTC\\w*MMA)")


def listed(sass: str) -> tuple[list[str], list[tuple[int, int]]]:
    """Return the instructions of a kernel by name, and its branches: which instruction goes to which."""
    found, branches = _read(sass)
    return [one.name for one in found], branches


def instructions(sass: str) -> list[Instruction]:
    """Return the instructions of a kernel."""
    return _read(sass)[0]


def _read(sass: str) -> tuple[list[Instruction], list[tuple[int, int]]]:
    read: list[Instruction] = []
    labels: dict[str, int] = {}
    branches: list[tuple[int, str]] = []
    for line in sass.splitlines():
        found = _LINE.match(line)
        if found is None:
            encoded = _ENCODED.match(line)
            if encoded and read:
                read[-1] = read[-1]._replace(control=int(encoded[1], 16) >> 41)
            continue
        if found[1]:
            labels[found[1]] = len(read)
            continue
        target = re.search(r"\.L_x_\w+", found[3]) if found[2].startswith("BRA") else None
        if target:
            branches.append((len(read), target[0]))
        read.append(Instruction(found[2], found[3].strip(), None))
    return read, [(at, labels.get(label, at)) for at, label in branches]


def _divided(names: Sequence[str], among: Iterable[tuple[int, int]]) -> tuple[tuple[str, ...], list[Loop]]:
    """Return the instructions of no span, and for each span those of no inner one."""
    spans = sorted(among, key=lambda span: (span[0], -span[1]))
    of = [-1] * len(names)  # the innermost span of each instruction
    outer: list[tuple[int, ...]] = []
    for number, (first, last) in enumerate(spans):
        outer.append(tuple(i for i, (begin, end) in enumerate(spans[:number]) if begin <= first and last <= end))
        of[first : last + 1] = [number] * (last + 1 - first)
    places: list[list[int]] = [[] for _ in spans]
    outside: list[str] = []
    for place, number in enumerate(of):
        if number < 0:
            outside.append(names[place])
        else:
            places[number].append(place)
    found = [
        Loop(*span, around, tuple(names[place] for place in inside), tuple(inside))
        for span, around, inside in zip(spans, outer, places, strict=True)
    ]
    return tuple(outside), found
