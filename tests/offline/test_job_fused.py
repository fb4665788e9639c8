"""Several files of candidates: the job selects from what `fuse` makes of them."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_arrays import N, Q, check_equals, read

import ragsys_kernels as rk
from ragsys_kernels import offline
from ragsys_kernels.offline import _options, sources
from ragsys_kernels.selection.request import Request

pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.RelevanceRangeWarning")
RNG = np.random.default_rng(3)
IDS = [f"document {row:03}" for row in RNG.permutation(N)]


@pytest.fixture
def hits(data):
    """Ids (Q, P_i) and scores of three retrievers."""
    ids = [data["candidates"], *(np.stack([RNG.choice(N, n, replace=False) for _ in range(Q)]) for n in (9, 30))]
    ids[1][5] = -1
    return [(each, -np.sort(-RNG.gamma(2, 9, each.shape).astype(np.float32), axis=1)) for each in ids]


def write(tmp_path, hits, name=lambda row: row):
    paths = []
    for i, (ids, scores) in enumerate(hits):
        real = [row >= 0 for row in ids]
        columns = {
            "candidates": [[name(x) for x in row[keep].tolist()] for row, keep in zip(ids, real, strict=True)],
            "score": pa.array([row[keep] for row, keep in zip(scores, real, strict=True)], pa.list_(pa.float32())),
        }
        paths.append(tmp_path / f"hits-{i}.parquet")
        pq.write_table(pa.table(columns), paths[-1], row_group_size=70)
    return paths


def select(tmp_path, **options):
    given = {"corpus": tmp_path / "corpus.npy", "queries": tmp_path / "queries.npy", "k": 5, "out": tmp_path / "out"}
    return offline.select(**{**given, **options})


def expected(data, hits, method="rrf", weights=None, **options):
    found = rk.fuse(hits, method, weights)
    corpus = rk.Corpus(data["corpus"])
    return corpus.select(data["queries"], 5, candidates=found.candidates, relevance=found.relevance, **options)


@pytest.mark.parametrize("chunk_size", [17, 4096])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"fusion": "minmax", "fusion_weights": [0.5, 0.25, 0.25]},
        {"fusion": "zscore", "relevance_scale": "minmax"},
        {"relevance_scale": "minmax"},
    ],
    ids=str,
)
def test_picks_are_those_out_of_what_is_fused(tmp_path, data, hits, options, chunk_size, monkeypatch):
    monkeypatch.setattr(sources.Lists.runs, "__defaults__", (700,))  # cells: some queries at a time
    select(
        tmp_path, candidates=write(tmp_path, hits), relevance_column="score", chunk_size=chunk_size, shard_size=100,
        **options,
    )  # fmt: skip
    call = {"method": options.get("fusion", "rrf"), "weights": options.get("fusion_weights")}
    scale = {"relevance_scale": options.get("relevance_scale", "as-is")}
    check_equals(read(tmp_path / "out"), expected(data, hits, **call, **scale))


def test_arrays_best_first_and_a_command(tmp_path, data, hits, command):
    for i, (ids, _) in enumerate(hits):
        np.save(tmp_path / f"hits-{i}.npy", ids)
    paths = [tmp_path / f"hits-{i}.npy" for i in range(3)]
    unranked = [(ids, None) for ids, _ in hits]
    options = {"corpus": tmp_path / "corpus.npy", "queries": tmp_path / "queries.npy", "k": 5, "out": tmp_path / "out"}
    given = [word for name, value in options.items() for word in (f"--{name}", value)]
    given += [word for path in paths for word in ("--candidates", path)]
    given += [word for weight in (2, 1, 0.5) for word in ("--fusion-weight", weight)]
    assert command(tmp_path, "select", *given).returncode == 0
    check_equals(read(tmp_path / "out"), expected(data, unranked, weights=[2, 1, 0.5]))
    assert select(tmp_path, candidates=paths, fusion_weights=[2, 1, 0.5]).selected == 0  # all is done
    with pytest.raises(ValueError, match=r"fusion_weights \[2.0, 1.0, 0.5\], now none"):
        select(tmp_path, candidates=paths)
    with pytest.raises(ValueError, match="candidates's number of files 3, now 2"):
        select(tmp_path, candidates=paths[:2], fusion_weights=[2, 1])
    hits[1][0][7, 1] = hits[1][0][7, 0]
    np.save(paths[1], hits[1][0])
    assert select(tmp_path, candidates=paths, on_error="skip", overwrite=True).skipped == 1


@pytest.mark.parametrize("unknown", ["error", "skip"])
def test_by_ids_of_the_corpus(tmp_path, data, hits, unknown):
    pq.write_table(pa.table({"vector": list(data["corpus"]), "id": IDS}), tmp_path / "corpus.parquet")
    named = [(np.where((ids == 7) & (unknown == "skip"), N, ids), scores) for ids, scores in hits]
    paths = write(tmp_path, named, [*IDS, "elsewhere"].__getitem__)
    summary = select(
        tmp_path, corpus=tmp_path / "corpus.parquet", candidates=paths, candidate_ids=True, unknown_ids=unknown
    )
    known = [(np.where(ids == N, -1, ids), None) for ids, _ in named]
    check_equals(read(tmp_path / "out"), expected(data, known), ids=IDS)
    assert summary.unknown == sum((ids == N).sum() for ids, _ in named)


def test_bad_queries_follow_on_error(tmp_path, data, hits, monkeypatch):
    monkeypatch.setattr(sources.Lists.runs, "__defaults__", (700,))
    (a, x), (b, y), (c, z) = hits
    b[107, 2] = b[107, 1]
    y[207, 3] = np.nan
    paths = write(tmp_path, hits)
    table = pq.read_table(paths[2])
    short = table["score"].to_pylist()
    short[9] = short[9][1:]
    pq.write_table(table.set_column(1, "score", pa.array(short, pa.list_(pa.float32()))), paths[2])
    options = {"candidates": paths, "relevance_column": "score", "fusion": "minmax", "chunk_size": 50}
    for bad, begin in {107: 90, 9: 8, 207: 120}.items():
        part = slice(begin, bad + 1)
        own = [tmp_path / f"part-{i}.parquet" for i in range(3)]
        for path, whole in zip(own, paths, strict=True):
            pq.write_table(pq.read_table(whole)[part], path)
        np.save(tmp_path / "some.npy", data["queries"][part])
        at = f"row {bad - begin} of .*part-{2 if bad == 9 else 1}.parquet$"
        with pytest.raises(ValueError, match=f"^select: (candidates|relevance) must .* in {at}"):
            select(tmp_path, **{**options, "candidates": own}, queries=tmp_path / "some.npy")
    assert select(tmp_path, **options, on_error="skip").skipped == 3
    errors = read(tmp_path / "out.job" / "_errors-00000.parquet")
    assert dict(zip(errors["query_row"].to_pylist(), errors["reason"].to_pylist(), strict=True)) == {
        107: f"candidates must not repeat an id within a query, got {b[107, 1]} twice",
        9: "relevance must have a number for each of the candidates, got others",
        207: "relevance must be finite, got NaN or inf",
    }
    for ids in (a, b, c):
        ids[[107, 9, 207]] = -1
    check_equals(read(tmp_path / "out"), expected(data, [(a, x), (b, y), (c, z)], "minmax"))


def test_what_is_refused(tmp_path, data, hits):
    paths = write(tmp_path, hits)
    np.save(tmp_path / "few.npy", hits[0][0][:9])
    apart = tmp_path / "apart"
    apart.mkdir()
    paths[2].rename(apart / "hits-2.parquet")
    paths[2] = apart / "hits-2.parquet"
    for message, options in {
        "candidates must be at least one file, got none": {"candidates": []},
        "candidates must have as many rows in each file, got 230 in .* and 9 in .*few.npy": {
            "candidates": [paths[0], tmp_path / "few.npy"]
        },
        "fusion must be one of 'rrf', 'minmax', 'zscore', got 'sum'": {"candidates": paths, "fusion": "sum"},
        "fusion 'minmax' must come with relevance_column, got none": {"candidates": paths, "fusion": "minmax"},
        r"fusion_weights must have shape \(L,\) = \(3,\), got \(2,\)": {"candidates": paths, "fusion_weights": [1, 2]},
        r"fusion_weights must have shape \(L,\) = \(3,\), got \(\)": {"candidates": paths, "fusion_weights": 0.5},
        "fusion_weights must be finite and at least 0, got -1": {"candidates": paths, "fusion_weights": [1, 2, -1]},
        "fusion must come with several files of candidates, got one or none": {"fusion": "minmax"},
        "fusion_weights must come with several files of candidates, got one or none": {
            "candidates": paths[:1], "fusion_weights": [1],
        },
        "candidate_vector_column must come with one file of candidates, got 3": {
            "corpus": None, "candidates": paths, "candidate_vector_column": "v",
        },
        "pool must be left out when candidates are given, got 50": {"candidates": paths, "pool": 50},
        "out must not be an input, lie in one or hold one, got .* and candidates 2 .*hits-2": {
            "candidates": [*paths[:2], apart / "hits-2.parquet"], "out": apart,
        },
    }.items():  # fmt: skip
        with pytest.raises(ValueError, match=f"^select: {message}"):
            select(tmp_path, **options)


def test_paths_hold_in_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = Request("mmr", None, None, 6)
    spec = _options.JobSpec(queries="q.npy", candidates=["a.npy", "s3://b/c.npy"], request=asked).plain().absolute()
    assert spec.candidates == (tmp_path / "a.npy", "s3://b/c.npy")
    assert _options.JobSpec(queries="q.npy", candidates=["a.npy"], request=asked).plain().candidates == "a.npy"
