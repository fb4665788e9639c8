"""The embed job and the picks beside their texts, with an encoder without a model."""

import csv
import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import tiny_encoder

from ragsys_kernels import icl, offline
from ragsys_kernels.offline import text_files

TEXTS = [" ".join(tiny_encoder.WORDS[i % 30 : i % 30 + 3]) + f" {i}" for i in range(200)]


@pytest.fixture
def documents(tmp_path):
    ids = [f"d{i}" for i in range(200)]
    (tmp_path / "docs.jsonl").write_text(
        "".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in zip(ids, TEXTS, strict=True))
    )
    table = pa.table({"id": ids, "text": TEXTS})
    pq.write_table(table, tmp_path / "docs.parquet")
    pyarrow.csv.write_csv(table, tmp_path / "docs.csv")
    queries = pa.table({"id": ["q0", "q1"], "text": ["light of the star", "blood | heart"]})
    pq.write_table(queries, tmp_path / "queries.parquet")
    return tmp_path


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_vectors_stand_beside_the_columns_of_the_texts(documents, kind):
    summary = offline.embed(
        texts=documents / f"docs.{kind}", model=tiny_encoder.TinyEncoder(), out=documents / "v.parquet"
    )
    assert (summary.texts, summary.new, summary.dims) == (200, 200, 24)
    table = pq.read_table(documents / "v.parquet")
    assert table.column_names == ["id", "text", "embedding"]
    expected = tiny_encoder.TinyEncoder().encode(TEXTS)
    np.testing.assert_array_equal(np.stack(table["embedding"].to_numpy()), expected)
    assert sorted(path.name for path in documents.iterdir() if "vectors" in path.name) == []


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (["7", "8", "-9"], [7, 8, -9]),
        (["007", "008", "009"], ["007", "008", "009"]),
        (["7", "007", "8"], ["7", "007", "8"]),
        (["7", "-0", "8"], ["7", "-0", "8"]),
        (["1e3", "1000", "2.5"], ["1e3", "1000", "2.5"]),
        (["0x1", "1", "10"], ["0x1", "1", "10"]),
        (["2024-01-01", "2024-01-02", "2024-01-03"], ["2024-01-01", "2024-01-02", "2024-01-03"]),
        (["true", "false", "NA"], ["true", "false", "NA"]),
        (["9223372036854775808", "1", "2"], ["9223372036854775808", "1", "2"]),
        (["7", "", "9"], [7, None, 9]),
    ],
)
def test_ids_stay_as_they_are_written(tmp_path, written, read):
    source, lines = tmp_path / "docs.csv", [f"{x},{t}\n" for x, t in zip(written, TEXTS, strict=False)]
    for column in ("id", "key"):
        source.write_text(f"{column},text\n" + "".join(lines))
        table = text_files.read("embed", "texts", source, ("text",), None if column == "id" else column)
        assert table[column].to_pylist() == read


@pytest.mark.parametrize("named", [{}, {"id_column": "key"}])
def test_ids_lead_from_texts_to_the_texts_of_picks(tmp_path, named):
    """In a column "id" and in another that is named."""
    source, out, ids = tmp_path / "docs.csv", tmp_path / "docs.parquet", ["007", "008", "7"]
    lines = [f"{x},{t}\n" for x, t in zip(ids, TEXTS, strict=False)]
    source.write_text(f"{named.get('id_column', 'id')},text\n" + "".join(lines))
    offline.embed(texts=source, model=tiny_encoder.TinyEncoder(), out=out, **named)
    offline.select(corpus=out, queries=out, out=tmp_path / "picks", k=2, **named)
    found = offline.show(picks=tmp_path / "picks", texts=source, **named)
    texts = dict(zip(ids, TEXTS, strict=False))
    assert len(found) == 2 * len(ids)
    assert all(pick.text == texts[pick.id] for pick in found)


def test_ids_in_json_that_look_like_dates_are_text(tmp_path):
    lines = [{"id": f"2024-01-0{i + 1}", "text": TEXTS[i]} for i in range(3)]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    offline.embed(texts=tmp_path / "d.jsonl", model=tiny_encoder.TinyEncoder(), out=tmp_path / "v.parquet")
    assert pq.read_table(tmp_path / "v.parquet")["id"].to_pylist() == [line["id"] for line in lines]


def test_a_folder_or_an_array_is_written(documents):
    encoder = tiny_encoder.TinyEncoder()
    offline.embed(texts=documents / "docs.csv", model=encoder, out=documents / "vectors")
    offline.embed(texts=documents / "docs.csv", model=encoder, out=documents / "v.npy")
    rows = np.stack(pq.read_table(documents / "vectors" / "vectors.parquet")["embedding"].to_numpy())
    np.testing.assert_array_equal(np.load(documents / "v.npy"), rows)


def test_a_stopped_job_resumes_to_the_same_bytes(documents):
    job = {"texts": documents / "docs.csv", "out": documents / "v.parquet"}
    stopped, again = tiny_encoder.TinyEncoder(fail_after=2), tiny_encoder.TinyEncoder()
    with pytest.raises(KeyboardInterrupt):
        offline.embed(model=stopped, **job)
    assert not (documents / "v.parquet").exists()
    encoded = [text for call in stopped.calls for text in call]
    assert len(encoded) in {64 + 64, 64 + 8}  # the first window, then any of the others: the last one has 8 texts
    assert offline.embed(model=again, **job).new == 200 - len(encoded)
    assert sum(map(len, again.calls)) == 200 - len(encoded)
    assert not set(encoded) & {text for call in again.calls for text in call}
    offline.embed(texts=documents / "docs.csv", model=tiny_encoder.TinyEncoder(), out=documents / "other.parquet")
    assert (documents / "v.parquet").read_bytes() == (documents / "other.parquet").read_bytes()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"out": "v.txt"}, ValueError, "out must be a folder or a .npy or .parquet file, got .*v.txt"),
        ({"out": "docs.parquet"}, FileExistsError, "out must be new, or overwrite be given"),
        ({"texts": "docs.parquet", "out": "docs.parquet", "overwrite": True}, ValueError, "out must not be an input, "),
        ({"out": "v.npy", "cache": "v.npy"}, ValueError, "cache must not share files with out, got"),
        ({"texts": "v.npy.skipped.csv", "out": "v.npy", "bad_rows": "skip"}, ValueError, "OUT.skipped.csv must not be"),
        ({"out": "no/where.npy"}, FileNotFoundError, "out must be in an existing folder"),
        ({"texts": "no.csv"}, FileNotFoundError, "texts must be an existing file, got .*no.csv"),
        ({"text_column": "body"}, ValueError, "texts must have one column 'body'"),
        ({"id_column": "key"}, ValueError, "texts must have the column 'key', got"),
        ({"vector_column": "id"}, ValueError, "vector_column must be new, got 'id'"),
        ({"model": "minilm", "model_name": "a"}, ValueError, "model_name must come with the URL of a server"),
        ({"model": "http://localhost"}, ValueError, "model_name must be given with the URL of a server"),
    ],
)
def test_what_is_refused_is_named_before_a_model_is_loaded(documents, options, error, message):
    job = {"texts": "docs.csv", "out": "v.npy", **options}
    job.update((name, documents / job[name]) for name in ("texts", "out", "cache") if name in job)
    with pytest.raises(error, match=f"^embed: {message}"):
        offline.embed(**{"model": tiny_encoder.TinyEncoder(fail_after=0), **job})
    assert not list(documents.glob(".v*"))


@pytest.fixture
def picks(documents):
    encoder = tiny_encoder.TinyEncoder()
    for name in ("docs", "queries"):
        offline.embed(texts=documents / f"{name}.parquet", model=encoder, out=documents / f"{name}-v.parquet")
    corpus, queries, out = (documents / name for name in ("docs-v.parquet", "queries-v.parquet", "picks"))
    offline.select(corpus=corpus, queries=queries, out=out, k=3)
    return out


def test_picks_are_shown_with_their_texts(picks, documents):
    found = offline.show(picks=picks, texts=documents / "docs.jsonl", queries=documents / "queries.parquet")
    assert [pick.rank for pick in found] == [1, 2, 3, 1, 2, 3]
    encoder = tiny_encoder.TinyEncoder()
    rows, asked = encoder.encode(TEXTS), encoder.encode(["light of the star"])
    assert found[0].text == TEXTS[int((asked @ rows.T).argmax())]
    assert found[0].id == f"d{TEXTS.index(found[0].text)}"
    assert found[0].relevance == pytest.approx(float((asked @ rows.T).max()), abs=1e-6)
    assert {pick.question for pick in found} == {"light of the star", "blood | heart"}
    only = offline.show(picks=picks, texts=documents / "docs.csv", only=["q1"])
    assert [pick.query for pick in only] == ["q1"] * 3
    assert only[0].question is None
    assert offline.show(picks=picks, texts=documents / "docs.csv", limit=1) == [
        p._replace(question=None) for p in found[:3]
    ]


def test_each_format_has_every_pick(picks, documents, command):
    given = ("show", picks, "--texts", documents / "docs.csv", "--queries", documents / "queries.parquet")
    table, markdown, rows, lines = (
        command(documents, *given, "--format", name).stdout for name in ("table", "md", "csv", "jsonl")
    )
    found = offline.show(picks=picks, texts=documents / "docs.csv", queries=documents / "queries.parquet")
    assert [json.loads(line)["text"] for line in lines.splitlines()] == [pick.text for pick in found]
    assert [row["id"] for row in csv.DictReader(io.StringIO(rows))] == [pick.id for pick in found]
    assert all(pick.text in markdown and pick.text in table for pick in found)
    assert "blood \\| heart" in markdown
    vectors = documents / "docs-v.parquet"
    offline.select(corpus=vectors, queries=vectors, out=documents / "sums", method="vrsd", k=3)
    printed = command(documents, "show", "sums", "--texts", "docs.csv", "--query", "d7", "--format", "jsonl").stdout
    lines = [json.loads(line, parse_constant=pytest.fail) for line in printed.splitlines()]
    assert [line["redundancy"] for line in lines] == [None] * len(lines)  # which the rule does not have
    assert all(isinstance(line["score"], float) for line in lines)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"only": ["q7"]}, "query must have picks, got 'q7', which has none in"),
        ({"limit": 0}, "limit must be at least 1, got 0"),
        ({"limit": "3"}, "limit must be an integer, got str"),
        ({"id_column": "key"}, "texts must have the column 'key'"),
        ({"texts": "queries.parquet"}, "texts must have a text for every id of the picks, got none for 'd"),
        ({"picks": "docs.parquet"}, "picks must be files that select wrote"),
    ],
)
def test_show_names_what_is_wrong(picks, documents, options, message):
    given = {"picks": picks, "texts": documents / "docs.csv", **options}
    given.update({name: documents / given[name] for name in ("picks", "texts")})
    with pytest.raises((ValueError, TypeError), match=f"^show: {message}"):
        offline.show(**given)


def test_an_id_of_two_texts_is_refused(picks, documents):
    lines = (documents / "docs.jsonl").read_text().splitlines()
    again = json.loads(lines[2])
    (documents / "more.jsonl").write_text("\n".join([*lines, json.dumps(again)]))
    expected = offline.show(picks=picks, texts=documents / "docs.jsonl")
    assert offline.show(picks=picks, texts=documents / "more.jsonl") == expected  # the same text twice
    again["text"] += " or not"
    (documents / "more.jsonl").write_text("\n".join([*lines, json.dumps(again)]))
    match = f"^show: texts must have one text for each id, got another of '{again['id']}' in row {len(lines)} of "
    with pytest.raises(ValueError, match=match):
        offline.show(picks=picks, texts=documents / "more.jsonl")


@pytest.mark.parametrize("picked", ["folder", "file"])
def test_picks_by_row_are_shown_by_row(tmp_path, picked):
    """Files of vectors alone have no ids: those of the texts are others, also where they are numbers."""
    rng = np.random.default_rng(0)
    for name, rows in (("corpus", 20), ("queries", 3)):
        np.save(tmp_path / f"{name}.npy", rng.standard_normal((rows, 4), np.float32))
    lines = [json.dumps({"id": (row + 1) % 20, "text": f"text of row {row}"}) for row in range(20)]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines))
    out = tmp_path / "out"
    offline.select(corpus=tmp_path / "corpus.npy", queries=tmp_path / "queries.npy", out=out, k=3, pool=10)
    given = {"picks": out if picked == "folder" else out / "part-00000.parquet", "texts": tmp_path / "texts.jsonl"}
    found = offline.show(**given, queries=tmp_path / "texts.jsonl")
    assert len(found) == 9
    for pick in found:
        assert (pick.text, pick.question) == (f"text of row {pick.id}", f"text of row {pick.query}")
    by_id = [f"text of row {(pick.id - 1) % 20}" for pick in found]
    assert [pick.text for pick in offline.show(**given, id_column="id")] == by_id
    (tmp_path / "out.job" / "_job.json").write_text("{")  # which then does not tell
    assert [pick.text for pick in offline.show(**given)] == by_id


def test_show_takes_local_paths(picks, documents):
    given = {"picks": picks, "texts": documents / "docs.csv"}
    for name in ("picks", "texts", "queries"):
        with pytest.raises(ValueError, match=f"^show: {name} must be a local path, got s3://b/of$"):
            offline.show(**{**given, name: "s3://b/of"})


@pytest.mark.parametrize("kind", [str, int])
def test_show_makes_objects_of_the_rows_it_shows(tmp_path, monkeypatch, kind):
    """Shards of several row groups, one query twice; other queries are filtered before their picks are objects."""
    queries = [kind(10 + row) for row in range(40)]
    queries[33] = queries[5]
    columns = {"ids": [[row, row + 1] for row in range(40)], "relevance": [[0.5, 0.25]] * 40}
    table = pa.table({"query_id": queries, **columns, "scores": columns["relevance"], "redundancy": [[0.0, 1.0]] * 40})
    for part, rows in (("part-00000", slice(0, 25)), ("part-100000", slice(30, 40)), ("part-00001", slice(25, 30))):
        pq.write_table(table[rows], tmp_path / f"{part}.parquet", row_group_size=8)
    (tmp_path / "texts.jsonl").write_text("\n".join(json.dumps({"text": f"text {row}"}) for row in range(60)))
    made = []

    class Table:
        def __init__(self, table):
            self.table = table

        def take(self, rows):
            made.append(len(rows))
            return self.table.take(rows)

        def __getitem__(self, name):
            return self.table[name]

    read = pq.ParquetFile.read_row_group
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", lambda *given: Table(read(*given)))

    def shown(**options):
        made.clear()
        found = offline.show(picks=tmp_path, texts=tmp_path / "texts.jsonl", **options)
        return [pick.id for pick in found if pick.rank == 1]

    assert shown() == list(range(40))  # in the order of the shards' numbers
    assert shown(only=["15", "38"]) == [5, 28, 33]
    assert made == [1, 1, 1]
    assert shown(only=["15", "38"], limit=1) == [5]
    assert shown(limit=10) == list(range(10))
    assert sum(made) <= 8 + 8
    assert shown(only=["49", "41"], limit=3) == [31, 39]
    with pytest.raises(ValueError, match="query must have picks, got '77', which has none in"):
        shown(only=["77", "15"], limit=1)


@pytest.mark.parametrize("name", ["texts.csv", "texts.jsonl"])
def test_a_row_may_be_longer_than_a_block(tmp_path, name):
    texts = ["short", "long\n" * 700_000, "short again"]
    with open(tmp_path / name, "w", newline="") as file:
        if name.endswith(".csv"):
            csv.writer(file).writerows([["text"], *([text] for text in texts)])
        else:
            file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    table = text_files.read("embed", "texts", tmp_path / name, ("text",))
    assert table["text"].to_pylist() == texts


def test_what_a_failed_read_leaves_behind_does_not_move_the_next(tmp_path, monkeypatch):
    """Arrow reads ahead in a thread, which may go on after an error."""
    texts, first = ["short", "long " * 700_000], []
    with open(tmp_path / "texts.csv", "w", newline="") as file:
        csv.writer(file).writerows([["text"], *([text] for text in texts)])
    read_csv = pyarrow.csv.read_csv

    def late(file, *options):
        if not first:
            first.append(file)
            raise pa.ArrowInvalid("straddling object")
        first[0].seek(1 << 20)
        return read_csv(file, *options)

    monkeypatch.setattr(pyarrow.csv, "read_csv", late)
    assert text_files.read("embed", "texts", tmp_path / "texts.csv", ("text",))["text"].to_pylist() == texts


def test_texts_are_picked_from_texts():
    notes = icl.TextCorpus(TEXTS, tiny_encoder.TinyEncoder())
    picks = notes.select(["light of the star", "blood heart"], 4, lambda_d=0.5)
    assert notes.pick("blood heart", 4, lambda_d=0.5) == [TEXTS[i] for i in picks.indices[1]]
    rows = tiny_encoder.TinyEncoder().encode(TEXTS)
    assert picks.indices[0][0] == (rows @ tiny_encoder.TinyEncoder().encode(["light of the star"])[0]).argmax()
    with pytest.raises(TypeError, match="pick: query must be a str, got list; select takes several"):
        notes.pick(["a"], 2)
    with pytest.raises(ValueError, match="TextCorpus: texts must be at least one, got none"):
        icl.TextCorpus([], tiny_encoder.TinyEncoder())
