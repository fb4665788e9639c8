"""What is asked of the service: a corpus in a folder, and the bodies of requests."""

from __future__ import annotations

import base64
import json
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.serve import load
from benchmarks.suites import shapes
from ragsys_kernels import Selection, mmr

JSON, ARROW = "application/json", "application/vnd.apache.arrow.stream"
SHAPE, LAMBDA_D = shapes.Shape("minilm", 384, 100, 10), 0.75
FEW = 256  # requests that are sent again and again
MANY = 64  # queries of a request of many


class Problem:
    """MMR out of pools of candidate ids; queries as vectors in bytes, or as ids of rows.

    Bodies are files that `load.saturate` takes.
    """

    def __init__(self, shape: shapes.Shape, folder: Path) -> None:
        self.shape, self._folder = shape, folder
        self._arrays = shapes.Problem(shape)
        self.corpus = self._arrays.corpus()
        self.corpus.save(folder / "corpus", overwrite=True)
        self.queries: np.ndarray = self._arrays.queries
        assert self._arrays.candidates is not None
        self.candidates: np.ndarray = self._arrays.candidates

    @property
    def folder(self) -> Path:
        return self._folder / "corpus"

    def select(self, count: int, begin: int = 0) -> Selection:
        """Return what the library itself picks for so many queries, in one call with one thread."""
        rows = np.arange(begin, begin + count) % len(self.queries)
        return mmr(
            self.queries[rows], self.corpus, self.shape.K, candidates=self.candidates[rows], lambda_d=LAMBDA_D,
            num_threads=1,
        )  # fmt: skip

    @cached_property
    def by_bytes(self) -> Path:
        """One query a request: its vector in base64, its pool as ids."""
        return self._file("bytes", [self.body(self._by_bytes(q)) for q in range(FEW)])

    @cached_property
    def by_id(self) -> Path:
        """One query a request: a row of the corpus, and the pool as ids."""
        return self._file("ids", [self.body({"query_id": q, **self._pool(q)}) for q in range(FEW)])

    @cached_property
    def many(self) -> Path:
        """64 queries a request, in JSON and bytes."""
        return self._file("many", [self.many_body(begin) for begin in range(0, FEW * MANY, MANY)])

    @cached_property
    def many_in_arrow(self) -> Path:
        """The same 64 queries a request, as Arrow streams; their rules are in the URL, `rules`."""
        return self._file("arrow", [self._stream(begin) for begin in range(0, FEW * MANY, MANY)])

    @property
    def rules(self) -> str:
        """The rules of all queries as the query of a URL."""
        return f"corpus=docs&method=mmr&k={self.shape.K}&lambda_d={LAMBDA_D}"

    def batch(self, begin: int, count: int) -> pa.RecordBatch:
        """Return queries as columns of Arrow: vectors, and pools of ids."""
        rows = [q % len(self.queries) for q in range(begin, begin + count)]
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(self.queries[rows].ravel()), self.shape.D)
        pools = pa.FixedSizeListArray.from_arrays(pa.array(self.candidates[rows].ravel()), self.shape.P)
        return pa.record_batch({"vector": vectors, "candidates": pools})

    def _stream(self, begin: int) -> bytes:
        batch, out = self.batch(begin, MANY), pa.BufferOutputStream()
        with pa.ipc.new_stream(out, batch.schema) as writer:
            writer.write_batch(batch)
        content: bytes = out.getvalue().to_pybytes()
        return content

    def many_body(self, begin: int = 0) -> bytes:
        return self.body(*(self._by_bytes(q % len(self.queries)) for q in range(begin, begin + MANY)))

    def body(self, *queries: dict[str, Any]) -> bytes:
        """Return the body of a request."""
        common = {"corpus": "docs", "method": "mmr", "k": self.shape.K, "lambda_d": LAMBDA_D}
        return json.dumps({**common, "queries": queries}, separators=(",", ":")).encode()

    def _by_bytes(self, q: int) -> dict[str, Any]:
        return {"query": in_base64(self.queries[q]), **self._pool(q)}

    def _pool(self, q: int) -> dict[str, Any]:
        return {"candidates": self.candidates[q].tolist()}

    def _file(self, name: str, bodies: list[bytes]) -> Path:
        return load.replayed(self._folder / name, bodies)


def in_base64(vector: np.ndarray) -> dict[str, Any]:
    data = base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return {"b64": data, "shape": [len(vector)], "dtype": "float32"}
