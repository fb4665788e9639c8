"""Maximal marginal relevance in LlamaIndex: the function, and a postprocessor behind any retriever."""

from zlib import crc32

import numpy as np
from llama_index.core import VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import TextNode

from ragsys_kernels.integrations.llama_index import SelectionPostprocessor, get_top_k_mmr_embeddings


class WordCounts(BaseEmbedding):
    """A text as the counts of its words, so that no model has to be loaded."""

    def _get_text_embedding(self, text: str) -> list[float]:
        places = [crc32(word.encode()) % 512 for word in text.lower().split()]
        return np.bincount(places, minlength=512).astype(float).tolist()

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


TEXTS = [
    "solar panels turn sunlight into power",
    "solar panels turn light into power",
    "solar panels turn sunshine into power",
    "wind turbines turn moving air into power",
    "a dam turns falling water into power",
    "a cat sleeps in the sun",
]
QUERY = "what does solar light turn into power"
model = WordCounts()

# from llama_index.core.indices.query.embedding_utils import get_top_k_mmr_embeddings
rows = [model.get_text_embedding(text) for text in TEXTS]
for penalty in ("last", "max"):
    scores, ids = get_top_k_mmr_embeddings(
        model.get_query_embedding(QUERY), rows, similarity_top_k=4, mmr_threshold=0.2, penalty=penalty
    )
    print(f"penalty against {penalty}:", ids, [round(score, 3) for score in scores])

index = VectorStoreIndex([TextNode(text=text) for text in TEXTS], embed_model=model)
found = index.as_retriever(similarity_top_k=6).retrieve(QUERY)
print("similarity:", *(node.text for node in found[:3]), sep="\n  ")
for method in ("mmr", "vrsd"):
    select = SelectionPostprocessor(similarity_top_k=3, mmr_threshold=0.6, method=method, embed_model=model)
    picked = select.postprocess_nodes(found, query_str=QUERY)
    print(f"{method}:", *(node.text for node in picked), sep="\n  ")
