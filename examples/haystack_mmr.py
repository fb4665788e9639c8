"""A Haystack pipeline whose ranker selects by maximal marginal relevance, MMR with bias, or VRSD."""

from zlib import crc32

import numpy as np
from haystack import Document, Pipeline, component
from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
from haystack.document_stores.in_memory import InMemoryDocumentStore

from ragsys_kernels.integrations.haystack import PyversityRanker, SelectionRanker, SentenceTransformersDiversityRanker


def word_counts(text: str) -> list[float]:
    """A text as the counts of its words, so that no model has to be loaded."""
    places = [crc32(word.encode()) % 512 for word in text.lower().split()]
    return np.bincount(places, minlength=512).astype(float).tolist()


@component
class WordCounts:
    @component.output_types(embedding=list[float])
    def run(self, text: str) -> dict[str, list[float]]:
        return {"embedding": word_counts(text)}


TEXTS = {
    "solar panels turn sunlight into power": 0.0,
    "solar panels turn light into power": -1.0,
    "solar panels turn sunshine into power": -1.0,
    "wind turbines turn moving air into power": -0.2,
    "a dam turns falling water into power": -3.0,
    "a cat sleeps in the sun": -3.0,
}
QUERY = "what does solar light turn into power"

store = InMemoryDocumentStore(embedding_similarity_function="cosine")
store.write_documents(
    [Document(content=text, embedding=word_counts(text), meta={"quality": each}) for text, each in TEXTS.items()]
)
rankers = {
    "MMR": SelectionRanker(3, lambda_mult=0.6),
    "MMR with bias": SelectionRanker(3, lambda_mult=0.6, bias_key="quality", lambda_b=0.8),
    "VRSD": SelectionRanker(3, method="vrsd"),
}
for name, ranker in rankers.items():
    pipeline = Pipeline()
    pipeline.add_component("embedder", WordCounts())
    pipeline.add_component("retriever", InMemoryEmbeddingRetriever(store, top_k=6, return_embedding=True))
    pipeline.add_component("ranker", ranker)
    pipeline.connect("embedder.embedding", "retriever.query_embedding")
    pipeline.connect("embedder.embedding", "ranker.query_embedding")
    pipeline.connect("retriever.documents", "ranker.documents")
    answer = pipeline.run({"embedder": {"text": QUERY}})
    print(f"{name}:", *(document.content for document in answer["ranker"]["documents"]), sep="\n  ")

# from haystack_integrations.components.rankers.pyversity import PyversityRanker
retriever = InMemoryEmbeddingRetriever(store, top_k=6, return_embedding=True)
documents = retriever.run(word_counts(QUERY))["documents"]
picked = PyversityRanker(3, strategy="mmr", diversity=0.4).run(documents)["documents"]
print("PyversityRanker:", *(document.content for document in picked), sep="\n  ")

# from haystack_integrations.components.rankers.sentence_transformers import SentenceTransformersDiversityRanker
ranker = SentenceTransformersDiversityRanker(top_k=3, strategy="maximum_margin_relevance", lambda_threshold=0.6)
picked = ranker.run(QUERY, documents, query_embedding=word_counts(QUERY))["documents"]  # no model is loaded
print("SentenceTransformersDiversityRanker:", *(document.content for document in picked), sep="\n  ")
