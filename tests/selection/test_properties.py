"""Properties that hold for every problem, tried on problems that Hypothesis makes up."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from selection_calls import METHODS, for_method, methods, same

from ragsys_kernels import testing

pytestmark = [pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning"), pytest.mark.sampled(2)]

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
    return METHODS[method](**for_method(method, {**problem, **changes}), backend=backend)


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
