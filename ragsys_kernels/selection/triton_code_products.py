"""Products of 8-bit codes in the Triton kernels of coded pools: a pool's with a query, a tile's with picks.

A code row (`codes.py`) is read as words of four codes where its header is wanted too, and as signed bytes where matrix
units multiply it. The header is the last three words: scale, error, the sum of the codes.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

# Turns that codes meet at a time.
TURNS = tl.constexpr(16)
# Below every similarity of unit vectors, and below what is above every one of none.
LEAST = tl.constexpr(-1.001)
NONE = tl.constexpr(-2.0)


@triton.jit
def code_header(words, column, code_words):
    """Return scale and error of code rows from their last words, those at the columns."""
    scale = tl.sum(tl.where(column[None, :] == code_words - 3, words, 0), 1)
    error = tl.sum(tl.where(column[None, :] == code_words - 2, words, 0), 1)
    return scale.to(tl.float32, bitcast=True), error.to(tl.float32, bitcast=True)


@triton.jit
def code_header_of(words, row, code_words):
    """Return scale and error of one code row."""
    at = words + row * code_words + code_words
    return tl.load(at - 3).to(tl.float32, bitcast=True), tl.load(at - 2).to(tl.float32, bitcast=True)


@triton.jit
def word_products(words, query, factor, guess, guessed, c, D, products, near):
    """Add the products of a slice of code rows, four codes a word, with the query and with the code row guessed."""
    other = tl.load(guess + c, mask=guessed, other=0)
    for byte in tl.static_range(4):
        x = ((words << (24 - 8 * byte)) >> 24).to(tl.float32)
        y = ((other << (24 - 8 * byte)) >> 24).to(tl.float32)
        inside = 4 * c + byte < D  # a word behind the last dimension may be of the header
        products += x * (tl.load(query + 4 * c + byte, mask=inside, other=0.0) * factor)[None, :]
        near += x * tl.where(inside, y, 0.0)[None, :]
    return products, near


@triton.jit
def meet_by_codes(
    codes,
    words,
    row,
    lack,
    m,
    most,
    rival,
    likely,
    met,
    taken_rows,
    taken_scales,
    taken_errors,
    turns,
    slack,
    code_words,
    D,
    ROWS: tl.constexpr,
    DIMS: tl.constexpr,
    EVEN_D: tl.constexpr,
):
    """Return m, most, rival and likely of a tile after these items have met by codes the turns that they lack."""
    d = tl.arange(0, DIMS)
    column = code_words - 4 + tl.arange(0, 4)
    last = tl.load(words + row[:, None] * code_words + column[None, :], mask=lack[:, None], other=0)
    scale, error = code_header(last, column, code_words)
    base = codes + row[:, None] * (4 * code_words)
    for turn in range(tl.min(tl.where(lack, met, turns), 0), turns, TURNS):
        t = turn + tl.arange(0, TURNS)
        row_t = tl.load(taken_rows + t, mask=t < turns, other=-1)
        took = row_t >= 0
        row_t = tl.where(took, row_t, 0)
        scale_t = tl.load(taken_scales + t, mask=took, other=0.0)
        error_t = tl.load(taken_errors + t, mask=took, other=0.0)
        picks = codes + row_t[:, None] * (4 * code_words)
        products = tl.zeros([ROWS, TURNS], tl.int32)
        # What is read behind the last dimension meets zeros.
        for d0 in range(0, D, DIMS):
            x = tl.load(base + (d0 + d)[None, :], mask=lack[:, None], other=0)
            wanted = took[:, None]
            if not EVEN_D:
                wanted = wanted & (d0 + d < D)[None, :]
            y = tl.load(picks + (d0 + d)[None, :], mask=wanted, other=0)
            products = tl.dot(x, tl.trans(y), products, out_dtype=tl.int32)
        near = products.to(tl.float32) * scale[:, None] * scale_t[None, :]
        off = error[:, None] + error_t[None, :] + error[:, None] * error_t[None, :] + slack
        new = (lack & (met < turn + TURNS))[:, None] & took[None, :] & (t[None, :] >= met[:, None])
        low = tl.where(new, near - off, NONE)
        high = tl.where(new, near + off, NONE)
        top = tl.max(low, 1)
        top_at = tl.min(tl.where(low == top[:, None], t[None, :], 0x7FFFFFFF), 1)
        here = t[None, :] == top_at[:, None]
        top_most = tl.max(tl.where(here, high, NONE), 1)
        rest = tl.maximum(rival, tl.max(tl.where(here, NONE, high), 1))
        nearer = (top > NONE) & ((top > m) | (likely < 0))
        rival = tl.maximum(rest, tl.where(nearer, most, top_most))
        likely = tl.where(nearer, top_at.to(tl.float32), likely)
        most = tl.where(nearer, top_most, most)
        m = tl.maximum(m, top)
    return m, most, rival, likely
