"""The page on log-probabilities, results/scoring.md, and its tables in docs/speed.md, from scoring.csv."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.harness import ledger
from benchmarks.suites import bench_scoring
from benchmarks.suites.bench_scoring import (
    FALLBACK,
    FLOOR,
    HIDDEN,
    LOGITS,
    NAIVE,
    OURS,
    PRODUCT,
    RANK,
    RECORDED,
    THREADS,
    Shape,
)

FRESH, WARM, LSE = "log_softmax + gather", "log_softmax + gather, warm", "logsumexp"
COMPILED, LINEAR, WITH_LOGITS = "torch.compile", "F.linear_cross_entropy", "product + log_softmax"


class Scores:
    """The rows of the machine of which most is known; those of a commit with changes that are in none are left out."""

    def __init__(self, path: Path) -> None:
        machines: dict[tuple[str, ...], list[ledger.Row]] = {}
        for row in ledger.published(ledger.read(path)):
            machines.setdefault((row["hardware"], row["backend"], row["isa"]), []).append(row)
        rows = max(machines.values(), key=lambda rows: (len(rows), max(row["date"] for row in rows)))
        self.last = max(reversed(rows), key=lambda row: row["date"])  # of one day, what was added last
        self._found = {(row["shape"], row["contender"]): row for row in rows}

    def number(self, column: str, shape: Shape, contender: str = OURS) -> float:
        """NaN where it was not measured."""
        row = self._found.get((str(shape), contender))
        return float(row[column]) if row and row[column] else np.nan


def _cell(scores: Scores, shape: Shape, contender: str) -> str:
    ratio = scores.number("ratio", shape, contender)
    return "" if np.isnan(ratio) else f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.0f}x"


def _table(scores: Scores, shapes: list[Shape], contenders: list[str]) -> str:
    lines = ["| T, V, dtype | ours, ms | " + " | ".join(contenders) + " | error | memory, MB |"]
    lines.append("|---|" + "---:|" * (len(contenders) + 3))
    for shape in shapes:
        time = scores.number("us", shape) / 1000
        if np.isnan(time):
            continue
        cells = [_cell(scores, shape, contender) for contender in contenders]
        error, peak = scores.number("max_error", shape), scores.number("peak_mb", shape)
        hidden = "" if shape.D is None else f", D={shape.D}"
        model = f"{shape.model}, " if shape.model else ""
        lines.append(
            f"| {model}{shape.T}, {shape.V:,}{hidden}, {shape.dtype} | {time:.3g} | "
            + " | ".join(cells)
            + f" | {error:.1e} | {peak:.1f} |"
        )
    return "\n".join(lines)


def _bars(scores: Scores) -> str:
    """The goals that this machine can show: of the ratios of all measured shapes that a goal is for, the worst."""

    def large(shape: Shape) -> bool:
        return shape.T == 512

    def over(contender: str) -> Callable[[Shape], float]:
        return lambda shape: scores.number("ratio", shape, contender)

    def ours_over(contender: str) -> Callable[[Shape], float]:
        return lambda shape: 1 / scores.number("ratio", shape, contender)

    f32 = [shape for shape in LOGITS + RECORDED if large(shape) and shape.dtype == "float32"]
    bf16 = [shape for shape in LOGITS + RECORDED if large(shape) and shape.dtype == "bfloat16"]
    wide = [shape for shape in bf16 if shape.V >= 150_000]
    part = [shape for shape in HIDDEN if shape.T == 64 and replace(shape, T=512) in HIDDEN]

    def over_part(shape: Shape) -> float:
        """Its time over its share of the time for 512 rows."""
        whole = replace(shape, T=512)
        return scores.number("us", shape) / scores.number("us", whole) * whole.T / shape.T

    product = [shape for shape in HIDDEN if shape.dtype == "bfloat16" and shape.T >= 8]
    few = [shape for shape in HIDDEN if shape.T <= 8]
    longest = [shape for shape in HIDDEN if large(shape) and shape.dtype == "float32"]
    two = [shape for shape in THREADS if large(shape) and shape.D is None and shape.dtype == "float32"]
    two_product = [shape for shape in THREADS if shape.D is not None and shape.dtype == "bfloat16"]
    goals = [
        ("C1: float32 logits / plain read", f32, ours_over(FLOOR), 1.15, False),
        ("C1: float32 logits / plain read, two threads each", two, ours_over(FLOOR), 1.3, False),
        ("C2: bfloat16 logits, V >= 150,000 / plain read", wide, ours_over(FLOOR), 1.5, False),
        ("C2: bfloat16 logits / plain read", bf16, ours_over(FLOOR), 2.1, False),
        (f"C3: {FRESH} / float32", f32, over(FRESH), 10, True),
        (f"C3: {WARM} / float32", f32, over(WARM), 3.5, True),
        (f"C3: {LSE} / float32", f32, over(LSE), 15, True),
        (f"C3: {COMPILED} / float32", f32, over(COMPILED), 2.8, True),
        (f"C4: {FRESH} in float32 / bfloat16", bf16, over(FRESH), 20, True),
        (f"C4: {COMPILED} / bfloat16", bf16, over(COMPILED), 3, True),
        ("C6: rank and entropy too / without, logits", f32 + bf16, over(RANK), 1.2, False),
        (f"C7: bfloat16 hidden states, T = 8 to 512 / {PRODUCT}", product, ours_over(PRODUCT), 1.0, False),
        (f"C7: bfloat16 hidden states / {PRODUCT}, two threads each", two_product, ours_over(PRODUCT), 1.0, False),
        (f"C7: {WITH_LOGITS} / bfloat16 hidden states", product, over(WITH_LOGITS), 1.25, True),
        ("C7: hidden states, T <= 8 / reading W once", few, ours_over(FLOOR), 1.8, False),
        (f"C8: {LINEAR} / hidden states", HIDDEN, over(LINEAR), 8, True),
        (f"C9: naive NumPy / {FALLBACK}", f32, lambda s: over(NAIVE)(s) / over(FALLBACK)(s), 1.8, True),
        ("C10: hidden states, 64 of 512 rows / an eighth of all", part, over_part, 1.1, False),
        (f"float32 hidden states, T = 512 / {PRODUCT}", longest, ours_over(PRODUCT), 1.15, False),
    ]
    lines = ["| goal | worst | best | wanted | met |", "|---|---:|---:|---:|---|"]
    for text, shapes, value, limit, at_least in goals:
        found = np.array([value(shape) for shape in shapes])
        found = found[~np.isnan(found)]
        if not len(found):
            continue
        worst, best = (found.min(), found.max()) if at_least else (found.max(), found.min())
        met = worst >= limit if at_least else worst <= limit
        sign = "≥" if at_least else "≤"
        lines.append(f"| {text} | {worst:.2f} | {best:.2f} | {sign} {limit:g} | {'yes' if met else '**no**'} |")
    return "\n".join(lines)


def summary(scores: Scores) -> str:
    shown = [shape for shape in LOGITS if shape.T == 512]
    linear = [shape for shape in HIDDEN if shape.V == bench_scoring.LONGEST]
    return f"""\
Log-probabilities of one target a row, {scores.last["hardware"]}, one thread, {scores.last["date"]}, commit
{scores.last["commit"] or "unknown"}: times over ragsys_kernels', after a check of every result against float64. From
logits:

{_table(scores, shown, [FRESH, WARM, COMPILED, FLOOR])}

From hidden states and the output matrix, without logits:

{_table(scores, linear, [PRODUCT, WITH_LOGITS, LINEAR, FLOOR])}
"""


def page(scores: Scores) -> str:
    return f"""\
# Log-probabilities of answer tokens

Written by `python -m benchmarks.reports` from `scoring.csv`. One thread where nothing else is said; medians of rounds
in which the contenders take turns; x: the contender's time over ragsys_kernels'. The error is the largest of
ragsys_kernels' log p against float64, the memory what its call takes above what was there. torch's `log_softmax` is
asked for float32 results.
{scores.last["hardware"]}, {scores.last["isa"]}, {scores.last["date"]}, commit {scores.last["commit"]};
{scores.last["versions"]}

## From logits

{_table(scores, LOGITS, [RANK, FRESH, WARM, LSE, "F.cross_entropy", COMPILED, NAIVE, FALLBACK, FLOOR])}

Logits that SmolLM2-135M and Gemma 3 270M give along TruthfulQA:

{_table(scores, RECORDED, [RANK, FRESH, WARM, LSE, "F.cross_entropy", COMPILED, NAIVE, FALLBACK, FLOOR])}

## From hidden states

{_table(scores, HIDDEN, [RANK, PRODUCT, WITH_LOGITS, LINEAR, FLOOR])}

## Two threads each

From logits:

{_table(scores, [shape for shape in THREADS if shape.D is None], [FRESH, WARM, COMPILED, FLOOR])}

From hidden states:

{_table(scores, [shape for shape in THREADS if shape.D is not None], [PRODUCT, WITH_LOGITS, LINEAR, FLOOR])}

## Goals

{_bars(scores)}
"""


def write(path: Path, out: Path) -> str:
    """Write the page; return the part for docs/speed.md, nothing where there is no ledger."""
    if not path.exists():
        return ""
    scores = Scores(path)
    (out / "scoring.md").write_text(page(scores), encoding="utf-8")
    return summary(scores)
