"""What the ledger says: the tables of the README and of docs/speed.md, all rows with the bars, the whole corpus, plots.

python -m benchmarks.reports [--ledger CSV] [--root FOLDER] [--out FOLDER]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.harness import ledger
from benchmarks.reports import places
from benchmarks.suites import shapes
from benchmarks.suites.selection import DENSE, FAISS, FLOOR, GIVEN, OURS, PRODUCT, drop_in
from benchmarks.suites.shapes import Shape

Row = dict[str, str]


class Runs:
    """The ledger's rows of the machine and instruction set that were measured last, by what was timed together."""

    def __init__(self, rows: Sequence[Row]) -> None:
        rows = ledger.published(rows)
        if not rows:
            raise SystemExit("error: the ledger is empty: run `ragsys-kernels bench` first")
        where = ("hardware", "backend", "isa")
        # Of one day, what was added last; single calls are timed by themselves, and their table says when.
        timed_together = [row for row in rows if row["op"] != "drop-in"] or rows
        self.last = max(reversed(timed_together), key=lambda row: row["date"])
        self.rows = [row for row in rows if all(row[name] == self.last[name] for name in where)]
        self._found = {(r["op"], r["shape"], r["lambda_d"], r["contender"], r["dtype"]): r for r in self.rows}

    def row(self, op: str, shape: Shape, lambda_d: float | None, contender: str, dtype: str = "float32") -> Row | None:
        return self._found.get((op, str(shape), "" if lambda_d is None else f"{lambda_d:g}", contender, dtype))

    def number(
        self, column: str, op: str, shape: Shape, lambda_d: float | None, contender: str, dtype: str = "float32"
    ) -> float:
        """NaN where it was not measured."""
        row = self.row(op, shape, lambda_d, contender, dtype)
        return float(row[column]) if row and row[column] else np.nan

    def points(self, vary: str, **fixed: object) -> dict[tuple[str, str], list[Row]]:
        """MMR rows of each (contender, dtype) along one size, the other columns as given (None: empty)."""
        wanted = {"op": "mmr", "duplicates": "0", **{k: "" if v is None else str(v) for k, v in fixed.items()}}
        lines: dict[tuple[str, str], list[Row]] = {}
        for row in self.rows:
            if row[vary] and all(row[name] == value for name, value in wanted.items()):
                lines.setdefault((row["contender"], row["dtype"]), []).append(row)
        return {key: sorted(line, key=lambda row: float(row[vary])) for key, line in lines.items()}


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def micros(value: float) -> str:
    if np.isnan(value):
        return ""
    return f"{value:.1f}" if value < 99.5 else f"{value:,.0f}"


def factor(value: float) -> str:
    return f"{value:.2f}" if value < 2 else f"{value:.1f}" if value < 20 else f"{value:,.0f}"


class Cells:
    """Cells of one race: time a query, and in brackets the time over the library's."""

    def __init__(self, runs: Runs, op: str, shape: Shape, lambda_d: float | None = None) -> None:
        self._at = (runs, op, shape, lambda_d)

    def __call__(self, contender: str, dtype: str = "float32", compared: bool = True, over: str = OURS) -> str:
        runs, *case = self._at
        time, ratio = (runs.number(name, *case, contender, dtype) for name in ("us_per_query", "ratio"))
        ratio /= runs.number("ratio", *case, over)
        if np.isnan(time):
            return ""
        return micros(time) + (f" ({factor(ratio)}x)" if compared else "")

    def times(self, contender: str, over: str) -> str:
        """The time of one over that of another."""
        runs, *case = self._at
        one, other = (runs.number("ratio", *case, each) for each in (contender, over))
        return factor(one / other)

    @property
    def measured(self) -> bool:
        runs, *case = self._at
        return runs.row(*case, OURS) is not None


# --- Tables.


def pools(runs: Runs, cases: Iterable[tuple[Shape, float]]) -> str:
    header = ["P, K, D, λ", "float32", "relevance given", "bfloat16", "pyversity", "LangChain", "LlamaIndex", FLOOR]
    rows = []
    for shape, lambda_d in cases:
        cell = Cells(runs, "mmr", shape, lambda_d)
        if cell.measured:
            ours = [cell(OURS, compared=False), cell(GIVEN, compared=False), cell(OURS, "bfloat16", compared=False)]
            peers = [cell("pyversity", over=GIVEN), cell("LangChain"), cell("LlamaIndex")]
            rows.append([f"{sizes(shape)}, {lambda_d}", *ours, *peers, cell(FLOOR)])
    return table(header, rows)


def sizes(shape: Shape) -> str:
    extra = " near-duplicates" if shape.duplicates else ""
    source = "" if shape.source == "minilm" else f" {SOURCES[shape.source]}"
    return f"{shape.P}, {shape.K}, {shape.D}{source}{extra}"


SOURCES = {"minilm": "MiniLM", "glove": "GloVe", "synthetic": "synthetic"}


def whole(runs: Runs) -> str:
    header = ["Corpus, λ, K", OURS, "one FAISS search", PRODUCT, "dense rule"]
    rows = []
    for shape, lambda_d in shapes.WHOLE:
        cell = Cells(runs, "mmr", shape, lambda_d)
        if cell.measured:
            name = f"{shape.N:,} {SOURCES[shape.source]} rows ({shape.D}), {lambda_d}, {shape.K}"
            rows.append([name, cell(OURS, compared=False), cell(FAISS), cell(PRODUCT), cell(DENSE)])
    return table(header, rows)


def others(runs: Runs) -> str:
    rows = []

    def add(what: str, peer: str, op: str, shape: Shape, lambda_d: float | None = None) -> None:
        cell = Cells(runs, op, shape, lambda_d)
        if cell.measured:
            rows.append([what, cell(OURS, compared=False), peer, cell(peer)])

    for shape in shapes.ONE_QUERY:
        add(f"one query, P={shape.P}, K={shape.K}, D={shape.D}", "pyversity", "mmr", shape, 0.75)
    for shape in shapes.POOLS:
        add(f"VRSD, P={shape.P}, K={shape.K}, D={shape.D}", "NumPy", "vrsd", shape)
    for shape in sorted({shape for shape, _ in shapes.WHOLE}, key=str, reverse=True):
        add(f"VRSD, whole corpus, N={shape.N:,}, K={shape.K}, D={shape.D}", DENSE, "vrsd", shape)
    for shape in shapes.SEARCH:
        add(f"search, N={shape.N:,}, n={shape.K}, D={shape.D}", FAISS, "search", shape)
    for shape in shapes.THREADS:
        add(f"10,000 queries, P={shape.P}, K={shape.K}, D={shape.D}", f"{OURS}, 2 threads", "mmr", shape, 0.75)
    return table(["Work", OURS, "compared with", ""], rows)


def drop_ins(runs: Runs) -> str:
    """One call of each peer, ours in its place, and the batched op."""
    rows = []
    for shape in shapes.ONE_CALL:
        cell = Cells(runs, "drop-in", shape, 0.75)
        for peer in ("LangChain", "LlamaIndex", "pyversity"):
            for form in ("arrays", "lists"):
                call = f"{peer}, {form}"
                if time := cell(call, compared=False):
                    ours = (f"{drop_in(peer)}, {form}", GIVEN if peer == "pyversity" else OURS)
                    faster = [f"{cell(each, compared=False)} ({cell.times(call, each)}x)" for each in ours]
                    rows.append([f"{call}, P={shape.P}, K={shape.K}", time, *faster])
    if not rows:
        return "Not measured on this machine.\n"
    first = next(row for row in runs.rows if row["op"] == "drop-in")
    return f"""\
{table(["One call", "the peer", "the drop-in", "batched op"], rows)}

µs a query, and in brackets how many times as long the peer takes: one call of the peer, one of the drop-in with the
same arguments, and one query of {shapes.ONE_CALL[0].Q:,} in a call of `ragsys_kernels.mmr`, which has a `Corpus` and
candidate ids, and the relevance where pyversity has it. Random clusters of vectors, 384 dimensions, λ = 0.75, one
thread, medians; LlamaIndex's arrays are a list of arrays. {first["hardware"]}, {first["isa"] or first["backend"]},
{first["date"]}, commit {first["commit"] or "unknown"}.
"""


def short(runs: Runs) -> str:
    """The table of the README: single calls of each peer, and the whole corpus, at the default λ."""
    rows = []
    for peer in ("LangChain", "LlamaIndex", "pyversity"):
        for shape in shapes.ONE_CALL:
            cell, call = Cells(runs, "drop-in", shape, 0.75), f"{peer}, arrays"
            if time := cell(call, compared=False):
                ours = (f"{drop_in(peer)}, arrays", GIVEN if peer == "pyversity" else OURS)
                faster = [f"{cell(each, compared=False)} ({cell.times(call, each)}x)" for each in ours]
                rows.append([f"{peer}: {shape.K} of {shape.P} candidates", time, *faster])
    for shape, lambda_d in shapes.WHOLE:
        cell = Cells(runs, "mmr", shape, lambda_d)
        if cell.measured and lambda_d == 0.75:
            what = f"one exact FAISS search: {shape.K} of {shape.N:,} {SOURCES[shape.source]} rows"
            faster = f"{cell(OURS, compared=False)} ({cell.times(FAISS, OURS)}x)"
            rows.append([what, cell(FAISS, compared=False), "", faster])
    return f"""\
{table(["What it takes the place of", "its call", "our call in its place", "ours in a batch"], rows)}

µs a query, and in brackets how many times as long the other one takes. MMR at λ = 0.75, one thread, picks checked
first, {runs.last["hardware"]} ({runs.last["isa"] or runs.last["backend"]}). Calls get arrays of 384 dimensions; with
lists both sides take longer. A batch is 2,000 queries with candidate ids, or 256 over the whole corpus, where MMR is
exact and FAISS looks for relevance alone. {_measured(runs)}.
"""


def _measured(runs: Runs) -> str:
    """When, and of which commits, what was timed together and the single calls."""
    found = {(row["date"], row["commit"] or "unknown") for row in runs.rows if row["op"] == "drop-in"}
    found.add((runs.last["date"], runs.last["commit"] or "unknown"))
    return "Measured at " + " and ".join(f"commit {commit} ({date})" for date, commit in sorted(found))


def summary(runs: Runs) -> str:
    last = runs.last
    return f"""\
{last["hardware"]}, {last["isa"] or last["backend"]}, one thread each, float32 where nothing else is said; µs a query,
medians of rounds in which the contenders take turns; in brackets the time over ragsys_kernels'. All start from the
corpus and the candidate ids, and all picks were checked first. pyversity is given the relevance and is compared with
ragsys_kernels given it; the others compute it. LlamaIndex has another rule. Read floor: one streaming read of the
pools' bytes. {last["date"]}, commit {last["commit"] or "unknown"}.

MMR out of pools of MiniLM embeddings (768 dimensions: a fixed random projection):

{pools(runs, [(shape, 0.75) for shape in shapes.POOLS])}

MMR over the whole corpus, exactly, in batches of 256 queries, against one exact FAISS search for K rows:

{whole(runs)}
"""


# --- Bars.


@dataclass(frozen=True)
class Bar:
    """The time of ``over`` over the time of ``under`` (or µs) must be at least, or at most, the limit."""

    text: str
    cases: tuple[tuple[Shape, float], ...]
    limit: float
    over: tuple[str, str]
    under: tuple[str, str] | None = None
    at_least: bool = False

    def values(self, runs: Runs) -> list[float]:
        if self.under is None:
            return [runs.number("us_per_query", "mmr", *case, *self.over) for case in self.cases]
        pairs = [[runs.number("ratio", "mmr", *case, *side) for side in (self.over, self.under)] for case in self.cases]
        return [over / under for over, under in pairs]

    def met(self, value: float) -> str:
        if np.isnan(value):
            return "not measured"
        return "yes" if (value >= self.limit if self.at_least else value <= self.limit) else "**no**"


def _bars() -> list[Bar]:
    ours, given = (OURS, "float32"), (GIVEN, "float32")
    pool = {(shape.P, shape.D): tuple((shape, lambda_d) for lambda_d in shapes.LAMBDAS) for shape in shapes.POOLS}
    found = []

    def speed_up(peer: str, limits: dict[tuple[int, int], float], who: tuple[str, str], text: str) -> None:
        for (P, D), limit in limits.items():
            found.append(Bar(f"{peer} / {text}, P={P}, D={D}", pool[P, D], limit, (peer, "float32"), who, True))

    limits = {(20, 384): 25, (20, 768): 10, (100, 384): 14, (100, 768): 9, (1000, 384): 7, (1000, 768): 5}
    speed_up("pyversity", limits, ours, "ours")
    speed_up("pyversity", limits, given, "ours, relevance given")
    for dtype in shapes.OF_16_BITS:
        limits = {(100, 384): 18, (100, 768): 15, (1000, 384): 10, (1000, 768): 8}
        speed_up("pyversity", limits, (OURS, dtype), f"ours, {dtype}")
        speed_up("pyversity", limits, (GIVEN, dtype), f"ours, {dtype}, relevance given")
    speed_up("LangChain", {(100, 384): 150, (100, 768): 100}, ours, "ours")
    floor, at = (FLOOR, "float32"), "P=100, D=768"
    found.append(Bar(f"ours, relevance given / {FLOOR}, {at}", pool[100, 768], 1.5, given, floor))
    found.append(Bar(f"ours / {FLOOR}, {at}", pool[100, 768], 2.0, ours, floor))
    for shape in shapes.ONE_QUERY:
        case, at = ((shape, 0.75),), f"one query, P={shape.P}, K={shape.K}, D={shape.D}"
        found.append(Bar(f"{at}: µs", case, 15, ours))
        found.append(Bar(f"{at}: pyversity / ours", case, 1, ("pyversity", "float32"), ours, True))
    for shape, lambda_d in shapes.WHOLE:
        case, at = ((shape, lambda_d),), f"whole corpus, {shape.N:,} {SOURCES[shape.source]} rows, K={shape.K}"
        found.append(Bar(f"{at}: ours / FAISS", case, 0.7 if lambda_d == 0.75 else 1.2, ours, (FAISS, "float32")))
        if lambda_d == 0.75:
            found.append(Bar(f"{at}: ours / {PRODUCT}", case, 1.6, ours, (PRODUCT, "float32")))
    for shape in shapes.THREADS:
        two = (f"{OURS}, 2 threads", "float32")
        found.append(Bar(f"one thread / two, D={shape.D}", ((shape, 0.75),), 1.85, ours, two, True))
    return found


def bars(runs: Runs) -> str:
    rows = []
    for bar in _bars():
        for (_, lambda_d), value in zip(bar.cases, bar.values(runs), strict=True):
            sign = "≥" if bar.at_least else "≤"
            rows.append([bar.text, f"{lambda_d}", "" if np.isnan(value) else factor(value), f"{sign} {bar.limit:g}"])
            rows[-1].append(bar.met(value))
    return table(["Bar", "λ", "measured", "wanted", "met"], rows)


def growth(runs: Runs) -> str:
    """Exponents x of time ~ size^x over the larger half of the library's points; linear is 1."""
    rows = []
    for what, (vary, fixed) in AXES.items():
        line = runs.points(vary, lambda_d=0.75, **fixed).get((OURS, "float32"), [])
        half = line[len(line) // 2 :]
        if len(half) > 1:
            size, time = (np.log([float(row[name]) for row in half]) for name in (vary, "us_per_query"))
            span = f"{vary} = {float(half[0][vary]):,.0f} to {float(half[-1][vary]):,.0f}"
            rows.append([what, span, f"{np.polyfit(size, time, 1)[0]:.2f}"])
    return table(["Time a query against", "points", "exponent"], rows)


AXES = {
    "pool size P": ("P", {"N": 19_000, "D": 384, "K": 10, "Q": 2_000}),
    "picks K": ("K", {"N": 19_000, "D": 384, "P": 100, "Q": 2_000}),
    "dimensions D": ("D", {"N": 19_000, "P": 100, "K": 10, "Q": 2_000}),
    "rows N of the whole corpus, MiniLM, K = 6": ("N", {"D": 384, "P": None, "K": 6, "Q": 256}),
    "rows N of the whole corpus, GloVe, K = 6": ("N", {"D": 50, "P": None, "K": 6, "Q": 256}),
    "queries Q": ("Q", {"N": 19_000, "D": 384, "P": 100, "K": 10}),
}


# --- Files.

_ALL = {
    "op": "op", "shape": "shape", "dtype": "dtype", "lambda_d": "λ", "contender": "contender", "us_per_query": "µs",
    "iqr_us": "IQR", "ratio": "/ ours", "floor_us": "floor µs", "same_picks": "same picks", "products": "products",
    "dense_products": "dense", "bytes": "bytes", "threads": "threads", "rounds": "rounds", "note": "note",
}  # fmt: skip


def full_report(runs: Runs) -> str:
    return f"""\
# Benchmarks

Written by `python -m benchmarks.reports` from `ledger.csv`; `benchmarks/README.md` says what each number means.

{summary(runs)}
With near-duplicates (half of each pool), at both λ, and other sizes:

{pools(runs, [case for case in shapes.MMR if case[0] not in shapes.POOLS or case[1] != 0.75])}

Other work:

{others(runs)}

Drop-in calls:

{drop_ins(runs)}

![time against each size](scaling.svg)

![dot products done](work.svg)

## Growth

{growth(runs)}

## Bars

A quotient is of medians over the same rounds.

{bars(runs)}

## All rows

{runs.last["versions"]}

{table(list(_ALL.values()), [[row[name] for name in _ALL] for row in runs.rows])}
"""


def whole_page(runs: Runs) -> str:
    text = ["| Corpus, λ, K | float dot products a query | of the dense rule | share |", "|---|---:|---:|---:|"]
    for shape, lambda_d in shapes.WHOLE:
        names = ("products", "dense_products")
        done, full = (runs.number(name, "mmr", shape, lambda_d, OURS) for name in names)
        if not np.isnan(done):
            what = f"{shape.N:,} {SOURCES[shape.source]}, {lambda_d}, {shape.K}"
            text.append(f"| {what} | {done:,.0f} | {full:,.0f} | {done / full:.2%} |")
    work = "\n".join(text)
    return f"""\
# MMR over the whole corpus, exactly

Systems cut to a pool first, because the rule costs a pass over its items for every pick. With `candidates=None` (or
`Corpus.select(..., pool=None)`) the pool is the whole corpus: scans of 8-bit codes of the rows (or matrix products) say
which rows can be picked at all, and few rows are read. The picks are the dense rule's, bit for bit. Compared with one
exact nearest-neighbour search (FAISS `IndexFlatIP`, top K) of the same queries in the same rounds, which gives
relevance without diversity, and with the matrix product alone. One thread each, batches of 256 queries, µs a query.

{whole(runs)}

![the whole corpus](whole_corpus.svg)

What is left for the rows themselves, the products of the scans not counted:

{work}

{runs.last["hardware"]}, {runs.last["isa"]}, {runs.last["date"]}, commit {runs.last["commit"]}. Written by
`python -m benchmarks.reports`.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ledger", type=Path, default=ledger.PATH)
    parser.add_argument("--root", type=Path, default=places.ROOT, help="folder that has README.md and docs/speed.md")
    parser.add_argument("--out", type=Path, default=ledger.PATH.parent, help="folder for the pages and plots")
    arguments = parser.parse_args()
    runs = Runs(ledger.read(arguments.ledger))
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "report.md").write_text(full_report(runs), encoding="utf-8")
    (arguments.out / "whole_corpus.md").write_text(whole_page(runs), encoding="utf-8")
    from benchmarks.reports import page_plots, plots  # matplotlib is slow to import
    from benchmarks.reports import scoring as report_scoring  # and so is torch

    plots.draw(runs, arguments.out)
    page_plots.draw(arguments.out)
    scoring = report_scoring.write(arguments.ledger.with_name("scoring.csv"), arguments.out)
    parts = {"speed": short(runs), "ledger": summary(runs), "drop-ins": drop_ins(runs), "scoring": scoring}
    for part, text in parts.items():
        places.fill(arguments.root, part, text)


if __name__ == "__main__":
    main()
