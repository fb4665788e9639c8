"""Ten million rows: how fast `corpus build` makes segments of them, and how fast the exact search goes against FAISS's.

The build is the command, in a process of its own: all of it counts, from its start to its end. Searches are for 100
rows, by a query alone and in batches of 64 and 1,024, in turns with `faiss.knn`, which is what a flat index runs, over
the same rows in memory, and with the bare product of NumPy, which finds nothing. Both searches find the same rows, but
for those whose scores differ by less than rounding.

Vectors are synthetic: clusters around random directions, and queries near them.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import ragsys_kernels as rk
from benchmarks.harness import ledger, memory
from benchmarks.harness.race import Turn, processor, take_turns
from ragsys_kernels import _info

CLUSTERS, NOISE, BLOCK = 20_000, 0.7, 1 << 18
BATCHES, FOUND = (1, 64, 1024), 100
PEAK = (
    "import atexit\n"
    "from benchmarks.harness import memory\n"
    "from ragsys_kernels.cli import main\n"
    "atexit.register(lambda: print(memory.peak()))\n"
    "main()\n"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000, help="(%(default)s)")
    parser.add_argument("--dims", type=int, default=96, help="(%(default)s)")
    parser.add_argument("--dtypes", nargs="+", default=["int8", "float32"], help="the last is searched (%(default)s)")
    parser.add_argument("--segment", type=int, default=500_000, help="rows of a segment (%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="of the searches (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--folder", help="where the files lie for a while: 12 GB with the defaults")
    options = parser.parse_args()
    print(
        f"{ledger.hardware()}, {' '.join(_info.active())}, load before {os.getloadavg()[0]:.1f}, "
        f"commit {ledger.environment()['commit']}"
    )
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        queries = write(folder / "rows.npy", options.rows, options.dims)
        for dtype in options.dtypes:
            build(folder, dtype, options)
        (folder / "rows.npy").unlink()
        race(rk.Corpus.load(folder / f"corpus-{options.dtypes[-1]}"), queries, options)


def write(file: Path, rows: int, dims: int) -> np.ndarray:
    """Write the rows; return queries near them."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((CLUSTERS, dims), np.float32)

    def near(count: int) -> np.ndarray:
        return centres[rng.integers(0, CLUSTERS, count)] + NOISE * rng.standard_normal((count, dims), np.float32)

    array = np.lib.format.open_memmap(file, "w+", np.float32, (rows, dims))
    for begin in range(0, rows, BLOCK):
        array[begin : begin + BLOCK] = near(min(BLOCK, rows - begin))
    array.flush()
    return near(max(BATCHES))


def build(folder: Path, dtype: str, options: argparse.Namespace) -> None:
    command = ["corpus", "build", "--corpus", folder / "rows.npy", "--out", folder / f"corpus-{dtype}"]
    command += ["--rows-per-segment", options.segment, "--dtype", dtype]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    result = subprocess.run(
        [sys.executable, "-c", PEAK, *map(str, command)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    size = 4e-9 * options.rows * options.dims
    print(
        f"corpus build, {dtype}: {wall:.1f} s, {size / wall:.2f} GB of float32 a second; of processors {busy:.1f} s, "
        f"{size / busy * ledger.cores():.2f} GB a second if all were at it all the time; "
        f"peak {int(result.stdout.splitlines()[-1]) / 2**30:.1f} GB"
    )


def race(corpus: rk.Corpus, queries: np.ndarray, options: argparse.Namespace) -> None:
    import faiss

    faiss.omp_set_num_threads(options.threads)
    unit = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    memory.reset()
    for size in BATCHES:
        asked = unit[:size].copy()

        def own(asked: np.ndarray = asked) -> Any:
            return corpus.search(asked, FOUND, num_threads=options.threads)

        def flat(asked: np.ndarray = asked) -> Any:
            return faiss.knn(asked, corpus.data, FOUND, faiss.METRIC_INNER_PRODUCT)

        def product(asked: np.ndarray = asked) -> None:
            for begin in range(0, len(corpus), BLOCK // 8):
                np.matmul(asked, corpus.data[begin : begin + BLOCK // 8].T)

        turns = [Turn(own, clock=processor)]
        if corpus.dtype == "float32":
            rounds = 1 if size == max(BATCHES) else None  # minutes each
            turns += [Turn(flat, clock=processor, rounds=rounds), Turn(product, clock=processor, rounds=rounds)]
        if corpus.dtype == "float32" and rounds is None:
            (scores, rows), found = flat(), own()
            np.testing.assert_allclose(found.scores, scores, atol=2e-6)
            same = np.mean([len(np.intersect1d(*both)) / FOUND for both in zip(found.indices, rows, strict=True)])
            print(f"{size} queries: {same:.4%} of the rows are the same")
        times = [np.median(taken, axis=0) for taken in take_turns(turns, options.rounds)]
        for clock, place in (("", 0), (" of processors", 1)):
            each = [taken[place] for taken in times]
            names = ("", ", FAISS ", ", a bare product by NumPy ")
            said = "".join(
                f"{name}{1e3 * x:,.1f} ms" + (f" ({x / each[0]:.2f}x)" if name else clock)
                for name, x in zip(names, each, strict=False)
            )
            print(f"{size} queries over {len(corpus):,} x {corpus.dims}: {said}", flush=True)
    print(f"peak of the searches {memory.peak() / 2**30:.1f} GB")


if __name__ == "__main__":
    main()
