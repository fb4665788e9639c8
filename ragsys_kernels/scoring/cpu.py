"""The compiled kernels (csrc/cpu) on host arrays."""

from __future__ import annotations

from .. import _dispatch
from .problem import Partials, ScoringProblem


def partials(problem: ScoringProblem, num_threads: int) -> Partials:
    """Return the partials of the problem."""
    module = _dispatch.extension()
    common = (
        problem.rows,
        problem.inverse_temperature,
        problem.logit_scale,
        problem.softcap or 0.0,
        problem.num_columns,
        problem.allowed,
        problem.pair_begin,
        problem.columns,
        problem.target_logits,
        problem.entropy,
        problem.rank,
        problem.top,
        _dispatch.isa_index(),
        num_threads,
    )
    if problem.logits is not None:
        return Partials(*module.score_logits(problem.logits, problem.logits_dtype, *common))
    return Partials(
        *module.score_hidden(
            problem.hidden,
            problem.hidden_dtype,
            problem.weight,
            problem.weight_dtype,
            problem.head_bias,
            *common,
        )
    )
