"""What a process tells the one that started it: lines of its output that begin with "@ ", each a JSON object."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

MARK = "@ "


def tell(**facts: Any) -> None:
    """Print facts for the caller; empty ones are left out."""
    known = {name: value for name, value in facts.items() if value not in ([], {}, None)}
    if known:
        print(MARK + json.dumps(known), flush=True)


def told(lines: Iterable[str]) -> dict[str, Any]:
    """Return all facts of an output: lists one behind the other, objects as one, of the rest what came last."""
    found: dict[str, Any] = {}
    for line in lines:
        if not line.startswith(MARK):
            continue
        try:
            facts = json.loads(line[len(MARK) :])
        except ValueError:  # the line of a process that was killed
            continue
        for name, value in facts.items():
            if isinstance(value, list):
                found[name] = [*found.get(name, []), *value]
            elif isinstance(value, dict):
                found[name] = {**found.get(name, {}), **value}
            else:
                found[name] = value
    return found
