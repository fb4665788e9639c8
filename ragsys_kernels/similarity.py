"""Similarities of the items of pools, for rules over items without dense vectors: ``mmr(similarity=S)`` and others.

Each function returns S (Q, P, P) float32, whose row j has the similarities of a query's candidates to candidate j.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ._base import arrays, checks
from ._base.types import Array, ArrayLike

__all__ = ["jaccard", "maxsim", "maxsim_relevance"]


def maxsim(documents: Sequence[ArrayLike], candidates: ArrayLike | None = None, *, device: str | None = None) -> Array:
    """Return how much of each document's tokens the others have: ColBERT's MaxSim among the items of pools.

    With the cosine of tokens, the mean over the tokens of one of the largest similarity to a token of the other. S_ij
    is the mean of both directions, so that S is symmetric, with 1 on its diagonal.

    Parameters
    ----------
    documents : N arrays (T_i, D) floating point, each of at least one token
        Token vectors of any length, arrays of NumPy or tensors of torch.
    candidates : (Q, P) integers, optional
        Pools, padded with -1, whose similarities are 0. Default: one pool of all documents.
    device : str, optional
        Where torch multiplies, such as "cuda". Default: NumPy multiplies on the host.

    Returns
    -------
    (Q, P, P) float32
        A torch tensor on ``device`` where that is given, else NumPy's.

    Raises
    ------
    ValueError, TypeError
        Documents without tokens or of different D; candidates out of range.

    Notes
    -----
    O(Q P² T² D) time; a document at a time is compared with its pool.

    Examples
    --------
    >>> import numpy as np
    >>> from ragsys_kernels import similarity
    >>> tokens = [np.eye(3, dtype=np.float32)[:2], np.eye(3, dtype=np.float32)[1:]]
    >>> similarity.maxsim(tokens)
    array([[[1. , 0.5],
            [0.5, 1. ]]], dtype=float32)
    """
    op = "maxsim"
    tokens, starts = _tokens(op, "documents", documents, device)
    wanted = _pools(op, candidates, len(starts) - 1)
    found = arrays.full(tokens, (*wanted.shape, wanted.shape[1]), 0.0, "float32")
    for q, pool in enumerate(wanted):
        items = np.flatnonzero(pool >= 0)
        rows, bounds = _gathered(tokens, starts, pool[items])
        for at, item in enumerate(items.tolist()):
            best = _most(rows[bounds[at] : bounds[at + 1]] @ rows.T, bounds)
            found[q, item, items] = best.mean(0)
    swapped = found.transpose(1, 2) if hasattr(found, "is_cuda") else found.transpose(0, 2, 1)
    return (found + swapped) / 2


def maxsim_relevance(
    queries: Sequence[ArrayLike],
    documents: Sequence[ArrayLike],
    candidates: ArrayLike | None = None,
    *,
    device: str | None = None,
) -> Array:
    """Return the relevance of documents to queries by MaxSim: the mean over a query's tokens of the largest cosine.

    Parameters
    ----------
    queries : Q arrays (T_q, D)
    documents, candidates, device
        As of `maxsim`; default: all documents for each query.

    Returns
    -------
    (Q, P) float32
        To be given as ``relevance``; 0 for padding.
    """
    op = "maxsim_relevance"
    asked, begins = _tokens(op, "queries", queries, device)
    tokens, starts = _tokens(op, "documents", documents, device)
    if asked.shape[1] != tokens.shape[1]:
        raise ValueError(f"{op}: queries must have the documents' D = {tokens.shape[1]}, got {asked.shape[1]}")
    num_queries = len(begins) - 1
    wanted = _pools(op, candidates, len(starts) - 1, num_queries)
    found = arrays.full(tokens, wanted.shape, 0.0, "float32")
    for q, pool in enumerate(wanted):
        items = np.flatnonzero(pool >= 0)
        rows, bounds = _gathered(tokens, starts, pool[items])
        found[q, items] = _most(asked[begins[q] : begins[q + 1]] @ rows.T, bounds).mean(0)
    return found


def jaccard(sets: Any, candidates: ArrayLike | None = None) -> Array:
    """Return the Jaccard index of sets of tokens: what two have in common, of what either has.

    Parameters
    ----------
    sets : sparse matrix (N, V) of SciPy, or N collections of hashable tokens
        What is not 0 is in the set. Two empty sets have 0 in common.
    candidates : (Q, P) integers, optional
        As of `maxsim`.

    Returns
    -------
    (Q, P, P) float32

    Raises
    ------
    TypeError
        A text in the place of its tokens; what is no collection; a token that is not hashable.

    Examples
    --------
    >>> from ragsys_kernels import similarity
    >>> similarity.jaccard([{"a", "b"}, {"b", "c"}])
    array([[[1.        , 0.33333334],
            [0.33333334, 1.        ]]], dtype=float32)
    """
    op = "jaccard"
    if hasattr(sets, "tocsr"):
        matrix = sets.tocsr(copy=True)  # the next steps work in place
        matrix.sum_duplicates()
        members = [
            frozenset(matrix.indices[begin:end][matrix.data[begin:end] != 0].tolist())
            for begin, end in zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True)
        ]
    else:
        members = [_set(op, each, place) for place, each in enumerate(_sequence(op, "sets", sets))]
    wanted = _pools(op, candidates, len(members))
    found = np.zeros((*wanted.shape, wanted.shape[1]), np.float32)
    for q, pool in enumerate(wanted):
        items = np.flatnonzero(pool >= 0)
        known: dict[Any, int] = {}
        present = [(at, known.setdefault(each, len(known))) for at, i in enumerate(items) for each in members[pool[i]]]
        table = np.zeros((len(items), max(1, len(known))), np.float32)
        if present:
            table[tuple(np.array(present).T)] = 1
        common, sizes = table @ table.T, table.sum(axis=1)
        either = sizes[:, None] + sizes - common
        found[q][np.ix_(items, items)] = np.divide(common, either, out=np.zeros_like(common), where=either > 0)
    return found


def _sequence(op: str, name: str, given: Any) -> list[Any]:
    try:
        if not isinstance(given, (str, bytes)):
            return list(given)
    except TypeError:
        pass
    raise TypeError(f"{op}: {name} must be a sequence, with an element for each item, got {type(given).__name__}")


def _set(op: str, tokens: Any, place: int) -> frozenset[Any]:
    got = f"got {type(tokens).__name__} in place {place}"
    if isinstance(tokens, (str, bytes)):
        raise TypeError(f"{op}: sets must be collections of tokens, {got}; split texts first, for instance by .split()")
    try:
        return frozenset(tokens)
    except TypeError as error:
        raise TypeError(f"{op}: sets must be collections of hashable tokens, {got}: {error}") from None


def _tokens(op: str, name: str, documents: Any, device: str | None) -> tuple[Any, np.ndarray]:
    """Return the unit vectors of all tokens end to end, and where those of each document begin, with their number."""
    documents = _sequence(op, name, documents)
    if not documents:
        raise ValueError(f"{op}: {name} must be at least one array (T, D), got none")
    parts: list[np.ndarray] = []
    for row, each in enumerate(documents):
        array, dtype = arrays.host_view(op, name, arrays.to_host(each))
        if array.ndim != 2 or 0 in array.shape or "float" not in dtype:
            got = f"{dtype} of shape {checks.shape_text(array.shape)}"
            raise ValueError(f"{op}: {name} must be arrays (T, D) of floats, got {got} in place {row}")
        if array.shape[1] != (dims := parts[0].shape[1] if parts else array.shape[1]):
            raise ValueError(f"{op}: {name} must have one D, got {array.shape[1]} in place {row} after {dims}")
        parts.append(arrays.widen(array, dtype))
    starts = np.cumsum([0, *map(len, parts)])
    tokens: Any = np.concatenate(parts)
    if not (finite := np.isfinite(tokens).all(axis=1)).all():
        place = int(np.searchsorted(starts, np.argmin(finite), side="right")) - 1
        raise ValueError(f"{op}: {name} must be finite, got NaN or inf in place {place}")
    norms = np.linalg.norm(tokens.astype(np.float64), axis=1, keepdims=True)
    tokens = np.divide(tokens, norms, out=np.zeros(tokens.shape), where=norms > 0).astype(np.float32)
    if device is not None:
        import torch

        try:
            tokens = torch.from_numpy(tokens).to(device)
        except (RuntimeError, TypeError, AssertionError) as error:  # torch asserts that it is built with CUDA
            got = checks.shown(device)
            raise ValueError(
                f"{op}: device must be one of torch's that is here, got {got}: {checks.line(error)}"
            ) from None
    return tokens, starts


def _pools(op: str, candidates: Any, num_rows: int, num_queries: int | None = None) -> np.ndarray:
    if candidates is None:
        return np.broadcast_to(np.arange(num_rows), (num_queries or 1, num_rows))
    wanted = np.asarray(checks.ids(op, "candidates", arrays.to_host(candidates), num_queries))
    if ((wanted < -1) | (wanted >= num_rows)).any():
        got = int(wanted[(wanted < -1) | (wanted >= num_rows)].flat[0])
        raise ValueError(f"{op}: candidates must be -1 or below N = {num_rows}, got {got}")
    return wanted


def _gathered(tokens: Any, starts: np.ndarray, rows: np.ndarray) -> tuple[Any, np.ndarray]:
    """Return the tokens of some documents end to end, and where each begins."""
    lengths = starts[rows + 1] - starts[rows]
    places = np.concatenate([np.arange(starts[row], starts[row + 1]) for row in rows.tolist()] or [np.zeros(0, int)])
    return tokens[places], np.cumsum([0, *lengths])


def _most(products: Any, bounds: np.ndarray) -> Any:
    """Return the largest product with a token of each document, of products (T, all tokens)."""
    if isinstance(products, np.ndarray):
        return np.maximum.reduceat(products, bounds[:-1], axis=1)
    import torch

    return torch.stack([part.amax(1) for part in products.split(np.diff(bounds).tolist(), 1)], 1)
