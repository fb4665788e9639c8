"""A model of the time of calls on an H200, out of machine code and sources alone, beside what was measured there.

    ragsys-kernels bench --static    # counts the kernels that have changed (results/model.csv), writes the page gpu.md

A launch takes as long as what keeps it longest: its bytes from memory, those from the last-level cache, its matrix
products (`static.py`), or its warps. A warp takes what it would alone, its chains of instructions that wait for one
another (`chain.py`), and waits behind the instructions of the warps that share its scheduler, of which one is issued in
a cycle; each loop as often as it runs (`sass.py`). A call takes LAUNCH more for each of its launches. **All of it is a
prediction.** Where a device has measured the call with the kernels at hand, the time stands beside it, and what is more
than WITHIN off is named as not understood. Where a scheduler has many warps (logits), the sum is an upper bound: one of
them issues while another waits.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from benchmarks.gpu import chain, compilation, compiled, encoded, sass, static
from benchmarks.gpu.devices import DEVICES, Device
from benchmarks.gpu.resources import Compiled
from benchmarks.gpu.shapes import MANY_QUERIES, WHOLE_K, WHOLE_N, WHOLE_Q, Pools, Q, Scores
from benchmarks.gpu.static import Case
from benchmarks.harness.contender import OURS
from benchmarks.harness.ledger import RESULTS, Ledger, Row
from benchmarks.suites.scoring_shapes import LONGEST, VOCABULARIES

# What is predicted: an H200, whose copy moves 4.2 TB/s (`gpu.csv`: 1.47 GB in 350 µs), at its largest clock.
CLOCK = 1.98e9
DEVICE = replace(
    next(device for device in DEVICES if device.name == "H200 SXM"), bandwidth=4.2e12, cache_bandwidth=5120 * CLOCK
)
MEASURED_ON = "NVIDIA H200"

# Seconds of a launch beside its work, fitted to what was measured; of one that finds no work (assumed).
LAUNCH, EMPTY = 4.4e-6, 2e-6

WITHIN = 0.25  # of what was measured

# What a loop has by itself: matrix instructions, reductions of integers by a warp, stores to memory, barriers.
MARKS = {"M": sass.MATRIX.pattern, "R": "^REDUX", "S": "^STG", "B": "^BAR"}

MANY = MANY_QUERIES[1]
# How often MMR out of a large pool looks for items that lack picks, at each step but the first.
ROUNDS = 2
# How many items out of 100 meet the picks by estimates, for ten picks (simulated).
MEETINGS = 11
# Checks after the first of MMR out of a whole corpus at λ_d = 0.5: 3.5 on average for 64 queries of GloVe.
LATER = 4

LEDGER = Ledger(
    RESULTS / "model.csv",
    ("kernel",),
    (
        "kernel",
        "compiler",
        "source",  # as in compiled.csv
        "instructions",  # outside of all loops, then of each, inner ones apart (`sass.parts`), with what it has (MARKS)
        "chain",  # cycles of one warp alone, likewise
        "cached",  # the same, where loads find what the block has read before
    ),
)


class Work(NamedTuple):
    """A launch: the case has its blocks, bytes and products.

    ``turns`` is how often a warp runs each loop, in their order; None: instructions are not counted. ``marked``: where
    each warp has code of its own, how often the loops with these marks (`MARKS`) run, each by one of the warps; all
    others run once.
    """

    case: Case
    turns: tuple[float, ...] | None = None
    marked: Mapping[str, float] = MappingProxyType({})
    times: int = 1  # that it is launched
    cached: bool = False  # loads in its loops find what the block has read before, in the first-level cache

    @property
    def counted(self) -> bool:
        return self.turns is not None or bool(self.marked)


@dataclass(frozen=True)
class Form:
    """A call by some kernels."""

    shape: Pools | Scores
    backend: str
    works: tuple[Work, ...]
    launches: int  # in all, with those of the works
    empty: int = 0  # more of them, which find no work
    variant: str = ""  # of its kernels
    measured: str | None = OURS  # what gpu.csv calls the same kernels; None: it has others

    @property
    def name(self) -> str:
        return f"{self.shape.op} {self.shape}, {self.shape.dtype}"

    def measured_us(self, rows: Iterable[Row]) -> float | None:
        """Return what a device took for it, from a CUDA graph where it was captured."""
        key = (self.shape.op, self.backend, str(self.shape), self.shape.dtype, MEASURED_ON, self.measured)
        names = ("op", "backend", "shape", "dtype", "device", "contender")
        for row in rows:
            if tuple(row[name] for name in names) == key:
                return float(row["graph_us"] or row["us"])
        return None


# --- What is predicted.


def forms() -> list[Form]:
    """Return the calls that are predicted, those that a device has measured first."""
    return [*_pools(), *_logprobs(), *_corpora()]


def _pools() -> Iterator[Form]:
    K, slices = 10, 384 / 64
    pool, few = Pools(100, K, 384, "float16"), Pools(20, 4, 384, "float16")
    on_chip = (
        (pool, "gram tile 128", (slices, K, 1, 0, 0)),
        # The fourth sums rows again where they cancel.
        (replace(pool, op="vrsd"), "gram 128", (slices, K, K, 0, 1, 0, 0)),
        # By the kernel that has all options: the fourth to the sixth are of a pick.
        (replace(pool, op="msd"), "gram 128", (slices, 0, 0, K, K, K, 1, 0, 0)),
        (few, "gram tile 32", (slices, 4, 4, 4, 1, 0, 0)),
        (replace(pool, Q=MANY), "gram tile 128", (slices, K, 1, 0, 0)),
        (replace(few, Q=MANY), "gram tile 32", (slices, 4, 4, 4, 1, 0, 0)),
    )
    for shape, kernel, turns in on_chip:
        yield Form(shape, "triton", (Work(_pool(shape, kernel), turns),), 2)
    wide = replace(pool, dtype="float32")
    # All slices are held; those of a pick come again.
    rows = Work(_pool(wide, "rows 128"), (0, K, 0, 0, 0), cached=True)
    yield Form(wide, "triton", (rows,), 2)
    yield Form(wide, "triton", (_estimates(wide),), 2, variant="float32=estimates", measured=None)
    for shape in (pool, replace(pool, op="vrsd"), replace(pool, op="msd"), replace(pool, Q=MANY), replace(few, Q=MANY)):
        # Slices of the rows; picks.
        gram = Work(_cuda_pool(shape), marked={"MB": slices, "RS": shape.K})
        yield Form(shape, "cuda", (gram,), 1, measured=None)

    rounds = ROUNDS * (K - 1)
    for D, dtype in ((384, "float16"), (768, "float16"), (384, "float32")):
        shape, slices = Pools(1000, K, D, dtype), D / 64
        tiles = -(-1000 // (8 if dtype == "float32" else 16))
        turns = (tiles, tiles * slices, 1, K, rounds, rounds, rounds, K, rounds, rounds * slices)
        if dtype == "float32":  # of the last but one, 87 of 320 are of a loop over slices
            meet = (rounds, rounds * slices, rounds * (1 + (slices - 1) * 87 / 320))
            turns = (*turns[:7], rounds, rounds, rounds, *meet, K)
        yield Form(shape, "triton", (Work(_pool(shape, "bounds"), turns),), 2)
    for K in (10, 5, 1):
        # Four slices in a turn; two more outside of the loop.
        shape, tiles, slices = Pools(1000, K, 384, "float16", op="vrsd"), -(-1000 // 32), 384 // 64 // 4
        passes = tiles * (K - 1)
        turns = (tiles, tiles * slices, 1, 1, K, 2 * K, passes, passes * slices)
        yield Form(shape, "triton", (Work(_pool(shape, "stream"), turns),), 2)
    # In a cluster of 32 warps one writes a pick. Loops over columns and the query; the norms; steps, and their parts.
    setup = (12, 12, 12, 2)
    for op, K in (("mmr", 10), ("vrsd", 10), ("vrsd", 5), ("vrsd", 1)):
        passes = static.PASSES * (K - 1) / 9
        steps = (K, K / 32, K, passes, 8 * passes, 0, 0, 0)
        # Without initial items. Of VRSD's sixth 1,255 of 1,409 sum rows again where they cancel.
        turns = (*setup, 0, *(0,) * 4, K, *steps) if op == "mmr" else (*setup, 3, K * 154 / 1409, *steps)
        shape = Pools(1000, K, 384, "float16", op=op)
        yield Form(shape, "cuda", (Work(_cuda_pool(shape), turns),), 1, measured=None)
    # Twice the columns of the query, and a lane's rows lie in two parts.
    K, passes = 10, static.PASSES
    turns = (12, 24, 24, 2, 0, *(0,) * 4, K, K, K / 32, K, passes, 8 * passes, 8 * passes, 0, 0, 0)
    shape = Pools(1000, K, 768, "float16")
    yield Form(shape, "cuda", (Work(_cuda_pool(shape), turns),), 1, measured=None)
    # Four tiles of a warp, read in each pass. A loop takes 32 dimensions and, where there are as many, 32 more.
    slices, passes = 4 * 384 / 64, static.PASSES * 4
    first, copies = (3, 6, 6, 12, 12, 1), (static.PASSES * 6,) * 2
    later = (*(static.PASSES * 32,) * 4, *copies, passes, static.PASSES * slices, static.PASSES * slices, 0)
    streamed = {
        "mmr": (*first, 4, slices, slices, *(0,) * 9, K, K, *later, 0, 0),
        # Of the eleventh some 570 of 819 sum rows again where they cancel.
        "vrsd": (*first[:3], 12, 12, 1, 2, 4, slices, slices, K * 249 / 819, *(0,) * 16, K, *later, K, 0, 0),
    }
    for op, turns in streamed.items():
        shape = Pools(4096, K, 384, "float16", op=op)
        yield Form(shape, "cuda", (Work(_cuda_pool(shape), turns),), 1, measured=None)


def _pool(shape: Pools, kernel: str) -> Case:
    """Return the case of a pool by Triton; ``kernel`` is the beginning of its name."""
    if shape.op == "msd":  # reads and multiplies what VRSD does
        like = _pool(replace(shape, op="vrsd"), kernel)
        return replace(like, op="msd", words=(kernel, "msd", "options", shape.dtype))
    wanted = (shape.op, f"P{shape.P}-K{shape.K}-D{shape.D}", shape.dtype)
    assert shape.P is not None
    for case in static.selection([(shape.P, shape.K)], [shape.D]):
        if (case.op, case.shape, case.dtype) == wanted and compilation.HOPPER in case.archs:
            return _of_queries(replace(case, words=(kernel, shape.op, "plain", shape.dtype)), shape.Q)
    raise LookupError(wanted)


def _cuda_pool(shape: Pools) -> Case:
    """Return the case of a pool by CUDA C++."""
    kernels = importlib.import_module("ragsys_kernels.selection.cuda.configuration")
    shared = DEVICE.processor.shared_block
    pools = kernels.Pools(shape.op, shape.dtype, shape.P, shape.P, shape.D, shape.K, False, 0, True, 90, shared)
    return _of_queries(static.cuda_case(pools, kernels.configure(pools), compilation.HOPPER), shape.Q)


def _of_queries(case: Case, queries: int) -> Case:
    """Return the case of another number of queries than Q."""
    programs = case.programs * queries // Q
    parts = {name: getattr(case, name) * queries / Q for name in ("floor", "once", "again", "cached", "flops")}
    return replace(case, units=queries, programs=programs, **parts)


def _estimates(shape: Pools) -> Work:
    """Return the launch of MMR by estimates: the matrix goes to memory, from which a pick reads a row."""
    estimates = importlib.import_module("ragsys_kernels.selection.triton.estimates")
    slots, K, D = estimates.SLOTS, shape.K, shape.D
    row, kept = 4 * D, 4 * Q * estimates.NUMBERS
    case = replace(
        _pool(shape, f"estimates {slots}"), matrix=True, flops=2 * Q * slots * slots * D * 2,  # TF32: half the rate
        again=Q * MEETINGS * (estimates.PICKS + 1) * row, working_set=K * row, cached=Q * K * slots * 4,
    )  # fmt: skip
    # The machine code has no loop of the picks alone. Of 195 and 352 instructions 105 find the best item, 90 + 33 let
    # it meet the picks, 27 take it, and 169 write the outputs once; the others are a copy for warps that diverge.
    turns = ((105 * (K + MEETINGS) + 90 * MEETINGS) / 195, (33 * MEETINGS + 27 * K + 169) / 352)
    return Work(replace(case, once=case.once + kept), (D / estimates.DIMS, *turns, 0, 0))


def _logprobs() -> Iterator[Form]:
    logits, linear = (importlib.import_module(f"ragsys_kernels.scoring.triton.{form}") for form in ("logits", "linear"))
    for V in (LONGEST, 50_257, 50_256, 32_000):
        shape, last = Scores(512, V, None, "bfloat16"), 1 / logits.splits_of(V)
        # A split; where rows begin anywhere, how packs are put together; the last split, element by element.
        turns = (1, 1 - last, last) if V % 8 else (1, last)
        like = _score(replace(shape, V=V if V in VOCABULARIES else 32_000))
        parts = {name: getattr(like, name) * V / int(like.shape.rpartition("V")[2]) for name in ("once", "flops")}
        case = replace(like, programs=shape.T * logits.splits_of(V), **parts)
        yield Form(shape, "triton", (Work(case, turns),), 1, measured=None)
    for T, V in ((8, 32_000), (8, 50_257), (8, LONGEST), (512, 32_000), (512, LONGEST)):
        shape, tiles = Scores(T, V, VOCABULARIES[V], "bfloat16"), linear.tiles_of_a_split(V)
        # Targets that no tile has; tiles; their slices; targets of the rows of a tile, few of which are in it.
        turns = (1, tiles, tiles * VOCABULARIES[V] / 64, tiles, 0, 1)
        yield Form(shape, "triton", (Work(_score(shape), turns),), 4)


def _score(shape: Scores) -> Case:
    """Return the case of log p by Triton."""
    wanted = (shape.op, str(shape), shape.dtype)
    for case in static.scoring():
        found = (case.op, case.shape, case.dtype) == wanted
        if found and compilation.HOPPER in case.archs:
            return case
    raise LookupError(wanted)


def _corpora() -> Iterator[Form]:
    whole = Pools(None, WHOLE_K, 384, "float16", WHOLE_Q, WHOLE_N)
    search, slices = replace(whole, K=100, op="search"), (whole.D / 64,)
    # Relevance once, then a product and a merge for each pick; queries are taken apart before.
    dense = (
        Work(_dense("relevance", 2, 4), slices),
        Work(_dense("first", 1, 8), slices),
        Work(_dense("step", 1, 12), slices, times=WHOLE_K - 2),
    )
    yield Form(whole, "triton", dense, 2 + 2 * WHOLE_K, variant="corpus=dense")
    half = replace(whole, lambda_d=0.5)
    yield Form(half, "triton", dense, 2 + 2 * WHOLE_K, variant="corpus=dense")
    # Products by bits: of a quarter of the rows for the bars, of all for the bits.
    found = (
        Work(_product("filter least 128", 128, N=WHOLE_N // 4), slices),
        Work(_product("filter bits 128", 128), slices),
    )
    yield Form(search, "triton", found, 7, measured=None)
    # The search, then a draft and one check, which proves all; then launches that find nothing: of more checks, and of
    # what would be left.
    draft = _pool(Pools(112, WHOLE_K, whole.D, "float16", WHOLE_Q), "gram tile 128")
    check = Work(_product(f"proof bits 64 x {WHOLE_K - 1}", 64, WHOLE_K - 1), slices)
    drafted = Work(draft, (*slices, WHOLE_K, 1, 0, 0))
    yield Form(whole, "triton", (*found, drafted, check), 14, empty=22 + 2 * WHOLE_K + 1, measured=None)
    # At λ_d = 0.5 later checks too, by few programs.
    again = _product(f"proof peaks 64 x {WHOLE_K - 1}", 64, WHOLE_K - 1, rows=64)
    dense = importlib.import_module("ragsys_kernels.selection.triton.dense")
    tiles, again = again.programs / dense.PROGRAMS, replace(again, programs=dense.PROGRAMS)
    checks = (drafted._replace(times=1 + LATER), check, Work(again, (tiles, tiles * slices[0]), times=LATER))
    launches, empty = 14 + 4 * LATER, 22 - 4 * LATER + 2 * WHOLE_K + 1
    yield Form(half, "triton", (*found, *checks), launches, empty, measured=None)


def _dense(kernel: str, parts: int, of_vectors: int) -> Case:
    """Return the case of a product of all rows that keeps values; ``of_vectors`` bytes for each row and query."""
    N, D, tile = WHOLE_N, 384, 64
    programs = -(-N // tile) * -(-WHOLE_Q // tile)
    return Case(
        op="mmr", shape=f"N{N}", dtype="float16", words=(f"corpus {kernel} 64", "mmr", "plain", "float16"),
        unit="queries", units=WHOLE_Q, programs=programs, floor=2 * N * D, once=2 * N * D + of_vectors * N * WHOLE_Q,
        cached=programs * D * 2 * tile * (1 + parts), flops=2 * N * D * WHOLE_Q * parts, matrix=True,
    )  # fmt: skip


def _product(kernel: str, queries: int, columns: int = 1, N: int = WHOLE_N, rows: int = 128) -> Case:
    """Return the case of a product of all rows that leaves bits or bests of tiles."""
    D = 384
    programs = -(-N // rows) * -(-WHOLE_Q // queries)
    return Case(
        op="search", shape=f"N{N}", dtype="float16", words=(kernel, "plain", "float16"), unit="queries", units=WHOLE_Q,
        programs=programs, floor=2 * N * D, once=2 * N * D + N * WHOLE_Q / 8,
        cached=programs * D * 2 * (rows + columns * queries), flops=2 * N * D * WHOLE_Q * columns, matrix=True,
    )  # fmt: skip


# --- Seconds.


class Count(NamedTuple):
    """What model.csv has of a kernel: of what is outside of all loops, then of each."""

    sizes: tuple[str, ...]  # instructions, with marks
    chain: tuple[float, ...]
    cached: tuple[float, ...]


def count_of(row: Row) -> Count:
    cycles = (tuple(map(float, row[name].split())) for name in ("chain", "cached"))
    return Count(tuple(row["instructions"].split()), *cycles)


def of_a_warp(work: Work, name: str, count: Count, warps: int) -> tuple[float, float]:
    """Return the instructions that each of the warps of a block issues, and the cycles that it takes alone."""
    marks = [size.lstrip("0123456789") for size in count.sizes]
    sizes = [float(size.removesuffix(mark)) for size, mark in zip(count.sizes, marks, strict=True)]
    turns: Sequence[float] = work.turns or ()
    share = 1.0
    if work.turns is None:
        turns, share = [work.marked.get(mark, 1) for mark in marks[1:]], 1 / warps
    if len(turns) != len(sizes) - 1:
        raise SystemExit(
            f"error: {name} has {len(sizes) - 1} loops by now, of {', '.join(f'{size:g}' for size in sizes[1:])} "
            "instructions: say in benchmarks/gpu/model.py how often each runs"
        )

    def of_all(each: Sequence[float]) -> float:
        return share * sum(times * one for times, one in zip((1, *turns), each, strict=True))

    return of_all(sizes), of_all((count.chain[0], *count.cached[1:]) if work.cached else count.chain)


def seconds(work: Work, kernel: Compiled, count: Count | None, device: Device = DEVICE) -> dict[str, float]:
    """Return what a launch takes by each of its limits."""
    case, processor = work.case, device.processor
    threads = kernel.threads or case.threads
    blocks = processor.blocks_resident(threads, kernel.registers, kernel.shared + case.shared)
    found = case.seconds(device, blocks)
    if work.counted:
        if count is None:
            raise SystemExit(f"error: model.csv lacks {kernel.name}: run `ragsys-kernels bench --static`")
        warps = -(-threads // processor.warp)
        issued, alone = of_a_warp(work, kernel.name, count, warps)
        waves = math.ceil(case.programs / (device.processors * blocks))  # the last takes as long as a whole one
        at_work = min(blocks, case.programs / device.processors) * warps / processor.partitions
        limit = "instructions" if at_work * issued > alone else "latency"
        found[limit] = waves * (alone + max(at_work - 1, 0) * issued) / CLOCK
    return found


class Predicted(NamedTuple):
    """What the model says of a form, in µs, and what was measured."""

    form: Form
    us: float
    limits: str  # of its launches
    measured: float | None

    @property
    def off(self) -> float:
        return math.nan if self.measured is None else self.us / self.measured - 1

    @property
    def understood(self) -> bool:
        return not abs(self.off) > WITHIN


def predict(form: Form, kernels: dict[str, Compiled], counted: dict[str, Count]) -> tuple[float, str]:
    """Return the µs of a call, and what its launches are bound by."""
    total, limits = form.launches * LAUNCH + form.empty * EMPTY, []
    for work in form.works:
        name = work.case.kernel(kernels)
        found = seconds(work, kernels[name], counted.get(name))
        limit = max(found, key=found.__getitem__)
        total += work.times * found[limit]
        limits.append(limit)
    return 1e6 * total, ", ".join(dict.fromkeys(limits))


def predictions(
    rows: list[Row], counted: list[Row], measured: list[Row], given: Iterable[Form] | None = None
) -> list[Predicted]:
    """Return all that is predicted, from the rows of compiled.csv, model.csv and gpu.csv."""
    kernels = {row["kernel"]: compiled.compiled_of(row) for row in _of_hopper(rows)}
    sources = {row["kernel"]: row["source"] for row in _of_hopper(rows)}
    if stale := sorted(row["kernel"] for row in counted if sources.get(row["kernel"]) != row["source"]):
        raise SystemExit(f"error: model.csv has counts of kernels that have changed since: {', '.join(stale)}")
    counts = {row["kernel"]: count_of(row) for row in counted}
    found = []
    for form in forms() if given is None else given:
        us, limits = predict(form, kernels, counts)
        found.append(Predicted(form, us, limits, form.measured_us(measured)))
    return found


def _of_hopper(rows: Iterable[Row]) -> list[Row]:
    return [row for row in compiled.newest(list(rows)) if row["arch"] == compilation.HOPPER]


# --- The ledger.


def refresh(folder: Path, rows: list[Row], processes: int | None = None) -> None:
    """Count the kernels of the forms that have changed, into model.csv of a folder."""
    ledger = LEDGER.within(folder)
    of_hopper = {row["kernel"]: row for row in _of_hopper(rows)}
    wanted = sorted({w.case.kernel(of_hopper) for form in forms() for w in form.works if w.counted})
    known = {row["kernel"]: row for row in ledger.read()}

    def is_known(name: str) -> bool:
        row = known.get(name)
        return bool(row and row.get("chain")) and all(row[x] == of_hopper[name][x] for x in ("compiler", "source"))

    missing = {name for name in wanted if not is_known(name)}
    tasks = [
        task
        for task in (compiled.tasks(processes) if missing else ())
        if task.arch == compilation.HOPPER
        and (task.name in missing or (task.path and any(of_hopper[x]["source"] == task.source for x in missing)))
    ]
    made: dict[str, Row] = {}
    newest = compiled.at_hand().get(compiled.NEEDED[-1])
    for name, code in encoded.compile_all(tasks, processes, newest):
        if name in missing:
            made[name] = LEDGER.texts({**of_hopper[name], **count(code)})
    ledger.path.unlink(missing_ok=True)
    ledger.update(made.get(name) or known[name] for name in wanted)


def count(code: str) -> dict[str, str]:
    """Return the columns of model.csv that are counted in a kernel's code."""
    instructions = sass.instructions(code)
    outside, loops = sass.parts(code)

    def told(names: Sequence[str]) -> str:
        marks = (mark for mark, pattern in MARKS.items() if any(re.search(pattern, name) for name in names))
        return f"{len(names)}{''.join(marks)}"

    inside = {place for loop in loops for place in loop.places}
    once = [one for place, one in enumerate(instructions) if place not in inside]
    again = [[instructions[place] for place in loop.places] for loop in loops]

    def chains(memory: float) -> str:
        cycles = [chain.cycles(once, memory=memory), *(chain.cycles(own, chain.PASSES, memory) for own in again)]
        return " ".join(f"{each:.0f}" for each in cycles)

    return {
        "instructions": " ".join([f"{len(outside)}", *(told(loop.own) for loop in loops)]),
        "chain": chains(chain.MEMORY),
        "cached": chains(chain.CACHED),
    }
