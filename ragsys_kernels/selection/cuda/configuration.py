"""How selection's CUDA C++ kernels are launched, by shape, and what they do not take."""

from __future__ import annotations

from typing import NamedTuple

# Pools of few rows of 16 or 8 bits, whose products with one another lie in shared memory.
GRAM_SOURCE = "greedy_gram"
# Larger pools of rows of 16 bits, by products with sixteen columns a pass: rows stay in the registers of a cluster of
# blocks, or are read in each pass.
RESIDENT_SOURCE, STREAMED_SOURCE = "greedy_resident", "greedy_streamed"
# The first devices with their instructions, 80 for 8.0, and with clusters.
CAPABILITY, CLUSTER_CAPABILITY = 80, 90

OPS = ("mmr", "vrsd", "msd")
_ITEMSIZES = {"float16": 2, "bfloat16": 2, "int8": 1}

# As in the source of gram: slots of a kernel and its threads; parts of a query, which take slots too; slices of rows in
# shared memory, and bytes of a row in one.
GRAM_SLOTS = {32: 32, 64: 64, 112: 128, 128: 128}
_PARTS = {"float16": 2, "bfloat16": 3, "int8": 4}
_STAGES, _ROW_BYTES = 3, 128

# As in the sources of columns: the most dimensions of rows in registers, and warps of a block, which has 128 of them;
# the most rows, and blocks of a cluster; the same of rows that are read, by tiles of a block, and rows of a tile.
_COLUMN_DTYPES = ("float16", "bfloat16")
_RESIDENT_DIMS = {384: 4, 768: 8}
_RESIDENT_ROWS = {256: 2, 512: 4, 1024: 8}
_STREAMED_ROWS = {1024: 1, 2048: 2, 4096: 4}
_STREAMED_WARPS, _STREAMED_TILES, _STREAMED_TILE = 8, 32, 32
_COLUMNS = 16
_MOST_ROWS = 1 << 32  # which have numbers of 32 bits
# Elements that are loaded together, of which rows have a multiple.
_PACK = 8


class Pools(NamedTuple):
    """What decides which kernel runs a problem, and whether one does."""

    op: str
    dtype: str
    N: int
    P: int
    D: int
    K: int
    capped: bool  # by group
    num_initial: int
    aligned: bool  # all rows begin at multiples of 16 bytes
    capability: int  # of the device
    max_shared: int  # bytes of dynamic shared memory that a block may have


class Configuration(NamedTuple):
    """How a problem is launched."""

    source: str
    kernel: str
    threads: int
    shared: int  # bytes of dynamic shared memory
    blocks: int = 1  # of a query


def configure(pools: Pools) -> Configuration | None:
    """Return how a problem is launched: by the products of its rows with one another where these are few, else by
    products with sixteen columns a pass; None where no kernel takes it.
    """
    if pools.capability < CAPABILITY:
        return None
    for configure_one in (configure_gram, configure_resident, configure_streamed):
        how = configure_one(pools)
        if how and how.shared <= pools.max_shared and (how.blocks == 1 or pools.capability >= CLUSTER_CAPABILITY):
            return how
    return None


def lacking(pools: Pools) -> str | None:
    """Return the reason that no kernel takes a problem, None where one does."""
    if pools.capability < CAPABILITY:
        return f"its kernels need compute capability 8.0, got {pools.capability / 10}; backend 'triton' has others"
    if configure(pools) is not None:
        return None
    most = ", ".join(f"{max(GRAM_SLOTS) - parts} of {dtype}" for dtype, parts in _PARTS.items())
    rows = max(rows for rows, blocks in _STREAMED_ROWS.items() if blocks == 1 or pools.capability >= CLUSTER_CAPABILITY)
    shown = f" and {pools.num_initial} initial items" if pools.num_initial else ""
    odd = (
        ""
        if pools.aligned or pools.dtype not in _COLUMN_DTYPES
        else ", which do not all begin at multiples of 16 bytes"
    )
    return (
        f"its kernels take pools and initial items of up to {most}, and pools of up to {rows} items of 16 bits in rows "
        "that begin at multiples of 16 bytes and have a multiple of 8 dimensions, sixteen of them within shared memory "
        f"(vrsd: no initial items), got {pools.P} items{shown} of {pools.dtype}, rows of {pools.D} dimensions{odd}; "
        "backend 'triton' takes all pools"
    )


def configure_gram(pools: Pools) -> Configuration | None:
    """Return how items and initial items are launched by their products; None where there are too many."""
    op, dtype, parts = pools.op, pools.dtype, _PARTS.get(pools.dtype, 0)
    slots = next((slots for slots in GRAM_SLOTS if pools.P + pools.num_initial + parts <= slots), None)
    if not parts or slots is None:
        return None
    slices = -(-pools.D * _ITEMSIZES[dtype] // _ROW_BYTES)
    matrix = -(-max(4 * slots * (slots + 1), _STAGES * slots * _ROW_BYTES) // 16) * 16
    shared = matrix + 16 + parts * slices * _ROW_BYTES
    return Configuration(GRAM_SOURCE, f"rsk_{op}_gram_{slots}_{dtype}", GRAM_SLOTS[slots], shared)


def configure_resident(pools: Pools) -> Configuration | None:
    """Return how a pool is launched whose rows stay in registers; None where they do not fit."""
    dims = next((dims for dims in _RESIDENT_DIMS if dims >= pools.D), None)
    rows = next((rows for rows in _RESIDENT_ROWS if rows >= pools.P), None)
    if dims is None or rows is None or not _takes_columns(pools):
        return None
    warps, blocks = _RESIDENT_DIMS[dims], _RESIDENT_ROWS[rows]
    shared = _shared_of_columns(pools, dims, warps, 128 // warps, blocks)
    kernel = f"rsk_{pools.op}_resident_{rows}_{dims}_{pools.dtype}"
    return Configuration(RESIDENT_SOURCE, kernel, 32 * warps, shared, blocks)


def configure_streamed(pools: Pools) -> Configuration | None:
    """Return how a pool is launched whose rows are read in each pass; None where there are too many."""
    rows = next((rows for rows in _STREAMED_ROWS if rows >= pools.P), None)
    if rows is None or not _takes_columns(pools):
        return None
    blocks, dims = _STREAMED_ROWS[rows], -(-pools.D // 32) * 32
    shared = _shared_of_columns(pools, dims, _STREAMED_TILES, _STREAMED_TILE, blocks)
    return Configuration(
        STREAMED_SOURCE, f"rsk_{pools.op}_streamed_{rows}_{pools.dtype}", 32 * _STREAMED_WARPS, shared, blocks
    )


def _takes_columns(pools: Pools) -> bool:
    """Return whether rows can be loaded 16 bytes at a time, and each vector that they meet is one of them."""
    rows = pools.dtype in _COLUMN_DTYPES and pools.aligned and pools.D % _PACK == 0 and pools.N <= _MOST_ROWS
    return rows and not (pools.op == "vrsd" and pools.num_initial)


def _shared_of_columns(pools: Pools, dims: int, tiles: int, of_tile: int, blocks: int) -> int:
    """Return the bytes of columns and their products with the tiles of a block, of all tiles' bests, and of groups."""
    columns = _COLUMNS // 2 * (4 * dims + 16) + tiles * _COLUMNS * (of_tile + 8) * 4
    table = 2 * 16 * tiles * blocks
    groups = min(pools.P, pools.K) + pools.num_initial if pools.capped else 0
    return columns + table + 16 + (4 * dims + table if pools.op == "vrsd" else 0) + 8 * groups
