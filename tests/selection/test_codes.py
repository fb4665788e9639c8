"""8-bit codes of a corpus's rows: what they promise, and that bounds from them change no bit of any selection."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ragsys_kernels as rk
from ragsys_kernels import _arrays, _dispatch, testing
from ragsys_kernels.selection import cpu, validate

pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")

DTYPES = ("float32", "float16", "bfloat16")
SEEDS = st.integers(0, 2**32 - 1)
BOOLEANS = st.booleans()
MANY = 1 << 20  # vectors of a scan
# Headers begin 12 bytes before the end of whole cache lines: 52, 116 and 180 leave them no room to spare.
DIMS = (1, 2, 3, 4, 7, 16, 33, 48, 51, 52, 53, 60, 63, 64, 65, 100, 115, 116, 117, 130, 180, 384)


@pytest.fixture(scope="module")
def scanning(compiled):
    """The instruction set that scans a corpus by its codes."""
    widest = len(compiled.SUPPORTED_ISAS) - 1
    if not compiled.code_scan_supported(widest, MANY):
        pytest.skip("no scan by codes on this processor")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAGSYS_KERNELS_ISA", raising=False)
        yield widest


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def vectors_of(corpus):
    """The unit vectors that the kernels select from, in float64."""
    data = corpus.data
    if corpus.dtype == "bfloat16":
        data = (data.astype(np.uint32) << 16).view(np.float32)
    data = data.astype(np.float64)
    return data if corpus.scales is None else data * corpus.scales[:, None].astype(np.float64)


def decoded(codes, dims):
    """(N, D) signed codes and the fields of the headers."""
    assert codes.dtype == np.uint8
    assert codes.shape[1] == -(-(dims + 12) // 64) * 64
    assert not codes[:, dims:-12].any()
    header = np.ascontiguousarray(codes[:, -12:])
    scale, error = header[:, :8].view(np.float32).T
    return codes[:, :dims].astype(np.int64) - 128, scale, error, header[:, 8:].view(np.int32)[:, 0]


def same(a, b):
    for name, x, y in zip(rk.Selection._fields, a, b, strict=True):
        np.testing.assert_array_equal(x, y, err_msg=name)


# --- The codes themselves.


def check_codes(corpus):
    assert corpus.codes.ctypes.data % 64 == 0
    codes, scale, error, total = decoded(corpus.codes, corpus.dims)
    vectors = vectors_of(corpus)
    lost = np.linalg.norm(vectors - scale[:, None].astype(np.float64) * codes, axis=1)
    assert (lost <= error).all()
    assert (error <= 2 * lost + 2e-6).all()
    assert (total == codes.sum(axis=1)).all()
    assert np.float32(corpus.code_error) == error.max()
    # To the nearest, in steps of which the largest element takes 127.
    largest = np.abs(vectors).max(axis=1)
    np.testing.assert_allclose(scale, largest / 127, rtol=1e-6)
    steps = np.divide(vectors, largest[:, None] / 127, out=np.zeros_like(vectors), where=largest[:, None] > 0)
    assert np.abs(steps - codes).max() <= 0.5 + 1e-4
    zero = largest == 0
    assert not codes[zero].any()
    assert (scale[zero] == 0).all()
    assert (error[zero] <= 2e-6).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dims", DIMS)
def test_codes_keep_their_promises(isa, dims, dtype):
    rows = normal(dims, 70, dims)
    rows[3] = 0
    rows[4:7] *= np.float32([[1e-18], [1e18], [1e-30]])
    rows[7] = 1  # every code is 127
    rows[8] = -1
    rows[9] *= np.arange(dims) == dims // 2  # one element
    rows[10:20] *= np.float32(10) ** np.random.default_rng(0).uniform(-6, 0, (10, dims))  # few large elements
    rows[20:40] = np.round(rows[20:40] * 2)  # exact codes
    check_codes(rk.Corpus(rows, dtype=dtype))


@pytest.mark.parametrize("num_threads", ["1", "3"])
def test_codes_of_many_rows(isa, monkeypatch, num_threads):
    monkeypatch.setenv("RAGSYS_KERNELS_NUM_THREADS", num_threads)
    check_codes(rk.Corpus(normal(1, 9001, 50)))


def test_codes_are_the_same_on_every_instruction_set(compiled, monkeypatch):
    """But for the last bits of the error, a sum over a row."""
    found = []
    for name in compiled.SUPPORTED_ISAS:
        monkeypatch.setenv("RAGSYS_KERNELS_ISA", name)
        codes, scale, _, total = decoded(rk.Corpus(normal(2, 300, 67), dtype="float16").codes, 67)
        found.append(np.column_stack([codes, scale, total]))
    assert all((other == found[0]).all() for other in found)


@pytest.mark.parametrize(("metric", "dtype"), [("dot", "float32"), ("dot", "float16"), ("cosine", "int8")])
def test_other_corpora_have_no_codes(compiled, metric, dtype):
    corpus = rk.Corpus(normal(3, 9, 5), metric=metric, dtype=dtype)
    assert corpus.codes is None
    assert corpus.code_error == 0


def test_code_error_refuses_what_holds_no_header(compiled):
    with pytest.raises(ValueError, match="codes"):
        compiled.code_error(np.zeros((3, 11), np.uint8))


# --- Pools.


def for_vrsd(problem):
    return {name: value for name, value in problem.items() if name not in ("lambda_d", "lambda_b", "bias")}


def check_pools(problem, op="mmr"):
    """The picks and scores of the dense rule, bit for bit."""
    if op == "vrsd":
        problem = for_vrsd(problem)
    dense, _ = testing.selection_work(op, problem, bounds="dense")
    coded, work = testing.selection_work(op, problem, bounds="coded")
    same(coded, dense)
    same(getattr(rk, op)(**problem, backend="cpu"), dense)
    return work


@st.composite
def pools(draw):
    """Near ties within few clusters, opposite and zero rows, equal rows, rows that codes tell badly; all options."""
    rng = np.random.default_rng(draw(SEEDS))
    P = draw(st.one_of(st.integers(1, 40), st.sampled_from([31, 32, 33, 47, 48, 49, 63, 64, 65, 100, 300])))
    N, D, K = P + draw(st.integers(0, 30)), draw(st.one_of(st.integers(1, 130), st.integers(48, 64))), 12
    centres = rng.standard_normal((draw(st.integers(1, 5)), D))
    rows = centres[rng.integers(0, len(centres), N)]
    rows *= rng.choice(draw(st.sampled_from([(1,), (-1,), (1, -1)])), (N, 1))
    rows += draw(st.sampled_from([0.0, 1e-7, 1e-6, 1e-4, 1e-2, 0.3, 3])) * rng.standard_normal((N, D))
    if draw(BOOLEANS):  # a large element leaves few steps for the others
        rows[rng.random(N) < 0.3, 0] += 30
    if draw(BOOLEANS):
        rows = rows[rng.integers(0, N, N)]
    rows[rng.integers(0, N, draw(st.integers(0, 3)))] = 0
    queries = np.stack([centres[0], -centres[-1], rng.standard_normal(D), np.zeros(D)]).astype(np.float32)
    problem = {
        "queries": queries * np.float32(draw(st.sampled_from([1, 1e-25, 1e25]))),
        "embeddings": rk.Corpus(rows.astype(np.float32), dtype=draw(st.sampled_from(DTYPES))),
        "candidates": np.stack([rng.permutation(N)[:P] for _ in range(4)]),
        "k": rng.integers(1, K + 1, 4) if draw(BOOLEANS) else K,
        "lambda_d": rng.choice([0.0, 0.1, 0.5, 0.75, 0.99, 1.0], 4),
        "lambda_b": rng.choice([0.0, 0.1, 0.5, 0.95, 1.0], 4),
    }
    if draw(BOOLEANS):
        problem["candidates"][rng.random((4, P)) < rng.random((4, 1))] = -1
    bias = draw(st.sampled_from([None, 1e-6, 0.01, 1, 1000]))
    if bias is not None:
        whole = draw(BOOLEANS)
        problem["bias"] = (bias * rng.standard_normal(N if whole else (4, P))).astype(np.float32)
    if draw(BOOLEANS):
        problem["relevance"] = np.round(rng.uniform(-1, 1, (4, P)), draw(st.integers(0, 7))).astype(np.float32)
    if draw(BOOLEANS):
        shown = np.stack([rng.permutation(N) for _ in range(4)])[:, : draw(st.integers(1, 9))]
        problem["initial"] = np.where(rng.random(shown.shape) < rng.random((4, 1)), shown, -1)
    if draw(BOOLEANS):
        problem["groups"] = rng.integers(0, 1 + N // 8, N)
        problem["max_per_group"] = draw(st.integers(1, 4))
        if draw(BOOLEANS):
            problem["query_groups"] = rng.integers(0, 2 + N // 8, 4)
    return problem


@pytest.mark.parametrize("op", ["mmr", "vrsd"])
@settings(max_examples=150)
@given(problem=pools())
def test_codes_leave_every_bit_as_it_is(isa, op, problem):
    check_pools(problem, op)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("relevance", [False, True], ids=["computed", "given"])
@pytest.mark.parametrize("op", ["mmr", "vrsd"])
def test_codes_leave_every_bit_as_it_is_in_large_pools(isa, op, relevance, dtype):
    for kind in ("clustered", "random", "duplicates"):
        problem = testing.selection_problem(6, 1000, 30, 60, N=1500, dtype="float32", kind=kind, seed=5)
        problem["embeddings"] = rk.Corpus(problem["embeddings"], dtype=dtype)
        if relevance:
            problem["relevance"] = np.random.default_rng(6).uniform(-1, 1, (6, 1000)).astype(np.float32)
        check_pools(problem, op)


BAD_IDS = {
    "high": (300, "candidates must be -1 or rows of the corpus, below N = 300, got 300 for query 3"),
    "highest": (2**31 - 1, "below N = 300, got 2147483647 for query 3"),
    "low": (-2, "below N = 300, got -2 for query 3"),
    "twice": (6, "candidates must not repeat an id within a query, got 6 twice for query 3"),
}


def pools_of_40():
    """Queries, a corpus whose codes are used on every instruction set, and ids of whole pools."""
    ids = np.stack([np.random.default_rng(q).permutation(np.r_[:6, 7:300])[:40] for q in range(5)])
    ids[:, 20] = 6
    return normal(1, 5, 64), rk.Corpus(normal(2, 300, 64)), ids


@pytest.mark.parametrize("position", [0, 19, 39])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("bad", BAD_IDS)
def test_bad_ids_of_whole_pools_are_found(isa, bad, dtype, position):
    queries, corpus, ids = pools_of_40()
    ids[3, position], message = BAD_IDS[bad]
    with pytest.raises(ValueError, match=message):
        rk.mmr(queries, corpus, 5, candidates=ids.astype(dtype), lambda_d=0.5)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("position", [0, 19, 39])
def test_relevance_of_whole_pools_must_be_finite(isa, position, value):
    _, corpus, ids = pools_of_40()
    relevance = normal(3, 5, 40)
    relevance[3, position] = value
    with pytest.raises(ValueError, match=f"relevance must be finite, got NaN or inf in row 3, position {position}"):
        rk.mmr(None, corpus, 5, candidates=ids, relevance=relevance, lambda_d=0.5)


@pytest.mark.parametrize("given", [False, True])
def test_pools_with_gaps_are_those_without(isa, given):
    queries, corpus, ids = pools_of_40()
    relevance = normal(3, 5, 40)
    wide, spread = np.full((5, 45), -1), np.full((5, 45), np.nan, np.float32)
    places = np.sort(np.stack([np.random.default_rng(q).permutation(45)[:40] for q in range(5)]))
    np.put_along_axis(wide, places, ids, 1)
    np.put_along_axis(spread, places, relevance, 1)
    found = [
        rk.mmr(None if given else queries, corpus, 5, candidates=rows, relevance=r if given else None, lambda_d=0.5)
        for rows, r in ((ids, relevance), (wide, spread))
    ]
    same(*found)


@pytest.mark.parametrize("items", [5, 33, 40])
def test_values_at_the_end_of_float32_are_told_apart_from_items_picked(isa, items):
    """No value is below them, so a bound from below is minus infinity, as that of what cannot be picked."""
    problem = testing.selection_problem(3, items, 5, 20, seed=8)
    problem["embeddings"] = rk.Corpus(problem["embeddings"])
    bias = np.full(len(problem["embeddings"]), np.finfo(np.float32).min)
    for lambda_d in (0.5, 1.0):
        call = problem | {"bias": bias, "lambda_b": 0.0, "lambda_d": lambda_d}
        dense, _ = testing.selection_work("mmr", call, bounds="dense")
        coded, _ = testing.selection_work("mmr", call, bounds="coded")
        for found, expected in zip(coded, dense, strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dims", [1, 4, 31, 48, 52, 53, 63, 64, 65, 117, 128, 200, 1000])
def test_exact_codes_leave_nothing_to_be_read_but_the_picks(isa, dims):
    """A product of codes that is off by one, or a bound that is too wide, asks for rows that no pick needs."""
    rng = np.random.default_rng(dims)
    K, P = 5, 77
    rows = rng.integers(-127, 128, (P, dims)).astype(np.float32)
    rows[:, dims // 2] = 127
    corpus = rk.Corpus(rows)
    assert corpus.code_error < 2e-6
    queries = rows[:6]
    vectors = vectors_of(corpus)
    problem = {"queries": queries, "embeddings": corpus, "candidates": np.tile(np.arange(P), (6, 1)), "k": K}
    work = check_pools(problem)
    # All that come within the error of a pick, at its step, may be read.
    selection = rk.mmr(**problem, backend="cpu")
    needed = 0
    for q, picks in enumerate(selection.indices):
        v = vectors @ vectors[q]
        near = set()
        for step, score in enumerate(selection.scores[q]):
            m = (vectors @ vectors[picks[:step]].T).max(axis=1, initial=-np.inf)
            values = v + 0 if step == 0 else 0.75 * v - 0.25 * m
            values[picks[:step]] = -np.inf
            bar = score / 0.75 if step == 0 else score
            near |= set(np.flatnonzero(values > bar - 1e-4))
        needed += len(near)
    assert needed < work.dense_products
    assert work.rows_read <= needed
    assert work.code_products > 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_few_rows_of_a_clustered_pool_are_read(isa, dtype):
    problem = testing.selection_problem(8, 300, 10, 96, N=600, kind="clustered", seed=7)
    problem["embeddings"] = rk.Corpus(problem["embeddings"], dtype=dtype)
    _, dense = testing.selection_work("mmr", problem, bounds="dense")
    _, coded = testing.selection_work("mmr", problem, bounds="coded")
    _, automatic = testing.selection_work("mmr", problem)
    assert dense.rows_read == 8 * 300
    assert dense.code_products == 0
    _, pruned = testing.selection_work("mmr", problem, bounds="pruned")
    assert automatic == (pruned if _dispatch.isa() == "base" else coded)
    assert coded.rows_read < dense.rows_read / 3
    assert coded.bytes_read < dense.bytes_read / 3
    assert coded.products < dense.products / 10
    assert coded.products < 4 * coded.rows_read  # of the picks so far an item meets the nearest, seldom more
    assert 8 * 300 <= coded.code_products <= dense.dense_products


@pytest.mark.parametrize("dtype", DTYPES)
def test_codes_are_used_where_they_save_more_than_they_cost(isa, dtype):
    fewest = {"avx512": 16, "avx2": 48, "base": np.inf}[_dispatch.isa()]
    for pool in (15, 16, 47, 48, 200):
        used = pool >= fewest
        problem = testing.selection_problem(2, pool, 5, 20, seed=8)
        problem["embeddings"] = rk.Corpus(problem["embeddings"], dtype=dtype)
        assert (testing.selection_work("mmr", problem)[1].code_products > 0) == used
        assert testing.selection_work("mmr", problem, bounds="coded")[1].code_products > 0


def test_the_former_name_of_bounds_is_taken_for_one_release(compiled):
    problem = testing.selection_problem(2, 20, 5, 9)
    with pytest.warns(DeprecationWarning, match="^selection_work: rule is called bounds now") as warned:
        former = testing.selection_work("mmr", problem, rule="dense")[1]
    assert warned[0].filename == __file__
    assert former == testing.selection_work("mmr", problem, bounds="dense")[1]


@pytest.mark.parametrize("embeddings", ["array", "int8", "dot"])
def test_without_codes_there_are_no_products_of_codes(compiled, embeddings):
    problem = testing.selection_problem(2, 100, 5, 20, seed=8)
    rows = problem["embeddings"]
    problem["embeddings"] = {
        "array": lambda: rows,
        "int8": lambda: rk.Corpus(rows, dtype="int8"),
        "dot": lambda: rk.Corpus(rows, metric="dot"),
    }[embeddings]()
    for bounds in ("automatic", "coded"):
        assert testing.selection_work("mmr", problem, bounds=bounds)[1].code_products == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("given", [False, True])
def test_few_rows_are_read_for_vrsd(isa, given, dtype):
    problem = testing.selection_problem(8, 300, 10, 96, N=600, kind="random", seed=7)
    problem["embeddings"] = rk.Corpus(problem["embeddings"], dtype=dtype)
    if given:
        problem["relevance"] = np.random.default_rng(6).uniform(-1, 1, (8, 300)).astype(np.float32)
    dense, dense_work = testing.selection_work("vrsd", problem, bounds="dense")
    coded, work = testing.selection_work("vrsd", problem, bounds="coded")
    same(coded, dense)
    assert dense_work.rows_read == 8 * 300
    assert dense_work.code_products == 0
    assert work.rows_read < dense_work.rows_read / 8
    assert work.products < dense_work.products / 20
    assert work.code_products == 8 * 300 * (9 if given else 10)  # every item at every pick, whose sum changes it
    automatic = testing.selection_work("vrsd", problem)[1]
    assert automatic == (dense_work if _dispatch.isa() == "base" else work)


@pytest.mark.parametrize("dims", [1, 4, 31, 48, 52, 53, 63, 64, 65, 117, 128, 200, 1000])
def test_exact_codes_leave_few_rows_to_vrsd(isa, dims):
    """A product of codes that is off by one, or too much that they are said to leave out, asks for more rows."""
    K, P = 5, 77
    rows = np.random.default_rng(dims).integers(-127, 128, (P, dims)).astype(np.float32)
    rows[:, dims // 2] = 127
    corpus = rk.Corpus(rows)
    vectors = vectors_of(corpus)
    problem = {"queries": rows[:6], "embeddings": corpus, "candidates": np.tile(np.arange(P), (6, 1)), "k": K}
    work = check_pools(problem, "vrsd")
    selection = rk.vrsd(**problem, backend="cpu")
    needed = 0
    for q, picks in enumerate(selection.indices):
        near = set()
        for step, score in enumerate(selection.scores[q]):
            sums = vectors[picks[:step]].sum(axis=0) + vectors
            cosines = sums @ vectors[q] / np.linalg.norm(sums, axis=1)
            cosines[picks[:step]] = -np.inf
            near |= set(np.flatnonzero(cosines > score - 3e-4))
        needed += len(near)
    assert work.rows_read <= needed
    assert needed <= 36 or dims == 1  # of 462, six queries with five picks; all rows are alike in one dimension
    if dims in (4, 117, 200):  # the count tells: codes that are said to leave out a thousandth too much ask for more
        codes = corpus.codes.copy()
        codes[:, -12:].view(np.float32)[:, 1] += 1e-3  # in the header: scale, error, sum
        assert check_pools(problem | {"embeddings": _arrays.changed(corpus, codes=codes)}, "vrsd").rows_read > needed


def test_vrsd_that_picks_most_of_a_pool_reads_it(compiled):
    problem = testing.selection_problem(2, 40, 20, 30, seed=8)
    problem["embeddings"] = rk.Corpus(problem["embeddings"])
    for k in (20, 21, 40):
        dense, dense_work = testing.selection_work("vrsd", problem | {"k": k}, bounds="dense")
        found, work = testing.selection_work("vrsd", problem | {"k": k})
        same(found, dense)
        assert (work == dense_work) == (k > 20 or _dispatch.isa() != "avx512")


# --- Whole corpora.


@st.composite
def whole_corpora(draw):
    """Several blocks of rows, which are taken out of their order, and ties all over them."""
    rng = np.random.default_rng(draw(SEEDS))
    N, D, K = draw(st.sampled_from([2100, 2561, 6001, 20_000])), draw(st.integers(1, 70)), draw(st.integers(1, 12))
    centres = rng.standard_normal((draw(st.integers(1, 8)), D))
    rows = centres[rng.integers(0, len(centres), N)] * rng.choice(draw(st.sampled_from([(1,), (1, -1)])), (N, 1))
    rows += draw(st.sampled_from([1e-6, 1e-3, 0.3, 3])) * rng.standard_normal((N, D))
    if draw(BOOLEANS):  # equal rows far apart
        rows = rows[rng.integers(0, draw(st.sampled_from([3, 40, N // 2])), N)]
    rows[rng.integers(0, N, draw(st.integers(0, 3)))] = 0
    queries = np.stack([centres[0], -centres[-1], rng.standard_normal(D), np.zeros(D)]).astype(np.float32)
    problem = {
        "queries": queries,
        "embeddings": rk.Corpus(rows.astype(np.float32), dtype=draw(st.sampled_from(DTYPES))),
        "k": rng.integers(1, K + 1, 4) if draw(BOOLEANS) else K,
        "lambda_d": rng.choice([0.0, 0.1, 0.5, 0.75, 1.0], 4),
        "lambda_b": rng.choice([0.0, 0.1, 0.5, 0.95, 1.0], 4),
    }
    bias = draw(st.sampled_from([None, 0.01, 1, 100]))
    if bias is not None:
        problem["bias"] = (bias * rng.standard_normal(N)).astype(np.float32)
    if draw(BOOLEANS):
        problem["initial"] = np.where(rng.random((4, 2)) < 0.5, rng.integers(0, N // 2, (4, 2)) * 2 + [0, 1], -1)
        problem["initial"] %= N
        problem["initial"][problem["initial"] == N - 1] = -1
    if draw(BOOLEANS):
        problem.update(groups=rng.integers(0, 30, N), max_per_group=draw(st.integers(1, 3)))
        problem["query_groups"] = rng.integers(0, 31, 4)
    return problem


@settings(max_examples=30)
@given(problem=whole_corpora())
def test_vrsd_over_a_whole_corpus_keeps_its_bits(isa, problem):
    problem = for_vrsd(problem)
    dense, _ = testing.selection_work("vrsd", problem, bounds="dense")
    same(testing.selection_work("vrsd", problem, bounds="coded")[0], dense)
    same(rk.vrsd(**problem, backend="cpu", num_threads=3), dense)


@given(problem=whole_corpora())
def test_scans_by_codes_leave_every_bit_as_it_is(scanning, problem):
    dense, _ = testing.selection_work("mmr", problem, bounds="dense")
    same(rk.mmr(**problem, backend="cpu"), dense)
    same(rk.mmr(**problem, backend="cpu", num_threads=3), dense)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("biased", [False, True], ids=["no_bias", "bias"])
def test_equal_rows_of_a_whole_corpus_go_to_the_lowest_row(scanning, biased, dtype):
    """The best row comes again in many blocks; a scan meets them in another order."""
    N = 20_000
    rows = normal(10, N, 30)
    places = np.sort(np.random.default_rng(11).permutation(N)[:40])
    rows[places] = rows[places[0]]
    bias = np.zeros(N)
    bias[places] = 0.5
    corpus = rk.Corpus(rows, bias if biased else None, dtype=dtype)
    queries = np.stack([rows[places[0]], rows[places[0]] + 0.2 * normal(12, 30)])
    relevant = rk.mmr(queries, corpus, 40, lambda_d=1.0, backend="cpu")
    np.testing.assert_array_equal(relevant.indices, [places] * 2)
    diverse = rk.mmr(queries, corpus, 5, lambda_d=0.7, backend="cpu")
    assert (diverse.indices[:, 0] == places[0]).all()
    problem = {"queries": queries, "embeddings": corpus, "k": 5, "lambda_d": 0.7}
    same(diverse, testing.selection_work("mmr", problem, bounds="dense")[0])


def test_a_row_read_for_a_tie_keeps_its_value_when_its_codes_are_met(isa):
    """Rows whose ceiling equals the second pick's value are read for the tie, before the codes of their block."""
    N, K, read = 200, 8, 0
    for seed in range(20):
        corpus = rk.Corpus(normal(seed, N, 24))
        queries = normal(seed + 100, 1, 24)
        options = {"lambda_d": 0.5, "lambda_b": 1.0}
        dense = testing.selection_work(
            "mmr", {"queries": queries, "embeddings": corpus, "k": K, **options}, bounds="dense"
        )
        first, second, *later = picks = dense[0].indices[0]
        order = np.concatenate([[first, second], np.setdiff1d(np.arange(N), picks), later])  # the later ones far behind
        unit, query = vectors_of(corpus), queries[0].astype(np.float64)
        worth = 0.5 * unit @ (query / np.linalg.norm(query)) - 0.5 * unit @ unit[first]
        ceiling = np.float32(worth + 1e-4)
        tied = [row for row in later if row < second]
        ceiling[tied] = dense[0].scores[0, 1]
        ceiling[first] = np.inf
        read += len(tied)
        problem = validate.selection("mmr", queries, corpus, K, candidates=order[None], **options)
        found, status, _ = cpu._call(
            problem,
            1,
            forced=np.array([[first] + [-1] * (K - 1)]),
            ceiling=ceiling[order][None],
            outside=np.float32([-np.inf]),
            best_first=True,
        )
        assert status is None
        same(found, dense[0])
    assert read


@pytest.mark.parametrize("left_out", ["groups", "initial"])
def test_equal_rows_of_what_is_left_of_a_whole_corpus_go_to_the_lowest_row(scanning, left_out):
    """Fewer than 48 rows may be picked: the rule that reads them all meets them in the order of the scan."""
    N = 6000
    rows = normal(30, N, 16)
    open_rows = np.sort(np.random.default_rng(31).permutation(N)[:30])
    rows[open_rows] = rows[open_rows[0]]
    queries = rows[open_rows[:1]] + 0
    problem = {"queries": queries, "k": 20, "lambda_d": np.float32([1.0])}
    if left_out == "groups":
        groups = np.zeros(N, int)
        groups[open_rows] = 1
        problem.update(embeddings=rk.Corpus(rows, groups=groups), query_groups=[0])
    else:
        corpus = rk.Corpus(rows)
        problem.update(embeddings=corpus, initial=np.setdiff1d(corpus.search(queries, 130)[0], open_rows)[None])
    found = rk.mmr(**problem, backend="cpu")
    np.testing.assert_array_equal(found.indices[0], open_rows[:20])
    same(found, testing.selection_work("mmr", problem, bounds="dense")[0])


def test_few_rows_of_a_whole_corpus_are_read(scanning):
    problem = testing.selection_problem(16, 1, 5, 64, N=20_000, kind="clustered", seed=13)
    del problem["candidates"]
    problem["embeddings"] = rk.Corpus(problem["embeddings"])
    dense, dense_work = testing.selection_work("mmr", problem, bounds="dense")
    found, work = testing.selection_work("mmr", problem)
    same(found, dense)
    assert work.rows_read < dense_work.rows_read / 20


@pytest.mark.parametrize("codes", [True, False], ids=["codes", "rows"])
def test_rows_outside_a_pool_may_have_a_large_bias(compiled, codes):
    """How near to the query such a row may be follows from its value and the largest bias, above 0 or below."""
    for seed in range(30):
        rng = np.random.default_rng(seed)
        N, D = 2100, int(rng.integers(2, 9))
        rows = rng.standard_normal((N, D)).astype(np.float32)
        problem = {
            "queries": rng.standard_normal((12, D)).astype(np.float32),
            "embeddings": rk.Corpus(rows) if codes else rows,
            "k": int(rng.integers(3, 9)),
            "lambda_d": rng.uniform(0.3, 1, 12),
            "lambda_b": rng.uniform(0.05, 1, 12),
            "bias": rng.choice([0.03, 0.3, 3]) * rng.standard_normal(N) + rng.choice([-2, 0, 2]),
        }
        same(rk.mmr(**problem, backend="cpu"), testing.selection_work("mmr", problem, bounds="dense")[0])


# --- The scan alone.


def scanned(compiled, isa, corpus, vectors, n, *, bias=None, weights=(None, None), groups=None, own=None, threads=1):
    weights = [None if weight is None else np.float32(weight) for weight in weights]
    largest_bias = 0 if bias is None else np.abs(bias).max()
    kind = _arrays.NUMBERS[corpus.dtype], cpu._NORMS[corpus.norm]
    *found, well = compiled.scan(
        vectors, n, corpus.data, *kind, corpus.scales, corpus.codes, corpus.code_error, 1.0, bias, largest_bias,
        *weights, groups, own, isa, threads,
    )  # fmt: skip
    assert well
    return found


@pytest.mark.parametrize("terms", [1, 2, 3, 4, 8])
@pytest.mark.parametrize(("N", "D"), [(1, 1), (31, 5), (512, 52), (513, 53), (2049, 64), (5000, 131)])
@pytest.mark.parametrize("Q", [1, 11])  # codes as they lie, or packed
def test_scan_estimates_within_its_error(compiled, scanning, N, D, terms, Q):
    """Against products in float64; and of what is left out nothing exceeds what the scan says."""
    corpus = rk.Corpus(normal(N, N, D), dtype=DTYPES[terms % 3])
    vectors = normal(14, terms, Q, D) * np.float32(10) ** np.arange(-5, Q - 5, dtype=np.float32)[:, None]
    vectors[:, 3:4] = 0
    n = min(N, 50)
    rows, scores, outside, error = scanned(compiled, scanning, corpus, vectors, n)
    exact = (vectors.astype(np.float64) @ vectors_of(corpus).T).min(axis=0)
    sizes = np.linalg.norm(vectors.astype(np.float64), axis=2).max(axis=0)
    assert (error <= 3e-6 + sizes * 0.06).all()
    codes, row_scale, _, _ = decoded(corpus.codes, D)
    for q in range(Q):
        kept = rows[q][rows[q] >= 0]
        got = scores[q, : len(kept)]
        assert len(set(kept)) == len(kept) >= n
        assert np.abs(got - exact[q, kept]).max() <= error[q]
        left = np.setdiff1d(np.arange(N), kept)
        assert (exact[q, left] <= outside[q] + error[q]).all()
        assert len(left) == 0 or outside[q] <= got.min()
        if Q * terms <= 8:
            continue
        # The products of packed codes are whole numbers: no bit of a score may differ.
        step = np.float32(np.abs(vectors[:, q]).max().astype(np.float64) / 127)
        signed = (
            np.rint(vectors[:, q].astype(np.float64) / step).astype(np.int64) if step else np.zeros((terms, D), int)
        )
        least = (signed @ codes[kept].T).min(axis=0)
        np.testing.assert_array_equal(got, least.astype(np.float32) * (row_scale[kept] * step))


@pytest.mark.parametrize("biased", [False, True], ids=["no_bias", "bias"])
@pytest.mark.parametrize("n", [1, 40, 300, 4000])
def test_scan_keeps_the_best_rows(compiled, scanning, n, biased):
    """In the order of their values, with the weights and without the rows of the own group."""
    N, Q = 20_001, 19
    corpus = rk.Corpus(normal(15, N, 40))
    vectors = normal(16, 2, Q, 40)
    groups = np.arange(N) % 7
    own = np.arange(Q) % 8
    options = {"groups": groups, "own": own}
    weights = np.linspace(0, 1, Q), np.linspace(1, 0, Q)
    bias = 3 * normal(17, N)
    if biased:
        options.update(bias=bias, weights=weights)
    rows, scores, outside, error = scanned(compiled, scanning, corpus, vectors, n, **options)
    alone = scanned(compiled, scanning, corpus, vectors, n, **options, threads=3)
    for a, b in zip(alone, (rows, scores, outside, error), strict=True):
        np.testing.assert_array_equal(a, b)
    exact = (vectors.astype(np.float64) @ vectors_of(corpus).T).min(axis=0)
    for q in range(Q):
        kept = rows[q][rows[q] >= 0]
        got, values = scores[q, : len(kept)].astype(np.float64), exact[q]
        assert np.abs(got - values[kept]).max() <= error[q]
        if biased:
            got = weights[0][q] * got + weights[1][q] * bias[kept]
            values = weights[0][q] * values + weights[1][q] * bias
        assert (groups[kept] != own[q]).all()
        eligible = groups != own[q]
        assert len(kept) == min(n, eligible.sum())
        left = np.setdiff1d(np.flatnonzero(eligible), kept)
        assert (values[left] <= outside[q] + error[q] + 1e-5).all()
        assert np.isneginf(outside[q]) == (len(left) == 0) == (n >= eligible.sum())
        if len(left):  # what nothing else exceeds is no more than the n-th best
            assert outside[q] <= np.sort(values[eligible])[-n] + error[q]
        order = got[:256]
        assert (np.diff(order) <= 1e-6).all()


def test_scan_is_refused_where_it_cannot_run(compiled):
    corpus = rk.Corpus(normal(18, 40, 9))
    for name, isa in ((name, compiled.ISAS.index(name)) for name in compiled.SUPPORTED_ISAS):
        assert compiled.code_scan_supported(isa, 1) == (name != "base")
        assert name == "avx512" or not compiled.code_scan_supported(isa, MANY)
        for vectors in (1, 20):
            if not compiled.code_scan_supported(isa, vectors):
                with pytest.raises(ValueError, match="no scan by codes on this machine"):
                    scanned(compiled, isa, corpus, normal(19, 1, vectors, 9), 3)


@pytest.mark.parametrize("damage", ["codes", "terms", "weights"])
def test_scan_refuses_what_does_not_fit(compiled, scanning, damage):
    corpus = rk.Corpus(normal(18, 40, 60))
    vectors, bias = normal(19, 1, 2, 60), None
    if damage == "codes":
        corpus = _arrays.changed(corpus, codes=corpus.codes[:-1])
    elif damage == "terms":
        vectors = normal(19, 9, 2, 60)
    elif damage == "weights":
        bias = normal(20, 40)
    with pytest.raises(ValueError, match=r"^_C: "):
        scanned(compiled, scanning, corpus, vectors, 5, bias=bias)


# --- Its folder.


@pytest.mark.parametrize("dtype", DTYPES)
def test_loaded_codes_are_the_saved_ones(compiled, tmp_path, dtype):
    corpus = rk.Corpus(normal(21, 3000, 20), dtype=dtype)
    corpus.save(tmp_path / "corpus")
    loaded = rk.Corpus.load(tmp_path / "corpus")
    np.testing.assert_array_equal(loaded.codes, corpus.codes)
    assert isinstance(loaded.codes, np.memmap)
    assert loaded.code_error == corpus.code_error
    problem = {"queries": normal(22, 3, 20), "k": 8}
    found, work = testing.selection_work("mmr", {**problem, "embeddings": loaded})
    expected, expected_work = testing.selection_work("mmr", {**problem, "embeddings": corpus})
    same(found, expected)
    assert work == expected_work


@pytest.mark.parametrize("dtype", DTYPES)
def test_folder_without_codes_gives_the_same_picks(compiled, tmp_path, dtype):
    corpus = rk.Corpus(normal(21, 3000, 20), dtype=dtype)
    _arrays.changed(corpus, codes=None, code_error=0.0).save(tmp_path / "corpus")
    loaded = rk.Corpus.load(tmp_path / "corpus")
    assert loaded.codes is None
    queries = normal(22, 3, 20)
    for pool in (100, None):
        expected = corpus.select(queries, 8, pool=pool, backend="cpu")
        same(loaded.select(queries, 8, pool=pool, backend="cpu"), expected)
    assert testing.selection_work("mmr", {"queries": queries, "embeddings": loaded, "k": 8})[1].code_products == 0


@pytest.mark.parametrize("damage", ["fewer_rows", "narrower", "other_dtype", "other_rank"])
def test_codes_that_do_not_fit_are_refused(compiled, tmp_path, damage):
    rk.Corpus(normal(23, 30, 50)).save(tmp_path / "corpus")
    file = tmp_path / "corpus" / "codes.npy"
    codes = np.load(file)
    changed = {
        "fewer_rows": codes[:-1], "narrower": codes[:, :-64] if codes.shape[1] > 64 else codes[:, :-12],
        "other_dtype": codes.view(np.int8), "other_rank": codes[None],
    }  # fmt: skip
    np.save(file, changed[damage])
    with pytest.raises(ValueError, match=r"^Corpus: path must hold the files .*: codes\.npy "):
        rk.Corpus.load(tmp_path / "corpus")


def test_corpus_made_without_the_kernels_has_no_codes(monkeypatch):
    monkeypatch.setattr(_dispatch, "why_not", lambda name: "not built")
    corpus = rk.Corpus(normal(24, 30, 50))
    assert corpus.codes is None
