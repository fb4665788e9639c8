"""The path of MMR: every selection by its weight, against fractions, and against selections at single weights."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from selection_calls import same

import ragsys_kernels as rk
from ragsys_kernels import testing

pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")


def exact_picks(v, s, k, weight, initial=()):
    """Algorithm 1 in fractions: v (P,) and similarities s (P, P) of integers; ties go to the lowest position."""
    picks = list(initial)
    while len(picks) < min(k + len(initial), len(v)):
        worth = {}
        for i in set(range(len(v))) - set(picks):
            m = max((s[i][c] for c in picks), default=None)
            worth[i] = Fraction(v[i]) if m is None else weight * v[i] - (1 - weight) * m
        picks.append(min(worth, key=lambda i: (-worth[i], i)))
    return picks[len(initial) :]


def breakpoints(v, s):
    """Every weight in (0, 1) at which the values of two items can be equal, whatever has been picked."""
    found = set()
    for i, j in itertools.combinations(range(len(v)), 2):
        for m_i, m_j in itertools.product(set(s[i]), set(s[j])):
            rise = v[j] + m_j - v[i] - m_i
            if rise and 0 < (at := Fraction(m_j - m_i, rise)) < 1:
                found.add(at)
    return sorted(found)


def check_ends(path, low, high):
    """The segments of each query have every float64 from low to high once, and neighbours have different picks."""
    for q in range(len(path.cu_segments) - 1):
        lows, highs, picks = path.of(q)[1:]
        assert lows[0] == low
        assert highs[-1] == high
        assert (lows <= highs).all()
        np.testing.assert_array_equal(np.nextafter(highs[:-1], 2), lows[1:])
        assert len({tuple(row) for row in picks.tolist()}) == len(picks)


def integers(rng, size, dims, most):
    rows = rng.integers(-most, most + 1, (size, dims))
    query = rng.integers(-most, most + 1, dims)
    return query, rows, (rows @ query).tolist(), (rows @ rows.T).tolist()


def path_of(query, rows, k, backend, **options):
    arrays = (x.astype(np.float32) for x in (query[None], rows))
    return rk.mmr_path(*arrays, k, metric="dot", backend=backend, **options)


def check_exactly(query, rows, v, s, k, backend, weights):
    path = path_of(query, rows, k, backend)
    check_ends(path, 0.0, 1.0)
    for low, high, picks in zip(*path[1:], strict=True):
        wanted = [*picks[picks >= 0]]
        assert exact_picks(v, s, k, Fraction(float(low))) == wanted
        assert exact_picks(v, s, k, Fraction(float(high))) == wanted
    for weight in weights:
        found = path.at(float(weight))[0]
        assert [*found[found >= 0]] == exact_picks(v, s, k, Fraction(float(weight)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(6))
def test_paths_are_those_of_fractions_at_and_between_all_breakpoints(backend, seed):
    rng = np.random.default_rng(seed)
    query, rows, v, s = integers(rng, 5 + seed % 2, 3, 2 + seed)
    points = breakpoints(v, s)
    between = [(a + b) / 2 for a, b in itertools.pairwise([Fraction(0), *points, Fraction(1)])]
    check_exactly(query, rows, v, s, 4, backend, [*points, *between, 0, 1])


@given(st.integers(0, 2**32), st.integers(2, 24), st.integers(1, 3), st.integers(1, 9), st.integers(1, 3))
def test_ends_of_segments_are_exact(seed, size, dims, k, most):
    # Small numbers: many equal rows, zero rows and ties, and breakpoints at which several lines meet.
    query, rows, v, s = integers(np.random.default_rng(seed), size, dims, most)
    for backend in ("reference", "auto"):
        check_exactly(query, rows, v, s, k, backend, [0, 0.25, 0.5, 0.75, 1])


def test_a_tie_can_have_picks_of_its_own(backend):
    # After row 0 the values of rows 1, 2 and 3 are 0, λ - (1-λ) and (1-λ) - λ: they meet at 1/2, where row 1 is picked
    # as the lowest; below row 3 is on top, above it row 2.
    rows, v = np.array([[1], [0], [1], [-1]], np.float32), np.array([[10, 0, 1, -1]], np.float32)
    path = rk.mmr_path(None, rows, 2, candidates=np.arange(4)[None], relevance=v, metric="dot", backend=backend)
    assert path.indices.tolist() == [[0, 3], [0, 1], [0, 2]]
    assert path.low[1] == path.high[1] == 0.5
    for weight, second in ((0.5, 1), (np.nextafter(0.5, 0), 3), (np.nextafter(0.5, 1), 2)):
        assert path.at(weight).tolist() == [[0, second]]


def test_items_that_tie_at_0_part_at_the_next_weight(backend):
    # Rows 1 and 2 are at right angles to row 0: their values, 0.1 λ and 0.3 λ, meet at 0 and nowhere else.
    v = np.array([[1, 0.1, 0.3]], np.float32)
    path = rk.mmr_path(
        None, np.eye(3, dtype=np.float32), 2, candidates=np.arange(3)[None], relevance=v, backend=backend
    )
    assert path.indices.tolist() == [[0, 1], [0, 2]]
    assert path.high[0] == 0
    assert path.low[1] == np.nextafter(0, 1)


@pytest.mark.parametrize("seed", range(4))
def test_ends_fit_whatever_the_sizes_of_values_are(backend, seed):
    rng = np.random.default_rng(seed)
    sizes = 10.0 ** rng.integers(-18, 7, (2, 30))
    rows = (rng.integers(-3, 4, (30, 2)) * sizes[0][:, None]).astype(np.float32)
    v = (rng.standard_normal(30) * sizes[1]).astype(np.float32)[None]
    check_ends(
        rk.mmr_path(None, rows, 5, candidates=np.arange(30)[None], relevance=v, metric="dot", backend=backend), 0.0, 1.0
    )


def problem(seed=0, **shape):
    given = testing.selection_problem(3, 40, 6, 24, seed=seed, **shape)
    given.pop("lambda_d", None)
    return given


def at_single_weights(given, weights, backend, **options):
    """The picks of `mmr` of one query at many weights."""
    given = dict(given)
    for name, array in given.items():
        if isinstance(array, np.ndarray) and (array.shape[0] == 1):
            given[name] = np.repeat(array, len(weights), axis=0)
    return rk.mmr(**given, lambda_d=weights, backend=backend, **options)


def of_query(given, q):
    """The problem of one of its three queries."""
    return {
        name: array[q : q + 1] if isinstance(array, np.ndarray) and array.shape[0] == 3 else array
        for name, array in given.items()
    }


GRID = np.linspace(0, 1, 301, dtype=np.float32)
SHAPES = {
    "plain": {"kind": "clustered"},
    "everything": {"ragged": True, "bias": True, "groups": True, "budget": True, "ceiling": True},
    "duplicates": {"dense": True, "groups": True, "kind": "duplicates"},
    "shown": {"kind": "clustered", "initial": True},
}


def shaped(name, seed):
    shape = dict(SHAPES[name])
    shown = shape.pop("initial", False)
    given = problem(seed, **shape)
    if shown:
        given["initial"] = np.array([[3, -1, 5]] * 3)
    return given


def both_sides(path):
    """The float32 weights beside every breakpoint."""
    ends = np.concatenate([path.low, path.high])
    near = ends.astype(np.float32)
    sides = np.concatenate([np.nextafter(near, np.float32(0)), near, np.nextafter(near, np.float32(1))])
    return np.unique(sides.clip(0, 1))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", SHAPES)
def test_the_reference_picks_the_same_at_single_weights(name):
    given = shaped(name, 1)
    path = rk.mmr_path(**given, backend="reference")
    check_ends(path, 0.0, 1.0)
    of_one = path.of(1)
    assert len(of_one.low) >= 5
    weights = np.concatenate([GRID, both_sides(of_one)])
    single = at_single_weights(of_query(given, 1), weights, "reference")
    for weight, picks in zip(weights, single.indices, strict=True):
        np.testing.assert_array_equal(of_one.at(weight)[0], picks, err_msg=str(weight))


def value_of(given, weight, item, before):
    """w of an item of a query of cosines after some picks, in float64."""
    rows = given["embeddings"].reshape(-1, given["embeddings"].shape[-1]).astype(np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    query = given["queries"][0].astype(np.float64)
    v = rows[item] @ query / np.linalg.norm(query)
    if "bias" in given:
        v = 0.95 * v + 0.05 * given["bias"].reshape(-1)[item]
    return weight * v - (1 - weight) * max(rows[item] @ rows[j] for j in before)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SHAPES)
def test_the_compiled_path_agrees_with_compiled_selections_up_to_near_ties(name, isa):
    given = shaped(name, 2)
    path = rk.mmr_path(**given, backend="cpu")
    check_ends(path, 0.0, 1.0)
    of_one, given = path.of(1), of_query(given, 1)
    weights = np.concatenate([GRID, both_sides(of_one)])
    single = at_single_weights(given, weights, "cpu")
    shown = [i for i in given["initial"][0] if i >= 0] if "initial" in given else []
    differ = 0
    for weight, picks in zip(weights, single.indices, strict=True):
        ours = of_one.at(weight)[0]
        if (ours != picks).any():
            step = int(np.argmax(ours != picks))
            before = [*shown, *picks[:step]]
            values = [value_of(given, float(weight), item, before) for item in (ours[step], picks[step])]
            assert abs(values[0] - values[1]) < 5e-7, (weight, ours, picks)
            differ += 1
    assert differ < 0.1 * len(weights)
    # The reference's breakpoints are the same up to rounding.
    theirs = rk.mmr_path(**given, backend="reference")
    same = [(of_one.at(weight) == theirs.at(weight)).all() for weight in GRID]
    assert np.mean(same) > 0.99


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_rows_and_threads_give_the_same_bits(dtype):
    pytest.importorskip("torch")
    given = testing.selection_problem(40, 60, 8, 33, dtype=dtype, seed=3, kind="clustered", bias=True)
    path = rk.SelectionPath(*map(np.asarray, rk.mmr_path(**given, num_threads=1)))
    check_ends(path, 0.0, 1.0)
    same(rk.mmr_path(**given, num_threads=4), path)
    single = rk.mmr(**given, lambda_d=0.37)
    assert np.mean(path.at(np.float32(0.37)) == np.asarray(single.indices)) > 0.99


def test_a_part_of_the_range_has_the_same_picks(backend):
    given = shaped("plain", 0)
    whole = rk.mmr_path(**given, backend=backend)
    part = rk.mmr_path(**given, low=0.3, high=0.6, backend=backend)
    check_ends(part, 0.3, 0.6)
    for weight in (0.3, 0.45, 0.6):
        np.testing.assert_array_equal(part.at(weight), whole.at(weight))
    point = rk.mmr_path(**given, low=0.5, high=0.5, backend=backend)
    np.testing.assert_array_equal(point.num_segments, [1, 1, 1])
    np.testing.assert_array_equal(point.indices, whole.at(0.5))


def test_k_of_each_query_and_padding(backend):
    given = testing.selection_problem(3, 14, 6, 24) | {"k": np.array([1, 6, 20])}
    path = rk.mmr_path(**given, backend=backend)
    assert path.indices.shape == (len(path.low), 20)
    assert path.num_segments[0] == 1  # of one pick, the argmax of v
    np.testing.assert_array_equal((path.at(0.5) >= 0).sum(axis=1), [1, 6, 14])
    single = rk.mmr(**given, lambda_d=0.5, backend=backend)
    np.testing.assert_array_equal(path.at(0.5), single.indices)


def test_weights_and_queries_are_taken_apart(backend):
    given = shaped("plain", 0)
    path = rk.mmr_path(**given, backend=backend)
    each = path.at(np.array([0.1, 0.5, 0.9]))
    for q, weight in enumerate((0.1, 0.5, 0.9)):
        np.testing.assert_array_equal(path.at(weight)[q], each[q])
        np.testing.assert_array_equal(path.of(q).at(weight)[0], each[q])
        np.testing.assert_array_equal(path.of(q - 3).low, path.of(q).low)
    np.testing.assert_array_equal(path.num_segments, np.diff(path.cu_segments))
    with pytest.raises(IndexError, match="query must be below Q = 3, got 3"):
        path.of(3)
    for weight, message in (
        (1.5, r"lambda_d must be within \[0, 1\], got 1.5"),
        (np.nan, "must be within"),
        (np.zeros(2), r"lambda_d must be a number or have shape \(3,\), got \(2,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            path.at(weight)


def test_no_queries_and_no_items(backend):
    empty = rk.mmr_path(np.zeros((0, 4), np.float32), np.eye(4, dtype=np.float32), 2, backend=backend)
    assert [len(field) for field in empty] == [1, 0, 0, 0]
    assert empty.at(0.5).shape == (0, 2)
    assert empty.num_segments.tolist() == []
    nothing = rk.mmr_path(
        np.ones((1, 4), np.float32), np.eye(4, dtype=np.float32), 2, candidates=np.array([[-1, -1]]), backend=backend
    )
    assert nothing.indices.tolist() == [[-1, -1]]
    assert (nothing.low.tolist(), nothing.high.tolist()) == ([0.0], [1.0])


def test_filters_of_a_whole_corpus(backend):
    rng = np.random.default_rng(5)
    rows, queries = (rng.standard_normal((n, 8), dtype=np.float32) for n in (60, 2))
    allowed = rng.random((2, 60)) < 0.5
    for may in (allowed, allowed[0], np.flatnonzero(allowed[1])):
        path = rk.mmr_path(queries, rows, 4, allowed=may, exclude=np.array([3, 4]), backend=backend)
        single = rk.mmr(queries, rows, 4, allowed=may, exclude=np.array([3, 4]), lambda_d=0.4, backend=backend)
        np.testing.assert_array_equal(path.at(np.float32(0.4)), single.indices)


def test_a_corpus_and_tensors():
    torch = pytest.importorskip("torch")
    given = shaped("plain", 0)
    expected = rk.mmr_path(**given)
    rows = given.pop("embeddings")
    found = rk.Corpus(rows)
    path = rk.mmr_path(embeddings=found, **given)
    assert len(path.low) == len(expected.low)
    tensors = {
        name: torch.from_numpy(array) if isinstance(array, np.ndarray) else array for name, array in given.items()
    }
    path = rk.mmr_path(embeddings=torch.from_numpy(rows), **tensors)
    assert all(isinstance(field, torch.Tensor) for field in path)
    same(path, expected)
    assert isinstance(path.at(0.5), torch.Tensor)
    np.testing.assert_array_equal(path.of(1).at(0.5).numpy(), expected.at(0.5)[1:2])


def test_a_device_has_no_paths():
    with pytest.raises(rk.BackendUnavailableError, match="backend 'triton' was requested but cannot"):
        rk.mmr_path(**shaped("plain", 0), backend="triton")


def test_a_bad_value_is_named(backend):
    given = shaped("plain", 0)
    given["embeddings"][given["candidates"][1, 7]] = np.nan
    with pytest.raises(ValueError, match="mmr_path: embeddings must be finite"):
        rk.mmr_path(**given, backend=backend)
