"""What a race decides: which kernels are the default, what goes, and what pages then say.

    python -m benchmarks.gpu.decide LEDGER [--apply]

LEDGER is the CSV of `race.py`. Each decision of `DECISIONS` names the rows that it needs, the forms among which it is,
and what goes with a form that wins none of its rows. A form wins a row if it is right, not slower than its limit, and
faster than the form that stays otherwise by more than both times vary. Of a form that was not timed nothing is guessed:
the decision is open. ``--apply`` puts the times into results/gpu.csv and writes the table of preferences by them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from benchmarks.gpu import goals, preference
from benchmarks.gpu.forms import Form
from benchmarks.gpu.goals import Found, Goal
from benchmarks.gpu.shapes import LEDGER, Pools, Scores
from benchmarks.harness.contender import OURS
from benchmarks.harness.ledger import ROOT, Row

# Two times differ where one is so much more, whatever they vary by.
LEAST_MARGIN = 0.03

# Of forms that are not right: they lose. Of all other forms without a time nothing is known.
LOST = (goals.WRONG, goals.FAILED, goals.KILLED)


class Choice(NamedTuple):
    """A form that a decision is about."""

    name: str
    form: Form
    goes: tuple[str, ...] = ()  # if it wins no row: files below the root, or what else


@dataclass(frozen=True)
class Decision:
    """A kind of call: one form stays for it, unless others win rows."""

    name: str
    shapes: tuple[Pools | Scores, ...]
    stays: Choice
    others: tuple[Choice, ...]


TRITON, CUDA, HELD = Form("triton"), Form("cuda"), Form("cuda", "pools=held")
DENSE, BESIDE, TMA = (Form("triton", name) for name in ("corpus=dense", "gram=query-beside", "linear=tma"))

# Files by the part of the package that they are.
SELECT = tuple(
    f"csrc/cuda/{name}"
    for name in (
        "greedy_select.cu", "select_bounds.cuh", "select_meet.cuh", "select_picks.cuh", "select_pool.cuh",
        "select_relevance.cuh", "select_rows.cuh", "selector.cuh",
    )
)  # fmt: skip
SCORING = (
    *(f"csrc/cuda/answer_logprob.{suffix}" for suffix in ("cu", "cuh")),
    *(f"csrc/cuda/score_{name}.cuh" for name in ("finish", "linear", "logits", "pairs")),
    *(f"ragsys_kernels/scoring/cuda/{name}.py" for name in ("backend", "configuration")),
    "tests/gpu/test_cuda_scoring.py",
    "tests/cuda_on_cpu/scoring.py",
)
PROOF = tuple(
    f"ragsys_kernels/selection/triton/{name}.py" for name in ("proof", "proof_kernels", "proof_product_kernels")
)
# What needs no device: 41 ms a call, where Triton takes 1.4.
ANYWAY = ("whole corpora by CUDA C++, which then refuses them by name",)


def _shapes(op: str, **sizes: object) -> tuple[Pools | Scores, ...]:
    """Return the shapes with goals of an op that have these sizes."""
    shapes = (goal.shape for goal in goals.GOALS if goal.shape.op == op)
    return tuple(shape for shape in shapes if all(getattr(shape, name) == value for name, value in sizes.items()))


def _on_chip(op: str) -> tuple[Pools | Scores, ...]:
    return _shapes(op, P=100, Q=2_000)


def _large(op: str) -> tuple[Pools | Scores, ...]:
    return _shapes(op, P=1000, K=10)


LOGITS, LINEAR = _shapes("token_logprobs"), _shapes("answer_logprobs")
MANY = tuple(shape for shape in LINEAR if isinstance(shape, Scores) and shape.T > 64)

DECISIONS = (
    *(
        Decision(f"{op} out of up to 128 rows", _on_chip(op), Choice("gram", TRITON), (Choice("small", CUDA),))
        for op in ("mmr", "vrsd", "msd")
    ),
    Decision(
        "the query of a pool on chip",
        _on_chip("mmr") + _on_chip("vrsd"),
        Choice("in the tile", TRITON, ("the variant gram=query-in-tile and its parts of queries",)),
        (Choice("beside it", BESIDE, ("the switch gram, and what of select_gram_kernel has no parts",)),),
    ),
    Decision("vrsd out of 129 to 1,024 rows", _large("vrsd"), Choice("stream", TRITON), (Choice("held", HELD),)),
    Decision("mmr out of 129 to 1,024 rows", _large("mmr"), Choice("bounds", TRITON), (Choice("held", HELD),)),
    Decision(
        "large pools without Triton",
        _large("vrsd") + _large("mmr"),
        Choice("held", HELD, ("the variant pools=held",)),
        (Choice("select", CUDA, (*SELECT, "the switch pools")),),
    ),
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
    Decision("log p by CUDA C++", LOGITS + LINEAR, Choice("Triton", TRITON), (Choice("CUDA C++", CUDA, SCORING),)),
    Decision(
        "log p of many hidden states",
        MANY,
        Choice("tiles", TRITON),
        (Choice("tma", TMA, ("ragsys_kernels/scoring/triton/linear_tma.py", "the switch linear")),),
    ),
)


@dataclass
class Outcome:
    """What is decided, row by row; ``open`` is why nothing is."""

    decision: Decision
    winners: dict[str, str] = field(default_factory=dict)  # the title of a row: the name of a choice
    told: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        names = list(dict.fromkeys(self.winners.values()))
        return "undecided" if self.open else " and ".join(names) + (", each for its rows" if len(names) > 1 else "")

    @property
    def goes(self) -> tuple[str, ...]:
        """What goes with the choices that have won no row."""
        if self.open:
            return ()
        choices = (self.decision.stays, *self.decision.others)
        return tuple(part for choice in choices if choice.name not in self.winners.values() for part in choice.goes)


class Race:
    """The forms and times of a ledger."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = [row for row in rows if row["us"] and not row.get("state")]
        self.found = goals.found(rows)
        self._times = {_key(row): row for row in self.rows}

    def of(self, goal: Goal, form: Form) -> Found | None:
        return next((one for one in self.found if (one.goal, one.form) == (goal, form)), None)

    def varies(self, one: Found) -> float:
        """Return how far apart times of a form are, as a share: of its rounds, and of two passes."""
        row = self._times[(one.form.backend, one.form.contender, *_shape_key(one.goal))]
        return max(float(row["iqr_us"] or 0) / one.us, float(row["spread"] or 0), LEAST_MARGIN)

    def margin(self, one: Found, other: Found) -> float:
        """Return how much slower another form has to be."""
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
            if one is None or not (one.timed or one.state in LOST):
                why = "is no form of it" if one is None else f"{one.state}: {one.reason}".rstrip(": ")
                outcome.open.append(f"{goal.title}: {choice.name} ({choice.form.name}) {why}")
            else:
                known[choice.name] = one
        if len(known) == 1 + len(decision.others):
            _row(outcome, goal, known, times)
    return outcome


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
    if not best:
        outcome.open.append(f"{goal.title}: no form is right and within its limit ({'; '.join(said)})")
        return
    outcome.winners[goal.title] = best
    rest = [one.us for name, one in known.items() if name != best and one.timed]
    by = f" by {min(rest) / known[best].us - 1:.0%}" if rest and min(rest) > known[best].us else ""
    outcome.told.append(f"{goal.title}: {best}{by} ({'; '.join(said)})")


def _limit(goal: Goal, form: Form) -> float:
    return preference.limit(goal.shape.op, str(goal.shape), form.backend, form.variant)


def _us(one: Found) -> str:
    return f"{one.us:.1f} µs" if one.timed else f"{one.state}: {one.reason}".rstrip(": ")


# --- What follows.


def merged(rows: Iterable[Row], published: Iterable[Row]) -> list[Row]:
    """Return the published rows with those of a race, each backend by the fastest of its forms in the package.

    Of a race only what is right and was timed; experiments (`forms.CHANGES`) are no forms of the package.
    """
    every = {tuple(row[name] for name in LEDGER.key): row for row in published}
    every |= {tuple(row[name] for name in LEDGER.key): row for row in rows if _publishable(row)}
    return list(every.values())


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
    """Yield experiments that are faster than all that the package has."""
    for goal in goals.GOALS:
        own = [one for one in times.found if one.goal == goal and one.timed]
        kept = min((one for one in own if not one.form.change), key=lambda one: one.us, default=None)
        for one in own:
            if kept is not None and one.us * (1 + times.margin(one, kept)) < kept.us:
                before = f"{kept.us / one.us - 1:.0%} before {kept.form.name}"
                yield f"{goal.title}: {one.form.name} {one.us:.1f} µs, {before}"


def lines_of(part: str) -> int | None:
    """Return the lines of a file below the root, None for what is none."""
    path = ROOT / part
    return len(path.read_text(encoding="utf-8").splitlines()) if "/" in part and path.is_file() else None


def report(rows: Sequence[Row], published: Sequence[Row]) -> str:
    """Return all that is decided, and what is not, as text."""
    times = Race(rows)
    outcomes = [decided(decision, times) for decision in DECISIONS]
    every = merged(rows, published)
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
        "Preferences, in ragsys_kernels/_gpu/preference.py": preference.lines(source, table),
        "Lines of README and docs": pages(defaults(every)).splitlines(),
    }
    for title, found in sections.items():
        text += ["", f"{title}:", *(f"  {line}" for line in found or ["nothing"])]
    return "\n".join(text)


def gone(outcomes: Iterable[Outcome]) -> Iterator[str]:
    """Yield what goes, files with their lines."""
    counted = 0
    for part in (*ANYWAY, *dict.fromkeys(part for outcome in outcomes for part in outcome.goes)):
        lines = lines_of(part)
        counted += lines or 0
        yield part if lines is None else f"{part}: {lines:,} lines"
    yield f"{counted:,} lines of files"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.decide", description=__doc__.splitlines()[0])
    parser.add_argument("ledger", type=Path, help="CSV of a race")
    parser.add_argument("--apply", action="store_true", help="put its times into gpu.csv, and write the preferences")
    given = parser.parse_args(arguments)
    rows = [LEDGER.texts(row) for row in LEDGER.at(given.ledger).read()]  # one of before the race lacks columns
    if not rows:
        parser.error(f"{given.ledger} has no rows of a race")
    print(report(rows, LEDGER.read()))
    if given.apply:
        LEDGER.update(merged(rows, ()))
        preference.main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
