"""Every rule, budget and ceiling of regime a, interpreted, against the float64 replay and reference."""

import interpreted
import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels import testing

pytest.importorskip("torch")
pytest.importorskip("triton")

if interpreted.HERE:
    from ragsys_kernels.selection.triton import gram as triton_gram

pytestmark = [pytest.mark.sampled(4), pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")]

# Each rule with each of its options.
RULES = {
    "mmr": {},
    "vrsd": {},
    "msd": {"lambda_d": 0.6},
    "dpp": {"scale": 1.5},
    "ssd": {"gamma": 0.7},
    "ssd in a window": {"window": 3},
    "sift": {"noise": 0.1},
    "sift until": {"noise": 0.1, "min_gain": 0.02},
    "coverage": {"lambda_d": 0.2},
    "coverage cover": {"kind": "cover", "gamma": 0.4},
    "coverage xquad": {"kind": "xquad"},
}
LIMITS = {"ragged": True, "bias": True, "groups": True, "budget": True, "ceiling": True}


def problem_of(rule, shape, P=19, **changes):
    method = rule.split()[0]
    queries_only = method in ("vrsd", "sift")
    shape = {name: value for name, value in shape.items() if not (queries_only and name == "bias")}
    problem = testing.selection_problem(3, P, 6, 12, **shape)
    for name in ("lambda_d", "lambda_b") if queries_only else ():
        problem.pop(name, None)
    return method, {**problem, **RULES[rule], **changes}


def check(method, problem):
    found = getattr(rk, method)(**problem, backend="triton")
    found = rk.Selection(*map(np.asarray, found))
    testing.check_selection(method, problem, found)
    return found


@pytest.mark.sampled(100)
@pytest.mark.parametrize("rule", RULES)
def test_picks_are_those_of_the_replay(rule):
    for seed, dtype in enumerate(("float32", "float16")):
        method, problem = problem_of(rule, {**LIMITS, "dtype": dtype, "seed": seed})
        problem["initial"] = np.array([[3, 5, -1]] * 3)
        found = check(method, problem)
        expected = getattr(rk, method)(**problem, backend="reference")
        np.testing.assert_array_equal(np.isnan(found.redundancy), np.isnan(expected.redundancy))
        np.testing.assert_allclose(found.redundancy, expected.redundancy, atol=1e-5)
        np.testing.assert_array_equal(found.lengths, expected.lengths)
        found = check(*problem_of(rule, {"dtype": dtype, "seed": seed + 2}))
        assert "until" in rule or (found.lengths == 6).all()


@pytest.mark.sampled(1)  # so that the kernels of all rules run
@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in ("mmr", "vrsd", "sift until")])
def test_dot_products_of_dense_pools_with_their_own_costs(rule):
    method, problem = problem_of(rule, {"dense": True}, P=17, metric="dot")
    rng = np.random.default_rng(2)
    check(method, {**problem, "costs": rng.uniform(0, 3, (3, 17)), "budget": np.array([4.0, 2.0, 0.0])})


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["dpp", "ssd in a window"])
@pytest.mark.parametrize("bias", [False, True])
def test_picks_depend_on_no_scale_of_the_scores(rule, bias):
    method, problem = problem_of(rule, {"seed": 8})
    rng = np.random.default_rng(8)
    relevance = rng.random((3, 19)).astype(np.float32)
    biases = {"bias": rng.random(38).astype(np.float32), "lambda_b": 0.5} if bias else {}

    def select(factor):
        scaled = {name: x * np.float32(factor) if name == "bias" else x for name, x in biases.items()}
        return check(method, {**problem, **scaled, "relevance": relevance * np.float32(factor)})

    usual = select(1)
    for exponent in (-60, -27, -10, -1, 1, 10, 60):
        found = select(2.0**exponent)
        np.testing.assert_array_equal(found.indices, usual.indices)
        np.testing.assert_array_equal(found.scores, usual.scores)
    for factor in (1e-15, 3e-4, 11.0, 1e15):
        found = select(factor)
        np.testing.assert_array_equal(found.indices, usual.indices)
        np.testing.assert_allclose(found.scores, usual.scores, rtol=1e-5)


@pytest.mark.parametrize("window", [1, 2, 5])
@pytest.mark.parametrize("kind", ["alike", "copies"])
def test_in_a_window_only_its_picks_take_from_the_volume(window, kind):
    """Rows in order of their relevance, which decides; initial items before them."""
    rng = np.random.default_rng(window)
    rows = rng.standard_normal((20, 12)).astype(np.float32)
    rows = rows[rng.integers(0, 4, 20)] + np.float32(0.3 * (kind == "alike")) * rows
    problem = {"k": 12, "candidates": np.arange(13)[None], "relevance": np.float32(np.arange(13, 0, -1))[None]}
    problem |= {"lambda_d": 0.5, "gamma": 0.01, "window": window, "initial": np.array([[13, -1, 15, 17, 19]])}
    found = rk.ssd(None, rows, **problem, backend="triton")
    np.testing.assert_array_equal(found.indices, [np.arange(12)])
    z = (problem["relevance"][0] - 7) / (problem["relevance"].std(dtype=np.float64) + 13 * 2.0**-23)
    left = (found.scores[0] - 0.5 * z[:12]) / 0.005
    items = np.hstack([rows / np.linalg.norm(rows, axis=1, keepdims=True), np.ones((20, 1))])
    taken = [13, 15, 17, 19, *range(12)]
    for i in range(12):
        picks = items[taken[: i + 4][-window:]]
        solved = np.linalg.lstsq(picks.T, items[i], rcond=1e-3)[0]
        expected = np.linalg.norm(items[i] - solved @ picks)
        np.testing.assert_allclose(left[i], expected, atol=1e-3 if kind == "alike" else 2e-2)


@pytest.mark.slow
def test_z_scores_of_equal_values_and_of_values_apart_by_rounding():
    """SSD without a weight of the volume reports them."""
    for number in (1, 19, 100):
        for value in (0.0, 0.1, -7.3, 1e-30, 1e-44, 3e38):
            same = np.full((1, number), value, np.float32)
            eye = np.eye(number, dtype=np.float32)
            found = rk.ssd(None, eye, 9, relevance=same, lambda_d=1.0, backend="triton")
            assert not found.scores[0, : found.lengths[0]].any()
            if number == 1 or 1e-40 > value >= 0 or value > 1e38:
                continue
            same[0, ::3] = np.nextafter(same[0, ::3], np.float32(np.inf))
            found = rk.ssd(None, eye, number, relevance=same, lambda_d=1.0, backend="triton")
            expected = rk.ssd(None, eye, number, relevance=same, lambda_d=1.0, backend="reference")
            np.testing.assert_array_equal(found.indices, expected.indices)
            np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)


@pytest.mark.parametrize("exponent", [-120, pytest.param(60, marks=pytest.mark.slow)])
def test_qualities_whose_squares_leave_float32(exponent):
    """Of rows and of positions; only scores may be beyond it."""
    method, problem = problem_of("dpp", {})
    rng = np.random.default_rng(5)
    for shape in ((len(problem["embeddings"]),), (3, 19)):
        quality = np.float32(rng.uniform(0.5, 2, shape))
        usual = check(method, {**problem, "quality": quality})
        far = rk.dpp(**problem, quality=quality * np.float32(np.exp2(exponent)), backend="triton")
        np.testing.assert_array_equal(far.indices, usual.indices)
        with np.errstate(over="ignore", under="ignore"):
            expected = usual.scores * np.float32(np.exp2(exponent)) * np.float32(np.exp2(exponent))
        np.testing.assert_allclose(far.scores, expected, rtol=1e-6)


def test_what_initial_items_span_is_not_picked():
    """Two initial items of one vector, and others of the same."""
    method, problem = problem_of("dpp", {})
    rows = problem["embeddings"]
    rows[problem["candidates"][:, 0]] = rows[3]
    rows[5] = rows[3]
    problem["initial"] = np.array([[3, 5]] * 3)
    found = check(method, problem)
    assert not np.isin(found.indices, problem["candidates"][:, 0]).any()


@pytest.mark.parametrize("rule", [rule for rule in RULES if "coverage" not in rule])
def test_of_an_item_whose_relevance_is_nan_only_the_item_is_lost(rule):
    method, problem = problem_of(rule, {"seed": 6})
    problem["relevance"] = np.random.default_rng(6).standard_normal((3, 19)).astype(np.float32)
    gone = np.arange(19) == np.array([[0], [7], [18]])
    without = {**problem, "candidates": np.where(gone, -1, problem["candidates"])}
    expected = getattr(rk, method)(**without, backend="reference")
    problem["relevance"] = np.where(gone, np.float32(np.nan), problem["relevance"])
    found = getattr(rk, method)(**problem, backend="triton")
    np.testing.assert_array_equal(found.indices, expected.indices)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-4)


@pytest.mark.parametrize("rule", RULES)
def test_a_kernel_is_compiled_again_for_more_picks_only_where_a_rule_keeps_them(rule, monkeypatch):
    launched = []

    class Kernel:
        def __getitem__(self, grid):
            return lambda **given: launched.append({name: x for name, x in given.items() if name.isupper()})

    monkeypatch.setattr(triton_gram, "select_gram_kernel", Kernel())
    method, problem = problem_of(rule, {}, P=40)
    for k in (4, 16, 17, 33):
        getattr(rk, method)(**{**problem, "k": k}, backend="triton")
    sizes = [{name: x for name, x in each.items() if len(name) > 1} for each in launched]  # P, S, K, D are no constants
    ranks = [4, 16, 32, 64] if method in ("dpp", "ssd", "sift") else [16] * 4
    assert [each.pop("RANK") for each in sizes] == ([4] * 4 if rule == "ssd in a window" else ranks)
    assert sizes.count(sizes[0]) == 4


def test_what_no_kernel_runs_is_refused_by_name():
    _, problem = problem_of("mmr", {}, P=140)
    corpus = {name: x for name, x in problem.items() if name != "candidates"}
    for changes, said in (
        ({"costs": np.ones(280), "budget": 3.0}, "take a budget for pools, and for a whole corpus of up to 128 rows"),
        ({"max_similarity": 0.5}, "take max_similarity for pools, and"),
    ):
        with pytest.raises(rk.BackendUnavailableError, match=said):
            rk.mmr(**{**corpus, **changes}, backend="triton")
    with pytest.raises(rk.BackendUnavailableError, match=r"^msd: backend .triton. .* take msd for pools, and"):
        rk.msd(**corpus, backend="triton")
    with pytest.raises(rk.BackendUnavailableError, match=r"^ssd: .* take ssd for pools .* of up to 128 items, got 140"):
        rk.ssd(**problem, backend="triton")
    _, problem = problem_of("dpp", {})
    with pytest.raises(rk.BackendUnavailableError, match="have no dpp in a window"):
        rk.dpp(**problem, window=2, backend="triton")
    _, problem = problem_of("coverage", {})
    with pytest.raises(rk.BackendUnavailableError, match="not aspects of their own"):
        rk.coverage(**problem, aspects=np.ones((3, 2, 12), np.float32), backend="triton")
    with pytest.raises(rk.BackendUnavailableError, match="gain per cost"):
        rk.coverage(**problem, costs=np.ones(38), budget=3.0, density=True, backend="triton")


interpreted.elsewhere(globals())
