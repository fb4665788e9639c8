"""What pages show of a ledger: the rows of the machine that was measured last, and the races they are from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.harness.contender import OURS
from benchmarks.harness.ledger import Row, published, text


class Runs:
    """Rows of one machine and instruction set, those measured last, and the races they are from."""

    def __init__(self, rows: Sequence[Row]) -> None:
        rows = published(rows)
        if not rows:
            raise SystemExit("error: the ledger has no row of a commit: run `ragsys-kernels bench` first")
        # Single calls are timed by themselves, and their table says when.
        timed_together = [row for row in rows if row["op"] != "drop-in"] or rows
        measured = Counter(map(_machine, timed_together))
        # Of one day, the machine with most rows: a few from another take no tables away.
        self.last = max(reversed(timed_together), key=lambda row: (row["date"], measured[_machine(row)]))
        self.rows = [row for row in rows if _machine(row) == _machine(self.last)]
        self._races: dict[tuple[str, str, str], dict[tuple[str, str], Row]] = {}
        for row in self.rows:
            race = row["op"], row["shape"], row.get("lambda_d", "")
            self._races.setdefault(race, {})[row["contender"], row["dtype"]] = row

    def race(self, op: str, shape: object, lambda_d: float | None = None) -> Race:
        """Return what was timed together; without rows if it was not."""
        return Race(self._races.get((op, str(shape), text(lambda_d)), {}))

    def points(self, vary: str, **fixed: object) -> dict[tuple[str, str], list[Row]]:
        """Return MMR rows of each (contender, dtype) along one size, the other columns as given (None: empty)."""
        wanted = {"op": "mmr", "duplicates": "0", **{name: text(value) for name, value in fixed.items()}}
        lines: dict[tuple[str, str], list[Row]] = {}
        for row in self.rows:
            if row[vary] and all(row[name] == value for name, value in wanted.items()):
                lines.setdefault((row["contender"], row["dtype"]), []).append(row)
        return {key: sorted(line, key=lambda row: float(row[vary])) for key, line in lines.items()}


def _machine(row: Row) -> tuple[str, str, str]:
    return row["hardware"], row["backend"], row["isa"]


@dataclass(frozen=True)
class Race:
    """Rows of contenders that took turns."""

    rows: dict[tuple[str, str], Row]  # by contender and dtype

    def number(self, column: str, contender: str, dtype: str = "float32") -> float:
        """Return a number of a contender's row, NaN where it was not measured."""
        row = self.rows.get((contender, dtype), {})
        return float(row[column]) if row.get(column) else np.nan

    def ratio(self, contender: str, over: str = OURS, dtype: str = "float32") -> float:
        """Return the time of one contender over that of another."""
        return self.number("ratio", contender, dtype) / self.number("ratio", over)

    def has(self, contender: str, dtype: str = "float32") -> bool:
        return (contender, dtype) in self.rows
