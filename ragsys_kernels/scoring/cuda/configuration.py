"""How scoring's CUDA C++ kernels are launched, by shape, and what each is."""

from __future__ import annotations

from typing import Any

from ..._gpu.cuda_module import Kernel

SOURCE = "answer_logprob"

# As in the source. Logits: columns of a part, shared memory of a block.
THREADS = 256
COLUMNS = 8192
LOGITS_SHARED = 4 * (3 * 8 + 8 * 32)

# Linear form: columns of a part, dimensions and columns of a tile.
SLAB = 512
_DEPTH, _TILE_COLUMNS = 32, 128

# The block that finds the slots, and its shared memory.
SLOT_THREADS = 1024
SLOTS_SHARED = 4 * SLOT_THREADS // 32

# Slots of a block where a warp has one.
WARPS = THREADS // 32

# How a kernel's name says its type.
SUFFIXES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
_ITEMSIZES = {"float32": 4, "float16": 2, "bfloat16": 2}


def tile_slots(num_slots: int) -> int:
    """Return the slots of a tile of the linear form; the bits are the same with either number."""
    return 16 if num_slots <= 16 else 64


def hidden_shared(tile: int) -> int:
    """Return the bytes of the two slices, the ids and the running sums."""
    return 4 * _DEPTH * (tile + _TILE_COLUMNS) + 8 * (tile + _TILE_COLUMNS) + 12 * THREADS * (tile // 16)


def kernels() -> list[Kernel]:
    """Return every kernel of the source; sizes are functions of (T, V, D), D being 0 for logits."""
    found = [_logits_kernel(dtype, suffix) for suffix in ("", "_softcap", "_own", "_softcap_own") for dtype in SUFFIXES]
    found += [_hidden_kernel(tile) for tile in (16, 64)]
    found.append(_small_kernel("rsk_score_targets", lambda T, V, D: D > 0, lambda T, V, D: 4 * T * D * 2))
    found.append(_small_kernel("rsk_score_answers", lambda T, V, D: True, lambda T, V, D: 9 * T))
    found.append(_small_kernel("rsk_score_aligned_slots", lambda T, V, D: D > 0, lambda T, V, D: 8 * T))
    slots = _small_kernel("rsk_score_slots", lambda T, V, D: True, lambda T, V, D: 16 * T)
    found.append(slots._replace(threads=lambda T, V, D: SLOT_THREADS, shared_bytes=lambda T, V, D: SLOTS_SHARED))
    return found


def _small_kernel(name: str, fits: Any, bytes_read: Any) -> Kernel:
    return Kernel(name, SOURCE, fits, lambda T, V, D: THREADS, lambda T, V, D: 0, bytes_read)


def _logits_kernel(dtype: str, suffix: str) -> Kernel:
    return Kernel(
        f"rsk_score_logits_{SUFFIXES[dtype]}{suffix}",
        SOURCE,
        lambda T, V, D: D == 0,
        lambda T, V, D: THREADS,
        lambda T, V, D: LOGITS_SHARED,
        lambda T, V, D: T * V * _ITEMSIZES[dtype],
    )


def _hidden_kernel(tile: int) -> Kernel:
    return Kernel(
        f"rsk_score_hidden_{tile}",
        SOURCE,
        lambda T, V, D: D > 0 and tile_slots(T) == tile,
        lambda T, V, D: THREADS,
        lambda T, V, D: hidden_shared(tile),
        lambda T, V, D: 4 * D * (T + V),  # as float32; tiles of other slots find the weights in the cache
    )
