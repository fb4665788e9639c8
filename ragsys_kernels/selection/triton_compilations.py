"""Every Triton kernel of selection with every tile that is launched, to be compiled without a device.

Plain, and with all options together: without options D is a whole number of slices, with them it is not. What the other
rule or a call that is given the relevance adds is compiled for float16.
"""

from __future__ import annotations

from typing import Any

from .._gpu.compilation import Compilation, describe
from .triton_bounds import bounds_tile, select_bounds_kernel
from .triton_corpus_kernels import (
    corpus_pick_kernel,
    corpus_relevance_kernel,
    corpus_step_kernel,
    row_lengths_kernel,
)
from .triton_gram import form, gram_tile, select_gram_kernel, staged
from .triton_launch import (
    GROWTH,
    NUM_PARTS,
    OPTIONS,
    PICK_TILE,
    QUERY_BLOCK,
    SMALL_TILE,
    Tile,
    dot_type,
    query_factors_kernel,
    row_tile,
)
from .triton_objectives import OBJECTIVES
from .triton_stream import select_stream_kernel, stream_tile
from .triton_whole_corpus import PICK_BLOCK, corpus_tile, query_parts, step_tile

# How rows are stored.
_ROWS = {"float32": "*fp32", "float16": "*fp16", "bfloat16": "*bf16", "int8": "*i8"}

# Types of the kernels' other arguments.
_TYPES = {
    **dict.fromkeys(("scales", "factors", "lengths", "queries", "query_factors", "query_back", "back"), "*fp32"),
    **dict.fromkeys(("relevance", "bias", "lambda_d", "lambda_b"), "*fp32"),
    **dict.fromkeys(("out_score", "out_relevance", "out_redundancy"), "*fp32"),
    **dict.fromkeys(("work", "sums", "sum_scalars", "taken_factors"), "*fp32"),
    **dict.fromkeys(("v_in", "v_out", "state", "state_out", "part_best"), "*fp32"),
    **dict.fromkeys(("candidates", "initial", "groups", "query_groups", "ks", "out_index"), "*i64"),
    **dict.fromkeys(("part_row", "taken_rows", "keys_out"), "*i64"),
    **dict.fromkeys(("barred", "num_taken", "out_length"), "*i32"),
    **dict.fromkeys(("row_stride", "stride", "pool_stride", "num_ids", "P", "S", "K", "D", "N", "q0", "cap"), "i32"),
    **dict.fromkeys(("num_queries", "tiles", "step"), "i32"),
}

# What only VRSD has.
_SUMS = ("sums", "sum_scalars", "lengths")


def ahead_of_time() -> list[Compilation]:
    """Return the kernels of all regimes, for rows of each type."""
    found = []
    for unit in (True, False):
        name = "query factors unit" if unit else "query factors"
        whole: dict[str, Any] = {"UNIT": unit, "PARTS": 0, "GROWTH": 1.0, "BLOCK": QUERY_BLOCK}
        found.append(_compilation(name, query_factors_kernel, "float32", SMALL_TILE, ("parts",), **whole))
    for dtype, num_parts in NUM_PARTS.items():
        parts: dict[str, Any] = {"UNIT": True, "PARTS": num_parts, "GROWTH": GROWTH[dtype], "BLOCK": QUERY_BLOCK}
        found.append(_compilation("query factors parts", query_factors_kernel, dtype, SMALL_TILE, (), **parts))
    for dtype in _ROWS:
        for vrsd, full in ((False, False), (True, True), (True, False), (False, True)):
            if vrsd == full or dtype in ("float16", "float32"):
                found += _selections(dtype, vrsd, full)
    return found + _searches()


def _compilation(
    name: str, kernel: Any, dtype: str, tile: Tile, absent: tuple[str, ...], dots: bool = False, **constexprs: Any
) -> Compilation:
    """Return a kernel as it is compiled for aligned rows; ``dots``: it multiplies matrices."""
    even = constexprs.get("EVEN_D", True)
    return describe(
        f"{name} {dtype}",
        kernel,
        {**_TYPES, "rows": _ROWS[dtype], "query_parts": _ROWS[dtype], "parts": _ROWS[dtype]},
        constexprs,
        absent=absent,
        multiples=("row_stride", "stride", "D") if even else ("row_stride", "stride"),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        dot16=dots and dtype != "float32",
        amd_warps=tile.amd_warps,
        maxnreg=tile.maxnreg,
        wide_loads="EVEN_D" in constexprs or kernel is row_lengths_kernel,
    )


def _selections(dtype: str, vrsd: bool, full: bool) -> list[Compilation]:
    """Return all kernels of one rule, with all options (and D not a whole number of slices) or none."""
    found = []

    def add(name: str, kernel: Any, tile: Tile, absent: tuple[str, ...], dots: bool, **constexprs: Any) -> None:
        label = f"{name} {'vrsd' if vrsd else 'mmr'} {'options' if full else 'plain'}"
        if "VRSD" in kernel.arg_names:
            constexprs["VRSD"] = vrsd
        found.append(_compilation(label, kernel, dtype, tile, absent, dots, **constexprs))

    D, dot = 700 if full else 768, dot_type(dtype)
    even = {"EVEN_D": not full}
    flags = {**even, "BIAS_BY_ROW": True}
    computed = dtype != "int8"
    absent: tuple[str, ...] = ("relevance",) if full else OPTIONS
    absent = ("scales", *absent) if computed else absent
    unused = absent if vrsd else absent + _SUMS

    op = "vrsd" if vrsd else "mmr"
    for slots in (16, 32, 64, 128):
        tile = gram_tile(dtype, slots, D)
        sizes: dict[str, Any] = {
            **OBJECTIVES[op].constexprs(),
            **form(dtype, tile, D, not vrsd and not full),
            "RANK": 16,
        }
        name = f"{'gram' if sizes['MATRIX'] else 'rows'} {slots} {op} {'options' if full else 'plain'}"
        sizes |= {"COMPUTED": computed, "BIAS_BY_ROW": True}
        beside = (*absent, "query_parts", "query_back")
        found.append(_compilation(name, select_gram_kernel, dtype, tile, beside, True, **sizes))
        if dtype in NUM_PARTS and vrsd == full:
            sizes |= form(dtype, tile, D, False, NUM_PARTS[dtype])
            name, tile = name.replace("gram", "gram tile"), staged(tile, not vrsd and not full)
            in_tile = (*absent, "query_factors")
            found.append(_compilation(name, select_gram_kernel, dtype, tile, in_tile, True, **sizes))
    tile = row_tile(dtype, D)
    sizes = {"ROWS": tile.rows, "DIMS": tile.dims, "COMPUTED": computed}
    if vrsd:
        add("stream", select_stream_kernel, stream_tile(dtype, D), absent, False, **even, **sizes)
    else:
        few = bounds_tile(dtype, D, not full)
        changed = sizes | {"ROWS": few.rows, "STAGES": few.num_stages}
        add("bounds", select_bounds_kernel, few, absent, False, **flags, **changed)
    if computed or vrsd:
        add("row lengths", row_lengths_kernel, tile, absent, False, **sizes)
    for num_queries in (1, 64):
        tile = corpus_tile(dtype, num_queries, D)
        sizes = {"QUERIES": tile.queries, "ROWS": tile.rows, "DIMS": tile.dims, "DOT": dot}
        name, parts = f"corpus relevance {tile.queries}", query_parts(dot)
        add(name, corpus_relevance_kernel, tile, (*unused, "keys_out"), True, **flags, **sizes, PARTS=parts)
        step = step_tile(tile, dtype, vrsd)
        add(f"corpus step {tile.queries}", corpus_step_kernel, step, unused, True, **even, **sizes)
    add("corpus pick", corpus_pick_kernel, PICK_TILE, unused, False, PICK=True, BLOCK=PICK_BLOCK)
    if full:
        add("corpus initial", corpus_pick_kernel, PICK_TILE, unused, False, PICK=False, BLOCK=PICK_BLOCK)
    return found


def _searches() -> list[Compilation]:
    """Return the relevance kernel where it writes keys, and where relevance is given."""
    tile, dot = corpus_tile("float16", 64, 768), dot_type("float16")
    sizes = {"QUERIES": tile.queries, "ROWS": tile.rows, "DIMS": tile.dims, "DOT": dot, "PARTS": query_parts(dot)}
    flags = {"VRSD": False, "EVEN_D": True, "BIAS_BY_ROW": False}
    searched = (*OPTIONS, *_SUMS, "v_out", "state_out", "part_best", "part_row")
    given = (*OPTIONS[1:], *_SUMS, "queries", "query_factors", "query_back", "keys_out")
    search = _compilation("corpus search", corpus_relevance_kernel, "float16", tile, searched, True, **flags, **sizes)
    plain = _compilation("corpus given", corpus_relevance_kernel, "float16", tile, given, **flags, **sizes)
    return [search, plain._replace(wide_loads=False)]
