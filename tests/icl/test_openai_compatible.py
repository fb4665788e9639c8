"""Models on servers with OpenAI's endpoints, against a server that answers from a tiny model and a tiny encoder."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import lm_models  # noqa: E402
from tiny_encoder import TinyEncoder  # noqa: E402

from ragsys_kernels.icl import (  # noqa: E402
    CachedModel,
    HuggingFaceModel,
    OpenAICompatibleEncoder,
    OpenAICompatibleModel,
    PairError,
)
from ragsys_kernels.icl.openai import server as module  # noqa: E402

PAIRS = [
    ("Q: What is the capital of France?\nA:", " Paris, in the north."),
    ("Why do cats purr? A: ", "They"),
    ("Cats", ""),
    ("Cats purr", "r, é zzz ?!"),  # the answer's first token may begin in the prompt
    ("Why?", "é"),  # a character of two tokens
    ("é", " Paris"),
]


def echo(text, *, bos=False, shifted=False):
    """The prompt's tokens as a server gives them: texts, offsets, log-probabilities, and a new token."""
    encoded = lm_models.tokenizer()(text, return_offsets_mapping=True)
    ids, spans = list(encoded["input_ids"]), list(encoded["offset_mapping"])
    strings = []
    for i, (start, end) in enumerate(spans):
        whole = spans.count((start, end)) == 1 or start == end
        strings.append(text[start:end] if whole else f"bytes:\\x{ids[i]:02x}")
    offsets = [start for start, _ in spans]
    if bos:
        ids, strings = [0, *ids], ["<s>", *strings]
        offsets = [0, *(offset + 3 * shifted for offset in offsets)]
    logp = torch.log_softmax(lm_models.logits(ids), -1)
    new = int(logp[-1].argmax())
    end = len(text) + 3 * (bos and shifted)
    following = [*ids[1:], new]
    top = [{"best": float(row.max()), "itself": float(row[token])} for row, token in zip(logp, following, strict=True)]
    return {
        "tokens": [*strings, lm_models.tokenizer().decode([new])],
        "token_logprobs": [None, *(float(row[token]) for row, token in zip(logp, following, strict=True))],
        "top_logprobs": [None, *top],
        "text_offset": [*offsets, end],
    }


class Server:
    """Requests that came, and what to do instead of answering them: a function, or (status, headers, body)."""

    def __init__(self):
        self.requests, self.instead, self.echo = [], [], echo
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):  # what urllib makes of a redirected request
                outer.requests.append((self.path, dict(self.headers), None))
                self.send_error(404)

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests.append((self.path, dict(self.headers), body))
                status, headers, answer = 200, {}, None
                if outer.instead:
                    status, headers, answer = outer.instead.pop(0)
                if answer is None and "input" in body:
                    rows = TinyEncoder().encode(body["input"]).tolist()
                    answer = json.dumps({"data": [{"index": i, "embedding": row} for i, row in enumerate(rows)][::-1]})
                elif answer is None:
                    choices = [{"index": i, "logprobs": outer.echo(text)} for i, text in enumerate(body["prompt"])]
                    answer = json.dumps({"choices": choices[::-1]})  # in any order
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer.encode())

            def log_message(self, *_):
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self):
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


@pytest.fixture
def server():
    made = Server()
    yield made
    made.close()


@pytest.fixture
def waits(monkeypatch):
    """Seconds that were waited, without waiting."""
    found = []
    monkeypatch.setattr(module.time, "sleep", found.append)
    return found


def same(scores, expected):
    np.testing.assert_array_equal(scores.count, expected.count)
    np.testing.assert_allclose(scores.logp, expected.logp, atol=1e-4)
    np.testing.assert_array_equal(scores.greedy, expected.greedy)
    assert (scores.tokens == -1).all()


@pytest.mark.parametrize("batch_size", [1, 4])
def test_scores_are_those_of_the_model(server, batch_size):
    model = OpenAICompatibleModel(server.url, "tiny", batch_size=batch_size)
    expected = HuggingFaceModel(lm_models.model(), lm_models.tokenizer()).score(*zip(*PAIRS, strict=True))
    same(model.score(*zip(*PAIRS, strict=True)), expected)
    path, _, body = server.requests[0]
    assert path == "/v1/completions"
    assert body["prompt"] == ["".join(pair) for pair in PAIRS[:batch_size] if pair[1]][:batch_size] + (
        ["".join(PAIRS[4])] if batch_size == 4 else []
    )
    options = {name: body[name] for name in ("model", "max_tokens", "echo", "logprobs", "temperature")}
    assert options == {"model": "tiny", "max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0}


@pytest.mark.parametrize("shifted", [False, True])
def test_a_server_that_adds_bos(server, shifted):
    """Its offsets may or may not count BOS."""
    pairs = [*PAIRS[:4], ("", "Cats")]
    server.echo = lambda text: echo(text, bos=True, shifted=shifted)
    pairs = [(prompt, continuation.replace("é", "e")) for prompt, continuation in pairs]
    expected = HuggingFaceModel(lm_models.model(), lm_models.tokenizer(leading=True)).score(*zip(*pairs, strict=True))
    same(OpenAICompatibleModel(server.url, "tiny").score(*zip(*pairs, strict=True)), expected)


def test_greedy_is_seen(server):
    prompt = "Cats purr"
    ids = lm_models.tokenizer()(prompt)["input_ids"]
    best = int(lm_models.logits(ids)[-1].argmax())
    answers = [lm_models.tokenizer().decode([best]), "!"]
    expected = HuggingFaceModel(lm_models.model(), lm_models.tokenizer()).score([prompt] * 2, answers)
    same(OpenAICompatibleModel(server.url, "tiny").score([prompt] * 2, answers), expected)


def test_busy_servers_are_asked_again(server, waits):
    server.instead = [(429, {"Retry-After": "7"}, "{}"), (503, {}, "busy"), (500, {"Retry-After": "soon"}, "{}")]
    OpenAICompatibleModel(server.url, "tiny").score(["Cats"], [" purr"])
    assert len(server.requests) == 4
    assert waits[0] == 7
    assert 1 <= waits[1] <= 2
    assert 2 <= waits[2] <= 4
    server.instead = [(502, {}, '{"error": {"message": "bad gateway"}}')] * 3
    with pytest.raises(OSError, match=r"server must answer, got 502 bad gateway from .*/v1/completions in 3 attempts"):
        OpenAICompatibleModel(server.url, "tiny", retries=2).score(["Cats"], [" purr"])


def test_refused_requests_are_not_asked_again(server, waits):
    server.instead = [(400, {}, '{"error": {"message": "this model has 128 tokens"}}'), (404, {}, "no such model")]
    model = OpenAICompatibleModel(server.url, "tiny")
    with pytest.raises(ValueError, match="must accept the request, got 400 this model has 128 tokens from http"):
        model.score(["Cats"], [" purr"])
    with pytest.raises(ValueError, match="must accept the request, got 404 no such model from http"):
        model.score(["Cats"], [" purr"])
    assert not waits


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_the_key_follows_no_redirect(server, waits, status):
    other = Server()
    try:
        for place in (f"{other.url}/completions", f"{server.url}/elsewhere"):
            server.instead = [(status, {"Location": place}, "")]
            rule = rf"server must answer itself, .*got {status} to {place} from {server.url}/completions"
            with pytest.raises(ValueError, match=f"OpenAICompatibleModel: {rule}"):
                OpenAICompatibleModel(server.url, "tiny", api_key="secret").score(["Cats"], [" purr"])
        assert [path for path, *_ in server.requests] == ["/v1/completions"] * 2
        assert not other.requests
    finally:
        other.close()


def test_a_server_that_hangs_or_is_not_there(server, waits):
    done = threading.Event()
    server.echo = lambda text: done.wait(60) and {}
    with pytest.raises(OSError, match=r"server must answer, got timed out from .* in 1 attempts"):
        OpenAICompatibleModel(server.url, "tiny", timeout=0.2, retries=0).score(["Cats"], [" purr"])
    done.set()
    nowhere = server.url.replace(server.url.split(":")[2], "1/v1")
    with pytest.raises(OSError, match=r"server must answer, got .*refused.* in 2 attempts"):
        OpenAICompatibleModel(nowhere, "tiny", retries=1).score(["Cats"], [" purr"])
    assert len(waits) == 1


NEW_ONLY = {"tokens": ["!"], "token_logprobs": [-1.0], "top_logprobs": [{"!": -1.0}], "text_offset": [0]}


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        ({"choices": [{"index": 0, "logprobs": NEW_ONLY}]}, r"\(echo with logprobs\), got tokens of other texts, '!'"),
        ({"choices": [{"index": 0, "logprobs": None}]}, r"\(echo with logprobs\), got none"),
        ({"choices": [{"index": 0, "logprobs": {"content": []}}]}, r"\(echo with logprobs\), got \{'content': \[\]\}"),
        ({"choices": []}, r"server must answer each of 1 texts once, got \[\]"),
        ({"detail": "?"}, r"server must answer with choices, got \{'detail': '\?'\}"),
        (["?"], "server must answer with choices"),
    ],
)
def test_servers_without_log_probabilities_of_prompts(server, answer, match):
    server.instead = [(200, {}, json.dumps(answer))]
    with pytest.raises(ValueError, match=f"OpenAICompatibleModel: .*{match}"):
        OpenAICompatibleModel(server.url, "tiny").score(["Cats"], [" purr"])


def test_answers_that_are_no_json_or_lack_the_best_tokens(server):
    model = OpenAICompatibleModel(server.url, "tiny")
    server.instead = [(200, {}, "<html>")]
    with pytest.raises(ValueError, match="server must answer in JSON, got "):
        model.score(["Cats"], [" purr"])
    server.echo = lambda text: {**echo(text), "top_logprobs": None}
    with pytest.raises(ValueError, match=r"server must give the most probable tokens \(top_logprobs\), got none"):
        model.score(["Cats"], [" purr"])


def test_a_prompt_without_a_token_is_named(server):
    with pytest.raises(PairError, match=r"score: prompts must have a token before .* got '' before 'Cats' in pair 1"):
        OpenAICompatibleModel(server.url, "tiny").score(["Cats", ""], [" purr", "Cats"])


def test_key_and_fingerprint(server, monkeypatch, tmp_path):
    def sent(**options):
        OpenAICompatibleModel(server.url, "tiny", **options).score(["Cats"], [" purr"])
        return server.requests[-1][1].get("Authorization")

    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert sent() is None
    monkeypatch.setenv("OPENAI_API_KEY", "of the environment")
    assert sent() == "Bearer of the environment"
    assert sent(api_key="mine") == "Bearer mine"
    made = [OpenAICompatibleModel(server.url, *rest) for rest in (("a",), ("b",))]
    made += [OpenAICompatibleModel(server.url, "a", revision="2"), OpenAICompatibleModel(server.url + "/2", "a")]
    assert len({model.fingerprint for model in made}) == 4
    assert OpenAICompatibleModel(server.url + "/", "a", api_key="k").fingerprint == made[0].fingerprint
    with CachedModel(made[0], tmp_path / "scores") as cached:
        first, asked = cached.score(["Cats"], [" purr"]), len(server.requests)
        again = cached.score(["Cats"], [" purr"])
        np.testing.assert_array_equal(first.logp, again.logp)
        assert len(server.requests) == asked


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"base_url": "localhost"}, "base_url must begin with http:// or https://, got 'localhost'"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"timeout": 0}, "retries and timeout must be at least 0 and above 0, got 5 and 0"),
        ({"retries": -1}, "got -1 and 60"),
    ],
)
def test_bad_options(options, match):
    with pytest.raises(ValueError, match=f"OpenAICompatibleModel: .*{match}"):
        OpenAICompatibleModel(**{"base_url": "http://localhost", "model": "a", **options})


def test_no_pairs_or_unequal_numbers_are_not_asked_for(server):
    model = OpenAICompatibleModel(server.url, "tiny")
    with pytest.raises(ValueError, match="score: continuations must be as many as prompts, 2, got 1"):
        model.score(["a", "b"], ["c"])
    assert len(model.score([], []).count) == 0
    assert not server.requests


# --- Vectors.


def test_vectors_come_in_the_order_of_the_texts(server):
    encoder = OpenAICompatibleEncoder(server.url, "tiny", api_key="secret", batch_size=2)
    found = encoder.encode(["sun", "moon", "star"])
    np.testing.assert_array_equal(found, TinyEncoder().encode(["sun", "moon", "star"]))
    assert [path for path, *_ in server.requests] == ["/v1/embeddings"] * 2
    _, headers, body = server.requests[0]
    assert (body["input"], headers["Authorization"]) == (["sun", "moon"], "Bearer secret")
    assert encoder.fingerprint != OpenAICompatibleEncoder(server.url, "other").fingerprint


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"error": "no"}, "server must answer with embeddings"),
        ({"data": [{"embedding": []}] * 2}, "server must answer with embeddings"),
        ({"data": [{"embedding": [1.0]}]}, "server must answer each of 2 texts once"),
        ({"data": [{"embedding": [1.0]}, {"embedding": [1.0, 2.0]}]}, r"must give vectors of one length, got \[1, 2\]"),
    ],
)
def test_other_answers_are_refused(server, answer, message):
    server.instead = [(200, {}, json.dumps(answer))]
    with pytest.raises(ValueError, match=f"OpenAICompatibleEncoder: .*{message}"):
        OpenAICompatibleEncoder(server.url, "tiny").encode(["sun", "moon"])
