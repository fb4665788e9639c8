"""Budgets and ceilings of large pools, and MSD out of them, interpreted, against the float64 replay and reference."""

import warnings

import interpreted
import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels import testing

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

if interpreted.HERE:
    import triton.language as tl

    from ragsys_kernels.selection.triton import bounds as triton_bounds
    from ragsys_kernels.selection.triton import gram as triton_gram

pytestmark = [pytest.mark.sampled(20), pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")]

RULES = ("mmr", "vrsd", "msd")


@pytest.fixture(autouse=interpreted.HERE)
def no_pool_is_small(monkeypatch):
    monkeypatch.setattr(triton_gram, "GRAM_SLOTS", 0)


def problem_of(rule, P=37, **shape):
    if rule == "vrsd":
        shape.pop("bias", None)
    problem = testing.selection_problem(3, P, 5, 20, **shape)
    for name in ("lambda_d", "lambda_b") if rule == "vrsd" else ():
        problem.pop(name, None)
    return problem


def check(rule, problem):
    """The picks are the replay's, and all outputs the reference's."""
    found = rk.Selection(*map(np.asarray, getattr(rk, rule)(**problem, backend="triton")))
    testing.check_selection(rule, problem, found)
    expected = getattr(rk, rule)(**problem, backend="reference")
    np.testing.assert_array_equal(found.lengths, expected.lengths)
    np.testing.assert_array_equal(found.indices, expected.indices)
    np.testing.assert_allclose(found.redundancy, expected.redundancy, atol=1e-5)
    return found


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_limits_with_every_other_option(rule, dtype):
    problem = problem_of(
        rule, ragged=True, bias=True, groups=True, budget=True, ceiling=True, dtype=dtype, seed=len(dtype)
    )
    plain = check(rule, {name: x for name, x in problem.items() if name not in ("costs", "budget", "max_similarity")})
    problem["initial"] = np.array([[3, 5, -1]] * 3)
    assert not np.array_equal(check(rule, problem).indices, plain.indices)


@pytest.mark.parametrize("rule", RULES)
def test_dense_pools_by_dot_products_with_costs_of_their_own(rule):
    problem = problem_of(rule, P=21, dense=True)
    costs = np.random.default_rng(2).uniform(0, 3, (3, 21))
    options = {"metric": "dot", "costs": costs, "budget": np.array([4.0, 2.0, 0.0])}
    found = check(rule, {**problem, **options})
    assert found.lengths.max() > found.lengths.min()
    if rule == "msd":
        check(rule, {**problem, "metric": "dot"})


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_a_ceiling_alone_leaves_no_near_duplicates(rule):
    problem = problem_of(rule)
    rows, ids = problem["embeddings"], problem["candidates"]
    rows[ids[:, 1]] = rows[ids[:, 0]] + np.float32(0.1)
    found = check(rule, {**problem, "max_similarity": np.float32([0.2, 0.9, -0.1])})
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    for picks, most in zip(found.indices, (0.2, 0.9, -0.1), strict=True):
        some = units[picks[picks >= 0]]
        assert np.all((some @ some.T)[np.triu_indices(len(some), 1)] <= most + 1e-5)


@pytest.mark.slow
def test_a_ceiling_holds_where_all_tiles_have_their_turn(monkeypatch):
    """Items that turn out to be above the ceiling once they have met all picks, when no more bounds are looked for."""
    monkeypatch.setattr(triton_bounds, "ROUNDS", tl.constexpr(1))
    for seed in range(3):
        problem = problem_of("mmr", P=90, seed=seed, kind="clustered")
        check("mmr", {**problem, "max_similarity": np.float32([0.1, 0.3, 0.6]), "lambda_d": 0.9})


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "slots"), [*((rule, 0) for rule in RULES), ("mmr", 128), ("dpp", 128)])
def test_a_budget_is_spent_to_the_last_cent(rule, slots, monkeypatch):
    """The sum of the costs is a float64 one in the order of the picks, and may equal the budget; of small pools too."""
    monkeypatch.setattr(triton_gram, "GRAM_SLOTS", slots)
    problem = problem_of(rule)
    costs = np.full(len(problem["embeddings"]), 0.1)
    spent = 0.0
    for _ in range(3):
        spent += 0.1
    for budget, picks in ((spent, 3), (np.nextafter(spent, 0), 2)):
        assert (check(rule, {**problem, "costs": costs, "budget": budget}).lengths == picks).all()


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["mmr", "msd"])
def test_nothing_fits_or_all_is_the_same(rule):
    problem = problem_of(rule)
    costs = np.ones(len(problem["embeddings"]))
    assert not check(rule, {**problem, "costs": costs, "budget": 0.5}).lengths.any()
    problem["embeddings"][:] = problem["embeddings"][0]
    assert (check(rule, {**problem, "max_similarity": 0.5}).lengths == 1).all()


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_a_ceiling_of_one_bars_no_cosine(rule):
    """Not even of copies, whose cosine may round to more than 1."""
    rng = np.random.default_rng(1)  # of which one pair has such a cosine
    rows = np.repeat(rng.standard_normal((8, 50)).astype(np.float32), 2, axis=0)
    problem = {"queries": rng.standard_normal((3, 50)).astype(np.float32), "embeddings": rows, "k": 14}
    problem["candidates"] = np.tile(np.arange(16), (3, 1))
    free = getattr(rk, rule)(**problem, backend="triton")
    np.testing.assert_array_equal(check(rule, {**problem, "max_similarity": 1.0}).indices, free.indices)


GIVEN = {"NumPy": np.asarray, "torch": lambda array: torch.from_numpy(array)}


@pytest.mark.parametrize("library", GIVEN)
@pytest.mark.parametrize("slots", [0, 128])
def test_narrow_relevance_is_looked_at(library, slots, monkeypatch):
    """The look at the picks works on arrays of the host, whatever the kernels made and the caller has."""
    monkeypatch.setattr(triton_gram, "GRAM_SLOTS", slots)
    rng, own = np.random.default_rng(4), GIVEN[library]
    rows = rng.standard_normal((90, 12), dtype=np.float32)
    corpus = rk.Corpus(own(rows), bias=own(rng.random(90, dtype=np.float32)))
    zeros, narrow = np.zeros((1, 90), np.float32), 0.5 + rng.random((1, 90), dtype=np.float32) / 1e4
    calls = [
        lambda backend: corpus.subset(5, backend=backend),
        lambda backend: corpus.select(None, 5, relevance=own(zeros), pool=None, backend=backend),
        lambda backend: rk.mmr(None, own(rows), 5, relevance=own(narrow), backend=backend, on_error="skip"),
    ]
    for call, warned in zip(calls, (False, False, True), strict=True):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", rk.RelevanceRangeWarning)
            found = call("triton")
        assert [warning.category for warning in caught] == [rk.RelevanceRangeWarning] * warned
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", rk.RelevanceRangeWarning)
            expected = call("reference")
        assert type(found.indices) is type(expected.indices)
        np.testing.assert_array_equal(found.indices, expected.indices)


@pytest.mark.parametrize("library", GIVEN)
def test_queries_may_be_the_first_embeddings(library):
    """Arrays that begin at one address, of which the interpreter knows one."""
    own, rows = GIVEN[library], np.random.default_rng(5).standard_normal((60, 12), dtype=np.float32)
    given = own(rows)
    found = rk.mmr(given[:3], given, 4, candidates=np.tile(np.arange(50), (3, 1)), backend="triton")
    expected = rk.mmr(rows[:3], rows, 4, candidates=np.tile(np.arange(50), (3, 1)), backend="reference")
    np.testing.assert_array_equal(found.indices, expected.indices)
    found = rk.Corpus(given).search(given[:3], 4, backend="triton")
    assert isinstance(found.scores, np.ndarray if library == "NumPy" else torch.Tensor)
    np.testing.assert_array_equal(found.indices, rk.Corpus(rows).search(rows[:3], 4, backend="reference").indices)
    logp = rk.answer_logprobs(hidden=given[:3], weight=given, targets=[0, 1, 2], backend="triton").logp
    np.testing.assert_allclose(
        logp, rk.answer_logprobs(hidden=rows[:3], weight=rows, targets=[0, 1, 2]).logp, rtol=1e-5
    )


REFUSED = {
    "min_relevance": lambda rows, limits: rk.mmr(**limits, min_relevance=0.0),
    "gist": lambda rows, limits: rk.gist(**limits),
    "neighbors": lambda rows, limits: rk.Corpus(rows).subset(3, rule="coverage", neighbors=4, backend="triton"),
    "similarity": lambda rows, limits: rk.mmr(
        None, None, 2, similarity=np.ones((1, 3, 3)), relevance=np.ones((1, 3)), backend="triton"
    ),
    "window": lambda rows, limits: rk.dpp(**limits, window=2),
    "gain per cost": lambda rows, limits: rk.coverage(**limits, density=True, costs=np.ones(60), budget=2.0),
    "aspects": lambda rows, limits: rk.coverage(**limits, aspects=np.ones((3, 2, 12), np.float32)),
    "one integer": lambda rows, limits: rk.mmr(**limits, groups=np.arange(60) % 3, max_per_group={0: 1}),
}


@pytest.mark.parametrize("asked", REFUSED)
def test_what_the_kernels_do_not_have_is_refused(asked, monkeypatch):
    monkeypatch.setattr(triton_gram, "GRAM_SLOTS", 128)
    rows = np.random.default_rng(6).standard_normal((60, 12), dtype=np.float32)
    limits = {"queries": rows[:3], "embeddings": rows, "k": 4, "candidates": np.tile(np.arange(50), (3, 1))}
    with pytest.raises(rk.BackendUnavailableError, match=f"'triton'.*{asked}|{asked}.*'triton'"):
        REFUSED[asked](rows, {**limits, "backend": "triton"})


interpreted.elsewhere(globals())
