"""Search over all rows: exactly the best by the kernels' own dot product, whatever finds them."""

import ctypes
import dataclasses
import mmap
import time

import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels._base import arrays as _arrays
from ragsys_kernels.selection import constraints, cpu, validate

pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")

DTYPES = ("float32", "float16", "bfloat16", "int8")


def expected_of(corpus, queries, n, lambda_b, query_groups):
    """v of every row by the kernels' dot product, sorted: ties to the lowest row."""
    problem = validate.selection("search", queries, corpus, n, lambda_b=lambda_b, query_groups=query_groups)
    indices = np.full((len(queries), n), -1)
    scores = np.full(indices.shape, -np.inf, np.float32)
    for q in range(len(queries)):
        rows = np.arange(len(corpus))
        if query_groups is not None:
            rows = rows[corpus.groups != query_groups[q]]
        if len(rows) == 0:
            continue
        one = dataclasses.replace(problem.take(slice(q, q + 1)), candidates=rows[None], pool=len(rows))
        v = cpu.relevance(dataclasses.replace(one, constraints=constraints.NONE), 1)[0]
        order = np.argsort(-v, kind="stable")[:n]
        indices[q, : len(order)], scores[q, : len(order)] = rows[order], v[order]
    return indices, scores


def random_search(seed):
    """Rows near to few centres, equal rows, zero rows; few queries and many; n up to all rows."""
    rng = np.random.default_rng(seed)
    N, D = int(rng.choice([1, 5, 63, 64, 500, 513, 2048, 3000, 9001])), int(rng.integers(1, 100))
    Q = int(rng.choice([1, 2, 3, 8, 9, 13, 40, 300]))
    n = int(rng.choice([1, 3, 10, 100, N, N // 9 + 1]))
    centres = rng.standard_normal((int(rng.integers(1, 6)), D))
    rows = centres[rng.integers(0, len(centres), N)] + rng.choice([1e-6, 1e-3, 0.3, 3]) * rng.standard_normal((N, D))
    if rng.random() < 0.4:
        rows = rows[rng.integers(0, min(N, rng.choice([1, 3, 40, N // 2 + 1])), N)]
    rows[rng.integers(0, N, int(rng.integers(0, 3)))] = 0
    bias = rng.choice([0.01, 1, 100]) * rng.standard_normal(N) if rng.random() < 0.6 else None
    if bias is not None and rng.random() < 0.3:
        bias = np.round(bias)
    groups = rng.integers(0, int(rng.choice([1, 3, 30])), N) if rng.random() < 0.5 else None
    corpus = rk.Corpus(
        rows.astype(np.float32),
        bias,
        groups,
        metric=rng.choice(["cosine", "dot"], p=[0.8, 0.2]),
        dtype=rng.choice(DTYPES),
    )
    queries = centres[rng.integers(0, len(centres), Q)] + 0.1 * rng.standard_normal((Q, D))
    queries[rng.random(Q) < 0.1] = 0
    queries = (queries * 10.0 ** rng.integers(-3, 3)).astype(np.float32)
    own = None if groups is None or rng.random() < 0.2 else rng.integers(0, 31, Q)
    return corpus, queries, n, rng.choice([0, 0.1, 0.5, 0.95, 1], Q).astype(np.float32), own


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(12))
def test_rows_and_bits_are_those_of_every_value_sorted(isa, seed):
    for part in range(5):
        corpus, queries, n, lambda_b, own = random_search(5 * seed + part)
        expected = expected_of(corpus, queries, n, lambda_b, own)
        for threads in (1, 3):
            found = corpus.search(queries, n, lambda_b=lambda_b, query_groups=own, backend="cpu", num_threads=threads)
            for a, b in zip(found, expected, strict=True):
                np.testing.assert_array_equal(a, b, err_msg=str((seed, part, threads)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(8))
def test_the_best_in_float64_are_found(backend, seed):
    """The reference finds them by float32 products first, which leave no row out that might be among them."""
    for part in range(4):
        corpus, queries, n, lambda_b, own = random_search(4 * seed + part)
        indices, scores = corpus.search(queries, n, lambda_b=lambda_b, query_groups=own, backend=backend)
        assert (indices.dtype, scores.dtype, indices.shape) == (np.int64, np.float32, (len(queries), n))
        vectors = corpus.vectors(slice(None))
        for q, query in enumerate(queries.astype(np.float64)):
            if corpus.metric == "cosine":
                query = query / (np.linalg.norm(query) or 1)
            v = np.einsum("nd,d->n", vectors, query)
            if corpus.bias is not None:
                v = float(lambda_b[q]) * v + (1 - float(lambda_b[q])) * corpus.bias
            rows = np.flatnonzero(corpus.groups != own[q]) if own is not None else np.arange(len(v))
            number = min(n, len(rows))
            kept = indices[q, :number]
            assert len(set(kept)) == number
            assert np.isin(kept, rows).all()
            assert (indices[q, number:] == -1).all()
            assert np.isneginf(scores[q, number:]).all()
            assert (np.diff(scores[q, :number]) <= 0).all()
            tolerance = 1e-6 * max(1, np.abs(v).max())
            np.testing.assert_allclose(scores[q, :number], v[kept], rtol=0, atol=tolerance)
            np.testing.assert_allclose(v[kept], np.sort(v[rows])[::-1][:number], rtol=0, atol=tolerance)


@pytest.mark.parametrize("metric", ["cosine", "dot"])
@pytest.mark.parametrize("Q", [1, 260])
def test_thousands_of_ties_go_to_the_lowest_rows_of_other_groups(backend, metric, Q):
    """More of them than are kept for a query, which is then answered from all rows."""
    N, n = 9000, 10
    row = np.random.default_rng(0).standard_normal(24).astype(np.float32)
    groups = np.arange(N) % 3
    corpus = rk.Corpus(np.tile(row, (N, 1)), groups=groups, metric=metric)
    own = np.arange(Q) % 4
    indices, scores = corpus.search(np.tile(row, (Q, 1)), n, query_groups=own, backend=backend)
    for q in range(Q):
        np.testing.assert_array_equal(indices[q], np.flatnonzero(groups != own[q])[:n])
    assert (scores == scores[0, 0]).all()


BITS = """
import hashlib, sys
import numpy as np
import ragsys_kernels as rk

rng = np.random.default_rng(0)
bias = rng.standard_normal(5000).astype(np.float32)
corpora = [rk.Corpus(rng.standard_normal((5000, 100), dtype=np.float32), bias, metric=metric)
           for metric in ("cosine", "dot")]
queries = rng.standard_normal((40, 100), dtype=np.float32)
digests = set()
for batch in (1, 7, 40):
    for threads in (1, 2, 5):
        digest = hashlib.sha256()
        for corpus in corpora:
            parts = [corpus.search(queries[i : i + batch], 20, num_threads=threads) for i in range(0, 40, batch)]
            for field in zip(*parts):
                digest.update(np.concatenate(field).tobytes())
        digests.add(digest.hexdigest())
print(*digests)
"""


def test_bits_depend_on_no_batch_thread_count_or_blas(compiled, run_python):
    kinds = [{}, *({"OPENBLAS_CORETYPE": name} for name in ("Haswell", "Zen", "SkylakeX"))]
    digests = {run_python(BITS, **environment).stdout for environment in kinds}
    assert len(digests) == 1
    assert len(digests.pop().split()) == 1


def test_the_fallback_is_not_much_slower_than_a_product_and_a_partition():
    """Three lines of NumPy, which take about as long; measured until other processes disturb it no more."""
    rng = np.random.default_rng(0)
    rows, queries = (rng.standard_normal((size, 128), dtype=np.float32) for size in (20_000, 64))
    corpus = rk.Corpus(rows)
    unit = queries / np.linalg.norm(queries, axis=1, keepdims=True)

    def three_lines():
        scores = unit @ corpus.data.T
        best = np.argpartition(-scores, 50, axis=1)[:, :50]
        return np.take_along_axis(best, np.argsort(-np.take_along_axis(scores, best, 1), axis=1), 1)

    def ours():
        return corpus.search(queries, 50, backend="reference")[0]

    np.testing.assert_array_equal(ours(), three_lines())
    times, hangs = {}, time.monotonic() + 60
    while not times or (times[ours] >= 3 * times[three_lines] and time.monotonic() < hangs):
        for call in (three_lines, ours) * 4:
            begin = time.process_time()
            call()
            times[call] = min(times.get(call, np.inf), time.process_time() - begin)
    assert times[ours] < 3 * times[three_lines], times


@pytest.fixture
def guarded():
    """Copies arrays into memory that ends where a page begins that must not be touched."""
    kept = []

    def copy(array):
        size = -(-array.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        memory = mmap.mmap(-1, size + mmap.PAGESIZE)
        kept.append(memory)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        assert protect(address + size, mmap.PAGESIZE, 0) == 0, ctypes.get_errno()
        view = np.frombuffer(memory, array.dtype, array.size, size - array.nbytes).reshape(array.shape)
        view[...] = array
        return view

    return copy


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("D", [1, 7, 53, 64, 130])
def test_nothing_beyond_the_rows_is_read(isa, guarded, dtype, D):
    """Rows, codes, scales and bias end at a page whose reading kills the process. What is only asked for ahead of time
    may lie beyond: processors drop such requests, so that no test can see them."""
    rng = np.random.default_rng(D)
    for N in (1, 33, 2100):
        corpus = rk.Corpus(rng.standard_normal((N, D), dtype=np.float32), rng.standard_normal(N), dtype=dtype)
        arrays = {name: getattr(corpus, name) for name in ("data", "codes", "scales", "bias")}
        tight = _arrays.changed(corpus, **{name: guarded(array) for name, array in arrays.items() if array is not None})
        for Q in (1, 13):
            queries = rng.standard_normal((Q, D), dtype=np.float32)
            pools = np.tile(np.arange(max(0, N - 60), N), (Q, 1))
            for call in (
                lambda c, q=queries: c.search(q, 5),
                lambda c, q=queries: rk.mmr(q, c, 3),
                lambda c, q=queries: rk.vrsd(q, c, 3),
                lambda c, q=queries, p=pools: rk.mmr(q, c, 3, candidates=p),
            ):
                for a, b in zip(call(tight), call(corpus), strict=True):
                    np.testing.assert_array_equal(a, b)
