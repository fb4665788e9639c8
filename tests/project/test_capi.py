"""The C interface has the bits of the Python package; `make test-capi` builds it first."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import ragsys_kernels as rk

LIBRARY = Path(__file__).parents[2] / "build" / "capi" / "libragsys_kernels.so"
pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="the C interface is not built: make capi")


class Matrix(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("rows", "columns", "stride")),
        ("dtype", ctypes.c_int32),
    ]


class SelectOptions(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("metric", ctypes.c_int32),
        ("num_threads", ctypes.c_int32),
        ("lambda_d", ctypes.c_double),
        ("lambda_b", ctypes.c_double),
        ("bias", ctypes.c_void_p),
        ("candidates", ctypes.c_void_p),
        ("pool", ctypes.c_int64),
    ]


def test_capi_selections_have_the_bits_of_the_package():
    library, rng = ctypes.CDLL(str(LIBRARY)), np.random.default_rng(3)
    queries = rng.standard_normal((5, 40)).astype(np.float32)
    memory = rng.standard_normal((300, 48)).astype(np.float32)
    for number, dtype in enumerate((np.float32, np.float16)):
        rows = memory.astype(dtype)[:, :40]
        matrix = Matrix(rows.ctypes.data, 300, 40, 48, number)
        for op in ("mmr", "vrsd"):
            for metric in ("cosine", "dot"):
                options = SelectOptions()
                library.rk_select_options_init(ctypes.byref(options))
                assert options.size == ctypes.sizeof(SelectOptions)
                options.metric = int(metric == "dot")
                options.lambda_d = 0.7 if op == "mmr" else 1.0
                found = (np.empty((5, 8), np.int64), *(np.empty((5, 8), np.float32) for _ in range(3)))
                lengths = np.empty(5, np.int32)
                out = (ctypes.c_void_p * 5)(*(array.ctypes.data for array in (*found, lengths)))
                status = getattr(library, f"rk_{op}")(
                    ctypes.c_void_p(queries.ctypes.data),
                    ctypes.c_int64(5),
                    ctypes.byref(matrix),
                    ctypes.c_int64(8),
                    ctypes.byref(options),
                    out,
                )
                assert status == 0
                given = {"lambda_d": 0.7} if op == "mmr" else {}
                expected = getattr(rk, op)(queries, rows, 8, metric=metric, backend="cpu", **given)
                for mine, theirs in zip((*found, lengths), expected, strict=True):
                    assert mine.tobytes() == theirs.tobytes(), (op, metric, dtype)


def test_capi_logprobs_have_the_bits_of_the_package():
    library, rng = ctypes.CDLL(str(LIBRARY)), np.random.default_rng(4)
    logits = (10 * rng.standard_normal((6, 5000))).astype(np.float32)
    targets, out = rng.integers(0, 5000, 6), np.empty(6, np.float32)
    matrix = Matrix(logits.ctypes.data, 6, 5000, 5000, 0)
    addresses = (ctypes.c_void_p(targets.ctypes.data), None, ctypes.c_void_p(out.ctypes.data))
    assert library.rk_token_logprobs(ctypes.byref(matrix), *addresses) == 0
    assert out.tobytes() == rk.token_logprobs(logits, targets, backend="cpu").tobytes()


def test_an_installation_is_found_by_pkg_config_wherever_it_was_put(tmp_path):
    tools = [shutil.which(name) for name in ("cmake", "pkg-config", "cc")]
    if None in tools:
        pytest.skip("needs cmake, pkg-config and a C compiler")
    prefix = tmp_path / "somewhere"
    subprocess.run(["cmake", "--install", LIBRARY.parent, "--prefix", prefix], check=True, capture_output=True)
    (found,) = prefix.rglob("ragsys_kernels.pc")
    env = {**os.environ, "PKG_CONFIG_PATH": str(found.parent)}
    asked = ["pkg-config", "--cflags", "--libs", "ragsys_kernels"]
    flags = subprocess.run(asked, env=env, check=True, capture_output=True, text=True).stdout.split()
    (tmp_path / "a.c").write_text(
        "#include <ragsys_kernels.h>\n#include <stdio.h>\nint main(void) { puts(rk_version()); return 0; }\n"
    )
    subprocess.run(["cc", tmp_path / "a.c", *flags, "-o", tmp_path / "a"], check=True)
    (library,) = {path.parent for path in prefix.rglob("libragsys_kernels.so*")}
    ran = subprocess.run(
        [tmp_path / "a"], env={**env, "LD_LIBRARY_PATH": str(library)}, check=True, capture_output=True, text=True
    )
    assert ran.stdout.strip() == rk.__version__
