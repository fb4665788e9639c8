"""The job on Ray: the local engine's bytes, whatever happens to its workers; what cannot run is refused."""

import json
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ragsys_kernels as rk
from ragsys_kernels import offline
from ragsys_kernels.offline.ray import engine as ray_engine
from ragsys_kernels.offline.ray import selector as ray_selector

N, Q, D = 4_000, 2_000, 16

# One session of Ray for all that needs one, in a process of its own: its start takes most of the time.
SESSION = r"""
import json, logging, os, pathlib, signal, sys, threading, time
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
import numpy as np, ray
from ragsys_kernels import offline
from ragsys_kernels.offline.ray import engine as ray_engine

found, me, start = {"seconds": []}, os.getpid(), time.time()
clock = lambda: found["seconds"].append(round(time.time() - start, 1))
signal.signal(signal.SIGTERM, lambda *_: found.update(signalled=True))
with ray_engine._signals_kept():
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
os.kill(me, signal.SIGTERM)
clock()
ray.data.DataContext.get_current().enable_progress_bars = False  # of the pipeline
job = {"corpus": "corpus.npy", "queries": "queries.npy", "k": 5, "pool": "all", "shard_size": 100, "num_threads": 1}

# 1. Begun by the local engine, gone on with by two workers on Ray, of which one is killed at work on a shard.
offline.select(**job, out="local")
shards = []
offline.select(**job, out="ray", stop=lambda: shards.append(0) or len(shards) > 2)

def writers():
    for pid in os.listdir("/proc"):
        if pid.isdigit() and int(pid) != me:
            try:
                links = [os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")]
            except OSError:
                continue
            if any(os.path.abspath("ray") in link and link.endswith(".partial") for link in links):
                yield int(pid)

def kill_one():
    while True:
        for pid in writers():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:  # it has ended since
                continue
            found["killed"] = pid
            return

done = []
threading.Thread(target=kill_one, daemon=True).start()
summary = offline.select(**job, out="ray", engine="ray", workers=2, progress=lambda *counts: done.append(counts))
found.update(selected=summary.selected, complete=summary.complete, text=str(summary), progress=done)
content = lambda folder: {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()}
found["same"] = content("local") == content("ray")
found["verified"] = offline.verify("ray")

clock()
# 2. Refused at once.
def refused(**options):
    try:
        offline.select(**{**job, "out": "new", "engine": "ray", **options})
    except Exception as error:
        return f"{type(error).__name__}: {error}"

found["starving"] = [refused(workers=3), refused(workers=2, cpus_per_worker=1.5), refused(device="cuda")]
found["address"] = refused(ray_address="auto")
found["bad row"] = refused(queries="bad.npy", workers=1)

clock()
# 3. In a pipeline of one's own.
queries = [{"name": f"q{row}", "v": row_vector} for row, row_vector in enumerate(np.load("queries.npy")[:40])]
Selector = offline.selector_for_ray("corpus.npy", query_column="v", k=3, pool=20)
picks = ray.data.from_items(queries, override_num_blocks=2).map_batches(
    Selector, batch_size=15, num_cpus=1, compute=ray.data.ActorPoolStrategy(size=1)).materialize()
found["schema"] = {name: str(kind) for name, kind in zip(picks.schema().names, picks.schema().types)}
found["picks"] = [{name: value for name, value in row.items() if name != "v"} for row in picks.iter_rows()]
clock()
ray.shutdown()
clock()
json.dump(found, open("found.json", "w"))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    pytest.importorskip("ray.data")
    folder = tmp_path_factory.mktemp("ray")
    rng = np.random.default_rng(0)
    np.save(folder / "corpus.npy", rng.standard_normal((N, D), np.float32))
    queries = rng.standard_normal((Q, D), np.float32)
    np.save(folder / "queries.npy", queries)
    queries[1234, 3] = np.nan
    np.save(folder / "bad.npy", queries)
    # A pipeline that starves waits for ever.
    run = subprocess.run([sys.executable, "-c", SESSION], cwd=folder, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads((folder / "found.json").read_text()) | {"folder": folder}


@pytest.mark.slow
def test_killed_worker_changes_nothing(found):
    """Nor does the engine that the job began on."""
    assert found["killed"]
    assert found["selected"] == Q - 200
    assert found["complete"]
    assert found["same"]
    assert found["verified"] == []
    assert found["progress"][0] == [200, Q]
    assert [row - before for (before, _), (row, _) in zip(found["progress"], found["progress"][1:], strict=False)] == [
        100
    ] * 18
    assert "on Ray" in found["text"]


@pytest.mark.slow
def test_workers_that_would_starve_are_refused(found):
    room = r"ValueError: select: workers must be at most {}, for which 2 CPUs and 0 GPUs in 1 nodes have room, got {}"
    assert found["starving"] == [
        room.format(2, 3) + " with 1 CPUs and 0 GPUs each",
        room.format(1, 2) + " with 1.5 CPUs and 0 GPUs each",
        room.format(0, 0) + " with 1 CPUs and 1 GPUs each",
    ]
    assert "ray_address must be left out where Ray is initialised, got 'auto'" in found["address"]


@pytest.mark.slow
def test_error_of_a_worker_is_the_job_s(found):
    bad = found["folder"] / "bad.npy"
    assert found["bad row"] == f"ValueError: select: queries must be finite, got NaN or inf in row 1234 of {bad}"


@pytest.mark.slow
def test_signals_are_the_caller_s(found):
    """Ray's own handler of SIGTERM would have ended the process."""
    assert found["signalled"]


@pytest.mark.slow
def test_selector_in_a_pipeline(found):
    folder = found["folder"]
    direct = rk.Corpus(np.load(folder / "corpus.npy")).select(np.load(folder / "queries.npy")[:40], 3, pool=20)
    picks = {row["name"]: row for row in found["picks"]}
    assert len(picks) == 40
    for row in range(40):
        assert picks[f"q{row}"]["ids"] == direct.indices[row].tolist()
        assert picks[f"q{row}"]["scores"] == direct.scores[row].tolist()
    lists = {"ids": "list<item: int64>"} | dict.fromkeys(("scores", "relevance", "redundancy"), "list<item: double>")
    assert lists.items() <= found["schema"].items()


@pytest.mark.slow
def test_corpus_over_nodes_survives_them(tmp_path):
    """One kill of a holder, a worker and a node; `make fuzz` has ten of each."""
    pytest.importorskip("ray.data")
    script = Path(__file__).parents[1] / "fuzz" / "killed_cluster.py"
    run = subprocess.run([sys.executable, script, tmp_path, "1"], capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr[-3000:]
    found = json.loads(run.stdout.splitlines()[-1])
    assert [name for name, _ in found["killed"]] == ["SegmentHolder", "ShardWriter", "node"]
    shards = [made for _, made in found["killed"]]
    assert shards == sorted(set(shards))
    assert shards[-1] < found["shards"] == 22
    assert found["complete"]
    assert found["same"]
    assert found["same in a pipeline"]


# --- without Ray -------------------------------------------------------------------------------------------------


@pytest.fixture
def selector(monkeypatch):
    """`selector_for_ray`, whose object store is this process."""
    store = SimpleNamespace(put=lambda value: value, get=lambda value: value)
    monkeypatch.setattr(ray_selector, "import_ray", lambda op: store)
    return offline.selector_for_ray


def objects(rows):
    column = np.empty(len(rows), object)
    column[:] = rows
    return column


@pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")
def test_selector_takes_columns_as_ray_gives_them(tmp_path, selector):
    rng = np.random.default_rng(1)
    rows, queries = rng.standard_normal((50, 8), np.float32), rng.standard_normal((6, 8), np.float32)
    groups, candidates = rng.integers(0, 4, 50), [rng.permutation(50)[: 5 + row] for row in range(6)]
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), 8)
    bias = rng.standard_normal(50).astype(np.float32)
    pq.write_table(
        pa.table({"id": [f"d{row}" for row in range(50)], "v": vectors, "b": bias, "g": groups}), tmp_path / "c.parquet"
    )
    made = selector(
        tmp_path / "c.parquet", bias_column="b", group_column="g", query_column="q", query_group_column="own",
        candidate_column="c", k=7, lambda_d=0.6,
    )()  # fmt: skip
    batch = {"q": queries, "own": groups[:6], "c": objects(candidates), "text": objects(["x"] * 6)}
    padded = np.stack([np.pad(row, (0, 10 - len(row)), constant_values=-1) for row in candidates])
    expected = rk.Corpus(rows, bias=bias, groups=groups).select(
        queries, 7, candidates=padded, query_groups=groups[:6], lambda_d=0.6
    )
    assert expected.lengths.min() < 7
    for given in (batch, {**batch, "q": objects(list(queries)), "c": padded}, {**batch, "q": queries.astype(float)}):
        found = made(given)
        assert list(found) == ["q", "own", "c", "text", "ids", "scores", "relevance", "redundancy"]
        for row, length in enumerate(expected.lengths):
            assert found["ids"][row] == [f"d{pick}" for pick in expected.indices[row, :length]]
            assert found["redundancy"][row] == expected.redundancy[row, :length].tolist()
    assert batch.keys() == {"q", "own", "c", "text"}


def test_selector_s_files_have_rows_and_an_id_for_each(tmp_path, selector):
    save_file = pytest.importorskip("safetensors.numpy").save_file
    rows = np.eye(5, dtype=np.float32)
    save_file({"v": rows, "id": np.arange(5) * 2}, tmp_path / "c.safetensors")
    assert selector(tmp_path / "c.safetensors", k=1, pool=4)()({"embedding": rows[2:3]})["ids"].tolist() == [[4]]
    save_file({"v": rows, "id": np.arange(6)}, tmp_path / "c.safetensors")
    with pytest.raises(
        ValueError, match=r"^selector_for_ray: ids must have one row for each of the 5 .*, got 6 in .*c\.safetensors"
    ):
        selector(tmp_path / "c.safetensors", k=1, pool=4)
    pq.write_table(
        pa.table({"id": pa.array([], pa.int64()), "v": pa.array([], pa.list_(pa.float32(), 8))}), tmp_path / "c.parquet"
    )
    with pytest.raises(ValueError, match="corpus must be usable"):
        selector(tmp_path / "c.parquet")


def test_engine_ends_before_the_folder_is_cleared(tmp_path, monkeypatch):
    """Its other workers may put a shard in place after the first error, until it ends."""
    np.save(tmp_path / "x.npy", np.eye(8, dtype=np.float32))

    @contextmanager
    def running(spec, inputs, options):
        def records(indices, job, advance):
            raise ValueError("a bad row")
            yield

        try:
            yield records
        finally:
            (tmp_path / "out" / "part-00001.parquet").write_bytes(b"of another worker")

    monkeypatch.setattr(ray_engine, "running", running)
    with pytest.raises(ValueError, match="a bad row"):
        offline.select(
            corpus=tmp_path / "x.npy", queries=tmp_path / "x.npy", out=tmp_path / "out", engine="ray", shard_size=2
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("ids", [range(90, 85, -1), ["a", "b", "c", "d", "e"]], ids=["integers", "strings"])
def test_selector_takes_a_saved_corpus_and_gives_its_ids(tmp_path, selector, ids):
    corpus = rk.Corpus(np.eye(5, dtype=np.float32), ids=list(ids))
    corpus.save(tmp_path / "saved")
    queries = np.eye(5, dtype=np.float32)[:2] + np.float32([0, 0, 0.1, 0, 0])
    expected = [[ids[0], ids[2]], [ids[1], ids[2]]]
    for given in (corpus, tmp_path / "saved", f"file://{tmp_path}/saved"):
        assert selector(given, k=2, pool=4, lambda_d=0.9)()({"embedding": queries})["ids"].tolist() == expected
    with pytest.raises(
        ValueError, match=r"metric must be that of the saved corpus .*, 'cosine', or left out, got 'dot'"
    ):
        selector(tmp_path / "saved", metric="dot")
    with pytest.raises(ValueError, match="bias_column must be left out with the saved corpus"):
        selector(tmp_path / "saved", bias_column="b")


@pytest.mark.parametrize("ids", [range(90, 50, -1), [f"d{row}" for row in range(40)]], ids=["integers", "strings"])
def test_selector_finds_candidates_by_ids(tmp_path, selector, ids):
    rng = np.random.default_rng(3)
    rows, queries = rng.standard_normal((40, 8), np.float32), rng.standard_normal((4, 8), np.float32)
    corpus = rk.Corpus(rows, ids=list(ids))
    corpus.save(tmp_path / "saved")
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), 8)
    pq.write_table(pa.table({"id": list(ids), "v": vectors}), tmp_path / "c.parquet")
    pools = [rng.permutation(40)[: 9 - query] for query in range(4)]
    padded = np.stack([np.pad(pool, (0, query), constant_values=-1) for query, pool in enumerate(pools)])
    expected = [[ids[row] for row in picks] for picks in corpus.select(queries, 3, candidates=padded).indices]
    lists = [[ids[row] for row in pool] for pool in pools]
    for given in (corpus, tmp_path / "saved", tmp_path / "c.parquet"):
        made = selector(given, candidate_column="c", candidate_ids=True, k=3)()
        for column in (objects(lists), objects([np.array(each) for each in lists])):
            assert made({"embedding": queries, "c": column})["ids"].tolist() == expected
        match = "selector_for_ray: c must be lists of ids of the corpus, got for query 1: .* at position 2"
        with pytest.raises(ValueError, match=match):
            made({"embedding": queries[:2], "c": objects([lists[0], [*lists[1][:2], ids[0] * 2]])})
    bare = {"corpus": rk.Corpus(rows), "candidate_column": "c"}
    for options, got in (({"corpus": corpus}, "None and "), (bare, r"'c' and Ids\(N=40, kind='row'\)")):
        match = f"candidate_ids must come with candidate_column and ids of the corpus, got column {got}"
        with pytest.raises(ValueError, match=match):
            selector(**options, candidate_ids=True)


def test_selector_has_budgets_ceilings_and_options_of_rules(tmp_path, selector):
    rng = np.random.default_rng(2)
    rows, queries = rng.standard_normal((60, 8), np.float32), rng.standard_normal((9, 8), np.float32)
    costs = rng.integers(1, 9, 60)
    np.save(tmp_path / "rows.npy", rows)
    np.save(tmp_path / "costs.npy", costs)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), 8)
    pq.write_table(pa.table({"v": vectors, "tokens": costs}), tmp_path / "c.parquet")
    corpus = rk.Corpus(rows, costs=costs)
    for method, options in (
        ("mmr", {"budget": 11.0, "max_similarity": 0.3}),
        ("dpp", {"budget": 11.0, "scale": 0.25}),
        ("ssd", {"gamma": 0.2, "window": 2, "max_similarity": 0.3}),
        ("sift", {"noise": 0.5, "min_gain": 0.04}),
        ("coverage", {"kind": "cover", "gamma": 0.9, "density": True, "budget": 11.0}),
    ):
        direct = corpus.select(queries, 6, method=method, pool=30, **options)
        expected = [row[:length].tolist() for row, length in zip(direct.indices, direct.lengths, strict=True)]
        for given in (
            {"corpus": corpus},
            {"corpus": tmp_path / "rows.npy", "costs": tmp_path / "costs.npy"},
            {"corpus": tmp_path / "c.parquet", "cost_column": "tokens"},
        ):
            made = selector(**given, k=6, method=method, pool=30, **options)()
            assert made({"embedding": queries})["ids"].tolist() == expected, (method, list(given))


def test_selector_takes_what_select_takes(tmp_path, selector):
    """Scores of candidates, the whole corpus by name, binary rows."""
    rng = np.random.default_rng(3)
    rows, queries = rng.standard_normal((60, 16), np.float32), rng.standard_normal((5, 16), np.float32)
    np.save(tmp_path / "rows.npy", rows)
    pools = np.stack([rng.permutation(60)[:12] for _ in range(5)])
    scores = 30 * rng.random((5, 12), np.float32)
    pools[1, 9:] = -1
    corpus = rk.Corpus(rows)
    for scale in ("minmax", "rank"):
        made = selector(corpus, k=4, candidate_column="c", relevance_column="r", relevance_scale=scale)()
        expected = corpus.select(queries, 4, candidates=pools, relevance=scores, relevance_scale=scale)
        cut = [9 if q == 1 else 12 for q in range(5)]
        lists = [objects([list(row[:n]) for row, n in zip(x, cut, strict=True)]) for x in (pools, scores)]
        for c, r in ((pools, scores), lists):
            found = made({"embedding": queries, "c": c, "r": r})
            assert found["ids"].tolist() == expected.indices.tolist()
            assert found["relevance"].tolist() == expected.relevance.tolist()
    with pytest.raises(ValueError, match=r"^selector_for_ray: r must have a number for each of the candidates"):
        made({"embedding": queries, "c": lists[0], "r": objects([*lists[1][:4], [1.0]])})
    for pool in ("all", "certified"):
        found = selector(corpus, k=4, pool=pool)()({"embedding": queries})
        assert found["ids"].tolist() == corpus.select(queries, 4, pool=None).indices.tolist()
    found = selector(tmp_path / "rows.npy", dtype="binary", k=4, pool=20)()({"embedding": queries})
    assert found["ids"].tolist() == rk.Corpus(rows, dtype="binary").select(queries, 4, pool=20).indices.tolist()
    for given, rule in (
        ({"relevance_scale": "rank"}, "relevance_scale must come with relevance_column, got 'rank' alone"),
        ({"relevance_scale": "x", "relevance_column": "r", "candidate_column": "c"}, "relevance_scale must be one of"),
        ({"relevance_column": "r"}, "relevance_column must come with candidate_column, got 'r' alone"),
        ({"method": "nope"}, "method must be one of 'mmr'"),
    ):
        with pytest.raises(ValueError, match=f"^selector_for_ray: {rule}"):
            selector(corpus, **given)
    with pytest.raises(TypeError, match=r"^selector_for_ray: lambda_d must be one value for all queries"):
        selector(corpus, lambda_d=np.ones(2))


def test_selector_refuses(tmp_path, selector):
    corpus = rk.Corpus(np.eye(5, dtype=np.float32))
    for options, match in (
        ({"metric": "dot"}, "selector_for_ray: metric must be left out with a Corpus, got 'dot'"),
        ({"k": 0}, r"\bk must"),
        ({"lambda_d": 3}, "lambda_d must"),
        ({"budget": 3.0}, "budget must"),
        ({"costs": "x.npy"}, "selector_for_ray: costs must be left out with a Corpus, got 'x.npy'"),
        ({"method": "mmr", "gamma": 0.5}, "gamma must be left out with method 'mmr', got 0.5"),
        ({"query_group_column": "g"}, "groups"),
    ):
        with pytest.raises(ValueError, match=match):
            selector(corpus, **options)
    made = selector(corpus, k=2, pool=4)()
    one = np.ones((1, 5), np.float32)
    for batch, match in (
        ({"v": one}, r"selector_for_ray: batches must have a column 'embedding', got \['v'\]"),
        ({"embedding": one, "ids": one}, r"must not have the columns of the result, got \['ids'\]"),
        ({"embedding": objects([np.ones(5), np.ones(4)])}, "embedding must have vectors of one length"),
    ):
        with pytest.raises(ValueError, match=match):
            made(batch)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"engine": "dask"}, "select: engine must be one of 'local', 'ray', got 'dask'"),
        ({"workers": 2}, "select: workers must come with engine 'ray', got 2 alone"),
        ({"ray_address": "auto"}, "select: ray_address must come with engine 'ray', got 'auto' alone"),
        ({"ray_timeout": 9}, "select: ray_timeout must come with engine 'ray', got 9 alone"),
        ({"engine": "ray", "ray_timeout": 0}, "select: ray_timeout must be above 0 seconds, got 0"),
        ({"engine": "ray", "cpus_per_holder": 2}, "select: cpus_per_holder must come with memory, got 2 alone"),
        (
            {"engine": "ray", "cpus_per_holder": -1, "memory": 9},
            "select: cpus_per_holder must not be negative, got -1",
        ),
        ({"engine": "ray", "workers": 0}, "select: workers must be at least 1, got 0"),
        ({"engine": "ray", "cpus_per_worker": 0}, "select: cpus_per_worker must be above 0, got 0"),
        ({"engine": "ray", "gpus_per_worker": 1}, "select: gpus_per_worker must come with a device, got 1 alone"),
        ({"engine": "ray", "gpus_per_worker": -1, "device": "cuda"}, "select: gpus_per_worker must not be .*, got -1"),
    ],
)
def test_options_are_refused(tmp_path, options, match):
    np.save(tmp_path / "x.npy", np.eye(8, dtype=np.float32))
    with pytest.raises(ValueError, match=f"^{match}$"):
        offline.select(corpus=tmp_path / "x.npy", queries=tmp_path / "x.npy", out=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_session_of_its_own(monkeypatch):
    """Ray is started, and stopped after an error too; it leaves signals as they were."""
    calls = []

    def init(address, **options):
        calls.append(address)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    ray = SimpleNamespace(
        is_initialized=lambda: False,
        init=init,
        shutdown=lambda: calls.append("shutdown"),
    )
    before = signal.getsignal(signal.SIGTERM)

    def used():
        with ray_engine._session(ray, "here"):
            assert signal.getsignal(signal.SIGTERM) is before
            raise KeyError

    with pytest.raises(KeyError):
        used()
    assert calls == ["here", "shutdown"]

    def fail(address, **options):
        raise ConnectionError("nobody there")

    ray.init = fail
    with (
        pytest.raises(ValueError, match="ray_address must be that of a running cluster, got 'auto': nobody there"),
        ray_engine._session(ray, "auto"),
    ):
        pass


def test_missing_ray(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", np.eye(8, dtype=np.float32))
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModuleNotFoundError, match=r"^select needs ray: pip install '.+\[ray\]'$"):
        offline.select(corpus=tmp_path / "x.npy", queries=tmp_path / "x.npy", out=tmp_path / "out", engine="ray")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ModuleNotFoundError, match=r"^selector_for_ray needs ray: pip install '.+\[ray\]'$"):
        offline.selector_for_ray(tmp_path / "x.npy")
