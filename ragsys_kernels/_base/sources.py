"""Digests of the sources of compiled kernels: they tell whether a binary was built from the sources beside it.

The times of files cannot tell this: in a copy they are arbitrary. setup.py runs this file without the package.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

# For nvcc and NVRTC. CuPy always passes -ftz=true to NVRTC, so the ahead-of-time build needs it for the same bits.
CUDA_OPTIONS = ("-std=c++17", "-ftz=true")


def expanded(path: Path) -> str:
    """Return the text of a CUDA C++ source with the text of its includes.

    The key of CuPy's cache is the text of a source: without the headers in it, a change in a header would go unnoticed.
    """
    seen = set[str]()

    def expand(path: Path) -> str:
        lines = [f'#line 1 "{path.name}"']
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            included = re.fullmatch(r'\s*#\s*include\s+"([^"]+)"\s*', line)
            if included is None:
                lines.append("" if re.fullmatch(r"\s*#\s*pragma\s+once\s*", line) else line)
                continue
            if included[1] not in seen:
                seen.add(included[1])
                lines.append(expand(path.with_name(included[1])))
            lines.append(f'#line {number + 1} "{path.name}"')
        return "\n".join(lines)

    return expand(path) + "\n"


def of_cuda(path: Path) -> str:
    """Return the digest of a CUDA C++ source: of its text without comments, and of the options."""
    return of_text(re.sub(r"[ \t]*//[^\n]*", "", expanded(path)) + str(CUDA_OPTIONS))


def binary_of(path: Path) -> str:
    """Return the name of the binary of a CUDA C++ source as it is now."""
    return f"{path.stem}-{of_cuda(path)}.fatbin"


def of_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def of_extension(root: Path) -> str:
    """Return the digest of the files that the extension is built from; it is the build id of the binary."""
    parts = hashlib.sha256()
    for path in _of_extension(root):
        content = path.read_bytes()
        parts.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode() + content)
    return parts.hexdigest()[:32]


def _of_extension(root: Path) -> Iterator[Path]:
    yield root / "setup.py"
    yield from sorted(path for path in (root / "csrc" / "cpu").rglob("*") if path.is_file())


def is_of(binary: Path, digest: str) -> bool:
    """Return whether a binary has a digest as its build id."""
    return binary.is_file() and bytes.fromhex(digest) in binary.read_bytes()
