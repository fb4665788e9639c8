"""Clients of other projects against one server process, as their users call them.

`make test-serve` installs those that are packages of their own (extra ``serve-clients``); each takes seconds to import.
"""

import base64
import json
import subprocess

import numpy as np
import pytest
import servers  # skips where the server is not installed
from ports import free_port

import ragsys_kernels as rk
from ragsys_kernels.serving import Client

pa = servers.pa
flight = pytest.importorskip("pyarrow.flight")

N, D, TOKEN = 120, 12, "of-the-tests"
RNG = np.random.default_rng(25)
ROWS = RNG.standard_normal((N, D), dtype=np.float32)
NAMES = [f"doc-{i}" for i in RNG.permutation(N)]
CORPUS = rk.Corpus(ROWS, ids=NAMES)
POOL = [int(row) for row in RNG.choice(N, 30, replace=False)]
TEXTS = [NAMES[row] for row in POOL]
# Ends of connections that clients leave to the garbage collector, and what their own imports do.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "docs"
    CORPUS.save(folder)
    port = free_port()
    options = ("--corpus", f"docs={folder}", "--flight-port", port, "--token", TOKEN, "--no-access-log", "--grace", "2")
    with servers.Process(*options) as process:
        process.flight = f"grpc://127.0.0.1:{port}"
        yield process
        with flight.connect(process.flight) as client:  # whose stream stays open
            options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {TOKEN}".encode())])
            client.do_exchange(flight.FlightDescriptor.for_command(b"{}"), options)
            code, _, err = process.stop()
    assert code == 0, err
    assert "Traceback" not in err


def expected(row, k, **rule):
    """The names that a call in process picks among `TEXTS`, which stand for ids in their order."""
    pool = sorted(POOL, key=lambda row: NAMES[row])
    # A column of padding: a pool that is no larger than k is warned of.
    picks = CORPUS.select(CORPUS.vectors(np.array([row])), k, candidates=np.array([[*pool, -1]]), **rule)
    return CORPUS.ids[picks.indices[0, : int(picks.lengths[0])]].tolist()


def test_cohere(server):
    cohere = pytest.importorskip("cohere")

    client = cohere.ClientV2(TOKEN, base_url=server.url)
    answer = client.rerank(model="docs:mmr:0.4", query=NAMES[7], documents=TEXTS, top_n=6)
    assert [TEXTS[each.index] for each in answer.results] == expected(7, 6, lambda_d=0.4)
    scores = [each.relevance_score for each in answer.results]
    assert scores == sorted(set(scores), reverse=True)
    old = cohere.Client(TOKEN, base_url=server.url)
    answer = old.rerank(model="docs:vrsd", query=NAMES[7], documents=TEXTS, top_n=4, return_documents=True)
    assert [each.document.text for each in answer.results] == expected(7, 4, method="vrsd")
    with pytest.raises(cohere.core.ApiError, match="no-such-doc") as caught:
        client.rerank(model="docs", query=NAMES[7], documents=[*TEXTS, "no-such-doc"])
    assert caught.value.status_code == 422


def test_litellm(server):
    litellm = pytest.importorskip("litellm")

    for model in ("cohere/docs:mmr:0.4", "jina_ai/docs:mmr:0.4"):
        answer = litellm.rerank(
            model=model, query=NAMES[3], documents=TEXTS, top_n=5, api_base=f"{server.url}/v1/rerank", api_key=TOKEN
        )
        assert [TEXTS[each["index"]] for each in answer.results] == expected(3, 5, lambda_d=0.4)


def test_haystack(server):
    rankers = pytest.importorskip("haystack_integrations.components.rankers.huggingface_api")
    from haystack import Document
    from haystack.utils import Secret

    ranker = rankers.HuggingFaceTEIRanker(url=server.url, top_k=7, token=Secret.from_token(TOKEN))
    found = ranker.run(query=NAMES[5], documents=[Document(content=text) for text in TEXTS])["documents"]
    assert [each.content for each in found] == expected(5, len(TEXTS))[:7]


def test_llama_index(server):
    rerank = pytest.importorskip("llama_index.postprocessor.tei_rerank")
    from llama_index.core.schema import NodeWithScore, TextNode

    post = rerank.TextEmbeddingInference(
        base_url=f"{server.url}/models/docs:mmr:0.2", auth_token=f"Bearer {TOKEN}", top_n=8
    )
    nodes = [NodeWithScore(node=TextNode(text=text), score=0.0) for text in TEXTS]
    found = post.postprocess_nodes(nodes, query_str=NAMES[5])
    assert [each.node.text for each in found] == expected(5, len(TEXTS), lambda_d=0.2)[:8]


@pytest.mark.parametrize("binary", [False, True])
def test_tritonclient(server, binary):
    triton = pytest.importorskip("tritonclient.http")

    headers = {"authorization": f"Bearer {TOKEN}"}
    client = triton.InferenceServerClient(server.url.removeprefix("http://"))
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("docs", headers=headers)
    assert client.get_model_metadata("docs", headers=headers)["inputs"][0]["shape"] == [-1, D]
    vectors = RNG.standard_normal((9, D), dtype=np.float32)
    texts = np.array([TEXTS] * 9, object)
    inputs = [triton.InferInput("vector", [9, D], "FP32"), triton.InferInput("candidates", list(texts.shape), "BYTES")]
    inputs[0].set_data_from_numpy(vectors, binary_data=binary)
    inputs[1].set_data_from_numpy(texts, binary_data=binary)
    outputs = [triton.InferRequestedOutput(name, binary_data=binary) for name in ("ids", "scores")]
    answer = client.infer("docs:mmr:0.4", inputs, outputs=outputs, parameters={"k": 3}, headers=headers)
    picks = CORPUS.select(vectors, 3, candidates=np.array([POOL] * 9), lambda_d=0.4)
    ids = [[x.decode() if isinstance(x, bytes) else x for x in row] for row in answer.as_numpy("ids").tolist()]
    assert ids == CORPUS.ids[picks.indices].tolist()
    assert np.array_equal(answer.as_numpy("scores").view("i4"), picks.scores.view("i4"))
    with pytest.raises(triton.InferenceServerException, match="corpus:rule:lambda"):
        client.infer("others", inputs, headers=headers)
    client.close()


def test_arrow_flight_and_ours(server):
    vectors = RNG.standard_normal((40, D), dtype=np.float32)
    picks = CORPUS.select(vectors, 4, pool=20)
    options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {TOKEN}".encode())])
    with flight.connect(server.flight) as client:
        rules = flight.FlightDescriptor.for_command(json.dumps({"k": 4, "pool": 20}).encode())
        writer, reader = client.do_exchange(rules, options)
        table = pa.table({"vector": pa.array(vectors.tolist(), pa.list_(pa.float32()))})
        writer.begin(table.schema)
        writer.write_table(table)
        writer.done_writing()
        assert reader.read_all()["ids"].to_pylist() == CORPUS.ids[picks.indices].tolist()
        writer.close()
    with Client(server.url, token=TOKEN) as client:
        ours = client.select(vectors, 4, pool=20)
        assert ours.ids.tolist() == CORPUS.ids[picks.indices].tolist()
        assert np.array_equal(ours.scores.view("i4"), picks.scores.view("i4"))
        assert client.info()["corpora"]["docs"]["ids"] == "string"
        assert client.reload("docs")["rows"] == N


def test_curl(server):
    vector = base64.b64encode(ROWS[4].tobytes()).decode()
    command = ["curl", "-sS", "-H", f"Authorization: Bearer {TOKEN}", "-H", "Content-Type: application/json"]
    body = json.dumps({"query": vector, "texts": TEXTS, "raw_scores": False})
    try:
        done = subprocess.run([*command, f"{server.url}/rerank", "-d", body], capture_output=True, check=True)
    except FileNotFoundError:
        pytest.skip("there is no curl")
    assert [TEXTS[each["index"]] for each in json.loads(done.stdout)] == expected(4, len(TEXTS))
