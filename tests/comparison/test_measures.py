"""What `compare` measures of picks, by figures made by hand: vectors in the plane, given by their angles."""

import math

import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels.comparison import problem as problems
from ragsys_kernels.comparison.measures import Measure, measured, overlap
from ragsys_kernels.comparison.problem import Problem
from ragsys_kernels.comparison.table import Figure
from ragsys_kernels.reporting.statistics import Interval

ANGLES = [0, 10, 90, 200, 60, 61, 350, 78, 80]
LENGTHS = [1, 2, 0.5, 3, 1.5, 1, 4, 2, 5]
QUERIES = [(30, 2.0), (100, 0.5), (45, 1.0)]  # angle, length
PICKS = np.array([[4, 5, 0], [2, -1, -1], [-1, -1, -1]])
POOLS = np.array([[0, 1, 2, 4, 5, -1], [2, 3, 6, -1, -1, -1], [-1] * 6])
NAN = math.nan


def cos(degrees):
    return math.cos(math.radians(degrees))


def plane(angles, lengths):
    angles = np.radians(angles)
    return (np.stack([np.cos(angles), np.sin(angles)], 1) * np.array(lengths)[:, None]).astype(np.float32)


def problem(pools=POOLS, queries=QUERIES, judged=None, **options):
    rows = plane(ANGLES, LENGTHS)
    number = len(queries)
    return Problem(
        corpus=rk.Corpus(rows, **options),
        queries=plane(*zip(*queries, strict=True)),
        numbers=np.arange(number),
        query_ids=[str(q) for q in range(number)],
        candidates=np.asarray(pools),
        outside=None,
        k=3,
        lambda_b=0.0,
        seed=0,
        num_threads=1,
        judged=judged,
    )


def check(found, expected):
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=0, atol=2e-6, err_msg=name)


# The picks of query 0 are at 60, 61 and 0 degrees; that of query 1 is at 90.
TOTAL = [cos(60) + cos(61) + 1, cos(30) + cos(29)]
PLANE = {
    "relevance": [(cos(30) + cos(31) + cos(30)) / 3, cos(10), NAN],
    "similarity": [(cos(1) + cos(60) + cos(61)) / 3, NAN, NAN],
    "sum": [(TOTAL[0] * cos(30) + TOTAL[1] * cos(60)) / math.hypot(*TOTAL), cos(10), 0],
    # The items of query 0 are at 0, 10, 90, 60 and 61, of query 1 at 90, 200 and 350: the last two have nothing near.
    "coverage": [(1 + cos(10) + cos(29) + 1 + 1) / 5, (1 + 0 + 0) / 3, 0],
    "near_duplicates": [1 / 3, 0, NAN],
    "picks": [3, 1, 0],
}


def test_measures_by_hand():
    found = measured(problem(), PICKS)
    assert set(found) == set(PLANE)
    check(found, PLANE)


def test_gaps_between_picks_are_no_picks():
    found = measured(problem(), np.array([[-1, 4, -1, 5, 0], [-1, -1, 2, -1, -1], [-1] * 5]))
    check(found, PLANE)


def test_products_where_the_metric_is_dot():
    """Relevance and the sum follow the lengths of the rows; likeness is that of directions still."""
    found = measured(problem(metric="dot"), PICKS)
    # Picks of lengths 1.5, 1 and 1 by a query of length 2; one of 0.5 by one of 0.5.
    total = [1.5 * cos(60) + cos(61) + 1, 1.5 * cos(30) + cos(29)]
    check(
        found,
        PLANE
        | {
            "relevance": [2 * (1.5 * cos(30) + cos(31) + cos(30)) / 3, 0.25 * cos(10), NAN],
            "sum": [(total[0] * cos(30) + total[1] * cos(60)) / math.hypot(*total), cos(10), 0],
        },
    )


def test_coverage_does_not_depend_on_how_many_queries_are_held(monkeypatch):
    queries, pools, picks = QUERIES * 3, np.tile(POOLS, (3, 1)), np.tile(PICKS, (3, 1))
    for blocks in (1, 2, 9):
        monkeypatch.setattr(problems, "_BLOCK_BYTES", 9 // blocks * pools.shape[1] * 2 * 8)
        found = measured(problem(pools, queries), picks, ["coverage"])
        check(found, {"coverage": PLANE["coverage"] * 3})


def test_coverage_of_pools_of_one_item_and_of_items_that_look_away():
    """An item whose cosine with every pick is negative counts as 0, and no less."""
    pools = [[3, -1], [1, -1], [0, 3]]  # at 200; 10; 0 and 200
    found = measured(problem(pools), np.array([[4, 5, 0], [4, 5, 0], [4, 5, 2]]), ["coverage"])
    check(found, {"coverage": [0, cos(10), cos(60) / 2]})


def test_near_duplicates_are_above_the_threshold_with_an_earlier_pick():
    assert cos(19) < 0.95 < cos(18) < cos(17)
    picks = np.array([[4, 7, 5, 8], [5, 8, 4, 7], [4, 0, 2, 3]])  # 60, 78, 61, 80; 61, 80, 60, 78; far apart
    near = [[False, True, True, True], [False, False, True, True], [False] * 4]
    check(measured(problem(), picks), {"near_duplicates": np.mean(near, axis=1)})


def test_bias_is_the_mean_of_the_picks_that_there_are():
    bias = np.array([-1, 0, 0.5, 0, 2, 0.25, 0, 0, 99], np.float32)
    found = measured(problem(bias=bias), PICKS)
    check(found, PLANE | {"bias": [(2 + 0.25 - 1) / 3, 0.5, NAN]})
    assert "bias" not in measured(problem(bias=bias), PICKS, ["picks"])


@pytest.mark.parametrize("name", PLANE)
def test_only_what_is_asked_for_is_measured(name):
    found = measured(problem(judged=Judged()), PICKS, [name])
    assert set(found) == {name}
    check(found, {name: PLANE[name]})


class Judged:
    def measures(self, indices):
        assert indices is PICKS
        return {"ndcg": [1, 2, 3], "recall": [4, 5, 6]}


@pytest.mark.parametrize("name", ["ndcg", "alpha_ndcg", "recall", "mrr"])
def test_judgements_are_asked_where_a_measure_needs_them(name):
    found = measured(problem(judged=Judged()), PICKS, ["picks", name])
    assert found.pop("picks").tolist() == [3, 1, 0]
    assert found == {"ndcg": [1, 2, 3], "recall": [4, 5, 6]}
    assert set(measured(problem(), PICKS, ["picks", name])) == {"picks"}


def test_overlap_is_the_share_of_the_picks_that_top_k_has():
    picks = np.array([[3, 1, 2], [5, -1, -1], [-1, -1, -1], [0, 1, -1], [7, 8, 0], [0, 2, 4]])
    top = np.array([[2, 0, 3], [-1, -1, -1], [1, 2, -1], [0, 1, 2], [7, 8, 9], [0, 5, 6]])
    np.testing.assert_allclose(overlap(picks, top), [2 / 3, 0, NAN, 1, 2 / 3, 1 / 3])


@pytest.mark.parametrize(("apart", "sign"), [(2e-6, 1), (-2e-6, -1), (5e-7, 0), (-5e-7, 0)])
def test_a_difference_in_the_rounding_of_float32_is_none(apart, sign):
    some = Interval(apart, *sorted((0.5 * apart, 1.5 * apart)))
    assert some.sign == np.sign(apart)
    assert Figure(some, some, some, 9).sign == sign


@pytest.mark.parametrize(
    ("form", "value", "plain", "signed"),
    [
        (".3f", 0.1234, "0.123", "+0.123"),
        (".3f", -0.1234, "−0.123", "−0.123"),
        (".3f", 0.0, "0.000", "0.000"),
        (".3f", -0.0001, "0.000", "0.000"),  # what rounds to nothing has no sign
        (".3f", 0.0001, "0.000", "0.000"),
        (".1%", 0.09, "9.0%", "+9.0%"),
        (".3f", NAN, "–", "–"),
    ],
)
def test_values_as_they_are_shown(form, value, plain, signed):
    measure = Measure("name", "label", 1, form, "about")
    assert measure.shown(value) == plain
    assert measure.shown(value, signed=True) == signed
