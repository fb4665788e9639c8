"""The commands of corpora in segments, from files to files."""

import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels import offline

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ROWS = np.random.default_rng(0).standard_normal((1000, 16)).astype(np.float32)
IDS = [f"d{i}" for i in range(1000)]


def table(folder, name, begin, end, ids=IDS, **columns):
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(ROWS[begin:end].reshape(-1)), 16)
    columns = {name: values[begin:end] for name, values in columns.items()}
    pq.write_table(pa.table({"id": ids[begin:end], "v": vectors, **columns}), folder / name, row_group_size=170)


@pytest.fixture
def folder(tmp_path, command):
    table(tmp_path, "a.parquet", 0, 800)
    table(tmp_path, "b.parquet", 800, 1000)
    done = command(tmp_path, "corpus", "build", "--corpus", "a.parquet", "--out", "c", "--rows-per-segment", 300)
    assert done.stdout.strip() == "Corpus(N=800, D=16, metric='cosine', dtype='float32', ids=str)"
    return tmp_path


def test_from_build_to_compact(folder, command):
    def run(*arguments):
        done = command(folder, "corpus", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    run("append", "--corpus", "b.parquet", "--to", "c")
    one = rk.Corpus(ROWS, ids=IDS)
    np.testing.assert_array_equal(rk.Corpus.load(folder / "c").data, one.data)
    refused = command(folder, "corpus", "append", "--corpus", "b.parquet", "--to", "c")
    assert refused.returncode == 1
    assert "corpus append: ids must not be in the corpus, got 'd800' in row 0 of the new rows" in refused.stderr
    assert "and 199 more like it" in refused.stderr
    run("append", "--corpus", "b.parquet", "--to", "c", "--on-duplicate", "replace")
    (folder / "gone.txt").write_text("d3\nd801\n\nnope\n")
    assert run("delete", "--ids", "gone.txt", "--from", "c") == ["2 rows deleted, 1 id not in the corpus: 'nope'"]
    pq.write_table(pa.table({"id": ["x"], "doc": ["d4"]}), folder / "gone.parquet")
    assert run("delete", "--ids", "gone.parquet", "--id-column", "doc", "--from", "c") == ["1 row deleted"]
    shown = run("show", "c")
    assert shown[0] == "version 5: cosine, float32, 16 dimensions, ids of str"
    numbers = [line.split()[1:] for line in shown[2:]]
    assert [row[:2] for row in numbers[:-1]] == [["300", "2"], ["300", "0"], ["200", "0"], ["200", "200"], ["200", "1"]]
    assert shown[-1].split()[:4] == ["all", "5", "1200", "203"]
    assert sum(int(row[2]) for row in numbers[:-1]) == int(shown[-1].split()[4])
    assert run("verify", "c")[0].startswith("right: Corpus(N=1200")
    run("compact", "c")
    left = [i for i in range(1000) if i not in (3, 4, 801)]
    compacted = rk.Corpus.load(folder / "c", verify=True)
    np.testing.assert_array_equal(compacted.ids[:], np.array(IDS, object)[left])
    np.testing.assert_array_equal(compacted.data, one.data[left])
    assert [line.split()[1] for line in run("show", "c")[2:-1]] == ["300", "300", "300", "97"]


def test_append_of_a_saved_corpus_and_show_of_one(folder, command):
    rk.Corpus(ROWS[800:], ids=IDS[800:]).save(folder / "more")
    done = command(folder, "corpus", "append", "--corpus", "more", "--to", "c")
    assert done.stdout.strip() == "Corpus(N=1000, D=16, metric='cosine', dtype='float32', ids=str)"
    shown = command(folder, "corpus", "show", "more").stdout.splitlines()
    assert shown[0] == "cosine, float32, 16 dimensions, ids of str"
    assert shown[-1].split()[:4] == ["all", "1", "200", "0"]
    done = command(folder, "corpus", "append", "--corpus", "more", "--to", "c", "--id-column", "id")
    assert "corpus must be vectors where ids or other columns are named" in done.stderr


@pytest.mark.parametrize("source", ["parquet", "npy", "arrow"])
def test_build_is_the_same_in_segments(tmp_path, source):
    columns = {"bias": np.linspace(-1, 0, 1000), "group": np.arange(1000) % 7, "tokens": np.arange(1000) % 5 + 0.5}
    given = {"bias_column": "bias", "group_column": "group", "cost_column": "tokens"}
    table(tmp_path, "a.parquet", 0, 1000, **columns)
    path = tmp_path / f"a.{source}"
    if source == "arrow":
        read = pq.read_table(tmp_path / "a.parquet")
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, read.schema) as writer:
            writer.write_table(read)
    if source == "npy":
        np.save(path, ROWS)
        given = {}
    whole = offline.build_corpus(path, tmp_path / "whole", dtype="int8", **given)
    parts = offline.build_corpus(path, tmp_path / "parts", dtype="int8", rows_per_segment=333, **given)
    for name in ("data", "scales", "bias", "groups", "costs", "codes"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(parts, name))
    np.testing.assert_array_equal(whole.ids[:], parts.ids[:])
    assert whole.max_norm == parts.max_norm
    assert whole.code_error == parts.code_error


def test_bad_row_is_named(tmp_path, command):
    rows = ROWS.copy()
    rows[701, 3] = np.nan
    np.save(tmp_path / "a.npy", rows)
    done = command(tmp_path, "corpus", "build", "--corpus", "a.npy", "--out", "c", "--rows-per-segment", 300)
    assert done.returncode == 1
    assert "corpus build: corpus must be usable, got " in done.stderr
    assert "a.npy: Corpus: embeddings must be finite, got NaN or inf in row 701" in done.stderr
    assert not (tmp_path / "c").exists()
    pq.write_table(pa.table({"id": [*"abcc"], "v": ROWS[:4].tolist()}), tmp_path / "d.parquet")
    done = command(tmp_path, "corpus", "build", "--corpus", "d.parquet", "--out", "c", "--rows-per-segment", 2)
    assert "d.parquet: Corpus: ids must be unique, got 'c' in rows 2 and 3" in done.stderr
    pq.write_table(pa.table({"id": ["a", "b", "a"], "v": ROWS[:3].tolist()}), tmp_path / "b.parquet")
    done = command(tmp_path, "corpus", "build", "--corpus", "b.parquet", "--out", "c", "--rows-per-segment", 2)
    assert "corpus build: ids must be unique, got 'a' in rows 0 and 2" in done.stderr


def test_row_numbers_stand_for_ids(tmp_path, command):
    np.save(tmp_path / "a.npy", ROWS)
    offline.build_corpus(tmp_path / "a.npy", tmp_path / "c", rows_per_segment=400)
    (tmp_path / "gone.txt").write_text("5\n999\n1000\n")
    done = command(tmp_path, "corpus", "delete", "--ids", "gone.txt", "--from", "c")
    assert done.stdout.strip() == "2 rows deleted, 1 id not in the corpus: 1000"
    (tmp_path / "gone.txt").write_text("5\nx\n")
    done = command(tmp_path, "corpus", "delete", "--ids", "gone.txt", "--from", "c")
    assert (
        "corpus delete: ids must be integers of 64 bits in plain decimal form as those of the corpus are" in done.stderr
    )
    assert "got 'x' in line 2 of gone.txt" in done.stderr


def job(folder, corpus, out, **options):
    return offline.select(corpus=folder / corpus, queries=folder / "q.npy", out=folder / out, **options)


@pytest.mark.parametrize("pool", [20, "all"])
def test_jobs_over_segments(folder, pool):
    """Picks of a job are those of the one corpus, ids and all."""
    np.save(folder / "q.npy", ROWS[:40] + 0.3)
    offline.append_corpus(folder / "b.parquet", folder / "c")
    offline.delete_rows(IDS[:30], folder / "c")
    offline.append_corpus(rk.Corpus(ROWS[:10], ids=IDS[:10]), folder / "c")
    order = [*range(30, 1000), *range(10)]
    rk.Corpus(ROWS[order], ids=[IDS[i] for i in order]).save(folder / "one")
    found = []
    for corpus in ("c", "one"):
        job(folder, corpus, f"out-{corpus}", k=5, pool=pool)
        found.append(pq.read_table(folder / f"out-{corpus}", columns=["ids", "scores", "relevance"]))
    assert found[0].equals(found[1])
    again = job(folder, "c", "out-c", k=5, pool=pool)
    assert again.complete
    offline.delete_rows(IDS[40:41], folder / "c")
    with pytest.raises(ValueError, match="corpus"):  # another one now
        job(folder, "c", "out-c", k=5, pool=pool)


def test_candidates_of_a_job_by_ids(folder):
    np.save(folder / "q.npy", ROWS[:3] + 0.3)
    offline.append_corpus(rk.Corpus(ROWS[:1] * -1, ids=IDS[:1]), folder / "c", on_duplicate="replace")
    pq.write_table(pa.table({"c": [["d0", "d1", "d2"]] * 3}), folder / "pools.parquet")
    job(folder, "c", "out", candidates=folder / "pools.parquet", candidate_ids=True, k=2)
    expected = rk.mmr(ROWS[:3] + 0.3, rk.Corpus(np.concatenate([ROWS[:1] * -1, ROWS[1:3]])), 2)
    picks = pq.read_table(folder / "out").column("ids").to_pylist()
    assert picks == [[IDS[i] for i in row] for row in np.asarray(expected.indices).tolist()]
