"""The Haystack rankers against the installed Haystack and its integrations."""

import inspect
import logging
import sys
import warnings
from dataclasses import replace
from enum import Enum

import numpy as np
import pytest
from backends import needs
from peer_pools import POOLS, check, mmr_values, unit

import ragsys_kernels as rk
from ragsys_kernels.integrations import pyversity as ours_of_pyversity

pytestmark = [needs("haystack"), pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")]


def setup_module():
    """Haystack takes a second to load, and each process collects this file."""
    global DeserializationError, Document, Pipeline, ours
    from haystack import Document, Pipeline
    from haystack.core.errors import DeserializationError

    from ragsys_kernels.integrations import haystack as ours


def documents(rows, scores=None):
    scores = [None] * len(rows) if scores is None else scores
    return [
        Document(id=str(i), content=f"text {i}", embedding=row.tolist(), score=score, meta={"quality": -(i % 5) / 3})
        for i, (row, score) in enumerate(zip(rows, scores, strict=True))
    ]


def picked(answer):
    return [int(each.id) for each in answer["documents"]]


class Model:
    """A model of sentence-transformers that makes a row of each text, and remembers the texts."""

    def __init__(self, row):
        self.row, self.asked = row, []

    def encode(self, texts, convert_to_tensor=False, **_):
        import torch

        self.asked += texts
        found = torch.tensor(np.array([self.row(text) for text in texts], np.float32))
        return found if convert_to_tensor else found.numpy()


def embedder(kind):
    """A ranker of sentence-transformers whose model is a table: the text of document i is row i, else the query."""

    def make(query, rows, **options):
        ranker = kind(model="none", **options)
        ranker.model = Model(lambda text: rows[int(text[5:])] if text.startswith("text ") else query)
        return ranker

    return make


# SentenceTransformersDiversityRanker


@pytest.fixture(scope="module")
def theirs():
    module = pytest.importorskip("haystack_integrations.components.rankers.sentence_transformers")
    return module.SentenceTransformersDiversityRanker


@pytest.mark.parametrize("similarity", ["cosine", "dot_product"])
@pytest.mark.parametrize("strategy", ["greedy_diversity_order", "maximum_margin_relevance"])
def test_diversity_ranker_ranks_as_haystacks(theirs, strategy, similarity):
    for pool in POOLS:
        if not pool.rows.any(axis=1).all():  # theirs fails
            continue
        rows, query = pool.rows / np.linalg.norm(pool.rows, axis=1).max(), pool.query
        e, q = (unit(rows), unit(query)) if similarity == "cosine" else (rows, query)
        for weight in (0.0,) if strategy.startswith("greedy") else (0.0, 0.3, 1.0):
            options = {"strategy": strategy, "similarity": similarity, "lambda_threshold": weight, "top_k": 6}
            mine, reference = (
                embedder(kind)(query, rows, **options) for kind in (ours.SentenceTransformersDiversityRanker, theirs)
            )
            given = documents(rows)
            expected = picked(reference.run("query", given))
            values = mmr_values(e @ q, e @ e.T, weight, np.sum if strategy.startswith("greedy") else np.max)
            # The sums of the other strategy are divided by N there.
            exact = pool.exact and similarity == "cosine" and strategy == "maximum_margin_relevance"
            bare = [replace(each, embedding=None) for each in given]
            for answer, count in (
                (mine.run("query", given), 6),
                (mine.run("query", bare), 6),
                (mine.run("query", given, query_embedding=query.tolist()), 6),
                (mine.run("query", given, top_k=2), 2),
            ):
                check(picked(answer), expected[:count], values, first=e @ q, exact=exact)


def test_diversity_ranker_has_haystacks_arguments(theirs):
    mine, reference = (
        {p.name: p.default for p in inspect.signature(kind.__init__).parameters.values() if p.name != "self"}
        for kind in (ours.SentenceTransformersDiversityRanker, theirs)
    )
    assert str(mine.pop("token")) == str(reference.pop("token"))
    assert mine == {**reference, "use_document_embeddings": True}
    mine, reference = (
        [*inspect.signature(kind.run).parameters] for kind in (ours.SentenceTransformersDiversityRanker, theirs)
    )
    assert mine == [*reference, "query_embedding"]
    ranker = ours.SentenceTransformersDiversityRanker(strategy="vrsd", meta_fields_to_embed=["title"])
    data = ranker.to_dict()
    reference = theirs(meta_fields_to_embed=["title"]).to_dict()["init_parameters"]
    reference |= {"strategy": "vrsd", "use_document_embeddings": True}
    assert data["init_parameters"] == reference
    assert ours.SentenceTransformersDiversityRanker.from_dict(data).to_dict() == data
    half = pytest.importorskip("torch").float16
    ranker = ours.SentenceTransformersDiversityRanker(model_kwargs={"torch_dtype": half})
    assert ranker.to_dict()["init_parameters"]["model_kwargs"] == {"torch_dtype": "torch.float16"}
    assert ranker.model_kwargs["torch_dtype"] is half
    Strategy = type(theirs().strategy)
    assert ours.SentenceTransformersDiversityRanker(strategy=Strategy.MAXIMUM_MARGIN_RELEVANCE).strategy == str(
        Strategy.MAXIMUM_MARGIN_RELEVANCE
    )


def test_diversity_ranker_has_haystacks_attributes_and_methods(theirs):
    from haystack.utils import ComponentDevice

    options = {"strategy": "maximum_margin_relevance", "similarity": "dot_product", "query_prefix": "q: "}
    mine, reference = (kind(model="name", **options) for kind in (ours.SentenceTransformersDiversityRanker, theirs))
    assert mine.model_name_or_path == reference.model_name_or_path == "name"
    assert mine.model is reference.model is None
    assert mine.device == reference.device == ComponentDevice.resolve_device(None)
    assert {*vars(reference)} <= {*vars(mine)}
    for name in ("similarity", "strategy"):
        own, other = getattr(mine, name), getattr(reference, name)
        assert isinstance(own, Enum)
        assert (own.name, own.value, str(own)) == (other.name, other.value, str(other))
        assert own == other.value
    for kind in (ours.DiversityRankingSimilarity, ours.DiversityRankingStrategy):
        other = type(getattr(reference, "similarity" if "Similarity" in kind.__name__ else "strategy"))
        assert kind.__name__ == other.__name__
        assert {each.name: each.value for each in other}.items() <= {each.name: each.value for each in kind}.items()
        assert all(kind.from_str(each.value) is kind[each.name] for each in other)
    rows = np.array([[1.0, 0.0], [0.8, 0.8], [0.0, 1.0]])
    given = documents(rows)
    mine, reference = (
        embedder(kind)(np.ones(2), rows, similarity="cosine")
        for kind in (ours.SentenceTransformersDiversityRanker, theirs)
    )
    assert mine._prepare_texts_to_embed(given) == reference._prepare_texts_to_embed(given)
    assert mine._greedy_diversity_order("query", given) == reference._greedy_diversity_order("query", given)
    for weight in (0, 1):
        found, expected = (each._maximum_margin_relevance("query", given, weight, 3) for each in (mine, reference))
        assert found == expected


def test_diversity_rankers_errors_are_in_haystacks_words(theirs):
    kinds = (ours.SentenceTransformersDiversityRanker, theirs)

    def message(call):
        with pytest.raises(ValueError) as raised:
            call()
        return str(raised.value)

    def both(call):
        own, other = (message(lambda kind=kind: call(kind)) for kind in kinds)
        assert own.startswith(f"SentenceTransformersDiversityRanker: {other.partition('are: [')[0]}")

    for options in (
        {"top_k": 0},
        {"top_k": None},
        {"similarity": "l2"},
        {"strategy": "best"},
        {"strategy": "maximum_margin_relevance", "lambda_threshold": 2},
    ):
        both(lambda kind, options=options: kind(**options))
    for options in ({"top_k": -1}, {"lambda_threshold": -1}):
        both(
            lambda kind, options=options: embedder(kind)(
                np.ones(4), np.eye(4), strategy="maximum_margin_relevance"
            ).run("query", documents(np.eye(4)), **options)
        )


def test_model_is_loaded_once_as_haystack_loads_it(theirs, monkeypatch):
    calls = []

    def loaded(**options):
        calls.append(options)
        return object()

    from haystack.utils import ComponentDevice

    options = {
        "model": "name", "device": ComponentDevice.from_str("cuda:0"), "token": None, "backend": "onnx",
        "model_kwargs": {"file_name": "a.onnx"}, "tokenizer_kwargs": {"b": 1}, "config_kwargs": {"c": 2},
    }  # fmt: skip
    monkeypatch.setattr(inspect.getmodule(theirs.warm_up), "SentenceTransformer", loaded)
    monkeypatch.setattr(ours, "SentenceTransformer", loaded)
    for kind in (theirs, ours.SentenceTransformersDiversityRanker):
        ranker = kind(**options)
        ranker.warm_up()
        model = ranker.model
        ranker.warm_up()
        assert ranker.model is model
    assert len(calls) == 2
    assert calls[0] == calls[1]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tensors_of_a_model_are_taken_in_any_type(dtype):
    torch = pytest.importorskip("torch")

    class Typed(Model):
        def encode(self, texts, convert_to_tensor=False):
            assert convert_to_tensor
            return super().encode(texts, True).to(getattr(torch, dtype))

    ranker = ours.SentenceTransformersDiversityRanker(top_k=2)
    ranker.model = Typed(lambda text: [1.0, len(text)])
    given = [Document(content="a"), Document(content="four", embedding=[1.0, 4.0]), Document(content="b" * 30)]
    assert [each.content for each in ranker.run("abcd", given)["documents"]] == ["four", "a"]


@pytest.mark.parametrize(
    ("kind", "type_"),
    [
        (
            "SentenceTransformersDiversityRanker",
            "haystack_integrations.components.rankers.sentence_transformers.sentence_transformers_diversity",
        ),
        ("SentenceTransformersDiversityRanker", "haystack.components.rankers.sentence_transformers_diversity"),
        ("PyversityRanker", "haystack_integrations.components.rankers.pyversity.ranker"),
    ],
)
def test_what_haystacks_class_saved_is_loaded(kind, type_):
    ranker = getattr(ours, kind)(top_k=3)
    data = ranker.to_dict() | {"type": f"{type_}.{kind}"}
    loaded = getattr(ours, kind).from_dict(data)
    assert type(loaded) is type(ranker)
    assert loaded.to_dict() == ranker.to_dict()
    for wrong in (f"{type_}.OtherRanker", f"elsewhere.{kind}"):
        with pytest.raises(DeserializationError):
            getattr(ours, kind).from_dict(data | {"type": wrong})


def test_in_haystacks_place_the_rankers_do_not_ask_themselves(theirs, monkeypatch):
    reference = pytest.importorskip("haystack_integrations.components.rankers.pyversity").PyversityRanker
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((20, 6))
    given = documents(rows, rng.random(20).tolist())
    expected = [
        picked(embedder(theirs)(np.ones(6), rows).run("query", given)),
        picked(reference(4, strategy="dpp").run(given)),
    ]
    import pyversity

    for kind in (theirs, reference):
        monkeypatch.setitem(sys.modules, kind.__module__, ours)
        monkeypatch.setitem(sys.modules, kind.__module__.rpartition(".")[0], ours)
    monkeypatch.setitem(sys.modules, pyversity.__name__, ours_of_pyversity)
    from haystack_integrations.components.rankers.pyversity import PyversityRanker
    from haystack_integrations.components.rankers.sentence_transformers import SentenceTransformersDiversityRanker

    assert PyversityRanker is ours.PyversityRanker
    found = [
        picked(embedder(SentenceTransformersDiversityRanker)(np.ones(6), rows).run("query", given)),
        picked(PyversityRanker(4, strategy="dpp").run(given)),
    ]
    assert found == expected


def test_diversity_ranker_embeds_the_text_that_haystack_does(theirs):
    options = {
        "query_prefix": "q: ", "query_suffix": " ?", "document_prefix": "d: ", "document_suffix": " .",
        "meta_fields_to_embed": ["title", "absent", "year"], "embedding_separator": " | ",
    }  # fmt: skip
    given = [
        Document(content="one", meta={"title": "t", "year": 1998}),
        Document(content=None, meta={"title": None}),
        Document(content="three", embedding=[1.0, 2.0]),
    ]

    def texts(ranker):
        ranker.model = Model(lambda text: [1.0, len(text)])
        ranker.run("what", given)
        return ranker.model.asked

    expected = texts(theirs(**options))
    assert texts(ours.SentenceTransformersDiversityRanker(**options, use_document_embeddings=False)) == expected
    assert texts(ours.SentenceTransformersDiversityRanker(**options)) == [
        text for text in expected if "three" not in text
    ]


def test_diversity_ranker_keeps_the_best_of_each_id_and_knows_zero_vectors(theirs):
    rows = np.random.default_rng(0).standard_normal((6, 4))
    given = documents(rows, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    given = [given[0], replace(given[1], id="0"), given[2], replace(given[3], id="2", score=None), *given[4:]]
    options = {"strategy": "maximum_margin_relevance"}
    mine, reference = (
        embedder(kind)(np.ones(4), rows, **options) for kind in (ours.SentenceTransformersDiversityRanker, theirs)
    )
    expected = [each.content for each in reference.run("query", given)["documents"]]
    found = mine.run("query", given)["documents"]
    assert [each.content for each in found] == expected
    assert "text 1" in expected
    assert "text 3" not in expected
    assert mine.run("query", []) == {"documents": []}
    # Of equal scores of one id the first counts.
    for scores in ([0.3, 0.3, 0.3], [None, None, None], [0.0, 0.5, 0.5], [0.0, -0.0, None]):
        twins = [replace(each, id="one") for each in documents(rows[:3], scores)]
        kept = [ranker.run("query", twins)["documents"] for ranker in (mine, reference)]
        assert [each.content for each in kept[0]] == [each.content for each in kept[1]]
        assert len(kept[0]) == 1
    rows[2] = 0
    answer = embedder(ours.SentenceTransformersDiversityRanker)(np.ones(4), rows).run("query", documents(rows))
    assert sorted(picked(answer)) == [0, 1, 2, 3, 4, 5]
    vrsd = ours.SentenceTransformersDiversityRanker(strategy="vrsd", top_k=3)
    answer = vrsd.run("query", documents(rows), query_embedding=[1.0] * 4)
    assert picked(answer) == rk.vrsd(np.ones((1, 4), np.float32), rows.astype(np.float32), 3).indices[0].tolist()


def test_diversity_ranker_errors():
    kind = ours.SentenceTransformersDiversityRanker
    ranker = embedder(kind)(np.ones(4), np.eye(4), strategy="maximum_margin_relevance")
    given = documents(np.eye(4))
    with pytest.raises(ValueError, match="must have the query's 3 dimensions, got 4; use_document_embeddings=False"):
        ranker.run("query", given, query_embedding=[1.0] * 3)


# PyversityRanker


def test_pyversity_ranker_ranks_as_haystacks(caplog):
    reference = pytest.importorskip("haystack_integrations.components.rankers.pyversity").PyversityRanker
    from pyversity import Strategy

    rng = np.random.default_rng(0)
    given = documents(rng.standard_normal((20, 6)), rng.random(20).tolist())
    given[4], given[7] = replace(given[4], score=None), replace(given[7], embedding=None)
    for strategy in Strategy:
        for top_k in (None, 3, 50):
            mine, theirs = (kind(top_k, strategy=strategy, diversity=0.6) for kind in (ours.PyversityRanker, reference))
            found, expected = mine.run(given)["documents"], theirs.run(given)["documents"]
            # After as many picks as dimensions nothing but rounding is left to these, of which SSD adds one.
            told = {Strategy.DPP: 6, Strategy.SSD: 7}.get(strategy)
            assert [each.id for each in found][:told] == [each.id for each in expected][:told]
            assert {each.id for each in found} == {each.id for each in expected}
            scores = [each.score for each in found], [each.score for each in expected]
            np.testing.assert_allclose(*(values[:told] for values in scores), atol=3e-6)
            data = mine.to_dict()
            assert data["init_parameters"] == theirs.to_dict()["init_parameters"]
            assert ours.PyversityRanker.from_dict(data).to_dict() == data
        mine, theirs = (kind(strategy=strategy) for kind in (ours.PyversityRanker, reference))
        found, expected = (ranker.run(given, 4, Strategy.MSD, 0.9)["documents"] for ranker in (mine, theirs))
        assert [each.id for each in found] == [each.id for each in expected]
    with caplog.at_level(logging.WARNING):
        caplog.clear()
        ours.PyversityRanker(strategy="mmr").run(given)
    assert "2 document(s) without 'score' or 'embedding' are skipped" in caplog.text
    assert ours.PyversityRanker().run([]) == ours.PyversityRanker().run(given[4:5]) == {"documents": []}
    for options, message in (
        ({"top_k": 0}, "top_k must be a positive integer, got 0"),
        ({"diversity": 2}, "diversity must be in"),
        ({"strategy": "nope"}, r"^PyversityRanker: strategy must be one of \['mmr', .*\], got 'nope'$"),
    ):
        with pytest.raises(ValueError, match=message):
            ours.PyversityRanker(**options)
        with pytest.raises(ValueError, match=message):
            ours.PyversityRanker(strategy="mmr").run(given, **options)


@pytest.mark.parametrize("kind", ["SelectionRanker", "PyversityRanker", "SentenceTransformersDiversityRanker"])
def test_only_a_number_that_is_asked_for_may_be_too_large(kind):
    rng = np.random.default_rng(0)
    given, ranker = documents(rng.standard_normal((6, 8)), rng.random(6).tolist()), getattr(ours, kind)
    choices = {"PyversityRanker": ours.Strategy, "SentenceTransformersDiversityRanker": ours.DiversityRankingStrategy}
    strategies = [{"strategy": each} for each in choices.get(kind, ())] or [{}]
    query = {} if kind == "PyversityRanker" else {"query_embedding": [1.0] * 8}
    if kind == "SentenceTransformersDiversityRanker":
        query["query"] = "query"
    of_all = () if "query" in query else ((None, 6),)
    for options in strategies:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for top_k, number in (*of_all, (5, 5)):
                assert len(ranker(top_k=top_k, **options).run(documents=given, **query)["documents"]) == number
        with pytest.warns(rk.PoolSizeWarning, match="the pool of 6 is no larger than k = 10,") as seen:
            ranker(top_k=10, **options).run(documents=given, **query)
        assert len(seen) == 1


# SelectionRanker


@pytest.mark.parametrize("method", ["mmr", "vrsd"])
def test_selection_ranker_selects_by_the_op(method):
    rng = np.random.default_rng(1)
    rows, query = rng.standard_normal((15, 6)).astype(np.float32), rng.standard_normal(6).astype(np.float32)
    scores = rng.random(15).astype(np.float32)
    given = documents(rows, scores.tolist())
    weights = {"lambda_d": 0.3} if method == "mmr" else {}
    for relevance in ("embedding", "score"):
        ranker = ours.SelectionRanker(4, method=method, lambda_mult=0.3, relevance=relevance)
        found = ranker.run(given, query.tolist())
        values = None if relevance == "embedding" else scores[None]
        expected = getattr(rk, method)(query[None], rows, 4, relevance=values, **weights)
        assert picked(found) == expected.indices[0].tolist()
        np.testing.assert_allclose([each.score for each in found["documents"]], expected.scores[0], rtol=1e-6)
        assert picked(ranker.run(given, query.tolist(), top_k=2)) == picked(found)[:2]
    assert given[0].score == scores[0]


def test_selection_ranker_with_bias_in_a_pipeline_that_is_saved_and_loaded():
    rows = np.random.default_rng(2).standard_normal((15, 6)).astype(np.float32)
    quality = np.array([-(i % 5) / 3 for i in range(15)], np.float32)
    pipeline = Pipeline()
    pipeline.add_component("select", ours.SelectionRanker(6, bias_key="quality", lambda_b=0.5))
    pipeline.add_component("rank", ours.PyversityRanker(3, strategy="mmr"))
    pipeline.connect("select.documents", "rank.documents")
    data = {"select": {"documents": documents(rows), "query_embedding": rows[0].tolist(), "lambda_mult": 0.8}}
    answer = pipeline.run(data, include_outputs_from={"select"})
    expected = rk.mmr(rows[:1], rows, 6, bias=quality, lambda_d=0.8, lambda_b=0.5)
    assert picked(answer["select"]) == expected.indices[0].tolist()
    assert len(answer["rank"]["documents"]) == 3
    loaded = Pipeline.loads(pipeline.dumps(), allowed_modules=["ragsys_kernels.integrations.haystack"])
    assert loaded.run(data, include_outputs_from={"select"}) == answer


def test_selection_ranker_errors():
    given = documents(np.eye(4))
    assert ours.SelectionRanker().run([], [1.0] * 4) == {"documents": []}
    for options in ({"top_k": 0}, {"method": "top"}, {"lambda_mult": 2}, {"lambda_b": -1}, {"relevance": "rank"}):
        name, value = next(iter(options.items()))
        with pytest.raises(ValueError, match=f"SelectionRanker: {name} must .*got {value!r}"):
            ours.SelectionRanker(**options)
    for options in ({"top_k": 0}, {"lambda_mult": 2}):
        with pytest.raises(ValueError, match=next(iter(options))):
            ours.SelectionRanker().run(given, [1.0] * 4, **options)
    with pytest.raises(ValueError, match="every document must have score, got none for 0"):
        ours.SelectionRanker(relevance="score").run(given, [1.0] * 4)
    with pytest.raises(ValueError, match="every document must have embedding, got none for 2"):
        ours.SelectionRanker().run([*given[:2], replace(given[2], embedding=None)], [1.0] * 4)
    with pytest.raises(ValueError, match="metadata of every item must have 'other'"):
        ours.SelectionRanker(bias_key="other").run(given, [1.0] * 4)


@pytest.mark.parametrize("scale", ["logits", "reciprocal ranks", "probabilities"])
def test_scores_on_another_scale_are_warned_of(scale):
    rng = np.random.default_rng(4)
    scores = {
        "logits": rng.normal(0, 6, 30), "reciprocal ranks": 1 / (60 + rng.permutation(30)),
        "probabilities": rng.uniform(0, 1, 30),
    }[scale]  # fmt: skip
    rows, query = rng.standard_normal((30, 8)), rng.standard_normal(8).tolist()
    selection = ours.SelectionRanker(top_k=4, relevance="score")
    pyversity = ours.PyversityRanker(top_k=4, strategy="mmr")
    told = scale != "probabilities"
    # pyversity cuts cosines at 0, and of the many items at 0 the one of most relevance is picked, however narrow it is.
    for ranker, of_rows, expected in (
        (selection, rows, told), (selection, abs(rows), told), (pyversity, abs(rows), told),
        (pyversity, rows, scale == "logits"),
    ):  # fmt: skip
        given = documents(of_rows, scores.tolist())
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            ranker.run(given, query) if ranker is selection else ranker.run(given)
        assert [each.category for each in seen] == [rk.RelevanceRangeWarning] * expected
