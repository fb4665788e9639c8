"""The race: contenders are checked, take turns round after round, and get a row each in a ledger.

All see the same machine at the same time, so that ratios of their times hold where the times themselves do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import Any, ClassVar

import numpy as np

from benchmarks.harness import ledger
from benchmarks.harness.contender import COPY, FLOOR, Contender

# Seconds of a call, and seconds of something else, as the clock says.
Clock = Callable[[Callable[[], Any]], tuple[float, float]]


def wall(run: Callable[[], Any]) -> tuple[float, float]:
    """Return the seconds that a call takes, twice: until it is done, and until it returns."""
    start = perf_counter()
    run()
    seconds = perf_counter() - start
    return seconds, seconds


def processor(run: Callable[[], Any]) -> tuple[float, float]:
    """Return the seconds that a call takes, and those that processors work for it."""
    begin = process_time()
    seconds, _ = wall(run)
    return seconds, process_time() - begin


@dataclass(frozen=True)
class Turn:
    """What a contender does until the next one's turn."""

    run: Callable[[], Any]
    work: float = 1  # what its times are divided by: queries
    clock: Clock = wall
    rounds: int | None = None  # it takes part in so many; None: in all


def take_turns(turns: Sequence[Turn], rounds: int, benchmark: Any = None) -> list[np.ndarray]:
    """Return what the clock of each turn says, (rounds, 2), over its work.

    ``benchmark`` is the fixture of pytest-benchmark, which then times the first; the others run in the set-up of each
    of its rounds. Nothing is returned where it measures nothing.
    """
    times: list[list[tuple[float, float]]] = [[] for _ in turns]

    def play(first: int, end: int) -> None:
        for turn, taken in zip(turns[first:end], times[first:end], strict=True):
            if turn.rounds is None or len(taken) < turn.rounds:
                taken.append(turn.clock(turn.run))

    if benchmark is None:
        for _ in range(rounds):
            play(0, len(turns))
    else:
        benchmark.pedantic(turns[0].run, setup=lambda: play(1, len(turns)), rounds=rounds)
        if benchmark.stats is None:  # --benchmark-disable
            return []
        times[0] = [(seconds, seconds) for seconds in benchmark.stats.stats.data]
    return [np.array(taken) / turn.work for taken, turn in zip(times, turns, strict=True)]


class Race:
    """Contenders on a problem, the first of them the library. Each kind of problem has a subclass."""

    ledger: ClassVar[ledger.Ledger]
    ROUNDS, LEAST_ROUNDS = 15, 5
    SECONDS = 10.0  # fewer rounds than asked for where they would take longer

    def __init__(
        self, op: str, problem: Any, contenders: Sequence[Contender], *, rounds: int | None = None, name: str = ""
    ) -> None:
        self.op, self.problem, self.contenders = op, problem, list(contenders)
        self.rounds = rounds or self.ROUNDS
        self.name = name or op  # in the ledger

    # What a kind of problem decides.

    def facts(self, contender: Contender) -> dict[str, Any]:
        """Assert that a contender's results are right; return what they say, as columns of the ledger."""
        raise NotImplementedError

    def columns(self, contender: Contender) -> dict[str, Any]:
        """Return the columns of a row that are known without a run."""
        raise NotImplementedError

    def turn(self, contender: Contender, quick: bool) -> Turn:
        return Turn(contender.run)

    # The same for all.

    def key(self, contender: Contender) -> tuple[str, str]:
        """Return the name and the type of the rows, by which a race knows its contenders."""
        return contender.name, contender.dtype or self.problem.dtype

    def rounds_of(self, turns: Sequence[Turn]) -> int:
        """Return as many rounds as there is time for."""
        seconds = sum(turn.clock(turn.run)[0] for turn in turns)
        return max(min(self.rounds, int(self.SECONDS / seconds)), self.LEAST_ROUNDS)

    def run(self, benchmark: Any = None, quick: bool = False) -> list[dict[str, Any]]:
        """Check and time all; return a row for each, none where pytest-benchmark measures nothing."""
        facts = [self.facts(contender) for contender in self.contenders]
        turns = [self.turn(contender, quick) for contender in self.contenders]
        rounds = 2 if quick else self.rounds_of(turns)
        times = take_turns(turns, rounds, benchmark)
        return self._rows(facts, turns, times, rounds) if times else []

    def _rows(
        self, facts: list[dict[str, Any]], turns: list[Turn], times: list[np.ndarray], rounds: int
    ) -> list[dict[str, Any]]:
        micro = [1e6 * taken[:, 0] for taken in times]
        floors = {
            self.key(contender)[1]: float(np.median(taken))
            for contender, taken in zip(self.contenders, micro, strict=True)
            if contender.name in (FLOOR, COPY)
        }
        rows = []
        for place, contender in enumerate(self.contenders):
            name, dtype = self.key(contender)
            low, median, high = np.percentile(micro[place], [25, 50, 75])
            together = min(len(micro[place]), len(micro[0]))
            rows.append(
                {
                    **ledger.environment(),
                    "op": self.name,
                    "shape": str(self.problem.shape),
                    "dtype": dtype,
                    "contender": name,
                    "threads": contender.threads,
                    "rounds": rounds,
                    "samples": len(micro[place]),
                    "queries": turns[place].work,
                    "us": float(median),
                    "us_per_query": float(median),
                    "iqr_us": float(high - low),
                    "host_us": 1e6 * float(np.median(times[place][:, 1])),
                    "ratio": float(np.median(micro[place][:together] / micro[0][:together])),
                    "floor_us": floors.get(dtype),
                    "note": contender.note,
                    **self.columns(contender),
                    **facts[place],
                }
            )
        return rows
