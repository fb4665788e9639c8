"""``/rerank`` and its kin: selection in the shapes of rerank services, whatever order the documents come in."""

import base64

import httpx
import numpy as np
import orjson
import pytest
import servers

import ragsys_kernels as rk
from ragsys_kernels.serving.encoder import Encoder

N, D = 120, 16
RNG = np.random.default_rng(21)
ROWS = RNG.standard_normal((N, D), dtype=np.float32)
ROWS[40:80] = ROWS[:40]  # ties, which must go to the lower id
IDS = RNG.permutation(np.arange(1000, 1000 + N))
NUMBERED = rk.Corpus(ROWS, ids=IDS, bias=RNG.uniform(-1, 0, N).astype("f4"), groups=np.arange(N) % 9)
NAMED = rk.Corpus(ROWS, ids=[f"doc-{i}" for i in IDS])


def post(*requests, corpora=None, **options):
    """The answers to (path, body) or (path, body, headers)."""
    return servers.posted(corpora or {"docs": NUMBERED}, *requests, **options)


def picks_of(ids, query_row, k, method=None, **rule):
    """What the float64 formula of the reference picks among ids in ascending order."""
    rows = [*(IDS.tolist().index(x) for x in sorted(ids)), -1]  # a pool that is no larger than k would be warned of
    if method != "vrsd":
        rule = {"bias": NUMBERED.bias, "lambda_b": 0.95, **rule}
    call = rk.vrsd if method == "vrsd" else rk.mmr
    picks = call(ROWS[[query_row]], ROWS, k, candidates=np.array([rows]), backend="reference", **rule)
    n = int(picks.lengths[0])
    return IDS[picks.indices[0, :n]].tolist(), picks.scores[0, :n]


BODIES = {
    "tei": lambda ids, query, more: {"query": query, "texts": ids, "raw_scores": False, "truncate": False, **more},
    "cohere": lambda ids, query, more: {"query": query, "documents": ids, "max_tokens_per_doc": 4096, **more},
    "elasticsearch": lambda ids, query, more: {"query": query, "input": ids, **more},
    "weaviate": lambda ids, query, more: {"query": query, "documents": ids, "property": "text", **more},
}


def order_of(shape, answer, ids):
    """The ids by falling score, and the scores, of an answer as a client reads it."""
    if shape == "weaviate":
        pairs = [(x["score"], x["document"]) for x in answer["scores"]]
    else:
        results = answer if shape == "tei" else answer["results" if shape == "cohere" else "rerank"]
        pairs = [(x["score" if shape == "tei" else "relevance_score"], ids[x["index"]]) for x in results]
    pairs.sort(key=lambda pair: -np.float32(pair[0]))
    return [x for _, x in pairs], [score for score, _ in pairs]


@pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")  # of the calls in process
@pytest.mark.parametrize("shape", BODIES)
def test_every_shape_has_the_picks_of_the_formula_in_the_order_of_its_scores(shape):
    ids = [int(x) for x in RNG.choice(IDS, 50, replace=False)]
    names = [str(x) for x in ids]
    requests, expected = [], []
    for more, rule in [
        ({}, {"lambda_d": 0.75}),
        ({"top_n": 7, "model": "docs:mmr:0.3"}, {"lambda_d": 0.3}),
        ({"model": "docs:vrsd", "top_n": 5}, {"method": "vrsd"}),
        ({"model": "docs", "lambda_d": 0.5, "lambda_b": 0.2}, {"lambda_d": 0.5, "lambda_b": 0.2}),
    ]:
        requests.append(("/rerank", BODIES[shape](names, str(IDS[3]), more)))
        expected.append(picks_of(ids, 3, more.get("top_n", len(ids)), **rule))
    for response, (_, body), (picks, scores) in zip(post(*requests), requests, expected, strict=True):
        assert response.status_code == 200, response.text
        order, given = order_of(shape, response.json(), names)
        order = list(map(int, order))
        assert order[: len(picks)] == picks
        assert (np.diff(np.float32(given)) < 0).all()
        assert 0 < given[-1] < given[0] <= 1
        if "top_n" in body and shape in ("cohere", "elasticsearch"):
            assert len(order) == body["top_n"]
        else:
            assert sorted(order) == sorted(ids)
            assert order[len(picks) :] == sorted(order[len(picks) :])
        if shape == "tei":
            true = [x["selection"] for x in response.json()]
            assert [x["score"] for x in true[: len(picks)]] == pytest.approx(scores.tolist(), abs=1e-5)
            assert [x["picked"] for x in true] == [i < len(picks) for i in range(len(ids))]


def test_the_order_of_the_documents_changes_nothing():
    ids = [str(x) for x in IDS[20:90]]
    orders = [[ids[i] for i in RNG.permutation(len(ids))] for _ in range(6)]
    answers = post(*(("/rerank", {"query": f"id:{IDS[0]}", "texts": order, "top_n": 12}) for order in orders))
    scores = [{order[x["index"]]: x for x in answer.json()} for order, answer in zip(orders, answers, strict=True)]
    for each in scores:
        assert {x: (y["score"], y["selection"]) for x, y in each.items()} == {
            x: (y["score"], y["selection"]) for x, y in scores[0].items()
        }


@pytest.mark.parametrize("name", ["initial", "allowed", "exclude"])
def test_lists_of_ids_limit_the_picks(name):
    """As in ``/v1/select`` over the documents."""
    ids, listed = IDS[:30].tolist(), IDS[5:14].tolist()
    rows = {name: np.arange(5, 14)[None]}
    [answer] = post(("/rerank", {"query": f"id:{IDS[50]}", "texts": ids, "top_n": 6, name: listed}))
    pool = np.array([np.argsort(IDS)[np.isin(np.sort(IDS), ids)]])
    expected = NUMBERED.select(ROWS[[50]], 6, candidates=pool, **rows)
    picked = [x["selection"]["id"] for x in answer.json() if x["selection"]["picked"]]
    assert picked == IDS[expected.indices[0]].tolist()


@pytest.mark.parametrize(("shape", "how"), [*((shape, "body") for shape in BODIES), ("tei", "url"), ("tei", "server")])
def test_unknown_ids_come_last_where_they_are_skipped(shape, how):
    unknown, options = ["text", "999", "-" + "9" * 18], {"unknown": "skip"}
    ids = [str(IDS[0]), unknown[0], str(IDS[1]), unknown[1], str(IDS[2]), unknown[2], str(IDS[0])]
    strict = BODIES[shape](ids, str(IDS[5]), {"model": "docs"})

    async def use(client, service):
        path = "/rerank?unknown=skip" if how == "url" else "/rerank"
        answer = await client.post(path, json={**strict, **options} if how == "body" else strict)
        return answer, service.metrics.text().decode()

    answer, metrics = servers.run({"docs": NUMBERED}, use, **options if how == "server" else {})
    assert answer.status_code == 200, answer.text
    order, scores = order_of(shape, answer.json(), ids)
    assert scores == sorted(set(scores), reverse=True)
    assert (order[-4:], sorted(order)) == ([ids[6], *unknown], sorted(ids))
    assert 'ragsys_skipped_ids_total{corpus="docs"} 3.0' in metrics
    selections = answer.json() if shape == "tei" else next(x for x in answer.json().values() if isinstance(x, list))
    assert [x["selection"]["id"] for x in selections[-3:]] == unknown
    assert not any(x["selection"]["picked"] for x in selections[-4:])
    field = {"tei": "texts", "elasticsearch": "input"}.get(shape, "documents")
    assert post(("/rerank", strict))[0].json()["error"]["argument"] == field


@pytest.mark.parametrize("documents", [[], ["nothing", "999"]])
def test_rerank_of_nothing_that_is_known(documents):
    [answer] = post(("/rerank", {"query": str(IDS[5]), "texts": documents, "unknown": "skip"}))
    assert answer.status_code == 200
    assert [x["index"] for x in answer.json()] == list(range(len(documents)))


def test_documents_may_be_objects_repeated_and_of_string_ids():
    names = [f"doc-{x}" for x in IDS[:6]]
    documents = [{"text": names[0]}, {"id": names[1], "text": "ignored"}, names[2], names[2], {"id": names[4]}]
    [answer] = post(
        ("/v2/rerank", {"model": "docs", "query": names[5], "documents": documents, "return_documents": True}),
        corpora={"docs": NAMED},
    )
    results = answer.json()["results"]
    assert sorted(x["index"] for x in results) == [0, 1, 2, 3, 4]
    assert results[-1]["index"] == 3  # the repeated one is below all picks
    assert not results[-1]["selection"]["picked"]
    assert results[-1]["selection"]["id"] == names[2]
    by_index = {x["index"]: x["document"] for x in results}
    assert by_index[0] == documents[0]
    assert by_index[2] == {"text": names[2]}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_query_may_be_the_base64_of_a_vector(dtype):
    ids, vector = IDS[:40].tolist(), ROWS[7].astype(dtype)
    text = base64.b64encode(vector.tobytes()).decode()
    by_text, by_list, in_path = post(
        ("/v1/rerank", {"query": text, "documents": ids}),
        ("/v1/rerank", {"query": vector.tolist(), "documents": ids}),
        ("/models/docs:mmr:0.75/rerank?top_n=40", {"query": text, "texts": ids}),
    )
    assert by_text.json()["results"] == by_list.json()["results"]
    assert [x["index"] for x in in_path.json()] == [x["index"] for x in by_text.json()["results"]]


GOOD = {"query": str(IDS[0]), "documents": [str(x) for x in IDS[:5]]}


@pytest.mark.parametrize(
    ("change", "argument", "words"),
    [
        ({"documents": [*GOOD["documents"], "7", "text of a document"]}, "documents", "'text of a document'"),
        ({"documents": [5, 6]}, "documents", "2 unknown: 5, 6"),
        ({"documents": [f"{IDS[0]},{IDS[1]}"]}, "documents", "1 unknown"),
        ({"documents": [" 1000", "1_000", "+1000", "١"]}, "documents", "4 unknown"),
        ({"documents": ["01000", "1001"]}, "documents", "1 unknown: '01000'"),
        ({"documents": ["1000", "001001"]}, "documents", "1 unknown: '001001'"),
        ({"documents": [{"id": "01000"}, {"id": 1001}]}, "documents", "1 unknown: '01000'"),
        ({"query": "01000"}, "query", "be an id"),
        ({"query": "id:01000"}, "query", "be an id"),
        ({"documents": [str(2**63)]}, "documents", "1 unknown"),
        ({"documents": [None]}, "documents", "be ids"),
        ({"texts": ["1"]}, "documents", "given once"),
        ({"documents": "1000"}, "documents", "a list"),
        ({"pool_size": 6}, "pool_size", "slice"),
        ({"pool_size": "x"}, "pool_size", "integer"),
        ({"top_n": 0}, "top_n", "at least 1"),
        ({"model": "other:mmr"}, "model", "'docs'"),
        ({"model": "docs:mmr:much"}, "model", "lambda"),
        ({"model": "docs:mmr:nan"}, "model", "within [0, 1]"),
        (
            {"model": "docs:mmr:1.5"},
            "model",
            "must have a number within [0, 1] as its lambda, got 'docs:mmr:1.5'",
        ),
        ({"model": 3}, "model", "model must be corpus:rule:lambda_d with one of the corpora 'docs'"),
        ({"documents": None, "texts": ["7"]}, "texts", "rerank: texts must be ids of corpus 'docs', got 1 unknown"),
        ({"documents": None, "input": [None]}, "input", "rerank: input must be ids, or objects with id or text"),
        ({"model": "docs:best"}, "model", "corpus:rule:lambda_d"),
        ({"model": "docs:mmr", "method": "vrsd"}, "method", "left out, or 'mmr' as in the model, got 'vrsd'"),
        ({"model": "docs:mmr:0.5", "lambda_d": 0.4}, "lambda_d", "left out, or 0.5 as in the model, got 0.4"),
        ({"model": "docs:vrsd:0.5"}, "model", "no lambda_d behind vrsd"),
        ({"query": "what is this?"}, "query", "encoder"),
        ({"query": "id:77"}, "query", "rerank: query must be ids of the corpus, got 77"),
        ({"query": 77}, "query", "rerank: query must be ids of the corpus, got 77"),
        ({"query_id": 77}, "query_id", "rerank: query_id must be ids of the corpus, got 77"),
        ({"query": None}, "query", "be given"),
        ({"query": [1.0, 2.0]}, "query", "16 dimensions"),
        ({"query": str(2**70)}, "query", "be an id"),
        ({"relevance": [1.0] * 5}, "relevance", "rerank: relevance must be left out: rerank has none, got a list"),
        ({"relevance_scale": "minmax"}, "relevance_scale", "rerank has none, got 'minmax'"),
        ({"quality": "x"}, "quality", "rerank has none"),
        ({"metric": "dot"}, "metric", "rerank has none"),
        ({"pool": 3}, "pool", "rerank has none"),
        ({"bias": [1.0] * 5}, "bias", "rerank has none"),
        ({"k": 3}, "k", "rerank has none"),
        ({"cursor": "n"}, "cursor", "rerank has none"),
        ({"lamda_d": 0.1}, "lamda_d", "rerank: lamda_d must be left out: the field is 'lambda_d', got 0.1"),
        ({"lambda": 0.1}, "lambda", "the field is 'lambda_b'"),
        ({"max_similarty": 0.1}, "max_similarty", "the field is 'max_similarity'"),
        ({"maxPerGroup": 1}, "maxPerGroup", "the field is 'max_per_group'"),
        ({"metrics": "dot"}, "metrics", "the field is 'metric'"),
    ],
)
def test_bad_requests_are_refused_with_the_argument(change, argument, words):
    [answer] = post(("/v1/rerank", {**GOOD, **change}))
    error = answer.json()["error"]
    assert answer.status_code == 422
    assert error["argument"] == argument
    assert words in error["message"]


FOREIGN = {  # what the documentation of Cohere, Jina, Voyage AI, text-embeddings-inference, vLLM and others has
    "return_documents": False, "max_tokens_per_doc": 4096, "max_chunks_per_doc": 10, "rank_fields": ["text"],
    "priority": 0, "truncate": True, "truncation": True, "truncation_direction": "Right", "raw_scores": False,
    "return_text": False, "return_embeddings": False, "top_k": 3, "user": "u", "instruction": "find", "rank": 1,
    "truncate_prompt_tokens": 512, "additional_data": None, "input_type": "query", "encoding_format": "float",
    "passages": [], "scores": [], "normalize": True, "task": "rerank", "embedding_type": "float", "dimensions": 8,
}  # fmt: skip


def test_fields_of_the_services_of_others_change_nothing():
    plain, foreign, by_url = post(
        ("/v1/rerank", GOOD), ("/v1/rerank", {**FOREIGN, **GOOD}), ("/v1/rerank?api-version=1", {**GOOD, "scale": None})
    )
    assert plain.json()["results"] == foreign.json()["results"] == by_url.json()["results"]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("lambda_d=0.1", "lambda_d must stand in the body, which is JSON"),
        ("method=vrsd", "method must stand in the body"),
        ("top_n=2&top_n=3", "top_n must stand once in the URL, got '2' and '3'"),
    ],
)
def test_rules_in_the_url_are_refused(url, words):
    [answer] = post((f"/v2/rerank?{url}", GOOD))
    assert (answer.status_code, words in answer.json()["error"]["message"]) == (422, True)


def test_a_slice_is_refused_by_header_and_url_too():
    answers = post(
        ("/rerank", GOOD, {"x-pool-size": "6"}),
        ("/rerank?pool_size=6", GOOD),
        ("/rerank", GOOD, {"x-pool-size": "5"}),
        ("/rerank", GOOD, {"x-pool-size": "-1"}),
        ("/rerank", GOOD, {"content-type": "text/plain"}),
    )
    assert [answer.status_code for answer in answers] == [422, 422, 200, 422, 415]


def endpoint(request):
    """An embeddings endpoint: the text says how it answers."""
    content = orjson.loads(request.content)
    assert content["model"] == "small"
    assert request.headers["authorization"] == "Bearer of-the-encoder"
    [text] = content["input"]
    if text == "down":
        raise httpx.ConnectError("refused")
    if text == "slow":
        raise httpx.ReadTimeout("slow")
    if text in ("400", "503"):
        return httpx.Response(int(text), text="too long")
    vector = ROWS[9].tolist()[: 3 if text == "short" else None]
    return httpx.Response(200, json={"data": [{"embedding": ["x"] * D if text == "words" else vector}]})


def test_texts_are_encoded_by_the_endpoint_and_its_failures_are_told():
    encoder = Encoder(
        "http://encoder/v1/embeddings", "small", "of-the-encoder", transport=httpx.MockTransport(endpoint)
    )
    cases = {
        "fine": 200,
        "17": 200,
        "down": 502,
        "slow": 502,
        "400": 422,
        "503": 502,
        "short": 502,
        "words": 502,
        " ": 422,
    }
    vector = base64.b64encode(ROWS[9].tobytes()).decode()
    answers = post(*(("/rerank", {**GOOD, "query": text}) for text in (*cases, vector)), encoder=encoder)
    assert dict(zip(cases, (answer.status_code for answer in answers), strict=False)) == cases
    assert answers[0].json()["results"] == answers[1].json()["results"] == answers[-1].json()["results"]
    assert "3" in answers[6].json()["error"]["message"]


def test_health_as_clients_of_text_embeddings_inference_ask_it():
    async def use(client, service):
        found = [await client.get("/health")]
        service.status = "stopping"  # the process answers still, whatever is ready
        found.append(await client.get("/health"))
        return [(answer.status_code, answer.json()) for answer in found], (await client.post("/health")).status_code

    answers, posted = servers.run({"docs": rk.Corpus(np.eye(3, dtype=np.float32))}, use)
    assert answers == [(200, {"status": "live"})] * 2
    assert posted == 405
