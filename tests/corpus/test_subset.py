"""Rows chosen from a whole corpus without queries: the selection with relevance 0 or that to targets."""

import inspect

import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels import _dispatch
from ragsys_kernels.selection.parameters import TABLE

BACKENDS = [name for name in ("cpu", "reference") if _dispatch.why_not(name) is None]
RNG = np.random.default_rng(0)
ROWS, BIAS = RNG.standard_normal((400, 24), dtype=np.float32), RNG.uniform(-2, 0, 400)
GROUPS, COSTS = RNG.integers(0, 9, 400), RNG.integers(1, 50, 400)
CORPUS = rk.Corpus(ROWS, bias=BIAS, groups=GROUPS, costs=COSTS)
ZEROS = np.zeros((1, 400), np.float32)

pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.RelevanceRangeWarning")


def same(a, b):
    assert all(np.array_equal(x, y, equal_nan=True) for x, y in zip(a, b, strict=True))
    assert (a.cost is None) == (b.cost is None)
    assert a.certified.tolist() == b.certified.tolist()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "options",
    [
        {}, {"lambda_d": 0.0}, {"lambda_d": 0.3, "lambda_b": 0.0}, {"max_per_group": 2}, {"budget": 300.0},
        {"max_similarity": 0.3}, {"allowed": np.arange(0, 400, 2)}, {"exclude": np.arange(30)},
        {"bias": -BIAS, "lambda_b": 0.5}, {"groups": GROUPS % 3, "max_per_group": 4},
    ],
    ids=repr,
)  # fmt: skip
def test_it_is_the_selection_with_relevance_0(backend, options):
    found = CORPUS.subset(30, backend=backend, **options)
    same(found, CORPUS.select(None, 30, relevance=ZEROS, pool=None, backend=backend, **options))
    assert found.indices.shape == (1, 30)


@pytest.mark.parametrize("rule", ["msd", "dpp", "ssd", "coverage", "gist"])
def test_every_rule_that_needs_no_query(rule):
    same(CORPUS.subset(10, rule=rule), CORPUS.select(None, 10, method=rule, relevance=ZEROS, pool=None))


def test_farthest_first():
    """lambda_d = 0: each row is the one whose nearest pick is farthest, from the first row on."""
    vectors = CORPUS.vectors(slice(None))
    picks = [0]
    while len(picks) < 20:
        picks.append(int(np.argmin((vectors @ vectors[picks].T).max(axis=1))))
    assert rk.Corpus(ROWS).subset(20, lambda_d=0).indices[0].tolist() == picks


def test_quality_weighs_lambda_d_times_1_minus_lambda_b():
    vectors, weight, picks = CORPUS.vectors(slice(None)), 0.6 * (1 - 0.25), []
    for _ in range(15):
        worth = weight * BIAS - (0.4 * (vectors @ vectors[picks].T).max(axis=1) if picks else 0)
        worth[picks] = -np.inf
        picks.append(int(np.argmax(worth)))
    assert CORPUS.subset(15, lambda_d=0.6, lambda_b=0.25).indices[0].tolist() == picks


@pytest.mark.parametrize("dtype", [list, np.int32, np.int64])
def test_rows_already_chosen_count_as_picks(dtype):
    first = CORPUS.subset(40, lambda_d=0.5)
    initial = first.indices[0, :15]
    rest = CORPUS.subset(25, lambda_d=0.5, initial=initial.tolist() if dtype is list else initial.astype(dtype))
    assert rest.indices[0].tolist() == first.indices[0, 15:].tolist()
    same(rest, CORPUS.subset(25, lambda_d=0.5, initial=initial[None]))


@pytest.mark.parametrize("metric", ["cosine", "dot"])
@pytest.mark.parametrize("how", ["mean", "max"])
def test_relevance_to_targets(how, metric):
    targets = np.random.default_rng(1).standard_normal((7, 24))
    corpus = rk.Corpus(ROWS, metric=metric)
    a, b = corpus.vectors(slice(None)), targets
    if metric == "cosine":
        a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
    relevance = getattr(a @ b.T, how)(axis=1)
    found = corpus.subset(12, targets=targets, target_relevance=how, lambda_d=0.9)
    given = corpus.select(None, 12, relevance=relevance.astype(np.float32)[None], pool=None, lambda_d=0.9)
    assert found.indices.tolist() == given.indices.tolist()
    np.testing.assert_allclose(found.relevance, given.relevance, rtol=1e-5, atol=1e-6)


def test_relevance_to_targets_is_read_in_blocks(monkeypatch):
    from ragsys_kernels.corpus import subset

    targets = ROWS[:5]
    whole = CORPUS.subset(12, targets=targets)
    monkeypatch.setattr(subset, "_BLOCK_VALUES", 200)
    same(CORPUS.subset(12, targets=targets), whole)


@pytest.mark.parametrize("rule", ["vrsd", "sift"])
def test_rules_with_a_query_take_the_mean_of_the_targets(rule):
    targets = np.random.default_rng(2).standard_normal((3, 24)).astype(np.float32)
    mean = (targets / np.linalg.norm(targets, axis=1, keepdims=True)).mean(axis=0, keepdims=True)
    found = CORPUS.subset(8, rule=rule, targets=targets)
    assert found.indices.tolist() == CORPUS.select(mean, 8, method=rule, pool=None).indices.tolist()
    with pytest.raises(ValueError, match=f"subset: targets must be given with rule '{rule}', got None"):
        CORPUS.subset(8, rule=rule)
    with pytest.raises(ValueError, match=f"subset: target_relevance must be 'mean' with rule '{rule}', got 'max'"):
        CORPUS.subset(8, rule=rule, targets=targets, target_relevance="max")


def test_it_takes_what_the_table_has():
    given = inspect.signature(rk.Corpus.subset).parameters
    select = inspect.signature(rk.Corpus.select).parameters
    without = {"candidates", "relevance", "query_groups", "metric"}  # of queries; the corpus has its own metric
    names = {parameter.name for parameter in TABLE} - without
    own = {"self", "k", "rule", "targets", "target_relevance", "neighbors", "index", "backend", "num_threads"}
    assert set(given) == names | own
    assert all(given[name].default == select[name].default for name in names)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rule": "topk"}, "subset: rule must be one of 'mmr', .*, got 'topk'"),
        ({"noise": 0.1}, "subset: noise must be left out with rule 'mmr', got 0.1$"),
        (
            {"quality": np.ones(400)},
            "subset: quality must be left out with rule 'mmr', got ndarray; did you mean 'bias'?",
        ),
        ({"target_relevance": "min"}, "subset: target_relevance must be one of 'mean', 'max', got 'min'"),
        ({"target_relevance": "max"}, "subset: target_relevance must come with targets, got 'max' alone$"),
        ({"relevance_scale": "rank"}, "subset: relevance_scale must come with targets, got 'rank' alone$"),
        ({"min_relevance": 0.1}, "subset: min_relevance must come with targets, got 0.1 alone$"),
        ({"targets": np.zeros((2, 5))}, r"subset: targets must have shape \(T, D\) with D = 24, .*, got \(2, 5\)"),
        ({"targets": np.zeros(24)}, r"subset: targets must have shape \(T, D\) with D = 24, .*, got \(24,\)"),
        ({"targets": np.full((2, 24), np.nan)}, "subset: targets must be finite, got NaN or inf in row 0"),
        ({"initial": [1, 1]}, "^subset: initial must not repeat an id within a query, got 1 twice"),
        ({"backend": "tpu"}, "^subset: backend must be one of"),
        ({"rule": "gist", "budget": 5.0}, "^subset: budget must be left out with the rule 'gist', got 5.0"),
        ({"rule": "dpp", "lambda_d": 7}, r"^subset: lambda_d must be within \[0, 1\], got 7"),
        (
            {"rule": "vrsd", "targets": np.ones((1, 24)), "groups": [1], "max_per_group": 1},
            "^subset: groups must have shape",
        ),
    ],
)
def test_bad_arguments(given, message):
    with pytest.raises(ValueError, match=message):
        CORPUS.subset(3, **given)


def test_errors_of_other_types_name_the_call():
    with pytest.raises(TypeError, match=r"^subset: bias must be floating point, got int64$"):
        CORPUS.subset(3, bias=np.ones(400, int))
    with pytest.raises(rk.BackendUnavailableError, match=r"^subset: backend 'triton' was requested but cannot run"):
        CORPUS.subset(3, rule="gist", backend="triton")
    with pytest.raises(TypeError, match=r"^subset: index must be None, .*, got str"):
        CORPUS.subset(3, rule="coverage", neighbors=4, index="foo")


def test_deleted_rows_are_not_chosen():
    corpus = rk.Corpus(ROWS).delete([0, 1, 2])
    found = corpus.subset(50, lambda_d=0)
    assert found.indices[0, 0] == 3
    assert not np.isin([0, 1, 2], found.indices).any()


@pytest.mark.parametrize("ids", [[[1], [2, 3]], [[1], 2]])
def test_initial_rows_of_unequal_lengths_are_refused_as_other_ids_are(ids):
    with pytest.raises(
        (ValueError, TypeError), match=r"^subset: initial must (have shape \(1, any\)|be an array), got "
    ):
        rk.Corpus(np.eye(5, dtype=np.float32)).subset(2, initial=ids)
