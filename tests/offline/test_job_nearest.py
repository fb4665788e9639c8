"""A job with ``nearest`` writes which earlier pick each is most similar to, and `show` names it."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_arrays import read

import ragsys_kernels as rk
from ragsys_kernels import offline


def lists(picks):
    return [row[:n].tolist() for row, n in zip(picks.nearest, picks.lengths, strict=True)]


@pytest.mark.parametrize(
    "given", [{}, {"candidates": "candidates.npy"}, {"pool": "certified"}, {"method": "vrsd"}], ids=str
)
def test_the_column_is_what_the_library_says(tmp_path, data, given):
    paths = {name: tmp_path / f"{name}.npy" for name in ("corpus", "queries")}
    options = {**given, **({"candidates": tmp_path / given["candidates"]} if "candidates" in given else {})}
    offline.select(**paths, k=5, out=tmp_path / "out", nearest=True, chunk_size=37, shard_size=90, **options)
    call = {**given, **({"candidates": data["candidates"]} if "candidates" in given else {})}
    expected = rk.Corpus(data["corpus"]).select(data["queries"], 5, nearest=True, **call)
    table = read(tmp_path / "out")
    assert table["nearest"].to_pylist() == lists(expected)
    assert table.schema.field("nearest").type == pa.list_(pa.int32())
    assert json.loads((tmp_path / "out.job" / "_job.json").read_text())["options"]["nearest"] is True
    plain = offline.select(**paths, k=5, out=tmp_path / "plain", **options)
    assert plain.selected == len(expected.lengths)
    assert "nearest" not in read(tmp_path / "plain").column_names


@pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")
@pytest.mark.parametrize("chunk_size", [1, 100])
def test_of_candidates_with_their_vectors(tmp_path, chunk_size):
    rng = np.random.default_rng(2)
    sizes, queries = [5, 0, 1, 9], rng.standard_normal((4, 6), dtype=np.float32)
    vectors = [rng.standard_normal((n, 6), dtype=np.float32) for n in sizes]
    np.save(tmp_path / "queries.npy", queries)
    table = {"id": [list(range(n)) for n in sizes], "vectors": pa.array(
        [each.tolist() for each in vectors], pa.list_(pa.list_(pa.float32(), 6)))}  # fmt: skip
    pq.write_table(pa.table(table), tmp_path / "candidates.parquet")
    offline.select(
        queries=tmp_path / "queries.npy", candidates=tmp_path / "candidates.parquet", candidate_vector_column="vectors",
        k=4, out=tmp_path / "out", nearest=True, chunk_size=chunk_size,
    )  # fmt: skip
    expected = [[]] * 4
    for q in (0, 2, 3):
        picks = rk.mmr(queries[q : q + 1], vectors[q], 4, nearest=True)
        expected[q] = lists(picks)[0]
    assert read(tmp_path / "out")["nearest"].to_pylist() == expected


@pytest.fixture
def picks(tmp_path, data):
    """A finished job over few of the rows, and their texts."""
    np.save(tmp_path / "few.npy", data["corpus"][:30])
    np.save(tmp_path / "two.npy", data["queries"][:2])
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": f"text {i}"}) + "\n" for i in range(30)))
    given = {"corpus": tmp_path / "few.npy", "queries": tmp_path / "two.npy", "k": 4, "pool": 20}
    offline.select(**given, out=tmp_path / "picks", nearest=True)
    offline.select(**given, out=tmp_path / "plain")
    return rk.Corpus(data["corpus"][:30]).select(data["queries"][:2], 4, pool=20, nearest=True)


def test_show_names_the_pick(tmp_path, picks, command):
    expected = [None if place < 0 else place + 1 for row in picks.nearest.tolist() for place in row]
    found = offline.show(picks=tmp_path / "picks", texts=tmp_path / "texts.jsonl")
    assert [pick.nearest for pick in found] == expected
    assert any(expected)
    assert all(pick.nearest is None for pick in offline.show(picks=tmp_path / "plain", texts=tmp_path / "texts.jsonl"))

    def printed(kind, name="picks"):
        return command(tmp_path, "show", tmp_path / name, "--texts", tmp_path / "texts.jsonl", "--format", kind).stdout

    rows = [line.split(" | ") for line in printed("md").splitlines() if line.startswith("| ") and "#" not in line]
    assert [row[3] for row in rows] == ["–" if rank is None else str(rank) for rank in expected]
    assert [json.loads(line)["nearest"] for line in printed("jsonl").splitlines()] == expected
    assert "like #" in printed("md")
    assert "like #" in printed("table")
    assert "like #" not in printed("md", "plain") + printed("table", "plain")
