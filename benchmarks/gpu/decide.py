"""What a race decides: which kernels are the default, which are deleted, and which lines of pages change.

    python -m benchmarks.gpu.decide LEDGER [--apply]

LEDGER is the CSV of `race.py`, of one GPU. Each decision of `DECISIONS` names the rows that it needs, the forms to
choose from, and the code to delete if a form wins none of these rows. A form wins a row if its result is right, it is
not slower than its limit, and it is faster than the present form by more than both times vary. A form without a time
loses only if its result is wrong, or if it failed or was killed in its own turn and is not the present form; otherwise
the row is undecided.

``--apply`` puts the times into results/gpu.csv and writes the table of preferences from them. The times of a shape are
published together or not at all, so that all times that are compared come from one run. They are published only if no
decision about the shape is open, and the ledger has each form of the package, the copy, and the forms of torch whose
times are already published.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from benchmarks.gpu import forms, goals, preference
from benchmarks.gpu.forms import Form
from benchmarks.gpu.goals import Found, Goal
from benchmarks.gpu.shapes import LEDGER, Pools, Scores
from benchmarks.harness.contender import OURS
from benchmarks.harness.ledger import DIRTY, ROOT, Row, is_processor

# The state of rows in which a figure is no number.
UNREADABLE = "unreadable"
NUMBERS = (
    "us", "iqr_us", "spread", "host_us", "graph_us", "ratio", "floor_us", "bytes", "floor_bytes", "flops", "max_error",
    "same_picks",
)  # fmt: skip


class Choice(NamedTuple):
    """A form that a decision chooses from."""

    name: str
    form: Form
    goes: tuple[str, ...] = ()  # deleted if it wins no row: files below the root, or descriptions


@dataclass(frozen=True)
class Decision:
    """A kind of call: one form stays for it, unless others win rows."""

    name: str
    shapes: tuple[Pools | Scores, ...]
    stays: Choice
    others: tuple[Choice, ...]


TRITON, CUDA = Form("triton"), Form("cuda")
DENSE = Form("triton", "corpus=dense")
ESTIMATES = Form("triton", "float32=estimates")

# Files by the part of the package that they are.
PROOF = tuple(
    f"ragsys_kernels/selection/triton/{name}.py" for name in ("proof", "proof_kernels", "proof_product_kernels")
)


def _shapes(op: str, **sizes: object) -> tuple[Pools | Scores, ...]:
    """Return the shapes with goals of an op that have these sizes."""
    shapes = (goal.shape for goal in goals.GOALS if goal.shape.op == op)
    return tuple(shape for shape in shapes if all(getattr(shape, name) == value for name, value in sizes.items()))


def _on_chip(op: str, dtype: str) -> tuple[Pools | Scores, ...]:
    return _shapes(op, P=100, Q=2_000, dtype=dtype)


def _large(op: str) -> tuple[Pools | Scores, ...]:
    return _shapes(op, P=1000, K=10)


DECISIONS = (
    *(
        Decision(
            f"{op} out of up to 128 rows", _on_chip(op, "float16"), Choice("gram", TRITON), (Choice("CUDA gram", CUDA),)
        )
        for op in ("mmr", "vrsd", "msd")
    ),
    Decision(
        "mmr out of 65 to 128 rows of float32",
        _on_chip("mmr", "float32"),
        Choice("gram", TRITON),
        (Choice("estimates", ESTIMATES, ("ragsys_kernels/selection/triton/estimates.py", "the switch float32")),),
    ),
    Decision("vrsd out of 129 to 1,024 rows", _large("vrsd"), Choice("stream", TRITON), (Choice("columns", CUDA),)),
    Decision("mmr out of 129 to 1,024 rows", _large("mmr"), Choice("bounds", TRITON), (Choice("columns", CUDA),)),
    Decision(
        "mmr out of the whole corpus",
        _shapes("mmr", P=None),
        Choice("dense", DENSE, ("the switch corpus",)),
        (Choice("proof", TRITON, PROOF),),
    ),
    Decision(
        "search",
        _shapes("search"),
        Choice("values", Form("triton", "search=values"), ("the switch search: values only for n near N",)),
        (Choice("bits", TRITON, ("bits as a search of their own, by which proofs draft",)),),
    ),
)


@dataclass
class Outcome:
    """What is decided, row by row; ``open`` has the reasons why rows are undecided."""

    decision: Decision
    winners: dict[str, str] = field(default_factory=dict)  # the title of a row: the name of a choice
    told: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    undecided: set[str] = field(default_factory=set)  # titles of rows without a winner
    close: dict[str, list[str]] = field(default_factory=dict)  # faster within the noise: a choice's name, its rows

    @property
    def verdict(self) -> str:
        names = list(dict.fromkeys(self.winners.values()))
        return "undecided" if self.open else " and ".join(names) + (", each for its rows" if len(names) > 1 else "")

    @property
    def losers(self) -> tuple[Choice, ...]:
        """The choices that won no row and whose code is deleted."""
        if self.open:
            return ()
        choices = (self.decision.stays, *self.decision.others)
        return tuple(choice for choice in choices if choice.goes and choice.name not in self.winners.values())

    @property
    def goes(self) -> tuple[str, ...]:
        return tuple(part for choice in self.losers for part in choice.goes)

    def leave_open(self, goal: Goal, why: str) -> None:
        self.open.append(f"{goal.title}: {why}")
        self.undecided.add(goal.title)


class Race:
    """The forms and times of a ledger."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = [row for row in rows if row["us"] and not row.get("state")]
        self.found = goals.found(rows)
        self._times = {_key(row): row for row in self.rows}

    def of(self, goal: Goal, form: Form) -> Found | None:
        return next((one for one in self.found if (one.goal, one.form) == (goal, form)), None)

    def varies(self, one: Found) -> float:
        """Return by which share the times of a form vary, between rounds and between two passes."""
        return preference.varies(self._times[(one.form.backend, one.form.contender, *_shape_key(one.goal))])

    def margin(self, one: Found, other: Found) -> float:
        """Return by which share another form must be slower."""
        return max(self.varies(one), self.varies(other))


def _key(row: Row) -> tuple[str, ...]:
    return row["backend"], row["contender"], row["op"], row["shape"], row["dtype"]


def _shape_key(goal: Goal) -> tuple[str, str, str]:
    return goal.shape.op, str(goal.shape), goal.shape.dtype


def decided(decision: Decision, times: Race) -> Outcome:
    """Apply a decision's rule to its rows."""
    outcome = Outcome(decision)
    own = [goal for goal in goals.GOALS if goal.shape in decision.shapes]
    for goal in own:
        known: dict[str, Found] = {}
        for choice in (decision.stays, *decision.others):
            one = times.of(goal, choice.form)
            stays = choice is decision.stays
            if one is None or not (one.timed or (one.state == goals.WRONG if stays else _lost(one))):
                why = "is no form of it" if one is None else _why(one)
                outcome.leave_open(goal, f"{choice.name} ({choice.form.name}) {why}")
            else:
                known[choice.name] = one
        if len(known) == 1 + len(decision.others):
            _row(outcome, goal, known, times)
    return outcome


def _lost(one: Found) -> bool:
    """Return whether a form without a time is itself the reason, rather than its problem or an earlier form."""
    own_turn = not one.reason.startswith((goals.BEFORE_ITS_TURN, goals.ITS_PROBLEM))
    return one.state == goals.WRONG or (one.state in (goals.FAILED, goals.KILLED) and own_turn)


def _row(outcome: Outcome, goal: Goal, known: Mapping[str, Found], times: Race) -> None:
    """Add the winner of a row, or the reason that there is none."""
    decision = outcome.decision
    base = known[decision.stays.name]
    said, best = [f"{decision.stays.name} {_us(base)}"], decision.stays.name if base.timed else ""
    for choice in decision.others:
        one, limit = known[choice.name], _limit(goal, choice.form)
        said.append(f"{choice.name} {_us(one)}")
        if not one.timed:
            continue
        if one.us > limit:
            said[-1] += f", above its {limit:.0f}"
            continue
        against = known[best] if best else None
        if against is None or one.us * (1 + times.margin(one, against)) < against.us:
            best = choice.name
        elif one.us < against.us:
            said[-1] += f", within the {times.margin(one, against):.0%} by which times vary"
            outcome.close.setdefault(choice.name, []).append(goal.title)
    if not best:
        outcome.leave_open(goal, f"no form is right and within its limit ({'; '.join(said)})")
        return
    outcome.winners[goal.title] = best
    rest = [one.us for name, one in known.items() if name != best and one.timed]
    by = f" by {min(rest) / known[best].us - 1:.0%}" if rest and min(rest) > known[best].us else ""
    below = f", below its stop of {goal.stop:.0%}" if known[best].share < goal.stop else ""
    outcome.told.append(f"{goal.title}: {best}{by}{below} ({'; '.join(said)})")


def _limit(goal: Goal, form: Form) -> float:
    return preference.limit(goal.shape.op, str(goal.shape), form.backend, form.variant)


def _us(one: Found) -> str:
    return f"{one.us:.1f} µs" if one.timed else _why(one)


def _why(one: Found) -> str:
    return f"{one.state}: {one.reason}".rstrip(": ") or "has no time"


# --- The consequences.


def unpublished(rows: Sequence[Row], published: Sequence[Row], outcomes: Iterable[Outcome]) -> dict[Goal, str]:
    """Return for each goal with a time in the race why the published times of its shape stay."""
    found, reasons = goals.found(rows), {}
    undecided = set[str]().union(*(outcome.undecided for outcome in outcomes))
    for goal in goals.GOALS:
        own = [row for row in rows if row["us"] and goals.is_of(row, goal)]
        forms_of = [one for one in found if one.goal == goal and not one.form.change]
        timed = {row["contender"] for row in own if not row["state"]}
        peers = {row["contender"] for row in published if goals.is_of(row, goal)}
        peers &= {*goals.roofs(goal), *forms.peers(goal.shape)}
        lacks = [one.form.name for one in forms_of if not (one.timed or _lost(one))] + sorted(peers - timed)
        if not own:
            continue
        if lacks:
            reasons[goal] = f"the ledger has no time of {'; '.join(lacks)}"
        elif goal.title in undecided:
            reasons[goal] = "a decision about it is open"
        elif len({(row["commit"], row["date"]) for row in own}) > 1:
            reasons[goal] = "its times are of several commits or days"
    return reasons


def merged(rows: Sequence[Row], published: Sequence[Row], outcomes: Iterable[Outcome]) -> list[Row]:
    """Return the published rows, with those of the race for goals that it replaces as a whole.

    Rows of the race count only if their result is right, they were timed, and they are no experiments
    (`forms.CHANGES`), which are not in the package. If a form lost without a time, its published times are left out.
    """
    stay = unpublished(rows, published, outcomes)
    new = [row for row in rows for goal in goals.GOALS if goals.is_of(row, goal) and goal not in stay]
    lost = {_full_key(row) for row in new if row["state"] and row["backend"]}
    every = {_full_key(row): row for row in published if _full_key(row) not in lost}
    return list((every | {_full_key(row): row for row in new if _publishable(row)}).values())


def _full_key(row: Row) -> tuple[str, ...]:
    return tuple(row[name] for name in LEDGER.key)


def _publishable(row: Row) -> bool:
    """Return whether a row was timed, and is not of an experiment."""
    return (
        bool(row["us"]) and not row["state"] and (row["contender"].partition(", ")[0] != OURS or preference.is_own(row))
    )


def defaults(rows: Sequence[Row]) -> list[Row]:
    """Return rows in which each backend has the fastest of its forms under the library's own name."""
    best: dict[tuple[str, ...], Row] = {}
    for row in rows:
        if preference.is_own(row):
            key = (*_key({**row, "contender": OURS}), row["device"])
            if key not in best or float(row["us"]) < float(best[key]["us"]):
                best[key] = row
    return [
        *({**row, "contender": OURS} for row in best.values()),
        *(row for row in rows if not preference.is_own(row)),
    ]


def pages(rows: Sequence[Row]) -> str:
    """Return the lines of README and docs that times of a GPU change."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, LEDGER.path.name)
        LEDGER.at(path).replace(rows)
        # Reports are above this in the layers, so they are a command.
        command = [sys.executable, "-m", "benchmarks.reports.gpu", "--ledger", str(path), "--changes"]
        return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


def changes(times: Race) -> Iterator[str]:
    """Yield experiments that are faster than all forms of the package."""
    for goal in goals.GOALS:
        own = [one for one in times.found if one.goal == goal and one.timed]
        kept = min((one for one in own if not one.form.change), key=lambda one: one.us, default=None)
        for one in own:
            if kept is not None and one.us * (1 + times.margin(one, kept)) < kept.us:
                before = f"{kept.us / one.us - 1:.0%} before {kept.form.name}"
                yield f"{goal.title}: {one.form.name} {one.us:.1f} µs, {before}"


def lines_of(part: str) -> int | None:
    """Return the lines of a file below the root; None if it is no file."""
    path = ROOT / part
    return len(path.read_text(encoding="utf-8").splitlines()) if "/" in part and path.is_file() else None


def differences(outcomes: Iterable[Outcome], table: preference.Table, stay: Mapping[Goal, str]) -> Iterator[str]:
    """Yield the rows for which the table prefers another backend than the decision, and why."""
    for outcome in outcomes:
        choices = {choice.name: choice for choice in (outcome.decision.stays, *outcome.decision.others)}
        if len({choice.form.backend for choice in choices.values()}) == 1:
            continue
        for shape in outcome.decision.shapes:
            goal = next(goal for goal in goals.GOALS if goal.shape == shape)
            winner = outcome.winners.get(goal.title)
            if winner is None or not isinstance(shape, Pools) or shape.P is None:
                continue
            pools = table.get((shape.op, shape.dtype), ())
            is_cuda = any(least <= shape.P <= most and dims >= shape.D for least, most, dims in pools)
            first = "cuda" if is_cuda else "triton"
            if first != choices[winner].form.backend:
                why = "it compares the fastest form of each backend, and goes from the fewest dimensions on"
                if goal in stay:
                    why = f"its times stay as they are published: {stay[goal]}"
                yield f"{goal.title}: {first} is first, though {winner} wins: {why}"


def kept(rows: Iterable[Row], outcomes: Iterable[Outcome], stay: Mapping[Goal, str]) -> list[Row]:
    """Return the rows without those of forms to delete; all rows of shapes whose published times stay."""
    gone = {
        (choice.form.backend, choice.form.contender, *_shape_key(goal))
        for outcome in outcomes
        for choice in outcome.losers
        for goal in goals.GOALS
        if goal.shape in outcome.decision.shapes and goal not in stay
    }
    return [row for row in rows if _key(row) not in gone]


def report(rows: Sequence[Row], published: Sequence[Row]) -> str:
    """Return what is decided and what is undecided, as text."""
    times = Race(rows)
    outcomes = [decided(decision, times) for decision in DECISIONS]
    every = merged(rows, published, outcomes)
    stay = unpublished(rows, published, outcomes)
    source, table = preference.choice(every)
    text = [
        f"{part}: {', '.join(sorted({row[part] for row in times.rows if row[part]}))}" for part in ("device", "commit")
    ]
    for outcome in outcomes:
        text += ["", f"{outcome.decision.name}: {outcome.verdict}", *(f"  {line}" for line in outcome.told)]
        text += [f"  undecided: {line}" for line in outcome.open]
    sections = {
        "Goes": list(gone(outcomes)),
        "Experiments that are faster than all that the package has": list(changes(times)),
        "Times that stay as they are published": [f"{goal.title}: {why}" for goal, why in stay.items()],
        "Preferences, in ragsys_kernels/_gpu/preference.py": preference.lines(source, table),
        "Rows for which the preferences are not what is decided": list(differences(outcomes, table, stay)),
        "Lines of README and docs": pages(defaults(kept(every, outcomes, stay))).splitlines(),
    }
    for title, found in sections.items():
        text += ["", f"{title}:", *(f"  {line}" for line in found or ["nothing"])]
    return "\n".join(text)


def gone(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield what is deleted, files with their numbers of lines."""
    counted = 0
    for part in dict.fromkeys(part for outcome in outcomes for part in outcome.goes):
        lines = lines_of(part)
        counted += lines or 0
        yield part if lines is None else f"{part}: {lines:,} lines"
    yield f"{counted:,} lines of files"
    for outcome in outcomes:
        for choice in outcome.losers:
            if choice.name in outcome.close:
                close = f"{choice.name} goes though it is faster, within what times vary by"
                yield f"{outcome.decision.name}: {close}: {'; '.join(outcome.close[choice.name])}"


# --- The command.


def ledger_of(path: Path) -> list[Row]:
    """Return the rows of a race; raise ValueError or OSError if nothing can be decided by them."""
    if path.is_dir():
        raise ValueError(f"{path}: must be a CSV, is a folder")
    rows = [_readable(LEDGER.texts(row)) for row in LEDGER.at(path).read()]  # an older ledger lacks columns
    if not rows:
        raise ValueError(f"{path} has no rows of a race")
    if not any(goals.is_of(row, goal) for row in rows for goal in goals.GOALS):
        raise ValueError(f"{path}: no row is of a shape that has a goal (benchmarks/gpu/goals.py)")
    if len({_full_key(row) for row in rows}) < len(rows):
        raise ValueError(f"{path}: two rows are of the same call")
    devices = sorted({row["device"] for row in rows if row["device"] or row["us"]})
    if len(devices) > 1:
        raise ValueError(f"{path}: rows must be of one device, got {', '.join(map(repr, devices))}")
    if any(not device or is_processor(device) for device in devices):
        raise ValueError(f"{path}: rows must be of a GPU, got {devices[0]!r}")
    return rows


def _readable(row: Row) -> Row:
    """Return a row; if one of its figures is no number, without its time and with the reason."""
    for name in NUMBERS:
        try:
            value = float(row[name] or 1)
        except ValueError:
            value = math.nan
        if not 0 <= value < math.inf or (name == "us" and value == 0):
            reason = f"{name} must be a number {'above' if name == 'us' else 'from'} 0, got {row[name]!r}"
            return {**row, "us": "", "state": UNREADABLE, "reason": reason}
    return row


def _check_applicable(rows: Iterable[Row]) -> None:
    """Raise ValueError if rows cannot be published."""
    commits = sorted({row["commit"] for row in rows if row["us"]})
    if len(commits) > 1:
        raise ValueError(f"--apply: times must be of one commit, got {', '.join(map(repr, commits))}")
    if any(not commit or commit.endswith(DIRTY) for commit in commits):
        raise ValueError(
            f"--apply: times must be of a commit, got {commits[0]!r}: set RAGSYS_KERNELS_COMMIT where the race runs"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.decide", description=__doc__.splitlines()[0])
    parser.add_argument("ledger", type=Path, help="CSV of a race")
    parser.add_argument("--apply", action="store_true", help="put its times into gpu.csv, and write the preferences")
    given = parser.parse_args(arguments)
    try:
        rows = ledger_of(given.ledger)
        if given.apply:
            _check_applicable(rows)
    except (OSError, ValueError) as error:
        parser.exit(2, f"error: {error}\n")
    published = LEDGER.read()
    print(report(rows, published))
    if given.apply:
        times = Race(rows)
        LEDGER.replace(merged(rows, published, [decided(decision, times) for decision in DECISIONS]))
        preference.main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
