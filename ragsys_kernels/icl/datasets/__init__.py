"""The data sets of the papers' evaluations, read from a folder or fetched with the package ``datasets``."""

from ._files import data_folder
from .classification import CLASSIFICATION_SETS, ClassificationSet, classification_set
from .news import news_texts
from .truthfulqa import TruthfulQA, truthfulqa
from .vrsd import VRSD_SETS, QuestionSet, vrsd_set
from .wikitext import (
    Passage,
    PassageSet,
    WikiText,
    boolq_passages,
    ralm_passages,
    wikitext,
)

__all__ = [
    "CLASSIFICATION_SETS",
    "VRSD_SETS",
    "ClassificationSet",
    "Passage",
    "PassageSet",
    "QuestionSet",
    "TruthfulQA",
    "WikiText",
    "boolq_passages",
    "classification_set",
    "data_folder",
    "news_texts",
    "ralm_passages",
    "truthfulqa",
    "vrsd_set",
    "wikitext",
]
