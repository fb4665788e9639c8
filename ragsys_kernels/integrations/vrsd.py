"""The call of the VRSD authors' script, on `ragsys_kernels.vrsd`."""

from __future__ import annotations

from typing import Any

from ._pools import matrix, number_of_picks, run, vector

__all__ = ["VecRetSimDiv"]


def VecRetSimDiv(vectors: Any, query: Any, k: int = 4) -> tuple[list[Any], list[int]]:  # noqa: N802
    """Select greedily the vectors whose sum is nearest to the query in direction (VRSD, Algorithm 1).

    ::

        C_1 = argmax_i cos(q, e_i);   s = e_C1
        C_t = argmax over unpicked i of cos(q, s + e_i);   s += e_Ct

    Rows are summed as they are, not as unit vectors. Ties go to the lowest position.

    Parameters
    ----------
    vectors : (N, D) numbers
    query : (D,) or (1, D) numbers
    k : int
        Picks; no more than N are made, and none for k <= 0.

    Returns
    -------
    results : list
        The picked entries of ``vectors``.
    results_index : list of int
        Their positions, in the order they were picked.

    Notes
    -----
    The picks are the script's where its pool is sorted by similarity, the best cosine is positive and k <= N. It
    differs in what the paper's algorithm does not say: its first pick is position 0, and it repeats items where no
    cosine is positive or k is more than N; here no item is picked twice. NaN and inf raise ValueError, zero vectors
    have cosine 0. O(k N D) time.

    Examples
    --------
    >>> from ragsys_kernels.integrations.vrsd import VecRetSimDiv
    >>> VecRetSimDiv([[1, 0.1], [1, 0.2], [0, 1]], [1, 1], k=2)[1]
    [1, 2]
    """
    op = "VecRetSimDiv"
    if min(k, len(vectors)) <= 0:
        return [], []
    rows = matrix(op, "vectors", vectors)
    queries = vector(op, "query", query, rows.shape[1])[None]
    number = number_of_picks(op, len(rows), k)
    picks: list[int] = run("vrsd", rows, number, queries, metric="dot").indices[0].tolist()
    return [vectors[i] for i in picks], picks
