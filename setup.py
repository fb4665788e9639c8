"""The optional C++ extension, and nothing else; all metadata is in pyproject.toml.

RAGSYS_KERNELS_REQUIRE_EXT=1 turns a failed compilation into a failed install, RAGSYS_KERNELS_NO_EXT=1 builds a
pure-Python wheel. Without either, a failed compilation is a warning and the NumPy reference does the work.
"""

import os
import sys
from pathlib import Path

from pybind11.setup_helpers import Pybind11Extension, build_ext
from setuptools import setup

# -ffp-contract=off: a multiply-add is fused only where the kernels say so, or the pruned and the dense rule could
# round the same score differently.
FLAGS = [
    "-O3",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-Wall",
    "-Wextra",
    "-Wno-psabi",
    "-pthread",
]
CPU = Path("csrc/cpu")


def extension() -> Pybind11Extension:
    return Pybind11Extension(
        "ragsys_kernels._C",
        sorted(str(p) for p in CPU.glob("*.cpp")),
        cxx_std=17,
        include_dirs=[str(CPU)],
        depends=sorted(str(p) for pattern in ("*.h", "*.inl") for p in CPU.glob(pattern)),
        extra_compile_args=[] if sys.platform == "win32" else FLAGS,
        extra_link_args=[] if sys.platform == "win32" else ["-pthread"],
        optional=os.environ.get("RAGSYS_KERNELS_REQUIRE_EXT") != "1",
    )


setup(
    ext_modules=[] if os.environ.get("RAGSYS_KERNELS_NO_EXT") == "1" else [extension()],
    cmdclass={"build_ext": build_ext},
)
