"""LangChain's maximal marginal relevance, and stores, selectors, compressors and retrievers on the kernels.

`maximal_marginal_relevance` does not need LangChain; the classes need langchain-core (extra ``langchain``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import _peers
from .langchain_mmr import maximal_marginal_relevance

if TYPE_CHECKING:
    from .langchain_components import MaxMarginalRelevanceExampleSelector, SelectionCompressor, SelectionRetriever
    from .langchain_stores import InMemoryVectorStore, MaxMarginalRelevanceMixin

__all__ = [
    "InMemoryVectorStore",
    "MaxMarginalRelevanceExampleSelector",
    "MaxMarginalRelevanceMixin",
    "SelectionCompressor",
    "SelectionRetriever",
    "maximal_marginal_relevance",
]

__getattr__ = _peers.later(
    __name__,
    "langchain",
    langchain_components=("MaxMarginalRelevanceExampleSelector", "SelectionCompressor", "SelectionRetriever"),
    langchain_stores=("InMemoryVectorStore", "MaxMarginalRelevanceMixin"),
)
