"""Exact, batched selection kernels for retrieval-augmented generation: MMR with quality bias and VRSD."""

from ._dispatch import BackendUnavailableError
from ._info import show_config
from ._problem import Selection
from ._validate import PoolSizeWarning
from ._version import __version__
from .corpus import Corpus
from .selection import mmr, vrsd

__all__ = [
    "BackendUnavailableError",
    "Corpus",
    "PoolSizeWarning",
    "Selection",
    "__version__",
    "mmr",
    "show_config",
    "vrsd",
]
