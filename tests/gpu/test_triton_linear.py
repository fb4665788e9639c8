"""The linear form on Triton: how its tiles add, in the interpreter."""

import interpreted
import matrix_units
import numpy as np
import pytest
from scoring_oracle import linear_gate, logp

import ragsys_kernels as rk

torch = pytest.importorskip("torch")


def normal(T, V, D):
    """Hidden states and weights of which z is of standard deviation 4, targets, and log p in float64."""
    rng = np.random.default_rng(D)
    hidden = rng.standard_normal((T, D)).astype(np.float16)
    weight = (rng.standard_normal((V, D)) * 4 / D**0.5).astype(np.float16)
    targets = rng.integers(0, V, T)
    z = hidden.astype(np.float64) @ weight.astype(np.float64).T
    return {"hidden": hidden, "weight": weight, "targets": targets}, [logp(z[t], v) for t, v in enumerate(targets)]


# --- The sum over D.


@pytest.fixture
def truncating(monkeypatch):
    """Products as NVIDIA's matrix units make them; the number of them that were made."""
    made = []

    def dot(self, a, b, d, input_precision, max_num_imprecise_acc):
        made.append(a.data.shape)
        total = matrix_units.product(a.data, b.data, d.data)
        return interpreted.interpreter.TensorHandle(total, d.dtype.scalar)

    monkeypatch.setattr(interpreted.interpreter.InterpreterBuilder, "create_dot", dot)
    return made


@pytest.mark.parametrize("D", [640, 1024, 2048, 4096])
def test_truncating_matrix_units_cost_no_accuracy(truncating, D):
    arguments, want = normal(48, 384, D)
    found = rk.answer_logprobs(**arguments, backend="triton").logp
    error = np.abs(found - np.array(want)).max()
    assert truncating
    assert error <= linear_gate(D), error


def test_the_model_of_matrix_units_drifts_towards_zero():
    """One chain over all of D is further off than the gate: what the kernels must not make."""
    for D in (640, 1024, 2048, 4096):
        arguments, want = normal(48, 384, D)
        x = matrix_units.product(arguments["hidden"], arguments["weight"].T, np.zeros((48, 384), np.float32))
        error = [logp(x[t], v) - want[t] for t, v in enumerate(arguments["targets"])]
        assert np.abs(error).max() > linear_gate(D)
    assert matrix_units.truncated(np.array([1 + 2**-24 + 2**-30, -1 - 2**-23.5])).tolist() == [1, -1]


interpreted.elsewhere(globals())
