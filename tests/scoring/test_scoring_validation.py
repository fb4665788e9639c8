"""Bad input of scoring is an error of the documented type and wording; arrays of other libraries."""

import re

import numpy as np
import pytest
from scoring_problems import logits
from selection_calls import check_error, f32

import ragsys_kernels as rk

INF, NAN = np.inf, np.nan
CONVERT = "convert it once with .astype('float32')"
LOGITS = "logits must have shape (T, V), got"
IN_ORDER = "logits must have rows in the order of memory, whole elements apart, got strides"
BACKENDS = "'auto', 'cpu', 'numpy', 'reference', 'triton'"
COPY = "copy it once with np.ascontiguousarray"
NATIVE = "logits must be aligned and in native byte order; copy it once with np.array"
SCALES = "must be within [1e-15, 1e+15], got"


def good(**changes):
    """A correct call of T = 4 rows, V = 9 columns, M = 5 targets, A = 3 answers, with changes."""
    arguments = {"logits": f32(4, 9), "targets": [0, 8, 3, 3, 1], "rows": [0, 1, 1, 2, 3], "cu_answers": [0, 2, 2, 5]}
    return {**arguments, **changes}


def hidden(**changes):
    return good(**{"logits": None, "hidden": f32(4, 6), "weight": f32(9, 6), **changes})


def by_id(ids, **changes):
    return good(cu_answers=None, answer_ids=ids, **changes)


def label(**changes):
    return {"logits": f32(4, 9), "label_ids": [0, 8, 3], "cu_labels": [0, 1, 3], **changes}


def shard(**changes):
    return {"logits": f32(4, 9), "targets": [0, 20, 3, 3], "vocab_size": 30, **changes}


def best(**changes):
    return {"logits": f32(4, 9), "k": 3, **changes}


def tokens(**changes):
    return {"logits": f32(4, 9), "targets": [0, 1, 2, 3], **changes}


UNALIGNED = np.frombuffer(b"\0" + f32(4, 9).tobytes(), np.uint8)[1:].view(np.float32).reshape(4, 9)

# Arguments, and what the error says after the name of the operation.
BAD_VALUES = {
    "answer_logprobs": [
        (good(logits=None), "logits must be given, or hidden with weight, got neither"),
        (hidden(logits=f32(4, 9)), "logits must be given, or hidden with weight, got both"),
        (good(weight=f32(9, 6)), "weight must come with hidden, got it with logits"),
        (good(bias=f32(9)), "bias must come with hidden, got it with logits"),
        (hidden(weight=None), "weight must come with hidden, got None"),
        (good(logits=f32(9)), f"{LOGITS} (9,)"),
        (good(logits=f32(1, 4, 9)), f"{LOGITS} (1, 4, 9); use logits.reshape(-1, logits.shape[-1])"),
        (good(logits=f32(4, 0)), "logits must have at least one column, got shape (4, 0)"),
        (good(logits=f32(4, 18)[:, ::2]), f"logits must have a contiguous last axis, got strides (72, 8); {COPY}"),
        (good(logits=f32(9, 4).T), f"logits must have a contiguous last axis, got strides (4, 16); {COPY}"),
        (good(logits=f32(4, 9)[::-1]), f"{IN_ORDER} (-36, 4); {COPY}"),
        (good(logits=f32(4, 9).astype(">f4")), NATIVE),
        (good(logits=UNALIGNED), NATIVE),
        (hidden(hidden=f32(6)), "hidden must have shape (T, D), got (6,)"),
        (hidden(weight=f32(6)), "weight must have shape (V, D), got (6,)"),
        (hidden(weight=f32(9, 5)), "weight must have the D = 6 dimensions of hidden, got 5"),
        (hidden(weight=f32(0, 6)), "weight must have at least one row, got shape (0, 6)"),
        (hidden(bias=f32(8)), "bias must have shape (V,) = (9,), got (8,)"),
        (hidden(bias=f32(9, 1)), "bias must have shape (V,) = (9,), got (9, 1)"),
        (good(targets=[0, 9, 3, 3, 1]), "targets must be within [0, 9), got 9 at position 1"),
        (good(targets=[0, 8, 3, -1, 1]), "targets must be within [0, 9), got -1 at position 3"),
        (good(vocab_size=8), "targets must be within [0, 8), got 8 at position 1"),
        (good(targets=[0, 8, -100, 3, 1], ignore_index=None), "targets must be within [0, 9), got -100 at position 2"),
        (good(targets=[[0, 1]]), "targets must have shape (M,), got (1, 2)"),
        (good(rows=None), "targets must have shape (T,) = (4,) unless rows is given, got (5,)"),
        (good(rows=[0, 1, 4, 2, 3]), "rows must be at least 0 and below T = 4, got 4"),
        (good(rows=[0, 1, -1, 2, 3]), "rows must be at least 0 and below T = 4, got -1"),
        (good(rows=[0, 1]), "rows must have shape (M,) = (5,), got (2,)"),
        (good(cu_answers=[1, 5]), "cu_answers must start at 0, got 1"),
        (good(cu_answers=[0, 3, 2, 5]), "cu_answers must not decrease, got 2 after 3 at position 2"),
        (good(cu_answers=[0, 4]), "cu_answers must end at the number of targets, 5, got 4"),
        (good(cu_answers=[0, 6]), "cu_answers must end at the number of targets, 5, got 6"),
        (good(cu_answers=[]), "cu_answers must have at least one element, got none"),
        (good(cu_answers=[[0, 5]]), "cu_answers must have shape (n + 1,), got (1, 2)"),
        (good(answer_ids=[0] * 5), "cu_answers or answer_ids must be given, got both"),
        (by_id([0, -1, 0, 0, 0]), "answer_ids must be at least 0, got -1"),
        (by_id([0, 1, 0, 0, 0], num_answers=1), "answer_ids must be below num_answers = 1, got 1"),
        (by_id([0]), "answer_ids must have shape (M,) = (5,), got (1,)"),
        (good(num_answers=3), "num_answers must come with answer_ids, got 3 without"),
        (good(temperature=0), "temperature must be positive and finite, got 0"),
        (good(temperature=NAN), "temperature must be positive and finite, got nan"),
        (good(temperature=INF), "temperature must be positive and finite, got inf"),
        (good(temperature=[1.0, -2.0, 1.0]), "temperature must be positive and finite, got -2"),
        (good(temperature=1e-300), f"temperature {SCALES} 1e-300"),
        (good(temperature=[1.0, 1e20, 1.0]), f"temperature {SCALES} 1e+20"),
        (good(temperature=[1.0, 2.0]), "temperature must be a number or have shape (A,) = (3,), got (2,)"),
        (good(softcap=1e300), f"softcap {SCALES} 1e+300"),
        (good(softcap=0), "softcap must be positive and finite, got 0"),
        (good(logit_scale=1e-46), f"logit_scale {SCALES} 1e-46"),
        (good(logit_scale=10**16), f"logit_scale {SCALES} {10**16}"),
        (good(vocab_size=0), "vocab_size must be at least 1, got 0"),
        (good(vocab_size=10), "vocab_size must be at most V = 9, got 10"),
        (good(allowed=[]), "allowed must have at least one id, got none"),
        (good(allowed=[1, 5, 4]), "allowed must be sorted without repeats, got 4 after 5"),
        (good(allowed=[1, 5, 5]), "allowed must be sorted without repeats, got 5 after 5"),
        (good(allowed=[1, 9]), "allowed must be within [0, 9), got 9"),
        (good(allowed=[-1, 3]), "allowed must be within [0, 9), got -1"),
        (good(want=("logits",)), "want must be one of 'logp', 'lse', 'max', 'entropy', 'rank', got 'logits'"),
        (good(reduce=("max",)), "reduce must be one of 'sum', 'mean', 'count', 'greedy', got 'max'"),
        (good(out_of_range="clip"), "out_of_range must be one of 'raise', 'nan', got 'clip'"),
        (
            good(rows=[0, 1, 1, 2, 1], temperature=[1, 1, 2], want=("entropy",)),
            "want must not name 'entropy' where a row has several temperatures, got row 1",
        ),
        (good(num_threads=0), "num_threads must be at least 1, got 0"),
    ],
    "label_posteriors": [
        (label(label_ids=[0, 9, 3]), "label_ids must be within [0, 9), got 9"),
        (label(label_ids=[3, 8, 3]), "label_ids must not repeat an id, got 3 twice"),
        (label(label_ids=[]), "label_ids must have at least one id, got none"),
        (label(cu_labels=[0, 2, 2, 3]), "cu_labels must give every label a token, got none for label 1"),
        (label(cu_labels=[0, 2]), "cu_labels must end at the number of label_ids, 3, got 2"),
        (label(prior=[0.2, 0.3, 0.5]), "prior must have shape (L,) = (2,), got (3,)"),
        (label(prior=[0.0, 1.0]), "prior must be positive and finite, got 0"),
        (label(prior=[1.0, NAN]), "prior must be positive and finite, got nan"),
        (label(rows=[4]), "rows must be at least 0 and below T = 4, got 4"),
        (label(rows=[[0]]), "rows must have shape (R,), got (1, 1)"),
        (label(temperature=[1.0, 2.0]), "temperature must be a number or have shape (R,) = (4,), got (2,)"),
        (label(hidden=f32(4, 6)), "logits must be given, or hidden with weight, got both"),
    ],
    "top_logprobs": [
        (best(k=0), "k must be at least 1, got 0"),
        (best(logits=None), "logits must be given, or hidden with weight, got neither"),
        (best(hidden=f32(4, 6)), "logits must be given, or hidden with weight, got both"),
        (best(rows=[0, 4]), "rows must be at least 0 and below T = 4, got 4"),
        (best(rows=[-1]), "rows must be at least 0 and below T = 4, got -1"),
        (best(rows=[[0]]), "rows must have shape (R,), got (1, 1)"),
        (best(temperature=[1.0, 2.0]), "temperature must be a number or have shape (R,) = (4,), got (2,)"),
        (best(rows=[1, 2], temperature=[1.0, 0.0]), "temperature must be positive and finite, got 0"),
        (best(vocab_size=10), "vocab_size must be at most V = 9, got 10"),
        (best(allowed=[1, 9]), "allowed must be within [0, 9), got 9"),
        (best(backend="tpu"), f"backend must be one of {BACKENDS}, got 'tpu'"),
    ],
    "logprob_partials": [
        (shard(targets=None), "targets must be given, or k, got neither"),
        (shard(k=0), "k must be at least 1, got 0"),
        (shard(targets=None, k=2, cu_answers=[0, 4]), "cu_answers must come with targets, got it without"),
        (shard(vocab_size=0), "vocab_size must be at least 1, got 0"),
        (shard(first_column=-1), "first_column must be at least 0, got -1"),
        (shard(vocab_size=20), "targets must be within [0, 20), got 20 at position 1"),
        (shard(target_logits=[1.0]), "target_logits must have shape (M',) = (4,), got (1,)"),
        (shard(allowed=[3, 30]), "allowed must be within [0, 30), got 30"),
        (shard(logits=None), "logits must be given, or hidden with weight, got neither"),
        (
            shard(rank=True),
            "target_logits must be given where rank is wanted and targets are in other shards, got None and target 20",
        ),
    ],
    "token_logprobs": [
        (tokens(targets=[1, 2]), "targets must have shape (T,) = (4,) unless rows is given, got (2,)"),
        (tokens(temperature=[1.0]), "temperature must be a number or have shape (T,) = (4,), got (1,)"),
        (tokens(targets=[0, 1, 2, 9]), "targets must be within [0, 9), got 9 at position 3"),
        (tokens(logits=None), "logits must be given, got None"),
        (tokens(backend="tpu"), f"backend must be one of {BACKENDS}, got 'tpu'"),
    ],
}

BAD_TYPES = {
    "answer_logprobs": [
        (good(logits=np.ones((4, 9))), f"logits must be float32, float16 or bfloat16, got float64; {CONVERT}"),
        (good(logits="text"), "logits must be an array of numbers, got str of dtype <U4"),
        (good(logits=[[1.0], [1.0, 2.0]]), "logits must be an array, got a ragged list; pad it first"),
        (hidden(hidden=np.ones((4, 6))), f"hidden must be float32, float16 or bfloat16, got float64; {CONVERT}"),
        (hidden(bias=np.zeros(9, int)), "bias must be floating point, got int64"),
        (good(targets=f32(5)), "targets must be integers, got float32"),
        (good(rows=f32(5)), "rows must be integers, got float32"),
        (good(cu_answers=[0.0, 5.0]), "cu_answers must be integers, got float64"),
        (good(temperature="hot"), "temperature must be an array of numbers, got str of dtype <U3"),
        (good(temperature=[True] * 3), "temperature must be a number or floats, got bool"),
        (good(logit_scale="1"), "logit_scale must be a number, got str"),
        (good(softcap=True), "softcap must be a number, got bool"),
        (good(vocab_size=9.0), "vocab_size must be an integer, got float"),
        (good(allowed=np.ones(9, bool)), "allowed must be integers, got bool"),
        (good(ignore_index=1.5), "ignore_index must be an integer or None, got float"),
        (good(want="lse"), "want must be a tuple of names, got 'lse'"),
    ],
    "label_posteriors": [(label(prior=[1, 2]), "prior must be floating point, got int64")],
    "top_logprobs": [
        (best(k=2.0), "k must be an integer, got float"),
        (best(k=True), "k must be an integer, got True"),
        (best(rows=f32(2)), "rows must be integers, got float32"),
    ],
    "logprob_partials": [(shard(first_column=1.0), "first_column must be an integer, got float")],
}


@pytest.mark.parametrize(
    ("table", "error"), [(BAD_VALUES, ValueError), (BAD_TYPES, TypeError)], ids=["values", "types"]
)
def test_bad_arguments_are_named(table, error):
    for op, cases in table.items():
        for arguments, message in cases:
            check_error(op, arguments, error, message)


def test_the_good_calls_are_good(scorer):
    for arguments in (good(), hidden(), by_id([0, 1, 0, 2, 2])):
        assert np.isfinite(rk.answer_logprobs(**arguments, backend=scorer).logp).all()


def test_bad_partials():
    part, other = rk.logprob_partials(**shard()), rk.logprob_partials(**shard(targets=[0, 20, 3, -100]))
    finish = {"targets": [0, 20, 3, 3], "vocab_size": 30, "reduce": ("sum",), "partials": part}
    made_of = {"logits": f32(4, 9), "weight": f32(30, 2), "bias": f32(30), "allowed": [1], "softcap": 3.0}
    for changes, message in (
        (
            {"partials": other},
            "partials must be of the same rows and targets, 4 slots and 4 targets, got ref of shape (3,)",
        ),
        ({"vocab_size": None}, "vocab_size must be given with partials, got None"),
        ({"want": ("rank",)}, "partials must have rank for what is wanted, got None"),
        ({"want": ("entropy",)}, "partials must have weighted for what is wanted, got None"),
        ({"logit_scale": -1}, "logit_scale must be positive and finite, got -1"),
        *(
            ({name: value}, f"partials must be given instead of {name}, got both")
            for name, value in {**made_of, "logit_scale": 2.0}.items()
        ),
    ):
        with pytest.raises(ValueError, match=f"^answer_logprobs: {re.escape(message)}$"):
            rk.answer_logprobs(**{**finish, **changes})
    with pytest.raises(TypeError, match=r"^answer_logprobs: partials must be Partials, got list$"):
        rk.answer_logprobs(**{**finish, "partials": [part]})
    with pytest.raises(ValueError, match=r"^merge_partials: parts must have at least one element, got none$"):
        rk.merge_partials([])
    with pytest.raises(TypeError, match=r"^merge_partials: parts must be Partials, got AnswerLogprobs in part 0$"):
        rk.merge_partials([rk.answer_logprobs(**good())])


@pytest.mark.parametrize("field", rk.Partials._fields)
def test_every_field_of_partials_has_its_shape_and_type(field):
    """None is broadcast: neither one element, nor an axis more, nor one less; none is read as bits, or rounded."""
    part = rk.logprob_partials(**shard(target_logits=np.zeros(4, np.float32)), entropy=True, rank=True, k=3)
    finish = {"targets": [0, 20, 3, 3], "vocab_size": 30, "want": ("logp", "rank", "entropy")}
    whole = getattr(part, field)
    others = [whole[:1], whole[0], whole[:, None], np.repeat(whole, 2), whole[:0]]
    for other in others if field in ("weighted", "rank") else [*others, None]:
        wrong = part._replace(**{field: other})
        got = "None" if other is None else r"\(.*\)"
        with pytest.raises(ValueError, match=rf"^merge_partials: parts must be .*, got {got} in part 1$"):
            rk.merge_partials([part, wrong])
        with pytest.raises(ValueError, match=r"^merge_partials: parts must be of the same targets"):
            rk.merge_partials([wrong, part])
        with pytest.raises(ValueError, match=rf"^answer_logprobs: partials must .*, got .*({got})?$"):
            rk.answer_logprobs(partials=wrong, **finish)
    kinds, bad = (
        ("int64 or int32", ["f8", "u4", "?"])
        if field in ("rank", "top_ids")
        else ("float32 or float64", ["f2", "c16", "i8"])
    )
    for dtype in bad:
        with pytest.raises(TypeError, match=rf"^merge_partials: parts\[1\].{field} must be"):
            rk.merge_partials([part, part._replace(**{field: np.ones(4, dtype)})])
    torch = pytest.importorskip("torch")
    wrong = part._replace(**{field: torch.ones(4, dtype=torch.bfloat16)})
    with pytest.raises(TypeError, match=rf"^merge_partials: parts\[0\].{field} must be {kinds}, got bfloat16$"):
        rk.merge_partials([wrong, part])


# --- Arrays of other libraries and layouts.


def test_torch_in_torch_out():
    torch = pytest.importorskip("torch")
    want = ("logp", "lse", "max", "entropy", "rank")
    arguments = good()
    expected = rk.answer_logprobs(**arguments, want=want)
    tensors = {name: torch.tensor(value) for name, value in arguments.items()}
    found = rk.answer_logprobs(**tensors, temperature=torch.ones(3), want=want)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype is torch.from_numpy(b).dtype
        np.testing.assert_array_equal(a.numpy(), b)
    part = rk.logprob_partials(torch.ones(2, 3), targets=[0, 1], vocab_size=3)
    for found in (
        *(rk.answer_logprobs(**{**arguments, name: tensor}) for name, tensor in tensors.items()),  # one is enough
        rk.answer_logprobs(partials=part, targets=[0, 1], vocab_size=3),
        rk.token_logprobs(np.ones((2, 3), np.float32), torch.tensor([0, 1]), return_lse=True),
        rk.label_posteriors(torch.ones(2, 3), label_ids=[0, 1]),
        rk.merge_partials([part, part]),
    ):
        assert all(x is None or isinstance(x, torch.Tensor) for x in found)


def test_tensors_that_require_grad_are_taken_and_results_do_not():
    torch = pytest.importorskip("torch")
    x = torch.randn(3, 50, requires_grad=True)
    found = rk.token_logprobs(x, [1, 2, 3])
    assert not found.requires_grad
    np.testing.assert_array_equal(found, rk.token_logprobs(x.detach(), [1, 2, 3]))


def test_strided_logits_are_read_in_place(scorer):
    torch = pytest.importorskip("torch")
    x, _ = logits(5, 300)
    want = rk.token_logprobs(x, [0, 1, 2, 3, 299], backend=scorer)
    wide = np.full((10, 400), NAN, np.float32)
    wide[::2, 37:337] = x
    for strided in (wide[::2, 37:337], torch.from_numpy(wide)[::2, 37:337]):
        np.testing.assert_array_equal(rk.token_logprobs(strided, [0, 1, 2, 3, 299], backend=scorer), want)
    one = np.broadcast_to(x[3], (4, 300))
    assert len(set(rk.token_logprobs(one, [3, 3, 3, 3], backend=scorer).tolist())) == 1


def test_integers_of_any_size():
    want = rk.answer_logprobs(**good())
    for dtype in (np.int8, np.int16, np.uint8, np.int32, np.int64, np.uint32):
        integers = {name: np.repeat(dtype(good()[name]), 2)[::2] for name in ("targets", "rows", "cu_answers")}
        np.testing.assert_array_equal(rk.answer_logprobs(**good(**integers)).logp, want.logp, err_msg=str(dtype))


def test_nothing_is_modified(scorer):
    options = {"temperature": np.array([1.0, 2.0, 3.0]), "allowed": np.arange(9)}
    for given in (
        good(**options, targets=[0, 8, 3, 3, -100]),
        hidden(**options, bias=f32(9), targets=[0, 8, 3, 3, -100]),
    ):
        arguments = {name: np.array(value) for name, value in given.items() if value is not None}
        for value in arguments.values():
            value.flags.writeable = False
        rk.answer_logprobs(**arguments, softcap=3.0, logit_scale=2.0, backend=scorer)
        for name, value in arguments.items():
            np.testing.assert_array_equal(value, given[name])


def test_temperatures_of_float16():
    """Whose limits it cannot hold."""
    logits = np.random.default_rng(0).standard_normal((3, 20)).astype(np.float32)
    targets, warmth = np.array([1, 2, 3]), np.array([0.5, 1, 2])
    found, expected = (
        rk.token_logprobs(logits, targets, temperature=warmth.astype(dtype)) for dtype in (np.float16, np.float32)
    )
    np.testing.assert_array_equal(found, expected)
