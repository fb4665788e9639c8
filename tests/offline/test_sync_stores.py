"""Stores are read through their own clients: the folder holds their rows, also after these have changed."""

import sqlite3
import sys
import types

import numpy as np
import postgres
import pytest

import ragsys_kernels as rk
from ragsys_kernels import offline
from ragsys_kernels.offline import stores

D = 8


class SqliteVec:
    def __init__(self, folder):
        self._module = pytest.importorskip("sqlite_vec")
        self.source = f"sqlite-vec:{folder / 'notes.db'}?table=notes"
        self._store = sqlite3.connect(folder / "notes.db")
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

    def put(self, rows):
        models, store = self._module.models, self._open()  # one client at a time has a local folder
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
    """Vectors in arrays."""

    type, written = "real[]", staticmethod(np.ndarray.tolist)

    def __init__(self, options):
        module = pytest.importorskip("psycopg")
        self.source = f"postgresql:///postgres?{options}&table=notes&id=note"
        self._store = module.connect(f"postgresql:///postgres?{options}", autocommit=True)
        self._store.execute("SET lock_timeout = '5s'")  # of a reader that was not closed
        self.close = self._store.close
        self._store.execute("DROP TABLE IF EXISTS notes")
        if self.type != "real[]":
            names = self._store.execute("SELECT name FROM pg_available_extensions").fetchall()
            if ("vector",) not in names:
                self.close()
                pytest.skip("needs pgvector")
            self._store.execute("CREATE EXTENSION IF NOT EXISTS vector")
        self._store.execute(f"CREATE TABLE notes (note bigint PRIMARY KEY, words text, embedding {self.type} NOT NULL)")

    def put(self, rows):
        upsert = (
            "INSERT INTO notes VALUES (%s, 'x', %s) ON CONFLICT (note) DO UPDATE SET embedding = EXCLUDED.embedding"
        )
        with self._store.cursor() as cursor:
            cursor.executemany(upsert, [(each, self.written(vector)) for each, vector in rows.items()])

    def remove(self, ids):
        self._store.execute("DELETE FROM notes WHERE note = ANY(%s)", (list(ids),))


class Pgvector(Postgres):
    type, written = f"vector({D})", staticmethod(lambda vector: str(vector.tolist()))


@pytest.fixture(scope="module")
def database():
    with postgres.cluster() as options:
        yield options


@pytest.mark.parametrize("kind", [SqliteVec, LanceDB, Chroma, Qdrant, Milvus, Postgres, Pgvector])
@pytest.mark.filterwarnings("default")
def test_the_folder_holds_what_the_store_holds(tmp_path, kind, monkeypatch, request):
    monkeypatch.setattr("ragsys_kernels.offline.sync._BATCH", 100)
    store = kind(request.getfixturevalue("database") if issubclass(kind, Postgres) else tmp_path)
    if isinstance(store, Postgres):
        request.addfinalizer(store.close)
    rng, to = np.random.default_rng(5), tmp_path / "corpus"
    name = str if getattr(kind, "strings", False) else int
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
            with pytest.raises(ValueError, match=r"^sync_corpus: (postgresql must have table|vectors must be of one)"):
                offline.sync_corpus(store.source + wrong, to)
        return
    for options in ("", "?table=", "?table=notes&x=1", "?collection=notes&x=1"):
        with pytest.raises(ValueError, match=f"^sync_corpus: {stores_name(store)} must have (a|options)"):
            offline.sync_corpus(store.source.partition("?")[0] + options, to)
    with pytest.raises(ValueError, match="vector_column must be left out with a store"):
        offline.sync_corpus(store.source, to, vector_column="x")


def stores_name(store):
    return store.source.partition(":")[0]


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


@pytest.mark.parametrize(("ids", "got"), [(["a", None], "NoneType"), ([b"a", "b"], "bytes"), ([None], "NoneType")])
def test_what_has_no_text_is_no_id(ids, got):
    """Its name in Python would be an id of its own."""
    with pytest.raises(ValueError, match=f"^sync_corpus: ids must be integers or strings, got {got} in chroma$"):
        stores._ids(ids, "chroma")


def test_files_are_no_stores():
    assert not any(map(stores.is_store, ("docs.parquet", "s3://bucket/docs", "C:docs", "lancedb", 3)))
