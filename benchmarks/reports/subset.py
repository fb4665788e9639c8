"""A part of a data set, beside other libraries, into results/subset.md: what the picks are worth, times by N and k.

OMP_NUM_THREADS=1 python -m benchmarks.reports.subset [--quick] [--only PART ...] [--out FOLDER]

The rows are words of GloVe, unit vectors. Their quality is how frequent they are: 1 for the most frequent, 0 for the
least. Peers that are not installed are left out, and the page says so. Seconds are of the processor, by one thread, the
least of a few rounds in which the contenders take turns; times of one table are of one run.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import ragsys_kernels as rk
from benchmarks.harness import data, ledger
from benchmarks.reports import page_plots, style, tables

COLUMNS = ("part", "task", "contender", "rows", "k", "rounds", "seconds", "value")
OF_RUN = ("dims", "backend", "isa", "hardware", "commit", "date", "versions")
LEDGER = ledger.Ledger(ledger.RESULTS / "subset.csv", ("part", "task", "contender", "rows", "k"), (*COLUMNS, *OF_RUN))
PEERS = {
    "scikit-learn": "sklearn", "pyversity": "pyversity", "apricot-select": "apricot", "submodlib-py": "submodlib",
    "semhash": "semhash",
}  # fmt: skip
OURS = "ragsys_kernels"
ALT = "Radius, quality and facility location of the picks by their number: each rule is best at what it maximises"
ROWS, KS = 10_000, (10, 30, 100, 300, 1000)
GROWTH, GROWTH_KS = (3_000, 10_000, 30_000, 100_000), (10, 100, 1000)
NEIGHBORS, THRESHOLD, ROUNDS, DRAWS = 64, 0.9, 3, 5

Call = Callable[[], Any]  # returns rows


def words(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return unit vectors of the most frequent words, and their quality."""
    rows = np.array(data.glove(number), np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows, 1 - np.arange(number) / (number - 1)


# --- What the picks are worth.


class Worth:
    """What picks are worth to all rows, more and more of them."""

    def __init__(self, rows: np.ndarray, quality: np.ndarray) -> None:
        self._rows, self._quality = rows, quality

    def of(self, picks: np.ndarray) -> dict[str, float]:
        """Return the radius in degrees, the mean quality and the value of facility location."""
        nearest = np.full(len(self._rows), -1, np.float32)
        for begin in range(0, len(picks), 256):
            np.maximum(nearest, (self._rows @ self._rows[picks[begin : begin + 256]].T).max(axis=1), out=nearest)
        return {
            "radius": float(np.degrees(np.arccos(np.clip(nearest.min(), -1, 1)))),
            "quality": float(self._quality[picks].mean()),
            "facility": float(np.maximum(nearest, 0).mean()),
        }


def rules(corpus: rk.Corpus, quality: np.ndarray) -> dict[str, Callable[[int], np.ndarray]]:
    """Return what chooses k rows by each rule."""

    def chosen(k: int, **options: Any) -> np.ndarray:
        found = corpus.subset(k, num_threads=1, **options)
        assert found.lengths[0] == k  # GIST may choose fewer
        return found.indices[0]

    return {
        "MMR, λ_d = 0.5": partial(chosen, lambda_d=0.5, lambda_b=0.0),
        "k-center (MMR, λ_d = 0)": partial(chosen, lambda_d=0.0),
        "coverage": partial(chosen, rule="coverage", lambda_d=0.0),
        "GIST, λ_d = 3 / k": lambda k: chosen(k, rule="gist", lambda_d=min(1.0, 3 / k), lambda_b=0.0),
        "best by quality": lambda k: np.argsort(-quality, kind="stable")[:k],
    }


def picks(number: int, ks: Sequence[int]) -> Iterable[dict[str, Any]]:
    """Yield a row of the ledger for each rule, number of picks and measure."""
    rows, quality = words(number)
    worth = Worth(rows, quality)
    for name, chosen in rules(rk.Corpus(rows, bias=quality), quality).items():
        for k in ks:
            yield from _values(name, number, k, worth.of(chosen(k)))
    drawn = np.random.default_rng(0)
    for k in ks:
        draws = [worth.of(drawn.choice(number, k, replace=False)) for _ in range(DRAWS)]
        yield from _values("random", number, k, {name: np.mean([each[name] for each in draws]) for name in draws[0]})


def _values(name: str, number: int, k: int, found: dict[str, Any]) -> Iterable[dict[str, Any]]:
    for task, value in found.items():
        yield {"part": "picks", "task": task, "contender": name, "rows": number, "k": k, "value": float(value)}


# --- Times.


def raced(part: str, task: str, calls: dict[str, Call], rows: int, k: int, worth: Any, rounds: int) -> Any:
    """Yield a row of the ledger for each contender, which take turns; value: what its first result is worth."""
    values: dict[str, float] = {}
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            with _silence():
                begin = time.process_time()
                found = call()
                taken[name].append(time.process_time() - begin)
            if name not in values:
                values[name] = worth(np.asarray(found, np.int64))
    for name in calls:
        print(f"{task}, {rows:,} rows, k = {k:,}: {name} {min(taken[name]):.4f} s, {values[name]:.4f}", flush=True)
        yield {
            "part": part, "task": task, "contender": name, "rows": rows, "k": k, "rounds": rounds,
            "seconds": min(taken[name]), "value": values[name],
        }  # fmt: skip


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Keep what a library writes to the standard output, from C++ too, out of ours."""
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def growth(sizes: Sequence[int], ks: Sequence[int], rounds: int) -> Iterable[dict[str, Any]]:
    """Yield the times of our rules at each number of rows, for the middle k, and at each k, for the most rows."""
    middle = ks[len(ks) // 2]
    for number in sizes:
        rows, quality = words(number)
        corpus = rk.Corpus(rows, bias=quality)
        made = rules(corpus, quality)
        made["MSD, λ_d = 0.5"] = lambda k, own=corpus: own.subset(
            k, rule="msd", lambda_d=0.5, lambda_b=0.0, num_threads=1
        ).indices[0]
        del made["coverage"], made["best by quality"]
        for k in ks if number == sizes[-1] else (middle,):
            for name, chosen in made.items():
                yield from raced("growth", name, {OURS: partial(chosen, k)}, number, k, len, rounds)
        if number < sizes[-1]:  # the search for the neighbors grows with the square of the rows
            call: Call = lambda own=corpus: own.subset(  # noqa: E731
                middle, rule="coverage", lambda_d=0.0, neighbors=NEIGHBORS, index=False, num_threads=1
            ).indices[0]
            yield from raced(
                "growth", "coverage, 64 neighbors, with their search", {OURS: call}, number, middle, len, 1
            )


def peers(quick: bool, rounds: int) -> Iterable[dict[str, Any]]:
    """Yield the times of each task by every library that has it."""
    k = 20 if quick else 100
    for number in (400, 800) if quick else (1_000, 2_000, 4_000):
        rows, quality = words(number)
        value = Worth(rows, quality)
        yield from raced(
            "peers",
            "facility location",
            _coverage(rows, k),
            number,
            k,
            lambda p, of=value: of.of(p)["facility"],
            rounds,
        )
    for number in (400, 800) if quick else (4_000, 20_000, 100_000):
        rows, quality = words(number)
        value = Worth(rows, quality)
        yield from raced(
            "peers", "k-center", _spread(rows, k, number <= 4_000), number, k, lambda p, of=value: of.of(p)["radius"],
            rounds,
        )  # fmt: skip
        if number <= 20_000:
            yield from raced(
                "peers", "quality and spread", _mmr(rows, quality, k), number, k, _mmr_value(rows, quality), rounds
            )
            yield from raced("peers", f"duplicates at {THRESHOLD}", _duplicates(rows), number, 0, len, rounds)


def _has(distribution: str) -> bool:
    return find_spec(PEERS[distribution]) is not None


def _coverage(rows: np.ndarray, k: int) -> dict[str, Call]:
    """Facility location, the similarities included."""

    def apricot() -> Any:
        from apricot import FacilityLocationSelection

        given = np.maximum(rows @ rows.T, 0)
        return FacilityLocationSelection(k, metric="precomputed", optimizer="lazy").fit(given).ranking

    def submodlib() -> Any:
        from submodlib import FacilityLocationFunction

        given = np.maximum(rows @ rows.T, 0)
        function = FacilityLocationFunction(n=len(rows), mode="dense", sijs=given, separate_rep=False)
        return [row for row, _ in function.maximize(budget=k, optimizer="LazyGreedy")]

    calls: dict[str, Call] = {
        OURS: lambda: rk.Corpus(rows).subset(k, rule="coverage", lambda_d=0.0, num_threads=1).indices[0]
    }
    calls |= {"apricot-select, lazy": apricot} if _has("apricot-select") else {}
    return calls | ({"submodlib-py, LazyGreedy": submodlib} if _has("submodlib-py") else {})


def _spread(rows: np.ndarray, k: int, small: bool) -> dict[str, Call]:
    """k-center: the farthest-first traversal, and what else spreads."""

    def pairwise() -> Any:
        from sklearn.metrics import pairwise_distances

        chosen, nearest = [0], pairwise_distances(rows[:1], rows)[0]
        for _ in range(k - 1):
            chosen.append(int(nearest.argmax()))
            np.minimum(nearest, pairwise_distances(rows[chosen[-1:]], rows)[0], out=nearest)
        return chosen

    def plus_plus() -> Any:
        from sklearn.cluster import kmeans_plusplus

        return kmeans_plusplus(rows, k, random_state=0)[1]

    def pyversity() -> Any:
        from pyversity import diversify

        return diversify(rows, np.zeros(len(rows)), k, strategy="mmr", diversity=1.0).indices

    def submodlib() -> Any:
        from submodlib import DisparityMinFunction

        function = DisparityMinFunction(n=len(rows), mode="dense", sijs=rows @ rows.T)
        return [
            row
            for row, _ in function.maximize(
                budget=k, optimizer="NaiveGreedy", stopIfZeroGain=False, stopIfNegativeGain=False
            )
        ]

    calls: dict[str, Call] = {OURS: lambda: rk.Corpus(rows).subset(k, lambda_d=0.0, num_threads=1).indices[0]}
    if _has("scikit-learn"):
        calls |= {"scikit-learn, pairwise_distances": pairwise, "scikit-learn, kmeans_plusplus": plus_plus}
    calls |= {"pyversity, MMR": pyversity} if _has("pyversity") else {}
    return calls | ({"submodlib-py, DisparityMin": submodlib} if small and _has("submodlib-py") else {})


def _mmr(rows: np.ndarray, quality: np.ndarray, k: int) -> dict[str, Call]:
    """MMR with quality at λ_d = 0.5."""

    def pyversity() -> Any:
        from pyversity import diversify

        return diversify(rows, quality, k, strategy="mmr", diversity=0.5).indices

    calls: dict[str, Call] = {
        OURS: lambda: rk.Corpus(rows, bias=quality).subset(k, lambda_d=0.5, lambda_b=0.0, num_threads=1).indices[0]
    }
    return calls | ({"pyversity, MMR": pyversity} if _has("pyversity") else {})


def _mmr_value(rows: np.ndarray, quality: np.ndarray) -> Callable[[np.ndarray], float]:
    """Return what gives the mean of 0.5 quality - 0.5 redundancy of picks."""

    def value(chosen: np.ndarray) -> float:
        cosines = rows[chosen] @ rows[chosen].T
        redundancy = [cosines[i, :i].max() if i else 0.0 for i in range(len(chosen))]
        return float((0.5 * quality[chosen] - 0.5 * np.array(redundancy)).mean())

    return value


def _duplicates(rows: np.ndarray) -> dict[str, Call]:
    """Rows that no other kept one is a duplicate of."""

    def semhash() -> Any:
        from semhash import SemHash

        class Encoder:
            def encode(self, inputs: Any, **_: Any) -> np.ndarray:
                raise AssertionError("the vectors are given")

        made = SemHash.from_embeddings(rows, [str(row) for row in range(len(rows))], model=Encoder())
        return [int(row) for row in made.self_deduplicate(threshold=THRESHOLD).selected]

    calls: dict[str, Call] = {OURS: lambda: rk.duplicates(rows, THRESHOLD, num_threads=1).kept}
    return calls | ({"semhash, usearch": semhash} if _has("semhash") else {})


# --- The page.


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> str:
    """Return the slope of log time over log size, by least squares."""
    return f"{np.polyfit(np.log(sizes), np.log(seconds), 1)[0]:.2f}" if len(sizes) > 1 else ""


def _table_of_picks(rows: list[ledger.Row], task: str, shown: Callable[[float], str]) -> str:
    ks = sorted({int(row["k"]) for row in rows})
    of = {(row["contender"], int(row["k"])): float(row["value"]) for row in rows if row["task"] == task}
    names = dict.fromkeys(row["contender"] for row in rows)
    return tables.table(
        ["rule", *(f"k = {k:,}" for k in ks)], [[name, *(shown(of[name, k]) for k in ks)] for name in names], tight=True
    )


def _table_of_growth(rows: list[ledger.Row]) -> str:
    sizes, ks = (sorted({int(row[name]) for row in rows}) for name in ("rows", "k"))
    middle, most = ks[len(ks) // 2], sizes[-1]
    header = ["rule", *(f"{n:,} rows" for n in sizes), "exponent of N", *(f"k = {k:,}" for k in ks), "exponent of k"]
    lines = []
    for task in dict.fromkeys(row["task"] for row in rows):
        of = {(int(row["rows"]), int(row["k"])): float(row["seconds"]) for row in rows if row["task"] == task}
        by_rows, by_k = [n for n in sizes if (n, middle) in of], [k for k in ks if (most, k) in of]
        lines.append([
            task, *(f"{of[n, middle]:.4f}" if (n, middle) in of else "" for n in sizes),
            exponent(by_rows, [of[n, middle] for n in by_rows]),
            *(f"{of[most, k]:.4f}" if (most, k) in of else "" for k in ks),
            exponent(by_k, [of[most, k] for k in by_k]),
        ])  # fmt: skip
    return tables.table(header, lines, tight=True)


def _table_of_peers(rows: list[ledger.Row]) -> str:
    sizes = sorted({int(row["rows"]) for row in rows})
    of = {(row["contender"], int(row["rows"])): row for row in rows}
    lines = []
    for name in dict.fromkeys(row["contender"] for row in rows):
        own = [n for n in sizes if (name, n) in of]
        seconds = [float(of[name, n]["seconds"]) for n in own]
        ratio = seconds[-1] / float(of[OURS, own[-1]]["seconds"])
        lines.append([
            name, *(f"{float(of[name, n]['seconds']):.4f}" if n in own else "" for n in sizes), tables.factor(ratio),
            exponent(own, seconds), f"{float(of[name, own[0]]['value']):.4g}",
        ])  # fmt: skip
    header = ["library", *(f"{n:,} rows" for n in sizes), "times ours", "exponent of N", f"value, {sizes[0]:,} rows"]
    return tables.table(header, lines, tight=True)


WORTH: dict[str, tuple[str, str, Callable[[float], str]]] = {
    "radius": ("Radius", "largest angle from a row to its nearest pick, degrees", lambda x: f"{x:.1f}"),
    "quality": ("Quality", "mean quality of the picks", lambda x: f"{x:.3f}"),
    "facility": ("Facility location", "mean cosine of a row and its nearest pick", lambda x: f"{x:.3f}"),
}
TASKS = {
    "k-center": (
        "The value is the radius in degrees, of 4,000 rows. kmeans_plusplus draws rows at random. pyversity counts "
        "negative cosines as 0; DisparityMin has another first pick."
    ),
    "facility location": (
        "The value is that of facility location. The time includes the similarities of all rows and, of "
        "apricot-select, two seconds in which each new object is compiled."
    ),
    "quality and spread": (
        "MMR with λ = 0.5. The value is the mean of half the quality less half the redundancy of a pick. pyversity "
        "counts negative cosines as 0."
    ),
    f"duplicates at {THRESHOLD}": (
        "The value is the number of rows that are kept: of ours no two are as similar as that. semhash searches an "
        "approximate index."
    ),
}  # fmt: skip


def page(out: Path) -> None:
    """Write the page of a ledger, and its plot."""
    rows = LEDGER.within(out).read()
    parts: dict[str, list[ledger.Row]] = {}
    for row in rows:
        parts.setdefault(row["part"], []).append(row)
    about = (
        "Written by `make bench-subset` (`python -m benchmarks.reports.subset`). The rows are the most frequent words "
        "of GloVe, unit vectors of 50 dimensions; quality is 1 for the most frequent and falls to 0 for the least. "
        "Seconds are of the processor, by one thread, the least of three rounds in turns."
    )
    texts = [f"![{ALT}](subset.svg)"]
    for task, (title, what, shown) in WORTH.items():
        number = int(parts["picks"][0]["rows"])
        texts += [f"## {title}", f"Of {number:,} rows: {what}.", _table_of_picks(parts["picks"], task, shown)]
    ran, versions = parts["growth"][0], parts["peers"][0]["versions"]
    commits = ", ".join(f"{own[0]['commit']} ({part})" for part, own in parts.items())
    texts += [
        "## Growth",
        "Seconds of k = 100 by the number of rows, and of the most rows by k.",
        _table_of_growth(parts["growth"]),
    ]
    for task, what in TASKS.items():
        own = [row for row in parts["peers"] if row["task"] == task]
        texts += [f"## Beside others: {task}", textwrap.fill(what, 120), _table_of_peers(own)]
    texts += [f"{ran['hardware']} ({ran['isa']}), commits {commits}, {ran['date']}. {versions}."]
    tables.write(out / "subset.md", "A part of a data set", about, *texts)
    draw(out)


def draw(out: Path = ledger.RESULTS) -> None:
    """Draw the plot of the page that is in the folder."""
    colours = (style.BLUE, style.GREEN, style.ORANGE, style.RED, "#6a51a3", style.GREY)
    drawn, panels = style.figure(3.1, 1, 3)
    for axes, task in zip(panels, ("radius", "quality", "facility"), strict=True):
        found = page_plots.table(out / "subset.md", WORTH[task][0])
        ks = [int(column.removeprefix("k = ").replace(",", "")) for column in found[0] if column != "rule"]
        for row, colour in zip(found, colours, strict=True):
            values = [float(value) for name, value in row.items() if name != "rule"]
            axes.plot(ks, values, color=colour, marker="o", markersize=3, label=row["rule"])
        axes.set(
            title=WORTH[task][0], xscale="log", xlabel="picks k", xticks=(10, 100, 1000), xticklabels=(10, 100, "1,000")
        )
        axes.minorticks_off()
        axes.grid(axis="y")
    panels[0].set(ylabel="degrees: less is better")
    drawn.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, handlelength=1.4)
    style.save(drawn, out / "subset.svg")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes and one round, to show that it works")
    parser.add_argument("--only", nargs="*", default=["picks", "growth", "peers"], help="parts (%(default)s)")
    parser.add_argument("--out", type=Path, help="folder of the results; with --quick none is written without")
    given = parser.parse_args()
    if os.environ.get("OMP_NUM_THREADS") != "1":
        raise SystemExit("error: OMP_NUM_THREADS must be 1: all libraries get one thread")
    rounds = 1 if given.quick else ROUNDS
    sizes, ks = ((500, 1_000, 2_000), (5, 10, 20)) if given.quick else (GROWTH, GROWTH_KS)
    parts = {
        "picks": lambda: picks(1_000 if given.quick else ROWS, ks if given.quick else KS),
        "growth": lambda: growth(sizes, ks, rounds),
        "peers": lambda: peers(given.quick, rounds),
    }
    missing = [name for name in PEERS if not _has(name)]
    if missing:
        print(f"not installed and left out: {', '.join(missing)}", flush=True)
    own = {**ledger.environment(), "dims": 50, "versions": ledger.versions(["numpy", *PEERS])}
    out = given.out or (None if given.quick else ledger.RESULTS)
    for part in given.only:
        rows = [{**own, **row} for row in parts[part]()]
        if out is not None:
            into = LEDGER.within(out)
            into.replace([row for row in into.read() if row["part"] != part])
            into.update(rows)
    if out is not None:
        page(out)


if __name__ == "__main__":
    main()
