"""The operations as ``torch.library`` custom operators, for `torch.compile`, CUDA graphs and `torch.export`.

Importing this module registers ``torch.ops.ragsys_kernels.NAME`` for the name of each rule of ``METHODS``,
``token_logprobs`` and ``answer_logprobs``. They are the functions of the package for tensors, with ``k`` and those
options of what is computed that do not change a shape; checks and threads are those by default. k, weights, budget and
ceiling are one number for all queries. Rules without a redundancy of their own (all but MMR, MSD and GIST) leave it
out. Each has a fake kernel, which tells shapes and element types without running. They are not differentiable. Tensors
may be on any device that a backend runs on; a call with costs waits for the device.
"""

# Annotations are read when operators are registered: they must not be strings.
from collections.abc import Callable
from typing import Any, Optional

import torch
from torch import Tensor

from . import scoring, selection
from .selection.parameters import OF_RESULT, OF_RULES, TABLE, Parameter
from .selection.validate import NEEDS_QUERIES

_TYPES = {"number": "float", "count": "int", "choice": "str", "flag": "bool"}  # of what is one value; all else: Tensor
# The place of these is another than in the table. The last ones came later: exported programs go by the places.
_FIRST, _LAST = ("candidates", "relevance"), ("backend", "relevance_scale", "min_relevance", "min_per_group")


def _argument(parameter: Parameter, rule: str) -> str:
    """Return an argument as the schema of an operator has it."""
    kind = _TYPES.get(parameter.kind)
    default = parameter.default_of(rule)
    if kind is None or default is None:  # "zscore", the quality without a tensor, is none
        return f"{kind or 'Tensor'}? {parameter.name}=None"
    return f"{kind} {parameter.name}={default!r}"


def _arguments(rule: str) -> str:
    """Return the arguments of a rule: those that all share, with those of this rule after the first of them."""
    queries = "Tensor" if rule in NEEDS_QUERIES else "Tensor?"
    taken = (parameter for parameter in TABLE if parameter.name not in OF_RESULT)  # the results have one form
    known = {parameter.name: _argument(parameter, rule) for parameter in taken} | {"backend": "str backend='auto'"}
    own = [parameter.name for parameter in OF_RULES if rule in parameter.rules]
    apart = {*_FIRST, *_LAST, *(parameter.name for parameter in OF_RULES)}
    names = (*_FIRST, *own, *(name for name in known if name not in apart), *_LAST)
    return ", ".join((f"{queries} queries, Tensor embeddings, int k", *(known[name] for name in names)))


def _registered(
    name: str, arguments: str, results: str, call: Callable[..., Any], fake: Callable[..., Any]
) -> "torch.library.CustomOpDef":
    """Register an operator; ``call`` and ``fake`` take its arguments by keyword, those that were given."""
    names = [argument.split("=")[0].split()[-1] for argument in arguments.split(", ")]

    def by_name(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **options: function(**dict(zip(names, args, strict=False)), **options)

    operator = torch.library.custom_op(
        f"ragsys_kernels::{name}", by_name(call), mutates_args=(), schema=f"({arguments}) -> {results}"
    )
    operator.register_fake(by_name(fake))
    return operator


def _rule(name: str) -> "torch.library.CustomOpDef":
    """Register a rule; without its redundancy where that is NaN."""
    redundancy = name in ("mmr", "msd", "gist")

    def call(**given: Any) -> tuple[Tensor, ...]:
        if given.get("quality", ...) is None:
            del given["quality"]
        picks = getattr(selection, name)(**given)
        return tuple(x for field, x in picks._asdict().items() if redundancy or field != "redundancy")

    def fake(embeddings: Tensor, k: int, queries: Optional[Tensor] = None, **given: Any) -> tuple[Tensor, ...]:
        Q = (given["relevance"] if queries is None else queries).shape[0]
        indices, lengths = (embeddings.new_empty(s, dtype=t) for s, t in (((Q, k), torch.int64), ((Q,), torch.int32)))
        columns = (embeddings.new_empty((Q, k), dtype=torch.float32) for _ in range(2 + redundancy))
        return indices, *columns, lengths

    results = ", ".join(["Tensor"] * (4 + redundancy))
    return _registered(name, _arguments(name), f"({results})", call, fake)


# Indices, scores, relevance (Q, k) and lengths (Q,); before the lengths the redundancy (Q, k) where the rule has one of
# its own.
mmr, vrsd, msd, dpp = _rule("mmr"), _rule("vrsd"), _rule("msd"), _rule("dpp")
ssd, sift, coverage, gist = _rule("ssd"), _rule("sift"), _rule("coverage"), _rule("gist")


_SCALED = "float temperature=1.0, float logit_scale=1.0, float? softcap=None, SymInt? vocab_size=None"


def _fake_token_logprobs(logits: Tensor, targets: Tensor, **given: Any) -> Tensor:
    return logits.new_empty(targets.shape[0], dtype=torch.float32)


# (T,) float32.
token_logprobs = _registered(
    "token_logprobs",
    f"Tensor logits, Tensor targets, SymInt? ignore_index=-100, {_SCALED}, str backend='auto', Tensor? allowed=None",
    "Tensor",
    lambda **given: scoring.token_logprobs(**given),
    _fake_token_logprobs,
)


def _answer_logprobs(**given: Any) -> tuple[Tensor, ...]:
    result = scoring.answer_logprobs(**given)
    return result.logp, result.sum, result.mean, result.count, result.greedy


def _fake_answer_logprobs(targets: Tensor, cu_answers: Tensor, **given: Any) -> tuple[Tensor, ...]:
    A = cu_answers.shape[0] - 1
    of_answers = (targets.new_empty(A, dtype=t) for t in (torch.float64, torch.float64, torch.int64, torch.bool))
    return targets.new_empty(targets.shape[0], dtype=torch.float32), *of_answers


# logp (M,) float32, sum, mean (A,) float64, count (A,) int64, greedy (A,) bool.
answer_logprobs = _registered(
    "answer_logprobs",
    "Tensor? logits, Tensor? hidden, Tensor? weight, Tensor? bias, Tensor targets, Tensor rows, Tensor cu_answers, "
    f"{_SCALED}, SymInt? ignore_index=-100, str backend='auto', Tensor? allowed=None",
    "(Tensor, Tensor, Tensor, Tensor, Tensor)",
    _answer_logprobs,
    _fake_answer_logprobs,
)
