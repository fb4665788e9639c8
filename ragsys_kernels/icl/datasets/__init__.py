"""The data sets of the papers' evaluations, read from a folder or fetched with the package ``datasets``."""

from ._files import data_folder
from .boolq import BoolQ, Passage, boolq_passages, boolq_questions
from .classification import CLASSIFICATION_SETS, ClassificationSet, classification_set
from .files import folder_texts, python_texts
from .news import news_texts
from .truthfulqa import TruthfulQA, truthfulqa
from .vrsd import VRSD_SETS, QuestionSet, vrsd_set
from .wikitext import PassageSet, WikiText, ralm_passages, wikitext

__all__ = [
    "CLASSIFICATION_SETS",
    "VRSD_SETS",
    "BoolQ",
    "ClassificationSet",
    "Passage",
    "PassageSet",
    "QuestionSet",
    "TruthfulQA",
    "WikiText",
    "boolq_passages",
    "boolq_questions",
    "classification_set",
    "data_folder",
    "folder_texts",
    "news_texts",
    "python_texts",
    "ralm_passages",
    "truthfulqa",
    "vrsd_set",
    "wikitext",
]
