"""Properties that hold for every problem, tried on problems that Hypothesis makes up."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import ragsys_kernels as rk
from ragsys_kernels import testing

pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")

METHODS = {"mmr": rk.mmr, "vrsd": rk.vrsd}
SEEDS = st.integers(0, 2**32 - 1)
KINDS = st.sampled_from(["random", "clustered", "duplicates"])
BOOLEANS = st.booleans()


@st.composite
def problems(draw, kinds=KINDS, max_pool=40, dense=BOOLEANS):
    """A problem for MMR without bias, which VRSD takes as well."""
    pool, dense = draw(st.integers(1, max_pool)), draw(dense)
    return testing.selection_problem(
        draw(st.integers(1, 3)), pool, draw(st.integers(1, pool)), draw(st.integers(2, 40)),
        kind=draw(kinds), dense=dense, ragged=not dense and draw(st.booleans()), seed=draw(SEEDS),
    )  # fmt: skip


def run(method, problem, backend, **changes):
    arguments = {**problem, **changes}
    if method == "vrsd":
        arguments = {name: value for name, value in arguments.items() if name not in ("lambda_d", "lambda_b", "bias")}
    return METHODS[method](**arguments, backend=backend)


def same(a, b):
    for name, x, y in zip(rk.Selection._fields, a, b, strict=True):
        np.testing.assert_array_equal(x, y, err_msg=name)


methods = pytest.mark.parametrize("method", METHODS)


@methods
@given(problem=problems(), data=st.data())
def test_permuting_the_candidates_permutes_nothing_but_positions(backend, method, problem, data):
    """Values do not depend on positions. Equal rows tie, and then positions decide: only their values are compared."""
    assume("candidates" in problem)
    ids = problem["candidates"]
    order = np.array(data.draw(st.permutations(range(ids.shape[1]))))
    before = run(method, problem, backend)
    after = run(method, problem, backend, candidates=np.ascontiguousarray(ids[:, order]))
    testing.check_selection(method, {**problem, "candidates": ids[:, order]}, after)
    np.testing.assert_array_equal(before.lengths, after.lengths)
    rows = problem["embeddings"]
    if len(np.unique(rows, axis=0)) == len(rows):
        same(before, after)
    else:
        np.testing.assert_allclose(before.scores[:, 0], after.scores[:, 0], rtol=0)


@methods
@given(problem=problems(), exponents=st.tuples(st.integers(-20, 20), st.integers(-20, 20)))
def test_scaling_by_powers_of_two_changes_nothing_under_cosine(backend, method, problem, exponents):
    a, b = (np.float32(2.0**exponent) for exponent in exponents)
    changed = run(method, problem, backend, queries=problem["queries"] * a, embeddings=problem["embeddings"] * b)
    same(run(method, problem, backend), changed)


@methods
@given(problem=problems(dense=st.just(False)), data=st.data())
def test_padding_changes_nothing(backend, method, problem, data):
    ids = problem["candidates"]
    width = ids.shape[1] + data.draw(st.integers(1, 9))
    padded = np.full((len(ids), width), -1)
    for q, row in enumerate(ids):
        kept = np.sort(data.draw(st.permutations(range(width)))[: len(row)])
        padded[q, kept] = row
    same(run(method, problem, backend), run(method, problem, backend, candidates=padded))


@methods
@given(problem=problems(dense=st.just(False)))
def test_dense_pools_equal_gathered_ones(backend, method, problem):
    problem["candidates"] = np.where(problem["candidates"] < 0, 0, problem["candidates"])
    ids = problem["candidates"] = np.arange(problem["candidates"].size).reshape(problem["candidates"].shape)
    rng = np.random.default_rng(0)
    rows = problem["embeddings"] = rng.standard_normal((ids.size, problem["queries"].shape[1])).astype(np.float32)
    shared = run(method, problem, backend)
    dense = run(method, problem, backend, candidates=None, embeddings=rows.reshape(*ids.shape, -1))
    positions = np.where(shared.indices >= 0, shared.indices - ids[:, :1], -1)
    same(shared._replace(indices=positions), dense)


@st.composite
def adversarial(draw, metrics=("cosine", "dot")):
    """Near ties within few clusters, opposite and zero rows, queries in the clusters: what bounds get wrong."""
    rng = np.random.default_rng(draw(SEEDS))
    P, K, D, clusters = (draw(st.integers(1, high)) for high in (70, 14, 40, 5))
    centres = rng.standard_normal((clusters, D))
    rows = centres[rng.integers(0, clusters, P)]
    rows *= rng.choice(draw(st.sampled_from([(1,), (-1,), (1, -1)])), (P, 1))
    rows += draw(st.sampled_from([0.0, 1e-7, 1e-6, 1e-4, 1e-2, 0.3, 3])) * rng.standard_normal((P, D))
    rows[rng.integers(0, P, draw(st.integers(0, 3)))] = 0
    queries = np.stack([centres[0], -centres[-1], rng.standard_normal(D), np.zeros(D)]).astype(np.float32)
    dtype = draw(st.sampled_from(["float32", "float16"]))
    metric = draw(st.sampled_from(metrics))
    problem = {"queries": queries, "embeddings": rows.astype(dtype), "k": K, "metric": metric}
    if draw(BOOLEANS):
        problem["embeddings"] = rk.Corpus(problem["embeddings"], metric=metric, dtype=dtype)
    if draw(BOOLEANS):
        problem["relevance"] = np.round(rng.uniform(-1, 1, (4, P)), draw(st.integers(0, 7))).astype(np.float32)
    if draw(BOOLEANS):
        problem["initial"] = np.where(rng.random((4, 1)) < 0.5, rng.integers(0, P, (4, 1)), -1)
    if draw(BOOLEANS):
        problem.update(groups=rng.integers(0, 4, P), max_per_group=draw(st.integers(1, 4)))
    return problem


@st.composite
def adversarial_mmr(draw, **options):
    problem = draw(adversarial(**options))
    problem["lambda_d"] = draw(st.sampled_from([0.0, 0.1, 0.5, 0.75, 0.99, 1.0]))
    if draw(BOOLEANS):
        rng = np.random.default_rng(draw(SEEDS))
        problem["bias"] = rng.integers(-2, 3, len(problem["embeddings"])).astype(np.float32)
        problem["lambda_b"] = draw(st.sampled_from([0.0, 0.5, 0.95]))
    return problem


@given(problem=adversarial_mmr())
def test_adversarial_pools_are_selected_right_by_mmr(backend, problem):
    testing.check_selection("mmr", problem, run("mmr", problem, backend))


@given(problem=adversarial())
def test_adversarial_pools_are_selected_right_by_vrsd(backend, problem):
    testing.check_selection("vrsd", problem, run("vrsd", problem, backend))


def check_bounds(method, problem):
    """The picks and scores of the dense rule, bit for bit, for no more dot products."""
    dense, dense_work = testing.selection_work(method, problem, bounds="dense")
    pruned, pruned_work = testing.selection_work(method, problem, bounds="pruned")
    same(pruned, dense)
    assert pruned_work.products <= dense_work.products
    same(testing.selection_work(method, problem, bounds="coded")[0], dense)
    same(run(method, problem, "cpu"), dense)


@given(problem=adversarial_mmr(metrics=("cosine",)))
def test_bounds_leave_every_bit_of_mmr_as_it_is(compiled, problem):
    check_bounds("mmr", problem)


@given(problem=adversarial(metrics=("cosine",)))
def test_bounds_leave_every_bit_of_vrsd_as_it_is(compiled, problem):
    check_bounds("vrsd", problem)


@methods
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("relevance", [False, True], ids=["computed", "given"])
def test_bounds_leave_every_bit_as_it_is_in_large_pools(compiled, relevance, dtype, method):
    """Many vectors of items, and many picks that an item has not met."""
    for kind in ("clustered", "random"):
        problem = testing.selection_problem(8, 1000, 30, 48, N=1000, dtype=dtype, kind=kind, seed=5)
        if relevance:
            problem["relevance"] = np.random.default_rng(6).uniform(-1, 1, (8, 1000)).astype(np.float32)
        check_bounds(method, problem)


@st.composite
def whole_corpora(draw):
    """Enough rows for the rules that leave most of them unread, in few dimensions and few clusters."""
    rng = np.random.default_rng(draw(SEEDS))
    N, D, clusters, K = draw(st.sampled_from([2048, 2501])), *(draw(st.integers(1, high)) for high in (12, 6, 20))
    centres = rng.standard_normal((clusters, D))
    rows = centres[rng.integers(0, clusters, N)] * rng.choice(draw(st.sampled_from([(1,), (1, -1)])), (N, 1))
    rows += draw(st.sampled_from([0.0, 1e-6, 1e-3, 0.3, 3])) * rng.standard_normal((N, D))
    rows[rng.integers(0, N, draw(st.integers(0, 3)))] = 0
    queries = np.stack([centres[0], -centres[-1], rng.standard_normal(D), np.zeros(D)]).astype(np.float32)
    problem = {"queries": queries, "embeddings": rows.astype(np.float32), "k": K}
    if draw(BOOLEANS):
        problem["embeddings"] = rk.Corpus(problem["embeddings"], dtype=draw(st.sampled_from(["float32", "float16"])))
    problem["lambda_d"] = rng.choice([0.0, 0.1, 0.5, 0.75, 1.0], 4)
    problem["lambda_b"] = rng.choice([0.0, 0.1, 0.5, 0.95, 1.0], 4)
    if draw(BOOLEANS):
        problem["bias"] = draw(st.sampled_from([0.01, 1, 10])) * rng.standard_normal(N)
    if draw(BOOLEANS):
        problem["initial"] = np.where(rng.random((4, 1)) < 0.5, rng.integers(0, N, (4, 1)), -1)
    if draw(BOOLEANS):
        problem.update(groups=rng.integers(0, 30, N), max_per_group=draw(st.integers(1, 3)))
        problem["query_groups"] = rng.integers(0, 31, 4)
    return problem


@methods
@given(problem=whole_corpora())
def test_whole_corpus_equals_pools_of_all_rows(compiled, method, problem):
    ids = np.tile(np.arange(len(problem["embeddings"])), (4, 1))
    same(run(method, problem, "cpu"), run(method, problem, "cpu", candidates=ids))


@methods
@given(problem=problems(), data=st.data())
def test_a_query_has_the_same_bits_alone_and_in_a_batch(backend, method, problem, data):
    q = data.draw(st.integers(0, len(problem["queries"]) - 1))
    alone = {**problem, "queries": problem["queries"][q : q + 1]}
    for name in ("candidates", "embeddings"):
        if name in problem and (name == "candidates" or problem[name].ndim == 3):
            alone[name] = problem[name][q : q + 1]
    together = run(method, problem, backend)
    same(run(method, alone, backend), [field[q : q + 1] for field in together])
