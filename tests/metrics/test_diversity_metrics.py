"""The metrics of how different picks are, against their definitions and where their values are known."""

import math
import tracemalloc
from itertools import combinations

import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels.metrics import (
    coverage,
    intra_list_distance,
    log_determinant,
    near_duplicates,
    pairwise_cosine,
    sum_cosine,
    vendi_score,
)

RNG = np.random.default_rng(0)
ITEMS = RNG.standard_normal((12, 5))
UNIT = ITEMS / np.linalg.norm(ITEMS, axis=1, keepdims=True)
PICKS = np.array([[0, 3, 7], [11, 2, -1], [5, -1, -1], [-1, -1, -1]])


def test_by_their_definitions():
    found = [metric(ITEMS, PICKS) for metric in (intra_list_distance, log_determinant, vendi_score, coverage)]
    for q, row in enumerate(PICKS):
        picks = [int(i) for i in row if i >= 0]
        pairs = [1 - UNIT[i] @ UNIT[j] for i, j in combinations(picks, 2)]
        gram = UNIT[picks] @ UNIT[picks].T
        expected = [
            np.mean(pairs) if pairs else math.nan,
            math.log(np.linalg.det(gram)) if picks else math.nan,
            math.nan,
            np.mean([max([0.0, *(UNIT[i] @ item for i in picks)]) for item in UNIT]),
        ]
        if picks:  # the singular values of the picks are the roots of the eigenvalues
            share = np.linalg.svd(UNIT[picks], compute_uv=False) ** 2 / len(picks)
            expected[2] = math.exp(-sum(x * math.log(x) for x in share))
        np.testing.assert_allclose([values[q] for values in found], expected, atol=1e-12)


def test_where_they_are_known():
    rows = np.array([[1, 0, 0], [0, 2, 0], [0, 0, 3], [5, 0, 0], [1, 0.01, 0]])
    picks = [[0, 1, 2], [0, 3, -1], [0, 3, 4]]
    np.testing.assert_allclose(vendi_score(rows, picks)[:2], [3, 1])
    np.testing.assert_allclose(intra_list_distance(rows, picks)[:2], [1, 0])
    assert log_determinant(rows, picks)[0] == pytest.approx(0)
    assert log_determinant(rows, picks)[1] == -math.inf
    np.testing.assert_allclose(near_duplicates(rows, picks), [0, 1 / 2, 2 / 3])
    np.testing.assert_allclose(near_duplicates(rows, picks, threshold=1), [0, 0, 0])
    assert coverage(rows, [[0], [1]], aspects=[[1.0, 1, 0], [-1, 0, 0]]) == pytest.approx([0.5**0.5 / 2] * 2)
    assert np.isnan(vendi_score(rows, [[-1]]))
    assert np.isnan(near_duplicates(rows, [[-1]]))
    assert coverage(rows, [[-1]]) == 0


# Every metric of picks by rows, as a function of the two.
METRICS = {
    "sum_cosine": lambda rows, picks: sum_cosine(np.ones((len(picks), rows.shape[1])), rows, picks),
    "coverage": lambda rows, picks: coverage(rows, picks, aspects=np.eye(rows.shape[1])),
    **{
        metric.__name__: metric
        for metric in (intra_list_distance, log_determinant, near_duplicates, pairwise_cosine, vendi_score)
    },
}


@pytest.mark.parametrize("name", METRICS)
def test_only_rows_that_are_picked_are_read(name):
    """Of few rows as of many, to the last bit; the others may be anything, and are not copied."""
    rng = np.random.default_rng(1)
    few, at = rng.standard_normal((12, 40), dtype=np.float32), rng.permutation(50_000)[:12]
    rows = np.full((50_000, 40), np.nan, np.float32)
    rows[at] = few
    wanted = METRICS[name](few, PICKS)
    tracemalloc.start()
    found = METRICS[name](rows, np.where(PICKS < 0, -1, at[PICKS]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-15)
    assert peak < rows.nbytes / 10
    rows[at[7]] = np.inf
    with pytest.raises(ValueError, match=rf"^{name}: embeddings must be finite, got NaN or inf in row {at[7]}$"):
        METRICS[name](rows, [[int(at[2]), int(at[7])], [int(at[11]), -1]])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("metric", ["cosine", "dot"])
def test_a_corpus_stands_for_its_rows(metric, dtype):
    corpus = rk.Corpus(ITEMS.astype(np.float32), metric=metric, dtype=dtype)
    rows = corpus.vectors(np.arange(12))
    for found in (vendi_score, log_determinant, coverage):
        np.testing.assert_array_equal(found(corpus, PICKS), found(rows, PICKS))
    given = {"queries": np.ones((4, 5)), "indices": PICKS, "metric": metric}
    np.testing.assert_array_equal(sum_cosine(embeddings=corpus, **given), sum_cosine(embeddings=rows, **given))


def test_coverage_of_all_rows_reads_them_all():
    rows = ITEMS.copy()
    rows[4] = math.nan
    with pytest.raises(ValueError, match=r"^coverage: embeddings must be finite, got NaN or inf in row 4$"):
        coverage(rows, PICKS)
    assert np.isfinite(coverage(rows, PICKS, aspects=ITEMS)).all()


def test_a_rule_is_best_at_what_it_maximises():
    rows = RNG.standard_normal((40, 8)).astype(np.float32)
    queries = RNG.standard_normal((5, 8)).astype(np.float32)
    nearest = rk.mmr(queries, rows, 5, lambda_d=1.0).indices
    assert (coverage(rows, rk.coverage(queries, rows, 5, lambda_d=0.0).indices) > coverage(rows, nearest)).all()
    spread = rk.dpp(queries, rows, 5, lambda_d=0.0).indices
    assert (log_determinant(rows, spread) > log_determinant(rows, nearest)).all()
    apart = rk.mmr(queries, rows, 5, lambda_d=1.0, max_similarity=0.3).indices
    assert (near_duplicates(rows, apart, threshold=0.3) == 0).all()
    assert near_duplicates(rows, nearest, threshold=0.3).any()


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match=r"^near_duplicates: threshold must be within \[-1, 1\], got 2"):
        near_duplicates(ITEMS, PICKS, threshold=2)
    with pytest.raises(ValueError, match=r"^coverage: aspects must be of shape \(A, 5\), got \(2, 3\)"):
        coverage(ITEMS, PICKS, aspects=np.ones((2, 3)))
    with pytest.raises(ValueError, match=r"^vendi_score: indices must be from -1 to 11, got 12$"):
        vendi_score(ITEMS, [[12]])
