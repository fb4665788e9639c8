"""Pairs of rows that are similar, exactly: sketches leave few of them to be multiplied.

The sketch of a row x is its product with a few orthonormal directions, P x, and the length of what these leave of x.
With y's, the product of the two is at least <x, y>, by the inequality of Cauchy and Schwarz for what is left. So a pair
need not be looked at where its sketches stay below the threshold: nearly all do, if the directions are those in which
the rows spread most. With AVX2 sketches are rounded to bytes, and their largest error is added to the bound: 32 bytes
are multiplied at a time and added up in 16 bits (csrc/cpu/selection/near.cpp). Elsewhere NumPy multiplies floats.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .. import _dispatch
from ..selection.problem import Rows, divide

# Rows whose directions of spread are those of the sketches, and others by which their width is chosen.
_DIRECTIONS, _OTHERS = 512, 1024
_WIDTHS = (12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)  # of a sketch
_MOST_BYTES = 512
# What a pair costs, in products of two bytes with two: beside these, and where its rows are multiplied. A tile of 128
# pairs takes about eight cycles a step; rows that are not in a cache, some hundred nanoseconds.
_BESIDE, _MULTIPLIED = 3.0, 8000.0
# Norms of the bytes of a sketch, before rounding, and of the largest element: those of rows have 7 bits, of vectors 8.
# A product is then below 2^14: (110 + sqrt(512) / 2)^2.
_NORM, _ROW, _VECTOR = 110.0, 63, 127
_LIMIT = 1 << 14
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
    norm: np.ndarray  # (B,)
    sketch: np.ndarray  # (B, W) float64

    def places(self, rows: np.ndarray) -> np.ndarray:
        """Return the positions of some of the rows."""
        order = np.argsort(self.rows)
        return np.asarray(order[np.searchsorted(self.rows, rows, sorter=order)])


class _Held:
    """Rows with sketches in the form in which they are multiplied, up to so many."""

    def __init__(self, most: int, width: int, as_bytes: bool) -> None:
        self.rows = np.empty(most, np.int64)
        self.count = 0
        self.largest_error = self.largest_norm = 0.0
        self.packed = np.empty((-(-most // 32), -(-width // 2), 32, 2), np.uint8) if as_bytes else None
        self.floats = None if as_bytes else np.empty((most, width), np.float32)

    def add(self, block: Block, some: np.ndarray, step: float) -> None:
        """Add rows of a block, a mask; ``step``: that of their bytes."""
        places = np.arange(self.count, self.count + np.count_nonzero(some))
        if not places.size:
            return
        self.rows[places] = block.rows[some]
        self.count += len(places)
        self.largest_norm = max(self.largest_norm, float(block.norm[some].max()))
        sketch = block.sketch[some]
        if self.packed is None:
            self.floats[places] = sketch  # type: ignore[index]
            return
        longer = np.maximum(np.linalg.norm(sketch, axis=1) / (_NORM * step), 1)  # than the step was made for
        codes = np.clip(np.rint(sketch / (step * longer[:, None])), -_ROW, _ROW)
        self.largest_error = max(self.largest_error, float(np.linalg.norm(sketch - codes * step, axis=1).max()))
        unsigned = np.zeros((len(places), 2 * self.packed.shape[1]), np.uint8)
        unsigned[:, : sketch.shape[1]] = codes + (_ROW + 1)
        self.packed[places // 32, :, places % 32] = unsigned.reshape(len(places), -1, 2)


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
        self._by_bytes = compiled and _dispatch.extension().near_supported(_dispatch.isa_index())
        some = rows[np.linspace(0, len(rows) - 1, min(len(rows), _DIRECTIONS + _OTHERS)).astype(np.int64)]
        some = some[np.argsort(np.arange(len(some)) % 3 > 0, kind="stable")]  # one in three for the directions
        first = max(1, len(some) // 3)
        self._basis, self._step = self._directions(
            corpus.vectors(some[:first]), corpus.vectors(some[first:] if len(some) > 1 else some)
        )
        self._width = corpus.dims if self._basis is None else len(self._basis) + 1
        self._by_bytes = self._by_bytes and self._width <= _MOST_BYTES
        self._held = self._empty(len(rows))

    def _empty(self, most: int) -> _Held:
        return _Held(most, self._width, self._by_bytes)

    def _directions(self, sample: np.ndarray, others: np.ndarray) -> tuple[np.ndarray | None, float]:
        """Return the directions (W - 1, D) of sketches, None where these are the rows, and the step of their bytes.

        The directions are those in which a sample spreads most. How many of them cost least is seen on others: they
        leave less of the sample itself.
        """
        dims = sample.shape[1]
        spread = sample.T @ np.linalg.eigh(sample @ sample.T)[1][:, : -1 - dims : -1]
        directions = np.linalg.qr(spread)[0].T
        turned, norm2 = others @ directions.T, np.einsum("nd,nd->n", others, others)
        most = float(np.sqrt(norm2.max(initial=0.0)))
        best, found = np.inf, (None, 1.0)
        for width in (*(width for width in _WIDTHS if width < dims and width <= len(directions)), dims):
            basis, sketch = None, others
            if width < dims:
                basis, head = directions[: width - 1], turned[:, : width - 1]
                sketch = np.concatenate([head, _left(norm2, head)], axis=1)
            step = max(most / _NORM, float(np.abs(sketch).max(initial=0.0)) / _ROW)
            # The errors of bytes are evenly spread, more or less.
            error = 2 * step * np.sqrt(width / 12) * most if self._by_bytes else 0.0
            products = sketch @ sketch.T
            np.fill_diagonal(products, -np.inf)
            share = np.count_nonzero(products >= self._threshold - error) / products.size
            cost = width / 2 + _BESIDE + _MULTIPLIED * share
            if cost < best:
                best, found = cost, (basis, step)
        return found[0], max(found[1], 1e-30)

    def block(self, rows: np.ndarray) -> Block:
        """Return rows with their sketches."""
        sketch = vectors = self._corpus.vectors(rows)
        norm2 = np.einsum("nd,nd->n", vectors, vectors)
        if self._basis is not None:
            head = vectors @ self._basis.T
            sketch = np.concatenate([head, _left(norm2, head)], axis=1)
        return Block(rows, vectors, np.sqrt(norm2), sketch)

    def add(self, block: Block, some: np.ndarray) -> None:
        """Let rows of a block, a mask, stand from here on."""
        self._held.add(block, some, self._step)

    def similar(self, block: Block, best: bool) -> Pairs:
        """Return the rows that stand and are similar to those of a block; with ``best`` the most similar of each."""
        kept = Pairs(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32))
        for of, rows in self._near(block, self._held, best):
            parts = [kept]
            for part in _parts(len(of)):
                similarity = _similarities(self._corpus, block.vectors[of[part]], self._corpus.vectors(rows[part]))
                parts.append(self._enough(of[part], rows[part], similarity))
            kept = Pairs(*(np.concatenate(each) for each in zip(*parts, strict=True)))
            if best:
                kept = most_similar(kept)
        return _ordered(kept)

    def among(self, block: Block, earlier: np.ndarray) -> Pairs:
        """Return which rows of a mask of a block are similar to rows that come later in it, both by their positions."""
        held = self._empty(int(np.count_nonzero(earlier)))
        held.add(block, earlier, self._step)
        found = [(np.zeros(0, np.int64), np.zeros(0, np.int64)), *self._near(block, held, best=False)]
        of, rows = (np.concatenate(each) for each in zip(*found, strict=True))
        at = block.places(rows)
        of, at = of[at < of], at[at < of]
        parts = [np.zeros(0, np.float32)]
        parts += [
            _similarities(self._corpus, block.vectors[of[part]], block.vectors[at[part]]) for part in _parts(len(of))
        ]
        return _ordered(self._enough(of, at, np.concatenate(parts)))

    def _enough(self, of: np.ndarray, rows: np.ndarray, similarity: np.ndarray) -> Pairs:
        enough = similarity >= self._threshold
        return Pairs(of[enough], rows[enough], similarity[enough])

    def _near(self, block: Block, held: _Held, best: bool) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield positions in a block, and rows that are held, of pairs that may be similar; with ``best`` fewer: those
        that may be the most similar one."""
        if held.packed is None:
            return self._near_by_floats(block, held)
        return self._near_by_bytes(block, held, held.packed, best)

    def _near_by_bytes(
        self, block: Block, held: _Held, packed: np.ndarray, best: bool
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        module, threshold = _dispatch.extension(), float(self._threshold)
        norm, error, of_sketch = held.largest_norm, held.largest_error, np.linalg.norm(block.sketch, axis=1)
        step = np.maximum(of_sketch / _NORM, np.abs(block.sketch).max(axis=1) / _VECTOR)
        step = np.maximum(step, 1e-30)[:, None]
        codes = np.rint(block.sketch / step)
        lost = np.linalg.norm(block.sketch - codes * step, axis=1)
        # <x, y> less the product of their bytes and steps, at most.
        lost = lost * (norm + error) + of_sketch * error + 1e-6 * (1 + of_sketch * norm)
        least = np.floor((threshold - lost) / (step[:, 0] * self._step)).clip(-_LIMIT, _LIMIT).astype(np.int64)
        start = (-(_ROW + 1) * codes.sum(axis=1).astype(np.int64) - least).astype(np.int16)  # modulo 2^16
        vector_bytes = np.zeros((len(codes), 2 * packed.shape[1]), np.int8)
        vector_bytes[:, : self._width] = codes
        margin = _rounding(self._corpus.dims, block.norm, norm)
        # Rows of signs are 1 and -1 to the kernel.
        scale = self._corpus.dims**-0.5 if self._corpus.dtype == "binary" else 1.0
        vectors = (block.vectors * scale).astype(np.float32)
        for begin in range(0, held.count, _PART):
            end = min(held.count, begin + _PART)
            yield module.near(
                self._corpus,
                held.rows[begin:end],
                packed[begin // 32 : -(-end // 32)],
                vectors,
                vector_bytes,
                start,
                (threshold - margin).astype(np.float32),
                2 * float(margin.max()) if best else -1.0,
                _dispatch.isa_index(),
                self._threads,
            )

    def _near_by_floats(self, block: Block, held: _Held) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        assert held.floats is not None
        sketch = block.sketch.astype(np.float32)
        least = self._threshold - _rounding(self._width, block.norm, held.largest_norm)[:, None]
        for begin in range(0, held.count, _FLOAT_PART):
            end = min(held.count, begin + _FLOAT_PART)
            of, at = np.nonzero(sketch @ held.floats[begin:end].T >= least)
            yield of, held.rows[begin + at]


def _ordered(pairs: Pairs) -> Pairs:
    order = np.lexsort((pairs.rows, pairs.of))
    return Pairs(*(each[order] for each in pairs))


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
        return np.asarray(products, np.float32)


def _left(norm2: np.ndarray, head: np.ndarray) -> np.ndarray:
    """Return the length (B, 1) of what some directions leave of vectors; what rounding may take from it is added."""
    left2 = norm2 - np.einsum("nd,nd->n", head, head)
    return np.asarray(np.sqrt(np.maximum(left2, 0) + 1e-14 * norm2)[:, None])


def _parts(count: int) -> list[slice]:
    return [slice(begin, begin + _PAIRS) for begin in range(0, count, _PAIRS)]


def _rounding(width: int, norm: np.ndarray, most: float) -> np.ndarray:
    """Return by how much products of float32 may be off, of vectors with these norms with others of at most one."""
    return (width + 32) * 2.0**-23 * norm * most + 1e-30
