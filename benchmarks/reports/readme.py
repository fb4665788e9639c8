"""Parts of the README that are generated."""

from __future__ import annotations

from pathlib import Path

PATH = Path(__file__).resolve().parents[2] / "README.md"


def marks(part: str) -> tuple[str, str]:
    return f"<!-- {part}:begin -->", f"<!-- {part}:end -->"


def fill(path: Path, part: str, text: str) -> None:
    """Put the text between the marks of a part of the file."""
    begin, end = marks(part)
    before = path.read_text(encoding="utf-8")
    if before.count(begin) != 1 or before.count(end) != 1:
        raise SystemExit(f"error: {path} must have one {begin} and one {end}")
    head, _, rest = before.partition(begin)
    path.write_text(f"{head}{begin}\n{text}{end}{rest.partition(end)[2]}", encoding="utf-8")
