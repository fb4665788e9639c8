"""Wilson's intervals, and the bootstrap over classes."""

import math

import numpy as np
import pytest

from benchmarks.papers.statistics import bootstrap_class_means, bootstrap_means, wilson
from ragsys_kernels.reporting.statistics import Interval


def test_means_are_those_of_the_columns():
    values = np.random.default_rng(0).normal(3, 2, (400, 2))
    for column, interval in zip(values.T, bootstrap_means(values, samples=4000), strict=True):
        half = 1.96 * column.std() / math.sqrt(400)
        assert interval == pytest.approx((column.mean(), column.mean() - half, column.mean() + half), abs=half / 10)


@pytest.mark.parametrize(("successes", "total", "level"), [(0, 5, 0.95), (5, 5, 0.95), (9, 10, 0.95), (37, 120, 0.9)])
def test_wilson_is_scipys(successes, total, level):
    stats = pytest.importorskip("scipy.stats")
    ends = stats.binomtest(successes, total).proportion_ci(level, "wilson")
    assert wilson(successes, total, level=level) == pytest.approx((successes / total, ends.low, ends.high), abs=1e-9)


def test_class_means_weigh_classes_alike():
    values, labels = np.array([1.0, 1, 1, 0] * 10 + [0.0] * 10), np.array([True] * 40 + [False] * 10)
    found = bootstrap_class_means(np.stack([values, 1 - values], axis=1), labels, samples=4000)
    assert [one.mean for one in found] == [(3 / 4 + 0) / 2, (1 / 4 + 1) / 2]
    half = 2.01 * math.sqrt(3 / 4 * 1 / 4 / 40) / 2  # the other class has one value
    assert found[0].high - found[0].low == pytest.approx(2 * half, rel=0.15)
    assert found[1].low == pytest.approx(1 - found[0].high)  # drawn together
    values, labels = np.tile(np.random.default_rng(0).normal(size=100), 3), np.repeat([0, 1, 2], 100)
    one = bootstrap_class_means(values, labels, samples=4000)[0]
    assert one.mean == pytest.approx(values.mean())
    # Classes of one size are drawn apart: else those of equal values would deviate alike.
    assert one.high - one.low == pytest.approx(2 * 1.96 * values.std() / math.sqrt(300), rel=0.1)
    assert bootstrap_class_means([1.0], ["a"], samples=10) == [Interval(1.0, 1.0, 1.0)]


def test_bad_input():
    for given in ((3, 2), (-1, 2), (0, 0)):
        with pytest.raises(ValueError, match="wilson: successes must be within"):
            wilson(*given)
    with pytest.raises(ValueError, match=r"wilson: level must be within \(0, 1\), got 1"):
        wilson(1, 2, level=1)
    with pytest.raises(ValueError, match=r"bootstrap_class_means: labels must be of shape \(2,\), got \(3,\)"):
        bootstrap_class_means([1.0, 2.0], [1, 2, 3])
