"""Relevance that falls with age: by its definition, of any library, and what is refused."""

import math
from datetime import timedelta

import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels._base import arrays

RNG = np.random.default_rng(8)
RELEVANCE = RNG.random((4, 6)).astype(np.float32)
AGE = RNG.gamma(1, 30, (4, 6))
AGE[0, :4] = 0, 20, 40, 60
KINDS = ["exp", "gauss", "linear"]


def factor(age, half_life, kind, floor):
    t = age / half_life
    made = {"exp": math.pow(0.5, t), "gauss": math.pow(0.5, t**2), "linear": max(0, (2 - t) / 2)}[kind]
    return max(floor, made)


@pytest.mark.parametrize("floor", [0, 0.3, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_values_are_those_of_the_definition(kind, floor):
    found = rk.decayed(RELEVANCE, AGE, 20, kind, floor)
    expected = [
        [r * factor(a, 20, kind, floor) for r, a in zip(*row, strict=True)]
        for row in zip(RELEVANCE.tolist(), AGE.tolist(), strict=True)
    ]
    assert (found.dtype, found.shape) == ("float32", RELEVANCE.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found[0, 0] == RELEVANCE[0, 0]
    if floor < 0.5:
        assert found[0, 1] == RELEVANCE[0, 1] / 2
    one = rk.decayed(RELEVANCE, AGE[1], 20, kind, floor)  # the items of all queries are the same
    assert np.array_equal(one[1], found[1])
    assert np.array_equal(one[2], rk.decayed(RELEVANCE[2], AGE[1], 20, kind, floor))


@pytest.mark.parametrize("kind", KINDS)
def test_far_ages_and_what_stays(kind):
    relevance = np.array([[1, 1, 1, -np.inf, np.nan, np.inf, 0]], np.float32)
    ages = np.array([[np.inf, 1e300, 1e9, -1, np.nan, 5, 5]])
    found = rk.decayed(relevance, ages, 2, kind, 0.25)
    assert found[0, :3].tolist() == [0.25] * 3
    assert np.array_equal(found[0, 3:], relevance[0, 3:], equal_nan=True)
    found = rk.decayed(relevance, ages, 2, kind)
    assert found[0, :3].tolist() == [0] * 3
    assert np.array_equal(found[0, 3:], relevance[0, 3:], equal_nan=True)


def test_after_fuse_and_before_a_rule():
    rows, queries = RNG.standard_normal((20, 8)).astype(np.float32), RNG.standard_normal((2, 8)).astype(np.float32)
    time = np.datetime64("2025-03-01") + np.arange(20)
    found = rk.fuse([([[3, 5, 7, 9], [1]], None)])
    ages = (np.datetime64("2025-03-31") - time[found.candidates]) / np.timedelta64(1, "D")
    relevance = rk.decayed(found.relevance, ages, half_life=2)
    picks = rk.mmr(queries, rows, 2, candidates=found.candidates, relevance=relevance, lambda_d=1)
    assert picks.indices.tolist() == [[9, 7], [1, -1]]
    searched = rk.Corpus(np.abs(rows[:3])).search(np.abs(queries), 5).scores
    later = rk.decayed(searched, np.ones(5), half_life=1)
    assert np.isneginf(later[:, 3:]).all()
    assert np.array_equal(later[:, :3], searched[:, :3] / 2)


def test_arrays_of_torch(monkeypatch):
    torch = pytest.importorskip("torch")
    given = torch.from_numpy(RELEVANCE), torch.from_numpy(AGE).float()
    expected = {kind: rk.decayed(RELEVANCE, given[1].numpy(), 20, kind, 0.1) for kind in KINDS}
    for kind in KINDS:
        found = rk.decayed(*given, 20, kind, 0.1)
        assert isinstance(found, torch.Tensor)
        assert np.array_equal(found, expected[kind])
    monkeypatch.setattr(arrays, "place_of", lambda *_: arrays.Torch("cpu"))  # as on a device
    for kind in KINDS:
        found = rk.decayed(*given, 20, kind, 0.1)
        np.testing.assert_allclose(found, expected[kind], rtol=1e-6)
    bad = rk.decayed(torch.tensor([-1.0, 1, 1, 1]), torch.tensor([1.0, -1, np.nan, 1]), 1)
    assert np.isnan(bad.numpy()).tolist() == [True, True, True, False]


REFUSED = {
    "relevance must be at least 0, got -0.5 in row 0, position 1; put it on a scale from 0 to 1 first, as "
    "relevance_scale='minmax' does": ([[0.5, -0.5]], [1, 1], 1),
    "relevance must be floating point, got int64": ([[1, 2]], [1, 1], 1),
    "relevance must have shape (Q, P) or (P,), got ()": (0.5, [1], 1),
    "age must be at least 0, got -3 in row 0, position 1": ([[0.5, 0.5]], [1, -3], 1),
    "age must be at least 0, got nan in row 1": ([0.5, 0.5], [1, np.nan], 1),
    "age must be an array of numbers, got ndarray of dtype timedelta64[D]": (
        [0.5], np.array([3], "timedelta64[D]"), 1,
    ),
    "age must have shape of relevance = (2, 3) or (P,) = (3,), got (2,)": (np.ones((2, 3)), [1, 1], 1),
    "half_life must be above 0 and finite, got 0": ([0.5], [1], 0),
    "half_life must be a number, got str": ([0.5], [1], "7d"),
    "half_life must be a number, got timedelta64": ([0.5], [1], np.timedelta64(10, "ns")),
    "half_life must be a number, got timedelta": ([0.5], [1], timedelta(10)),
    "kind must be one of 'exp', 'gauss', 'linear', got 'log'": ([0.5], [1], 1, "log"),
    "floor must be within [0, 1], got 1.5": ([0.5], [1], 1, "exp", 1.5),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_refused(message):
    with pytest.raises((TypeError, ValueError)) as error:
        rk.decayed(*REFUSED[message])
    assert str(error.value) == f"decayed: {message}"
