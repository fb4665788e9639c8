"""`make gpu-check` without a GPU: what it says then, and its parts on CPU tensors with a clock of the tests' own."""

import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest

import ragsys_kernels as rk
from ragsys_kernels import _dispatch

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not (ROOT / "benchmarks").is_dir(), reason="the tests run outside of the source tree")


@pytest.fixture
def bench(module, compiled):
    return module("gpu.bench")


class FakeCuda:
    """Events that tell a time of the tests' own, which work on the "device" moves on."""

    def __init__(self):
        self.now = 0.0  # milliseconds
        self.log = []

    def Event(self, enable_timing):  # noqa: N802
        assert enable_timing
        return FakeEvent(self)

    def work(self, name, milliseconds):
        self.log.append(name)
        self.now += milliseconds


class FakeEvent:
    def __init__(self, cuda):
        self.cuda, self.at = cuda, None

    def record(self):
        self.cuda.work("record", 1e-3)
        self.at = self.cuda.now

    def synchronize(self):
        self.cuda.log.append("synchronize")

    def elapsed_time(self, other):
        return other.at - self.at


@pytest.fixture
def timer(bench):
    cuda = FakeCuda()
    timer = bench.EventTimer(cuda, lambda: cuda.work("flush", 100.0), lambda: cuda.work("busy", 50.0))
    timer.cuda = cuda
    return timer


def test_timer_takes_the_call_alone(timer):
    device, host = timer.seconds(lambda: timer.cuda.work("call", 3.0))
    assert device == pytest.approx(3e-3, rel=1e-3)
    assert 0 <= host < 1
    assert timer.cuda.log == ["flush", "busy", "record", "call", "record", "synchronize"]


def test_contenders_take_turns(bench, timer):
    cuda = timer.cuda
    entries = [bench.Contender(name, lambda n=name: cuda.work(n, 2.0)) for name in "ab"]
    entries.append(bench.Contender("host", lambda: cuda.log.append("host"), on_host=True))
    times = bench.race(entries, timer, 7)
    assert [len(device) for device, _ in times.values()] == [7, 7, bench.HOST_SAMPLES]
    assert times[0][0] == pytest.approx([2e-3] * 7, rel=1e-3)
    calls = [name for name in cuda.log if name in ("a", "b")][2 * bench.WARM_UPS :]
    assert calls == ["a", "b"] * 7


def shapes_of(bench):
    """A small one of each op and form."""
    found = {}
    for shape in bench.ALL:
        found.setdefault((shape.op, getattr(shape, "P", 0) is None, shape.dtype), shape.small())
    return tuple(found.values())


def test_every_op_goes_into_the_ledger(bench, timer, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function: function)  # seconds, and not what is tested
    shapes = shapes_of(bench)
    path = tmp_path / "gpu.csv"
    outcome = bench.run(path, shapes, "cpu", ("cpu",), timer, samples=5)
    assert not outcome.wrong
    rows = bench.LEDGER.at(path).read()
    assert len(rows) == outcome.rows
    assert tuple(rows[0]) == bench.LEDGER.columns
    assert len({tuple(row[name] for name in bench.LEDGER.key) for row in rows}) == len(rows)
    assert {row["op"] for row in rows} == {"mmr", "vrsd", "search", "token_logprobs", "answer_logprobs"}
    assert {(row["op"], row["shape"]) for row in rows} == {(shape.op, str(shape)) for shape in shapes}
    for row in rows:
        assert row["device"] == outcome.device
        assert all(row[name] for name in ("samples", "us", "host_us", "ratio", "floor_us", "date", "versions"))
    for shape in shapes:
        op, names = shape.op, {row["contender"] for row in rows if (row["op"], row["shape"]) == (shape.op, str(shape))}
        peers = {
            "search": {bench.COMPOSITE},
            "token_logprobs": {"log_softmax + gather", "logsumexp", "F.cross_entropy", bench.COMPILED},
            "answer_logprobs": {"matrix product", bench.COMPOSITE, bench.COMPILED},
        }.get(op, {bench.COMPOSITE, bench.COMPILED} if op == "mmr" and shape.P is not None else set())
        assert names - {"Liger", "flash-attn", "cut-cross-entropy"} == {bench.OURS, bench.FLOOR, bench.CPU} | peers
    picks = {row["contender"]: row["same_picks"] for row in rows if row["op"] == "mmr" and row["dtype"] == "float32"}
    assert picks[bench.COMPOSITE] == picks[bench.OURS] == "1"


def test_backends_that_cannot_run_are_named(bench, timer, tmp_path, monkeypatch):
    monkeypatch.setattr(_dispatch, "why_not", lambda backend: "of the weather")
    outcome = bench.run(tmp_path / "gpu.csv", shapes_of(bench), "cpu", ("triton",), timer)
    assert outcome.rows == 0
    assert not (tmp_path / "gpu.csv").exists()
    assert outcome.absent == ["backend triton: of the weather"]


PEERS = {  # name: shapes, module, function
    "cut-cross-entropy": ("HIDDEN", "cut_cross_entropy", "linear_cross_entropy"),
    "Liger of hidden states": ("HIDDEN", "liger_kernel.transformers.functional", "liger_fused_linear_cross_entropy"),
    "Liger": ("LOGITS", "liger_kernel.transformers.functional", "liger_cross_entropy"),
    "flash-attn": ("LOGITS", "flash_attn.ops.triton.cross_entropy", "cross_entropy_loss"),
}


@pytest.mark.parametrize("peer", PEERS)
def test_peers_are_compared_where_they_are_and_named_where_they_are_not(bench, monkeypatch, peer):
    form, path, function = PEERS[peer]
    name = peer.partition(" ")[0]

    def loss(x, *rest, reduction=None):
        *weight, targets = rest
        losses = torch.nn.functional.cross_entropy(
            (x @ weight[0].T if weight else x).float(), targets, reduction="none"
        )
        return losses if reduction == "none" else (losses, None)

    problem = bench.problem_of(next(shape for shape in getattr(bench, form)).small(), "cpu")
    parts = path.split(".")
    for there in (False, True):
        for depth in range(1, len(parts) + 1):
            fake = types.ModuleType(".".join(parts[:depth]))
            fake.__path__ = []
            setattr(fake, function, loss)
            monkeypatch.setitem(sys.modules, fake.__name__, fake if there else None)
        entries, absent = bench.contenders_of(problem, ("cpu",))
        found = [entry for entry in entries if entry.name == name]
        named = [line for line in absent if line.startswith(f"{path}.{function}: ")]
        assert (len(found), len(named)) == ((1, 0) if there else (0, 1))
    facts, wrong = bench.check(problem, [entries[0], *found])
    assert (list(facts), wrong) == ([0, 1], [])


def test_wrong_results_are_not_timed(bench, timer, tmp_path, monkeypatch):
    """A defect of ours is reported and stops the shape; one of a peer is only left out."""
    monkeypatch.setattr(torch, "compile", lambda function: function)
    right = bench.logps_of_torch
    monkeypatch.setattr(bench, "logps_of_torch", lambda *arguments: right(*arguments) + 1)
    shape = next(shape for shape in bench.LOGITS if shape.dtype == "float32").small()
    outcome = bench.run(tmp_path / "gpu.csv", (shape,), "cpu", ("cpu",), timer, samples=5)
    assert not outcome.wrong
    assert any("logsumexp" in line and "log p is off by 1" in line for line in outcome.absent)
    assert outcome.rows

    ours = rk.token_logprobs
    monkeypatch.setattr(rk, "token_logprobs", lambda *args, **options: ours(*args, **options) * 1.01)
    outcome = bench.run(tmp_path / "gpu.csv", (replace(shape, T=3),), "cpu", ("cpu",), timer, samples=5)
    assert outcome.rows == 0
    (line, *_) = outcome.wrong
    assert line.startswith("token_logprobs T3-V200, ragsys_kernels")


def test_wrong_picks_are_found(bench):
    problem = bench.problem_of(next(shape for shape in bench.POOLS if shape.dtype == "float32").small(), "cpu")
    (ours, *_), _ = bench.contenders_of(problem, ("cpu",))
    result = ours.run()
    swapped = result._replace(indices=result.indices.flip(1))
    facts, wrong = bench.check(problem, [ours, replace(ours, run=lambda: swapped)])
    assert list(facts) == [0]
    assert "AssertionError" in wrong[0]


def test_rows_that_are_not_nearest_are_found(bench):
    problem = bench.problem_of(bench.SEARCH[0].small(), "cpu")
    (ours, *_), _ = bench.contenders_of(problem, ("cpu",))
    indices, scores = ours.run()
    facts, wrong = bench.check(problem, [ours, replace(ours, run=lambda: (indices * 0, scores))])
    assert list(facts) == [0]
    assert "from the nearest rows'" in wrong[0]


def test_pools_have_distinct_rows(bench):
    for shape in (bench.POOLS[0].small(), replace(bench.POOLS[0].small(), P=60)):
        candidates = bench.problem_of(shape, "cpu").candidates
        assert all(len(set(pool)) == shape.P for pool in candidates.tolist())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("options", [[], ["--look"], ["--only", "times"]])
def test_without_a_gpu_nothing_is_recorded(tmp_path, options, run_python):
    path = tmp_path / "gpu.csv"
    command = [sys.executable, ROOT / "benchmarks" / "gpu_check.py", "--ledger", path, *options]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    if "--look" in options and result.returncode == 0:
        pytest.skip("there is a driver")
    assert result.returncode == 2
    assert result.stderr.startswith("gpu-check: no GPU here: ")
    assert not result.stdout
    assert not path.exists()


def test_looking_needs_nothing_installed():
    """The interpreter that makes the virtual environment has no libraries."""
    command = [sys.executable, "-I", "-S", ROOT / "benchmarks" / "gpu_check.py", "--look"]
    assert subprocess.run(command, capture_output=True, timeout=100).returncode in (0, 2)
