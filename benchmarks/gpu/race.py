"""The race: each call that has a goal on a device, by each backend and under each variant, against what it must read.

    python -m benchmarks.gpu.race [--budget SECONDS] [--ledger CSV] [--small]

A *roof* is what no kernel is faster than: one read of what the last-level cache cannot serve, at the rate of this
device's copy, or the bare product of the rows with the queries (hidden states), at the rate of the vendor's library,
both timed in the same run. A goal is a share of the roof. A form below its *stop*, or slower than another of the same
row, is not kept.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.gpu import bench
from benchmarks.gpu.shapes import WHOLE_K, WHOLE_N, WHOLE_Q, Pools, Scores
from benchmarks.harness import facts
from benchmarks.harness.contender import COPY, OURS, PRODUCT
from benchmarks.harness.ledger import Row
from ragsys_kernels._base import env as _env

SAMPLES = 25
LONG = 151_936  # tokens of the longest vocabulary


class Goal(NamedTuple):
    """Shares of the roof: what is to be reached, and below which a new form is not kept."""

    shape: Pools | Scores
    share: float
    stop: float
    roof: str = COPY


GOALS = (
    Goal(Pools(100, 10, 384, "float16"), 0.70, 0.40),
    Goal(Pools(20, 4, 384, "float16", 100_000), 0.70, 0.50),
    Goal(Pools(1000, 10, 384, "float16"), 0.65, 0.42),
    Goal(Pools(1000, 10, 768, "float16"), 0.65, 0.52),
    Goal(Pools(100, 10, 384, "float16", op="vrsd"), 0.60, 0.30),
    Goal(Pools(1000, 10, 384, "float16", op="vrsd"), 0.50, 0.30),
    # What a pick costs beside the one read of the pool.
    Goal(Pools(1000, 5, 384, "float16", op="vrsd"), 0.55, 0.35),
    Goal(Pools(1000, 1, 384, "float16", op="vrsd"), 0.65, 0.45),
    Goal(Pools(None, 100, 384, "float16", WHOLE_Q, WHOLE_N, "search"), 0.33, 0.21, PRODUCT),
    Goal(Pools(None, WHOLE_K, 384, "float16", WHOLE_Q, WHOLE_N), 0.20, 0.07, PRODUCT),
    Goal(Scores(512, LONG, None, "bfloat16"), 0.80, 0.75),
    Goal(Scores(512, 50_257, None, "bfloat16"), 0.80, 0.65),
    Goal(Scores(512, 32_000, None, "bfloat16"), 0.80, 0.60),
    Goal(Scores(8, LONG, 1024, "bfloat16"), 0.85, 0.75),
    Goal(Scores(512, LONG, 1024, "bfloat16"), 0.69, 0.56, PRODUCT),
)


@dataclass(frozen=True)
class Found:
    """A form of ours on the shape of a goal."""

    goal: Goal
    form: str  # backend and variant
    us: float
    roof: float  # µs
    torch: float  # µs of its fastest form

    @property
    def share(self) -> float:
        return self.roof / self.us

    @property
    def verdict(self) -> str:
        if self.share < self.goal.stop:
            return "below its stop"
        return "reached" if self.share >= self.goal.share else "kept"


def found(rows: Iterable[Row], goals: Iterable[Goal] = GOALS) -> Iterator[Found]:
    """Yield every form of ours that a ledger has of the shapes with goals, the fastest of each first."""
    rows = list(rows)
    for goal in goals:
        key = (goal.shape.op, str(goal.shape), goal.shape.dtype)
        race = [row for row in rows if (row["op"], row["shape"], row["dtype"]) == key]
        times = {row["contender"]: float(row["us"]) for row in race}
        ours = [row for row in race if row["contender"].partition(", ")[0] == OURS]
        torch_us = min((us for name, us in times.items() if name.startswith("torch")), default=math.nan)
        for row in sorted(ours, key=lambda row: float(row["us"])):
            form = row["backend"] + row["contender"].removeprefix(OURS)
            yield Found(goal, form, float(row["us"]), times.get(goal.roof, math.nan), torch_us)


def told(all_found: Iterable[Found]) -> str:
    """Return the table that a person reads."""
    lines = [f"{'':44} {'form':28} {'us':>9} {'roof':>8} {'share':>6} {'goal':>5} {'torch':>6}"]
    for one in all_found:
        shape = f"{one.goal.shape.op} {one.goal.shape}, {one.goal.shape.dtype}"
        lines.append(
            f"{shape:44.44} {one.form:28.28} {one.us:9.1f} {one.roof:8.1f} {one.share:6.0%} {one.goal.share:5.0%} "
            f"{one.torch / one.us:5.1f}x  {one.verdict}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.race", description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds after which no shape is begun")
    parser.add_argument("--ledger", type=Path, required=True)
    parser.add_argument("--backends", default="triton,cuda", help="with commas")
    parser.add_argument("--small", action="store_true", help="small problems, few samples: shows that it works")
    given = parser.parse_args(arguments)
    goals = [goal._replace(shape=goal.shape.small()) for goal in GOALS] if given.small else GOALS
    outcome = bench.run(
        given.ledger,
        list(dict.fromkeys(goal.shape for goal in goals)),
        "cpu" if _env.triton_interpreter() else "cuda",
        backends=tuple(given.backends.split(",")),
        samples=3 if given.small else SAMPLES,
        budget=given.budget,
        compiling=False,
        variants=True,
        host=False,
    )
    results = list(found(bench.LEDGER.at(given.ledger).read(), goals))
    print(told(results))
    for kind in ("wrong", "unsteady", "absent", "left_out"):
        facts.tell(**{kind: getattr(outcome, kind)})
    facts.tell(stopped=[f"{one.goal.shape}, {one.form}" for one in results if one.share < one.goal.stop])
    facts.tell(rows=outcome.rows, ledger=str(given.ledger), device=outcome.device, torch=torch.__version__)
    return 1 if outcome.wrong or not outcome.rows else 0


if __name__ == "__main__":
    sys.exit(main())
