"""A job on Ray over a corpus that is spread over two nodes, with kills: `python killed_cluster.py FOLDER KILLS`.

Both nodes are on this machine, with a CPU each. So many times, each time after a shard more, a random process of those
that hold segments is killed, one of those that make shards, and the second node with all that is on it, for which
another one comes but the last time. The result has to have the bytes of the local engine. Then a pipeline of Ray Data
selects from the same corpus. Prints what was done as JSON.
"""

import contextlib
import json
import logging
import os
import pathlib
import random
import signal
import sys
import threading
import time

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import numpy as np
import ray
from ray.cluster_utils import Cluster

import ragsys_kernels as rk
from ragsys_kernels import offline
from ragsys_kernels.corpus import segments, versions

N, D, Q = 40_000, 32, 9_600
NODE = {"num_cpus": 1, "memory": 1 << 30, "object_store_memory": 100 << 20}


def make(folder):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((N, D), np.float32)
    parts = [rk.Corpus(rows[begin : begin + N // 8], ids=range(begin, begin + N // 8)) for begin in range(0, N, N // 8)]
    versions.build("build", folder / "corpus", lambda _: ((each, each.ids) for each in parts), N // 8, False)
    offline.delete_rows(np.arange(0, N, 11), folder / "corpus")
    np.save(folder / "queries.npy", rng.standard_normal((Q, D), np.float32))


def workers(name):
    """Return Ray's processes at work on that: holders, or what makes shards."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            line = pathlib.Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
            if line.startswith("ray::") and name in line:
                yield int(pid)


def main(folder, kills):
    folder = pathlib.Path(folder)
    make(folder)
    job = {
        "corpus": folder / "corpus", "queries": folder / "queries.npy", "k": 5, "pool": 60, "num_threads": 1,
        "shard_size": Q // (3 * kills + 18), "chunk_size": 200,
    }  # fmt: skip
    start = time.monotonic()
    offline.select(**job, out=folder / "local")
    found = {"seconds of the local engine": round(time.monotonic() - start, 1), "killed": []}
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    second = cluster.add_node(**NODE)
    cluster.wait_for_nodes()
    ray.init(cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False
    rng, done = random.Random(0), threading.Event()
    size = max(each["bytes"] for each in segments.described(folder / "corpus")["segments"])

    def shards():
        return len(list((folder / "ray").glob("part-*")))

    def wait_for_more(than):
        while shards() <= than and not done.is_set():
            time.sleep(0.05)

    def kill():
        other = second
        for number in range(kills):
            for name in ("SegmentHolder", "ShardWriter"):
                wait_for_more(than=shards())
                while True:
                    with contextlib.suppress(IndexError, ProcessLookupError):  # there is none, or it has ended since
                        os.kill(rng.choice(list(workers(name))), signal.SIGKILL)
                        break
                    time.sleep(0.05)
                found["killed"].append([name, shards()])
            wait_for_more(than=shards())
            cluster.remove_node(other, allow_graceful=False)
            found["killed"].append(["node", shards()])
            if number < kills - 1:
                other = cluster.add_node(**NODE)

    def work():
        try:
            on_ray = {"engine": "ray", "workers": 2, "memory": 2 * size, "ray_timeout": 180}
            summaries.append(offline.select(**job, out=folder / "ray", **on_ray))
        finally:
            done.set()

    start, summaries = time.monotonic(), []
    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    kill()  # here, for nodes are started in the main thread alone
    worker.join()
    (summary,) = summaries
    found["seconds"] = round(time.monotonic() - start, 1)
    content = [{path.name: path.read_bytes() for path in (folder / out).iterdir()} for out in ("local", "ray")]
    found.update(same=content[0] == content[1], complete=summary.complete, shards=summary.shards)
    queries = np.load(folder / "queries.npy")[:90]
    selector = offline.selector_for_ray(folder / "corpus", query_column="v", k=5, pool=60, memory=2 * size)
    pipeline = ray.data.from_items([{"row": row, "v": each} for row, each in enumerate(queries)], override_num_blocks=2)
    # The one CPU that is left is the pipeline's, too.
    picks = pipeline.map_batches(selector, batch_size=30, num_cpus=0.5, compute=ray.data.ActorPoolStrategy(size=1))
    picked = {row["row"]: row["ids"] for row in picks.take_all()}
    corpus = rk.Corpus.load(folder / "corpus")
    expected = corpus.ids[corpus.select(queries, 5, pool=60).indices].tolist()
    found["same in a pipeline"] = [picked[row] for row in range(90)] == expected
    ray.shutdown()
    cluster.shutdown()
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
