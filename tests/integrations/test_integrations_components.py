"""What the components of all libraries take, against calls of the rules; with the oldest libraries too."""

import asyncio
import re
import warnings

import numpy as np
import pytest
from backends import needs

import ragsys_kernels as rk
from ragsys_kernels.integrations import _options
from ragsys_kernels.selection.parameters import BY_NAME, RULES, SCALES, WEIGHTED

pytestmark = [
    needs("langchain_core", "llama_index", "haystack"),
    pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning"),
]

N, K = 24, 6
RNG = np.random.default_rng(7)
_centres = RNG.standard_normal((6, 5))
ROWS = (_centres[np.arange(N) % 6] + 0.4 * RNG.standard_normal((N, 5))).astype(np.float32)
QUERY = RNG.standard_normal(5).astype(np.float32)
SCORES = RNG.normal(0, 3, N).astype(np.float32)
BIAS = RNG.normal(0, 1, N).astype(np.float32)
GROUPS = [f"source {i}" for i in RNG.integers(0, 4, N)]
TEXTS = [f"{i} " + "word " * (1 + i % 5) for i in range(N)]
COSTS = np.array([len(text.split()) for text in TEXTS], np.float64)
QUALITY = RNG.uniform(0.5, 2, N).astype(np.float32)
METADATA = [
    {"i": i, "b": float(BIAS[i]), "g": GROUPS[i], "c": float(COSTS[i]), "q": float(QUALITY[i])} for i in range(N)
]


def words(text):
    """Count the words: costs of this are those of the metadata."""
    return len(text.split())


def tokens(text):
    return text.split()


def below_zero(text):
    return -1


def setup_module():
    """The libraries take seconds to load, and each process collects this file."""
    global Document, HaystackDocument, InMemoryVectorStore, Table, TextNode, NodeWithScore, QueryBundle
    global haystack, langchain, llama_index
    from haystack import Document as HaystackDocument
    from langchain_core.documents import Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.vectorstores import InMemoryVectorStore
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

    from ragsys_kernels.integrations import haystack, langchain, llama_index

    class Table(Embeddings):
        """Vectors by text; any other text is the query."""

        def __init__(self, texts=TEXTS, rows=ROWS):
            self.rows = dict(zip(texts, rows.tolist(), strict=True))

        def embed_query(self, text):
            return self.rows.get(text, QUERY.tolist())

        def embed_documents(self, texts):
            return [self.embed_query(text) for text in texts]


def of_compressor(by_score, **options):
    given = [
        Document(page_content=text, metadata={**each, "v": row.tolist(), "s": float(score)})
        for text, each, row, score in zip(TEXTS, METADATA, ROWS, SCORES, strict=True)
    ]
    own = {"relevance_key": "s"} if by_score else {}
    made = langchain.SelectionCompressor(k=K, embeddings=Table(), embedding_key="v", **own, **options)
    found = made.compress_documents(given, "query")
    assert asyncio.run(made.acompress_documents(given, "query")) == found
    return [each.metadata["i"] for each in found]


def store():
    metadata = [{**each, "s": float(score)} for each, score in zip(METADATA, SCORES, strict=True)]
    return InMemoryVectorStore.from_texts(TEXTS, Table(), metadatas=metadata)


def of_retriever(by_score, **options):
    own = {"relevance_key": "s"} if by_score else {}
    made = langchain.SelectionRetriever(vectorstore=store(), k=K, fetch_k=N, **own, **options)
    found = made.invoke("query")
    assert asyncio.run(made.ainvoke("query")) == found
    for_one_call = langchain.SelectionRetriever(vectorstore=store(), fetch_k=N)
    arguments = {"query": "query", "k": K, **own, **options}
    search = for_one_call._get_relevant_documents(run_manager=None, **arguments)
    assert [each.metadata for each in search] == [each.metadata for each in found]
    return [each.metadata["i"] for each in found]


def of_selector(by_score, **options):
    examples = [
        {"input": text, **each, "s": score} for text, each, score in zip(TEXTS, METADATA, SCORES.tolist(), strict=True)
    ]
    own = {"relevance_key": "s"} if by_score else {}
    made = langchain.MaxMarginalRelevanceExampleSelector.from_examples(
        examples, Table(), InMemoryVectorStore, k=K, fetch_k=N, input_keys=["input"], example_keys=["input"],
        **own, **options,
    )  # fmt: skip
    found = made.select_examples({"input": "query"})
    assert asyncio.run(made.aselect_examples({"input": "query"})) == found
    return [TEXTS.index(each["input"]) for each in found]


def of_llama_index(by_score, **options):
    given = [
        NodeWithScore(node=TextNode(text=text, metadata=each, excluded_llm_metadata_keys=[*each]), score=float(score))
        for text, each, score in zip(TEXTS, METADATA, SCORES, strict=True)
    ]
    for each, row in zip(given, ROWS, strict=True):
        each.node.embedding = row.tolist()
    own = {"relevance": "score"} if by_score else {}
    weight = {"mmr_threshold": options.pop("lambda_mult")} if "lambda_mult" in options else {}
    made = llama_index.SelectionPostprocessor(similarity_top_k=K, mmr_prefetch_k=N, **own, **weight, **options)
    if "token_counter" not in options:
        again = llama_index.SelectionPostprocessor.from_dict(made.to_dict())
        assert again.to_dict() == made.to_dict()
        made = llama_index.SelectionPostprocessor.from_json(made.to_json())
    found = made.postprocess_nodes(given, QueryBundle("query", embedding=QUERY.tolist()))
    return [each.node.metadata["i"] for each in found]


def of_haystack(by_score, **options):
    given = [
        HaystackDocument(content=text, meta=each, embedding=row.tolist(), score=float(score))
        for text, each, row, score in zip(TEXTS, METADATA, ROWS, SCORES, strict=True)
    ]
    own = {"relevance": "score"} if by_score else {}
    made = haystack.SelectionRanker(top_k=K, **own, **options)
    data = made.to_dict()
    again = made if "token_counter" in options else haystack.SelectionRanker.from_dict(data)
    assert again.to_dict() == data
    assert {name: data["init_parameters"][name] for name in options if name != "token_counter"} == {
        name: value for name, value in options.items() if name != "token_counter"
    }
    found = again.run(given, QUERY.tolist())["documents"]
    return [each.meta["i"] for each in found]


COMPONENTS = {
    "compressor": of_compressor, "retriever": of_retriever, "selector": of_selector, "llama_index": of_llama_index,
    "haystack": of_haystack,
}  # fmt: skip
component = pytest.mark.parametrize("picks_of", COMPONENTS.values(), ids=COMPONENTS)


def expected(method, by_score, weight=0.5, **arguments):
    if method in WEIGHTED:
        arguments["lambda_d"] = weight
    if by_score:
        arguments["relevance"] = SCORES[None]
    found = getattr(rk, method)(QUERY[None], ROWS, K, **arguments)
    return found.indices[0, : found.lengths[0]].tolist()


def value_of(parameter, method):
    """A value that is not the default."""
    if parameter.kind == "number":
        low, high = parameter.range_of(method)
        return 0.5 * (low + high) if high < np.inf and low > -np.inf else max(low, 0) + 0.3
    return parameter.choices[-1] if parameter.choices else {"count": 2, "flag": True}[parameter.kind]


@component
@pytest.mark.parametrize("method", RULES)
@pytest.mark.filterwarnings("ignore::ragsys_kernels.RelevanceRangeWarning")
def test_every_rule_with_every_option_picks_as_its_function_does(picks_of, method):
    groups = np.unique(GROUPS, return_inverse=True)[1]
    cases = [({}, {}), ({"lambda_mult": 0.3}, {"weight": 0.3})]
    if method in WEIGHTED:
        cases += [
            ({"bias_key": "b"}, {"bias": BIAS}),
            ({"bias_key": "b", "lambda_b": 0.4}, {"bias": BIAS, "lambda_b": 0.4}),
        ]
    if method == "dpp":
        cases.append(({"quality_key": "q"}, {"quality": QUALITY}))
    for parameter in _options.PARAMETERS:
        name = parameter.name
        if method not in parameter.rules or name == "lambda_b":
            continue
        same = {name: value_of(parameter, method)}
        if name in ("max_per_group", "min_per_group"):
            cases.append((same | {"group_key": "g"}, same | {"groups": groups}))
            named = {name: {"source 1": 1, "source 3": 2 if name == "min_per_group" else 0}}
            cases.append((named | {"group_key": "g"}, named | {"groups": GROUPS}))
        elif name in ("budget", "density"):
            same |= {"budget": 14.5}
            cases.append((same | {"cost_key": "c"}, same | {"costs": COSTS}))
            cases.append((same | {"token_counter": words}, same | {"costs": COSTS}))
        elif name != "relevance_scale":
            cases.append((same, same))
    changed = set()
    for by_score in (False, True):
        scales = [({"relevance_scale": x}, {"relevance_scale": x}) for x in SCALES] if by_score else []
        for options, arguments in cases + scales:
            best = expected(method, by_score, **arguments)
            assert picks_of(by_score, method=method, **options) == best, (options, by_score)
            if best != expected(method, by_score):
                changed |= {*options}
    # What does not change the picks here is not tested.
    of_rule = {"max_per_group", "max_similarity", "budget", "cost_key", "token_counter", "group_key"}
    assert {*(of_rule if method != "gist" else ()), *({"bias_key"} if method in WEIGHTED else ())} <= changed


def messages(name, options):
    """The errors of a component's constructor."""
    kinds = {
        "compressor": lambda **options: langchain.SelectionCompressor(embeddings=Table(), **options),
        "retriever": lambda **options: langchain.SelectionRetriever(vectorstore=store(), **options),
        "selector": lambda **options: langchain.MaxMarginalRelevanceExampleSelector(vectorstore=store(), **options),
        "llama_index": lambda **options: llama_index.SelectionPostprocessor(**options),
        "haystack": lambda **options: haystack.SelectionRanker(**options),
    }
    if name == "llama_index":
        options = {"mmr_threshold" if each == "lambda_mult" else each: x for each, x in options.items()}
    with pytest.raises((TypeError, ValueError)) as raised:
        kinds[name](**options)
    return str(raised.value)


CLASSES = {
    "compressor": "SelectionCompressor", "retriever": "SelectionRetriever", "llama_index": "SelectionPostprocessor",
    "selector": "MaxMarginalRelevanceExampleSelector", "haystack": "SelectionRanker",
}  # fmt: skip
WEIGHT = {"llama_index": "mmr_threshold"}
SCORE = {"llama_index": "relevance='score'", "haystack": "relevance='score'"}


@pytest.mark.parametrize("name", COMPONENTS)
def test_what_no_call_could_take_is_refused_when_a_component_is_made(name):
    weight, score = WEIGHT.get(name, "lambda_mult"), SCORE.get(name, "relevance_key")
    for options, told in (
        ({"method": "best"}, "method must be one of 'mmr', 'vrsd', 'msd', .*, got 'best'"),
        ({"lambda_mult": 2}, rf"{weight} must be within \[0, 1\], got 2"),
        ({"lambda_mult": "high"}, f"{weight} must be a number, got str"),
        ({"lambda_b": -1}, r"lambda_b must be within \[0, 1\], got -1"),
        ({"max_similarity": 2}, r"max_similarity must be within \[-1, 1\], got 2"),
        ({"max_similarity": [0.5]}, "max_similarity must be a number, got list"),
        ({"max_similarity": True}, "max_similarity must be a number, got bool"),
        ({"max_per_group": 0, "group_key": "g"}, "max_per_group must be at least 1, got 0"),
        ({"max_per_group": 1.5, "group_key": "g"}, "max_per_group must be an integer, got float"),
        ({"max_per_group": 1}, "max_per_group must come with group_key, got group_key=None"),
        ({"max_per_group": {"a": 1}}, "max_per_group must come with group_key, got group_key=None"),
        ({"max_per_group": {"a": -1}, "group_key": "g"}, "max_per_group must be at least 0 for each group, got -1"),
        ({"max_per_group": {"a": "1"}, "group_key": "g"}, "max_per_group must be an integer for each group, got str"),
        (
            {"max_per_group": {"a": 1, 2: 1}, "group_key": "g"},
            "max_per_group must name groups by strings, or by integers, got int, str",
        ),
        (
            {"max_per_group": {"a": 1}, "min_per_group": {"a": 2}, "group_key": "g"},
            "min_per_group must be at most max_per_group, got 2 above 1 for 'a'",
        ),
        ({"group_key": "g"}, "group_key must come with max_per_group or min_per_group, got 'g' alone"),
        ({"group_key": 3, "max_per_group": 1}, "group_key must be a string, got 3"),
        ({"budget": 10}, "budget must come with cost_key or token_counter, got neither"),
        ({"budget": -1, "cost_key": "c"}, "budget must be at least 0, got -1"),
        ({"cost_key": "c"}, "cost_key must come with a budget, got cost_key alone"),
        ({"token_counter": words}, "token_counter must come with a budget, got token_counter alone"),
        ({"token_counter": "words", "budget": 1}, "token_counter must be a function of a text, got 'words'"),
        ({"token_counter": words, "cost_key": "c", "budget": 1}, "token_counter must come without cost_key, got both"),
        ({"relevance_scale": "minmax"}, f"relevance_scale must come with {score}, got 'minmax' alone"),
        ({"relevance_scale": "log"}, "relevance_scale must be one of 'as-is', .*, got 'log'"),
        ({"window": 3}, "window must be left out with method 'mmr', got 3"),
        ({"method": "ssd", "window": 0}, "window must be at least 1, got 0"),
        ({"method": "vrsd", "bias_key": "b"}, "bias_key must be left out with method 'vrsd', got 'b'"),
        ({"method": "vrsd", "lambda_b": 0.3}, "lambda_b must be left out with method 'vrsd', got 0.3"),
        ({"quality_key": "q"}, "quality_key must be left out with method 'mmr', got 'q'"),
        ({"method": "gist", "max_similarity": 0.5}, "max_similarity must be left out with method 'gist', got 0.5"),
        ({"method": "gist", "token_counter": words, "budget": 9}, "token_counter must be left out with method 'gist'"),
        ({"method": "gist", "max_per_group": 1, "group_key": "g"}, "max_per_group must be left out with method 'gist'"),
        ({"method": "coverage", "gamma": 2}, r"gamma must be above 0 and at most 1, got 2"),
        ({"method": "coverage", "kind": "all"}, "kind must be one of .*, got 'all'"),
        ({"method": "coverage", "density": True}, "density must come with a budget, got budget=None"),
        ({"method": "sift", "noise": 0}, "noise must be above 0, got 0"),
    ):  # fmt: skip
        message = messages(name, options)
        assert re.search(f"{CLASSES[name]}: {told}", message), (options, message)
    for unknown in ("metric", "groups"):
        assert unknown in messages(name, {unknown: 1})


@component
def test_metadata_that_cannot_be_used_is_named(picks_of, monkeypatch):
    for key, bad, told in (
        ("g", None, "the metadata of every item must have 'g', got none in item"),
        ("g", ["a"], "the metadata of every item must have a name or number as 'g', got list in item"),
        ("g", ("a", ["b"]), "every item must have a name or number as 'g', got tuple in item"),
        ("c", "much", "must have a number of at least 0 as 'c', got 'much' in item"),
        ("c", -1.0, "must have a number of at least 0 as 'c', got -1.0 in item"),
        ("b", float("nan"), "must have a number within the range of float32 as 'b', got nan in item"),
    ):
        with monkeypatch.context() as patch:
            patch.setitem(METADATA[5], key, bad)
            limits = {"g": {"group_key": "g", "max_per_group": 1}, "c": {"cost_key": "c", "budget": 9}}
            with pytest.raises((TypeError, ValueError), match=told):
                picks_of(False, **limits.get(key, {"bias_key": key}))


@component
def test_names_of_groups_are_of_one_kind_and_integers_may_be_text(picks_of, monkeypatch):
    numbers = [i % 3 for i in range(N)]
    for each, number in zip(METADATA, numbers, strict=True):
        monkeypatch.setitem(each, "g", number)
    best = expected("mmr", False, groups=numbers, max_per_group={0: 1, 2: 3})
    for names in ({0: 1, 2: 3}, {"0": 1, "2": 3}):
        assert picks_of(False, group_key="g", max_per_group=names) == best
    with pytest.raises(TypeError, match="max_per_group must name groups by integers, as groups are, got 'a'"):
        picks_of(False, group_key="g", max_per_group={"a": 1})
    monkeypatch.setitem(METADATA[5], "g", "x")
    with pytest.raises(TypeError, match=r"of all items must have strings, or all integers, as 'g', got .* in item"):
        picks_of(False, group_key="g", max_per_group={0: 1})


@component
def test_a_tokenizer_is_no_counter(picks_of):
    with pytest.raises(TypeError, match="what token_counter returns must be a number, got list"):
        picks_of(False, token_counter=tokens, budget=20)
    with pytest.raises(ValueError, match="what token_counter returns must be at least 0, got -1"):
        picks_of(False, token_counter=below_zero, budget=20)


def test_groups_are_any_names():
    names = ["1", 1, 2.5, ("a", "b"), None]
    given = [
        HaystackDocument(id=str(i), content="", meta={"g": names[i % 4]}, embedding=row.tolist())
        for i, row in enumerate(ROWS)
    ]
    found = haystack.SelectionRanker(top_k=10, group_key="g", max_per_group=2).run(given, QUERY.tolist())["documents"]
    best = rk.mmr(QUERY[None], ROWS, 10, groups=np.arange(N) % 4, max_per_group=2, lambda_d=0.5)
    assert [int(each.id) for each in found] == best.indices[0, :8].tolist()


@component
def test_warnings_are_those_of_what_was_asked_for(picks_of):
    def seen(**options):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            count = len(picks_of(True, **options))
        return {each.category for each in told} & {rk.PoolSizeWarning, rk.RelevanceRangeWarning}, count

    assert seen() == ({rk.RelevanceRangeWarning}, K)
    assert seen(relevance_scale="minmax") == (set(), K)


def test_relevance_on_the_scale_that_was_asked_for_is_not_warned_of():
    """One score among so many is twelve standard deviations from the others."""
    rows = np.random.default_rng(3).standard_normal((150, 5)).tolist()
    given = [HaystackDocument(id=str(i), embedding=row, score=float(i == 7)) for i, row in enumerate(rows)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", rk.RelevanceRangeWarning)
        ranker = haystack.SelectionRanker(top_k=3, relevance="score", relevance_scale="zscore")
        assert ranker.run(given, QUERY.tolist())["documents"][0].id == "7"


def test_a_pool_no_larger_than_k_warns_unless_a_limit_leaves_items_out():
    given = [HaystackDocument(content=text, embedding=row.tolist()) for text, row in zip(TEXTS, ROWS, strict=True)]
    with pytest.warns(rk.PoolSizeWarning, match=f"the pool of {N} is no larger than k = 50,"):
        haystack.SelectionRanker(top_k=50, max_similarity=1).run(given, QUERY.tolist())
    with warnings.catch_warnings():
        warnings.simplefilter("error", rk.PoolSizeWarning)
        found = haystack.SelectionRanker(top_k=50, max_similarity=0.5).run(given, QUERY.tolist())["documents"]
    assert 0 < len(found) < N


# LangChain


@pytest.mark.parametrize("method", ["mmr", "msd", "coverage", "gist"])
def test_documents_with_vectors_and_relevance_need_no_embeddings(method):
    given = [
        Document(page_content=text, metadata={"v": row.tolist(), "s": float(score) / 9})
        for text, row, score in zip(TEXTS, ROWS, SCORES, strict=True)
    ]
    made = langchain.SelectionCompressor(k=K, embedding_key="v", relevance_key="s", method=method)
    best = getattr(rk, method)(None, ROWS, K, relevance=SCORES[None] / 9, lambda_d=0.5)
    assert [TEXTS.index(each.page_content) for each in made.compress_documents(given, "")] == best.indices[0].tolist()


def test_numbers_are_no_part_of_an_example_and_groups_are():
    keys = {"relevance_key": "s", "bias_key": "b", "cost_key": "c", "group_key": "g"}
    examples = [
        {"input": text, "s": float(s), "b": 0.5, "c": 1, "g": g}
        for text, s, g in zip(TEXTS, SCORES, GROUPS, strict=True)
    ]
    made = langchain.MaxMarginalRelevanceExampleSelector.from_examples(
        examples, Table(), InMemoryVectorStore, k=1, fetch_k=N, budget=3, max_per_group=1, lambda_mult=1.0, **keys
    )
    best = int(np.argmax(SCORES))
    assert made.select_examples({"input": "query"}) == [{"g": GROUPS[best], "input": TEXTS[best]}]
    made.add_example({"input": "new", "s": 99.0, "b": 0.5, "c": 1, "g": "other"})
    made.fetch_k += 1
    assert made.select_examples({"input": "query"}) == [{"g": "other", "input": "new"}]


def test_the_text_of_an_example_is_of_strings():
    """A group that is a number is no text; anything else that is none is named, where LangChain says "item 1"."""
    examples = [{"input": text, "page": i % 3} for i, text in enumerate(TEXTS)]
    make = langchain.MaxMarginalRelevanceExampleSelector.from_examples
    made = make(examples, Table(), InMemoryVectorStore, k=3, fetch_k=N, group_key="page", max_per_group=1)
    assert sorted(each["page"] for each in made.select_examples({"input": "query"})) == [0, 1, 2]
    told = (
        "^MaxMarginalRelevanceExampleSelector: an example must have strings as its text, got 0 as 'page'; input_keys "
    )
    with pytest.raises(TypeError, match=told):
        make(examples, Table(), InMemoryVectorStore, k=3)
    made = make(examples, Table(), InMemoryVectorStore, k=3, input_keys=["input"])
    assert len(made.select_examples({"input": "query"})) == 3
    made.input_keys = None
    with pytest.raises(TypeError, match=told):
        made.add_example({"input": "new", "page": 0})


# LlamaIndex


def nodes():
    made = [NodeWithScore(node=TextNode(text=text), score=float(s)) for text, s in zip(TEXTS, SCORES, strict=True)]
    for each, row in zip(made, ROWS, strict=True):
        each.node.embedding = row.tolist()
    return made


def test_nodes_with_scores_need_no_query():
    by_score = {"similarity_top_k": 4, "mmr_threshold": 1.0, "relevance": "score"}
    given = nodes()
    best = [given[i].node_id for i in np.argsort(-SCORES)[:4]]
    made = llama_index.SelectionPostprocessor(**by_score)
    assert [each.node_id for each in made.postprocess_nodes(given)] == best
    for method in ("vrsd", "sift"):
        made = llama_index.SelectionPostprocessor(**by_score, method=method)
        with pytest.raises(ValueError, match="query_bundle must be given, got None"):
            made.postprocess_nodes(given)
    given[3].score = None
    made = llama_index.SelectionPostprocessor(**by_score)
    with pytest.raises(ValueError, match=f"every node must have a score, got none for {given[3].node_id}"):
        made.postprocess_nodes(given)


def test_a_token_counter_is_not_saved_with_the_postprocessor():
    made = llama_index.SelectionPostprocessor(token_counter=words, budget=20)
    data = made.to_dict()
    assert "token_counter" not in data
    with pytest.raises(ValueError, match="budget must come with cost_key or token_counter, got neither"):
        llama_index.SelectionPostprocessor.from_dict(data)
    assert llama_index.SelectionPostprocessor.from_dict(data, token_counter=words).to_dict() == data


# Haystack


def test_a_pipeline_with_options_is_saved_and_loaded():
    from haystack import Pipeline

    pipeline = Pipeline()
    pipeline.add_component(
        "select", haystack.SelectionRanker(5, token_counter=words, budget=np.float32(12), max_similarity=0.9)
    )
    given = [HaystackDocument(content=text, embedding=row.tolist()) for text, row in zip(TEXTS, ROWS, strict=True)]
    data = {"select": {"documents": given, "query_embedding": QUERY.tolist()}}
    loaded = Pipeline.loads(pipeline.dumps(), allowed_modules=["ragsys_kernels.integrations.haystack", __name__])
    assert loaded.run(data) == pipeline.run(data)
    assert BY_NAME["budget"].name in pipeline.dumps()


# Example selectors


def repeated(count=3):
    """Each example several times, in a store of vectors."""
    examples = [{"input": text, "output": str(i % 4)} for i, text in enumerate(TEXTS)]
    texts = [f"{each['input']} {each['output']}" for each in examples]
    return examples, [examples[i % N] for i in range(count * N)], Table(texts, ROWS)


@pytest.mark.parametrize(
    "options", [{}, {"lambda_mult": 1.0}, {"method": "msd", "lambda_mult": 1.0}, {"token_counter": words, "budget": 20}]
)
def test_selectors_leave_out_repeats(options):
    examples, several, table = repeated()
    make = langchain.MaxMarginalRelevanceExampleSelector.from_examples
    made = make(several, table, InMemoryVectorStore, k=5, fetch_k=3 * N, **options)
    once = make(examples, table, InMemoryVectorStore, k=5, fetch_k=N, **options)
    found = made.select_examples({"input": "query"})
    assert found == asyncio.run(made.aselect_examples({"input": "query"})) == once.select_examples({"input": "query"})
    assert len({each["input"] for each in found}) == len(found) >= 4
    if "budget" in options:  # of all entries of an example
        best = rk.mmr(QUERY[None], ROWS, 5, costs=COSTS + 1, budget=20, lambda_d=0.5)
        assert [TEXTS.index(each["input"]) for each in found] == best.indices[0, : best.lengths[0]].tolist()
    # It is the inputs alone that are embedded, here.
    table.rows = {text: table.rows[f"{text} {i % 4}"] for i, text in enumerate(TEXTS)}
    made = make(several, table, InMemoryVectorStore, k=5, fetch_k=3 * N, input_keys=["input"], **options)
    assert made.select_examples({"input": "query"}) == found
    # The same input with another output is no repeat.
    few = [{"input": "a", "output": str(i)} for i in range(3)]
    made = make(few, table, InMemoryVectorStore, k=3, input_keys=["input"])
    assert len(made.select_examples({"input": "query"})) == 3


def test_selectors_leave_out_repeats_of_a_store_that_selects():
    examples, several, table = repeated()
    inner = InMemoryVectorStore.from_texts([f"{x['input']} {x['output']}" for x in several], table, metadatas=several)
    asked = []

    class Store(type(inner).__mro__[1]):
        """A store that has no vectors to give."""

        embeddings = None

        def max_marginal_relevance_search(self, query, **kwargs):
            asked.append(kwargs["k"])
            return inner.max_marginal_relevance_search(query, **kwargs)

        async def amax_marginal_relevance_search(self, query, **kwargs):
            return self.max_marginal_relevance_search(query, **kwargs)

        def similarity_search(self, *arguments, **kwargs):
            raise AssertionError("it selects itself")

        from_texts = similarity_search

    made = langchain.MaxMarginalRelevanceExampleSelector(vectorstore=Store(), k=5, fetch_k=3 * N, lambda_mult=0.7)
    reference = langchain.MaxMarginalRelevanceExampleSelector.from_examples(
        examples, table, InMemoryVectorStore, k=5, fetch_k=N, lambda_mult=0.7
    )
    for select in (made.select_examples, lambda example: asyncio.run(made.aselect_examples(example))):
        assert select({"input": "query"}) == reference.select_examples({"input": "query"})
    assert asked == [5, 3 * N] * 2
    for options in ({"relevance_key": "s"}, {"max_similarity": 0.9}, {"method": "msd"}):  # it can't
        made = langchain.MaxMarginalRelevanceExampleSelector(vectorstore=Store(), **options)
        with pytest.raises(ValueError, match="embeddings must be set to search by text, got None"):
            made.select_examples({"input": "query"})
    assert len(asked) == 4
