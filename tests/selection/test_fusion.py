"""Fused lists: by their definition, in exact arithmetic; alone and together; of any library; and what is refused."""

import itertools
import statistics
from fractions import Fraction

import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels import testing
from ragsys_kernels._base.arrays import Torch
from ragsys_kernels.selection import fusion

Q, N = 7, 30
RNG = np.random.default_rng(5)


def drawn(width, low=0):
    """Ids and scores of a retriever, best first, with ties among the scores and padding behind them."""
    ids = np.array([low + RNG.choice(N, width, replace=False) for _ in range(Q)])
    scores = -np.sort(-RNG.integers(0, 2 * width, (Q, width)).astype(np.float64) / 4, axis=1)
    for q in range(1, Q):
        ids[q, RNG.integers(0, width + 1) :] = -1
    scores[2] = 3.5  # all equal
    scores[ids < 0] = np.nan  # which nobody reads
    return ids, scores


LISTS = [drawn(12), drawn(5), drawn(20)]
WEIGHTS = [0.5, 2, 0.25]


def by_definition(lists, method, weights, k):
    """Ids and relevance of one query; ``lists`` are of pairs (id, score), best first."""
    found = {}
    for hits, weight in zip(lists, weights, strict=True):
        scores = [score for _, score in hits]
        for rank, (item, score) in enumerate(hits, 1):
            if method == "rrf":
                share = 1 / (Fraction(k) + rank)
            elif method == "minmax":
                low, high = min(scores), max(scores)
                share = (Fraction(score) - Fraction(low)) / (Fraction(high) - Fraction(low)) if high > low else 1
            else:
                sigma = statistics.pstdev(scores)
                share = Fraction((score - statistics.mean(scores)) / sigma) / 6 if sigma else 0
                share += Fraction(1, 2)
            found[item] = found.get(item, 0) + Fraction(weight) * share
    return found


def hits_of(q, lists):
    return [
        [(i, s) for i, s in zip(ids[q].tolist(), scores[q].tolist(), strict=True) if i >= 0] for ids, scores in lists
    ]


@pytest.mark.parametrize("method", ["rrf", "minmax", "zscore"])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("k", [60, 0.5])
def test_relevance_is_that_of_the_definition(method, weights, k):
    found = rk.fuse(LISTS, method, weights, k)
    assert [found.candidates.dtype, found.relevance.dtype] == ["int64", "float32"]
    longest = 1
    for q in range(Q):
        expected = by_definition(hits_of(q, LISTS), method, weights or [1, 1, 1], k)
        longest = max(longest, len(expected))
        ids, relevance = found.candidates[q, : len(expected)], found.relevance[q, : len(expected)]
        assert dict(zip(ids.tolist(), relevance.tolist(), strict=True)) == pytest.approx(expected, rel=1e-6, abs=1e-7)
        assert list(zip(-relevance, ids, strict=True)) == sorted(zip(-relevance, ids, strict=True))
        assert (found.candidates[q, len(expected) :] == -1).all()
        assert not found.relevance[q, len(expected) :].any()
    assert found.candidates.shape == found.relevance.shape == (Q, longest)


def test_ties_go_to_the_lower_id_in_any_order_of_the_lists():
    ids = np.array([[9, 4, 2**40, 7, 0], [3, 2, 1, 0, 8]])
    lists = [(np.roll(ids, shift, 1), None) for shift in range(5)]
    lists += [(ids[:, ::-1], None), (ids[:, [1, 0, 4, 3, 2]], None)]
    found = rk.fuse(lists[:5])  # each id once at each rank
    assert found.candidates.tolist() == np.sort(ids).tolist()
    assert len(np.unique(found.relevance)) == 1
    expected = rk.fuse(lists, weights=range(1, 8))
    # Of these sums in float64 one is between two numbers of float32, and one above it.
    ones, weights = [(np.array([[6]]), None)] * 3, [1 + 2**-24, 2**-53, 2**-53]
    for order in itertools.permutations(weights):
        assert rk.fuse(ones, weights=order, k=0).relevance == np.float32(1 + 2**-23)
    for order in itertools.islice(itertools.permutations(range(7)), 0, None, 97):
        again = rk.fuse([lists[i] for i in order], weights=[i + 1 for i in order])
        assert all(np.array_equal(x, y) for x, y in zip(again, expected, strict=True))


@pytest.mark.parametrize("method", ["rrf", "minmax", "zscore"])
def test_a_query_has_the_same_bits_alone_and_at_the_seams_of_blocks(method, monkeypatch):
    whole = rk.fuse(LISTS, method)
    monkeypatch.setattr(fusion, "_BLOCK", 3)
    for parts in ([slice(q, q + 1) for q in range(Q)], [slice(0, Q)]):
        for part in parts:
            own = rk.fuse([(ids[part], scores[part]) for ids, scores in LISTS], method)
            n = own.candidates.shape[1]
            for mine, theirs, padding in zip(own, whole, (-1, 0), strict=True):
                assert mine.tobytes() == theirs[part, :n].tobytes()
                assert (theirs[part, n:] == padding).all()


def test_scores_decide_the_ranks_and_equal_ones_keep_their_order():
    ids, scores = np.array([[5, 1, -1, 8, 3]]), np.array([[2.0, 9.0, 99.0, 2.0, -1.0]])
    expected = rk.fuse([(np.array([[1, 5, 8, 3]]), None)])
    assert rk.fuse([(ids, scores)]).candidates.tolist() == expected.candidates.tolist() == [[1, 5, 8, 3]]
    assert rk.fuse([(ids, scores)]).relevance.tobytes() == expected.relevance.tobytes()
    assert rk.fuse([(ids, None)]).candidates.tolist() == [[5, 1, 8, 3]]  # padding takes no rank
    assert rk.fuse([(ids, None)]).relevance.tobytes() == expected.relevance.tobytes()
    assert rk.fuse([(np.array([[-1, 4]]), None)], k=0).relevance == 1


def test_hits_far_below_the_mean_subtract():
    ids, scores = np.arange(60)[None, ::-1], np.array([[10.0] * 58 + [0, -1]])
    found = rk.fuse([(ids, scores)], "zscore")
    assert found.candidates.tolist() == [[*range(2, 60), 1, 0]]
    assert 0.5 < found.relevance[0, 57] < 0.6
    assert found.relevance[0, 59] < found.relevance[0, 58] < -0.3
    nothing = rk.fuse([(ids, scores)], "zscore", weights=[1e-60])  # 0 and -0 in float32
    assert nothing.candidates.tolist() == [[*range(60)]]


def test_ids_of_64_bits():
    ids = np.array([[2**63 - 1, 0, 2**63 - 2, -1], [7, 2**62, -1, -1]])
    for q, expected in enumerate([[2**63 - 1, 0, 2**63 - 2], [7, 2**62]]):
        assert rk.fuse([(ids[q : q + 1], None), (ids[q : q + 1, :1], None)]).candidates.tolist() == [expected]


@pytest.mark.parametrize("method", ["rrf", "minmax"])
def test_lists_of_any_lengths(method):
    expected = rk.fuse(LISTS, method)
    hits = [[hits_of(q, [pair])[0] for q in range(Q)] for pair in LISTS]
    ragged = [tuple([[hit[part] for hit in query] for query in queries] for part in (0, 1)) for queries in hits]
    ragged[1] = tuple(np.array([*map(np.array, rows), None], object)[:-1] for rows in ragged[1])
    pa = pytest.importorskip("pyarrow")
    ragged[2] = tuple(map(pa.array, ragged[2]))
    found = rk.fuse(ragged, method)
    assert all(np.array_equal(x, y) for x, y in zip(found, expected, strict=True))


def test_other_types_of_numbers():
    ids, scores = LISTS[0]
    whole = np.where(ids < 0, 0, scores * 4)
    expected = rk.fuse([(ids, whole)], "minmax")
    for dtype in ("int32", "int64", "uint8", "float16", "float32"):
        found = rk.fuse([(ids.astype(np.int32), whole.astype(dtype))], "minmax")
        assert all(np.array_equal(x, y) for x, y in zip(found, expected, strict=True))


def test_arrays_of_torch():
    torch = pytest.importorskip("torch")
    lists = [(torch.from_numpy(ids), torch.from_numpy(scores)) for ids, scores in LISTS]
    for method in ("rrf", "minmax", "zscore"):
        expected = rk.fuse(LISTS, method, WEIGHTS)
        found = rk.fuse(lists, method, WEIGHTS)
        assert all(isinstance(x, torch.Tensor) and np.array_equal(x, y) for x, y in zip(found, expected, strict=True))
        # As on a device.
        place = Torch("cpu")
        hits = [fusion._hits(i, *pair, Q, method, place) for i, pair in enumerate(lists)]
        terms = [w * fusion._shares(*pair, method, 60, place) for pair, w in zip(hits, WEIGHTS, strict=True)]
        there = fusion._fused([ids for ids, _ in hits], terms, place)
        assert all(np.array_equal(x, y) for x, y in zip(there, expected, strict=True))
    unranked = [(torch.from_numpy(ids), None) for ids, _ in LISTS]
    hits = [fusion._hits(i, *pair, Q, "rrf", place) for i, pair in enumerate(unranked)]
    there = fusion._fused([x for x, _ in hits], [fusion._shares(*pair, "rrf", 60, place) for pair in hits], place)
    assert all(np.array_equal(x, y) for x, y in zip(there, rk.fuse(unranked), strict=True))
    wide = torch.tensor([[2**63 - 1, 4, -1]])
    assert fusion._fused([wide], [torch.tensor([[1.0, 2, 0]])], place)[0].tolist() == [[4, 2**63 - 1]]


def test_what_is_fused_goes_to_every_rule_and_padding_has_no_effect(backend):
    rows = RNG.standard_normal((N, 8)).astype(np.float32)
    queries = RNG.standard_normal((Q, 8)).astype(np.float32)
    corpus = rk.Corpus(rows)
    found = rk.fuse([corpus.search(queries, 9), LISTS[0]], "minmax", [0.5, 0.5])
    assert 0 <= found.relevance.min() < found.relevance.max() <= 1
    for method in [name for name in rk.METHODS if name != "gist"]:
        problem = {"queries": queries, "embeddings": rows, "k": 4, "candidates": found.candidates}
        picks = getattr(rk, method)(**problem, relevance=found.relevance, backend=backend)
        testing.check_selection(method, {**problem, "relevance": found.relevance}, picks)
        other = np.where(found.candidates < 0, 9, found.relevance)
        again = getattr(rk, method)(**problem, relevance=other, backend=backend)
        assert all(x.tobytes() == y.tobytes() for x, y in zip(picks, again, strict=True))


def test_no_queries():
    none = np.zeros((0, 3), np.int64)
    assert [x.shape for x in rk.fuse([(none, None), (none, none)], weights=[1, 0])] == [(0, 1), (0, 1)]


def test_no_hits():
    for ids in (np.zeros((2, 0), np.int64), [[], []], [[-1], [-1]]):
        for method, scores in (("rrf", None), ("rrf", ids), ("minmax", ids), ("zscore", ids)):
            found = rk.fuse([(ids, scores)] * 2, method)
            assert [x.tolist() for x in found] == [[[-1], [-1]], [[0], [0]]]
    found = rk.fuse([([[], [3]], None), ([[5], []], None)])
    assert found.candidates.tolist() == [[5], [3]]


ONE = np.array([[1, 2, 3], [4, 5, -1]])
REFUSED = {
    "lists must be a list of pairs (ids, scores), got ndarray": lambda: rk.fuse(ONE),
    "lists must have at least one pair (ids, scores), got none": lambda: rk.fuse([]),
    "lists must be pairs (ids, scores), got ndarray for list 1": lambda: rk.fuse([(ONE, None), ONE]),
    "lists must be pairs (ids, scores), got 1 values for list 0": lambda: rk.fuse([(ONE,)]),
    "ids of list 0 must be int32 or int64, got strings; see Corpus.rows_of": lambda: rk.fuse([([["a"]], None)]),
    "ids of list 0 must be int32 or int64, got float64": lambda: rk.fuse([(ONE * 1.0, None)]),
    "ids of list 1 must have shape (2, any), got (1, 3)": lambda: rk.fuse([(ONE, None), (ONE[:1], None)]),
    "ids of list 1 must be -1 or at least 0, got -2 for query 1": lambda: rk.fuse([(ONE, None), (ONE - 1, None)]),
    "ids of list 1 must not repeat an id within a query, got 4 twice for query 1": lambda: rk.fuse(
        [(ONE, None), (np.array([[1, 4], [4, 4]]), None)]
    ),
    "method must be one of 'rrf', 'minmax', 'zscore', got 'dbsf'": lambda: rk.fuse([(ONE, None)], "dbsf"),
    "scores of list 1 must be given with method 'zscore', got None": lambda: rk.fuse(
        [(ONE, ONE), (ONE, None)], "zscore"
    ),
    "scores of list 0 must have shape of the ids of list 0 = (2, 3), got (2, 2)": lambda: rk.fuse([(ONE, ONE[:, :2])]),
    "scores of list 0 must be as many as the ids, got 1 for 2 in row 1": lambda: rk.fuse(
        [([[1], [2, 3], []], [[0.5], [0.5], []])], "minmax"
    ),
    "scores of list 0 must be within the range of float32, got nan in row 1, position 0": lambda: rk.fuse(
        [(ONE, np.where(ONE == 4, np.nan, 1))]
    ),
    "weights must have shape (L,) = (1,), got (2,)": lambda: rk.fuse([(ONE, None)], weights=[1, 1]),
    "weights must be finite and at least 0, got -1": lambda: rk.fuse([(ONE, None)] * 2, weights=[1, -1]),
    "weights must not all be 0, got 2 of 0": lambda: rk.fuse([(ONE, None)] * 2, weights=[0, 0]),
    "k must be at least 0 and finite, got -1": lambda: rk.fuse([(ONE, None)], k=-1),
    "got an unexpected keyword argument 'weight'; did you mean 'weights'?": lambda: rk.fuse([(ONE, None)], weight=[1]),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_refused(message):
    with pytest.raises((TypeError, ValueError)) as error:
        REFUSED[message]()
    assert str(error.value) == f"fuse: {message}"
