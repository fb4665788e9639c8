"""Maximal marginal relevance in LangChain: what changes is where the names are imported from."""

from zlib import crc32

import numpy as np
from langchain_core.embeddings import Embeddings

from ragsys_kernels.integrations.langchain import (
    InMemoryVectorStore,
    MaxMarginalRelevanceExampleSelector,
    SelectionCompressor,
    SelectionRetriever,
    maximal_marginal_relevance,
)


class WordCounts(Embeddings):
    """A text as the counts of its words, so that no model has to be loaded."""

    def embed_query(self, text: str) -> list[float]:
        places = [crc32(word.encode()) % 512 for word in text.lower().split()]
        return np.bincount(places, minlength=512).astype(float).tolist()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]


TEXTS = [
    "solar panels turn sunlight into power",
    "solar panels turn light into power",
    "solar panels turn sunshine into power",
    "wind turbines turn moving air into power",
    "a dam turns falling water into power",
    "a cat sleeps in the sun",
]
QUALITY = [0.0, -1.0, -1.0, -0.2, -3.0, -3.0]
QUERY = "what does solar light turn into power"
embeddings = WordCounts()

# from langchain_core.vectorstores.utils import maximal_marginal_relevance
query = np.array(embeddings.embed_query(QUERY))
print("function:", maximal_marginal_relevance(query, embeddings.embed_documents(TEXTS), lambda_mult=0.6, k=3))

# from langchain_core.vectorstores import InMemoryVectorStore
store = InMemoryVectorStore.from_texts(TEXTS, embeddings, metadatas=[{"quality": each} for each in QUALITY])
top = store.similarity_search(QUERY, k=3)
print("similarity:", *(document.page_content for document in top), sep="\n  ")
diverse = store.as_retriever(search_type="mmr", search_kwargs={"k": 3, "lambda_mult": 0.6})
print("MMR:", *(document.page_content for document in diverse.invoke(QUERY)), sep="\n  ")

# Of any store: MMR with the documents' quality (RAGSys), or VRSD.
retriever = SelectionRetriever(vectorstore=store, k=3, lambda_mult=0.6, bias_key="quality", lambda_b=0.8)
print("MMR with bias:", *(document.page_content for document in retriever.invoke(QUERY)), sep="\n  ")
compressor = SelectionCompressor(embeddings=embeddings, k=3, method="vrsd")
picked = compressor.compress_documents(store.similarity_search(QUERY, k=6), QUERY)
print("VRSD:", *(document.page_content for document in picked), sep="\n  ")

# from langchain_core.example_selectors import MaxMarginalRelevanceExampleSelector
selector = MaxMarginalRelevanceExampleSelector.from_examples(
    [{"input": text, "output": text.split()[0]} for text in TEXTS],
    embeddings,
    InMemoryVectorStore,
    k=2,
    input_keys=["input"],
    lambda_mult=0.6,
)
print("examples:", *(example["input"] for example in selector.select_examples({"input": QUERY})), sep="\n  ")
