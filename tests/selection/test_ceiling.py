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


# Vectors of 1 and -1 in 64 dimensions: the cosine of any two is a multiple of 1/32, exactly, in every type here.
SIGNS, ASKED = np.split(np.random.default_rng(2).choice(np.float32([-1, 1]), (64, 64)), [60])
COSINES = SIGNS.astype(np.float64) @ SIGNS.T / 64
# The cosines of many pairs, the next number below, and the one above.
EXACT = np.array([0.125, np.nextafter(np.float32(0.125), 0), np.nextafter(np.float32(0.125), 1), 0.0], np.float32)
FORMS = {
    "array": lambda: {"embeddings": SIGNS},
    "float16": lambda: {"embeddings": SIGNS.astype(np.float16)},
    "pools": lambda: {"embeddings": np.tile(SIGNS, (4, 1, 1))},
    "Corpus": lambda: {"embeddings": rk.Corpus(SIGNS)},
    "Corpus of signs": lambda: {"embeddings": rk.Corpus(SIGNS, dtype="binary")},
    "candidates": lambda: {"embeddings": rk.Corpus(SIGNS), "candidates": np.tile(np.arange(60)[::-1], (4, 1))},
    "initial": lambda: {"embeddings": rk.Corpus(SIGNS), "initial": np.array([[7], [8], [7], [8]])},
}


def check_exact(indices, initial=None):
    """No pick is above its ceiling, and what is left is: for such a selection no pick may be refused that equals it."""
    for q, ceiling in enumerate(EXACT.astype(np.float64)):
        before = [] if initial is None else [int(initial[q, 0])]
        picks = before + indices[q][indices[q] >= 0].tolist()
        among = COSINES[np.ix_(picks, picks)][~np.eye(len(picks), dtype=bool)]
        assert (among <= ceiling).all()
        left = np.setdiff1d(np.arange(60), picks)
        assert (COSINES[np.ix_(left, picks)].max(axis=1) > ceiling).all()
        assert (among == 0.125).any() == (ceiling >= 0.125)


SIGNED = ("mmr", "vrsd")  # the rules of rows that are signs


@pytest.mark.parametrize(
    ("rule", "form"), [(rule, form) for rule in RULES for form in FORMS if form != "Corpus of signs" or rule in SIGNED]
)
def test_what_equals_the_ceiling_may_be_picked(backend, rule, form):
    call, given = RULES[rule]
    given = {"lambda_d": 0.5} if rule == "mmr" else given
    problem = FORMS[form]()
    found = call(ASKED, k=60, **problem, **given, max_similarity=EXACT, backend=backend)
    check_exact(found.indices, problem.get("initial"))


def test_what_equals_the_ceiling_may_be_picked_on_a_path(backend):
    path = rk.mmr_path(ASKED, SIGNS, 60, max_similarity=EXACT, low=0.4, high=0.5, backend=backend)
    for weight in (0.4, 0.45, 0.5):
        check_exact(path.at(weight))


@pytest.mark.parametrize("rule", ["mmr", "msd", "dpp", "coverage"])
def test_what_equals_the_ceiling_may_be_picked_by_given_similarities(backend, rule):
    relevance = np.random.default_rng(3).random((4, 60), np.float32)
    given = {"relevance": relevance, "similarity": np.tile(COSINES.astype(np.float32), (4, 1, 1))}
    check_exact(getattr(rk, rule)(None, None, 60, **given, max_similarity=EXACT, backend=backend).indices)
