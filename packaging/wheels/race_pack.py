"""Make what a machine with a GPU is given, so that nothing is compiled there: `make race-pack`.

The extension for its CPython and processor, and the CUDA kernels, both in the working tree, where git ignores them.
Zig compiles the extension, as it does those of wheels: it needs no newer glibc than 2.28 and no libstdc++, so it loads
on whatever system that machine has. It is checked here, beside the reference, on each instruction set of the processor.
"""

from __future__ import annotations

import argparse
import runpy
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import build
from pythons import MACHINES, ROOT, VERSIONS

PACKAGE = ROOT / "ragsys_kernels"
sources = SimpleNamespace(**runpy.run_path(str(PACKAGE / "_base" / "sources.py")))  # the package needs NumPy
BINARIES = PACKAGE / "_cuda_bin"
LIMIT = 64 << 20  # bytes that are carried
SMOKE = Path(__file__).with_name("smoke.py")


def extension(version: str, machine: str, python: Path) -> Path:
    """Return the extension for a version of CPython, built where it is not of the sources that are here."""
    built = PACKAGE / f"_C.cpython-{version.replace('.', '')}-{machine}-linux-gnu.so"
    if not sources.is_of(built, sources.of_extension(ROOT)):
        with tempfile.TemporaryDirectory() as folder:
            env = build.compiler(Path(folder), version, machine) | {"RAGSYS_KERNELS_REQUIRE_EXT": "1"}
            place = ("--force", "--inplace", "--build-temp", Path(folder, "objects"))
            build.run(python, "setup.py", "-q", "build_ext", *place, cwd=ROOT, **env)
    if not sources.is_of(built, sources.of_extension(ROOT)):
        raise SystemExit(f"make race-pack: {built} does not have the digest of its sources as its build id")
    return built


def size(paths: Iterable[Path]) -> int:
    return sum(file.stat().st_size for path in paths for file in (path.iterdir() if path.is_dir() else (path,)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", choices=VERSIONS, default="3.12", help="of that machine (default: 3.12)")
    given = parser.parse_args()
    (machine,) = (name for name in MACHINES if name == "x86_64")
    ((version, interpreter),) = build.interpreters([given.python]).items()
    python = build.environment(version, interpreter)
    carried = [extension(version, machine, python)]
    build.run(python, "setup.py", "-q", "build_cuda", "--build-lib", ".", cwd=ROOT)
    carried.append(BINARIES)
    build.run(build.TOOLS / "uv", "pip", "install", "--quiet", "--python", python, "numpy")
    print(build.run(python, SMOKE, PYTHONPATH=str(ROOT)).strip())
    for path in carried:
        print(f"{path.relative_to(ROOT)}  {size([path]) / 2**20:.1f} MiB")
    whole = size(carried)
    if whole > LIMIT:
        raise SystemExit(f"make race-pack: {whole / 2**20:.1f} MiB are more than {LIMIT >> 20}, which can be carried")
    print(f"in all {whole / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
