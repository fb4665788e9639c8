"""What the demonstrations do with files and with the command line."""

from __future__ import annotations

import shlex
import subprocess
import sys

import numpy as np
import pyarrow as pa


def vectors(rows: np.ndarray) -> pa.FixedSizeListArray:
    """Return a column of vectors, (N, D), for a table."""
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ravel(rows)), rows.shape[1])


def command(*arguments: object) -> None:
    """Run ragsys-kernels, and print the command as one would type it."""
    words = [str(argument) for argument in arguments]
    print(f"\n$ ragsys-kernels {shlex.join(words)}", flush=True)
    code = subprocess.run([sys.executable, "-m", "ragsys_kernels.cli", *words]).returncode
    if code:
        raise SystemExit(code)
