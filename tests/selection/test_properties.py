"""Properties that hold for every problem, tried on problems that Hypothesis makes up."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from selection_calls import METHODS, methods, same

import ragsys_kernels as rk
from ragsys_kernels import testing

pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")

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
def adversarial(draw):
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
    metric = draw(st.sampled_from(["cosine", "dot"]))
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
def adversarial_mmr(draw):
    problem = draw(adversarial())
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
