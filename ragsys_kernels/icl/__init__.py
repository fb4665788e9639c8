"""In-context learning: encoders, retrievers and language models, and the quality bias of demonstrations."""

from ragsys_kernels.icl.adaptive import (
    Demonstrations,
    InContextClassifier,
    KPredictor,
    LabelPrompt,
    learn_k,
    optimal_k,
    qpp_k,
)
from ragsys_kernels.icl.cache import CachedModel
from ragsys_kernels.icl.encoders import CachedEncoder, Encoder, SentenceTransformerEncoder
from ragsys_kernels.icl.generation import CachedGenerator, GreedyGenerator, Stop
from ragsys_kernels.icl.huggingface import HuggingFaceModel
from ragsys_kernels.icl.language_model import LanguageModel, PairError, Scores, TokenModel
from ragsys_kernels.icl.openai_compatible import OpenAICompatibleModel
from ragsys_kernels.icl.posteriors import CachedLabels, LabelModel, Posteriors
from ragsys_kernels.icl.prompts import PromptTemplate
from ragsys_kernels.icl.quality import quality_bias
from ragsys_kernels.icl.ralm import Ralm, RalmScores, sliding_windows
from ragsys_kernels.icl.retrievers import BM25Retriever, DenseRetriever, Found, Retriever, Rule

__all__ = [
    "BM25Retriever",
    "CachedEncoder",
    "CachedGenerator",
    "CachedLabels",
    "CachedModel",
    "Demonstrations",
    "DenseRetriever",
    "Encoder",
    "Found",
    "GreedyGenerator",
    "HuggingFaceModel",
    "InContextClassifier",
    "KPredictor",
    "LabelModel",
    "LabelPrompt",
    "LanguageModel",
    "OpenAICompatibleModel",
    "PairError",
    "Posteriors",
    "PromptTemplate",
    "Ralm",
    "RalmScores",
    "Retriever",
    "Rule",
    "Scores",
    "SentenceTransformerEncoder",
    "Stop",
    "TokenModel",
    "learn_k",
    "optimal_k",
    "qpp_k",
    "quality_bias",
    "sliding_windows",
]
