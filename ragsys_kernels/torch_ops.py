"""The operations as ``torch.library`` custom operators, for `torch.compile`, CUDA graphs and `torch.export`.

Importing this module registers ``torch.ops.ragsys_kernels.mmr``, ``vrsd``, ``token_logprobs`` and ``answer_logprobs``.
They are the functions of the package for tensors, with those options that do not change a shape, and ``k``. Each has a
fake kernel, which tells shapes and element types without running. They are not differentiable. Tensors may be on any
device that a backend runs on.
"""

# Annotations are read when operators are registered: they must not be strings.
from typing import Optional

import torch
from torch import Tensor

from . import scoring, selection

_Selection = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
_Sums = tuple[Tensor, Tensor, Tensor, Tensor]
_Answers = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


@torch.library.custom_op("ragsys_kernels::mmr", mutates_args=())
def mmr(
    queries: Optional[Tensor],
    embeddings: Tensor,
    k: int,
    candidates: Optional[Tensor] = None,
    relevance: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    lambda_d: float = 0.75,
    lambda_b: float = 0.95,
    groups: Optional[Tensor] = None,
    query_groups: Optional[Tensor] = None,
    max_per_group: Optional[int] = None,
    initial: Optional[Tensor] = None,
    allowed: Optional[Tensor] = None,
    exclude: Optional[Tensor] = None,
    metric: str = "cosine",
    backend: str = "auto",
) -> _Selection:
    """Run `ragsys_kernels.mmr` with one k and one lambda for all queries.

    Returns indices, scores, relevance, redundancy (Q, k) and lengths (Q,).
    """
    return tuple(
        selection.mmr(
            queries,
            embeddings,
            k,
            candidates=candidates,
            relevance=relevance,
            bias=bias,
            lambda_d=lambda_d,
            lambda_b=lambda_b,
            groups=groups,
            query_groups=query_groups,
            max_per_group=max_per_group,
            initial=initial,
            allowed=allowed,
            exclude=exclude,
            metric=metric,  # type: ignore[arg-type]  # operators have no literals
            backend=backend,  # type: ignore[arg-type]
        )
    )


@torch.library.custom_op("ragsys_kernels::vrsd", mutates_args=())
def vrsd(
    queries: Tensor,
    embeddings: Tensor,
    k: int,
    candidates: Optional[Tensor] = None,
    relevance: Optional[Tensor] = None,
    groups: Optional[Tensor] = None,
    query_groups: Optional[Tensor] = None,
    max_per_group: Optional[int] = None,
    initial: Optional[Tensor] = None,
    allowed: Optional[Tensor] = None,
    exclude: Optional[Tensor] = None,
    metric: str = "cosine",
    backend: str = "auto",
) -> _Sums:
    """Run `ragsys_kernels.vrsd` with one k for all queries: indices, scores, relevance (Q, k) and lengths (Q,)."""
    result = selection.vrsd(
        queries,
        embeddings,
        k,
        candidates=candidates,
        relevance=relevance,
        groups=groups,
        query_groups=query_groups,
        max_per_group=max_per_group,
        initial=initial,
        allowed=allowed,
        exclude=exclude,
        metric=metric,  # type: ignore[arg-type]
        backend=backend,  # type: ignore[arg-type]
    )
    return result.indices, result.scores, result.relevance, result.lengths


@mmr.register_fake
def _(
    queries: Optional[Tensor],
    embeddings: Tensor,
    k: int,
    candidates: Optional[Tensor] = None,
    relevance: Optional[Tensor] = None,
    *args: object,
    **options: object,
) -> _Selection:
    first = relevance if queries is None else queries
    assert first is not None
    Q = first.shape[0]
    indices, scores, relevances, lengths = _fake_picks(embeddings, Q, k)
    return indices, scores, relevances, torch.empty_like(scores), lengths


@vrsd.register_fake
def _(queries: Tensor, embeddings: Tensor, k: int, *args: object, **options: object) -> _Sums:
    return _fake_picks(embeddings, queries.shape[0], k)


def _fake_picks(embeddings: Tensor, Q: int, k: int) -> _Sums:
    indices = embeddings.new_empty((Q, k), dtype=torch.int64)
    scores, relevance = (embeddings.new_empty((Q, k), dtype=torch.float32) for _ in range(2))
    return indices, scores, relevance, embeddings.new_empty(Q, dtype=torch.int32)


@torch.library.custom_op("ragsys_kernels::token_logprobs", mutates_args=())
def token_logprobs(
    logits: Tensor,
    targets: Tensor,
    ignore_index: Optional[int] = -100,
    temperature: float = 1.0,
    logit_scale: float = 1.0,
    softcap: Optional[float] = None,
    vocab_size: Optional[int] = None,
    backend: str = "auto",
) -> Tensor:
    """Run `ragsys_kernels.token_logprobs`: (T,) float32."""
    return scoring.token_logprobs(
        logits,
        targets,
        ignore_index=ignore_index,
        temperature=temperature,
        logit_scale=logit_scale,
        softcap=softcap,
        vocab_size=vocab_size,
        backend=backend,  # type: ignore[arg-type]
    )


@token_logprobs.register_fake
def _(logits: Tensor, targets: Tensor, *args: object, **options: object) -> Tensor:
    return logits.new_empty(targets.shape[0], dtype=torch.float32)


@torch.library.custom_op("ragsys_kernels::answer_logprobs", mutates_args=())
def answer_logprobs(
    logits: Optional[Tensor],
    hidden: Optional[Tensor],
    weight: Optional[Tensor],
    bias: Optional[Tensor],
    targets: Tensor,
    rows: Tensor,
    cu_answers: Tensor,
    temperature: float = 1.0,
    logit_scale: float = 1.0,
    softcap: Optional[float] = None,
    vocab_size: Optional[int] = None,
    ignore_index: Optional[int] = -100,
    backend: str = "auto",
) -> _Answers:
    """Run `ragsys_kernels.answer_logprobs`: logp (M,) float32, sum, mean (A,) float64, count (A,) int64, greedy."""
    result = scoring.answer_logprobs(
        logits,
        hidden,
        weight,
        bias,
        targets=targets,
        rows=rows,
        cu_answers=cu_answers,
        temperature=temperature,
        logit_scale=logit_scale,
        softcap=softcap,
        vocab_size=vocab_size,
        ignore_index=ignore_index,
        backend=backend,  # type: ignore[arg-type]
    )
    return result.logp, result.sum, result.mean, result.count, result.greedy


@answer_logprobs.register_fake
def _(
    logits: Optional[Tensor],
    hidden: Optional[Tensor],
    weight: Optional[Tensor],
    bias: Optional[Tensor],
    targets: Tensor,
    rows: Tensor,
    cu_answers: Tensor,
    *args: object,
    **options: object,
) -> _Answers:
    x = targets
    A = cu_answers.shape[0] - 1
    sums = [x.new_empty(A, dtype=torch.float64) for _ in range(2)]
    count, greedy = x.new_empty(A, dtype=torch.int64), x.new_empty(A, dtype=torch.bool)
    return x.new_empty(targets.shape[0], dtype=torch.float32), *sums, count, greedy
