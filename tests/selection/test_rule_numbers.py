"""Numbers of the rules at the ends of float32: they work, or are an error that names them."""

import decimal
import fractions
import math

import numpy as np
import pytest

import ragsys_kernels as rk

pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")

P, D = 50, 16


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(0).standard_normal((P, D)).astype(np.float32)


@pytest.fixture(scope="module")
def query():
    return np.random.default_rng(1).standard_normal((1, D)).astype(np.float32)


def greedy_dpp(L, k):
    """The picks by the definition, by logarithms of determinants."""
    picks = []
    for _ in range(k):
        rest = [i for i in range(len(L)) if i not in picks]
        picks.append(max(rest, key=lambda i: np.linalg.slogdet(L[np.ix_([*picks, i], [*picks, i])])[1]))
    return picks


@pytest.mark.parametrize("exponent", [-80, -42, 0, 21])
@pytest.mark.parametrize("given", ["rows", "candidates"])
def test_qualities_whose_squares_leave_float32(backend, rows, query, exponent, given):
    """Of probabilities, say: each is a float32, and so is the root of d, but d need not be."""
    quality = np.float32(np.exp(exponent + np.random.default_rng(2).uniform(0, 20, P)))
    e = rows / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    weight = quality / np.float64(quality.max())
    expected = greedy_dpp(weight[:, None] * (e @ e.T) * weight, 8)
    more = {} if given == "rows" else {"candidates": np.arange(P)[None], "quality": quality[None]}
    found = rk.dpp(query, rows, 8, **{"quality": quality, **more}, backend=backend)
    np.testing.assert_array_equal(found.indices[0], expected)
    first = np.float64(quality[expected[0]]) ** 2
    np.testing.assert_allclose(found.scores[0, 0], np.float32(first), rtol=1e-5, atol=1e-44)


def test_a_small_quality_after_a_large_one_still_counts(backend, query):
    """Items whose squared qualities are nothing in float32 beside the largest are not equals."""
    quality = np.float32([1e-28, 1e-25, 1.0, 1e-30])
    found = rk.dpp(query, np.eye(4, D, dtype=np.float32), 4, quality=quality, backend=backend)
    np.testing.assert_array_equal(found.indices, [[2, 1, 0, 3]])


def test_z_scores_far_apart_keep_their_order(backend, query):
    relevance = np.float32([[0.9, 0, 0.91, 0.1, 0.92, 0.93, 0.94, 0.95, 0.96]])
    eye = np.eye(9, D, dtype=np.float32)
    found = rk.dpp(query, eye, 9, relevance=relevance, scale=40, lambda_d=1, backend=backend)
    np.testing.assert_array_equal(found.indices[0], np.argsort(-relevance[0]))


def z_of(v):
    """The z-scores by their definition, in fractions but for the root."""
    exact = [fractions.Fraction(float(x)) for x in v]
    mean = sum(exact) / len(exact)
    deviation = math.sqrt(sum((x - mean) ** 2 for x in exact) / len(exact)) + 2.0**-23 * float(max(map(abs, exact)))
    return np.array([float(x - mean) / deviation if deviation else 0.0 for x in exact])


def z_scores(backend, relevance):
    """The z-scores that a rule goes by: of SSD without a weight of the volume."""
    relevance = np.asarray(relevance, np.float32)
    eye = np.eye(len(relevance), dtype=np.float32)
    found = rk.ssd(None, eye, len(relevance), relevance=relevance[None], lambda_d=1.0, backend=backend)
    z = np.empty(len(relevance))
    z[found.indices[0]] = found.scores[0]
    assert (np.diff(found.scores[0]) <= 0).all()
    return z


@pytest.mark.parametrize("shift", [0.0, 1.0, -1000.0])
def test_z_scores_are_those_of_the_definition_at_every_scale(backend, shift):
    for factor in (2.0**-100, 1e-9, 0.03, 1.0, 7.0, 1e9, 2.0**100):
        relevance = np.float32(factor * (np.random.default_rng(4).standard_normal(P) + shift))
        np.testing.assert_allclose(z_scores(backend, relevance), z_of(relevance), 0, 1e-6, err_msg=f"times {factor}")


@pytest.mark.parametrize("number", [1, 3, 50])
def test_z_scores_of_equal_values_are_0(backend, number):
    rows = np.eye(number, D + number, dtype=np.float32)
    for value in (0.0, 0.1, 1 / 3, -7.3, 1e-30, 1e-44, 3e38):
        assert not z_scores(backend, [value] * number).any(), value
        found = rk.dpp(None, rows, number, relevance=np.full((1, number), value), scale=30, backend=backend)
        np.testing.assert_array_equal(found.indices[0], np.arange(number), err_msg=str(value))
        np.testing.assert_array_equal(found.scores, 1, err_msg=str(value))


def test_values_apart_by_their_rounding_alone_have_small_z_scores(backend):
    for low in np.float32([0.1, 1.0, -3.0, 1e-30, 1e30]):
        relevance = np.full(P, low)
        relevance[::3] = np.nextafter(low, np.float32(np.inf))
        found = z_scores(backend, relevance)
        np.testing.assert_allclose(found, z_of(relevance), rtol=1e-5, err_msg=str(low))
        assert np.abs(found).max() < 0.7, low
        assert found[0] > 0 > found[1], low


RELATIVE = {
    "dpp": (rk.dpp, {"scale": 1.5}),
    "ssd": (rk.ssd, {"gamma": 0.7}),
    "ssd in a window": (rk.ssd, {"window": 2}),
}


@pytest.mark.parametrize("rule", RELATIVE)
@pytest.mark.parametrize("given", ["relevance", "relevance and bias", "queries"])
def test_picks_depend_on_no_scale_of_the_scores(backend, rows, query, rule, given):
    call, options = RELATIVE[rule]
    rng = np.random.default_rng(6)
    relevance, bias = rng.random((1, P)).astype(np.float32), rng.random(P).astype(np.float32)

    def select(factor):
        scaled = {"relevance": relevance * np.float32(factor)}
        if given == "queries":
            return call(query * np.float32(factor), rows, 8, metric="dot", **options, backend=backend)
        if "bias" in given:
            scaled.update(bias=bias * np.float32(factor), lambda_b=0.5)
        return call(None, rows, 8, **scaled, **options, backend=backend)

    usual = select(1)
    for exponent in (-60, -27, -20, -10, -1, 1, 10, 20, 60):
        found = select(2.0**exponent)
        np.testing.assert_array_equal(found.indices, usual.indices)
        np.testing.assert_array_equal(found.scores, usual.scores)
    for factor in (1e-15, 1e-7, 3e-4, 0.3, 11.0, 1e15):
        found = select(factor)
        np.testing.assert_array_equal(found.indices, usual.indices)
        np.testing.assert_allclose(found.scores, usual.scores, rtol=1e-5)


RANGE = "within the range of float32, got"
BEYOND = {
    "scale": (rk.dpp, {"scale": 100.0}, f"scale must give values {RANGE} one beyond it"),
    "quality": (rk.dpp, {"quality": np.full(P, 1e20)}, f"quality must give values {RANGE} one beyond it"),
    "gamma of values": (rk.ssd, {"gamma": 3.4e38}, f"gamma must give values {RANGE} one beyond it"),
    "relevance": (rk.sift, {"relevance": np.full((1, P), 1e20)}, f"relevance must give values {RANGE} one beyond it"),
    "gamma": (rk.ssd, {"gamma": 1e300}, rf"gamma must be above 0 and {RANGE} 1e\+300"),
    "tiny gamma": (rk.ssd, {"gamma": 1e-60}, f"gamma must be above 0 and {RANGE} 1e-60"),
    "noise": (rk.sift, {"noise": 1e60}, rf"noise must be above 0 and {RANGE} 1e\+60"),
    "min_gain": (rk.sift, {"min_gain": np.inf}, f"min_gain must be at least 0 and {RANGE} inf"),
    "long": (rk.dpp, {"scale": 10**400}, f"scale must be at least 0 and {RANGE} int"),
    "power": (rk.coverage, {"gamma": 1 + 1e-12}, "gamma must be above 0 and at most 1, got 1.000000000001"),
}


@pytest.mark.parametrize("case", BEYOND)
def test_what_leaves_float32_is_an_error_that_names_it(backend, rows, query, case):
    call, given, message = BEYOND[case]
    if case == "gamma of values":
        given = {**given, "lambda_d": 0.0, "metric": "cosine"}
    with pytest.raises(ValueError, match=f"^{call.__name__}: {message}"):
        call(query, rows * (3 if case == "quality" else 1), 4, **given, backend=backend)


@pytest.mark.parametrize("name", ["dpp", "ssd", "sift", "vrsd", "coverage"])
@pytest.mark.parametrize(("factor", "norm"), [(1e-25, "e-2[45]"), (1e20, r"e\+20")])
def test_rows_whose_squared_lengths_leave_float32_are_refused(backend, rows, query, name, factor, norm):
    call = getattr(rk, name)
    scaled = rows * np.float32(factor)
    message = rf"^{name}: embeddings must have row norms of 0 or within \[1e-15, 1e\+15\], got [\d.]+{norm} in row 0"
    for given in (scaled, rk.Corpus(scaled, metric="dot")):
        with pytest.raises(ValueError, match=message):
            call(query, given, 4, metric="dot", backend=backend)
    zeros = rows.copy()
    zeros[[3, 7]] = 0
    assert call(query, zeros, 4, metric="dot", backend=backend).lengths[0] == 4
    assert call(query, rows * np.float32(1e-12), 3, metric="dot", backend=backend).lengths[0] <= 3
    pools = np.arange(20).reshape(2, 10)
    good = scaled.copy()
    good[:10] = rows[:10]
    found = call(np.repeat(query, 2, 0), good, 3, candidates=pools, metric="dot", backend=backend, on_error="skip")
    assert list(found.errors) == [1]
    assert "row norms" in found.errors[1]
    assert found.lengths[0] == 3


NUMBERS = {"int": 1, "zero-dimensional": np.array(1.0), "numpy": np.float32(1), "integer": np.int8(1)}
NO_NUMBERS = (np.array([0.1, 0.2]), np.array([0.1]), [0.1], 1 + 0j, np.complex128(1), "1", True, np.True_, None)
OPTIONS = [(rk.dpp, "scale"), (rk.ssd, "gamma"), (rk.sift, "noise"), (rk.sift, "min_gain"), (rk.coverage, "gamma")]


@pytest.mark.parametrize(("call", "name"), OPTIONS, ids=lambda x: getattr(x, "__name__", x))
def test_kinds_of_numbers(backend, rows, query, call, name):
    torch = pytest.importorskip("torch")
    expected = call(query, rows, 4, **{name: 1.0}, backend=backend)
    of_torch = {"tensor": torch.tensor(1.0), "bfloat16": torch.tensor(1.0, dtype=torch.bfloat16)}
    for kind, value in {**NUMBERS, **of_torch}.items():
        found = call(query, rows, 4, **{name: value}, backend=backend)
        np.testing.assert_array_equal(found.indices, expected.indices, err_msg=kind)
    for value in (*NO_NUMBERS, torch.ones(2), decimal.Decimal(1), fractions.Fraction(1)):
        with pytest.raises(TypeError, match=f"^{call.__name__}: {name} must be a number, got "):
            call(query, rows, 4, **{name: value}, backend=backend)


def test_nan_is_no_number_of_an_option(query, rows):
    with pytest.raises(ValueError, match=r"^sift: noise must be above 0, got nan$"):
        rk.sift(query, rows, 4, noise=np.nan)
