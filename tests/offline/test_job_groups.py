"""Groups that are strings, in columns of files: the picks of a job with integers that say the same."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_arrays import read

import ragsys_kernels as rk
from ragsys_kernels import offline

N, Q, D = 90, 20, 6
SOURCES = ["https://a.example/x", "b", "ß", "d"]


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    vectors, queries = (rng.standard_normal((n, D)).astype(np.float32) for n in (N, Q))
    numbers, asked = rng.integers(0, 4, N), rng.integers(0, 5, Q)  # no row is of the fifth
    names = [*SOURCES, "elsewhere"]
    plain = [SOURCES[i] for i in numbers]
    columns = {"number": numbers, "source": plain, "kind": pa.array(plain).dictionary_encode()}
    pq.write_table(pa.table({"v": list(vectors), **columns}), tmp_path / "corpus.parquet", row_group_size=40)
    wanted = [names[i] for i in asked]
    columns = {"number": asked, "source": wanted, "kind": pa.array(wanted, pa.large_string())}
    pq.write_table(pa.table({"v": list(queries), **columns}), tmp_path / "queries.parquet", row_group_size=7)
    return tmp_path


def test_picks_are_those_of_integers(files, command):
    shared = ("select", "--corpus", "corpus.parquet", "--queries", "queries.parquet", "--k", 4, "--max-per-group", 1)
    for column in ("number", "source", "kind"):
        done = command(files, *shared, "--out", column, "--group-column", column, "--query-group-column", column)
        assert done.returncode == 0, done.stderr
    assert read(files / "source").equals(read(files / "number"))
    assert read(files / "kind").equals(read(files / "number"))
    for owner in ("corpus", "queries"):
        names = np.array(pq.read_table(files / f"{owner}.parquet")["source"].to_pylist())
        np.save(files / f"{owner}_groups.npy", names)
        np.savez(files / f"{owner}_groups.npz", groups=names, query_groups=names)
    for suffix in (".npy", ".npz"):
        named = ("--groups", f"corpus_groups{suffix}", "--query-groups", f"queries_groups{suffix}")
        done = command(files, *shared, "--out", f"of{suffix}", *named)
        assert done.returncode == 0, done.stderr
        assert read(files / f"of{suffix}").equals(read(files / "number"))
        by_name = (*shared[:-1], "b=1", *named[:2], "--out", f"name{suffix}")  # of one group by its name
        done = command(files, *by_name)
        assert done.returncode == 0, done.stderr
    for size in ((), ("--rows-per-segment", 25)):
        done = command(files, "corpus", "build", "--corpus", "corpus.parquet", "--out", "c", "--group-column", "source",
                       "--overwrite", *size)  # fmt: skip
        assert done.stdout.strip() == "Corpus(N=90, D=6, metric='cosine', dtype='float32', groups=str)"
        loaded = rk.Corpus.load(files / "c", verify=True)
        assert (
            loaded.group_names[loaded.groups].tolist() == pq.read_table(files / "corpus.parquet")["source"].to_pylist()
        )
        offline.select(corpus=files / "c", queries=files / "queries.parquet", out=files / "saved", k=4, max_per_group=1,
                       query_group_column="source", overwrite=True)  # fmt: skip
        assert read(files / "saved").equals(read(files / "number"))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (("source", "number"), "select: query_groups must be strings as groups are, got others in "),
        (("number", "kind"), "select: query_groups must be integers as groups are, got others in "),
        (("v", "source"), "select: groups must hold integers or strings in column 'v', got "),
    ],
)
def test_refused(files, columns, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        offline.select(corpus=files / "corpus.parquet", queries=files / "queries.parquet", out=files / "out",
                       group_column=columns[0], query_group_column=columns[1])  # fmt: skip
    assert not (files / "out").exists()


def test_damaged_text_in_an_array_is_refused(files):
    names = np.array(["a", "b"] * (N // 2))
    names.view(np.uint32)[5] = 0x110000  # which no character has
    np.save(files / "groups.npy", names)
    with pytest.raises(ValueError, match=r"^select: .*groups\.npy must hold text, got what is none: "):
        offline.select(corpus=files / "corpus.parquet", queries=files / "queries.parquet", out=files / "out",
                       groups=files / "groups.npy", max_per_group=1)  # fmt: skip
