"""Whole corpora, scanned by their codes: the bits of the dense rule, few rows read, and what a scan says of itself."""

import numpy as np
import pytest
from code_rows import BOOLEANS, DTYPES, SEEDS, decoded, normal, vectors_of
from hypothesis import given, settings
from hypothesis import strategies as st
from selection_calls import METHODS, for_method, same

import ragsys_kernels as rk
from ragsys_kernels import testing
from ragsys_kernels._base import arrays as _arrays
from ragsys_kernels.selection import codes as _codes
from ragsys_kernels.selection import cpu, validate
from ragsys_kernels.selection.problem import Problem

pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")

MANY = 1 << 20  # vectors of a scan
STORED = (*DTYPES, "int8")


@pytest.fixture(scope="module")
def scanning(compiled):
    """The instruction set that scans a corpus by its codes: for few vectors, and with AVX512-VNNI for many."""
    widest = len(compiled.SUPPORTED_ISAS) - 1
    if not compiled.code_scan_supported(widest, 1, False):
        pytest.skip("no scan by codes on this processor")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAGSYS_KERNELS_ISA", raising=False)
        yield widest


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
        "embeddings": rk.Corpus(rows.astype(np.float32), dtype=draw(st.sampled_from(STORED))),
        "k": rng.integers(1, K + 1, 4) if draw(BOOLEANS) else K,
        "lambda_d": rng.choice([0.0, 0.1, 0.5, 0.75, 1.0], 4),
        "lambda_b": rng.choice([0.0, 0.1, 0.5, 0.95, 1.0], 4),
    }
    if draw(BOOLEANS):  # rows without codes
        problem["embeddings"] = rows.astype(np.float32)
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


@pytest.mark.sampled(2)
@pytest.mark.parametrize("op", ["mmr", "vrsd"])
@settings(max_examples=10)
@given(problem=whole_corpora())
def test_a_whole_corpus_keeps_its_bits(isa, op, problem):
    problem = for_method(op, problem)
    dense, _ = testing.selection_work(op, problem, bounds="dense")
    same(testing.selection_work(op, problem, bounds="coded")[0], dense)
    for num_threads in (1, 3):
        same(METHODS[op](**problem, backend="cpu", num_threads=num_threads), dense)


@pytest.mark.parametrize("dtype", STORED)
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
        stage = cpu.Stage(
            max_bias=0.0,
            outside=np.float32([-np.inf]),
            forced=np.array([[first] + [-1] * (K - 1)]),
            ceiling=ceiling[order][None],
            best_first=True,
        )
        found, status, _ = cpu._call(problem, 1, stage=stage)
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


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("queries", [2, 16])
def test_few_rows_of_a_whole_corpus_are_read(scanning, queries, dtype):
    problem = testing.selection_problem(queries, 1, 5, 64, N=20_000, kind="clustered", seed=13)
    del problem["candidates"]
    problem["embeddings"] = rk.Corpus(problem["embeddings"], dtype=dtype)
    dense, dense_work = testing.selection_work("mmr", problem, bounds="dense")
    found, work = testing.selection_work("mmr", problem)
    same(found, dense)
    assert work.rows_read < dense_work.rows_read / 20


@pytest.mark.parametrize("codes", [True, False], ids=["codes", "rows"])
def test_rows_outside_a_pool_may_have_a_large_bias(compiled, codes):
    """How near to the query such a row may be follows from its value and the largest bias, above 0 or below."""
    for seed in range(15):
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


def scanned(compiled, isa, corpus, vectors, n, bias=None):
    num_rows, num_queries = len(corpus.data), vectors.shape[1]
    lambda_b = np.ones(num_queries, np.float32)
    problem = Problem("mmr", corpus, num_queries, num_rows, n, 0, None, False, None, lambda_b, bias=bias)
    *found, well = compiled.scan(
        problem, vectors, n, by_codes=True, max_norm=1.0, largest_bias=0 if bias is None else np.abs(bias).max(),
        score_weight=None, bias_weight=None, isa=isa, num_threads=1,
    )  # fmt: skip
    assert well
    return found


@pytest.mark.parametrize("own", [False, True], ids=["codes", "rows_are_codes"])
@pytest.mark.parametrize("terms", [1, 2, 3, 4, 8])
@pytest.mark.parametrize(("N", "D"), [(1, 1), (31, 5), (512, 52), (513, 53), (2049, 64), (5000, 131), (40, 1 << 16)])
@pytest.mark.parametrize("Q", [1, 11])  # codes as they lie, or packed
def test_scan_estimates_within_its_error(compiled, N, D, terms, Q, own):
    """Against products in float64; and of what is left out nothing exceeds what the scan says."""
    widest = len(compiled.SUPPORTED_ISAS) - 1
    if not compiled.code_scan_supported(widest, Q * terms, False):
        pytest.skip("no scan by codes of so many vectors on this processor")
    if own:  # the ends of their range too, whose products are as large as they get
        rows = np.random.default_rng(N).integers(-128, 128, (N, D)).astype(np.int8)
        rows[3:7] = np.int8([[0], [-128], [127], [127]])[: len(rows[3:7])]
        corpus = rk.Corpus(rows, dtype="int8")
        codes, row_scale = rows.astype(np.int64), corpus.scales
    else:
        corpus = rk.Corpus(normal(N, N, D), dtype=DTYPES[terms % 3])
        codes, row_scale, _, _ = decoded(corpus.codes, D)
    vectors = normal(14, terms, Q, D) * np.float32(10) ** np.arange(-5, Q - 5, dtype=np.float32)[:, None]
    vectors[:, 3:4] = 0
    vectors[:, 5:6] = 1e-3
    n = min(N, 50)
    rows, scores, outside, error = scanned(compiled, widest, corpus, vectors, n)
    exact = (vectors.astype(np.float64) @ vectors_of(corpus).T).min(axis=0)
    sizes = np.linalg.norm(vectors.astype(np.float64), axis=2).max(axis=0)
    assert (error <= 3e-6 + sizes * (0.06 if D < 1000 else 0.2)).all()
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


def test_rows_that_are_codes_are_unit_rows_of_bytes(compiled, scanning):
    """Dot products, and dimensions whose products leave the range of int32, are scanned as rows."""
    for corpus, are in (
        (rk.Corpus(np.ones((9, 60), np.int8), dtype="int8"), True),
        (rk.Corpus(np.ones((9, 60), np.int8), metric="dot", dtype="int8"), False),
        (rk.Corpus(np.ones((2, (1 << 16) + 1), np.int8), dtype="int8"), False),
    ):
        assert _codes.can_scan(corpus, MANY) == (are and compiled.code_scan_supported(scanning, MANY, True))
        if are:
            scanned(compiled, scanning, corpus, normal(20, 1, 1, corpus.dims), 1)
        else:
            with pytest.raises(ValueError, match=r"^_C: codes"):
                scanned(compiled, scanning, corpus, normal(20, 1, 1, corpus.dims), 1)


def test_scan_is_refused_where_it_cannot_run(compiled):
    corpus = rk.Corpus(normal(18, 40, 9))
    for name, isa in ((name, compiled.ISAS.index(name)) for name in compiled.SUPPORTED_ISAS):
        assert compiled.code_scan_supported(isa, 1, False) == (name != "base")
        assert name == "avx512" or not compiled.code_scan_supported(isa, MANY, False)
        for vectors in (1, 20):
            if not compiled.code_scan_supported(isa, vectors, False):
                with pytest.raises(ValueError, match="no scan by codes on this machine"):
                    scanned(compiled, isa, corpus, normal(19, 1, vectors, 9), 3)


@pytest.mark.parametrize(
    ("damage", "argument"), [("codes", "codes"), ("terms", "vectors"), ("weights", "score_weight")]
)
def test_scan_refuses_what_does_not_fit(compiled, scanning, damage, argument):
    corpus = rk.Corpus(normal(18, 40, 60))
    vectors, bias = normal(19, 1, 2, 60), None
    if damage == "codes":
        corpus = _arrays.changed(corpus, codes=corpus.codes[:-1])
    elif damage == "terms":
        vectors = normal(19, 9, 2, 60)
    elif damage == "weights":
        bias = normal(20, 40)
    with pytest.raises(ValueError, match=rf"^_C: {argument}\b"):
        scanned(compiled, scanning, corpus, vectors, 5, bias=bias)
