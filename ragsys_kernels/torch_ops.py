"""The operations as ``torch.library`` custom operators, for `torch.compile`, CUDA graphs and `torch.export`.

Importing this module registers ``torch.ops.ragsys_kernels.NAME`` for the name of each rule of ``METHODS``,
``token_logprobs`` and ``answer_logprobs``. They are the functions of the package for tensors, with ``k`` and those
options of what is computed that do not change a shape; checks and threads are those by default. k, weights, budget and
ceiling are one number for all queries. Rules without a redundancy of their own (all but MMR, MSD and GIST) leave it
out. Each has a fake kernel, which tells shapes and element types without running. They are not differentiable. Tensors
may be on any device that a backend runs on; a call with costs waits for the device.
"""

# Annotations are read when operators are registered: they must not be strings.
from typing import Optional

import torch
from torch import Tensor

from . import scoring, selection

_Answers = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


# The arguments that all rules share, before and after those of one rule.
_POOL = "Tensor? queries, Tensor embeddings, int k, Tensor? candidates=None, Tensor? relevance=None"
_WEIGHED = "Tensor? bias=None, float lambda_d={}, float lambda_b=0.95"
_LIMITS = (
    "Tensor? groups=None, Tensor? query_groups=None, int? max_per_group=None, Tensor? initial=None, "
    "Tensor? allowed=None, Tensor? exclude=None, Tensor? costs=None, float? budget=None, float? max_similarity=None, "
    "str metric='cosine', str backend='auto', str relevance_scale='as-is'"
)


def _operator(name: str, *of_rule: str, redundancy: bool = False) -> "torch.library.CustomOpDef":
    """Register a rule; without its redundancy where that is NaN."""
    pool = _POOL.replace("Tensor? queries", "Tensor queries") if name in ("vrsd", "sift") else _POOL
    arguments, results = ", ".join((pool, *of_rule, _LIMITS)), "Tensor, " * (4 + redundancy)
    names = [argument.split("=")[0].split()[-1] for argument in arguments.split(", ")]

    def call(*args: object, **options: object) -> tuple[Tensor, ...]:
        given = {**dict(zip(names, args, strict=False)), **options}
        if given.get("quality", ...) is None:
            del given["quality"]
        picks = getattr(selection, name)(given.pop("queries"), given.pop("embeddings"), given.pop("k"), **given)
        return tuple(x for field, x in picks._asdict().items() if redundancy or field != "redundancy")

    def fake(
        queries: Optional[Tensor],
        embeddings: Tensor,
        k: int,
        candidates: Optional[Tensor] = None,
        relevance: Optional[Tensor] = None,
        *args: object,
        **options: object,
    ) -> tuple[Tensor, ...]:
        first = relevance if queries is None else queries
        assert first is not None
        Q = first.shape[0]
        indices, lengths = (embeddings.new_empty(s, dtype=t) for s, t in (((Q, k), torch.int64), ((Q,), torch.int32)))
        columns = (embeddings.new_empty((Q, k), dtype=torch.float32) for _ in range(2 + redundancy))
        return indices, *columns, lengths

    operator = torch.library.custom_op(
        f"ragsys_kernels::{name}", call, mutates_args=(), schema=f"({arguments}) -> ({results[:-2]})"
    )
    operator.register_fake(fake)
    return operator


# Indices, scores, relevance (Q, k) and lengths (Q,); before the lengths the redundancy (Q, k) where the rule has one of
# its own.
mmr = _operator("mmr", _WEIGHED.format(0.75), redundancy=True)
vrsd = _operator("vrsd")
msd = _operator("msd", _WEIGHED.format(0.75), redundancy=True)
dpp = _operator("dpp", _WEIGHED.format(0.5), "Tensor? quality=None, float scale=1.0")
ssd = _operator("ssd", _WEIGHED.format(0.5), "float gamma=1.0, int? window=None")
sift = _operator("sift", "float noise=0.01, float min_gain=0.0")
coverage = _operator(
    "coverage",
    _WEIGHED.format(0.5),
    "str kind='facility', Tensor? aspects=None, Tensor? weights=None, float gamma=0.5, bool density=False",
)
gist = _operator("gist", _WEIGHED.format(0.25), "float eps=0.1", redundancy=True)


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
    allowed: Optional[Tensor] = None,
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
        allowed=allowed,
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
    allowed: Optional[Tensor] = None,
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
        allowed=allowed,
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
