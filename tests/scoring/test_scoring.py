"""Answer log-probs against exact float64 sums: every backend, instruction set and element type."""

import itertools
import math

import numpy as np
import pytest
from scoring_oracle import ENTROPY_FLOOR, EVERYTHING, assert_close, check_logits, entropy, logp, lse, rank, scaled
from scoring_problems import DTYPES, hard_rows, linear, logits, stored

import ragsys_kernels as rk

pytestmark = pytest.mark.sampled(5)

INF, NAN = np.inf, np.nan
dtypes = pytest.mark.parametrize("dtype", DTYPES)

# Around vectors and blocks of every backend, and the vocabularies of language models.
WIDTHS = (1, 2, 3, 7, 15, 16, 17, 31, 33, 63, 64, 65, 255, 1000, 4095, 4096, 4097, 8200)
LARGE = (32767, 32768, 32769, 50257, 65536, 129920, 151936, 262144)


CASES = [
    *((V, dtype, 4, 0) for V in WIDTHS for dtype in DTYPES),
    *((V, dtype, 4, 0) for V in LARGE for dtype in DTYPES),
    *((V, "float32", 30, 0) for V in LARGE),
    *((V, "float32", 4, shift) for V in (17, 50257, 262144) for shift in (1e4, -1e4, 1e6, -1e6)),
]


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("V", "dtype", "scale", "shift"), CASES)
def test_fields_are_those_of_the_definition(scorer, V, dtype, scale, shift):
    """Whatever the size of the vocabulary and of the logits: a shift of all of them costs no accuracy."""
    T = 3 if V < 40000 else 2
    x, z = logits(T, V, dtype, scale=scale, shift=shift)
    targets = [V // 2, V - 1, int(z[-1].argmax())][-T:]
    check_logits(rk.answer_logprobs(x, targets=targets, want=EVERYTHING, backend=scorer), z, targets)


def test_oracle_agrees_with_torch_in_float64():
    torch = pytest.importorskip("torch")
    _, z = logits(5, 3000)
    want = torch.log_softmax(torch.from_numpy(z), dim=1)
    np.testing.assert_allclose([logp(z[r], 7 * r) for r in range(5)], want[range(5), range(0, 35, 7)], rtol=1e-13)


# --- Rows on which other libraries fail.


@pytest.mark.parametrize("V", [2, 17, 100, 5000, 70000])
def test_hard_rows_are_right_and_leave_their_neighbours_alone(scorer, V):
    rows = hard_rows(V)
    x = np.array([row for row, _ in rows.values()])
    targets = [target for _, target in rows.values()]
    with np.errstate(over="ignore"):
        want = np.array([logp(row.astype(np.float64), target) for row, target in rows.values()], np.float32)
    found = rk.answer_logprobs(x, targets=targets, want=EVERYTHING, backend=scorer)
    for i, name in enumerate(rows):
        row = x[i].astype(np.float64)
        strange = np.isnan(row).any() or (row == INF).any()
        assert_close(found.logp[i], want[i])
        assert_close(found.lse[i], lse(row))
        assert_close(found.max[i], NAN if strange else row.max())
        assert_close(found.entropy[i], entropy(row), floor=ENTROPY_FLOOR)
        assert found.rank[i] == (-1 if np.isnan(want[i]) else rank(row, targets[i])), name
        alone = rk.answer_logprobs(x[i : i + 1], targets=targets[i : i + 1], want=EVERYTHING, backend=scorer)
        for field in EVERYTHING:
            np.testing.assert_array_equal(getattr(alone, field)[0], getattr(found, field)[i], err_msg=f"{name} {field}")


@dtypes
def test_first_block_masked_in_every_element_type(scorer, dtype):
    values = np.random.default_rng(0).standard_normal((3, 5000)) * 4
    values[:, :4000] = -INF
    x, z = stored(values, dtype)
    targets = [4000, 4999, 3]
    found = rk.answer_logprobs(x, targets=targets, want=EVERYTHING, backend=scorer)
    check_logits(found, z, targets)
    assert float(found.logp[2]) == -INF
    assert int(found.rank[2]) == 1000


@dtypes
def test_nan_inf_and_nothing_finite_in_every_element_type(scorer, dtype):
    values = np.random.default_rng(0).standard_normal((5, 300)) * 4
    values[0, 170] = NAN
    values[1, 299] = INF
    values[2] = -INF
    values[3, 1:] = -INF
    x, z = stored(values, dtype)
    found = rk.answer_logprobs(x, targets=[0] * 5, cu_answers=[0, 1, 2, 3, 4, 5], want=EVERYTHING, backend=scorer)
    assert_close(found.logp, [NAN, NAN, NAN, 0, logp(z[4], 0)])
    assert_close(found.lse, [NAN, NAN, -INF, z[3, 0], lse(z[4])])
    assert_close(found.max, [NAN, NAN, -INF, z[3, 0], z[4].max()])
    assert_close(found.entropy, [NAN, NAN, NAN, 0, entropy(z[4])])
    assert found.rank.tolist() == [-1, -1, -1, 0, rank(z[4], 0)]
    assert found.greedy.tolist() == [False, False, False, True, False]


def test_one_live_class_has_log_prob_zero_exactly(scorer):
    x = np.full((3, 9000), -INF, np.float32)
    x[0, 0], x[1, 4500], x[2, 8999] = -3e4, 0.1, 1e30
    for temperature in (1.0, 0.7):
        options = {"targets": [0, 4500, 8999], "temperature": temperature, "want": ("logp", "entropy")}
        found = rk.answer_logprobs(x, **options, backend=scorer)
        assert found.logp.tolist() == [0, 0, 0]
        if temperature == 1 or scorer != "cpu":  # whose exponents are of products that are rounded
            assert found.entropy.tolist() == [0, 0, 0]
    assert rk.token_logprobs(np.array([[5]], np.float32), [0], backend=scorer).tolist() == [0]


@pytest.mark.parametrize("V", [5, 64, 4097, 40000])
def test_log_prob_is_never_positive(scorer, V):
    """The sum is rounded; a target that has nearly all of it would otherwise come out above 0 now and then."""
    rng = np.random.default_rng(V)
    x = rng.standard_normal((50 if V < 1000 else 20, V)).astype(np.float32) * 5
    targets = rng.integers(0, V, len(x))
    x[np.arange(len(x)), targets] += rng.uniform(10, 40, len(x)).astype(np.float32)
    assert (rk.token_logprobs(x, targets, backend=scorer) <= 0).all()


def test_a_sum_rounded_below_its_own_term_gives_log_prob_zero():
    """About a reference that is not the maximum the one term of a sum is rounded; its logarithm may be too small."""
    below = np.exp(np.linspace(-1, 1, 9)) * (1 - 2.0**-24)
    z = np.linspace(-1, 1, 9).astype(np.float32)
    nothing = np.zeros(9, np.float32)
    parts = rk.Partials(nothing, z, below, None, z, None)
    found = rk.answer_logprobs(partials=parts, targets=np.zeros(9, int), vocab_size=1, reduce=("sum",))
    assert found.logp.tolist() == [0] * 9


# --- Which columns enter.


@dtypes
@pytest.mark.parametrize(("V", "vocab_size"), [(20, 17), (64, 1), (5000, 4100), (40000, 32770), (33000, 32768)])
def test_padded_columns_never_enter(scorer, dtype, V, vocab_size):
    values = np.random.default_rng(V).standard_normal((4, V)) * 4
    values[0, vocab_size:] = 60000
    values[1, vocab_size:] = NAN
    values[2, vocab_size:] = INF
    x, z = stored(values, dtype)
    targets = [vocab_size - 1] * 4
    found = rk.answer_logprobs(x, targets=targets, vocab_size=vocab_size, want=EVERYTHING, backend=scorer)
    check_logits(found, z[:, :vocab_size], targets)
    cut = rk.answer_logprobs(x[:, :vocab_size], targets=targets, want=EVERYTHING, backend=scorer)
    for field in EVERYTHING:
        np.testing.assert_array_equal(getattr(found, field), getattr(cut, field), err_msg=field)


@dtypes
@pytest.mark.parametrize("n", [1, 5, 16, 999, 40000])
def test_only_allowed_columns_enter(scorer, dtype, n):
    V = max(70, n * 3 // 2)
    rng = np.random.default_rng(n)
    allowed = np.sort(rng.permutation(V)[:n])
    outside = np.setdiff1d(np.arange(V), allowed)
    values = rng.standard_normal((3, V)) * 4
    values[1, outside[: len(outside) // 2]] = NAN
    values[1, outside[len(outside) // 2 :]] = INF
    x, z = stored(values, dtype)
    targets = [allowed[-1], allowed[n // 2], outside[0]]
    found = rk.answer_logprobs(x, targets=targets, allowed=allowed, want=EVERYTHING, backend=scorer)
    masked = np.full_like(z, -INF)
    masked[:, allowed] = z[:, allowed]
    check_logits(found, masked, targets)
    assert float(found.logp[2]) == -INF
    assert int(found.rank[2]) == n


def test_allowed_columns_below_the_padding(scorer):
    x, z = logits(2, 50)
    found = rk.answer_logprobs(x, targets=[3, 19], vocab_size=20, allowed=[3, 7, 19], backend=scorer)
    assert_close(found.logp, [logp(z[0, [3, 7, 19]], 0), logp(z[1, [3, 7, 19]], 2)])


# --- Scales.


SCALES = {
    "temperature_up": {"temperature": 1.7},
    "temperature_down": {"temperature": 0.3},
    "logit_scale": {"logit_scale": 0.0625},
    "softcap": {"softcap": 30.0},
    "softcap_small": {"softcap": 2.5},
    "all": {"temperature": 0.8, "logit_scale": 1.3, "softcap": 20.0},
}


@pytest.mark.sampled(12)
@dtypes
@pytest.mark.parametrize("name", SCALES)
@pytest.mark.parametrize("V", [1, 33, 4100, 33000])
def test_temperature_scale_and_softcap(scorer, dtype, name, V):
    options = SCALES[name]
    x, z = logits(3, V, dtype, scale=6)
    scale = {"scale" if key == "logit_scale" else key: value for key, value in options.items()}
    z = scaled(z, **scale)
    targets = [0, V // 2, V - 1]
    found = rk.answer_logprobs(x, targets=targets, want=EVERYTHING, **options, backend=scorer)
    floor = 2e-6 + 4 * np.spacing(np.float32(np.abs(z).max()))  # z itself is rounded to float32
    assert_close(found.logp, [logp(z[r], t) for r, t in enumerate(targets)], floor)
    assert_close(found.lse, [lse(row) for row in z], floor)
    assert_close(found.entropy, [entropy(row) for row in z], 10 * floor)
    if options.get("softcap") != 2.5:  # which makes equals of what is large
        np.testing.assert_array_equal(found.rank, [rank(z[r], t) for r, t in enumerate(targets)])


def test_masked_entries_stay_masked_under_a_softcap(scorer):
    x, z = map(np.copy, logits(2, 100))
    x[0, 10:90] = -INF
    x[1, 5] = INF
    z[0, 10:90] = -INF
    found = rk.answer_logprobs(x, targets=[0, 0], softcap=5.0, want=EVERYTHING, backend=scorer)
    assert_close(found.logp, [logp(scaled(z[0], softcap=5.0), 0), NAN], 4e-6)
    assert float(rk.token_logprobs(x, [50, 5], softcap=5.0, backend=scorer)[0]) == -INF


def test_a_logit_scaled_beyond_float32_is_capped(scorer):
    """Infinite is only what was given so."""
    x = np.array([[1e30, -1e30, 0, 2e-12, 1], [-INF, 3e38, 1e-12, 0, 0]], np.float32)
    options = {"logit_scale": 1e12, "softcap": 5.0}
    z = scaled(x.astype(np.float64), scale=1e12, softcap=5.0)
    z[1, 0] = -INF
    found = rk.answer_logprobs(x, targets=[0, 2], want=EVERYTHING, **options, backend=scorer)
    assert_close(found.logp, [logp(z[0], 0), logp(z[1], 2)], 4e-6)
    assert_close(found.lse, [lse(row) for row in z], 4e-6)
    assert_close(found.max, z.max(1), 4e-6)
    hidden = {"hidden": np.ones((1, 1), np.float32), "weight": x[0, :, None]}
    found = rk.answer_logprobs(**hidden, targets=[0], want=EVERYTHING, **options, backend=scorer)
    assert_close(found.logp, [logp(z[0], 0)], 4e-6)


def test_a_temperature_that_is_a_power_of_two_is_exact(scorer):
    x, _ = logits(3, 5000)
    warm = rk.token_logprobs(x, [1, 2, 3], temperature=2, backend=scorer)
    np.testing.assert_array_equal(warm, rk.token_logprobs(x / 2, [1, 2, 3], backend=scorer))


def test_a_temperature_for_each_answer(scorer):
    x, z = logits(6, 300)
    temperature = np.array([0.5, 1.0, 2.0])
    rows = [0, 1, 1, 2, 0, 5]  # rows 0 and 1 are scored at two temperatures
    targets = [3, 9, 299, 0, 3, 7]
    answers = [0, 0, 1, 1, 2, 2]
    want = [logp(z[r] / temperature[a], t) for r, t, a in zip(rows, targets, answers, strict=True)]
    found = rk.answer_logprobs(
        x, targets=targets, rows=rows, cu_answers=[0, 2, 4, 6], temperature=temperature, backend=scorer
    )
    assert_close(found.logp, want)
    again = rk.answer_logprobs(
        x, targets=targets, rows=rows, answer_ids=answers, temperature=temperature, backend=scorer
    )
    np.testing.assert_array_equal(found.logp, again.logp)
    assert_close(found.sum, [sum(want[0:2]), sum(want[2:4]), sum(want[4:6])], 1e-5)


def test_a_temperature_for_each_token(scorer):
    x, z = logits(4, 300)
    found = rk.token_logprobs(x, [1, 2, 3, 4], temperature=[0.5, 1, 2, 4], backend=scorer)
    assert_close(found, [logp(z[r] / t, r + 1) for r, t in enumerate((0.5, 1, 2, 4))])


# --- Pairs and answers.


def test_rows_in_any_order_with_any_number_of_targets(scorer):
    rng = np.random.default_rng(0)
    x, z = logits(7, 1000)
    rows = np.array([5, 0, 5, 5, 2, 0, 6, 2, 5])
    targets = rng.integers(0, 1000, len(rows))
    found = rk.answer_logprobs(x, targets=targets, rows=rows, want=EVERYTHING, backend=scorer)
    check_logits(found, z, targets, rows)
    for field in ("lse", "max", "entropy"):
        assert np.isnan(getattr(found, field)[[1, 3, 4]]).all()  # rows that no target reads


def test_many_targets_of_one_row(scorer):
    V = 9000 if scorer in ("reference", "numpy", "cpu") else 150  # on a device of a kind, a target takes milliseconds
    x, z = logits(2, V)
    targets = np.arange(V)
    found = rk.answer_logprobs(x, targets=targets, rows=np.ones(V, int), want=("logp", "rank"), backend=scorer)
    assert math.isclose(np.exp(found.logp.astype(np.float64)).sum(), 1, rel_tol=2e-6)
    assert (found.logp <= 0).all()
    np.testing.assert_array_equal(found.rank[np.argsort(-z[1], kind="stable")], np.arange(V))


def test_answers_are_summed_in_float64(scorer):
    rng = np.random.default_rng(0)
    x, z = logits(30, 400)
    targets = rng.integers(0, 400, 30)
    targets[5] = int(z[5].argmax())
    targets[[8, 20]] = -100
    want = np.array([0.0 if t == -100 else logp(z[r], t) for r, t in enumerate(targets)])
    cu = [0, 5, 5, 6, 9, 30]
    found = rk.answer_logprobs(x, targets=targets, cu_answers=cu, want=("logp", "rank"), backend=scorer)
    assert [getattr(found, name).dtype for name in ("logp", "sum", "mean", "count", "greedy", "rank")] == [
        np.float32, np.float64, np.float64, np.int64, np.bool_, np.int64,
    ]  # fmt: skip
    counts = [5, 0, 1, 2, 20]
    sums = [math.fsum(want[a:b]) for a, b in itertools.pairwise(cu)]
    np.testing.assert_allclose(found.sum, sums, atol=2e-5)
    assert found.count.tolist() == counts
    assert found.sum[1] == 0
    assert np.isnan(found.mean[1])
    np.testing.assert_array_equal(found.mean, [s / c if c else NAN for s, c in zip(found.sum, counts, strict=True)])
    assert found.greedy.tolist() == [False, True, True, False, False]
    assert found.logp[8] == found.logp[20] == 0
    assert found.rank[8] == found.rank[20] == 0
    assert found.lse is found.max is found.entropy is None


def test_answer_ids_say_the_same_as_bounds(scorer):
    rng = np.random.default_rng(1)
    x, _ = logits(12, 50)
    targets = rng.integers(0, 50, 12)
    cu = np.array([0, 3, 3, 8, 12])
    ids = np.repeat(np.arange(4), np.diff(cu))
    found = rk.answer_logprobs(x, targets=targets, cu_answers=cu, backend=scorer)
    for order in (np.arange(12), np.argsort(rng.random(12), kind="stable")):
        by_id = {"targets": targets[order], "rows": order, "answer_ids": ids[order]}
        again = rk.answer_logprobs(x, **by_id, backend=scorer)
        np.testing.assert_array_equal(again.logp, found.logp[order])
        np.testing.assert_allclose(again.sum, found.sum, rtol=1e-13)
        more = rk.answer_logprobs(x, **by_id, num_answers=5, backend=scorer)  # and one without a pair
        for field, of_none in (("sum", 0), ("count", 0), ("greedy", True)):
            np.testing.assert_array_equal(getattr(more, field), [*getattr(again, field), of_none])
        for field in ("count", "greedy"):
            np.testing.assert_array_equal(getattr(again, field), getattr(found, field))


@pytest.mark.parametrize("ignore_index", [-100, -1, 7, None])
def test_ignored_targets(scorer, ignore_index):
    x, z = logits(4, 30)
    ignored = 3 if ignore_index is None else ignore_index
    targets = [7, ignored, 2, ignored]
    counted = [t != ignore_index for t in targets]
    want = [logp(z[r], t) if c else 0 for r, (t, c) in enumerate(zip(targets, counted, strict=True))]
    found = rk.answer_logprobs(x, targets=targets, ignore_index=ignore_index, want=EVERYTHING, backend=scorer)
    assert_close(found.logp, want)
    assert found.count.tolist() == [sum(counted)]
    assert (np.isnan(found.lse) == ~np.array(counted)).all()  # an ignored row is not read
    plain, some = rk.token_logprobs(x, targets, ignore_index=ignore_index, return_lse=True, backend=scorer)
    np.testing.assert_array_equal(plain, found.logp)
    np.testing.assert_array_equal(some, found.lse)


def test_an_ignored_row_may_hold_anything(scorer):
    x, z = map(np.copy, logits(3, 30))
    x[1] = NAN
    found = rk.answer_logprobs(x, targets=[1, -100, 2], backend=scorer)
    assert_close(found.logp, [logp(z[0], 1), 0, logp(z[2], 2)])
    assert np.isfinite(found.sum).all()


@pytest.mark.parametrize("bad", [-1, 30, 31, -(2**63), 2**63 - 1])
def test_targets_outside_the_vocabulary_can_be_nan(scorer, bad):
    x, z = logits(4, 31)
    targets = [1, bad, 2, -100]
    found = rk.answer_logprobs(
        x, targets=targets, cu_answers=[0, 1, 3, 4], vocab_size=30, out_of_range="nan", want=("logp", "rank"),
        backend=scorer,
    )  # fmt: skip
    assert_close(found.logp, [logp(z[0, :30], 1), NAN, logp(z[2, :30], 2), 0])
    assert np.isnan(found.sum).tolist() == [False, True, False]
    assert np.isnan(found.mean).tolist() == [False, True, True]
    assert found.count.tolist() == [1, 2, 0]
    assert found.rank[1] == -1
    assert found.greedy.tolist()[1:] == [False, True]


def test_ties_do_not_count_as_greater(scorer):
    x = np.array([[1, 3, 3, 2], [0, 0, 0, 0], [-INF, -INF, 1, -INF]], np.float32)
    rows, targets = [0, 0, 0, 0, 1, 2, 2], [0, 1, 2, 3, 3, 2, 0]
    found = rk.answer_logprobs(
        x, targets=targets, rows=rows, want=("rank",), answer_ids=[0, 1, 2, 3, 4, 5, 6], backend=scorer
    )
    assert found.rank.tolist() == [3, 0, 0, 2, 0, 0, 1]
    assert found.greedy.tolist() == [False, True, True, False, True, True, False]
    assert found.logp is None


@pytest.mark.parametrize("T", [0, 3])
@pytest.mark.parametrize("answers", [{"cu_answers": [0, 0, 0]}, {"answer_ids": [], "num_answers": 2}])
def test_nothing_to_score(scorer, T, answers):
    x = np.zeros((T, 5), np.float32)
    found = rk.answer_logprobs(x, targets=[], rows=[], **answers, want=EVERYTHING, backend=scorer)
    whole = rk.answer_logprobs(logits(3, 5)[0], targets=[0, 1, 2], want=EVERYTHING, backend=scorer)
    assert [field.dtype for field in found] == [field.dtype for field in whole]
    assert found.logp.shape == found.rank.shape == (0,)
    assert found.lse.shape == found.entropy.shape == (T,)
    assert np.isnan(found.lse).all()
    assert found.sum.tolist() == found.count.tolist() == [0, 0]
    assert np.isnan(found.mean).all()
    assert found.greedy.tolist() == [True, True]
    for none in ({"cu_answers": [0]}, {"answer_ids": []}):
        assert rk.answer_logprobs(x, targets=[], rows=[], **none, backend=scorer).sum.shape == (0,)
    assert rk.token_logprobs(x[:0], [], backend=scorer).shape == (0,)


@pytest.mark.parametrize("T", [0, 3])
def test_all_targets_are_ignored(scorer, T):
    x = np.zeros((T, 5), np.float32)
    for form in ({"logits": x}, {"hidden": x, "weight": np.ones((4, 5), np.float32)}):
        found = rk.answer_logprobs(**form, targets=[-100] * T, want=EVERYTHING, backend=scorer)
        assert found.count.tolist() == [0]
        assert np.isnan(found.lse).all()
        assert np.isnan(found.entropy).all()


@pytest.mark.parametrize("form", ["logits", "hidden"])
def test_only_what_is_wanted_is_made(scorer, form):
    """With the bits that it has beside all else."""
    problem = {"logits": logits(4, 5000)[0]} if form == "logits" else linear(4, 3000, 40)[0]
    call = {**problem, "targets": [1, 2, 3, 4], "backend": scorer}
    full = rk.answer_logprobs(**call, want=EVERYTHING)
    for field in full._fields:
        alone = ((field,), ()) if field in EVERYTHING else ((), [field])
        found = rk.answer_logprobs(**call, want=alone[0], reduce=alone[1])
        assert [name for name in found._fields if getattr(found, name) is not None] == [field]
        np.testing.assert_array_equal(getattr(found, field), getattr(full, field))


def test_token_logprobs_are_those_of_answer_logprobs(scorer):
    x, _ = logits(5, 700)
    targets = [3, 1, 699, 0, 5]
    options = {"temperature": 1.3, "softcap": 9.0, "logit_scale": 0.7, "vocab_size": 699}
    options["allowed"] = list(range(0, 699, 2))
    for chosen in ({}, options):
        found = rk.answer_logprobs(
            x, targets=targets, want=("logp", "lse"), out_of_range="nan", **chosen, backend=scorer
        )
        logps, lses = rk.token_logprobs(x, targets, return_lse=True, out_of_range="nan", **chosen, backend=scorer)
        np.testing.assert_array_equal(logps, found.logp)
        np.testing.assert_array_equal(lses, found.lse)


def test_answers_have_their_bits_in_any_batch(scorer):
    x, _ = logits(40, 300)
    rng = np.random.default_rng(0)
    targets, cu = rng.integers(0, 300, 40), np.array([0, 1, 1, 12, 30, 40])
    want = rk.answer_logprobs(x, targets=targets, cu_answers=cu, backend=scorer)
    for a in range(5):
        rows = np.arange(cu[a], cu[a + 1])
        alone = rk.answer_logprobs(x, targets=targets[rows], rows=rows, backend=scorer)
        for name in ("sum", "mean", "count", "greedy"):
            np.testing.assert_array_equal(getattr(alone, name)[0], getattr(want, name)[a], err_msg=name)
