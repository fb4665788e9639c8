"""Caps and minima of single groups in jobs, and the column ``unmet``: the picks and the words of the library."""

import json
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_arrays import read

import ragsys_kernels as rk
from ragsys_kernels import offline
from ragsys_kernels.offline.ray import selector as ray_selector

pytestmark = pytest.mark.filterwarnings("ignore:.* names groups that no row")

N, Q, D, K = 300, 23, 8, 5
RNG = np.random.default_rng(1)
ROWS, QUERIES = (RNG.standard_normal((n, D)).astype(np.float32) for n in (N, Q))
NUMBERS = RNG.choice(4, N, p=[0.6, 0.36, 0.02, 0.02])
NAMES = np.array(["news", "law", "a=b", "ß"])[NUMBERS]
MINIMA = {"NAMES": {"a=b": 2, "poems": 1}, "NUMBERS": {2: 2, 9: 1}}
CAPS = {"NAMES": {"news": 1}, "NUMBERS": {0: 1}}


@pytest.fixture
def files(tmp_path):
    pq.write_table(
        pa.table({"v": list(ROWS), "NAMES": NAMES, "NUMBERS": NUMBERS}), tmp_path / "corpus.parquet", row_group_size=90
    )
    queries = QUERIES.copy()
    queries[7] = np.nan
    np.save(tmp_path / "queries.npy", queries)
    return tmp_path


def job(files, out="out", **given):
    done = offline.select(
        queries=files / "queries.npy", out=files / out, k=K, on_error="skip", chunk_size=5, shard_size=9, **given
    )
    return done, read(files / out)


def of_library(groups, **given):
    found = rk.Corpus(ROWS, groups=groups).select(QUERIES, K, **given)
    ids = [row[:n].tolist() for row, n in zip(found.indices, found.lengths, strict=True)]
    unmet = [[(str(group), lacking) for group, lacking in each.items()] for each in found.unmet or [{}] * Q]
    ids[7], unmet[7] = [], None
    return ids, unmet


@pytest.mark.parametrize("pool", [120, "all"])
@pytest.mark.parametrize("column", MINIMA)
def test_the_columns_are_what_the_library_says(files, column, pool):
    given = {"min_per_group": MINIMA[column], "max_per_group": CAPS[column]}
    groups = {"NAMES": NAMES, "NUMBERS": NUMBERS}[column]
    ids, unmet = of_library(groups, pool=None if pool == "all" else pool, **given)
    assert ids != of_library(groups, pool=None if pool == "all" else pool)[0]
    done, table = job(files, corpus=files / "corpus.parquet", group_column=column, pool=pool, **given)
    lacking = sum(map(bool, unmet))
    assert (done.unmet, offline.status(files / "out").unmet) == (lacking, lacking)
    for text in (str(done), str(offline.status(files / "out"))):
        assert f", {lacking} lack picks of min_per_group" in text
    assert table["ids"].to_pylist() == ids
    assert table["unmet"].to_pylist() == unmet
    assert table.schema.field("unmet").type == pa.map_(pa.string(), pa.int64())
    assert "certified" not in table.column_names
    # Of a saved corpus, also of one in less memory than it takes, and with the groups as text, as JSON has them.
    corpus = rk.Corpus(ROWS, groups=groups)
    corpus.save(files / "saved")
    text = {name: {str(group): x for group, x in each.items()} for name, each in given.items()}
    more = {"memory": 8000} if pool != "all" else {}
    for options in ({}, more):
        assert job(files, "of_saved", corpus=files / "saved", pool=pool, overwrite=True, **text, **options)[1].equals(
            table
        )


def test_an_integer_and_caps_alone(files):
    given = {"corpus": files / "corpus.parquet", "group_column": "NAMES", "pool": 120}
    _, table = job(files, min_per_group=2, **given)
    expected = of_library(NAMES, pool=120, min_per_group=2)
    assert (table["ids"].to_pylist(), table["unmet"].to_pylist()) == expected
    some, _ = job(files, "some", min_per_group={"ß": 1}, **{**given, "pool": 30})
    assert 0 < some.unmet == sum(map(bool, of_library(NAMES, pool=30, min_per_group={"ß": 1})[1])) < Q - 1
    none, capped = job(files, "capped", max_per_group={"news": 0}, **given)
    assert capped["ids"].to_pylist() == of_library(NAMES, pool=120, max_per_group={"news": 0})[0]
    assert "unmet" not in capped.column_names
    assert none.unmet is None
    assert "min_per_group" not in str(none)
    assert "certified" in capped.column_names


def test_a_name_that_no_row_has_is_a_line(files, command):
    shared = ("--corpus", "corpus.parquet", "--k", K, "--overwrite", "--out")
    job = ("select", "--queries", "queries.npy", "--on-error", "skip", *shared, "out")
    for column, right, wrong, shown in (("NAMES", "news", "News", "'News'"), ("NUMBERS", "1", "8", "8")):
        line = f"--max-per-group names groups that no row of the corpus has: {shown}"
        for name, arguments in (("select", job), ("subset", ("subset", *shared, "out.parquet"))):
            for given, expected in ((wrong, [f"warning: {name}: {line}"]), (right, [])):
                done = command(files, *arguments, "--group-column", column, "--max-per-group", f"{given}=1")
                warned = [text for text in done.stderr.splitlines() if not text.startswith("notice: ")]
                assert (done.returncode, warned) == (0, expected)


def test_show_has_what_a_query_lacks(files, command):
    np.save(files / "some.npy", QUERIES[:2])
    offline.select(corpus=files / "corpus.parquet", group_column="NAMES", queries=files / "some.npy",
                   out=files / "picks", k=K, pool=120, min_per_group=MINIMA["NAMES"])  # fmt: skip
    (files / "texts.jsonl").write_text("".join(json.dumps({"text": f"text {i}"}) + "\n" for i in range(N)))
    found = offline.show(picks=files / "picks", texts=files / "texts.jsonl")
    expected = [dict(each) for each in of_library(NAMES, pool=120, min_per_group=MINIMA["NAMES"])[1][:2]]
    assert [pick.unmet for pick in found] == [each for each in expected for _ in range(K)]
    for kind in ("table", "md"):
        done = command(files, "show", "picks", "--texts", "texts.jsonl", "--format", kind)
        assert done.stdout.count("(groups that lack picks: ") == 2
        assert f"poems: {expected[0]['poems']}" in done.stdout


def test_a_job_is_resumed_by_equal_quotas_alone(files):
    given = {"corpus": files / "corpus.parquet", "group_column": "NUMBERS", "pool": 120}
    job(files, min_per_group={2: 2, np.int64(9): np.int32(1)}, **given)
    options = json.loads((files / "out.job" / "_job.json").read_text())["options"]
    assert options["min_per_group"] == {"2": 2, "9": 1}
    for same in ({9: 1, 2: 2}, {"2": 2, "9": 1}):
        assert job(files, min_per_group=same, **given)[0].selected == 0
    with pytest.raises(ValueError, match="min_per_group"):
        job(files, min_per_group={2: 2}, **given)


def test_the_command_reads_numbers_pairs_and_objects(files, command):
    shared = ("select", "--corpus", "corpus.parquet", "--queries", "queries.npy", "--k", K, "--on-error", "skip",
              "--pool", 120)  # fmt: skip
    for column, texts in (("NUMBERS", ("2=2,9=1", '{"9": 1, "2": 2}')), ("NAMES", ('{"a=b": 2, "poems": 1}',))):
        ids, unmet = of_library({"NAMES": NAMES, "NUMBERS": NUMBERS}[column], pool=120, min_per_group=MINIMA[column])
        for i, text in enumerate(texts):
            done = command(files, *shared, "--group-column", column, "--min-per-group", text, "--out", f"{column}{i}")
            assert done.returncode == 0, done.stderr
            table = read(files / f"{column}{i}")
            assert table["ids"].to_pylist() == ids
            assert [each and sorted(each) for each in table["unmet"].to_pylist()] == [
                each and sorted(each) for each in unmet
            ]


def test_a_subset_has_them_too(files, command):
    for column, text in (("NUMBERS", "2=2,9=1"), ("NAMES", '{"a=b": 2, "poems": 1}')):
        groups = {"NAMES": NAMES, "NUMBERS": NUMBERS}[column]
        expected = rk.Corpus(ROWS, groups=groups).subset(K, min_per_group=MINIMA[column])
        done = command(files, "subset", "--corpus", "corpus.parquet", "--k", K, "--group-column", column,
                       "--min-per-group", text, "--out", f"{column}.parquet")  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert pq.read_table(files / f"{column}.parquet")["row"].to_pylist() == expected.indices[0].tolist()
        assert f"groups that lack rows: {'poems' if column == 'NAMES' else 9}: 1 -> " in done.stdout


def test_a_step_of_a_pipeline_says_what_is_unmet(monkeypatch):
    """`selector_for_ray`, whose object store is this process."""
    store = SimpleNamespace(put=lambda value: value, get=lambda value: value)
    monkeypatch.setattr(ray_selector, "import_ray", lambda op: store)
    for column, groups in (("NAMES", NAMES), ("NUMBERS", NUMBERS)):
        minima = {str(group): least for group, least in MINIMA[column].items()}
        corpus = rk.Corpus(ROWS, groups=groups)
        step = offline.selector_for_ray(corpus, k=K, pool=120, min_per_group=minima, max_per_group=CAPS[column])()
        found = step({"embedding": QUERIES})
        expected = corpus.select(QUERIES, K, pool=120, min_per_group=MINIMA[column], max_per_group=CAPS[column])
        assert found["ids"].tolist() == [row[:n].tolist() for row, n in zip(*expected[::4], strict=True)]
        assert found["unmet"].to_pylist() == [[(str(group), x) for group, x in each.items()] for each in expected.unmet]
        with pytest.raises(ValueError, match="must not have the columns of the result, got \\['unmet'\\]"):
            step({"embedding": QUERIES, "unmet": QUERIES})


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("", 2, "must be an integer, NAME=N,.., or a JSON object where names have = or ,"),
        ("a=b=2", 2, "must be an integer, NAME=N,.., or a JSON object where names have = or ,"),
        ("law", 2, "must be an integer, NAME=N,.., or a JSON object where names have = or ,"),
        ('{"law": 1', 2, "must be an integer, NAME=N,.., or a JSON object where names have = or ,"),
        ("law=1,law=2", 2, "must name each group once"),
        ('{"law": 1, "law": 1}', 2, "must name each group once"),
        ("0", 1, "--min-per-group must be at least 1, got 0"),
        ("law=-1", 1, "--min-per-group must be at least 0 for each group, got -1 for 'law'"),
        ('{"law": 1.5}', 1, "--min-per-group must be an integer for each group, got float"),
        ('{"law": [1]}', 1, "--min-per-group must be one value for all queries"),
    ],
)
def test_refused_by_the_command(files, command, text, code, message):
    done = command(files, "select", "--corpus", "corpus.parquet", "--queries", "queries.npy", "--group-column", "NAMES",
                   "--min-per-group", text, "--out", "out")  # fmt: skip
    assert done.returncode == code
    assert message in " ".join(done.stderr.replace("│", " ").split())
    assert not (files / "out").exists()


@pytest.mark.parametrize(
    ("column", "given", "error", "message"),
    [
        ("NUMBERS", {"max_per_group": {"law": 1}}, TypeError, "must name groups by integers, as groups are, got 'law'"),
        ("NAMES", {"max_per_group": {0: 1}}, TypeError, "must name groups by strings, as groups are, got 0"),
        (
            "NUMBERS",
            {"max_per_group": {1: 1, "1": 2}},
            ValueError,
            "name each group once, got integers and text of them",
        ),
        (
            "NAMES",
            {"max_per_group": [{"law": 1}]},
            TypeError,
            "an integer or a mapping of groups to integers, got list",
        ),
        ("NAMES", {"pool": "certified", "min_per_group": {"law": 1}}, ValueError, "must come without min_per_group"),
    ],
)
def test_refused_before_anything_is_read(files, column, given, error, message):
    with pytest.raises(error, match=message):
        job(files, corpus=files / "corpus.parquet", group_column=column, **{"pool": 50, **given})
    assert not (files / "out").exists()
