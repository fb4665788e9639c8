"""Ray Serve: HTTP and handles have the bits of calls in process."""

import json
import subprocess
import sys

import numpy as np
import pytest
from ports import free_port

pytest.importorskip("fastapi")
pytest.importorskip("grpc_reflection", reason="ray[serve] is not installed: make test-serve")
pytest.importorskip("ray")

import ragsys_kernels as rk

RNG = np.random.default_rng(26)
ROWS = RNG.standard_normal((100, 8), dtype=np.float32)
QUERIES = RNG.standard_normal((12, 8), dtype=np.float32)

# In a process of its own: Ray changes signals and leaves threads.
PROGRAM = r"""
import json, sys
import httpx, numpy as np, pyarrow as pa, ray
from ray import serve
from ragsys_kernels.serving import ray_deployment

folder, port = sys.argv[1], int(sys.argv[2])
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
serve.start(http_options={"host": "127.0.0.1", "port": port}, logging_config={"log_level": "ERROR"})
handle = serve.run(ray_deployment({"docs": folder}), name="selection")
queries = np.load("queries.npy")
table = pa.table({"vector": pa.array(queries.tolist(), pa.list_(pa.float32()))})
found = {"handle": handle.select.remote(table, k=4, pool=30).result().column("ids").to_pylist()}
try:
    handle.select.remote(table, k=0).result()
except Exception as error:
    found["error"] = str(error)
body = {"k": 4, "pool": 30, "queries": [{"query": query.tolist()} for query in queries]}
with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
    found["http"] = [result["ids"] for result in client.post("/v1/select", json=body).json()["results"]]
    found["ready"] = client.get("/health/ready").status_code
    found["bad"] = client.post("/v1/select", json={"queries": []}).status_code
serve.shutdown()
ray.shutdown()
print(json.dumps(found))
"""


@pytest.mark.slow
def test_handles_and_http_have_the_picks_of_calls_in_process(tmp_path):
    corpus = rk.Corpus(ROWS, ids=np.arange(100) + 7)
    corpus.save(tmp_path / "docs")
    np.save(tmp_path / "queries.npy", QUERIES)
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(tmp_path / "docs"), str(free_port())]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    expected = corpus.ids[corpus.select(QUERIES, 4, pool=30).indices].tolist()
    assert found["handle"] == found["http"] == expected
    assert "k must be within [1, 1000], got 0" in found["error"]
    assert (found["ready"], found["bad"]) == (200, 422)
