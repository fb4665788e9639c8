"""Language models for in-context learning: scores of answers, and the quality bias made of them."""

from ragsys_kernels.icl.cache import CachedModel
from ragsys_kernels.icl.huggingface import HuggingFaceModel
from ragsys_kernels.icl.language_model import LanguageModel, PairError, Scores
from ragsys_kernels.icl.quality import quality_bias

__all__ = ["CachedModel", "HuggingFaceModel", "LanguageModel", "PairError", "Scores", "quality_bias"]
