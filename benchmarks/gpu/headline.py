"""A million queries over a million vectors, exactly, on one device: from arrays, and as a job over files.

    python -m benchmarks.gpu.headline [--queries N] [--rows N] [--dims D] [--batch Q] [--folder DIR] [--parts NAMES]

The vectors are those of `selection.Problem`: unit rows of float16 in clusters, queries among them. ``pool``: search
for 100 rows, then MMR's 10 of them; ``whole``: MMR's 6 of all rows; ``job``: the first as `ragsys-kernels select
--device cuda` does it, from Parquet to Parquet, with the time to load the corpus in it. Picks of some queries are
checked in float64 first. Times are of the host's clock, from the call to the last result.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

import ragsys_kernels as rk
from benchmarks.gpu.selection import Problem
from benchmarks.gpu.shapes import Pools
from benchmarks.harness import facts
from ragsys_kernels import offline, testing
from ragsys_kernels._base import env as _env

PARTS = ("pool", "whole", "job")
POOL, POOL_K, WHOLE_K = 100, 10, 6
CHECKED = 4  # queries whose picks are looked at
WRITTEN = 1 << 16  # queries that are written to the file together


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def in_batches(call: Callable[[Any], Any], queries: Any, batch: int) -> float:
    """Return the seconds that a call takes for all queries, in batches, until the device is done."""
    for part in (queries[:batch], queries[-(len(queries) % batch or batch) :]):  # compiles, for both sizes
        call(part)
    synchronize()
    begin = perf_counter()
    results = [call(part) for part in queries.split(batch)]
    synchronize()
    assert sum(len(result.indices) for result in results) == len(queries)
    return perf_counter() - begin


def check(corpus: rk.Corpus, problem: Problem, picks: Any, pool: int | None) -> None:
    """Assert that the picks of a few queries are right: a replay in float64 over the corpus's own rows."""
    queries = problem.queries[:CHECKED]
    rows = np.asarray(torch.as_tensor(corpus.data).cpu()).astype(np.float32)
    arguments: dict[str, Any] = {"queries": queries.cpu(), "embeddings": rows, "k": picks.indices.shape[1]}
    if pool is not None:
        arguments["candidates"] = corpus.search(queries, pool).indices.cpu()
    on_host = rk.Selection(*(np.asarray(torch.as_tensor(field)[:CHECKED].cpu()) for field in picks))
    testing.check_selection("mmr", arguments, on_host, tolerance=2e-3)


def as_job(problem: Problem, corpus: rk.Corpus, folder: Path, device: str) -> float:
    """Return the seconds of a job; the files are written first."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    corpus.save(folder / "corpus")
    dims = problem.shape.D
    vectors = pa.list_(pa.float32(), dims)
    schema = pa.schema([("query_id", pa.int64()), ("embedding", vectors)])
    with pq.ParquetWriter(folder / "queries.parquet", schema, compression="none") as file:
        first = 0
        for part in problem.queries.split(WRITTEN):
            values = pa.array(np.asarray(part.cpu()).ravel())
            ids = pa.array(np.arange(first, first + len(part)))
            rows = pa.FixedSizeListArray.from_arrays(values, dims)
            file.write_table(pa.table([ids, rows], schema=schema), row_group_size=len(part))
            first += len(part)
    begin = perf_counter()
    offline.select(
        corpus=folder / "corpus",
        queries=folder / "queries.parquet",
        out=folder / "out",
        query_vector_column="embedding",
        query_id_column="query_id",
        k=POOL_K,
        pool=POOL,
        device=device,
        chunk_size=1 << 14,
    )
    return perf_counter() - begin


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.headline", description=__doc__.splitlines()[0])
    for name, default in (("queries", 1_000_000), ("rows", 1_000_000), ("dims", 384), ("batch", 1 << 14)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--folder", type=Path, help="of the job's files (default: a temporary one)")
    parser.add_argument("--parts", default=",".join(PARTS), help="with commas")
    given = parser.parse_args(arguments)
    device = "cpu" if _env.triton_interpreter() else "cuda"
    problem = Problem(Pools(None, WHOLE_K, given.dims, "float16", given.queries, given.rows), torch.device(device))
    corpus, backend = rk.Corpus(problem.rows, dtype="float16"), "auto" if device == "cuda" else "triton"
    calls: dict[str, Callable[[Any], Any]] = {
        "pool": lambda part: corpus.select(part, POOL_K, pool=POOL, backend=backend),
        "whole": lambda part: corpus.select(part, WHOLE_K, pool=None, backend=backend),
    }
    found = {}
    for part in given.parts.split(","):
        if part == "job":
            with tempfile.TemporaryDirectory(dir=given.folder) as folder:
                found[part] = as_job(problem, corpus, Path(folder), device)
        else:
            check(corpus, problem, calls[part](problem.queries[: given.batch]), POOL if part == "pool" else None)
            found[part] = in_batches(calls[part], problem.queries, given.batch)
        print(f"{part}: {found[part]:.2f} s, {given.queries / found[part]:,.0f} queries a second", flush=True)
    facts.tell(headline={f"{given.queries} queries, {given.rows} rows": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
