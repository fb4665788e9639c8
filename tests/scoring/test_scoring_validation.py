"""Bad input of scoring is an error of the documented type and wording, on every backend; arrays of other libraries."""

import re

import numpy as np
import pytest
from scoring_problems import logits

import ragsys_kernels as rk
from ragsys_kernels import _dispatch

INF, NAN = np.inf, np.nan


def f32(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def good(**changes):
    """A correct call of T = 4 rows, V = 9 columns, M = 5 targets, A = 3 answers, with changes."""
    arguments = {"logits": f32(4, 9), "targets": [0, 8, 3, 3, 1], "rows": [0, 1, 1, 2, 3], "cu_answers": [0, 2, 2, 5]}
    return {**arguments, **changes}


def hidden(**changes):
    arguments = {**good(), "hidden": f32(4, 6), "weight": f32(9, 6), **changes}
    if "logits" not in changes:
        del arguments["logits"]
    return arguments


UNALIGNED = np.frombuffer(b"\0" + f32(4, 9).tobytes(), np.uint8)[1:].view(np.float32).reshape(4, 9)

# What is called with what, the error, the message after "answer_logprobs: ".
ANSWERS = {
    "neither": (good(logits=None), ValueError, "logits must be given, or hidden with weight, got neither"),
    "both": (hidden(logits=f32(4, 9)), ValueError, "logits must be given, or hidden with weight, got both"),
    "weight_with_logits": (good(weight=f32(9, 6)), ValueError, "weight must come with hidden, got it with logits"),
    "bias_with_logits": (good(bias=f32(9)), ValueError, "bias must come with hidden, got it with logits"),
    "no_weight": (hidden(weight=None), ValueError, "weight must come with hidden, got None"),
    "logits_1d": (good(logits=f32(9)), ValueError, "logits must have shape (T, V), got (9,)"),
    "logits_3d": (
        good(logits=f32(1, 4, 9)), ValueError,
        "logits must have shape (T, V), got (1, 4, 9); use logits.reshape(-1, logits.shape[-1])",
    ),
    "logits_no_columns": (
        good(logits=f32(4, 0)), ValueError, "logits must have at least one column, got shape (4, 0)",
    ),
    "logits_float64": (
        good(logits=f32(4, 9).astype(np.float64)), TypeError,
        "logits must be float32, float16 or bfloat16, got float64; convert it once with .astype('float32')",
    ),
    "logits_integers": (
        good(logits=np.ones((4, 9), int)), TypeError,
        "logits must be float32, float16 or bfloat16, got int64; convert it once with .astype('float32')",
    ),
    "logits_text": (good(logits="text"), TypeError, "logits must be an array of numbers, got str of dtype <U4"),
    "logits_ragged": (
        good(logits=[[1.0], [1.0, 2.0]]), TypeError, "logits must be an array, got a ragged list; pad it first",
    ),
    "logits_columns_apart": (
        good(logits=f32(4, 18)[:, ::2]), ValueError,
        "logits must have a contiguous last axis, got strides (72, 8); copy it once with np.ascontiguousarray",
    ),
    "logits_transposed": (
        good(logits=f32(9, 4).T), ValueError,
        "logits must have a contiguous last axis, got strides (4, 16); copy it once with np.ascontiguousarray",
    ),
    "logits_backwards": (
        good(logits=f32(4, 9)[::-1]), ValueError,
        "logits must have rows in the order of memory, whole elements apart, got strides (-36, 4); "
        "copy it once with np.ascontiguousarray",
    ),
    "logits_big_endian": (
        good(logits=f32(4, 9).astype(">f4")), ValueError,
        "logits must be aligned and in native byte order; copy it once with np.array",
    ),
    "logits_unaligned": (
        good(logits=UNALIGNED), ValueError,
        "logits must be aligned and in native byte order; copy it once with np.array",
    ),
    "hidden_1d": (hidden(hidden=f32(6)), ValueError, "hidden must have shape (T, D), got (6,)"),
    "weight_1d": (hidden(weight=f32(6)), ValueError, "weight must have shape (V, D), got (6,)"),
    "dimensions_differ": (
        hidden(weight=f32(9, 5)), ValueError, "weight must have the D = 6 dimensions of hidden, got 5",
    ),
    "weight_transposed": (
        hidden(weight=f32(6, 9)), ValueError, "weight must have the D = 6 dimensions of hidden, got 9",
    ),
    "weight_no_rows": (hidden(weight=f32(0, 6)), ValueError, "weight must have at least one row, got shape (0, 6)"),
    "hidden_float64": (
        hidden(hidden=np.ones((4, 6))), TypeError,
        "hidden must be float32, float16 or bfloat16, got float64; convert it once with .astype('float32')",
    ),
    "bias_shape": (hidden(bias=f32(8)), ValueError, "bias must have shape (V,) = (9,), got (8,)"),
    "bias_2d": (hidden(bias=f32(9, 1)), ValueError, "bias must have shape (V,) = (9,), got (9, 1)"),
    "bias_integers": (hidden(bias=np.zeros(9, int)), TypeError, "bias must be floating point, got int64"),
    "targets_high": (
        good(targets=[0, 9, 3, 3, 1]), ValueError, "targets must be within [0, 9), got 9 at position 1",
    ),
    "targets_low": (
        good(targets=[0, 8, 3, -1, 1]), ValueError, "targets must be within [0, 9), got -1 at position 3",
    ),
    "targets_beyond_vocab_size": (
        good(vocab_size=8), ValueError, "targets must be within [0, 8), got 8 at position 1",
    ),
    "targets_not_ignored": (
        good(targets=[0, 8, 3, -100, 1], ignore_index=None), ValueError,
        "targets must be within [0, 9), got -100 at position 3",
    ),
    "targets_2d": (good(targets=[[0, 1]]), ValueError, "targets must have shape (M,), got (1, 2)"),
    "targets_float": (good(targets=f32(5)), TypeError, "targets must be integers, got float32"),
    "targets_without_rows": (
        good(rows=None), ValueError, "targets must have shape (T,) = (4,) unless rows is given, got (5,)",
    ),
    "rows_high": (good(rows=[0, 1, 4, 2, 3]), ValueError, "rows must be at least 0 and below T = 4, got 4"),
    "rows_low": (good(rows=[0, 1, -1, 2, 3]), ValueError, "rows must be at least 0 and below T = 4, got -1"),
    "rows_size": (good(rows=[0, 1]), ValueError, "rows must have shape (M,) = (5,), got (2,)"),
    "rows_float": (good(rows=f32(5)), TypeError, "rows must be integers, got float32"),
    "cu_answers_start": (good(cu_answers=[1, 5]), ValueError, "cu_answers must start at 0, got 1"),
    "cu_answers_decreases": (
        good(cu_answers=[0, 3, 2, 5]), ValueError, "cu_answers must not decrease, got 2 after 3 at position 2",
    ),
    "cu_answers_short": (
        good(cu_answers=[0, 4]), ValueError, "cu_answers must end at the number of targets, 5, got 4",
    ),
    "cu_answers_long": (
        good(cu_answers=[0, 6]), ValueError, "cu_answers must end at the number of targets, 5, got 6",
    ),
    "cu_answers_empty": (good(cu_answers=[]), ValueError, "cu_answers must have at least one element, got none"),
    "cu_answers_2d": (good(cu_answers=[[0, 5]]), ValueError, "cu_answers must have shape (n + 1,), got (1, 2)"),
    "cu_answers_float": (good(cu_answers=[0.0, 5.0]), TypeError, "cu_answers must be integers, got float64"),
    "both_answers": (good(answer_ids=[0] * 5), ValueError, "cu_answers or answer_ids must be given, got both"),
    "answer_ids_low": (
        good(cu_answers=None, answer_ids=[0, -1, 0, 0, 0]), ValueError, "answer_ids must be at least 0, got -1",
    ),
    "answer_ids_size": (
        good(cu_answers=None, answer_ids=[0]), ValueError, "answer_ids must have shape (M,) = (5,), got (1,)",
    ),
    "num_answers_with_cu": (good(num_answers=3), ValueError, "num_answers must come with answer_ids, got 3 without"),
    "num_answers_alone": (
        good(cu_answers=None, num_answers=1), ValueError, "num_answers must come with answer_ids, got 1 without",
    ),
    "temperature_zero": (good(temperature=0), ValueError, "temperature must be positive and finite, got 0"),
    "temperature_nan": (good(temperature=NAN), ValueError, "temperature must be positive and finite, got nan"),
    "temperature_inf": (good(temperature=INF), ValueError, "temperature must be positive and finite, got inf"),
    "temperature_negative": (
        good(temperature=[1.0, -2.0, 1.0]), ValueError, "temperature must be positive and finite, got -2",
    ),
    "temperature_tiny": (good(temperature=1e-300), ValueError, "temperature must be within [1e-15, 1e+15], got 1e-300"),
    "temperature_of_an_answer": (
        good(temperature=[1.0, 1e20, 1.0]), ValueError, "temperature must be within [1e-15, 1e+15], got 1e+20",
    ),
    "softcap_tiny": (good(softcap=1e-300), ValueError, "softcap must be within [1e-15, 1e+15], got 1e-300"),
    "softcap_huge": (good(softcap=1e300), ValueError, "softcap must be within [1e-15, 1e+15], got 1e+300"),
    "logit_scale_tiny": (good(logit_scale=1e-46), ValueError, "logit_scale must be within [1e-15, 1e+15], got 1e-46"),
    "logit_scale_whole": (
        good(logit_scale=10**16), ValueError, f"logit_scale must be within [1e-15, 1e+15], got {10**16}",
    ),
    "temperature_shape": (
        good(temperature=[1.0, 2.0]), ValueError, "temperature must be a number or have shape (A,) = (3,), got (2,)",
    ),
    "temperature_text": (
        good(temperature="hot"), TypeError, "temperature must be an array of numbers, got str of dtype <U3",
    ),
    "logit_scale_zero": (good(logit_scale=0.0), ValueError, "logit_scale must be positive and finite, got 0.0"),
    "logit_scale_text": (good(logit_scale="1"), TypeError, "logit_scale must be a number, got str"),
    "softcap_zero": (good(softcap=0), ValueError, "softcap must be positive and finite, got 0"),
    "softcap_bool": (good(softcap=True), TypeError, "softcap must be a number, got bool"),
    "vocab_size_zero": (good(vocab_size=0), ValueError, "vocab_size must be at least 1, got 0"),
    "vocab_size_large": (good(vocab_size=10), ValueError, "vocab_size must be at most V = 9, got 10"),
    "vocab_size_float": (good(vocab_size=9.0), TypeError, "vocab_size must be an integer, got float"),
    "allowed_empty": (good(allowed=[]), ValueError, "allowed must have at least one id, got none"),
    "allowed_unsorted": (
        good(allowed=[1, 5, 4]), ValueError, "allowed must be sorted without repeats, got 4 after 5",
    ),
    "allowed_repeated": (
        good(allowed=[1, 5, 5]), ValueError, "allowed must be sorted without repeats, got 5 after 5",
    ),
    "allowed_high": (good(allowed=[1, 9]), ValueError, "allowed must be within [0, 9), got 9"),
    "allowed_low": (good(allowed=[-1, 3]), ValueError, "allowed must be within [0, 9), got -1"),
    "allowed_mask": (good(allowed=np.ones(9, bool)), TypeError, "allowed must be integers, got bool"),
    "ignore_index": (good(ignore_index=1.5), TypeError, "ignore_index must be an integer or None, got float"),
    "want_text": (good(want="lse"), TypeError, "want must be a tuple of names, got 'lse'"),
    "want_unknown": (
        good(want=("logits",)), ValueError,
        "want must be one of 'logp', 'lse', 'max', 'entropy', 'rank', got 'logits'",
    ),
    "reduce_unknown": (
        good(reduce=("max",)), ValueError, "reduce must be one of 'sum', 'mean', 'count', 'greedy', got 'max'",
    ),
    "out_of_range": (good(out_of_range="clip"), ValueError, "out_of_range must be one of 'raise', 'nan', got 'clip'"),
    "row_of_two_temperatures": (
        good(rows=[0, 1, 1, 2, 1], temperature=[1, 1, 2], want=("entropy",)), ValueError,
        "want must not name 'entropy' where a row has several temperatures, got row 1",
    ),
    "num_threads": (good(num_threads=0), ValueError, "num_threads must be at least 1, got 0"),
}  # fmt: skip


@pytest.mark.parametrize("case", ANSWERS)
def test_bad_argument_of_answer_logprobs(host_scorer, case):
    arguments, error, message = ANSWERS[case]
    with pytest.raises(error, match=f"^answer_logprobs: {re.escape(message)}$"):
        rk.answer_logprobs(**arguments, backend=host_scorer)


def test_the_good_calls_are_good(host_scorer):
    assert np.isfinite(rk.answer_logprobs(**good(), backend=host_scorer).logp).all()
    assert np.isfinite(rk.answer_logprobs(**hidden(), backend=host_scorer).logp).all()


def label(**changes):
    return {"logits": f32(4, 9), "label_ids": [0, 8, 3], "cu_labels": [0, 1, 3], **changes}


LABELS = {
    "label_ids_high": (label(label_ids=[0, 9, 3]), ValueError, "label_ids must be within [0, 9), got 9"),
    "label_ids_repeated": (label(label_ids=[3, 8, 3]), ValueError, "label_ids must not repeat an id, got 3 twice"),
    "label_ids_empty": (label(label_ids=[]), ValueError, "label_ids must have at least one id, got none"),
    "cu_labels_empty_label": (
        label(cu_labels=[0, 2, 2, 3]), ValueError, "cu_labels must give every label a token, got none for label 1",
    ),
    "cu_labels_short": (
        label(cu_labels=[0, 2]), ValueError, "cu_labels must end at the number of label_ids, 3, got 2",
    ),
    "prior_shape": (label(prior=[0.2, 0.3, 0.5]), ValueError, "prior must have shape (L,) = (2,), got (3,)"),
    "prior_zero": (label(prior=[0.0, 1.0]), ValueError, "prior must be positive and finite, got 0"),
    "prior_nan": (label(prior=[1.0, NAN]), ValueError, "prior must be positive and finite, got nan"),
    "rows_high": (label(rows=[4]), ValueError, "rows must be at least 0 and below T = 4, got 4"),
    "rows_2d": (label(rows=[[0]]), ValueError, "rows must have shape (R,), got (1, 1)"),
    "temperature": (
        label(temperature=[1.0, 2.0]), ValueError, "temperature must be a number or have shape (R,) = (4,), got (2,)",
    ),
    "both": (label(hidden=f32(4, 6)), ValueError, "logits must be given, or hidden with weight, got both"),
}  # fmt: skip


@pytest.mark.parametrize("case", LABELS)
def test_bad_argument_of_label_posteriors(host_scorer, case):
    arguments, error, message = LABELS[case]
    with pytest.raises(error, match=f"^label_posteriors: {re.escape(message)}$"):
        rk.label_posteriors(**arguments, backend=host_scorer)


def shard(**changes):
    return {"logits": f32(4, 9), "targets": [0, 20, 3, 3], "vocab_size": 30, **changes}


PARTIALS = {
    "vocab_size": (shard(vocab_size=0), ValueError, "vocab_size must be at least 1, got 0"),
    "first_column": (shard(first_column=-1), ValueError, "first_column must be at least 0, got -1"),
    "first_column_float": (shard(first_column=1.0), TypeError, "first_column must be an integer, got float"),
    "targets": (shard(vocab_size=20), ValueError, "targets must be within [0, 20), got 20 at position 1"),
    "target_logits": (
        shard(target_logits=[1.0]), ValueError, "target_logits must have shape (M',) = (4,), got (1,)",
    ),
    "allowed": (shard(allowed=[3, 30]), ValueError, "allowed must be within [0, 30), got 30"),
    "neither": (shard(logits=None), ValueError, "logits must be given, or hidden with weight, got neither"),
}  # fmt: skip


@pytest.mark.parametrize("case", PARTIALS)
def test_bad_argument_of_logprob_partials(host_scorer, case):
    arguments, error, message = PARTIALS[case]
    with pytest.raises(error, match=f"^logprob_partials: {re.escape(message)}$"):
        rk.logprob_partials(**arguments, backend=host_scorer)


def test_bad_partials(host_scorer):
    part = rk.logprob_partials(**shard(), backend=host_scorer)
    other = rk.logprob_partials(**shard(targets=[0, 20, 3, -100]), backend=host_scorer)
    finish = {"targets": [0, 20, 3, 3], "vocab_size": 30, "reduce": ("sum",), "backend": host_scorer}
    for call, message in (
        (lambda: rk.merge_partials([]), "merge_partials: parts must have at least one element, got none"),
        (
            lambda: rk.merge_partials([part, other]),
            "merge_partials: parts must be of the same targets, whose ref has shape (4,), got (3,) in part 1",
        ),
        (
            lambda: rk.answer_logprobs(partials=other, **finish),
            "answer_logprobs: partials must be of the same rows and targets, 4 slots and 4 targets, "
            "got ref of shape (3,)",
        ),
        (
            lambda: rk.answer_logprobs(f32(4, 9), partials=part, **finish),
            "answer_logprobs: partials must be given instead of logits, got both",
        ),
        (
            lambda: rk.answer_logprobs(partials=part, targets=[0, 20, 3, 3], backend=host_scorer),
            "answer_logprobs: vocab_size must be given with partials, got None",
        ),
        (
            lambda: rk.answer_logprobs(partials=part, **finish, want=("rank",)),
            "answer_logprobs: partials must have rank for what is wanted, got None",
        ),
        (
            lambda: rk.answer_logprobs(partials=part, **finish, want=("entropy",)),
            "answer_logprobs: partials must have weighted for what is wanted, got None",
        ),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            call()
    made_of = {"weight": f32(30, 2), "bias": f32(30), "allowed": [1], "softcap": 3.0, "logit_scale": 2.0}
    for name, value in made_of.items():
        with pytest.raises(ValueError, match=f"^answer_logprobs: partials must be given instead of {name}, got both$"):
            rk.answer_logprobs(partials=part, **finish, **{name: value})
    with pytest.raises(ValueError, match=r"^answer_logprobs: logit_scale must be positive and finite, got -1$"):
        rk.answer_logprobs(partials=part, **finish, logit_scale=-1)
    with pytest.raises(TypeError, match=r"^merge_partials: parts must be Partials, got AnswerLogprobs in part 0$"):
        rk.merge_partials([rk.answer_logprobs(**good(), backend=host_scorer)])
    with pytest.raises(TypeError, match=r"^answer_logprobs: partials must be Partials, got list$"):
        rk.answer_logprobs(partials=[part], **finish)


@pytest.mark.parametrize("field", rk.Partials._fields)
def test_every_field_of_partials_has_its_shape(field):
    """None is broadcast: neither one element, nor an axis more, nor one less."""
    part = rk.logprob_partials(**shard(target_logits=np.zeros(4, np.float32)), entropy=True, rank=True)
    finish = {"targets": [0, 20, 3, 3], "vocab_size": 30, "want": ("logp", "rank", "entropy")}
    whole = getattr(part, field)
    for other in (whole[:1], whole[0], whole[:, None], np.repeat(whole, 2), whole[:0]):
        wrong = part._replace(**{field: other})
        with pytest.raises(ValueError, match=r"^merge_partials: parts must be .*, got \(.*\) in part 1$"):
            rk.merge_partials([part, wrong])
        with pytest.raises(ValueError, match=r"^merge_partials: parts must be of the same targets"):
            rk.merge_partials([wrong, part])
        with pytest.raises(ValueError, match=r"^answer_logprobs: partials must .*, got .*\(.*\)$"):
            rk.answer_logprobs(partials=wrong, **finish)
    if field not in ("weighted", "rank"):
        wrong = part._replace(**{field: None})
        with pytest.raises(ValueError, match=r"^merge_partials: parts must be .*, got None in part 1$"):
            rk.merge_partials([part, wrong])
        with pytest.raises(ValueError, match=r"^answer_logprobs: partials must "):
            rk.answer_logprobs(partials=wrong, **finish)


@pytest.mark.parametrize("field", rk.Partials._fields)
def test_every_field_of_partials_has_its_type(field):
    """None is read as bits, and none is rounded."""
    part = rk.logprob_partials(**shard(target_logits=np.zeros(4, np.float32)), entropy=True, rank=True)
    kinds = ("int64 or int32", ["f8", "u4", "?"]) if field == "rank" else ("float32 or float64", ["f2", "c16", "i8"])
    for dtype in kinds[1]:
        wrong = part._replace(**{field: np.ones(4, dtype)})
        with pytest.raises(TypeError, match=rf"^merge_partials: parts\[1\].{field} must be"):
            rk.merge_partials([part, wrong])
    torch = pytest.importorskip("torch")
    wrong = part._replace(**{field: torch.ones(4, dtype=torch.bfloat16)})
    with pytest.raises(TypeError, match=rf"^merge_partials: parts\[0\].{field} must be {kinds[0]}, got bfloat16$"):
        rk.merge_partials([wrong, part])


def test_bad_argument_of_token_logprobs(host_scorer):
    for arguments, message in (
        ({"targets": [1, 2]}, "targets must have shape (T,) = (4,) unless rows is given, got (2,)"),
        ({"temperature": [1.0]}, "temperature must be a number or have shape (T,) = (4,), got (1,)"),
        ({"targets": [0, 1, 2, 9]}, "targets must be within [0, 9), got 9 at position 3"),
        ({"logits": None}, "logits must be given, got None"),
    ):
        arguments = {"logits": f32(4, 9), "targets": [0, 1, 2, 3], **arguments}
        with pytest.raises(ValueError, match=f"^token_logprobs: {re.escape(message)}$"):
            rk.token_logprobs(**arguments, backend=host_scorer)


@pytest.mark.parametrize("backend", ["reference", "numpy", "cpu"])
def test_unknown_backends_are_refused(backend):
    message = "answer_logprobs: backend must be one of 'auto', 'cpu', 'numpy', 'reference', 'triton', 'cuda', got 'tpu'"
    with pytest.raises(ValueError, match=f"^{message}$"):
        rk.answer_logprobs(**good(), backend="tpu")
    with pytest.raises(
        ValueError, match=r"^mmr: backend must be one of 'auto', 'cpu', 'reference', 'triton', 'cuda', got 'numpy'$"
    ):
        rk.mmr(f32(1, 3), f32(9, 3), 2, backend="numpy")


# --- Arrays of other libraries and layouts.


def fields_of(found):
    return [x for x in found if x is not None]


def test_torch_in_torch_out(host_scorer):
    torch = pytest.importorskip("torch")
    want = ("logp", "lse", "max", "entropy", "rank")
    expected = rk.answer_logprobs(**good(), want=want, backend=host_scorer)
    arguments = good()
    tensors = {name: torch.tensor(value) for name, value in arguments.items()}
    found = rk.answer_logprobs(**tensors, temperature=torch.ones(3), want=want, backend=host_scorer)
    assert [x.dtype for x in found] == [
        torch.float32, torch.float32, torch.float32, torch.float32, torch.int64,
        torch.float64, torch.float64, torch.int64, torch.bool,
    ]  # fmt: skip
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a.numpy(), b)
    for name, tensor in tensors.items():  # one is enough
        found = rk.answer_logprobs(**{**arguments, name: tensor}, backend=host_scorer)
        assert all(isinstance(x, torch.Tensor) for x in fields_of(found)), name
    assert isinstance(rk.token_logprobs(torch.ones(2, 3), [0, 1], backend=host_scorer), torch.Tensor)
    both = rk.token_logprobs(np.ones((2, 3), np.float32), torch.tensor([0, 1]), return_lse=True, backend=host_scorer)
    assert all(isinstance(x, torch.Tensor) for x in both)
    assert isinstance(rk.label_posteriors(torch.ones(2, 3), label_ids=[0, 1], backend=host_scorer).label, torch.Tensor)
    part = rk.logprob_partials(torch.ones(2, 3), targets=[0, 1], vocab_size=3, backend=host_scorer)
    assert all(isinstance(x, torch.Tensor) for x in fields_of(rk.merge_partials([part, part])))
    found = rk.answer_logprobs(partials=part, targets=[0, 1], vocab_size=3, reduce=("sum",), backend=host_scorer)
    assert isinstance(found.logp, torch.Tensor)


def test_tensors_that_require_grad_are_taken_and_results_do_not(host_scorer):
    torch = pytest.importorskip("torch")
    x = torch.randn(3, 50, requires_grad=True)
    found = rk.token_logprobs(x, [1, 2, 3], backend=host_scorer)
    assert not found.requires_grad
    np.testing.assert_array_equal(found, rk.token_logprobs(x.detach(), [1, 2, 3], backend=host_scorer))


def test_strided_logits_are_read_in_place(host_scorer):
    torch = pytest.importorskip("torch")
    x, _ = logits(5, 300)
    want = rk.token_logprobs(x, [0, 1, 2, 3, 299], backend=host_scorer)
    wide = np.full((10, 400), NAN, np.float32)
    wide[::2, 37:337] = x
    for strided in (wide[::2, 37:337], torch.from_numpy(wide)[::2, 37:337]):
        np.testing.assert_array_equal(rk.token_logprobs(strided, [0, 1, 2, 3, 299], backend=host_scorer), want)
    one = np.broadcast_to(x[3], (4, 300))
    assert len(set(rk.token_logprobs(one, [3, 3, 3, 3], backend=host_scorer).tolist())) == 1


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.uint8, np.int32, np.int64, np.uint32])
def test_integers_of_any_size(host_scorer, dtype):
    arguments = good()
    want = rk.answer_logprobs(**arguments, backend=host_scorer)
    for name in ("targets", "rows", "cu_answers"):
        arguments[name] = np.repeat(np.array(arguments[name], dtype), 2)[::2]
    np.testing.assert_array_equal(rk.answer_logprobs(**arguments, backend=host_scorer).logp, want.logp)


def test_nothing_is_modified(host_scorer):
    arguments = hidden(
        bias=f32(9), temperature=np.array([1.0, 2.0, 3.0]), allowed=np.arange(9), targets=np.array([0, 8, 3, 3, -100])
    )
    arguments = {name: np.array(value) for name, value in arguments.items()}
    before = {name: value.copy() for name, value in arguments.items()}
    for value in arguments.values():
        value.flags.writeable = False
    rk.answer_logprobs(**arguments, softcap=3.0, logit_scale=2.0, backend=host_scorer)
    arguments["logits"] = f32(4, 9)
    arguments["logits"].flags.writeable = False
    rk.answer_logprobs(
        **{k: v for k, v in arguments.items() if k not in ("hidden", "weight", "bias")},
        softcap=3.0,
        backend=host_scorer,
    )
    for name, value in before.items():
        np.testing.assert_array_equal(arguments[name], value)


class OnDevice:
    """An array of a library that is not NumPy, on a device that is not the CPU."""

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, **_):
        raise AssertionError("must not be read")


def test_arrays_on_another_device_are_refused(host_scorer):
    with pytest.raises(ValueError, match=r"^token_logprobs: all arrays must be on one device, got logits on cuda:0, "):
        rk.token_logprobs(OnDevice(), [0], backend=host_scorer)
    if _dispatch.why_not("triton") and _dispatch.why_not("cuda"):
        message = "token_logprobs: no backend runs on arrays on 'cuda:0': triton: "
        with pytest.raises(rk.BackendUnavailableError, match=f"^{message}"):
            rk.token_logprobs(OnDevice(), OnDevice(), temperature=OnDevice())
