"""Bootstrap intervals."""

import math

import numpy as np
import pytest

from ragsys_kernels.reporting.statistics import Interval, bootstrap_ratios, drawn_counts


def bootstrap_means(values, **options):
    return bootstrap_ratios(values, np.ones(len(values)), **options)


def test_bootstrap_is_near_the_normal_interval():
    values = np.random.default_rng(0).normal(3, 2, (400, 2))
    found = bootstrap_means(values, samples=4000)
    for column, interval in zip(values.T, found, strict=True):
        half = 1.96 * column.std() / math.sqrt(400)
        assert interval.mean == pytest.approx(column.mean())
        assert interval.low == pytest.approx(column.mean() - half, abs=half / 10)
        assert interval.high == pytest.approx(column.mean() + half, abs=half / 10)
    assert bootstrap_means(values, samples=4000) == found
    narrow = bootstrap_means(values, samples=4000, level=0.5)[0]
    assert found[0].low < narrow.low < narrow.mean < narrow.high < found[0].high


def test_bootstrap_is_paired_and_exact_where_it_can_be():
    base = np.random.default_rng(1).normal(0, 5, 50)
    difference, constant = bootstrap_means(np.stack([(base + 0.25) - base, np.full(50, 2.0)], axis=1), samples=100)
    np.testing.assert_allclose(difference, 0.25)
    assert constant == (2, 2, 2)
    # Two rows 0 and 1: means 0, 1/2, 1 with probabilities 1/4, 1/2, 1/4.
    assert bootstrap_means([0.0, 1.0], samples=2000, level=0.2)[0] == (0.5, 0.5, 0.5)
    assert bootstrap_means([True, False], samples=2000)[0] == (0.5, 0, 1)


@pytest.mark.parametrize("size", [10, 20])
def test_intervals_of_few_rows_hold_as_often_as_they_say(size):
    """Of normal values; plain percentiles hold for 90 and 92 of 100 here, Student's interval for 95."""
    rng = np.random.default_rng(size)
    columns = rng.normal(0, 1, (size, 1500))
    held = [one.low <= 0 <= one.high for one in bootstrap_means(columns, samples=1000)]
    assert 0.935 <= np.mean(held) <= 0.965


def test_ends_are_the_percentiles_of_students_distribution():
    stats = pytest.importorskip("scipy.stats")
    rows = np.random.default_rng(3).normal(0, 1, 12)
    draws = np.concatenate([c @ rows / 12 for c in drawn_counts(12, 20_000, 0)])
    tail = stats.norm.cdf(-stats.t.ppf(0.975, 11) * (12 / 11) ** 0.5)
    (found,) = bootstrap_means(rows, samples=20_000)
    np.testing.assert_allclose(found[1:], np.quantile(draws, [tail, 1 - tail]), atol=1e-4)


def test_bootstrap_of_ratios():
    rng = np.random.default_rng(1)
    counts = rng.integers(1, 9, 60)
    values = np.stack([counts * 2.5, rng.normal(3, 1, 60) * counts, rng.normal(3, 1, 60)], axis=1)
    constant, *others = bootstrap_ratios(values, counts, samples=3000)
    assert constant == pytest.approx((2.5, 2.5, 2.5))
    drawn = np.random.default_rng(7).integers(60, size=(3000, 60))
    for interval, column in zip(others, values.T[1:], strict=True):
        ratios = column[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
        assert interval.mean == pytest.approx(column.sum() / counts.sum())
        np.testing.assert_allclose(interval[1:], np.percentile(ratios, [2.5, 97.5]), atol=0.05)
    each = np.stack([counts, np.ones(60), counts], axis=1)
    assert bootstrap_ratios(values, each, samples=50)[0] == bootstrap_ratios(values, counts, samples=50)[0]
    assert bootstrap_ratios(values, each, samples=50)[1] == bootstrap_means(values, samples=50)[1]
    for bad, match in (
        (np.ones(59), r"of shape \(60,\) or \(60, 3\), got \(59,\)"),
        (np.zeros(60), "at least 0, and one above"),
    ):
        with pytest.raises(ValueError, match=match):
            bootstrap_ratios(values, bad)


@pytest.mark.parametrize(
    ("low", "high", "sign", "place", "marked"),
    [
        (0.125, 0.25, 1, "above", "**+0.188 [+0.125, +0.250]**"),
        (-0.25, -0.125, -1, "below", "**-0.188 [-0.250, -0.125]**"),
        (-0.25, 0.125, 0, "not distinguishable from", "-0.062 [-0.250, +0.125]"),
        (0.0, 0.25, 0, "not distinguishable from", "+0.125 [+0.000, +0.250]"),
        (-0.25, 0.0, 0, "not distinguishable from", "-0.125 [-0.250, +0.000]"),
        (0.0, 0.0, 0, "not distinguishable from", "+0.000 [+0.000, +0.000]"),
        (math.nan, math.nan, 0, "not distinguishable from", "+nan [+nan, +nan]"),
    ],
)
def test_an_interval_that_ends_at_0_tells_nothing(low, high, sign, place, marked):
    interval = Interval((low + high) / 2, low, high)
    assert (interval.sign, interval.place, interval.marked()) == (sign, place, marked)


@pytest.mark.parametrize(
    ("low", "form", "span"),
    [
        (0.0004, "{:+.3f}", "[+0.0004, +0.2500]"),
        (-0.00004, "{:+.2%}", "[-0.004%, +25.000%]"),
        (0.00002, "{:+.3f}", "[+0.00002, +0.25000]"),
        (1e-17, "{:+.3f}", "[+0.000000, +0.250000]"),
        (0.0, "{:+.3f}", "[+0.000, +0.250]"),
        (0.0006, "{:+.3f}", "[+0.001, +0.250]"),
        (math.nan, "{:.0%}", "[nan%, 25%]"),
    ],
)
def test_an_end_beside_0_does_not_read_as_0(low, form, span):
    assert Interval(0.125, low, 0.25).span(form) == span


def test_a_bootstrap_interval_may_end_at_0():
    """Most rows are the same for both methods, as questions are whose picks are."""
    gained, lost = bootstrap_means(np.array([[1.0, -1.0], *[[0.0, 0.0]] * 9]), samples=500)
    assert (gained.low, lost.high) == (0, 0)
    assert gained.place == lost.place == "not distinguishable from"


def test_bad_input():
    for values, options, rule in (
        ([], {}, r"columns must be of shape \(Q, S\), Q at least 1, got \(0, 1\)"),
        (np.zeros((2, 2, 2)), {}, r"columns must be of shape \(Q, S\), Q at least 1, got \(2, 2, 2\)"),
        ([1.0], {"samples": 0}, "samples must be at least 1, got 0"),
        ([1.0], {"level": 1.0}, r"level must be within \(0, 1\), got 1.0"),
    ):
        with pytest.raises(ValueError, match=f"^bootstrap_ratios: {rule}$"):
            bootstrap_means(values, **options)
