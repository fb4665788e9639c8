"""MMR of float32 pools by estimates, interpreted: the same bits as where all similarities are exact."""

import interpreted
import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels import testing
from ragsys_kernels._base import env

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

pytestmark = pytest.mark.sampled(3)

if interpreted.HERE:
    from ragsys_kernels.selection.triton import estimates


def both(monkeypatch, **problem):
    """Return the result by estimates, which has to be taken, and by exact similarities of all items to each pick."""
    taken, select = [], estimates.select
    monkeypatch.setattr(estimates, "select", lambda *given: (taken.append(1), select(*given)))
    with env.changed(RAGSYS_KERNELS_VARIANTS="float32=estimates"):
        found = rk.mmr(**problem, backend="triton")
    assert taken == [1]
    exact = rk.mmr(**problem, backend="triton")
    assert taken == [1]
    return found, exact


def same_bits(found, exact):
    for a, b in zip(found, exact, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("kind", ["clustered", "duplicates", "integers"])
@pytest.mark.parametrize("options", [{}, {"bias": True, "ragged": True}, {"dense": True}])
def test_picks_and_bits_are_those_of_exact_similarities(kind, options, monkeypatch):
    problem = testing.selection_problem(2, 70, 6, 64, kind=kind, seed=3, **options)
    found, exact = both(monkeypatch, **problem)
    same_bits(found, exact)
    testing.check_selection("mmr", problem, found)


def near_ties():
    """Return rows of lengths 1e-3 to 1e3, many of which are others but for a unit of rounding, and a query."""
    rng = np.random.default_rng(5)
    rows = np.repeat(rng.standard_normal((12, 64)), 8, axis=0).astype(np.float32)
    rows[1::2, 3] = np.nextafter(rows[1::2, 3], np.float32(9))
    rows *= (10.0 ** rng.uniform(-3, 3, (96, 1))).astype(np.float32)
    return rows, rng.standard_normal((1, 64)).astype(np.float32)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, for what is infinite
@pytest.mark.parametrize("lambda_d", [0.0, 0.3, 0.75, 1.0])
@pytest.mark.parametrize("change", ["", "dot", "bias", "broken", "infinite", "tiny"])
def test_near_ties_and_numbers_out_of_bounds(change, lambda_d, monkeypatch):
    rows, query = near_ties()
    rng, options = np.random.default_rng(6), {}
    if change == "bias":
        options = {"bias": rng.choice(np.float32([1e6, -1e6, 0]), 96), "lambda_b": 0.5}
    elif change == "dot":
        options = {"metric": "dot"}
    elif change == "broken":
        rows[5, 7], rows[9, 2], rows[11, 1], rows[20] = np.nan, np.inf, -np.inf, 0
    elif change == "tiny":
        rows[::3] *= np.float32(1e-17)
        rows[1::5] *= np.float32(1e15)
    elif change == "infinite":
        options = {"metric": "dot"}
        rows[40, :2], rows[41, :1] = np.inf * np.sign(query[0, :2]), -np.inf * np.sign(query[0, :1])
    candidates = np.arange(96)[None]
    found, exact = both(
        monkeypatch, queries=query, embeddings=rows, candidates=candidates, k=8, lambda_d=lambda_d, **options
    )
    same_bits(found, exact)


@pytest.mark.parametrize(("metric", "length"), [("cosine", 1), ("dot", 32)])
def test_an_item_whose_bits_tf32_cuts_off_is_still_found(metric, length, monkeypatch):
    # Of two items opposite to the first pick, the better has an estimate that is 2^-10 too large.
    long = np.full(64, 1 + 2**-10 - 2**-23, np.float32)
    rows = np.stack([long] * 78 + [-np.ones(64, np.float32), -long])
    bias = np.zeros(80, np.float32)
    bias[79] = 1e-3
    found, exact = both(
        monkeypatch, queries=long[None], embeddings=length * rows, candidates=np.arange(80)[None], k=2,
        lambda_d=0.1, bias=bias, lambda_b=0.5, metric=metric,
    )  # fmt: skip
    assert np.asarray(exact.indices).tolist() == [[0, 79]]
    same_bits(found, exact)


def test_queries_run_in_chunks(monkeypatch):
    monkeypatch.setattr(estimates, "WORKSPACE_BYTES", 4 * estimates.NUMBERS * 2)
    problem = testing.selection_problem(3, 70, 3, 32, seed=4)
    found, exact = both(monkeypatch, **{**problem, "k": np.int64([3, 1, 2])})
    same_bits(found, exact)


OTHERS = {
    "initial": {"initial": np.int64([[2, 5]])},
    "relevance": {"relevance": np.linspace(1, 0, 70, dtype=np.float32)[None]},
    "budget": {"costs": np.ones((1, 70)), "budget": 2.0},
    "ceiling": {"max_similarity": 0.9},
    "groups": {"groups": np.arange(70) % 3, "max_per_group": 1},
    "more picks": {"k": 17},
    "fewer items": {"candidates": np.arange(64)[None]},
    "dims": {"queries": np.ones((1, 48), np.float32), "embeddings": np.eye(70, 48, dtype=np.float32)},
    "16 bits": {"embeddings": np.eye(70, 32, dtype=np.float16)},
}


@pytest.mark.parametrize("other", OTHERS)
def test_what_estimates_lack_takes_the_other_form(other, monkeypatch):
    monkeypatch.setattr(estimates, "select", None)
    rng = np.random.default_rng(4)
    rows, queries = (rng.standard_normal((n, 32)).astype(np.float32) for n in (70, 1))
    problem = {"queries": queries, "embeddings": rows, "candidates": np.arange(70)[None], "k": 3} | OTHERS[other]
    with env.changed(RAGSYS_KERNELS_VARIANTS="float32=estimates"):
        found = rk.mmr(**problem, backend="triton")
    expected = rk.mmr(**problem, backend="reference")
    np.testing.assert_array_equal(np.asarray(found.indices), np.asarray(expected.indices))


interpreted.elsewhere(globals())
