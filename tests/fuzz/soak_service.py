"""A service with all that goes on beside it at once: `python tests/fuzz/soak_service.py --seconds 600`.

Two workers serve a folder with ``--watch``, which `corpus sync --every` keeps in step with a table of LanceDB.
Meanwhile 1,000 of the table's 100,000 rows change at a time; sync is killed and started again; the file of tokens
changes; clients ask for answers that they do not read; some requests have 4,096 queries with k = 1,000; others make no
sense. Good requests have to be answered as the library answers them with the rows of some version of the table,
those at the end with the rows of the last. Prints what was seen as JSON; the exit code is 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import json
import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import lancedb
import numpy as np
import pyarrow as pa
from fuzz_requests import ALLOWED, damaged, good, spoiled

import ragsys_kernels as rk
from ragsys_kernels.serving import Client, ServiceError

N, D, CHANGED = 100_000, 64, 1_000
WORKERS, MEMORY, BODY, WRITE_SECONDS, TIMEOUT_MS = 2, 512 << 20, 8 << 20, 3.0, 10_000
COMMAND = [sys.executable, "-m", "ragsys_kernels.cli"]
RULES = ("mmr", "vrsd", "msd", "dpp", "ssd", "sift")
_STUCK = 120  # seconds after which a connection stays open for ever
REFUSALS = (429, 503, 504)  # of a server that is busy: each says why


class Table:
    """A table of LanceDB, and the rows of each version: how often a row has changed; negative: it is not there."""

    def __init__(self, folder: Path) -> None:
        self._random = np.random.default_rng(1)
        self._source = np.random.default_rng(0).standard_normal((N, D), np.float32)
        self.states = [np.zeros(N, np.int16)]
        self._table = lancedb.connect(folder).create_table("vectors", self._written(np.arange(N), self.states[0]))

    def rows(self, ids: np.ndarray, state: np.ndarray) -> np.ndarray:
        """Return vectors of which no two have one direction: between equal ones the place in the folder decides."""
        changes = state[ids].astype(np.int64)
        return self._source[ids] + self._source[(ids + 7919 * changes) % N]  # of each change another pair of rows

    def change(self) -> None:
        """Change rows, some of which had been deleted, or now and then delete some."""
        state = self.states[-1].copy()
        ids = self._random.choice(N, CHANGED, replace=False)
        deletes = len(self.states) % 4 == 0
        if deletes:
            ids = ids[state[ids] >= 0]
            state[ids] = ~state[ids]
        else:
            state[ids] = np.where(state[ids] < 0, ~state[ids], state[ids]) + 1
        self.states.append(state)  # first: who reads the rows may answer at once
        if deletes:
            self._table.delete(f"id IN ({', '.join(map(str, ids))})")
        else:
            merge = self._table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
            merge.execute(self._written(ids, state))

    def _written(self, ids: np.ndarray, state: np.ndarray) -> pa.Table:
        vectors = pa.FixedSizeListArray.from_arrays(self.rows(ids, state).ravel(), D)
        return pa.table({"id": ids.astype(np.int64), "vector": vectors})

    @functools.lru_cache(3)  # noqa: B019 (there is one table)
    def corpus(self, version: int) -> rk.Corpus:
        """Return all rows of a version."""
        there = np.flatnonzero(self.states[version] >= 0)
        return rk.Corpus(self.rows(there, self.states[version]), ids=there)

    def picks(self, version: int, query: np.ndarray, k: int, candidates: np.ndarray | None, method: str) -> Any:
        """Return the ids and scores that the library picks for a query."""
        if candidates is None:
            corpus, among = self.corpus(version), {"pool": 100}
        else:
            there = candidates[self.states[version][candidates] >= 0]
            corpus = rk.Corpus(self.rows(there, self.states[version]), ids=there)
            among = {"candidates": np.arange(len(there))[None]}
        found = corpus.select(query[None], k, method=method, num_threads=1, **among)
        return corpus.ids[found.indices[0]], found.scores[0]


class Soak:
    """What goes on, each in a thread of its own until the time is up, and what is found."""

    def __init__(self, folder: Path, ending: contextlib.ExitStack) -> None:
        self.folder, self.table, self.ending = folder, Table(folder / "store"), ending
        self.ended, self.counts = threading.Event(), collections.Counter[str]()
        self.wrong: list[str] = []
        self.times: list[float] = []
        self.heavy = threading.Event()  # a heavy request is under way
        self.times_beside: list[float] = []
        self.matched: set[int] = set()
        self.generation = 0
        self._lock = threading.Lock()

    def fails(self, what: str) -> None:
        with self._lock:
            self.wrong.append(what[:500])
            if len(self.wrong) < 10:
                print(what[:500], file=sys.stderr, flush=True)

    def count(self, *names: str) -> None:
        with self._lock:
            self.counts.update(names)

    # The server and what changes beside it.

    def rotate(self) -> None:
        """Write the tokens of four generations; clients use that of the third, which is valid for two more."""
        lines = [f"token-{self.generation + i} name=soak role=read\n" for i in range(4)]
        (self.folder / "tokens.new").write_text("".join(lines))
        os.replace(self.folder / "tokens.new", self.folder / "tokens")
        self.generation += 1

    @property
    def token(self) -> str:
        return f"token-{self.generation + 1}"

    def sync(self, *options: str) -> subprocess.Popen[bytes]:
        source = f"lancedb:{self.folder / 'store'}?table=vectors"
        command = [*COMMAND, "corpus", "sync", "--from", source, "--to", str(self.folder / "corpus"), "--quiet"]
        return subprocess.Popen([*command, *options])

    def serve(self) -> None:
        """Make the folder and start the server; return when it is ready."""
        self.rotate()
        assert self.sync().wait() == 0
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        limits = {
            "max-memory": MEMORY, "max-body": BODY, "write-seconds": WRITE_SECONDS, "timeout-ms": TIMEOUT_MS,
            "port": self.port, "workers": WORKERS, "token-file": self.folder / "tokens",
        }  # fmt: skip
        options = [str(part) for name, value in limits.items() for part in (f"--{name}", value)]
        command = [*COMMAND, "serve", "--corpus", f"docs={self.folder / 'corpus'}", "--watch", "--no-access-log"]
        self.log = open(self.folder / "log", "wb")  # noqa: SIM115 (the server writes it)
        self.server = subprocess.Popen([*command, *options], stderr=self.log)
        self.ending.callback(self.server.kill)  # whatever happens
        self.url = f"http://127.0.0.1:{self.port}"
        while True:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/health/ready").status_code == 200:
                    return
            if self.server.poll() is not None:
                raise SystemExit((self.folder / "log").read_text())
            time.sleep(0.1)

    def anonymous(self) -> float:
        """Return the bytes that the processes of the server hold, but for files that they have mapped."""
        children = Path(f"/proc/{self.server.pid}/task/{self.server.pid}/children").read_text().split()
        texts = [Path(f"/proc/{pid}/status").read_text() for pid in [self.server.pid, *children]]
        return sum(int(found[1]) << 10 for text in texts if (found := re.search(r"RssAnon:\s+(\d+)", text)))

    def rotates(self, random: random.Random) -> None:
        self.rotate()
        self.count("rotations of tokens")
        self.ended.wait(3)

    def changes(self, random: random.Random) -> None:
        self.table.change()
        self.count("changes of 1,000 rows")
        self.ended.wait(1.5)

    def kills(self, random: random.Random) -> None:
        """Let sync run for a while, kill it wherever it is."""
        sync = self.sync("--every", "1s")
        self.ended.wait(random.uniform(4, 12))
        if sync.poll() is not None:
            self.fails(f"sync ended with {sync.returncode}")
        sync.kill()
        sync.wait()
        self.count("kills of sync")

    # Those who ask.

    def asks(self, random: random.Random) -> None:
        """Ask for the picks of some queries, and compare."""
        draw = np.random.default_rng(random.getrandbits(32))
        token, wire = self.token, random.choice(["json", "arrow"])
        with Client(self.url, token=token, corpus="docs", timeout=60, retries=0, wire=wire) as client:
            while token == self.token and not self.ended.is_set():
                count, k, method = random.choice([1, 1, 4]), random.choice([3, 8]), random.choice(RULES)
                queries = draw.standard_normal((count, D), np.float32)
                candidates = (
                    None
                    if random.random() < 0.02
                    else np.stack([draw.choice(N, 50, replace=False) for _ in range(count)])
                )
                beside, begin = self.heavy.is_set(), time.perf_counter()
                try:
                    found = client.select(queries, k, candidates=candidates, method=method, pool=100, unknown="skip")
                except ServiceError as error:
                    self.refused("good", error.status, error.code, str(error))
                    continue
                seconds = time.perf_counter() - begin
                with self._lock:
                    (self.times_beside if beside else self.times).append(seconds)
                self.count("good requests")
                for q in range(count):
                    among = None if candidates is None else candidates[q]
                    self.compares(found.ids[q], found.scores[q], queries[q], k, among, method)
                self.ended.wait(0.01)

    def compares(self, ids: Any, scores: Any, *asked: Any, versions: range | None = None) -> None:
        """Find a version of which the library picks the same."""
        for version in versions or range(len(self.table.states) - 1, -1, -1):
            own, values = self.table.picks(version, *asked)
            if np.array_equal(ids, own) and np.array_equal(scores, values):
                self.matched.add(version)
                return
        _, k, candidates, method = asked
        last = self.table.picks(len(self.table.states) - 1, *asked)
        among = "the corpus" if candidates is None else "candidates"
        self.fails(f"wrong: {method}, k={k} of {among}: {ids} {scores}; the last version has {last}")

    def refused(self, who: str, status: int | None, code: str | None, text: str) -> None:
        """Count a refusal; whoever asks well may be refused only where the server is busy, and says so."""
        self.count(f"{who}: {status} {code}")
        if status not in REFUSALS or not code:
            self.fails(f"{who}: {status} {code} {text}")

    def weighs(self, random: random.Random) -> None:
        """Ask for 1,000 picks of each of 4,096 queries."""
        pool, weight = random.choice([(1_000, 1.0), (1_000, 0.3), (10_000, 0.3)])  # the first is mostly its answer
        queries = [{"query_id": random.randrange(N)} for _ in range(4096)]
        body = {"corpus": "docs", "k": 1000, "pool": pool, "lambda_d": weight, "queries": queries}
        self.heavy.set()
        status, content = self.posts(body)
        self.heavy.clear()
        if status in (200, 422):  # some of the ids may be gone
            found = json.loads(content)["results"]
            if len(found) != 4096 or not all("error" in each or len(each["ids"]) == 1000 for each in found):
                self.fails(f"heavy: {content[:200]!r}")
            self.count("heavy requests answered")
        else:
            self.refused("heavy", status, _code(content), repr(content[:200]))
        self.ended.wait(random.uniform(3, 10))

    def spoils(self, random: random.Random) -> None:
        """Send what is no request."""
        body = json.dumps(spoiled(good(random), random)).encode()
        if random.random() < 0.3:
            body = damaged(body, random)
        status, content = self.posts(body)
        said = status < 400 or _code(content) or content.startswith(b'{"results"')
        if status not in ALLOWED or not said:
            self.fails(f"malformed: {status} {content[:200]!r} for {body[:300]!r}")
        self.count("malformed requests")
        self.ended.wait(0.02)

    def posts(self, body: Any) -> tuple[int, bytes]:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"authorization": f"Bearer {self.token}", "content-type": "application/json"}
        try:
            answer = httpx.post(f"{self.url}/v1/select", content=content, headers=headers, timeout=60)
        except httpx.TransportError as error:
            return 0, repr(error).encode()
        return answer.status_code, answer.content

    def sticks(self, random: random.Random) -> None:
        """Ask for much and read nothing: the server has to close."""
        queries = [{"query_id": random.randrange(N)} for _ in range(1000)]
        body = json.dumps({"corpus": "docs", "k": 200, "pool": 400, "queries": queries}).encode()
        head = f"POST /v1/select HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {self.token}\r\n"
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", self.port))
            head += f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n"
            client.sendall(head.encode() + body)
            poll = select.poll()
            poll.register(client, select.POLLRDHUP | select.POLLHUP)
            if not poll.poll(_STUCK * 1000):
                self.fails("a client that does not read was not closed")
        self.count("answers left unread")

    def run(self, seconds: float) -> dict[str, Any]:
        """Let all go on for so long; return what was seen."""
        self.serve()
        time.sleep(2)
        before = most = self.anonymous()
        acts = [self.rotates, self.changes, self.kills, self.weighs, self.spoils, *[self.sticks] * 2, *[self.asks] * 3]
        threads = [threading.Thread(target=self._repeats, args=(act, i)) for i, act in enumerate(acts)]
        for thread in threads:
            thread.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.server.poll() is None:
            most = max(most, self.anonymous())
            time.sleep(0.2)
        self.ended.set()
        for thread in threads:
            thread.join()
        after = self.anonymous()
        if self.server.poll() is not None:
            self.fails(f"the server ended with {self.server.returncode}")
        else:
            self.finds_the_last()
            self.server.send_signal(signal.SIGTERM)
            if self.server.wait(60):
                self.fails(f"the server ended with {self.server.returncode} after SIGTERM")
        if most - before > WORKERS * MEMORY:
            self.fails(f"memory: {most / 2**20:.0f} MB")
        self.log.close()
        if errors := [line for line in (self.folder / "log").read_text().splitlines() if "Traceback" in line]:
            self.fails(f"the server logged {len(errors)} errors: {(self.folder / 'log').read_text()[-2000:]}")
        megabytes = {"before": before, "most": most, "after": after, "limit": before + WORKERS * MEMORY}
        times = {"alone": self.times, "beside heavy requests": self.times_beside}
        return {
            "seconds": seconds,
            **dict(sorted(self.counts.items())),
            "versions seen": len(self.matched),
            "memory in MB": {name: size >> 20 for name, size in megabytes.items()},
            "ms": {name: _percentiles(values) for name, values in times.items() if values},
            "wrong": len(self.wrong),
            "first": self.wrong[:5],
        }

    def _repeats(self, act: Callable[[random.Random], None], seed: int) -> None:
        rng = random.Random(seed)
        while not self.ended.is_set():
            try:
                act(rng)
            except Exception as error:
                self.fails(f"{act.__name__}: {error!r}")
                self.ended.wait(1)

    def finds_the_last(self) -> None:
        """All workers have to come to the rows of the last version."""
        assert self.sync().wait() == 0
        time.sleep(5)
        last, before = self.table.states[-1], self.table.states[-3]  # at most one of two changes is of deletions
        changed = np.flatnonzero((last != before) & (last >= 0))
        for seed in range(20):  # each over a connection of its own, which any worker takes
            draw = np.random.default_rng(seed)
            query, candidates = draw.standard_normal(D, np.float32), draw.choice(changed, 50, replace=False)
            with Client(self.url, token=self.token, corpus="docs") as client:
                found = client.select(query[None], 8, candidates=candidates[None])
            versions = range(len(self.table.states) - 1, len(self.table.states))
            self.compares(found.ids[0], found.scores[0], query, 8, candidates, "mmr", versions=versions)


def _percentiles(seconds: list[float]) -> dict[str, float]:
    values = np.percentile(seconds, (50, 99, 100)) * 1000
    return dict(zip(("p50", "p99", "most"), values.round(1).tolist(), strict=True))


def _code(content: bytes) -> str | None:
    """Return the code of an answer that is an error."""
    try:
        return json.loads(content)["error"]["code"]
    except (ValueError, TypeError, KeyError):
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as ending:
        found = Soak(Path(folder), ending).run(seconds)
    print(json.dumps(found, indent=2))
    sys.exit(bool(found["wrong"]))


if __name__ == "__main__":
    main()
