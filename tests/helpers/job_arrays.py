"""Arrays of a small job, their files, and what a job writes of them or refuses to write."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ragsys_kernels import offline

N, Q, D = 300, 230, 12


def write_arrays(folder):
    """Vectors, candidates, bias and groups as arrays, and the same as .npy files in the folder."""
    rng = np.random.default_rng(0)
    arrays = {
        "corpus": rng.standard_normal((N, D)).astype(np.float32),
        "queries": rng.standard_normal((Q, D)).astype(np.float32),
        "candidates": np.stack([rng.choice(N, 40, replace=False) for _ in range(Q)]),
        "bias": rng.standard_normal(N).astype(np.float32),
        "groups": rng.integers(0, 20, N),
        "query_groups": rng.integers(0, 20, Q),
    }
    arrays["candidates"][::3, 25:] = -1
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return arrays


def files(folder, *names):
    return {name: folder / f"{name}.npy" for name in names}


def vector_lists(array, fixed=True):
    if fixed:
        return pa.FixedSizeListArray.from_arrays(pa.array(array.ravel()), array.shape[1])
    return pa.array(array.tolist(), pa.list_(pa.float32()))


def read(out):
    return pq.read_table(out)


def check_equals(table, picks, *, query_ids=None, ids=None):
    """The table holds exactly the picks of a direct call, without their padding."""
    expected_queries = list(range(len(picks.lengths))) if query_ids is None else query_ids
    assert table["query_id"].to_pylist() == expected_queries
    for row, length in enumerate(picks.lengths):
        expected = picks.indices[row, :length].tolist()
        assert table["ids"][row].as_py() == (expected if ids is None else [ids[i] for i in expected])
    real = np.arange(picks.indices.shape[1]) < picks.lengths[:, None]
    for name in ("scores", "relevance", "redundancy"):
        np.testing.assert_array_equal(table[name].combine_chunks().flatten().to_numpy(), getattr(picks, name)[real])
    if "certified" in table.column_names:
        assert table["certified"].to_pylist() == picks.certified.tolist()


def snapshot(folder):
    return sorted(
        (str(path.relative_to(folder)), path.read_bytes() if path.is_file() else None) for path in folder.rglob("*")
    )


def check_refused(tmp_path, kind, match, **options):
    """The job raises one clear error before its first shard, and no file appears, disappears or changes."""
    before = snapshot(tmp_path)
    with pytest.raises(kind, match=match or None) as caught:
        offline.select(**{**files(tmp_path, "corpus", "queries"), "out": tmp_path / "made" / "out", **options})
    assert snapshot(tmp_path) == before
    return str(caught.value)
