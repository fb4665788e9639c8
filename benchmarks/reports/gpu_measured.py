"""What was measured on GPUs (`gpu.csv`, written by `gpu/bench.py`), as tables for the page gpu.md."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import NamedTuple

from benchmarks.gpu.shapes import ALL, FROM_LOGITS, POOLS_ON_CHIP, Pools, Scores, one_of_each
from benchmarks.harness.contender import COPY, OURS, PRODUCT
from benchmarks.harness.ledger import Row
from benchmarks.reports.tables import count, factor, micros, table

TITLES = {
    "mmr": "MMR",
    "vrsd": "VRSD",
    "search": "Search",
    "token_logprobs": "Log-probabilities from logits",
    "answer_logprobs": "Log-probabilities from hidden states",
}
_UNITS = {"Q": "queries", "T": "rows"}  # by the letter before their number in a shape
_HEADER = (
    "shape, dtype", "kernels", "µs", "spread", "host µs", "graph µs", "a second", "rate", "of the floor",
    "of the product", "fastest of torch", "other libraries",
)  # fmt: skip

EXPLAINED = """\
*µs*: median of a call on the device, with the last-level cache emptied before it; *spread*: how far apart two passes
were; *host µs*: until the call returned; *graph µs*: replayed from a CUDA graph. *Rate*: bytes of one read of every
pool (of the logits; of the weight and the hidden states, unless their product takes longer) or flops of the plain
rule, divided by the time. *Of the floor*: the time that a copy kernel takes to move as many bytes as one read of what
the last-level cache cannot serve, as a share of ours. *Of the product*: the time of the bare matrix product, as a share
of ours. *Fastest of torch*: the fastest form, compiled or not, and its time divided by ours; the same for other
libraries that were installed. Their calls are forward passes of training losses. Liger's defaults also synchronise and
clear memory for a gradient, so their ratios do not compare kernels alone.
"""


def section(rows: Iterable[Row]) -> str:
    """Return the measurements of each device, nothing where there are none."""
    devices: dict[str, list[Row]] = {}
    for row in rows:
        devices.setdefault(row["device"], []).append(row)
    if not devices:
        return ""
    parts = [f"## Measured\n\n{EXPLAINED}"]
    for device, found in sorted(devices.items()):
        parts.append(f"### {device}\n\n{_circumstances(found)}\n")
        for op, title in TITLES.items():
            races = _races([row for row in found if row["op"] == op])
            if races:
                lines = [line for race in races for line in _lines(race)]
                parts.append(f"**{title}**\n\n{table(_HEADER, lines, texts=(0, 1, 10, 11))}\n")
    return "\n".join(parts) + "\n"


def _circumstances(rows: list[Row]) -> str:
    def of(name: str) -> str:
        return ", ".join(sorted({row[name] for row in rows if row.get(name)})) or "not known"

    return (
        f"Commit {of('commit')}, {of('date')}. Driver {of('driver')}; largest clocks of multiprocessors and memory "
        f"{of('clocks_mhz')} MHz; power limit {of('power_limit_w')} W. {of('versions')}."
    )


def _run(row: Row) -> tuple[str, str]:
    """Return the run that a row is of: only times of one run are compared."""
    return row["date"], row["commit"]


class _Usual(NamedTuple):
    """The most usual shape of a kind of kernel, as it was measured."""

    regime: str
    task: str
    backend: str  # the faster of ours
    us: float
    each: str  # how many a second
    copy: float | None  # µs of a copy kernel
    torch: dict[str, float]  # of its forms
    run: tuple[str, str]  # date and commit


def _usual(rows: list[Row]) -> tuple[str, list[_Usual], list[Row]]:
    """Return the device that was measured last, what is known of it by the last run of each shape, and those rows."""
    device = max(rows, key=lambda row: row["date"])["device"]
    of_device = [row for row in rows if row["device"] == device]
    found, shown = [], list[Row]()
    for shape in one_of_each(ALL):
        key = (shape.op, str(shape), shape.dtype)
        race = [row for row in of_device if (row["op"], row["shape"], row["dtype"]) == key]
        last = max((_run(row) for row in race if row["contender"] == OURS), default=None)
        race = [row for row in race if _run(row) == last]
        ours = [row for row in race if row["contender"] == OURS]
        if last and ours:
            shown += race
            best = min(ours, key=lambda row: float(row["us"]))
            times = {row["contender"]: float(row["us"]) for row in race}
            torch = {name: time for name, time in times.items() if _is_torch(name)}
            (task, units), us = _task(shape), float(best["us"])
            each = f"{count(1e6 * units / us)} {'rows' if isinstance(shape, Scores) else 'queries'}"
            found.append(_Usual(shape.regime, task, best["backend"], us, each, times.get(COPY), torch, last))
    return device, found, shown


def usual(rows: Iterable[Row]) -> str:
    """Return the most usual shape of each kind of kernel, where it was measured last, by the faster of our backends."""
    rows = list(rows)
    if not rows:
        return "Nothing has been measured on a GPU.\n"
    device, found, shown = _usual(rows)
    several = len({one.run for one in found}) > 1
    lines = [
        [
            one.task + f" ({one.run[0]})" * several,
            one.backend,
            micros(one.us),
            one.each,
            _share(one.copy, one.us),
            _best(one.torch, one.us),
        ]
        for one in found
    ]
    header = ("", "kernels", "µs a call", "a second", "of copy speed", "fastest of torch")
    return (
        f"{_described(device, shown)}\n\n{table(header, lines, texts=(0, 1, 5))}\n\n"
        "Of copy speed: the time of a copy kernel for as many bytes as one read of the input, as a share of ours.\n"
        "Fastest of torch: the fastest form, eager or compiled, in the same run, and its time divided by ours.\n"
        "Results were checked in float64 first.\n"
    )


def headline(rows: Iterable[Row]) -> str:
    """Return what a newcomer wants to know: pools and logits, in a line."""
    rows = list(rows)
    if not rows:
        return "The kernels have not yet run on a GPU.\n"
    device, found, _ = _usual(rows)
    said = [
        f"{one.task}: {one.each} a second, {factor(min(one.torch.values()) / one.us)} times as fast as "
        "torch's fastest form"
        for one in found
        if one.regime in HEADLINES and one.torch
    ]
    return f"On an {device}, by time on the device: {'. '.join(said)}.\n"


HEADLINES = (POOLS_ON_CHIP, FROM_LOGITS)


def _described(device: str, rows: list[Row]) -> str:
    commits, dates = (", ".join(sorted({row[name] for row in rows if row[name]})) for name in ("commit", "date"))
    return f"{device}, {dates}, commit {commits}, the last-level cache emptied before each call:"


def _task(shape: Pools | Scores) -> tuple[str, int]:
    """Return what is done, in words, and how many queries or rows it is done for."""
    if isinstance(shape, Pools):
        name = "exact search" if shape.op == "search" else shape.op.upper()
        source = f"all {shape.N:,}" if shape.P is None else f"{shape.P:,}"
        return f"{name}, {shape.K} of {source}; D = {shape.D}, {shape.Q:,} queries, {shape.dtype}", shape.Q
    source = "logits" if shape.D is None else f"hidden states, D = {shape.D}"
    return f"log p of {shape.T} rows from {source}; {shape.V:,} tokens, {shape.dtype}", shape.T


def _races(rows: list[Row]) -> list[list[Row]]:
    """Return the rows that were timed together, in the ledger's order."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row["shape"], row["dtype"]), []).append(row)
    return list(found.values())


def _lines(race: list[Row]) -> list[list[str]]:
    """Return a line for each of our kernels: each backend, and each variant."""
    lines = []
    for row in race:
        if row["contender"].partition(", ")[0] != OURS:
            continue
        times = {one["contender"]: float(one["us"]) for one in race if _run(one) == _run(row)}
        torch = {name: us for name, us in times.items() if _is_torch(name)}
        others = {name: us for name, us in times.items() if name.partition(",")[0] in _OTHERS}
        us, kernels = float(row["us"]), row["backend"] + row["contender"].removeprefix(OURS)
        letter, units = re.findall(r"(?:^|-)([QT])(\d+)", row["shape"])[-1]
        lines.append(
            [
                f"{row['shape']}, {row['dtype']}",
                kernels,
                micros(us),
                f"{float(row['spread']):.1%}" if row["spread"] else "",
                micros(float(row["host_us"])) if row["host_us"] else "",
                micros(float(row["graph_us"])) if row["graph_us"] else "",
                f"{count(1e6 * int(units) / us)} {_UNITS[letter]}",
                _rate(row, us, times.get(PRODUCT, math.nan)),
                _share(times.get(COPY), us),
                _share(times.get(PRODUCT), us),
                _best(torch, us),
                ", ".join(f"{name} {factor(time / us)}x" for name, time in sorted(others.items())),
            ]
        )
    return lines


_OTHERS = ("Liger", "flash-attn", "cut-cross-entropy", "TRL")


def _is_torch(name: str) -> bool:
    ours = name.partition(",")[0] == OURS or name.startswith(f"{OURS} ")
    return not ours and name not in (COPY, PRODUCT) and name.partition(",")[0] not in _OTHERS


def _rate(row: Row, us: float, product: float) -> str:
    """Return bytes a second, or flops a second of what its products bound."""
    floor = float(row["floor_us"]) if row["floor_us"] else math.nan
    if not (row["bytes"] and row["flops"]):
        return ""
    if row["op"] == "answer_logprobs" and product > floor:
        return f"{count(1e6 * float(row['flops']) / us)}FLOP/s"
    return f"{count(1e6 * float(row['bytes']) / us)}B/s"


def _share(least: float | None, us: float) -> str:
    return "" if least is None else f"{least / us:.0%}"


def _best(times: dict[str, float], us: float) -> str:
    if not times:
        return ""
    name = min(times, key=times.__getitem__)
    return f"{name} {factor(times[name] / us)}x"
