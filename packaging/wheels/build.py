"""Build the source archive and a wheel for each version of CPython and each machine: `make wheels`.

Zig compiles: its package brings clang, and what to link against of any glibc and of macOS, for every processor. So one
machine builds for all, and a wheel needs no newer system than the one named here, whatever the machine has. Each wheel
is built from the source archive by an interpreter of its version, which is told that it runs on the other machine.
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
from typing import NamedTuple

from pythons import MACHINES, ROOT, UNPACKED, VERSIONS, find_python

GLIBC = "2.28"  # RHEL 8, Debian 10, Ubuntu 18.10 and newer
TOOLS = Path(sys.executable).parent  # of the virtual environment with uv, auditwheel and twine
LOCK = ROOT / "requirements" / "build.lock"  # what wheels are built with, in an environment of each version


class Target(NamedTuple):
    """What a wheel is built for."""

    zig: str  # Zig's name of it, with the oldest system that the wheel runs on
    platform: str  # `sysconfig.get_platform()` there
    suffix: str  # of the extension's name, after the version
    link: str = "-shared -s"


TARGETS = {
    machine: Target(f"{machine}-linux-gnu.{GLIBC}", f"linux-{machine}", f"{machine}-linux-gnu") for machine in MACHINES
} | {"macos": Target("aarch64-macos.11.0", "macosx-11.0-arm64", "darwin", "-shared -s -undefined dynamic_lookup")}


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


def environment(version: str, python: Path) -> Path:
    """Return the interpreter of a virtual environment with what pyproject.toml builds with, as it is locked."""
    folder = ROOT / "build" / "wheels" / version
    ready, there = folder / "ready", folder / "bin/python"
    locked = LOCK.read_bytes()
    if not (ready.is_file() and ready.read_bytes() == locked and there.is_file()):  # its interpreter may have gone
        shutil.rmtree(folder, ignore_errors=True)
        run(TOOLS / "uv", "venv", "--quiet", "--python", python, folder)
        run(TOOLS / "uv", "pip", "install", "--quiet", "--python", there, "--require-hashes", "-r", LOCK)
        ready.write_bytes(locked)
    return there


def compiler(folder: Path, version: str, machine: str) -> dict[str, str]:
    """Return the variables by which setuptools compiles with Zig for a machine."""
    driver, target = folder / "zig-c++", TARGETS[machine]
    # Debian has a pyconfig.h for each processor, and one before them that chooses.
    headers = [f"-I{path.parents[1]}" for path in UNPACKED.glob(f"{machine}-*/usr/include/*/python{version}")]
    zig = f'"{sys.executable}" -m ziglang c++ -target {target.zig}'
    driver.write_text(f'#!/bin/sh\nexec {zig} "$@" {" ".join(headers)}\n')
    driver.chmod(0o755)
    linker = f"{driver} {target.link}"
    return {
        "CC": str(driver), "CXX": str(driver), "LDSHARED": linker, "LDCXXSHARED": linker,
        "_PYTHON_HOST_PLATFORM": target.platform,
        "SETUPTOOLS_EXT_SUFFIX": f".cpython-{version.replace('.', '')}-{target.suffix}.so",
    }  # fmt: skip


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


def build(kind: str, python: Path, source: Path, out: Path, **env: str) -> Path:
    """Return the "sdist" or "wheel" that setuptools makes of a source tree, alone in its folder."""
    program = f"import sys; from setuptools import build_meta; build_meta.build_{kind}(sys.argv[1])"
    run(python, "-c", program, out, cwd=source, **env)
    (made,) = out.iterdir()
    return made


def source_archive(version: str, python: Path, out: Path) -> Path:
    with tempfile.TemporaryDirectory() as folder:
        archive = build("sdist", environment(version, python), ROOT, Path(folder))
        return Path(shutil.move(archive, out / archive.name))


def build_wheel(archive: Path, version: str, python: Path, machine: str, out: Path) -> Path:
    python = environment(version, python)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with tarfile.open(archive) as files:
            files.extractall(folder, filter="data")
        (source,) = (path for path in folder.iterdir() if path.is_dir())
        env = compiler(folder, version, machine) | {"RAGSYS_KERNELS_REQUIRE_EXT": "1"}
        wheel = build("wheel", python, source, folder / "plain", **env)
        if machine in MACHINES:
            wheel = manylinux(wheel, machine, folder / "repaired")
        return Path(shutil.move(wheel, out / wheel.name))


def manylinux(plain: Path, machine: str, folder: Path) -> Path:
    """Return the wheel named after the oldest glibc whose symbols it uses."""
    # auto: the names of other processors are not accepted.
    run(TOOLS / "auditwheel", "repair", "--plat", "auto", "--only-plat", "-w", folder, plain)
    (wheel,) = folder.iterdir()
    glibc = re.search(rf"manylinux_(\d+)_(\d+)_{machine}", wheel.name)
    if glibc is None or tuple(map(int, glibc.groups())) > tuple(map(int, GLIBC.split("."))):
        raise SystemExit(f"make wheels: {wheel.name} needs a newer glibc than {GLIBC}")
    return wheel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="default: dist")
    parser.add_argument("--python", nargs="+", choices=VERSIONS, default=VERSIONS, help="default: all")
    parser.add_argument(
        "--machine", nargs="+", choices=TARGETS, default=tuple(MACHINES), help="default: those of Linux"
    )
    parser.add_argument("--available", action="store_true", help="leave out versions without an interpreter here")
    args = parser.parse_args()
    pythons = interpreters(args.python, args.available)
    args.out.mkdir(parents=True, exist_ok=True)
    archive = source_archive(*next(iter(pythons.items())), args.out)
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
