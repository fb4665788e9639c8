"""The job over files: what it writes equals direct calls, in bounded memory."""

import hashlib
import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_arrays import N, Q, check_equals, check_refused, files, read, vector_lists

import ragsys_kernels as rk
from ragsys_kernels import offline


@pytest.mark.parametrize("method", ["mmr", "vrsd"])
@pytest.mark.parametrize("pool", [50, "all"])
def test_npy_equals_direct_calls(tmp_path, data, method, pool):
    summary = offline.select(
        **files(tmp_path, "corpus", "queries"), out=tmp_path / "out", method=method, k=5, pool=pool, chunk_size=64
    )
    direct = rk.Corpus(data["corpus"]).select(data["queries"], 5, method=method, pool=None if pool == "all" else pool)
    check_equals(read(tmp_path / "out"), direct)
    assert (summary.queries, summary.shards, summary.out) == (Q, 1, tmp_path / "out")
    assert summary.seconds > 0
    assert f"{Q} queries in " in str(summary)


@pytest.mark.parametrize("fixed", [True, False], ids=["fixed-size", "variable-size"])
def test_parquet_equals_direct_calls(tmp_path, data, fixed):
    doc_ids = [f"doc-{row}" for row in range(N)]
    query_ids = [row * 10 + 3 for row in range(Q)]
    pq.write_table(
        pa.table({
            "id": pa.array(doc_ids).dictionary_encode(),
            "text": doc_ids,
            "embedding": vector_lists(data["corpus"], fixed),
            "quality": data["bias"],
            "topic": data["groups"],
        }),
        tmp_path / "corpus.parquet",
        row_group_size=70,
    )  # fmt: skip
    pq.write_table(
        pa.table({"qid": query_ids, "v": vector_lists(data["queries"], fixed), "topic": data["query_groups"]}),
        tmp_path / "queries.parquet",
        row_group_size=37,
    )
    offline.select(
        corpus=tmp_path / "corpus.parquet",
        queries=tmp_path / "queries.parquet",
        out=tmp_path / "out",
        query_id_column="qid",
        bias_column="quality",
        group_column="topic",
        query_group_column="topic",
        max_per_group=1,
        chunk_size=50,
    )
    corpus = rk.Corpus(data["corpus"], bias=data["bias"], groups=data["groups"])
    direct = corpus.select(data["queries"], 6, query_groups=data["query_groups"], max_per_group=1)
    check_equals(read(tmp_path / "out"), direct, query_ids=query_ids, ids=doc_ids)


def test_parquet_batches_of_any_size_are_joined(tmp_path, data, monkeypatch):
    """Rows of all columns stay aligned even if the reader hands out fewer rows than it was asked for."""
    pq.write_table(pa.table({"id": np.arange(Q) * 3, "v": vector_lists(data["queries"])}), tmp_path / "queries.parquet")
    read_batches = pq.ParquetFile.iter_batches

    def short_batches(file, batch_size, columns, **options):
        return read_batches(file, 33 if columns == ["id"] else 40, columns=columns, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", short_batches)
    paths = {**files(tmp_path, "corpus", "candidates"), "queries": tmp_path / "queries.parquet"}
    offline.select(**paths, out=tmp_path / "out", chunk_size=50)
    direct = rk.Corpus(data["corpus"]).select(data["queries"], 6, candidates=data["candidates"])
    check_equals(read(tmp_path / "out"), direct, query_ids=[row * 3 for row in range(Q)])


def test_candidates_bias_and_groups_from_npy(tmp_path, data):
    names = ("corpus", "queries", "candidates", "bias", "groups", "query_groups")
    offline.select(**files(tmp_path, *names), out=tmp_path / "out", k=30, lambda_d=0.5, lambda_b=0.8, chunk_size=41)
    corpus = rk.Corpus(data["corpus"], bias=data["bias"], groups=data["groups"])
    direct = corpus.select(
        data["queries"], 30, pool=None, candidates=data["candidates"], query_groups=data["query_groups"],
        lambda_d=0.5, lambda_b=0.8,
    )  # fmt: skip
    assert direct.lengths.min() < 30  # some lists are trimmed
    check_equals(read(tmp_path / "out"), direct)


def test_ragged_candidates_from_parquet(tmp_path, data):
    lists = [row[row >= 0].tolist() for row in data["candidates"]]
    lists[7] = []
    data["candidates"][7] = -1
    table = pa.table({"query": list(range(Q)), "rows": pa.array(lists, pa.list_(pa.int32()))})
    pq.write_table(table, tmp_path / "candidates.parquet", row_group_size=29)
    offline.select(
        **files(tmp_path, "corpus", "queries"), candidates=tmp_path / "candidates.parquet", out=tmp_path / "out",
        chunk_size=31,
    )  # fmt: skip
    direct = rk.Corpus(data["corpus"]).select(data["queries"], 6, pool=None, candidates=data["candidates"])
    assert direct.lengths[7] == 0
    check_equals(read(tmp_path / "out"), direct)


def test_description_of_the_job(tmp_path, data):
    offline.select(**files(tmp_path, "corpus", "queries"), out=tmp_path / "out", k=3, pool=9, shard_size=200)
    written = json.loads((tmp_path / "out.job" / "_job.json").read_text())
    shards = [(item["file"], item["first_row"], item["rows"]) for item in written["shards"]]
    assert shards == [("part-00000.parquet", 0, 200), ("part-00001.parquet", 200, Q - 200)]
    for item in written["shards"]:
        assert item["sha256"] == hashlib.sha256((tmp_path / "out" / item["file"]).read_bytes()).hexdigest()
    assert (written["version"], written["rows"], written["complete"]) == (rk.__version__, Q, True)
    assert written["inputs"]["queries"]["path"] == str(tmp_path / "queries.npy")
    assert written["inputs"]["queries"]["files"][0]["size"] == (tmp_path / "queries.npy").stat().st_size
    assert written["options"] == {
        "method": "mmr", "k": 3, "pool": 9, "lambda_d": 0.75, "lambda_b": 0.95, "max_per_group": None,
        "metric": "cosine", "dtype": "float32",
    }  # fmt: skip
    assert sorted(path.name for path in tmp_path.glob("out/*")) == ["part-00000.parquet", "part-00001.parquet"]
    assert [path.name for path in tmp_path.glob("out.job/*")] == ["_job.json"]


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({}, {"method": "mmr", "pool": 100, "lambda_d": 0.75, "lambda_b": 0.95}),
        ({"method": "vrsd", "pool": "all"}, {"method": "vrsd", "pool": None}),
        ({"method": "ssd", "gamma": 1.0, "window": None},
         {"method": "ssd", "pool": 100, "lambda_d": 0.5, "lambda_b": 0.95, "gamma": 1.0}),
        ({"method": "sift", "min_gain": 0.0}, {"method": "sift", "pool": 100, "min_gain": 0.0}),
        ({"method": "coverage", "density": False, "lambda_d": 1},
         {"method": "coverage", "pool": 100, "lambda_d": 1, "lambda_b": 0.95}),
        ({"method": "gist", "eps": np.float32(0.5), "lambda_b": 1.0},
         {"method": "gist", "pool": 100, "lambda_d": 0.25, "lambda_b": 1.0, "eps": 0.5}),
        ({"max_similarity": 0.5, "relevance_scale": "as-is"},
         {"method": "mmr", "pool": 100, "lambda_d": 0.75, "lambda_b": 0.95, "max_similarity": 0.5}),
    ],
)  # fmt: skip
def test_a_job_names_what_jobs_before_it_named(tmp_path, data, given, key):
    """The options in the manifest, by which a job resumes: of another version of the same number too."""
    offline.select(**files(tmp_path, "corpus", "queries"), out=tmp_path / "out", k=3, **given)
    written = json.loads((tmp_path / "out.job" / "_job.json").read_text())["options"]
    assert written == {"k": 3, "max_per_group": None, "metric": "cosine", "dtype": "float32", **key}


def test_progress_counts_queries(tmp_path, data):
    calls = []
    offline.select(
        **files(tmp_path, "corpus", "queries"), out=tmp_path / "out", chunk_size=100,
        progress=lambda done, total: calls.append((done, total)),
    )  # fmt: skip
    assert calls == [(0, Q), (100, Q), (200, Q), (Q, Q)]


def test_k_beyond_the_pool_is_padded(tmp_path, data):
    """Where the corpus is small; a pool that is asked for has to be larger."""
    with pytest.raises(ValueError, match="select: pool must be above k = 8, or its rows only get another order, got 5"):
        offline.select(**files(tmp_path, "corpus", "queries"), out=tmp_path / "out", k=8, pool=5)
    np.save(tmp_path / "corpus.npy", data["corpus"][:5])
    with pytest.warns(rk.PoolSizeWarning, match="reorders it; use a smaller k$") as caught:
        summary = offline.select(**files(tmp_path, "corpus", "queries"), out=tmp_path / "out", k=8, chunk_size=100)
    assert [warning.filename for warning in caught] == [__file__] * 3  # whatever thread selects
    assert summary.short == Q
    assert {len(row) for row in read(tmp_path / "out")["ids"].to_pylist()} == {5}


def test_a_pool_of_k_is_more_than_another_order_where_a_ceiling_leaves_rows_out(tmp_path, data):
    options = {"k": 8, "pool": 8, "max_similarity": 0.2}
    summary = offline.select(**files(tmp_path, "corpus", "queries"), out=tmp_path / "out", **options)
    assert summary.short > 0
    check_equals(read(tmp_path / "out"), rk.Corpus(data["corpus"]).select(data["queries"], **options))


# --- memory ------------------------------------------------------------------------------------------------------


PEAK = r"""
import re, sys
from ragsys_kernels import offline

offline.select(corpus="corpus.npy", queries=sys.argv[1], candidates=sys.argv[2], out=sys.argv[3], k=2, num_threads=1)
# Not getrusage: its peak begins with the memory of the process that started this one.
print(re.search(r"VmHWM:\s+(\d+) kB", open("/proc/self/status").read()).group(1))
"""


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["npy", "parquet"])
def test_memory_does_not_grow_with_the_queries(tmp_path, suffix):
    """100,000 more queries, 100 MB more of input, may not add 30 MB; one row group, the hardest case."""
    rng = np.random.default_rng(0)
    np.save(tmp_path / "corpus.npy", rng.standard_normal((100, 256)).astype(np.float32))
    peak = {}
    for rows in (20_000, 120_000):
        queries = rng.standard_normal((rows, 256), np.float32)
        candidates = np.broadcast_to(np.arange(8), (rows, 8))
        if suffix == "npy":
            np.save(tmp_path / "queries.npy", queries)
            np.save(tmp_path / "candidates.npy", candidates)
        else:
            pq.write_table(pa.table({"v": vector_lists(queries)}), tmp_path / "queries.parquet", row_group_size=rows)
            lists = pa.FixedSizeListArray.from_arrays(pa.array(candidates.ravel()), 8)
            pq.write_table(pa.table({"c": lists}), tmp_path / "candidates.parquet", row_group_size=rows)
        run = subprocess.run(
            [sys.executable, "-c", PEAK, f"queries.{suffix}", f"candidates.{suffix}", f"out{rows}"],
            cwd=tmp_path, capture_output=True, text=True, check=True,
        )  # fmt: skip
        peak[rows] = int(run.stdout) / 1024
    assert peak[120_000] - peak[20_000] < 30, f"peak memory in MB by number of queries: {peak}"


OF_ONE_RULE = {
    "dpp": {"scale": 0.25},
    "ssd": {"gamma": 0.2, "window": 2},
    "sift": {"noise": 0.5, "min_gain": 0.04},
    "gist": {"eps": 0.5},
    "coverage": {"kind": "cover", "gamma": 0.9, "density": True},
}


@pytest.mark.parametrize("method", rk.METHODS)
def test_every_rule_with_its_options(tmp_path, data, method, command):
    """By the command, with a budget and a ceiling where the rule takes them; options of one rule are refused by name
    where it has none such."""
    costs, own = np.random.default_rng(0).integers(1, 9, N), OF_ONE_RULE.get(method, {})
    table = pa.table({"embedding": vector_lists(data["corpus"], True), "tokens": costs})
    pq.write_table(table, tmp_path / "corpus.parquet")
    given = {**files(tmp_path, "queries"), "corpus": tmp_path / "corpus.parquet", "method": method, "k": 5, "pool": 20}
    limits = {} if method == "gist" else {"budget": 12.0, "max_similarity": 0.4}
    options = {**own, **limits}
    columns = {"cost_column": "tokens"} if limits else {}
    named = [(f"--{n.replace('_', '-')}", x) for n, x in {**given, **options, **columns, "out": "out"}.items()]
    done = command(tmp_path, "select", *(part for n, x in named for part in ((n,) if x is True else (n, x))))
    corpus = rk.Corpus(data["corpus"], costs=costs)
    direct, plain = (corpus.select(data["queries"], 5, method=method, pool=20, **some) for some in (options, limits))
    check_equals(read(tmp_path / "out"), direct)
    assert bool(own) == (not np.array_equal(plain.indices, direct.indices))  # so that each would be missed
    if limits:
        short = int((direct.lengths < 5).sum())
        assert f"{short} got fewer than 5 picks" in done.stdout
    for name, value in list(own.items())[-1:]:
        match = rf"^select: {name} must be left out with method 'vrsd', got {value!r}$"
        check_refused(tmp_path, ValueError, match, **{**given, "method": "vrsd", name: value})
