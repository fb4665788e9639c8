"""How selection's CUDA C++ kernels are launched, by shape."""

from __future__ import annotations

from typing import NamedTuple

SOURCE = "greedy_select"
# Pools of few rows of 16 or 8 bits, whose products with one another lie in shared memory.
SMALL_SOURCE = "greedy_small"
# The first devices with its instructions.
SMALL_CAPABILITY = 80
# Larger pools of rows of 16 bits, which stay in the registers of a cluster of blocks, or are read in each pass.
HELD_SOURCE, MET_SOURCE = "greedy_held", "greedy_met"
CLUSTER_CAPABILITY = 90

OPS = ("mmr", "vrsd", "msd")
_ITEMSIZES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}

# As in the source: rows that a warp takes at a time, the most warps of a block, and the bests: of each at even and odd
# steps, a float and an int.
_GROUP = 16
_MAX_WARPS = 8
_BESTS = _MAX_WARPS * 2 * 8


# As in the source of small pools: slots of a kernel and its threads; parts of a query, which take slots too; slices of
# rows in shared memory, and bytes of a row in one.
SMALL_SLOTS = {32: 32, 64: 64, 112: 128, 128: 128}
_PARTS = {"float16": 2, "bfloat16": 3, "int8": 4}
_STAGES, _ROW_BYTES = 3, 128

# As in the source of larger pools: the most dimensions of rows in registers, and warps of a block, which has 128 of
# them; the most rows, and blocks of a cluster; the same of rows that are read, by tiles of a block, and rows of a tile.
_COLUMN_DTYPES = ("float16", "bfloat16")
_HELD_DIMS = {384: 4, 768: 8}
_HELD_ROWS = {256: 2, 512: 4, 1024: 8}
_MET_ROWS = {1024: 1, 2048: 2, 4096: 4}
_MET_WARPS, _MET_TILES, _MET_TILE = 8, 32, 32
_COLUMNS = 16


class Configuration(NamedTuple):
    """How a problem is launched."""

    kernel: str
    threads: int
    shared: int  # bytes of dynamic shared memory
    workspace: int  # floats of each block, 0 where its state is in shared memory
    source: str = SOURCE
    blocks: int = 1  # of a query


def configure(
    op: str, dtype: str, P: int, D: int, K: int, capped: bool, max_shared: int, num_initial: int = 0
) -> Configuration:
    """Return how a problem is launched: by the products of its rows with one another where these are few and of 16
    or 8 bits, else with its rows in shared memory where they fit, else its state, else neither.
    """
    small = configure_small(op, dtype, P + num_initial, D)
    if small is not None and small.shared <= max_shared:
        return small
    return configure_rows(op, dtype, P, D, K, capped, max_shared)


def configure_rows(op: str, dtype: str, P: int, D: int, K: int, capped: bool, max_shared: int) -> Configuration:
    """Return how a problem is launched where picks meet rows.

    A step of a resident pool reads it at the speed of shared memory, several times that of the L2 cache, which is worth
    more than the blocks that would fit on a multiprocessor without its rows.
    """
    groups = -(-P // _GROUP)
    warps = min(groups, _MAX_WARPS)
    row_bytes = -(-D * _ITEMSIZES[dtype] // 16) * 16
    sum_floats = row_bytes // _ITEMSIZES[dtype] if op == "vrsd" else 0
    state = sum_floats + (2 * K if capped else 0) + 3 * P
    resident = _BESTS + P * row_bytes + 4 * state
    if resident <= max_shared:
        return Configuration(f"rsk_{op}_resident_{dtype}", 32 * warps, resident, 0)
    workspace = 0
    streaming = _BESTS + 4 * state
    if streaming > max_shared:
        workspace, streaming = -(-state // 4) * 4, _BESTS
    return Configuration(f"rsk_{op}_streaming_{dtype}", 32 * warps, streaming, workspace)


def configure_small(op: str, dtype: str, rows: int, D: int) -> Configuration | None:
    """Return how so many items and initial items are launched as a small pool; None where there are too many."""
    parts = _PARTS.get(dtype, 0)
    slots = next((slots for slots in SMALL_SLOTS if rows + parts <= slots), None)
    if not parts or slots is None:
        return None
    slices = -(-D * _ITEMSIZES[dtype] // _ROW_BYTES)
    matrix = -(-max(4 * slots * (slots + 1), _STAGES * slots * _ROW_BYTES) // 16) * 16
    shared = matrix + 16 + parts * slices * _ROW_BYTES
    return Configuration(f"rsk_{op}_small_{slots}_{dtype}", SMALL_SLOTS[slots], shared, 0, source=SMALL_SOURCE)


def configure_columns(
    op: str, dtype: str, P: int, D: int, K: int, capped: bool, num_initial: int, capability: int, max_shared: int
) -> Configuration | None:
    """Return how a pool is launched whose products matrix instructions make; None where they cannot."""
    for configure_pool in (configure_held, configure_met):
        how = configure_pool(op, dtype, P, D, K, capped, num_initial)
        if how and how.shared <= max_shared and (how.blocks == 1 or capability >= CLUSTER_CAPABILITY):
            return how
    return None


def configure_held(
    op: str, dtype: str, P: int, D: int, K: int, capped: bool, num_initial: int = 0
) -> Configuration | None:
    """Return how a pool is launched whose rows stay in registers; None where they do not fit."""
    dims = next((dims for dims in _HELD_DIMS if dims >= D), None)
    rows = next((rows for rows in _HELD_ROWS if rows >= P), None)
    if dtype not in _COLUMN_DTYPES or dims is None or rows is None or D % 8:
        return None
    warps, blocks = _HELD_DIMS[dims], _HELD_ROWS[rows]
    groups = min(P, K) + num_initial if capped else 0
    shared = _shared_of_columns(op, dims, warps, 128 // warps, blocks, groups)
    kernel = f"rsk_{op}_held_{rows}_{dims}_{dtype}"
    return Configuration(kernel, 32 * warps, shared, 0, source=HELD_SOURCE, blocks=blocks)


def configure_met(
    op: str, dtype: str, P: int, D: int, K: int, capped: bool, num_initial: int = 0
) -> Configuration | None:
    """Return how a pool is launched whose rows are read in each pass; None where there are too many."""
    rows = next((rows for rows in _MET_ROWS if rows >= P), None)
    if dtype not in _COLUMN_DTYPES or rows is None or D % 8:
        return None
    blocks, dims = _MET_ROWS[rows], -(-D // 32) * 32
    groups = min(P, K) + num_initial if capped else 0
    shared = _shared_of_columns(op, dims, _MET_TILES, _MET_TILE, blocks, groups)
    kernel = f"rsk_{op}_met_{rows}_{dtype}"
    return Configuration(kernel, 32 * _MET_WARPS, shared, 0, source=MET_SOURCE, blocks=blocks)


def _shared_of_columns(op: str, dims: int, tiles: int, of_tile: int, blocks: int, groups: int) -> int:
    """Return the bytes of columns and their products with the tiles of a block, of all tiles' bests, and of groups."""
    columns = _COLUMNS // 2 * (4 * dims + 16) + tiles * _COLUMNS * (of_tile + 8) * 4
    table = 2 * 16 * tiles * blocks
    return columns + table + 16 + (4 * dims + table if op == "vrsd" else 0) + 8 * groups
