"""The search, and the relevance of pools, on a device: torch's products of matrices and its top-n."""

from __future__ import annotations

from typing import Any

from .._base import arrays
from .._base.types import Array
from . import filtered_problems
from .problem import Problem

# Scores of a block of queries against a block of rows take 256 MB.
_BLOCK = 1 << 26
_QUERIES = 1024


def search(problem: Problem, num_threads: int) -> tuple[Array, Array]:
    """Return the k rows of largest v, ties to the lowest row; -1 and -inf where there are no more.

    Products are float32 for every storage type, in the precision that torch is set to (full by default). O(Q N D) time;
    nothing waits for the device. A row whose v is NaN is not found.
    """
    import torch

    problem = arrays.tensors(problem)
    if problem.constraints.filter is not None:
        parts = [search(piece, num_threads) for _, piece in filtered_problems.by_bias(problem)]
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
    indices = arrays.empty(problem.lambda_b, (problem.num_queries, problem.k), "int64")
    scores = arrays.empty(problem.lambda_b, (problem.num_queries, problem.k), "float32")
    queries = unit(problem.queries.double()).float() if problem.unit_queries else problem.queries
    for begin in range(0, problem.num_queries, _QUERIES):
        part = slice(begin, begin + _QUERIES)
        found, values = _search(torch, problem, queries[part], part)
        indices[part], scores[part] = found, values
    return indices, scores


def relevance(problem: Problem, num_threads: int) -> Array:
    """Return v of the items of each pool (Q, P), by products as of `search`; of padding, anything."""
    import torch

    problem = arrays.tensors(problem)
    data, ids = problem.rows.data, problem.candidates
    queries = unit(problem.queries.double()).float() if problem.unit_queries else problem.queries
    found = arrays.empty(problem.lambda_b, (problem.num_queries, problem.pool), "float32")
    step = max(1, _BLOCK // (problem.pool if ids is None else problem.pool * data.shape[1]))
    for begin in range(0, problem.num_queries, step):
        part = slice(begin, begin + step)
        if ids is None:
            for first in range(0, len(data), _BLOCK // step):
                block = slice(first, first + _BLOCK // step)
                products = arrays.empty(queries, (len(queries[part]), len(data[block])), "float32")
                torch.mm(queries[part], data[block].float().T, out=products)
                found[part, block] = _values(problem, products, part, block)
        else:
            pools = ids[part].long().clamp(0, len(data) - 1)
            products = arrays.empty(queries, (*pools.shape, 1), "float32")
            torch.bmm(data[pools].float(), queries[part, :, None], out=products)
            found[part] = _values(problem, products[..., 0], part, pools)
    return found


def _search(torch: Any, problem: Problem, queries: Any, part: slice) -> tuple[Any, Any]:
    data, num_rows = problem.rows.data, len(problem.rows.data)
    step = max(problem.k, _BLOCK // len(queries))
    best = queries.new_full((len(queries), problem.k), float("-inf"))
    rows = torch.full(best.shape, -1, dtype=torch.int64, device=best.device)
    for begin in range(0, num_rows, step):
        block = slice(begin, begin + step)
        vectors = data[block].float()
        products = arrays.empty(queries, (len(queries), len(vectors)), "float32")
        torch.mm(queries, vectors.T, out=products)  # autocast does not change operations with `out`
        v = _values(problem, products, part, block)
        ids = torch.arange(begin, begin + v.shape[1], device=v.device).expand(v.shape)
        # The earlier ones come first: their rows are lower.
        best, rows = _top(torch, torch.cat([best, v], 1), torch.cat([rows, ids], 1), problem.k)
    return rows.where(best > float("-inf"), -1), best


def _values(problem: Problem, products: Any, part: slice, block: Any) -> Any:
    """Return v of a block of rows, or of the rows of pools, -inf for a row that is left out."""
    if problem.rows.scales is not None:
        products = products * problem.rows.scales[block]
    if problem.bias is not None:
        lambda_b = problem.lambda_b[part, None]
        bias = problem.bias[block] if problem.bias.ndim == 1 else problem.bias[part, block]
        products = lambda_b * products + (1 - lambda_b) * bias
    kept = products == products  # not NaN
    if problem.constraints.query_groups is not None:
        kept &= problem.constraints.groups[block] != problem.constraints.query_groups[part, None]
    return products.where(kept, float("-inf"))


def _top(torch: Any, values: Any, ids: Any, n: int) -> tuple[Any, Any]:
    """Return the n largest values of each row, descending, and their ids; of equal values the first ones.

    `torch.topk` promises no order of equal values. Only the n-th value is taken from it; the members follow from that.
    """
    nth = values.topk(n, dim=1, sorted=False).values.amin(1, keepdim=True)
    above, tied = values > nth, values == nth
    room = n - above.sum(1, keepdim=True)
    chosen = above | (tied & (tied.cumsum(1) <= room))
    width = values.shape[1]
    rank = torch.arange(width, 0, -1, device=values.device)
    places = width - torch.where(chosen, rank, 0).topk(n, dim=1).values  # exactly n, ascending
    values, order = values.gather(1, places).sort(dim=1, descending=True, stable=True)
    return values, ids.gather(1, places).gather(1, order)


def unit(rows: Any) -> Any:
    """Return rows (n, D) of float64 divided by their norms; a zero row stays zero.

    The largest element is divided out first, so that squares neither overflow nor vanish.
    """
    largest = rows.abs().amax(1, keepdim=True)
    rows = rows / largest.where(largest > 0, 1)
    norms = rows.square().sum(1, keepdim=True).sqrt()
    return rows / norms.where(norms > 0, 1)
