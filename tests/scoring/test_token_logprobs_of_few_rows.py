"""The short way of `token_logprobs` against the general one, which ``vocab_size`` asks for."""

import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels import _dispatch
from ragsys_kernels.scoring import quick

needs_kernels = pytest.mark.skipif(_dispatch.why_not("cpu") is not None, reason="the extension is not built")


def general(logits, targets, **options):
    return rk.token_logprobs(logits, targets, vocab_size=logits.shape[1], **options)


@pytest.fixture
def taken(monkeypatch):
    """The answers of the short way, None where it left a call to the general one."""
    answers, real = [], quick.token_logprobs
    monkeypatch.setattr(quick, "token_logprobs", lambda *given: answers.append(real(*given)) or answers[-1])
    return answers


@needs_kernels
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("T", [1, 2, 7, 64])
@pytest.mark.parametrize("V", [1, 5, 1000, 32_003])
def test_few_rows_have_the_bits_of_the_general_way(taken, dtype, T, V):
    rng = np.random.default_rng(T * V)
    logits = (rng.standard_normal((T, V)) * 8).astype(dtype)
    logits[rng.random((T, V)) < 0.1] = -np.inf
    targets = rng.integers(0, V, T)
    found = rk.token_logprobs(logits, targets)
    assert found is taken[0]
    assert found.dtype == np.float32
    assert found.tobytes() == general(logits, targets).tobytes()


@needs_kernels
def test_values_at_the_ends_of_float32_have_the_bits_of_the_general_way(taken):
    logits = np.array([[3e38, -3e38, 0], [-np.inf] * 3, [np.nan, 0, 0], [np.inf, 0, 0], [1e-38, 0, -1e-38]], np.float32)
    targets = np.array([1, 0, 1, 1, 2])
    found = rk.token_logprobs(logits, targets)
    assert found is taken[0]
    assert found.tobytes() == general(logits, targets).tobytes()


@needs_kernels
def test_tensors_get_tensors(taken):
    torch = pytest.importorskip("torch")
    logits, targets = torch.randn(3, 50), torch.tensor([1, 2, 49])
    found = rk.token_logprobs(logits, targets)
    assert found is taken[0]
    assert torch.equal(found, general(logits, targets))
    assert torch.equal(found, rk.token_logprobs(logits.requires_grad_(), targets))
    assert taken[1] is None
    assert rk.token_logprobs(logits.detach().bfloat16(), targets).dtype == torch.float32
    assert taken[2] is None


X = np.zeros((2, 6), np.float32)


@pytest.mark.parametrize(
    ("logits", "targets"),
    [
        *((x, [0, 1]) for x in (X[:, ::2], X.astype(">f4"), X.astype(np.float64), np.ma.masked_array(X))),
        *((X, targets) for targets in ([0], [0, 6], [0, -1], [-100, 3])),
        *((X[:1], [target]) for target in (6, -1, -100)),
        (X[0], [0]),
        (X[:0], []),
        *((X, np.array([0, 3], dtype)) for dtype in (np.int32, np.float32)),
        (X, (0, 3)),
    ],
)
def test_what_is_not_plain_is_left_to_the_general_way(taken, logits, targets):
    targets = np.array(targets, np.int64) if isinstance(targets, list) else targets

    def outcome(call, **options):
        try:
            return call(logits, targets, **options).tobytes()
        except (TypeError, ValueError) as error:
            return str(error)

    assert outcome(rk.token_logprobs) == outcome(rk.token_logprobs, check_values=False)
    assert taken == [None]


@needs_kernels
@pytest.mark.parametrize(
    "options", [{"temperature": 2.0}, {"temperature": np.array([1.0])}, {"logit_scale": 0.5}, {"softcap": 1.0},
                {"ignore_index": 3}, {"return_lse": True}, {"allowed": [1, 3]}, {"backend": "reference"}],
)  # fmt: skip
def test_options_go_the_general_way(taken, options):
    logits, targets = np.arange(5, dtype=np.float32)[None], np.array([3])
    rk.token_logprobs(logits, targets, **options)
    assert not taken


def test_the_environment_names_the_backend(taken, monkeypatch):
    monkeypatch.setenv("RAGSYS_KERNELS_BACKEND", "numpy")
    rk.token_logprobs(np.zeros((1, 4), np.float32), np.array([1]))
    assert taken == [None]


@needs_kernels
def test_threads_are_checked():
    with pytest.raises(ValueError, match="token_logprobs: num_threads must be at least 1, got 0"):
        rk.token_logprobs(np.zeros((1, 4), np.float32), np.array([1]), num_threads=0)
