"""The metrics over picks and labels against their definitions in plain Python, and against other packages."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ragsys_kernels as rk
from ragsys_kernels.metrics import (
    alpha_ndcg,
    macro_scores,
    max_diff,
    ndcg,
    nqc,
    pairwise_cosine,
    recall,
    reciprocal_rank,
    sum_cosine,
    win_rate,
)

RNG = np.random.default_rng(0)
ITEMS = RNG.standard_normal((12, 5))
QUERIES = RNG.standard_normal((4, 5))
PICKS = np.array([[0, 3, 7], [11, 2, -1], [5, -1, -1], [-1, -1, -1]])


def cosine(a, b):
    norms = math.hypot(*a) * math.hypot(*b)
    return sum(x * y for x, y in zip(a, b, strict=True)) / norms if norms else 0.0


def test_sum_cosine_is_its_definition():
    for metric in ("cosine", "dot"):
        found = sum_cosine(QUERIES, ITEMS, PICKS, metric=metric)
        for q, row in enumerate(PICKS):
            chosen = [ITEMS[i] / (math.hypot(*ITEMS[i]) if metric == "cosine" else 1) for i in row if i >= 0]
            total = [sum(vector[d] for vector in chosen) for d in range(5)]
            assert found[q] == pytest.approx(cosine(QUERIES[q], total), abs=1e-12)


def test_sum_cosine_is_what_vrsd_reports():
    queries, items = QUERIES.astype(np.float32), ITEMS.astype(np.float32)
    picks = rk.vrsd(queries, items, 4)
    np.testing.assert_allclose(sum_cosine(queries, items, picks.indices), picks.scores[:, -1], atol=1e-6)


def test_a_zero_sum_has_cosine_0():
    assert sum_cosine(np.array([[1.0, 0.0]]), np.array([[2.0, 1.0], [-2.0, -1.0]]), [[0, 1]]).tolist() == [0]
    assert sum_cosine(np.zeros((1, 2)), np.eye(2), [[0, 1]]).tolist() == [0]


@pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")
@pytest.mark.parametrize("metric", ["cosine", "dot"])
@pytest.mark.parametrize("scale", [1, 1e-12, 1e12])
def test_a_sum_that_is_rounding_alone_is_zero_as_vrsd_has_it(metric, scale):
    """Three vectors at 120 degrees, and vectors with their opposites, in float32: what is left has no direction."""
    angles = np.float32([0, 2 * math.pi / 3, 4 * math.pi / 3])
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    third = np.float32([[1, 1 / 3], [-1, -1 / 3 + 1e-8], [0.5, 0.2], [-0.5, -0.2]])
    for rows in (circle * np.float32(scale), third * np.float32(scale)):
        query, picks = np.ones((1, 2), np.float32), [list(range(len(rows)))]
        given = {"queries": query, "embeddings": rows, "metric": metric, "initial": np.array([[0, 1]])}
        vrsd = rk.vrsd(k=len(rows) - 2, backend="reference", **given).scores[0, -1]
        assert sum_cosine(query, rows, picks, metric=metric).tolist() == [0] == [vrsd]
        assert sum_cosine(query, rows, [[0, 2]], metric=metric)[0] != 0


def test_no_sum_is_zero_for_its_size():
    rows = np.array([[1e200, 0], [0, 1e200], [1e-200, 0], [0, 1e-200]])
    found = sum_cosine(np.ones((2, 2)), rows, [[0, 1], [2, 3]], metric="dot")
    assert found == pytest.approx([1, 1])


def test_win_rate_keeps_ties_apart():
    ours = np.array([0.5, 0.5 + 5e-8, 0.5 - 5e-8, 0.6, 0.4])
    assert win_rate(ours, np.full(5, 0.5)) == (0.2, 0.6, 0.2)
    assert win_rate(ours, np.full(5, 0.5), tolerance=0) == (0.4, 0.2, 0.4)
    assert win_rate([1], [0]) == (1, 0, 0)
    assert win_rate([0.5 + 1.1e-7, 0.5 + 0.9e-7], [0.5, 0.5]) == (0.5, 0.5, 0)
    assert max_diff(ours, np.full(5, 0.5)) == pytest.approx(0.1)
    assert max_diff([0.1, 0.2], [0.3, 0.3]) == pytest.approx(-0.1)


def brute_alpha_ndcg(row, covers, alpha):
    def gains(order):
        seen, result = [0] * len(covers[0]), 0.0
        for rank, item in enumerate(order, 1):
            if item < 0:
                continue
            gain = sum((1 - alpha) ** seen[s] for s, there in enumerate(covers[item]) if there)
            seen = [count + there for count, there in zip(seen, covers[item], strict=True)]
            result += gain / math.log2(rank + 1)
        return result

    left, ideal = list(range(len(covers))), []
    while left and len(ideal) < len(row):

        def gain(item):
            return sum((1 - alpha) ** sum(covers[i][s] for i in ideal) for s, there in enumerate(covers[item]) if there)

        best = max(left, key=lambda item: (gain(item), -item))
        left.remove(best)
        ideal.append(best)
    return gains(row) / gains(ideal) if gains(ideal) else 0.0


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_alpha_ndcg_is_its_definition(alpha):
    rng = np.random.default_rng(1)
    judged = rng.random((6, 9, 4)) < 0.3
    judged[5] = False
    rows = np.stack([rng.permutation(9)[:5] for _ in range(6)])
    rows[2, 3:] = -1
    found = alpha_ndcg(rows, judged, alpha=alpha)
    for q in range(6):
        assert found[q] == pytest.approx(brute_alpha_ndcg(rows[q].tolist(), judged[q].tolist(), alpha), abs=1e-12)
    assert found[5] == 0
    np.testing.assert_array_equal(alpha_ndcg(rows, judged[0], alpha=alpha)[0], found[0])


def test_alpha_ndcg_is_ndevals():
    pyndeval = pytest.importorskip("pyndeval")
    rng = np.random.default_rng(2)
    judged = rng.random((20, 15, 5)) < 0.25
    rows = np.stack([rng.permutation(15)[:10] for _ in range(20)])
    # Among items of equal gain its ideal ranking takes the last name first, ours the lowest position.
    qrels = [
        pyndeval.SubtopicQrel(f"{q}", f"{s}", f"d{99 - i}", int(judged[q, i, s]))
        for q in range(20) for i in range(15) for s in range(5)
    ]  # fmt: skip
    run = [pyndeval.ScoredDoc(f"{q}", f"d{99 - i}", float(-rank)) for q in range(20) for rank, i in enumerate(rows[q])]
    theirs = pyndeval.ndeval(qrels, run, measures=["alpha-nDCG@10"], alpha=0.5)
    ours = alpha_ndcg(rows, judged)
    assert len(theirs) >= 18
    for q, values in theirs.items():
        assert ours[int(q)] == pytest.approx(values["alpha-nDCG@10"], abs=1e-6)


def test_nqc_is_its_definition():
    scores = np.array([[3.0, 2.0, 1.0, -np.inf], [0.5, 0.5, 0.5, 0.5], [-np.inf] * 4])
    found = nqc(scores, corpus_score=np.array([-2.0, 1.0, 1.0]))
    assert found[0] == pytest.approx(math.sqrt(((3 - 2) ** 2 + 0 + (1 - 2) ** 2) / 3) / 2)
    assert found[1] == 0
    assert np.isnan(found[2])
    assert nqc(scores[:1])[0] == pytest.approx(np.std([3, 2, 1]))
    assert nqc([[1e300, -1e300], [1e-200, -1e-200]]) == pytest.approx([1e300, 1e-200], rel=1e-12, abs=0)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=30))
def test_macro_scores_are_their_definition(pairs):
    found = macro_scores(*zip(*pairs, strict=True))
    values = []
    for c in {label for pair in pairs for label in pair}:
        both = sum(pair == (c, c) for pair in pairs)
        predicted, labelled = sum(p == c for _, p in pairs), sum(t == c for t, _ in pairs)
        precision, recall = both / predicted if predicted else 0, both / labelled if labelled else 0
        values.append((precision, recall, 2 * precision * recall / (precision + recall) if both else 0))
    np.testing.assert_allclose(found, np.mean(values, axis=0), atol=1e-12)
    assert macro_scores(*(list(map(str, labels)) for labels in zip(*pairs, strict=True))) == found


def test_rows_of_any_length_have_a_cosine():
    rows = np.array([[1e300, 1e300], [1e-300, 0], [0, 0]])
    assert pairwise_cosine(rows, [[0, 1], [1, 2]]) == pytest.approx([math.sqrt(0.5), 0])
    assert sum_cosine(rows[:2], rows, [[0, -1], [0, -1]], metric="dot") == pytest.approx([1, math.sqrt(0.5)])


def test_arrays_of_other_libraries_are_taken():
    with pytest.warns(PendingDeprecationWarning, match="matrix"):
        picks = np.matrix(PICKS)
    np.testing.assert_array_equal(pairwise_cosine(ITEMS, picks), pairwise_cosine(ITEMS, PICKS))
    torch = pytest.importorskip("torch")
    scores = torch.tensor([[3.0, 1.0], [2.0, 2.5]], requires_grad=True)
    assert nqc(scores).tolist() == [1.0, 0.25]
    assert nqc(scores.to(torch.bfloat16)).tolist() == [1.0, 0.25]
    assert macro_scores(torch.tensor([0, 1]), [0, 0]) == macro_scores([0, 1], [0, 0])
    for kind in ("object", "category"):  # strings of a table
        names = pytest.importorskip("pandas").Series(["a", "b"], dtype=kind)
        assert macro_scores(names, ["a", "a"]) == macro_scores(["a", "b"], ["a", "a"])


@pytest.mark.parametrize(
    ("call", "kind", "match"),
    [
        (lambda: sum_cosine(QUERIES[:2], ITEMS, PICKS), ValueError, r"queries must be of shape \(4, 5\), got \(2, 5\)"),
        (lambda: sum_cosine(QUERIES, ITEMS, PICKS + 1), ValueError, "indices must be from -1 to 11, got 12"),
        (lambda: pairwise_cosine(ITEMS, PICKS.astype("u8")), TypeError, "indices must be integers, got dtype uint64"),
        (lambda: pairwise_cosine(ITEMS[:, :0], PICKS), ValueError, "embeddings must have at least one dimension"),
        (lambda: sum_cosine(QUERIES, ITEMS, PICKS - 1), ValueError, "indices must be from -1 to 11, got -2"),
        (lambda: sum_cosine(QUERIES, ITEMS, PICKS[0]), ValueError, r"indices must be of shape \(Q, K\), got \(3,\)"),
        (lambda: sum_cosine(QUERIES, ITEMS * np.nan, PICKS), ValueError, "embeddings must be finite, got NaN .* row 0"),
        (lambda: sum_cosine(QUERIES, ITEMS, PICKS, metric="l2"), ValueError, "metric must be cosine or dot, got 'l2'"),
        (lambda: sum_cosine(QUERIES, rk.Corpus(ITEMS.astype("f4")), PICKS, metric="dot"), ValueError,
         "metric must be cosine with a corpus of cosines, which keeps no lengths, got 'dot'"),
        (lambda: sum_cosine([[1, 2]], ITEMS, PICKS), TypeError, "queries must be floating point, got dtype int64"),
        (lambda: pairwise_cosine(ITEMS[0], PICKS), ValueError, r"embeddings must have two axes, got shape \(5,\)"),
        (lambda: win_rate([1.0], [1.0, 2.0]), ValueError, r"must be of one shape \(Q,\), got \(1,\) and \(2,\)"),
        (lambda: win_rate([], []), ValueError, "ours must have at least one query, got none"),
        (lambda: win_rate([math.nan], [1]), ValueError, "ours and theirs must be finite, got NaN for query 0"),
        (lambda: win_rate([1], [1], tolerance=-1), ValueError, "tolerance must be at least 0, got -1"),
        (lambda: alpha_ndcg([[0, 0]], np.eye(2, dtype=bool)), ValueError, "indices must not repeat .* for query 0"),
        (lambda: alpha_ndcg([[0]], np.eye(2)), TypeError, "judgements must be bool, got dtype float64"),
        (lambda: alpha_ndcg([[0]], np.ones((3, 2, 2), bool)), ValueError, r"judgements must be of shape \(N, S\) or"),
        (lambda: alpha_ndcg([[0]], np.eye(2, dtype=bool), alpha=2), ValueError, r"alpha must be in \[0, 1\], got 2"),
        (lambda: nqc([1.0]), ValueError, r"scores must be of shape \(Q, k\), got \(1,\)"),
        (lambda: nqc([[1]]), TypeError, "scores must be floating point"),
        (lambda: nqc([[np.inf]]), ValueError, "scores must be below inf"),
        (lambda: macro_scores([1], [1, 2]), ValueError, "labels and predictions must be of one shape"),
        (lambda: macro_scores([], []), ValueError, "labels must be at least one, got none"),
        (lambda: win_rate([1], [1], tolerance=[]), TypeError, "win_rate: tolerance must be a number, got list"),
        (lambda: max_diff(["a"], [1.0]), TypeError, "max_diff: ours must be"),
        (lambda: alpha_ndcg([[0]], np.eye(2, dtype=bool), alpha="1"), TypeError, "alpha must be a number, got str"),
        (lambda: nqc(np.ones((2, 3)), corpus_score=np.ones(3)), ValueError, r"corpus_score .* \(2,\), got \(3,\)"),
        (lambda: nqc(np.ones((2, 3)), corpus_score=1j), TypeError, "nqc: corpus_score must be"),
        (lambda: macro_scores([1, 2], ["1", "2"]), TypeError, "labels and predictions must be of one kind"),
        (lambda: macro_scores(["a", math.nan], ["a", "nan"]), TypeError, "labels must be .*, got nan among strings"),
        (lambda: macro_scores([1, "a"], ["1", "a"]), TypeError, "labels must be .*, got 1 among strings"),
        (lambda: macro_scores(["a"], [b"a"]), TypeError, "labels and predictions must be of one kind"),
        (lambda: macro_scores([[1], [1, 2]], [1]), TypeError, "macro_scores: labels must be an array"),
        (lambda: macro_scores([None], [1]), ValueError, "macro_scores: labels must have no missing values"),
        (lambda: macro_scores([1.0], [math.nan]), ValueError, "predictions must not be NaN"),
        (lambda: sum_cosine(QUERIES, ITEMS, PICKS, metric=ITEMS), ValueError, "metric must be cosine or dot"),
    ],
)  # fmt: skip
def test_bad_input(call, kind, match):
    with pytest.raises(kind, match=match):
        call()


def graded(seed=5):
    """Grades (Q, N) of all items, and ranked ones."""
    rng = np.random.default_rng(seed)
    grades = rng.integers(0, 4, (12, 20)) * (rng.random((12, 20)) < 0.4)
    return grades, np.stack([rng.permutation(20)[:6] for _ in range(12)])


def test_ndcg_recall_and_reciprocal_rank_are_their_definitions():
    grades, rows = graded()
    grades[3] = 0
    ranked = np.take_along_axis(grades, rows, axis=1)
    cu = np.arange(13) * 20
    found = ndcg(ranked, grades.ravel(), cu), recall(ranked, grades.ravel(), cu), reciprocal_rank(ranked)
    for q in range(12):
        own, best = ranked[q].tolist(), sorted(grades[q].tolist(), reverse=True)
        gain = [sum(g / math.log2(rank + 1) for rank, g in enumerate(each[:6], 1)) for each in (own, best)]
        first = next((rank for rank, g in enumerate(own, 1) if g > 0), math.inf)
        if q == 3:
            assert np.isnan([values[q] for values in found[:2]]).all()
            assert found[2][q] == 0
            continue
        expected = [gain[0] / gain[1], sum(g > 0 for g in own) / sum(g > 0 for g in best), 1 / first]
        assert [values[q] for values in found] == pytest.approx(expected, abs=1e-12)


def test_ndcg_alone():
    assert ndcg([[3, 2, 1]], [1, 2, 3], [0, 3]) == 1
    assert ndcg([[3, -2]], [3, -2], [0, 2]) == 1  # below 0 is 0
    assert ndcg([[1, 0]], [1, 1, 1], [0, 3]) == pytest.approx(1 / (1 + 1 / math.log2(3)))
    assert ndcg(np.zeros((0, 3)), [], [0]).shape == (0,)
    assert recall([[1, 0]], [1, 1, 0], [0, 3]) == 0.5
    for bad, match in (
        (([[1.0, np.nan]], [1], [0, 1]), "grades must be finite, got nan"),
        (([1], [1], [0, 1]), r"grades must be of shape \(Q, K\), got \(1,\)"),
        (([[1]], [1], [0, 2]), r"cu_judged must rise from 0 to 1 in 2 steps, got \[0, 2\]"),
        (([[1]], [1], [0]), r"cu_judged must rise from 0 to 1 in 2 steps, got shape \(1,\)"),
        (([[1]], [[1]], [0, 1]), r"judged must be finite numbers of shape \(J,\), got shape \(1, 1\)"),
    ):
        with pytest.raises(ValueError, match=f"^ndcg: {match}"):
            ndcg(*bad)
