"""Shards of the vocabulary put together, and label posteriors."""

import numpy as np
import pytest
from scoring_oracle import ENTROPY_FLOOR, EVERYTHING, assert_close, logp, lse
from scoring_problems import linear, logits, sharded

import ragsys_kernels as rk

INF, NAN = np.inf, np.nan


FORMS = {
    "logits": ({"logits": logits(6, 9001)[0]}, 9001),
    "bfloat16": ({"logits": logits(6, 9001, "bfloat16")[0]}, 9001),
    "hidden": (linear(6, 2001, 40, bias=True)[0], 2001),
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("shares", [(0.001,), (0.2, 0.21, 0.7), tuple(np.linspace(0.01, 0.99, 30))])
def test_unequal_shards_give_the_whole(scorer, name, shares):
    form, V = FORMS[name]
    targets = np.array([0, V - 1, V // 2, 17, int(V * shares[0]), int(V * shares[0]) - 1])
    bounds = [0, *(int(V * share) for share in shares), V]
    whole = rk.answer_logprobs(**form, targets=targets, want=EVERYTHING, backend=scorer)
    merged = sharded(form, bounds, scorer, targets=targets)
    found = rk.answer_logprobs(partials=merged, targets=targets, vocab_size=V, want=EVERYTHING, backend=scorer)
    floor = 2e-6 if "logits" in form else 1e-5
    for field in ("logp", "lse", "max"):
        assert_close(getattr(found, field), getattr(whole, field), floor)
    assert_close(found.entropy, whole.entropy, floor + ENTROPY_FLOOR)
    if name != "hidden" or scorer != "numpy":  # whose products have other shapes in other shards
        np.testing.assert_array_equal(found.rank, whole.rank)
        np.testing.assert_array_equal(found.max, whole.max)
    np.testing.assert_allclose(found.sum, whole.sum, atol=6 * floor)


def test_shards_with_masked_strange_and_padded_columns(scorer):
    x = np.array(logits(6, 1000)[0])
    x[0, :600] = -INF  # a shard without a finite column
    x[1] = -INF
    x[2, 3] = NAN
    x[3, 999] = INF
    x[4, :990] = -INF
    x[4, 990:] -= 1e4
    targets = np.array([700, 5, 5, 5, 995, 100])
    merged = sharded({"logits": x}, [0, 250, 600, 1000], scorer, targets=targets)
    found = rk.answer_logprobs(partials=merged, targets=targets, vocab_size=1000, want=EVERYTHING)
    z = x.astype(np.float64)
    assert_close(found.logp, [logp(z[r], t) for r, t in enumerate(targets)])
    assert_close(found.lse, [lse(row) for row in z])
    assert found.rank[1:4].tolist() == [-1, -1, -1]
    # The last shard is padded beyond the vocabulary, or has nothing of it.
    padded = np.concatenate([x, np.full((6, 30), 99, np.float32)], axis=1)
    parts = [
        rk.logprob_partials(padded[:, a:b], first_column=a, targets=targets, vocab_size=1000, backend=scorer)
        for a, b in ((0, 250), (250, 600), (600, 1010), (1010, 1030))
    ]
    again = rk.answer_logprobs(partials=rk.merge_partials(parts), targets=targets, vocab_size=1000, reduce=())
    assert_close(again.logp, found.logp)


def test_allowed_columns_of_shards(scorer):
    x, z = logits(3, 900)
    allowed = np.array([0, 3, 299, 300, 301, 899])
    targets = [299, 899, 5]
    bounds = [0, 300, 600, 900]  # none is allowed in the second
    merged = sharded({"logits": x}, bounds, scorer, targets=targets, allowed=allowed)
    found = rk.answer_logprobs(partials=merged, targets=targets, vocab_size=900, want=("logp", "rank"))
    masked = np.full_like(z, -INF)
    masked[:, allowed] = z[:, allowed]
    assert_close(found.logp, [logp(masked[r], t) for r, t in enumerate(targets)])
    assert found.rank[2] == 6


def test_shards_with_ragged_pairs_temperatures_and_ignored_targets(scorer):
    x, _ = logits(5, 800)
    pairs = {
        "targets": [3, -100, 799, 400, 3, 12, 900],
        "rows": [4, 2, 0, 0, 4, 1, 3],
        "cu_answers": [0, 2, 2, 5, 7],
        "temperature": [1.0, 3.0, 0.5, 2.0],
        "out_of_range": "nan",
    }
    whole = rk.answer_logprobs(x, **pairs, want=("logp", "rank"), backend=scorer)
    merged = sharded({"logits": x}, [0, 3, 401, 800], scorer, **pairs)
    found = rk.answer_logprobs(partials=merged, **pairs, vocab_size=800, want=("logp", "rank"))
    assert_close(found.logp, whole.logp, 4e-6)
    np.testing.assert_array_equal(found.rank, whole.rank)
    np.testing.assert_array_equal(found.count, whole.count)
    np.testing.assert_array_equal(found.greedy, whole.greedy)


def test_a_row_is_one_job_at_each_of_its_temperatures(scorer):
    x, _ = logits(2, 20)
    part = rk.logprob_partials(
        x, targets=[1, 2, 3, 4, 5], rows=[1, 1, 1, 0, 1], cu_answers=[0, 1, 2, 5], temperature=[1.0, 2.0, 1.0],
        vocab_size=20, backend=scorer,
    )  # fmt: skip
    assert part.ref.shape == (3,)
    np.testing.assert_allclose(part.target, np.concatenate([x[0, [4]], x[1, [2]] / 2, x[1, [1, 3, 5]]]), rtol=1e-6)


def test_greedy_answers_of_shards_need_no_ranks(scorer):
    x = np.array(logits(30, 900)[0])
    targets = x.argmax(1)
    x[0, :5], targets[0], targets[1] = x[0].max(), 3, (targets[1] + 1) % 900  # a tie, and a lower target
    x[2, 7], x[3] = NAN, -INF
    options = {"targets": targets, "vocab_size": 900, "cu_answers": np.arange(31), "backend": scorer}
    parts = [
        rk.logprob_partials(x[:, begin : begin + 300], first_column=begin, **options) for begin in range(0, 900, 300)
    ]
    found = rk.answer_logprobs(partials=rk.merge_partials(parts), **options)
    whole = rk.answer_logprobs(x, **options, want=("rank",))
    assert found.greedy.tolist() == whole.greedy.tolist() == (whole.rank == 0).tolist()
    assert found.greedy[:5].tolist() == [True, False, False, False, True]


# --- Label posteriors.


def test_label_posteriors_by_their_definition(scorer):
    x, z = logits(7, 500)
    labels = [[3], [10, 499, 7], [44, 45]]
    ids, cu = np.concatenate(labels), np.cumsum([0, *map(len, labels)])
    prior = np.array([0.5, 0.3, 0.2])
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p = np.stack([p[:, label].sum(axis=1) for label in labels], axis=1)
    found = rk.label_posteriors(x, label_ids=ids, cu_labels=cu, backend=scorer)
    assert [field.dtype for field in found] == [np.float64, np.float64, np.int64]
    np.testing.assert_allclose(np.exp(found.logp), p, rtol=2e-6)
    np.testing.assert_allclose(np.exp(found.log_posterior), p / p.sum(axis=1, keepdims=True), rtol=2e-6)
    assert found.label.tolist() == p.argmax(axis=1).tolist()
    calibrated = rk.label_posteriors(x, label_ids=ids, cu_labels=cu, prior=7 * prior, backend=scorer)
    want = p / prior
    np.testing.assert_allclose(np.exp(calibrated.log_posterior), want / want.sum(axis=1, keepdims=True), rtol=2e-6)
    np.testing.assert_array_equal(calibrated.logp, found.logp)
    assert calibrated.label.tolist() == want.argmax(axis=1).tolist()


def test_labels_from_hidden_states_and_chosen_rows(scorer):
    arguments, z, floor = linear(6, 700, 30, bias=True)
    rows, temperature = [5, 0, 5, 2], [1.0, 2.0, 0.5, 1.0]
    found = rk.label_posteriors(**arguments, label_ids=[8, 9], rows=rows, temperature=temperature, backend=scorer)
    assert_close(
        found.logp, [[logp(z[r] / t, 8), logp(z[r] / t, 9)] for r, t in zip(rows, temperature, strict=True)], 2 * floor
    )
    one = rk.label_posteriors(**arguments, label_ids=[8, 9], rows=[2], backend=scorer)
    np.testing.assert_array_equal(one.logp[0], found.logp[3])


@pytest.mark.parametrize("temperature", [1.0, [1.0, 1.0, 1.0, 2.0, 0.5, 1.0, 2.0]])
def test_rows_named_more_than_once_each_have_their_labels(scorer, temperature):
    x, z = logits(5, 300)
    rows, labels = np.array([3, 0, 3, 1, 3, 0, 1]), {"label_ids": [8, 9, 200], "cu_labels": [0, 1, 3]}
    found = rk.label_posteriors(x, **labels, rows=rows, temperature=temperature, backend=scorer)
    each = np.broadcast_to(temperature, 7)
    for i, (r, t) in enumerate(zip(rows, each, strict=True)):
        p = np.exp([logp(z[r] / t, token) for token in (8, 9, 200)])
        np.testing.assert_allclose(np.exp(found.logp[i]), [p[0], p[1] + p[2]], rtol=1e-5)
        alone = rk.label_posteriors(x, **labels, rows=[r], temperature=float(t), backend=scorer)
        for together, one in zip(found, alone, strict=True):
            np.testing.assert_array_equal(together[i], one[0])


def test_label_probabilities_are_never_above_one(scorer):
    """A label of the whole vocabulary has probability 1, up to the rounding of the sum."""
    x, _ = logits(200, 6)
    found = rk.label_posteriors(x, label_ids=np.arange(6), cu_labels=[0, 6], backend=scorer)
    assert (found.logp <= 0).all()
    np.testing.assert_allclose(found.logp, 0, atol=1e-6)
    assert (found.log_posterior == 0).all()


def test_tiny_label_probabilities_survive(scorer):
    x = np.zeros((1, 100), np.float32)
    x[0, 0] = 3000
    x[0, 5:8] = [1, 2, 1]
    found = rk.label_posteriors(x, label_ids=[5, 6, 7], cu_labels=[0, 2, 3], backend=scorer)
    assert found.logp.max() < -2990
    np.testing.assert_allclose(np.exp(found.log_posterior[0]), np.array([1 + np.e, 1]) / (2 + np.e), rtol=1e-6)


def test_labels_of_rows_without_a_number(scorer):
    x = np.array(logits(5, 60)[0])
    x[0, 59] = NAN
    x[1, 59] = INF
    x[2] = -INF
    x[3, [4, 5]] = -INF
    x[4, 4] = -INF
    found = rk.label_posteriors(x, label_ids=[4, 5], backend=scorer)
    assert np.isnan(found.logp[:3]).all()
    assert np.isnan(found.log_posterior[:4]).all()
    assert (found.logp[3] == -INF).all()
    assert found.log_posterior[4].tolist() == [-INF, 0]
    assert found.label.tolist() == [-1, -1, -1, -1, 1]


def test_equal_labels_go_to_the_first(scorer):
    found = rk.label_posteriors(np.zeros((1, 9), np.float32), label_ids=[5, 3], backend=scorer)
    assert found.label.tolist() == [0]
    np.testing.assert_allclose(np.exp(found.log_posterior), [[0.5, 0.5]])


def test_no_rows_no_labels_read(scorer):
    found = rk.label_posteriors(np.zeros((0, 9), np.float32), label_ids=[5, 3], backend=scorer)
    assert found.logp.shape == found.log_posterior.shape == (0, 2)
    assert found.label.shape == (0,)


def test_padding_of_label_posteriors(scorer):
    x = np.array(logits(2, 60)[0])
    x[:, 50:] = 99
    z = x[:, :50].astype(np.float64)
    found = rk.label_posteriors(x, label_ids=[4, 49], vocab_size=50, softcap=30.0, logit_scale=0.5, backend=scorer)
    z = 30 * np.tanh(z * 0.5 / 30)
    assert_close(found.logp, [[logp(row, 4), logp(row, 49)] for row in z], 4e-6)
