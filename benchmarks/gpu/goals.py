"""The calls that have a goal on a device, and what a ledger has about them: forms, winners, the table of the race.

A *roof* is the time that no kernel can beat: that of one read of what the last-level cache cannot serve, at the rate of
a copy on this device, or that of the bare product of rows and queries by the vendor's library, both timed on the same
shape. A goal is a share of the roof. The fastest form with a right result wins a row; below the *stop*, a lower share,
it is not kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from benchmarks.gpu import forms
from benchmarks.gpu.forms import Form
from benchmarks.gpu.shapes import LEDGER, WHOLE_K, WHOLE_N, WHOLE_Q, Pools, Scores
from benchmarks.harness.contender import COPY, PRODUCT
from benchmarks.harness.ledger import Row

LONG = 151_936  # tokens of the longest vocabulary
NOISE = 0.03  # times within this share are equal

# Why a row has no time, or must not win.
BEGUN, WRONG, FAILED, KILLED, LEFT_OUT, ABSENT = "begun", "wrong", "failed", "killed", "left out", "absent"
REFUSED = "refused: "  # an explanation of a time could not be found
# How the reason begins where a form failed or was killed before it began.
BEFORE_ITS_TURN, ITS_PROBLEM = "before its turn: ", "its problem: "


class Goal(NamedTuple):
    """Shares of the roof: the goal, and the stop, below which a new form is not kept."""

    shape: Pools | Scores
    share: float
    stop: float
    roof: str = COPY

    @property
    def title(self) -> str:
        return f"{self.shape.op} {self.shape}, {self.shape.dtype}"


def _pools(P: int, K: int, **more: Any) -> Pools:
    return replace(Pools(P, K, 384, "float16"), **more)


_WHOLE = Pools(None, WHOLE_K, 384, "float16", WHOLE_Q, WHOLE_N)

# The goals whose outcome decides most come first.
GOALS = (
    Goal(_pools(100, 10), 0.70, 0.40),
    Goal(_pools(100, 10, op="vrsd"), 0.60, 0.30),
    Goal(_pools(100, 10, op="msd"), 0.60, 0.30),
    Goal(_pools(100, 10, Q=100_000), 0.70, 0.40),
    Goal(_pools(100, 10, dtype="float32"), 0.50, 0.35),
    Goal(replace(_WHOLE, op="search", K=100), 0.33, 0.21, PRODUCT),
    Goal(_WHOLE, 0.20, 0.07, PRODUCT),
    Goal(replace(_WHOLE, lambda_d=0.5), 0.10, 0.05, PRODUCT),
    Goal(_pools(1000, 10, op="vrsd"), 0.50, 0.30),
    Goal(Scores(512, LONG, None, "bfloat16"), 0.80, 0.75),
    Goal(Scores(512, 50_257, None, "bfloat16"), 0.80, 0.65),
    Goal(Scores(512, 32_000, None, "bfloat16"), 0.80, 0.60),
    Goal(Scores(512, LONG, 1024, "bfloat16"), 0.69, 0.56, PRODUCT),
    Goal(Scores(8, LONG, 1024, "bfloat16"), 0.85, 0.75),
    Goal(_pools(1000, 10), 0.65, 0.42),
    Goal(_pools(1000, 10, D=768), 0.65, 0.52),
    Goal(_pools(20, 4, Q=100_000), 0.70, 0.50),
    # The cost of a pick besides the one read of the pool; and rows that do not begin at 16 bytes.
    Goal(_pools(1000, 5, op="vrsd"), 0.55, 0.35),
    Goal(_pools(1000, 1, op="vrsd"), 0.65, 0.45),
    Goal(Scores(512, 50_256, None, "bfloat16"), 0.80, 0.65),
)


def of(small: bool = False) -> tuple[Goal, ...]:
    """Return the goals; ``small``: with the smallest problems that take the same forms, for a run without a GPU."""
    return tuple(goal._replace(shape=_small(goal.shape, n)) for n, goal in enumerate(GOALS)) if small else GOALS


def _small(shape: Pools | Scores, number: int) -> Pools | Scores:
    """Return a small shape that no other goal has."""
    if isinstance(shape, Scores):
        T, D = min(shape.T, 70), shape.D and 256
        return replace(shape, T=T if D else 3, V=300 + 2 * number + shape.V % 2, D=D)
    D = 32 if shape.dtype == "float32" else 24  # estimates take multiples of 32
    size = {"D": D, "Q": 2 + number % 5, "K": {1: 1, 5: 2}.get(shape.K, 3), "N": 61}
    if shape.P is None:
        size |= {"N": 2_050, "K": 2, "Q": 2}
    elif shape.P > 128:
        size |= {"D": 40, "N": 401, "Q": 2 + shape.D // 768}
    return replace(shape, P=shape.P and {20: 20, 100: 100}.get(shape.P, 140), **size)


# --- What a ledger says.


@dataclass(frozen=True)
class Found:
    """One of our forms on the shape of a goal."""

    goal: Goal
    form: Form
    us: float  # nan: it was not timed
    roof: float  # µs, nan: unknown
    torch: float  # µs of its fastest form, here or else in the published ledger; nan: unknown
    measured_here: bool  # what torch takes
    state: str  # empty: it is right and timed
    reason: str

    @property
    def share(self) -> float:
        return self.roof / self.us

    @property
    def timed(self) -> bool:
        """Whether it may win."""
        return not self.state and self.us > 0

    @property
    def above_stop(self) -> bool:
        return self.share >= self.goal.stop


def found(rows: Iterable[Row], among: Iterable[Goal] = GOALS) -> list[Found]:
    """Return every form of every goal: for each goal first the forms that may win, the fastest first."""
    rows, every = list(rows), list[Found]()
    published = [row for row in LEDGER.read() if row["device"]]
    for goal in among:
        own, before = ([row for row in some if is_of(row, goal)] for some in (rows, published))
        here = torch_of(own, goal)
        roof = min((float(row["us"]) for row in own if row["contender"] == goal.roof and row["us"]), default=math.nan)
        some = []
        for form in forms.of(goal.shape):
            row: Mapping[str, str] = _row_of(own, form) or {"us": "", "state": LEFT_OUT, "reason": "not reached"}
            us = float(row["us"] or math.nan)
            torch = torch_of(before, goal) if math.isnan(here) else here
            some.append(Found(goal, form, us, roof, torch, not math.isnan(here), row["state"], row["reason"]))
        every += sorted(some, key=lambda one: (not one.timed, one.us if one.timed else 0.0))
    return every


def is_of(row: Row, goal: Goal) -> bool:
    return (row["op"], row["shape"], row["dtype"]) == (goal.shape.op, str(goal.shape), goal.shape.dtype)


def _row_of(rows: Iterable[Row], form: Form) -> Row | None:
    mine = [row for row in rows if (row["backend"], row["contender"]) == (form.backend, form.contender)]
    return next((row for row in mine if row["us"]), mine[-1] if mine else None)


def torch_of(rows: Iterable[Row], goal: Goal) -> float:
    """Return the time of torch's fastest form."""
    names = forms.peers(goal.shape)
    return min((float(row["us"]) for row in rows if row["contender"] in names and row["us"]), default=math.nan)


def winners(every: Iterable[Found]) -> dict[Goal, Found]:
    """Return the fastest form with a right result of each goal that has one, even if it is below the stop."""
    best: dict[Goal, Found] = {}
    for one in every:
        if one.timed and (one.goal not in best or one.us < best[one.goal].us):
            best[one.goal] = one
    return best


def verdict(one: Found, winner: Found | None) -> str:
    """Return the verdict on a form, as text."""
    if not one.timed or winner is None:
        return {BEGUN: "ended with the race"}.get(one.state, one.state.upper()) + (f": {one.reason}" * bool(one.reason))
    level = "roof unknown" if math.isnan(one.share) else "" if one.above_stop else "below its stop"
    if one is not winner:
        behind = one.us / winner.us - 1
        return ", ".join(filter(None, (f"lost by {behind:.0%}" if behind > NOISE else "as fast", level)))
    reached = "reached" if one.share >= one.goal.share else f"goal {one.goal.share:.0%} missed"
    return f"wins, {level or reached}"


def told(rows: Sequence[Row], among: Sequence[Goal] = GOALS) -> str:
    """Return the table as text: every form of every goal, with its time or the reason why it has none."""
    every = found(rows, among)
    best, lines = winners(every), list[str]()
    for goal in among:
        own = [one for one in every if one.goal == goal]
        head = own[0]
        where = "here" if head.measured_here else "published, not timed here"
        against = "torch: none known" if math.isnan(head.torch) else f"torch {head.torch:.1f} µs ({where})"
        lines.append(f"{goal.title}: roof {_number(head.roof)} µs, {against}")
        for one in own:
            times = f"{one.torch / one.us:5.1f}x" if one.us > 0 and one.torch > 0 else ""
            share = f"{one.share:4.0%}" if one.share > 0 else ""
            text = verdict(one, best.get(goal))
            lines.append(f"  {one.form.name:48} {_number(one.us):>9} {share:>5} {times:>6}  {text}".rstrip())
        lines += [f"      {text}" for text in _causes(rows, best.get(goal))]
        lines += [f"  {text}" for text in _peers(rows, goal)]
    missing = [one for one in every if not one.timed]
    lines.append(f"{len(best)} of {len(among)} rows have a winner; {len(missing)} of {len(every)} forms have no time.")
    return "\n".join(lines)


def _number(us: float) -> str:
    return "-" if math.isnan(us) else f"{us:.1f}"


def _causes(rows: Iterable[Row], winner: Found | None) -> Iterator[str]:
    row = winner and _row_of([row for row in rows if is_of(row, winner.goal)], winner.form)
    for name, unit in (("clock_mhz", " MHz under load"), ("counts", ""), ("kernels", " µs")) if row else ():
        text = row.get(name, "") if row else ""
        if text:
            yield f"{name} {text}" if text.startswith(REFUSED) else f"{text}{unit}"


def _peers(rows: Iterable[Row], goal: Goal) -> Iterator[str]:
    """Yield a line for each contender of another library: its time, or why it has none."""
    own = {row["contender"]: row for row in rows if is_of(row, goal) and not row["backend"]}
    for name in (*roofs(goal), *forms.peers(goal.shape)):
        row = own.get(name)
        if row is None or row["state"]:
            why = "not reached" if row is None else f"{row['state']}: {row['reason']}".rstrip(": ")
            yield f"{name:48} {'-':>9}  {why}"
        elif name not in roofs(goal):
            yield f"{name:48} {_number(float(row['us'])):>9}"


def roofs(goal: Goal) -> tuple[str, ...]:
    return (COPY,) if goal.roof == COPY else (COPY, goal.roof)


def published_leads() -> dict[Goal, float]:
    """Return torch's fastest time divided by ours, if both are published."""
    rows, leads = LEDGER.read(), {}
    for goal in GOALS:
        own = [row for row in rows if is_of(row, goal)]
        ours = [float(row["us"]) for row in own if row["backend"] in forms.BACKENDS]
        if ours and not math.isnan(torch_of(own, goal)):
            leads[goal] = torch_of(own, goal) / min(ours)
    return leads
