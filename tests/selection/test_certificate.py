"""`outside`, `certified` and `pool_needed`: picks out of a pool that are proven to be those of the whole corpus."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from selection_calls import same

import ragsys_kernels as rk
from ragsys_kernels import testing
from ragsys_kernels.selection import capabilities, certificate, cpu

pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")

BACKENDS = ("reference", "cpu")


@pytest.fixture(params=BACKENDS)
def name(request, compiled):
    return request.param


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def clustered(rng, count, dims=16, centres=12):
    middle = np.random.default_rng(5).standard_normal((centres, dims))
    return (middle[rng.integers(0, centres, count)] + 0.6 * rng.standard_normal((count, dims))).astype(np.float32)


def largest_value(T, cosines, lambda_d, weight, added):
    """What a row of v <= T can be worth: at each angle to the query, on the far side of it from every pick."""
    angles = np.linspace(0, np.pi, 5001)
    v = weight * np.cos(angles) + (added or 0.0)
    if added is None:
        angles, v = angles[v <= T + 1e-12], v[v <= T + 1e-12]
    nearest = np.cos(angles[:, None] + np.arccos(cosines)).max(axis=1)
    return (lambda_d * np.minimum(v, T) - (1 - lambda_d) * nearest).max(initial=-np.inf)


@given(
    st.lists(st.floats(-0.9, 1), min_size=1, max_size=4),
    st.floats(0.05, 1),
    st.floats(-0.2, 0.9),
    st.none() | st.tuples(st.floats(0.1, 1), st.floats(-1, 1)),
)
def test_reach_is_where_the_best_row_outside_draws_level(cosines, lambda_d, value, biased):
    weight, bias = (1.0, None) if biased is None else biased
    cosines = np.array(cosines)
    added = None if bias is None else (1 - weight) * bias
    reach = certificate.reach(np.array([value]), cosines, np.array([len(cosines)]), lambda_d, weight, bias, slack=0.0)[
        0
    ]
    if np.isfinite(reach):
        assert largest_value(reach, cosines, lambda_d, weight, added) < value
        # All picks in one plane leave a row less than each pick by itself does, so the bound is the least over picks.
        by_one = max(
            certificate.reach(np.array([value]), np.array([y]), np.array([1]), lambda_d, weight, bias, slack=0.0)[0]
            for y in cosines
        )
        assert by_one == pytest.approx(reach, abs=1e-9)


@pytest.mark.parametrize("biased", [False, True])
def test_reach_by_one_pick_is_not_less_than_it_can_be(biased):
    rng = np.random.default_rng(0)
    for _ in range(60):
        lambda_d, y, value = rng.uniform(0.3, 0.95), rng.uniform(-0.5, 0.99), rng.uniform(-0.1, 0.7)
        weight, bias = (rng.uniform(0.3, 1), rng.uniform(-0.5, 0.5)) if biased else (1.0, None)
        reach = certificate.reach(np.array([value]), np.array([y]), np.array([1]), lambda_d, weight, bias, 0.0)[0]
        added = None if bias is None else (1 - weight) * bias
        if np.isinf(reach):
            tried = 9.0 if reach > 0 else -0.99
            assert (largest_value(tried, [y], lambda_d, weight, added) < value + 1e-5) == (reach > 0)
        elif reach > -0.99:
            assert largest_value(reach + 0.01, [y], lambda_d, weight, added) > value


def problem(seed, **changes):
    rng = np.random.default_rng(seed)
    embeddings, queries = clustered(rng, 400), clustered(rng, 30)
    columns = {name: changes.pop(name) for name in ("bias", "groups", "costs") if name in changes}
    corpus = rk.Corpus(embeddings, **columns)
    found = corpus.search(queries, changes.pop("pool", 40), lambda_b=changes.get("lambda_b", 0.95))
    return {
        "queries": queries, "embeddings": corpus, "k": 5, "candidates": found.indices, "outside": found.scores[:, -1],
        "lambda_d": rng.choice((0.5, 0.75, 0.9), 30), **changes,
    }  # fmt: skip


def options():
    rng = np.random.default_rng(2)
    return {
        "plain": {},
        "bias": {"bias": rng.standard_normal(400)},
        "no weight of relevance": {"bias": rng.standard_normal(400), "lambda_b": 0.0},
        "initial": {"initial": rng.integers(0, 400, (30, 1))},
        "own k": {"k": rng.integers(1, 6, 30)},
        "groups": {"groups": rng.integers(0, 90, 400), "max_per_group": 1},
        "budget": {"costs": rng.integers(1, 4, 400), "budget": 9},
        "ceiling": {"max_similarity": 0.8},
        "nothing outside": {"outside": -np.inf},
    }


@pytest.mark.parametrize("what", options())
def test_both_backends_give_the_same_certificate(what, compiled):
    by_name = {name: rk.mmr(**problem(3, **options()[what]), backend=name) for name in BACKENDS}
    cpu, reference = by_name["cpu"], by_name["reference"]
    np.testing.assert_allclose(cpu.pool_needed, reference.pool_needed, atol=3e-4)
    near = np.abs(cpu.pool_needed - problem(3, **options()[what])["outside"]) < 3e-4
    assert (near | (cpu.certified == reference.certified)).all()
    assert cpu.certified.any()


def test_picks_are_the_same_with_a_certificate_and_without(name):
    given = problem(5)
    with_it = rk.mmr(**given, backend=name)
    given.pop("outside")
    without = rk.mmr(**given, backend=name)
    same(with_it, without)
    assert without.certified is without.pool_needed is None


def test_outside_at_most_pool_needed_is_what_certifies(name):
    given = problem(6, bias=np.random.default_rng(0).standard_normal(400))
    needed = rk.mmr(**given, backend=name).pool_needed
    for outside, certified in ((needed, True), (np.nextafter(needed, np.float32(9)), False), (needed - 0.1, True)):
        picks = rk.mmr(**{**given, "outside": outside}, backend=name)
        assert (picks.certified == certified).all()
        np.testing.assert_array_equal(picks.pool_needed, needed)


def test_a_pool_that_reaches_below_pool_needed_certifies_if_its_picks_stay(name):
    given = problem(7)
    corpus, queries = given["embeddings"], given["queries"]
    first = rk.mmr(**given, backend=name)
    reached = 0
    for pool in (80, 160, 320):
        found = corpus.search(queries, pool)
        deeper = {**given, "candidates": found.indices, "outside": found.scores[:, -1]}
        picks = rk.mmr(**deeper, backend=name)
        same = (picks.indices == first.indices).all(axis=1)
        np.testing.assert_array_equal(picks.pool_needed[same], first.pool_needed[same])
        enough = same & ~first.certified & (found.scores[:, -1] <= first.pool_needed)
        assert picks.certified[enough].all()
        reached += enough.sum()
    assert reached > 3


def test_a_row_above_pool_needed_may_change_the_picks(name):
    """On the far side of the query from the first pick; a row below it does not."""
    query, pick = np.array([1.0, 0.0, 0.0]), unit(np.array([1.0, 0.25, 0.0]))
    second = unit(np.array([1.0, 0.0, 0.75]))
    near = np.stack([pick, second]).astype(np.float32)
    ask = {"queries": query[None].astype(np.float32), "k": 2, "lambda_d": 0.6, "backend": name}
    needed = float(rk.mmr(embeddings=near, candidates=[[0, 1]], outside=0.1, **ask).pool_needed[0])
    for cosine, changed in ((needed - 1e-4, False), (needed + 1e-3, True)):
        row = np.array([cosine, -np.sqrt(1 - cosine**2), 0.0])
        rows = np.concatenate([near, row[None].astype(np.float32)])
        found = rk.mmr(embeddings=rows, **ask).indices[0].tolist()
        assert (found != [0, 1]) == changed
        picks = rk.mmr(embeddings=rows, candidates=[[0, 1]], outside=cosine, **ask)
        assert picks.certified[0] != changed


def test_a_row_outside_that_draws_level_is_not_proven_away(name):
    rows = np.array([[1, 0], [1, 0], [0, 1]], np.float32)  # row 0 is outside: of equal rows the first is picked
    picks = rk.mmr(np.array([[1, 0]], np.float32), rows, 1, candidates=[[1, 2]], outside=1.0, backend=name)
    assert picks.indices[0, 0] == 1
    assert not picks.certified[0]


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1)])
def test_a_tie_that_the_order_of_the_pool_decides_is_not_certified(order, name):
    """Rows 1 and 2 lie alike to both sides of the first pick, and draw level; the pool has the later row first."""
    rows = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [-1, 0, 0]], np.float32)
    ask = {"lambda_d": 0.5, "outside": -np.inf, "backend": name}
    picks = rk.mmr(np.array([[1, 0, 0]], np.float32), rows, 2, candidates=[[*order, 3]], **ask)
    assert picks.indices[0].tolist() == [0, order[1]]
    assert picks.certified[0] == (order == (0, 1, 2))
    assert np.isnan(picks.pool_needed[0]) == (order != (0, 1, 2))


def test_a_tie_below_the_pick_does_no_harm(name):
    rows = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]], np.float32)
    picks = rk.mmr(np.array([[1, 0, 0]], np.float32), rows, 1, candidates=[[2, 1, 0]], outside=-np.inf, backend=name)
    assert picks.certified[0]


def test_large_biases_leave_room_for_their_rounding(name):
    rng = np.random.default_rng(1)
    for scale in (1e2, 1e5, 1e7):
        corpus = rk.Corpus(clustered(rng, 200), bias=scale + rng.standard_normal(200))
        queries = clustered(rng, 40)
        picks = corpus.select(queries, 4, pool=20, backend=name)
        whole = corpus.select(queries, 4, pool=None, backend=name)
        assert not (picks.certified & (picks.indices != whole.indices).any(axis=1)).any()


def test_fewer_picks_than_asked_are_certified_only_by_the_whole_corpus(name):
    rows = clustered(np.random.default_rng(0), 50)
    ask = {"queries": rows[:2], "embeddings": rows, "lambda_d": 1.0, "backend": name}
    for k in (4, np.array([4, 2])):
        picks = rk.mmr(k=k, candidates=[[0, 1, -1], [1, 0, 2]], outside=-1.0, **ask)
        assert picks.pool_needed[0] == -np.inf
        assert picks.certified.tolist() == [False, np.ndim(k) == 1]
    assert rk.mmr(k=4, candidates=[[0, 1], [0, 1]], outside=-np.inf, **ask).certified.all()


def test_a_spent_budget_ends_a_query_for_the_whole_corpus_too(name):
    rows = np.eye(4, dtype=np.float32)
    ask = {"queries": rows[:1], "embeddings": rows, "k": 3, "candidates": [[0, 1]], "lambda_d": 1.0, "outside": -0.5}
    for budget, certified in ((4, True), (5, False)):  # after items of 2 and 2; the cheapest outside costs 1
        picks = rk.mmr(**ask, costs=np.array([2, 2, 1, 3]), budget=budget, backend=name)
        assert picks.indices[0].tolist() == [0, 1, -1]
        assert picks.certified[0] == certified
    assert not rk.mmr(**ask, costs=np.array([[2.0, 2.0]]), budget=4, backend=name).certified[0]


@pytest.mark.parametrize("unknown", ["relevance", "bias of candidates"])
def test_what_is_not_known_of_rows_outside_leaves_the_similarity_alone(unknown, name):
    given = problem(8, lambda_d=0.99)
    if unknown == "relevance":
        cosines = unit(given["queries"]) @ given["embeddings"].data.T
        given["relevance"] = np.take_along_axis(cosines, given["candidates"], 1)
    else:
        given["bias"] = np.zeros(given["candidates"].shape)
    picks = rk.mmr(**given, backend=name)
    # A row outside may lie opposite to all picks: w is less than 0.99 v + 0.01.
    expected = ((picks.scores[:, 1:] - 0.01) / 0.99).min(axis=1)
    np.testing.assert_allclose(picks.pool_needed, expected, atol=1e-3)


def test_dense_pools_have_certificates(name):
    given = problem(9)
    flat = rk.mmr(**given, backend=name)
    pools = given["embeddings"].data[given.pop("candidates")]
    dense = rk.mmr(**{**given, "embeddings": pools}, backend=name)
    np.testing.assert_allclose(dense.pool_needed, flat.pool_needed, atol=1e-5)


@pytest.mark.parametrize("isa", ["base", "avx2", "avx512"])
@pytest.mark.parametrize("bounds", ["dense", "pruned", "coded"])
def test_every_strategy_and_instruction_set_knows_ties_and_reach(isa, bounds, compiled, monkeypatch):
    if isa not in compiled.SUPPORTED_ISAS:
        pytest.skip(f"instruction set {isa} is not here")
    monkeypatch.setenv("RAGSYS_KERNELS_ISA", isa)
    given = problem(10, pool=64)
    given["k"] = 12  # more picks than a vector has doubles
    expected = rk.mmr(**given, backend="reference")
    outside = given.pop("outside")
    checked = testing.checked_problem("mmr", given)
    checked.outside = outside
    found, _ = cpu.run(checked, 1, bounds)
    np.testing.assert_allclose(found.pool_needed, expected.pool_needed, atol=3e-4)
    # The order of the pool decides a tie of rows that lie alike to both sides of the first pick.
    rows = np.zeros((32, 32), np.float32)
    rows[np.arange(32), np.arange(32)] = 1
    tied = {"queries": rows[:1], "embeddings": rk.Corpus(rows), "k": 2, "lambda_d": 0.5}
    for pool, is_tied in ((np.arange(32), False), (np.r_[0, 31, 1:31], True)):
        checked = testing.checked_problem("mmr", {**tied, "candidates": pool[None]})
        checked.outside = np.full(1, -np.inf, np.float32)
        found, _ = cpu.run(checked, 1, bounds)
        assert np.isnan(found.pool_needed[0]) == is_tied


def test_bad_values_of_outside_are_named():
    given = problem(11)
    for bad, kind, text in (
        (np.nan, ValueError, "outside must be finite, or -inf where there is no row outside, got nan"),
        (np.inf, ValueError, "outside must be finite"),
        (np.zeros(4), ValueError, r"outside must be a number or have shape \(30,\), got \(4,\)"),
        (True, TypeError, "outside must be a number or an array"),
        (np.array(["a"] * 30), TypeError, "outside must be"),
    ):
        with pytest.raises(kind, match=f"mmr: {text}"):
            rk.mmr(**{**given, "outside": bad})
    without = {name: value for name, value in given.items() if name != "candidates"}
    with pytest.raises(ValueError, match="outside must come with candidates or dense pools, got neither"):
        rk.mmr(**without)
    rows = {**given, "embeddings": given["embeddings"].data}
    with pytest.raises(ValueError, match="outside must come with metric 'cosine', got 'dot'"):
        rk.mmr(**rows, metric="dot")


def test_bad_queries_are_skipped_and_not_certified(name):
    given = problem(12, lambda_d=0.95)
    good = rk.mmr(**given, backend=name)
    assert good.certified.all()
    given["queries"] = given["queries"].copy()
    given["queries"][4] = np.nan
    given["outside"] = given["outside"].copy()
    given["outside"][7] = np.nan
    picks = rk.mmr(**given, backend=name, on_error="skip")
    assert sorted(picks.errors) == [4, 7]
    assert np.flatnonzero(~picks.certified).tolist() == [4, 7]
    rest = np.setdiff1d(np.arange(30), [4, 7])
    np.testing.assert_array_equal(picks.pool_needed[rest], good.pool_needed[rest])


@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_kernels_of_a_device_refuse_outside_by_name(backend):
    pytest.importorskip("triton")
    assert capabilities.Needs("mmr", None, ("outside",)).lacking(backend) == "its kernels take no outside"
    assert capabilities.Needs("mmr").lacking(backend) is None


def test_tensors_get_tensors():
    torch = pytest.importorskip("torch")
    given = problem(14)
    picks = rk.mmr(**{**given, "queries": torch.from_numpy(given["queries"])})
    assert picks.certified.dtype == torch.bool
    assert picks.pool_needed.dtype == torch.float32
