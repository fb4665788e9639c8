"""Haystack rankers on the kernels (extra ``haystack``).

Haystack loads a pipeline with components that are not its own only if it is told to:
``Pipeline.load(file, allowed_modules=["ragsys_kernels.integrations.haystack"])``. In a pipeline that was saved with
Haystack's rankers the ``type`` of each names Haystack's class: write this module in its place.
"""

from __future__ import annotations

import sys
from copy import deepcopy
from dataclasses import replace
from enum import Enum
from typing import Any, Literal

import numpy as np

from .._base import checks
from .._base.types import NDArray as Array
from ..selection.problem import unit
from . import _options, _peers
from ._pools import greedy, matrix, number_of_picks, select, vector
from .pyversity import Strategy, diversify, strategy_of

with _peers.needed("haystack"):
    from haystack import Document, component, logging
    from haystack.utils import ComponentDevice, Secret, deserialize_callable, serialize_callable
    from haystack.utils.hf import deserialize_hf_model_kwargs, serialize_hf_model_kwargs

    from ._rankers import Choice, Saved, best_of_each_id, checked_top_k, member, within

__all__ = [
    "DiversityRankingSimilarity",
    "DiversityRankingStrategy",
    "PyversityRanker",
    "SelectionRanker",
    "SentenceTransformersDiversityRanker",
]

logger = logging.getLogger(__name__)
_OP = "SentenceTransformersDiversityRanker"


def __getattr__(name: str) -> Any:
    # A name of Haystack's module; imported only where a model is loaded, since that takes seconds.
    if name != "SentenceTransformer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _peers.needed("encoders"):
        from sentence_transformers import SentenceTransformer
    return SentenceTransformer


class DiversityRankingStrategy(Choice):
    """Haystack's strategies, and VRSD."""

    GREEDY_DIVERSITY_ORDER = "greedy_diversity_order"
    MAXIMUM_MARGIN_RELEVANCE = "maximum_margin_relevance"
    VRSD = "vrsd"

    @staticmethod
    def from_str(string: str) -> DiversityRankingStrategy:
        """Return the member of that value."""
        return member(_OP, DiversityRankingStrategy, string, "strategy", "strategies")


class DiversityRankingSimilarity(Choice):
    """Haystack's similarities."""

    DOT_PRODUCT = "dot_product"
    COSINE = "cosine"

    @staticmethod
    def from_str(string: str) -> DiversityRankingSimilarity:
        """Return the member of that value."""
        return member(_OP, DiversityRankingSimilarity, string, "similarity metric", "metrics")


@component
class SelectionRanker(Saved):
    """Selection among retrieved documents that carry their embeddings, by a rule of this library.

    The embedding of the query comes from the text embedder of the pipeline, those of the documents from a retriever
    with ``return_embedding=True``. The ``score`` of a document that is returned is the value at which it was picked.

    Parameters
    ----------
    top_k : int, default 10
        Documents to return.
    lambda_mult : float in [0, 1], default 0.5
        ``lambda_d`` of the rule: weight of relevance against redundancy. VRSD and SIFT have none.
    relevance : {"embedding", "score"}
        The cosine with the query, or the documents' own ``score``, for example a reranker's. ``relevance_scale`` puts
        scores on another scale.
    method : {"mmr", "vrsd", "msd", "dpp", "ssd", "sift", "coverage", "gist"}
    bias_key : str, optional
        Entry of the documents' ``meta`` that holds their quality: ``bias`` of the rule (of MMR RAGSys, Algorithm 1),
        weighed by ``lambda_b`` (default 0.95).
    group_key : str, optional
        Entry that names their groups, for ``max_per_group`` and ``min_per_group``: numbers, or dicts by these names.
    cost_key : str, optional
        Entry that holds what they cost, with ``budget``.
    token_counter : callable, optional
        Returns what the content of a document costs, such as its number of tokens; instead of ``cost_key``. Saved by
        its name, so that it must be a function of a module.
    quality_key : str, optional
        Entry that holds ``quality`` of `dpp`.
    relevance_scale, min_relevance, max_per_group, max_similarity, budget, ...
        All arguments of the rule that are one number, word or flag, with its names, defaults and errors, but
        ``metric``: vectors are compared by their cosine.
    """

    @_options.named
    def __init__(
        self,
        top_k: int = 10,
        *,
        lambda_mult: float = 0.5,
        relevance: Literal["embedding", "score"] = "embedding",
        **options: Any,
    ) -> None:
        op = "SelectionRanker"
        self.top_k = checked_top_k(op, top_k)
        self.relevance = checks.choice(op, "relevance", relevance, ("embedding", "score"))
        self.lambda_mult = lambda_mult
        scores = "relevance='score'", relevance == "score"
        self.__dict__ |= _options.checked(op, options, ("lambda_mult", lambda_mult), scores)

    def _write(self, values: dict[str, Any]) -> None:
        if values["token_counter"] is not None:
            values["token_counter"] = serialize_callable(values["token_counter"])

    @staticmethod
    def _read(values: dict[str, Any]) -> None:
        if values.get("token_counter") is not None:
            values["token_counter"] = deserialize_callable(values["token_counter"])

    @component.output_types(documents=list[Document])
    def run(
        self,
        documents: list[Document],
        query_embedding: list[float],
        top_k: int | None = None,
        lambda_mult: float | None = None,
    ) -> dict[str, list[Document]]:
        """Return the selected documents, in the order they were picked, under ``documents``.

        Of documents with one id the one with the highest score counts. ``top_k`` and ``lambda_mult`` override those of
        the component. A document without an embedding (or a score, or a bias, where that is used) is a ValueError.
        """
        op = "SelectionRanker"
        wanted = self.top_k if top_k is None else checked_top_k(op, top_k)
        documents = best_of_each_id(documents)
        for name in ("embedding", *(["score"] if self.relevance == "score" else [])):
            if missing := [each.id for each in documents if getattr(each, name) is None]:
                raise ValueError(f"{op}: every document must have {name}, got none for {missing[0]}")
        metadata = [each.meta for each in documents]
        arguments = _options.of_items(
            op, _options.of(self), metadata, lambda: [each.content or "" for each in documents]
        )
        picks, values = select(
            query_embedding,
            [each.embedding for each in documents],
            wanted,
            lambda_mult=self.lambda_mult if lambda_mult is None else within(op, "lambda_mult", lambda_mult),
            relevance=[each.score for each in documents] if self.relevance == "score" else None,
            **arguments,
        )
        return {"documents": [replace(documents[i], score=value) for i, value in zip(picks, values, strict=True)]}


@component
class PyversityRanker(Saved):
    """``PyversityRanker`` of pyversity-haystack, on `ragsys_kernels.integrations.pyversity.diversify`.

    Documents need ``score`` and ``embedding``; those without are skipped with a warning. The documents that are
    returned have the value at which they were picked as ``score``.

    Parameters
    ----------
    top_k : int, optional
        Documents to return. None: all of them.
    strategy : Strategy or str
        Default "dpp".
    diversity : float in [0, 1]
    """

    def __init__(
        self, top_k: int | None = None, *, strategy: Strategy | str = Strategy.DPP, diversity: float = 0.5
    ) -> None:
        self.top_k = checked_top_k("PyversityRanker", top_k, "be a positive integer")
        self.strategy = strategy_of("PyversityRanker", strategy)
        self.diversity = within("PyversityRanker", "diversity", diversity)

    @component.output_types(documents=list[Document])
    def run(
        self,
        documents: list[Document],
        top_k: int | None = None,
        strategy: Strategy | None = None,
        diversity: float | None = None,
    ) -> dict[str, list[Document]]:
        """Return the selected documents, in the order they were picked, under ``documents``.

        Arguments that are given override those of the component.
        """
        op = "PyversityRanker"
        wanted = self.top_k if top_k is None else checked_top_k(op, top_k, "be a positive integer")
        weight = self.diversity if diversity is None else within(op, "diversity", diversity)
        usable = [each for each in documents if each.score is not None and each.embedding is not None]
        if skipped := len(documents) - len(usable):
            logger.warning("{skipped} document(s) without 'score' or 'embedding' are skipped.", skipped=skipped)
        if not usable:
            return {"documents": []}
        found = diversify(
            np.array([each.embedding for each in usable]),
            np.array([each.score for each in usable]),
            wanted,
            strategy=self.strategy if strategy is None else strategy_of(op, strategy),
            diversity=weight,
        )
        picked = zip(found.indices.tolist(), found.selection_scores.tolist(), strict=True)
        return {"documents": [replace(usable[i], score=value) for i, value in picked]}


@component
class SentenceTransformersDiversityRanker(Saved):
    """Haystack's ``SentenceTransformersDiversityRanker``, on the kernels, for documents embedded or not.

    Strategies: "maximum_margin_relevance" is `ragsys_kernels.mmr`; "greedy_diversity_order", the default, takes the
    nearest document first and then the one whose mean similarity with those picked is least, whatever the query (a rule
    that the kernels do not have: NumPy); "vrsd" is `ragsys_kernels.vrsd` and not in Haystack.

    Of documents with one id the one with the highest score counts. Scores stay as they are.

    Parameters
    ----------
    model, top_k, device, token, similarity, query_prefix, query_suffix, document_prefix, document_suffix, \
meta_fields_to_embed, embedding_separator, strategy, lambda_threshold, model_kwargs, tokenizer_kwargs, config_kwargs, \
backend
        As Haystack's.
    use_document_embeddings : bool
        True: documents that have an ``embedding`` are not embedded again, as Haystack does at every call; it must be
        the model's. False: Haystack's behaviour.

    Notes
    -----
    As sentence-transformers-haystack 2.0 does, but for what is said above, and that a zero vector is similar to nothing
    where Haystack's similarities become NaN and it fails. sentence-transformers is needed where something has to be
    embedded (extra ``encoders``): not if `run` is given ``query_embedding`` and the documents have theirs.
    """

    def __init__(
        self,
        *,
        model: str = "sentence-transformers/all-MiniLM-L6-v2",
        top_k: int = 10,
        device: ComponentDevice | None = None,
        token: Secret | None = Secret.from_env_var(["HF_API_TOKEN", "HF_TOKEN"], strict=False),  # noqa: B008
        similarity: str | Enum = "cosine",
        query_prefix: str = "",
        query_suffix: str = "",
        document_prefix: str = "",
        document_suffix: str = "",
        meta_fields_to_embed: list[str] | None = None,
        embedding_separator: str = "\n",
        strategy: str | Enum = "greedy_diversity_order",
        lambda_threshold: float = 0.5,
        model_kwargs: dict[str, Any] | None = None,
        tokenizer_kwargs: dict[str, Any] | None = None,
        config_kwargs: dict[str, Any] | None = None,
        backend: Literal["torch", "onnx", "openvino"] = "torch",
        use_document_embeddings: bool = True,
    ) -> None:
        self.model_name_or_path = model
        self.top_k = self._positive(top_k)
        self.device = ComponentDevice.resolve_device(device)
        self.token = token
        self.model: Any = None
        self.similarity = DiversityRankingSimilarity.from_str(str(similarity))  # of Haystack's own too
        self.query_prefix = query_prefix
        self.query_suffix = query_suffix
        self.document_prefix = document_prefix
        self.document_suffix = document_suffix
        self.meta_fields_to_embed = meta_fields_to_embed or []
        self.embedding_separator = embedding_separator
        self.strategy = DiversityRankingStrategy.from_str(str(strategy))
        self.lambda_threshold = lambda_threshold
        self._check_lambda_threshold(lambda_threshold, self.strategy)
        self.model_kwargs = model_kwargs
        self.tokenizer_kwargs = tokenizer_kwargs
        self.config_kwargs = config_kwargs
        self.backend = backend
        self.use_document_embeddings = use_document_embeddings

    def _write(self, values: dict[str, Any]) -> None:
        values["model"] = self.model_name_or_path
        if self.model_kwargs is not None:
            values["model_kwargs"] = deepcopy(self.model_kwargs)  # the serialisation changes it
            serialize_hf_model_kwargs(values["model_kwargs"])

    @staticmethod
    def _read(values: dict[str, Any]) -> None:
        if values.get("model_kwargs") is not None:
            deserialize_hf_model_kwargs(values["model_kwargs"])

    def warm_up(self) -> None:
        """Load the model, if it is not loaded yet."""
        if self.model is None:
            self.model = sys.modules[__name__].SentenceTransformer(
                model_name_or_path=self.model_name_or_path,
                device=self.device.to_torch_str(),
                token=self.token.resolve_value() if self.token else None,
                model_kwargs=self.model_kwargs,
                processor_kwargs=self.tokenizer_kwargs,
                config_kwargs=self.config_kwargs,
                backend=self.backend,
            )

    @component.output_types(documents=list[Document])
    def run(
        self,
        query: str,
        documents: list[Document],
        top_k: int | None = None,
        lambda_threshold: float | None = None,
        query_embedding: list[float] | None = None,
    ) -> dict[str, list[Document]]:
        """Return the ranked documents under ``documents``.

        ``top_k`` and ``lambda_threshold`` override those of the component; with ``query_embedding`` the query is not
        embedded.

        Raises
        ------
        ValueError
            top_k <= 0, lambda_threshold outside [0, 1], embeddings of documents that are not as long as the query's.
        """
        if not documents:
            return {"documents": []}
        wanted = self.top_k if top_k is None else self._positive(top_k)
        weight = self.lambda_threshold if lambda_threshold is None else lambda_threshold
        self._check_lambda_threshold(weight, self.strategy)
        documents = best_of_each_id(documents)
        return {"documents": self._ranked(self.strategy, query, documents, wanted, weight, query_embedding)}

    @staticmethod
    def _positive(top_k: int | None) -> int:
        if top_k is None or top_k <= 0:
            raise ValueError(f"{_OP}: top_k must be > 0, but got {top_k}")
        return top_k

    # Names of Haystack's class, for code that calls them.

    @staticmethod
    def _check_lambda_threshold(lambda_threshold: float, strategy: Any) -> None:
        if str(strategy) == "maximum_margin_relevance" and not 0 <= lambda_threshold <= 1:
            raise ValueError(f"{_OP}: lambda_threshold must be between 0 and 1, but got {lambda_threshold}.")

    def _greedy_diversity_order(self, query: str, documents: list[Document]) -> list[Document]:
        return self._ranked(DiversityRankingStrategy.GREEDY_DIVERSITY_ORDER, query, documents, None)

    def _maximum_margin_relevance(
        self, query: str, documents: list[Document], lambda_threshold: float, top_k: int
    ) -> list[Document]:
        strategy = DiversityRankingStrategy.MAXIMUM_MARGIN_RELEVANCE
        return self._ranked(strategy, query, documents, top_k, lambda_threshold)

    def _prepare_texts_to_embed(self, documents: list[Document]) -> list[str]:
        return [self._text(each) for each in documents]

    def _ranked(
        self,
        strategy: DiversityRankingStrategy,
        query: str,
        documents: list[Document],
        top_k: int | None,
        weight: float = 0.5,
        query_embedding: Any = None,
    ) -> list[Document]:
        rows = self._vectors(documents)
        if query_embedding is None:
            query_embedding = self._embed([self.query_prefix + query + self.query_suffix])[0]
        if len(query_embedding) != rows.shape[1]:
            raise ValueError(
                f"{_OP}: embeddings of documents must have the query's {len(query_embedding)} dimensions, got "
                f"{rows.shape[1]}; use_document_embeddings=False embeds them with the query's model"
            )
        vector_of_query = vector(_OP, "query_embedding", query_embedding, rows.shape[1])
        picks = self._picks(strategy, vector_of_query, rows, top_k, weight)
        return [documents[i] for i in picks]

    def _picks(
        self, strategy: DiversityRankingStrategy, query: Array, rows: Array, top_k: int | None, weight: float
    ) -> list[int]:
        metric = "cosine" if self.similarity is DiversityRankingSimilarity.COSINE else "dot"
        if strategy is not DiversityRankingStrategy.GREEDY_DIVERSITY_ORDER:
            method = "vrsd" if strategy is DiversityRankingStrategy.VRSD else "mmr"
            return select(query, rows, top_k, method=method, lambda_mult=weight, metric=metric)[0]
        if metric == "cosine":
            rows, query = unit(rows), unit(query)
        relevance = rows @ query
        first = int(np.argmax(relevance))
        k = number_of_picks(strategy.value, len(rows), top_k)
        return greedy(relevance, lambda i: rows @ rows[i], k, weight=0.0, first=first, fold=np.add)[0]

    def _vectors(self, documents: list[Document]) -> Array:
        given = [each.embedding if self.use_document_embeddings else None for each in documents]
        missing = [i for i, each in enumerate(given) if each is None]
        if missing:
            found = self._embed(self._prepare_texts_to_embed([documents[i] for i in missing]))
            if len(missing) == len(given):
                return found
            for i, row in zip(missing, found, strict=True):
                given[i] = row
        return matrix(_OP, "embeddings", given)

    def _text(self, document: Document) -> str:
        meta = [str(document.meta[name]) for name in self.meta_fields_to_embed if document.meta.get(name) is not None]
        text = self.embedding_separator.join([*meta, document.content or ""])
        return self.document_prefix + text + self.document_suffix

    def _embed(self, texts: list[str]) -> Array:
        self.warm_up()
        found = self.model.encode(texts, convert_to_tensor=True)
        return matrix(_OP, "embeddings", found.cpu() if hasattr(found, "cpu") else found)
