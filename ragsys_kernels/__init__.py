"""Batched kernels for retrieval-augmented generation: MMR with quality bias, VRSD, log-probabilities of answers."""

from ._dispatch import BackendUnavailableError
from ._info import show_config
from ._problem import Selection
from ._validate import PoolSizeWarning
from ._version import __version__
from .corpus import Corpus
from .scoring import (
    AnswerLogprobs,
    LabelPosteriors,
    Partials,
    answer_logprobs,
    label_posteriors,
    logprob_partials,
    merge_partials,
    token_logprobs,
)
from .selection import mmr, vrsd

__all__ = [
    "AnswerLogprobs",
    "BackendUnavailableError",
    "Corpus",
    "LabelPosteriors",
    "Partials",
    "PoolSizeWarning",
    "Selection",
    "__version__",
    "answer_logprobs",
    "label_posteriors",
    "logprob_partials",
    "merge_partials",
    "mmr",
    "show_config",
    "token_logprobs",
    "vrsd",
]
