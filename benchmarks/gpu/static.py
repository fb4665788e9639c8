"""The resources that kernels need, and the most that a device could give, from compiled code and public figures alone.

    ragsys-kernels bench --static    # compiles the kernels that changed, writes results/static.csv and the page gpu.md

Nothing is run on a GPU and nothing is timed: a bound says how fast an op could be if the device moved its bytes at the
full bandwidth of its memory, or did its products at the full rate, and nothing else took time. Real speeds are lower.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu import compilation, compiled
from benchmarks.gpu.devices import DEVICES, PROCESSORS, Device
from benchmarks.gpu.resources import Compiled
from benchmarks.gpu.shapes import DIMS, SIZES, WHOLE_K, WHOLE_N, WHOLE_Q, Q
from benchmarks.harness.ledger import RESULTS, Ledger
from benchmarks.suites.scoring_shapes import TOKENS, VOCABULARIES

LABEL = "computed bound, not a measurement"
_KEY = ("kernel", "arch", "op", "shape", "dtype", "device")
LEDGER = Ledger(
    RESULTS / "static.csv",
    _KEY,
    (
        *_KEY,
        "threads",  # of a block
        "shared",  # bytes of a block
        "blocks",  # that fit on a multiprocessor at a time
        "programs",  # of a launch
        "waves",  # programs over what fits on the device at a time; below 1 the device is not full
        "floor_bytes",  # of one unit: one read of the input
        "bytes",  # of one unit: what the kernel moves between device memory and the chip
        "flops",  # of one unit
        "bound",  # units a second
        "unit",
        "limit",  # what the bound comes from
        "what",
    ),
)
Sizes = Iterable[tuple[int, int]]  # candidates and picks
BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
# The generations that have tiles of their own (`compilers.is_hopper`).
GENERATIONS = (
    (True, (compilation.HOPPER,)),
    (False, tuple(arch for arch in compilation.ARCHITECTURES if arch != compilation.HOPPER)),
)
# Products of 16-bit parts that one of float32 is on matrix units.
PRODUCTS = 6
# How often MMR out of a large pool that comes best first reads a row, at λ_d = 0.75 with P = 1,000 and K = 10: counted
# on real vectors by `python -m benchmarks.gpu.traffic`.
MMR_READS = 1.2
# Passes over a pool by columns after the first, for ten picks: one to four on real vectors.
PASSES = 2


@dataclass(frozen=True)
class Case:
    """A named shape and the kernel that does its work. Bytes and flops are of one call."""

    op: str
    shape: str
    dtype: str
    words: tuple[str, ...]  # the kernel's name has all of them, commas left out
    unit: str  # "queries" | "rows"
    units: int  # of a call
    programs: int
    floor: float
    once: float  # bytes that come from, or go to, device memory whatever the cache holds
    flops: float
    matrix: bool = False  # by matrix instructions
    again: float = 0  # bytes read again, from the cache if the working sets of all programs at work fit there
    working_set: float = 0  # of a program
    cached: float = 0  # bytes that programs read from the last-level cache, all together
    archs: tuple[str, ...] = compilation.ARCHITECTURES
    threads: int = 0  # of a block, and its dynamic shared memory, where the launcher decides by the shape
    shared: int = 0

    def kernel(self, names: Iterable[str]) -> str:
        """Return the name of its kernel."""
        found = [name for name in names if all(f" {word} " in f" {name.replace(',', '')} " for word in self.words)]
        if len(found) != 1:
            raise SystemExit(f"error: {self.op} {self.shape}, {self.dtype}: not one kernel is {self.words}: {found}")
        return found[0]

    def moved(self, device: Device, blocks: int) -> tuple[float, float]:
        """Return the bytes that come from memory and from the last-level cache, by so many blocks a multiprocessor."""
        fits = min(self.programs, device.processors * blocks) * self.working_set <= device.cache
        return self.once + self.again * (not fits), self.cached + self.again * fits

    def seconds(self, device: Device, blocks: int) -> dict[str, float]:
        """Return the least that each of a device's limits allows."""
        moved, cached = self.moved(device, blocks)
        return {
            "memory": moved / device.bandwidth,
            "products": self.flops / (device.matrix16 if self.matrix else device.float32),
            "cache": cached / device.cache_bandwidth if device.cache_bandwidth else 0.0,
        }

    def bounds(self, device: Device, blocks: int) -> dict[str, object]:
        """Return the columns that depend on a device, ``blocks`` of the kernel on each of its multiprocessors."""
        room, seconds = device.processors * blocks, self.seconds(device, blocks)
        limit = max(seconds, key=seconds.__getitem__)
        return {
            "device": device.name,
            "programs": self.programs,
            "waves": self.programs / room if room else None,
            "floor_bytes": self.floor / self.units,
            "bytes": self.moved(device, blocks)[0] / self.units,
            "flops": self.flops / self.units,
            "bound": self.units / seconds[limit],
            "unit": self.unit,
            "limit": limit,
            "what": LABEL,
        }


def cases() -> Iterator[Case]:
    """Yield the shapes that bench.py times, with the launchers' own tiles."""
    yield from selection()
    yield from scoring()
    yield from cuda_selection()


def selection(sizes: Sizes = SIZES, dims: Iterable[int] = DIMS) -> Iterator[Case]:
    regime_a = importlib.import_module("ragsys_kernels.selection.triton.gram")
    regime_c = importlib.import_module("ragsys_kernels.selection.triton.dense")
    for op, dtypes in (("mmr", ("float32", "float16")), ("vrsd", ("float16",))):
        for dtype in dtypes:
            words = (op, "plain", dtype)
            for P, K in sizes:
                for D in dims:
                    read, work = Q * P * D * BYTES[dtype], 16 * P  # work: running vectors of a program of regime b
                    small = Q * (4 * D + 8 * P + 24 * K)  # query, ids, results
                    common = {"op": op, "shape": f"P{P}-K{K}-D{D}", "dtype": dtype, "unit": "queries", "units": Q}
                    common |= {"programs": Q, "floor": read}
                    if regime_a.GRAM_SLOTS >= P:
                        for hopper, archs in GENERATIONS:
                            yield _regime_a(regime_a, {**common, "archs": archs}, words, read, small, P, D, K, hopper)
                    else:
                        # MMR's rows meet two vectors or more at a time. VRSD adds the sum to a row and squares it; its
                        # first pass has norms beside products.
                        reads, kernel = (MMR_READS, "bounds") if op == "mmr" else (K, "stream")
                        yield Case(
                            **common, words=(kernel, *words), once=read + small + Q * work,
                            again=(reads - 1) * read + (K - 1) * Q * work, working_set=read / Q + work,
                            flops=2 * read / BYTES[dtype] * reads * 2,
                        )  # fmt: skip
            N, D, K = WHOLE_N, DIMS[0], WHOLE_K
            corpus, vectors = N * D * BYTES[dtype], 4 * N * WHOLE_Q
            for hopper, archs in GENERATIONS:
                tile = regime_c.corpus_tile(dtype, WHOLE_Q, D, op, hopper)
                by_parts = hopper and dtype == "float32"
                yield Case(
                    op=op, shape=f"N{N}-K{K}-D{D}-Q{WHOLE_Q}", dtype=dtype, unit="queries", units=WHOLE_Q,
                    words=("corpus", "step", str(tile.queries), *words),
                    programs=-(-N // tile.rows) * -(-WHOLE_Q // tile.queries), floor=K * corpus,
                    # v is written once, then a step reads it and the running vector, and writes that; the first finds
                    # none.
                    once=K * corpus + 3 * (K - 1) * vectors,
                    flops=2 * N * D * WHOLE_Q * K * (PRODUCTS if by_parts else 1),
                    matrix=dtype != "float32" or by_parts, archs=archs,
                )  # fmt: skip
            if op == "mmr":
                yield _by_proof(dtype)


def _by_proof(dtype: str) -> Case:
    """Return the case of the whole corpus by proof: the two products of a search, and the columns' of one check."""
    regime_c = importlib.import_module("ragsys_kernels.selection.triton.proof")
    N, D, K = WHOLE_N, DIMS[0], WHOLE_K
    corpus, blocks = N * D * BYTES[dtype], -(-WHOLE_Q // 64)
    tile = regime_c.product_tile(dtype, WHOLE_Q, D, K - 1, True, True)
    tiles = -(-N // tile.rows)
    return Case(
        op="mmr", shape=f"N{N}-K{K}-D{D}-Q{WHOLE_Q}, by proof", dtype=dtype, unit="queries", units=WHOLE_Q,
        words=("proof", "bits", f"{tile.queries} x {K - 1}", "plain", dtype), programs=tiles * blocks,
        floor=corpus, once=9 * corpus // 4 + 2 * N * WHOLE_Q // 8,
        # Of each tile its rows, and the columns of its queries.
        cached=tiles * blocks * D * (2.25 * tile.rows * BYTES[dtype] + (K + 0.25) * tile.queries * 2),
        flops=2 * N * D * WHOLE_Q * (K + 0.25), matrix=True,
    )  # fmt: skip


def _regime_a(
    regime_a: Any, common: dict[str, Any], words: tuple[str, ...], read: int, small: int, P: int, D: int, K: int,
    hopper: bool,
) -> Case:  # fmt: skip
    """Return the case of a pool on chip: a matrix of products, or rows of which some slices are read again."""
    dtype = common["dtype"]
    tile = regime_a.gram_tile(dtype, P, D, hopper=hopper)
    form = regime_a.form(dtype, tile, D, common["op"] == "mmr", hopper=hopper)
    if form["MATRIX"]:
        flops = 2 * Q * tile.rows * D * (tile.rows + 1)
        return Case(**common, words=(f"gram {tile.rows}", *words), once=read + small, flops=flops, matrix=True)
    again = read * (D - form["HELD"] * tile.dims) // D
    return Case(
        **common, words=(f"rows {tile.rows}", *words), once=read + small, again=(K - 1) * again,
        working_set=again / Q, flops=2 * Q * tile.rows * D * (K + 1),
    )  # fmt: skip


def scoring() -> Iterator[Case]:
    logits = importlib.import_module("ragsys_kernels.scoring.triton.logits")
    linear = importlib.import_module("ragsys_kernels.scoring.triton.linear")
    for V, D in VOCABULARIES.items():
        for T in TOKENS:
            for dtype in ("float32", "bfloat16"):
                size = BYTES[dtype]
                common = {"dtype": dtype, "unit": "rows", "units": T}
                block, _ = logits.split_size(V)
                splits = -(-V // block)
                # Rows that begin anywhere are read by packs that are put together.
                kernel = ("_logprob_logits_kernel", dtype, f"BLOCK={block}")
                yield Case(
                    **common, op="token_logprobs", shape=f"T{T}-V{V}",
                    words=(*kernel, *(("packs", "log p") if V * size % 16 else ("plain",))), programs=T * splits,
                    floor=T * V * size, once=T * (V * size + 16 * splits), flops=5 * T * V,
                )  # fmt: skip
                read = (V + T) * D * size
                splits = -(-V // (linear.COLUMNS * linear.tiles_of_a_split(V)))
                for hopper, archs in GENERATIONS:
                    tile = linear.tile_of(dtype != "float32", D, T, hopper)
                    row_tiles, by_parts = -(-T // tile.rows), hopper and dtype == "float32"
                    kernel = ("_logprob_linear_kernel", f"{dtype} x {dtype}", f"ROWS={tile.rows}")
                    yield Case(
                        **common, op="answer_logprobs", shape=f"T{T}-V{V}-D{D}",
                        words=(*kernel, f"DIMS={tile.dims}", "plain"),
                        programs=row_tiles * splits, floor=read, once=read + 16 * T * splits,
                        cached=linear_cache_bytes(T, V, D, size, tile.rows, linear.COLUMNS),
                        # Tiles are whole: rows beyond the last are multiplied too.
                        flops=2 * V * D * row_tiles * tile.rows * (PRODUCTS if by_parts else 1),
                        matrix=dtype != "float32" or by_parts, archs=archs,
                    )  # fmt: skip


def linear_cache_bytes(T: int, V: int, D: int, size: int, rows: int, columns: int) -> int:
    """Return what tiles of ``rows`` x ``columns`` logits read through the last-level cache, in bytes.

    Weights once for each tile of rows, hidden states once for each tile of columns; tiles are whole.
    """
    row_tiles, column_tiles = -(-T // rows), -(-V // columns)
    return (row_tiles * column_tiles) * (rows + columns) * D * size


def cuda_selection(sizes: Sizes = SIZES, dims: Iterable[int] = DIMS) -> Iterator[Case]:
    kernels = importlib.import_module("ragsys_kernels.selection.cuda.configuration")
    for arch in compilation.NVIDIA:
        for op in ("mmr", "vrsd"):
            for P, K in sizes:
                for D in dims:
                    pools = kernels.Pools(
                        op, "float16", P, P, D, K, False, 0, True, int(arch.removeprefix("sm_")),
                        PROCESSORS[arch].shared_block,
                    )  # fmt: skip
                    how = kernels.configure(pools)
                    if how is not None:
                        yield cuda_case(pools, how, arch)


def cuda_case(pools: Any, how: Any, arch: str) -> Case:
    """Return the case of a pool by a kernel of CUDA C++."""
    kernels = importlib.import_module("ragsys_kernels.selection.cuda.configuration")
    op, P, D, K = pools.op, pools.P, pools.D, pools.K
    read = Q * P * D * BYTES[pools.dtype]
    if how.source == kernels.GRAM_SOURCE:  # upper tiles of the products of all slots
        slots = int(how.kernel.split("_")[3])
        once, products = read, slots * (slots + 16) / 2 * D
    else:
        passes, rows = 1 + PASSES, how.blocks * (128 if how.source == kernels.RESIDENT_SOURCE else 1024)
        once = read if how.source == kernels.RESIDENT_SOURCE else passes * read
        products = passes * rows * D * 16
    return Case(
        op=op, shape=f"P{P}-K{K}-D{D}", dtype=pools.dtype, words=(how.kernel,), unit="queries", units=Q,
        programs=Q * how.blocks, floor=read, once=once + Q * (4 * D + 8 * P + 24 * K), flops=2 * Q * products,
        archs=(arch,), threads=how.threads, shared=how.shared, matrix=True,
    )  # fmt: skip


# --- The ledger.


def rows_of(kernels: Iterable[Compiled], made: Callable[[], Iterable[Case]] = cases) -> Iterator[dict[str, object]]:
    """Yield the rows of static.csv."""
    compiled_for = {(kernel.name, kernel.arch): kernel for kernel in kernels}
    names = sorted({name for name, _ in compiled_for})
    for case in made():
        name = case.kernel(names)
        for device in DEVICES:
            kernel = compiled_for.get((name, device.arch))
            if kernel is not None and device.arch in case.archs:
                threads, shared = kernel.threads or case.threads, kernel.shared + case.shared
                blocks = device.processor.blocks_resident(threads, kernel.registers, shared)
                yield {
                    "kernel": name,
                    "arch": device.arch,
                    "op": case.op,
                    "shape": case.shape,
                    "dtype": case.dtype,
                    "threads": threads,
                    "shared": shared,
                    "blocks": blocks,
                    **case.bounds(device, blocks),
                }


def write(folder: Path, processes: int | None = None) -> None:
    """Bring compiled.csv of a folder up to date and make static.csv from it."""
    rows = compiled.refresh(compiled.LEDGER.within(folder).path, processes)
    kernels = map(compiled.compiled_of, compiled.newest(rows))
    bounds = list(rows_of(kernels))
    ledger = LEDGER.within(folder)
    ledger.path.unlink(missing_ok=True)
    ledger.update(bounds)
    print(f"{len(bounds)} bounds in {ledger.path}")
