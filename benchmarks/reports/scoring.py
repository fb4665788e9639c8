"""The page on log-probabilities, results/scoring.md, and its tables in docs/speed.md, from scoring.csv."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from benchmarks.harness.contender import FLOOR, OURS, PRODUCT
from benchmarks.reports.runs import Runs
from benchmarks.reports.tables import met, table, wanted
from benchmarks.suites.scoring_shapes import (
    FALLBACK,
    HIDDEN,
    LOGITS,
    LONGEST,
    NAIVE,
    RANK,
    RECORDED,
    THREADS,
    Shape,
)

FRESH, WARM, LSE = "log_softmax + gather", "log_softmax + gather, warm", "logsumexp"
COMPILED, LINEAR, WITH_LOGITS = "torch.compile", "F.linear_cross_entropy", "product + log_softmax"


def _number(scores: Runs, column: str, shape: Shape, contender: str = OURS) -> float:
    """Return a number of a contender's row, NaN where it was not measured."""
    return scores.race(shape.op, shape).number(column, contender, shape.dtype)


def _cell(scores: Runs, shape: Shape, contender: str) -> str:
    ratio = _number(scores, "ratio", shape, contender)
    return "" if np.isnan(ratio) else f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.0f}x"


def _table(scores: Runs, shapes: list[Shape], contenders: list[str]) -> str:
    rows = []
    for shape in shapes:
        time, error, peak = (_number(scores, column, shape) for column in ("us", "max_error", "peak_mb"))
        if np.isnan(time):
            continue
        model = f"{shape.model}, " if shape.model else ""
        hidden = "" if shape.D is None else f", D={shape.D}"
        cells = [_cell(scores, shape, contender) for contender in contenders]
        name = f"{model}{shape.T}, {shape.V:,}{hidden}, {shape.dtype}"
        rows.append([name, f"{time / 1000:.3g}", *cells, f"{error:.1e}", f"{peak:.1f}"])
    if not rows:
        return "Not measured on this machine at a commit."
    return table(["T, V, dtype", "ours, ms", *contenders, "error", "memory, MB"], rows, tight=True)


def _bars(scores: Runs) -> str:
    """Return the goals that this machine can show: of the ratios of all measured shapes of a goal, the worst."""

    def large(shape: Shape) -> bool:
        return shape.T == 512

    def over(contender: str) -> Callable[[Shape], float]:
        return lambda shape: _number(scores, "ratio", shape, contender)

    def ours_over(contender: str) -> Callable[[Shape], float]:
        return lambda shape: 1 / _number(scores, "ratio", shape, contender)

    f32 = [shape for shape in LOGITS + RECORDED if large(shape) and shape.dtype == "float32"]
    bf16 = [shape for shape in LOGITS + RECORDED if large(shape) and shape.dtype == "bfloat16"]
    wide = [shape for shape in bf16 if shape.V >= 150_000]
    part = [shape for shape in HIDDEN if shape.T == 64 and replace(shape, T=512) in HIDDEN]

    def over_part(shape: Shape) -> float:
        """Its time over its share of the time for 512 rows."""
        whole = replace(shape, T=512)
        return _number(scores, "us", shape) / _number(scores, "us", whole) * whole.T / shape.T

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
    rows = []
    for text, shapes, value, limit, at_least in goals:
        found = np.array([value(shape) for shape in shapes])
        found = found[~np.isnan(found)]
        if not len(found):
            continue
        worst, best = (found.min(), found.max()) if at_least else (found.max(), found.min())
        asked, answer = wanted(f"{limit:g}", at_least), met(worst, limit, at_least)
        rows.append([text, f"{worst:.2f}", f"{best:.2f}", asked, answer])
    return table(["goal", "worst", "best", "wanted", "met"], rows, texts=(0, 4), tight=True)


def summary(scores: Runs) -> str:
    shown = [shape for shape in LOGITS if shape.T == 512]
    linear = [shape for shape in HIDDEN if shape.V == LONGEST]
    return f"""\
Log-probabilities of one target a row, {scores.last["hardware"]}, one thread, {scores.last["date"]}, commit
{scores.last["commit"] or "unknown"}: times divided by ours, after checking every result against float64. From
logits:

{_table(scores, shown, [FRESH, WARM, COMPILED, FLOOR])}

From hidden states and the output matrix, without logits:

{_table(scores, linear, [PRODUCT, WITH_LOGITS, LINEAR, FLOOR])}
"""


def page(scores: Runs) -> str:
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
