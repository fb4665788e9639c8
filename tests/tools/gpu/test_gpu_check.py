"""`make gpu-check` without a GPU: what it says then, and its parts on CPU tensors with a clock of the tests' own."""

import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels import _dispatch

torch = pytest.importorskip("torch")

from benchmarks.gpu import bench, events, forms, scoring, selection, shapes  # noqa: E402
from benchmarks.harness import ledger  # noqa: E402
from benchmarks.suites import scoring as suite  # noqa: E402

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.usefixtures("compiled")


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
def timer():
    cuda = FakeCuda()
    timer = events.EventTimer(cuda, lambda: cuda.work("flush", 100.0), lambda seconds: cuda.work("busy", 1e3 * seconds))
    timer.cuda = cuda
    return timer


@pytest.mark.parametrize(("host", "busy"), [(0, 5e-4), (1e-4, 5e-4), (0.01, 0.02), (7, 0.2)])
def test_the_device_is_busy_for_longer_than_the_host(timer, host, busy):
    before = timer.cuda.now
    timer.seconds(lambda: None, host)
    assert timer.cuda.now - before == pytest.approx(100 + 1e3 * busy, abs=0.01)


def test_a_call_that_can_be_captured_is_replayed_beside_each_turn(timer):
    cuda, captured = timer.cuda, []

    def capture(run):
        captured.append(run)
        if len(captured) == 2:
            raise RuntimeError("operation not permitted when stream is capturing")
        return lambda: cuda.work("replay", 1.5)

    timer.capture = capture
    entries = [bench.Contender(name, lambda n=name: cuda.work(n, 2.0)) for name in "ab"]
    entries.append(bench.Contender("part", lambda: cuda.work("part", 1.0), share=0.25))
    problem = bench.problem_of(shapes.LOGITS[0].small(), "cpu")
    race = bench.OnDevice(problem, entries, timer=timer, samples=7)
    race.check()
    rows = race.run()
    assert [row["us"] for row in rows] == pytest.approx([2e3, 2e3, 4e3], rel=2e-3)
    assert rows[1]["graph_us"] is None
    assert [rows[0]["graph_us"], rows[2]["graph_us"]] == pytest.approx([1.5e3, 6e3], rel=2e-3)
    assert cuda.log.count("replay") == 2 * 8


def test_a_contender_that_changes_its_input_is_named_and_what_it_changed_put_right(timer):
    problem = bench.problem_of(shapes.LOGITS[0].small(), "cpu")
    before = [x.clone() for x in problem.inputs]
    entries = [bench.Contender("writes", lambda: problem.rows.mul_(-1)), bench.Contender("reads", problem.rows.sum)]
    race = bench.OnDevice(problem, entries, timer=timer)
    race.check()
    assert [contender.name for contender in race.contenders] == ["reads"]
    assert race.wrong[0].endswith("its call changed the input")
    assert all(map(torch.equal, problem.inputs, before))
    late = iter([None] * 9)
    race.contenders = [bench.Contender("late", lambda: next(late, 0) is None or problem.rows.mul_(-1))]
    race._facts = {id(race.contenders[0]): {}}
    with pytest.raises(AssertionError, match="changed the input while it was timed"):
        race.run()


def test_pools_are_distinct_rows_from_all_over_the_corpus():
    shape = replace(shapes.POOLS[0], P=100, K=3, D=4, Q=300, N=10_007)
    problem = bench.problem_of(shape, "cpu")
    ids = problem.candidates.numpy()
    assert all(len(set(pool)) == 100 for pool in ids.tolist())
    assert (ids.min(), ids.max()) >= (0, 0)
    assert ids.max() < shape.N
    counts, _ = torch.histogram(problem.candidates.float(), 10, range=(0, shape.N))
    assert counts.min() > 2_700  # of 3,000
    assert problem.bytes == 300 * 100 * 4 * 4
    assert problem.floor_bytes == len(set(ids.flatten().tolist())) * 4 * 4  # all of it fits in a cache
    assert all(shapes.N % d for d in range(2, 1500))  # a prime


def test_what_a_cache_cannot_serve_counts_again(monkeypatch):
    """Queries that share a cache read a row once; each group of queries finds it filled with others."""
    monkeypatch.setattr(selection, "cache_bytes", lambda device: 3 * 100 * 4 * 4)
    problem = bench.problem_of(replace(shapes.POOLS[0], P=100, K=3, D=4, Q=7, N=211), "cpu")
    groups = [set(problem.candidates[first : first + 3].flatten().tolist()) for first in (0, 3, 6)]
    assert problem.floor_bytes == sum(map(len, groups)) * 4 * 4 > 211 * 4 * 4


def test_large_pools_are_the_rows_nearest_to_the_query():
    shape = replace(shapes.POOLS[-1], P=200, K=3, D=16, Q=70, N=1009, dtype="float32")
    assert shape.regime == shapes.STREAMED
    problem = bench.problem_of(shape, "cpu")
    cosines = problem.queries @ problem.rows.T
    least = cosines.gather(1, problem.candidates).min(1).values
    assert ((cosines > least[:, None]).sum(1) == 199).all()


@pytest.mark.parametrize("op", ["mmr", "vrsd", "whole"])
def test_picks_of_torch_are_those_of_the_library(op, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function: function)
    made = {"mmr": shapes.POOLS[0], "vrsd": shapes.VRSD[0], "whole": shapes.WHOLE[0]}[op]
    problem = bench.problem_of(replace(made.small(), Q=40, K=6), "cpu")
    monkeypatch.setattr(selection, "LOOPED", 7)
    entries = {entry.name: entry for entry in selection.of_pools(problem, ("cpu",))}
    names = {"mmr": {"torch", selection.GRAM, selection.LOOP}}.get(op, {"torch"})
    assert names <= set(entries)
    want = selection.picks_of(entries[bench.OURS].run())
    for name in names:
        picks = selection.picks_of(entries[name].run())
        assert (picks == want[: len(picks)]).all(), name
        assert len(picks) == 40 * entries[name].share, name


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_corpus_is_held_to_the_rows_that_it_stores(dtype):
    problem = bench.problem_of(replace(shapes.POOLS[0], P=None, K=4, D=24, Q=9, N=601, dtype=dtype), "cpu")
    entries = {entry.name: entry for entry in selection.of_pools(problem, ("triton",))}
    found = rk.mmr(problem.queries, problem.corpus, 4)
    picks = problem.check(entries[selection.CORPUS], found)
    assert (picks == found.indices).all()
    with pytest.raises(AssertionError):
        problem.check(entries[selection.CORPUS], found._replace(indices=np.roll(found.indices, 1, axis=1)))


@pytest.mark.parametrize("P", [30, 200])
def test_pools_have_no_use_for_a_corpus(P):
    problem = bench.problem_of(replace(shapes.POOLS[0].small(), P=P, N=601), "cpu")
    assert selection.CORPUS not in {entry.name for entry in selection.of_pools(problem, ("triton",))}


def test_variants_are_contenders_under_their_names():
    """Those alone that differ for the shape."""
    seen = []
    ours = bench.Contender(bench.OURS, lambda: seen.append(rk._base.env.variants()), backend="triton")
    found = bench.in_form(ours, forms.Form("triton", "corpus=dense"))
    for entry in (found, ours):
        entry.run()
    assert (found.name, seen) == ("ragsys_kernels, corpus=dense", ["corpus=dense", ""])
    for K, names in ((100, ["search=values"]), (2_000, [])):
        problem = bench.problem_of(replace(shapes.SEARCH[1].small(), N=30_000, K=K), "cpu")
        entries = bench.contenders_of(problem, ("triton",), variants=True)[0]
        assert [entry.name.partition(", ")[2] for entry in entries if "=" in entry.name] == names


def test_contenders_take_turns(timer):
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
    assert calls[2 * bench.WARM_UPS :] == ["a", "b"] * 8  # the first turns say how many there is time for


def test_a_slow_contender_has_fewer_turns(timer):
    problem = bench.problem_of(shapes.LOGITS[0].small(), "cpu")
    slow = bench.Contender("slow", lambda: timer.cuda.work("call", 200.0))
    race = bench.OnDevice(problem, [slow], timer=timer, samples=50)
    race.check()
    assert race.run()[0]["samples"] == 19  # the events take their time too


def shapes_of():
    """A small one of each op and form."""
    found = {}
    for shape in bench.ALL:
        found.setdefault((shape.op, getattr(shape, "P", 0) is None, shape.dtype), shape.small())
    return tuple(found.values())


def test_every_op_goes_into_the_ledger(timer, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function: function)  # seconds, and not what is tested
    small = shapes_of()
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
        torch_itself = {"torch", "torch.compile"}
        gram, blocks = "torch, one Gram matrix", {f"torch, float32 blocks of {n}" for n in ("4,096", "8,192", "32,768")}
        peers = {
            "search": {"torch", "matrix product"},
            "token_logprobs": {
                "ragsys_kernels, entropy", "log_softmax + gather", "logsumexp", "F.cross_entropy", "torch.compile"
            },
            "answer_logprobs": {"matrix product"} | torch_itself | blocks,  # of both types
            "vrsd": torch_itself,
        }.get(op)  # fmt: skip
        if peers is None:
            pools = {gram, f"{gram}, torch.compile", "torch, a query at a time"}
            peers = torch_itself | ({"matrix product"} if shape.P is None else pools)
        assert (
            names - {"Liger", "flash-attn", "cut-cross-entropy", "TRL, entropy"}
            == {bench.OURS, bench.COPY, "ragsys_kernels on the CPU"} | peers
        )
    picks = {row["contender"]: row["same_picks"] for row in rows if row["op"] == "mmr" and row["dtype"] == "float32"}
    assert picks["torch"] == picks[bench.OURS] == "1"


def test_the_most_usual_shape_of_each_kind_of_kernel_comes_first():
    ordered = shapes.by_value(shapes.ALL)
    assert sorted(map(repr, ordered)) == sorted(map(repr, shapes.ALL))
    first = shapes.one_of_each(shapes.ALL)
    assert ordered[: len(first)] == first
    assert len({shape.regime for shape in first}) == len(first) == 8
    assert [(shape.op, shape.dtype) for shape in first[:2]] == [("mmr", "float16"), ("token_logprobs", "bfloat16")]


@pytest.fixture
def paced(monkeypatch):
    """Shapes that take ten seconds each of a clock that stands still between them; returns what was timed."""
    now, timed = [0.0], []

    def rows(shape, *_):
        now[0] += 10
        timed.append(shape)
        micro = 100.0 + 2 * len(timed)
        names = dict.fromkeys(bench.LEDGER.columns, "")
        times = {"us": micro, "host_us": 5.0, "ratio": 1.0, "floor_us": 50.0, "iqr_us": 1.0, "samples": 50}
        row = {**names, **times, "op": shape.op, "shape": str(shape), "dtype": shape.dtype}
        return [{**row, "contender": bench.OURS, "backend": "cpu"}]

    monkeypatch.setattr(bench, "perf_counter", lambda: now[0])
    monkeypatch.setattr(bench, "_timed", rows)
    return timed


def test_a_budget_leaves_out_what_is_worth_least_and_says_so(paced, timer, tmp_path):
    outcome = bench.run(tmp_path / "gpu.csv", shapes.ALL, "cpu", ("cpu",), timer, budget=55)
    assert paced == shapes.by_value(shapes.ALL)[:5]
    assert (outcome.rows, len(outcome.left_out)) == (5, len(shapes.ALL) - 5)
    assert "token_logprobs T512-V151936, bfloat16" not in outcome.left_out


def test_every_row_of_two_passes_has_a_spread(paced, timer, tmp_path):
    path = tmp_path / "gpu.csv"
    outcome = bench.run(path, shapes.ALL, "cpu", ("cpu",), timer, budget=65, passes=2)
    assert paced == 2 * shapes.by_value(shapes.ALL)[:3]
    rows = bench.LEDGER.at(path).read()
    assert [(row["us"], row["samples"], row["spread"]) for row in rows[:1]] == [("105", "100", "0.0571429")]
    assert len(outcome.unsteady) == len(rows) == 3
    assert outcome.unsteady[0].endswith("5.7% apart")


def test_the_command_takes_what_matches(paced, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench, "EventTimer", types.SimpleNamespace(on=lambda device: None))
    monkeypatch.setattr(bench._dispatch, "why_not", lambda backend: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a device")
    options = ["--match", "^mmr .*P1000.*float32", "--no-compile", "--ledger", str(tmp_path / "gpu.csv")]
    assert bench.main(options) == 0
    assert [(shape.P, shape.D, shape.dtype) for shape in paced] == [(1000, D, "float32") for D in shapes.DIMS]
    facts = bench.facts.told(capsys.readouterr().out.splitlines())
    assert (facts["rows"], facts["device"]) == (2, "a device")
    paced.clear()
    assert bench.main([*options, "--one-of-each"]) == 0
    usual = list(paced)
    paced.clear()
    assert bench.main([*options, "--rest"]) == 0
    assert [len(usual), len(paced)] == [1, 1]
    assert {shape.D for shape in (*usual, *paced)} == set(shapes.DIMS)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--seconds", "0"], "--seconds must be above 0, got 0"),
        (["--budget", "nan"], "--budget must be above 0, got nan"),
        (["--rest", "--one-of-each"], "not allowed with argument"),
    ],
)
def test_bad_options_are_one_line(capsys, options, said):
    with pytest.raises(SystemExit):
        bench.main(options)
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_a_copy_of_the_tree_takes_its_commit_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("RAGSYS_KERNELS_COMMIT", "0123abc")
    monkeypatch.setattr(ledger, "ROOT", tmp_path)
    assert ledger._commit() == "0123abc"
    (tmp_path / ".git").mkdir()  # of another checkout
    assert ledger._commit() == "0123abc"
    (tmp_path / ".git").rmdir()
    monkeypatch.delenv("RAGSYS_KERNELS_COMMIT")
    assert ledger._commit() == ""


def test_backends_that_cannot_run_are_named(timer, tmp_path, monkeypatch):
    monkeypatch.setattr(_dispatch, "why_not", lambda backend: "of the weather")
    outcome = bench.run(tmp_path / "gpu.csv", shapes_of(), "cpu", ("triton",), timer)
    assert outcome.rows == 0
    assert not (tmp_path / "gpu.csv").exists()
    assert outcome.absent == ["backend triton: of the weather"]


def checked(problem, entries):
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
def test_peers_are_compared_where_they_are_and_named_where_they_are_not(monkeypatch, peer):
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
    race = checked(problem, [entries[0], *found])
    assert (len(race.contenders), race.wrong) == (2, [])


def test_liger_s_kernels_in_cutedsl_take_bfloat16(monkeypatch):
    """They are compared where their compiler is, too: without it other kernels would answer."""
    path = "liger_kernel.ops.LigerFusedLinearScaledCrossEntropyFunction"

    class Loss:
        @staticmethod
        def apply(x, weight, targets):
            return torch.nn.functional.cross_entropy((x @ weight.T).float(), targets, reduction="none")

    def found(dtype):
        shape = next(shape for shape in shapes.HIDDEN if shape.dtype == dtype)
        problem = bench.problem_of(shape.small(), "cpu")
        entries, absent = bench.contenders_of(problem, ("cpu",))
        mine = [entry for entry in entries if entry.name == "Liger, CuTe DSL"]
        if mine:
            assert checked(problem, mine).wrong == []
            assert mine[0].note == "a loss of training, forward alone"
        return bool(mine), [line for line in absent if "cutlass" in line or "CuTe" in line or path in line]

    for name in ("cutlass", "liger_kernel", "liger_kernel.ops"):
        fake = types.ModuleType(name)
        fake.__path__ = []
        fake.LigerFusedLinearScaledCrossEntropyFunction = Loss
        monkeypatch.setitem(sys.modules, name, fake)
    there, absent = found("bfloat16")
    assert not there
    assert absent[0].startswith("cutlass.cute: ")
    sys.modules["cutlass"].cute = None
    assert found("bfloat16") == (True, [])
    assert found("float32") == (False, ["Liger's kernels in CuTe DSL take bfloat16, got torch.float32"])


def test_blocks_of_logits_in_float32_have_torch_s_log_p():
    shape = next(shape for shape in shapes.HIDDEN if shape.dtype == "float32").small()
    problem = bench.problem_of(shape, "cpu")
    given = (problem.rows, problem.targets, problem.weight)
    logits = problem.rows @ problem.weight.T
    want = logits.log_softmax(1).gather(1, problem.targets[:, None])[:, 0]
    for columns in (1, 7, logits.shape[1] - 1, logits.shape[1], 1000):
        torch.testing.assert_close(scoring.logps_of_blocks(*given, columns), want)


def test_trl_is_compared_where_both_its_functions_are(monkeypatch):
    problem = bench.problem_of(shapes.LOGITS[0].small(), "cpu")
    fake = types.ModuleType("trl.trainer.utils")
    called = []
    fake.entropy_from_logits = called.append
    for name in ("trl", "trl.trainer"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "trl.trainer.utils", fake)
    _, absent = bench.contenders_of(problem, ("cpu",))
    assert any(line.startswith("trl.trainer.utils.selective_log_softmax: ") for line in absent)
    fake.selective_log_softmax = lambda x, targets: x.float().log_softmax(-1).gather(1, targets[:, None])[:, 0]
    entries, _ = bench.contenders_of(problem, ("cpu",))
    race = checked(problem, [entry for entry in entries if entry.name == "TRL, entropy"])
    assert (len(race.contenders), len(called)) == (1, 1)


def test_wrong_results_are_not_timed(timer, tmp_path, monkeypatch):
    """A defect of ours is reported and stops the shape; one of a peer is only left out."""
    monkeypatch.setattr(torch, "compile", lambda function: function)
    right = suite.logps_of_torch
    monkeypatch.setattr(suite, "logps_of_torch", lambda *arguments: right(*arguments) + 1)
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


def test_contenders_can_be_left_out():
    """Those for whom the processor has to wait; those that are compiled."""

    def names(shape, *given, **options):
        problem = bench.problem_of(shape.small(), "cpu")
        return {entry.name for entry in bench.contenders_of(problem, ("cpu",), *given, **options)[0]}

    pools, logits = shapes.POOLS[0], shapes.LOGITS[0]
    assert names(pools) - names(pools, host=False) == {selection.LOOP, selection.CPU}
    assert names(logits, True) - names(logits, False) == {bench.COMPILED}


def with_a_pick_of_no_pool(result):
    indices = result.indices.clone()
    indices[2, 1] = 10**6
    return result._replace(indices=indices)


WRONG = {
    "picks": ("POOLS", lambda result: result._replace(indices=result.indices.flip(1)), "AssertionError"),
    "a pick of no pool": ("POOLS", with_a_pick_of_no_pool, "a pick is in no pool"),
    "rows": ("SEARCH", lambda result: (result[0] * 0, result[1]), "from the nearest rows'"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_results_of_a_contender_are_found(what):
    of, spoil, said = WRONG[what]
    shape = next(shape for shape in getattr(shapes, of) if of == "SEARCH" or shape.dtype == "float32")
    problem = bench.problem_of(shape.small(), "cpu")
    (ours, *_), _ = bench.contenders_of(problem, ("cpu",))
    wrong = spoil(ours.run())
    race = checked(problem, [ours, replace(ours, run=lambda: wrong)])
    assert race.contenders == [ours]
    assert said in race.wrong[0]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("options", [[], ["--stage", "ledger"]])
def test_without_a_gpu_nothing_is_recorded(tmp_path, options, run_python):
    path = tmp_path / "gpu.csv"
    command = [sys.executable, ROOT / "benchmarks" / "gpu_check.py", "--ledger", path, *options]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert result.returncode == 2
    assert result.stderr.startswith("gpu-check: no GPU here: ")
    assert not result.stdout
    assert not path.exists()


def test_looking_needs_nothing_installed():
    """The interpreter that makes the virtual environment has no libraries."""
    command = [sys.executable, "-I", "-S", ROOT / "benchmarks" / "gpu_check.py", "--look"]
    assert subprocess.run(command, capture_output=True, timeout=100).returncode in (0, 2)
