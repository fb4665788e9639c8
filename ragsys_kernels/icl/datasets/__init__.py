"""The data sets of the papers' evaluations, read from a folder or fetched with the package ``datasets``."""

from ragsys_kernels.icl.datasets._files import data_folder
from ragsys_kernels.icl.datasets.truthfulqa import TruthfulQA, truthfulqa
from ragsys_kernels.icl.datasets.vrsd import VRSD_SETS, QuestionSet, vrsd_set
from ragsys_kernels.icl.datasets.wikitext import (
    Passage,
    PassageSet,
    WikiText,
    boolq_passages,
    ralm_passages,
    wikitext,
)

__all__ = [
    "VRSD_SETS",
    "Passage",
    "PassageSet",
    "QuestionSet",
    "TruthfulQA",
    "WikiText",
    "boolq_passages",
    "data_folder",
    "ralm_passages",
    "truthfulqa",
    "vrsd_set",
    "wikitext",
]
