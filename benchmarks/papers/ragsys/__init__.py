"""RAGSys: retrievers of demonstrations on TruthfulQA (the paper's Tables 1 and 2, Figure 1)."""

from .run import RagsysSummary, ragsys

__all__ = ["RagsysSummary", "ragsys"]
