"""Every bad argument of `Corpus`, `search` and `select` is an error of the documented type and wording."""

import re

import numpy as np
import pytest
from selection_calls import f32, with_value

import ragsys_kernels as rk

CONVERT = "convert it once with .astype('float32')"
CORPUS = {
    "embeddings_1d": (
        {"embeddings": f32(4)}, ValueError, "embeddings must have at least one row and one dimension, got shape (4,)",
    ),
    "embeddings_3d": ({"embeddings": f32(2, 3, 4)}, ValueError, "embeddings must have shape (N, D), got (2, 3, 4)"),
    "embeddings_empty": (
        {"embeddings": f32(0, 4)}, ValueError,
        "embeddings must have at least one row and one dimension, got shape (0, 4)",
    ),
    "embeddings_integers": (
        {"embeddings": np.ones((3, 4), int)}, TypeError,
        f"embeddings must be float32, float16, bfloat16, int8 or uint8, got int64; {CONVERT}",
    ),
    "embeddings_bool": (
        {"embeddings": np.ones((3, 4), bool)}, TypeError,
        f"embeddings must be float32, float16, bfloat16, int8 or uint8, got bool; {CONVERT}",
    ),
    "bias_shape": ({"bias": f32(3)}, ValueError, "bias must have shape (N,) = (12,), got (3,)"),
    "bias_nan": ({"bias": with_value(f32(12), 4, np.nan)}, ValueError, "bias must be finite, got NaN or inf in row 4"),
    "bias_integers": ({"bias": np.zeros(12, int)}, TypeError, "bias must be floating point, got int64"),
    "groups_shape": (
        {"groups": np.zeros((12, 1), int)}, ValueError,
        "groups must have shape (N,) = (12,), got (12, 1); give levels with the call of a selection",
    ),
    "groups_float": ({"groups": f32(12)}, TypeError, "groups must be integers or strings, got float32"),
    "metric": ({"metric": "l2"}, ValueError, "metric must be one of 'cosine', 'dot', got 'l2'"),
    "dtype": (
        {"dtype": "int4"}, ValueError,
        "dtype must be one of 'float32', 'float16', 'bfloat16', 'int8', 'binary', got 'int4'",
    ),
    "device": (
        {"device": "gpu"}, ValueError, "device must be None, 'cpu', 'cuda' or 'cuda:<number>', got 'gpu'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CORPUS)
def test_bad_argument_of_corpus_is_named(case):
    changes, error, message = CORPUS[case]
    with pytest.raises(error) as caught:
        rk.Corpus(**{"embeddings": f32(12, 4), **changes})
    assert str(caught.value) == f"Corpus: {message}"


SEARCH = {
    "n_zero": ({"n": 0}, ValueError, "n must be at least 1, got 0"),
    "n_float": ({"n": 1.0}, TypeError, "n must be integers, got float64"),
    "n_array": ({"n": np.array([1, 2, 3])}, TypeError, "n must be one integer, got an array"),
    "queries_none": ({"queries": None}, ValueError, "queries must be given, got None"),
    "queries_dims": ({"queries": f32(3, 3)}, ValueError, "queries must have the embeddings' D = 4 dimensions, got 3"),
    "queries_nan": (
        {"queries": with_value(f32(3, 4), ([1, 2], 3), np.nan)}, ValueError,
        "queries must be finite, got NaN or inf in row 1",
    ),
    "lambda_b": ({"lambda_b": 1.5}, ValueError, "lambda_b must be within [0, 1], got 1.5"),
    "query_groups": (
        {"query_groups": np.zeros(3, int)}, ValueError, "query_groups must come with groups, got groups=None",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SEARCH)
def test_bad_argument_of_search_is_named(case):
    changes, error, message = SEARCH[case]
    with pytest.raises(error) as caught:
        rk.Corpus(f32(12, 4)).search(**{"queries": f32(3, 4), "n": 2, **changes})
    assert str(caught.value) == f"search: {message}"


def test_bad_argument_of_select_is_named():
    corpus = rk.Corpus(f32(12, 4))
    for changes, error, message in (
        (
            {"method": "topk"},
            ValueError,
            "select: method must be one of 'mmr', 'vrsd', 'msd', 'dpp', 'ssd', 'sift', 'coverage', 'gist', got 'topk'",
        ),
        ({"pool": 0}, ValueError, "select: pool must be at least 1, got 0"),
        ({"pool": 2.5}, TypeError, "select: pool must be an integer, got float"),
        ({"metric": "dot"}, ValueError, "mmr: metric must be the corpus's own, 'cosine', got 'dot'"),
    ):
        with pytest.raises(error, match=f"^{re.escape(message)}$"):
            corpus.select(f32(3, 4), 2, **changes)


@pytest.mark.parametrize(("name", "value"), [("bias", f32(12)), ("lambda_d", 0.5), ("lambda_b", 0.5)])
def test_select_refuses_options_of_mmr_for_vrsd(name, value):
    with pytest.raises(ValueError, match=f"^select: {name} must be left out with method 'vrsd', got (ndarray|0.5)$"):
        rk.Corpus(f32(12, 4)).select(f32(2, 4), 3, method="vrsd", **{name: value})


def test_initial_items_that_are_no_array_are_refused_by_name_beside_a_pool():
    torch = pytest.importorskip("torch")
    corpus = rk.Corpus(np.eye(6, dtype=np.float32))
    whole = torch.eye(2)
    odd = (whole.long().to_sparse(), torch.nn.Parameter(whole), whole.to(torch.complex64).conj(), whole.numpy())
    for initial in odd:
        with pytest.raises(TypeError, match=r"^select: initial must "):
            corpus.select(np.eye(2, 6, dtype=np.float32), 2, pool=3, initial=initial)
