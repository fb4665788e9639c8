"""TRL's functions of logits: against float64 formulas, and against TRL where it is installed."""

import numpy as np
import pytest
import torch

from ragsys_kernels.integrations import trl

DTYPES = {torch.float32: 4e-6, torch.bfloat16: 0.13, torch.float16: 0.016}


def logits_of(dtype=torch.float32, shape=(3, 7, 501)):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 3).to(dtype)


def layouts(logits):
    return {"whole": logits, "shifted": logits[:, :-1], "matrix": logits[1], "swapped": logits.mT.contiguous().mT,
            "every second": logits[:, ::2], "batch last": logits.transpose(0, 1)}  # fmt: skip


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["whole", "shifted", "matrix", "every second", "batch last"])
def test_functions_of_trl_are_those_of_float64(dtype, layout, temperature):
    logits = layouts(logits_of(dtype))[layout]
    exact = torch.log_softmax(logits.double() / temperature, -1)
    entropy = -(exact.exp() * exact).sum(-1)
    generator = torch.Generator().manual_seed(1)
    index = torch.randint(0, 501, logits.shape[:-1], generator=generator)
    several = torch.randint(0, 501, (*logits.shape[:-1], 4), generator=generator)
    mask = torch.rand(index.shape, generator=generator) > 0.4
    near = {"rtol": 0, "atol": DTYPES[dtype], "check_dtype": False}
    one = exact.gather(-1, index[..., None])[..., 0]
    found = trl.selective_log_softmax(logits, index, temperature)
    assert found.dtype == dtype
    torch.testing.assert_close(found, one, **near)
    torch.testing.assert_close(
        trl.selective_log_softmax(logits, several, temperature), exact.gather(-1, several), **near
    )
    masked = trl.selective_log_softmax(logits, index, temperature, mask)
    torch.testing.assert_close(masked, one * mask, **near)
    both = trl.selective_log_softmax_and_entropy(logits, index, False, temperature, mask)
    torch.testing.assert_close(both[0], one * mask, **near)
    torch.testing.assert_close(both[1], entropy * mask, **near)
    if temperature == 1:
        torch.testing.assert_close(trl.entropy_from_logits(logits), entropy, **near)


def test_a_view_of_logits_is_not_copied(monkeypatch):
    seen = []
    true = trl.token_logprobs
    monkeypatch.setattr(
        trl, "token_logprobs", lambda rows, *a, **o: seen.append(rows.data_ptr()) or true(rows, *a, **o)
    )
    logits = logits_of()
    trl.selective_log_softmax(logits[:, :-1], torch.zeros(3, 6, dtype=torch.int64))
    assert seen == [part.data_ptr() for part in logits]


def test_masked_logits_add_nothing_to_an_entropy():
    logits = torch.tensor([[0.0, 0.0, -torch.inf]])
    np.testing.assert_allclose(trl.entropy_from_logits(logits), [np.log(2)], rtol=1e-6)


def test_empty_tensors_give_empty_ones():
    assert trl.entropy_from_logits(torch.zeros(2, 0, 5)).shape == (2, 0)
    assert trl.selective_log_softmax(torch.zeros(0, 5), torch.zeros(0, 3, dtype=torch.int64)).shape == (0, 3)


def test_a_gradient_is_refused_and_not_recorded():
    logits, index = logits_of().requires_grad_(), torch.zeros(3, 7, dtype=torch.int64)
    calls = (lambda: trl.selective_log_softmax(logits, index), lambda: trl.entropy_from_logits(logits))
    for call in calls:
        with pytest.raises(RuntimeError, match="logits must not require a gradient, got requires_grad=True"):
            call()
        with torch.no_grad():
            assert not call().requires_grad


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: trl.selective_log_softmax(np.zeros((2, 5)), None), TypeError, "logits must be a torch tensor"),
        (lambda: trl.selective_log_softmax(torch.zeros(2, 5), torch.zeros(3, dtype=torch.int64)), ValueError,
         r"index must have shape \(2,\) or \(2, 'K'\), got \(3,\)"),
        (lambda: trl.selective_log_softmax(torch.zeros(2, 5), torch.tensor([1, -1])), ValueError,
         r"selective_log_softmax: index must be within \[0, 5\), got -1"),
        (lambda: trl.selective_log_softmax(torch.zeros(2, 5), torch.tensor([1, -(2**63)])), ValueError,
         r"selective_log_softmax: index must be within \[0, 5\), got -9223372036854775808"),
        (lambda: trl.selective_log_softmax(torch.zeros(2, 5), torch.tensor([1, 5], dtype=torch.uint16)), ValueError,
         r"selective_log_softmax: index must be within \[0, 5\), got 5"),
        (lambda: trl.selective_log_softmax(torch.zeros(2, 5), torch.tensor([1.0, 2.0])), TypeError,
         r"selective_log_softmax: index must be integers, got torch.float32"),
        (lambda: trl.entropy_from_logits(torch.zeros(2, 5).double()), TypeError,
         r"entropy_from_logits: logits must be float32, .*, got torch.float64; convert them once with .float\(\)"),
        (lambda: trl.selective_log_softmax(torch.zeros(5, 2).T, torch.tensor([1, 1])), ValueError,
         r"selective_log_softmax: logits must be contiguous along .* copy them once with .contiguous\(\)"),
        (lambda: trl.selective_log_softmax(torch.zeros(2, 5), torch.zeros(2, dtype=int, device="meta")), ValueError,
         "selective_log_softmax: index must be on the device of logits, cpu, got meta"),
        (lambda: trl.selective_log_softmax(torch.zeros(2, 5), torch.tensor([1, 1]), float("inf")), ValueError,
         "selective_log_softmax: temperature must be positive and finite, got inf"),
        (lambda: trl.selective_log_softmax(torch.zeros(2, 5), torch.tensor([1, 1]), 0.0), ValueError,
         "temperature must be positive and finite, got 0.0"),
        (lambda: trl.entropy_from_logits(torch.zeros(2, 5), 0), ValueError, "chunk_size must be at least 1, got 0"),
        (lambda: trl.entropy_from_logits(torch.zeros(2, 0)), ValueError, r"logits must have shape \(..., V\)"),
    ],
)  # fmt: skip
def test_what_is_refused_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_the_functions_are_those_of_trl():
    theirs = pytest.importorskip("trl.trainer.utils")
    logits, index = logits_of()[:, :-1], torch.arange(18).reshape(3, 6)
    mask = (index % 3 > 0).long()
    for arguments in ((logits, index), (logits, index, 0.7), (logits, index, 1.0, mask)):
        torch.testing.assert_close(trl.selective_log_softmax(*arguments), theirs.selective_log_softmax(*arguments))
    torch.testing.assert_close(trl.entropy_from_logits(logits), theirs.entropy_from_logits(logits))
