"""Triton's scoring kernels in its interpreter, and the device path of the operations on tensors of the CPU."""

import functools
import itertools
from contextlib import nullcontext

import interpreted
import numpy as np
import pytest
from scoring_device import Device, as_tensor
from scoring_oracle import (
    ENTROPY_FLOOR,
    EVERYTHING,
    arrays,
    assert_close,
    check_linear,
    check_logits,
    entropy,
    logp,
    lse,
    rank,
    scaled,
)
from scoring_problems import DTYPES, hard_rows, linear, logits, stored

import ragsys_kernels as rk
from ragsys_kernels._base import arrays as _arrays

pytestmark = pytest.mark.sampled(6)

torch = pytest.importorskip("torch")
INF, NAN = np.inf, np.nan
dtypes = pytest.mark.parametrize("dtype", DTYPES)

if interpreted.HERE:
    from ragsys_kernels.scoring import _device, finish, validate
    from ragsys_kernels.scoring.problem import ScoringProblem
    from ragsys_kernels.scoring.triton import backend as triton_kernels
    from ragsys_kernels.scoring.triton import linear as triton_linear


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """Memory that kernels have to write holds NaN, or whole numbers out of every range."""
    empty = _arrays.empty

    def filled(like, shape, dtype):
        array = empty(like, shape, dtype)
        array[...] = True if dtype == "bool" else NAN if "float" in dtype else np.iinfo(dtype).min // 2
        return array

    monkeypatch.setattr(_arrays, "empty", filled)


class Host:
    """The operations on NumPy arrays and tensors of the CPU: layout and results are the host's."""

    name = "host"
    waiting = nullcontext

    def __init__(self, patch):
        pass

    def __getattr__(self, op):
        return functools.partial(getattr(rk, op), backend="triton")


@pytest.fixture(params=[Host, Device], ids=["host", "device"])
def ops(request, monkeypatch):
    return request.param(monkeypatch)


@pytest.fixture
def device(monkeypatch):
    return Device(monkeypatch)


# --- Logits.


@dtypes
@pytest.mark.parametrize("V", [1, 17, 129, 2049])
def test_any_width(ops, dtype, V):
    x, z = logits(3, V, dtype)
    targets = [V - 1, V // 2, 0]
    check_logits(ops.answer_logprobs(x, targets=targets, want=EVERYTHING), z, targets)


@pytest.mark.parametrize(("dtype", "scale"), [("float32", 4), ("float32", 30), ("float16", 4), ("bfloat16", 4)])
def test_a_large_vocabulary(device, dtype, scale):
    x, z = logits(2, 50257, dtype, scale=scale)
    targets = [50256, int(z[1].argmax())]
    found = device.answer_logprobs(x, targets=targets, want=EVERYTHING)
    check_logits(found, z, targets)
    assert int(found.rank[1]) == 0


@dtypes
def test_error_is_within_twice_that_of_torch_in_the_same_type(device, dtype):
    x, z = logits(4, 9000, dtype, scale=6)
    targets = np.array([8999, 0, 4500, 17])
    want = np.array([logp(z[r], t) for r, t in enumerate(targets)])
    own = torch.log_softmax(as_tensor(np.array(x)) if dtype != "bfloat16" else x, 1)[range(4), targets].double().numpy()
    floor = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 1e-2}[dtype] * np.abs(want)
    got = np.asarray(device.token_logprobs(x, targets), np.float64)
    assert (np.abs(got - want) <= 2 * np.abs(own - want) + floor).all()


@pytest.mark.parametrize("dtype", ["float32", *(pytest.param(x, marks=pytest.mark.slow) for x in DTYPES[1:])])
def test_rows_have_their_bits_wherever_they_begin(device, dtype):
    """At every distance from a multiple of 16 bytes, between neighbours that are NaN, and at the ends of the memory."""
    V, T = 2 * 2048 + 50, 3
    x, z = logits(T, V, dtype, seed=3)
    x, targets = as_tensor(x) if dtype != "bfloat16" else x, [0, V // 2, V - 1]
    aligned = torch.full((T, V + 14), NAN, dtype=x.dtype)[:, :V]
    assert aligned.stride(0) * x.element_size() % 16 == 0
    aligned.copy_(x)
    expected = device.answer_logprobs(aligned, targets=targets, want=EVERYTHING)
    check_logits(expected, z, targets)
    for stride in (V + 1, V + 5):
        for begin in range(16 // x.element_size()):
            memory = torch.full((begin + (T - 1) * stride + V,), NAN, dtype=x.dtype)
            moved = memory.as_strided((T, V), (stride, 1), begin)
            moved.copy_(x)
            found = device.answer_logprobs(moved, targets=targets, want=EVERYTHING)
            for name in EVERYTHING:
                np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
            np.testing.assert_array_equal(device.token_logprobs(moved, targets), expected.logp)


def test_aligned_packs_are_read_where_rows_are_not(device):
    """A word of two elements is read at most twice, and once an element: of 2,048 columns, all but the ends."""
    from triton.runtime import interpreter

    V, T, sizes = 2048 * 4 + 9, 2, []
    load = interpreter.InterpreterBuilder.create_masked_load

    def counted(self, ptrs, *rest, **options):
        if ptrs.data.size >= 256:
            sizes.append((ptrs.data.size, ptrs.get_element_ty().name))
        return load(self, ptrs, *rest, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter.InterpreterBuilder, "create_masked_load", counted)
        device.token_logprobs(logits(1, 2049, "float16")[0], [0])
        assert all(kind == "fp16" for _, kind in sizes)  # the second of its packs would reach out of the logits
        sizes.clear()
        device.token_logprobs(logits(T, V, "float16")[0], [0, 1])
    # Four splits of each row, and what is left of it: 256 packs, each of eight elements.
    assert sizes.count((1024, "int32")) == 2 * T * 4
    assert [size for size, kind in sizes if kind == "fp16"] == [256] * 8 * T


@pytest.mark.parametrize("shift", [1e4, -1e4, 1e6])
@pytest.mark.parametrize("V", [17, 9000])
def test_a_shift_of_all_logits_costs_no_accuracy(device, V, shift):
    x, z = logits(2, V, shift=shift)
    targets = [V - 1, V // 3]
    check_logits(device.answer_logprobs(x, targets=targets, want=EVERYTHING), z, targets)


@pytest.mark.parametrize("V", [2, 2500])
def test_hard_rows_are_right_and_leave_their_neighbours_alone(ops, V):
    rows = hard_rows(V)
    x = np.array([row for row, _ in rows.values()])
    targets = [target for _, target in rows.values()]
    found = ops.answer_logprobs(x, targets=targets, want=EVERYTHING)
    for i, name in enumerate(rows):
        row = x[i].astype(np.float64)
        strange = np.isnan(row).any() or (row == INF).any()
        with np.errstate(over="ignore"):
            want = np.float32(logp(row, targets[i]))
        assert_close(found.logp[i], want), name
        assert_close(found.lse[i], lse(row)), name
        assert_close(found.max[i], NAN if strange else row.max()), name
        assert_close(found.entropy[i], entropy(row), floor=ENTROPY_FLOOR), name
        assert found.rank[i] == (-1 if np.isnan(want) else rank(row, targets[i])), name


def test_hard_rows_over_several_splits(device):
    rows = hard_rows(20000)
    names = ["first_10000_masked", "last_10000_masked", "one_live", "all_very_low", "rising_steeply", "all_masked"]
    names += ["nan_at_19999", "inf_at_0", "peak_in_the_last_column", "largest_floats", "extremes_and_a_low_target"]
    x = np.array([rows[name][0] for name in names])
    targets = [rows[name][1] for name in names]
    found = device.answer_logprobs(x, targets=targets, want=EVERYTHING)
    for i, name in enumerate(names):
        row = x[i].astype(np.float64)
        with np.errstate(over="ignore"):
            assert_close(found.logp[i], np.float32(logp(row, targets[i]))), name
        assert_close(found.lse[i], lse(row)), name
        assert_close(found.entropy[i], entropy(row), floor=ENTROPY_FLOOR), name


def test_one_live_class_has_log_prob_zero_exactly(device):
    x = np.full((3, 9000), -INF, np.float32)
    x[0, 0], x[1, 4500], x[2, 8999] = -3e4, 0.1, 1e30
    for temperature in (1.0, 0.7):
        found = device.answer_logprobs(x, targets=[0, 4500, 8999], temperature=temperature, want=("logp", "entropy"))
        assert found.logp.tolist() == found.entropy.tolist() == [0, 0, 0]


def test_all_targets_of_a_row_have_probability_one(device):
    x, z = logits(2, 150)
    targets = np.arange(150)
    found = device.answer_logprobs(x, targets=targets, rows=np.ones(150, int), want=("logp", "rank"))
    assert np.isclose(np.exp(found.logp.astype(np.float64)).sum(), 1, rtol=2e-6)
    assert (found.logp <= 0).all()
    np.testing.assert_array_equal(found.rank[np.argsort(-z[1], kind="stable")], targets)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_padded_columns_never_enter(device, dtype):
    values = np.random.default_rng(0).standard_normal((4, 2300)) * 4
    values[:3, 2100:] = np.array([60000, NAN, INF])[:, None]
    x, z = stored(values, dtype)
    targets = [2099] * 4
    found = device.answer_logprobs(x, targets=targets, vocab_size=2100, want=EVERYTHING)
    check_logits(found, z[:, :2100], targets)


@dtypes
@pytest.mark.parametrize("n", [1, 16, 999])
def test_only_allowed_columns_enter(device, dtype, n):
    V = max(70, n * 3 // 2)
    rng = np.random.default_rng(n)
    allowed = np.sort(rng.permutation(V)[:n])
    outside = np.setdiff1d(np.arange(V), allowed)
    values = rng.standard_normal((3, V)) * 4
    values[1, outside[: len(outside) // 2]] = NAN
    values[1, outside[len(outside) // 2 :]] = INF
    x, z = stored(values, dtype)
    targets = [allowed[-1], allowed[n // 2], outside[0]]
    found = device.answer_logprobs(x, targets=targets, allowed=allowed, want=EVERYTHING)
    masked = np.full_like(z, -INF)
    masked[:, allowed] = z[:, allowed]
    check_logits(found, masked, targets)
    assert float(found.logp[2]) == -INF
    assert int(found.rank[2]) == n


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.7},
        {"logit_scale": 0.0625},
        {"softcap": 30.0},
        {"softcap": 2.5},
        {"temperature": 0.8, "logit_scale": 1.3, "softcap": 20.0},
    ],
    ids=lambda options: "-".join(options),
)
@pytest.mark.parametrize("V", [33, 2100])
def test_temperature_scale_and_softcap(device, options, V):
    x, z = logits(3, V, scale=6)
    z = scaled(z, **{"scale" if key == "logit_scale" else key: value for key, value in options.items()})
    targets = [0, V // 2, V - 1]
    found = device.answer_logprobs(x, targets=targets, want=EVERYTHING, **options)
    floor = 2e-6 + 4 * np.spacing(np.float32(np.abs(z).max()))  # z itself is rounded to float32
    assert_close(found.logp, [logp(z[r], t) for r, t in enumerate(targets)], floor)
    assert_close(found.lse, [lse(row) for row in z], floor)
    assert_close(found.entropy, [entropy(row) for row in z], 10 * floor)


def test_masked_entries_stay_masked_under_a_softcap(device):
    x, z = map(np.copy, logits(2, 100))
    x[0, 10:90] = -INF
    x[1, 5] = INF
    z[0, 10:90] = -INF
    found = device.answer_logprobs(x, targets=[0, 0], softcap=5.0, want=EVERYTHING)
    assert_close(found.logp, [logp(scaled(z[0], softcap=5.0), 0), NAN], 4e-6)
    assert float(device.token_logprobs(x, [50, 5], softcap=5.0)[0]) == -INF


def test_a_logit_scaled_beyond_float32_is_capped(ops):
    x = np.array([[1e30, -1e30, 0, 2e-12, 1], [-INF, 3e38, 1e-12, 0, 0]], np.float32)
    z = scaled(x.astype(np.float64), scale=1e12, softcap=5.0)
    z[1, 0] = -INF
    options = {"logit_scale": 1e12, "softcap": 5.0}
    found = ops.answer_logprobs(x, targets=[0, 2], want=EVERYTHING, **options)
    assert_close(found.logp, [logp(z[0], 0), logp(z[1], 2)], 4e-6)
    assert_close(found.lse, [lse(row) for row in z], 4e-6)
    hidden = {"hidden": np.ones((1, 1), np.float32), "weight": x[0, :, None].copy()}
    assert_close(ops.answer_logprobs(**hidden, targets=[0], **options).logp, [logp(z[0], 0)], 4e-6)


# --- Pairs and answers.


def test_rows_in_any_order_with_any_number_of_targets(ops):
    rng = np.random.default_rng(0)
    x, z = logits(7, 1000)
    rows = np.array([5, 0, 5, 5, 2, 0, 6, 2, 5])
    targets = rng.integers(0, 1000, len(rows))
    found = ops.answer_logprobs(x, targets=targets, rows=rows, want=EVERYTHING)
    check_logits(found, z, targets, rows)
    for field in ("lse", "max", "entropy"):
        assert np.isnan(getattr(found, field)[[1, 3, 4]]).all()  # rows that no target reads


def test_temperatures_of_answers_and_tokens(ops):
    x, z = logits(6, 300)
    temperature = np.array([0.5, 1.0, 2.0])
    rows, targets, answers = [0, 1, 1, 2, 0, 5], [3, 9, 299, 0, 3, 7], [0, 0, 1, 1, 2, 2]
    want = [logp(z[r] / temperature[a], t) for r, t, a in zip(rows, targets, answers, strict=True)]
    for answer in ({"cu_answers": [0, 2, 4, 6]}, {"answer_ids": answers}):
        found = ops.answer_logprobs(x, targets=targets, rows=rows, **answer, temperature=temperature, want=("logp",))
        assert_close(found.logp, want)
        assert_close(found.sum, [sum(want[0:2]), sum(want[2:4]), sum(want[4:6])], 1e-5)
    found = ops.token_logprobs(x[:4], [1, 2, 3, 4], temperature=[0.5, 1, 2, 4])
    assert_close(found, [logp(z[r] / t, r + 1) for r, t in enumerate((0.5, 1, 2, 4))])


def test_answers_in_any_form(ops):
    rng = np.random.default_rng(0)
    x, z = logits(30, 100)
    targets = rng.integers(0, 100, 30)
    targets[5] = int(z[5].argmax())
    targets[[8, 20]] = -100
    want = np.array([0.0 if t == -100 else logp(z[r], t) for r, t in enumerate(targets)])
    cu = [0, 5, 5, 6, 9, 30]
    found = ops.answer_logprobs(x, targets=targets, cu_answers=cu, want=("logp", "rank"))
    assert [getattr(found, name).dtype for name in ("logp", "sum", "mean", "count", "greedy", "rank")] == [
        np.float32, np.float64, np.float64, np.int64, np.bool_, np.int64,
    ]  # fmt: skip
    np.testing.assert_allclose(found.sum, [want[a:b].sum() for a, b in itertools.pairwise(cu)], atol=2e-5)
    assert found.count.tolist() == [5, 0, 1, 2, 20]
    assert found.sum[1] == 0
    assert np.isnan(found.mean).tolist() == [False, True, False, False, False]
    assert found.greedy.tolist() == [False, True, True, False, False]
    assert found.logp[8] == found.logp[20] == found.rank[8] == found.rank[20] == 0
    order = rng.permutation(30)
    again = ops.answer_logprobs(
        x, targets=targets[order], rows=order, answer_ids=np.repeat(np.arange(5), np.diff(cu))[order], num_answers=6
    )
    np.testing.assert_array_equal(again.logp, found.logp[order])
    np.testing.assert_allclose(again.sum, [*found.sum, 0], rtol=1e-13)
    assert again.count.tolist() == [5, 0, 1, 2, 20, 0]
    assert again.greedy.tolist() == [False, True, True, False, False, True]


@pytest.mark.parametrize("ignore_index", [-100, 7, None])
def test_ignored_targets_and_targets_outside(ops, ignore_index):
    x, z = map(np.copy, logits(5, 31))
    x[3] = NAN  # nobody reads it
    targets = [7, -1, 2, -100, 2**62]
    found = ops.answer_logprobs(
        x, targets=targets, cu_answers=[0, 1, 3, 4, 5], vocab_size=30, ignore_index=ignore_index, out_of_range="nan",
        want=EVERYTHING,
    )  # fmt: skip
    ignored = [t == ignore_index for t in targets]
    want = [logp(z[r, :30], t) if 0 <= t < 30 else NAN for r, t in enumerate(targets)]
    want = np.where(ignored, 0, want)
    assert_close(found.logp, want)
    assert_close(found.lse, [lse(z[r, :30]) if 0 <= t < 30 and not ignored[r] else NAN for r, t in enumerate(targets)])
    assert (found.rank == -1).tolist() == np.isnan(want).tolist()
    assert found.count.tolist() == [1 - ignored[0], 2, 1 - ignored[3], 1]
    assert np.isnan(found.sum).tolist() == [False, True, not ignored[3], True]
    plain, some = ops.token_logprobs(
        x, targets, vocab_size=30, ignore_index=ignore_index, out_of_range="nan", return_lse=True
    )
    np.testing.assert_array_equal(plain, found.logp)
    np.testing.assert_array_equal(some, found.lse)


@pytest.mark.parametrize("T", [0, 3])
def test_nothing_to_score(ops, T):
    x = np.zeros((T, 5), np.float32)
    none = np.zeros(0, np.int64)
    found = ops.answer_logprobs(x, targets=none, rows=none, cu_answers=[0, 0, 0], want=EVERYTHING)
    assert found.logp.shape == found.rank.shape == (0,)
    assert found.sum.tolist() == found.count.tolist() == [0, 0]
    assert np.isnan(found.mean).all()
    assert found.greedy.tolist() == [True, True]
    assert found.lse.shape == found.entropy.shape == (T,)
    assert np.isnan(found.lse).all()
    assert ops.answer_logprobs(x, targets=none, rows=none, cu_answers=[0]).sum.shape == (0,)
    assert ops.token_logprobs(x[:0], none).shape == (0,)
    ignored = ops.answer_logprobs(x, targets=np.full(T, -100), want=EVERYTHING)
    assert ignored.count.tolist() == [0]
    assert np.isnan(ignored.entropy).all()
    hidden = ops.answer_logprobs(hidden=x, weight=np.ones((4, 5), np.float32), targets=np.full(T, -100), want=("lse",))
    assert np.isnan(hidden.lse).all()


@pytest.mark.parametrize("form", ["logits", "linear"])
def test_targets_without_rows_run_no_kernel(device, monkeypatch, form):
    """A kernel that has a slot without a row reads row 0, which is not there: no memory at all, so address 0."""
    monkeypatch.setattr(triton_kernels, "partials", lambda *of: pytest.fail("a kernel was launched"))
    x = {"logits": np.zeros((0, 5), np.float32)}
    if form == "linear":
        x = {"hidden": np.zeros((0, 4), np.float32), "weight": np.ones((5, 4), np.float32)}
    options = {**x, "targets": [1, 7, -100], "rows": [0, 3, 0], "answer_ids": [1, 0, 0], "num_answers": 2}
    found = device.answer_logprobs(**options, want=(*EVERYTHING,))
    assert np.isnan(found.logp[:2]).all()
    assert found.count.tolist() == [1, 1]
    assert found.lse.shape == (0,)
    assert np.isnan(found.sum).all()
    part = device.logprob_partials(**x, targets=[1, 2], rows=[0, 0], vocab_size=5, rank=True)
    assert np.isneginf(part.target).all()
    assert part.rank.tolist() == [0, 0]


def test_only_what_is_wanted_is_made(device):
    x, _ = logits(4, 50)
    full = device.answer_logprobs(x, targets=[1, 2, 3, 4], want=EVERYTHING)
    for field in EVERYTHING:
        found = device.answer_logprobs(x, targets=[1, 2, 3, 4], want=(field,), reduce=())
        assert [name for name in found._fields if getattr(found, name) is not None] == [field]
        np.testing.assert_array_equal(getattr(found, field), getattr(full, field))
    for field in ("sum", "mean", "count", "greedy"):
        found = device.answer_logprobs(x, targets=[1, 2, 3, 4], want=(), reduce=(field,))
        assert [name for name in found._fields if getattr(found, name) is not None] == [field]
        np.testing.assert_array_equal(getattr(found, field), getattr(full, field))


# --- The linear form.


@pytest.mark.parametrize("hidden_dtype", DTYPES)
@pytest.mark.parametrize("weight_dtype", DTYPES)
def test_every_pair_of_element_types(ops, hidden_dtype, weight_dtype):
    arguments, z, floor = linear(5, 300, 96, hidden_dtype, weight_dtype, bias=True)
    targets = [0, 299, 170, 1, int(z[4].argmax())]
    found = ops.answer_logprobs(**arguments, targets=targets, want=EVERYTHING)
    check_linear(found, z, targets, floor)
    assert int(found.rank[4]) == 0


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("T", "V", "D"), [(1, 1, 1), (2, 2, 16), (3, 17, 33), (65, 129, 64), (70, 65, 31), (1, 700, 130)]
)
def test_any_shape(device, dtype, T, V, D):
    arguments, z, floor = linear(T, V, D, dtype, dtype)
    targets = [(V - 1) * (t + 1) // T for t in range(T)]
    check_linear(device.answer_logprobs(**arguments, targets=targets, want=EVERYTHING), z, targets, floor)


def test_splits_of_several_tiles(device, monkeypatch):
    monkeypatch.setattr(triton_linear, "FEW_SPLITS", 3)
    arguments, z, floor = linear(3, 1000, 16, bias=True)
    arguments["bias"][:400] = -INF  # the first split has no finite column
    z[:, :400] = -INF
    targets = [999, 400, 3]
    found = device.answer_logprobs(**arguments, targets=targets, want=EVERYTHING)
    assert_close(found.logp, [logp(z[0], 999), logp(z[1], 400), -INF], floor)
    assert_close(found.entropy, [entropy(row) for row in z], 5 * floor)
    assert int(found.rank[2]) == 600


def test_rows_targets_temperature_and_scales_of_hidden_states(device):
    arguments, z, floor = linear(6, 500, 48, bias=True)
    rows, targets = np.array([4, 0, 4, 4, 2]), [3, 499, 0, 250, 7]
    z = 15 * np.tanh(0.5 * z / 15) / 0.7
    found = device.answer_logprobs(
        **arguments, targets=targets, rows=rows, want=EVERYTHING, temperature=0.7, logit_scale=0.5, softcap=15.0,
        cu_answers=[0, 2, 5],
    )  # fmt: skip
    check_linear(found, z, targets, 4 * floor, rows)
    assert np.isnan(found.lse[[1, 3, 5]]).all()


def test_padding_and_allowed_columns_of_hidden_states(device):
    arguments, z, floor = linear(4, 300, 33, bias=True)
    arguments["weight"] = np.array(arguments["weight"])
    arguments["weight"][250:] = NAN
    targets = [0, 249, 90, 5]
    found = device.answer_logprobs(**arguments, targets=targets, vocab_size=250, want=EVERYTHING)
    check_linear(found, z[:, :250], targets, floor)
    allowed = np.array([0, 5, 17, 90, 120, 249])
    arguments["weight"][np.setdiff1d(np.arange(300), allowed)] = NAN
    found = device.answer_logprobs(**arguments, targets=[0, 1, 90, 5], allowed=allowed, want=EVERYTHING)
    masked = np.full_like(z, -INF)
    masked[:, allowed] = z[:, allowed]
    assert_close(found.logp, [logp(masked[r], t) for r, t in enumerate([0, 1, 90, 5])], floor)


def test_a_bad_row_spoils_no_other(device):
    arguments, z, floor = linear(40, 130, 24)
    arguments["hidden"] = np.array(arguments["hidden"])
    arguments["hidden"][3, 5], arguments["hidden"][20, 0], arguments["hidden"][35] = NAN, INF, 0
    z[35] = 0
    found = device.answer_logprobs(**arguments, targets=np.arange(40), want=EVERYTHING)
    good = np.setdiff1d(np.arange(40), [3, 20])
    assert np.isnan(found.logp[[3, 20]]).all()
    assert found.rank[[3, 20]].tolist() == [-1, -1]
    assert_close(found.logp[good], [logp(z[r], r) for r in good], floor)
    assert found.rank[35] == 0  # all logits are equal
    arguments["bias"] = np.zeros(130, np.float32)
    arguments["bias"][7] = INF
    assert np.isnan(device.logprob_partials(**arguments, targets=np.arange(40), vocab_size=130).sum).all()


def test_equal_rows_of_the_matrix_tie(device):
    arguments, _, _ = linear(9, 400, 40)
    weight = np.array(arguments["weight"])
    weight[[1, 70, 399]] = weight[200]
    rows, targets = np.repeat(np.arange(9), 4), np.tile([1, 70, 200, 399], 9)
    found = device.answer_logprobs(
        hidden=arguments["hidden"], weight=weight, targets=targets, rows=rows, want=("rank", "logp")
    )
    for values in (found.rank, found.logp):
        assert (values.reshape(9, 4) == values.reshape(9, 4)[:, :1]).all()


@dtypes
def test_the_linear_form_agrees_with_logits(device, dtype):
    arguments, z, floor = linear(6, 300, 40, dtype, dtype)
    targets = np.arange(6) * 50
    found = device.answer_logprobs(**arguments, targets=targets, want=("logp", "lse", "entropy"))
    want = device.answer_logprobs(z.astype(np.float32), targets=targets, want=("logp", "lse", "entropy"))
    for name in ("logp", "lse", "entropy"):
        assert_close(getattr(found, name), getattr(want, name), 5 * floor)


# --- The same bits in any batch.

FORMS = {
    "logits": lambda: ({"logits": logits(9, 9000)[0]}, 9000),
    "bfloat16": lambda: ({"logits": logits(9, 700, "bfloat16")[0]}, 700),
    "hidden": lambda: (linear(70, 130, 20)[0], 130),
    "hidden_float16": lambda: (linear(70, 130, 64, "float16", "float16")[0], 130),
}


@pytest.mark.parametrize("form", FORMS)
def test_rows_have_their_bits_in_any_batch(device, form):
    arguments, V = FORMS[form]()
    name = "logits" if "logits" in arguments else "hidden"
    T = len(arguments[name])
    rng = np.random.default_rng(0)
    targets = rng.integers(0, V, T)

    def run(rows):
        rows = np.array(rows)
        given = arguments[name][rows if name == "hidden" or form == "logits" else rows.tolist()]
        found = device.answer_logprobs(**{**arguments, name: given}, targets=targets[rows], want=EVERYTHING)
        return {field: np.asarray(getattr(found, field)) for field in EVERYTHING}

    want = run(np.arange(T))
    some = rng.permutation(T)[: T // 2 + 1]
    for rows in (np.arange(T)[::-1], [*some, *some[:2]], [T - 1]):
        for field, values in run(rows).items():
            np.testing.assert_array_equal(values.view(np.uint8), want[field][np.array(rows)].view(np.uint8))
    found = device.answer_logprobs(**arguments, targets=targets[some], rows=some, want=("logp", "lse"))
    np.testing.assert_array_equal(np.asarray(found.logp), want["logp"][some])
    np.testing.assert_array_equal(np.asarray(found.lse)[some], want["lse"][some])


@pytest.mark.slow
# The variant with descriptors takes 16-bit rows of whole slices, and neither ranks nor entropies.
@pytest.mark.parametrize(
    ("chosen", "dtype", "D", "want"),
    [
        ("tiles", "float32", 20, EVERYTHING),
        ("tiles", "float16", 48, EVERYTHING),
        ("tma", "float16", 64, ("logp", "lse")),
    ],
)
def test_hidden_states_have_their_bits_whatever_the_number_of_rows(device, monkeypatch, chosen, dtype, D, want):
    """Tiles may follow the number of rows, the order of the sums may not."""
    monkeypatch.setenv("RAGSYS_KERNELS_VARIANTS", f"linear={chosen}")
    arguments, _, _ = linear(512, 140, D, dtype, dtype)
    targets = np.random.default_rng(0).integers(0, 140, 512)

    def run(rows):
        given = {**arguments, "hidden": arguments["hidden"][rows]}
        found = device.answer_logprobs(**given, targets=targets[rows], want=want, reduce=())
        return {field: np.asarray(getattr(found, field)) for field in want}

    every = run(slice(0, 512))
    for rows in (slice(0, 1), slice(511, 512), slice(0, 64), slice(447, 512)):
        for field, values in run(rows).items():
            np.testing.assert_array_equal(values, every[field][rows], err_msg=f"{field}, {rows}")


def test_answers_have_their_bits_in_any_batch(device):
    x, _ = logits(20, 60)
    rng = np.random.default_rng(0)
    targets, cu = rng.integers(0, 60, 20), np.array([0, 1, 1, 7, 15, 20])
    want = device.answer_logprobs(x, targets=targets, cu_answers=cu)
    for a in (0, 2, 4):
        rows = np.arange(cu[a], cu[a + 1])
        alone = device.answer_logprobs(x, targets=targets[rows], rows=rows)
        for name in ("sum", "mean", "count", "greedy"):
            np.testing.assert_array_equal(getattr(alone, name)[0], getattr(want, name)[a], err_msg=name)


# --- Shards and labels.


@pytest.mark.parametrize("form", ["logits", "hidden"])
def test_unequal_shards_give_the_whole(ops, form):
    V = 1001 if form == "logits" else 301
    arguments = {"logits": logits(6, V)[0]} if form == "logits" else linear(6, V, 24, bias=True)[0]
    targets = np.array([0, V - 1, V // 2, 17, V // 3, V // 3 - 1])
    bounds = [0, V // 3, V // 3 + 1, V - 20, V]
    options = {"targets": targets, "vocab_size": V - 5, "allowed": np.arange(0, V - 5, 2), "rows": [5, 0, 0, 1, 2, 3]}
    options["targets"] = np.minimum(targets, V - 6)

    def shards(**more):
        for begin, end in itertools.pairwise(bounds):
            part = {name: x[:, begin:end] if name == "logits" else x for name, x in arguments.items()}
            part.update({name: x[begin:end] for name, x in arguments.items() if name in ("weight", "bias")})
            yield ops.logprob_partials(**part, first_column=begin, **options, **more)

    def merge(**more):
        return rk.merge_partials([type(part)(*map(convert, part)) for part in shards(**more)])

    convert = as_tensor if ops.name == "device" else lambda x: x
    merged = merge(rank=True, entropy=True, target_logits=merge().target)
    pairs = {name: options[name] for name in ("targets", "vocab_size", "rows")}
    found = ops.answer_logprobs(partials=merged, **pairs, want=("logp", "rank"))
    whole = ops.answer_logprobs(**arguments, **options, want=("logp", "rank"))
    assert_close(found.logp, whole.logp, 1e-5)
    np.testing.assert_array_equal(found.rank, whole.rank)
    want = rk.answer_logprobs(**arguments, **options, want=("logp", "rank"), backend="reference")
    assert_close(whole.logp, want.logp, 1e-5)


@pytest.mark.parametrize("prior", [None, [0.5, 0.1, 0.4]])
def test_label_posteriors(ops, prior):
    x, _ = map(np.copy, logits(5, 90))
    x[2] = -INF
    x[3, 7] = NAN
    x[4, :4] = -1e4
    options = {"label_ids": [3, 1, 2, 50, 80, 81], "cu_labels": [0, 3, 4, 6], "temperature": 1.3}
    if prior is not None:
        options["prior"] = np.array(prior)
    for rows in (None, [4, 0, 4, 1], [1, 1, 0, 1]):
        found = ops.label_posteriors(x, **options, rows=rows)
        want = rk.label_posteriors(x, **options, rows=rows, backend="reference")
        for name in ("logp", "log_posterior"):
            assert_close(getattr(found, name), getattr(want, name), 4e-6)
        np.testing.assert_array_equal(found.label, want.label)


def test_label_posteriors_of_hidden_states(ops):
    arguments, _, _ = linear(3, 90, 20)
    found = ops.label_posteriors(**arguments, label_ids=[3, 50, 81])
    want = rk.label_posteriors(**arguments, label_ids=[3, 50, 81], backend="reference")
    assert_close(found.log_posterior, want.log_posterior, 1e-5)


# --- What a device is asked without looking at values.


def test_strange_values_on_a_device_are_nan_and_touch_nothing_else(device):
    x, z = logits(4, 50)
    rows, targets = [1, -3, 9, 2**40, 3], [5, 5, 5, 5, -(2**63)]
    found = device.answer_logprobs(x, targets=targets, rows=rows, cu_answers=[0, 1, 900, 2, 5], want=EVERYTHING)
    assert_close(found.logp, [logp(z[1], 5), NAN, NAN, NAN, NAN])
    assert_close(found.lse, [NAN, lse(z[1]), NAN, NAN])
    assert found.sum.shape == (4,)
    assert found.rank.tolist()[1:] == [-1] * 4
    found = device.answer_logprobs(x, targets=[1, 2, 3, 4], answer_ids=[7, -1, 0, 1], num_answers=2, want=())
    assert_close(found.sum, [logp(z[2], 3), logp(z[3], 4)])
    odd = device.token_logprobs(x, [1, 2, 3, 4], allowed=[70, 3, -5, 9])
    assert odd.shape == (4,)
    found = device.label_posteriors(x, label_ids=[3, 70], rows=[2, 44])
    assert np.isnan(found.log_posterior[1]).all()
    assert found.label.tolist() == [-1, -1]
    hidden = device.answer_logprobs(
        hidden=x, weight=np.ones((3, 50), np.float32), targets=targets, rows=rows, want=("logp", "rank")
    )
    assert np.isnan(hidden.logp).tolist() == [True] * 5
    none = device.answer_logprobs(x[:0], targets=targets, rows=rows, want=EVERYTHING)
    assert np.isnan(none.logp).all()


def test_values_on_a_device_are_checked_when_asked(device):
    x, _ = logits(4, 50)
    device.waiting = nullcontext
    call = functools.partial(device.answer_logprobs, x, check_values=True)
    good = {"targets": [1, 2, 3, 4], "rows": [0, 1, 2, 3]}
    assert call(**good).sum.shape == (1,)
    for bad, message in (
        ({"targets": [1, 2, 50, 4]}, r"targets must be within \[0, 50\), got 50 at position 2"),
        ({"rows": [0, 1, 2, 4]}, "rows must be at least 0 and below T = 4, got 4"),
        ({"cu_answers": [0, 3, 2, 4]}, "cu_answers must not decrease, got 2 after 3"),
        ({"temperature": np.array([-1.0])}, "temperature must be positive and finite, got -1"),
        ({"allowed": [3, 3]}, "allowed must be sorted without repeats, got 3 after 3"),
        ({"answer_ids": [0, 1, -1, 0], "num_answers": 2}, "answer_ids must be at least 0, got -1"),
    ):
        with pytest.raises(ValueError, match=message):
            call(**{**good, **bad})
    with pytest.raises(ValueError, match="a row has several temperatures, got row 1"):
        call(
            targets=[1, 2], rows=[1, 1], answer_ids=[0, 1], temperature=np.array([1.0, 2.0]), want=("lse",)
        )  # fmt: skip
    with pytest.raises(ValueError, match="token_logprobs: targets must be within"):
        device.token_logprobs(x, [1, 2, 3, 99], check_values=True)
    with pytest.raises(ValueError, match="label_posteriors: label_ids must not repeat an id, got 2 twice"):
        device.label_posteriors(x, label_ids=[2, 2], check_values=True)
    with pytest.raises(TypeError, match="check_values must be None, True or False, got 'yes'"):
        rk.token_logprobs(x, [1, 2, 3, 4], check_values="yes")


def test_shapes_and_types_are_checked_on_a_device(device):
    x, _ = logits(4, 50)
    for error, arguments, message in (
        (ValueError, {"targets": [1, 2]}, r"targets must have shape \(T,\) = \(4,\) unless rows is given, got \(2,\)"),
        (ValueError, {"targets": [[1, 2, 3, 4]]}, r"targets must have shape \(M,\), got \(1, 4\)"),
        (TypeError, {"targets": np.ones(4)}, "targets must be integers, got float64"),
        (ValueError, {"targets": [1] * 4, "rows": [1]}, r"rows must have shape \(M,\) = \(4,\), got \(1,\)"),
        (ValueError, {"targets": [1] * 4, "answer_ids": [0] * 4}, "num_answers must be given with answer_ids on a dev"),
        (ValueError, {"targets": [1] * 4, "cu_answers": []}, "cu_answers must have at least one element, got none"),
        (ValueError, {"targets": [1] * 4, "cu_answers": [0, 4], "answer_ids": [0] * 4}, "must be given, got both"),
        (ValueError, {"targets": [1] * 4, "temperature": np.ones(3)}, r"shape \(A,\) = \(1,\), got \(3,\)"),
        (
            TypeError,
            {"targets": [1] * 4, "temperature": np.ones(1, bool)},
            "temperature must be a number or floats, got",
        ),
        (ValueError, {"targets": [1] * 4, "temperature": 0.0}, "temperature must be positive and finite, got 0"),
        (ValueError, {"targets": [1] * 4, "allowed": []}, "allowed must have at least one id, got none"),
    ):
        with pytest.raises(error, match=message):
            device.answer_logprobs(x, **arguments)
    with pytest.raises(ValueError, match=r"logits must have a contiguous last axis, got strides \(4, 200\)"):
        device.answer_logprobs(torch.from_numpy(np.array(x)).T, targets=[1] * 50)
    with pytest.raises(TypeError, match="logits must be float32, float16 or bfloat16, got float64"):
        device.answer_logprobs(np.ones((4, 50)), targets=[1] * 4)
    part = rk.logprob_partials(
        torch.from_numpy(np.array(x)), targets=as_tensor([1]), rows=as_tensor([2]), vocab_size=50, backend="triton"
    )
    with pytest.raises(ValueError, match="rows must be None where want names 'lse' of partials on a device"):
        device.answer_logprobs(partials=part, targets=[1], rows=[2], vocab_size=50, want=("lse",))
    for arguments, message in (
        ({"label_ids": []}, "label_ids must have at least one id, got none"),
        ({"label_ids": [1, 2], "prior": np.ones(3)}, r"prior must have shape \(L,\) = \(2,\), got \(3,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            device.label_posteriors(x, **arguments)


@pytest.mark.parametrize("place", ["torch", "numpy"])
@pytest.mark.parametrize("seed", range(6))
def test_jobs_on_a_device_are_those_of_the_host(place, seed):
    """NumPy arrays stand for CuPy's, whose functions have the same names."""
    rng = np.random.default_rng(seed)
    M, T, A = int(rng.integers(1, 30)), int(rng.integers(1, 9)), 4
    rows, targets = rng.integers(0, T, M), rng.integers(0, 12, M)
    targets[rng.random(M) < 0.2] = -100
    options = {"num_rows": T, "vocab_size": 10, "out_of_range": "nan", "ignore_index": -100 if seed % 2 else None}
    options["answer_ids"] = rng.integers(0, A, M)
    options["num_answers"] = A
    if seed >= 2:
        options["temperature"] = rng.choice([0.5, 1.0, 2.0], A)
    layout, fields = validate.layout("op", targets, rows, **options)
    convert = as_tensor if place == "torch" else lambda x: x
    where = _arrays.Torch("cpu") if place == "torch" else _arrays.HOST
    given = {name: convert(x) for name, x in options.items()}
    other, there = _device.layout("op", where, convert(targets), convert(rows), **given)
    there = {name: np.asarray(x) for name, x in there.items()}
    slots, pairs = len(fields["rows"]), len(fields["columns"])
    for name in ("rows", "inverse_temperature"):
        np.testing.assert_array_equal(there[name][:slots], fields[name])
    assert (there["rows"][slots:] == -1).all()
    np.testing.assert_array_equal(there["pair_begin"][: slots + 1], fields["pair_begin"])
    assert (there["pair_begin"][slots:] == pairs).all()
    np.testing.assert_array_equal(there["columns"][:pairs], fields["columns"])
    assert (there["columns"][pairs:] == -1).all()
    scored = np.arange(M) if layout.scored is None else layout.scored
    np.testing.assert_array_equal(np.asarray(other.scored)[:pairs], scored)
    values = rng.standard_normal(M)
    want = finish.per_answer(values, layout)
    for sums in (_device.answer_sums,) + ((triton_kernels.answer_sums,) if place == "torch" else ()):
        np.testing.assert_allclose(sums(convert(values), other.begin, other.order), want, rtol=1e-13, atol=1e-15)


def test_sums_of_answers_whatever_their_number():
    rng = np.random.default_rng(0)
    values = rng.standard_normal(1000)
    values[3], values[700], values[10] = NAN, -INF, -INF
    cu = np.array([0, 0, 1, 4, 10, 11, 300, 300, 1000, 1000])
    want = [values[a:b].sum() for a, b in itertools.pairwise(cu)]
    for sums in (_device.answer_sums, triton_kernels.answer_sums):
        np.testing.assert_allclose(sums(as_tensor(values), as_tensor(cu), None), want, rtol=1e-12)
        whole = sums(as_tensor(values), as_tensor(cu), None)[4:6]
        part = sums(as_tensor(values[10:300]), as_tensor(np.array([0, 1, 290])), None)
        np.testing.assert_array_equal(whole, part)
        assert sums(as_tensor(values), as_tensor(np.array([0])), None).shape == (0,)
    inner = as_tensor(np.array([1e300, 1e300, 1.0, 2.0, 1e300]))[2:4]  # bounds beyond it are cut off
    assert triton_kernels.answer_sums(inner, as_tensor(np.array([-2, 1, 900])), None).tolist() == [1, 2]


def test_partials_merge_where_they_are(device):
    x, z = logits(3, 40)
    whole = [torch.from_numpy(np.array(part)) for part in (x[:, :15], x[:, 15:])]
    parts = [
        device.logprob_partials(part, targets=[1, 20, 39], vocab_size=40, first_column=c, entropy=True)
        for c, part in zip((0, 15), whole, strict=True)
    ]
    parts = [type(part)(*map(as_tensor, part)) for part in parts]
    with interpreted.NoWaiting():
        merged = rk.merge_partials(parts)
    assert all(x is None or isinstance(x, torch.Tensor) for x in merged)
    assert_close(merged.target.double().numpy(), z[range(3), [1, 20, 39]])
    found = device.answer_logprobs(
        partials=merged, targets=[1, 20, 39], vocab_size=40, want=("logp", "lse", "max", "entropy"), reduce=("sum",)
    )
    assert_close(found.logp, [logp(z[r], t) for r, t in enumerate([1, 20, 39])])
    assert_close(found.lse, [lse(row) for row in z])
    assert_close(found.entropy, [entropy(row) for row in z], ENTROPY_FLOOR)


@pytest.mark.parametrize("form", ["logits", "hidden"])
def test_partials_are_written_whole(device, form):
    """Of slots without a pair and pairs without a slot as well."""
    arguments = {"logits": logits(4, 300)[0]} if form == "logits" else linear(4, 300, 20)[0]
    options = {"vocab_size": 300, "entropy": True, "rank": True}
    found = device.logprob_partials(**arguments, targets=[5, -100, 7, 999, 5], rows=[1, 2, 3, 0, 1], **options)
    assert np.isfinite(found.ref).tolist() == (found.sum > 0).tolist() == [True, True, False, False]
    assert (found.weighted <= 0).all()
    assert np.isfinite(found.target[:3]).all()
    assert found.target[3:].tolist() == [-INF, -INF]
    assert (found.rank >= 0).all()
    assert found.rank[3:].tolist() == [0, 0]
    found = device.logprob_partials(**arguments, targets=[5, -100, 7, 999], **options)
    assert np.isfinite(found.target).tolist() == (found.sum > 0).tolist() == [True, False, True, False]
    assert (found.rank >= 0).all()


def test_results_are_in_the_callers_library():
    x, _ = logits(3, 40)
    assert isinstance(rk.token_logprobs(x, [1, 2, 3], backend="triton"), np.ndarray)
    assert isinstance(rk.token_logprobs(as_tensor(np.array(x)), [1, 2, 3], backend="triton"), torch.Tensor)
    part = rk.logprob_partials(x, targets=[1, 2, 3], vocab_size=40, backend="triton")
    assert all(field is None or isinstance(field, np.ndarray) for field in part)


def test_strided_rows_are_read_in_place(ops):
    arguments, _, _ = linear(6, 200, 40)
    want = ops.answer_logprobs(**arguments, targets=np.arange(6))
    hidden, weight = np.full((18, 50), NAN, np.float32), np.full((400, 47), NAN, np.float32)
    hidden[::3, 5:45], weight[::2, 3:43] = arguments["hidden"], arguments["weight"]
    hidden, weight = torch.from_numpy(hidden)[::3, 5:45], torch.from_numpy(weight)[::2, 3:43]
    found = ops.answer_logprobs(hidden=hidden, weight=weight, targets=np.arange(6))
    np.testing.assert_array_equal(np.asarray(found.logp), np.asarray(want.logp))


@pytest.mark.parametrize("form", ["logits", "hidden", "weight"])
def test_offsets_beyond_32_bits(form, monkeypatch, tmp_path):
    """A row 2^31 elements away, in a file of which little exists."""
    from triton.runtime import interpreter

    # The interpreter would copy whole memories.
    monkeypatch.setattr(interpreter.GridExecutor, "_init_args_hst", lambda self, args, kwargs: (args, kwargs))
    monkeypatch.setattr(interpreter.GridExecutor, "_restore_args_dev", lambda *args: None)
    stride, T = 2**25, 67  # neither is large
    memory = np.memmap(tmp_path / "far", np.float32, "w+", shape=((T - 1) * stride + 64,))
    far = torch.from_numpy(memory).as_strided((T, 20), (stride, 1))
    near = torch.from_numpy(np.random.default_rng(0).standard_normal((T, 20)).astype(np.float32))
    far.copy_(near)
    other = torch.from_numpy(np.random.default_rng(1).standard_normal((T, 20)).astype(np.float32))
    matrices = {"logits": {"logits": far}, "hidden": {"hidden": far, "weight": other}}
    matrices["weight"] = {"hidden": other, "weight": far}
    targets, rows = [2, 1, 19, 2], [T - 1, 1, T - 1, 0]
    given = matrices[form]
    want = {name: near if x is far else x for name, x in given.items()}
    found, expected = (
        rk.answer_logprobs(**x, targets=targets, rows=rows, want=EVERYTHING, backend="triton") for x in (given, want)
    )
    for name in EVERYTHING:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def test_partials_of_the_host_and_of_a_device_are_the_same_bits():
    x, _ = logits(3, 300)
    fields = {"rows": np.arange(3), "inverse_temperature": np.full(3, 0.7, np.float32), "num_columns": 300}
    fields.update(pair_begin=np.arange(4), columns=np.array([0, 299, 5]), logits_dtype="float32", rank=True)
    host = triton_kernels.partials(ScoringProblem(logits=x, **fields), 1)
    tensors = {name: as_tensor(value) if isinstance(value, np.ndarray) else value for name, value in fields.items()}
    there = triton_kernels.partials(ScoringProblem(logits=as_tensor(np.array(x)), **tensors), 1)
    for a, b in zip(host, there, strict=True):
        np.testing.assert_array_equal(a, b)
    assert arrays(host).rank.dtype == np.int64


interpreted.elsewhere(globals())
