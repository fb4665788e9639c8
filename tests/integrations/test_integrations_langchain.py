"""The LangChain drop-ins against the installed langchain-core."""

import asyncio
import itertools
import math
import warnings

import numpy as np
import pytest
from backends import needs
from peer_pools import POOLS, check, mmr_values, unit

import ragsys_kernels as rk
from ragsys_kernels.integrations import langchain as ours
from ragsys_kernels.integrations.langchain import maximal_marginal_relevance

pytestmark = [needs("langchain_core"), pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")]


def setup_module():
    """LangChain takes seconds to load, and each process collects this file."""
    global TEXTS, Bare, DeterministicFakeEmbedding, Document, Embeddings, TheirSelector, fakes, langchain, theirs
    import langchain_core.vectorstores as langchain
    import langchain_fakes as fakes
    from langchain_core.documents import Document
    from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
    from langchain_core.example_selectors import MaxMarginalRelevanceExampleSelector as TheirSelector
    from langchain_core.vectorstores.utils import maximal_marginal_relevance as theirs
    from langchain_fakes import TEXTS, Bare


@pytest.mark.parametrize("pool", POOLS, ids=lambda pool: pool.name)
def test_picks_are_those_of_langchain(pool):
    e, q = unit(pool.rows), unit(pool.query)
    forms = itertools.cycle([
        (pool.rows.tolist(), pool.query),
        (pool.rows.astype(np.float32), pool.query.astype(np.float32)),
        (list(pool.rows), pool.query[None]),
    ])  # fmt: skip
    for weight in (0.0, 0.25, 0.5, 0.75, 1.0, -0.5, 2.0):
        values = mmr_values(e @ q, e @ e.T, weight, np.max)
        for k in (-1, 0, 1, 3, len(e) + 5):
            rows, query = next(forms)
            found = maximal_marginal_relevance(query, rows, weight, k)
            assert all(type(i) is int for i in found)
            expected = theirs(query, rows, weight, k)
            check(found, expected, values, first=e @ q, exact=pool.exact)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_counts_as_zero_and_warns(bad):
    rows = np.random.default_rng(0).standard_normal((8, 5))
    rows[2, 1] = rows[6] = bad
    query = np.ones(5)
    with pytest.warns(RuntimeWarning):
        expected = theirs(query, rows, 0.4, 8)
    with pytest.warns(RuntimeWarning, match="zero vectors"):
        assert maximal_marginal_relevance(query, rows, 0.4, 8) == expected


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        (np.zeros(2), np.eye(2)),
        (np.array([np.nan, 1]), np.eye(2)),
        (np.ones(2), np.zeros((3, 2))),
        (np.ones(2), np.full((3, 2), np.nan)),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_nothing_to_compare_is_an_error(query, rows):
    for call in (theirs, maximal_marginal_relevance):
        with pytest.raises(ValueError, match="NaN values found"):
            call(query, rows)


def test_departures():
    rows = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
    assert maximal_marginal_relevance([1, 0.1], rows, k=2) == theirs(np.array([1, 0.1]), rows, k=2)  # theirs: no list
    with pytest.raises(ValueError, match=r"query_embedding must have shape \(D,\) = \(2,\), got \(2, 2\)"):
        maximal_marginal_relevance(np.eye(2), rows)
    with pytest.raises(ValueError, match="lambda_mult must be finite"):
        maximal_marginal_relevance(np.ones(2), rows, np.nan)
    # A zero row that is picked first: theirs fails.
    zero_first = [[0.0, 0.0], [-1.0, 0.0], [-1.0, -0.1]]
    assert maximal_marginal_relevance([1, 0], zero_first, 0.5, 3)[0] == 0
    with pytest.raises(TypeError, match="embedding_list must be numbers in rows of one length"):
        maximal_marginal_relevance([1, 0], [[1, 0], [1]])
    with pytest.raises(ValueError, match="query_embedding must have shape"):
        maximal_marginal_relevance([1, 0, 0], rows)


@pytest.mark.parametrize("options", [{}, {"method": "vrsd"}, {"bias_key": "quality"}])
def test_a_store_with_few_documents_warns_in_the_callers_numbers(options):
    store = stores(ours.InMemoryVectorStore)
    with pytest.warns(rk.PoolSizeWarning, match=": the pool of 3 is no larger than k = 5, ") as seen:
        assert len(store.max_marginal_relevance_search("query", k=5, fetch_k=3, **options)) == 3
    assert len(seen) == 1


def test_in_langchains_own_modules_they_do_not_ask_themselves(monkeypatch):
    from langchain_core.example_selectors import semantic_similarity
    from langchain_core.vectorstores import in_memory, utils

    their_store = langchain.InMemoryVectorStore
    expected = stores(their_store).max_marginal_relevance_search("query", 5, 15, 0.3)
    for module in (utils, in_memory):
        monkeypatch.setattr(module, "maximal_marginal_relevance", maximal_marginal_relevance)
    for module in (langchain, in_memory):
        monkeypatch.setattr(module, "InMemoryVectorStore", ours.InMemoryVectorStore)
    selector = ours.MaxMarginalRelevanceExampleSelector
    monkeypatch.setattr(semantic_similarity, "MaxMarginalRelevanceExampleSelector", selector)
    for kind in (langchain.InMemoryVectorStore, their_store):
        store = stores(kind)
        assert store.max_marginal_relevance_search("query", 5, 15, 0.3) == expected
        chosen = selector(vectorstore=store, k=5, fetch_k=15, lambda_mult=0.3).select_examples({"text": "query"})
        assert [each["number"] for each in chosen] == picked(expected)


# Vector stores


def stores(kind):
    embedding = DeterministicFakeEmbedding(size=12)
    metadata = [{"number": i, "quality": -(i % 7) / 2} for i in range(len(TEXTS))]
    ids = [str(i) for i in range(len(TEXTS))]
    return kind.from_texts(TEXTS, embedding, metadatas=metadata, ids=ids)


def both(owner, method, *arguments, **options):
    """What a method answers, and the awaitable one of its name too."""
    found = getattr(owner, method)(*arguments, **options)
    assert asyncio.run(getattr(owner, f"a{method}")(*arguments, **options)) == found
    return found


def picked(documents):
    return [document.metadata["number"] for document in documents]


def test_store_searches_as_langchains_does():
    mine, reference = stores(ours.InMemoryVectorStore), stores(langchain.InMemoryVectorStore)
    vector = mine.embeddings.embed_query("query")
    expected = reference.max_marginal_relevance_search("query", 5, 15, 0.3)
    scores = {document.id: score for document, score in reference.similarity_search_with_score("query", k=30)}
    with_scores = [(document, scores[document.id]) for document in expected]
    options = {"k": 5, "fetch_k": 15, "lambda_mult": 0.3}
    assert both(mine, "max_marginal_relevance_search", "query", **options) == expected
    assert both(mine, "max_marginal_relevance_search_by_vector", vector, **options) == expected
    assert both(mine, "max_marginal_relevance_search_with_score", "query", **options) == with_scores
    assert both(mine, "max_marginal_relevance_search_with_score_by_vector", vector, **options) == with_scores


def test_store_takes_filters_and_does_not_raise_fetch_k():
    mine, reference = stores(ours.InMemoryVectorStore), stores(langchain.InMemoryVectorStore)

    def even(document):
        return document.metadata["number"] % 2 == 0

    for options in ({"k": 4, "filter": even}, {"k": 30}, {"k": 0}, {"k": 4, "filter": lambda document: False}):
        found = mine.max_marginal_relevance_search("query", **options)
        assert found == reference.max_marginal_relevance_search("query", **options)
    assert len(mine.max_marginal_relevance_search("query", k=30)) == 20


def test_store_selects_by_bias_and_by_vrsd():
    store = stores(ours.InMemoryVectorStore)
    vectors = np.array(store.embeddings.embed_documents(TEXTS), np.float32)
    query = np.array([store.embeddings.embed_query("query")], np.float32)
    quality = np.array([-(i % 7) / 2 for i in range(len(TEXTS))], np.float32)
    found = store.max_marginal_relevance_search("query", 6, 30, 0.6, bias_key="quality", lambda_b=0.7)
    expected = rk.mmr(query, vectors, 6, bias=quality, lambda_d=0.6, lambda_b=0.7)
    assert picked(found) == expected.indices[0].tolist()
    assert picked(store.max_marginal_relevance_search("query", 6, 30, 0.6)) != picked(found)
    found = store.max_marginal_relevance_search("query", 6, 30, method="vrsd")
    assert picked(found) == rk.vrsd(query, vectors, 6).indices[0].tolist()
    retriever = store.as_retriever(search_type="mmr", search_kwargs={"k": 6, "fetch_k": 30, "method": "vrsd"})
    assert both(retriever, "invoke", "query") == found
    with pytest.raises(ValueError, match="bias_key must be left out with method 'vrsd', got 'quality'"):
        store.max_marginal_relevance_search("query", method="vrsd", bias_key="quality")
    with pytest.raises(ValueError, match="metadata of every item must have 'other', got none in item 0"):
        store.max_marginal_relevance_search("query", bias_key="other")


def test_mixin_serves_a_store_that_has_no_vectors():
    class Store(ours.MaxMarginalRelevanceMixin, Bare):
        pass

    expected = stores(langchain.InMemoryVectorStore).max_marginal_relevance_search("query", 5, 12, 0.4)
    store = Store(DeterministicFakeEmbedding(size=12))
    assert picked(store.max_marginal_relevance_search("query", 5, 12, 0.4)) == picked(expected)
    assert np.isnan([score for _, score in store.max_marginal_relevance_search_with_score("query")]).all()
    retriever = ours.SelectionRetriever(vectorstore=Bare(DeterministicFakeEmbedding(size=12)), k=5, fetch_k=12)
    retriever.lambda_mult = 0.4
    assert picked(retriever.invoke("query")) == picked(expected)
    with pytest.raises(ValueError, match="Store: embeddings must be set to search by text, got None"):
        Store(None).max_marginal_relevance_search("query")


def chosen(examples):
    return [example["number"] for example in examples]


def mixed(store):
    return type(store.__name__, (ours.MaxMarginalRelevanceMixin, store), {})


def test_a_store_that_searches_by_text_alone_is_asked_for_the_text():
    expected = picked(stores(langchain.InMemoryVectorStore).max_marginal_relevance_search("query", 5, 12, 0.4))
    embedding = DeterministicFakeEmbedding(size=12)
    retriever = ours.SelectionRetriever(vectorstore=fakes.TextOnly(embedding), k=5, fetch_k=12, lambda_mult=0.4)
    assert picked(both(retriever, "invoke", "query")) == expected
    store = mixed(fakes.TextOnly)(embedding)
    assert picked(both(store, "max_marginal_relevance_search", "query", 5, 12, 0.4)) == expected
    for kind in (fakes.TextOnly, Bare):
        selector = ours.MaxMarginalRelevanceExampleSelector(
            vectorstore=kind(embedding), k=5, fetch_k=12, lambda_mult=0.4
        )
        assert chosen(both(selector, "select_examples", {"input": "query"})) == expected
    with pytest.raises(NotImplementedError):
        store.max_marginal_relevance_search_by_vector(embedding.embed_query("query"))


@pytest.mark.parametrize("kind", ["AsyncOnly", "AsyncScored", "AsyncText"])
def test_a_store_that_is_only_awaited_is_awaited(kind):
    kind = getattr(fakes, kind)
    expected = picked(stores(langchain.InMemoryVectorStore).max_marginal_relevance_search("query", 5, 12, 0.4))
    retriever = ours.SelectionRetriever(vectorstore=kind(fakes.Awaited()), k=5, fetch_k=12, lambda_mult=0.4)
    assert picked(asyncio.run(retriever.ainvoke("query"))) == expected
    store = mixed(kind)(fakes.Awaited())
    found = asyncio.run(store.amax_marginal_relevance_search_with_score("query", 5, 12, 0.4))
    assert picked(document for document, _ in found) == expected
    scores = [score for _, score in found]
    assert scores == [0.25] * 5 if kind is fakes.AsyncScored else np.isnan(scores).all()
    options = {"vectorstore": kind(fakes.Awaited()), "k": 5, "fetch_k": 12, "lambda_mult": 0.4}
    selector = ours.MaxMarginalRelevanceExampleSelector(**options)
    assert chosen(asyncio.run(selector.aselect_examples({"input": "query"}))) == expected
    selector = ours.MaxMarginalRelevanceExampleSelector(
        **options, bias_key="number", lambda_b=1.0, example_keys=["number"]
    )
    assert chosen(asyncio.run(selector.aselect_examples({"input": "query"}))) == expected


def test_a_store_with_candidates_of_its_own_is_asked_for_them():
    class Store(mixed(fakes.TextOnly)):
        def mmr_candidates(self, embedding, fetch_k, **kwargs):
            return [(Document(page_content=""), float(i), row) for i, row in enumerate(np.eye(12)[:fetch_k])]

    store = Store(DeterministicFakeEmbedding(size=12))
    found = both(store, "max_marginal_relevance_search_with_score", "query", 3, 3)
    assert {score for _, score in found} == {0.0, 1.0, 2.0}


def test_options_that_are_unknown_or_given_twice_are_refused():
    store = stores(langchain.InMemoryVectorStore)
    for made in (
        lambda **options: ours.SelectionRetriever(vectorstore=store, **options),
        lambda **options: ours.SelectionCompressor(embeddings=store.embeddings, **options),
        lambda **options: ours.MaxMarginalRelevanceExampleSelector(vectorstore=store, **options),
    ):
        assert made(lambda_mult=0.3).lambda_mult == 0.3
        with pytest.raises(ValueError, match=r"lambda_mul\n.*Extra inputs are not permitted"):
            made(lambda_mul=0.3)
    for name in ("k", "fetch_k", "bias_key"):
        with pytest.raises(ValueError, match=f"search_kwargs must be without its own arguments, got '{name}'"):
            ours.SelectionRetriever(vectorstore=store, search_kwargs={name: 3})


@pytest.mark.parametrize("method", ["mmr", "vrsd"])
def test_retriever_and_compressor_select_as_the_store_does(method):
    store = stores(ours.InMemoryVectorStore)
    options = {"k": 5, "lambda_mult": 0.3, "method": method}
    expected = store.max_marginal_relevance_search("query", fetch_k=15, **options)
    retriever = ours.SelectionRetriever(vectorstore=store, fetch_k=15, **options)
    assert both(retriever, "invoke", "query") == expected
    pool = store.similarity_search("query", k=15)
    compressor = ours.SelectionCompressor(embeddings=store.embeddings, **options)
    assert both(compressor, "compress_documents", pool, "query") == expected
    assert compressor.compress_documents([], "query") == []
    filtered = ours.SelectionRetriever(
        vectorstore=store, **options, search_kwargs={"filter": lambda document: document.metadata["number"] < 10}
    )
    assert max(picked(filtered.invoke("query"))) < 10


def test_retriever_takes_arguments_for_one_call_as_langchains_does():
    store = stores(langchain.InMemoryVectorStore)
    reference = store.as_retriever(search_type="mmr", search_kwargs={"filter": few})
    retriever = ours.SelectionRetriever(vectorstore=store, search_kwargs={"filter": few})

    def invoke(each, query, **options):
        return picked(both(each, "invoke", query, **options))

    expected = invoke(reference, "query")
    for options in (
        {},
        {"k": 1},
        {"k": 0},
        {"fetch_k": 2},
        {"fetch_k": 0},
        {"lambda_mult": 0.0},
        {"lambda_mult": 1.5},
        {"filter": lambda document: document.metadata["number"] in (3, 9)},
        {"k": 3, "fetch_k": 8, "lambda_mult": 0.2, "filter": None},
    ):
        assert invoke(retriever, "query", **options) == invoke(reference, "query", **options)
        assert invoke(retriever, "query") == expected  # for that call alone
    by_bias = {"k": 3, "bias_key": "quality", "lambda_b": 0.2}
    made = ours.SelectionRetriever(vectorstore=store, search_kwargs={"filter": few}, **by_bias)
    assert invoke(retriever, "query", **by_bias) == invoke(made, "query") != expected[:3]
    for options, error, message in (
        ({"lambda_mult": math.nan}, ValueError, "maximal_marginal_relevance: lambda_mult must be finite, got nan"),
        ({"bias_key": "quality", "lambda_b": 2}, ValueError, r"SelectionRetriever: lambda_b must be .*, got 2"),
        ({"bias_key": "quality", "lambda_mult": -1}, ValueError, r"SelectionRetriever: lambda_mult must be .*, got -1"),
        ({"method": "best"}, ValueError, "SelectionRetriever: method must be one of 'mmr', 'vrsd', .*, got 'best'"),
        ({"lambda_mul": 0.3}, TypeError, "unexpected keyword argument 'lambda_mul'"),  # of the store
    ):
        with pytest.raises(error, match=message):
            retriever.invoke("query", **options)
        with pytest.raises(error, match=message):
            asyncio.run(retriever.ainvoke("query", **options))


def few(document):
    return document.metadata["number"] < 20


def test_compressor_uses_vectors_relevance_and_bias_of_the_metadata():
    rng = np.random.default_rng(1)
    rows, relevance = rng.standard_normal((10, 12)).astype(np.float32), rng.random(10).astype(np.float32)
    quality = rng.standard_normal(10).astype(np.float32)
    documents = [
        Document(page_content=str(i), metadata={"number": i, "v": rows[i].tolist(), "r": relevance[i], "b": quality[i]})
        for i in range(10)
    ]

    class OnlyQueries(Embeddings):
        def embed_documents(self, texts):
            raise AssertionError("the documents have their vectors")

        def embed_query(self, text):
            return [1.0] * 12

    keys = {"embedding_key": "v", "relevance_key": "r", "bias_key": "b", "score_key": "value"}
    compressor = ours.SelectionCompressor(embeddings=OnlyQueries(), k=4, lambda_mult=0.6, lambda_b=0.8, **keys)
    found = compressor.compress_documents(documents, "query")
    expected = rk.mmr(None, rows, 4, relevance=relevance[None], bias=quality, lambda_d=0.6, lambda_b=0.8)
    assert picked(found) == expected.indices[0].tolist()
    np.testing.assert_array_equal([document.metadata["value"] for document in found], expected.scores[0])
    assert "value" not in documents[picked(found)[0]].metadata
    for options in ({"k": 0}, {"lambda_mult": 2}, {"method": "top"}, {"lambda_b": -1}):
        with pytest.raises(ValueError, match=next(iter(options))):
            ours.SelectionCompressor(embeddings=OnlyQueries(), **options)

    without = ours.SelectionCompressor(k=4, lambda_mult=0.6, lambda_b=0.8, **keys)  # nothing is embedded
    assert both(without, "compress_documents", documents, "query") == found
    for options, what in (
        ({"embedding_key": "v"}, "the query"),
        ({"embedding_key": "v", "relevance_key": "r", "method": "vrsd"}, "the query"),
        ({"relevance_key": "r"}, "the documents"),
    ):
        with pytest.raises(
            ValueError, match=f"SelectionCompressor: embeddings must be given to embed {what}, got None"
        ):
            ours.SelectionCompressor(**options)


@pytest.mark.parametrize("key", ["bias_key", "relevance_key"])
@pytest.mark.parametrize(
    ("bad", "got"),
    [
        ("good", "'good'"),
        ([1.0, 2.0], "list"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        (1e39, "1e+39"),  # float32 ends at 3.4e38
        pytest.param(10**400, "int", id="beyond float64"),
    ],
)
def test_metadata_that_is_no_number_is_named(key, bad, got):
    documents = [Document(page_content=text, metadata={"q": i / 10}) for i, text in enumerate(TEXTS[:5])]
    documents[3].metadata["q"] = bad
    compressor = ours.SelectionCompressor(embeddings=DeterministicFakeEmbedding(size=12), k=2, **{key: "q"})
    with pytest.raises(ValueError) as error:
        compressor.compress_documents(documents, "query")
    rule = "the metadata of every item must have a number within the range of float32 as 'q'"
    assert str(error.value) == f"compress_documents: {rule}, got {got} in item 3"


# Example selector

EXAMPLES = [{"input": f"input {i}", "output": f"output {i % 5}"} for i in range(15)]


@pytest.mark.parametrize("own", [False, True])
def test_selector_replaces_langchains(own):
    embedding, store = DeterministicFakeEmbedding(size=12), (ours if own else langchain).InMemoryVectorStore
    arguments = (EXAMPLES, embedding, store, 4, ["input"], 10)
    selector, reference = (
        kind.from_examples(*arguments) for kind in (ours.MaxMarginalRelevanceExampleSelector, TheirSelector)
    )
    assert isinstance(selector, TheirSelector)
    for each in (selector, reference):
        each.add_example({"input": "new", "output": "one"})
    question = {"input": "query", "other": "left out"}
    expected = reference.select_examples(question)
    assert both(selector, "select_examples", question) == expected
    made = asyncio.run(
        ours.MaxMarginalRelevanceExampleSelector.afrom_examples(
            EXAMPLES, embedding, store, k=4, input_keys=["input"], fetch_k=10
        )
    )
    asyncio.run(made.aadd_example({"input": "new", "output": "one"}))
    assert made.select_examples(question) == expected


def test_selector_takes_lambda_mult_and_bias():
    embedding = DeterministicFakeEmbedding(size=12)
    quality = np.linspace(-3, 0, len(EXAMPLES), dtype=np.float32)
    examples = [{**example, "quality": float(each)} for example, each in zip(EXAMPLES, quality, strict=True)]
    texts = [TheirSelector._example_to_text(example, None) for example in EXAMPLES]
    rows = np.array(embedding.embed_documents(texts), np.float32)
    query = np.array([embedding.embed_query("query")], np.float32)

    def select(**options):
        selector = ours.MaxMarginalRelevanceExampleSelector.from_examples(
            examples, embedding, langchain.InMemoryVectorStore, k=5, fetch_k=15, bias_key="quality", **options
        )
        return selector.select_examples({"input": "query"})

    expected = rk.mmr(query, rows, 5, bias=quality, lambda_d=0.3, lambda_b=0.6).indices[0]
    assert select(lambda_mult=0.3, lambda_b=0.6) == [EXAMPLES[i] for i in expected]
    assert select(lambda_mult=0.3, lambda_b=0.6) != select(lambda_mult=0.3, lambda_b=1.0)
    assert "quality" in select(example_keys=["input", "quality"])[0]
    best = select(lambda_mult=1.0, lambda_b=0.0)
    assert best == [EXAMPLES[i] for i in np.argsort(-quality)[:5]]


def test_selector_asks_a_store_without_vectors_for_its_own_search():
    class Store(Bare):
        def max_marginal_relevance_search(self, query, k=4, fetch_k=20, lambda_mult=0.5, **kwargs):
            self.asked = {"k": k, "fetch_k": fetch_k, "lambda_mult": lambda_mult, **kwargs}
            return [Document(page_content="", metadata={"input": "one"})]

    store = Store(DeterministicFakeEmbedding(size=12))
    selector = ours.MaxMarginalRelevanceExampleSelector(
        vectorstore=store, k=3, fetch_k=9, lambda_mult=0.2, vectorstore_kwargs={"filter": "x"}
    )
    for select in (selector.select_examples, lambda example: asyncio.run(selector.aselect_examples(example))):
        store.asked = None
        assert select({"input": "query"}) == [{"input": "one"}]
        assert store.asked == {"k": 3, "fetch_k": 9, "lambda_mult": 0.2, "filter": "x"}


@pytest.mark.parametrize(("factor", "told"), [(0.005, 1), (1, 0), (40, 1)])
def test_scores_on_another_scale_are_warned_of(factor, told):
    rng = np.random.default_rng(4)
    given = [
        Document(page_content=f"text {i}", metadata={"v": rng.standard_normal(8).tolist(), "s": factor * rng.random()})
        for i in range(30)
    ]
    compressor = ours.SelectionCompressor(embedding_key="v", relevance_key="s", k=4)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        compressor.compress_documents(given, "")
    assert [each.category for each in seen] == [rk.RelevanceRangeWarning] * told
