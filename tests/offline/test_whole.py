"""A part of a data set chosen over files, and near-duplicates taken out: `offline.subset`, `offline.dedupe`."""

import inspect

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import ragsys_kernels as rk
from ragsys_kernels import cli, offline
from ragsys_kernels.selection.parameters import OF_RESULT, RECENCY, SCALARS

RNG = np.random.default_rng(0)
ROWS = RNG.standard_normal((200, 16), dtype=np.float32)
ROWS[150:] = ROWS[:50] + 0.01
SCORE = RNG.uniform(0, 1, 200).astype(np.float32)
IDS = [f"doc-{row}" for row in range(200)]


@pytest.fixture
def docs(tmp_path):
    """A table of vectors with ids, scores, sources, tokens and texts, in several row groups."""
    table = pa.table({
        "id": IDS, "text": [f"text {row}" for row in range(200)], "score": SCORE,
        "source": [f"s{row % 7}" for row in range(200)], "tokens": [row % 30 for row in range(200)],
        "embedding": pa.FixedSizeListArray.from_arrays(pa.array(ROWS.ravel()), 16),
    })  # fmt: skip
    pq.write_table(table, tmp_path / "docs.parquet", row_group_size=64)
    return tmp_path / "docs.parquet"


def command(*words):
    result = CliRunner().invoke(cli.app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.output


def test_subset_of_a_table(docs, tmp_path):
    words = ("--lambda-d", 0.3, "--quality", "score", "--group-column", "source", "--max-per-group", 3)
    said = command("subset", "--corpus", docs, "--out", tmp_path / "o.parquet", "--k", 20, *words)
    assert said.startswith("20 of 200 rows in ")
    found = pq.read_table(tmp_path / "o.parquet").to_pydict()
    corpus = rk.Corpus(ROWS, bias=SCORE, groups=np.arange(200) % 7)
    picks = corpus.subset(20, lambda_d=0.3, max_per_group=3)
    assert found["row"] == picks.indices[0].tolist()
    assert found["id"] == [IDS[row] for row in found["row"]]
    assert found["rank"] == [*range(1, 21)]
    for name, values in (("score", picks.scores), ("relevance", picks.relevance), ("redundancy", picks.redundancy)):
        assert found[name] == values[0].tolist()


def test_subset_with_the_rows_of_the_source(docs, tmp_path):
    """Their columns keep their names; those of ours that it has too get a prefix."""
    offline.subset(docs, tmp_path / "o.parquet", k=25, lambda_d=0.0, rows=True)
    found = pq.read_table(tmp_path / "o.parquet")
    rows = found["row"].to_pylist()
    assert rows != sorted(rows)
    source = pq.read_table(docs).take(rows)
    assert all(found[name].equals(source[name]) for name in source.column_names)
    assert {*found.column_names} - {*source.column_names} == {"rank", "row", "subset_score", "relevance", "redundancy"}


def test_subset_by_ids_targets_and_costs(docs, tmp_path):
    (tmp_path / "had.txt").write_text("doc-3\ndoc-5\n")
    (tmp_path / "not.txt").write_text("doc-8\n")
    np.save(tmp_path / "targets.npy", ROWS[:4])
    summary = offline.subset(
        docs, tmp_path / "o.parquet", k=10, initial=tmp_path / "had.txt", exclude=tmp_path / "not.txt",
        targets=tmp_path / "targets.npy", target_relevance="max", cost_column="tokens", budget=60.0,
    )  # fmt: skip
    corpus = rk.Corpus(ROWS, costs=np.arange(200) % 30)
    picks = corpus.subset(10, initial=[3, 5], exclude=[8], targets=ROWS[:4], target_relevance="max", budget=60.0)
    number = int(picks.lengths[0])
    assert pq.read_table(tmp_path / "o.parquet")["row"].to_pylist() == picks.indices[0, :number].tolist()
    assert summary.cost == picks.cost[0] <= 60
    assert "which cost" in str(summary)


def test_subset_by_near_rows(docs, tmp_path):
    words = ("--rule", "coverage", "--neighbors", 4, "--k", 20)
    picks = rk.Corpus(ROWS).subset(20, rule="coverage", neighbors=4).indices[0].tolist()
    command("subset", "--corpus", docs, "--out", tmp_path / "o.parquet", *words)
    assert pq.read_table(tmp_path / "o.parquet")["row"].to_pylist() == picks
    rk.Corpus(ROWS).save(tmp_path / "corpus")
    index = ("--index", tmp_path / "corpus")
    command("subset", "--corpus", docs, "--out", tmp_path / "p.parquet", *index, *words)
    assert pq.read_table(tmp_path / "p.parquet")["row"].to_pylist() == picks


def test_subset_of_a_saved_corpus(tmp_path):
    rk.Corpus(ROWS, bias=SCORE, ids=np.arange(200) * 10).save(tmp_path / "corpus")
    offline.subset(tmp_path / "corpus", tmp_path / "o.parquet", k=9, lambda_b=0.0)
    picks = rk.Corpus(ROWS, bias=SCORE).subset(9, lambda_b=0.0).indices[0]
    assert pq.read_table(tmp_path / "o.parquet")["id"].to_pylist() == (10 * picks).tolist()
    with pytest.raises(ValueError, match=r"subset: quality must be what the saved corpus .* has, 'bias', got 'score'"):
        offline.subset(tmp_path / "corpus", tmp_path / "p.parquet", k=9, quality="score")
    with pytest.raises(ValueError, match=r"subset: corpus must be files of vectors, got the saved corpus"):
        offline.subset(tmp_path / "corpus", tmp_path / "p.parquet", k=9, rows=True)


def test_dedupe_of_a_table(docs, tmp_path):
    paths = [tmp_path / f"{name}.parquet" for name in ("kept", "removed", "pairs")]
    words = [
        word for name, path in zip(("out", "removed", "pairs"), paths, strict=True) for word in (f"--{name}", path)
    ]
    said = command("dedupe", "--corpus", docs, *words, "--threshold", 0.95, "--quality", "score", "--groups", "--rows")
    assert said.startswith("150 of 200 rows kept, 50 removed (25.0 %) at 0.95 in ")
    exact = rk.duplicates(ROWS, 0.95, quality=SCORE, pairs=True, groups=True)
    kept, removed, pairs = map(pq.read_table, paths)
    source = pq.read_table(docs)
    for table, rows in ((kept, exact.kept), (removed, exact.removed)):
        assert table["row"].to_pylist() == rows.tolist()
        assert all(table[name].equals(source[name].take(pa.array(rows))) for name in source.column_names)
        assert table["group"].to_pylist() == exact.groups[rows].tolist()
    assert removed["of"].to_pylist() == [IDS[row] for row in exact.of]
    assert removed["similarity"].to_pylist() == exact.similarity.tolist()
    assert pairs["a"].to_pylist() == [IDS[row] for row in exact.pairs[:, 0]]
    assert pairs["b"].to_pylist() == [IDS[row] for row in exact.pairs[:, 1]]


def test_dedupe_by_an_index(docs, tmp_path):
    rk.Corpus(ROWS).save(tmp_path / "corpus")
    summary = offline.dedupe(
        tmp_path / "corpus", tmp_path / "kept.parquet", threshold=0.95, index=tmp_path / "corpus", neighbors=5
    )
    assert (summary.removed, summary.recall) == (50, 1.0)
    assert "the index finds 100.0 % of similar pairs" in str(summary)


def test_files_that_are_there_are_not_replaced(docs, tmp_path):
    (tmp_path / "o.parquet").write_text("")
    for call, options in ((offline.subset, {"k": 3}), (offline.dedupe, {"threshold": 0.9})):
        with pytest.raises(FileExistsError, match=f"{call.__name__}: out must be new, or overwrite be given"):
            call(docs, tmp_path / "o.parquet", **options)
        with pytest.raises(ValueError, match=f"{call.__name__}: out must be a .parquet file, got .*o.csv"):
            call(docs, tmp_path / "o.csv", **options)
        call(docs, tmp_path / "o.parquet", overwrite=True, **options)
        assert pq.read_table(tmp_path / "o.parquet").num_rows


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (offline.subset, ["corpus", "targets", "index", "initial", "allowed", "exclude"]),
        (offline.dedupe, ["corpus", "index"]),
    ],
)
def test_no_output_is_an_input_whatever_leads_there(docs, tmp_path, monkeypatch, call, names):
    before = docs.read_bytes()
    parts = tmp_path / "parts"
    parts.mkdir()
    (parts / "linked.parquet").symlink_to(docs)
    (tmp_path / "link.parquet").symlink_to(docs)
    monkeypatch.chdir(parts)
    options = {"k": 3} if call is offline.subset else {"threshold": 0.9}
    outs = ["out"] if call is offline.subset else ["out", "removed", "pairs"]
    ways = [
        (docs, docs), (tmp_path / "link.parquet", docs), (docs, tmp_path / "link.parquet"), (docs, "../docs.parquet"),
        (parts, parts / "new.parquet"), (parts, docs), (parts / "*.parquet", docs), (f"file://{docs}", docs),
    ]  # fmt: skip
    for given, written in ways:
        for name in names:
            for out in outs:
                others = {"corpus": tmp_path / "others.parquet", "out": tmp_path / "o.parquet"}
                paths = {**others, name: given, out: written}
                match = f"{call.__name__}: {out} must not be an input, lie in one or hold one, got .* and {name} "
                with pytest.raises(ValueError, match=match):
                    call(**paths, overwrite=True, **options)
    assert docs.read_bytes() == before
    assert not (parts / "new.parquet").exists()
    call(parts, tmp_path / "parts-chosen.parquet", **options)  # a name that only begins like the folder's


def test_no_output_is_another_output(docs, tmp_path):
    (tmp_path / "o.parquet").write_text("before")
    (tmp_path / "link.parquet").symlink_to(tmp_path / "o.parquet")
    link = tmp_path / "link.parquet"
    for names in (("out", "removed"), ("out", "pairs"), ("removed", "pairs")):
        paths = dict(zip(names, (tmp_path / "o.parquet", link), strict=True))
        with pytest.raises(ValueError, match=f"dedupe: {names[1]} must not share files with {names[0]}, got .*link"):
            offline.dedupe(docs, **{"out": tmp_path / "k.parquet", **paths}, threshold=0.9, overwrite=True)
    with pytest.raises(FileExistsError, match=r"dedupe: removed must be new, or overwrite be given .*o\.parquet"):
        offline.dedupe(docs, tmp_path / "k.parquet", removed=tmp_path / "o.parquet", threshold=0.9)
    assert (tmp_path / "o.parquet").read_text() == "before"
    assert not (tmp_path / "k.parquet").exists()


def test_files_of_no_ids_are_empty_lists(docs, tmp_path):
    (tmp_path / "none.txt").write_text("")
    (tmp_path / "blank.txt").write_text("\n\n")
    pq.write_table(pa.table({"id": pa.array([], pa.string())}), tmp_path / "none.parquet")
    expected = rk.Corpus(ROWS).subset(5, lambda_d=0.0).indices[0].tolist()
    for file in ("none.txt", "blank.txt", "none.parquet"):
        for name, rows in (("initial", expected), ("exclude", expected), ("allowed", [])):
            out = tmp_path / "o.parquet"
            offline.subset(docs, out, k=5, lambda_d=0.0, overwrite=True, **{name: tmp_path / file})
            assert pq.read_table(out)["row"].to_pylist() == rows


def test_quality_may_be_integers(docs, tmp_path):
    offline.subset(docs, tmp_path / "o.parquet", k=9, quality="tokens", lambda_b=0.0)
    tokens = np.arange(200) % 30
    picks = rk.Corpus(ROWS, bias=tokens.astype(np.float32)).subset(9, lambda_b=0.0)
    assert pq.read_table(tmp_path / "o.parquet")["score"].to_pylist() == picks.scores[0].tolist()
    offline.dedupe(docs, tmp_path / "k.parquet", threshold=0.95, quality="tokens")
    kept = rk.duplicates(ROWS, 0.95, quality=tokens).kept
    assert pq.read_table(tmp_path / "k.parquet")["row"].to_pylist() == kept.tolist()


@pytest.mark.parametrize(
    ("values", "match"),
    [
        (["a"] * 200, "quality must hold numbers in column 'q', got string in .*docs"),
        ([None, *range(199)], "quality must have no null rows, got one in row 0 of .*docs"),
        ([0.0, float("nan"), *range(198)], "corpus must be usable, got .*docs.*: quality must be finite, got .* row 1"),
        ([0.0, 1e300, *range(198)], "corpus must be usable, got .*docs.*: quality must be finite, got .* row 1"),
    ],
)
def test_quality_that_cannot_be_used_is_named_so(docs, tmp_path, values, match):
    pq.write_table(pq.read_table(docs).append_column("q", pa.array(values)), docs)
    for call, options in ((offline.subset, {"k": 3}), (offline.dedupe, {"threshold": 0.9})):
        with pytest.raises(ValueError, match=f"^{call.__name__}: {match}"):
            call(docs, tmp_path / "o.parquet", quality="q", **options)


def test_rows_that_are_written_may_be_null_where_those_of_a_file_may(tmp_path):
    """So that the next step reads them as fast as the source; of several files, where those of any may."""
    (tmp_path / "parts").mkdir()
    element = pa.field("element", pa.float32(), nullable=False)
    for part, null in enumerate((False, True)):
        schema = pa.schema([
            pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.list_(element, 16), nullable=False),
            pa.field("text", pa.string(), nullable=null), pa.field("title", pa.string()),
        ])  # fmt: skip
        rows = pa.FixedSizeListArray.from_arrays(pa.array(ROWS[part::2].ravel()), type=schema.field("v").type)
        ids, texts = pa.array(range(part, 200, 2)), pa.array([None if null else "a", *"b" * 99])
        table = pa.table([ids, rows, texts, texts], schema=schema)
        pq.write_table(table, tmp_path / "parts" / f"{part}.parquet")
    only = tmp_path / "parts" / "0.parquet"
    for source, null in ((only, False), (tmp_path / "parts", True)):
        for call, options in ((offline.subset, {"k": 5}), (offline.dedupe, {"threshold": 0.9})):
            call(source, tmp_path / "o.parquet", rows=True, overwrite=True, **options)
            written = pq.read_schema(tmp_path / "o.parquet")
            assert [written.field(name).nullable for name in ("id", "v", "text", "title")] == [False, False, null, True]
            assert written.field("v").type == pa.list_(element, 16)


def test_a_file_that_has_nulls_where_it_declares_none_is_an_error(tmp_path):
    schema = pa.schema([pa.field("v", pa.list_(pa.float32())), pa.field("t", pa.string(), nullable=False)])
    columns = [pa.array(ROWS.tolist(), schema.field("v").type), pa.array([None, *"a" * 199])]
    with pa.ipc.new_file(str(tmp_path / "lies.arrow"), schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    with pytest.raises(ValueError, match=r"^dedupe: Column 't' is declared non-nullable but contains nulls"):
        offline.dedupe(tmp_path / "lies.arrow", tmp_path / "o.parquet", threshold=0.9, rows=True)
    assert not (tmp_path / "o.parquet").exists()


def test_results_can_be_chosen_from_again_and_again(docs, tmp_path):
    """No column is there twice, and those of earlier choices keep their names."""
    given = docs
    for step in range(3):
        out = tmp_path / f"{step}.parquet"
        offline.subset(given, out, k=20 - step, lambda_d=0.0, rows=True)
        given = out
    last = pq.read_table(given)
    assert len(set(last.column_names)) == last.num_columns
    assert last["subset_subset_rank"].to_pylist() == [*range(1, 19)]
    first = pq.read_table(tmp_path / "0.parquet")
    ranks = dict(zip(first["id"].to_pylist(), first["rank"].to_pylist(), strict=True))
    assert last["rank"].to_pylist() == [ranks[item] for item in last["id"].to_pylist()]


def test_rows_are_those_of_a_table(tmp_path):
    np.save(tmp_path / "rows.npy", ROWS)
    with pytest.raises(ValueError, match=r"subset: rows must be those of a table, got .*rows.npy"):
        offline.subset(tmp_path / "rows.npy", tmp_path / "o.parquet", k=3, rows=True)


def test_options_without_effect_are_refused_before_the_corpus_is_read(tmp_path):
    for call, more, options in (
        (offline.subset, {"k": 3}, {
            "target_relevance": "max", "relevance_scale": "minmax", "min_relevance": 0.1, "target_column": "v",
            "group_column": "g", "cost_column": "c",
        }),
        (offline.dedupe, {"threshold": 0.9}, {"neighbors": 32}),
    ):  # fmt: skip
        for name, value in options.items():
            need = {
                "group_column": "max_per_group or min_per_group", "cost_column": "budget", "neighbors": "index",
            }.get(name, "targets")  # fmt: skip
            said = f"^{call.__name__}: {name} must come with {need}, got {value!r} alone$"
            with pytest.raises(ValueError, match=said):
                call(tmp_path / "none.npy", tmp_path / "o.parquet", **more, **{name: value})


@pytest.mark.parametrize("name", ["initial", "allowed", "exclude"])
def test_ids_that_cannot_be_used_are_named_with_their_argument_and_file(docs, tmp_path, name):
    (tmp_path / "ids.txt").write_text("doc-3\nnone\n")
    pq.write_table(pa.table({"id": [3, 4]}), tmp_path / "numbers.parquet")
    pq.write_table(pa.table({"key": ["doc-3"]}), tmp_path / "key.parquet")
    for file, kind, match in (
        ("no.txt", FileNotFoundError, r"must be an existing file, got .*no\.txt"),
        ("ids.txt", ValueError, r"must hold ids of the corpus, got 'none' in .*ids\.txt"),
        ("numbers.parquet", ValueError, r"must be strings as those of the corpus are, got integers in .*numbers"),
        ("key.parquet", ValueError, r"must be in a column id, got none in .*key\.parquet"),
    ):
        with pytest.raises(kind, match=f"^subset: {name} {match}"):
            offline.subset(docs, tmp_path / "o.parquet", k=3, **{name: tmp_path / file})
    rk.Corpus(ROWS, ids=np.arange(200)).save(tmp_path / "corpus")
    with pytest.raises(ValueError, match=rf"^subset: {name} must be integers of 64 bits .* got 'doc-3' in line 1 of"):
        offline.subset(tmp_path / "corpus", tmp_path / "o.parquet", k=3, **{name: tmp_path / "ids.txt"})


def test_an_initial_id_that_is_there_twice_is_named(docs, tmp_path):
    (tmp_path / "ids.txt").write_text("doc-3\ndoc-5\ndoc-3\n")
    match = r"^subset: initial must hold each id once, got 'doc-3' several times in .*ids\.txt"
    with pytest.raises(ValueError, match=match):
        offline.subset(docs, tmp_path / "o.parquet", k=3, initial=tmp_path / "ids.txt")
    offline.subset(docs, tmp_path / "o.parquet", k=3, exclude=tmp_path / "ids.txt")


@pytest.mark.parametrize("saved", [False, True])
def test_a_corpus_that_takes_more_memory_is_refused_before_it_is_read(tmp_path, saved):
    """For 200 rows of 16: of float32 64 bytes, codes of 64, and an id of 8; of int8 16, a scale of 4 and the id."""
    np.save(tmp_path / "rows.npy", ROWS)
    corpus = tmp_path / "rows.npy"
    if saved:
        rk.Corpus(ROWS).save(tmp_path / "saved")
        corpus = tmp_path / "saved"
    said = "memory must be at least 27200, the bytes of 200 rows of 16 float32 with codes and ids, got"
    others = (
        (27_199, "; as float16 or bfloat16 or int8 they fit"),
        (6_000, "; as int8 they fit"),
        (9, "; no type is small enough"),
    )
    for op, call in (
        ("subset", lambda **more: offline.subset(corpus, tmp_path / "o.parquet", k=3, **more)),
        ("dedupe", lambda **more: offline.dedupe(corpus, tmp_path / "kept.parquet", threshold=0.9, **more)),
    ):
        for memory, instead in others:
            with pytest.raises(ValueError, match=rf"^{op}: {said} {memory}{instead}$"):
                call(memory=memory)
        with pytest.raises(ValueError, match=rf"^{op}: memory must be a number of bytes, such as 2G, got 'much'$"):
            call(memory="much")
        call(memory=27_200, overwrite=True)
    if not saved:
        offline.subset(corpus, tmp_path / "o.parquet", k=3, memory="6000", dtype="int8", overwrite=True)


def test_subset_takes_what_one_value_says():
    given = inspect.signature(offline.subset).parameters
    without = {*OF_RESULT, *(each.name for each in RECENCY)}  # one result; relevance of no query
    assert {parameter.name for parameter in SCALARS} - without <= set(given)
