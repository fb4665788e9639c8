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
STORED = ("float32", "float16", "bfloat16", "int8")  # the last of a corpus
# Shared memory of a block, which decides the kernel: rows in shared memory, or products of few rows of 16 or 8 bits;
# only the state; neither.
PLACES = {"resident": emulator.MAX_SHARED, "streaming": 2_600, "workspace": 700}
# Of rows of 16 bits and pools of 129 or more: in the registers of a cluster, or read in each pass, by the device.
PLACES |= dict.fromkeys(("held", "met"), emulator.MAX_SHARED)
CAPABILITIES = {"met": 80}
WITHOUT_VARIANT = ("resident", "streaming", "workspace")
# The most items and initial items of a small pool; the query has slots too.
SMALL = {"float16": 126, "bfloat16": 125, "int8": 124}
# Types and places of every kernel; of each kind of kernel.
COLUMNS = ("held", "met")
QUICK_COLUMNS = tuple(("float16", place) for place in COLUMNS)
KERNELS = (
    *((dtype, place) for dtype in STORED for place in WITHOUT_VARIANT),
    *QUICK_COLUMNS,
    *(("bfloat16", place) for place in COLUMNS),
)
KINDS = (
    *(("float32", place) for place in WITHOUT_VARIANT),
    *((dtype, "resident") for dtype in SMALL),
    *QUICK_COLUMNS,
)
# What each source calls its element types, as bits; each of them is a build, which takes seconds.
_TYPES = {
    "greedy_select": ("RSK_SELECT_TYPES", STORED),
    "greedy_small": ("RSK_SMALL_TYPES", tuple(SMALL)),
    "greedy_held": ("RSK_HELD_TYPES", ("float16", "bfloat16")),
    "greedy_met": ("RSK_MET_TYPES", ("float16", "bfloat16")),
}
# The types and places of quick tests, which are one build of each source.
_QUICK = (*(("float32", place) for place in WITHOUT_VARIANT), ("float16", "resident"), *QUICK_COLUMNS)


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

    def __call__(self, op, arguments, *, place="resident", seed=0, removed=0, sanitizer=""):
        """What the operation selects; ``removed`` is the barrier that is left out."""
        problem = checked(op, arguments)

        def load(source):
            module = kernels(source, problem.rows.dtype, sanitizer)
            module.seed, module.removed, module.shared_limit = seed, removed, PLACES[place]
            module.launches = self.launches
            module.capability = lambda like: CAPABILITIES.get(place, self.capability)
            return module

        self.patch.setattr(cuda_module, "load", load)
        self.patch.setenv("RAGSYS_KERNELS_VARIANTS", "pools=held" if place in COLUMNS else "")
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


def problem_of(op, *shape, dtype="float32", metric=None, **options):
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
