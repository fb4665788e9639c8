"""Malformed requests; `make fuzz` sends 20,000, and those that schemathesis makes of the OpenAPI document."""

import asyncio

import numpy as np
import pytest

pytest.importorskip("fastapi")
import fuzz_protocols
import fuzz_requests
import servers

import ragsys_kernels as rk
from ragsys_kernels.serving.limits import FAILED

CORPORA = {"docs": rk.Corpus(np.random.default_rng(5).standard_normal((64, 8), dtype=np.float32))}
INFER = "/v2/models/docs/infer"


def test_fuzzed_requests_are_refused_and_leave_nothing():
    seen = asyncio.run(fuzz_requests.fuzz(7, 300))
    assert {200, 422} < set(seen)


def test_changed_requests_of_other_protocols_get_answers_of_bad_requests():
    seen = asyncio.run(fuzz_protocols.fuzz(1, 700))
    assert seen[200] > 5
    assert seen[422] > 200


@pytest.mark.parametrize("deep", ["[" * 400 + "]" * 400, '{"a":' * 400 + "1" + "}" * 400])
@pytest.mark.parametrize(
    ("path", "body", "argument"),
    [
        (
            INFER,
            '{{"id": {}, "inputs": [{{"name": "query_id", "shape": [1], "datatype": "INT64", "data": [5]}}]}}',
            "id",
        ),
        ("/rerank", '{{"query": "5", "documents": [1, {{"id": 3, "x": {}}}], "return_documents": true}}', "documents"),
    ],
)
def test_what_an_answer_would_repeat_is_no_deeper_than_can_be_written(path, body, argument, deep):
    [answer] = servers.posted(CORPORA, (path, body.format(deep).encode()))
    assert answer.status_code == 422
    assert f"{argument} must be" in answer.text


def test_an_unexpected_error_is_answered_alike_on_paths_with_parameters(monkeypatch):
    async def fail(*_):
        raise RuntimeError

    async def use(client, service):
        monkeypatch.setattr(service, "answer", fail)
        bodies = {"/rerank": {"query": "5", "texts": ["1"]}, "/models/docs/rerank": {"query": "5", "texts": ["1"]}}
        bodies[INFER] = {"inputs": [{"name": "query_id", "shape": [1], "datatype": "INT64", "data": [5]}]}
        answers = [await client.post(path, json=body) for path, body in bodies.items()]
        assert [answer.status_code for answer in answers] == [500] * 3
        assert {answer.json()["error"]["message"] for answer in answers} == {FAILED}

    servers.run(CORPORA, use)


def test_errors_name_the_kinds_of_json():
    wrong = [
        ({"corpus": {}, "queries": [{"query_id": 5}]}, "corpus must be one of 'docs', got an object"),
        ({"queries": {}}, "queries must be a list of 1 to 4096 queries, got an object"),
        ([], "body must be an object, got a list"),
    ]
    answers = servers.posted(CORPORA, *(("/v1/select", body) for body, _ in wrong))
    assert [answer.json()["error"]["message"] for answer in answers] == [f"select: {words}" for _, words in wrong]


def test_a_client_that_goes_before_its_body_has_come_is_no_failure_of_the_server(caplog):
    async def use(_, service):
        for path in ("/models/docs/rerank", INFER):
            status, _ = await fuzz_requests.call(service.asgi, "POST", path, [(b"content-length", b"9")], [])
            assert status == 499

    servers.run(CORPORA, use)
    assert "failed" not in caplog.text
