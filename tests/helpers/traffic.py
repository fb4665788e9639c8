"""Counts the bytes that Triton's kernels move to and from memory, in its interpreter.

    with counted(rows=rows, queries=queries) as moved:
        rk.mmr_select(queries, rows, ...)
    moved.read["rows"], moved.written["others"], moved.launches

A load counts the memory sectors that it touches, each once, as the lanes of a device share them. Nothing is cached
from one load to the next: a row that a program loads twice counts twice. Memory of no array that was named counts as
``others``.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

# The least that a GPU moves to or from its memory.
SECTOR_BYTES = 32


@dataclass
class Traffic:
    """Bytes by the name of the array, and launches by the name of the kernel."""

    read: Counter = field(default_factory=Counter)
    written: Counter = field(default_factory=Counter)
    launches: Counter = field(default_factory=Counter)


class _Places:
    def __init__(self, arrays):
        self.names = list(arrays)
        storages = [array.untyped_storage() for array in arrays.values()]
        self.first = np.array([storage.data_ptr() for storage in storages], np.uint64)
        self.last = self.first + np.array([storage.nbytes() for storage in storages], np.uint64)

    def add(self, bytes_by_name, addresses, mask):
        addresses = np.asarray(addresses, np.uint64)
        addresses = addresses[np.broadcast_to(np.asarray(mask, bool), addresses.shape)]
        sectors = np.unique(addresses // SECTOR_BYTES)
        rest = len(sectors)
        for name, first, last in zip(self.names, self.first, self.last, strict=True):
            # An array may begin or end within a sector.
            within = (sectors >= first // SECTOR_BYTES) & (sectors * SECTOR_BYTES < last)
            bytes_by_name[name] += SECTOR_BYTES * int(within.sum())
            rest -= int(within.sum())
        bytes_by_name["others"] += SECTOR_BYTES * rest


@contextlib.contextmanager
def counted(**arrays):
    """Count what the kernels launched in the block move; ``arrays`` are tensors that share no memory."""
    from triton.runtime import interpreter

    moved, places = Traffic(), _Places(arrays)
    builder, executor = interpreter.InterpreterBuilder, interpreter.GridExecutor
    load, store, atomic, launch = (
        builder.create_masked_load,
        builder.create_masked_store,
        builder.create_atomic_rmw,
        executor.__call__,
    )

    def counted_load(self, ptrs, mask, *rest, **options):
        places.add(moved.read, ptrs.data, mask.data)
        return load(self, ptrs, mask, *rest, **options)

    def counted_store(self, ptrs, value, mask, *rest, **options):
        places.add(moved.written, ptrs.data, mask.data)
        return store(self, ptrs, value, mask, *rest, **options)

    def counted_atomic(self, operation, ptr, val, mask, *rest, **options):
        places.add(moved.read, ptr.data, mask.data)
        places.add(moved.written, ptr.data, mask.data)
        return atomic(self, operation, ptr, val, mask, *rest, **options)

    def counted_launch(self, *given, **options):
        moved.launches[self.fn.__name__] += 1
        return launch(self, *given, **options)

    builder.create_masked_load, builder.create_masked_store = counted_load, counted_store
    builder.create_atomic_rmw, executor.__call__ = counted_atomic, counted_launch
    try:
        yield moved
    finally:
        builder.create_masked_load, builder.create_masked_store = load, store
        builder.create_atomic_rmw, executor.__call__ = atomic, launch
