"""The generated parts of README.md and of docs/: where each is, between which marks."""

from __future__ import annotations

from pathlib import Path

PLACES = {
    "speed": "README.md",
    "ledger": "docs/speed.md",
    "drop-ins": "docs/speed.md",
    "rules-speed": "docs/speed.md",
    "scoring": "docs/speed.md",
    "planning": "docs/planning.md",
    "planning-avx2": "docs/planning.md",
    "planning-avx512": "docs/planning.md",
    "executed": "docs/tested.md",
    "gpu-speed": "docs/gpu.md",
    "gpu-headline": "README.md",
    "papers-vrsd": "docs/papers/vrsd.md",
    "papers-vrsd-answers": "docs/papers/vrsd.md",
    "papers-ragsys": "docs/papers/ragsys.md",
    "papers-aicl": "docs/papers/aicl.md",
    "papers-ralm": "docs/papers/ralm.md",
    "papers-ralm-news": "docs/papers/ralm.md",
    "papers-ralm-python": "docs/papers/ralm.md",
    "papers-vrsd-answers-scores": "docs/papers/vrsd.md",
    "papers-boolq": "docs/papers/ralm.md",
    "papers-directions": "docs/papers/index.md",
}


def filled(part: str, text: str) -> str:
    """Return a part as its file has it."""
    return f"<!-- {part}:begin -->\n{text}<!-- {part}:end -->"


def fill(root: Path, part: str, text: str) -> None:
    """Put the text between the marks of a part of its file below the root."""
    path = root / PLACES[part]
    begin, end = (f"<!-- {part}:{mark} -->" for mark in ("begin", "end"))
    before = path.read_text(encoding="utf-8")
    if before.count(begin) != 1 or before.count(end) != 1:
        raise SystemExit(f"error: {path} must have one {begin} and one {end}")
    head, _, rest = before.partition(begin)
    path.write_text(head + filled(part, text) + rest.partition(end)[2], encoding="utf-8")
