"""Jobs over the folder of a saved corpus: the same picks as over the files that it was made of."""

import pickle
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_arrays import N, check_refused, files, vector_lists
from jobs import spec_of
from segmented import is_mapped

import ragsys_kernels as rk
from ragsys_kernels import offline
from ragsys_kernels.corpus import segments
from ragsys_kernels.offline._spec import Inputs
from ragsys_kernels.offline._worker import Held, Worker
from ragsys_kernels.offline.sources import id_values

COLUMNS = {"bias_column": "bias", "group_column": "groups", "cost_column": "costs"}
IDS = {"integers": list(range(3 * N, 2 * N, -1)), "strings": [f"d{row:04}" for row in reversed(range(N))]}


@pytest.fixture(params=IDS)
def ids(request, tmp_path, data):
    """Ids of corpus.parquet, which has all columns."""
    columns = {"bias": data["bias"], "groups": data["groups"], "costs": np.arange(N) % 7 + 1}
    table = pa.table({"vector": vector_lists(data["corpus"]), "id": IDS[request.param], **columns})
    pq.write_table(table, tmp_path / "corpus.parquet")
    return IDS[request.param]


def select(tmp_path, corpus, out, **options):
    given = {"queries": tmp_path / "queries.npy", "k": 4, "pool": 50, "shard_size": 100}
    return offline.select(**{**given, "corpus": tmp_path / corpus, "out": tmp_path / out, **options})


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("metric", ["cosine", "dot"])
def test_picks_are_those_out_of_the_files(tmp_path, ids, metric, dtype):
    held = {"metric": metric, "dtype": dtype}
    offline.build_corpus(tmp_path / "corpus.parquet", tmp_path / "saved", **COLUMNS, **held)
    options = {"max_per_group": 1, "budget": 9.0, "lambda_b": 0.8, **files(tmp_path, "query_groups")}
    select(tmp_path, "corpus.parquet", "out", **COLUMNS, **held, **options)
    select(tmp_path, "saved", "other", **options)
    assert pq.read_table(tmp_path / "other").equals(pq.read_table(tmp_path / "out"))
    assert offline.verify(tmp_path / "other") == []
    assert select(tmp_path, "saved", "other", **held, **options).selected == 0


def test_candidates_are_found_by_its_ids(tmp_path, data, ids):
    offline.build_corpus(tmp_path / "corpus.parquet", tmp_path / "saved")
    lists = [[ids[row] for row in rows if row >= 0] for rows in data["candidates"].tolist()]
    pq.write_table(pa.table({"candidates": lists}), tmp_path / "ids.parquet")
    options = {"pool": None, "candidates": tmp_path / "ids.parquet", "candidate_ids": True}
    select(tmp_path, "corpus.parquet", "out", **options)
    select(tmp_path, "saved", "other", **options)
    assert pq.read_table(tmp_path / "other").equals(pq.read_table(tmp_path / "out"))


def test_what_it_has_is_no_option(tmp_path, data):
    """Groups, costs and bias that a job has no use for are not refused: nobody asked for them."""
    columns = {"bias": data["bias"], "groups": data["groups"], "costs": np.ones(N)}
    rk.Corpus(data["corpus"], **columns).save(tmp_path / "saved")
    select(tmp_path, "saved", "out", method="vrsd")
    plain = rk.Corpus(data["corpus"]).select(data["queries"], 4, pool=50, method="vrsd")
    assert pq.read_table(tmp_path / "out")["ids"].to_pylist() == plain.indices.tolist()
    rk.Corpus(data["corpus"]).save(tmp_path / "bare")
    for options in ({"max_per_group": 2}, {"budget": 3.0}, files(tmp_path, "query_groups")):
        (name,) = options
        match = "costs and budget must come together" if name == "budget" else f"{name} must come with groups"
        check_refused(tmp_path, ValueError, match, corpus=tmp_path / "bare", **options)


def test_it_is_mapped(tmp_path, data):
    rk.Corpus(data["corpus"]).save(tmp_path / "saved")
    spec = spec_of(corpus=tmp_path / "saved", queries=tmp_path / "queries.npy")
    inputs = Inputs.open(spec)
    held = Held.of(spec, inputs).corpus
    assert held is inputs.saved
    assert is_mapped(held.data)
    assert is_mapped(held.codes)


@pytest.mark.parametrize(("corpus", "metric"), [("saved", None), ("corpus.npy", "cosine"), ("corpus.npy", "dot")])
def test_processes_share_its_arrays(tmp_path, data, corpus, metric):
    """As Ray's object store keeps them: what pickle puts out of band is there once for all processes of a machine."""
    made = rk.Corpus(data["corpus"], bias=data["bias"], groups=data["groups"], ids=IDS["strings"])
    made.save(tmp_path / "saved")
    spec = spec_of(corpus=tmp_path / corpus, queries=tmp_path / "queries.npy", metric=metric)
    held, shared = Held.of(spec, Inputs.open(spec)), []
    copied = pickle.dumps(held, protocol=5, buffer_callback=shared.append)
    assert len(copied) < 8_000 < data["corpus"].nbytes
    assert sum(buffer.raw().nbytes for buffer in shared) >= data["corpus"].nbytes
    if spec.corpus.name == "saved":  # its ids are Arrow's in the memory of the corpus
        text = held.corpus.ids.arrays()["id_text"]
        assert [buffer.raw().nbytes for buffer in shared].count(text.nbytes) == 1
        ids = id_values(held.corpus.ids)
        assert ids.buffers()[2].address == text.ctypes.data
        assert ids.to_pylist() == IDS["strings"]
    again = pickle.loads(copied, buffers=shared).corpus
    assert again.data.tobytes() == held.corpus.data.tobytes()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"dtype": "int8"}, "dtype must be that of the saved corpus .*saved, 'float16', or left out, got 'int8'"),
        ({"metric": "cosine"}, "metric must be that of the saved corpus .*saved, 'dot', or left out, got 'cosine'"),
        ({"id_column": "key"}, "id_column must be left out with the saved corpus .*saved, got key"),
        ({"vector_column": "v"}, "vector_column must be left out with the saved corpus"),
        ({"bias": "bias.npy"}, "bias must be left out with the saved corpus"),
        ({"group_column": "groups"}, "group_column must be left out with the saved corpus"),
        ({"costs": "costs.npy"}, "costs must be left out with the saved corpus"),
    ],
    ids=str,
)
def test_options_that_contradict_it_are_refused(tmp_path, data, options, match):
    rk.Corpus(data["corpus"], metric="dot", dtype="float16").save(tmp_path / "saved")
    check_refused(tmp_path, ValueError, f"^select: {match}", corpus=tmp_path / "saved", **options)


@pytest.mark.parametrize("fingerprint", ["sampled", "full"])
def test_another_corpus_in_its_place_is_another_input(tmp_path, data, fingerprint):
    rk.Corpus(data["corpus"], bias=data["bias"]).save(tmp_path / "saved")
    select(tmp_path, "saved", "out", fingerprint=fingerprint)
    shutil.copytree(tmp_path / "saved", tmp_path / "copy")
    assert select(tmp_path, "copy", "out").selected == 0
    rk.Corpus(data["corpus"], bias=-data["bias"]).save(tmp_path / "saved", overwrite=True)
    with pytest.raises(ValueError, match=r"sha256 of corpus bias\.npy"):
        select(tmp_path, "saved", "out")


def test_a_damaged_folder_is_named(tmp_path, data):
    rk.Corpus(data["corpus"]).save(tmp_path / "saved")
    (tmp_path / "saved" / "codes.npy").unlink()
    match = "^select: corpus must be usable, got .*saved: .*codes.npy is missing"
    check_refused(tmp_path, ValueError, match, corpus=tmp_path / "saved")
    (tmp_path / "saved" / "corpus.json").unlink()
    check_refused(tmp_path, ValueError, "a folder of Parquet files and of nothing else", corpus=tmp_path / "saved")


def test_a_flipped_bit_is_found_before_the_job_begins(tmp_path, data, monkeypatch):
    monkeypatch.setattr("ragsys_kernels.corpus.folder._SMALL", 1000)  # beyond which a sample of the rows is read
    rk.Corpus(np.repeat(data["corpus"], 20, axis=0)).save(tmp_path / "saved")
    file = tmp_path / "saved" / "data.npy"
    content = bytearray(file.read_bytes())
    content[len(content) // 2 + 50] ^= 1
    file.write_bytes(content)
    match = r"^select: corpus must be usable, got .*saved: Corpus: path must .*: data\.npy is damaged: its checksum"
    with pytest.raises(ValueError, match=match):
        select(tmp_path, "saved", "out")
    assert not (tmp_path / "out").exists()
    assert select(tmp_path, "saved", "out", verify=False).complete
    with pytest.raises(TypeError, match=r"^select: verify must be True or False, got 1"):
        select(tmp_path, "saved", "out", verify=1)


def test_a_saved_corpus_is_verified_once(tmp_path, data, monkeypatch):
    rk.Corpus(data["corpus"]).save(tmp_path / "saved")
    read, load = [], segments.load
    monkeypatch.setattr(segments, "load", lambda path, verify, *more: read.append(verify) or load(path, verify, *more))
    spec = spec_of(corpus=tmp_path / "saved", queries=tmp_path / "queries.npy")
    Inputs.open(spec, verify=True)
    Worker(spec)  # as another process begins
    assert read == [True, False]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rule", [{}, {"method": "vrsd"}, {"pool": "certified"}, {"max_per_group": 1}])
def test_memory_changes_no_byte(tmp_path, ids, rule):
    offline.build_corpus(tmp_path / "corpus.parquet", tmp_path / "saved", **COLUMNS)
    select(tmp_path, "saved", "out", **rule)
    select(tmp_path, "saved", "other", memory="64K", **rule)
    parts = sorted(each.name for each in (tmp_path / "out").glob("part-*"))
    assert parts
    for name in parts:
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()
    assert select(tmp_path, "saved", "out", memory=1 << 20, **rule).selected == 0  # it is the same job


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"memory": "2X"}, "memory must be a number of bytes"),
        ({"memory": 0}, "memory must be at least 1"),
        ({"memory": "1G", "pool": "all"}, "memory must be left out with pool 'all': give pool a number of rows, got"),
        ({"memory": "1G", "engine": "ray"}, "memory must come with a corpus in segments"),
        ({"memory": "1G", "corpus": "corpus.npy"}, "memory must come with a corpus of corpus build"),
    ],
)
def test_memory_that_cannot_be_held_is_refused(tmp_path, data, options, match):
    rk.Corpus(data["corpus"]).save(tmp_path / "saved")
    corpus = tmp_path / options.pop("corpus", "saved")
    check_refused(tmp_path, ValueError, match, corpus=corpus, **options)
