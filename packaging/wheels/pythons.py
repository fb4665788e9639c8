"""The interpreters of this machine: those that wheels are built and run by."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}  # of Linux, and Debian's names of them
HERE = "macos" if platform.system() == "Darwin" else os.uname().machine
UNPACKED = ROOT / "build" / "pythons"  # where debian.py puts interpreters that are not installed


def find_python(version: str) -> Path | None:
    """Return an interpreter of this machine: on PATH, of pyenv, of uv, or unpacked by debian.py."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    uv = Path(os.environ.get("UV_PYTHON_INSTALL_DIR", Path.home() / ".local/share/uv/python"))
    places = (
        *(found for found in (shutil.which(f"python{version}"),) if found),
        *sorted(pyenv.glob(f"{version}.*/bin/python{version}")),
        *sorted(uv.glob(f"cpython-{version}.*/bin/python{version}")),
        *sorted(UNPACKED.glob(f"{os.uname().machine}-*/usr/bin/python{version}")),
    )
    return next((Path(place) for place in places if _is(Path(place), version)), None)


def find_foreign(version: str, machine: str) -> list[str] | None:
    """Return the command that starts an interpreter of another processor: qemu's user mode and Debian's package."""
    python = next(iter(sorted(UNPACKED.glob(f"{machine}-*/usr/bin/python{version}"))), None)
    emulator = shutil.which(f"qemu-{machine}")
    return [emulator, "-L", str(python.parents[2]), str(python)] if python and emulator else None


def _is(python: Path, version: str) -> bool:
    """Say whether it starts, as pyenv's shims of versions that are not chosen do not, and can compile an extension."""
    program = (
        "import pathlib, sys, sysconfig; print(*sys.version_info[:2], sep='.', end=' '); "
        "print(pathlib.Path(sysconfig.get_path('include'), 'Python.h').is_file())"
    )
    found = subprocess.run([python, "-c", program], capture_output=True, text=True)
    return found.returncode == 0 and found.stdout.split() == [version, "True"]
