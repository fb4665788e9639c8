"""A LlamaIndex postprocessor that selects by the rules of this library."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from llama_index.core.bridge.pydantic import Field, model_validator
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle

from ..selection.validate import NEEDS_QUERIES
from . import _models, _options
from ._pools import select


class SelectionPostprocessor(_models.Options, BaseNodePostprocessor):
    """Selection among the nodes that a retriever found, by a rule of this library.

    The nodes that are returned have the value at which they were picked as score, as LlamaIndex's own MMR gives; it
    need not fall from one to the next.

    Parameters
    ----------
    similarity_top_k : int, at least 1, default 2
        Nodes to return.
    mmr_threshold : float in [0, 1], default 0.5
        ``lambda_d`` of the rule: weight of relevance against redundancy, of MMR the largest cosine with any pick. VRSD
        and SIFT have none.
    relevance : {"embedding", "score"}
        The cosine with the query, or the nodes' own ``score``, for example a reranker's, which all must then have.
        ``relevance_scale`` puts scores on another scale.
    method : {"mmr", "vrsd", "msd", "dpp", "ssd", "sift", "coverage", "gist"}
    bias_key : str, optional
        Entry of the nodes' metadata that holds their quality: ``bias`` of the rule (of MMR RAGSys, Algorithm 1),
        weighed by ``lambda_b`` (default 0.95).
    group_key : str, optional
        Entry that names their groups, for ``max_per_group`` and ``min_per_group``: numbers, or dicts by these names.
    cost_key : str, optional
        Entry that holds what they cost, with ``budget``.
    token_counter : callable, optional
        Returns what the text of a node for the language model costs, such as its number of tokens; instead of
        ``cost_key``. It is not saved, as ``embed_model`` is not.
    quality_key : str, optional
        Entry that holds ``quality`` of `dpp`.
    relevance_scale, min_relevance, max_per_group, max_similarity, budget, ...
        All arguments of the rule that are one number, word or flag, with its names, defaults and errors, but
        ``metric``: vectors are compared by their cosine.
    mmr_prefetch_factor : float, at least 1, default 4.0
        The pool is the best ``similarity_top_k * mmr_prefetch_factor`` nodes by score; others are left out.
    mmr_prefetch_k : int, at least 1, optional
        The size of the pool itself; not together with ``mmr_prefetch_factor``.
    embed_model : BaseEmbedding, optional
        Embeds the query if its bundle has no embedding, and the nodes that have none. Needed only for those. It is
        not saved: give it again, ``SelectionPostprocessor.from_dict(data, embed_model=model)``.

    Raises
    ------
    ValueError
        No query where one is needed, or something to embed and no ``embed_model``; ``mmr_prefetch_k`` below
        ``similarity_top_k``; options that no call could take.
    """

    similarity_top_k: int = Field(default=2, ge=1)
    mmr_threshold: float = 0.5
    relevance: Literal["embedding", "score"] = "embedding"
    mmr_prefetch_factor: float | None = Field(default=None, ge=1)
    mmr_prefetch_k: int | None = Field(default=None, ge=1)
    embed_model: Any = Field(default=None, exclude=True)

    _weight: ClassVar[str] = "mmr_threshold"

    @staticmethod
    def _given_relevance(values: dict[str, Any]) -> tuple[str, bool]:
        return "relevance='score'", values.get("relevance") == "score"

    @classmethod
    def class_name(cls) -> str:
        return "SelectionPostprocessor"

    @model_validator(mode="after")
    def _one_prefetch(self) -> SelectionPostprocessor:
        if self.mmr_prefetch_factor is not None and self.mmr_prefetch_k is not None:
            raise ValueError("SelectionPostprocessor: mmr_prefetch_factor must come without mmr_prefetch_k, got both")
        if self.mmr_prefetch_k is not None and self.mmr_prefetch_k < self.similarity_top_k:
            raise ValueError(
                f"SelectionPostprocessor: mmr_prefetch_k must be at least similarity_top_k = {self.similarity_top_k}, "
                f"got {self.mmr_prefetch_k}"
            )
        return self

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        op, by_score = "SelectionPostprocessor", self.relevance == "score"
        asks_the_query = not by_score or self.method in NEEDS_QUERIES
        if asks_the_query and query_bundle is None:
            raise ValueError(f"{op}: query_bundle must be given, got None")
        if not nodes:
            return []
        if by_score and (missing := [each.node_id for each in nodes if each.score is None]):
            raise ValueError(f"{op}: every node must have a score, got none for {missing[0]}")
        size = self.mmr_prefetch_k or int(self.similarity_top_k * (self.mmr_prefetch_factor or 4.0))
        if len(nodes) > size:
            nodes = sorted(nodes, key=lambda each: each.score or 0.0, reverse=True)[:size]
        metadata = [each.node.metadata for each in nodes]
        arguments = _options.of_items(
            op, _options.of(self), metadata, lambda: [each.node.get_content(MetadataMode.LLM) for each in nodes]
        )
        picks, values = select(
            self._query(query_bundle) if asks_the_query else None,
            self._vectors(nodes),
            self.similarity_top_k,
            lambda_mult=self.mmr_threshold,
            relevance=[each.score for each in nodes] if by_score else None,
            **arguments,
        )
        return [NodeWithScore(node=nodes[i].node, score=value) for i, value in zip(picks, values, strict=True)]

    def _model(self, what: str) -> Any:
        if self.embed_model is None:
            raise ValueError(f"SelectionPostprocessor: embed_model must be given to embed {what}, got None")
        return self.embed_model

    def _query(self, bundle: QueryBundle) -> Any:
        if bundle.embedding is not None:
            return bundle.embedding
        return self._model("the query").get_agg_embedding_from_queries(bundle.embedding_strs)

    def _vectors(self, nodes: list[NodeWithScore]) -> list[Any]:
        vectors = [each.node.embedding for each in nodes]
        missing = [i for i, each in enumerate(vectors) if each is None]
        if missing:
            texts = [nodes[i].node.get_content(metadata_mode=MetadataMode.EMBED) for i in missing]
            for i, found in zip(missing, self._model("nodes").get_text_embedding_batch(texts), strict=True):
                vectors[i] = found
        return vectors
