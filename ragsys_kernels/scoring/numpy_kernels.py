"""NumPy in float32, in blocks that stay in the cache and reuse their buffers: the fallback without the extension.

The file is not called ``numpy.py``, so that nothing can shadow the real package.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .finish import merge_rows
from .problem import Partials, ScoringProblem

# Logits: columns of a block, and elements of one, 256 kB of float32. Larger blocks gain little where there are many
# rows, and lose by page faults of fresh buffers where there are few.
_COLUMNS = 32768
_ELEMENTS = 65536

# Linear form: rows of every product; the last product is filled up with zeros, so that the BLAS takes the same path for
# any number of rows. Weights of a block of columns: 4 MB. The fewest columns of a product.
_ROWS = 64
_WEIGHTS = 1 << 20
_NARROW = 1024


def partials(problem: ScoringProblem, num_threads: int) -> Partials:
    """Return the partials of every block of columns, merged. Threads are those of NumPy's matrix products."""
    form = _Linear(problem) if problem.logits is None else _Logits(problem)
    R, M, blocks = len(problem.rows), len(problem.columns), len(form.blocks)
    largest = np.empty((blocks, R), np.float32)
    sums = np.empty((blocks, R))
    weighted = np.empty((blocks, R)) if problem.entropy else None
    target = np.full(M, -np.inf, np.float32)
    rank = np.zeros(M, np.int64) if problem.rank else None
    top = np.full((R, problem.top), -np.inf, np.float32) if problem.top else None
    top_ids = np.full((R, problem.top), -1) if problem.top else None
    scratch, second = (np.empty(form.height * form.width, np.float32) for _ in range(2))
    with np.errstate(all="ignore"):
        # The first block is compared with every target, so they come first; each must be the very number of its tile.
        form.targets(target)
        than = target if problem.target_logits is None else problem.target_logits
        for block, slots in form.tiles():
            z = form.load(block, slots)
            if rank is not None:
                _count(problem, z, slots, than, rank)
            m = largest[block, slots] = z.max(axis=1)
            if top is not None and top_ids is not None:
                _keep_best(z, form.ids(block), m, top[slots], top_ids[slots])
            e = scratch[: z.size].reshape(z.shape)
            np.subtract(z, np.where(np.isfinite(m), m, np.float32(0))[:, None], out=e)
            if weighted is not None:
                d = second[: z.size].reshape(z.shape)
                np.maximum(e, np.float32(-128), out=d)  # exp(-128) is 0 in float32, where -inf * 0 would be NaN
            np.exp(e, out=e)
            sums[block, slots] = np.add.reduce(e, axis=1)
            if weighted is not None:
                d *= e
                weighted[block, slots] = np.add.reduce(d, axis=1)
    bad = np.isnan(largest) | (largest == np.inf)
    sums[bad] = np.nan
    ref = np.where(bad, np.float32(-np.inf), largest)
    return Partials(*merge_rows(ref, largest, sums, weighted), target, rank, top, top_ids)


def _keep_best(z: np.ndarray, ids: np.ndarray, largest: np.ndarray, top: np.ndarray, top_ids: np.ndarray) -> None:
    """Put into ``top`` (rows, k), in place, what is larger in z (rows, columns), whose ids are above those before."""
    k = top.shape[1]
    for row in np.flatnonzero(largest > top[:, -1]):
        values = z[row]
        found = np.flatnonzero(values > top[row, -1])
        if len(found) > k:
            chosen = values[found]
            found = found[chosen >= np.partition(chosen, -k)[-k]]
        values, at = np.concatenate([top[row], values[found]]), np.concatenate([top_ids[row], ids[found]])
        best = np.argsort(-values, kind="stable")[:k]
        top[row], top_ids[row] = values[best], at[best]


def _count(problem: ScoringProblem, z: np.ndarray, slots: slice, than: np.ndarray, rank: np.ndarray) -> None:
    """Add to the rank of each target of these slots the number of elements that exceed it."""
    begin = problem.pair_begin[slots.start : slots.stop + 1]
    row = np.repeat(np.arange(len(z)), np.diff(begin))
    for first in range(0, len(row), len(z)):  # as many targets together as there are rows
        mine = row[first : first + len(z)]
        some = slice(begin[0] + first, begin[0] + first + len(mine))
        rows = z if np.array_equal(mine, np.arange(len(z))) else z[mine]
        greater = rows > than[some, None]
        # Counting over an axis is slow, counting row by row takes a call for each row.
        wide = z.shape[1] >= 2048
        rank[some] += [np.count_nonzero(row) for row in greater] if wide else np.count_nonzero(greater, axis=1)


def _scaled(problem: ScoringProblem, x: np.ndarray, inverse_temperature: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Return softcap_(logit_scale x) inverse_temperature in ``out``, or x itself where that is the same."""
    if problem.softcap is None:
        factor = np.float32(problem.logit_scale) * inverse_temperature
        return x if (factor == 1).all() else np.multiply(x, factor, out=out)
    infinite = np.isinf(x)
    extreme = x[infinite]
    np.multiply(x, np.float32(problem.logit_scale / problem.softcap), out=out)
    np.tanh(out, out=out)
    out *= np.float32(problem.softcap) * inverse_temperature
    out[infinite] = extreme  # a masked entry stays masked
    return out


def _widen(stored: np.ndarray, dtype: str, out: np.ndarray) -> np.ndarray:
    """Return 16-bit elements as float32 at the front of ``out``, and float32 elements as they are."""
    if dtype == "float32":
        return stored
    wide = out[: stored.size].reshape(stored.shape)
    if dtype == "bfloat16":
        np.left_shift(stored, np.uint32(16), out=wide.view(np.uint32), dtype=np.uint32)
    else:
        np.copyto(wide, stored)
    return wide


class _Form:
    """z of some slots in one block of columns; a subclass says where x comes from."""

    def __init__(self, problem: ScoringProblem, height: int, width: int) -> None:
        self.problem, self.height, self.width = problem, height, width
        self.blocks = range(-(-problem.num_entering // width))
        R = len(problem.rows)
        self.groups = [slice(first, min(first + height, R)) for first in range(0, R, height)]
        self.slot = np.repeat(np.arange(R), np.diff(problem.pair_begin))  # of each target
        self.buffer = np.empty(height * width, np.float32)

    def columns(self, block: int) -> Any:
        """Return what indexes the columns of a block."""
        part = slice(block * self.width, min((block + 1) * self.width, self.problem.num_entering))
        return part if self.problem.allowed is None else self.problem.allowed[part]

    def ids(self, block: int) -> np.ndarray:
        """Return the columns of a block as numbers."""
        columns = self.columns(block)
        return np.arange(columns.start, columns.stop) if isinstance(columns, slice) else columns


class _Logits(_Form):
    def __init__(self, problem: ScoringProblem) -> None:
        width = min(_COLUMNS, problem.num_entering)
        super().__init__(problem, max(1, _ELEMENTS // width), width)
        first = problem.rows[0]
        self.consecutive = np.array_equal(problem.rows, np.arange(first, first + len(problem.rows)))

    def tiles(self) -> Iterator[tuple[int, slice]]:
        return ((block, slots) for slots in self.groups for block in self.blocks)

    def load(self, block: int, slots: slice) -> np.ndarray:
        """Return z (slots, columns), valid until the next call; it may be the caller's own memory."""
        problem, columns, rows = self.problem, self.columns(block), self.problem.rows[slots]
        assert problem.logits is not None
        if self.consecutive:
            stored = problem.logits[rows[0] : rows[-1] + 1, columns]
        else:
            stored = problem.logits[rows if problem.allowed is None else rows[:, None], columns]
        x = _widen(stored, problem.logits_dtype, self.buffer)
        out = self.buffer[: x.size].reshape(x.shape)
        return _scaled(problem, x, problem.inverse_temperature[slots, None], out)

    def targets(self, target: np.ndarray) -> None:
        problem = self.problem
        assert problem.logits is not None
        some = np.flatnonzero(problem.columns >= 0)
        slot = self.slot[some]
        out = np.empty(len(some), np.float32)
        x = _widen(problem.logits[problem.rows[slot], problem.columns[some]], problem.logits_dtype, out)
        target[some] = _scaled(problem, x, problem.inverse_temperature[slot], out)


class _Linear(_Form):
    def __init__(self, problem: ScoringProblem) -> None:
        assert problem.hidden is not None
        dims = problem.hidden.shape[1]
        super().__init__(problem, _ROWS, min(max(_NARROW, _WEIGHTS // dims), problem.num_entering))
        self.vectors = np.zeros((_ROWS, dims), np.float32)
        self.wide_weight = np.empty(0 if problem.weight_dtype == "float32" else self.width * dims, np.float32)
        self.block, self.weight = -1, self.wide_weight
        self.position = problem.columns  # of each target among the columns that enter, or -1
        if problem.allowed is not None:
            self.position = np.where(self.position < 0, -1, np.searchsorted(problem.allowed, self.position))

    def tiles(self) -> Iterator[tuple[int, slice]]:
        return ((block, slots) for block in self.blocks for slots in self.groups)  # every weight is read once

    def load(self, block: int, slots: slice) -> np.ndarray:
        """Return z (slots, columns), valid until the next call; targets have the numbers that `targets` gave."""
        z = self.products(block, slots)
        begin = self.problem.pair_begin
        pairs = slice(begin[slots.start], begin[slots.stop])
        column = self.position[pairs] - block * self.width
        here = np.flatnonzero((column >= 0) & (column < z.shape[1]))
        z[self.slot[pairs][here] - slots.start, column[here]] = self.target[pairs][here]
        return z

    def products(self, block: int, slots: Any) -> np.ndarray:
        """Return z (slots, columns), valid until the next call."""
        problem = self.problem
        assert problem.weight is not None
        if block != self.block:
            self.weight = _widen(problem.weight[self.columns(block)], problem.weight_dtype, self.wide_weight)
            self.block = block
        rows = problem.rows[slots]
        self.vectors[: len(rows)] = problem.vectors("hidden", rows)
        self.vectors[len(rows) :] = 0
        out = self.buffer[: _ROWS * len(self.weight)].reshape(_ROWS, -1)
        x = np.matmul(self.vectors, self.weight.T, out=out)[: len(rows)]
        if problem.head_bias is not None:
            x += problem.head_bias[self.columns(block)]
        return _scaled(problem, x, problem.inverse_temperature[slots, None], x)

    def targets(self, target: np.ndarray) -> None:
        """Take targets from products of the shape that the sums have: the same numbers, if the BLAS keeps bits."""
        position, self.target = self.position, target
        order = np.argsort(position, kind="stable")
        bounds = np.searchsorted(position[order], np.arange(len(self.blocks) + 1) * self.width)
        for block in self.blocks:
            pairs = order[bounds[block] : bounds[block + 1]]
            slots, row = np.unique(self.slot[pairs], return_inverse=True)
            for first in range(0, len(slots), _ROWS):
                z = self.products(block, slots[first : first + _ROWS])
                here = (row >= first) & (row < first + _ROWS)
                target[pairs[here]] = z[row[here] - first, position[pairs[here]] - block * self.width]
