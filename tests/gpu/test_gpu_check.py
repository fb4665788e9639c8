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


@pytest.fixture
def shapes(module):
    return module("gpu.shapes")


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
def timer(module):
    cuda = FakeCuda()
    timer = module("gpu.events").EventTimer(cuda, lambda: cuda.work("flush", 100.0), lambda: cuda.work("busy", 50.0))
    timer.cuda = cuda
    return timer


def test_timer_takes_the_call_alone(timer):
    device, host = timer.seconds(lambda: timer.cuda.work("call", 3.0))
    assert device == pytest.approx(3e-3, rel=1e-3)
    assert 0 <= host < 1
    assert timer.cuda.log == ["flush", "busy", "record", "call", "record", "synchronize"]


def test_contenders_take_turns(bench, timer, shapes):
    cuda = timer.cuda
    entries = [bench.Contender(name, lambda n=name: cuda.work(n, 2.0)) for name in "ab"]
    entries.append(bench.Contender("host", lambda: cuda.log.append("host"), on_host=True))
    problem = bench.problem_of(shapes.LOGITS[0].small(), "cpu")
    race = bench.OnDevice(problem, entries, timer=timer, samples=7)
    race.check()
    cuda.log.clear()
    rows = race.run()
    assert [row["samples"] for row in rows] == [7, 7, bench.HOST_SAMPLES]
    assert rows[0]["us"] == pytest.approx(2e3, rel=1e-3)
    calls = [name for name in cuda.log if name in ("a", "b")]
    assert calls[: 2 * bench.WARM_UPS] == ["a"] * bench.WARM_UPS + ["b"] * bench.WARM_UPS
    assert calls[2 * bench.WARM_UPS :] == ["a", "b"] * 7


def shapes_of(bench):
    """A small one of each op and form."""
    found = {}
    for shape in bench.ALL:
        found.setdefault((shape.op, getattr(shape, "P", 0) is None, shape.dtype), shape.small())
    return tuple(found.values())


def test_every_op_goes_into_the_ledger(bench, timer, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function: function)  # seconds, and not what is tested
    small = shapes_of(bench)
    path = tmp_path / "gpu.csv"
    outcome = bench.run(path, small, "cpu", ("cpu",), timer, samples=5)
    assert not outcome.wrong
    rows = bench.LEDGER.at(path).read()
    assert len(rows) == outcome.rows
    assert tuple(rows[0]) == bench.LEDGER.columns
    assert len({tuple(row[name] for name in bench.LEDGER.key) for row in rows}) == len(rows)
    assert {row["op"] for row in rows} == {"mmr", "vrsd", "search", "token_logprobs", "answer_logprobs"}
    assert {(row["op"], row["shape"]) for row in rows} == {(shape.op, str(shape)) for shape in small}
    for row in rows:
        assert row["device"] == outcome.device
        assert all(row[name] for name in ("samples", "us", "host_us", "ratio", "floor_us", "date", "versions"))
    for shape in small:
        op, names = shape.op, {row["contender"] for row in rows if (row["op"], row["shape"]) == (shape.op, str(shape))}
        peers = {
            "search": {"torch"},
            "token_logprobs": {"log_softmax + gather", "logsumexp", "F.cross_entropy", "torch.compile"},
            "answer_logprobs": {"matrix product", "torch", "torch.compile"},
        }.get(op, {"torch", "torch.compile"} if op == "mmr" and shape.P is not None else set())
        assert (
            names - {"Liger", "flash-attn", "cut-cross-entropy"}
            == {bench.OURS, bench.COPY, "ragsys_kernels on the CPU"} | peers
        )
    picks = {row["contender"]: row["same_picks"] for row in rows if row["op"] == "mmr" and row["dtype"] == "float32"}
    assert picks["torch"] == picks[bench.OURS] == "1"


def test_backends_that_cannot_run_are_named(bench, timer, tmp_path, monkeypatch):
    monkeypatch.setattr(_dispatch, "why_not", lambda backend: "of the weather")
    outcome = bench.run(tmp_path / "gpu.csv", shapes_of(bench), "cpu", ("triton",), timer)
    assert outcome.rows == 0
    assert not (tmp_path / "gpu.csv").exists()
    assert outcome.absent == ["backend triton: of the weather"]


def checked(bench, problem, entries):
    race = bench.OnDevice(problem, entries)
    race.check()
    return race


PEERS = {  # name: shapes, module, function
    "cut-cross-entropy": ("HIDDEN", "cut_cross_entropy", "linear_cross_entropy"),
    "Liger of hidden states": ("HIDDEN", "liger_kernel.transformers.functional", "liger_fused_linear_cross_entropy"),
    "Liger": ("LOGITS", "liger_kernel.transformers.functional", "liger_cross_entropy"),
    "flash-attn": ("LOGITS", "flash_attn.ops.triton.cross_entropy", "cross_entropy_loss"),
}


@pytest.mark.parametrize("peer", PEERS)
def test_peers_are_compared_where_they_are_and_named_where_they_are_not(bench, shapes, monkeypatch, peer):
    form, path, function = PEERS[peer]
    name = peer.partition(" ")[0]

    def loss(x, *rest, reduction=None):
        *weight, targets = rest
        losses = torch.nn.functional.cross_entropy(
            (x @ weight[0].T if weight else x).float(), targets, reduction="none"
        )
        return losses if reduction == "none" else (losses, None)

    problem = bench.problem_of(next(shape for shape in getattr(shapes, form)).small(), "cpu")
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
    race = checked(bench, problem, [entries[0], *found])
    assert (len(race.contenders), race.wrong) == (2, [])


def test_wrong_results_are_not_timed(bench, timer, module, shapes, tmp_path, monkeypatch):
    """A defect of ours is reported and stops the shape; one of a peer is only left out."""
    monkeypatch.setattr(torch, "compile", lambda function: function)
    scoring = module("suites.scoring")
    right = scoring.logps_of_torch
    monkeypatch.setattr(scoring, "logps_of_torch", lambda *arguments: right(*arguments) + 1)
    shape = next(shape for shape in shapes.LOGITS if shape.dtype == "float32").small()
    outcome = bench.run(tmp_path / "gpu.csv", (shape,), "cpu", ("cpu",), timer, samples=5)
    assert not outcome.wrong
    assert any("logsumexp" in line and "log p is off by 1" in line for line in outcome.absent)
    assert outcome.rows

    ours = rk.token_logprobs
    monkeypatch.setattr(rk, "token_logprobs", lambda *args, **options: ours(*args, **options) * 1.01)
    outcome = bench.run(tmp_path / "gpu.csv", (replace(shape, T=3),), "cpu", ("cpu",), timer, samples=5)
    assert outcome.rows == 0
    (line, *_) = outcome.wrong
    assert line.startswith("token_logprobs T3-V500, ragsys_kernels")


def test_wrong_picks_are_found(bench, shapes):
    problem = bench.problem_of(next(shape for shape in shapes.POOLS if shape.dtype == "float32").small(), "cpu")
    (ours, *_), _ = bench.contenders_of(problem, ("cpu",))
    result = ours.run()
    swapped = result._replace(indices=result.indices.flip(1))
    race = checked(bench, problem, [ours, replace(ours, run=lambda: swapped)])
    assert race.contenders == [ours]
    assert "AssertionError" in race.wrong[0]


def test_rows_that_are_not_nearest_are_found(bench, shapes):
    problem = bench.problem_of(shapes.SEARCH[0].small(), "cpu")
    (ours, *_), _ = bench.contenders_of(problem, ("cpu",))
    indices, scores = ours.run()
    race = checked(bench, problem, [ours, replace(ours, run=lambda: (indices * 0, scores))])
    assert race.contenders == [ours]
    assert "from the nearest rows'" in race.wrong[0]


def test_pools_have_distinct_rows(bench, shapes):
    for shape in (shapes.POOLS[0].small(), replace(shapes.POOLS[0].small(), P=60)):
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
