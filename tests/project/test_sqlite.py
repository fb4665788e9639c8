"""The extension of SQLite against the reference, from Python's sqlite3 where that loads extensions, else from the
program; `make test-sqlite` builds it first."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from pages import blocks

import ragsys_kernels as rk

ROOT = Path(__file__).parents[2]
EXTENSION = ROOT / "build" / "capi" / "ragsys_kernels_sqlite.so"
IN_PYTHON = hasattr(sqlite3.Connection, "enable_load_extension")
pytestmark = [
    pytest.mark.skipif(not EXTENSION.exists(), reason="the extension is not built: make sqlite"),
    pytest.mark.skipif(not (IN_PYTHON or shutil.which("sqlite3")), reason="no SQLite here loads extensions"),
]


class SqlError(Exception):
    pass


SMALL_STACK = 256 << 10


def run_on_small_stack(database, sql):
    if not IN_PYTHON:
        return run(database, sql, stack=SMALL_STACK)
    before = threading.stack_size(SMALL_STACK)
    try:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(run, database, sql).result()
    finally:
        threading.stack_size(before)


def run(database, sql, extensions=(EXTENSION,), stack=None):
    """The rows of a statement, as dictionaries."""
    if not IN_PYTHON:
        loads = [part for file in extensions for part in ("-cmd", f".load {Path(file).with_suffix('')}")]
        command = ["sqlite3", "-batch", "-json", *loads, database, sql]
        if stack:
            command = ["sh", "-c", f'ulimit -s {stack >> 10}; exec "$@"', "sh", *command]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if done.returncode or done.stderr:
            raise SqlError(done.stderr)
        if sql.startswith("EXPLAIN QUERY PLAN"):  # printed as a tree
            return [{"detail": line} for line in done.stdout.splitlines()[1:]]
        return json.loads(done.stdout or "[]")
    connection = sqlite3.connect(database, isolation_level=None)
    try:
        connection.enable_load_extension(True)
        for file in extensions:
            connection.load_extension(str(file))
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(sql)]
    except sqlite3.Error as error:
        raise SqlError(str(error)) from error
    finally:
        connection.close()


def literal(vector):
    return f"x'{np.asarray(vector, '<f4').tobytes().hex()}'"


ROWS, DIMS, K = 90, 24, 7


@pytest.fixture(scope="module")
def notes(tmp_path_factory):
    """A database whose ids are no positions, and what is in it: vectors, bias, a query."""
    rng = np.random.default_rng(5)
    vectors = rng.standard_normal((ROWS, DIMS)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True) * rng.uniform(0.7, 1.4, (ROWS, 1)).astype(np.float32)
    bias, query = rng.uniform(-2, 0, ROWS), rng.standard_normal(DIMS).astype(np.float32)
    path = tmp_path_factory.mktemp("sqlite") / "notes.db"
    connection = sqlite3.connect(path)
    connection.execute(
        "CREATE TABLE notes (id INTEGER PRIMARY KEY, name TEXT, part INTEGER, bias REAL, vector, json, odd)"
    )
    for i in range(ROWS):
        values = (10 + 3 * i, f'note "{i}"', i % 3, bias[i], vectors[i].tobytes(), json.dumps(vectors[i].tolist()))
        odd = None if i == 5 else (vectors[i].tobytes() if i % 2 else json.dumps(vectors[i].tolist()))
        connection.execute("INSERT INTO notes VALUES (?, ?, ?, ?, ?, ?, ?)", (*values, odd))
    connection.execute("CREATE VIEW third AS SELECT id AS number, vector FROM notes WHERE part = 2")
    connection.commit()
    connection.close()
    return path, vectors, bias, query


def ids_of(indices, kept=None):
    positions = np.arange(ROWS) if kept is None else np.flatnonzero(kept)
    return [10 + 3 * int(positions[i]) for i in indices]


@pytest.mark.parametrize("metric", ["cosine", "dot"])
@pytest.mark.parametrize("rule", ["mmr", "mmr with bias", "vrsd"])
def test_sqlite_picks_are_those_of_the_reference(notes, rule, metric):
    path, vectors, bias, query = notes
    given = {"metric": metric, "backend": "reference"}
    if rule == "vrsd":
        expected = rk.vrsd(query[None], vectors, K, **given)
        aggregate = f"rk_vrsd(id, vector, {literal(query)}, {K}, '{metric}')"
        table = f"rk_vrsd('notes', 'vector', {literal(query)}, {K}, '{metric}')"
    else:
        biased = {"bias": bias, "lambda_b": 0.8} if rule != "mmr" else {}
        expected = rk.mmr(query[None], vectors, K, lambda_d=0.6, **biased, **given)
        column, name, weight = ("bias", "'bias'", 0.8) if biased else ("NULL", "NULL", "NULL")
        aggregate = f"rk_mmr(id, vector, {literal(query)}, {K}, 0.6, {column}, {weight}, '{metric}')"
        table = f"rk_mmr('notes', 'vector', {literal(query)}, {K}, 0.6, {name}, {weight}, '{metric}')"
    ids = ids_of(expected.indices[0])
    assert json.loads(run(path, f"SELECT {aggregate} AS picks FROM notes")[0]["picks"]) == ids
    rows = run(path, f"SELECT * FROM {table}")
    assert [row["id"] for row in rows] == ids
    assert [row["rank"] for row in rows] == list(range(1, K + 1))
    for name in ("score", "relevance", "redundancy"):
        values = expected.scores if name == "score" else getattr(expected, name)
        found = [np.nan if row[name] is None else row[name] for row in rows]
        np.testing.assert_allclose(found, values[0], rtol=0, atol=1e-5)


def test_sqlite_defaults_are_those_of_python(notes):
    path, vectors, bias, query = notes
    plain = rk.mmr(query[None], vectors, K, backend="reference")
    biased = rk.mmr(query[None], vectors, K, bias=bias, backend="reference")
    source = f"rk_mmr('notes', 'vector', {literal(query)}, {K})"
    for where, expected in (("", plain), (" WHERE bias = 'bias'", biased)):
        rows = run(path, f"SELECT * FROM {source}{where}")
        assert [row["id"] for row in rows] == ids_of(expected.indices[0])
        np.testing.assert_allclose([row["score"] for row in rows], expected.scores[0], rtol=0, atol=1e-5)


def test_sqlite_aggregates_choose_by_group_from_the_rows_of_a_query(notes):
    path, vectors, _, query = notes
    call = f"rk_mmr(id, vector, {literal(query)}, 4, 0.5)"
    rows = run(path, f"SELECT part, {call} AS picks FROM notes WHERE id > 40 GROUP BY part ORDER BY part")
    for row in rows:
        kept = (np.arange(ROWS) % 3 == row["part"]) & (10 + 3 * np.arange(ROWS) > 40)
        expected = rk.mmr(query[None], vectors[kept], 4, lambda_d=0.5, backend="reference")
        assert json.loads(row["picks"]) == ids_of(expected.indices[0], kept)
    assert len(rows) == 3
    assert run(path, f"SELECT {call} AS picks FROM notes WHERE id < 0") == [{"picks": "[]"}]


def test_sqlite_takes_json_views_texts_as_ids_and_leaves_out_null(notes):
    path, vectors, _, query = notes
    expected = ids_of(rk.vrsd(query[None], vectors, K, backend="reference").indices[0])
    text = json.dumps(query.tolist())
    assert [row["id"] for row in run(path, f"SELECT id FROM rk_vrsd('notes', 'json', '{text}', {K})")] == expected
    names = run(path, f"SELECT rk_vrsd(name, json, ' {text} ', {K}) AS picks FROM notes")[0]["picks"]
    assert json.loads(names) == [f'note "{(id - 10) // 3}"' for id in expected]

    kept = np.arange(ROWS) != 5
    known = run(path, f"SELECT id FROM rk_vrsd('notes', 'odd', {literal(vectors[5])}, {ROWS})")
    assert len(known) == ROWS - 1
    best = rk.vrsd(vectors[5][None], vectors[kept], 3, backend="reference").indices[0]
    assert [row["id"] for row in known[:3]] == ids_of(best, kept)

    third = np.arange(ROWS) % 3 == 2
    best = rk.vrsd(query[None], vectors[third], 3, backend="reference").indices[0]
    rows = run(path, f"SELECT id FROM rk_vrsd('third', 'vector', {literal(query)}, 3) WHERE key = 'number'")
    assert [row["id"] for row in rows] == ids_of(best, third)


def test_sqlite_runs_a_selection_once_in_a_join(notes):
    """The table of picks is the outer one, whichever is named first."""
    path, _, _, query = notes
    picks = f"rk_mmr('notes', 'vector', {literal(query)}, 3) AS pick"
    for source in (f"notes JOIN {picks} ON notes.id = pick.id", f"{picks} JOIN notes ON notes.id = pick.id"):
        plan = run(path, f"EXPLAIN QUERY PLAN SELECT notes.name FROM {source}")
        assert ["pick" in step["detail"] for step in plan] == [True, False], plan


VECTOR = "must be a blob of float32 or a JSON array of numbers, got"
EACH_OR_NONE = "must be given for every row or for none, got"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("rk_mmr(id, vector, Q, 0)", "mmr: k must be an integer of at least 1, got 0"),
        ("rk_vrsd(id, vector, Q, '3')", "vrsd: k must be an integer of at least 1, got '3'"),
        ("rk_mmr(id, vector, Q, 3, 2.5)", "mmr: lambda_d must be a number within [0, 1], got 2.5"),
        ("rk_mmr(id, vector, Q, 3, 'x')", "mmr: lambda_d must be a number within [0, 1], got 'x'"),
        ("rk_mmr(id, vector, NULL, 3)", f"mmr: query {VECTOR} NULL"),
        ("rk_mmr(id, vector, x'00', 3)", f"mmr: query {VECTOR} a blob of 1 bytes"),
        ("rk_mmr(id, name, Q, 3)", f"mmr: vector {VECTOR} 'note \"0\"' in the row with id 10"),
        ("rk_mmr(id, '[1, 2', Q, 3)", f"mmr: vector {VECTOR} '[1, 2' in the row with id 10"),
        ("rk_mmr(id, '[1, inf]', Q, 3)", f"mmr: vector {VECTOR} '[1, inf]' in the row with id 10"),
        ("rk_mmr(id, '[-inf]', Q, 3)", f"mmr: vector {VECTOR} '[-inf]' in the row with id 10"),
        ("rk_mmr(id, '[0x10]', Q, 3)", f"mmr: vector {VECTOR} '[0x10]' in the row with id 10"),
        ("rk_mmr(id, '[1]', Q, 3)", "mmr: vector must have 24 numbers as the query has, got 1 in the row with id 10"),
        ("rk_mmr(id, x'0000807f', '[1]', 3)", "mmr: vector must be finite, got NaN or inf in the row with id 10"),
        ("rk_mmr(id, '[1]', x'0000807f', 3)", "mmr: query must be finite, got NaN or inf"),
        ("rk_mmr(id, '[1e20]', '[1]', 3)", "mmr: embeddings must have row norms of 0 or within"),
        ("rk_mmr(NULL, vector, Q, 3)", "mmr: id must be an integer or a text, got NULL"),
        ("rk_mmr(id, vector, Q, 3, 0.5, name)", "mmr: bias must be a finite number, got 'note \"0\"' in the row"),
        ("rk_mmr(id, vector, Q, 3, 0.5, nullif(part, 1))", f"mmr: bias {EACH_OR_NONE} NULL in the row with id 13"),
        ("rk_mmr(id, vector, Q, 3, 0.5, nullif(part, 0))", f"mmr: bias {EACH_OR_NONE} 1 in the row with id 13"),
        ("rk_mmr(id, vector, Q, 3, 0.5, 1, 1, 'l2')", "mmr: metric must be 'cosine' or 'dot', got 'l2'"),
        ("rk_mmr(id, vector, vector, 3)", "mmr: query must be the same in every row, got two"),
        ("rk_vrsd(id, vector, Q, id)", "vrsd: k must be the same in every row, got two"),
        ("rk_mmr(id, vector, Q)", "wrong number of arguments to function rk_mmr()"),
        ("* FROM rk_mmr('notes', 'vector', Q)", "mmr: k must be given"),
        ("* FROM rk_vrsd WHERE query = Q AND k = 2", "vrsd: source must be given"),
        ("* FROM rk_mmr('nots', 'vector', Q, 2)", 'got "no such table: nots"'),
        ("* FROM rk_mmr('notes', 'vectr', Q, 2)", 'got "no such column: s.vectr"'),
        ("* FROM rk_mmr('third', 'vector', Q, 2)", "mmr: key must name the column of ids where rows have no rowid"),
        ("* FROM rk_mmr('notes', 'name', Q, 2)", f"mmr: vector {VECTOR} 'note \"0\"' in the row with id 10"),
    ],
)
def test_sqlite_errors_name_argument_rule_and_row(notes, call, words):
    path, _, _, query = notes
    with pytest.raises(SqlError, match=re.escape(words)):
        run(path, f"SELECT {call}{'' if ' FROM ' in call else ' FROM notes'}".replace("Q", literal(query)))


def picks_of(rule, source, k):
    picks = f"SELECT id FROM {rule}('{source}', 'vector', Q, {k}) WHERE key = 'id'"
    return f"SELECT id, vector FROM notes WHERE id IN ({picks})"


def with_views(notes, folder, views):
    path, _, _, query = notes
    own = folder / "views.db"
    own.write_bytes(path.read_bytes())
    connection = sqlite3.connect(own)
    connection.execute("CREATE VIEW base AS SELECT id, vector FROM notes")
    for name, sql in views.items():
        connection.execute(f"CREATE VIEW {name} AS {sql}".replace("Q", literal(query)))
    connection.commit()
    connection.close()
    return own


@pytest.mark.parametrize(
    "views",
    [
        {"a": picks_of("rk_mmr", "a", 9)},
        {"a": picks_of("rk_vrsd", "b", 9), "b": picks_of("rk_mmr", "a", 9)},
        {"a": f"{picks_of('rk_mmr', 'a', 9)} UNION ALL {picks_of('rk_mmr', 'a', 9)}"},
        {"a": "SELECT 1 AS id, rk_mmr(id, vector, Q, 1) AS vector FROM notes WHERE id IN (SELECT id FROM b)"}
        | {"b": picks_of("rk_mmr", "a", 9)},
    ],
    ids=["itself", "two in a circle", "itself twice", "by an aggregate"],
)
def test_sqlite_views_that_read_themselves_are_refused_on_a_small_stack(notes, tmp_path, views):
    path = with_views(notes, tmp_path, views)
    with pytest.raises(SqlError) as caught:
        run_on_small_stack(path, f"SELECT id FROM rk_mmr('a', 'vector', {literal(notes[3])}, 3) WHERE key = 'id'")
    rule = "mmr: source must be read by at most 8 selections within each other, got one more"
    assert re.sub(r"^.*?(?=mmr: )", "", str(caught.value).strip()) == rule  # once, not once for each of the eight


def test_sqlite_views_may_hold_eight_selections_within_each_other(notes, tmp_path):
    _, vectors, _, query = notes
    sizes = [80, 70, 60, 50, 40, 30, 20]
    sources = ["base", *(f"v{i}" for i in range(1, 7))]
    path = with_views(
        notes, tmp_path, {f"v{i + 1}": picks_of("rk_mmr", sources[i], sizes[i]) for i in range(len(sizes))}
    )
    kept = np.arange(ROWS)
    for k in (*sizes, K):
        kept = np.sort(kept)
        kept = kept[rk.mmr(query[None], vectors[kept], k, backend="reference").indices[0]]
    call = f"SELECT id FROM rk_mmr('v7', 'vector', {literal(query)}, {K}) WHERE key = 'id'"
    assert [row["id"] for row in run_on_small_stack(path, call)] == ids_of(kept)
    # One after the other is not within each other.
    assert [row["id"] for row in run_on_small_stack(path, f"{call} UNION ALL {call}")] == ids_of(kept) * 2


def test_sqlite_reads_the_vectors_of_sqlite_vec(notes, tmp_path):
    sqlite_vec = pytest.importorskip("sqlite_vec")
    _, vectors, _, query = notes
    path, extensions = tmp_path / "vec.db", (sqlite_vec.loadable_path() + ".so", EXTENSION)
    run(path, "CREATE VIRTUAL TABLE found USING vec0(embedding float[24] distance_metric=cosine)", extensions)
    values = ", ".join(f"({i}, {literal(row)})" for i, row in enumerate(vectors))
    run(path, f"INSERT INTO found (rowid, embedding) VALUES {values}", extensions)
    nearest = np.argsort(-(vectors @ query) / np.linalg.norm(vectors, axis=1), kind="stable")[:40]
    expected = rk.mmr(query[None], vectors, K, candidates=nearest[None], lambda_d=0.5, backend="reference")
    call = f"rk_mmr(rowid, embedding, {literal(query)}, {K}, 0.5)"
    search = f"SELECT {call} AS picks FROM found WHERE embedding MATCH {literal(query)} AND k = 40"
    assert json.loads(run(path, search, extensions)[0]["picks"]) == expected.indices[0].tolist()
    whole = rk.vrsd(query[None], vectors, K, backend="reference").indices[0].tolist()
    for form in (literal(query), f"vec_f32('{json.dumps(query.tolist())}')"):
        rows = run(path, f"SELECT id FROM rk_vrsd('found', 'embedding', {form}, {K})", extensions)
        assert [row["id"] for row in rows] == whole


@pytest.mark.skipif(not shutil.which("sqlite3"), reason="the page is for the program sqlite3")
def test_sqlite_page_prints_what_it_shows(tmp_path):
    found = blocks(ROOT / "docs" / "sqlite.md", "sql")
    assert len(found) == 4
    for _, sql, shown in found:
        command = ["sqlite3", "-batch", "-cmd", f".load {EXTENSION.with_suffix('')}", tmp_path / "notes.db", sql]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        # What the program says before an error depends on its version.
        assert (done.stdout + re.sub(r"^.*?(?=mmr: )", "", done.stderr)).strip() == shown.strip()
