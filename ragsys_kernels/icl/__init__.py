"""In-context learning: encoders, retrievers and language models, and the quality bias of demonstrations."""

from .adaptive import (
    Demonstrations,
    InContextClassifier,
    LabelPrompt,
    learn_k,
)
from .adaptive_k import KPredictor, optimal_k, qpp_k
from .cache import CachedModel
from .encoders import CachedEncoder, Encoder, SentenceTransformerEncoder
from .generation import CachedGenerator, GreedyGenerator, Stop
from .huggingface import HuggingFaceModel
from .language_model import LanguageModel, PairError, Scores, TokenModel, TopTokens
from .openai.completions import OpenAICompatibleModel
from .openai.embeddings import OpenAICompatibleEncoder
from .posteriors import CachedLabels, LabelModel, Posteriors
from .prompts import PromptTemplate
from .quality import quality_bias
from .ralm import Ralm, RalmScores, sliding_windows
from .ranker import PredictiveRanker
from .retrievers import BM25Retriever, DenseRetriever, Found, Retriever, Rule
from .text_corpus import TextCorpus

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
    "OpenAICompatibleEncoder",
    "OpenAICompatibleModel",
    "PairError",
    "Posteriors",
    "PredictiveRanker",
    "PromptTemplate",
    "Ralm",
    "RalmScores",
    "Retriever",
    "Rule",
    "Scores",
    "SentenceTransformerEncoder",
    "Stop",
    "TextCorpus",
    "TokenModel",
    "TopTokens",
    "learn_k",
    "optimal_k",
    "qpp_k",
    "quality_bias",
    "sliding_windows",
]
