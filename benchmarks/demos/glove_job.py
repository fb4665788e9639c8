"""A million queries with candidates over 400,000 GloVe vectors, by the command line: queries/s and peak memory.

The candidates of 20,000 words, the 100 nearest others, are found by the exact search. Each query is the vector of one
of these words, moved by a little noise, with its candidates in an order of its own. The files are written a block at a
time. The job is checked in the end. `--queries` twice shows that the memory does not grow:

    python -m benchmarks.demos.glove_job --queries 200000 2000000

Needs what glove.py needs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.demos import glove
from benchmarks.harness import ledger

NOISE = 0.1  # of the standard deviation of a vector's elements
BLOCK = 50_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo-output/million"), help="folder for files (%(default)s)")
    parser.add_argument("--queries", type=int, nargs="+", default=[1_000_000], help="(%(default)s)")
    parser.add_argument("--k", type=int, default=glove.K, help="(%(default)s)")
    parser.add_argument("--method", default="mmr", help="(%(default)s)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="(%(default)s)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    words, vectors = glove.load_glove()
    rows = glove.query_rows(words)
    glove.write_vectors(options.out / "corpus.parquet", words, vectors)
    nearest = options.out / "nearest.npy"
    if not nearest.exists():
        np.save(nearest, glove.retrieve(vectors, rows).astype(np.int32))
    print(f"{ledger.hardware()}, load before {os.getloadavg()[0]:.1f}")
    for queries in options.queries:
        write(options.out, vectors, rows, np.load(nearest), queries)
        run(options.out, queries, options)


def write(folder: Path, vectors: np.ndarray, rows: np.ndarray, nearest: np.ndarray, count: int) -> None:
    rng = np.random.default_rng(count)
    pool, dims = nearest.shape[1], vectors.shape[1]
    queries = np.lib.format.open_memmap(folder / "queries.npy", "w+", np.float32, (count, dims))
    candidates = np.lib.format.open_memmap(folder / "candidates.npy", "w+", np.int32, (count, pool))
    scale = np.float32(NOISE * vectors.std())
    for start in range(0, count, BLOCK):
        part = slice(start, min(start + BLOCK, count))
        picked = rng.integers(0, len(rows), part.stop - start)
        noise = rng.standard_normal((len(picked), dims), np.float32)
        queries[part] = vectors[rows[picked]] + scale * noise
        candidates[part] = rng.permuted(nearest[picked], axis=1)


def run(folder: Path, count: int, options: argparse.Namespace) -> None:
    """Run the command in a process of its own, which prints its peak memory at its end."""
    code = (
        "import atexit\n"
        "from benchmarks.harness import memory\n"
        "from ragsys_kernels.cli import main\n"
        "atexit.register(lambda: print(memory.peak()))\n"
        "main()\n"
    )
    out = folder / "picks"
    files = {name: folder / name for name in ("corpus.parquet", "queries.npy", "candidates.npy")}
    arguments = [part for name, path in files.items() for part in (f"--{path.stem}", path)]
    arguments += ["--out", out, "--overwrite", "--k", options.k, "--method", options.method]
    start = time.perf_counter()
    result = subprocess.run(
        [sys.executable, "-c", code, "select", *map(str, arguments), "--num-threads", str(options.threads)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    seconds = time.perf_counter() - start
    said, *_, peak = result.stdout.splitlines()
    print(said)
    print(
        f"{count:,} queries: {seconds:.1f} s with start-up ({count / seconds:,.0f} queries/s), "
        f"peak memory {int(peak) / 2**20:.0f} MB"
    )
    subprocess.run([sys.executable, "-m", "ragsys_kernels.cli", "job", "verify", str(out)], check=True)
    shutil.rmtree(out)


if __name__ == "__main__":
    main()
