"""MMR out of a coded corpus on Triton: the bits of the kernel that knows no codes, and few rows read.

``TRITON_INTERPRET=1 pytest tests/gpu/test_triton_coded.py`` runs the tests here, without the variable they run in a
process that has it.
"""

import interpreted
import numpy as np
import pytest
from traffic import counted

import ragsys_kernels as rk
from ragsys_kernels import _arrays
from ragsys_kernels.corpus import torch_rows
from ragsys_kernels.selection.codes import swapped

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

if interpreted.HERE:
    import triton.language as tl

    from ragsys_kernels.selection import triton_coded, triton_gram

pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")


@pytest.fixture(autouse=interpreted.HERE)
def no_pool_is_small(monkeypatch):
    monkeypatch.setattr(triton_gram, "GRAM_SLOTS", 0)
    monkeypatch.setattr(triton_coded, "chunks", lambda n, *_: [(q, min(2, n - q)) for q in range(0, n, 2)])


def coded(rows, **options):
    """A corpus with the codes of a device, whichever backends are here."""
    corpus = rk.Corpus(rows, **options)
    host = _arrays.tensors(corpus)
    codes, error = torch_rows.encode(host.data, corpus.dtype, corpus.metric, host.scales)
    return _arrays.changed(corpus, codes=swapped(codes.numpy(), corpus.dims), code_error=error)


def pools(seed, N, P, D, spread=0.8, num_queries=1):
    """Rows in clusters, queries, and pools best first."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((N // 12, D))
    rows = (centres[rng.integers(0, len(centres), N)] + spread * rng.standard_normal((N, D))).astype(np.float32)
    queries = (centres[:num_queries] + rng.standard_normal((num_queries, D))).astype(np.float32)
    cosines = queries @ (rows / np.linalg.norm(rows, axis=1, keepdims=True)).T
    return rows, queries, np.argsort(-cosines, 1, kind="stable")[:, :P]


def same_without_codes(queries, corpus, k, **options):
    """The picks, with all bits those of the kernel without codes, and the reference's own."""
    plain = _arrays.changed(corpus, codes=None)
    found, expected = (rk.mmr(queries, rows, k, **options, backend="triton") for rows in (corpus, plain))
    for name, x, y in zip(rk.Selection._fields, found, expected, strict=True):
        np.testing.assert_array_equal(x, y, err_msg=name)
    reference = rk.mmr(queries, plain, k, **options, backend="reference")
    np.testing.assert_array_equal(found.indices, reference.indices)
    np.testing.assert_allclose(found.scores, reference.scores, atol=1e-5)
    return found


OPTIONS = {
    "float16": {"order": "any", "lambda_d": 0.4},
    "bfloat16": {"lambda_d": 0.1, "bias": True},
    "given": {"relevance": True, "initial": np.array([[5, -1]])},
    "all": {
        "order": "any",
        "bias": True,
        "groups": True,
        "initial": np.array([[3, 50], [-1, 4], [-1, -1]]),
        "k": np.array([3, 1, 2]),
        "lambda_d": np.array([0.5, 1.0, 0.0]),
        "lambda_b": np.array([0.9, 0.0, 1.0]),
    },
}


@pytest.mark.parametrize(("name", "rounds"), [("float16", 2), ("bfloat16", 64), ("given", 64), ("all", 64)])
def test_bits_are_those_without_codes(monkeypatch, name, rounds):
    """``rounds``: how often a step looks for the best bounds before it goes through all tiles."""
    monkeypatch.setattr(triton_coded, "ROUNDS", tl.constexpr(rounds))
    options, rng = dict(OPTIONS[name]), np.random.default_rng(3)
    num_queries = 3 if name == "all" else 1
    rows, queries, ids = pools(len(name), 60, 35, 70, num_queries=num_queries)
    rows[ids[0, 9]] = 0
    if options.pop("order", "") == "any":
        ids = rng.permuted(ids, axis=1)
    if name == "all":
        ids[0, ::7] = -1
        queries[1] = 0
    columns = {}
    if options.pop("bias", None):
        columns["bias"] = rng.normal(0, 0.2, 60)
    if options.pop("groups", None):
        columns["groups"] = rng.integers(0, 9, 60)
        options |= {"query_groups": np.array([1, 2, 3]), "max_per_group": 1}
    if options.pop("relevance", None):
        options["relevance"] = rng.normal(0, 0.3, ids.shape).astype(np.float32)
    corpus = coded(rows, dtype=name if name in _arrays.STORAGE else "float32", **columns)
    same_without_codes(queries, corpus, **{"k": 4, **options}, candidates=ids)


def test_what_codes_cannot_tell_apart_is_read():
    """Near-duplicates, exact duplicates among them: the lowest position of equal items is picked."""
    rows, queries, _ = pools(0, 30, 30, 20)
    rows[:] = rows[:1] + 0.02 * rows
    rows[15:] = rows[:15]
    ids = np.random.default_rng(1).permutation(30)[None]
    found = same_without_codes(queries, coded(rows), 4, candidates=ids, lambda_d=0.2)
    assert len(set(found.indices[0].tolist())) == 4


def test_codes_are_read_once_and_few_rows():
    rows, queries, ids = pools(0, 270, 250, 116)
    corpus = coded(rows)  # 116 codes and the header are two cache lines, a row is 464 bytes
    data, codes = (torch.tensor(array) for array in (corpus.data, swapped(corpus.codes, 116)))
    there = _arrays.changed(corpus, data=data.numpy(), codes=codes)
    one_read = 250 * 464
    with counted(rows=data, codes=codes) as moved:
        rk.mmr(queries, there, 6, candidates=ids, lambda_d=0.75, backend="triton")
    assert moved.launches == {"query_factors_kernel": 1, "select_coded_kernel": 1}
    assert 250 * 128 <= moved.read["codes"] <= 0.5 * one_read
    assert moved.read["rows"] <= 0.2 * one_read


@pytest.mark.parametrize("options", [{"metric": "dot"}, {"dtype": "int8"}])
def test_rows_without_codes_are_read(options):
    rows, queries, ids = pools(0, 40, 20, 16)
    corpus = rk.Corpus(rows, **options)
    with counted() as moved:
        rk.mmr(queries, corpus, 2, candidates=ids, metric=corpus.metric, backend="triton")
    assert moved.launches["select_bounds_kernel"] == 1


interpreted.elsewhere(globals())
