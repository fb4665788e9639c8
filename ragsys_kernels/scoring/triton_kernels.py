"""Triton kernels on torch tensors; under ``TRITON_INTERPRET=1`` on the CPU as well.

A job is cut into splits of the vocabulary, whose size and number depend on V (and D) alone, one program each; a second
kernel puts the splits of a job together in a fixed order. Tiles have one shape whatever the number of jobs, every sum
over columns stays within its row, ranks are whole numbers, and numbers of the call are not compiled in: so a row has
the same bits whatever else is in the call. Nothing is compiled with fused products and sums (but for the products of
matrices): z is one number, rounded once, in the sum, in comparisons and as a target.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import triton
import triton.language as tl

from .. import _arrays
from .._gpu.compilation import Compilation
from .problem import Partials, ScoringProblem

_LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _tanh(y):
    """To 2 ulp: a polynomial where 1 - exp(-2|y|) would cancel."""
    s = y * y
    near = -0.05378668349208466 + s * (0.02080538432198749 + s * -0.0059058681056563455)
    near = y + y * s * (-0.3333329927203443 + s * (0.1333195824178422 + s * near))
    e = tl.exp2(tl.abs(y) * -2.8853900817779268)
    far = (1 - e) / (1 + e)
    return tl.where(tl.abs(y) < 0.6, near, tl.where(y < 0, -far, far))


@triton.jit
def _scaled(x, inner, factor, SOFTCAP: tl.constexpr):
    """z of x: x factor, or tanh(x inner) factor where ±inf stays. Every z of a call comes from here."""
    if SOFTCAP:
        z = tl.where(tl.abs(x) == float("inf"), x, _tanh(x * inner) * factor)
    else:
        z = x * factor
    return z


@triton.jit
def _finite(x, instead):
    return tl.where(tl.abs(x) < float("inf"), x, instead)


@triton.jit
def _number(x):
    """x, and NaN for inf: the sum of a row with +inf."""
    return tl.where(x < float("inf"), x, float("nan"))


@triton.jit
def _logprob_logits_kernel(
    logits,
    rows,
    inverse_temperature,
    allowed,
    pair_begin,
    columns,
    than,
    part_max,  # [R, splits]
    part_sum,
    part_weighted,
    rank,  # [M]
    stride,
    num_columns,
    num_entering,
    splits,
    inner,
    outer,
    BLOCK: tl.constexpr,
    ALLOWED: tl.constexpr,
    SOFTCAP: tl.constexpr,
    ENTROPY: tl.constexpr,
    RANK: tl.constexpr,
    THAN: tl.constexpr,
):
    """Sums of one split of one job. The split is in registers whole, so that there is one exp for each column."""
    program = tl.program_id(0)
    job = (program // splits).to(tl.int64)
    split = program % splits
    row = tl.load(rows + job)
    if row >= 0:
        base = logits + row * stride
        factor = tl.load(inverse_temperature + job) * outer
        at = split * BLOCK + tl.arange(0, BLOCK)
        if ALLOWED:
            column = tl.load(allowed + at, mask=at < num_entering, other=-1)
            inside = (column >= 0) & (column < num_columns)
            x = tl.load(base + column, mask=inside, other=float("-inf")).to(tl.float32)
        else:
            # A mask would narrow the loads of full splits, unless the compiler sees that it is a multiple of 16.
            if (split + 1) * BLOCK <= num_columns:
                x = tl.load(base + at).to(tl.float32)
            else:
                x = tl.load(base + at, mask=at < num_columns, other=float("-inf")).to(tl.float32)
        z = _scaled(x, inner, factor, SOFTCAP)  # [BLOCK]
        top = tl.max(z, 0)  # ignores NaN, which shows in the sum
        d = z - _finite(top, 0.0)
        e = tl.exp2(d * _LOG2E)
        part = job * splits + split
        tl.store(part_max + part, top)
        tl.store(part_sum + part, _number(tl.sum(e, 0)))
        if ENTROPY:
            tl.store(part_weighted + part, tl.sum(tl.where(e > 0, d * e, 0.0), 0))
        if RANK:
            for i in range(tl.load(pair_begin + job), tl.load(pair_begin + job + 1)):
                if THAN:
                    t = tl.load(than + i)
                else:
                    own = tl.load(columns + i)
                    t = tl.load(base + own, mask=own >= 0, other=float("-inf")).to(tl.float32)
                    t = _scaled(t, inner, factor, SOFTCAP)
                tl.atomic_add(rank + i, tl.sum((z > t).to(tl.int32), 0).to(tl.int64))


@triton.jit(do_not_specialize=["num_jobs", "num_pairs"])
def _logprob_merge_kernel(
    logits,
    rows,
    inverse_temperature,
    pair_begin,
    columns,
    part_max,  # [R, splits]
    part_sum,
    part_weighted,
    ref,  # [R]
    largest,
    total,
    total_weighted,
    target,  # [M]
    stride,
    num_jobs,
    num_pairs,
    splits,
    inner,
    outer,
    SPLITS: tl.constexpr,
    PAIRS: tl.constexpr,
    LOGITS: tl.constexpr,
    SOFTCAP: tl.constexpr,
    ENTROPY: tl.constexpr,
):
    """The splits of one job about one reference, and its targets; the last program has the pairs of no job."""
    job = tl.program_id(0).to(tl.int64)
    is_job = job < num_jobs
    row = tl.load(rows + job, mask=is_job, other=-1)
    live = row >= 0
    if is_job:
        at = tl.arange(0, SPLITS)
        inside = at < tl.where(live, splits, 0)
        top = tl.load(part_max + job * splits + at, mask=inside, other=float("-inf"))
        s = tl.load(part_sum + job * splits + at, mask=inside, other=0.0)
        most = tl.max(top, 0)
        # A split without a finite column has sum 0 and takes d = 0, not the NaN of -inf - -inf.
        d = tl.where(top == float("-inf"), 0.0, top - _finite(most, 0.0))
        shrink = tl.exp2(d * _LOG2E).to(tl.float64)
        sums = tl.sum(shrink * s.to(tl.float64), 0)
        tl.store(ref + job, tl.where(most < float("inf"), most, float("-inf")))
        tl.store(largest + job, tl.where((sums != sums) & (most < float("inf")), float("nan"), most))
        tl.store(total + job, sums)
        if ENTROPY:
            w = tl.load(part_weighted + job * splits + at, mask=inside, other=0.0)
            tl.store(total_weighted + job, tl.sum(shrink * (w.to(tl.float64) + d.to(tl.float64) * s.to(tl.float64)), 0))
    if LOGITS:
        factor = tl.load(inverse_temperature + job, mask=is_job, other=1.0) * outer
        end = tl.load(pair_begin + job + 1, mask=is_job, other=num_pairs)
        for first in range(tl.load(pair_begin + job), end, PAIRS):
            i = first + tl.arange(0, PAIRS)
            column = tl.load(columns + i, mask=i < end, other=-1)
            enters = tl.where(live, column, -1) >= 0
            x = tl.load(logits + row * stride + column, mask=enters, other=float("-inf")).to(tl.float32)
            tl.store(target + i, _scaled(x, inner, factor, SOFTCAP), mask=i < end)


@triton.jit
def _products(
    hidden, row, stride_hidden, weight, column, stride_weight, bias, dims,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DIMS: tl.constexpr, EVEN: tl.constexpr, DOT16: tl.constexpr,
    BIAS: tl.constexpr,
):  # fmt: skip
    """x of ROWS rows and COLUMNS columns. Every x of a call comes from here, in tiles of one shape."""
    k = tl.arange(0, DIMS)
    h = hidden + (row * stride_hidden)[:, None] + k[None, :]  # [ROWS, DIMS]
    w = weight + (column * stride_weight)[None, :] + k[:, None]  # [DIMS, COLUMNS]
    x = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, dims, DIMS):
        if EVEN:
            a = tl.load(h + first)
            b = tl.load(w + first)
        else:
            a = tl.load(h + first, mask=(k < dims - first)[None, :], other=0.0)
            b = tl.load(w + first, mask=(k < dims - first)[:, None], other=0.0)
        if DOT16:
            x = tl.dot(a, b, x)
        else:
            x = tl.dot(a.to(tl.float32), b.to(tl.float32), x, input_precision="ieee")
    if BIAS:
        x += tl.load(bias + column)[None, :]
    return x


@triton.jit(do_not_specialize=["num_jobs"])
def _logprob_linear_kernel(
    hidden,
    weight,
    bias,
    rows,
    inverse_temperature,
    allowed,
    pair_begin,
    than,  # [M]
    part_max,  # [R, splits]
    part_sum,
    part_weighted,
    rank,  # [M]
    stride_hidden,
    stride_weight,
    dims,
    num_jobs,
    num_columns,
    num_entering,
    splits,
    tiles,
    inner,
    outer,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DIMS: tl.constexpr,
    EVEN: tl.constexpr,
    DOT16: tl.constexpr,
    BIAS: tl.constexpr,
    ALLOWED: tl.constexpr,
    SOFTCAP: tl.constexpr,
    ENTROPY: tl.constexpr,
    RANK: tl.constexpr,
):
    """Sums of one split, ``tiles`` tiles of columns, for ROWS jobs. Programs of a split are neighbours: its weights are
    read from memory once and from the cache after that."""
    job = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    split = tl.program_id(1)
    is_job = job < num_jobs
    row = tl.load(rows + job, mask=is_job, other=-1)
    live = row >= 0
    row = tl.maximum(row, 0)  # what has no job reads row 0 and is left out: without a mask the loads are wide
    factor = tl.load(inverse_temperature + job, mask=is_job, other=1.0) * outer
    top = tl.full([ROWS], float("-inf"), tl.float32)
    s = tl.zeros([ROWS], tl.float32)
    w = tl.zeros([ROWS], tl.float32)
    begin = tl.load(pair_begin + job, mask=live, other=0)
    count = tl.load(pair_begin + job + 1, mask=live, other=0) - begin
    most = tl.max(count, 0)
    for tile in range(split * tiles, split * tiles + tiles):
        at = tile * COLUMNS + tl.arange(0, COLUMNS)
        if ALLOWED:
            column = tl.load(allowed + at, mask=at < num_entering, other=-1)
            inside = (column >= 0) & (column < num_columns)
            column = tl.where(inside, column, 0)
        else:
            inside = at < num_columns
            column = tl.minimum(at, num_columns - 1).to(tl.int64)
        x = _products(
            hidden, row, stride_hidden, weight, column, stride_weight, bias, dims,
            ROWS, COLUMNS, DIMS, EVEN, DOT16, BIAS,
        )  # fmt: skip
        z = tl.where(inside[None, :], _scaled(x, inner, factor[:, None], SOFTCAP), float("-inf"))  # [ROWS, COLUMNS]
        before = top
        top = tl.maximum(top, tl.max(z, 1))  # ignores NaN, which shows in the sum
        base = _finite(top, 0.0)
        d = z - base[:, None]
        e = tl.exp2(d * _LOG2E)
        drop = tl.where(before == float("-inf"), 0.0, before - base)
        shrink = tl.exp2(drop * _LOG2E)
        if ENTROPY:
            w = shrink * (w + drop * s) + tl.sum(tl.where(e > 0, d * e, 0.0), 1)
        s = shrink * s + tl.sum(e, 1)
        if RANK:
            for p in range(most):
                has = p < count
                t = tl.load(than + begin + p, mask=has, other=float("inf"))
                above = tl.sum((z > t[:, None]).to(tl.int32), 1)
                tl.atomic_add(rank + begin + p, above.to(tl.int64), mask=has)
    part = job * splits + split
    tl.store(part_max + part, top, mask=is_job)
    tl.store(part_sum + part, _number(s), mask=is_job)
    if ENTROPY:
        tl.store(part_weighted + part, w, mask=is_job)


@triton.jit(do_not_specialize=["num_jobs", "num_pairs", "steps"])
def _logprob_linear_target_kernel(
    hidden,
    weight,
    bias,
    rows,
    inverse_temperature,
    pair_begin,
    columns,
    target,  # [M]
    stride_hidden,
    stride_weight,
    dims,
    num_jobs,
    num_pairs,
    steps,
    inner,
    outer,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DIMS: tl.constexpr,
    EVEN: tl.constexpr,
    DOT16: tl.constexpr,
    BIAS: tl.constexpr,
    SOFTCAP: tl.constexpr,
):
    """z of ROWS targets: the diagonal of a tile of their rows and their columns."""
    first = tl.program_id(0).to(tl.int64) * ROWS
    i = first + tl.arange(0, ROWS)
    # The job of a pair is the last that begins at or before it; ``steps`` halvings find it.
    low = tl.zeros([ROWS], tl.int64)
    high = tl.zeros([ROWS], tl.int64) + num_jobs + 1
    for _ in range(steps):
        middle = (low + high) // 2
        open_ = low < high
        begun = open_ & (tl.load(pair_begin + middle, mask=open_, other=0) <= i)
        low = tl.where(begun, middle + 1, low)
        high = tl.where(open_ & (begun == 0), middle, high)
    job = low - 1
    is_job = (i < num_pairs) & (job < num_jobs)
    row = tl.load(rows + job, mask=is_job, other=-1)
    factor = tl.load(inverse_temperature + job, mask=is_job, other=1.0) * outer
    own = tl.load(columns + i, mask=i < num_pairs, other=-1)
    along = tl.arange(0, COLUMNS)
    column = tl.load(columns + first + along, mask=(along < ROWS) & (first + along < num_pairs), other=0)
    x = _products(
        hidden, tl.maximum(row, 0), stride_hidden, weight, tl.maximum(column, 0), stride_weight, bias, dims,
        ROWS, COLUMNS, DIMS, EVEN, DOT16, BIAS,
    )  # fmt: skip
    z = _scaled(x, inner, factor[:, None], SOFTCAP)
    z = tl.sum(tl.where(along[None, :] == tl.arange(0, ROWS)[:, None], z, 0.0), 1)
    tl.store(target + i, tl.where((row >= 0) & (own >= 0), z, float("-inf")), mask=i < num_pairs)


@triton.jit(do_not_specialize=["num_pairs"])
def _logprob_answers_kernel(values, begin, order, sums, num_pairs, BLOCK: tl.constexpr, ORDER: tl.constexpr):
    """Sum of the values of the pairs of one answer."""
    answer = tl.program_id(0).to(tl.int64)
    low = tl.maximum(tl.load(begin + answer), 0)
    high = tl.minimum(tl.load(begin + answer + 1), num_pairs)
    total = tl.zeros([BLOCK], tl.float64)
    for first in range(low, high, BLOCK):
        i = first + tl.arange(0, BLOCK)
        inside = i < high
        if ORDER:
            i = tl.load(order + i, mask=inside, other=0)
        total += tl.load(values + i, mask=inside, other=0).to(tl.float64)
    tl.store(sums + answer, tl.sum(total, 0))


class Tile(NamedTuple):
    """Of a linear kernel."""

    rows: int
    columns: int
    dims: int
    even: bool  # whether dims divides D
    num_warps: int
    num_stages: int


def _tile(dot16: bool, D: int, allowed: bool) -> Tile:
    """The tile of products, by the kind of product and D alone.

    64 rows keep the matrix units less busy than the memory where rows are few, which is what answers have; two or three
    programs fit on a multiprocessor, so that one's exponentials run beside another's products. Where no slice divides
    D, loads are of single elements, whose addresses take registers: more warps share them, and those of gathered
    columns.
    """
    if not dot16:
        return Tile(64, 64, 16, True, 4, 3) if D % 16 == 0 else Tile(64, 64, 16, False, 8, 3)
    for dims in (64, 32, 16):
        if D % dims == 0:
            return Tile(64, 128, dims, True, 8 if allowed else 4, 3)
    return Tile(64, 128, 32, False, 8, 2)


# The kernel of targets makes one tile: more loads in flight only take registers.
_TARGET_STAGES = 2

# So many splits fill a large device with one tile of rows.
_SPLITS = 256

_ANSWER_BLOCK = 128


def _block(num_entering: int) -> tuple[int, int]:
    """Columns of a split of the logits form, and warps."""
    for block, warps in ((128, 1), (512, 1), (2048, 4)):
        if num_entering <= block:
            return block, warps
    return 8192, 8


def _merge_shape(splits: int) -> tuple[int, int]:
    """Splits that a program of the merge kernel holds, a power of two, and its warps."""
    size = max(16, 1 << (splits - 1).bit_length())
    return size, 1 if size <= 256 else 4


_PAIRS = 32


def _interpreted(tensor: Any) -> AbstractContextManager[Any]:
    return _silence() if tensor.device.type == "cpu" else nullcontext()


@contextmanager
def _silence() -> Iterator[None]:
    """The interpreter computes in NumPy, which warns of what NaN and inf give."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def _scales(problem: ScoringProblem) -> tuple[float, float]:
    """``inner`` and ``outer`` of z = x outer / temperature, or tanh(x inner) outer / temperature."""
    if problem.softcap is None:
        return 1.0, problem.logit_scale
    return problem.logit_scale / problem.softcap, problem.softcap


def partials(problem: ScoringProblem, num_threads: int) -> Partials:
    """Partials of a problem whose arrays are torch tensors, or NumPy arrays for the interpreter."""
    tensors: Any = _arrays.tensors(problem)
    with _interpreted(tensors.rows):
        return _logits(tensors) if tensors.logits is not None else _linear(tensors)


def _workspace(problem: Any, splits: int) -> Any:
    """Maxima, sums and weighted sums of the splits."""
    return _arrays.empty(problem.rows, (3 if problem.entropy else 2, len(problem.rows), splits), "float32")


def _merged(problem: Any, parts: Any, target: Any, rank: Any) -> Partials:
    like, R = problem.rows, len(problem.rows)
    ref, largest = (_arrays.empty(like, (R,), "float32") for _ in range(2))
    total = _arrays.empty(like, (R,), "float64")
    weighted = _arrays.empty(like, (R,), "float64") if problem.entropy else None
    inner, outer = _scales(problem)
    logits = problem.logits
    size, warps = _merge_shape(parts.shape[2])
    _logprob_merge_kernel[(R + (logits is not None),)](
        parts if logits is None else logits,
        problem.rows,
        problem.inverse_temperature,
        problem.pair_begin,
        problem.columns,
        parts[0],
        parts[1],
        parts[-1],
        ref,
        largest,
        total,
        total if weighted is None else weighted,
        target,
        0 if logits is None else logits.stride(0),
        R,
        len(problem.columns),
        parts.shape[2],
        inner,
        outer,
        SPLITS=size,
        PAIRS=_PAIRS,
        LOGITS=logits is not None,
        SOFTCAP=problem.softcap is not None,
        ENTROPY=problem.entropy,
        num_warps=warps,
        enable_fp_fusion=False,
    )
    return Partials(ref, largest, total, weighted, target, rank)


def _logits(problem: Any) -> Partials:
    logits, like, R, M = problem.logits, problem.rows, len(problem.rows), len(problem.columns)
    block, warps = _block(problem.num_entering)
    splits = -(-problem.num_entering // block)
    parts = _workspace(problem, splits)
    target = _arrays.empty(like, (M,), "float32")
    rank = _arrays.full(like, (M,), 0, "int64") if problem.rank else None
    inner, outer = _scales(problem)
    _logprob_logits_kernel[(R * splits,)](
        logits,
        problem.rows,
        problem.inverse_temperature,
        problem.rows if problem.allowed is None else problem.allowed,
        problem.pair_begin,
        problem.columns,
        target if problem.target_logits is None else problem.target_logits,
        parts[0],
        parts[1],
        parts[-1],
        problem.columns if rank is None else rank,
        logits.stride(0),
        problem.num_columns,
        problem.num_entering,
        splits,
        inner,
        outer,
        BLOCK=block,
        ALLOWED=problem.allowed is not None,
        SOFTCAP=problem.softcap is not None,
        ENTROPY=problem.entropy,
        RANK=problem.rank,
        THAN=problem.target_logits is not None,
        num_warps=warps,
        enable_fp_fusion=False,
    )
    return _merged(problem, parts, target, rank)


def _linear(problem: Any) -> Partials:
    hidden, weight, like = problem.hidden, problem.weight, problem.rows
    R, M, D = len(problem.rows), len(problem.columns), hidden.shape[1]
    dot16 = hidden.dtype == weight.dtype != problem.inverse_temperature.dtype
    tile = _tile(dot16, D, problem.allowed is not None)
    # The interpreter holds bfloat16 as its bits, which it can widen but not multiply.
    dot16 = dot16 and not (hidden.device.type == "cpu" and problem.hidden_dtype == "bfloat16")
    tiles = -(-problem.num_entering // tile.columns)
    each = -(-tiles // _SPLITS)
    splits = -(-tiles // each)
    parts = _workspace(problem, splits)
    target = _arrays.empty(like, (M,), "float32")
    rank = _arrays.full(like, (M,), 0, "int64") if problem.rank else None
    inner, outer = _scales(problem)
    head_bias = problem.inverse_temperature if problem.head_bias is None else problem.head_bias
    shape = {
        "ROWS": tile.rows,
        "COLUMNS": tile.columns,
        "DIMS": tile.dims,
        "EVEN": tile.even,
        "DOT16": dot16,
        "BIAS": problem.head_bias is not None,
        "SOFTCAP": problem.softcap is not None,
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
        "enable_fp_fusion": False,
    }
    if M:
        _logprob_linear_target_kernel[(-(-M // tile.rows),)](
            hidden,
            weight,
            head_bias,
            problem.rows,
            problem.inverse_temperature,
            problem.pair_begin,
            problem.columns,
            target,
            hidden.stride(0),
            weight.stride(0),
            D,
            R,
            M,
            (R + 1).bit_length(),
            inner,
            outer,
            **{**shape, "num_stages": _TARGET_STAGES},
        )
    _logprob_linear_kernel[(-(-R // tile.rows), splits)](
        hidden,
        weight,
        head_bias,
        problem.rows,
        problem.inverse_temperature,
        problem.rows if problem.allowed is None else problem.allowed,
        problem.pair_begin,
        target if problem.target_logits is None else problem.target_logits,
        parts[0],
        parts[1],
        parts[-1],
        problem.columns if rank is None else rank,
        hidden.stride(0),
        weight.stride(0),
        D,
        R,
        problem.num_columns,
        problem.num_entering,
        splits,
        each,
        inner,
        outer,
        ALLOWED=problem.allowed is not None,
        ENTROPY=problem.entropy,
        RANK=problem.rank,
        **shape,
    )
    return _merged(problem, parts, target, rank)


def answer_sums(values: Any, begin: Any, order: Any) -> Any:
    """Sums (A,) float64 of values (M,) over answers, whose pairs are ``order[begin[a] : begin[a + 1]]``."""
    A = len(begin) - 1
    sums = _arrays.empty(values, (A,), "float64")
    if A:
        with _interpreted(values):
            _logprob_answers_kernel[(A,)](
                values,
                begin,
                begin if order is None else order,
                sums,
                len(values),
                BLOCK=_ANSWER_BLOCK,
                ORDER=order is not None,
                num_warps=1,
                enable_fp_fusion=False,
            )
    return sums


_TYPES = {"float32": "*fp32", "float16": "*fp16", "bfloat16": "*bf16"}

_SIGNATURE = {
    "rows": "*i64",
    "inverse_temperature": "*fp32",
    "allowed": "*i64",
    "pair_begin": "*i64",
    "columns": "*i64",
    "than": "*fp32",
    "bias": "*fp32",
    "part_max": "*fp32",
    "part_sum": "*fp32",
    "part_weighted": "*fp32",
    "ref": "*fp32",
    "largest": "*fp32",
    "total": "*fp64",
    "total_weighted": "*fp64",
    "target": "*fp32",
    "rank": "*i64",
    "values": "*fp64",
    "begin": "*i64",
    "order": "*i64",
    "sums": "*fp64",
    "inner": "fp32",
    "outer": "fp32",
}


def _compilation(
    kernel: Any, what: str, constexprs: dict[str, Any], *, num_warps: int, num_stages: int = 3, **known: Any
) -> Compilation:
    """The signature of a kernel from the names of its arguments; ``known`` has the types that vary."""
    dot16, wide_loads = (bool(known.pop(name, False)) for name in ("dot16", "wide_loads"))
    names = [name for name in kernel.arg_names if name not in constexprs]
    signature = {name: known.get(name, _SIGNATURE.get(name, "i32")) for name in names}
    name = f"_{kernel.__name__.strip('_')}, {what}"
    wide = ("stride", "stride_hidden", "stride_weight", "dims") if wide_loads else ()
    divisible = tuple(name for name in names if signature[name].startswith("*") or name in wide)
    return Compilation(
        name, kernel, signature, constexprs, divisible, num_warps, num_stages, dot16, wide_loads, fp_fusion=False
    )


def ahead_of_time() -> list[Compilation]:
    """Every kernel in each shape its launcher chooses, with features in the combinations that matter."""
    found = []
    plain = {"ALLOWED": False, "SOFTCAP": False, "ENTROPY": False, "RANK": False, "THAN": False}
    count = {**plain, "ENTROPY": True, "RANK": True}
    every = {**count, "SOFTCAP": True, "ALLOWED": True, "THAN": True}
    for dtype, size, name, features in (
        ("float32", 100_000, "plain", plain),
        ("float16", 100_000, "plain", plain),
        ("bfloat16", 100_000, "plain", plain),
        ("float32", 100_000, "entropy and rank", count),
        ("bfloat16", 100_000, "entropy and rank", count),
        ("bfloat16", 100_000, "softcap", {**plain, "SOFTCAP": True}),
        ("bfloat16", 100_000, "every feature", every),
        ("bfloat16", 2000, "entropy and rank", count),
        ("float32", 500, "entropy and rank", count),
        ("float32", 100, "entropy and rank", count),
    ):
        block, warps = _block(size)
        what = f"{dtype}, BLOCK={block}, {name}"
        wide = not features["ALLOWED"] and size > 500
        found.append(
            _compilation(
                _logprob_logits_kernel,
                what,
                {"BLOCK": block, **features},
                num_warps=warps,
                logits=_TYPES[dtype],
                wide_loads=wide,
                stride="i64",  # rows further apart than 2^31 elements
            )
        )
    for splits, dtype, softcap, entropy in (
        (1, "float32", False, False),
        (32, "bfloat16", True, True),
        (256, "", False, True),
        (1000, "float32", False, True),
    ):
        size, warps = _merge_shape(splits)
        features = {"LOGITS": bool(dtype), "SOFTCAP": softcap, "ENTROPY": entropy}
        found.append(
            _compilation(
                _logprob_merge_kernel,
                f"{dtype or 'linear'}, SPLITS={size}" + (", softcap" if softcap else ""),
                {"SPLITS": size, "PAIRS": _PAIRS, **features},
                num_warps=warps,
                logits=_TYPES.get(dtype, "*fp32"),
            )
        )
    plain = {"BIAS": False, "ALLOWED": False, "SOFTCAP": False, "ENTROPY": False, "RANK": False}
    every = dict.fromkeys(plain, True)
    for hidden, weight, D, name, features in (
        ("float32", "float32", 64, "plain", plain),
        ("float32", "float32", 33, "every feature", every),
        ("float16", "float16", 64, "plain", plain),
        ("bfloat16", "bfloat16", 64, "plain", plain),
        ("bfloat16", "bfloat16", 64, "entropy and rank", {**plain, "ENTROPY": True, "RANK": True}),
        ("bfloat16", "bfloat16", 64, "every feature", every),
        ("bfloat16", "bfloat16", 32, "plain", plain),
        ("bfloat16", "bfloat16", 16, "plain", plain),
        ("bfloat16", "bfloat16", 33, "every feature", every),
        ("float32", "bfloat16", 16, "plain", plain),
    ):
        dot16 = hidden == weight != "float32"
        tile = _tile(dot16, D, features["ALLOWED"])
        shape = {"ROWS": tile.rows, "COLUMNS": tile.columns, "DIMS": tile.dims, "EVEN": tile.even, "DOT16": dot16}
        options: dict[str, Any] = {
            "num_warps": tile.num_warps,
            "num_stages": tile.num_stages,
            "hidden": _TYPES[hidden],
            "weight": _TYPES[weight],
            "dot16": dot16,
            "wide_loads": tile.even,
        }
        what = f"{hidden} x {weight}, DIMS={tile.dims}{', EVEN' if tile.even else ''}, {name}"
        found.append(_compilation(_logprob_linear_kernel, what, {**shape, **features}, **options))
        if name != "entropy and rank":
            constexprs = {**shape, "BIAS": features["BIAS"], "SOFTCAP": features["SOFTCAP"]}
            options["num_stages"] = _TARGET_STAGES
            found.append(_compilation(_logprob_linear_target_kernel, what, constexprs, **options))
    for order in (False, True):
        found.append(
            _compilation(
                _logprob_answers_kernel,
                "by ids" if order else "by bounds",
                {"BLOCK": _ANSWER_BLOCK, "ORDER": order},
                num_warps=1,
                values="*i1" if order else "*fp64",
            )
        )
    return found
