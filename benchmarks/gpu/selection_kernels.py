"""Every Triton kernel of selection with every tile that is launched, to be compiled without a device.

Plain, and with all options together: without options D is a whole number of slices, with them it is not. What the other
rule or a call that is given the relevance adds is compiled for float16.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from benchmarks.gpu.compilation import Compilation, by_generation, describe
from ragsys_kernels._gpu.compilers import float32_precision
from ragsys_kernels.selection.triton import estimates
from ragsys_kernels.selection.triton.bit_search import (
    EACH,
    GROUPS,
    ROWS,
    WORDS,
    best_tile,
    columns_type,
    filter_tile,
    in_16_bits,
)
from ragsys_kernels.selection.triton.bit_search_kernels import (
    filter_bars_kernel,
    filter_best_kernel,
    filter_keys_kernel,
    filter_list_kernel,
    filter_product_kernel,
    filter_queries_kernel,
)
from ragsys_kernels.selection.triton.bounds import bounds_tile, select_bounds_kernel
from ragsys_kernels.selection.triton.dense import PICK_BLOCK, corpus_tile
from ragsys_kernels.selection.triton.gram import NO_RANK, form, gram_tile, select_gram_kernel, staged
from ragsys_kernels.selection.triton.launch import (
    GROWTH,
    LIMITS,
    NUM_PARTS,
    OPTIONS,
    PICK_TILE,
    QUERY_BLOCK,
    SMALL_TILE,
    Tile,
    corpus_queries_kernel,
    dot_type,
    parts_of_dot,
    query_factors_kernel,
    row_tile,
)
from ragsys_kernels.selection.triton.objectives import OBJECTIVES
from ragsys_kernels.selection.triton.proof import MOST_PICKS as MOST_PROVEN
from ragsys_kernels.selection.triton.proof import MOST_TERMS, TILES_BLOCK, product_tile, terms_at_a_time
from ragsys_kernels.selection.triton.proof import POOL as PROOF_POOL
from ragsys_kernels.selection.triton.proof import SLOTS as PROOF_SLOTS
from ragsys_kernels.selection.triton.proof_kernels import proof_columns_kernel, proof_pool_kernel
from ragsys_kernels.selection.triton.proof_product_kernels import proof_product_kernel
from ragsys_kernels.selection.triton.stream import select_stream_kernel, stream_tile
from ragsys_kernels.selection.triton.whole_corpus import CANDIDATES_TILE, FOUND_BLOCK
from ragsys_kernels.selection.triton.whole_corpus_kernels import (
    corpus_candidates_kernel,
    corpus_found_kernel,
    corpus_pick_kernel,
    corpus_relevance_kernel,
    corpus_step_kernel,
    row_lengths_kernel,
)

# How rows are stored.
_ROWS = {"float32": "*fp32", "float16": "*fp16", "bfloat16": "*bf16", "int8": "*i8"}

# Types of the kernels' other arguments.
_TYPES = {
    **dict.fromkeys(("scales", "factors", "lengths", "queries", "query_factors", "query_back", "back"), "*fp32"),
    **dict.fromkeys(("relevance", "bias", "lambda_d", "lambda_b"), "*fp32"),
    **dict.fromkeys(("out_score", "out_relevance", "out_redundancy"), "*fp32"),
    **dict.fromkeys(("work", "sums", "sum_scalars", "taken_factors"), "*fp32"),
    **dict.fromkeys(("v_in", "v_out", "state", "part_best"), "*fp32"),
    **dict.fromkeys(("candidates", "initial", "groups", "query_groups", "ks", "out_index"), "*i64"),
    **dict.fromkeys(("part_row", "taken_rows", "keys_out", "tile_keys"), "*i64"),
    **dict.fromkeys(("barred", "num_taken", "out_length"), "*i32"),
    **dict.fromkeys(("row_stride", "stride", "pool_stride", "num_ids", "P", "S", "K", "D", "N", "q0", "cap"), "i32"),
    **dict.fromkeys(("num_queries", "tiles", "step", "looked_at", "k"), "i32"),
    **dict.fromkeys(("far", "number", "second"), "fp32"),
    # Of budgets and ceilings, and of what belongs to one rule.
    **dict.fromkeys(("costs", "budget"), "*fp64"),
    **dict.fromkeys(("max_similarity", "quality"), "*fp32"),
    "window": "i32",
    # Of searches by bits.
    **dict.fromkeys(("error", "least", "bars"), "*fp32"),
    **dict.fromkeys(("bits", "listed", "count"), "*i32"),
    **dict.fromkeys(("room", "n", "rank", "programs", "words"), "i32"),
    "keys": "*i64",
    # Of proofs.
    **dict.fromkeys(("draft", "last", "best", "pools", "barred_group"), "*i64"),
    **dict.fromkeys(("order", "order_in", "count_in", "known", "barred", "peaks", "left", "num_left"), "*i32"),
    **dict.fromkeys(("scores", "redundancy", "most"), "*fp32"),
    **dict.fromkeys(("terms", "found", "parts", "each", "hopeless"), "i32"),
    **dict.fromkeys(("longest", "rounding", "shrink", "grow"), "fp32"),
}

# Values of items, one of each row.
BY_ROW = dict.fromkeys(("BIAS_BY_ROW", "COSTS_BY_ROW", "QUALITY_BY_ROW"), True)

# What only VRSD has.
_SUMS = ("sums", "sum_scalars", "lengths")

# The queries that a proof has not answered: without it a launch is of all.
_SOME = ("order", "count")


def ahead_of_time() -> list[Compilation]:
    """Return the kernels of all regimes, for rows of each type."""
    return by_generation(_all)


def _all(hopper: bool) -> list[Compilation]:
    found = []
    for unit in (True, False):
        name = "query factors unit" if unit else "query factors"
        whole = {"UNIT": unit, "PARTS": 0, "GROWTH": 1.0, "BLOCK": QUERY_BLOCK}
        found.append(_compilation(name, query_factors_kernel, "float32", SMALL_TILE, ("parts",), **whole))
    for dtype, num_parts in NUM_PARTS.items():
        parts = {"UNIT": True, "PARTS": num_parts, "GROWTH": GROWTH[dtype], "BLOCK": QUERY_BLOCK}
        types = {"parts": _ROWS[dtype]}
        found.append(
            _compilation("query factors parts", query_factors_kernel, dtype, SMALL_TILE, (), types=types, **parts)
        )
    for dtype in _ROWS:
        for vrsd, full in ((False, False), (True, True), (True, False), (False, True)):
            if vrsd == full or dtype in ("float16", "float32"):
                found += _selections(dtype, vrsd, full, hopper)
    found += _estimates(hopper)
    return found + _rules(hopper) + _queries() + _searches(hopper) + _filters(hopper) + _proofs(hopper)


def _share(dtype: str, tile: Tile) -> int:
    """Return how many bytes of a tile of rows a thread loads at a time: a load can be no wider."""
    return tile.rows * tile.dims * {"int8": 1, "float32": 4}.get(dtype, 2) // (32 * tile.num_warps)


def _compilation(
    name: str,
    kernel: Any,
    dtype: str,
    tile: Tile,
    absent: tuple[str, ...],
    dots: bool = False,
    types: Mapping[str, str] = MappingProxyType({}),
    **constexprs: Any,
) -> Compilation:
    """Return a kernel as it is compiled for aligned rows; ``dots``: it multiplies matrices."""
    even = constexprs.get("EVEN_D", True)
    return describe(
        f"{name} {dtype}",
        kernel,
        {
            **_TYPES,
            **dict.fromkeys(("rows",), _ROWS[dtype]),
            "query_parts": _ROWS["float16" if dtype == "int8" else dtype],
            **types,
        },
        constexprs,
        absent=absent,
        multiples=("row_stride", "stride", *(("D",) if even else ())),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        dot16=dots and dtype != "float32",
        amd_warps=tile.amd_warps,
        maxnreg=tile.maxnreg,
        wide_loads=kernel is row_lengths_kernel or ("EVEN_D" in constexprs and _share(dtype, tile) >= 16),
    )


def _selections(dtype: str, vrsd: bool, full: bool, hopper: bool) -> list[Compilation]:
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
    by_row = {"BIAS_BY_ROW": True, "COSTS_BY_ROW": True}
    computed = dtype != "int8"
    absent = (*_SOME, "relevance") if full else (*_SOME, *OPTIONS)
    absent = ("scales", *absent) if computed else absent
    unused = absent if vrsd else absent + _SUMS

    op = "vrsd" if vrsd else "mmr"
    for slots in (16, 32, 64, 128):
        tile, plain = gram_tile(dtype, slots, D, hopper=hopper), not vrsd and not full
        sizes = {
            **OBJECTIVES[op].constexprs(),
            **form(dtype, tile, D, plain, hopper=hopper),
            "RANK": NO_RANK,
            **BY_ROW,
        }
        name = f"{'gram' if sizes['MATRIX'] else 'rows'} {slots} {op} {'options' if full else 'plain'}"
        sizes["COMPUTED"] = computed
        beside = (*absent, "query_parts", "query_back", "quality")
        found.append(_compilation(name, select_gram_kernel, dtype, tile, beside, True, **sizes))
        if dtype in NUM_PARTS and vrsd == full:
            sizes |= form(dtype, tile, D, plain, NUM_PARTS[dtype], hopper=hopper)
            name, tile = name.replace("gram", "gram tile"), staged(tile, plain, hopper)
            in_tile = (*absent, "query_factors", "quality")
            found.append(_compilation(name, select_gram_kernel, dtype, tile, in_tile, True, **sizes))
    tile = row_tile(dtype, D)
    sizes = {"ROWS": tile.rows, "DIMS": tile.dims, "COMPUTED": computed}
    if vrsd:
        own = (*absent, "bias", "lambda_d", "lambda_b")
        few = stream_tile(dtype, D, full)
        add("stream", select_stream_kernel, few, own, False, **even, **sizes, **by_row, MSD=False)
        if full:
            whole = {**even, **sizes, **by_row, "MSD": True}
            found.append(_compilation("stream msd options", select_stream_kernel, dtype, few, absent, **whole))
    else:
        few = bounds_tile(dtype, D, not full, hopper)
        changed = sizes | {"ROWS": few.rows, "STAGES": few.num_stages}
        add("bounds", select_bounds_kernel, few, absent, False, **even, **by_row, **changed)
    if computed or vrsd:
        add("row lengths", row_lengths_kernel, tile, absent, False, **sizes)
    for num_queries in (1, 64):
        tile = corpus_tile(dtype, num_queries, D, op, hopper)
        sizes = {"QUERIES": tile.queries, "ROWS": tile.rows, "DIMS": tile.dims, "DOT": dot}
        sizes["PRECISION"] = float32_precision(hopper)
        name, parts = f"corpus relevance {tile.queries}", parts_of_dot(dot)
        add(name, corpus_relevance_kernel, tile, (*unused, "tile_keys"), True, **flags, **sizes, PARTS=parts)
        for step, first_step in (("step", False), ("first", True)):
            name = f"corpus {step} {tile.queries}"
            add(name, corpus_step_kernel, tile, unused, True, **even, **sizes, FIRST=first_step)
    add("corpus pick", corpus_pick_kernel, PICK_TILE, unused, False, PICK=True, BLOCK=PICK_BLOCK)
    if full:
        add("corpus initial", corpus_pick_kernel, PICK_TILE, unused, False, PICK=False, BLOCK=PICK_BLOCK)
    return found


def _estimates(hopper: bool) -> list[Compilation]:
    """Return MMR of float32 pools by estimates, of rows of 384 numbers, and of the longest with all options it has."""
    found = []
    for what, dims, unused in (("plain", 384, OPTIONS), ("options", estimates.MOST_SLICES * estimates.DIMS, ())):
        flags = {"COMPUTED": True, "BIAS_BY_ROW": what == "options", **estimates.sizes(dims)}
        made = _compilation(
            f"estimates 128 mmr {what}", estimates.select_estimates_kernel, "float32", estimates.TILE, unused,
            types={"error": "fp32"}, **flags,
        )  # fmt: skip
        found.append(made._replace(wide_loads=True))
    return found if hopper else []


def _rules(hopper: bool) -> list[Compilation]:
    """Return regime a of the rules beyond MMR and VRSD, with all options: a bounded tile, and the largest."""
    found = []
    for rule, dtype in itertools.product(OBJECTIVES, ("float16", "float32")):
        if rule in ("mmr", "vrsd"):
            continue
        objective = OBJECTIVES[rule]
        for slots in (32, 128) if dtype == "float16" else (128,):
            tile = gram_tile(dtype, slots, 700, objective.whole, hopper)
            sizes = {
                **objective.constexprs(),
                **form(dtype, tile, 700, False, rule=rule, hopper=hopper),
            }
            sizes |= {"RANK": 16, "COMPUTED": True, **BY_ROW}
            absent = (*_SOME, "relevance", "scales", "query_parts", "query_back")
            absent += ("quality",) if rule != "dpp" else ()
            name = f"{'gram' if sizes['MATRIX'] else 'rows'} {slots} {rule} options"
            found.append(_compilation(name, select_gram_kernel, dtype, tile, absent, True, **sizes))
    return found


def _queries() -> list[Compilation]:
    """Return the kernel that takes queries apart for products with a corpus."""
    found = []
    for dtype in ("float16", "bfloat16"):
        apart = {"DOT": dot_type(dtype), "PARTS": parts_of_dot(dot_type(dtype)), "BLOCK": QUERY_BLOCK}
        found.append(_compilation("corpus queries", corpus_queries_kernel, dtype, SMALL_TILE, _SOME, **apart))
    return found


def _searches(hopper: bool) -> list[Compilation]:
    """Return the relevance kernel where it writes keys of tiles, the rest of a search, and where relevance is given."""
    tile, dot = corpus_tile("float16", 64, 768, hopper=hopper), dot_type("float16")
    sizes = {"QUERIES": tile.queries, "ROWS": tile.rows, "DIMS": tile.dims, "DOT": dot, "PARTS": parts_of_dot(dot)}
    sizes["PRECISION"] = float32_precision(hopper)
    flags = {"VRSD": False, "EVEN_D": True, "BIAS_BY_ROW": False}
    searched = (*OPTIONS, *_SUMS, *_SOME, "part_best", "part_row")
    given = (*OPTIONS[1:], *_SUMS, *_SOME, "query_parts", "query_back", "tile_keys")
    search = _compilation("corpus search", corpus_relevance_kernel, "float16", tile, searched, True, **flags, **sizes)
    plain = _compilation("corpus given", corpus_relevance_kernel, "float16", tile, given, **flags, **sizes)
    looked = _compilation(
        "corpus candidates", corpus_candidates_kernel, "float16", CANDIDATES_TILE, (), False, {"v": "*fp32"},
        ROWS=tile.rows,
    )  # fmt: skip
    found = _compilation("corpus found", corpus_found_kernel, "float16", SMALL_TILE, (), BLOCK=FOUND_BLOCK)
    return [search, plain._replace(wide_loads=False), looked, found]


def _filters(hopper: bool) -> list[Compilation]:
    """Return the kernels of a search by bits, plain and with all options."""
    found = []

    def add(name: str, kernel: Any, dtype: str, tile: Tile, absent: tuple[str, ...], dots: bool, **sizes: Any) -> None:
        types = {"high": _ROWS[columns_type(dtype)]}
        found.append(_compilation(f"filter {name}", kernel, dtype, tile, absent, dots, types, **sizes))

    for unit in (True, False):
        name = "queries unit" if unit else "queries"
        add(name, filter_queries_kernel, "float16", SMALL_TILE, ("most",), False, UNIT=unit, BLOCK=QUERY_BLOCK)
    add("bars", filter_bars_kernel, "float16", SMALL_TILE, (), False, GROUPS=GROUPS)
    add("list", filter_list_kernel, "float16", SMALL_TILE, (), False, WORDS=WORDS)
    for dtype, full in itertools.product(_ROWS, (False, True)):
        absent = _unused(dtype, full)
        what, flags = "options" if full else "plain", {"BIAS_BY_ROW": full}
        # With options the tile of 64 queries is the largest.
        for num_queries in (16, 64) if full else (16, 64, 256) if dtype == "float16" else (64, 256):
            tile = filter_tile(dtype, num_queries, 768, hopper, not full)
            sizes = {"QUERIES": tile.queries, "ROWS": tile.rows, "DIMS": tile.dims, **in_16_bits(dtype), **flags}
            for name, left in (("least", "bars"), ("bits", "least")):
                given = (*absent, left)
                add(
                    f"{name} {tile.queries} {what}",
                    filter_product_kernel,
                    dtype,
                    tile,
                    given,
                    True,
                    EVEN_D=not full,
                    **sizes,
                )
        if full or dtype == "float16":
            add(f"keys {what}", filter_keys_kernel, dtype, SMALL_TILE, absent, False, EACH=EACH, DIMS=128, **flags)
            for wanted in (10, 100, 1024) if dtype == "float16" else (100,):
                tile = best_tile(wanted)
                sizes = {"TOP": tile.rows, "DIMS": tile.dims, **flags}
                add(f"best {tile.rows} {what}", filter_best_kernel, dtype, tile, absent, False, **sizes)
    return found


def _unused(dtype: str, full: bool) -> tuple[str, ...]:
    """Return what a call by bits leaves out, of factors and options."""
    scales = ("factors",) if dtype in ("bfloat16", "float32") else ()
    return scales if full else (*scales, *OPTIONS)


def _proofs(hopper: bool) -> list[Compilation]:
    """Return the kernels that prove drafted picks, plain and with all options."""
    found = []

    def add(name: str, kernel: Any, dtype: str, tile: Tile, absent: tuple[str, ...], dots: bool, **sizes: Any) -> None:
        types = {"high": _ROWS[columns_type(dtype)], "lengths": "*i32"}
        found.append(_compilation(f"proof {name}", kernel, dtype, tile, absent, dots, types, **sizes))

    lanes = {"POOL": PROOF_POOL, "SLOTS": PROOF_SLOTS, "LANES": MOST_PROVEN}
    drafted = ("draft", "scores", "relevance", "redundancy", "lengths", "bits", "order_in", "count_in", *_SOME)
    pool = {"WORDS": WORDS, "ROWS": ROWS, "BLOCK": TILES_BLOCK, **lanes}
    add("first pool", proof_pool_kernel, "float16", SMALL_TILE, drafted, False, **pool)
    for rows in (ROWS, ROWS // 2):
        add(f"pool {rows}", proof_pool_kernel, "float16", SMALL_TILE, (), False, **{**pool, "ROWS": rows})
    for dtype, full in itertools.product(_ROWS, (False, True)):
        absent = _unused(dtype, full) if full else (*_unused(dtype, full), "barred", "barred_group")
        what, flags = "options" if full else "plain", {"BIAS_BY_ROW": full}
        if full or dtype == "float16":
            left = ("most",) if full else (*absent, "last", "most", "order_in", "count_in")
            add(
                f"columns {what}",
                proof_columns_kernel,
                dtype,
                PICK_TILE,
                (*absent, *left),
                False,
                BLOCK=QUERY_BLOCK,
                LANES=MOST_PROVEN,
            )
            found += _left(dtype, full, hopper)
        # As many columns as are multiplied at once, and more; one, and with peaks.
        ways = (
            [(8, False), (8, True)]
            if full
            else [(MOST_TERMS, False), (MOST_TERMS + 1, False), (MOST_TERMS, True), (MOST_TERMS + 1, True)]
        )
        ways += [(1, False)] if not full and dtype == "float16" else []
        for num_queries, (terms, peaks) in itertools.product((16, 64), ways):
            each = terms_at_a_time(terms, not full, peaks, hopper)
            tile = product_tile(dtype, num_queries, 768, each, not full, hopper, peaks)
            sizes = {"QUERIES": tile.queries, "ROWS": tile.rows, "DIMS": tile.dims, **in_16_bits(dtype)}
            sizes |= {"TERMS": each, "ONCE": each == terms, "EVEN_D": not full, **flags}
            label = f"{'peaks' if peaks else 'bits'} {tile.queries} x {terms} {what}"
            given = absent if peaks else (*absent, "peaks")
            add(label, proof_product_kernel, dtype, tile, given, True, **sizes)
    return found


def _left(dtype: str, full: bool, hopper: bool) -> list[Compilation]:
    """Return what runs for the queries that a proof has not answered: the draft, and what reads all rows at a pick."""
    found, what = [], "options" if full else "plain"

    def add(name: str, kernel: Any, tile: Tile, absent: tuple[str, ...], dots: bool, **sizes: Any) -> None:
        found.append(_compilation(f"proof {name} {what}", kernel, dtype, tile, absent, dots, **sizes))

    absent, dot = (*_unused(dtype, full), "relevance", *_SUMS), dot_type(dtype)
    parts = {"PARTS": parts_of_dot(dot), "BIAS_BY_ROW": True}
    for num_queries in (16, 64) if full else (64,):
        tile = corpus_tile(dtype, num_queries, 768, "mmr", hopper, True)
        sizes = {"QUERIES": tile.queries, "ROWS": tile.rows, "DIMS": tile.dims, "DOT": dot, "VRSD": False}
        sizes |= {"PRECISION": float32_precision(hopper), "EVEN_D": not full}
        unused, name = (*absent, "tile_keys"), f"rest relevance {tile.queries}"
        add(name, corpus_relevance_kernel, tile, unused, True, **sizes, **parts)
        for name, first in (("rest step", False), ("rest first", True)):
            add(f"{name} {tile.queries}", corpus_step_kernel, tile, absent, True, FIRST=first, **sizes)
    for name, pick in (("rest pick", True), *((("rest initial", False),) if full else ())):
        add(name, corpus_pick_kernel, PICK_TILE, absent, False, PICK=pick, BLOCK=PICK_BLOCK, VRSD=False)
    apart = {"DOT": dot, "PARTS": parts["PARTS"], "BLOCK": QUERY_BLOCK}
    add("rest queries", corpus_queries_kernel, SMALL_TILE, (), False, **apart)
    tile, num_parts = gram_tile(dtype, PROOF_SLOTS, 768, hopper=hopper), NUM_PARTS.get(dtype, 0)
    sizes = {**OBJECTIVES["mmr"].constexprs(), "RANK": NO_RANK, **BY_ROW, "COMPUTED": False}
    sizes |= form(dtype, tile, 768, not full, num_parts, hopper=hopper)
    tile = staged(tile, not full, hopper) if num_parts else tile
    given = ("relevance", "quality", *LIMITS, *(() if full else OPTIONS))
    given += ("query_factors",) if num_parts else ("query_parts", "query_back")
    given += ("scales",) if "factors" in absent else ()
    add("draft", select_gram_kernel, tile, given, True, **sizes)
    return found
