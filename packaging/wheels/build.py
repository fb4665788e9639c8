"""Build the source archive and a manylinux wheel for each version of CPython and processor: `make wheels`.

Zig compiles: its package brings clang, and what to link against of any glibc, for every processor. So one machine
builds for all, and a wheel needs no newer glibc than the one named here, whatever the machine has. Each wheel is built
from the source archive by an interpreter of its version; for another processor by the same interpreter, which is told
that it runs there.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from pythons import MACHINES, ROOT, UNPACKED, VERSIONS, find_python

GLIBC = "2.28"  # RHEL 8, Debian 10, Ubuntu 18.10 and newer
TOOLS = Path(sys.executable).parent  # of the virtual environment with build, auditwheel and twine
REQUIRES = ("setuptools>=77", "pybind11>=2.13")


def run(*command: object, cwd: Path | None = None, **env: str) -> str:
    """Run a command and return what it prints; one that fails ends the build."""
    words = [str(word) for word in command]
    paths = {"PATH": f"{TOOLS}{os.pathsep}{os.environ['PATH']}"}  # auditwheel looks for patchelf there
    found = subprocess.run(
        words, cwd=cwd, env=os.environ | paths | env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if found.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{found.stdout[-4000:]}")
    return found.stdout


def source_archive(out: Path) -> Path:
    run(sys.executable, "-m", "build", "--sdist", "--outdir", out, ROOT)
    return max(out.glob("*.tar.gz"), key=lambda path: path.stat().st_mtime)


def environment(version: str, python: Path) -> Path:
    """Return the interpreter of a virtual environment with what pyproject.toml builds with."""
    folder = ROOT / "build" / "wheels" / version
    if not (folder / "ready").is_file() or not (folder / "bin/python").is_file():  # its interpreter may have gone
        shutil.rmtree(folder, ignore_errors=True)
        run(TOOLS / "uv", "venv", "--quiet", "--python", python, folder)
        run(TOOLS / "uv", "pip", "install", "--quiet", "--python", folder / "bin/python", *REQUIRES, "build", "wheel")
        (folder / "ready").touch()
    return folder / "bin/python"


def compiler(folder: Path, version: str, machine: str) -> dict[str, str]:
    """Return the variables by which setuptools compiles with Zig for a processor."""
    driver = folder / "zig-c++"
    # Debian has a pyconfig.h for each processor, and one before them that chooses.
    headers = [f"-I{path.parents[1]}" for path in UNPACKED.glob(f"{machine}-*/usr/include/*/python{version}")]
    zig = f'"{sys.executable}" -m ziglang c++ -target {machine}-linux-gnu.{GLIBC}'
    driver.write_text(f'#!/bin/sh\nexec {zig} "$@" {" ".join(headers)}\n')
    driver.chmod(0o755)
    linker = f"{driver} -shared -s"
    return {"CC": str(driver), "CXX": str(driver), "LDSHARED": linker, "LDCXXSHARED": linker}


def interpreters(versions: Sequence[str], available: bool = False) -> dict[str, Path]:
    """Return an interpreter of each version, or of those that are here if `available`; say which are missing."""
    found = {version: find_python(version) for version in versions}
    missing = [version for version in versions if found[version] is None]
    here = [version for version in versions if version not in missing]
    if missing and available and here:
        print(f"left out: Python {', '.join(missing)}, of which no interpreter with headers is here", flush=True)
    elif missing:
        raise SystemExit(
            f"make wheels: Python {', '.join(missing)} with headers must be here, found {', '.join(here) or 'none'}; "
            f"install them (pyenv, uv), or on Debian: python packaging/wheels/debian.py {' '.join(missing)}"
            + ("; without them: make wheels ARGS=--available" if here else "")
        )
    return {version: python for version, python in found.items() if python is not None}


def build_wheel(archive: Path, version: str, python: Path, machine: str, out: Path) -> Path:
    python = environment(version, python)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with tarfile.open(archive) as files:
            files.extractall(folder, filter="data")
        (source,) = (path for path in folder.iterdir() if path.is_dir())
        env = compiler(folder, version, machine) | {"RAGSYS_KERNELS_REQUIRE_EXT": "1"}
        if machine != os.uname().machine:
            env["_PYTHON_HOST_PLATFORM"] = f"linux-{machine}"
            env["SETUPTOOLS_EXT_SUFFIX"] = f".cpython-{version.replace('.', '')}-{machine}-linux-gnu.so"
        run(python, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder / "plain", source, **env)
        (plain,) = (folder / "plain").iterdir()
        # auto: named after the oldest glibc whose symbols it uses; the names of other processors are not accepted.
        run(TOOLS / "auditwheel", "repair", "--plat", "auto", "--only-plat", "-w", folder / "repaired", plain)
        (wheel,) = (folder / "repaired").iterdir()
        glibc = re.search(rf"manylinux_(\d+)_(\d+)_{machine}", wheel.name)
        if glibc is None or tuple(map(int, glibc.groups())) > tuple(map(int, GLIBC.split("."))):
            raise SystemExit(f"make wheels: {wheel.name} needs a newer glibc than {GLIBC}")
        return Path(shutil.move(wheel, out / wheel.name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="default: dist")
    parser.add_argument("--python", nargs="+", choices=VERSIONS, default=VERSIONS, help="default: all")
    parser.add_argument("--machine", nargs="+", choices=MACHINES, default=tuple(MACHINES), help="default: all")
    parser.add_argument("--available", action="store_true", help="leave out versions without an interpreter here")
    args = parser.parse_args()
    pythons = interpreters(args.python, args.available)
    args.out.mkdir(parents=True, exist_ok=True)
    archive = source_archive(args.out)
    print(f"{archive.name}  {archive.stat().st_size / 1e6:.1f} MB", flush=True)
    for version, python in pythons.items():
        for machine in args.machine:
            start = time.monotonic()
            wheel = build_wheel(archive, version, python, machine, args.out)
            print(f"{wheel.name}  {wheel.stat().st_size / 1e6:.1f} MB  {time.monotonic() - start:.0f} s", flush=True)
    files = sorted(str(path) for path in args.out.iterdir() if path.suffix in (".whl", ".gz"))
    run(TOOLS / "twine", "check", "--strict", *files)
    print(f"twine check --strict: {len(files)} files passed")


if __name__ == "__main__":
    main()
