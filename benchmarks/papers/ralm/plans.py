"""What the model is run on, each window with its documents once, and what the runs say of the pieces of a window."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import NamedTuple

import numpy as np

from ragsys_kernels._base.types import NDArray as Array
from ragsys_kernels.icl.ralm import Ralm, Text, Window

from .._run import Progress

Documents = tuple[int, ...]
ModelRun = tuple[Window, Documents]


class Plan(NamedTuple):
    """The runs that predict each piece of `stride` tokens of each window's target."""

    stride: int
    runs: list[list[ModelRun]]  # (Q, pieces)

    @property
    def documents(self) -> list[list[Documents]]:
        return [[documents for _, documents in row] for row in self.runs]


class Runs:
    """Runs of the model, each (window, documents) once, and what they say of the pieces of plans."""

    def __init__(self, system: Ralm, text: Text, windows: Sequence[Window], past: int) -> None:
        self.system, self.text, self.windows, self.past = system, text, windows, past
        self._logp: dict[ModelRun, Array] = {}  # of the past and the target's tokens

    def __len__(self) -> int:
        return len(self._logp)

    def places(self, stride: int) -> list[int]:
        return [place for window in self.windows for place in range(window.begin, window.end, stride)]

    def plan(self, stride: int, documents: Mapping[int, Sequence[int]]) -> Plan:
        """Plan documents by the place where a piece begins; a place without an entry has none."""
        return Plan(
            stride,
            [
                [(window, tuple(documents.get(place, ()))) for place in range(window.begin, window.end, stride)]
                for window in self.windows
            ],
        )

    def moved(self, plan: Plan, sign: int, *, keep: bool) -> Plan:
        """Return the plan, with or without its documents, the starts of its windows moved by what these take: forward
        or back."""

        def moved(run: ModelRun) -> ModelRun:
            window, ids = run
            return window._replace(start=window.start + sign * len(self.system.document(ids))), ids if keep else ()

        return Plan(plan.stride, [[moved(run) for run in row] for row in plan.runs])

    def make(self, plans: Iterable[Plan], progress: Progress | None) -> None:
        wanted = {run for plan in plans for row in plan.runs for run in row}
        # Window by window, the longest first: what is fed together is of like length.
        order = sorted(wanted, key=lambda run: (run[0].end, run[0].start, run[1]))
        windows, documents = [window for window, _ in order], [ids for _, ids in order]
        logps = self.system.logprobs(self.text, windows, documents, past=self.past, progress=progress)
        self._logp = dict(zip(order, logps, strict=True))

    def target(self, plan: Plan) -> Array:
        """Return the log-probabilities of the pieces, (Q, pieces)."""
        return self._sums(plan, self.past, plan.stride)

    def halves(self, plan: Plan) -> tuple[Array, Array]:
        """Return the log-probabilities of the first half of each piece and of its second, (Q, pieces) each."""
        half = plan.stride // 2
        return self._sums(plan, self.past, half), self._sums(plan, self.past + half, plan.stride - half)

    def before(self, plan: Plan) -> Array:
        """Return the log-probabilities of the past tokens before each piece, (Q, pieces)."""
        return self._sums(plan, 0, self.past)

    def nll(self, plan: Plan) -> Array:
        """Return the negative log-probabilities of the windows' targets, (Q,)."""
        return np.asarray(-self.target(plan).sum(axis=1))

    def _sums(self, plan: Plan, offset: int, length: int) -> Array:
        rows = [
            [
                self._logp[run][at : at + length].sum(dtype=np.float64)
                for at, run in zip(count(offset, plan.stride), row, strict=False)
            ]
            for row in plan.runs
        ]
        return np.array(rows, np.float64)
