"""Log-probabilities of answers: one pass over the logits, or straight from hidden states without logits."""

from .answers import AnswerLogprobs, answer_logprobs, token_logprobs
from .finish import merge_partials
from .labels import LabelPosteriors, label_posteriors
from .problem import Partials
from .shards import logprob_partials
from .top import TopLogprobs, top_logprobs

__all__ = [
    "AnswerLogprobs",
    "LabelPosteriors",
    "Partials",
    "TopLogprobs",
    "answer_logprobs",
    "label_posteriors",
    "logprob_partials",
    "merge_partials",
    "token_logprobs",
    "top_logprobs",
]
