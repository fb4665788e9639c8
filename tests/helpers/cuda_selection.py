"""What tests of CUDA C++ selection share: their problems, and memory in which what was not written shows."""

import numpy as np
import pytest

from ragsys_kernels import Corpus, testing
from ragsys_kernels.selection import validate

OPS = ("mmr", "vrsd", "msd")


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


def checked(op, arguments):
    """The problem of these arguments, whose weights have the library's defaults unless they are given."""
    defaults = {"lambda_d": 0.75, "lambda_b": 0.95} if op != "vrsd" else {}
    return validate.selection(op, **{**defaults, **arguments})


def kernel_of(module):
    """The kernel that was launched last."""
    return module.launches[-1][0]


def assert_same(a, b):
    for name, x, y in zip(a._fields, a, b, strict=True):
        np.testing.assert_array_equal(x, y, err_msg=name)
