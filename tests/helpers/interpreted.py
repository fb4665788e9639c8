"""For modules whose tests need Triton's interpreter, which a process has from its start or never.

``TRITON_INTERPRET=1 pytest FILE`` runs the tests of such a file here; without the variable they run in a process that
has it.
"""

import dataclasses
import functools
import importlib.util
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from backends import missing

import ragsys_kernels as rk

try:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
except ImportError:
    TorchDispatchMode = object

HERE = os.environ.get("TRITON_INTERPRET") == "1"


class NoWaiting(TorchDispatchMode):
    """Fails where a device would have to answer before the host can go on."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        assert name not in ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "isin", "equal"), name
        if name in ("index", "index_put", "index_put_"):
            assert all(index is None or index.dtype != torch.bool for index in args[1]), name
        return function(*args, **(kwargs or {}))


def _dot(self, a, b, d, input_precision, max_num_imprecise_acc):
    """a @ b + d whose elements do not depend on their places, as those of NumPy's product do by some BLAS."""
    total = d.data.astype(np.float64)
    for x, y in zip(a.data.T.astype(np.float64), b.data.astype(np.float64), strict=True):
        total += np.multiply.outer(x, y)
    return interpreter.TensorHandle(total.astype(d.data.dtype), d.dtype.scalar)


def patch_once(patch):
    """Patch a module of Triton's language once a launch.

    The interpreter does it at every call of a function of a kernel, by looking through all that the module has, which
    took more than half of the time of these tests.
    """
    done = set()

    @functools.cache
    def languages(function):
        return {
            name for name in ("tl", "core") if any(value is LANGUAGES[name] for value in function.__globals__.values())
        }

    def patch_lang(function):
        if done and languages(function) <= done:
            return interpreter._LangPatchScope()
        outermost = not done
        done.update(languages(function))
        scope = patch(function)
        if outermost:
            restore = scope.restore
            scope.restore = lambda: (done.clear(), restore())
        return scope

    return patch_lang


def dtype_once(dtype_of):
    """NumPy's type of each of Triton's, for which the interpreter makes a table at every call."""
    of_scalar = functools.cache(dtype_of)
    pointer = interpreter.tl.pointer_type

    def np_dtype(dtype):
        return dtype_of(dtype) if isinstance(dtype.scalar, pointer) else of_scalar(dtype.scalar)

    return np_dtype


def sizes(type_):
    """The shape of a type as plain numbers, of which each block keeps its own."""
    if not type_.is_block():
        return ()
    if "sizes" not in vars(type_):
        type_.sizes = tuple(type_.shape)
    return type_.sizes


def broadcast_if_needed(broadcast):
    """What two operands become, at once where both are numbers or blocks of one shape, as most are."""

    def broadcast_value(lhs, rhs):
        if sizes(lhs.type) == sizes(rhs.type):
            return lhs, rhs
        return broadcast(lhs, rhs)

    return broadcast_value


def make_types_once(core, builder):
    """Make the type of a block, and the shape of a tensor, once for all that have it: half of an operation's time."""
    blocks = {}

    def block(element, shape):
        key = element.name, shape  # pointers have no hash
        if key not in blocks:
            blocks[key] = core.block_type(element, list(shape))
        return blocks[key]

    @functools.cache
    def shape_of(shape):
        return core.tuple([core.constexpr(size) for size in shape]), core.constexpr(math.prod(shape))

    def tensor(self, handle, type):
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = shape_of(sizes(type))

    core.tensor.__init__ = tensor
    core.block_type.with_element_ty = lambda self, element: block(element, sizes(self))
    builder.get_block_ty = lambda self, element, shape: block(element, tuple(shape))


def cast_with_rounding(cast):
    """A conversion that rounds float32 to the nearest bfloat16, as a device does; that of the interpreter truncates."""

    def cast_value(self, src, dst_type):
        tl, source, target = interpreter.tl, src.dtype.scalar, dst_type.scalar
        if (source, target) == (tl.bfloat16, tl.float32):
            data = (src.data.astype(np.uint32) << 16).view(np.float32)
        elif (source, target) == (tl.float32, tl.bfloat16):
            bits = src.data.view(np.uint32)
            nearest = (bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16
            data = np.where(np.isnan(src.data), bits >> 16 | 0x40, nearest).astype(np.uint16)
        else:
            return cast(self, src, dst_type)
        return interpreter.TensorHandle(data, target)

    return cast_value


def sort(x, dim=None, descending=False):
    """`tl.sort` of a row by NumPy; that of the interpreter goes through Triton's network, an operation at a time."""
    order = np.sort(x.handle.data, kind="stable")
    data = np.ascontiguousarray(order[..., ::-1] if getattr(descending, "value", descending) else order)
    return interpreter.tl.core.tensor(interpreter.TensorHandle(data, x.dtype), x.type)


if HERE:
    from triton.runtime import interpreter

    from ragsys_kernels._gpu.interpreter import mend

    mend()

    builder = interpreter.InterpreterBuilder
    builder.create_dot = _dot
    builder.cast_impl = cast_with_rounding(builder.cast_impl)
    # Nobody looks at what would be found, as the interpreter has no assertions of a device.
    interpreter.interpreter_builder.options = dataclasses.replace(
        interpreter.interpreter_builder.options, sanitize_overflow=False
    )
    semantic = interpreter.interpreter_semantic
    semantic.broadcast_impl_value = broadcast_if_needed(semantic.broadcast_impl_value)
    make_types_once(interpreter.tl.core, builder)
    interpreter.tl.sort = sort
    LANGUAGES = {"tl": interpreter.tl, "core": interpreter.tl.core}
    interpreter._patch_lang = patch_once(interpreter._patch_lang)
    interpreter._get_np_dtype = dtype_once(interpreter._get_np_dtype)


def run(files, tmp_path, *options):
    """Run test files in a process that interprets."""
    for library in ("torch", "triton"):
        if importlib.util.find_spec(library) is None:
            missing("triton", f"{library} is not installed")
    options = ["-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'inner'}", *options]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *map(str, files)],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(Path(rk.__file__).parents[1])},
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stdout[-20000:]


def elsewhere(module):
    """Last line of such a module: unless this process interprets, one slow test that runs the module in one that does.

    Those of its tests that are not slow also run in `test_interpreted.py`, with those of all such modules.
    """
    if HERE:
        return
    for name in [name for name in module if name.startswith("test_")]:
        del module[name]

    @pytest.mark.slow
    def test_in_the_interpreter(tmp_path):
        run([module["__file__"]], tmp_path)

    module["test_in_the_interpreter"] = test_in_the_interpreter
