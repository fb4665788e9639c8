"""Counts of warp instructions in NVIDIA machine code: those of each loop times how often it runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
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
    ends: dict[int, int] = {}
    for at, label in branches:
        first = labels.get(label, at)
        if first < at:
            ends[first] = max(at, ends.get(first, 0))
    spans = sorted(ends.items(), key=lambda span: (span[0], -span[1]))
    of = [-1] * len(names)  # the innermost loop of each instruction
    outer: list[tuple[int, ...]] = []
    for number, (first, last) in enumerate(spans):
        outer.append(tuple(i for i, (begin, end) in enumerate(spans[:number]) if begin <= first and last <= end))
        of[first : last + 1] = [number] * (last + 1 - first)
    own: list[list[str]] = [[] for _ in spans]
    outside: list[str] = []
    for name, number in zip(names, of, strict=True):
        (outside if number < 0 else own[number]).append(name)
    found_loops = [Loop(*span, around, tuple(inside)) for span, around, inside in zip(spans, outer, own, strict=True)]
    return tuple(outside), found_loops


def count(sass: str, trips: Sequence[float], name: str = "") -> float:
    """Return the warp instructions that one warp issues; ``trips`` is how often each loop runs in all.

    Both sides of a branch count. ``name``: only instructions whose names this regular expression is found in.
    """
    outside, found = loops(sass)
    if len(found) != len(trips):
        sizes = ", ".join(f"{len(loop.own)} in {len(loop.outer)}" for loop in found)
        raise ValueError(
            f"the kernel has {len(found)} loops (instructions, in so many others: {sizes}), got {len(trips)}"
        )

    def number(names: Sequence[str]) -> int:
        return sum(re.search(name, x) is not None for x in names)

    return number(outside) + sum(times * number(loop.own) for times, loop in zip(trips, found, strict=True))
