"""A ceiling of 1: what equals a pick may follow it, and a ceiling per query is each query's own."""

import numpy as np
import pytest
from selection_calls import same

import ragsys_kernels as rk

pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")

RULES = {
    "mmr": (rk.mmr, {"lambda_d": 1.0}),
    "vrsd": (rk.vrsd, {}),
    "msd": (rk.msd, {}),
    "ssd": (rk.ssd, {"window": 3}),
    "sift": (rk.sift, {}),
    "dpp": (rk.dpp, {}),
    "coverage": (rk.coverage, {}),
}
Q, K, D = 8, 11, 384
# Six rows, each twice: the cosine of such a pair may round to more than 1.
TWINS = np.repeat(np.random.default_rng(0).standard_normal((6, D)).astype(np.float32), 2, axis=0)
QUERIES = np.random.default_rng(1).standard_normal((Q, D)).astype(np.float32)


ROWS = {
    "array": lambda rows: rows,
    "float16": lambda rows: rows.astype(np.float16),
    "Corpus": rk.Corpus,
    "Corpus of int8": lambda rows: rk.Corpus(rows, dtype="int8"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("rule", RULES)
def test_a_ceiling_of_one_bars_no_cosine_and_tells_the_redundancy(backend, rule, kind):
    call, given = RULES[rule]
    rows = ROWS[kind](TWINS)
    free = call(QUERIES, rows, K, **given, backend=backend)
    found = call(QUERIES, rows, K, **given, max_similarity=1, backend=backend)
    np.testing.assert_array_equal(found.indices, free.indices)
    np.testing.assert_array_equal(found.scores, free.scores)
    if rule == "msd":
        np.testing.assert_array_equal(found.redundancy, free.redundancy)
        return
    e = TWINS / np.linalg.norm(TWINS, axis=1, keepdims=True)
    for q in range(Q):
        picks = found.indices[q, : found.lengths[q]]
        largest = [(e[pick] @ e[picks[:step]].T).max(initial=-1) if step else 0 for step, pick in enumerate(picks)]
        np.testing.assert_allclose(found.redundancy[q, : len(picks)], largest, atol=0.02 if "int8" in kind else 1e-3)


def test_without_redundancy_the_best_are_picked_copies_or_not(backend):
    cosines = (QUERIES @ TWINS.T) / np.linalg.norm(TWINS, axis=1)
    expected = np.argsort(-np.repeat(cosines[:, ::2], 2, axis=1), axis=1, kind="stable")[:, :K]
    found = rk.mmr(QUERIES, TWINS, K, lambda_d=1.0, max_similarity=1.0, backend=backend)
    np.testing.assert_array_equal(found.indices, expected)


def test_the_path_of_a_ceiling_of_one_is_that_of_none(backend):
    found = rk.mmr_path(QUERIES, TWINS, 4, max_similarity=np.ones(Q), backend=backend)
    same(found, rk.mmr_path(QUERIES, TWINS, 4, backend=backend))


def test_other_ceilings_of_the_batch_bar_copies(backend):
    ceilings = np.where(np.arange(Q) % 2, 1.0, 0.9)
    found = rk.mmr(QUERIES, TWINS, K, max_similarity=ceilings, backend=backend)
    np.testing.assert_array_equal(found.lengths, np.where(np.arange(Q) % 2, K, 6))


def test_a_dot_product_may_be_above_one(backend):
    rows = np.array([[2, 0], [1, 0], [0, 2]], np.float32)
    found = rk.mmr(np.array([[2, 1]], np.float32), rows, 3, metric="dot", max_similarity=1.0, backend=backend)
    np.testing.assert_array_equal(found.indices, [[0, 2, -1]])  # <(2, 0), (1, 0)> is 2


@pytest.mark.parametrize("rule", RULES)
def test_a_ceiling_bars_what_is_just_above_it(backend, rule):
    call, given = RULES[rule]
    rows, query = np.array([[1, 0], [0.6, 0.8]], np.float32), np.array([[0.8, 0.6]] * 2, np.float32)
    found = call(query, rows, 2, **given, max_similarity=np.array([0.6001, 0.5999]), backend=backend)
    assert found.lengths.tolist() == [2, 1]
