"""Batched kernels for retrieval-augmented generation: rules of diverse selection, log-probabilities of answers."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._base.loading import imports
from ._version import __version__

if TYPE_CHECKING:
    from ._base.checks import ConversionWarning
    from ._dispatch import BackendUnavailableError
    from ._info import show_config
    from .corpus import Corpus
    from .corpus.duplicates import Duplicates, duplicates
    from .scoring import (
        AnswerLogprobs,
        LabelPosteriors,
        Partials,
        TopLogprobs,
        answer_logprobs,
        label_posteriors,
        logprob_partials,
        merge_partials,
        token_logprobs,
        top_logprobs,
    )
    from .selection import METHODS, coverage, dpp, gist, mmr, mmr_path, msd, sift, ssd, vrsd
    from .selection.fusion import Fused, fuse
    from .selection.problem import SearchResult, Selection, SelectionPath
    from .selection.recency import decayed
    from .selection.relevance import RelevanceRangeWarning
    from .selection.validate import PoolSizeWarning

# Imported when first used: NumPy alone is most of a fifth of a second on a slow machine.
_HOMES = {
    "AnswerLogprobs": "scoring",
    "BackendUnavailableError": "_dispatch",
    "ConversionWarning": "_base.checks",
    "Corpus": "corpus",
    "Duplicates": "corpus.duplicates",
    "Fused": "selection.fusion",
    "LabelPosteriors": "scoring",
    "METHODS": "selection",
    "Partials": "scoring",
    "PoolSizeWarning": "selection.validate",
    "RelevanceRangeWarning": "selection.relevance",
    "SearchResult": "selection.problem",
    "Selection": "selection.problem",
    "SelectionPath": "selection.problem",
    "TopLogprobs": "scoring",
    "answer_logprobs": "scoring",
    "coverage": "selection",
    "decayed": "selection.recency",
    "dpp": "selection",
    "duplicates": "corpus.duplicates",
    "fuse": "selection.fusion",
    "gist": "selection",
    "label_posteriors": "scoring",
    "logprob_partials": "scoring",
    "merge_partials": "scoring",
    "mmr": "selection",
    "mmr_path": "selection",
    "msd": "selection",
    "show_config": "_info",
    "sift": "selection",
    "ssd": "selection",
    "token_logprobs": "scoring",
    "top_logprobs": "scoring",
    "vrsd": "selection",
}

__all__ = [
    "METHODS",
    "AnswerLogprobs",
    "BackendUnavailableError",
    "ConversionWarning",
    "Corpus",
    "Duplicates",
    "Fused",
    "LabelPosteriors",
    "Partials",
    "PoolSizeWarning",
    "RelevanceRangeWarning",
    "SearchResult",
    "Selection",
    "SelectionPath",
    "TopLogprobs",
    "__version__",
    "answer_logprobs",
    "coverage",
    "decayed",
    "dpp",
    "duplicates",
    "fuse",
    "gist",
    "label_posteriors",
    "logprob_partials",
    "merge_partials",
    "mmr",
    "mmr_path",
    "msd",
    "show_config",
    "sift",
    "ssd",
    "token_logprobs",
    "top_logprobs",
    "vrsd",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with imports():
        value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
