"""The papers' metrics as pure NumPy functions.

Over log-probabilities: MC1, MC2, MC3 and DPO of RAGSys, and perplexities. Answers of many questions lie end to end;
answers ``cu_questions[q]`` to ``cu_questions[q + 1]`` belong to question q. All sums are made in log space (float64,
natural logs), so that answers of probability e-1000 still count.

Over picks: cosine of the sum, win rate and largest difference of VRSD, mean pairwise cosine, coverage, volume, Vendi
score, near-duplicates; nDCG, alpha-nDCG, recall, reciprocal rank and NQC; the macro scores of classifiers.
"""

from .answers import MultipleChoice, Preference, dpo, multiple_choice, perplexity
from .classification import MacroScores, macro_scores
from .picks import (
    WinRate,
    coverage,
    intra_list_distance,
    log_determinant,
    max_diff,
    near_duplicates,
    pairwise_cosine,
    sum_cosine,
    vendi_score,
    win_rate,
)
from .ranking import alpha_ndcg, ndcg, nqc, recall, reciprocal_rank

__all__ = [
    "MacroScores",
    "MultipleChoice",
    "Preference",
    "WinRate",
    "alpha_ndcg",
    "coverage",
    "dpo",
    "intra_list_distance",
    "log_determinant",
    "macro_scores",
    "max_diff",
    "multiple_choice",
    "ndcg",
    "near_duplicates",
    "nqc",
    "pairwise_cosine",
    "perplexity",
    "recall",
    "reciprocal_rank",
    "sum_cosine",
    "vendi_score",
    "win_rate",
]
