"""The linear form on Triton: how its tiles add, in the interpreter."""

import interpreted
import matrix_units
import numpy as np
import pytest
import traffic
from scoring_oracle import linear_gate, logp

import ragsys_kernels as rk

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.sampled(9)

if interpreted.HERE:
    from ragsys_kernels.scoring.triton import linear as triton_linear


def normal(T, V, D):
    """Hidden states and weights of which z is of standard deviation 4, targets, and log p in float64."""
    rng = np.random.default_rng(D)
    hidden = rng.standard_normal((T, D)).astype(np.float16)
    weight = (rng.standard_normal((V, D)) * 4 / D**0.5).astype(np.float16)
    targets = rng.integers(0, V, T)
    z = hidden.astype(np.float64) @ weight.astype(np.float64).T
    return {"hidden": hidden, "weight": weight, "targets": targets}, [logp(z[t], v) for t, v in enumerate(targets)]


# --- The sum over D.

DIMS = pytest.mark.parametrize("D", [640, *(pytest.param(D, marks=pytest.mark.slow) for D in (1024, 2048, 4096))])


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


@DIMS
def test_truncating_matrix_units_cost_no_accuracy(truncating, D):
    arguments, want = normal(48, 384, D)
    found = rk.answer_logprobs(**arguments, backend="triton").logp
    error = np.abs(found - np.array(want)).max()
    assert truncating
    assert error <= linear_gate(D), error


@DIMS
def test_the_model_of_matrix_units_drifts_towards_zero(D):
    """One chain over all of D is further off than the gate: what the kernels must not make."""
    arguments, want = normal(48, 384, D)
    x = matrix_units.product(arguments["hidden"], arguments["weight"].T, np.zeros((48, 384), np.float32))
    error = [logp(x[t], v) - want[t] for t, v in enumerate(arguments["targets"])]
    assert np.abs(error).max() > linear_gate(D)
    assert matrix_units.truncated(np.array([1 + 2**-24 + 2**-30, -1 - 2**-23.5])).tolist() == [1, -1]


# --- Launches, and where a target's z comes from.


@pytest.mark.parametrize(
    ("options", "launches"),
    [
        ({}, ["logprob_linear_kernel", "logprob_merge_kernel"]),
        ({"want": ("logp", "lse", "max", "entropy")}, ["logprob_linear_kernel", "logprob_merge_kernel"]),
        ({"softcap": 30.0, "temperature": 0.5}, ["logprob_linear_kernel", "logprob_merge_kernel"]),
        # Ranks compare with targets, and a tile of some columns is no range of them.
        ({"want": ("rank",)}, ["logprob_linear_kernel", "logprob_linear_target_kernel", "logprob_merge_kernel"]),
        (
            {"allowed": np.arange(0, 300, 2)},
            ["logprob_linear_kernel", "logprob_linear_target_kernel", "logprob_merge_kernel"],
        ),
    ],
    ids=["logp", "entropy", "softcap", "rank", "allowed"],
)
def test_one_launch_and_a_merge(options, launches):
    arguments, _ = normal(70, 300, 64)
    with traffic.counted() as moved:
        rk.answer_logprobs(**arguments, **options, reduce=("sum",), backend="triton")
    assert {name: n for name, n in moved.launches.items() if "answers" not in name} == dict.fromkeys(launches, 1)


def test_targets_are_those_of_their_tiles(monkeypatch):
    """As the kernel that computes them by themselves finds them, wherever they are."""
    (arguments, _), (T, V) = normal(130, 300, 64), (130, 300)
    rng = np.random.default_rng(0)
    rows = np.concatenate([np.arange(0, T, 2), np.full(60, 5), [129, 129, 64, 63]])
    arguments["targets"] = np.concatenate([rng.integers(0, V, len(rows) - 8), [127, 128, 0, V - 1, V - 1, V - 1, 0, 0]])
    arguments["targets"][[3, 30]] = -100
    call = {**arguments, "rows": rows, "want": ("logp", "lse"), "backend": "triton"}
    found = rk.answer_logprobs(**call)
    monkeypatch.setattr(triton_linear, "MOST_TARGETS", 0)
    with traffic.counted() as moved:
        known = rk.answer_logprobs(**call)
    assert moved.launches["logprob_linear_target_kernel"] == 1
    for name in ("logp", "lse"):
        np.testing.assert_array_equal(getattr(found, name), getattr(known, name))


def test_weights_are_read_once_for_up_to_64_rows():
    arguments, _ = normal(64, 1000, 64)
    arguments = {name: torch.from_numpy(x) for name, x in arguments.items()}
    with traffic.counted(weight=arguments["weight"], hidden=arguments["hidden"]) as moved:
        rk.answer_logprobs(**arguments, backend="triton")
    weight, tile = arguments["weight"], triton_linear.COLUMNS * 64 * 2
    assert weight.nbytes <= moved.read["weight"] <= weight.nbytes + tile  # columns beyond the last are the last
    once_a_tile = arguments["hidden"].nbytes * -(-1000 // triton_linear.COLUMNS)
    assert once_a_tile <= moved.read["hidden"] <= 1.25 * once_a_tile  # rows need not begin where a sector does


# --- Bits.


@pytest.mark.parametrize("rows", [16, 32, 128])
def test_bits_do_not_depend_on_the_rows_of_a_tile(monkeypatch, rows):
    arguments, _ = normal(34, 200, 128)
    call = {**arguments, "want": ("logp", "lse", "entropy"), "reduce": (), "backend": "triton"}
    want = rk.answer_logprobs(**call)
    tile_of = triton_linear.tile_of
    monkeypatch.setattr(triton_linear, "tile_of", lambda *of: tile_of(*of)._replace(rows=rows))
    found = rk.answer_logprobs(**call)
    for name in call["want"]:
        np.testing.assert_array_equal(getattr(found, name), getattr(want, name))


def test_splits_are_cut_by_the_number_of_columns_alone():
    for columns, tiles in ((1, 1), (65_536, 1), (65_537, 2), (152_064, 2), (262_144, 2), (262_145, 4), (10**6, 8)):
        assert triton_linear.tiles_of_a_split(columns) == tiles
        assert -(-columns // (triton_linear.COLUMNS * tiles)) <= triton_linear.MOST_SPLITS


interpreted.elsewhere(globals())
