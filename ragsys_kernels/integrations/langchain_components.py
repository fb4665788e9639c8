"""LangChain retrievers, document compressors and example selectors that select by MMR, MMR with bias, or VRSD."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
    Callbacks,
)
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.example_selectors import MaxMarginalRelevanceExampleSelector as TheirSelector
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import run_in_executor
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from ._pools import Method, column, numbers, select
from .langchain_stores import MaxMarginalRelevanceMixin, asearch, documents_of, embeddings_of, search


class _Options(BaseModel):
    """Options that the classes below select by; a name that none of them has is an error."""

    model_config = ConfigDict(extra="forbid")

    k: int = Field(default=4, ge=1)
    lambda_mult: float = Field(default=0.5, ge=0, le=1)
    method: Method = "mmr"
    bias_key: str | None = None
    lambda_b: float = Field(default=0.95, ge=0, le=1)


class SelectionRetriever(_Options, BaseRetriever):
    """Retriever from any vector store that then selects by MMR, MMR with bias, or VRSD.

    Parameters
    ----------
    vectorstore : VectorStore
        One that gives no vectors has its documents embedded again, one that does not search by vector is asked with the
        text of the query: see `MaxMarginalRelevanceMixin`.
    k : int, at least 1, default 4
        Documents to return.
    fetch_k : int, at least 1, default 20
        Documents to retrieve, out of which they are selected.
    lambda_mult : float in [0, 1], default 0.5
        Weight of relevance against redundancy (MMR).
    method : {"mmr", "vrsd"}
    bias_key : str, optional
        Entry of the documents' metadata that holds their quality (MMR).
    lambda_b : float in [0, 1], default 0.95
        Weight of relevance against the bias.
    search_kwargs : dict
        Other arguments of the store's search, such as a filter.

    Notes
    -----
    ``invoke`` and ``ainvoke`` take the options by keyword for one call, as those of LangChain's
    ``store.as_retriever(search_type="mmr")`` do, and then by its rules: ``k=0`` gives no documents, and without a bias
    ``lambda_mult`` may be any finite number. Arguments of other names go to the store's search.
    """

    vectorstore: VectorStore
    fetch_k: int = Field(default=20, ge=1)
    search_kwargs: dict[str, Any] = Field(default_factory=dict)

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    @field_validator("search_kwargs")
    @classmethod
    def _of_the_store(cls, given: dict[str, Any]) -> dict[str, Any]:
        if own := sorted({*_Options.model_fields, "fetch_k"} & set(given)):
            raise ValueError(f"SelectionRetriever: search_kwargs must be without its own arguments, got {own[0]!r}")
        return given

    def _arguments(self, of_the_call: dict[str, Any]) -> dict[str, Any]:
        own: dict[str, Any] = self.model_dump(include={*_Options.model_fields, "fetch_k"})
        return own | self.search_kwargs | of_the_call

    # LangChain hands the arguments of a call on to methods that take some beside the query.

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        embedding = embeddings_of(self.vectorstore).embed_query(query)
        return documents_of(search(self.vectorstore, embedding, query, **self._arguments(kwargs)))

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        embedding = await embeddings_of(self.vectorstore).aembed_query(query)
        return documents_of(await asearch(self.vectorstore, embedding, query, **self._arguments(kwargs)))


class SelectionCompressor(_Options, BaseDocumentCompressor):
    """Selection among documents already retrieved, by MMR, MMR with bias, or VRSD.

    Parameters
    ----------
    embeddings : Embeddings, optional
        Embeds the documents unless ``embedding_key`` is given, and the query unless ``relevance_key`` is given and the
        method is "mmr". Needed only for those.
    k, lambda_mult, method, bias_key, lambda_b
        As for `SelectionRetriever`.
    embedding_key : str, optional
        Entry of the documents' metadata that holds their vectors.
    relevance_key : str, optional
        Entry that holds a reranker's score, used instead of the cosine with the query.
    score_key : str, optional
        Where to write the value of a document when it was picked; the documents given stay as they are.
    """

    embeddings: Any = None
    embedding_key: str | None = None
    relevance_key: str | None = None
    score_key: str | None = None

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    @model_validator(mode="after")
    def _something_embeds(self) -> SelectionCompressor:
        if self.embeddings is None and (self.embedding_key is None or self._asks_the_query):
            what = "the documents" if self.embedding_key is None else "the query"
            raise ValueError(f"SelectionCompressor: embeddings must be given to embed {what}, got None")
        return self

    @property
    def _asks_the_query(self) -> bool:
        return self.relevance_key is None or self.method != "mmr"

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks = None
    ) -> list[Document]:
        """Return the selected documents in the order they were picked."""
        if not documents:
            return []
        vectors = self._stored(documents)
        if vectors is None:
            vectors = self.embeddings.embed_documents([each.page_content for each in documents])
        embedding = self.embeddings.embed_query(query) if self._asks_the_query else None
        return self._picked(documents, embedding, vectors)

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks = None
    ) -> list[Document]:
        """Do what `compress_documents` does."""
        if not documents:
            return []
        vectors = self._stored(documents)
        if vectors is None:
            vectors = await self.embeddings.aembed_documents([each.page_content for each in documents])
        embedding = await self.embeddings.aembed_query(query) if self._asks_the_query else None
        found: list[Document] = await run_in_executor(None, self._picked, documents, embedding, vectors)
        return found

    def _stored(self, documents: Sequence[Document]) -> list[Any] | None:
        return column("compress_documents", [each.metadata for each in documents], self.embedding_key)

    def _picked(self, documents: Sequence[Document], embedding: Any, vectors: Any) -> list[Document]:
        metadata = [each.metadata for each in documents]
        picks, values = select(
            embedding,
            vectors,
            self.k,
            method=self.method,
            lambda_mult=self.lambda_mult,
            bias=numbers("compress_documents", metadata, self.bias_key),
            lambda_b=self.lambda_b,
            relevance=numbers("compress_documents", metadata, self.relevance_key),
        )
        found = [documents[i] for i in picks]
        if self.score_key is None:
            return found
        return [
            each.model_copy(update={"metadata": {**each.metadata, self.score_key: value}})
            for each, value in zip(found, values, strict=True)
        ]


class MaxMarginalRelevanceExampleSelector(_Options, TheirSelector):
    """LangChain's example selector, with ``lambda_mult`` and a quality bias.

    Parameters
    ----------
    vectorstore, example_keys, input_keys
        As LangChain's.
    k, fetch_k, lambda_mult, method, bias_key, lambda_b
        As for `SelectionRetriever`. An example's quality is its entry ``bias_key``, a number, which is not part of the
        text that is embedded nor, unless ``example_keys`` names it, of the examples selected.
    vectorstore_kwargs : dict, optional
        Passed to the store's search. LangChain's selector leaves them out.

    Notes
    -----
    Without ``bias_key`` and with "mmr" a store that gives no vectors selects by its own
    ``max_marginal_relevance_search``, with ``lambda_mult``, if it has one; otherwise the selection is that of
    `SelectionRetriever`. The store retrieves by similarity alone, the bias counts in the selection.
    """

    def _may_select(self) -> bool:
        """Return whether the store's own call, if it has one, does what is asked for."""
        known = isinstance(self.vectorstore, (MaxMarginalRelevanceMixin, InMemoryVectorStore))
        return not known and self.bias_key is None and self.method == "mmr"

    def _theirs(self) -> dict[str, Any]:
        """Return what every store's call takes."""
        options = {"k": self.k, "fetch_k": self.fetch_k, "lambda_mult": self.lambda_mult}
        return options | (self.vectorstore_kwargs or {})

    def _arguments(self) -> dict[str, Any]:
        return {"method": self.method, "bias_key": self.bias_key, "lambda_b": self.lambda_b} | self._theirs()

    def _documents_to_examples(self, documents: list[Document]) -> list[dict[str, Any]]:
        examples: list[dict[str, Any]] = super()._documents_to_examples(documents)
        if self.example_keys or self.bias_key is None:
            return examples
        return [_without(example, self.bias_key) for example in examples]

    def add_example(self, example: dict[str, Any]) -> str:
        """Add an example, with its quality under ``bias_key`` if it has one; return its id."""
        text = self._example_to_text(_without(example, self.bias_key), self.input_keys)
        ids: list[str] = self.vectorstore.add_texts([text], metadatas=[example])
        return ids[0]

    async def aadd_example(self, example: dict[str, Any]) -> str:
        """Do what `add_example` does."""
        text = self._example_to_text(_without(example, self.bias_key), self.input_keys)
        ids: list[str] = await self.vectorstore.aadd_texts([text], metadatas=[example])
        return ids[0]

    def select_examples(self, input_variables: dict[str, str]) -> list[dict[str, Any]]:
        """Return the examples for an input, in the order they were picked."""
        store, text = self.vectorstore, self._example_to_text(input_variables, self.input_keys)
        if self._may_select():
            with suppress(NotImplementedError):  # what LangChain's base class raises
                return self._documents_to_examples(store.max_marginal_relevance_search(text, **self._theirs()))
        found = search(store, embeddings_of(store).embed_query(text), text, **self._arguments())
        return self._documents_to_examples(documents_of(found))

    async def aselect_examples(self, input_variables: dict[str, str]) -> list[dict[str, Any]]:
        """Do what `select_examples` does."""
        store, text = self.vectorstore, self._example_to_text(input_variables, self.input_keys)
        if self._may_select():
            with suppress(NotImplementedError):
                return self._documents_to_examples(await store.amax_marginal_relevance_search(text, **self._theirs()))
        embedding = await embeddings_of(store).aembed_query(text)
        return self._documents_to_examples(documents_of(await asearch(store, embedding, text, **self._arguments())))

    @classmethod
    def from_examples(
        cls,
        examples: list[dict[str, Any]],
        embeddings: Any,
        vectorstore_cls: type[VectorStore],
        k: int = 4,
        input_keys: list[str] | None = None,
        fetch_k: int = 20,
        example_keys: list[str] | None = None,
        vectorstore_kwargs: dict[str, Any] | None = None,
        *,
        lambda_mult: float = 0.5,
        method: Method = "mmr",
        bias_key: str | None = None,
        lambda_b: float = 0.95,
        **vectorstore_cls_kwargs: Any,
    ) -> MaxMarginalRelevanceExampleSelector:
        """Make a selector over a new store of ``vectorstore_cls`` with the examples.

        Arguments as LangChain's, those of this class by keyword; others go to ``vectorstore_cls.from_texts``.
        """
        texts = [cls._example_to_text(_without(example, bias_key), input_keys) for example in examples]
        store = vectorstore_cls.from_texts(texts, embeddings, metadatas=examples, **vectorstore_cls_kwargs)
        return cls(
            vectorstore=store, k=k, input_keys=input_keys, fetch_k=fetch_k, example_keys=example_keys,
            vectorstore_kwargs=vectorstore_kwargs, lambda_mult=lambda_mult, method=method, bias_key=bias_key,
            lambda_b=lambda_b,
        )  # fmt: skip

    @classmethod
    async def afrom_examples(
        cls,
        examples: list[dict[str, Any]],
        embeddings: Any,
        vectorstore_cls: type[VectorStore],
        *,
        bias_key: str | None = None,
        input_keys: list[str] | None = None,
        **options: Any,
    ) -> MaxMarginalRelevanceExampleSelector:
        """Do what `from_examples` does."""
        own = {name: options.pop(name) for name in list(options) if name in cls.model_fields}
        texts = [cls._example_to_text(_without(example, bias_key), input_keys) for example in examples]
        store = await vectorstore_cls.afrom_texts(texts, embeddings, metadatas=examples, **options)
        return cls(vectorstore=store, input_keys=input_keys, bias_key=bias_key, **own)


def _without(example: dict[str, Any], key: str | None) -> dict[str, Any]:
    return {name: value for name, value in example.items() if name != key}
