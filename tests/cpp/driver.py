"""Writes problems for select_tool, runs it, and judges its answers; ``python driver.py --help``.

The picks must be legal by the float64 replay of `ragsys_kernels.testing`, those of whole-number problems the
reference's, bad values must be reported, and the answers must be the same bytes for any number of threads and with
any bounds. Codes of rows, and what scans and searches find, are held against float64 products.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import re
import shlex
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ragsys_kernels import _arrays, testing
from ragsys_kernels.selection import reference, validate
from ragsys_kernels.selection.problem import Problem, Rows, Selection

FLOATS = ("float32", "float16", "bfloat16")
DTYPES = (*FLOATS, "int8")
METHODS = ("mmr", "vrsd")
NORMS = ("as_given", "scaled", "computed")
# Vectors have 4, 8 and 16 elements.
DIMS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 50, 64, 97, 384)
OK, OUT_OF_RANGE, REPEATED, NOT_FINITE, NORM_OUT_OF_RANGE, POOL_TOO_SMALL = range(6)
UNWRITTEN = 0x5A5A5A5A


class Writer:
    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def words(self, *values: int) -> None:
        self.parts.append(struct.pack(f"<{len(values)}q", *values))

    def arrays(self, *arrays: np.ndarray | None) -> None:
        for array in arrays:
            data = b"" if array is None else np.ascontiguousarray(array).tobytes()
            self.words(-1 if array is None else len(data))
            self.parts.append(data)


def spread(rows: Rows) -> tuple[np.ndarray, int]:
    """The elements of the rows with those between them, and how many there are from row to row."""
    num_rows, dims = rows.data.shape
    stride = rows.data.strides[0] // rows.data.itemsize
    size = (num_rows - 1) * stride + dims
    return np.lib.stride_tricks.as_strided(rows.data, (size,), (rows.data.itemsize,)), stride


def may_have_codes(rows: Rows) -> bool:
    """Whether a Corpus of these rows would have codes: unit vectors of floats."""
    unit = rows.metric == "cosine" and rows.norm == "scaled" and rows.dtype != "int8"
    return unit and bool(np.isfinite(_arrays.widen(rows.data, rows.dtype)).all())


def write_problem(out: Writer, problem: Problem, *whole_corpus: np.ndarray | None, best_first: bool = False) -> None:
    rows = problem.rows
    num_rows, dims = rows.data.shape
    elements, stride = spread(rows)
    out.words(
        METHODS.index(problem.op),
        problem.num_queries,
        num_rows,
        problem.pool,
        dims,
        problem.k,
        0 if problem.initial is None else problem.initial.shape[1],
        DTYPES.index(rows.dtype),
        stride,
        NORMS.index(rows.norm),
        problem.pool_stride,
        problem.unit_queries,
        rows.metric == "cosine",
        8 if problem.candidates is None else problem.candidates.itemsize,
        8 if problem.initial is None else problem.initial.itemsize,
        problem.bias is not None and problem.bias.ndim == 2,
        problem.max_per_group,
    )
    out.arrays(elements, rows.scales, problem.queries, problem.candidates, problem.initial, problem.relevance)
    out.arrays(problem.bias, problem.lambda_d, problem.lambda_b, problem.ks, problem.groups, problem.query_groups)
    out.arrays(*(whole_corpus or [None] * 5))  # relevance_error, forced, ceiling, outside, max_bias
    out.words(best_first, may_have_codes(rows))


def of_queries(arguments: dict[str, Any], which: np.ndarray) -> dict[str, Any]:
    """The arguments of some of the queries."""
    chosen = dict(arguments)
    for name in ("queries", "candidates", "initial", "relevance", "bias", "k", "lambda_d", "query_groups"):
        value = arguments.get(name)
        if isinstance(value, np.ndarray) and len(value) == len(which):
            chosen[name] = value[which]
    return chosen


def check_status(problem: Problem, expected: np.ndarray, status: np.ndarray) -> None:
    np.testing.assert_array_equal(status, expected)
    for q in np.flatnonzero(expected):  # what a kernel reports, Python must find and word
        try:
            validate.values(problem, int(q))
        except ValueError:
            continue
        assert expected[q] == NOT_FINITE, f"query {q}: no message for status {expected[q]}"


@dataclasses.dataclass
class Select:
    method: str
    arguments: dict[str, Any]
    statuses: dict[int, int] = dataclasses.field(default_factory=dict)  # of the queries that must be given up
    exact: bool = False  # all float32 sums are exact: the picks are the reference's
    kind = 0

    def __post_init__(self) -> None:
        self.problem = validate.selection(self.method, **self.arguments)

    def write(self, out: Writer) -> None:
        write_problem(out, self.problem)

    def answered(self, status: np.ndarray) -> np.ndarray:
        """Which queries have been answered; the others must be those that cannot be."""
        expected = np.array([self.statuses.get(q, OK) for q in range(self.problem.num_queries)], np.uint8)
        check_status(self.problem, expected, status)
        return expected == OK

    def judge(self, status: bytes, lengths: bytes, *fields: bytes) -> None:
        shape = (self.problem.num_queries, self.problem.k)
        indices = np.frombuffer(fields[0], np.int64).reshape(shape)
        floats = [np.frombuffer(field, np.float32).reshape(shape) for field in fields[1:]]
        result = Selection(indices, *floats, np.frombuffer(lengths, np.int32))
        for field in fields:
            assert (np.frombuffer(field, np.uint32) != UNWRITTEN).all(), "an output was not written"
        good = self.answered(np.frombuffer(status, np.uint8))
        with np.errstate(all="ignore"):  # rows that no good query reads
            chosen = Selection(*(field[good] for field in result))
            testing.check_selection(self.method, of_queries(self.arguments, good), chosen)
        if self.exact:
            same = getattr(reference, self.method)(self.problem, 1)
            np.testing.assert_array_equal(result.indices, same.indices)
            np.testing.assert_array_equal(result.scores, same.scores)


@dataclasses.dataclass
class Relevance(Select):
    kind = 1

    def judge(self, status: bytes, values: bytes, *fields: bytes) -> None:
        problem = self.problem
        good = self.answered(np.frombuffer(status, np.uint8))
        got = np.frombuffer(values, np.float32).reshape(problem.num_queries, problem.pool)
        for q in np.flatnonzero(good):
            pool = reference._pool(problem, int(q))
            _, positions = problem.eligible(int(q))
            padding = np.ones(problem.pool, bool)
            padding[positions] = False
            assert np.isneginf(got[q, padding]).all(), f"query {q}: padding"
            largest = max(1, np.abs(pool.v).max(initial=0))
            np.testing.assert_allclose(got[q, positions], pool.v, rtol=0, atol=4e-6 * largest, err_msg=f"query {q}")


@dataclasses.dataclass
class WholeCorpus(Select):
    """MMR over all rows from pools of n: by estimates off by up to ERROR, or after `made` picks by the reference.

    The rows of a pool come in their order, or the best first.
    """

    n: int = 0
    made: int = 0
    best_first: bool = False
    ERROR = np.float32(1e-4)

    def write(self, out: Writer) -> None:
        problem, Q = self.problem, self.problem.num_queries
        errors = np.random.default_rng(0).uniform(-0.9, 0.9, (Q, problem.pool)) * self.ERROR
        forced = reference.mmr(problem, 1).indices
        forced[:, self.made :] = -1
        most = np.full((Q, problem.pool), -np.inf)  # upper bounds of v, or of the values after the picks made
        relevance = np.zeros((Q, problem.pool))
        for q in range(Q):
            pool = reference._pool(problem, q)
            relevance[q, pool.rows] = pool.r + errors[q, pool.rows]
            most[q, pool.rows] = pool.v + problem.lambda_b[q] * errors[q, pool.rows] + self.ERROR
            if self.made:
                picks = problem.rows.vectors(np.concatenate([problem.initial_rows(q), forced[q][forced[q] >= 0]]))
                m = (pool.e @ picks.T).max(axis=1)
                lambda_d = problem.lambda_d[q]
                most[q, pool.rows] = lambda_d * pool.v - (1 - lambda_d) * m + self.ERROR
                most[q, forced[q][forced[q] >= 0]] = np.inf
        order = np.argsort(-most, axis=1, kind="stable")
        candidates = order[:, : self.n] if self.best_first else np.sort(order[:, : self.n], axis=1)
        outside = None
        if self.n < problem.pool:
            outside = np.take_along_axis(most, order[:, self.n :], 1)[:, 0].astype(np.float32)
        pools = dataclasses.replace(problem, pool=self.n, candidates=candidates)
        max_bias = None if problem.bias is None else problem.bias.max()
        if self.made:
            ceiling = np.take_along_axis(most, candidates, 1).astype(np.float32)
            write_problem(out, pools, None, forced, ceiling, outside, max_bias, best_first=self.best_first)
        else:
            estimates = np.take_along_axis(relevance, candidates, 1).astype(np.float32)
            pools = dataclasses.replace(pools, relevance=estimates)
            errors = np.full(Q, self.ERROR)
            write_problem(out, pools, errors, None, None, outside, max_bias, best_first=self.best_first)

    def answered(self, status: np.ndarray) -> np.ndarray:
        allowed = (OK, POOL_TOO_SMALL) if self.n < self.problem.pool else (OK,)
        assert np.isin(status, allowed).all(), f"status {status}"
        return status == OK


@dataclasses.dataclass
class Search(Select):
    """The best k rows, by codes where the rows may have them."""

    kind = 2

    def write(self, out: Writer) -> None:
        super().write(out)
        out.words(largest_bias(self.problem.bias))

    def judge(self, status: bytes, *fields: bytes) -> None:
        shape = (self.problem.num_queries, self.problem.k)
        indices = np.frombuffer(fields[0], np.int64).reshape(shape)
        scores = np.frombuffer(fields[1], np.float32).reshape(shape)
        for q in np.flatnonzero(self.answered(np.frombuffer(status, np.uint8))):
            pool = reference._pool(self.problem, int(q))
            tolerance = 4e-6 * max(1, np.abs(pool.v).max(initial=0))
            kept = indices[q][indices[q] >= 0]
            number = min(self.problem.k, len(pool.rows))
            assert len(set(kept)) == len(kept) == number, f"query {q}: rows"
            assert (indices[q, number:] == -1).all(), f"query {q}: rows"
            assert np.isneginf(scores[q, number:]).all(), f"query {q}: padding"
            assert np.isin(kept, pool.rows).all(), f"query {q}: a row of its own group"
            v = dict(zip(pool.rows.tolist(), pool.v, strict=True))
            exact = np.array([v[row] for row in kept.tolist()])
            np.testing.assert_allclose(scores[q, :number], exact, rtol=0, atol=tolerance, err_msg=f"query {q}")
            best = np.sort(pool.v)[::-1][:number]
            np.testing.assert_allclose(scores[q, :number], best, rtol=0, atol=tolerance, err_msg=f"query {q}")
            steps = np.diff(scores[q, :number])
            assert (steps <= 0).all(), f"query {q}: order"
            assert (np.diff(kept)[steps == 0] > 0).all(), f"query {q}: ties"


def largest_bias(bias: np.ndarray | None) -> int:
    """A whole number that no size of a bias exceeds."""
    return 0 if bias is None else int(np.abs(bias).max()) + 1


def vectors_of(rows: Rows) -> np.ndarray:
    """The vectors of the formulas, of rows with scales; float64."""
    assert rows.scales is not None
    return _arrays.widen(rows.data, rows.dtype).astype(np.float64) * rows.scales[:, None].astype(np.float64)


@dataclasses.dataclass
class Encode:
    rows: Rows
    kind = 3

    def write(self, out: Writer) -> None:
        elements, stride = spread(self.rows)
        out.words(*self.rows.data.shape, stride, DTYPES.index(self.rows.dtype))
        out.arrays(elements, self.rows.scales)

    def judge(self, codes: bytes) -> None:
        num_rows, dims = self.rows.data.shape
        got = np.frombuffer(codes, np.uint8).reshape(num_rows, -1)
        assert got.shape[1] == (dims + 12 + 63) // 64 * 64
        assert not got[:, dims:-12].any(), "bytes between the codes and the header"
        signed = got[:, :dims].astype(np.int64) - 128
        header = np.ascontiguousarray(got[:, -12:])
        scale, error = header[:, :8].view(np.float32).astype(np.float64).T
        np.testing.assert_array_equal(header[:, 8:].view(np.int32)[:, 0], signed.sum(axis=1))
        vectors = vectors_of(self.rows)
        np.testing.assert_allclose(scale, np.abs(vectors).max(axis=1) / 127, rtol=1e-6)
        lost = np.linalg.norm(vectors - scale[:, None] * signed, axis=1)
        assert (lost <= error).all(), "an error that is too small"
        assert (error <= 2 * lost + 2e-6).all(), "an error that is too large"


@dataclasses.dataclass
class Scan(Encode):
    """Rows that may be among the best n by the least of the products with `vectors` (terms, Q, D)."""

    vectors: np.ndarray
    n: int
    bias: np.ndarray | None = None
    weights: tuple[np.ndarray, np.ndarray] | None = None
    groups: np.ndarray | None = None
    query_groups: np.ndarray | None = None
    by_codes: bool = True
    kind = 4

    def write(self, out: Writer) -> None:
        super().write(out)
        terms, num_queries, _ = self.vectors.shape
        out.words(num_queries, terms, self.n, self.by_codes)
        out.arrays(self.vectors, self.bias, *(self.weights or (None, None)), self.groups, self.query_groups)
        out.words(largest_bias(self.bias))

    def judge(self, *answers: bytes) -> None:
        limits, errors = (np.frombuffer(answer, np.float32) for answer in answers[2:])
        if len(errors) == 0:  # an instruction set without the scan
            assert not any(answers)
            assert self.by_codes
            return
        num_queries = self.vectors.shape[1]
        found = np.frombuffer(answers[0], np.int64).reshape(num_queries, -1)
        scores = np.frombuffer(answers[1], np.float32).reshape(found.shape)
        exact = (self.vectors.astype(np.float64) @ vectors_of(self.rows).T).min(axis=0)
        # Of many queries, that threads share, about the best n are kept.
        least = 0.5 if self.by_codes and num_queries > 3 * (8 // len(self.vectors)) else 1
        for q in range(num_queries):
            kept = found[q][found[q] >= 0]
            assert len(set(kept)) == len(kept), f"query {q}: a row twice"
            assert np.abs(scores[q, : len(kept)] - exact[q, kept]).max(initial=0) <= errors[q], f"query {q}: error"
            values, eligible = exact[q], np.ones(len(exact[q]), bool)
            if self.bias is not None and self.weights is not None:
                values = self.weights[0][q] * values + self.weights[1][q] * self.bias.astype(np.float64)
            if self.groups is not None and self.query_groups is not None:
                eligible = self.groups != self.query_groups[q]
            assert eligible[kept].all(), f"query {q}: a row of its own group"
            assert least * min(self.n, eligible.sum()) <= len(kept) <= self.n, f"query {q}: {len(kept)} rows"
            eligible[kept] = False
            left = values[eligible].max(initial=-np.inf)
            assert left <= limits[q] + errors[q] + 1e-5, f"query {q}: a row above {limits[q]} was dropped"


Case = Select | Encode


def stored(vectors: np.ndarray, dtype: str, norm: str = "computed", gap: int = 0) -> Rows:
    """Rows of a storage type, `gap` elements apart; a kernel that reads the NaNs (int8: 127) between them shows it."""
    with np.errstate(over="ignore"):
        elements = _arrays.narrow(np.asarray(vectors, np.float32), dtype)
    between = 127 if dtype == "int8" else _arrays.narrow(np.full(1, np.nan, np.float32), dtype)[0]
    data = np.full((len(elements), elements.shape[1] + gap), between, elements.dtype)[:, : elements.shape[1]]
    data[:] = elements
    scales = None
    if norm == "scaled":
        norms = np.linalg.norm(_arrays.widen(data, dtype).astype(np.float64), axis=1)
        scales = np.divide(1, norms, out=np.zeros_like(norms), where=norms > 0).astype(np.float32)
    return Rows(data, dtype, "dot" if norm == "as_given" else "cosine", norm, scales)


def random_vectors(rng: np.random.Generator, N: int, D: int) -> np.ndarray:
    vectors = rng.standard_normal((N, D)).astype(np.float32)
    kind = rng.integers(5)
    if kind == 0:  # close to few centres
        vectors = vectors[rng.integers(0, max(1, N // 5), N)] + np.float32(0.05) * vectors
    elif kind == 1:  # equal rows, zero rows
        vectors = vectors[rng.integers(0, max(1, N // 3), N)]
        vectors[rng.random(N) < 0.2] = 0
    elif kind == 2:  # lengths of many sizes
        vectors *= 10 ** rng.uniform(-2, 2, (N, 1)).astype(np.float32)
    return vectors


def random_select(rng: np.random.Generator, method: str, dtype: str, D: int) -> Select:
    Q, P, K = 3, int(rng.integers(1, 30)), int(rng.integers(1, 9))

    def maybe(share: float) -> bool:
        return bool(rng.random() < share)

    dense = dtype in ("float32", "float16") and maybe(0.2)
    N = Q * P if dense else P + int(rng.integers(0, 20))
    vectors = random_vectors(rng, N, D)
    queries = rng.standard_normal((Q, D)).astype(np.float32)
    arguments: dict[str, Any] = {"queries": queries, "k": rng.integers(1, K + 1, Q) if maybe(0.3) else K}
    if dense:
        arguments["metric"] = str(rng.choice(["cosine", "dot"]))
        arguments["embeddings"] = _arrays.narrow(vectors, dtype).reshape(Q, P, D)
    else:
        arguments["embeddings"] = stored(vectors, dtype, str(rng.choice(NORMS)), int(rng.choice([0, 0, 1, 5])))
        if maybe(0.8):
            candidates = np.stack([rng.permutation(N)[:P] for _ in range(Q)])
            candidates[rng.random((Q, P)) < rng.random((Q, 1)) * maybe(0.5)] = -1
            arguments["candidates"] = candidates.astype(rng.choice([np.int32, np.int64]))
    ids = P if dense else N
    items = (Q, P if dense or "candidates" in arguments else N)
    by_row = items if dense else (N,)
    if maybe(0.3):
        arguments["relevance"] = rng.uniform(-1, 1, items).astype(np.float32)
        if method == "mmr" and maybe(0.5):
            arguments["queries"] = None
            if "candidates" not in arguments and not dense:
                arguments["candidates"] = np.tile(np.arange(N), (Q, 1))
    if maybe(0.3):
        initial = np.stack([rng.permutation(ids)[:4] for _ in range(Q)])
        initial[rng.random(initial.shape) < 0.3] = -1
        arguments["initial"] = initial.astype(rng.choice([np.int32, np.int64]))
    if maybe(0.3):
        arguments["groups"] = rng.integers(0, max(1, N // 4), by_row)
        if maybe(0.5):
            arguments["query_groups"] = rng.choice(arguments["groups"].reshape(-1), Q)
        if "query_groups" not in arguments or maybe(0.5):
            arguments["max_per_group"] = int(rng.integers(1, 3))
    if method == "mmr":
        if maybe(0.5):
            arguments["bias"] = rng.standard_normal(items if maybe(0.5) else by_row).astype(np.float32)
        arguments["lambda_d"] = rng.choice([0, 0.25, 0.5, 0.75, 1], Q)
        arguments["lambda_b"] = float(rng.choice([0, 0.5, 0.95, 1]))
    return Select(method, arguments)


def exact_cases() -> Iterator[Case]:
    """Whole numbers, so that ties are ties."""
    for dtype in ("float32", "float16"):
        for P, K, D in ((9, 12, 1), (40, 6, 2), (70, 8, 17)):
            for seed, features in enumerate(({}, {"bias": True}, {"groups": True, "ragged": True}, {"dense": True})):
                arguments = testing.selection_problem(4, P, K, D, dtype=dtype, kind="integers", seed=seed, **features)
                arguments["lambda_d"] = 0.25
                yield Select("mmr", arguments, exact=True)


def cancelling_cases(rng: np.random.Generator) -> Iterator[Case]:
    """Rows with their opposites: VRSD's sum becomes zero, or short beside its terms."""
    for dtype in DTYPES:
        for D in (1, 6, 33):
            vectors = rng.standard_normal((6, D)).astype(np.float32)
            nearly = (1 + 1e-3 * rng.standard_normal((6, D))) * vectors
            vectors = np.concatenate([vectors, -vectors, -nearly, np.zeros((1, D))])
            queries = rng.standard_normal((3, D))
            queries[2] = -queries[1]
            initial = np.array([[0, 6], [6, -1], [12, 0]])
            for norm in NORMS:
                rows = stored(vectors, dtype, norm)
                yield Select("vrsd", {"queries": queries, "embeddings": rows, "k": 12})
                yield Select("vrsd", {"queries": queries, "embeddings": rows, "k": 9, "initial": initial})


def pool_cases(rng: np.random.Generator) -> Iterator[Case]:
    """Pools large enough for bounds to leave items out, with everything that bounds must respect."""
    Q, N, P, D, K = 3, 200, 120, 24, 25
    for (method, dtype), kind in zip(itertools.product(METHODS, DTYPES), 4 * ("clustered", "duplicates"), strict=True):
        vectors = testing.selection_problem(Q, P, K, D, N=N, kind=kind, seed=7)["embeddings"]
        vectors[rng.random(N) < 0.05] = 0
        arguments: dict[str, Any] = {
            "queries": np.concatenate([rng.standard_normal((Q - 1, D)), np.zeros((1, D))]),
            "embeddings": stored(vectors, dtype, str(rng.choice(["scaled", "computed"]))),
            "candidates": np.stack([rng.permutation(N)[:P] for _ in range(Q)]),
            "k": K,
        }
        if method == "mmr":
            arguments.update(lambda_d=rng.choice([0, 0.3, 0.75, 0.98], Q), lambda_b=0.8)
        relevance = {"relevance": rng.uniform(-1, 1, (Q, P))}
        initial = {"initial": np.stack([rng.permutation(N)[:3] for _ in range(Q)])}
        groups = {"groups": rng.integers(0, 30, N), "query_groups": rng.integers(0, 30, Q), "max_per_group": 1}
        bias = {"bias": rng.standard_normal(N)} if method == "mmr" else {}
        for changes in ({}, bias, relevance, initial, {**relevance, **initial}, {**relevance, **groups, **bias}):
            yield Select(method, {**arguments, **changes})


def whole_corpus_cases(rng: np.random.Generator) -> Iterator[Case]:
    """Pools of all sizes; biases with outliers, which are what a row outside the pool may have."""
    Q, N, K = 6, 300, 6
    for dtype, D in zip(DTYPES, (3, 40, 17, 6), strict=True):
        vectors = rng.standard_normal((N, D))
        vectors[:, 0] += rng.uniform(0, 3)  # all on one side, or around
        vectors[rng.random(N) < 0.02] = 0
        bias = rng.uniform(-0.3, 0.3, N)
        bias[rng.permutation(N)[:4]] = (1, 0.7, 0.7, 3)
        arguments = {
            "queries": rng.standard_normal((Q, D)),
            "embeddings": stored(vectors, dtype, "scaled"),
            "k": K,
            "lambda_d": rng.choice([0.3, 0.5, 0.75, 1], Q),
        }
        groups = {"groups": rng.integers(0, 40, N), "query_groups": rng.integers(0, 40, Q), "max_per_group": 1}
        initial = {"initial": rng.permutation(N)[: 2 * Q].reshape(Q, 2)}
        for changes in ({}, {"bias": bias, "lambda_b": 0.5}, {"bias": bias, "lambda_b": 0.9, **initial}, groups):
            for n in (N, 100, 20):
                yield WholeCorpus("mmr", {**arguments, **changes}, n=n)
                yield WholeCorpus("mmr", {**arguments, **changes}, n=n, made=2)
        for made in (0, 2):
            yield WholeCorpus("mmr", {**arguments, **groups}, n=60, made=made, best_first=True)
    yield hidden_opposite(rng)


def hidden_opposite(rng: np.random.Generator) -> WholeCorpus:
    """The second pick is opposite to the first, less relevant than every row of the pool, of middling bias."""
    first, second = np.array([0.3, 0.954, 0]), np.array([-0.1, -0.702, 0.705])
    angles = rng.uniform(0, 0.5, 100)
    cosines = np.repeat([0.22, 0.05], 50)  # in the pool, outside
    sines = np.sqrt(1 - cosines**2)
    others = np.stack([cosines, sines * np.cos(angles), sines * np.sin(angles)], axis=1)
    rows = stored(np.concatenate([[first, second, -first], others]), "float32", "scaled")
    bias = np.concatenate([[1, 0.7, 0.499], np.zeros(100)])
    queries = np.array([[1.0, 0, 0]])
    arguments = {"queries": queries, "embeddings": rows, "k": 2, "bias": bias, "lambda_d": 0.5, "lambda_b": 0.5}
    return WholeCorpus("mmr", arguments, n=52)


def edge_cases(rng: np.random.Generator) -> Iterator[Case]:
    """The ends of ranges that are allowed."""
    D = 19
    vectors = rng.standard_normal((8, D))
    queries = rng.standard_normal((4, D)) * np.array([[1e30], [1e-30], [0], [1e38 / 4]])
    extreme = vectors * 10.0 ** np.linspace(-14, 14, 8)[:, None]
    subnormal = vectors * 1e-5
    subnormal[0] = np.where(np.arange(D) == 3, 65504, 0)
    for method in METHODS:
        options = {"lambda_d": 0.6, "lambda_b": 0.5} if method == "mmr" else {}
        yield Select(method, {"queries": queries, "embeddings": stored(extreme, "float32"), "k": 8, **options})
        yield Select(method, {"queries": queries, "embeddings": stored(extreme, "bfloat16"), "k": 8, **options})
        yield Select(method, {"queries": queries, "embeddings": stored(subnormal, "float16"), "k": 8, **options})
        one = {"queries": vectors[:1], "embeddings": stored(vectors[:1], "float16"), **options}
        yield Select(method, {**one, "k": 1})
        yield Select(method, {**one, "k": 70})
        nothing = {"queries": vectors[:2], "embeddings": stored(vectors, "float32"), "k": 3, **options}
        yield Select(method, {**nothing, "candidates": np.full((2, 5), -1)})
        yield Select(method, {**nothing, "initial": np.tile(np.arange(8), (2, 1))})
        yield Select(method, {**nothing, "groups": np.zeros(8, int), "query_groups": np.zeros(2, int)})
        yield Select(
            method, {**nothing, "groups": np.zeros(8, int), "max_per_group": 1, "initial": np.ones((2, 1), int)}
        )


def bad_cases(rng: np.random.Generator) -> Iterator[Case]:
    """Values that must be reported, in one query each; the other queries must be answered."""
    Q, N, P, D = 4, 30, 11, 21
    vectors = rng.standard_normal((N, D))
    queries = rng.standard_normal((Q, D))
    pools = np.stack([rng.permutation(20)[:P] for _ in range(Q)])  # rows from 20 on are in no pool

    def case(method: str, status: int, dtype: str = "float32", norm: str = "computed", **changes: Any) -> Select:
        rows = stored(changes.pop("vectors", vectors), dtype, norm, gap=3)
        options = {"lambda_d": 0.7, "lambda_b": 0.9} if method == "mmr" else {}
        arguments = {"queries": queries, "embeddings": rows, "candidates": pools, "k": 4, **options, **changes}
        return Select(method, arguments, {2: status})

    def changed(array: np.ndarray, where: tuple[int, int], value: float, dtype: Any = None) -> np.ndarray:
        array = np.array(array, dtype)
        array[where] = value
        return array

    def poisoned(dtype: str, value: float, column: int) -> dict[str, Any]:
        return {"dtype": dtype, "vectors": changed(vectors, (25, column), value), "candidates": with_row}

    with_row = changed(pools, (2, 5), 25)
    bias = rng.standard_normal((Q, P)).astype(np.float32)
    for method in METHODS:
        for bad in (-2, -(2**31), N, 2**31 - 1):
            yield case(method, OUT_OF_RANGE, candidates=changed(pools, (2, P - 1), bad, np.int32))
        for bad in (-2, -(2**63), N, 2**40, 2**63 - 1):
            yield case(method, OUT_OF_RANGE, candidates=changed(pools, (2, 0), bad))
            yield case(method, OUT_OF_RANGE, initial=changed(np.full((Q, 2), -1), (2, 1), bad))
        yield case(method, REPEATED, candidates=changed(pools, (2, 3), pools[2, 9]))
        yield case(method, REPEATED, initial=changed(np.array([[21, 22]] * Q), (2, 1), 21))
        for dtype in FLOATS:
            for norm in NORMS:
                for column in (0, D - 1):
                    for value in (np.nan, np.inf):
                        changes = poisoned(dtype, value, column)
                        if norm != "scaled" or np.isnan(value):
                            yield case(method, NOT_FINITE, norm=norm, **changes)
            yield case(method, OK, dtype, vectors=changed(vectors, (29, 4), np.nan))  # in no pool
        initial = np.array([[21]] * Q)
        yield case(method, NOT_FINITE, vectors=changed(vectors, (25, 3), np.nan), initial=changed(initial, (2, 0), 25))
        for scale in (1e-20, 1e20):
            scaled = vectors.copy()
            scaled[25] *= scale
            yield case(method, NORM_OUT_OF_RANGE, vectors=scaled, candidates=with_row)
        for value in (np.nan, -np.inf):
            yield case(method, NOT_FINITE, queries=changed(queries, (2, D - 1), value))
            yield case(method, NOT_FINITE, relevance=changed(bias, (2, 7), value))
            if method == "mmr":
                yield case(method, NOT_FINITE, bias=changed(bias, (2, 7), value))
        large = vectors.copy()
        large[25] *= 1e30
        yield case(method, NOT_FINITE, norm="as_given", vectors=large, queries=queries * 1e10, candidates=with_row)


def relevance_cases(rng: np.random.Generator) -> Iterator[Case]:
    for D, dtype, norm in zip((1, 5, 16, 33, 97), (*DTYPES, "int8"), (*NORMS, *NORMS), strict=False):
        rows = stored(random_vectors(rng, 50, D), dtype, norm, gap=2)
        queries = rng.standard_normal((3, D))
        candidates = np.stack([np.sort(rng.permutation(50)[:21]) for _ in range(3)])
        candidates[1, 15:] = -1
        arguments = {"queries": queries, "embeddings": rows, "k": 1, "candidates": candidates, "lambda_b": 0.8}
        yield Relevance("mmr", arguments)
        yield Relevance("mmr", {**arguments, "bias": rng.standard_normal(50)})
        poisoned = np.array(queries)
        poisoned[1, 0] = np.inf
        yield Relevance("mmr", {**arguments, "queries": poisoned}, {1: NOT_FINITE})


def search_cases(rng: np.random.Generator) -> Iterator[Case]:
    """Rows of all types and widths, blocks that are not full, many ties, more rows wanted than there are."""
    shapes = zip((1, 31, 70, 513, 700, 2100), (1, 5, 64, 33, 97, 16), (1, 4, 90, 7, 20, 9), strict=True)
    for (N, D, n), Q in itertools.product(shapes, (1, 3, 14)):
        for dtype, norm in zip(DTYPES, ("scaled", "as_given", "scaled", "scaled"), strict=True):
            vectors = random_vectors(rng, N, D)
            vectors[rng.integers(0, N, N // 3)] = vectors[0]
            arguments: dict[str, Any] = {
                "queries": rng.standard_normal((Q, D)),
                "embeddings": stored(vectors, dtype, norm, gap=int(rng.integers(2))),
                "k": n,
                "lambda_b": rng.uniform(0, 1, Q),
            }
            yield Search("mmr", arguments)
            groups = {"groups": rng.integers(0, 3, N), "query_groups": rng.integers(0, 3, Q)}
            yield Search("mmr", {**arguments, "bias": 3 * rng.standard_normal(N), **groups, "max_per_group": None})
    for Q in (3, 14):
        queries = rng.standard_normal((Q, D))
        queries[1, 5] = np.nan
        yield Search("mmr", {**arguments, "queries": queries, "lambda_b": 0.5}, {1: NOT_FINITE})


def code_cases(rng: np.random.Generator) -> Iterator[Case]:
    """Rows of all widths and types; blocks and groups that are not full; pools of blocks that are not full."""
    for D in (*DIMS, 51, 52, 53, 116, 117):
        for dtype in FLOATS:
            yield Encode(stored(random_vectors(rng, 21, D), dtype, "scaled", gap=int(rng.integers(3))))
    for N, D, terms, n in ((1, 1, 1, 1), (31, 5, 2, 9), (512, 52, 8, 40), (513, 53, 3, 600), (2100, 64, 1, 30)):
        rows = stored(random_vectors(rng, N, D), FLOATS[terms % 3], "scaled")
        vectors = rng.standard_normal((terms, 11, D)).astype(np.float32)
        vectors[:, 4] = 0
        yield Scan(rows, vectors, n)
        yield Scan(rows, vectors[:, :2], n)
        yield Scan(rows, vectors, n, by_codes=False)
        weights = rng.uniform(0, 1, (2, 11)).astype(np.float32)
        bias = rng.standard_normal(N).astype(np.float32)
        groups = {"groups": rng.integers(0, 5, N), "query_groups": np.arange(11)}
        for by_codes in (True, False):
            yield Scan(rows, vectors, n, bias, (weights[0], weights[1]), **groups, by_codes=by_codes)
    for D, P in itertools.product((5, 52, 64, 117), (47, 48, 65, 100)):
        rows = stored(random_vectors(rng, 120, D), str(rng.choice(FLOATS)), "scaled", gap=int(rng.integers(2)))
        arguments: dict[str, Any] = {
            "queries": rng.standard_normal((3, D)),
            "embeddings": rows,
            "candidates": np.stack([rng.permutation(120)[:P] for _ in range(3)]),
            "k": 12,
        }
        yield Select("vrsd", arguments)
        arguments.update(lambda_d=rng.choice([0, 0.5, 0.75, 1], 3), lambda_b=0.7)
        yield Select("mmr", arguments)
        yield Select("mmr", {**arguments, "initial": rng.permutation(120)[:15].reshape(3, 5), "bias": rng.random(120)})


def threaded_cases(rng: np.random.Generator) -> Iterator[Case]:
    """Enough work that the kernels start threads."""
    for method in METHODS:
        arguments = testing.selection_problem(64, 100, 12, 97, N=400, ragged=True, groups=True, seed=1)
        if method == "mmr":
            arguments.update(lambda_d=0.7, lambda_b=1.0)
        yield Select(method, arguments)
        yield Select(method, {**arguments, "embeddings": stored(random_vectors(rng, 400, 97), "bfloat16")})
    arguments = {**testing.selection_problem(64, 100, 12, 97, N=400, seed=2), "lambda_d": 0.7, "lambda_b": 1.0}
    yield Select("mmr", {**arguments, "embeddings": stored(random_vectors(rng, 400, 97), "float16", "scaled")})
    many = stored(random_vectors(rng, 20_000, 260), "float32", "scaled")
    yield Encode(many)
    yield Scan(many, rng.standard_normal((2, 40, 260)).astype(np.float32), 50)
    candidates = np.tile(np.arange(700), (64, 1))
    rows = stored(random_vectors(rng, 700, 100), "float16")
    yield Relevance(
        "mmr", {"queries": rng.standard_normal((64, 100)), "embeddings": rows, "candidates": candidates, "k": 1}
    )
    yield Scan(many, rng.standard_normal((1, 3, 260)).astype(np.float32), 50)
    yield Scan(many, rng.standard_normal((1, 3, 260)).astype(np.float32), 50, by_codes=False)
    for Q in (2, 30):
        yield Search("mmr", {"queries": rng.standard_normal((Q, 260)), "embeddings": many, "k": 40, "lambda_b": 1.0})


def all_cases() -> list[Case]:
    rng = np.random.default_rng(0)
    cases: list[Case] = []
    for method in METHODS:
        for dtype in DTYPES:
            cases += [random_select(rng, method, dtype, D) for D in DIMS for _ in range(2)]
    for make in (
        cancelling_cases,
        pool_cases,
        whole_corpus_cases,
        edge_cases,
        bad_cases,
        relevance_cases,
        search_cases,
        code_cases,
        threaded_cases,
    ):
        cases += make(rng)
    return [*cases, *exact_cases()]


def write_cases(cases: list[Case], path: Path) -> None:
    out = Writer()
    out.parts.append(b"RSKPROB1")
    out.words(len(cases))
    for case in cases:
        out.words(case.kind)
        case.write(out)
    path.write_bytes(b"".join(out.parts))


def judge(cases: list[Case], answers: bytes) -> None:
    offset = 0
    for number, case in enumerate(cases):
        fields = []
        for _ in range((6, 2, 3, 1, 4)[case.kind]):
            size = struct.unpack_from("<q", answers, offset)[0]
            fields.append(answers[offset + 8 : offset + 8 + size])
            offset += 8 + size
        try:
            case.judge(*fields)
        except AssertionError as error:
            shape = f"{case.problem.op}, {case.problem.rows.data.shape}" if isinstance(case, Select) else ""
            raise AssertionError(f"problem {number} ({type(case).__name__} {shape}): {error}") from error
    assert offset == len(answers), "answers to problems that were not asked"


class Tool:
    """A built select_tool and the command that runs it."""

    def __init__(self, command: list[str], folder: Path, cases: list[Case]) -> None:
        self.command, self.folder, self.cases = command, folder, cases
        self.problems = folder / "problems.bin"
        write_cases(cases, self.problems)

    def run(self, *arguments: str) -> str:
        done = subprocess.run([*self.command, *arguments], capture_output=True, text=True, timeout=900)
        ended_well = done.returncode == 0 and not done.stderr
        assert ended_well, f"exit status {done.returncode}\n{done.stderr}{done.stdout}"
        return done.stdout

    def isas(self) -> list[str]:
        return self.run("--list").split()

    def answers(self, isa: str, threads: int, bounds: str = "automatic") -> tuple[bytes, list[int]]:
        """What the tool wrote; the dot products done, the rows read, the products of codes."""
        path = self.folder / f"answers-{isa}-{threads}-{bounds}.bin"
        arguments = ["--isa", isa, "--threads", str(threads), "--bounds", bounds]
        work = self.run(*arguments, str(self.problems), str(path))
        return path.read_bytes(), [int(count) for count in work.split()]

    def check(self, isa: str, threads: list[int]) -> None:
        answers, _ = self.answers(isa, threads[0])
        judge(self.cases, answers)
        for count in threads[1:]:
            assert self.answers(isa, count)[0] == answers, f"{isa}: {threads[0]} and {count} threads answer differently"
        dense, dense_work = self.answers(isa, threads[0], "dense")
        pruned, pruned_work = self.answers(isa, threads[-1], "pruned")
        assert dense == answers, f"{isa}: without bounds it answers differently"
        assert pruned == answers, f"{isa}: pruned, it answers differently"
        assert pruned_work[0] < dense_work[0], f"{isa}: pruned, it works {pruned_work}, dense {dense_work}"
        coded, coded_work = self.answers(isa, threads[-1], "coded")
        assert coded == answers, f"{isa}: with codes it answers differently"
        fewer = coded_work[0] < dense_work[0] and coded_work[1] < dense_work[1] and coded_work[2] > dense_work[2] == 0
        assert fewer, f"{isa}: with codes it works {coded_work}, dense {dense_work}"


def check_neon(objdump: str, binary: str) -> int:
    """Some kernel of each storage type must hold the eight vector multiply-adds of four rows; their number."""
    listing = subprocess.run([objdump, "-d", "-C", binary], capture_output=True, text=True, check=True).stdout
    most: dict[str, int] = dict.fromkeys(("float", "f16", "bf16", "i8"), 0)
    for function in listing.split("\n\n"):
        name = function.lstrip().partition("\n")[0]
        element = re.search(r"<(?:rsk::base::)?(float|f16|bf16|i8)[,>]", name)
        if "rsk::base::" in name and element:
            multiply_adds = len(re.findall(r"\tfmla\tv\d+\.4s, v\d+\.4s, v\d+\.4s$", function, re.MULTILINE))
            most[element[1]] = max(most[element[1]], multiply_adds)
    assert min(most.values()) >= 8, f"vector multiply-adds in the largest kernel of each type: {most}"
    return sum(most.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tool", help="path of select_tool")
    parser.add_argument("--runner", default="", help="command that runs it, such as an emulator")
    parser.add_argument("--threads", default="1,2,7", help="numbers of threads to compare")
    parser.add_argument("--only-threaded", action="store_true", help="only the problems for which threads are started")
    parser.add_argument("--objdump", help="disassembler: assert that the base kernels are NEON")
    options = parser.parse_args()
    if options.objdump:
        print(f"{options.tool}: {check_neon(options.objdump, options.tool)} NEON multiply-adds")
    cases = list(threaded_cases(np.random.default_rng(0))) if options.only_threaded else all_cases()
    tool = Tool([*shlex.split(options.runner), options.tool], Path(options.tool).parent, cases)
    for isa in tool.isas():
        tool.check(isa, [int(count) for count in options.threads.split(",")])
        print(f"{options.tool}: {isa}: {len(cases)} problems, threads {options.threads}: as expected")


if __name__ == "__main__":
    try:
        main()
    except AssertionError as error:
        sys.exit(f"select_tool: {error}")
