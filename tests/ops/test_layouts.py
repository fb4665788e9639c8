"""Arrays in another byte order or off their alignment, for every operation and each of its array arguments: the result
has the same bits, or the argument, one that is never copied, is refused by name; so is any with a mask."""

import dataclasses
import itertools
import re

import numpy as np
import pytest
from operations import OTHERS, ROWS, SCORING, SELECTION, f32

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
def test_scoring_reads_what_arrays_say(host_scorer, name):
    check(name, *SCORING[name], backend=host_scorer)


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
