"""How scoring's CUDA C++ kernels are launched, by shape."""

from __future__ import annotations

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


def tile_slots(num_slots: int) -> int:
    """Return the slots of a tile of the linear form; the bits are the same with either number."""
    return 16 if num_slots <= 16 else 64


def hidden_shared(tile: int) -> int:
    """Return the bytes of the two slices, the ids and the running sums."""
    return 4 * _DEPTH * (tile + _TILE_COLUMNS) + 8 * (tile + _TILE_COLUMNS) + 12 * THREADS * (tile // 16)
