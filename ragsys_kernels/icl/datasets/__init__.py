"""The data sets of the papers' evaluations, read from a folder or fetched with the package ``datasets``."""

from ragsys_kernels.icl.datasets._files import data_folder
from ragsys_kernels.icl.datasets.classification import CLASSIFICATION_SETS, ClassificationSet, classification_set
from ragsys_kernels.icl.datasets.truthfulqa import TruthfulQA, truthfulqa
from ragsys_kernels.icl.datasets.vrsd import VRSD_SETS, QuestionSet, vrsd_set

__all__ = [
    "CLASSIFICATION_SETS",
    "VRSD_SETS",
    "ClassificationSet",
    "QuestionSet",
    "TruthfulQA",
    "classification_set",
    "data_folder",
    "truthfulqa",
    "vrsd_set",
]
