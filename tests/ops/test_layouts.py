"""Arrays in another byte order or off their alignment, for every operation and each of its array arguments: the result
has the same bits, or the argument, one that is never copied, is refused by name; so is any with a mask."""

import dataclasses
import re

import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels import metrics, testing
from ragsys_kernels.selection import cpu, validate
from ragsys_kernels.selection.constraints import Constraints

RNG = np.random.default_rng(0)


def f32(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def swapped(array):
    return array.astype(array.dtype.newbyteorder(">"))


def unaligned(array):
    memory = np.zeros(array.nbytes + 1, np.uint8)
    odd = memory[1:].view(array.dtype).reshape(array.shape)
    odd[...] = array
    return odd


LAYOUTS = {"swapped": swapped, "unaligned": unaligned, "both": lambda array: unaligned(swapped(array))}

# Large ones, which are never copied.
STORED = ("embeddings", "logits", "hidden", "weight")


def selected(method):
    problem = testing.selection_problem(4, 20, 5, 11, bias=method == "mmr", groups=True, ragged=True)
    problem["relevance"] = f32(4, 20)
    problem["initial"] = np.array([[0, -1], [-1, -1], [7, 3], [-1, 2]])
    problem["k"] = np.array([3, 1, 5, 2])
    if method == "mmr":
        problem |= {"lambda_d": RNG.uniform(0, 1, 4), "lambda_b": RNG.uniform(0, 1, 4).astype(np.float32)}
    return problem


ROWS, BIAS, GROUPS = f32(30, 6), f32(30), np.arange(30) % 7
CORPUS = rk.Corpus(ROWS, bias=BIAS, groups=GROUPS)
QUERIES = {"queries": f32(4, 6), "query_groups": np.arange(4)}


def made(**arrays):
    corpus = rk.Corpus(**arrays)
    return corpus.data, corpus.bias, corpus.groups


ANSWERS = {
    "targets": np.array([1, 4, 2, 0, 3]),
    "rows": np.array([0, 2, 1, 1, 3]),
    "allowed": np.array([0, 1, 2, 3, 4, 7]),
    "temperature": np.array([0.5, 1.5]),
}
CU = {"cu_answers": np.array([0, 2, 5])}
HEAD = {"hidden": f32(4, 8), "weight": f32(9, 8), "bias": f32(9)}
PARTIALS = rk.logprob_partials(f32(4, 9), targets=np.arange(4), vocab_size=9, rank=True, entropy=True)
LOGPROBS = {
    "logp": -RNG.uniform(0.1, 3, 6),
    "is_correct": np.array([1, 0, 0, 1, 1, 0], bool),
    "cu_questions": np.array([0, 3, 6]),
}
PICKS = np.array([[0, 3, -1], [2, 1, 5]])


def merged(**fields):
    return rk.merge_partials([rk.Partials(**fields), PARTIALS])


def finished(**fields):
    return rk.answer_logprobs(
        partials=rk.Partials(**fields), targets=np.arange(4), vocab_size=9, want=("logp", "lse", "entropy", "rank")
    )


# Operation: what is called and its arguments, those that are arrays to be laid out anew.
SELECTION = {
    "mmr": (rk.mmr, selected("mmr")),
    "vrsd": (rk.vrsd, selected("vrsd")),
    "search": (CORPUS.search, {**QUERIES, "n": 5, "lambda_b": RNG.uniform(0, 1, 4)}),
    "select": (
        CORPUS.select,
        {
            **QUERIES, "k": np.array([2, 3, 1, 2]), "pool": 8, "bias": f32(30), "groups": GROUPS[::-1].copy(),
            "initial": np.arange(4)[:, None], "lambda_d": RNG.uniform(0, 1, 4),
        },
    ),
    "select_candidates": (CORPUS.select, {**QUERIES, "k": 2, "candidates": np.arange(20).reshape(4, 5)}),
}  # fmt: skip
SCORING = {
    "token_logprobs": (
        rk.token_logprobs, {"logits": f32(4, 9), "targets": np.arange(4), "temperature": f32(4) ** 2 + 0.5},
    ),
    "answer_logprobs": (rk.answer_logprobs, {"logits": f32(4, 9), **ANSWERS, **CU}),
    "answer_logprobs_ids": (rk.answer_logprobs, {**HEAD, **ANSWERS, "answer_ids": np.array([1, 0, 0, 1, 1])}),
    "label_posteriors": (
        rk.label_posteriors,
        {**HEAD, "label_ids": np.array([3, 1, 2]), "cu_labels": np.array([0, 1, 3]), "prior": np.array([0.2, 0.8]),
         "rows": np.array([1, 3]), "temperature": np.array([1.0, 2.0])},
    ),
    "logprob_partials": (
        rk.logprob_partials, {**HEAD, **ANSWERS, **CU, "vocab_size": 9, "rank": True, "target_logits": f32(5)},
    ),
}  # fmt: skip
OTHERS = {
    "Corpus": (made, {"embeddings": ROWS, "bias": BIAS, "groups": GROUPS}),
    "merge_partials": (merged, PARTIALS._asdict()),
    "answer_logprobs_partials": (finished, PARTIALS._asdict()),
    "multiple_choice": (metrics.multiple_choice, {**LOGPROBS, "best": np.array([0, 3])}),
    "dpo": (metrics.dpo, {**LOGPROBS, "reference": f32(6)}),
    "perplexity": (metrics.perplexity, {"sum_logp": -(f32(3) ** 2), "count": np.array([2, 0, 5])}),
    "sum_cosine": (metrics.sum_cosine, {"queries": f32(2, 6), "embeddings": ROWS, "indices": PICKS}),
    "pairwise_cosine": (metrics.pairwise_cosine, {"embeddings": ROWS, "indices": PICKS}),
    "intra_list_distance": (metrics.intra_list_distance, {"embeddings": ROWS, "indices": PICKS}),
    "log_determinant": (metrics.log_determinant, {"embeddings": ROWS, "indices": PICKS}),
    "vendi_score": (metrics.vendi_score, {"embeddings": ROWS, "indices": PICKS}),
    "coverage": (metrics.coverage, {"embeddings": ROWS, "indices": PICKS, "aspects": f32(3, 6)}),
    "near_duplicates": (metrics.near_duplicates, {"embeddings": ROWS, "indices": PICKS}),
    "win_rate": (metrics.win_rate, {"ours": f32(5), "theirs": f32(5)}),
    "max_diff": (metrics.max_diff, {"ours": f32(5), "theirs": f32(5)}),
    "alpha_ndcg": (metrics.alpha_ndcg, {"indices": PICKS, "judgements": RNG.integers(0, 2, (6, 3)) > 0}),
    "nqc": (metrics.nqc, {"scores": f32(3, 4), "corpus_score": f32(3)}),
    "macro_scores": (metrics.macro_scores, {"labels": PICKS[0], "predictions": PICKS[1]}),
}
NEVER_COPIED = {(name, argument) for name in ("mmr", "vrsd", "Corpus", *SCORING) for argument in STORED}


def check(name, call, arguments, layout, **options):
    expected = [x for x in as_tuple(call(**arguments, **options)) if x is not None]
    arrays = [argument for argument, value in arguments.items() if isinstance(value, np.ndarray)]
    assert arrays
    for argument in arrays:
        value = LAYOUTS[layout](arguments[argument])
        if arguments[argument].itemsize == 1:
            continue
        changed = {**arguments, argument: value}
        if (name, argument) in NEVER_COPIED:
            op = name.removesuffix("_ids")
            message = f"{op}: {argument} must be aligned and in native byte order; copy it once with np.array"
            with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
                call(**changed, **options)
            continue
        found = [x for x in as_tuple(call(**changed, **options)) if x is not None]
        for x, y in zip(found, expected, strict=True):
            np.testing.assert_array_equal(x, y, err_msg=argument)
            assert np.asarray(x).dtype.isnative, argument


def as_tuple(result):
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", SELECTION)
def test_selection_reads_what_arrays_say(backend, name, layout):
    call, arguments = SELECTION[name]
    check(name, call, arguments, layout, backend=backend)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", SCORING)
def test_scoring_reads_what_arrays_say(host_scorer, name, layout):
    call, arguments = SCORING[name]
    check(name, call, arguments, layout, backend=host_scorer)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OTHERS)
def test_the_rest_reads_what_arrays_say(name, layout):
    check(name, *OTHERS[name], layout)


@pytest.mark.parametrize("name", [*SELECTION, *SCORING, "Corpus", "merge_partials", "answer_logprobs_partials"])
def test_masks_are_refused(name):
    """A result that ignores a mask is silently wrong, whichever argument has it."""
    call, arguments = (SELECTION | SCORING | OTHERS)[name]
    for argument, value in arguments.items():
        if isinstance(value, np.ndarray):
            masked = np.ma.masked_array(value, np.arange(value.size).reshape(value.shape) == 1)
            message = rf"\S*{argument} must be an array without a mask, got a masked one; fill it with \.filled\(\)"
            with pytest.raises(TypeError, match=rf"^\w+: {message}$"):
                call(**{**arguments, argument: masked})


def test_the_compiled_module_refuses_other_byte_orders(compiled):
    """The last line of defence, should a check before it be lost."""
    problem = {"queries": f32(2, 6), "embeddings": ROWS, "k": 2, "candidates": np.array([[1, 2, 3], [4, 5, 6]])}
    for kind in (np.int32, np.int64):
        for name in ("candidates", "initial"):
            checked = validate.selection("mmr", **problem)
            array = swapped(problem["candidates"].astype(kind))
            changed = {"candidates": array} if name == "candidates" else {"constraints": Constraints(initial=array)}
            checked = dataclasses.replace(checked, **changed)
            with pytest.raises(ValueError, match=f"^_C: {name}$"):
                cpu.mmr(checked, 1)
