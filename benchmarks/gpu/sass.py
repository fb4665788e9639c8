"""Warp instructions in NVIDIA machine code: those of each loop, and those of none."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_LINE = re.compile(r"^\s*(?:(\.L_x_\w+):|/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)(.*))")


class Loop(NamedTuple):
    """Instructions ``first`` to ``last`` of a kernel, run again and again; ``outer`` loops are around it."""

    first: int
    last: int
    outer: tuple[int, ...]
    own: tuple[str, ...]  # the instructions of no inner loop, by name


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
    names: list[str] = []
    labels: dict[str, int] = {}
    branches: list[tuple[int, str]] = []
    for line in sass.splitlines():
        found = _LINE.match(line)
        if found is None:
            continue
        if found[1]:
            labels[found[1]] = len(names)
            continue
        target = re.search(r"\.L_x_\w+", found[3]) if found[2].startswith("BRA") else None
        if target:
            branches.append((len(names), target[0]))
        names.append(found[2])
    return names, [(at, labels.get(label, at)) for at, label in branches]


def _divided(names: Sequence[str], among: Iterable[tuple[int, int]]) -> tuple[tuple[str, ...], list[Loop]]:
    """Return the instructions of no span, and for each span those of no inner one."""
    spans = sorted(among, key=lambda span: (span[0], -span[1]))
    of = [-1] * len(names)  # the innermost span of each instruction
    outer: list[tuple[int, ...]] = []
    for number, (first, last) in enumerate(spans):
        outer.append(tuple(i for i, (begin, end) in enumerate(spans[:number]) if begin <= first and last <= end))
        of[first : last + 1] = [number] * (last + 1 - first)
    own: list[list[str]] = [[] for _ in spans]
    outside: list[str] = []
    for name, number in zip(names, of, strict=True):
        (outside if number < 0 else own[number]).append(name)
    found = [Loop(*span, around, tuple(inside)) for span, around, inside in zip(spans, outer, own, strict=True)]
    return tuple(outside), found
