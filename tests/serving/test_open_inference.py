"""The Open Inference Protocol: JSON and binary tensors have the picks and bits of calls in process."""

import json
import tracemalloc

import numpy as np
import pytest
import servers

import ragsys_kernels as rk

N, D, Q = 200, 12, 6
RNG = np.random.default_rng(22)
ROWS = RNG.standard_normal((N, D), dtype=np.float32)
IDS = RNG.permutation(np.arange(10_000, 10_000 + N))
NAMES = [f"doc-{i}" for i in IDS]
NUMBERED = rk.Corpus(ROWS, ids=IDS, bias=RNG.uniform(-1, 0, N).astype("f4"))
CORPORA = {"docs": NUMBERED, "names": rk.Corpus(ROWS, ids=NAMES)}
QUERIES = RNG.standard_normal((Q, D), dtype=np.float32)
DATATYPES = {"float32": "FP32", "float16": "FP16", "int64": "INT64", "int32": "INT32", "object": "BYTES"}


def packed(texts):
    return b"".join(len(text.encode()).to_bytes(4, "little") + text.encode() for text in texts)


def in_json(**arrays):
    return [
        {"name": name, "shape": list(x.shape), "datatype": DATATYPES[str(x.dtype)], "data": x.tolist()}
        for name, x in arrays.items()
    ]


def message(arrays, outputs=None, **parameters):
    """The body and headers of a request whose tensors are bytes."""
    inputs, parts = [], []
    for name, x in arrays.items():
        parts.append(packed(x.ravel()) if x.dtype == object else x.tobytes())
        kind = {"name": name, "shape": list(x.shape), "datatype": DATATYPES[str(x.dtype)]}
        inputs.append({**kind, "parameters": {"binary_data_size": len(parts[-1])}})
    content = {"inputs": inputs, "parameters": {"binary_data_output": True, **parameters}}
    head = json.dumps(content | ({"outputs": outputs} if outputs else {})).encode()
    return b"".join([head, *parts]), {"inference-header-content-length": str(len(head))}


def outputs_of(response):
    """The tensors of an answer, of bytes or lists, by name."""
    body, length = response.content, response.headers.get("inference-header-content-length")
    head = json.loads(body[: int(length)] if length else body)
    rest, found = body[int(length) :] if length else b"", {}
    for output in head["outputs"]:
        kind = {"FP32": np.float32, "INT64": np.int64, "INT32": np.int32, "BYTES": object}[output["datatype"]]
        size = output.get("parameters", {}).get("binary_data_size")
        if size is None:
            data = np.array(output["data"], kind)
        else:
            own, rest = rest[:size], rest[size:]
            data = own if kind is object else np.frombuffer(own, kind)
        found[output["name"]] = data if isinstance(data, bytes) else data.reshape(output["shape"])
    assert not rest
    return found


def post(*requests, corpora=CORPORA):
    """The answers to (path, body, headers), a body of bytes or a JSON value."""
    return servers.posted(corpora, *requests)


def same(found, picks, ids=IDS):
    n = picks.indices.shape[1]
    assert found["ids"].tolist() == np.where(picks.indices >= 0, ids[picks.indices], -1).tolist()
    for name in ("scores", "relevance", "redundancy"):
        expected = np.where(picks.indices >= 0, getattr(picks, name), np.nan).astype(np.float32)
        np.testing.assert_array_equal(found[name].view(np.int32), expected.view(np.int32))
    assert found["lengths"].tolist() == picks.lengths.tolist()
    assert found["ids"].shape == (len(picks.lengths), n)


def test_json_and_binary_tensors_have_the_bits_of_the_call_in_process():
    picks = NUMBERED.select(QUERIES, 5, pool=40, lambda_d=0.5)
    rules = {"k": 5, "pool": 40, "lambda_d": 0.5}
    plain = {"id": "seven", "inputs": in_json(vector=QUERIES), "parameters": rules}
    flat = {"inputs": [{**plain["inputs"][0], "data": QUERIES.ravel().tolist()}], "parameters": rules}
    some = message(
        {"vector": QUERIES}, [{"name": "lengths"}, {"name": "ids", "parameters": {"binary_data": False}}], **rules
    )
    answers = post(
        ("/v2/models/docs/infer", plain, {}),
        ("/v2/models/docs/versions/memory/infer", flat, {}),
        ("/v2/models/docs/infer", *message({"vector": QUERIES}, **rules)),
        ("/v2/models/docs:mmr:0.5/infer", *message({"vector": QUERIES}, k=5, pool=40)),
        ("/v2/models/docs/infer", *some),
    )
    assert [answer.status_code for answer in answers] == [200] * 5, answers[-1].text
    for answer in answers[:4]:
        same(outputs_of(answer), picks)
    assert answers[0].json()["id"] == "seven"
    assert answers[0].json()["model_name"] == "docs"
    few = outputs_of(answers[4])
    assert list(few) == ["lengths", "ids"]
    assert few["ids"].tolist() == IDS[picks.indices].tolist()


def test_padding_of_candidates_is_no_candidate_and_numbers_are_per_query():
    rows = np.full((Q, 9), -1)
    for q in range(Q):
        rows[q, : q + 4] = RNG.choice(N, q + 4, replace=False)
    relevance = RNG.uniform(size=rows.shape).astype(np.float32)
    ids, k = np.where(rows < 0, -1, IDS[rows]), np.array([1, 2, 3, 4, 5, 8])
    names = np.where(rows < 0, "", np.array(NAMES, object)[rows])
    same_k = {"k": k, "lambda_d": np.linspace(0, 1, Q, dtype=np.float32)}
    given = {"candidates": ids, "relevance": relevance, **same_k}
    answers = post(
        ("/v2/models/docs/infer", *message(given)),
        ("/v2/models/docs/infer", {"inputs": in_json(**given)}, {}),
        ("/v2/models/names/infer", *message({**given, "candidates": names})),
    )
    assert [answer.status_code for answer in answers] == [200] * 3, [answer.text for answer in answers]
    picks = NUMBERED.select(None, k, candidates=rows, relevance=relevance, lambda_d=same_k["lambda_d"])
    same(outputs_of(answers[0]), picks)
    same(outputs_of(answers[1]), picks)
    named = rk.Corpus(ROWS).select(None, k, candidates=rows, relevance=relevance, lambda_d=same_k["lambda_d"])
    texts = [NAMES[row] if row >= 0 else "" for row in named.indices.ravel()]
    assert outputs_of(answers[2])["ids"] == packed(texts)


def test_candidates_may_come_with_their_vectors():
    vectors, ids = RNG.standard_normal((2, 9, D)).astype(np.float16), np.arange(18).reshape(2, 9) + 70
    ids[1, 5:] = -1
    given = {"vector": QUERIES[:2], "vectors": vectors, "candidates": ids}
    flat, empty = {**given, "vectors": vectors.reshape(2, -1)}, {**given, "vectors": vectors[:, :, :0]}
    bodies = [{"inputs": in_json(**tensors), "parameters": {"k": 3}} for tensors in (given, flat, empty)]
    alone, wrong, none = post(*(("/v2/models/vectors/infer", body) for body in bodies), corpora={})
    for answer in (alone, *post(("/v2/models/docs:mmr/infer", bodies[0]))):
        found = outputs_of(answer)["ids"]
        for q, n in ((0, 9), (1, 5)):
            assert found[q].tolist() == ids[q][rk.mmr(QUERIES[[q]], vectors[q, :n], 3).indices[0]].tolist()
    assert "vectors must have 3 dimensions" in wrong.json()["error"]
    assert none.status_code == 422


def test_unknown_ids_are_told_padded():
    candidates = np.array([[IDS[2], 5, 6], [IDS[3], IDS[4], -1]])
    names = np.array([[NAMES[2], "gone", ""], [NAMES[3], NAMES[4], ""]], object)
    inputs, skip = in_json(query_id=IDS[:2], candidates=candidates), {"parameters": {"unknown": "skip"}}
    named = in_json(query_id=np.array(NAMES[:2], object), candidates=names)
    numbers, words, strict = post(
        ("/v2/models/docs/infer", {"inputs": inputs, **skip}),
        ("/v2/models/names/infer", {"inputs": named, **skip}),
        ("/v2/models/docs/infer", {"inputs": inputs}),
    )
    found = outputs_of(numbers)
    assert (found["skipped"].tolist(), found["lengths"].tolist()) == ([[5, 6], [-1, -1]], [1, 2])
    assert outputs_of(words)["skipped"].tolist() == [["gone"], [""]]
    found = outputs_of(strict)
    assert list(found) == ["ids", "scores", "relevance", "redundancy", "lengths", "errors"]
    assert "candidates must be ids of the corpus" in found["errors"][0]


def test_a_bad_query_has_its_own_error():
    vectors = QUERIES.copy()
    vectors[2, 5] = np.nan
    answer, alone = post(
        ("/v2/models/docs/infer", *message({"vector": vectors}, k=3)),
        ("/v2/models/docs/infer", *message({"vector": vectors[2:3]}, k=3)),
    )
    found = outputs_of(answer)
    assert found["lengths"].tolist() == [3, 3, 0, 3, 3, 3]
    assert found["ids"][2].tolist() == [-1, -1, -1]
    assert b"finite" in found["errors"]
    good = [q for q in range(Q) if q != 2]
    assert found["ids"][good].tolist() == IDS[NUMBERED.select(QUERIES[good], 3, pool=100).indices].tolist()
    assert alone.status_code == 422
    assert "finite" in alone.json()["error"]


VECTOR = {"name": "vector", "shape": [1, D], "datatype": "FP32", "data": [0.5] * D}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"inputs": []}, "list of tensors"),
        ({"inputs": [VECTOR, VECTOR]}, "names of their own"),
        ({"inputs": [{**VECTOR, "name": "text"}]}, "one of the inputs"),
        ({"inputs": [{**VECTOR, "shape": [D]}]}, "2 dimensions"),
        ({"inputs": [{**VECTOR, "shape": [1, -D]}]}, "shape"),
        ({"inputs": [{**VECTOR, "shape": [1 << 40, 1 << 40]}]}, "values"),
        ({"inputs": [{**VECTOR, "shape": [0, 10**19], "data": []}]}, "values along each dimension"),
        ({"inputs": [{**VECTOR, "shape": [0, 2**62, 4], "data": []}]}, "values along each dimension"),
        ({"inputs": [{**VECTOR, "shape": [10**6, 10**6, 0], "data": []}]}, "2 dimensions"),
        ({"inputs": [{**VECTOR, "shape": [0, D], "data": []}]}, "queries must be 1 to"),
        ({"inputs": [{**VECTOR, "shape": [1, D - 1], "data": [0.5] * (D - 1)}]}, "12 dimensions"),
        ({"inputs": [{**VECTOR, "data": [0.5]}]}, "12 values"),
        ({"inputs": [{**VECTOR, "data": ["x"] * D}]}, "numbers"),
        ({"inputs": [{**VECTOR, "data": [[0.5] * D, 1]}]}, "one depth"),
        ({"inputs": [{**VECTOR, "datatype": "BF16"}]}, "datatypes"),
        ({"inputs": [{**VECTOR, "data": None, "parameters": {"binary_data_size": 48}}]}, "binary_data_size"),
        ({"inputs": [VECTOR, {"name": "k", "shape": [2], "datatype": "INT64", "data": [1, 2]}]}, "one row a query"),
        ({"inputs": [VECTOR, {"name": "k", "shape": [1], "datatype": "INT8", "data": [1000]}]}, "INT8"),
        ({"parameters": {"lamda_d": 1}}, "parameters.lamda_d"),
        ({"parameters": {"k": 0}}, "within [1, 1000]"),
        ({"outputs": [{"name": "vector"}]}, "outputs"),
    ],
)
def test_bad_messages_are_refused_in_the_words_of_the_protocol(change, words):
    [answer] = post(("/v2/models/docs/infer", {"inputs": [VECTOR], **change}, {}))
    assert answer.status_code == 422
    assert words in answer.json()["error"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"parameters": {"lambda_d": 0.1}}, "infer: lambda_d must be left out, or 0.9 as in the model, got 0.1"),
        ({"parameters": {"method": "msd"}}, "infer: method must be left out, or 'mmr' as in the model, got 'msd'"),
        (
            {"inputs": [VECTOR, *in_json(lambda_d=np.array([0.5], "f4"))]},
            "infer: lambda_d must be left out, or 0.9 as in the model, got 0.5",
        ),
    ],
)
def test_a_rule_in_the_name_of_a_model_is_not_overruled(change, words):
    same_rule = {"inputs": [VECTOR, *in_json(lambda_d=np.array([0.9]).astype("f4"))], "parameters": {"method": "mmr"}}
    request = {"inputs": [VECTOR], "parameters": {"lambda_d": 0.9}}
    refused, plain, told, expected = post(
        ("/v2/models/docs:mmr:0.9/infer", {"inputs": [VECTOR], **change}, {}),
        ("/v2/models/docs:mmr:0.9/infer", {"inputs": [VECTOR]}, {}),
        ("/v2/models/docs:mmr:0.9/infer", same_rule, {}),
        ("/v2/models/docs/infer", request, {}),
    )
    assert (refused.status_code, refused.json()["error"]) == (422, words)
    assert plain.json()["outputs"] == told.json()["outputs"] == expected.json()["outputs"]


def test_rules_in_the_url_are_refused():
    [answer] = post(("/v2/models/docs/infer?lambda_d=0.5", {"inputs": [VECTOR]}, {}))
    words = "infer: lambda_d must stand in the body, which is JSON, got it in the URL"
    assert (answer.status_code, answer.json()["error"]) == (422, words)


def test_bad_bytes_models_and_headers_are_refused():
    body, headers = message({"vector": QUERIES})
    names = message({"query_id": np.array(["doc-1"], object)})[0].replace(b"\x05\x00", b"\xff\x00")
    answers = post(
        ("/v2/models/docs/infer", body[:-1], headers),
        ("/v2/models/docs/infer", body + b"x", headers),
        ("/v2/models/docs/infer", body, {"inference-header-content-length": "99999"}),
        ("/v2/models/docs/infer", body, {"inference-header-content-length": "-5"}),
        ("/v2/models/names/infer", names, message({"query_id": np.array(["doc-1"], object)})[1]),
        ("/v2/models/docs/infer", body, {**headers, "content-encoding": "br"}),
        ("/v2/models/other/infer", body, headers),
        ("/v2/models/docs/versions/9/infer", body, headers),
    )
    assert [answer.status_code for answer in answers] == [422] * 5 + [415, 404, 404]
    assert all(type(answer.json()["error"]) is str for answer in answers)
    assert answers[6].json()["error"].startswith("infer: name must be corpus:rule:lambda_d with one of the corpora ")


def test_a_shape_alone_takes_no_memory():
    """A few bytes that promise many strings are refused before there is room for these."""
    shapes = ([999_999], [1000, 1000], [10**6, 10**6])
    inputs = [
        [{"name": "candidates", "datatype": "BYTES", "shape": shape, "parameters": {"binary_data_size": 4}}]
        for shape in shapes
    ]
    heads = [json.dumps({"inputs": each}).encode() for each in inputs]
    headers = [{"inference-header-content-length": str(len(head))} for head in heads]

    async def use(client, service):
        found = []
        for head, header in zip(heads, headers, strict=True):
            tracemalloc.start()
            answer = await client.post("/v2/models/names/infer", content=head + bytes(4), headers=header)
            found.append((answer.status_code, answer.json()["error"], tracemalloc.get_traced_memory()[1]))
            tracemalloc.stop()
        return found

    for status, error, peak in servers.run(CORPORA, use):
        assert (status, peak < 1 << 20) == (422, True)
        assert "each after its length in 4 bytes, got 4 bytes" in error


def test_health_and_metadata():
    async def use(client, service):
        paths = ("", "/health/live", "/health/ready", "/models/docs", "/models/names/ready", "/models/x/ready")
        paths = (*paths, "/models/vectors")
        return [await client.get(f"/v2{path}") for path in paths]

    about, live, ready, model, model_ready, unknown, vectors = servers.run(CORPORA, use)
    assert about.json()["extensions"] == ["binary_tensor_data"]
    assert live.json() == {"live": True}
    assert ready.json() == {"ready": True}
    inputs = {x["name"]: x for x in model.json()["inputs"]}
    assert inputs["vector"] == {"name": "vector", "datatype": "FP32", "shape": [-1, D]}
    assert inputs["candidates"]["datatype"] == "INT64"
    assert model_ready.json() == {"name": "names", "ready": True}
    assert unknown.status_code == 404
    assert next(x["shape"] for x in vectors.json()["inputs"] if x["name"] == "vectors") == [-1, -1, -1]
