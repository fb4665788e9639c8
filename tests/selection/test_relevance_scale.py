"""Given relevance on another scale: its definition, the same picks by every backend, and the warning of its range."""

import statistics
import warnings

import numpy as np
import pytest
from selection_calls import same, with_value

import ragsys_kernels as rk
from ragsys_kernels import testing
from ragsys_kernels._base.arrays import HOST
from ragsys_kernels.selection.relevance import scaled

METHODS = ["mmr", "vrsd", "msd", "dpp", "ssd", "sift", "coverage"]
SCALES = ["minmax", "zscore", "rank"]
Q, N, P, D = 9, 60, 25, 12
RNG = np.random.default_rng(71)
ROWS = RNG.standard_normal((N, D), dtype=np.float32)
QUERIES = RNG.standard_normal((Q, D), dtype=np.float32)
CANDIDATES = np.array([RNG.choice(N, P, replace=False) for _ in range(Q)])
CANDIDATES[2, 10:] = CANDIDATES[3, 1:] = -1
CANDIDATES[5, ::3] = -1  # padding may be anywhere
SCORES = RNG.gamma(2, 9, (Q, P)).round().astype(np.float32)  # as BM25's, with ties
SCORES[4] = 7


def by_definition(values, scale):
    if len(set(values)) == 1:
        return [0.0] * len(values)
    if scale == "minmax":
        return [(x - min(values)) / (max(values) - min(values)) for x in values]
    if scale == "zscore":
        return [(x - statistics.mean(values)) / statistics.pstdev(values) for x in values]
    order = sorted(values)
    places = {x: [i for i, y in enumerate(order) if y == x] for x in values}
    return [statistics.mean(places[x]) / (len(values) - 1) for x in values]


@pytest.mark.parametrize("scale", SCALES)
def test_values_are_those_of_the_definition_in_any_batch(scale):
    found = scaled(SCORES, CANDIDATES, None, scale, HOST)
    assert found.dtype == np.float32
    for q in range(Q):
        real = CANDIDATES[q] >= 0
        expected = by_definition(SCORES[q, real].tolist(), scale)
        assert found[q, real] == pytest.approx(expected, abs=1e-7)
        alone = np.where(real)[0]  # without the padding, and by itself
        one = scaled(SCORES[None, q, alone], None, None, scale, HOST)
        assert one.tobytes() == found[q, real].tobytes()
        assert np.array_equal(found[q, ~real], SCORES[q, ~real])
    assert scaled(SCORES[:0], CANDIDATES[:0], None, scale, HOST).shape == (0, P)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("dtype", ["int", "float16", "float64", "far"])
def test_values_of_other_types(scale, dtype):
    values = {"int": SCORES, "float16": SCORES.astype("f2"), "float64": SCORES.astype("f8") / 3, "far": SCORES * 1e30}
    given = values[dtype].astype(int).astype("f4") if dtype == "int" else values[dtype]
    picks = rk.mmr(None, ROWS, 4, candidates=CANDIDATES, relevance=given, relevance_scale=scale)
    for q in range(Q):
        real = CANDIDATES[q] >= 0
        expected = dict(
            zip(CANDIDATES[q, real], by_definition(given[q, real].astype("f4").tolist(), scale), strict=True)
        )
        n = int(picks.lengths[q])
        wanted = [expected[row] for row in picks.indices[q, :n]]
        assert picks.relevance[q, :n] == pytest.approx(wanted, rel=1e-5, abs=1e-6)


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("method", METHODS)
def test_every_rule_takes_it(method, scale, backend):
    problem = {"queries": QUERIES, "embeddings": ROWS, "k": 5, "candidates": CANDIDATES, "relevance": SCORES}
    picks = getattr(rk, method)(**problem, relevance_scale=scale, backend=backend)
    testing.check_selection(method, {**problem, "relevance_scale": scale}, picks)
    problem["relevance"] = scaled(SCORES, CANDIDATES, None, scale, HOST)
    same(picks, getattr(rk, method)(**problem, backend=backend))


@pytest.mark.parametrize("scale", SCALES)
def test_corpora_dense_pools_and_filters(scale):
    corpus = rk.Corpus(ROWS).delete([3, 8])
    relevance = RNG.gamma(2, 9, (Q, N)).astype(np.float32)
    relevance[:, 3] = 1e6  # of a row that has gone
    live = np.ones(N, bool)
    live[[3, 8]] = False
    expected = corpus.select(QUERIES, 5, pool=None, relevance=scaled(relevance, None, live, scale, HOST))
    found = corpus.select(QUERIES, 5, pool=None, relevance=relevance, relevance_scale=scale)
    assert np.array_equal(found.indices, expected.indices)
    assert found.scores.tobytes() == expected.scores.tobytes()
    pools = ROWS[np.maximum(CANDIDATES, 0)]
    dense = rk.mmr(QUERIES, pools, 5, relevance=SCORES, relevance_scale=scale, exclude=np.array([0, 4]))
    whole = scaled(SCORES, None, None, scale, HOST)  # what may not be picked counts
    assert np.array_equal(dense.indices, rk.mmr(QUERIES, pools, 5, relevance=whole, exclude=np.array([0, 4])).indices)
    rows = np.arange(P)[None].repeat(Q, 0)
    among = rk.mmr(QUERIES, ROWS, 5, candidates=rows, relevance=SCORES, relevance_scale=scale, exclude=np.array([0, 4]))
    assert np.array_equal(among.relevance[:, :1], dense.relevance[:, :1])


@pytest.mark.parametrize("scale", SCALES)
def test_paths_take_it(scale):
    call = {"candidates": CANDIDATES, "relevance": SCORES}
    path = rk.mmr_path(QUERIES, ROWS, 4, relevance_scale=scale, **call)
    call["relevance"] = scaled(SCORES, CANDIDATES, None, scale, HOST)
    same(path, rk.mmr_path(QUERIES, ROWS, 4, **call))


@pytest.mark.parametrize("scale", SCALES)
def test_gist_and_similarities_in_the_place_of_vectors_take_it(scale):
    before = scaled(SCORES, CANDIDATES, None, scale, HOST)
    own = rk.gist(None, ROWS, 4, candidates=CANDIDATES, relevance=SCORES, relevance_scale=scale)
    assert np.array_equal(own.indices, rk.gist(None, ROWS, 4, candidates=CANDIDATES, relevance=before).indices)
    unit = ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)
    pools = unit[np.maximum(CANDIDATES, 0)]
    call = {"candidates": CANDIDATES, "similarity": pools @ pools.transpose(0, 2, 1), "backend": "reference"}
    own = rk.mmr(None, None, 4, relevance=SCORES, relevance_scale=scale, **call)
    assert np.array_equal(own.indices, rk.mmr(None, None, 4, relevance=before, **call).indices)


@pytest.mark.parametrize("scale", SCALES)
def test_what_is_not_finite_is_named_as_without_a_scale(scale):
    call = {"embeddings": ROWS, "k": 4, "candidates": CANDIDATES, "relevance_scale": scale}
    whole = rk.mmr(None, relevance=SCORES, **call)
    for bad in (np.nan, np.inf, -np.inf):
        scores = with_value(SCORES, (1, 6), bad)
        with pytest.raises(ValueError, match="mmr: relevance must be finite, got NaN or inf in row 1, position 6"):
            rk.mmr(None, relevance=scores, **call)
        skipped = rk.mmr(None, relevance=scores, **call, on_error="skip")
        assert list(skipped.errors) == [1]
        assert np.array_equal(np.delete(skipped.indices, 1, 0), np.delete(whole.indices, 1, 0))


@pytest.mark.parametrize("op", [*METHODS, "mmr_path"])
def test_bad_scales_are_refused(op):
    call = getattr(rk, op)
    rule = "must be one of 'as-is', 'minmax', 'zscore', 'rank'"
    for scale in ("max", None, 1):
        with pytest.raises((ValueError, TypeError), match=f"{op}: relevance_scale {rule}, got {scale!r}"):
            call(QUERIES, ROWS, 3, candidates=CANDIDATES, relevance=SCORES, relevance_scale=scale)
    with pytest.raises(ValueError, match=f"{op}: relevance_scale must come with relevance, got 'rank' alone"):
        call(QUERIES, ROWS, 3, relevance_scale="rank")


def warned(call):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        call()
    return [str(each.message) for each in seen if each.category is rk.RelevanceRangeWarning]


@pytest.mark.parametrize("method", METHODS)
def test_a_range_without_redundancy_is_warned_of_once(method):
    def asked(scale, **options):
        scores = SCORES / SCORES.max() * scale
        return warned(lambda: getattr(rk, method)(QUERIES, ROWS, 3, candidates=CANDIDATES, relevance=scores, **options))

    far = asked(60)
    if method in ("dpp", "ssd"):  # which go by z-scores
        assert far == []
        return
    top_k = ", lambda_d=1 is top-k" if "lambda_d" in rk.METHODS[method].parameters else ""
    assert far == [
        f"{method}: relevance spreads over more than 10 times the largest similarity, so that redundancy has no say; "
        f"relevance_scale='minmax' puts it on the scale of similarity{top_k}"
    ]
    assert asked(5) == asked(60, relevance_scale="minmax") == []
    if method in ("mmr", "msd", "coverage"):
        assert asked(60, lambda_d=1) == []
        assert len(asked(60, lambda_d=np.linspace(0, 1, Q))) == 1


RANKS = (1 / (60 + np.arange(1, P + 1, dtype=np.float32)))[None].repeat(Q, 0)  # reciprocal rank fusion


@pytest.mark.parametrize("method", ["mmr", "msd"])
def test_relevance_without_a_say_is_warned_of_once(method):
    def asked(scores, candidates=CANDIDATES, **options):
        call = {"k": 3, "candidates": candidates, "relevance": scores, **options}
        return warned(lambda: getattr(rk, method)(None, call.pop("embeddings", ROWS), **call))

    assert asked(RANKS) == [
        f"{method}: relevance differs so little that, but for the first, the picks are those without it; "
        "relevance_scale='minmax' puts it on the scale of similarity"
    ]
    for scale in SCALES:
        assert asked(RANKS, relevance_scale=scale) == []
    # Whatever stands in padding, and wherever it is.
    padded = np.where(np.arange(P) < P // 2, CANDIDATES, -1)
    assert len(asked(np.where(CANDIDATES < 0, 9, RANKS))) == len(asked(np.where(padded < 0, 9, RANKS), padded)) == 1
    assert len(asked(RANKS, embeddings=rk.Corpus(ROWS, dtype="int8"))) == 1
    dense = RNG.standard_normal((Q, P, D), dtype=np.float32)
    assert len(asked(RANKS, None, embeddings=dense)) == 1
    # It has a say: by its weight, by its range, or since items that are alike have similarities as narrow.
    assert asked(RANKS, lambda_d=0.99) == asked(RANKS, lambda_d=1) == asked(100 * RANKS) == []
    near = ROWS[:1] + 1e-2 * RNG.standard_normal((N, D), dtype=np.float32)
    assert asked(RANKS, embeddings=near) == []
    dense[1:] = dense[1:, :1] + 1e-2 * dense[1:]
    assert asked(RANKS, None, embeddings=dense) == []
    # Or it is meant to have none.
    assert asked(np.ones_like(RANKS)) == asked(RANKS, lambda_d=0) == asked(40 * RANKS, lambda_d=0.01) == []
    # With one pick it has all the say; initial items make it one more.
    assert asked(RANKS, k=1) == []
    assert len(asked(RANKS, k=1, initial=np.full((Q, 1), 59))) == 1
    # One of the queries makes no scale: their most do.
    few = np.where(np.arange(Q)[:, None] < 2, RANKS, 100 * RANKS)
    assert asked(few) == []
    assert len(asked(np.where(np.arange(Q)[:, None] < 5, RANKS, 100 * RANKS))) == 1
    # Products have a range of their own, and are not looked at.
    assert asked(RANKS, metric="dot") == []


def test_most_calls_of_one_query_are_not_looked_at():
    def asked(queries):
        return warned(lambda: rk.mmr(None, ROWS, 3, candidates=CANDIDATES[:queries], relevance=RANKS[:queries]))

    told = [len(asked(1)) for _ in range(200)]
    assert np.flatnonzero(told).tolist() == [*range(16), 64, 128, 192]
    assert all(len(asked(2)) == 1 for _ in range(100))


def greedy(unit, relevance, k, weight):
    """Picks by the definition of MMR, in float64: relevance decides the first, and the others by its weight."""
    picks = [int(relevance.argmax())]
    while len(picks) < k:
        worth = weight * relevance - (1 - weight) * (unit @ unit[picks].T).max(axis=1)
        worth[picks] = -np.inf
        picks.append(int(worth.argmax()))
    return picks


def pools_of(kind):
    rng = np.random.default_rng(5)
    if kind == "clusters":
        centres = rng.standard_normal((8, 6, 48))
        rows = centres[np.arange(8)[:, None], rng.integers(0, 6, (8, 30))] + 0.5 * rng.standard_normal((8, 30, 48))
    elif kind == "a common direction":
        rows = rng.standard_normal((8, 30, 96)) + 0.5 * np.sqrt(96) * np.eye(96)[0]
    else:
        rows = rng.standard_normal((8, 30, int(kind)))
    return rows.astype("f4"), np.stack([1 / (61 + rng.permutation(30)) for _ in range(8)]).astype("f4")


@pytest.mark.parametrize("kind", ["32", "384", "clusters", "a common direction"])
def test_the_warning_comes_where_most_picks_are_those_without_relevance(kind):
    rows, ranks = pools_of(kind)
    unit = rows / np.linalg.norm(rows, axis=2, keepdims=True).astype(float)
    told = set()
    for weight in (0.5, 0.6, 0.75, 0.9):
        for factor in (1, 2, 4):
            for k in (2, 4, 10):
                same, both = 0, 0
                for q in range(8):
                    scores = factor * ranks[q].astype(float)
                    level = np.where(scores == scores.max(), 1, 0)  # a constant, but for the first pick
                    kept = greedy(unit[q], scores, k, weight) == greedy(unit[q], level * 1e-9, k, weight)
                    cosines = np.delete(unit[q] @ unit[q, scores.argmax()], scores.argmax())
                    same += kept
                    both += kept and np.ptp(scores) < 0.1 * np.ptp(cosines) * (1 - weight) / weight
                expected = both > 4
                seen = warned(lambda: rk.mmr(None, rows, k, relevance=factor * ranks, lambda_d=weight))  # noqa: B023
                assert len(seen) == expected, (weight, factor, k, same)
                told.add((expected, same > 4))
    assert {(True, True), (False, False)} <= told


def test_relevance_that_decides_among_equals_has_a_say():
    """Without it the first of them would be picked, and given in that order it would pick the same."""
    ranks = (1 / (60 + np.arange(20, dtype=np.float32)))[None]
    for rows in (np.ones((1, 20, 8), np.float32), np.eye(20, dtype=np.float32)[None, [0, *range(19)]]):
        for op in (rk.mmr, rk.msd):
            assert warned(lambda op=op, rows=rows: op(None, rows, 4, relevance=ranks)) == []
    # One item that is left is no choice.
    assert warned(lambda: rk.mmr(None, np.eye(2, 8, dtype=np.float32)[None], 2, relevance=ranks[:, :2])) == []


def test_a_narrow_call_is_answered_as_any_other():
    """Limits, filters, bad queries and rows that are gone: those that are looked at go through all of it again."""
    corpus, rng = rk.Corpus(ROWS).delete([3, 8]), np.random.default_rng(8)
    relevance = (1 / (60 + np.stack([rng.permutation(N) for _ in range(Q)]))).astype(np.float32)
    with_gone = relevance.copy()
    with_gone[:, [3, 8]] = 7
    for call in (
        {}, {"max_similarity": 0.5}, {"groups": np.arange(N) % 4, "max_per_group": 1}, {"bias": np.zeros(N, "f4")},
        {"costs": np.ones(N), "budget": 3.0}, {"initial": np.full((Q, 1), 9)}, {"allowed": np.arange(5, 50)},
        {"allowed": np.array([rng.choice(N, 20, replace=False) for _ in range(Q)])}, {"backend": "reference"},
        {"exclude": np.arange(Q)[:, None]}, {"query_groups": np.arange(Q) % 4, "groups": np.arange(N) % 4},
    ):  # fmt: skip
        seen = warned(lambda call=call: corpus.select(None, 3, pool=None, relevance=with_gone, **call))
        assert len(seen) == 1, call
    bad = with_value(SCORES / 3000, (6, 6), np.nan)
    picks = {}

    def skipped(**call):
        picks.update(found=rk.mmr(None, ROWS, 3, candidates=CANDIDATES, on_error="skip", **call))

    assert len(warned(lambda: skipped(relevance=bad))) == 1
    assert list(picks["found"].errors) == [6]


def test_relevance_without_a_say_beside_given_similarities():
    pairs = RNG.uniform(0, 1, (1, P, P)).astype(np.float32)
    call = {"relevance": RANKS[:1], "k": 3}
    assert len(warned(lambda: rk.mmr(similarity=pairs, **call))) == 1
    assert warned(lambda: rk.mmr(similarity=pairs / 100, **call)) == []
    names = np.arange(P)[None]
    assert warned(lambda: rk.mmr(similarity=lambda ids, one: pairs[0, one, ids], candidates=names, **call)) == []
    # Similarities of a unit of their own are not compared with relevance.
    assert warned(lambda: rk.mmr(similarity=100 * pairs, relevance=5000 * RANKS[:1], k=3, metric="dot")) == []


def test_a_look_at_the_range_refuses_nothing_by_itself():
    """Ids out of range, empty pools, rows with NaN: the error is that of the kernels, or there is none."""
    rows = ROWS.copy()
    rows[7] = np.nan
    for candidates, message in (
        ([[7, 3, 5]], "embeddings must be finite"), ([[99, 3, 5]], "candidates must be -1 or rows"), ([[-1] * 3], None),
        ([[99, 98, 97]], "candidates must be -1 or rows"),
        ([[4, -1, -1]], None),
    ):  # fmt: skip
        call = {"candidates": np.array(candidates), "relevance": RANKS[:1, :3], "k": 2}
        if message is None:
            assert warned(lambda call=call: rk.mmr(None, rows, **call)) == []
            continue
        with pytest.raises(ValueError, match=f"^mmr: {message}"):
            warned(lambda call=call: rk.mmr(None, rows, **call))


@pytest.mark.parametrize("form", ["rows", "pools", "dense"])
def test_items_of_the_query_s_own_group_are_not_looked_at(form):
    """No kernel reads them: neither is what they have no number, nor the relevance that they have."""
    rows = np.random.default_rng(6).standard_normal((Q, P, D) if form == "dense" else (P, D), dtype=np.float32)
    rows[..., 4, :] = np.inf
    groups = np.broadcast_to(np.arange(P) == 4, rows.shape[:-1]).astype(int)
    call = {"groups": groups, "query_groups": np.ones(Q, int)}
    call |= {"candidates": np.tile(np.arange(P), (Q, 1))} if form == "pools" else {}
    for value in (RANKS[0, 4], 1.0, 60.0):
        seen = warned(lambda value=value: rk.mmr(None, rows, 3, relevance=with_value(RANKS, (..., 4), value), **call))
        assert len(seen) == 1
        assert "differs so little" in seen[0]


def test_padding_is_no_range_and_products_have_one_of_their_own():
    scores = np.where(CANDIDATES < 0, -1e9, 0.5).astype(np.float32)
    assert warned(lambda: rk.mmr(None, ROWS, 3, candidates=CANDIDATES, relevance=scores)) == []
    corpus = rk.Corpus(10 * ROWS, metric="dot")
    near, far = (np.linspace(0, x, N, dtype=np.float32)[None] for x in (5000, 50 * float(corpus.max_norm) ** 2))
    assert warned(lambda: rk.mmr(None, corpus, 3, relevance=near)) == []
    assert len(warned(lambda: rk.mmr(None, corpus, 3, relevance=far))) == 1
    assert len(warned(lambda: rk.mmr_path(None, ROWS, 3, relevance=far))) == 1


@pytest.mark.parametrize("scale", SCALES)
def test_tensors_are_scaled_as_arrays_are(scale):
    """The pass before a device's kernels, on tensors of the host."""
    torch = pytest.importorskip("torch")
    from ragsys_kernels._base.arrays import Torch

    live = np.arange(P) % 3 > 0
    for candidates, rows in ((CANDIDATES, None), (None, live), (None, None)):
        given = (None if x is None else torch.from_numpy(x) for x in (candidates, rows))
        found = scaled(torch.from_numpy(SCORES), *given, scale, Torch("cpu"))
        assert found.dtype == torch.float32
        assert found.numpy().tobytes() == scaled(SCORES, candidates, rows, scale, HOST).tobytes()


def test_ids_of_a_query_without_an_answer_are_not_looked_at():
    rows, relevance = np.eye(6, dtype=np.float32), np.full((2, 4), 0.5, np.float32) + np.float32(1e-3) * np.arange(4)
    candidates = np.array([[2**62, 1, 2, 3], [0, 1, 2, 3]])
    given = {"candidates": candidates, "relevance": relevance.astype(np.float32), "groups": np.arange(6)}
    found = rk.mmr(None, rows, 2, query_groups=np.array([1, 5]), on_error="skip", **given)
    assert [*found.errors] == [0]
