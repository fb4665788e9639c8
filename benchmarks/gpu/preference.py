"""Write the table of `ragsys_kernels._gpu.preference`: which pools CUDA C++ selects from first.

    python -m benchmarks.gpu.preference

By the times in gpu.csv where it has those of both backends, else by computed bounds.

CUDA C++ comes first where it is `MARGIN` times as fast (by times `TIMED_MARGIN`), for all dimensions from the least up
to some.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

from benchmarks.gpu import bench, static
from benchmarks.gpu.devices import DEVICES
from benchmarks.harness.contender import OURS
from benchmarks.harness.ledger import Ledger
from ragsys_kernels._gpu import preference
from ragsys_kernels._gpu.preference import Pools

# Bounds are not so exact that less would tell; times are, but for what their spread is.
MARGIN, TIMED_MARGIN = 1.5, 1.05
# Pools are compared at the upper ends of these intervals; the first is what regime a of Triton holds on chip.
POOLS = (0, 128, 160, 192, 256, 384, 512, 768, 1024)
DIMS = (64, 128, 256, 384, 768, 1024)
PICKS = 10
DTYPES = {"mmr": ("float32", "float16"), "vrsd": ("float32", "float16")}
DEVICE = next(device for device in DEVICES if device.name.startswith("H200"))
BLOCKS = 2  # on a multiprocessor: only what the last-level cache holds depends on it

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


def by_times(ledger: Ledger) -> Faster | None:
    """Return the ratio of measured times, of the shape that is nearest by P and D; None without times of both."""
    times: dict[tuple[str, str, int, int], dict[str, float]] = {}
    for row in ledger.read():
        shape = re.search(r"-D(\d+)-P(\d+)-", row["shape"])
        if shape and row["contender"] == OURS and row["backend"] in preference.BACKENDS:
            key = row["op"], row["dtype"], int(shape[2]), int(shape[1])
            times.setdefault(key, {})[row["backend"]] = float(row["us"])
    both = {key: at["triton"] / at["cuda"] for key, at in times.items() if len(at) == len(preference.BACKENDS)}
    if not both:
        return None

    def faster(op: str, dtype: str, P: int, D: int) -> float:
        near = [key for key in both if key[:2] == (op, dtype) and (key[2] > 128) == (P > 128)]
        nearest = min(near, key=lambda key: max(key[2] / P, P / key[2]) * max(key[3] / D, D / key[3]), default=None)
        return both[nearest] if nearest else 1.0

    return faster


def table(faster: Faster, margin: float = MARGIN) -> dict[tuple[str, str], tuple[Pools, ...]]:
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


def written(text: str, source: str, rows: dict[tuple[str, str], tuple[Pools, ...]]) -> str:
    """Return the module's text with another table."""
    lines = [f'SOURCE = "{source}"', "TABLE: dict[tuple[str, str], tuple[Pools, ...]] = {"]
    for (op, dtype), found in rows.items():
        pools = [f"Pools({least}, {most}, {most_dims})," for least, most, most_dims in found]
        # As the formatter has it.
        inside = pools[0] if len(pools) == 1 else "\n        ".join(["", *pools]) + "\n    "
        lines.append(f'    ("{op}", "{dtype}"): ({inside}),')
    table_text = "\n".join([*lines, "}"] if rows else [lines[0], lines[1] + "}"])
    begin, end = "# --- Written by benchmarks/gpu/preference.py.\n", "\n# --- End of what is written."
    head, _, rest = text.partition(begin)
    return head + begin + table_text + end + rest.partition(end)[2]


def choice() -> tuple[str, dict[tuple[str, str], tuple[Pools, ...]]]:
    """Return what the table comes from, and the table."""
    measured = by_times(bench.LEDGER)
    if measured is None:
        return f"by computed bounds of an {DEVICE.name}", table(by_bounds())
    devices = sorted({row["device"] for row in bench.LEDGER.read()})
    return f"by times measured on {', '.join(devices)}", table(measured, TIMED_MARGIN)


def main() -> None:
    path = Path(importlib.import_module(preference.__name__).__file__ or "")
    path.write_text(written(path.read_text(encoding="utf-8"), *choice()), encoding="utf-8")
    print(f"{path}: {choice()}")


if __name__ == "__main__":
    main()
