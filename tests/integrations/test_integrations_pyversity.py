"""The pyversity drop-ins against the installed pyversity."""

import importlib.metadata
import re

import numpy as np
import pytest
from peer_pools import POOLS, check, mmr_values, unit

from ragsys_kernels.integrations import pyversity as ours

pyversity = pytest.importorskip("pyversity")

pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")

WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)


def relevance_of(pool):
    rng = np.random.default_rng(len(pool.rows))
    if pool.exact:
        return rng.integers(-4, 5, len(pool.rows)) / 4
    return unit(pool.rows) @ unit(pool.query)


def same(found, expected):
    assert found.indices.dtype == np.int32
    assert found.selection_scores.dtype == np.float32
    assert (found.strategy, found.diversity) == (expected.strategy, expected.diversity)
    assert found.parameters == expected.parameters


@pytest.mark.sampled(3)
@pytest.mark.parametrize("pool", POOLS, ids=lambda pool: pool.name)
@pytest.mark.parametrize("metric", ["cosine", "dot"])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("op", ["mmr", "msd"])
def test_picks_are_those_of_pyversity(op, pool, metric, normalize):
    relevance, cosines = relevance_of(pool), metric == "cosine" and normalize
    rows = pool.rows if cosines else pool.rows / np.linalg.norm(pool.rows, axis=1).max()
    similarity = unit(rows) @ unit(rows).T if cosines else rows @ rows.T
    similarity = np.maximum(similarity, 0) if op == "mmr" else similarity - (metric == "cosine")
    tolerance = 3e-6 if op == "mmr" else 1e-5
    for diversity in WEIGHTS:
        values = mmr_values(relevance, similarity, 1 - diversity, np.max if op == "mmr" else np.sum)
        for k in (-1, 0, 1, 4, len(rows) + 3):
            arguments = (rows, relevance, k, diversity, metric, normalize)
            found, expected = (getattr(module, op)(*arguments) for module in (ours, pyversity))
            check(found.indices, expected.indices, values, first=relevance, exact=pool.exact and cosines)
            same(found, expected)
            if list(found.indices) == list(expected.indices):
                scores = found.selection_scores, expected.selection_scores
                np.testing.assert_allclose(*scores, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("strategy", [*ours.Strategy, *pyversity.Strategy, "mmr", "dpp"])
def test_diversify_has_every_strategy_of_pyversity(strategy):
    rng = np.random.default_rng(0)
    rows, scores = rng.random((25, 8)), rng.random(25)
    found, expected = (module.diversify(rows, scores, 6, strategy, 0.4) for module in (ours, pyversity))
    np.testing.assert_array_equal(found.indices, expected.indices)
    assert type(found) is ours.DiversificationResult
    assert found.strategy is ours.Strategy(expected.strategy.value)


def test_every_name_of_pyversity_is_here():
    import pyversity.datatypes

    theirs = {name for name in (*pyversity.__all__, *vars(pyversity.datatypes)) if not name.startswith("_")}
    assert theirs - {"Enum", "dataclass", "np"} == set(ours.__all__)


RECENT = np.random.default_rng(9).standard_normal((4, 16))
STRATEGIES = {
    "mmr": ({}, {"metric": "dot"}, {"normalize": False}),
    "cover": ({}, {"gamma": 0.3}, {"metric": "dot"}, {"normalize": False}, {"metric": "dot", "gamma": 1.0}),
    "dpp": ({}, {"scale": 0.7}, {"scale": 0.0}, {"scale": 1.5}),
    "msd": ({}, {"metric": "dot"}, {"normalize": False}),
    "ssd": (
        {},
        {"gamma": 2.5, "window": 3},
        {"recent_embeddings": RECENT},
        {"recent_embeddings": RECENT, "window": 2},
        {"normalize": False, "window": 4},
        {"normalize_scores": False, "recent_embeddings": RECENT},
        {"append_bias": False},
        {"append_bias": False, "normalize": False, "recent_embeddings": RECENT, "window": 3},
        {"append_bias": False, "normalize_scores": False, "window": 1},
    ),
}


@pytest.mark.parametrize("size", ["unit", "short", "long"])
@pytest.mark.parametrize("diversity", WEIGHTS)
@pytest.mark.parametrize("name", STRATEGIES)
def test_picks_and_scores_of_every_strategy_and_option_are_those_of_pyversity(name, diversity, size):
    rng = np.random.default_rng(1)
    for options in STRATEGIES[name]:
        rows, scores = rng.standard_normal((30, 16)), rng.standard_normal(30)
        rows *= {"unit": 1, "short": 0.5, "long": 3}[size] / np.linalg.norm(rows, axis=1, keepdims=True)
        for k in (-1, 0, 1, 9):
            found, expected = (
                getattr(module, name)(rows, scores, k, diversity, **options) for module in (ours, pyversity)
            )
            np.testing.assert_array_equal(found.indices, expected.indices)
            # Of cover pyversity takes the difference of two float32 sums.
            tolerance = (1e-5 if name == "cover" else 3e-6) * np.abs(expected.selection_scores).max(initial=1)
            np.testing.assert_allclose(found.selection_scores, expected.selection_scores, rtol=0, atol=tolerance)
            same(found, expected)
            assert type(found) is ours.DiversificationResult
            assert type(found.strategy) is ours.Strategy


@pytest.mark.parametrize("factor", [2.0**-60, 1e-12, 1e-7, 1e-5, 1e5])
@pytest.mark.parametrize("name", ["dpp", "ssd"])
def test_scores_of_every_scale(name, factor):
    """DPP's z-scores depend on it in pyversity, and the rule of the library has none that do."""
    rng = np.random.default_rng(4)
    rows, scores = rng.standard_normal((30, 16)), np.float32(factor * rng.random(30))
    for options in STRATEGIES[name]:
        normalized = options.get("normalize_scores", True)
        if factor > 1 and not normalized:
            continue  # pyversity's sums of float32 lose the volume
        if factor < 1e-15 and normalized and name == "dpp":
            continue  # pyversity's z-scores are 0: of rows with equal values, a processor's rounding picks one
        found, expected = (getattr(module, name)(rows, scores, 9, 0.4, **options) for module in (ours, pyversity))
        np.testing.assert_array_equal(found.indices, expected.indices)
        tolerance = 1e-5 * np.abs(expected.selection_scores).max()
        np.testing.assert_allclose(found.selection_scores, expected.selection_scores, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", ["dpp", "ssd"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scores_that_are_not_finite_are_refused_by_name(name, bad):
    for scores in ([1, bad, 0], [bad] * 3):
        with pytest.raises(ValueError, match=f"^{name}: relevance must be finite"):
            getattr(ours, name)(np.eye(3), scores, 2, 0.4)


def test_rows_of_zeros_and_scores_that_are_all_the_same():
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((12, 16))
    rows[[3, 7]] = 0
    for scores in (rng.standard_normal(12), np.ones(12)):
        for name in STRATEGIES:
            found, expected = (getattr(module, name)(rows, scores, 6, 0.6) for module in (ours, pyversity))
            np.testing.assert_array_equal(found.indices, expected.indices)


def test_items_that_the_picks_span_come_last():
    rows = np.repeat(np.eye(3), 2, axis=0)
    found = ours.dpp(rows, [6, 5, 4, 3, 2, 1], 5, 0.5)
    assert found.indices.tolist() == [0, 2, 4, 1, 3]
    assert found.selection_scores[3:].tolist() == [0, 0]
    assert sorted(pyversity.dpp(rows, [6, 5, 4, 3, 2, 1], 5, 0.5).indices[:3].tolist()) == [0, 2, 4]


def test_rows_that_end_with_ones_have_the_constant_dimension_already():
    rng = np.random.default_rng(3)
    rows, scores = np.hstack([rng.standard_normal((20, 8)), np.ones((20, 1))]), rng.standard_normal(20)
    found, expected = (module.ssd(rows, scores, 5, 0.7, normalize=False) for module in (ours, pyversity))
    np.testing.assert_array_equal(found.indices, expected.indices)
    np.testing.assert_allclose(found.selection_scores, expected.selection_scores, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cover", {"gamma": 0}, r"cover: gamma must be in \(0, 1\], got 0"),
        ("ssd", {"gamma": 0}, "ssd: gamma must be > 0, got 0"),
        ("ssd", {"window": 0}, "ssd: window must be >= 1, got 0"),
        ("ssd", {"recent_embeddings": np.ones((2, 3))}, r"ssd: recent_embeddings must have shape \(any, 2\), got"),
        ("dpp", {"diversity": 1.1}, r"dpp: diversity must be in \[0, 1\], got 1.1"),
    ],
)
def test_errors_of_strategies(name, options, message):
    with pytest.raises(ValueError, match=message):
        getattr(ours, name)(np.eye(2), [1, 2], 1, **options)


@pytest.mark.parametrize("before", ["", "import pyversity.strategies.ssd"])
def test_in_pyversitys_place_it_asks_the_files_not_itself(before, run_python):
    """In ``sys.modules``, before or after pyversity is imported, and in pyversity's own modules."""
    code = (
        f"{before}\n"
        "import sys\n"
        "import numpy as np\n"
        "from ragsys_kernels.integrations import pyversity as ours\n"
        "real = {name: module for name, module in sys.modules.items() if name.partition('.')[0] == 'pyversity'}\n"
        "for name in ('cover', 'dpp', 'ssd', 'diversify'):\n"
        "    for module in real.values():\n"
        "        setattr(module, name, getattr(ours, name))\n"
        "for name in ('pyversity', 'pyversity.datatypes'):\n"
        "    sys.modules[name] = ours\n"
        "from pyversity import diversify\n"
        "from pyversity.datatypes import Strategy\n"
        "rng = np.random.default_rng(0)\n"
        "rows, scores = rng.random((25, 8)), rng.random(25)\n"
        "found = [diversify(rows, scores, 6, strategy).indices.tolist() for strategy in Strategy]\n"
        "assert sys.modules['pyversity'] is sys.modules['pyversity.datatypes'] is ours\n"
        "assert all(sys.modules[name] is module for name, module in real.items() if name not in "
        "('pyversity', 'pyversity.datatypes'))\n"
        "print(found)"
    )
    rng = np.random.default_rng(0)
    rows, scores = rng.random((25, 8)), rng.random(25)
    expected = [pyversity.diversify(rows, scores, 6, each).indices.tolist() for each in pyversity.Strategy]
    assert run_python(code).stdout.strip() == str(expected)


@pytest.mark.parametrize("op", ["mmr", "msd"])
def test_errors(op):
    call = getattr(ours, op)
    with pytest.raises(ValueError, match=f"{op}: diversity must be in \\[0, 1\\], got 1.1"):
        call(np.eye(2), [1, 2], 1, 1.1)
    with pytest.raises(ValueError, match="metric must be 'cosine' or 'dot', got 'l2'"):
        call(np.eye(2), [1, 2], 1, metric="l2")
    with pytest.raises(ValueError, match="embeddings must be 2-D"):
        call(np.ones(2), [1, 2], 1)
    with pytest.raises(ValueError, match="one value for each of the 2 rows, got 3"):
        call(np.eye(2), [1, 2, 3], 1)
    for normalize in (True, False):
        with pytest.raises(ValueError, match=f"{op}: relevance must be finite, got NaN or inf in row"):
            call(3 * np.eye(2), [1, np.nan], 1, normalize=normalize)
        with pytest.raises(ValueError, match=f"{op}: embeddings must be finite, got NaN or inf in row 1"):
            call([[3, 0], [np.nan, 0], [1, 1]], [1, 2, 0], 2, normalize=normalize)
        for bad in (np.nan, np.inf, -np.inf):
            for scores in ([1, bad, 0], [bad, 1, 2]):
                with pytest.raises(ValueError, match=f"{op}: relevance must be finite"):
                    call(np.eye(3) - 0.5, scores, 2, normalize=normalize)
            with pytest.raises(ValueError, match=f"{op}: embeddings must be finite"):
                call([[bad, 1], [-1, 0], [-1, 0.1]], [2, 1, 0], 2, normalize=normalize)
    with pytest.raises(ValueError, match=r"strategy must be one of .* got 'best'"):
        ours.diversify(np.eye(2), [1, 2], 1, "best")


def test_pyversitys_documented_example_runs_with_a_changed_import():
    """The first Python block of the description that pyversity's package carries, with each strategy."""
    text = importlib.metadata.metadata("pyversity").get_payload()
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL).group(1)
    wanted = "from pyversity import"
    assert wanted in code
    for strategy in ("DPP", "MMR", "MSD"):
        answers = []
        for changed in (code, code.replace(wanted, "from ragsys_kernels.integrations.pyversity import")):
            np.random.seed(0)
            found = {}
            exec(changed.replace("Strategy.DPP", f"Strategy.{strategy}"), found)
            answers.append(found["diversified_indices"].tolist())
        assert len(answers[0]) == 10
        assert answers[0] == answers[1]
