"""In-context learning: encoders, retrievers and language models, and the quality bias of demonstrations."""

from ragsys_kernels.icl.cache import CachedModel
from ragsys_kernels.icl.encoders import CachedEncoder, Encoder, SentenceTransformerEncoder
from ragsys_kernels.icl.huggingface import HuggingFaceModel
from ragsys_kernels.icl.language_model import LanguageModel, PairError, Scores, TokenModel
from ragsys_kernels.icl.openai_compatible import OpenAICompatibleModel
from ragsys_kernels.icl.prompts import PromptTemplate
from ragsys_kernels.icl.quality import quality_bias
from ragsys_kernels.icl.ralm import Ralm, RalmScores, sliding_windows
from ragsys_kernels.icl.retrievers import BM25Retriever, DenseRetriever, Found, Retriever, Rule

__all__ = [
    "BM25Retriever",
    "CachedEncoder",
    "CachedModel",
    "DenseRetriever",
    "Encoder",
    "Found",
    "HuggingFaceModel",
    "LanguageModel",
    "OpenAICompatibleModel",
    "PairError",
    "PromptTemplate",
    "Ralm",
    "RalmScores",
    "Retriever",
    "Rule",
    "Scores",
    "SentenceTransformerEncoder",
    "TokenModel",
    "quality_bias",
    "sliding_windows",
]
