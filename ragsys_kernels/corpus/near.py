"""Pairs of rows that are similar, exactly: sketches leave few of them to be multiplied.

The sketch of a row x is its product with a few orthonormal directions, P x, and the length of what these leave of x.
With y's, the product of the two is at least <x, y>, by the inequality of Cauchy and Schwarz for what is left. So a pair
need not be looked at where its sketches stay below the threshold: nearly all do, if the directions are those in which
the rows spread most. Sketches are rounded to bytes, with their largest error added to the bound; AVX512-VNNI multiplies
64 of these at a time (csrc/cpu/selection/near.cpp). Elsewhere NumPy multiplies sketches of floats.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .. import _dispatch
from ..selection.problem import Rows, divide

_SAMPLE = 1024  # rows whose directions of spread are those of the sketches
_WIDTHS = (12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)  # bytes of a sketch, whole fours
# What a pair costs, in products of four bytes with four: beside these, and where its rows are multiplied. A tile of
# 256 pairs takes 16 cycles a step; rows that are not in a cache, some hundred nanoseconds.
_BESIDE, _MULTIPLIED = 1.5, 8000.0
_PART = 1 << 17  # rows that are looked at by a call: what all of them could leave of a block's pairs fits in memory
_FLOAT_PART = 1 << 14  # the same of products of floats, of which there is one for each pair
_PAIRS = 1 << 14  # whose similarities are computed at a time


class Pairs(NamedTuple):
    """Similar pairs: positions in a block, rows that stand, and their similarities, ascending by the first two."""

    of: np.ndarray
    rows: np.ndarray
    similarity: np.ndarray


@dataclass
class Block:
    """Rows that are looked for together, with their sketches."""

    rows: np.ndarray  # (B,) int64
    vectors: np.ndarray  # (B, D) float64
    sketch: np.ndarray  # (B, W) float64
    bytes: np.ndarray  # (B, W to whole fours) int8
    error: np.ndarray  # (B,) what the bytes leave of the sketch
    norm: np.ndarray  # (B,)


class Standing:
    """Some rows of a corpus, more and more of them, and which of them are similar to others.

    Parameters
    ----------
    corpus : Rows
        On the host; its rows are checked.
    rows : (M,) int64
        All that may be added.
    threshold : float
        Of similarity; rounded to float32, as similarities are.
    compiled : bool
        Whether the compiled kernel may be used, where the processor has what it needs.
    """

    def __init__(self, corpus: Rows, rows: np.ndarray, threshold: float, compiled: bool, num_threads: int) -> None:
        self._corpus, self._threads = corpus, num_threads
        self._threshold = np.float32(threshold)
        self._module: Any = None
        if compiled and _dispatch.extension().near_supported(_dispatch.isa_index()):
            self._module = _dispatch.extension()
        count = min(len(rows), max(16, min(_SAMPLE, len(rows) // 8)))
        sample = corpus.vectors(np.sort(rows[np.linspace(0, len(rows) - 1, count).astype(np.int64)]))
        self._basis, self._step = self._directions(sample)
        width = corpus.dims if self._basis is None else len(self._basis) + 1
        self._steps = -(-width // 4)
        self._rows = np.empty(len(rows), np.int64)
        self._count = 0
        self._largest_error = self._largest_norm = 0.0
        if self._module is not None:
            self._sketches = np.empty((-(-len(rows) // 32) * 2, self._steps, 16, 4), np.uint8)
        else:
            self._floats = np.empty((len(rows), width), np.float32)

    def _directions(self, sample: np.ndarray) -> tuple[np.ndarray | None, float]:
        """Return the directions (W - 1, D) of sketches, None where these are the rows, and the step of their bytes."""
        directions = np.linalg.svd(sample, full_matrices=False)[2]
        turned, dims = sample @ directions.T, sample.shape[1]
        norm2 = np.square(sample).sum(axis=1)
        most = float(np.sqrt(norm2.max(initial=0.0)))
        best, found = np.inf, (None, float(np.abs(sample).max(initial=0.0)))
        for width in (*_WIDTHS, dims):
            if width < dims and width <= turned.shape[1]:
                head = turned[:, : width - 1]
                sketch = np.concatenate([head, _left(norm2, head)], axis=1)
            elif width == dims:
                sketch = sample
            else:
                continue
            largest = float(np.abs(sketch).max(initial=0.0))
            # The errors of bytes are evenly spread, more or less.
            error = largest / 127 * np.sqrt(width / 12) if self._module is not None else 0.0
            products = sketch @ sketch.T
            np.fill_diagonal(products, -np.inf)
            share = np.count_nonzero(products >= self._threshold - 2 * error * most) / products.size
            cost = -(-width // 4) + _BESIDE + _MULTIPLIED * share
            if cost < best:
                best, found = cost, (None if width == dims else directions[: width - 1], largest)
        return found[0], max(found[1], 1e-30) / 127

    def block(self, rows: np.ndarray) -> Block:
        """Return rows with their sketches."""
        vectors = self._corpus.vectors(rows)
        norm2 = np.einsum("nd,nd->n", vectors, vectors)
        sketch = vectors
        if self._basis is not None:
            head = vectors @ self._basis.T
            sketch = np.concatenate([head, _left(norm2, head)], axis=1)
        codes = np.clip(np.rint(sketch / self._step), -127, 127)
        error = np.linalg.norm(sketch - codes * self._step, axis=1)
        small = np.zeros((len(rows), 4 * self._steps), np.int8)
        small[:, : sketch.shape[1]] = codes
        return Block(rows, vectors, sketch, small, error, np.sqrt(norm2))

    def add(self, block: Block, some: np.ndarray) -> None:
        """Let rows of a block, a mask, stand from here on."""
        places = np.arange(self._count, self._count + np.count_nonzero(some))
        if not places.size:
            return
        self._rows[places] = block.rows[some]
        self._count += len(places)
        self._largest_norm = max(self._largest_norm, float(block.norm[some].max()))
        self._largest_error = max(self._largest_error, float(block.error[some].max()))
        if self._module is None:
            self._floats[places] = block.sketch[some]
        else:
            unsigned = (block.bytes[some].view(np.uint8) ^ 0x80).reshape(len(places), self._steps, 4)
            self._sketches[places // 16, :, places % 16] = unsigned

    def similar(self, block: Block, best: bool) -> Pairs:
        """Return the rows that stand and are similar to those of a block; with ``best`` the most similar of each, at
        least."""
        look = self._by_floats if self._module is None else self._by_bytes
        return self._exact(block, look(block, best), best)

    def among(self, block: Block, earlier: np.ndarray) -> Pairs:
        """Return which rows of a block, and of a mask of it, are similar to rows that come later in it: positions."""
        some = np.flatnonzero(earlier)
        sketch = block.sketch.astype(np.float32)
        products = sketch @ sketch[some].T
        most = float(block.norm.max())
        of, at = np.nonzero(products >= self._threshold - _rounding(sketch.shape[1], block.norm, most).max())
        before = some[at] < of
        of, at = of[before], some[at[before]]
        similarity = np.concatenate([
            _similarities(self._corpus, block.vectors[of[part]], block.vectors[at[part]])
            for part in _parts(len(of))
        ]) if len(of) else np.zeros(0, np.float32)  # fmt: skip
        enough = similarity >= self._threshold
        return Pairs(of[enough], at[enough], similarity[enough])

    def _by_bytes(self, block: Block, best: bool) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        step2, most, error = self._step**2, self._largest_norm, self._largest_error
        # <x, y> - step^2 <codes of x, codes of y>, at most.
        lost = block.error * (most + error) + block.norm * error + 1e-6 * (1 + block.norm * most)
        least = np.clip(np.floor((float(self._threshold) - lost) / step2), -(2.0**30), 2.0**30).astype(np.int64)
        start = (-128 * block.bytes.sum(axis=1, dtype=np.int64) - least).astype(np.int32)

        margin = _rounding(self._corpus.dims, block.norm, most)
        # Rows of signs are 1 and -1 to the kernel.
        scale = self._corpus.dims**-0.5 if self._corpus.dtype == "binary" else 1.0
        vectors = (block.vectors * scale).astype(np.float32)
        for begin in range(0, self._count, _PART):
            end = min(self._count, begin + _PART)
            yield self._module.near(
                self._corpus,
                self._rows[begin:end],
                self._sketches[begin // 16 : -(-end // 32) * 2],
                vectors,
                block.bytes,
                start,
                (float(self._threshold) - margin).astype(np.float32),
                2 * float(margin.max()) if best else -1.0,
                _dispatch.isa_index(),
                self._threads,
            )

    def _by_floats(self, block: Block, best: bool) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        sketch = block.sketch.astype(np.float32)
        least = self._threshold - _rounding(sketch.shape[1], block.norm, self._largest_norm)[:, None]
        for begin in range(0, self._count, _FLOAT_PART):
            end = min(self._count, begin + _FLOAT_PART)
            of, at = np.nonzero(sketch @ self._floats[begin:end].T >= least)
            yield of, self._rows[begin + at]

    def _exact(self, block: Block, found: Iterator[tuple[np.ndarray, np.ndarray]], best: bool) -> Pairs:
        """Return those of some pairs that are similar."""
        kept = Pairs(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32))
        for of, rows in found:
            parts = [kept]
            for part in _parts(len(of)):
                similarity = _similarities(self._corpus, block.vectors[of[part]], self._corpus.vectors(rows[part]))
                enough = similarity >= self._threshold
                parts.append(Pairs(of[part][enough], rows[part][enough], similarity[enough]))
            kept = Pairs(*(np.concatenate(each) for each in zip(*parts, strict=True)))
            if best:
                kept = most_similar(kept)
        order = np.lexsort((kept.rows, kept.of))
        return Pairs(*(each[order] for each in kept))


def most_similar(pairs: Pairs) -> Pairs:
    """Return the most similar row of each that has one; ties go to the lowest row."""
    order = np.lexsort((pairs.rows, -pairs.similarity, pairs.of))
    first = np.unique(pairs.of[order], return_index=True)[1]
    return Pairs(*(each[order[first]] for each in pairs))


def similarities(corpus: Rows, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the similarities of pairs of rows, (n,) float32."""
    found = [_similarities(corpus, corpus.vectors(a[part]), corpus.vectors(b[part])) for part in _parts(len(a))]
    return np.concatenate(found) if found else np.zeros(0, np.float32)


def _similarities(corpus: Rows, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the similarities of pairs of vectors (n, D), each computed in float64 and rounded."""
    products = np.einsum("nd,nd->n", a, b)
    if corpus.metric == "cosine":  # stored rows are unit vectors to the precision of float32 alone
        products = divide(products, np.sqrt(np.einsum("nd,nd->n", a, a) * np.einsum("nd,nd->n", b, b)))
    with np.errstate(over="ignore"):
        return products.astype(np.float32)


def _left(norm2: np.ndarray, head: np.ndarray) -> np.ndarray:
    """Return the length (B, 1) of what some directions leave of vectors; what rounding may take from it is added."""
    left2 = norm2 - np.einsum("nd,nd->n", head, head)
    return np.sqrt(np.maximum(left2, 0) + 1e-14 * norm2)[:, None]


def _parts(count: int) -> list[slice]:
    return [slice(begin, begin + _PAIRS) for begin in range(0, count, _PAIRS)]


def _rounding(width: int, norm: np.ndarray, most: float) -> np.ndarray:
    """Return by how much products of float32 may be off, of vectors with these norms with others of at most one."""
    return (width + 32) * 2.0**-23 * norm * most + 1e-30
