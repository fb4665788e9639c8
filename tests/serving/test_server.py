"""Server processes as users start them: signals, reloads, workers that die, clients that are slow."""

import concurrent.futures
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import servers
from certificates import certificate
from servers import until

import ragsys_kernels as rk
from ragsys_kernels import offline
from ragsys_kernels.corpus import folder as corpus_folder
from ragsys_kernels.serving import Limits
from ragsys_kernels.serving import server as one_process
from ragsys_kernels.serving import workers as processes
from ragsys_kernels.serving.corpora import fingerprint, loaded

N, D = 400, 16


def save(folder, seed):
    """Save a corpus of which every score tells its seed; return its answer to the query."""
    rows = np.random.default_rng(seed).standard_normal((N, D), dtype=np.float32)
    corpus = rk.Corpus(rows)
    corpus.save(folder, overwrite=True)
    picks = corpus.select(np.ones((1, D), np.float32), 5)
    return picks.indices[0].tolist(), picks.scores[0].tobytes()


BODY = orjson.dumps({"k": 5, "queries": [{"query": [1.0] * D}] * 3})


def answer_of(response):
    """Return the one answer that all three queries of a response have."""
    results = [(result["ids"], np.array(result["scores"], "f4").tobytes()) for result in response.json()["results"]]
    assert results.count(results[0]) == 3  # a request has one version of the corpus
    return results[0]


def answers_of(answers):
    return {scores for _, scores in answers}


class Load:
    """Threads that ask without pause; what they got."""

    def __init__(self, url, threads=2, retries=0, body=BODY):
        self._url, self._retries, self._body, self._stop = url, retries, body, threading.Event()
        self._answered = threading.Semaphore(0)
        self._pool = concurrent.futures.ThreadPoolExecutor(threads)
        self._work = [self._pool.submit(self._ask) for _ in range(threads)]

    def _ask(self):
        statuses, answers, broken = {}, [], 0
        with httpx.Client(timeout=servers.HANGS, verify=False) as client:
            left = self._retries
            while not self._stop.is_set():
                try:
                    response = client.post(f"{self._url}/v1/select", content=self._body)
                except httpx.TransportError:
                    broken, left = broken + 1, left - 1
                    if left < 0:
                        break
                    continue
                left = self._retries
                statuses[response.status_code] = statuses.get(response.status_code, 0) + 1
                if response.status_code == 200:
                    answers.append(answer_of(response))
                self._answered.release()
        return statuses, answers, broken, left

    def under_way(self, answers=8):
        """Wait for some answers."""
        for _ in range(answers):
            assert self._answered.acquire(timeout=servers.HANGS)
        return self

    def end(self):
        self._stop.set()
        found = [work.result() for work in self._work]
        self._pool.shutdown()
        statuses = {}
        for each, *_ in found:
            for status, count in each.items():
                statuses[status] = statuses.get(status, 0) + count
        return statuses, [answer for _, answers, _, _ in found for answer in answers], found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("corpora") / "docs"


@pytest.fixture(scope="module")
def server(folder):
    """A server of two workers; tests that kill one wait until there are two again."""
    save(folder, 1)
    file = folder.parent / "texts.parquet"
    pq.write_table(pa.table({"id": np.arange(N), "text": [f"row {i}" for i in range(N)]}), file)
    texts = ("--texts", file, "--text-id-column", "id")
    arguments = ("--corpus", f"docs={folder}", "--workers", 2, "--load-from", folder.parent)
    with servers.Process(*arguments, *texts, "--threads", 1) as process:
        yield process


def workers(server):
    """The ids of the worker processes."""
    children = f"/proc/{server.process.pid}/task/{server.process.pid}/children"
    return [pid for pid in map(int, Path(children).read_text().split()) if b"spawn_main" in of_process(pid, "cmdline")]


def of_process(pid, name):
    """What /proc says of a process, or nothing where it has ended since it was listed."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


NOT_A_PAGE = {"x-requested-with": "test"}


def reload(server, headers=NOT_A_PAGE):
    return servers.http.post(f"{server.url}/v1/corpora/docs/reload", headers=headers)


def test_reloads_under_load_fail_no_request_and_mix_no_corpora(server, folder):
    expected = [save(folder, 1)]
    assert reload(server).status_code == 200
    load = Load(server.url).under_way()
    for seed in (2, 3):
        expected.append(save(folder, seed))
        assert reload(server).status_code == 200
        last = [answer_of(servers.http.post(f"{server.url}/v1/select", content=BODY)) for _ in range(6)]
        assert last == [expected[-1]] * 6  # in all workers, from the answer to the reload on
    save(folder, 1)
    server.process.send_signal(signal.SIGHUP)
    until(lambda: answer_of(asked(server.url)) == expected[0])
    statuses, answers, found = load.end()
    assert set(statuses) == {200}
    assert all(broken == 0 for _, _, broken, _ in found)
    assert answers_of(answers) == {scores for _, scores in expected}


def test_a_reload_of_all_workers_counts_once(server, folder):
    save(folder, 1)
    reloads = "ragsys_reloads_total{", '"docs"'
    before = [servers.metric(server.url, *reloads, f'"{outcome}"') for outcome in ("loaded", "refused")]
    assert reload(server).status_code == 200
    (folder / "corpus.json").rename(folder / "away")
    assert reload(server).status_code == 409
    (folder / "away").rename(folder / "corpus.json")
    after = [servers.metric(server.url, *reloads, f'"{outcome}"') for outcome in ("loaded", "refused")]
    assert after == [count + 1 for count in before]


def test_metrics_have_the_processes_of_all_workers(server):
    def found():
        text = servers.http.get(f"{server.url}/metrics").text
        return re.findall(r'process_resident_memory_bytes\{worker="(\d)"\} (\S+)', text)

    until(lambda: len(workers(server)) == 2 and [worker for worker, _ in sorted(found())] == ["0", "1"])
    assert all(float(size) > 10 << 20 for _, size in found())


def test_corpora_are_loaded_and_unloaded_in_all_workers(server, folder):
    """Also in workers that start later, and in the place of another version; no other request fails."""
    save(folder, 1)
    reload(server)
    expected = [save(folder.parent / name, seed) for name, seed in (("more", 7), ("more-2", 8))]
    bodies = {name: orjson.dumps({**orjson.loads(BODY), "corpus": name}) for name in ("docs", "more")}

    def change(method, path, **more):
        return servers.http.request(method, f"{server.url}/v1/corpora/{path}", headers=NOT_A_PAGE, **more)

    def answers(times=12):
        return [asked(server.url, bodies["more"]) for _ in range(times)]

    assert {answer.status_code for answer in answers()} == {422}
    load = Load(server.url, body=bodies["docs"]).under_way()
    assert change("PUT", "more", json={}).json()["rows"] == N
    assert [answer_of(answer) for answer in answers()] == expected[:1] * 12
    assert change("PUT", "more", json={"folder": "more-2"}).status_code == 200
    assert [answer_of(answer) for answer in answers()] == expected[1:] * 12
    assert change("POST", "more/reload").status_code == 200
    assert [answer_of(answer) for answer in answers()] == expected[1:] * 12
    for bad, status in (("../more", 422), ("", 422), (7, 422), ("nowhere", 409)):
        refused = change("PUT", "more", json={"folder": bad})
        assert (refused.status_code, refused.json()["error"]["argument"]) == (status, "folder")
    assert re.match(
        "load: folder must be one that loads, got 'nowhere'; corpus 'more' stays as it was: .*/nowhere",
        refused.json()["error"]["message"],
    )
    refused = change("PUT", "another", json={"folder": "nowhere"}).json()["error"]
    assert (refused["argument"], refused["code"]) == ("folder", "load_failed")
    assert re.match(r"load: folder must .*; corpus 'another' is not in service: .*/nowhere", refused["message"])
    statuses, _, found = load.end()
    assert (set(statuses), [broken for _, _, broken, _ in found]) == ({200}, [0, 0])
    for pid in workers(server):  # until only such are left as started after the corpus was loaded
        servers.kill(pid)
        until(lambda pid=pid: pid not in (now := workers(server)) and len(now) == 2)
        found = until(lambda: (found := asked(server.url, bodies["more"])) and found.status_code == 200 and found)
        assert answer_of(found) == expected[1]
    server.wait_ready()
    assert change("DELETE", "more").json() == {"corpus": "more"}
    assert {answer.status_code for answer in answers()} == {422}
    assert change("DELETE", "more").status_code == change("POST", "more/reload").status_code == 404
    assert {*servers.http.get(f"{server.url}/info").json()["corpora"]} == {"docs"}


def test_picks_have_the_texts_of_the_file_that_the_command_names(server):
    body = {"k": 2, "texts": True, "queries": [{"query_id": 3}]}
    [result] = servers.http.post(f"{server.url}/v1/select", json=body).json()["results"]
    assert result["texts"] == [{"text": f"row {i}", "chars": len(f"row {i}")} for i in result["ids"]]


def test_a_folder_that_does_not_load_leaves_the_old_one(server, folder, tmp_path):
    expected = save(folder, 1)
    assert reload(server).status_code == 200
    shutil.copytree(folder, tmp_path / "kept")
    (folder / "data.npy").unlink()  # what is mapped stays as it is
    (folder / "data.npy").write_bytes(b"")
    answer = reload(server)
    assert answer.status_code == 409
    assert "stays as it was" in answer.json()["error"]["message"]
    assert answer_of(servers.http.post(f"{server.url}/v1/select", content=BODY)) == expected
    assert servers.http.post(f"{server.url}/v1/corpora/other/reload", headers=NOT_A_PAGE).status_code == 404
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "kept", folder)


def flip(folder):
    """Flip a bit of a large corpus, in a row that no sample has."""
    rows = np.random.default_rng(1).standard_normal((20_000, D), dtype=np.float32)
    rk.Corpus(rows).save(folder, overwrite=True)
    content = bytearray((folder / "data.npy").read_bytes())
    content[len(content) // 2 + 1000] ^= 1
    (folder / "data.npy").write_bytes(content)


def checked_at_reload(server, folder):
    flip(folder)
    answer = reload(server)
    assert answer.status_code == 409
    assert "data.npy is damaged: its checksum" in answer.text
    assert servers.http.post(f"{server.url}/v1/select", content=BODY).status_code == 200
    save(folder, 2)
    assert reload(server).status_code == 200


def test_one_flipped_bit_is_found_for_all_workers(server, folder):
    checked_at_reload(server, folder)


@pytest.mark.slow
def test_a_worker_that_is_killed_is_replaced(server, folder):
    """Requests that it had are broken; a client that asks once more sees no failure."""
    expected = save(folder, 1)
    reload(server)
    before = workers(server)
    load = Load(server.url, retries=3).under_way()
    servers.kill(before[0])
    until(lambda: before[0] not in (now := workers(server)) and len(now) == 2)
    statuses, answers, found = load.end()
    assert set(statuses) == {200}
    assert all(left >= 0 for *_, left in found)
    assert answers_of(answers) == {expected[1]}


def counted(server):
    """Requests for selections that were answered, by ``/metrics``."""
    return servers.metric(server.url, "ragsys_requests_total{", '"200"', '"/v1/select"')


def test_a_new_worker_goes_on_where_the_dead_one_stopped(server, folder):
    """It counts in the files of the dead one, which do not add up: no request is forgotten or counted twice.

    If it loaded the corpus before a reload, it does not serve that one afterwards.
    """
    name = b"PROMETHEUS_MULTIPROC_DIR="
    (shared,) = [one for one in of_process(workers(server)[0], "environ").split(b"\0") if one.startswith(name)]

    def two_ready():
        """Return whether there are two workers, and the files of two, those of gauges too."""
        now = workers(server)  # before the files: a new worker starts when the gauges of the dead one are gone
        found = [file.stem.rpartition("_") for file in Path(os.fsdecode(shared.removeprefix(name))).iterdir()]
        files = [[kind for kind, _, of in found if of == place] for place in {place for *_, place in found}]
        return len(now) == 2 and len(files) == 2 and len({*map(len, files)}) == 1

    def ask(times):  # each over a connection of its own, eight at a time: both workers take some
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            return list(pool.map(lambda _: answer_of(asked(server.url)), range(times)))

    expected = [save(folder, 1)]
    reload(server)
    until(two_ready)
    total, start = 24, counted(server)
    assert ask(total) == expected * total
    until(lambda: counted(server) == start + total)
    before = workers(server)
    servers.kill(before[0])
    new = until(
        lambda: next((p for p in set(workers(server)) - set(before) if b"/data.npy" in of_process(p, "maps")), None)
    )
    os.kill(new, signal.SIGSTOP)  # it has the corpus, and is not ready
    expected = [save(folder, 2)]
    reload(server)
    os.kill(server.process.pid, signal.SIGSTOP)  # as if the parent were slow to see that it is another version
    try:
        os.kill(new, signal.SIGCONT)
        end = time.monotonic() + 1
        while time.monotonic() < end:
            assert ask(8) == expected * 8
            total += 8
            time.sleep(0.02)
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    until(two_ready)
    assert workers(server) == [before[1], new]
    assert ask(24) == expected * 24
    until(lambda: counted(server) >= start + total + 24)
    time.sleep(0.2)
    assert counted(server) == start + total + 24


def test_the_queries_of_a_dead_worker_wait_no_more(server, folder):
    """A worker's gauges go with it: what it had in its queue when it was killed is not counted for ever."""
    save(folder, 1)
    many = orjson.dumps({"k": 50, "pool": None, "queries": [{"query": [1.0] * D}] * 4096})  # sixteen calls
    before, ended = workers(server), threading.Event()

    def ask():
        while not ended.is_set():
            with contextlib.suppress(httpx.TransportError):
                servers.http.post(f"{server.url}/v1/select", content=many)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask) for _ in range(4)]
        try:
            until(lambda: servers.metric(server.url, "ragsys_queued_queries") > 0)
            servers.kill(*before)
        finally:
            ended.set()
        for each in asking:
            each.result()
    until(lambda: len(now := workers(server)) == 2 and not {*now} & {*before})
    server.wait_ready()
    assert servers.metric(server.url, "ragsys_queued_queries") == 0


def asked(url, body=BODY):
    """The answer to a selection, None where the connection is closed without one; no answer in time is an error."""
    with contextlib.suppress(httpx.NetworkError, httpx.RemoteProtocolError):
        return servers.http.post(f"{url}/v1/select", content=body)


@pytest.mark.slow
def test_a_worker_that_starts_when_files_have_gone_has_what_they_said_last(tmp_path):
    """Tokens and the certificate: those of the start may have been taken out of use. So have answers of the parent."""
    folder, file = tmp_path / "docs", tmp_path / "tokens"
    save(folder, 1)
    file.write_text("of-before")
    certificate(tmp_path, "before")
    secrets = [tmp_path / "cert.pem", tmp_path / "key.pem", file]
    places = [item for pair in zip(("--tls-cert", "--tls-key", "--token-file"), secrets, strict=True) for item in pair]
    with servers.Process("--corpus", f"docs={folder}", "--workers", 2, "--threads", 1, *places) as process:

        def shown():
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                return ssl.get_server_certificate(("127.0.0.1", process.port)).encode()

        def statuses(token, times=12):
            headers = {"authorization": f"Bearer {token}"}
            return {servers.http.get(f"{process.url}/info", headers=headers).status_code for _ in range(times)}

        def in_use():
            return {shown() for _ in range(12)} == {pem} and statuses("of-now") == {200}

        assert (statuses("of-before", 1), statuses("of-now", 1)) == ({200}, {401})
        pem = certificate(tmp_path, "now")
        file.write_text("of-now")
        until(in_use)
        assert reload(process, {"authorization": "Bearer of-now"}).status_code == 200  # the parent has looked since
        for secret in secrets:
            secret.unlink()
        before = workers(process)
        servers.kill(*before)
        until(lambda: not {*workers(process)} & {*before})
        process.wait_ready()
        assert in_use()
        assert statuses("of-before") == {401}
        os.truncate(folder / "data.npy", 4096)
        servers.kill(*workers(process))
        until(lambda: statuses("of-now", 1) == {503})
        assert shown() == pem


@pytest.mark.slow
def test_while_no_worker_can_start_requests_are_refused_with_the_reason(tmp_path):
    """A file of the corpus is cut off: the workers that map it die, and others cannot load it."""
    folder = tmp_path / "docs"
    expected = save(folder, 1)
    arguments = ("--corpus", f"docs={folder}", "--workers", 2, "--threads", 1)
    whole = json.dumps({"k": 5, "pool": None, "queries": [{"query": [1.0] * D}] * 3}).encode()
    with servers.Process(*arguments) as process:
        assert answer_of(asked(process.url)) == expected
        os.truncate(folder / "data.npy", 4096)
        servers.kill(*workers(process))
        refused = until(lambda: (found := asked(process.url)) is not None and "data.npy" in found.text and found)
        assert refused.status_code == 503
        assert "no worker can start" in refused.json()["error"]["message"]
        assert refused.headers["retry-after"] == "1"
        large = servers.http.post(f"{process.url}/v1/select", content=whole + b" " * (8 << 20))
        assert large.status_code == 503
        assert servers.http.get(f"{process.url}/health/ready").json()["status"] == "failed"
        expected = save(folder, 2)
        answered = until(lambda: (found := asked(process.url)) is not None and found.status_code == 200 and found)
        assert answer_of(answered) == expected
        assert process.stop()[0] == 0


@pytest.mark.slow
def test_a_parent_whose_workers_cannot_start_ends(tmp_path):
    save(tmp_path / "docs", 1)
    with servers.Process("--corpus", f"docs={tmp_path / 'docs'}", "--workers", 2, "--threads", 1) as process:
        os.truncate(tmp_path / "docs" / "data.npy", 4096)
        servers.kill(*workers(process))
        assert process.process.wait(180) == 1
        assert "workers could not start in a minute" in process.stop()[2]


def connected(server, content=b""):
    client = socket.create_connection(("127.0.0.1", server.port), timeout=servers.HANGS)
    client.sendall(content)
    return client


def test_slow_and_idle_connections_are_closed():
    head = b"POST /v1/select HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n"
    slow = {
        b"": b"",  # says nothing
        head: b"HTTP/1.1 408 ",  # half a head
        head + b"\r\n{": b"HTTP/1.1 408 ",  # half a body
    }
    corpora, limits = {"docs": rk.Corpus(np.eye(3, dtype=np.float32))}, Limits(body_seconds=0.5, idle_seconds=0.8)
    with servers.Thread(corpora, limits=limits) as server:
        clients = [connected(server, content) for content in slow]
        begin = time.monotonic()
        for client, expected in zip(clients, slow.values(), strict=True):
            with client, client.makefile("rb") as stream:
                answer = stream.read()
            assert answer.startswith(expected)
            assert b"within 0.5 seconds" in answer if expected else answer == b""
        assert time.monotonic() - begin < 55  # of 60 that a server waits by itself
        assert servers.http.get(f"{server.url}/health/live").status_code == 200


def test_what_cannot_be_served_ends_with_one_line(command, tmp_path):
    save(tmp_path / "docs", 1)
    corpus = f"docs={tmp_path / 'docs'}"
    pq.write_table(pa.table({"id": [1], "text": ["a"]}), tmp_path / "a.parquet")
    for arguments, words in (
        ("docs", "corpus must be NAME=FOLDER"),
        (f"{corpus} --corpus {corpus}", "must have a name of its own"),
        ("docs=nowhere", "corpus 'docs' cannot be served: Corpus: path must be a folder written by Corpus.save"),
        ("docs=nowhere --workers 3", "corpus 'docs' cannot be served: Corpus: path must be a folder"),
        (f"{corpus} --host 0.0.0.0", "host must be of this machine without a token"),
        (f"{corpus} --token a --token-file b", "token must be given once"),
        (f"{corpus} --max-queries 9 --max-queue 8", "queries must be at most the queue"),
        (f"{corpus} --grace inf", "grace must be finite, got inf"),
        (f"{corpus} --flight-port 65535 --workers 2", "at most 65534, for each of 2 workers has a port, got 65535"),
        (f"{corpus} --corpus other=x --texts a.parquet", "texts must be NAME=FILE with the name of a corpus"),
        (f"{corpus} --texts a.parquet --texts docs=b", "texts must be one file or folder a corpus"),
        (f"{corpus} --texts none.parquet", "texts must be an existing file or folder"),
        (f"{corpus} --texts a.parquet --text-column body", "texts must have one column 'body'"),
        (f"{corpus} --encoder ftp://x", "encoder must be a model, or an http or https URL"),
        (f"{corpus} --encoder minilm --encoder-model x", "--encoder-model must come with the URL"),
    ):
        ended = command(tmp_path, "serve", "--port", "0", "--corpus", *arguments.split())
        [line] = ended.stderr.splitlines()  # it has not said that it listens
        assert (ended.returncode, line[:13], words in line) == (1, "error: serve:", True), line


@pytest.mark.slow
def test_what_a_worker_finds_ends_with_one_line():
    process = servers.Process("--corpus", "docs=nowhere", "--workers", 2, "--no-verify")
    with contextlib.closing(process):
        assert process.process.wait(servers.HANGS) == 1
        [line] = process.stop()[2].splitlines()
        assert line.startswith(
            "error: serve: corpus 'docs' cannot be served: Corpus: path must be a folder written by Corpus.save"
        )


def test_a_stopped_server_has_answered_what_it_took(server, folder):
    """SIGTERM under load, the last test: exit code 0, and no answer is cut."""
    expected = save(folder, 1)
    reload(server)
    load = Load(server.url).under_way()
    code, out, errors = server.stop()
    statuses, answers, _ = load.end()
    assert (code, errors.splitlines()[0]) == (0, f"serve: listening on {server.url}")
    assert set(statuses) <= {200, 503}
    assert statuses[200] > 0
    assert answers_of(answers) == {expected[1]}
    lines = [orjson.loads(line) for line in out.splitlines()]
    logged = [line for line in lines if line["path"] == "/v1/select" and line["status"] == 200]
    assert len(logged) >= statuses[200]
    assert {"read", "parse", "queue", "kernel", "write"} <= set(logged[0]["stages"])
    assert logged[0]["queries"] == 3


def test_defaults_of_the_command_are_the_limits(monkeypatch, tmp_path, command):

    save(tmp_path / "docs", 1)
    seen = []
    monkeypatch.setattr(one_process, "run", lambda settings, sockets: seen.append(settings))
    ended = command(tmp_path, "serve", "--port", "0", "--corpus", f"docs={tmp_path / 'docs'}")
    assert ended.returncode == 0, ended.stderr
    assert seen[0].limits == Limits()
    defaults = one_process.Settings(corpora=seen[0].corpora, port=0, num_threads=seen[0].num_threads)
    assert seen[0] == defaults


def test_a_flipped_bit_is_found_when_a_corpus_is_loaded(tmp_path, command, monkeypatch):
    folder = tmp_path / "docs"
    save(folder, 1)
    with servers.Thread({"docs": str(folder)}) as one:
        checked_at_reload(one, folder)
    flip(folder)
    for workers in (1, 2):
        ended = command(tmp_path, "serve", "--port", "0", "--corpus", f"docs={folder}", "--workers", workers)
        assert ended.returncode == 1
        said = r"^error: serve: corpus 'docs' cannot be served: Corpus: path must .*data\.npy is damaged: its checksum"
        assert re.search(said, ended.stderr, re.M)
    monkeypatch.setattr(one_process.Server, "run", lambda self, sockets: None)
    ended = command(tmp_path, "serve", "--port", "0", "--corpus", f"docs={folder}", "--no-verify")
    assert (ended.returncode, ended.stderr[:37]) == (0, "serve: listening on http://127.0.0.1:")
    processes._Parent(one_process.Settings(corpora={"docs": folder}, workers=2, verify=False), [])._verify()


def test_one_process_verifies_for_all_workers():
    for number, expected in ((1, True), (2, False)):
        settings = one_process.Settings(corpora={"docs": rk.Corpus(np.eye(3, dtype=np.float32))}, workers=number)
        assert settings.service().corpora._verify is expected


def test_blas_is_held_to_one_thread():
    import threadpoolctl

    with one_process.limited():
        pools = [pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]
    assert set(pools) == {1}


@pytest.mark.parametrize("number", [0, *(pytest.param(workers, marks=pytest.mark.slow) for workers in (1, 2))])
def test_a_watched_folder_is_served_after_its_change(tmp_path, number):
    """Segments are appended and deleted while queries are asked: no request fails, each has one version."""
    folder, rows = tmp_path / "docs", np.random.default_rng(1).standard_normal((N, D), dtype=np.float32)
    np.save(tmp_path / "rows.npy", rows)
    offline.build_corpus(tmp_path / "rows.npy", folder, rows_per_segment=100)

    def answer():
        picks = rk.Corpus.load(folder).select(np.ones((1, D), np.float32), 5)
        return picks.indices[0].tolist(), picks.scores[0].tobytes()

    expected = [answer()]
    arguments = ("--corpus", f"docs={folder}", "--workers", number, "--threads", 1, "--watch")
    with servers.Process(*arguments) if number else servers.Thread({"docs": str(folder)}, watch=True) as server:
        load = Load(server.url, threads=1).under_way()
        for step in range(2):
            if step:
                (tmp_path / "gone.txt").write_text("\n".join(map(str, expected[-1][0][:2])))
                offline.delete_rows(ids=tmp_path / "gone.txt", folder=folder)
            else:
                np.save(tmp_path / "more.npy", np.full((3, D), 1.0 + step, "f4") + rows[:3] / 9)
                offline.append_corpus(tmp_path / "more.npy", folder)
            changed = time.monotonic()
            expected.append(answer())
            assert expected[-1] != expected[-2]
            while answer_of(servers.http.post(f"{server.url}/v1/select", content=BODY)) != expected[-1]:
                assert time.monotonic() < changed + servers.HANGS
            print(f"{time.monotonic() - changed:.2f} s after the change")
        folder.rename(tmp_path / "elsewhere")  # told once, and what is in service stays
        refused = r'^ragsys_reloads_total{corpus="docs",outcome="refused"} (\S+)$'
        servers.until(lambda: re.findall(refused, servers.http.get(f"{server.url}/metrics").text, re.M))
        time.sleep(1.5)  # six looks
        told = re.findall(refused, servers.http.get(f"{server.url}/metrics").text, re.M)
        assert float(told[0]) <= 2  # a reload of the change before may end later than its first answer
        statuses, answers, found = load.end()
    assert set(statuses) == {200}
    assert all(broken == 0 for _, _, broken, _ in found)
    assert answers_of(answers) <= {scores for _, scores in expected}


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2])
def test_a_service_follows_a_store_that_lives(tmp_path, number):
    """``corpus sync --every 1s`` beside ``serve --watch``, under load: each answer is of the rows of one time."""
    rng, source, folder = np.random.default_rng(2), tmp_path / "store", tmp_path / "docs"
    rows = dict(enumerate(rng.standard_normal((N, D), dtype=np.float32)))
    source.mkdir()

    def write():
        ids = rng.permutation(list(rows)).tolist()
        table = pa.table({"id": ids, "vector": [rows[each] for each in ids]})
        pq.write_table(table, tmp_path / "new.parquet", row_group_size=100)
        os.replace(tmp_path / "new.parquet", source / "rows.parquet")
        corpus = rk.Corpus(np.array(list(rows.values())), ids=np.array(list(rows)))
        picks = corpus.select(np.ones((1, D), np.float32), 5)
        return corpus.ids[picks.indices[0]].tolist(), picks.scores[0].tobytes()

    expected, delays, next_id = [write()], [], N
    offline.sync_corpus(source, folder, rows_per_segment=100)
    command = [sys.executable, "-m", "ragsys_kernels.cli", "corpus", "sync", "--from", source, "--to", folder]
    arguments = ("--corpus", f"docs={folder}", "--workers", number, "--threads", 1, "--watch")
    environment = {**os.environ, "PYTHONPATH": str(Path(rk.__file__).parents[1])}
    with servers.Process(*arguments) as server, (tmp_path / "said").open("w") as said:
        syncing = subprocess.Popen([*map(str, command), "--every", "1s", "--quiet"], stdout=said, env=environment)
        try:
            load = Load(server.url, threads=1).under_way()
            for _ in range(8):
                for each in expected[-1][0][:2]:  # what was picked goes, and what is new is picked
                    del rows[each]
                for each in rng.permutation(list(rows))[:9].tolist():
                    rows[each] = rng.standard_normal(D).astype(np.float32)
                for _ in range(3):
                    rows[next_id] = np.full(D, 1, np.float32) + rng.standard_normal(D).astype(np.float32) / 3
                    next_id += 1
                before = fingerprint(folder)
                expected.append(write())
                end = time.monotonic() + servers.HANGS
                while fingerprint(folder) == before and time.monotonic() < end:
                    time.sleep(0.005)
                changed = time.monotonic()
                while answer_of(servers.http.post(f"{server.url}/v1/select", content=BODY)) != expected[-1]:
                    assert time.monotonic() < changed + servers.HANGS, (tmp_path / "said").read_text()
                delays.append(time.monotonic() - changed)
            statuses, answers, found = load.end()
        finally:
            syncing.kill()
            syncing.wait()
    print("seconds from a version of the folder to its first answer:", [round(each, 2) for each in delays])
    assert set(statuses) == {200}
    assert all(broken == 0 for _, _, broken, _ in found)
    assert answers_of(answers) <= {scores for _, scores in expected}


def test_segments_that_have_been_compared_are_not_again(tmp_path, monkeypatch):
    np.save(tmp_path / "rows.npy", np.random.default_rng(1).standard_normal((N, D), dtype=np.float32))
    offline.build_corpus(tmp_path / "rows.npy", tmp_path / "docs", rows_per_segment=100)
    compared, read = set(), []
    opened = corpus_folder.opened
    monkeypatch.setattr(
        corpus_folder, "opened", lambda place, verify, *more: read.append(verify) or opened(place, verify, *more)
    )
    loaded(tmp_path / "docs", verify=True, compared=compared)
    assert read == [True] * 4
    np.save(tmp_path / "more.npy", np.ones((3, D), "f4"))
    offline.append_corpus(tmp_path / "more.npy", tmp_path / "docs")
    read.clear()
    loaded(tmp_path / "docs", verify=True, compared=compared)
    assert read == [False] * 4 + [True]
