"""What tests of CUDA C++ selection share: runs on the CPU, problems, and memory in which what was not written shows."""

import functools

import numpy as np
import pytest
from backends import missing
from cuda_on_cpu import emulator

from ragsys_kernels import Corpus, testing
from ragsys_kernels._base import arrays as _arrays
from ragsys_kernels._gpu import cuda_module
from ragsys_kernels.selection import validate
from ragsys_kernels.selection.cuda import backend as cuda_kernels

OPS = ("mmr", "vrsd", "msd")
# What runs a pool: the products of few rows of 16 or 8 bits with one another; of rows of 16 bits and pools of 129 or
# more, in the registers of a cluster or, on an older device, read in each pass.
PLACES = ("gram", "resident", "streamed")
COLUMNS = ("resident", "streamed")
CAPABILITIES = {"streamed": 80}
# The most items and initial items of gram; the query has slots too.
GRAM = {"float16": 126, "bfloat16": 125, "int8": 124}
# Types and places of every kernel; the first of each place are one build of each source, for quick tests.
KERNELS = (
    *((dtype, "gram") for dtype in GRAM),
    *((dtype, place) for dtype in ("float16", "bfloat16") for place in COLUMNS),
)
QUICK_COLUMNS = tuple(("float16", place) for place in COLUMNS)
# One type of each place, and all of gram.
KINDS = (*((dtype, "gram") for dtype in GRAM), *QUICK_COLUMNS)
# What each source calls its element types, as bits; each of them is a build, which takes seconds.
_TYPES = {
    "greedy_gram": ("RSK_GRAM_TYPES", tuple(GRAM)),
    "greedy_resident": ("RSK_RESIDENT_TYPES", ("float16", "bfloat16")),
    "greedy_streamed": ("RSK_STREAMED_TYPES", ("float16", "bfloat16")),
}
_QUICK = (("float16", "gram"), *QUICK_COLUMNS)


def quick_or_slow(cases):
    """Cases that begin with a type and a place, those of other builds as slow ones."""
    return [pytest.param(*case, marks=() if case[:2] in _QUICK else pytest.mark.slow) for case in cases]


def dtypes(quick, *others):
    """Element types of which the first is for the quick tests."""
    return [quick, *(pytest.param(other, marks=pytest.mark.slow) for other in others)]


@functools.cache
def kernels(source, dtype, sanitizer=""):
    """The kernels of a source for one element type."""
    if reason := emulator.why_not():
        missing("cuda", reason)
    name, dtypes = _TYPES[source]
    return emulator.Module(source, sanitizer, defines=(f"{name}={1 << dtypes.index(dtype)}",))


class Runs:
    """Runs operations of the backend; ``launches`` are all so far."""

    def __init__(self, monkeypatch):
        self.launches, self.patch, self.capability = [], monkeypatch, 90
        monkeypatch.setattr(_arrays, "empty", not_empty)

    def __call__(self, op, arguments, *, place="gram", seed=0, removed=0, sanitizer=""):
        """What the operation selects; ``removed`` is the barrier that is left out."""
        problem = checked(op, arguments)
        dtype = problem.rows.dtype if problem.rows.dtype in GRAM else "float16"  # refused before a launch

        def load(source):
            module = kernels(source, dtype, sanitizer)
            module.seed, module.removed = seed, removed
            module.launches = self.launches
            module.capability = lambda like: CAPABILITIES.get(place, self.capability)
            return module

        self.patch.setattr(cuda_module, "load", load)
        return getattr(cuda_kernels, op)(problem, 1)

    @property
    def kernel(self):
        """The kernel that was launched last."""
        return self.launches[-1][0]


def not_empty(like, shape, dtype):
    """Memory in which every number that was not written shows: NaN, or -1."""
    array = np.empty(shape, dtype)
    array.view(np.uint8).fill(0xFF) if array.size else None
    return array


def problem_of(op, *shape, dtype="float16", metric=None, **options):
    """Arguments for the operation; of bfloat16, whose arrays torch makes, and of int8, whose rows a corpus has."""
    if dtype == "bfloat16":
        pytest.importorskip("torch")
    if op == "vrsd":
        options.pop("bias", None)
    arguments = testing.selection_problem(*shape, dtype="float32" if dtype == "int8" else dtype, **options)
    if metric is not None:
        arguments["metric"] = metric
    if dtype == "int8":
        rows = arguments["embeddings"].astype(np.int8 if options.get("kind") == "integers" else np.float32)
        arguments["embeddings"] = Corpus(rows, dtype="int8", metric=arguments.get("metric", "cosine"))
    return {k: v for k, v in arguments.items() if op != "vrsd" or k not in ("lambda_d", "lambda_b")}


def pool_of(place, few):
    """The items of a pool: so few, or as many as the kernel is for."""
    return 140 if place in COLUMNS else few


def checked(op, arguments):
    """The problem of these arguments, whose weights have the library's defaults unless they are given."""
    defaults = {"lambda_d": 0.75, "lambda_b": 0.95} if op != "vrsd" else {}
    return validate.selection(op, **{**defaults, **arguments})


def of_a_sector(rows):
    """The same rows where a sector of memory begins, so that reads of them can be counted."""
    memory = np.empty(rows.size + 32 // rows.itemsize, rows.dtype)
    begin = -memory.ctypes.data % 32 // rows.itemsize
    moved = memory[begin : begin + rows.size].reshape(rows.shape)
    moved[...] = rows
    return moved


def assert_same(a, b):
    for name, x, y in zip(a._fields, a, b, strict=True):
        np.testing.assert_array_equal(x, y, err_msg=name)
