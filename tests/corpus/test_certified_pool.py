"""`Corpus.select`: what it certifies by itself, and pools that grow until all queries are certified."""

import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels.corpus import certified, retrieve

pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")


@pytest.fixture(scope="module")
def drawn():
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((40, 24))

    def some(count):
        return (centres[rng.integers(0, 40, count)] + 0.7 * rng.standard_normal((count, 24))).astype(np.float32)

    rows, queries = some(4000), some(80)
    columns = {"bias": rng.standard_normal(4000), "groups": rng.integers(0, 900, 4000), "costs": np.ones(4000)}
    return rk.Corpus(rows, **columns), queries, rows


def test_outside_is_what_the_next_row_of_the_search_has_at_most(drawn):
    corpus, queries, _ = drawn
    picks = corpus.select(queries, 5, pool=60, lambda_d=0.9)
    least = corpus.search(queries, 60).scores[:, -1]
    np.testing.assert_array_equal(picks.certified, least <= picks.pool_needed)


def test_a_pool_of_all_rows_leaves_nothing_outside(drawn):
    corpus, queries, rows = drawn
    small = rk.Corpus(rows[:50])
    assert small.select(queries, 5, pool=50, lambda_d=0.5).certified.all()
    assert small.select(queries, 5, pool=500, lambda_d=0.5).certified.all()
    few = corpus.select(queries, 5, pool=100, lambda_d=0.5, allowed=np.arange(70))
    assert few.certified.all()
    assert corpus.select(queries, 5, pool=None).certified.all()
    assert corpus.select(queries, 5, pool=None, method="vrsd").certified.all()


def test_nothing_is_said_of_what_is_not_known(drawn):
    corpus, queries, rows = drawn
    found = corpus.search(queries, 30).indices
    for picks in (
        corpus.select(queries, 5, candidates=found),
        corpus.select(queries, 5, pool=30, method="vrsd"),
        corpus.select(queries, 5, pool=30, method="msd"),
        rk.Corpus(rows, metric="dot").select(queries, 5, pool=30),
    ):
        assert picks.certified is None
        assert picks.pool_needed is None


def test_groups_of_queries_are_texts_as_they_are(drawn):
    _, queries, rows = drawn
    names = ["a", "a\0", "a\0\0", "\0"]
    groups = [names[i % 4] for i in range(len(rows))]
    own = [names[q % 4] for q in range(len(queries))]
    picks = rk.Corpus(rows, groups=groups).select(queries, 8, pool="certified", lambda_d=0.4, query_groups=own)
    assert picks.certified.all()
    assert not (picks.indices % 4 == np.arange(len(queries))[:, None] % 4).any()


def test_pools_of_an_index_are_not_certified(drawn):
    pytest.importorskip("faiss")
    corpus, queries, _ = drawn
    assert corpus.select(queries, 5, pool=30, index=corpus.to_faiss()).certified is None


def test_a_query_that_failed_is_not_certified(drawn):
    corpus, queries, _ = drawn
    bad = queries.copy()
    bad[3] = np.nan
    for pool in (60, None, "certified"):
        picks = corpus.select(bad, 5, pool=pool, lambda_d=0.95, on_error="skip")
        assert list(picks.errors) == [3]
        assert not picks.certified[3]


OPTIONS = {
    "plain": {},
    "own numbers": {"k": np.arange(80) % 6 + 1, "lambda_d": np.linspace(0, 1, 80), "lambda_b": np.linspace(0, 1, 80)},
    "lists": {"k": list(range(1, 5)) * 20},
    "groups": {"query_groups": np.arange(80), "max_per_group": 1},
    "budget": {"budget": np.arange(80) % 5 + 1.0},
    "ceiling": {"max_similarity": np.linspace(0.2, 1, 80)},
    "filters": {"allowed": np.arange(4000) % 3 > 0, "exclude": np.arange(160).reshape(80, 2)},
    "initial": {"initial": np.arange(80)[:, None]},
    "another bias": {"bias": np.zeros(4000)},
}


@pytest.mark.parametrize("what", OPTIONS)
def test_pools_grow_until_all_are_certified(drawn, what):
    corpus, queries, _ = drawn
    ask = {"k": 5, "lambda_d": 0.8, **OPTIONS[what]}
    picks = corpus.select(queries, pool="certified", **ask)
    whole = corpus.select(queries, pool=None, **ask)
    np.testing.assert_array_equal(picks.indices, whole.indices)
    np.testing.assert_array_equal(picks.lengths, whole.lengths)
    np.testing.assert_array_equal(picks.scores, whole.scores)
    assert picks.certified.all()
    if what == "budget":
        np.testing.assert_array_equal(picks.cost, whole.cost)


def test_tensors_on_the_host_get_tensors(drawn):
    torch = pytest.importorskip("torch")
    corpus, queries, _ = drawn
    ask = {"k": 5, "pool": "certified", "budget": 3.0}
    picks, expected = corpus.select(torch.from_numpy(queries), **ask), corpus.select(queries, **ask)
    for name in (*picks._fields, "cost", "certified", "pool_needed"):
        found = getattr(picks, name)
        assert isinstance(found, torch.Tensor)
        np.testing.assert_array_equal(found.numpy(), getattr(expected, name))


def crowded(rng):
    """Rows of which the 15 nearest to a query are nearly equal, 10 a little further off are better second picks."""
    queries = rng.standard_normal((20, 64))
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    aside = rng.standard_normal((20, 64))
    aside -= (aside * queries).sum(axis=1, keepdims=True) * queries
    aside /= np.linalg.norm(aside, axis=1, keepdims=True)
    near, others = np.repeat(queries + 0.33 * aside, 15, axis=0), np.repeat(queries - 0.48 * aside, 10, axis=0)
    rows = np.concatenate([rng.standard_normal((2000, 64)) / 8, near, others])
    return queries.astype(np.float32), (rows + 0.002 * rng.standard_normal(rows.shape)).astype(np.float32)


@pytest.mark.parametrize("name", ["k", "initial"])
def test_the_pool_that_is_needed_is_that_of_the_picks_returned(drawn, monkeypatch, name):
    """Whatever pools came before: the rows down to `pool_needed` are a pool that certifies the picks, and a pool of all
    rows asks for no less. It is -inf, all rows, where the picks are out of the whole corpus.
    """
    _, *plain = drawn
    parts = zip((np.pad(array, ((0, 0), (0, 40))) for array in plain), crowded(np.random.default_rng(1)), strict=True)
    queries, rows = map(np.concatenate, parts)
    corpus = rk.Corpus(rows)
    ask = {
        "k": 2,
        "lambda_d": np.linspace(0.65, 0.85, 100),
        name: {"k": np.arange(100) % 3 + 1, "initial": np.arange(100)[:, None]}[name],
    }
    monkeypatch.setattr(certified, "_FIRST", 12)
    monkeypatch.setattr(certified, "_DEPTH", 1e6)  # larger pools are tried for all
    first = corpus.select(queries, pool=12, **ask)
    picks = corpus.select(queries, pool="certified", **ask)
    needed = picks.pool_needed
    every = np.tile(np.arange(len(corpus)), (100, 1))
    whole = rk.mmr(queries, corpus, candidates=every, outside=-np.inf, **ask).pool_needed
    finite = np.isfinite(needed)
    np.testing.assert_array_equal(needed[finite], whole[finite])
    assert np.isneginf(needed[~finite]).all()
    found = corpus.search(queries, len(corpus))
    for q, (rows, v) in enumerate(zip(*found, strict=True)):
        pool, others = rows[v > needed[q]], v[v <= needed[q]]
        mine = {name: x[q : q + 1] if np.ndim(x) else x for name, x in ask.items()}
        outside = others.max(initial=-np.inf)
        again = rk.mmr(queries[q : q + 1], corpus, candidates=pool[None], outside=outside, **mine)
        assert again.certified[0]
        np.testing.assert_array_equal(again.indices[0], picks.indices[q, : again.indices.shape[1]])
    changed = (first.indices != picks.indices).any(axis=1)
    for some in (changed, ~changed):
        assert 0 < np.count_nonzero(finite & some) < np.count_nonzero(some)


def test_pools_are_of_more_than_one_size_on_the_way(drawn, monkeypatch):
    corpus, queries, _ = drawn
    asked = []
    select = retrieve.select

    def noted(corpus, request, pool, index):
        asked.append((pool, len(request.queries)))
        return select(corpus, request, pool, index)

    monkeypatch.setattr(certified, "_FIRST", 30)
    monkeypatch.setattr(retrieve, "select", noted)
    corpus.select(queries, 5, pool="certified", lambda_d=0.85)
    assert asked.pop(0) == ("certified", 80)
    sizes = [size for size, _ in asked]
    assert sizes[:2] == [30, 120]
    assert sizes[-1] is None
    assert asked[0][1] == 80
    assert all(count < 80 for _, count in asked[1:])


def test_no_queries(drawn):
    corpus, queries, _ = drawn
    for pool in (60, None, "certified"):
        assert corpus.select(queries[:0], 5, pool=pool).certified.shape == (0,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "vrsd"}, "pool 'certified' must come with method 'mmr', got 'vrsd'"),
        ({"backend": "triton"}, "pool 'certified' must come with backend 'auto' or 'cpu' or 'reference', got 'triton'"),
        ({"candidates": [[0, 1]] * 80}, "pool 'certified' must come without candidates, got both"),
        ({"pool": "all"}, "pool must be an integer, None or 'certified', got 'all'"),
    ],
)
def test_what_cannot_be_certified_is_refused(drawn, changes, message):
    corpus, queries, _ = drawn
    with pytest.raises(ValueError, match=f"select: {message}"):
        corpus.select(queries, 5, **{"pool": "certified", **changes})


@pytest.mark.slow
def test_the_backend_of_the_environment_is_taken_into_account(drawn, run_python):
    """A kernel that cannot prove picks is not asked to; a proof that is asked for is refused by its own name."""
    pytest.importorskip("triton")
    program = """
import numpy as np
import ragsys_kernels as rk
rng = np.random.default_rng(0)
corpus = rk.Corpus(rng.standard_normal((40, 8), dtype=np.float32))
queries = rng.standard_normal((2, 8), dtype=np.float32)
found = corpus.select(queries, 3, pool=20)
assert found.certified is None, found.certified
same = corpus.select(queries, 3, pool=20, backend="cpu")
assert same.certified is not None
np.testing.assert_array_equal(found.indices, same.indices)
try:
    corpus.select(queries, 3, pool="certified")
except ValueError as error:
    assert "'certified' must come with backend 'auto' or 'cpu' or 'reference', got 'triton'" in str(error), error
else:
    raise AssertionError("not refused")
"""
    run_python(program, RAGSYS_KERNELS_BACKEND="triton", TRITON_INTERPRET="1")


def test_dot_products_cannot_be_certified(drawn):
    _, queries, rows = drawn
    with pytest.raises(ValueError, match="must come with metric 'cosine', got 'dot'"):
        rk.Corpus(rows, metric="dot").select(queries, 5, pool="certified")


@pytest.mark.parametrize("pool", [30, "certified"])
def test_nothing_is_proven_of_a_query_whose_pool_could_not_be_retrieved(drawn, pool):
    corpus, queries, _ = drawn
    found = corpus.select(queries[:2], 3, pool=pool, exclude=np.array([[1], [10**6]]), on_error="skip")
    assert list(found.errors) == [1]
    assert found.lengths.tolist() == [3, 0]
    assert not found.certified[1]
    alone = corpus.select(queries[1:2], 3, pool=pool, exclude=np.array([[10**6]]), on_error="skip")
    assert not alone.certified[0]
    if pool == 30:
        assert np.isnan(found.pool_needed[1])
