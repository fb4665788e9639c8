"""Adaptive in-context learning: how many demonstrations a text gets (the paper's Table 1)."""

from ragsys_kernels.evaluation.aicl.run import FULL, MAX_WORDS, PROMPTS, QUICK, AiclSummary, Sizes, aicl, evaluate

__all__ = ["FULL", "MAX_WORDS", "PROMPTS", "QUICK", "AiclSummary", "Sizes", "aicl", "evaluate"]
