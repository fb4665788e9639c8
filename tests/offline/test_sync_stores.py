"""Stores are read through their own clients: the folder holds their rows, also after these have changed."""

import gc
import http.server
import shutil
import sqlite3
import ssl
import subprocess
import sys
import threading
import time
import types
import urllib.request
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import postgres
import pytest
from ports import free_port

import ragsys_kernels as rk
from ragsys_kernels import offline
from ragsys_kernels.offline import stores
from ragsys_kernels.offline.stores import _servers

D = 8


class SqliteVec:
    def __init__(self, folder):
        self._module = pytest.importorskip("sqlite_vec")
        self.source = f"sqlite-vec:{folder / 'notes.db'}?table=notes"
        self._store = sqlite3.connect(folder / "notes.db", check_same_thread=False)
        self._store.execute("PRAGMA journal_mode = WAL")  # else a writer waits for the reader
        if not hasattr(self._store, "enable_load_extension"):
            pytest.skip("this Python's sqlite3 loads no extensions")
        self._store.enable_load_extension(True)
        self._module.load(self._store)
        self._store.execute(f"CREATE VIRTUAL TABLE notes USING vec0(embedding float[{D}])")

    def put(self, rows):
        for each, vector in rows.items():
            self._store.execute("DELETE FROM notes WHERE rowid = ?", (each,))
            self._store.execute("INSERT INTO notes (rowid, embedding) VALUES (?, ?)", (each, vector.tobytes()))
        self._store.commit()

    def remove(self, ids):
        self._store.executemany("DELETE FROM notes WHERE rowid = ?", [(each,) for each in ids])
        self._store.commit()


class LanceDB:
    def __init__(self, folder):
        module = pytest.importorskip("lancedb")
        self.source = f"lancedb:{folder / 'lance'}?table=notes&vector=embedding"
        self._store, self._table = module.connect(folder / "lance"), None

    def put(self, rows):
        rows = [{"id": each, "embedding": vector, "text": "x"} for each, vector in rows.items()]
        if self._table is None:
            self._table = self._store.create_table("notes", rows)
        else:
            self.remove([row["id"] for row in rows])
            self._table.add(rows)

    def remove(self, ids):
        self._table.delete(f"id IN ({', '.join(map(str, ids))})")


class Chroma:
    strings = True

    def __init__(self, folder):
        module = pytest.importorskip("chromadb")
        self.source = f"chroma:{folder / 'chroma'}?collection=notes"
        client = module.PersistentClient(str(folder / "chroma"), settings=module.Settings(anonymized_telemetry=False))
        self._table = client.create_collection("notes", embedding_function=None)

    def put(self, rows):
        self._table.upsert(list(rows), list(rows.values()))

    def remove(self, ids):
        self._table.delete(list(ids))


class Qdrant:
    def __init__(self, folder):
        self._module = pytest.importorskip("qdrant_client")
        self._folder = folder / "qdrant"
        self.source = f"qdrant:{self._folder}?collection=notes"
        self._new = True

    def _open(self):
        return self._module.QdrantClient(path=str(self._folder))

    def shared(self, monkeypatch):
        """Let others write while it is read: one client at a time has a local folder."""
        client = self._module.QdrantClient(path=str(self._folder), force_disable_check_same_thread=True)
        self._close = client.close
        client.close = lambda: None
        monkeypatch.setattr(self._module, "QdrantClient", lambda **_: client)

    def put(self, rows):
        models, store = self._module.models, self._open()
        if self._new:
            store.create_collection("notes", models.VectorParams(size=D, distance=models.Distance.DOT))
            self._new = False
        store.upsert("notes", [models.PointStruct(id=each, vector=vector.tolist()) for each, vector in rows.items()])
        store.close()

    def remove(self, ids):
        store = self._open()
        store.delete("notes", list(ids))
        store.close()


class Milvus:
    def __init__(self, folder):
        pytest.importorskip("milvus_lite")
        self._module = pytest.importorskip("pymilvus")
        self._path = str(folder / "notes.db")
        self.source = f"milvus:{self._path}?collection=notes"
        self._store = self._module.MilvusClient(self._path)
        self._store.create_collection("notes", dimension=D, metric_type="COSINE")

    def put(self, rows):
        self._store.upsert("notes", [{"id": each, "vector": vector.tolist()} for each, vector in rows.items()])

    def remove(self, ids):
        self._store.delete("notes", ids=list(ids))


class Postgres:
    """Vectors in arrays, in a table of a schema."""

    type, written = "real[]", staticmethod(np.ndarray.tolist)
    table = "others.notes"

    def __init__(self, options):
        module = pytest.importorskip("psycopg")
        self.source = f"postgresql:///postgres?{options}&table={self.table}&id=note"
        self._store = module.connect(f"postgresql:///postgres?{options}", autocommit=True)
        self._store.execute("SET lock_timeout = '60s'")  # of a reader that was not closed
        self.close = self._store.close
        self._store.execute("CREATE SCHEMA IF NOT EXISTS others")
        self._store.execute(f"DROP TABLE IF EXISTS {self.table}")
        if self.type != "real[]":
            names = self._store.execute("SELECT name FROM pg_available_extensions").fetchall()
            if ("vector",) not in names:
                self.close()
                pytest.skip("needs pgvector")
            self._store.execute("CREATE EXTENSION IF NOT EXISTS vector")
        self._store.execute(f"CREATE TABLE {self.table} (note bigint PRIMARY KEY, words text, embedding {self.type})")

    def put(self, rows):
        replaces = "ON CONFLICT (note) DO UPDATE SET embedding = EXCLUDED.embedding"
        values = [(each, None if row is None else self.written(row)) for each, row in rows.items()]
        with self._store.cursor() as cursor:
            cursor.executemany(f"INSERT INTO {self.table} VALUES (%s, 'x', %s) {replaces}", values)

    def remove(self, ids):
        self._store.execute(f"DELETE FROM {self.table} WHERE note = ANY(%s)", (list(ids),))


class Pgvector(Postgres):
    type, written, table = f"vector({D})", staticmethod(lambda vector: str(vector.tolist())), "notes"


@pytest.fixture(scope="module")
def database():
    with postgres.cluster() as options:
        yield options


KINDS = [SqliteVec, LanceDB, Chroma, Qdrant, Milvus, Postgres, Pgvector]


@pytest.fixture
def store(request, tmp_path):
    kind = request.param
    made = kind(request.getfixturevalue("database") if issubclass(kind, Postgres) else tmp_path)
    yield made
    if isinstance(made, Postgres):
        made.close()


@pytest.mark.parametrize("store", KINDS, indirect=True)
@pytest.mark.filterwarnings("default")
def test_the_folder_holds_what_the_store_holds(tmp_path, store, monkeypatch):
    monkeypatch.setattr("ragsys_kernels.offline.sync._BATCH", 100)
    rng, to = np.random.default_rng(5), tmp_path / "corpus"
    name = str if getattr(store, "strings", False) else int
    vectors = {name(each): rng.standard_normal(D).astype(np.float32) for each in range(1, 351)}
    store.put(vectors)

    def check(**expected):
        done = offline.sync_corpus(store.source, to)
        assert {each: getattr(done, each) for each in expected} == expected
        corpus = rk.Corpus.load(to, verify=True)
        assert corpus.num_live == len(vectors)
        rows = corpus.rows_of(list(vectors))
        assert corpus.vectors(rows) == pytest.approx(
            rk.Corpus(np.array(list(vectors.values()))).vectors(slice(None)), abs=1e-6
        )

    check(rows=350, added=350, changed=0, deleted=0)
    check(rows=350, added=0, changed=0, deleted=0)
    changed = {name(each): rng.standard_normal(D).astype(np.float32) for each in (3, 5, 400)}
    vectors |= changed
    store.put(changed)
    for each in (7, 300):
        del vectors[name(each)]
    store.remove([name(7), name(300)])
    check(rows=349, added=1, changed=2, deleted=2)
    if isinstance(store, Postgres):
        for wrong in ("&vector=words", "&vector=none", "&id=none", "&table=none"):
            with pytest.raises(ValueError, match=r"^sync_corpus: (postgresql must have table|vectors must be lists)"):
                offline.sync_corpus(store.source + wrong, to)
        return
    for options in ("", "?table=", "?table=notes&x=1", "?collection=notes&x=1"):
        with pytest.raises(ValueError, match=f"^sync_corpus: {stores_name(store)} must have (a|options)"):
            offline.sync_corpus(store.source.partition("?")[0] + options, to)
    with pytest.raises(ValueError, match="vector_column must be left out with a store"):
        offline.sync_corpus(store.source, to, vector_column="x")


def stores_name(store):
    return store.source.partition(":")[0]


def rows_of(folder, ids):
    """Rows of a folder as they are stored, normalised; NaN where it has none."""
    corpus = rk.Corpus.load(folder, verify=True)
    rows = corpus.rows_of(list(ids), unknown="pad")
    return np.where((rows >= 0)[:, None], corpus.vectors(np.maximum(rows, 0)), np.nan)


def unit(vectors):
    return rk.Corpus(np.array(list(vectors))).vectors(slice(None))


@pytest.mark.parametrize("store", KINDS, indirect=True)
@pytest.mark.filterwarnings("default")
def test_what_stays_is_in_the_folder_whatever_others_write_meanwhile(store, tmp_path, monkeypatch):
    """After each batch rows of it are deleted, which shifts what has not been read; others are changed and added."""
    monkeypatch.setattr("ragsys_kernels.offline.sync._BATCH", 50)
    name = str if getattr(store, "strings", False) else int
    rng, to, begin = np.random.default_rng(7), tmp_path / "corpus", 1000
    rows = {name(each): rng.standard_normal(D).astype(np.float32) for each in range(begin, begin + 600)}
    store.put(rows)
    getattr(store, "shared", lambda _: None)(monkeypatch)
    before, turns = dict(rows), []

    def write(count, total):
        turn = len(turns)
        assert turn < 50, "it reads what is added for ever"
        turns.append(count)
        read = range(begin + 50 * turn, begin + 50 * turn + 50)
        gone = [name(each) for each in read if each % 5 in (2, 3) and name(each) in rows]
        unread = range(begin + 599 - 50 * turn, begin + 549 - 50 * turn, -1)
        changed = [name(each) for each in (*read, *unread) if each % 5 == 4]
        added = [name(10 + turn), name(begin + 600 + turn)]
        for each in gone:
            del rows[each]
        if gone:
            store.remove(gone)
        fresh = {each: rng.standard_normal(D).astype(np.float32) for each in (*changed, *added)}
        rows.update(fresh)
        store.put(fresh)

    offline.sync_corpus(store.source, to, progress=write)
    assert len(turns) >= 12
    same = [each for each in before if int(each) % 5 < 2]
    assert rows_of(to, same) == pytest.approx(unit(before[each] for each in same), abs=1e-6)
    changed = [each for each in before if int(each) % 5 == 4]
    assert not np.isnan(rows_of(to, changed)).any()
    monkeypatch.setattr("ragsys_kernels.offline.sync._BATCH", 8192)
    offline.sync_corpus(store.source, to)
    assert rk.Corpus.load(to).num_live == len(rows)
    assert rows_of(to, rows) == pytest.approx(unit(rows.values()), abs=1e-6)
    getattr(store, "_close", lambda: None)()


@pytest.mark.parametrize("store", [Postgres, Pgvector], indirect=True)
def test_a_row_whose_vector_is_null_is_named_or_left_out(store, tmp_path):
    rng, to = np.random.default_rng(3), tmp_path / "corpus"
    rows = {each: rng.standard_normal(D).astype(np.float32) for each in range(5)}
    store.put({**rows, 4711: None})
    match = r"^sync_corpus: vectors must be lists of numbers, got none for id 4711 in postgresql$"
    with pytest.raises(ValueError, match=match):
        offline.sync_corpus(store.source, to)
    assert offline.sync_corpus(store.source, to, bad_rows="skip").rows == 5
    assert (tmp_path / "corpus.skipped.csv").read_text().splitlines()[1:] == [
        'source,5,4711,"vectors must be lists of numbers, got none"'
    ]


@pytest.mark.parametrize("store", [Postgres], indirect=True)
def test_who_may_not_enter_postgresql_is_told(store, tmp_path):
    """Waiting does not mend it."""
    base, _, rest = store.source.partition("user=")
    with pytest.raises(ValueError, match=r'^sync_corpus: postgresql must have .* role "nobody-there" does not exist$'):
        offline.sync_corpus(f"{base}user=nobody-there&{rest.partition('&')[2]}", tmp_path / "to")


DOWN = {
    "chroma": ("chromadb", "chroma:http://127.0.0.1:{}?collection=c"),
    "qdrant": ("qdrant_client", "qdrant:http://127.0.0.1:{}?collection=c"),
    "milvus": ("pymilvus", "milvus:http://127.0.0.1:{}?collection=c"),
    "postgresql": ("psycopg", "postgresql://me:s3cret@127.0.0.1:{}/x?table=t"),
    "postgres": ("psycopg", "postgres://me:s3cret@127.0.0.1:{}/x?table=t"),
}


@pytest.mark.parametrize("kind", DOWN)
@pytest.mark.filterwarnings("default")
def test_a_server_that_is_down_is_one_line(tmp_path, command, monkeypatch, kind):
    module, source = DOWN[kind]
    pytest.importorskip(module)
    monkeypatch.setenv("MILVUS_TOKEN", "root:s3cret")
    source = source.format(free_port())
    with pytest.raises(ConnectionError, match=f"^sync_corpus: {kind} must answer, got "):
        offline.sync_corpus(source, tmp_path / "to")
    shown = command(tmp_path, "corpus", "sync", "--quiet", "--from", source, "--to", "to")
    assert (shown.returncode, shown.stdout) == (1, "")
    assert len(shown.stderr.splitlines()) == 1, shown.stderr
    assert "s3cret" not in shown.stderr


class Refusing(http.server.BaseHTTPRequestHandler):
    """Answers 401 to everything, and notes what was sent."""

    def do_GET(self):
        self.server.seen.append(dict(self.headers))
        self.send_response(401)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_):
        pass


@contextmanager
def refusing(tls=None):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    server.seen = []
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1], server.seen
    server.shutdown()
    server.server_close()


def forget_chroma():
    """Let go of what Chroma's clients leave open, which would warn at the end."""
    if "chromadb" in sys.modules:
        _servers._chroma_server.cache_clear()
        sys.modules["chromadb"].api.client.SharedSystemClient.clear_system_cache()
        gc.collect()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate of localhost that nobody has signed, and its key."""
    if not shutil.which("openssl"):
        pytest.skip("needs openssl")
    folder = tmp_path_factory.mktemp("tls")
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    made += ["-addext", "subjectAltName=DNS:localhost", "-keyout", folder / "key.pem", "-out", folder / "cert.pem"]
    subprocess.run(made, check=True, capture_output=True)
    return folder / "cert.pem", folder / "key.pem"


@pytest.mark.parametrize(
    ("kind", "module", "variable", "header"),
    [
        ("qdrant", "qdrant_client", "QDRANT_API_KEY", "api-key"),
        ("chroma", "chromadb", "CHROMA_API_KEY", "x-chroma-token"),
    ],
)
@pytest.mark.filterwarnings("default")
def test_keys_and_certificates_reach_the_server(tmp_path, monkeypatch, certificate, kind, module, variable, header):
    pytest.importorskip(module)
    monkeypatch.setenv(variable, "of-the-variable")
    (tmp_path / "key").write_text("of-the-file\n")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*certificate)
    with refusing(tls) as (port, seen):
        source = f"{kind}:https://localhost:{port}?collection=c"
        with pytest.raises(ConnectionError, match=f"^sync_corpus: {kind} must answer, .*certificate"):
            offline.sync_corpus(source, tmp_path / "to")
        assert not seen
        for option, key in (("", "of-the-variable"), (f"&key_file={tmp_path / 'key'}", "of-the-file")):
            with pytest.raises(ValueError, match=f"^sync_corpus: {kind} must have collection"):
                offline.sync_corpus(f"{source}&ca_file={certificate[0]}{option}", tmp_path / "to")
            assert {name.lower(): value for name, value in seen[-1].items()}[header] == key
    forget_chroma()


@pytest.mark.filterwarnings("default")
def test_the_token_of_milvus_reaches_the_server_by_tls(tmp_path, monkeypatch, certificate):
    pytest.importorskip("pymilvus")
    import base64

    import grpc

    seen = []

    class Refuses(grpc.GenericRpcHandler):
        def service(self, details):
            seen.append({**dict(details.invocation_metadata), "method": details.method})

            def refuse(_, context):
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "auth check failure, please check the token")

            return grpc.unary_unary_rpc_method_handler(refuse)

    server = grpc.server(futures.ThreadPoolExecutor(2), handlers=[Refuses()])
    pair = certificate[1].read_bytes(), certificate[0].read_bytes()
    port = server.add_secure_port("localhost:0", grpc.ssl_server_credentials([pair]))
    server.start()
    monkeypatch.setenv("MILVUS_TOKEN", "reader:s3cret")
    try:
        with pytest.raises(ValueError, match=r"^sync_corpus: milvus must let the collection be read, got ") as raised:
            offline.sync_corpus(
                f"milvus:https://localhost:{port}?collection=c&ca_file={certificate[0]}", tmp_path / "to"
            )
    finally:
        server.stop(None)
    assert "s3cret" not in str(raised.value)
    assert seen[-1]["authorization"] == base64.b64encode(b"reader:s3cret").decode()


@pytest.mark.filterwarnings("default")
def test_chroma_is_read_over_http(tmp_path):
    module = pytest.importorskip("chromadb")
    program = shutil.which("chroma", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("needs the command chroma")
    port = free_port()
    server = subprocess.Popen(
        [program, "run", "--path", tmp_path / "chroma", "--port", str(port), "--host", "127.0.0.1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + 120
        while time.monotonic() < end:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v2/heartbeat", timeout=5).close()
                break
            except OSError:
                time.sleep(0.05)
        client = module.HttpClient("127.0.0.1", port, settings=module.Settings(anonymized_telemetry=False))
        table = client.create_collection("notes", embedding_function=None)
        rows = {f"d{i}": row for i, row in enumerate(np.random.default_rng(1).standard_normal((2500, D), np.float32))}
        table.add(list(rows), list(rows.values()))
        source = f"chroma:http://127.0.0.1:{port}?collection="
        assert offline.sync_corpus(f"{source}notes", tmp_path / "to").added == 2500
        assert rows_of(tmp_path / "to", rows) == pytest.approx(unit(rows.values()), abs=1e-6)
        with pytest.raises(ValueError, match=r"^sync_corpus: chroma must have collection 'none'"):
            offline.sync_corpus(f"{source}none", tmp_path / "to")
        del client, table
    finally:
        server.kill()
        server.wait()
    forget_chroma()


@pytest.mark.parametrize("kind", ["sqlite-vec", "lancedb", "chroma", "qdrant", "milvus"])
def test_places_that_are_not_there_are_refused(tmp_path, kind):
    assert stores.is_store(f"{kind}:x")
    with pytest.raises((FileNotFoundError, ModuleNotFoundError), match=r"sync_corpus( needs|: .* must be an existing)"):
        offline.sync_corpus(
            f"{kind}:{tmp_path / 'none'}?table=a&collection=a".replace(
                "table=a&" if kind in ("chroma", "qdrant", "milvus") else "&collection=a", ""
            ),
            tmp_path / "to",
        )


def test_a_python_without_extensions_of_sqlite_is_told(tmp_path, monkeypatch):
    class Plain:
        def close(self):
            pass

    monkeypatch.setitem(sys.modules, "sqlite_vec", types.ModuleType("sqlite_vec"))
    monkeypatch.setattr(sqlite3, "connect", lambda *_, **__: Plain())
    (tmp_path / "notes.db").touch()
    with pytest.raises(ValueError, match="sqlite-vec must have a Python whose sqlite3 loads extensions"):
        offline.sync_corpus(f"sqlite-vec:{tmp_path / 'notes.db'}?table=notes", tmp_path / "to")


@pytest.mark.parametrize(("ids", "got"), [(["a", None], "none for row 1"), ([b"a", "b"], "bytes for row 0")])
def test_what_has_no_text_is_no_id(monkeypatch, ids, got):
    """Its name in Python would be an id of its own."""
    monkeypatch.setitem(stores._READERS, "chroma", lambda *_: iter([2, (ids, np.ones((2, D)))]))
    with pytest.raises(ValueError, match=f"^sync_corpus: ids must be integers or strings, got {got} in chroma$"):
        next(stores.opened("chroma:x", 10)[1])


def test_files_are_no_stores():
    assert not any(map(stores.is_store, ("docs.parquet", "s3://bucket/docs", "C:docs", "lancedb", 3)))
