"""Arrays in another byte order or off their alignment, for every operation and each of its array arguments: the result
has the same bits, or the argument, one that is never copied, is refused by name; so is any with a mask."""

import copy
import dataclasses
import itertools
import operator
import re

import numpy as np
import pytest
from operations import OTHERS, ROWS, SCORING, SELECTION, f32

import ragsys_kernels as rk
from ragsys_kernels import testing
from ragsys_kernels.selection import cpu, validate
from ragsys_kernels.selection.constraints import Constraints


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


NEVER_COPIED = {(name, argument) for name in ("mmr", "vrsd", "Corpus", *SCORING) for argument in STORED}


def check(name, call, arguments, **options):
    expected = [x for x in as_tuple(call(**arguments, **options)) if x is not None]
    arrays = [argument for argument, value in arguments.items() if isinstance(value, np.ndarray)]
    assert arrays
    for argument, (layout, changed_layout) in itertools.product(arrays, LAYOUTS.items()):
        if arguments[argument].itemsize == 1:
            continue
        value = changed_layout(arguments[argument])
        changed = {**arguments, argument: value}
        if (name, argument) in NEVER_COPIED:
            op = name.removesuffix("_ids")
            message = f"{op}: {argument} must be aligned and in native byte order; copy it once with np.array"
            with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
                call(**changed, **options)
            continue
        found = [x for x in as_tuple(call(**changed, **options)) if x is not None]
        for x, y in zip(found, expected, strict=True):
            np.testing.assert_array_equal(x, y, err_msg=f"{argument} {layout}")
            assert np.asarray(x).dtype.isnative, f"{argument} {layout}"


def as_tuple(result):
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("name", SELECTION)
def test_selection_reads_what_arrays_say(backend, name):
    check(name, *SELECTION[name], backend=backend)


@pytest.mark.parametrize("name", SCORING)
def test_scoring_reads_what_arrays_say(scorer, name):
    check(name, *SCORING[name], backend=scorer)


@pytest.mark.parametrize("name", OTHERS)
def test_the_rest_reads_what_arrays_say(name):
    check(name, *OTHERS[name])


PARTIALS = ("merge_partials", "answer_logprobs_partials", "top_logprobs_partials")


@pytest.mark.parametrize("name", [*SELECTION, *SCORING, "Corpus", *PARTIALS])
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


def wrongly_typed(array):
    return array.view(np.uint8).astype(np.int8) if array.dtype.kind in "bu" else array.astype(np.complex64)


def changed(record, name, value):
    """A copy of a record with another value of what a path of attributes leads to."""
    first, _, rest = name.partition(".")
    found = copy.copy(record)
    object.__setattr__(found, first, changed(getattr(record, first), rest, value) if rest else value)
    return found


OF_POOLS = (
    "queries", "candidates", "relevance", "bias", "ks", "lambda_d", "lambda_b", "rows.scales", "rows.codes",
    "constraints.initial", "constraints.groups", "constraints.query_groups", "constraints.costs", "constraints.budget",
    "constraints.max_similarity", "options.quality",
)  # fmt: skip
OF_A_CORPUS = ("constraints.filter.mask", "constraints.filter.exclude")


@pytest.mark.parametrize("name", OF_POOLS + OF_A_CORPUS)
def test_the_compiled_module_refuses_by_name_what_does_not_fit(compiled, name):
    """Each array that it reads of a problem: of another size, of another type, and what is no array."""
    rng, Q, N = np.random.default_rng(0), 2, 12
    problem = {
        "queries": f32(Q, 6), "embeddings": rk.Corpus(f32(N, 6), dtype="float16"), "k": np.array([2, 3]),
        "bias": f32(N), "initial": [[0], [1]], "groups": np.arange(N), "query_groups": [3, 4], "costs": rng.random(N),
        "budget": 4.0, "max_similarity": 0.9, "quality": 1 + rng.random(N, np.float32),
    }  # fmt: skip
    if name in OF_POOLS:
        problem["candidates"] = np.array([[5, 6, 7], [8, 9, 10]])
    else:
        problem.update(allowed=np.arange(N) > 2, exclude=[[5, 6], [7, 8]])
    if name == "relevance":
        problem["relevance"] = f32(Q, 3)
    checked = testing.checked_problem("dpp", problem)
    assert cpu.run(checked, 1)[0].lengths.all()
    array, word = operator.attrgetter(name)(checked), name.split(".")[-1]
    for wrong in (array[:-1], wrongly_typed(array), array.tolist()):
        with pytest.raises(ValueError, match=f"^_C: {word}$"):
            cpu._call(changed(checked, name, wrong), 1)
