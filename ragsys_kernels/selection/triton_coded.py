"""Regime b, MMR out of a coded `Corpus`: the codes of a pool are read once, and few rows.

The codes bound the relevance of every item from both sides, and its similarity to the picks it has met. A step takes
the items of the largest upper bounds, a tile at a time. Those that lack picks meet them by their codes; where none
does, those that may still be the best are read. An item that is read meets the query and the pick that is nearest by
the codes, and the other picks only if one of them may be nearer. A pick is always an item whose value is known from its
row, by the operations of ``triton_bounds.py``, so that picks and scores have the same bits; README.md has the errors.

A program's running vectors lie in ``work`` (8, Q, stride): the upper bound of the value (NaN: may not be picked); the
most and the least that v can be, equal where it is known; the least that m can be; the most that the similarity to the
likely pick can be, equal to it where m is known to be no less; the most for all other picks; the turn of the likely
pick; the number of turns met by codes. ``taken_rows`` and ``taken_factors`` are those of ``triton_bounds.py``.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .. import _arrays
from .codes import row_bytes
from .problem import Problem, Selection
from .triton_bounds import SCAN, SHARE, STAGES, WORKSPACE_BYTES, close_group, larger_in_lanes
from .triton_code_products import LEAST, NONE, code_header, code_header_of, meet_by_codes, word_products
from .triton_launch import OPTIONS, Tile, chunks, code_rows, padded, pool_arguments, row_tile
from .triton_objective import NO_PICK, best_of, comparable, may_be_picked, mmr_value, pool_ids, store_pick, with_bias
from .triton_rows import catch_up, everywhere, initial_item, similarity

PLANES = 8
# A step looks for the largest bounds this often; then all tiles have their turn, twice.
ROUNDS = tl.constexpr(64)
# Where a float32 computes a value from bounds of its terms, or from the terms, it is off by no more than this share.
ROUNDING = tl.constexpr(2.0**-21)


@triton.jit
def _most(v, m, weight, first):
    """Return what a value is at most, from the most that v and the least that m can be."""
    return mmr_value(v, m, weight, first) + ROUNDING * (tl.abs(v) + 1.0)


@triton.jit
def _least(v, m, weight, first):
    return mmr_value(v, m, weight, first) - ROUNDING * (tl.abs(v) + 1.0)


@triton.jit
def _largest_bounds(bound_at, P, ROWS: tl.constexpr):
    """Return for each lane its largest bound and the lowest position of that; lane i has positions i, i + ROWS, .."""
    lanes = tl.arange(0, SCAN // ROWS)[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
    bound = tl.full([ROWS], float("-inf"), tl.float32)
    at = tl.zeros([ROWS], tl.int32)
    for p0 in range(0, P, SCAN):
        w = tl.load(bound_at + p0 + lanes, mask=p0 + lanes < P, other=float("nan"))
        bound, at = larger_in_lanes(comparable(w, w == w), p0 + lanes, bound, at)
    return bound, at.to(tl.int64)


@triton.jit
def _start(
    bound_at, v_at, m_at, most_at, rival_at, likely_at, met_at, P, since, hit, weight
):  # fmt: skip
    """Begin with the first turn: if it was the one guessed, items from position ``since`` on have met it."""
    for p0 in range(0, P, SCAN):
        p = p0 + tl.arange(0, SCAN)
        inside = p < P
        has_met = inside & (p >= since) & everywhere(hit, SCAN)
        bound = tl.load(bound_at + p, mask=inside, other=float("nan"))
        v = tl.load(v_at + p, mask=inside, other=0.0)
        m = tl.maximum(tl.load(m_at + p, mask=has_met, other=LEAST), LEAST)
        most = tl.load(most_at + p, mask=has_met, other=NONE)
        tl.debug_barrier()
        tl.store(bound_at + p, tl.where(bound == bound, _most(v, m, weight, False), bound), mask=inside)
        tl.store(m_at + p, m, mask=inside)
        tl.store(most_at + p, most, mask=inside)
        tl.store(rival_at + p, tl.full([SCAN], NONE, tl.float32), mask=inside)
        tl.store(likely_at + p, has_met.to(tl.float32) - 1.0, mask=inside)
        tl.store(met_at + p, has_met.to(tl.float32), mask=inside)
    tl.debug_barrier()


@triton.jit(do_not_specialize=("q0", "P", "S", "K", "num_ids", "cap", "slack"))
def select_coded_kernel(
    rows,
    scales,
    codes,
    words,
    queries,
    query_factors,
    candidates,
    initial,
    relevance,
    bias,
    groups,
    query_groups,
    ks,
    lambda_d,
    lambda_b,
    out_index,
    out_score,
    out_relevance,
    out_redundancy,
    out_length,
    work,
    taken_rows,
    taken_factors,
    taken_scales,
    taken_errors,
    row_stride,
    code_words,
    num_ids,
    q0,
    P,
    S,
    K,
    D,
    cap,
    stride,
    slack,
    BIAS_BY_ROW: tl.constexpr,
    EVEN_D: tl.constexpr,
    EVEN_CODES: tl.constexpr,
    ROWS: tl.constexpr,
    DIMS: tl.constexpr,
    CODE_ROWS: tl.constexpr,
    CODE_DIMS: tl.constexpr,
    WORDS: tl.constexpr,
    STAGES: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    q = q0 + program
    plane = tl.num_programs(0).to(tl.int64) * stride
    bound_at = work + program * stride
    v_at = bound_at + plane
    v_least_at = v_at + plane
    m_at = v_least_at + plane
    most_at = m_at + plane
    rival_at = most_at + plane
    likely_at = rival_at + plane
    met_at = likely_at + plane
    taken_rows += program * (S + K)
    taken_factors += program * (S + K)
    taken_scales += program * (S + K)
    taken_errors += program * (S + K)
    n = tl.arange(0, ROWS)
    d = tl.arange(0, DIMS)
    full = D // DIMS * DIMS
    nan = float("nan")
    weight = tl.load(lambda_d + q)
    bias_weight = tl.load(lambda_b + q)
    QUERY: tl.constexpr = relevance is None
    factor = 1.0
    if query_factors is not None:
        factor = tl.load(query_factors + q)
    wanted = K
    if ks is not None:
        wanted = tl.minimum(tl.load(ks + q), K).to(tl.int32)

    # 1. Initial items. The first is what all tiles meet in the first pass.
    num_taken = tl.zeros([], tl.int32)
    guess_at = tl.full([], -1, tl.int64)
    guess = tl.full([], -1, tl.int64)
    scale_guess = tl.full([], 0.0, tl.float32)
    error_guess = scale_guess
    if initial is not None:
        for turn in range(S):
            item, f_item, _, _ = initial_item(
                rows, scales, initial, queries, factor, q, turn, row_stride, 0, num_ids, S, D, False, False, DIMS
            )
            tl.store(taken_rows + turn, item)
            scale, error = code_header_of(words, tl.maximum(item, 0), code_words)
            tl.store(taken_factors + turn, f_item)
            tl.store(taken_scales + turn, scale)
            tl.store(taken_errors + turn, error)
            num_taken += (item >= 0).to(tl.int32)
            guess = tl.where(turn == 0, item, guess)
            scale_guess = tl.where(turn == 0, scale, scale_guess)
            error_guess = tl.where(turn == 0, error, error_guess)

    # 2. Bounds of the relevance by the codes, and who may be picked. Until the first pick the value is v. From position
    # `since` on items have met the first turn, if that is the one guessed.
    lane_best = tl.full([CODE_ROWS], float("-inf"), tl.float32)
    lane_at = tl.zeros([CODE_ROWS], tl.int64)
    since = P
    if initial is not None:
        since = 0
    c = tl.arange(0, WORDS)
    last = (code_words - 1) // WORDS * WORDS  # the slice with the header
    for p0 in range(0, P, CODE_ROWS):
        p = p0 + tl.arange(0, CODE_ROWS)
        ids, valid = pool_ids(candidates, q, p, P, num_ids)
        if QUERY:
            guessed = everywhere(guess >= 0, WORDS)
            base = words + ids[:, None] * code_words
            guess_row = words + tl.maximum(guess, 0) * code_words
            query = queries + q * D
            products = tl.zeros([CODE_ROWS, WORDS], tl.float32)
            near = products
            for c0 in tl.range(0, last, WORDS, num_stages=STAGES):
                x = tl.load(base + (c0 + c)[None, :], mask=valid[:, None], other=0)
                products, near = word_products(x, query, factor, guess_row, guessed, c0 + c, D, products, near)
            inside = last + c < code_words
            x = tl.load(base + (last + c)[None, :], mask=valid[:, None] & inside[None, :], other=0)
            products, near = word_products(
                x, query, factor, guess_row, guessed & inside, last + c, D, products, near
            )  # fmt: skip
            scale, error = code_header(x, last + c, code_words)
            r = tl.sum(products, 1) * scale
            off = error + slack
            similar = tl.sum(near, 1) * scale * scale_guess
            similar_off = error + error_guess + error * error_guess + slack
            tl.store(m_at + p, similar - similar_off, mask=p < P)
            tl.store(most_at + p, similar + similar_off, mask=p < P)
        else:
            r = tl.load(relevance + q * P + p, mask=p < P, other=0.0)
            off = tl.zeros([CODE_ROWS], tl.float32)
        at_bias = ids
        if not BIAS_BY_ROW:
            at_bias = q * P + p
        v = with_bias(r + off, bias, at_bias, valid, bias_weight)
        v_least = with_bias(r - off, bias, at_bias, valid, bias_weight)
        if QUERY:
            v += ROUNDING * tl.abs(v)
            v_least -= ROUNDING * tl.abs(v_least)
        free = may_be_picked(ids, ids, valid, q, initial, S, groups, query_groups)
        tl.store(bound_at + p, tl.where(free, v, nan), mask=p < P)
        tl.store(v_at + p, v, mask=p < P)
        tl.store(v_least_at + p, v_least, mask=p < P)
        w = comparable(v + v_least, free)  # twice what v is by the codes
        better = w > lane_best
        lane_best = tl.where(better, w, lane_best)
        lane_at = tl.where(better, p.to(tl.int64), lane_at)
        if QUERY and initial is None:
            best, best_at = best_of(lane_best, lane_at)
            changed = (best > float("-inf")) & (best_at != guess_at)
            guess_at = tl.where(changed, best_at, guess_at)
            here = p == best_at
            guess = tl.where(changed, tl.sum(tl.where(here, ids, 0), 0), guess)
            scale_guess = tl.where(changed, tl.sum(tl.where(here, scale, 0.0), 0), scale_guess)
            error_guess = tl.where(changed, tl.sum(tl.where(here, error, 0.0), 0), error_guess)
            since = tl.where(changed, p0 + CODE_ROWS, since)
    tl.debug_barrier()  # what follows reads what other threads have stored

    if num_taken > 0:
        _start(bound_at, v_at, m_at, most_at, rival_at, likely_at, met_at, P, since, QUERY & (guess >= 0), weight)
        if cap is not None and initial is not None:
            for turn in range(S):
                close_group(
                    tl.load(taken_rows + turn), groups, candidates, bound_at, q, P, S, K, num_ids, 0, initial,
                    out_index, 0, cap, ROWS,
                )  # fmt: skip

    # 3. Picks.
    made = 0
    for step in range(wanted):
        turns = S + step
        first = num_taken == 0
        later = everywhere(num_taken > 0, ROWS)
        best = tl.full([], float("-inf"), tl.float32)
        best_at = tl.full([], 0x7FFFFFFFFFFFFFFF, tl.int64)
        bar = best
        attempt = 0
        looking = attempt == 0
        while looking:
            if attempt < ROUNDS:
                bound, at = _largest_bounds(bound_at, P, ROWS)
                if attempt == 0:
                    shared = tl.max(tl.reshape(bound, [ROWS // SHARE, SHARE]), 1)
                    shared = tl.reshape(tl.broadcast_to(shared[:, None], [ROWS // SHARE, SHARE]), [ROWS])
                    bound = tl.where(bound == shared, bound, float("-inf"))
            else:
                at = ((attempt - ROUNDS) % tl.cdiv(P, ROWS)).to(tl.int64) * ROWS + n
                bound = tl.load(bound_at + at, mask=at < P, other=nan)
                bound = comparable(bound, bound == bound)
            these = (bound > float("-inf")) & (bound >= bar) & ((bound > best) | ((bound == best) & (at < best_at)))
            looking = tl.max(these.to(tl.int32), 0) > 0
            if looking:
                v = tl.load(v_at + at, mask=these, other=0.0)
                v_least = tl.load(v_least_at + at, mask=these, other=0.0)
                told = these & later  # else nothing has been stored
                m = tl.load(m_at + at, mask=told, other=LEAST)
                most = tl.load(most_at + at, mask=told, other=NONE)
                rival = tl.load(rival_at + at, mask=told, other=NONE)
                likely = tl.load(likely_at + at, mask=told, other=-1.0)
                met = tl.load(met_at + at, mask=told, other=0.0).to(tl.int32)
                row, _ = pool_ids(candidates, q, at, P, num_ids)
                lack = told & (met < turns)
                if tl.max(lack.to(tl.int32), 0) > 0:
                    m, most, rival, likely = meet_by_codes(
                        codes, words, row, lack, m, most, rival, likely, met, taken_rows, taken_scales, taken_errors,
                        turns, slack, code_words, D, ROWS, CODE_DIMS, EVEN_CODES,
                    )  # fmt: skip
                    bound = tl.where(lack, tl.minimum(bound, _most(v, m, weight, False)), bound)
                    least = _least(v_least, tl.maximum(most, rival), weight, first)
                    bar = tl.maximum(bar, tl.max(tl.where(these, least, float("-inf")), 0))
                    stored = lack
                else:
                    least = _least(v_least, tl.maximum(most, rival), weight, first)
                    bar = tl.maximum(bar, tl.max(tl.where(these, least, float("-inf")), 0))
                    these &= bound >= bar
                    f = tl.full([ROWS], 1.0, tl.float32)
                    if scales is not None:
                        f = tl.load(scales + row, mask=these, other=0.0)
                    base = rows + row[:, None] * row_stride
                    unsure = these & later & (most != m)
                    read = these & (v_least != v)
                    nearest = tl.where(unsure, likely, 0.0).to(tl.int32)
                    row_likely = tl.load(taken_rows + nearest, mask=unsure, other=0)
                    f_likely = tl.load(taken_factors + nearest, mask=unsure, other=0.0)
                    base_likely = rows + row_likely[:, None] * row_stride
                    products = tl.zeros([ROWS, DIMS], tl.float32)
                    near = products
                    some = read | unsure
                    for d0 in range(0, full, DIMS):
                        x = tl.load(base + (d0 + d)[None, :], mask=some[:, None], other=0).to(tl.float32)
                        y = tl.load(base_likely + (d0 + d)[None, :], mask=unsure[:, None], other=0).to(tl.float32)
                        near += x * y
                        if QUERY:
                            products += x * (tl.load(queries + q * D + d0 + d) * factor)[None, :]
                    if not EVEN_D:
                        tail = full + d < D
                        x = tl.load(base + (full + d)[None, :], mask=some[:, None] & tail[None, :], other=0)
                        x = x.to(tl.float32)
                        y = tl.load(base_likely + (full + d)[None, :], mask=unsure[:, None] & tail[None, :], other=0)
                        near += x * y.to(tl.float32)
                        if QUERY:
                            products += (
                                x * (tl.load(queries + q * D + full + d, mask=tail, other=0.0) * factor)[None, :]
                            )
                    if QUERY:
                        r = tl.sum(products, 1)
                        r *= f
                        at_bias = row
                        if not BIAS_BY_ROW:
                            at_bias = q * P + at
                        v = tl.where(read, with_bias(r, bias, at_bias, read, bias_weight), v)
                        v_least = v
                    m = tl.where(unsure, similarity(near, f, f_likely), m)
                    most = m
                    open_ = these & later & (rival > m)
                    if tl.max(open_.to(tl.int32), 0) > 0:
                        none = tl.full([ROWS], NO_PICK, tl.float32)
                        exact = catch_up(
                            rows, base, f, none, met * 0, open_, taken_rows, taken_factors, turns, row_stride, D,
                            EVEN_D, ROWS, DIMS,
                        )  # fmt: skip
                        m = tl.where(open_, exact, m)
                        most = m
                        rival = tl.where(open_, NONE, rival)
                    w = mmr_value(v, m, weight, first)
                    bound = tl.where(these, w, bound)
                    tile_best, tile_at = best_of(tl.where(these, comparable(w, these), float("-inf")), at)
                    better = (tile_best > best) | ((tile_best == best) & (tile_at < best_at))
                    best = tl.where(better, tile_best, best)
                    best_at = tl.where(better, tile_at, best_at)
                    stored = these
                tl.debug_barrier()  # all have read before one writes
                tl.store(bound_at + at, bound, mask=stored)
                tl.store(v_at + at, v, mask=stored)
                tl.store(v_least_at + at, v_least, mask=stored)
                told &= stored
                tl.store(m_at + at, m, mask=told)
                tl.store(most_at + at, most, mask=told)
                tl.store(rival_at + at, rival, mask=told)
                tl.store(likely_at + at, likely, mask=told)
                tl.store(met_at + at, (at * 0 + turns).to(tl.float32), mask=told)
                tl.debug_barrier()
            attempt += 1
            looking = looking | (attempt > ROUNDS)
            looking = looking & (attempt < ROUNDS + 2 * tl.cdiv(P, ROWS))

        taken = best > float("-inf")
        position = tl.where(taken, best_at, 0)
        item = position
        if candidates is not None:
            item = tl.load(candidates + q * P + position).to(tl.int64)
        row_taken = tl.where(taken, item, 0)
        v_taken = tl.load(v_at + position)
        m_taken = tl.where(first, 0.0, tl.load(m_at + position))
        score = tl.where(first, weight * v_taken, best)
        f_taken = 1.0
        if scales is not None:
            f_taken = tl.load(scales + row_taken)
        scale, error = code_header_of(words, row_taken, code_words)
        tl.debug_barrier()  # all have read m
        store_pick(
            q * K + step,
            taken,
            item,
            score,
            v_taken,
            m_taken,
            out_index,
            out_score,
            out_relevance,
            out_redundancy,
        )
        tl.store(taken_rows + turns, tl.where(taken, row_taken, -1))
        tl.store(taken_factors + turns, f_taken)
        tl.store(taken_scales + turns, scale)
        tl.store(taken_errors + turns, error)
        tl.store(bound_at + position, nan, mask=taken)
        tl.debug_barrier()
        made += taken.to(tl.int32)
        num_taken += taken.to(tl.int32)
        if first & taken:
            hit = QUERY & (best_at == guess_at)
            _start(bound_at, v_at, m_at, most_at, rival_at, likely_at, met_at, P, since, hit, weight)
        if cap is not None:
            close_group(
                tl.where(taken, row_taken, -1), groups, candidates, bound_at, q, P, S, K, num_ids, 0, initial,
                out_index, step + 1, cap, ROWS,
            )  # fmt: skip
    for step in range(wanted, K):
        store_pick(q * K + step, False, -1, 0.0, 0.0, 0.0, out_index, out_score, out_relevance, out_redundancy)
    tl.store(out_length + q, made)


def coded_tile(dtype: str, dims: int, plain: bool) -> Tile:
    """Return the tile of rows that are read for MMR out of coded pools; ``plain``: without options."""
    # With options 4 warps spill. A row is summed by the same lanes, in the same order, with 8.
    warps = 4 if plain else 8
    return row_tile(dtype, dims)._replace(rows=16, num_warps=warps, num_stages=STAGES, maxnreg=255)


def code_slices(dims: int) -> tuple[int, int, int]:
    """Return rows and words of the tiles that codes are first read in, and dimensions of those that meet picks."""
    wide = row_bytes(dims) >= 128
    return 32, 32 if wide else 16, 128 if -(-dims // 128) * 128 <= row_bytes(dims) else 64


def slack(dims: int, tile: Tile) -> float:
    """Return what rounding adds to the difference of two cosines: one of rows in slices, one of codes in theirs."""
    _, words, code_dims = code_slices(dims)
    return (dims / tile.dims + dims / words + tile.dims + words + code_dims + 16) * 2.0**-23


def select(problem: Problem, out: Selection) -> None:
    """Launch MMR of regime b out of coded pools, one program a query, in chunks of queries."""
    data, D = problem.rows.data, problem.rows.data.shape[1]
    arguments, stride = pool_arguments(problem, out), padded(problem.pool)
    plain = all(arguments.get(name) is None for name in OPTIONS)
    tile = coded_tile(problem.rows.dtype, D, plain)
    for name in ("VRSD", "COMPUTED", "pool_stride"):
        del arguments[name]
    if not arguments["S"]:
        arguments["initial"] = None
    codes = code_rows(problem.rows)
    code_tile_rows, num_words, code_dims = code_slices(D)
    turns = arguments["S"] + problem.k
    for q0, num_queries in chunks(problem.num_queries, 4 * PLANES * stride + 20 * turns, WORKSPACE_BYTES, 1):
        select_coded_kernel[(num_queries,)](
            **arguments,
            codes=codes,
            words=codes.view(torch.int32),
            work=_arrays.empty(data, (PLANES, num_queries, stride), "float32"),
            taken_rows=_arrays.empty(data, (num_queries, turns), "int64"),
            taken_factors=_arrays.empty(data, (num_queries, turns), "float32"),
            taken_scales=_arrays.empty(data, (num_queries, turns), "float32"),
            taken_errors=_arrays.empty(data, (num_queries, turns), "float32"),
            code_words=codes.stride(0) // 4,
            q0=q0,
            stride=stride,
            slack=slack(D, tile),
            EVEN_D=D % tile.dims == 0,
            EVEN_CODES=D % code_dims == 0,
            ROWS=tile.rows,
            DIMS=tile.dims,
            CODE_ROWS=code_tile_rows,
            CODE_DIMS=code_dims,
            WORDS=num_words,
            STAGES=tile.num_stages,
            **tile.options(),
        )
