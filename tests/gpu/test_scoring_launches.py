"""What a call of scoring launches on a device, and that its few launches give what many did."""

import functools

import interpreted
import numpy as np
import pytest
from scoring_device import EMPTY, Device, as_tensor, poisoned
from scoring_oracle import EVERYTHING, assert_close
from scoring_problems import hard_rows, linear, logits

import ragsys_kernels as rk
from ragsys_kernels._base import arrays as _arrays

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.slow
INF, NAN = np.inf, np.nan

if interpreted.HERE:
    import traffic
    from launches import Launches

    from ragsys_kernels.scoring import _device


@pytest.fixture
def device(monkeypatch):
    monkeypatch.setattr(_arrays, "empty", poisoned)
    return Device(monkeypatch)


@pytest.fixture
def launched(device):
    """Count the launches of a call, whose arguments are on the device before."""

    def count(op, *args, **kwargs):
        args = [as_tensor(x) for x in args]
        kwargs = {name: x if name in ("want", "reduce") else as_tensor(x) for name, x in kwargs.items()}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_arrays, "empty", EMPTY)  # the poison would count
            with Launches() as found:
                getattr(rk, op)(*args, **kwargs, backend=device.backend)
        return found

    return count


X, HIDDEN = logits(6, 300)[0], linear(6, 300, 32)[0]
TARGETS, CU = np.arange(6), np.array([0, 2, 6])
GROUPED = {"targets": TARGETS, "rows": np.array([4, 2, 2, 5, 1, 4]), "cu_answers": CU}
TEMPERATURES = np.array([0.5, 2.0])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"return_lse": True},
        {"temperature": np.full(6, 0.7)},
        {"temperature": 0.7, "softcap": 3.0, "vocab_size": 299, "ignore_index": 3, "allowed": np.arange(9)},
    ],
)
def test_token_logprobs_takes_one_launch(launched, options):
    """Parts are merged where they are summed."""
    found = launched("token_logprobs", X, TARGETS, **options)
    assert found.total() == 1, dict(found)


def test_a_merge_that_one_warp_has_no_room_for_is_a_launch(launched, device, monkeypatch):
    from ragsys_kernels.scoring.triton import logits as triton_logits

    want = tuple(name for name in EVERYTHING if name != "rank")
    before = device.answer_logprobs(X, targets=TARGETS, want=want)
    monkeypatch.setattr(triton_logits, "merges", lambda problem: False)
    assert launched("token_logprobs", X, TARGETS).total() == 2
    found = device.answer_logprobs(X, targets=TARGETS, want=want)
    for name, values in before._asdict().items():
        np.testing.assert_array_equal(getattr(found, name), values, err_msg=name)


@pytest.mark.parametrize(
    ("most", "options"),
    [
        (2, {"targets": TARGETS}),
        (2, {"targets": TARGETS, "cu_answers": CU, "temperature": TEMPERATURES}),
        (4, {"targets": TARGETS, "cu_answers": CU, "want": EVERYTHING}),
        (4, GROUPED),
        (4, {**GROUPED, "want": EVERYTHING, "allowed": np.arange(9)}),
        (
            8,
            {"targets": TARGETS, "rows": GROUPED["rows"], "answer_ids": np.array([0, 1, 0, 1, 1, 0]), "num_answers": 2},
        ),
        (1, {"targets": TARGETS, "cu_answers": CU, "reduce": ()}),
    ],
)
def test_answer_logprobs_takes_at_most_four_launches(launched, device, most, options):
    found = launched("answer_logprobs", X, **options)
    assert found.total() <= most, dict(found)


@pytest.mark.parametrize("options", [{"targets": TARGETS, "cu_answers": CU}, {**GROUPED, "want": EVERYTHING}])
def test_the_linear_form_takes_one_launch_more(launched, device, options):
    """A kernel finds the slots of any pairs, and one finds the targets."""
    found = launched("answer_logprobs", **HIDDEN, **options)
    assert found.total() <= 5, dict(found)


def anything(seed):
    """Arguments of a call on rows of logits, of any kind."""
    rng = np.random.default_rng(seed)
    T, V, M, A = int(rng.integers(1, 9)), int(rng.choice([1, 40, 600])), int(rng.integers(1, 30)), 4
    x = logits(T, V)[0].copy()
    x[rng.random(x.shape) < 0.05] = rng.choice([-INF, -INF, 50.0])
    x[0, V // 2] = rng.choice([NAN, INF, -INF, 0.0, 1.0])
    options = {"ignore_index": [-100, None, 3][seed % 3], "vocab_size": [None, max(1, V - 3)][seed // 3 % 2]}
    if seed % 2:
        options["rows"] = rng.integers(-1, T + 1, M) if seed % 4 == 1 else np.sort(rng.integers(0, T, M))
    else:
        M = T
    options["targets"] = rng.integers(-1, V + 1, M)
    options["targets"][rng.random(M) < 0.2] = -100
    if seed // 2 % 3 == 1:
        options["cu_answers"] = np.sort([0, *rng.integers(0, M + 1, A - 1), M])
    elif seed // 2 % 3 == 2:
        options |= {"answer_ids": rng.integers(0, A, M), "num_answers": A}
    if seed // 4 % 3 == 1:
        size = () if seed // 2 % 3 == 0 or seed % 2 else (A,)
        options["temperature"] = rng.choice([0.5, 1.0, 2.0], size)
    elif seed // 4 % 3 == 2:
        options |= {"temperature": 1.7, "softcap": 8.0}
    if seed % 5 == 0:
        options["allowed"] = np.sort(rng.choice(max(1, V - 3), (V + 1) // 3 or 1, replace=False))
    return x, options


@pytest.mark.parametrize("seed", range(24))
def test_few_launches_give_what_the_host_gives(device, seed):
    """The rules of ``finish.py`` and ``validate.py``, in kernels."""
    x, options = anything(seed)
    found = device.answer_logprobs(x, **options, want=EVERYTHING)
    rows = options.get("rows")
    if rows is not None:  # a row outside is an error on the host, and as a target outside on a device
        outside = (rows < 0) | (rows >= len(x))
        ignored = options["targets"] == options["ignore_index"]
        options["targets"] = np.where(outside & ~ignored, -7, options["targets"])
        options["rows"] = np.where(outside, 0, rows)
    want = rk.answer_logprobs(x, **options, want=EVERYTHING, out_of_range="nan", backend="numpy")
    for name in EVERYTHING:
        wanted = getattr(want, name)
        if wanted.dtype == np.float32:
            assert_close(getattr(found, name), wanted, 1e-5)
        else:
            np.testing.assert_array_equal(getattr(found, name), wanted, err_msg=name)
    np.testing.assert_array_equal(found.count, want.count)
    np.testing.assert_array_equal(found.greedy, want.greedy)
    np.testing.assert_allclose(found.sum, want.sum, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found.mean, want.mean, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", ["logits", "hidden"])
def test_slots_from_a_sort_give_the_same_bits(device, monkeypatch, form):
    """As do partials whose results are made by the operations of torch: the formulas of ``finish.py``, to one ulp."""
    rng = np.random.default_rng(0)
    arguments = {"logits": logits(7, 900)[0]} if form == "logits" else linear(7, 300, 24)[0]
    rows, targets = rng.integers(0, 7, 40), rng.integers(-1, 300, 40)
    targets[5] = -100
    options = {"targets": targets, "rows": rows, "cu_answers": [0, 3, 20, 40]}
    found = device.answer_logprobs(**arguments, **options, want=EVERYTHING)
    monkeypatch.setattr(_device, "GROUPED_PAIRS", 39)
    again = device.answer_logprobs(**arguments, **options, want=EVERYTHING)
    for name in found._fields:
        values, others = getattr(found, name), getattr(again, name)
        if values.dtype.kind == "f":
            np.testing.assert_array_max_ulp(np.float32(values), np.float32(others), 1)
            np.testing.assert_allclose(values, others, rtol=2e-7 if values.dtype == np.float32 else 1e-13)
        else:
            np.testing.assert_array_equal(values, others, err_msg=name)


def test_a_row_of_many_targets_is_read_once():
    with pytest.MonkeyPatch.context() as patch:
        device = Device(patch)
        x = torch.from_numpy(np.array(logits(4, 2048)[0]))
        with traffic.counted(logits=x) as moved:
            device.answer_logprobs(x, targets=np.arange(64), rows=np.tile([1, 3], 32), reduce=("greedy",))
    # Two rows, which may begin within a sector, and a sector for each target; the others are not read.
    assert moved.read["logits"] <= 2 * 4 * 2048 + 66 * traffic.SECTOR_BYTES


def test_greedy_is_no_rank_above(device):
    """Each pair is an answer: ties are greedy, NaN is not, a masked target is not."""
    rows = hard_rows(700)
    x = np.array([row for row, _ in rows.values()])
    x = np.concatenate([x, [np.where(np.arange(700) % 300 == 7, 9.0, 1.0)] * 2, np.zeros((1, 700))]).astype(np.float32)
    targets = [target for _, target in rows.values()] + [307, 8, 699]
    cu = np.arange(len(targets) + 1)
    found = device.answer_logprobs(x, targets=targets, cu_answers=cu, want=("rank",), reduce=("greedy",))
    np.testing.assert_array_equal(found.greedy, found.rank == 0)
    assert found.greedy[-3:].tolist() == [True, False, True]
    only = device.answer_logprobs(x, targets=targets, cu_answers=cu, want=(), reduce=("greedy",))
    np.testing.assert_array_equal(only.greedy, found.greedy)


def test_a_threshold_of_ignore_index_and_of_shapes(device):
    x = logits(3, 40)[0]
    call = functools.partial(device.answer_logprobs, x, targets=[1, 2, 3])
    for ignore in (-(2**63), 2**62, 0):
        np.testing.assert_array_equal(call(ignore_index=ignore).logp, call(ignore_index=None).logp)
    assert call(ignore_index=1).count.tolist() == [2]
    assert call(cu_answers=[0], temperature=np.ones(0)).sum.shape == (0,)


interpreted.elsewhere(globals())
