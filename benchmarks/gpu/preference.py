"""Write the table of `ragsys_kernels._gpu.preference`: which pools CUDA C++ selects from first.

    python -m benchmarks.gpu.preference

By the times in gpu.csv where it has those of both backends, each by the fastest of its forms, else by computed bounds.

CUDA C++ comes first where it is `MARGIN` times as fast (by times of one run: by more than they vary), for all
dimensions from the least up to some. A form that is slower than its limit does not come first, however slow the other
is.
"""

from __future__ import annotations

import functools
import importlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from benchmarks.gpu import goals, static
from benchmarks.gpu.devices import DEVICES
from benchmarks.gpu.shapes import LEDGER
from benchmarks.gpu.shapes import Pools as Shape
from benchmarks.harness.contender import OURS
from benchmarks.harness.ledger import Row
from ragsys_kernels._gpu import preference, variants
from ragsys_kernels._gpu.preference import Pools

# Bounds are not so exact that less would tell; times are, but for what they vary by.
MARGIN, TIMED_MARGIN = 1.5, 1 + goals.NOISE
# Pools are compared at the upper ends of these intervals; the first is what regime a of Triton holds on chip.
POOLS = (0, 128, 160, 192, 256, 384, 512, 768, 1024)
DIMS = (64, 128, 256, 384, 768, 1024)
PICKS = 10
DTYPES = dict.fromkeys(("mmr", "vrsd", "msd"), ("float32", "float16"))
DEVICE = next(device for device in DEVICES if device.name.startswith("H200"))
BLOCKS = 2  # on a multiprocessor: only what the last-level cache holds depends on it

# µs of a call, by op, shape and the variant of CUDA C++: kernels that were written to be no slower.
LIMITS = {
    ("mmr", str(Shape(100, 10, 384, "float16")), ""): 90.0,
    ("vrsd", str(Shape(100, 10, 384, "float16")), ""): 90.0,
    ("msd", str(Shape(100, 10, 384, "float16")), ""): 90.0,
    ("vrsd", str(Shape(1000, 10, 384, "float16")), ""): 1_200.0,
    ("mmr", str(Shape(1000, 10, 384, "float16")), ""): 850.0,
}

Table = dict[tuple[str, str], tuple[Pools, ...]]
Faster = Callable[[str, str, int, int], float]  # op, dtype, P and D: how many times as fast CUDA C++ is


def by_bounds() -> Faster:
    """Return the ratio of the computed bounds."""
    sizes = [(P, PICKS) for P in POOLS[1:]]
    found: dict[tuple[str, str, str], list[float]] = {}
    for cases in (static.selection(sizes, DIMS), static.cuda_selection(sizes, DIMS)):
        for case in cases:
            if DEVICE.arch in case.archs and case.shape.startswith("P"):
                bound = case.bounds(DEVICE, BLOCKS)["bound"]
                assert isinstance(bound, float)
                found.setdefault((case.op, case.dtype, case.shape), []).append(bound)

    def faster(op: str, dtype: str, P: int, D: int) -> float:
        both = found.get((op, dtype, f"P{P}-K{PICKS}-D{D}"), [])
        return both[1] / both[0] if len(both) == 2 else 1.0  # of one that static.py does not know

    return faster


def is_own(row: Row) -> bool:
    """Return whether a row is of a form that the package has: by default or under a variant, no other change."""
    name, _, variant = row["contender"].partition(", ")
    known = {f"{kernel}={each}" for kernel, names in variants.VARIANTS.items() for each in names}
    return name == OURS and row["backend"] in preference.BACKENDS and (not variant or variant in known)


def limit(op: str, shape: str, backend: str, variant: str) -> float:
    """Return the µs above which a form does not come first."""
    return LIMITS.get((op, shape, variant), math.inf) if backend == "cuda" else math.inf


def varies(row: Row) -> float:
    """Return how far apart times of a form are, as a share: of its rounds, of two passes, or what tells nothing."""
    return max(float(row["iqr_us"] or 0) / float(row["us"]), float(row["spread"] or 0), goals.NOISE)


def by_times(rows: Iterable[Row]) -> Faster | None:
    """Return the ratio of measured times, of the shape that is nearest by P and D; None without times of both.

    Only times of one run are compared. They are the same, a ratio of 1, where CUDA C++ is faster by no more than either
    varies.
    Of shapes with the same P and D it is that with the usual picks, of those the one with the fewest queries.
    """
    times: dict[tuple[str, ...], dict[str, Row]] = {}
    for row in rows:
        if row["us"] and is_own(row):
            run = row["device"], row["commit"], row["date"]
            own = times.setdefault((row["op"], row["dtype"], row["shape"], *run), {})
            own[row["backend"]] = min(row, own.get(row["backend"], row), key=_us)
    both: dict[tuple[str, str, int, int], tuple[int, int, float]] = {}
    for (op, dtype, text, *_), at in times.items():
        shape = re.search(r"-D(\d+)-P(\d+)-K(\d+)-Q(\d+)$", text)
        if shape and len(at) == len(preference.BACKENDS):
            D, P, K, Q = map(int, shape.groups())
            ratio = _us(at["triton"]) / _us(at["cuda"])
            noise = max(map(varies, at.values()))
            found = abs(K - PICKS), Q, 1.0 if 1 < ratio <= 1 + noise else ratio
            both[op, dtype, P, D] = min(found, both.get((op, dtype, P, D), found))
    if not both:
        return None

    def faster(op: str, dtype: str, P: int, D: int) -> float:
        near = [key for key in both if key[:2] == (op, dtype) and (key[2] > 128) == (P > 128)]
        nearest = min(near, key=lambda key: max(key[2] / P, P / key[2]) * max(key[3] / D, D / key[3]), default=None)
        return both[nearest][2] if nearest else 1.0

    return faster


def _us(row: Row) -> float:
    """Return the time of a form, infinite above its limit."""
    us, variant = float(row["us"]), row["contender"].partition(", ")[2]
    return us if us <= limit(row["op"], row["shape"], row["backend"], variant) else math.inf


def table(faster: Faster, margin: float = MARGIN) -> Table:
    """Return the table by a ratio."""
    found = {}
    for op, dtypes in DTYPES.items():
        for dtype in dtypes:
            rows = tuple(_rows(functools.partial(faster, op, dtype), margin))
            if rows:
                found[op, dtype] = rows
    return found


def _rows(faster: Callable[[int, int], float], margin: float) -> Iterator[Pools]:
    """Yield intervals of P with the most dimensions for which CUDA C++ is so much faster; neighbours are joined."""
    last = None
    for before, P in pairwise(POOLS):
        dims = next((i for i, D in enumerate(DIMS) if faster(P, D) < margin), len(DIMS))
        most_dims = DIMS[dims - 1] if dims else 0
        if last and last.most == before and last.most_dims == most_dims:
            last = last._replace(most=P)
            continue
        if last:
            yield last
        last = Pools(before + 1, P, most_dims) if most_dims else None
    if last:
        yield last


def written(text: str, source: str, rows: Table) -> str:
    """Return the module's text with another table."""
    begin, end = "# --- Written by benchmarks/gpu/preference.py.\n", "\n# --- End of what is written."
    head, _, rest = text.partition(begin)
    return head + begin + "\n".join(lines(source, rows)) + end + rest.partition(end)[2]


def lines(source: str, rows: Table) -> list[str]:
    """Return a table as the module has it."""
    text = [f'SOURCE = "{source}"', "TABLE: dict[tuple[str, str], tuple[Pools, ...]] = {"]
    for (op, dtype), found in rows.items():
        pools = [f"Pools({least}, {most}, {most_dims})," for least, most, most_dims in found]
        # As the formatter has it.
        inside = pools[0] if len(pools) == 1 else "\n        ".join(["", *pools]) + "\n    "
        text.append(f'    ("{op}", "{dtype}"): ({inside}),')
    return [*text, "}"] if rows else [text[0], text[1] + "}"]


def choice(rows: Sequence[Row] | None = None) -> tuple[str, Table]:
    """Return what the table comes from, and the table; by rows of gpu.csv, unless others are given."""
    rows = LEDGER.read() if rows is None else rows
    measured = by_times(rows)
    if measured is None:
        return f"by computed bounds of an {DEVICE.name}", table(by_bounds())
    devices = sorted({row["device"] for row in rows if row["device"]})
    return f"by times measured on {', '.join(devices)}", table(measured, TIMED_MARGIN)


def main() -> None:
    path = Path(importlib.import_module(preference.__name__).__file__ or "")
    path.write_text(written(path.read_text(encoding="utf-8"), *choice()), encoding="utf-8")
    print(f"{path}: {choice()}")


if __name__ == "__main__":
    main()
