"""Triton's scoring kernels in its interpreter, and the device path of the operations on tensors of the CPU.

Tests of `scorer` in tests/scoring ask of them all that is asked of every backend.
"""

import functools
import itertools
import math
from contextlib import nullcontext

import interpreted
import numpy as np
import pytest
from scoring_device import Device, as_tensor, interpreted_backend, poisoned
from scoring_oracle import ENTROPY_FLOOR, EVERYTHING, assert_close, check_logits, entropy, logp, lse
from scoring_problems import DTYPES, linear, logits, sharded

import ragsys_kernels as rk
from ragsys_kernels._base import arrays as _arrays

pytestmark = pytest.mark.sampled(18)

torch = pytest.importorskip("torch")
INF, NAN = np.inf, np.nan

if interpreted.HERE:
    from ragsys_kernels.scoring import _device, finish, validate
    from ragsys_kernels.scoring.problem import GivenPairs
    from ragsys_kernels.scoring.triton import backend as triton_kernels
    from ragsys_kernels.scoring.triton import linear as triton_linear


@pytest.fixture(autouse=True)
def unwritten_memory_shows(monkeypatch):
    monkeypatch.setattr(_arrays, "empty", poisoned)


@pytest.fixture
def device(monkeypatch):
    return Device(monkeypatch)


@pytest.fixture(params=["triton", "triton-device"])
def scorer(request):
    with interpreted_backend(request.param) as name:
        yield name


# --- The most probable tokens, where only the splits of the largest z are looked at again.


@pytest.mark.parametrize("k", [1, 2, 5])
def test_the_most_probable_of_many_splits(scorer, k):
    """Whole numbers: splits have equal maxima, and those that are left out have z equal to the last that is kept."""
    V = 4 * 2048 + 50
    x = np.random.default_rng(k).integers(-9, 10, (7, V)).astype(np.float32)
    x[0] = 3
    x[1, :2100] = -INF
    x[2, 2048 + 7] = x[2, 1] = 99
    x[3, : V - 3] = -INF
    x[4, 300] = NAN
    ids = np.argsort(-x, axis=1, kind="stable")[:, :k]
    ids[4] = -1
    ids[3, 3:] = -1
    found = rk.top_logprobs(x, k=k, backend=scorer)
    np.testing.assert_array_equal(found.ids, ids)
    want = [[logp(row, v) if v >= 0 else -INF for v in mine] for row, mine in zip(x, ids, strict=True)]
    want[4] = [NAN] * k
    assert_close(found.log_probs, want)


@pytest.mark.parametrize("held", [None, 3000])
def test_the_most_probable_from_hidden_states_of_many_splits(scorer, monkeypatch, held):
    """Rows with the same split share a tile, some slots at a time; products of whole numbers are exact."""
    if held is not None:
        monkeypatch.setattr(triton_linear, "MOST_HELD", held)
        monkeypatch.setattr(triton_linear, "FEW_PROGRAMS", 2)
    rng = np.random.default_rng(0)
    hidden, weight = (rng.integers(-2, 3, (n, 16)).astype(np.float32) for n in (40, 1400))
    z, options = hidden @ weight.T, {"hidden": hidden, "weight": weight, "k": 4, "backend": scorer}
    found = rk.top_logprobs(**options, temperature=4.0)
    np.testing.assert_array_equal(found.ids, np.argsort(-z, axis=1, kind="stable")[:, :4])
    assert_close(found.log_probs, [[logp(row / 4, v) for v in ids] for row, ids in zip(z, found.ids, strict=True)])
    allowed = np.arange(3, 1400, 2)
    some = rk.top_logprobs(**options, allowed=allowed, rows=[7, 39], bias=weight[:, 0])
    z = (z + weight[:, 0])[[7, 39]][:, allowed]
    np.testing.assert_array_equal(some.ids, allowed[np.argsort(-z, axis=1, kind="stable")[:, :4]])


def test_there_are_at_most_1024_most_probable(scorer):
    x = np.zeros((1, 1100), np.float32)
    with pytest.raises(ValueError, match="backend 'triton' takes k up to 1024, got 1100"):
        rk.top_logprobs(x, k=2000, backend=scorer)
    assert np.asarray(rk.top_logprobs(x, k=1024, backend=scorer).ids).tolist() == [[*range(1024)]]


def test_rows_out_of_range_have_no_most_probable(device):
    found = device.top_logprobs(logits(3, 200)[0], k=2, rows=[1, 3, -1, 0])
    assert (found.ids[1:3] == -1).all()
    assert np.isnan(found.log_probs[1:3]).all()
    with pytest.raises(ValueError, match="top_logprobs: rows must be at least 0 and below T = 3, got 3"):
        device.top_logprobs(logits(3, 200)[0], k=2, rows=[1, 3], check_values=True)


# --- Logits.


@pytest.mark.parametrize("dtype", ["float32", *(pytest.param(x, marks=pytest.mark.slow) for x in DTYPES[1:])])
def test_rows_have_their_bits_wherever_they_begin(device, dtype):
    """At every distance from a multiple of 16 bytes, between neighbours that are NaN, and at the ends of the memory."""
    V, T = 2048 + 50, 3
    x, z = logits(T, V, dtype, seed=3)
    x, targets = as_tensor(x) if dtype != "bfloat16" else x, [0, V // 2, V - 1]
    aligned = torch.full((T, V + 14), NAN, dtype=x.dtype)[:, :V]
    assert aligned.stride(0) * x.element_size() % 16 == 0
    aligned.copy_(x)
    expected = device.answer_logprobs(aligned, targets=targets, want=EVERYTHING)
    check_logits(expected, z, targets)
    stride = V + 1  # odd: three rows are at other distances each
    for begin in range(2 if dtype == "float32" else 3):
        memory = torch.full((begin + (T - 1) * stride + V,), NAN, dtype=x.dtype)
        moved = memory.as_strided((T, V), (stride, 1), begin)
        moved.copy_(x)
        found = device.answer_logprobs(moved, targets=targets, want=EVERYTHING)
        for name in EVERYTHING:
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
        np.testing.assert_array_equal(device.token_logprobs(moved, targets), expected.logp)


@pytest.mark.parametrize("size", [3e4, 2.0**29, 1e9, 1e12, 1e30, float(np.finfo(np.float32).max)])
def test_masks_of_any_size_are_equal_logits(device, size):
    """Rows of nothing but large numbers, beside which roundings of a product are powers of two."""
    V = 2048 + 100
    x, _ = logits(5, V, seed=11)
    x, targets = np.array(x), [5, 9, 2101, 3, 2060]
    x[0], x[1] = -size, size
    x[2, ::2], x[3, 1::2] = -size, size
    x[4, :2048] = -size
    for temperature in (1.0, 1.3, 7.0):
        z = x.astype(np.float64) / temperature
        found = device.answer_logprobs(x, targets=targets, temperature=temperature, want=EVERYTHING)
        assert_close(found.logp, [logp(row, target) for row, target in zip(z, targets, strict=True)])
        assert_close(found.entropy, [entropy(row) for row in z], ENTROPY_FLOOR)
        np.testing.assert_array_equal(device.token_logprobs(x, targets, temperature=temperature), found.logp)


def test_z_beyond_float32_is_infinite(device):
    """log p is NaN where z of a column is; a z of -inf has no part in a sum."""
    x = np.zeros((3, 2048 + 100), np.float32)
    x[0, 7], x[1, 7], x[2] = 2e38, -2e38, -2e38
    found = device.answer_logprobs(x, targets=[1, 1, 1], logit_scale=2.0, want=("logp", "lse"))
    assert np.isnan(found.logp).tolist() == [True, False, True]
    assert_close(found.lse[1:], [math.log(2048 + 99), -INF])


@pytest.mark.parametrize("offset", [-300, 60])
def test_a_temperature_costs_no_digit_of_large_logits(device, offset):
    """z is rounded for itself nowhere: log p of small differences of large z is that of the differences."""
    x, _ = logits(6, 2500, seed=5)
    x = (np.array(x) + np.float32(offset)).astype(np.float32)
    targets = [*range(5), int(x[5].argmax())]
    for temperature in (0.7, 1.3):
        inverse = float(np.float32(1 / temperature))  # as kernels have it
        found = device.answer_logprobs(x, targets=targets, temperature=temperature, want=("logp", "entropy"))
        z = x.astype(np.float64) * inverse
        assert_close(found.logp, [logp(row, target) for row, target in zip(z, targets, strict=True)])
        assert_close(found.entropy, [entropy(row) for row in z])


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


# --- The linear form.


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


# --- Shards and labels.


@pytest.mark.parametrize("form", ["logits", "hidden"])
def test_unequal_shards_give_the_whole(scorer, form):
    V = 1001 if form == "logits" else 301
    arguments = {"logits": logits(6, V)[0]} if form == "logits" else linear(6, V, 24, bias=True)[0]
    targets = np.array([0, V - 1, V // 2, 17, V // 3, V // 3 - 1])
    bounds = [0, V // 3, V // 3 + 1, V - 20, V]
    options = {"targets": targets, "vocab_size": V - 5, "allowed": np.arange(0, V - 5, 2), "rows": [5, 0, 0, 1, 2, 3]}
    options["targets"] = np.minimum(targets, V - 6)

    merged = sharded(arguments, bounds, scorer, **options)
    pairs = {name: options[name] for name in ("targets", "vocab_size", "rows")}
    found = rk.answer_logprobs(partials=merged, **pairs, want=("logp", "rank"), backend=scorer)
    whole = rk.answer_logprobs(**arguments, **options, want=("logp", "rank"), backend=scorer)
    assert_close(found.logp, whole.logp, 1e-5)
    np.testing.assert_array_equal(found.rank, whole.rank)
    want = rk.answer_logprobs(**arguments, **options, want=("logp", "rank"), backend="reference")
    assert_close(whole.logp, want.logp, 1e-5)


@pytest.mark.parametrize("prior", [None, [0.5, 0.1, 0.4]])
@pytest.mark.parametrize("form", ["logits", "hidden"])
def test_label_posteriors(scorer, form, prior):
    given = linear(5, 90, 20)[0]
    if form == "logits":
        x = np.copy(logits(5, 90)[0])
        x[2], x[3, 7], x[4, :4] = -INF, NAN, -1e4
        given = {"logits": x}
    options = {"label_ids": [3, 1, 2, 50, 80, 81], "cu_labels": [0, 3, 4, 6], "temperature": 1.3}
    if prior is not None:
        options["prior"] = np.array(prior)
    for rows in (None, [4, 0, 4, 1], [1, 1, 0, 1]):
        found = rk.label_posteriors(**given, **options, rows=rows, backend=scorer)
        want = rk.label_posteriors(**given, **options, rows=rows, backend="reference")
        for name in ("logp", "log_posterior"):
            assert_close(getattr(found, name), getattr(want, name), 4e-6 if form == "logits" else 1e-5)
        np.testing.assert_array_equal(found.label, want.label)


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
        ({"allowed": [3, 3]}, "allowed must be sorted without repeats, got 3 after 3"),
    ):
        with pytest.raises(ValueError, match=message):
            call(**{**good, **bad})
    with pytest.raises(ValueError, match="a row has several temperatures, got row 1"):
        call(targets=[1, 2], rows=[1, 1], answer_ids=[0, 1], temperature=np.array([1.0, 2.0]), want=("lse",))
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
        (TypeError, {"targets": np.ones(4)}, "targets must be integers, got float64"),
        (ValueError, {"targets": [1] * 4, "answer_ids": [0] * 4}, "num_answers must be given with answer_ids on a dev"),
        (ValueError, {"targets": [1] * 4, "cu_answers": []}, "cu_answers must have at least one element, got none"),
        (ValueError, {"targets": [1] * 4, "temperature": np.ones(3)}, r"shape \(A,\) = \(1,\), got \(3,\)"),
        (TypeError, {"targets": [1] * 4, "temperature": np.ones(1, bool)}, "must be a number or floats, got bool"),
    ):
        with pytest.raises(error, match=message):
            device.answer_logprobs(x, **arguments)
    with pytest.raises(ValueError, match=r"logits must have a contiguous last axis, got strides \(4, 200\)"):
        device.answer_logprobs(torch.from_numpy(np.array(x)).T, targets=[1] * 50)
    part = rk.logprob_partials(
        torch.from_numpy(np.array(x)), targets=as_tensor([1]), rows=as_tensor([2]), vocab_size=50, backend="triton"
    )
    with pytest.raises(ValueError, match="rows must be None where want names 'lse' of partials on a device"):
        device.answer_logprobs(partials=part, targets=[1], rows=[2], vocab_size=50, want=("lse",))
    with pytest.raises(ValueError, match=r"prior must have shape \(L,\) = \(2,\), got \(3,\)"):
        device.label_posteriors(x, label_ids=[1, 2], prior=np.ones(3))


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
    layout, fields = validate.layout("op", GivenPairs(targets, rows, **options))
    convert = as_tensor if place == "torch" else lambda x: x
    where = _arrays.Torch("cpu") if place == "torch" else _arrays.HOST
    given = {name: convert(x) for name, x in options.items()}
    other, there = _device.layout("op", where, GivenPairs(convert(targets), convert(rows), **given))
    there = {name: np.asarray(x) for name, x in there.items()}
    slots, pairs = len(fields["rows"]), len(fields["columns"])
    for name in ("rows", "inverse_temperature"):
        np.testing.assert_array_equal(there[name][:slots], fields[name])
    assert (there["rows"][slots:] == -1).all()
    np.testing.assert_array_equal(there["pair_begin"][: slots + 1], fields["pair_begin"])
    assert (there["pair_begin"][slots:] == pairs).all()
    np.testing.assert_array_equal(there["columns"][:pairs], fields["columns"])
    assert (there["columns"][pairs:] == -1).all()
    np.testing.assert_array_equal(other.ignored, targets == options["ignore_index"])
    np.testing.assert_array_equal(other.outside, layout.outside)
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


def test_allowed_columns_beyond_32_bits_are_refused(device, tmp_path):
    """In a file of which nothing exists."""
    x = torch.from_numpy(np.memmap(tmp_path / "wide", np.float16, "w+", shape=(1, 2**31)))
    with pytest.raises(ValueError, match="backend 'triton' takes allowed columns of up to 2147483647, got 2147483648"):
        device.token_logprobs(x, [5], allowed=[5, 7])


interpreted.elsewhere(globals())
