"""Which MMR the libraries have, by the conformance kit; ours that replace them are the same."""

import importlib
import warnings

import pytest

from ragsys_kernels.conformance import conform

PEERS = {
    "langchain_core.vectorstores.utils:maximal_marginal_relevance": {"ties": "lowest", "none": "none"},
    "langchain_core.vectorstores:InMemoryVectorStore": {"pool": "20"},
    "llama_index.core.indices.query.embedding_utils:get_top_k_mmr_embeddings": {
        "penalty": "last", "first": "weighted", "none": "all",
    },
    "pyversity:mmr": {"negative": "zero", "weighs": "diversity", "relevance": "given", "nan_row": "first"},
    "pyversity:diversify": {"negative": "zero"},
    "haystack_integrations.components.rankers.pyversity:PyversityRanker": {"negative": "zero"},
    "haystack_integrations.components.rankers.sentence_transformers:SentenceTransformersDiversityRanker": {
        "ties": "lowest", "zero_row": "error",
    },
    "keybert._mmr:mmr": {"order": "relevance", "weighs": "diversity"},
    "qdrant_client:QdrantClient": {"pool": "k, highest", "weighs": "diversity", "pages": "empty"},
}  # fmt: skip
DEPARTS = {"pool", "penalty", "negative", "order"}


# torch comes with it.
SLOW = (
    "haystack_integrations.components.rankers.sentence_transformers:SentenceTransformersDiversityRanker",
    "keybert._mmr:mmr",
)


@pytest.mark.parametrize(
    "target", [pytest.param(target, marks=[pytest.mark.slow] if target in SLOW else []) for target in PEERS]
)
def test_peers_are_told(target):
    module = target.partition(":")[0]
    pytest.importorskip(module.partition(".")[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module(module)
        report = conform(target)
    told = PEERS[target]
    assert {respect: report[respect].value for respect in told} == told
    assert report.fits
    assert report.textbook is not bool(DEPARTS & set(told))


DROP_INS = {
    "langchain:maximal_marginal_relevance": "langchain_core.vectorstores.utils:maximal_marginal_relevance",
    "llama_index:get_top_k_mmr_embeddings": "llama_index.core.indices.query.embedding_utils:get_top_k_mmr_embeddings",
    "pyversity:mmr": "pyversity:mmr",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("ours", DROP_INS)
def test_drop_ins_are_the_variant_that_they_replace(ours):
    """In all respects but those of rows that the peer cannot compare."""
    pytest.importorskip(DROP_INS[ours].partition(":")[0].partition(".")[0])
    ours, theirs = conform(f"ragsys_kernels.integrations.{ours}"), conform(DROP_INS[ours])
    for mine, other in zip(ours.findings, theirs.findings, strict=True):
        if mine.respect not in ("zero_row", "nan_row"):
            assert mine.values == other.values, mine.respect
