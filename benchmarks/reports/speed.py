"""The pages report.md and whole_corpus.md, and the tables of the README and of docs/speed.md, from the ledger."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from benchmarks.harness.contender import FLOOR, OURS, PRODUCT
from benchmarks.reports.bars import bars
from benchmarks.reports.runs import Race, Runs
from benchmarks.reports.tables import compared, faster, table, time
from benchmarks.suites import shapes
from benchmarks.suites.peers import FAISS, drop_in
from benchmarks.suites.selection import DENSE, GIVEN
from benchmarks.suites.shapes import SOURCES, Shape


def pools(runs: Runs, cases: Iterable[tuple[Shape, float]]) -> str:
    header = ["P, K, D, λ", "float32", "relevance given", "bfloat16", "pyversity", "LangChain", "LlamaIndex", FLOOR]
    rows = []
    for shape, lambda_d in cases:
        race = runs.race("mmr", shape, lambda_d)
        if race.has(OURS):
            ours = [time(race, OURS), time(race, GIVEN), time(race, OURS, "bfloat16")]
            peers = [compared(race, "pyversity", GIVEN), compared(race, "LangChain"), compared(race, "LlamaIndex")]
            rows.append([f"{sizes(shape)}, {lambda_d}", *ours, *peers, compared(race, FLOOR)])
    return table(header, rows)


def sizes(shape: Shape) -> str:
    extra = " near-duplicates" if shape.duplicates else ""
    source = "" if shape.source == "minilm" else f" {SOURCES[shape.source]}"
    return f"{shape.P}, {shape.K}, {shape.D}{source}{extra}"


def whole(runs: Runs) -> str:
    header = ["Corpus, λ, K", OURS, "one FAISS search", PRODUCT, "dense rule"]
    rows = []
    for shape, lambda_d in shapes.WHOLE:
        race = runs.race("mmr", shape, lambda_d)
        if race.has(OURS):
            name = f"{shape.N:,} {SOURCES[shape.source]} rows ({shape.D}), {lambda_d}, {shape.K}"
            rows.append([name, time(race, OURS), *(compared(race, each) for each in (FAISS, PRODUCT, DENSE))])
    return table(header, rows)


def others(runs: Runs) -> str:
    rows = []

    def add(what: str, peer: str, op: str, shape: Shape, lambda_d: float | None = None) -> None:
        race = runs.race(op, shape, lambda_d)
        if race.has(OURS):
            rows.append([what, time(race, OURS), peer, compared(race, peer)])

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


def _one_call(race: Race, peer: str, form: str) -> list[str]:
    """Return times of a peer's call, of ours in its place and of the batched op; nothing where it was not measured."""
    call = f"{peer}, {form}"
    ours = (f"{drop_in(peer)}, {form}", GIVEN if peer == "pyversity" else OURS)
    return [time(race, call), *(faster(race, each, call) for each in ours)] if race.has(call) else []


def drop_ins(runs: Runs) -> str:
    """Return a table of one call of each peer, ours in its place, and the batched op."""
    rows = []
    for shape in shapes.ONE_CALL:
        for peer in ("LangChain", "LlamaIndex", "pyversity"):
            for form in ("arrays", "lists"):
                if cells := _one_call(runs.race("drop-in", shape, 0.75), peer, form):
                    rows.append([f"{peer}, {form}, P={shape.P}, K={shape.K}", *cells])
    if not rows:
        return "Not measured on this machine.\n"
    first = next(row for row in runs.rows if row["op"] == "drop-in")
    return f"""\
{table(["One call", "the peer", "the drop-in", "batched op"], rows)}

Time per query in µs; in brackets, the peer's time divided by ours. One call of the peer, one of the drop-in with the
same arguments, and one query out of {shapes.ONE_CALL[0].Q:,} in a call of `ragsys_kernels.mmr` with a `Corpus` and
candidate ids (for pyversity, also the relevance). Random clusters of vectors, 384 dimensions, λ = 0.75, one
thread, medians; LlamaIndex's arrays are a list of arrays. {first["hardware"]}, {first["isa"] or first["backend"]},
{first["date"]}, commit {first["commit"] or "unknown"}.
"""


def rules(runs: Runs) -> str:
    """Return a table of the rules beside MMR and VRSD against pyversity's strategies."""
    rows = []
    for op, _, strategy in shapes.STRATEGIES:
        for shape in shapes.RULES:
            race = runs.race(op, shape, shapes.STRATEGY_LAMBDA)
            if race.has(OURS) and race.has("pyversity"):
                what = f"{op} ({strategy}), {sizes(shape)}" if op != strategy else f"{op}, {sizes(shape)}"
                rows.append([what, time(race, OURS), time(race, GIVEN), compared(race, "pyversity", GIVEN)])
    if not rows:
        return "Not measured on this machine.\n"
    header = ["Rule; P, K, D", "float32", "relevance given", "pyversity"]
    return f"""\
{table(header, rows)}

Time per query in µs; in brackets, pyversity's time divided by ours with given relevance, which pyversity requires. Our
calls have 2,000 queries, pyversity's have one. MiniLM, λ = {shapes.STRATEGY_LAMBDA}, one thread, picks
checked first.
"""


def short(runs: Runs) -> str:
    """Return the table of the README: single calls of each peer, and the whole corpus, at the default λ."""
    rows = []
    for peer in ("LangChain", "LlamaIndex", "pyversity"):
        for shape in shapes.ONE_CALL:
            if cells := _one_call(runs.race("drop-in", shape, 0.75), peer, "arrays"):
                rows.append([f"{peer}: {shape.K} of {shape.P} candidates", *cells])
    whole_cases = [case for case in shapes.WHOLE if case[1] == 0.75]
    for shape, lambda_d in whole_cases:
        race = runs.race("mmr", shape, lambda_d)
        if race.has(OURS):
            what = f"one exact FAISS search: {shape.K} of {shape.N:,} {SOURCES[shape.source]} rows ({shape.D})"
            rows.append([what, time(race, FAISS), "", faster(race, OURS, FAISS)])
    measured = _measured(runs, whole_cases, drop_ins=True)
    return f"""\
{table(["Peer", "peer's call", "drop-in call", "batched call"], rows)}

Time per query in µs; in brackets, the peer's time divided by ours. MMR at λ = 0.75, one thread, picks checked
first, {runs.last["hardware"]} ({runs.last["isa"] or runs.last["backend"]}).
Calls get arrays of 384 dimensions; lists are slower on both sides. A batch is 2,000 queries with candidate ids, or
256 queries over the whole corpus, where ours is exact MMR and FAISS ranks by relevance alone. {measured}.
"""


def _measured(runs: Runs, mmr: Iterable[tuple[Shape, float]], drop_ins: bool = False) -> str:
    """Return when, and of which commits, the rows of a table were measured."""
    rows = [row for case in mmr for row in runs.race("mmr", *case).rows.values()]
    rows += [row for row in runs.rows if drop_ins and row["op"] == "drop-in"]
    days: dict[str, set[str]] = {}
    for row in rows:
        days.setdefault(row["date"], set()).add(row["commit"] or "unknown")
    return "; ".join(
        f"{day}, commit{'s' if len(of) > 1 else ''} {' and '.join(sorted(of))}" for day, of in days.items()
    )


def summary(runs: Runs) -> str:
    last, cases = runs.last, [(shape, 0.75) for shape in shapes.POOLS]
    return f"""\
{last["hardware"]}, {last["isa"] or last["backend"]}, one thread each, float32 unless stated otherwise. Time per query
in µs, the median of rounds in which the contenders take turns; in brackets, the time divided by ragsys_kernels'. All
start from the corpus and the candidate ids, and all picks were checked first. pyversity gets the relevance, and so does
the ragsys_kernels run it is compared with; the others compute it. LlamaIndex uses another rule. Read floor: one
streaming read of the pools' bytes. {_measured(runs, [*cases, *shapes.WHOLE])}.

MMR out of pools of MiniLM embeddings (768 dimensions: a fixed random projection):

{pools(runs, cases)}

MMR over the whole corpus, exactly, in batches of 256 queries, against one exact FAISS search for K rows:

{whole(runs)}
"""


def growth(runs: Runs) -> str:
    """Return exponents x of time ~ size^x over the larger half of the library's points; linear is 1."""
    rows = []
    for what, (vary, fixed) in shapes.AXES.items():
        line = runs.points(vary, lambda_d=0.75, **fixed).get((OURS, "float32"), [])
        half = line[len(line) // 2 :]
        if len(half) > 1:
            size, time = (np.log([float(row[name]) for row in half]) for name in (vary, "us_per_query"))
            span = f"{vary} = {float(half[0][vary]):,.0f} to {float(half[-1][vary]):,.0f}"
            rows.append([what, span, f"{np.polyfit(size, time, 1)[0]:.2f}"])
    return table(["Time a query against", "points", "exponent"], rows)


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
    work = []
    for shape, lambda_d in shapes.WHOLE:
        race = runs.race("mmr", shape, lambda_d)
        if race.has(OURS):
            done, full = (race.number(name, OURS) for name in ("products", "dense_products"))
            what = f"{shape.N:,} {SOURCES[shape.source]}, {lambda_d}, {shape.K}"
            work.append([what, f"{done:,.0f}", f"{full:,.0f}", f"{done / full:.2%}"])
    return f"""\
# MMR over the whole corpus, exactly

Most systems select from a pool, because the rule costs a pass over its items for every pick. With `candidates=None` (or
`Corpus.select(..., pool=None)`) the pool is the whole corpus: scans of the rows' 8-bit codes (or matrix products) find
the rows that can be picked, and few rows are read. The picks equal the dense rule's, bit for bit. The table compares
this with one exact nearest-neighbour search (FAISS `IndexFlatIP`, top K) of the same queries in the same rounds, which
ranks by relevance alone, and with the bare matrix product. One thread each, batches of 256 queries, µs per query.

{whole(runs)}

![the whole corpus](whole_corpus.svg)

Dot products with the rows themselves, without those of the scans:

{table(["Corpus, λ, K", "float dot products a query", "of the dense rule", "share"], work, tight=True)}

{runs.last["hardware"]}, {runs.last["isa"]}, {_measured(runs, shapes.WHOLE)}. Written by
`python -m benchmarks.reports`.
"""
