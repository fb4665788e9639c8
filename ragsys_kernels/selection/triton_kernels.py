"""Triton kernels for torch tensors on a GPU: which of the three regimes runs a problem, and how it is launched.

``triton_gram.py`` holds regime a, ``triton_stream.py`` b, ``triton_whole_corpus.py`` c, ``triton_objective.py`` what
they share; ``README.md`` says what each reads. Nothing here waits for the device.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from .. import _arrays, _env
from .._gpu.compilation import Compilation
from .problem import Problem, Rows, Selection
from .triton_gram import select_gram_kernel
from .triton_objective import query_factors_kernel
from .triton_stream import select_stream_kernel
from .triton_whole_corpus import (
    corpus_pick_kernel,
    corpus_relevance_kernel,
    corpus_step_kernel,
    row_lengths_kernel,
)

# Regime a takes pools and initial items of so many together: a Gram matrix of 256 rows spills everywhere.
GRAM_SLOTS = 128
# Running vectors of the queries that are selected at a time, in bytes.
STREAM_BYTES = 1 << 28
CORPUS_BYTES = 1 << 30

# Rows and dimensions of a tile, queries of a tile (regime c), warps, stages of loads in flight.
_QUERY_BLOCK = 1024
_PICK_BLOCK = 256


class Tile(NamedTuple):
    rows: int
    dims: int
    queries: int
    num_warps: int
    num_stages: int
    # Left to itself the assembler spills a few bytes to stay at a number of registers that lets one more block in.
    maxnreg: int | None = None

    def options(self) -> dict[str, Any]:
        """How a launch is compiled; AMD's compiler knows no bound of registers."""
        warps, bound = self.num_warps, {"maxnreg": self.maxnreg} if self.maxnreg else {}
        if torch.version.hip:
            warps, bound = self.amd_warps, {}
        return {"num_warps": warps, "num_stages": self.num_stages, "enable_fp_fusion": True, **bound}

    @property
    def amd_warps(self) -> int:
        """A warp has 64 lanes there: as many threads, so that each reads as many bytes at a time."""
        return max(1, self.num_warps // 2)


# Kernels that go along one row, or one list of tiles, at a time.
_SMALL_TILE = Tile(1, 1, 1, 4, 2)


def gram_slots(dtype: str, dims: int) -> int:
    """128 float32 rows, which no matrix instruction multiplies, leave no registers for a last slice that is shorter."""
    return min(GRAM_SLOTS, 64) if dtype == "float32" and dims % 16 else GRAM_SLOTS


def gram_tile(dtype: str, slots: int, dims: int, plain: bool) -> Tile:
    """Regime a: rows is the number of slots; `plain` is MMR without options."""
    rows = max(16, triton.next_power_of_2(slots))
    if dtype == "float32" and rows == 128:
        # All registers that there are. Some single options spill 8 or 16 bytes of them on sm_90.
        return Tile(rows, 16 if plain else 8, 1, 8, 2)
    # The matrix and the operands of its products fill the registers: float32 rows take twice the warps.
    widest, warps = (32, min(16, rows // 4)) if dtype == "float32" else (64, min(8, rows // 8))
    bounded = rows == 32 or (rows == 16 and dtype != "float32")
    dims = min(widest, max(16, triton.next_power_of_2(dims)))
    return Tile(rows, dims, 1, warps, 2, 128 if bounded else None)


def stream_tile(dtype: str, dims: int) -> Tile:
    """Regime b."""
    widest = 128 if dtype == "int8" else 64  # 16 bytes for each lane
    dims = min(widest, max(16, triton.next_power_of_2(dims)))
    return Tile(32, dims, 1, 4 if dtype == "float32" else 8, 2)


def corpus_tile(dtype: str, num_queries: int, dims: int) -> Tile:
    """Regime c: the product kernels."""
    widest = 32 if dtype == "float32" else 64
    queries = 16 if num_queries <= 16 else 64
    dims = min(widest, max(16, triton.next_power_of_2(dims)))
    if dtype == "float32":  # products without matrix instructions need the registers that more stages would take
        return Tile(64, dims, queries, 8, 2)
    return Tile(64, dims, queries, 4 if queries == 16 else 8, 3)


def step_tile(tile: Tile, dtype: str) -> Tile:
    """Regime c: the kernel of a step, whose epilogue holds less than that of the relevance."""
    return tile._replace(maxnreg=200) if tile.queries == 64 and dtype != "float32" else tile


def _dot_type(dtype: str) -> Any:
    """What tiles are multiplied as; int8 is exact in float16. The interpreter's bfloat16 arithmetic is wrong."""
    if dtype == "float32" or (_env.triton_interpreter() and dtype == "bfloat16"):
        return tl.float32
    return tl.bfloat16 if dtype == "bfloat16" else tl.float16


def _parts(dot: Any) -> int:
    """16-bit parts that hold a float32 query to the precision of float32 products."""
    return {tl.float32: 1, tl.float16: 2, tl.bfloat16: 3}[dot]


def mmr(problem: Problem, num_threads: int) -> Selection:
    return _select(problem)


def vrsd(problem: Problem, num_threads: int) -> Selection:
    return _select(problem)


def search(problem: Problem, num_threads: int) -> tuple[Any, Any]:
    """The k rows of largest v, ties to the lowest row."""
    problem = _arrays.tensors(problem)
    data = problem.rows.data
    out_index = _arrays.empty(data, (problem.num_queries, problem.k), "int64")
    out_score = _arrays.empty(data, (problem.num_queries, problem.k), "float32")
    with _arrays.on_device(data):
        corpus = _Corpus(problem)
        for q0, num_queries in corpus.chunks(8 * corpus.stride):
            keys = _arrays.empty(data, (num_queries, corpus.stride), "int64")
            corpus.relevance(q0, num_queries, keys=keys)
            found = keys[:, : problem.pool].topk(min(problem.k, problem.pool)).values
            n = found.shape[1]
            # Undoes what the kernel made of value and row.
            ordered, rows = found >> 32, 0xFFFFFFFF - (found & 0xFFFFFFFF)
            bits = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(torch.int32)
            scores = bits.view(torch.float32)
            part = slice(q0, q0 + num_queries)
            out_score[part, :n], out_index[part, :n] = scores, rows.masked_fill(scores == float("-inf"), -1)
            out_score[part, n:], out_index[part, n:] = float("-inf"), -1
    return out_index, out_score


def _outputs(problem: Problem) -> Selection:
    data, shape = problem.rows.data, (problem.num_queries, problem.k)
    score, relevance, redundancy = (_arrays.empty(data, shape, "float32") for _ in range(3))
    indices, lengths = _arrays.empty(data, shape, "int64"), _arrays.empty(data, shape[:1], "int32")
    return Selection(indices, score, relevance, redundancy, lengths)


def _select(problem: Problem) -> Selection:
    problem = _arrays.tensors(problem)
    out = _outputs(problem)
    slots = problem.pool + (0 if problem.initial is None else problem.initial.shape[1])
    if slots <= gram_slots(problem.rows.dtype, problem.rows.data.shape[1]):
        _gram(problem, out, slots)
    elif problem.candidates is None and not problem.pool_stride:
        _whole_corpus(problem, out)
    else:
        _stream(problem, out)
    return out


def _arguments(problem: Problem, out: Selection) -> dict[str, Any]:
    """What the kernels of pools have in common."""
    rows = problem.rows
    return {
        "rows": rows.data,
        "scales": rows.scales,
        "queries": problem.queries,
        "candidates": problem.candidates,
        "initial": problem.initial,
        "relevance": problem.relevance,
        "bias": problem.bias,
        "groups": problem.groups,
        "query_groups": problem.query_groups,
        "ks": problem.ks,
        "lambda_d": problem.lambda_d,
        "lambda_b": problem.lambda_b,
        "out_index": out.indices,
        "out_score": out.scores,
        "out_relevance": out.relevance,
        "out_redundancy": out.redundancy,
        "out_length": out.lengths,
        "row_stride": rows.data.stride(0),
        "pool_stride": problem.pool_stride,
        "num_ids": problem.num_ids,
        "P": problem.pool,
        "S": 0 if problem.initial is None else problem.initial.shape[1],
        "K": problem.k,
        "D": rows.data.shape[1],
        "cap": problem.max_per_group or None,
        "VRSD": problem.op == "vrsd",
        "COMPUTED": rows.norm == "computed",
        "BIAS_BY_ROW": problem.bias is not None and problem.bias.ndim == 1,
    }


def _query_factors(problem: Problem, q0: int, num_queries: int) -> tuple[Any, Any]:
    queries = problem.queries[q0 : q0 + num_queries]
    factors, back = (_arrays.empty(queries, (num_queries,), "float32") for _ in range(2))
    query_factors_kernel[(num_queries,)](
        queries,
        factors,
        back,
        queries.shape[1],
        UNIT=problem.unit_queries,
        BLOCK=_QUERY_BLOCK,
        **_SMALL_TILE.options(),
    )
    return factors, back


def _gram(problem: Problem, out: Selection, slots: int) -> None:
    dtype, D = problem.rows.dtype, problem.rows.data.shape[1]
    arguments = _arguments(problem, out)
    plain = problem.op == "mmr" and all(arguments.get(name) is None for name in _OPTIONS)
    tile = gram_tile(dtype, slots, D, plain)
    unit = problem.unit_queries and problem.queries is not None
    select_gram_kernel[(problem.num_queries,)](
        **arguments,
        query_factors=_query_factors(problem, 0, problem.num_queries)[0] if unit else None,
        EVEN_D=D % tile.dims == 0,
        DOT=_dot_type(dtype),
        BP=tile.rows,
        BD=tile.dims,
        **tile.options(),
    )


def _stream(problem: Problem, out: Selection) -> None:
    dtype, D = problem.rows.dtype, problem.rows.data.shape[1]
    tile = stream_tile(dtype, D)
    stride = _padded(problem.pool)
    vrsd = problem.op == "vrsd"
    unit = problem.unit_queries and problem.queries is not None
    factors = _query_factors(problem, 0, problem.num_queries)[0] if unit else None
    arguments = _arguments(problem, out)
    for q0, num_queries in _chunks(problem.num_queries, 16 * stride + 4 * D * vrsd, STREAM_BYTES, 1):
        select_stream_kernel[(num_queries,)](
            **arguments,
            query_factors=factors,
            work=_arrays.empty(problem.rows.data, (4, num_queries, stride), "float32"),
            sums=_arrays.empty(problem.rows.data, (num_queries, D), "float32") if vrsd else None,
            q0=q0,
            stride=stride,
            EVEN_D=D % tile.dims == 0,
            BN=tile.rows,
            BD=tile.dims,
            **tile.options(),
        )


def _whole_corpus(problem: Problem, out: Selection) -> None:
    corpus = _Corpus(problem)
    S = 0 if problem.initial is None else problem.initial.shape[1]
    for q0, num_queries in corpus.chunks(8 * corpus.stride):
        state = corpus.relevance(q0, num_queries)
        for step in range(S):
            corpus.take(state, out, step, initial=True)
            corpus.update(state)
        for step in range(problem.k):
            if step:
                corpus.update(state)
            corpus.take(state, out, step, initial=False)


@dataclasses.dataclass
class _Chunk:
    """Queries [q0, q0 + num_queries) of a whole-corpus selection, and their workspaces."""

    q0: int
    num_queries: int
    tiles: int
    factors: Any
    back: Any
    v: Any
    state: Any
    part_best: Any
    part_row: Any
    taken: Any
    barred: Any
    num_taken: Any
    sums: Any
    sum_scalars: Any


class _Corpus:
    """Launches of regime c."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.rows = problem, problem.rows
        self.stride = _padded(problem.pool)
        self.vrsd = problem.op == "vrsd"
        self.factors, self.lengths = self._row_lengths(self.rows)

    def _row_lengths(self, rows: Rows) -> tuple[Any, Any]:
        """What a row is multiplied with to be the vector of the formulas, and the vectors' lengths for VRSD."""
        computed = rows.norm == "computed"
        N, D = rows.data.shape
        factors = _arrays.empty(rows.data, (N,), "float32") if computed else rows.scales
        lengths = _arrays.empty(rows.data, (N,), "float32") if self.vrsd else None
        if computed or self.vrsd:
            tile = stream_tile(rows.dtype, D)
            row_lengths_kernel[(triton.cdiv(N, tile.rows),)](
                rows.data, rows.scales, factors, lengths, rows.data.stride(0), N, D, COMPUTED=computed, VRSD=self.vrsd,
                BN=tile.rows, BD=tile.dims, **tile.options(),
            )  # fmt: skip
        return factors, lengths

    def chunks(self, query_bytes: int) -> list[tuple[int, int]]:
        return _chunks(self.problem.num_queries, query_bytes, CORPUS_BYTES, 64)

    def _tile(self, num_queries: int) -> tuple[Tile, int, int]:
        """The tile, how many of them cover the rows, and how many programs the queries too."""
        tile = corpus_tile(self.rows.dtype, num_queries, self.rows.data.shape[1])
        tiles = triton.cdiv(self.problem.pool, tile.rows)
        return tile, tiles, tiles * triton.cdiv(num_queries, tile.queries)

    def relevance(self, q0: int, num_queries: int, keys: Any = None) -> _Chunk:
        """Relevance with bias of a chunk; its keys only, where an array for them is given."""
        problem, data = self.problem, self.rows.data
        tile, tiles, programs = self._tile(num_queries)

        def floats(*shape: int) -> Any:
            return _arrays.empty(data, shape, "float32")

        factors = back = None
        if problem.queries is not None:
            factors, back = _query_factors(problem, q0, num_queries)
        select = keys is None
        state = _Chunk(
            q0, num_queries, tiles, factors, back,
            v=floats(num_queries, self.stride) if select else None,
            state=floats(num_queries, self.stride) if select else None,
            part_best=floats(tiles, num_queries) if select else None,
            part_row=_arrays.empty(data, (tiles, num_queries), "int64") if select else None,
            taken=_arrays.empty(data, (num_queries,), "int64") if select else None,
            barred=_arrays.empty(data, (num_queries,), "int32") if select and problem.max_per_group else None,
            num_taken=_arrays.empty(data, (num_queries,), "int32") if select else None,
            sums=floats(num_queries, data.shape[1]) if self.vrsd else None,
            sum_scalars=floats(3, num_queries) if self.vrsd else None,
        )  # fmt: skip
        dot = _dot_type(self.rows.dtype)
        corpus_relevance_kernel[(programs,)](
            data, self.factors, self.lengths, problem.queries, factors, back, problem.relevance, problem.bias,
            problem.groups, problem.query_groups, problem.lambda_b, state.v, state.state, keys, state.part_best,
            state.part_row, data.stride(0), q0, num_queries, problem.pool, data.shape[1], self.stride, VRSD=self.vrsd,
            BIAS_BY_ROW=problem.bias is not None and problem.bias.ndim == 1, EVEN_D=data.shape[1] % tile.dims == 0,
            DOT=dot, PARTS=_parts(dot), BQ=tile.queries, BN=tile.rows, BD=tile.dims, **tile.options(),
        )  # fmt: skip
        return state

    def update(self, state: _Chunk) -> None:
        """Brings the running vectors up to date with the rows taken last."""
        problem, data = self.problem, self.rows.data
        tile, _, programs = self._tile(state.num_queries)
        corpus_step_kernel[(programs,)](
            data, self.factors, self.lengths, problem.groups, problem.lambda_d, state.v, state.state, state.taken,
            state.barred, state.num_taken, state.sums, state.sum_scalars, state.part_best, state.part_row,
            data.stride(0), state.q0, state.num_queries, problem.pool, data.shape[1], self.stride, VRSD=self.vrsd,
            EVEN_D=data.shape[1] % tile.dims == 0, DOT=_dot_type(self.rows.dtype), BQ=tile.queries, BN=tile.rows,
            BD=tile.dims, **step_tile(tile, self.rows.dtype).options(),
        )  # fmt: skip

    def take(self, state: _Chunk, out: Selection, step: int, initial: bool) -> None:
        """Takes an initial item, or picks."""
        problem, data = self.problem, self.rows.data
        corpus_pick_kernel[(state.num_queries,)](
            data, self.factors, self.lengths, problem.queries, state.factors, state.back, problem.initial,
            problem.groups, problem.ks, problem.lambda_d, state.v, state.state, state.part_best, state.part_row,
            state.taken, state.barred, state.num_taken, state.sums, state.sum_scalars, out.indices, out.scores,
            out.relevance, out.redundancy, out.lengths, data.stride(0), state.q0, state.num_queries, problem.pool,
            step, state.tiles, 0 if problem.initial is None else problem.initial.shape[1], problem.k, data.shape[1],
            problem.max_per_group or None, self.stride, VRSD=self.vrsd, PICK=not initial, BLOCK=_PICK_BLOCK,
            **_SMALL_TILE.options(),
        )  # fmt: skip


def _padded(n: int) -> int:
    """The length of a running vector, so that each starts on 64 bytes."""
    return (n + 15) // 16 * 16


def _chunks(num_queries: int, query_bytes: int, limit: int, multiple: int) -> list[tuple[int, int]]:
    """First and number of queries that are run at a time, so that their workspace stays below the limit."""
    size = max(1, limit // query_bytes)
    if size > multiple:
        size -= size % multiple
    return [(q0, min(size, num_queries - q0)) for q0 in range(0, num_queries, size)]


# Types of the kernels' arguments, for ahead-of-time compilation; the rows' own depends on their storage.
_TYPES = {
    **dict.fromkeys(("candidates", "initial", "groups", "query_groups", "ks", "out_index", "part_row"), "*i64"),
    **dict.fromkeys(("taken_rows", "keys_out"), "*i64"),
    **dict.fromkeys(("barred", "num_taken", "out_length"), "*i32"),
    **dict.fromkeys(("row_stride", "stride", "pool_stride", "num_ids", "P", "S", "K", "D", "N", "q0", "cap"), "i32"),
    **dict.fromkeys(("num_queries", "tiles", "step"), "i32"),
}
_ROW_TYPES = {"float32": "*fp32", "float16": "*fp16", "bfloat16": "*bf16", "int8": "*i8"}
# What a call without options leaves out.
_OPTIONS = ("relevance", "initial", "bias", "groups", "query_groups", "ks", "cap", "barred")
_SUMS = ("sums", "sum_scalars", "lengths")


def _compilation(
    name: str, kernel: Any, dtype: str, tile: Tile, absent: tuple[str, ...], dots: bool, **constexprs: Any
) -> Compilation:
    """A kernel as it is compiled for aligned rows; the arguments that are absent are None."""
    signature: dict[str, str] = {}
    for argument in kernel.arg_names:
        if argument in constexprs or argument in absent:
            signature[argument] = "constexpr"
        else:
            signature[argument] = _ROW_TYPES[dtype] if argument == "rows" else _TYPES.get(argument, "*fp32")
    divisible = ("row_stride", "stride", "D") if constexprs.get("EVEN_D", True) else ("row_stride", "stride")
    return Compilation(
        f"{name} {dtype}",
        kernel,
        signature,
        {**constexprs, **dict.fromkeys(argument for argument in absent if argument in signature)},
        tuple(argument for argument, kind in signature.items() if kind[0] == "*" or argument in divisible),
        tile.num_warps,
        tile.num_stages,
        dot16=dots and dtype != "float32",
        amd_warps=tile.amd_warps,
        maxnreg=tile.maxnreg,
        wide_loads="EVEN_D" in constexprs or kernel is row_lengths_kernel,
    )


def ahead_of_time() -> list[Compilation]:
    """Every kernel with every tile that is launched and rows of each type: plain, and with all options together.

    Without options D is a whole number of slices, with them it is not. What the other rule or a call that is given
    the relevance adds is compiled for float16.
    """
    made = []
    for unit in (True, False):
        sizes = {"UNIT": unit, "BLOCK": _QUERY_BLOCK}
        name = "query factors unit" if unit else "query factors"
        made.append(_compilation(name, query_factors_kernel, "float32", _SMALL_TILE, (), False, **sizes))
    for dtype in _ROW_TYPES:
        for vrsd, full in ((False, False), (True, True), (True, False), (False, True)):
            if vrsd == full or dtype == "float16":
                made += _selections(dtype, vrsd, full)
    return made + _searches()


def _selections(dtype: str, vrsd: bool, full: bool) -> list[Compilation]:
    """All kernels of one rule, with all options (and D not a whole number of slices) or none."""
    made = []

    def add(name: str, kernel: Any, tile: Tile, absent: tuple[str, ...], dots: bool, **constexprs: Any) -> None:
        label = f"{name} {'vrsd' if vrsd else 'mmr'} {'options' if full else 'plain'}"
        made.append(_compilation(label, kernel, dtype, tile, absent, dots, VRSD=vrsd, **constexprs))

    D, dot = 700 if full else 768, _dot_type(dtype)
    even = {"EVEN_D": not full}
    flags = {**even, "BIAS_BY_ROW": True}
    computed = dtype != "int8"
    absent: tuple[str, ...] = ("relevance",) if full else _OPTIONS
    absent = ("scales", *absent) if computed else absent
    unused = absent if vrsd else absent + _SUMS

    for slots in (16, 32, 64, 128):
        tile = gram_tile(dtype, slots, D, not vrsd and not full)
        sizes: dict[str, Any] = {"BP": tile.rows, "BD": tile.dims, "DOT": dot, "COMPUTED": computed}
        if slots > gram_slots(dtype, D):
            flags = {**flags, "EVEN_D": True}  # the only ones of this type that have so many slots
        add(f"gram {slots}", select_gram_kernel, tile, absent, True, **flags, **sizes)
    flags = {**even, "BIAS_BY_ROW": True}
    tile = stream_tile(dtype, D)
    sizes = {"BN": tile.rows, "BD": tile.dims, "COMPUTED": computed}
    add("stream", select_stream_kernel, tile, unused, False, **flags, **sizes)
    if computed or vrsd:
        add("row lengths", row_lengths_kernel, tile, absent, False, **sizes)
    for num_queries in (1, 64):
        tile = corpus_tile(dtype, num_queries, D)
        sizes = {"BQ": tile.queries, "BN": tile.rows, "BD": tile.dims, "DOT": dot}
        name, parts = f"corpus relevance {tile.queries}", _parts(dot)
        add(name, corpus_relevance_kernel, tile, (*unused, "keys_out"), True, **flags, **sizes, PARTS=parts)
        add(f"corpus step {tile.queries}", corpus_step_kernel, step_tile(tile, dtype), unused, True, **even, **sizes)
    tile = _SMALL_TILE
    add("corpus pick", corpus_pick_kernel, tile, unused, False, PICK=True, BLOCK=_PICK_BLOCK)
    if full:
        add("corpus initial", corpus_pick_kernel, tile, unused, False, PICK=False, BLOCK=_PICK_BLOCK)
    return made


def _searches() -> list[Compilation]:
    """The relevance kernel where it writes keys, and where relevance is given."""
    tile, dot = corpus_tile("float16", 64, 768), _dot_type("float16")
    sizes = {"BQ": tile.queries, "BN": tile.rows, "BD": tile.dims, "DOT": dot, "PARTS": _parts(dot)}
    outputs = ("v_out", "state_out", "part_best", "part_row")
    flags = {"VRSD": False, "EVEN_D": True, "BIAS_BY_ROW": False}
    given = (*_OPTIONS[1:], *_SUMS, "queries", "query_factors", "query_back", "keys_out")
    search = _compilation(
        "corpus search", corpus_relevance_kernel, "float16", tile, (*_OPTIONS, *_SUMS, *outputs), True, **flags, **sizes
    )
    plain = _compilation("corpus given", corpus_relevance_kernel, "float16", tile, given, False, **flags, **sizes)
    return [search, plain._replace(wide_loads=False)]
