"""A whole job over files against the bare kernel on the same pools, in turns: queries/s, wall and processor time.

The kernel gets all arrays in memory, in calls of 10,000 queries. The job reads queries and candidates from .npy files
that are in the page cache, and writes, checksums and syncs its shards; "whole" counts everything from the call on:
opening and fingerprinting files, normalising the corpus, and the manifest. With --workers it is the job on Ray with so
many workers of one thread each: "steady" is the rate from the first shard on, without the start of the actors.

Vectors are synthetic: clusters around random directions, the candidates of a query are rows of its own cluster.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import ragsys_kernels as rk
from benchmarks.harness import ledger
from benchmarks.harness.race import Turn, processor, take_turns
from ragsys_kernels import _info, offline

CALL = 10_000  # queries of a call of the bare kernel
CLUSTERS, NOISE = 100, 0.7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queries", type=int, default=200_000, help="(%(default)s)")
    parser.add_argument("--corpus", type=int, default=20_000, help="rows of the corpus (%(default)s)")
    parser.add_argument("--dims", type=int, nargs="+", default=[384, 768], help="(%(default)s)")
    parser.add_argument("--pool", type=int, default=100, help="candidates of a query (%(default)s)")
    parser.add_argument("--k", type=int, default=10, help="(%(default)s)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="of the kernel (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(%(default)s)")
    parser.add_argument("--workers", type=int, nargs="+", help="Ray workers, instead of the kernel and --threads")
    options = parser.parse_args()
    print(f"{ledger.hardware()}, {' '.join(_info.active())}, load before {os.getloadavg()[0]:.1f}")
    for dims in options.dims:
        with tempfile.TemporaryDirectory() as folder:
            files = write(Path(folder), options.queries, options.corpus, dims, options.pool)
            if options.workers:
                race_workers(Path(folder), files, options.k, options.workers, options.rounds)
                continue
            for threads in options.threads:
                race(Path(folder), files, options.k, threads, options.rounds)


def write(folder: Path, queries: int, rows: int, dims: int, pool: int) -> dict[str, Path]:
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((CLUSTERS, dims), np.float32)
    size = rows // CLUSTERS
    own = rng.integers(0, CLUSTERS, queries)
    block = np.arange(size)
    order = np.stack([rng.permutation(block)[:pool] for _ in range(1000)])
    arrays = {
        "corpus": np.repeat(centres, size, axis=0) + NOISE * rng.standard_normal((CLUSTERS * size, dims), np.float32),
        "queries": centres[own] + NOISE * rng.standard_normal((queries, dims), np.float32),
        "candidates": (own[:, None] * size + order[rng.integers(0, len(order), queries)]).astype(np.int64),
    }
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return {name: folder / f"{name}.npy" for name in arrays}


def race(folder: Path, files: dict[str, Path], k: int, threads: int, rounds: int) -> None:
    corpus, queries, candidates = (np.load(files[name]) for name in ("corpus", "queries", "candidates"))
    held = rk.Corpus(corpus)
    out, streamed = folder / "out", []

    def kernel() -> None:
        for start in range(0, len(queries), CALL):
            part = slice(start, start + CALL)
            held.select(queries[part], k, pool=None, candidates=candidates[part], num_threads=threads)

    def job() -> None:
        streamed.append(offline.select(**files, out=out, k=k, num_threads=threads).seconds)

    def clock_of_job(run: Callable[[], object]) -> tuple[float, float]:
        found = processor(run)
        shutil.rmtree(out)
        return found

    kernel()
    bare, whole = take_turns([Turn(kernel, clock=processor), Turn(job, clock=clock_of_job)], rounds)
    inner = np.array(streamed)
    count = len(queries)
    print(
        f"D={queries.shape[1]}, P={candidates.shape[1]}, K={k}, Q={count}, threads {threads}: "
        f"kernel {count / np.median(bare[:, 0]):,.0f} queries/s, job {count / np.median(inner):,.0f}, "
        f"whole {count / np.median(whole[:, 0]):,.0f}; of the kernel's throughput: "
        f"job {np.median(bare[:, 0] / inner):.0%}, "
        f"whole {np.median(bare[:, 0] / whole[:, 0]):.0%}; kernel's processor time over the whole job's "
        f"{np.median(bare[:, 1] / whole[:, 1]):.0%} (medians of {rounds} rounds)",
        flush=True,
    )


def race_workers(folder: Path, files: dict[str, Path], k: int, workers: list[int], rounds: int) -> None:
    found: dict[int, list[tuple[float, float]]] = {number: [] for number in workers}
    for turn in range(rounds):
        for number in workers:
            out, seen = folder / f"out-{number}-{turn}", []
            summary = offline.select(
                **files, out=out, k=k, engine="ray", workers=number, num_threads=1,
                progress=lambda done, total, seen=seen: seen.append((done, time.perf_counter())),
            )  # fmt: skip
            (first, start), (last, end) = next(one for one in seen if one[0]), seen[-1]
            found[number].append((summary.queries / summary.seconds, (last - first) / (end - start)))
            shutil.rmtree(out)
    rates = {number: np.median(values, axis=0) for number, values in found.items()}
    for number, (whole, steady) in rates.items():
        base = rates[workers[0]]
        print(
            f"{number} Ray workers: {whole:,.0f} queries/s with their start, {steady:,.0f} steady, "
            f"{whole / base[0]:.2f}x and {steady / base[1]:.2f}x those of {workers[0]} (medians of {rounds} rounds)",
            flush=True,
        )


if __name__ == "__main__":
    main()
