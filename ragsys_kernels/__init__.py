"""Batched kernels for retrieval-augmented generation: MMR with quality bias, VRSD, log-probabilities of answers."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from ._checks import ConversionWarning
    from ._dispatch import BackendUnavailableError
    from ._info import show_config
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
    from .selection.problem import SearchResult, Selection
    from .selection.validate import PoolSizeWarning

# Imported when first used: NumPy alone is most of a fifth of a second on a slow machine.
_HOMES = {
    "AnswerLogprobs": "scoring",
    "BackendUnavailableError": "_dispatch",
    "ConversionWarning": "_checks",
    "Corpus": "corpus",
    "LabelPosteriors": "scoring",
    "Partials": "scoring",
    "PoolSizeWarning": "selection.validate",
    "SearchResult": "selection.problem",
    "Selection": "selection.problem",
    "answer_logprobs": "scoring",
    "label_posteriors": "scoring",
    "logprob_partials": "scoring",
    "merge_partials": "scoring",
    "mmr": "selection",
    "show_config": "_info",
    "token_logprobs": "scoring",
    "vrsd": "selection",
}

__all__ = [
    "AnswerLogprobs",
    "BackendUnavailableError",
    "ConversionWarning",
    "Corpus",
    "LabelPosteriors",
    "Partials",
    "PoolSizeWarning",
    "SearchResult",
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


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
