"""The LlamaIndex drop-ins against the installed llama-index-core."""

import asyncio
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from backends import needs
from peer_pools import POOLS, check, last, mmr_values, unit

import ragsys_kernels as rk
from ragsys_kernels.integrations import llama_index as ours
from ragsys_kernels.integrations.llama_index import get_top_k_mmr_embeddings

pytestmark = [
    needs("llama_index"),
    pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning"),
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),  # theirs divides by zero norms
]


def setup_module():
    """LlamaIndex takes seconds to load, and each process collects this file."""
    global Fake, MockEmbedding, NodeWithScore, QueryBundle, TextNode, VectorStoreIndex, embedding_utils, simple, theirs
    from llama_index.core import MockEmbedding, VectorStoreIndex
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.indices.query import embedding_utils
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
    from llama_index.core.vector_stores import simple

    theirs = embedding_utils.get_top_k_mmr_embeddings

    class Fake(BaseEmbedding):
        """Vectors drawn from the text."""

        def _get_text_embedding(self, text):
            return np.random.default_rng(list(text.encode())).standard_normal(8).tolist()

        _get_query_embedding = _get_text_embedding

        async def _aget_query_embedding(self, query):
            return self._get_text_embedding(query)


def cosine(a, b):
    return float(np.dot(a, b) / (np.linalg.norm(a) * np.linalg.norm(b)))


@pytest.mark.parametrize("pool", POOLS, ids=lambda pool: pool.name)
def test_picks_are_those_of_llama_index(pool):
    closed = np.flatnonzero(~pool.rows.any(axis=1))
    e, q = unit(pool.rows), unit(pool.query)
    for weight in (0.0, 0.25, 0.5, 0.75, 1.0, None, -0.5, 1.5):
        w = 0.5 if weight is None else weight
        values = mmr_values(e @ q, e @ e.T, w, last)
        for k in (-1, 1, 3, len(e) - len(closed)):
            for function in (None, cosine) if len(e) < 20 else (None,):
                found, ids = get_top_k_mmr_embeddings(
                    pool.query, pool.rows, function, k, mmr_threshold=weight, penalty="last"
                )
                scores, expected = theirs(pool.query.tolist(), pool.rows.tolist(), None, k, mmr_threshold=weight)
                check(ids, expected, values, exact=pool.exact, closed=closed)
                if ids == expected:
                    np.testing.assert_allclose(found, scores, atol=3e-6)
                assert all(type(score) is float for score in found)


@pytest.mark.parametrize("pool", POOLS, ids=lambda pool: pool.name)
def test_penalty_of_all_picks_is_mmr(pool):
    usable = pool.rows.any(axis=1)
    e, q = unit(pool.rows)[usable], unit(pool.query)
    for weight in (0.0, 0.25, 0.5, 1.0):
        values = mmr_values(e @ q, e @ e.T, weight, np.max)
        by_kernel, by_function = (
            get_top_k_mmr_embeddings(pool.query, pool.rows[usable], function, 5, mmr_threshold=weight, penalty="max")[1]
            for function in (None, cosine)
        )
        check(by_kernel, by_function, values, exact=pool.exact)
        names = [f"node {i}" for i in np.flatnonzero(usable)]
        everything = [f"node {i}" for i in range(len(pool.rows))]
        _, ids = get_top_k_mmr_embeddings(pool.query, pool.rows, None, 5, everything, None, weight, penalty="max")
        assert ids == [names[i] for i in by_kernel]


def test_a_function_may_know_no_similarity_of_two_items():
    rows = np.random.default_rng(4).standard_normal((9, 4))

    def sometimes(a, b):
        return np.nan if a[0] * b[0] < -1 else cosine(a, b)

    for weight in (0.0, 0.4, 1.0):
        for k in range(1, 6):
            options = {"similarity_top_k": k, "mmr_threshold": weight}
            _, expected = theirs(rows[0].tolist(), rows.tolist(), sometimes, **options)
            assert get_top_k_mmr_embeddings(rows[0], rows, sometimes, **options, penalty="last")[1] == expected


@pytest.fixture
def asked_again():
    """What LlamaIndex does is found out anew in the test, and again after it."""
    ours._installed.cache_clear()
    yield
    ours._installed.cache_clear()


def test_default_follows_the_installed_version(asked_again, monkeypatch):
    rows = np.random.default_rng(0).standard_normal((20, 4))
    for k in (8, 0, None):
        options = {"similarity_top_k": k, "mmr_threshold": 0.2}
        _, expected = theirs(np.ones(4), rows.tolist(), **options)
        assert get_top_k_mmr_embeddings(np.ones(4), rows, **options)[1] == expected

    def of_a_later_version(query, embeddings, similarity_top_k=None, mmr_threshold=None):
        if similarity_top_k == 0:
            return [], []
        return get_top_k_mmr_embeddings(
            query, embeddings, None, similarity_top_k, None, None, mmr_threshold, penalty="max"
        )

    later = SimpleNamespace(get_top_k_mmr_embeddings=of_a_later_version)
    monkeypatch.setattr(ours._peers, "copy_of_module", lambda name: later)
    ours._installed.cache_clear()
    options = {"similarity_top_k": 8, "mmr_threshold": 0.2}
    expected = get_top_k_mmr_embeddings(np.ones(4), rows, **options, penalty="max")
    assert get_top_k_mmr_embeddings(np.ones(4), rows, **options) == expected
    assert get_top_k_mmr_embeddings(np.ones(4), rows, similarity_top_k=0) == ([], [])
    assert len(get_top_k_mmr_embeddings(np.ones(4), rows)[1]) == 20


@pytest.mark.parametrize("whole_module", [False, True])
def test_in_llama_indexs_own_module_it_asks_the_files_not_itself(whole_module, asked_again, monkeypatch):
    rows = np.random.default_rng(0).standard_normal((20, 4))
    if whole_module:
        monkeypatch.setitem(sys.modules, embedding_utils.__name__, ours)
    else:
        monkeypatch.setattr(embedding_utils, "get_top_k_mmr_embeddings", get_top_k_mmr_embeddings)
    from llama_index.core.indices.query.embedding_utils import get_top_k_mmr_embeddings as standing

    assert standing is get_top_k_mmr_embeddings
    for k in (8, 0):
        options = {"similarity_top_k": k, "mmr_threshold": 0.2}
        assert standing(np.ones(4), rows, **options)[1] == theirs(np.ones(4), rows.tolist(), **options)[1]
    assert sys.modules[embedding_utils.__name__] is (ours if whole_module else embedding_utils)


def test_departures():
    rows = np.random.default_rng(2).standard_normal((6, 4))
    rows[[1, 4]] = 0
    rows[2, 0] = np.nan
    with pytest.raises(KeyError):
        theirs([1.0] * 4, rows.tolist())
    for penalty in ("last", "max"):
        for function in (None, cosine):
            _, ids = get_top_k_mmr_embeddings(np.ones(4), rows, function, penalty=penalty)
            assert sorted(ids) == [0, 3, 5]
    assert get_top_k_mmr_embeddings(np.ones(4), np.zeros((3, 4))) == ([], [])
    names = ["a", "b", "a", "c", "b", "d"]
    rows = np.random.default_rng(3).standard_normal((6, 4))
    _, expected = theirs(rows[3].tolist(), rows.tolist(), similarity_top_k=3, embedding_ids=names)
    with pytest.raises(KeyError):
        theirs(rows[3].tolist(), rows.tolist(), embedding_ids=names)
    assert get_top_k_mmr_embeddings(rows[3], rows, None, 3, names, penalty="last")[1] == expected
    assert sorted(get_top_k_mmr_embeddings(rows[3], rows, None, None, names)[1]) == ["a", "b", "c", "d"]
    assert get_top_k_mmr_embeddings(rows[3], rows, None, 0, [])[1][0] == 3
    assert get_top_k_mmr_embeddings(rows[3], []) == ([], [])
    with pytest.raises(ValueError, match="one id for each of the 6 embeddings, got 2"):
        get_top_k_mmr_embeddings(rows[3], rows, embedding_ids=[1, 2])
    with pytest.raises(ValueError, match="query_embedding must be finite and not zero"):
        get_top_k_mmr_embeddings(np.zeros(4), rows)
    with pytest.raises(ValueError, match="penalty must be one of 'last', 'max', got 'mean'"):
        get_top_k_mmr_embeddings(rows[0], rows, penalty="mean")


# In an index


def nodes():
    return [
        TextNode(
            text=f"text {i}",
            id_=f"node {i}",
            metadata={"quality": -(i % 5) / 3},
            excluded_embed_metadata_keys=["quality"],
        )
        for i in range(20)
    ]


def test_an_index_finds_the_same_nodes_with_the_drop_in(monkeypatch):
    """What LlamaIndex's guide does: a retriever with the query mode "mmr", whose store calls the function."""
    index = VectorStoreIndex(nodes(), embed_model=Fake())
    options = {"vector_store_query_mode": "mmr", "vector_store_kwargs": {"mmr_threshold": 0.3}, "similarity_top_k": 6}
    retriever = index.as_retriever(**options)
    expected = [(each.node_id, each.score) for each in retriever.retrieve("query")]
    called = []

    def counted(*arguments, **named):
        called.append(named)
        return get_top_k_mmr_embeddings(*arguments, **named)

    monkeypatch.setattr(simple, "get_top_k_mmr_embeddings", counted)
    found = [(each.node_id, each.score) for each in retriever.retrieve("query")]
    assert called[0]["mmr_threshold"] == 0.3
    assert [name for name, _ in found] == [name for name, _ in expected]
    np.testing.assert_allclose([score for _, score in found], [score for _, score in expected], atol=3e-6)


def scored(count=20):
    return [NodeWithScore(node=node, score=float(-i)) for i, node in enumerate(nodes()[:count])]


@pytest.mark.parametrize("embedded", [True, False])
def test_postprocessor_selects_with_bias(embedded):
    given = scored()
    model = Fake()
    texts = [each.node.get_content("embed") for each in given]
    rows = np.array(model.get_text_embedding_batch(texts), np.float32)
    if embedded:
        for each, row in zip(given, rows.tolist(), strict=True):
            each.node.embedding = row
    query = np.array([model.get_query_embedding("query")], np.float32)
    options = {"similarity_top_k": 5, "mmr_threshold": 0.4, "bias_key": "quality", "lambda_b": 0.6}
    select = ours.SelectionPostprocessor(**options, embed_model=model)
    found = select.postprocess_nodes(given, query_str="query")
    quality = np.array([each.node.metadata["quality"] for each in given], np.float32)
    expected = rk.mmr(query, rows, 5, bias=quality, lambda_d=0.4, lambda_b=0.6)
    assert [each.node_id for each in found] == [f"node {i}" for i in expected.indices[0]]
    np.testing.assert_allclose([each.score for each in found], expected.scores[0], rtol=1e-6)
    assert asyncio.run(select.apostprocess_nodes(given, query_str="query")) == found
    assert [each.score for each in given] == [float(-i) for i in range(20)]
    if embedded:
        select = ours.SelectionPostprocessor(**options)
        assert select.postprocess_nodes(given, QueryBundle("query", embedding=query[0].tolist())) == found


def test_postprocessor_takes_the_best_nodes_as_its_pool():
    given = scored()[::-1]
    model = Fake()
    rows = np.array([model.get_text_embedding(f"text {i}") for i in range(20)], np.float32)
    query = np.array([model.get_query_embedding("query")], np.float32)
    for options, size in (({}, 12), ({"mmr_prefetch_factor": 2.5}, 7), ({"mmr_prefetch_k": 9}, 9)):
        select = ours.SelectionPostprocessor(similarity_top_k=3, method="vrsd", embed_model=model, **options)
        found = select.postprocess_nodes(given, query_str="query")
        expected = rk.vrsd(query, rows[:size], 3).indices[0]
        assert [each.node_id for each in found] == [f"node {i}" for i in expected]


def test_postprocessor_is_saved_and_refuses_what_it_does_not_know():
    select = ours.SelectionPostprocessor(similarity_top_k=3, method="msd", bias_key="quality")
    data = select.to_dict()
    assert data["class_name"] == "SelectionPostprocessor"
    for again in (ours.SelectionPostprocessor.from_dict(data), ours.SelectionPostprocessor.from_json(select.to_json())):
        assert again.to_dict() == data
    model = Fake()
    data = ours.SelectionPostprocessor(embed_model=model).to_dict()
    assert "embed_model" not in data
    with pytest.raises(ValueError, match="embed_model must be given to embed the query, got None"):
        ours.SelectionPostprocessor.from_dict(data).postprocess_nodes(scored(), query_str="query")
    again = ours.SelectionPostprocessor.from_dict(data, embed_model=model)
    assert len(again.postprocess_nodes(scored(), query_str="query")) == 2
    for name in ("lambda_mult", "top_n"):
        with pytest.raises(ValueError, match=rf"{name}\n.*Extra inputs are not permitted"):
            ours.SelectionPostprocessor(**{name: 1})
    given = scored()
    given[2].node.metadata["quality"] = "good"
    with pytest.raises(
        ValueError, match="every item must have a number within the range of float32 as 'quality', got 'good' in item 2"
    ):
        ours.SelectionPostprocessor(bias_key="quality", embed_model=model).postprocess_nodes(given, query_str="query")


def test_postprocessor_errors():
    select = ours.SelectionPostprocessor()
    assert select.postprocess_nodes([], query_str="query") == []
    with pytest.raises(ValueError, match="query_bundle must be given, got None"):
        select.postprocess_nodes(scored())
    with pytest.raises(ValueError, match="embed_model must be given to embed the query, got None"):
        select.postprocess_nodes(scored(), query_str="query")
    with pytest.raises(ValueError, match="embed_model must be given to embed nodes, got None"):
        select.postprocess_nodes(scored(), QueryBundle("query", embedding=[1.0] * 8))
    with pytest.raises(ValueError, match="got both"):
        ours.SelectionPostprocessor(mmr_prefetch_factor=4.0, mmr_prefetch_k=10)
    with pytest.raises(ValueError, match="mmr_prefetch_k must be at least similarity_top_k = 4, got 3"):
        ours.SelectionPostprocessor(similarity_top_k=4, mmr_prefetch_k=3)
    for options in ({"similarity_top_k": 0}, {"mmr_threshold": 1.5}, {"method": "top"}):
        with pytest.raises(ValueError, match=next(iter(options))):
            ours.SelectionPostprocessor(**options)
    select = ours.SelectionPostprocessor(bias_key="other", embed_model=MockEmbedding(embed_dim=8))
    with pytest.raises(ValueError, match="metadata of every item must have 'other', got none in item 0"):
        select.postprocess_nodes(scored(), query_str="query")
