"""Install each wheel of dist and the source archive in a fresh environment and run smoke.py there: `make check-wheels`.

Wheels of another processor run in qemu's user mode, where debian.py has unpacked an interpreter of their version; those
of macOS run there alone.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pythons import HERE, ROOT, find_foreign, find_python

TOOLS = Path(sys.executable).parent
SMOKE = Path(__file__).with_name("smoke.py")


def call(*command: object, **env: str) -> str:
    words = [str(word) for word in command]
    found = subprocess.run(words, env=_clean() | env, capture_output=True, text=True, cwd="/")
    if found.returncode:
        raise SystemExit(f"make check-wheels: {' '.join(words)} failed:\n{found.stdout[-2000:]}{found.stderr[-2000:]}")
    return found.stdout.strip()


def _clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "RAGSYS_KERNELS"))}


def run_native(file: Path, version: str, folder: Path) -> str | None:
    python = find_python(version)
    if python is None:
        return None
    call(TOOLS / "uv", "venv", "--quiet", "--python", python, folder)
    here = folder / "bin/python"
    call(TOOLS / "uv", "pip", "install", "--quiet", "--python", here, file, RAGSYS_KERNELS_REQUIRE_EXT="1")
    return call(here, SMOKE)


def run_foreign(wheel: Path, version: str, machine: str, folder: Path) -> str | None:
    start = find_foreign(version, machine)
    if start is None:
        return None
    call(
        TOOLS / "uv", "pip", "install", "--quiet", "--target", folder, "--python-version", version,
        "--python-platform", f"{machine}-manylinux_2_28", "--only-binary", ":all:", wheel,
    )  # fmt: skip
    return call(*start, SMOKE, PYTHONPATH=str(folder), RAGSYS_KERNELS_SMOKE_PYTHON="\n".join(start))


def target_of(wheel: Path) -> tuple[str, str]:
    """Return a wheel's version of CPython and its machine, as build.py names them."""
    _, _, python, _, platform = wheel.stem.split("-")
    machine = "macos" if platform.startswith("macosx") else "aarch64" if platform.endswith("aarch64") else "x86_64"
    return f"3.{python[3:]}", machine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "dist", help="default: dist")
    parser.add_argument("--machine", help="only the wheels for this one, each of which has to run")
    args = parser.parse_args()
    folder = args.folder.resolve()  # each is installed from another one
    wheels = [each for each in sorted(folder.glob("*.whl")) if args.machine in (None, target_of(each)[1])]
    if not wheels:
        of = f" for {args.machine}" if args.machine else ""
        raise SystemExit(f"make check-wheels: {folder} has no wheel{of}; `make wheels` builds them")
    lacking = []
    with tempfile.TemporaryDirectory() as temporary:
        for wheel in wheels:
            version, machine = target_of(wheel)
            place = Path(temporary, wheel.stem)
            if machine == HERE:
                found = run_native(wheel, version, place)
            else:
                found = run_foreign(wheel, version, machine, place)
            lacking += [] if found else [wheel.name]
            print(f"{wheel.name}: {found or 'not run: no interpreter of its version and processor here'}", flush=True)
        for archive in sorted(folder.glob("*.tar.gz")):
            version = f"3.{sys.version_info[1]}"
            print(f"{archive.name}: {run_native(archive, version, Path(temporary, 'archive'))}", flush=True)
    if lacking:
        said = f"not run: {len(lacking)} of {len(wheels)} wheels"
        if args.machine:
            raise SystemExit(f"make check-wheels: {said}")
        print(said)


if __name__ == "__main__":
    main()
