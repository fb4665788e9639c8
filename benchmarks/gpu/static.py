"""What the kernels need of a device and what it could give at most, from compiled code and public figures alone.

    ragsys-kernels bench --static             # compiles every kernel, writes results/static.csv and the page gpu.md

Nothing is run on a GPU and nothing is timed: a bound says how fast an op could be if the device moved its bytes at the
full bandwidth of its memory, or did its products at the full rate, and nothing else took time. Real speeds are lower.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.gpu.devices import DEVICES, PROCESSORS, Device
from benchmarks.harness import ledger
from ragsys_kernels._gpu import resources
from ragsys_kernels._gpu.resources import Compiled, Job

PATH = ledger.PATH.with_name("static.csv")
COMPILED = ledger.PATH.with_name("compiled.csv")
# What compiles the kernels and reads what they need.
READER = Path(resources.__file__)
LABEL = "computed bound, not a measurement"
KEY = ("kernel", "arch", "op", "shape", "dtype", "device")
COLUMNS = (
    *KEY,
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
)
COMPILED_KEY = ("kernel", "arch")
COMPILED_COLUMNS = (
    *COMPILED_KEY,
    "source",  # digest of all that decides the machine code but the compiler
    "compiler",
    "threads",  # of a block; 0: the launcher decides
    "registers",
    "stack",
    "spills",
    "shared",  # static, for CUDA C++
    "matrix",  # kinds of matrix instructions, and how many
    "loads",  # bytes of a load from global memory, and how many
    "dot16",
    "wide_loads",
)
SIZES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class Case:
    """A named shape and the kernel that does its work. Bytes and flops are of one call."""

    op: str
    shape: str
    dtype: str
    words: tuple[str, ...]  # all in the kernel's name, commas left out
    unit: str  # "queries" | "rows"
    units: int  # of a call
    programs: int
    floor: float
    once: float  # bytes that come from, or go to, device memory whatever the cache holds
    flops: float
    matrix: bool = False  # by matrix instructions
    again: float = 0  # bytes read again, from the cache if the working sets of all programs at work fit there
    working_set: float = 0  # of a program
    arch: str = ""  # empty: on all of them
    threads: int = 0  # of a block, and its dynamic shared memory, where the launcher decides by the shape
    shared: int = 0

    def kernel(self, names: Iterable[str]) -> str:
        """The name of its kernel."""
        found = [name for name in names if all(f" {word} " in f" {name.replace(',', '')} " for word in self.words)]
        if len(found) != 1:
            raise SystemExit(f"error: {self.op} {self.shape}, {self.dtype}: not one kernel is {self.words}: {found}")
        return found[0]

    def bounds(self, device: Device, blocks: int) -> dict[str, object]:
        """The columns that depend on a device, ``blocks`` of the kernel on each of its multiprocessors."""
        room = device.processors * blocks
        at_work = min(self.programs, room)
        moved = self.once + (self.again if at_work * self.working_set > device.cache else 0)
        memory = moved / device.bandwidth
        compute = self.flops / (device.matrix16 if self.matrix else device.float32)
        return {
            "device": device.name,
            "programs": self.programs,
            "waves": self.programs / room if room else None,
            "floor_bytes": self.floor / self.units,
            "bytes": moved / self.units,
            "flops": self.flops / self.units,
            "bound": self.units / max(memory, compute),
            "unit": self.unit,
            "limit": "memory" if memory >= compute else "products",
            "what": LABEL,
        }


def cases() -> Iterator[Case]:
    """The shapes that bench.py times, with the launchers' own tiles."""
    yield from selection()
    yield from scoring()
    yield from cuda_selection()
    yield from cuda_scoring()


POOLS = ((20, 4), (100, 10), (1000, 10), (4096, 10))
DIMS = (384, 768)
Q = 2_000
WHOLE_Q, WHOLE_N, WHOLE_K = 256, 100_000, 6
TOKENS = (1, 8, 64, 512)
VOCABULARIES = {32_000: 2048, 50_257: 768, 151_936: 1024, 262_144: 640}  # and the hidden size of a model that has it


def selection() -> Iterator[Case]:
    kernels = importlib.import_module("ragsys_kernels.selection.triton_kernels")
    for op, dtypes in (("mmr", ("float32", "float16")), ("vrsd", ("float16",))):
        for dtype in dtypes:
            words = (op, "plain", dtype)
            for P, K in POOLS:
                for D in DIMS:
                    read, work = Q * P * D * SIZES[dtype], 16 * P  # work: running vectors of a program of regime b
                    small = Q * (4 * D + 8 * P + 24 * K)  # query, ids, results
                    common = {"op": op, "shape": f"P{P}-K{K}-D{D}", "dtype": dtype, "unit": "queries", "units": Q}
                    common |= {"programs": Q, "floor": read}
                    if kernels.gram_slots(dtype, D) >= P:
                        rows = kernels.gram_tile(dtype, P, D, plain=op == "mmr").rows
                        yield Case(
                            **common, words=("gram", str(rows), *words), once=read + small,
                            flops=2 * Q * rows * D * (rows + 1), matrix=dtype != "float32",
                        )  # fmt: skip
                    else:
                        yield Case(
                            **common, words=("stream", *words), once=read + small + Q * work,
                            again=(K - 1) * (read + Q * work), working_set=read / Q + work,
                            flops=2 * read / SIZES[dtype] * K,
                        )  # fmt: skip
            N, D, K = WHOLE_N, DIMS[0], WHOLE_K
            tile = kernels.corpus_tile(dtype, WHOLE_Q, D)
            corpus, vectors = N * D * SIZES[dtype], 4 * N * WHOLE_Q
            yield Case(
                op=op, shape=f"N{N}-K{K}-D{D}-Q{WHOLE_Q}", dtype=dtype, unit="queries", units=WHOLE_Q,
                words=("corpus", "step", str(tile.queries), *words),
                programs=-(-N // tile.rows) * -(-WHOLE_Q // tile.queries), floor=K * corpus,
                # A step reads v and the running vector and writes that; the first makes both.
                once=K * corpus + (2 + 3 * (K - 1)) * vectors, flops=2 * N * D * WHOLE_Q * K,
                matrix=dtype != "float32",
            )  # fmt: skip


def scoring() -> Iterator[Case]:
    kernels = importlib.import_module("ragsys_kernels.scoring.triton_kernels")
    for V, D in VOCABULARIES.items():
        for T in TOKENS:
            for dtype in ("float32", "bfloat16"):
                size = SIZES[dtype]
                common = {"dtype": dtype, "unit": "rows", "units": T}
                block, _ = kernels._block(V)
                splits = -(-V // block)
                yield Case(
                    **common, op="token_logprobs", shape=f"T{T}-V{V}",
                    words=("_logprob_logits_kernel", dtype, f"BLOCK={block}", "plain"), programs=T * splits,
                    floor=T * V * size, once=T * (V * size + 16 * splits), flops=5 * T * V,
                )  # fmt: skip
                tile = kernels._tile(dtype != "float32", D, False)
                row_tiles = -(-T // tile.rows)
                read = (V + T) * D * size
                splits = min(-(-V // tile.columns), kernels._SPLITS)
                yield Case(
                    **common, op="answer_logprobs", shape=f"T{T}-V{V}-D{D}",
                    words=("_logprob_linear_kernel", f"{dtype} x {dtype}", f"DIMS={tile.dims}", "plain"),
                    programs=row_tiles * splits, floor=read, once=read + 16 * T * splits,
                    # Tiles are whole: what is beyond the rows is multiplied too.
                    flops=2 * V * D * row_tiles * tile.rows, matrix=dtype != "float32",
                )  # fmt: skip


def cuda_selection() -> Iterator[Case]:
    kernels = importlib.import_module("ragsys_kernels.selection.cuda_kernels")
    for arch in resources.NVIDIA:
        for op in ("mmr", "vrsd"):
            for P, K in POOLS:
                for D in DIMS:
                    for dtype in ("float32", "float16"):
                        how = kernels.configure(op, dtype, P, D, K, False, PROCESSORS[arch].shared_block)
                        read, resident = Q * P * D * SIZES[dtype], "resident" in how.kernel
                        yield Case(
                            op=op, shape=f"P{P}-K{K}-D{D}", dtype=dtype, words=(how.kernel,), unit="queries", units=Q,
                            programs=Q, floor=read, once=read + Q * (4 * D + 8 * P + 24 * K),
                            again=0 if resident else (K - 1) * read, working_set=read / Q,
                            flops=2 * read / SIZES[dtype] * K, arch=arch, threads=how.threads, shared=how.shared,
                        )  # fmt: skip


def cuda_scoring() -> Iterator[Case]:
    kernels = {
        kernel.name: kernel
        for kernel in importlib.import_module("ragsys_kernels.scoring.cuda_kernels").kernels()
        if not kernel.name.endswith("_softcap")
    }
    for V, D in VOCABULARIES.items():
        for T in TOKENS:
            for dtype, suffix in (("float32", "f32"), ("bfloat16", "bf16")):
                size = SIZES[dtype]
                kernel = kernels[f"rsk_score_logits_{suffix}"]
                parts = -(-V // 8192)
                common = {"dtype": dtype, "unit": "rows", "units": T, "words": (kernel.name,)}
                yield Case(
                    **common, op="token_logprobs", shape=f"T{T}-V{V}", programs=T * parts, floor=T * V * size,
                    once=T * (V * size + 16 * parts), flops=5 * T * V, threads=kernel.threads(T, V, 0),
                    shared=kernel.shared_bytes(T, V, 0),
                )  # fmt: skip
                kernel = next(k for k in kernels.values() if "hidden" in k.name and k.fits(T, V, D))
                rows, slabs = int(kernel.name.rpartition("_")[2]), -(-V // 512)
                tiles = -(-T // rows)
                common["words"] = (kernel.name,)
                yield Case(
                    **common, op="answer_logprobs", shape=f"T{T}-V{V}-D{D}", programs=tiles * slabs,
                    floor=(T + V) * D * size, once=(T + V) * D * size + 16 * T * slabs,
                    flops=2 * V * D * tiles * rows, threads=kernel.threads(T, V, D),
                    shared=kernel.shared_bytes(T, V, D),
                )  # fmt: skip


# --- The ledgers.


def jobs(processes: int | None = None) -> list[Job]:
    """Everything there is to compile."""
    found = []
    with resources.pool(processes) as executor:
        for listed in executor.map(resources.triton_jobs, resources.TRITON_MODULES):
            found += listed
    if resources.nvcc() is not None:
        found += resources.cuda_jobs(sorted((Path(__file__).resolve().parents[2] / "csrc" / "cuda").glob("*.cu")))
    return found


def compiler(job: Job) -> str:
    return _nvcc() if job.path is not None else f"triton {metadata.version('triton')}"


@lru_cache(maxsize=1)
def _nvcc() -> str:
    said = subprocess.run([str(resources.nvcc()), "--version"], capture_output=True, text=True, check=True).stdout
    return f"nvcc {re.findall(r'V([0-9.]+)', said)[0]}"


def row_of(job: Job, kernel: Compiled) -> dict[str, object]:
    """A row of compiled.csv."""
    columns = ("threads", "registers", "stack", "spills", "shared")
    return {
        "kernel": kernel.name,
        "arch": kernel.arch,
        "source": job.source,
        "compiler": compiler(job),
        **{name: getattr(kernel, name) for name in columns},
        "matrix": _counts(kernel.matrix),
        "loads": _counts(kernel.loads),
        "dot16": int(kernel.dot16),
        "wide_loads": int(kernel.wide_loads),
    }


def compiled_of(row: Mapping[str, str]) -> Compiled:
    """What a row of compiled.csv says."""
    numbers = {name: int(row[name]) for name in ("threads", "registers", "stack", "spills", "shared")}
    flags = {name: row[name] == "1" for name in ("dot16", "wide_loads")}
    loads = {int(size): count for size, count in _read_counts(row["loads"]).items()}
    return Compiled(row["kernel"], row["arch"], **numbers, **flags, matrix=_read_counts(row["matrix"]), loads=loads)


def _counts(counts: Mapping[Any, int]) -> str:
    return " ".join(f"{kind}:{count}" for kind, count in sorted(counts.items()))


def _read_counts(text: str) -> dict[str, int]:
    return {kind: int(count) for kind, _, count in (part.partition(":") for part in text.split())}


def vouches(path: Path, *files: Path) -> bool:
    """Whether the checksums beside a compiled.csv are those of the files: of itself, or of the code that made it."""
    checksums = path.with_suffix(".sha256")
    if not (path.is_file() and checksums.is_file()):
        return False
    return set(map(_checksum, files)) <= set(checksums.read_text(encoding="utf-8").splitlines())


def _checksum(file: Path) -> str:
    return f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}"


def refresh(path: Path, processes: int | None = None) -> list[dict[str, str]]:
    """Bring compiled.csv up to date: what has not changed since it was compiled is not compiled again."""
    todo = jobs(processes)
    known: dict[tuple[str, str, str], list[dict[str, str]]] = {}
    for row in ledger.read(path) if vouches(path, path, READER) else []:
        known.setdefault((row["source"], row["arch"], row["compiler"]), []).append(row)

    def rows_for(job: Any) -> list[dict[str, str]]:
        """Configurations with different names may compile to the same; a CUDA C++ file has many kernels."""
        found = known.get((job.source, job.arch, compiler(job)), [])
        return [row for row in found if job.path is not None or row["kernel"] == job.name]

    rows: list[Mapping[str, object]] = [row for job in todo for row in rows_for(job)]
    todo = [job for job in todo if not rows_for(job)]
    failed = []
    for done, (job, result) in enumerate(resources.compile_all(todo, processes), 1):
        if isinstance(result, str):
            failed.append(result)
        else:
            rows += [row_of(job, kernel) for kernel in result]
        if done % 20 == 0 or done == len(todo):
            print(f"{done} of {len(todo)} compiled", flush=True)
            _save(path, rows)  # so that a run that is stopped has not been in vain
    _save(path, rows)
    if failed:
        raise SystemExit("error: not everything compiles:\n" + "\n".join(failed))
    return ledger.read(path)


def _save(path: Path, rows: list[Mapping[str, object]]) -> None:
    path.unlink(missing_ok=True)  # a kernel that is gone leaves no row
    rows = sorted(rows, key=lambda row: (str(row["kernel"]), str(row["arch"])))
    ledger.update(path, rows, COMPILED_KEY, COMPILED_COLUMNS)
    path.with_suffix(".sha256").write_text("".join(f"{_checksum(file)}\n" for file in (path, READER)), encoding="utf-8")


def rows_of(compiled: Iterable[Compiled], made: Callable[[], Iterable[Case]] = cases) -> Iterator[dict[str, object]]:
    """Rows of static.csv."""
    kernels = {(kernel.name, kernel.arch): kernel for kernel in compiled}
    names = sorted({name for name, _ in kernels})
    for case in made():
        name = case.kernel(names)
        for device in DEVICES:
            kernel = kernels.get((name, device.arch))
            if kernel is not None and case.arch in ("", device.arch):
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


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=PATH.parent, help="folder for the ledgers and the page")
    parser.add_argument("--root", type=Path, default=PATH.parents[2], help="folder that has docs/tested.md")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    given = parser.parse_args(arguments)
    rows = list(rows_of(map(compiled_of, refresh(given.out / COMPILED.name, given.processes))))
    path = given.out / PATH.name
    path.unlink(missing_ok=True)
    ledger.update(path, rows, KEY, COLUMNS)
    print(f"{len(rows)} bounds in {path}")
    from benchmarks.reports import gpu as report_gpu

    report_gpu.write(given.out, given.root)


if __name__ == "__main__":
    main()
