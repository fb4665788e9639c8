"""The optional C++ extension and the optional CUDA binaries, and nothing else; all metadata is in pyproject.toml.

RAGSYS_KERNELS_REQUIRE_EXT=1 turns a failed compilation into a failed install, RAGSYS_KERNELS_NO_EXT=1 builds a
pure-Python wheel. Without either, a failed compilation is one line and the NumPy reference does the work.

RAGSYS_KERNELS_CUDA=1 compiles csrc/cuda with nvcc into ragsys_kernels/_cuda_bin/<name>-<digest>.fatbin, and fails where
it cannot. Without it, NVRTC compiles the sources, which every wheel carries, when a kernel is first launched.

Binaries are known by digests of their sources (ragsys_kernels/_base/sources.py): the extension's is its build id.
"""

import os
import runpy
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension, build_ext
from setuptools import Command, setup
from setuptools.command.build import build
from setuptools.errors import BaseError, CompileError

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
CUDA = Path("csrc/cuda")

# The package cannot be imported here: it needs NumPy.
sources = SimpleNamespace(**runpy.run_path("ragsys_kernels/_base/sources.py"))

# A binary runs on later minor versions of its architecture; the PTX of the newest is for what comes after. Kernels have
# no instructions of one architecture alone (sm_90a).
ARCHITECTURES = (80, 90, 100)
NVCC_FLAGS = ["-fatbin", *sources.CUDA_OPTIONS, "-O3", "-Werror=all-warnings"]


def extension() -> Pybind11Extension:
    return Pybind11Extension(
        "ragsys_kernels._C",
        sorted(str(p) for p in CPU.rglob("*.cpp")),
        cxx_std=17,
        include_dirs=[str(CPU)],
        depends=sorted(str(p) for pattern in ("*.h", "*.inl") for p in CPU.rglob(pattern)),
        extra_compile_args=[] if sys.platform == "win32" else FLAGS,
        extra_link_args=link_flags(),
        optional=os.environ.get("RAGSYS_KERNELS_REQUIRE_EXT") != "1",
    )


def link_flags():
    flags = [] if sys.platform == "win32" else ["-pthread"]
    return [*flags, f"-Wl,--build-id=0x{sources.of_extension(Path())}"] if sys.platform == "linux" else flags


class build_kernels(build_ext):  # noqa: N801
    """Says in one line what an installation without the compiled kernels lacks."""

    def build_extension(self, ext):
        try:
            super().build_extension(ext)
        except (CompileError, BaseError) as error:
            if not ext.optional:
                raise
            command = getattr(self.compiler, "compiler_cxx", None) or ["c++"]
            there = sys.platform == "win32" or shutil.which(command[0])
            reason = f"they cannot be compiled here ({error})" if there else f"there is no C++ compiler ({command[0]})"
            print(
                f"ragsys_kernels: installing without the compiled kernels: {reason}; "
                f"{'see above' if there else 'install one (Debian and Ubuntu: apt-get install g++)'} and reinstall",
                file=sys.stderr,
            )


def find_nvcc() -> str:
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    places = [str(Path(home, "bin"))] if home else [None, "/usr/local/cuda/bin"]  # None: PATH
    for place in places:
        found = shutil.which("nvcc", path=place)
        if found:
            return found
    where = f"in {places[0]} (CUDA_HOME)" if home else "on PATH or in /usr/local/cuda/bin; set CUDA_HOME"
    raise SystemExit(
        f"RAGSYS_KERNELS_CUDA=1 asks for compiled CUDA kernels, but there is no nvcc {where}. Without the variable "
        "they are compiled when first used."
    )


def cuda_is_wanted():
    return os.environ.get("RAGSYS_KERNELS_CUDA") == "1"


class build_cuda(Command):  # noqa: N801  # setuptools' own spelling
    """Compile csrc/cuda into fatbins inside the package."""

    description = "compile the CUDA kernels (RAGSYS_KERNELS_CUDA=1)"
    user_options = [("build-lib=", "b", "directory to compile to")]  # noqa: RUF012
    editable_mode = False

    def initialize_options(self):
        self.build_lib = None

    def finalize_options(self):
        self.set_undefined_options("build_py", ("build_lib", "build_lib"))

    def outputs(self):
        folder = Path("." if self.editable_mode else self.build_lib, "ragsys_kernels", "_cuda_bin")
        return {source: folder / sources.binary_of(source) for source in sorted(CUDA.glob("*.cu"))}

    def run(self):
        """Compile what has no binary yet, side by side, and remove binaries of other sources."""
        outputs = self.outputs()
        folder = next(iter(outputs.values())).parent
        folder.mkdir(parents=True, exist_ok=True)
        for other in set(folder.glob("*.fatbin")) - set(outputs.values()):
            other.unlink()
        nvcc = find_nvcc()
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            missing = [source for source, output in outputs.items() if not output.is_file()]
            for failed in filter(None, pool.map(lambda source: self.compile(nvcc, source, outputs[source]), missing)):
                raise SystemExit(failed)

    def compile(self, nvcc, source, output):
        """Return what is wrong, None where nothing is."""
        targets = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in ARCHITECTURES]
        targets.append(f"-gencode=arch=compute_{ARCHITECTURES[-1]},code=compute_{ARCHITECTURES[-1]}")
        partial = output.with_suffix(".partial")
        command = [nvcc, *NVCC_FLAGS, *targets, "-o", str(partial), str(source)]
        if subprocess.run(command).returncode != 0:
            partial.unlink(missing_ok=True)
            return f"RAGSYS_KERNELS_CUDA=1: nvcc failed on {source}: {' '.join(command)}"
        partial.replace(output)
        return None

    def get_source_files(self):
        return sorted(str(path) for path in CUDA.glob("*.cu*"))

    def get_outputs(self):
        return [str(path) for path in self.outputs().values()]

    def get_output_mapping(self):
        return {}


class build_all(build):  # noqa: N801
    sub_commands = [*build.sub_commands, ("build_cuda", lambda self: cuda_is_wanted())]  # noqa: RUF012


# The files of the extension side by side: half the time on two cores.
ParallelCompile().install()
setup(
    ext_modules=[] if os.environ.get("RAGSYS_KERNELS_NO_EXT") == "1" else [extension()],
    cmdclass={"build": build_all, "build_ext": build_kernels, "build_cuda": build_cuda},
)
