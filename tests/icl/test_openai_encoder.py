"""Vectors of a server with OpenAI's ``/embeddings``: a server of this test, which answers as those do, or wrongly."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import tiny_encoder

from ragsys_kernels.icl import OpenAICompatibleEncoder


@pytest.fixture
def server():
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            made.asked.append((self.path, message, self.headers.get("Authorization")))
            rows = tiny_encoder.TinyEncoder().encode(message["input"]).tolist()
            data = [{"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(rows)][::-1]
            body = json.dumps(made.answer(data)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.asked, made.answer = [], lambda data: {"data": data}
    made.url = f"http://127.0.0.1:{made.server_port}/v1"
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def test_vectors_come_in_the_order_of_the_texts(server):
    encoder = OpenAICompatibleEncoder(server.url, "tiny", api_key="secret", batch_size=2)
    found = encoder.encode(["sun", "moon", "star"])
    np.testing.assert_array_equal(found, tiny_encoder.TinyEncoder().encode(["sun", "moon", "star"]))
    assert [path for path, _, _ in server.asked] == ["/v1/embeddings"] * 2
    assert server.asked[0][1]["input"] == ["sun", "moon"]
    assert server.asked[0][2] == "Bearer secret"
    assert encoder.fingerprint != OpenAICompatibleEncoder(server.url, "other").fingerprint


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda data: {"error": "no"}, "server must answer with embeddings"),
        (lambda data: {"data": data[1:]}, "server must answer each of 2 texts once"),
        (lambda data: {"data": [data[0], {**data[1], "embedding": [1.0]}]}, "server must give vectors of one length"),
    ],
)
def test_other_answers_are_refused(server, answer, message):
    server.answer = answer
    with pytest.raises(ValueError, match=f"OpenAICompatibleEncoder: {message}"):
        OpenAICompatibleEncoder(server.url, "tiny").encode(["sun", "moon"])
