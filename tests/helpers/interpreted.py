"""For modules whose tests need Triton's interpreter, which a process has from its start or never."""

import functools
import importlib.util
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


if HERE:
    from triton.runtime import interpreter

    from ragsys_kernels._gpu.interpreter import mend

    mend()

    interpreter.InterpreterBuilder.create_dot = _dot
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
