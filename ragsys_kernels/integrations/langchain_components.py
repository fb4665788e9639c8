"""LangChain retrievers, document compressors and example selectors that select by the rules of this library."""

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
from pydantic import ConfigDict, Field, field_validator, model_validator

from .._base import checks
from ..selection.validate import NEEDS_QUERIES
from . import _models, _options
from ._options import column, named, numbers, of_items
from ._pools import select
from .langchain_stores import MaxMarginalRelevanceMixin, asearch, documents_of, embeddings_of, once, search


class _Options(_models.Options):
    """Options that the classes below select by; a name that none of them has is an error."""

    k: int = Field(default=4, ge=1)
    lambda_mult: float = 0.5
    relevance_key: str | None = None

    def _rule(self) -> dict[str, Any]:
        return {"relevance_key": self.relevance_key, **_options.of(self)}


class SelectionRetriever(_Options, BaseRetriever):
    """Retriever from any vector store that then selects by a rule of this library.

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
        ``lambda_d`` of the rule: weight of relevance against redundancy. VRSD and SIFT have none.
    method : {"mmr", "vrsd", "msd", "dpp", "ssd", "sift", "coverage", "gist"}
    relevance_key : str, optional
        Entry of the documents' metadata that holds their relevance, used instead of the cosine with the query.
    bias_key : str, optional
        Entry that holds their quality: ``bias`` of the rule, weighed by ``lambda_b`` (default 0.95).
    group_key : str, optional
        Entry that names their groups, for ``max_per_group`` and ``min_per_group``: numbers, or dicts by these names.
    cost_key : str, optional
        Entry that holds what they cost, with ``budget``.
    token_counter : callable, optional
        Returns what a text costs, such as its number of tokens; instead of ``cost_key``.
    quality_key : str, optional
        Entry that holds ``quality`` of `dpp`.
    relevance_scale, min_relevance, max_per_group, max_similarity, budget, ...
        All arguments of the rule that are one number, word or flag, with its names, defaults and errors, but
        ``metric``: vectors are compared by their cosine.
    search_kwargs : dict
        Other arguments of the store's search, such as a filter.

    Notes
    -----
    ``invoke`` and ``ainvoke`` take the options by keyword for one call, as those of LangChain's
    ``store.as_retriever(search_type="mmr")`` do, and then by its rules: ``k=0`` gives no documents, and without a
    bias or other options ``lambda_mult`` may be any finite number. Arguments of other names go to the store's search.
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
        own = {"k": self.k, "fetch_k": self.fetch_k, "lambda_mult": self.lambda_mult, **self._rule()}
        return own | self.search_kwargs | of_the_call | {"_op": type(self).__name__}

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
    """Selection among documents already retrieved, by a rule of this library.

    Parameters
    ----------
    embeddings : Embeddings, optional
        Embeds the documents unless ``embedding_key`` is given, and the query unless ``relevance_key`` is given and the
        method is not "vrsd" or "sift". Needed only for those.
    k, lambda_mult, method, ...
        As for `SelectionRetriever`, with all its options.
    embedding_key : str, optional
        Entry of the documents' metadata that holds their vectors.
    score_key : str, optional
        Where to write the value of a document when it was picked; the documents given stay as they are.
    """

    embeddings: Any = None
    embedding_key: str | None = None
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
        return self.relevance_key is None or self.method in NEEDS_QUERIES

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
        op, metadata = "compress_documents", [each.metadata for each in documents]
        arguments = of_items(op, _options.of(self), metadata, lambda: [each.page_content for each in documents])
        relevance = numbers(op, metadata, self.relevance_key)
        picks, values = select(
            embedding, vectors, self.k, lambda_mult=self.lambda_mult, relevance=relevance, **arguments
        )
        found = [documents[i] for i in picks]
        if self.score_key is None:
            return found
        return [
            each.model_copy(update={"metadata": {**each.metadata, self.score_key: value}})
            for each, value in zip(found, values, strict=True)
        ]


class MaxMarginalRelevanceExampleSelector(_Options, TheirSelector):
    """LangChain's example selector, with ``lambda_mult`` and the other options of a selection; it gives none twice.

    Parameters
    ----------
    vectorstore, example_keys, input_keys
        As LangChain's.
    k, fetch_k, lambda_mult, method, ...
        As for `SelectionRetriever`, with all its options; keys name entries of the examples. Those that hold numbers
        (``relevance_key``, ``bias_key``, ``cost_key``, ``quality_key``) are not part of the text that is embedded nor,
        unless ``example_keys`` names them, of the examples selected. ``token_counter`` gets the values of a selected
        example, joined by spaces. A group that is no string is not embedded either.
    vectorstore_kwargs : dict, optional
        Passed to the store's search. LangChain's selector leaves them out.

    Notes
    -----
    Of equal examples the store's first counts, where LangChain's selector repeats them.

    If no more than MMR is asked for, a store that gives no vectors selects by its own
    ``max_marginal_relevance_search``, with ``lambda_mult``, if it has one (once more, with all ``fetch_k``, where it
    repeats an example); otherwise the selection is that of `SelectionRetriever`. The store retrieves by similarity
    alone, the bias counts in the selection.
    """

    def _may_select(self) -> bool:
        """Return whether the store's own call, if it has one, does what is asked for."""
        known = isinstance(self.vectorstore, (MaxMarginalRelevanceMixin, InMemoryVectorStore))
        return not known and self.relevance_key is None and _options.are_usual(_options.of(self))

    def _theirs(self) -> dict[str, Any]:
        """Return what every store's call takes."""
        options = {"k": self.k, "fetch_k": self.fetch_k, "lambda_mult": self.lambda_mult}
        return options | (self.vectorstore_kwargs or {})

    def _arguments(self) -> dict[str, Any]:
        example = lambda document: self._documents_to_examples([document])[0]  # noqa: E731
        return self._rule() | self._theirs() | {"_example": example, "_op": type(self).__name__}

    def _documents_to_examples(self, documents: list[Document]) -> list[dict[str, Any]]:
        examples: list[dict[str, Any]] = super()._documents_to_examples(documents)
        return examples if self.example_keys else [_without(example, self._numbers()) for example in examples]

    def _numbers(self) -> tuple[str | None, ...]:
        """Return the entries of an example that are no part of its text."""
        return self.relevance_key, *(getattr(self, name) for name in _options.NUMBERS)

    def _distinct(self, documents: list[Document]) -> list[Document]:
        found: list[Document] = once(documents, lambda each: self._documents_to_examples([each])[0])
        return found

    @classmethod
    def _text_of(
        cls, example: dict[str, Any], input_keys: list[str] | None, numbers: tuple[str | None, ...], group_key: Any
    ) -> str:
        """Return the text of an example that is embedded: without numbers, and without a group that is no string."""
        group = None if isinstance(example.get(group_key), str) else group_key
        words = _without(example, (*numbers, group))
        for name in input_keys or words:
            if not isinstance(words.get(name, ""), str):
                got = checks.shown(words[name])
                rule = f"have strings as its text, got {got} as {name!r}; input_keys names the entries that are text"
                raise TypeError(f"{cls.__name__}: an example must {rule}")
        text: str = cls._example_to_text(words, input_keys)
        return text

    def add_example(self, example: dict[str, Any]) -> str:
        """Add an example, with its quality under ``bias_key`` if it has one; return its id."""
        text = self._text_of(example, self.input_keys, self._numbers(), self.group_key)
        ids: list[str] = self.vectorstore.add_texts([text], metadatas=[example])
        return ids[0]

    async def aadd_example(self, example: dict[str, Any]) -> str:
        """Do what `add_example` does."""
        text = self._text_of(example, self.input_keys, self._numbers(), self.group_key)
        ids: list[str] = await self.vectorstore.aadd_texts([text], metadatas=[example])
        return ids[0]

    def select_examples(self, input_variables: dict[str, str]) -> list[dict[str, Any]]:
        """Return the examples for an input, in the order they were picked."""
        store, text = self.vectorstore, self._example_to_text(input_variables, self.input_keys)
        if self._may_select():
            asked = self._theirs()
            with suppress(NotImplementedError):  # what LangChain's base class raises
                found = store.max_marginal_relevance_search(text, **asked)
                if len(self._distinct(found)) < len(found):
                    found = store.max_marginal_relevance_search(text, **asked | {"k": asked["fetch_k"]})
                return self._documents_to_examples(self._distinct(found)[: asked["k"]])
        found = search(store, embeddings_of(store).embed_query(text), text, **self._arguments())
        return self._documents_to_examples(documents_of(found))

    async def aselect_examples(self, input_variables: dict[str, str]) -> list[dict[str, Any]]:
        """Do what `select_examples` does."""
        store, text = self.vectorstore, self._example_to_text(input_variables, self.input_keys)
        if self._may_select():
            asked = self._theirs()
            with suppress(NotImplementedError):
                found = await store.amax_marginal_relevance_search(text, **asked)
                if len(self._distinct(found)) < len(found):
                    found = await store.amax_marginal_relevance_search(text, **asked | {"k": asked["fetch_k"]})
                return self._documents_to_examples(self._distinct(found)[: asked["k"]])
        embedding = await embeddings_of(store).aembed_query(text)
        return self._documents_to_examples(documents_of(await asearch(store, embedding, text, **self._arguments())))

    @classmethod
    @named
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
        relevance_key: str | None = None,
        **vectorstore_cls_kwargs: Any,
    ) -> MaxMarginalRelevanceExampleSelector:
        """Make a selector over a new store of ``vectorstore_cls`` with the examples.

        Arguments as LangChain's, those of this class by keyword; others go to ``vectorstore_cls.from_texts``.
        """
        options = vectorstore_cls_kwargs | {"relevance_key": relevance_key}
        own, texts = cls._own(examples, input_keys, options)
        store = vectorstore_cls.from_texts(texts, embeddings, metadatas=examples, **options)
        return cls(
            vectorstore=store, k=k, input_keys=input_keys, fetch_k=fetch_k, example_keys=example_keys,
            vectorstore_kwargs=vectorstore_kwargs, lambda_mult=lambda_mult, **own,
        )  # fmt: skip

    @classmethod
    async def afrom_examples(
        cls,
        examples: list[dict[str, Any]],
        embeddings: Any,
        vectorstore_cls: type[VectorStore],
        *,
        input_keys: list[str] | None = None,
        **options: Any,
    ) -> MaxMarginalRelevanceExampleSelector:
        """Do what `from_examples` does."""
        own, texts = cls._own(examples, input_keys, options)
        store = await vectorstore_cls.afrom_texts(texts, embeddings, metadatas=examples, **options)
        return cls(vectorstore=store, input_keys=input_keys, **own)

    @classmethod
    def _own(
        cls, examples: list[dict[str, Any]], input_keys: list[str] | None, options: dict[str, Any]
    ) -> tuple[dict[str, Any], list[str]]:
        """Take out of ``options`` the arguments of this class; return them and the texts to embed."""
        own = {name: options.pop(name) for name in list(options) if name in cls.model_fields}
        keys = tuple(own.get(name) for name in ("relevance_key", *_options.NUMBERS))
        return own, [cls._text_of(example, input_keys, keys, own.get("group_key")) for example in examples]


def _without(example: dict[str, Any], keys: tuple[str | None, ...]) -> dict[str, Any]:
    return {name: value for name, value in example.items() if name not in keys}
