"""Adaptive in-context learning: how many demonstrations a text gets (the paper's Table 1)."""

from .run import FULL, MAX_WORDS, PROMPTS, QUICK, AiclSummary, Sizes, aicl, evaluate

__all__ = ["FULL", "MAX_WORDS", "PROMPTS", "QUICK", "AiclSummary", "Sizes", "aicl", "evaluate"]
