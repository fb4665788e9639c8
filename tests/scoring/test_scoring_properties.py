"""Properties that hold for all logits, tried on logits that Hypothesis makes up."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scoring_oracle import EVERYTHING, assert_close

import ragsys_kernels as rk

pytestmark = pytest.mark.sampled(3)

SEEDS = st.integers(0, 2**32 - 1)


@st.composite
def problems(draw, max_columns=400):
    """Logits in eighths, so that sums with whole numbers are exact, some of them masked; and targets."""
    T, V = draw(st.integers(1, 6)), draw(st.integers(1, max_columns))
    rng = np.random.default_rng(draw(SEEDS))
    x = (np.round(rng.standard_normal((T, V)) * draw(st.sampled_from([0, 1, 30, 2000]))) / 8).astype(np.float32)
    x[rng.random((T, V)) < draw(st.sampled_from([0, 0, 0.1, 0.9]))] = -np.inf
    return x, rng.integers(0, V, T)


def run(x, targets, scorer, **options):
    return rk.answer_logprobs(x, targets=targets, want=EVERYTHING, backend=scorer, **options)


def same(a, b):
    for name in EVERYTHING:
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)


@given(problem=problems(), shift=st.integers(-10000, 10000))
def test_a_shift_by_a_whole_number_changes_next_to_nothing(scorer, problem, shift):
    """x - ref is exact; the compiled kernels may take the exponents from another origin, which rounds otherwise."""
    x, targets = problem
    before, after = run(x, targets, scorer), run(x + np.float32(shift), targets, scorer)
    assert_close(after.logp, before.logp)
    assert_close(after.entropy, before.entropy, 1e-5)
    if scorer != "cpu":
        np.testing.assert_array_equal(after.logp, before.logp)
    np.testing.assert_array_equal(after.rank, before.rank)
    np.testing.assert_array_equal(after.max, before.max + np.float32(shift))


@given(problem=problems(), seed=SEEDS)
def test_permuting_the_columns_changes_only_roundings(scorer, problem, seed):
    x, targets = problem
    order = np.random.default_rng(seed).permutation(x.shape[1])
    before, after = (
        run(x, targets, scorer),
        run(np.ascontiguousarray(x[:, order]), np.argsort(order)[targets], scorer),
    )
    assert_close(after.logp, before.logp, 4e-6)
    np.testing.assert_array_equal(after.rank, before.rank)
    np.testing.assert_array_equal(after.max, before.max)


@given(problem=problems(max_columns=60))
def test_probabilities_of_all_columns_sum_to_one(scorer, problem):
    x, _ = problem
    V = x.shape[1]
    found = rk.answer_logprobs(
        x, targets=np.tile(np.arange(V), len(x)), rows=np.repeat(np.arange(len(x)), V),
        want=("logp", "rank", "entropy"), backend=scorer,
    )  # fmt: skip
    p = np.exp(found.logp.astype(np.float64)).reshape(len(x), V)
    live = np.isfinite(x).any(axis=1)
    np.testing.assert_allclose(p[live].sum(axis=1), 1, rtol=4e-6)
    assert np.isnan(p[~live]).all()
    terms = np.where(p > 0, p, 1)
    np.testing.assert_allclose(found.entropy[live], -(terms * np.log(terms)).sum(axis=1)[live], atol=1e-5)
    ranks = found.rank.reshape(len(x), V)
    for row, rank in zip(x[live], ranks[live], strict=True):
        assert rank.tolist() == [(row > value).sum() for value in row]


@given(problem=problems(), data=st.data())
def test_shards_cut_anywhere_give_the_whole(scorer, problem, data):
    x, targets = problem
    V = x.shape[1]
    cuts = sorted(data.draw(st.sets(st.integers(1, V - 1), max_size=5))) if V > 1 else []
    bounds = [0, *cuts, V]
    options = {"targets": targets, "vocab_size": V, "entropy": True, "backend": scorer}
    parts = [rk.logprob_partials(x[:, a:b], first_column=a, **options) for a, b in itertools.pairwise(bounds)]
    split = data.draw(st.integers(0, len(parts)))
    groups = [group for group in (parts[:split], parts[split:]) if group]
    whole = run(x, targets, scorer)
    merge = rk.merge_partials
    for merged in (merge(parts), merge(parts[::-1]), merge([merge(group) for group in groups])):
        found = rk.answer_logprobs(
            partials=merged, targets=targets, vocab_size=V, want=("logp", "lse", "max", "entropy"), reduce=()
        )
        assert_close(found.logp, whole.logp)
        assert_close(found.lse, whole.lse)
        np.testing.assert_array_equal(found.max, whole.max)
        assert_close(found.entropy, whole.entropy, 1e-5)


@given(problem=problems(), data=st.data())
def test_allowed_columns_are_as_if_cut_out(scorer, problem, data):
    x, _ = problem
    V = x.shape[1]
    allowed = np.array(sorted(data.draw(st.sets(st.integers(0, V - 1), min_size=1, max_size=40))))
    position = np.array([data.draw(st.integers(0, len(allowed) - 1)) for _ in x])
    same(
        run(x, allowed[position], scorer, allowed=allowed),
        run(np.ascontiguousarray(x[:, allowed]), position, scorer),
    )


@given(problem=problems(), power=st.integers(-3, 3))
def test_temperature_is_a_scale(scorer, problem, power):
    x, targets = problem
    factor = np.float32(2.0**power)
    same(run(x, targets, scorer, temperature=2.0**-power), run(x * factor, targets, scorer))
    same(run(x, targets, scorer, logit_scale=2.0**power), run(x * factor, targets, scorer))


@given(problem=problems(), data=st.data())
def test_label_posteriors_are_sums_of_token_probabilities(scorer, problem, data):
    x, _ = problem
    V = x.shape[1]
    ids = np.array(data.draw(st.lists(st.integers(0, V - 1), min_size=1, max_size=9, unique=True)))
    L = data.draw(st.integers(1, len(ids)))
    cu = np.array([0, *sorted(data.draw(st.permutations(range(1, len(ids))))[: L - 1]), len(ids)])
    found = rk.label_posteriors(x, label_ids=ids, cu_labels=cu, backend=scorer)
    rows = np.repeat(np.arange(len(x)), len(ids))
    tokens = rk.answer_logprobs(x, targets=np.tile(ids, len(x)), rows=rows, backend=scorer).logp
    p = np.exp(tokens.astype(np.float64)).reshape(len(x), -1)
    summed = np.add.reduceat(p, cu[:-1], axis=1)
    np.testing.assert_allclose(np.exp(found.logp), summed, rtol=2e-5, atol=1e-38)
    live = np.isfinite(found.log_posterior).any(axis=1)
    np.testing.assert_allclose(np.exp(found.log_posterior[live]).sum(axis=1), 1, rtol=1e-12)
