"""The kinds of problems of select_tool: how each is written, and how its answer is judged.

Picks must be legal by the float64 replay of `ragsys_kernels.testing`, those of whole-number problems the reference's,
and bad values must be reported. Codes of rows, and what scans and searches find, are held against float64 products.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ragsys_kernels import testing
from ragsys_kernels._base import arrays as _arrays
from ragsys_kernels.selection import reference, validate
from ragsys_kernels.selection.problem import Problem, Rows, Selection
from ragsys_kernels.selection.rules.pool import pool_of

from .tool import Writer, memory_of, stride_of

DTYPES = ("float32", "float16", "bfloat16", "int8")  # and "binary"
METHODS = ("mmr", "vrsd")
KERNELS = (*METHODS, "msd", "dpp", "ssd", "sift", "facility", "cover", "xquad")  # as the tool numbers them
NORMS = ("as_given", "scaled", "computed")
OK, OUT_OF_RANGE, REPEATED, NOT_FINITE, NORM_OUT_OF_RANGE, POOL_TOO_SMALL = range(6)
UNWRITTEN = 0x5A5A5A5A


def may_have_codes(rows: Rows) -> bool:
    """Whether a Corpus of these rows would have codes: unit vectors of floats."""
    unit = rows.metric == "cosine" and rows.norm == "scaled" and rows.dtype != "int8"
    return unit and bool(np.isfinite(_arrays.widen(rows.data, rows.dtype)).all())


def write_problem(out: Writer, problem: Problem, *whole_corpus: np.ndarray | None, best_first: bool = False) -> None:
    rows = problem.rows
    limits, options = problem.constraints, problem.options
    bytes_of_ids = [8 if ids is None else ids.itemsize for ids in (problem.candidates, limits.initial)]
    signs = problem.queries is not None and problem.queries.dtype == np.uint8
    out.words(
        KERNELS.index(options.kind if problem.op == "coverage" else problem.op),
        problem.num_queries, len(rows.data), problem.pool, rows.dims, problem.k,
        0 if limits.initial is None else limits.initial.shape[1],
        _arrays.NUMBERS[rows.dtype], stride_of(rows.data), NORMS.index(rows.norm),
        problem.pool_stride, problem.unit_queries, rows.metric == "cosine", *bytes_of_ids,
        problem.bias is not None and problem.bias.ndim == 2, limits.max_per_group,
    )  # fmt: skip
    out.arrays(memory_of(rows.data), rows.scales, *((None, problem.queries) if signs else (problem.queries, None)))
    out.arrays(problem.candidates, limits.initial, problem.relevance)
    out.arrays(problem.bias, problem.lambda_d, problem.lambda_b, problem.ks, limits.groups, limits.query_groups)
    out.arrays(*(whole_corpus or [None] * 5))  # relevance_error, forced, ceiling, outside, max_bias
    out.words(best_first)
    out.arrays(limits.costs)
    out.words(limits.costs is not None and limits.costs.ndim == 2)
    out.arrays(limits.budget, limits.max_similarity)
    quality, aspects, weights = (getattr(options, name, None) for name in ("quality", "aspects", "weights"))
    out.arrays(quality)
    out.words(quality is not None and quality.ndim == 2)
    out.arrays(aspects, weights)
    out.words(0 if aspects is None else aspects.shape[1], getattr(options, "window", None) or 0)
    out.words(getattr(options, "density", False))
    numbers = [getattr(options, name, None) or 0 for name in ("scale", "noise", "min_gain", "gamma")]
    out.arrays(None if options is None else np.array(numbers, np.float32))
    out.words(may_have_codes(rows))


def of_queries(arguments: dict[str, Any], which: np.ndarray) -> dict[str, Any]:
    """The arguments of some of the queries."""
    chosen = dict(arguments)
    names = ("queries", "candidates", "initial", "relevance", "bias", "k", "lambda_d", "query_groups")
    for name in (*names, "costs", "budget", "max_similarity", "quality", "aspects", "weights"):
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
    kind, num_fields = 0, 6  # as the tool numbers them; of an answer

    def __post_init__(self) -> None:
        self.problem = testing.checked_problem(self.method, self.arguments)

    def write(self, out: Writer) -> None:
        out.words(self.kind)
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
    kind, num_fields = 1, 2

    def judge(self, status: bytes, values: bytes, *fields: bytes) -> None:
        problem = self.problem
        good = self.answered(np.frombuffer(status, np.uint8))
        got = np.frombuffer(values, np.float32).reshape(problem.num_queries, problem.pool)
        for q in np.flatnonzero(good):
            pool = pool_of(problem, int(q))
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
        out.words(self.kind)
        problem, Q = self.problem, self.problem.num_queries
        errors = np.random.default_rng(0).uniform(-0.9, 0.9, (Q, problem.pool)) * self.ERROR
        forced = reference.mmr(problem, 1).indices
        forced[:, self.made :] = -1
        most = np.full((Q, problem.pool), -np.inf)  # upper bounds of v, or of the values after the picks made
        relevance = np.zeros((Q, problem.pool))
        for q in range(Q):
            pool = pool_of(problem, q)
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

    kind, num_fields = 2, 3

    def write(self, out: Writer) -> None:
        super().write(out)
        out.words(largest_bias(self.problem.bias))

    def judge(self, status: bytes, *fields: bytes) -> None:
        shape = (self.problem.num_queries, self.problem.k)
        indices = np.frombuffer(fields[0], np.int64).reshape(shape)
        scores = np.frombuffer(fields[1], np.float32).reshape(shape)
        for q in np.flatnonzero(self.answered(np.frombuffer(status, np.uint8))):
            pool = pool_of(self.problem, int(q))
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
    kind, num_fields = 3, 1

    def write(self, out: Writer) -> None:
        out.words(self.kind, *self.rows.data.shape, stride_of(self.rows.data), DTYPES.index(self.rows.dtype))
        out.arrays(memory_of(self.rows.data), self.rows.scales)

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
    kind, num_fields = 4, 4

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
