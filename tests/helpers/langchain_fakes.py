"""Stores of LangChain that can do little, and embeddings that are only awaited, for the tests of the drop-ins."""

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
from langchain_core.vectorstores import VectorStore
from peer_pools import unit

TEXTS = [f"text {i}" for i in range(30)]


class Bare(VectorStore):
    """A store of the least kind: texts by vector, without scores or vectors."""

    def __init__(self, embedding):
        self.embedding = embedding

    @property
    def embeddings(self):
        return self.embedding

    def similarity_search_by_vector(self, embedding, k=4, **kwargs):
        rows = unit(np.array(self.embedding.embed_documents(TEXTS)))
        best = np.argsort(-rows @ unit(np.array(embedding)), kind="stable")[:k]
        return [Document(page_content=TEXTS[i], metadata={"number": int(i)}) for i in best]

    def similarity_search(self, query, k=4, **kwargs):
        return self.similarity_search_by_vector(self.embedding.embed_query(query), k)

    @classmethod
    def from_texts(cls, texts, embedding, metadatas=None, **kwargs):
        raise NotImplementedError


class TextOnly(Bare):
    """What LangChain asks of every store: search by text."""

    def similarity_search_by_vector(self, embedding, k=4, **kwargs):
        raise NotImplementedError

    def similarity_search(self, query, k=4, **kwargs):
        return Bare.similarity_search_by_vector(self, self.embedding.embed_query(query), k)


class Awaited(Embeddings):
    """Embeddings of a client that has awaitable calls alone."""

    def embed_documents(self, texts):
        raise AssertionError("only awaited")

    embed_query = embed_documents

    async def aembed_documents(self, texts):
        return DeterministicFakeEmbedding(size=12).embed_documents(texts)

    async def aembed_query(self, text):
        return DeterministicFakeEmbedding(size=12).embed_query(text)


class AsyncOnly(Bare):
    """A store of such a client."""

    def similarity_search_by_vector(self, embedding, k=4, **kwargs):
        raise AssertionError("only awaited")

    similarity_search = similarity_search_by_vector

    async def asimilarity_search_by_vector(self, embedding, k=4, **kwargs):
        return Bare(DeterministicFakeEmbedding(size=12)).similarity_search_by_vector(embedding, k)


class AsyncScored(AsyncOnly):
    async def asimilarity_search_with_score_by_vector(self, embedding, k=4, **kwargs):
        found = await self.asimilarity_search_by_vector(embedding, k)
        return [(document, 0.25) for document in found]


class AsyncText(AsyncOnly):
    async def asimilarity_search_by_vector(self, embedding, k=4, **kwargs):
        raise NotImplementedError

    async def asimilarity_search(self, query, k=4, **kwargs):
        return Bare(DeterministicFakeEmbedding(size=12)).similarity_search(query, k)
