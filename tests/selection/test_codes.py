"""8-bit codes of a corpus's rows: what they promise, and that bounds from them change no bit of any selection."""

import numpy as np
import pytest
from code_rows import BOOLEANS, DIMS, DTYPES, SEEDS, coded_problem, decoded, normal, vectors_of
from hypothesis import given, settings
from hypothesis import strategies as st
from selection_calls import for_method, same

import ragsys_kernels as rk
from ragsys_kernels import _dispatch, testing
from ragsys_kernels._base import arrays as _arrays

pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")


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
@pytest.mark.sampled(3)
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


def check_pools(problem, op="mmr"):
    """The picks and scores of the dense rule, bit for bit."""
    problem = for_method(op, problem)
    dense, dense_work = testing.selection_work(op, problem, bounds="dense")
    coded, work = testing.selection_work(op, problem, bounds="coded")
    same(coded, dense)
    pruned, pruned_work = testing.selection_work(op, problem, bounds="pruned")
    same(pruned, dense)
    assert pruned_work.products <= dense_work.products
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
    if draw(st.integers(0, 3)) == 0:  # rows without codes
        problem["embeddings"] = rows.astype(draw(st.sampled_from([np.float32, np.float16])))
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


@pytest.mark.sampled(3)
@pytest.mark.parametrize("op", ["mmr", "vrsd", "msd"])
@settings(max_examples=30)
@given(problem=pools())
def test_codes_leave_every_bit_as_it_is(isa, op, problem):
    check_pools(problem, op)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("relevance", [False, True], ids=["computed", "given"])
@pytest.mark.parametrize("op", ["mmr", "vrsd"])
def test_codes_leave_every_bit_as_it_is_in_large_pools(isa, op, relevance, dtype):
    for kind in ("clustered", "random", "duplicates"):
        problem = coded_problem(6, 1000, 30, 60, N=1500, kind=kind, seed=5, dtype=dtype)
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


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("bad", BAD_IDS)
def test_bad_ids_of_whole_pools_are_found(isa, bad, dtype):
    for position in (0, 19, 39):
        queries, corpus, ids = pools_of_40()
        ids[3, position], message = BAD_IDS[bad]
        with pytest.raises(ValueError, match=message):
            rk.mmr(queries, corpus, 5, candidates=ids.astype(dtype), lambda_d=0.5)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_relevance_of_whole_pools_must_be_finite(isa, value):
    _, corpus, ids = pools_of_40()
    for position in (0, 19, 39):
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
    problem = coded_problem(3, items, 5, 20, seed=8)
    bias = np.full(len(problem["embeddings"]), np.finfo(np.float32).min)
    for lambda_d in (0.5, 1.0):
        call = problem | {"bias": bias, "lambda_b": 0.0, "lambda_d": lambda_d}
        dense, _ = testing.selection_work("mmr", call, bounds="dense")
        coded, _ = testing.selection_work("mmr", call, bounds="coded")
        same(coded, dense)


def exactly_coded(dims):
    """Whole numbers of which each row has a largest of 127."""
    rows = np.random.default_rng(dims).integers(-127, 128, (77, dims)).astype(np.float32)
    rows[:, dims // 2] = 127
    corpus = rk.Corpus(rows)
    assert corpus.code_error < 2e-6
    return {"queries": rows[:6], "embeddings": corpus, "candidates": np.tile(np.arange(77), (6, 1)), "k": 5}


code_dims = pytest.mark.parametrize("dims", [1, 4, 31, 48, 52, 53, 63, 64, 65, 117, 128, 200, 1000])


@pytest.mark.sampled(2)
@code_dims
def test_exact_codes_leave_nothing_to_be_read_but_the_picks(isa, dims):
    """A product of codes that is off by one, or a bound that is too wide, asks for rows that no pick needs."""
    problem = exactly_coded(dims)
    vectors = vectors_of(problem["embeddings"])
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
    problem = coded_problem(8, 300, 10, 96, N=600, kind="clustered", seed=7, dtype=dtype)
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
        problem = coded_problem(2, pool, 5, 20, seed=8, dtype=dtype)
        assert (testing.selection_work("mmr", problem)[1].code_products > 0) == used
        assert testing.selection_work("mmr", problem, bounds="coded")[1].code_products > 0


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
    problem = coded_problem(8, 300, 10, 96, N=600, kind="random", seed=7, dtype=dtype)
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


@pytest.mark.sampled(2)
@code_dims
def test_exact_codes_leave_few_rows_to_vrsd(isa, dims):
    """A product of codes that is off by one, or too much that they are said to leave out, asks for more rows."""
    problem = exactly_coded(dims)
    corpus = problem["embeddings"]
    vectors = vectors_of(corpus)
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
    problem = coded_problem(2, 40, 20, 30, seed=8)
    for k in (20, 21, 40):
        dense, dense_work = testing.selection_work("vrsd", problem | {"k": k}, bounds="dense")
        found, work = testing.selection_work("vrsd", problem | {"k": k})
        same(found, dense)
        assert (work == dense_work) == (k > 20 or _dispatch.isa() != "avx512")


# --- Its folder.


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
