"""The stages of `make gpu-check`: budgets, files and what fails, on a stub of a device and with tools that refuse."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from time import monotonic, sleep

import pytest

torch = pytest.importorskip("torch")

from benchmarks.gpu import bench  # noqa: E402
from benchmarks.harness import facts, machine  # noqa: E402
from benchmarks.stages import calls, picks, problems, stage, steps  # noqa: E402
from ragsys_kernels._base import sources  # noqa: E402

ROOT = Path(__file__).parents[3]


@pytest.fixture
def step():
    """Makes a step that runs code in Python, several at once if there are more."""

    def made(name, *codes, most=60.0, **options):
        commands = {str(number): [sys.executable, "-S", "-c", code] for number, code in enumerate(codes)}
        return stage.Step(name, lambda seconds: commands, most, **options)

    return made


@pytest.fixture
def ran(tmp_path, capfd):
    """Runs steps as a stage; returns whether nothing is wrong, the summary, the log and what was printed."""

    def run(*steps, budget=100.0):
        right = stage.run("stage", steps, tmp_path / "out", budget, {"match": "x"})
        summary = json.loads((tmp_path / "out" / "stage.json").read_text())
        assert summary["right"] == right
        return right, summary, (tmp_path / "out" / "stage.log").read_text(), capfd.readouterr().out

    return run


TELL = "import json; print('@ ' + json.dumps({}))"


def test_a_stage_keeps_what_its_steps_find(ran, step, tmp_path):
    found = TELL.format({"rates": {"copy": 3.5}, "absent": ["a peer"], "left_out": ["a shape"]})
    right, summary, log, printed = ran(step("first", "print('hello')"), step("second", found, found))
    assert right
    assert [one["status"] for one in summary["steps"]] == ["done", "done"]
    assert summary["steps"][1]["facts"]["rates"] == {"copy": 3.5}
    assert (summary["absent"], summary["left_out"], summary["wrong"]) == (["a peer"], ["a shape"], [])
    assert summary["given"] == {"match": "x"}
    assert summary["versions"]["torch"]
    assert "machine" in summary
    assert "hello" in log
    assert "stage: left out: a shape" in printed
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["stage.json", "stage.log"]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("print('three failed'); raise SystemExit(1)", "bad: status 1: three failed"),
        ("import os; os.kill(os.getpid(), 11)", "bad: status -11: no output"),
        ("raise ValueError('of us')", "bad: status 1: ValueError: of us"),
    ],
)
def test_a_step_that_fails_is_wrong_and_the_others_go_on(ran, step, code, reason):
    right, summary, _, printed = ran(step("bad", code), step("good", "print(1)"))
    assert not right
    assert [one["status"] for one in summary["steps"]] == ["wrong", "done"]
    assert summary["wrong"] == [reason]
    assert f"stage: wrong: {reason}" in printed


def test_a_step_that_hangs_is_ended_with_all_that_it_started(ran, step, tmp_path):
    child = tmp_path / "child"
    code = f"""
import pathlib, subprocess, sys, time
started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(900)"])
pathlib.Path({str(child)!r}).write_text(str(started.pid))
print("begun", flush=True)
time.sleep(900)
"""
    begin = monotonic()
    for most in (2.0, 8.0, 32.0, 128.0):  # until it has had the time to begin
        right, summary, log, _ = ran(step("hangs", code, most=most), step("next", "print(1)"), budget=1000.0)
        if "begun" in log:
            break
    assert monotonic() - begin < 600
    assert not right
    assert summary["wrong"] == ["hangs: did not end in its time"]
    assert summary["steps"][1]["status"] == "done"
    assert "begun" in log
    state = Path("/proc", child.read_text(), "stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"  # ended, whether or not anybody has asked


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_stage_that_is_killed_leaves_no_process_behind(tmp_path):
    child = tmp_path / "child"
    code = f"import os, pathlib, time; pathlib.Path({str(child)!r}).write_text(f'{{os.getpid()}} '); time.sleep(900)"
    start = f"""
import sys
from pathlib import Path
from benchmarks.stages import stage
commands = {{"long": [sys.executable, "-c", {code!r}]}}
stage.run("stage", [stage.Step("long", lambda seconds: commands, 800)], Path({str(tmp_path)!r}), 800, {{}})
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    running, begin = subprocess.Popen([sys.executable, "-c", start], cwd=ROOT, env=environment), monotonic()
    while not (child.exists() and child.read_text().endswith(" ")):
        assert monotonic() - begin < 400
    running.kill()
    running.wait()
    state = Path("/proc", child.read_text().strip(), "stat")
    while state.exists() and state.read_text().split()[2] != "Z":  # ended, whether or not anybody has asked
        assert monotonic() - begin < 500


def test_the_rest_is_what_a_race_had_no_time_for(tmp_path):
    asked = steps.Given(tmp_path, tmp_path / "gpu.csv", 200.0)
    assert [(one.name, one.most >= 60) for one in steps.rest(asked)] == [
        ("build", True), ("headline", True), ("sanitizers", True),
    ]  # fmt: skip


def test_what_the_budget_does_not_reach_is_named(ran, step):
    right, summary, _, printed = ran(
        step("long", "import time; time.sleep(0.2)"),
        step("big", "print(1)", least=999.9),
        step("small", "print(1)", least=0.5),
        budget=1000.0,
    )
    assert right
    assert [one["status"] for one in summary["steps"]] == ["done", "left out", "done"]
    (line,) = summary["left_out"]
    assert line.startswith("big: ")
    assert line.endswith(" s were left of the budget of 1000 s")
    assert f"left out: {line}" in printed


def test_an_interrupt_ends_the_step_that_runs_and_the_last_is_done_all_the_same(ran, step, tmp_path):
    begun = tmp_path / "begun"
    code = f"import pathlib, time; print('half', flush=True); pathlib.Path({str(begun)!r}).touch(); time.sleep(600)"

    def interrupt():
        while not begun.exists():
            sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    _, summary, log, _ = ran(
        step("long", code, most=500.0), step("next", "print(1)"), step("table", "print('what is known')", always=True),
        budget=1000.0,
    )  # fmt: skip
    assert [one["status"] for one in summary["steps"]] == ["left out", "left out", "done"]
    assert summary["left_out"] == ["long: interrupted", "next: interrupted"]
    assert "\nhalf\n" in log
    assert "\nwhat is known\n" in log


def test_what_is_for_always_is_done_when_the_time_is_up(ran, step):
    right, summary, log, _ = ran(step("long", "print(1)"), step("table", "print(2)", always=True), budget=1e-3)
    assert right
    assert [one["status"] for one in summary["steps"]] == ["left out", "done"]
    assert log.endswith("\n2\n\n")


def test_a_long_output_is_kept_from_its_end(ran, step):
    code = f"print('x' * {stage.LOG_BYTES}); print('the end')"
    _, _, log, _ = ran(step("talks", code))
    assert len(log) < stage.LOG_BYTES + 1000
    assert log.rstrip().endswith("the end")


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """Puts an nvidia-smi on PATH, which is a line of shell."""

    def made(line):
        path = tmp_path / "nvidia-smi"
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    return made


def test_the_driver_describes_the_device(driver):
    driver("echo 'NVIDIA H200, 580.159.03, 1980, 3201, 1980, 3201, 700.00, 80.1, 31, 0, 4, 143771, 0x0000000000000001'")
    assert machine.state()["driver_version"] == "580.159.03"
    assert machine.moving()["clocks.sm"] == "1980"
    assert "name" not in machine.moving()
    bench.device_state.cache_clear()
    assert bench.device_state() == {"driver": "580.159.03", "clocks_mhz": "1980 3201", "power_limit_w": "700.00"}
    driver("echo 'No devices were found'; exit 6")
    assert machine.state() == {"nvidia-smi": "No devices were found"}
    bench.device_state.cache_clear()
    assert bench.device_state() == {"driver": "", "clocks_mhz": "", "power_limit_w": ""}
    bench.device_state.cache_clear()


# --- Tools.


@pytest.fixture
def given(tmp_path):
    return steps.Given(out=tmp_path, ledger=tmp_path / "gpu.csv", budget=60.0, backends="cpu", small=True)


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Puts a tool of the CUDA toolkit in place, which is a line of shell."""

    def made(**lines):
        monkeypatch.setattr(
            steps, "calls", lambda given, command, *_: [sys.executable, "-c", f"print('ran {command}')"]
        )
        for name, line in lines.items():
            path = tmp_path / name.replace("_", "-")
            path.write_text(f"#!/bin/sh\n{line}\n")
            path.chmod(0o755)
        found = {name.replace("_", "-") for name in lines}
        monkeypatch.setattr(steps, "tool", lambda name: str(tmp_path / name) if name in found else None)

    return made


RUN_THE_REST = 'while [ "$1" != %s ]; do shift; done; exec "$@"' % sys.executable  # noqa: UP031


def test_a_tool_that_is_missing_or_refuses_is_named_and_not_fatal(ran, given, tool):
    tool(ncu="echo 'Failed to initialize the profiler'; exit 1")
    right, summary, _, _ = ran(steps.sanitizers(given, 60), steps.profiler(given))
    assert right
    assert summary["absent"] == [
        "sanitizers: compute-sanitizer is not here; it comes with the CUDA toolkit",
        "profile: status 1: Failed to initialize the profiler",
    ]


def test_a_sanitizer_that_does_not_know_the_device_is_not_fatal(ran, given, tool):
    tool(compute_sanitizer="echo '========= Error: Device not supported'; exit 9")
    right, summary, _, _ = ran(steps.sanitizers(given, 60))
    assert right
    assert summary["steps"][0]["status"] == "refused"


def test_what_a_sanitizer_finds_is_wrong(ran, given, tool):
    tool(compute_sanitizer='[ "$2" = racecheck ] || exit 0; echo "RACECHECK SUMMARY: 1 hazard displayed"; exit 9')
    right, summary, log, _ = ran(steps.sanitizers(given, 60))
    assert not right
    assert summary["wrong"] == ["sanitizers: racecheck: status 9: RACECHECK SUMMARY: 1 hazard displayed"]
    assert log.count("===== sanitizers: ") == 3


def test_a_sanitizer_that_is_stopped_says_how_far_it_came(ran, given, tool):
    tool(compute_sanitizer="echo 'cuda resident: mmr, P=201'; exec sleep 60")
    right, summary, _, _ = ran(steps.sanitizers(given, 1.0))
    assert right
    reason = "stopped at its time, in cuda resident: mmr, P=201"
    assert summary["left_out"] == [
        "sanitizers: " + "; ".join(f"{name}: {reason}" for name in ("memcheck", "synccheck", "racecheck"))
    ]


def test_tools_are_given_the_calls(ran, given, tool):
    tool(compute_sanitizer=RUN_THE_REST, ncu=RUN_THE_REST)
    right, _, log, _ = ran(steps.sanitizers(given, 60), steps.profiler(given))
    assert right
    assert log.count("\nran sanitize\n") == 3
    assert log.count("\nran profile\n") == 1
    assert "--clock-control none" in log


def test_a_check_that_is_stopped_has_found_nothing(ran, step):
    slow = step("slow", "import time; time.sleep(60)", most=0.3, judge=stage.checked)
    right, summary, _, _ = ran(slow, step("bad", "raise SystemExit(1)", judge=stage.checked))
    assert not right
    assert (summary["left_out"], summary["wrong"]) == (["slow: stopped at its time"], ["bad: status 1: no output"])


def test_many_lines_of_a_kind_are_counted(ran, step):
    _, summary, _, printed = ran(step("first", TELL.format({"left_out": [f"shape {n}" for n in range(30)]})))
    assert len(summary["left_out"]) == 30
    assert printed.count("left out: shape") == 12
    assert "left out: 18 more, in stage.json" in printed


def test_an_extension_of_the_sources_that_are_here_is_not_built_again(tmp_path, monkeypatch):
    """Whatever the times of files say, which are arbitrary in a copy."""
    monkeypatch.setattr(steps, "ROOT", tmp_path)
    built = tmp_path / "ragsys_kernels" / f"_C{steps.sysconfig.get_config_var('EXT_SUFFIX')}"
    source = tmp_path / "csrc" / "cpu" / "folder" / "a.inl"
    for path in (tmp_path / "setup.py", source, built):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")

    def builds():
        command = steps.build().commands(60)["setup.py"]
        assert ("--force" in command) == ("setup.py" in command)  # setuptools itself goes by times
        return "setup.py" in command

    assert builds()
    built.write_bytes(b"ELF..." + bytes.fromhex(sources.of_extension(tmp_path)) + b"...")
    for age in (-10, 10):
        os.utime(built, (source.stat().st_mtime + age,) * 2)
        assert not builds()
    for path, text in ((source, "changed"), (tmp_path / "setup.py", "flags"), (source.with_name("new.cpp"), "")):
        path.write_text(text)
        assert builds()
        built.write_bytes(bytes.fromhex(sources.of_extension(tmp_path)))
        assert not builds()
    source.rename(source.with_suffix(".h"))
    assert builds()
    built.unlink()
    assert builds()


def test_what_pytest_skipped_is_said():
    lines = [
        "SKIPPED [2] tests/gpu/test_gpu.py:9: needs 9 GB",
        "SKIPPED [1] a.py:7: needs 9 GB",
        "== 3 passed in 2s ==",
    ]
    assert steps.tested(0, "\n".join(lines)) == (stage.DONE, "3 passed in 2s; needs 9 GB")
    assert steps.tested(1, "\n".join(lines))[0] == stage.WRONG


# --- The calls, on the processor.


@pytest.fixture
def on_cpu(compiled, monkeypatch):
    monkeypatch.setattr(calls, "device", lambda: "cpu")


def test_small_problems_repeat(on_cpu, capsys):
    for command in ("config", "sanitize", "soak"):
        assert calls.main([command, "--backends", "cpu", "--small"]) == 0
    assert "0 of 3 runs differ" in capsys.readouterr().out


@pytest.mark.slow
def test_small_problems_are_right(compiled, monkeypatch, capfd):
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # for the processes, which then ask for no device
    assert calls.main(["picks", "--backends", "cpu", "--small"]) == 0
    printed = capfd.readouterr().out
    assert "right: cpu: vrsd, P=201, D=37, float32, options" in printed
    assert "right: cpu: log p, T=3, V=5003, D=72, bfloat16" in printed
    told = facts.told(printed.splitlines())
    assert told["forms"]["cpu"]["state"] == "right"
    assert told["picks"]["mmr, whole corpus: cpu"] == ""


def test_a_soak_keeps_to_its_time_and_says_how_far_it_came(on_cpu, monkeypatch, capsys):
    now = iter(range(10**6))
    monkeypatch.setattr(calls, "monotonic", lambda: next(now))
    assert calls.main(["soak", "--backends", "cpu", "--budget", "50"]) == 0
    told = facts.told(capsys.readouterr().out.splitlines())
    assert told["soak"]["calls"] == len(problems.forms("cpu")[0].problems)
    assert 3 <= told["soak"]["runs of each, at least"] < 10


def test_wrong_picks_and_bits_are_found(on_cpu, monkeypatch, capsys):
    ours = calls.rk.mmr
    seen = []

    def changed(*arguments, backend="auto", **options):
        result = ours(*arguments, backend=backend, **options)
        seen.append(result)
        return result if backend == "reference" else result._replace(scores=result.scores + len(seen))

    monkeypatch.setattr(calls.rk, "mmr", changed)
    (form,) = problems.forms("cpu")
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{i} cpu\n" for i in range(len(form.problems)))))
    assert calls.main(["answer", "--backends", "cpu"]) == 0
    told = [facts.told([line])["answer"] for line in capsys.readouterr().out.splitlines() if "answer" in line]
    assert {small.op for small, answer in zip(form.problems, told, strict=True) if answer["why"]} == {"mmr"}
    assert {answer["stays"] for answer in told} == {False}
    assert "has score" in told[0]["why"]
    assert calls.main(["soak", "--backends", "cpu", "--small"]) == 1
    wrong = [line for line in capsys.readouterr().out.splitlines() if line.startswith("WRONG: ")]
    assert wrong
    assert all(line.startswith("WRONG: cpu: mmr, ") and "3 of 3 runs differ" in line for line in wrong)


@pytest.mark.parametrize("ulps", [0, 1])
def test_other_bits_than_the_default_of_a_variant_that_has_the_same_are_found(on_cpu, monkeypatch, capsys, ulps):
    ours, (variant,) = calls.rk.mmr, calls.SAME_BITS

    def changed(*arguments, **options):
        result = ours(*arguments, **options)
        if ulps and os.environ.get("RAGSYS_KERNELS_VARIANTS") == variant:
            scores = torch.as_tensor(result.scores)
            result = result._replace(scores=torch.nextafter(scores, torch.full_like(scores, 9.0)))
        return result

    small = next(small for small in problems.forms("cpu")[0].problems if small.op == "mmr")
    monkeypatch.setattr(calls.rk, "mmr", changed)
    monkeypatch.setattr(calls, "forms", lambda *of: (problems.Form("cpu", "cpu", (small,), variant),))
    monkeypatch.setattr("sys.stdin", io.StringIO("0 cpu\n"))
    assert calls.main(["answer", "--backends", "cpu"]) == 0
    why = facts.told(capsys.readouterr().out.splitlines())["answer"]["why"]
    assert why == ("AssertionError: bits are not those of the default variant" if ulps else "")


@pytest.mark.parametrize("op", ["search", "answer_logprobs"])
def test_wrong_searches_and_log_probs_are_found(on_cpu, op):
    made = (
        problems.searches("float16") if op == "search" else problems.scores(3, 501, None, "float32", **problems.RANKS)
    )
    form = problems.Form("cpu", "cpu", (made,))
    arguments, call = calls.call_of(form, made)
    found = call()
    calls.check(made, arguments, found)
    for i in range(len(found)):
        changed = [torch.as_tensor(x).clone() for x in found]
        changed[i].reshape(-1)[-1] += 1
        with pytest.raises((AssertionError, IndexError)):
            calls.check(made, arguments, changed)
    if op == "search":  # of rows that are equally near the first
        equal = (torch.as_tensor(found[1])[:, 1:] == torch.as_tensor(found[1])[:, :-1]).nonzero()
        q, place = equal[0].tolist()
        changed = torch.as_tensor(found[0]).clone()
        changed[q, place], changed[q, place + 1] = found[0][q, place + 1], found[0][q, place]
        with pytest.raises(AssertionError, match="rows are not the nearest"):
            calls.check(made, arguments, (changed, found[1]))


def test_a_call_that_fails_under_a_tool_is_wrong_and_the_others_are_made(on_cpu, monkeypatch, capsys):
    def made(backend, few):
        assert few
        return [(f"{backend} bad", lambda: 1 / 0), (f"{backend} good", lambda: None)]

    monkeypatch.setattr(calls, "calls", made)
    assert calls.main(["sanitize", "--backends", "triton,cuda"]) == 1
    printed = capsys.readouterr().out
    assert printed.splitlines()[:4] == ["cuda bad", "cuda good", "triton bad", "triton good"]
    wrong = [f"{backend} bad: ZeroDivisionError: division by zero" for backend in ("cuda", "triton")]
    assert facts.told(printed.splitlines())["wrong"] == wrong
    monkeypatch.setattr(calls, "is_well", lambda: False)
    assert calls.main(["sanitize", "--backends", "triton,cuda"]) == 1
    assert facts.told(capsys.readouterr().out.splitlines())["wrong"] == wrong[:1]


def test_a_device_that_answers_no_more_is_noticed(on_cpu, monkeypatch, capsys):
    def fails(*_, **__):
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(calls.rk, "mmr", fails)
    monkeypatch.setattr(calls, "synchronize", fails)
    monkeypatch.setattr("sys.stdin", io.StringIO("0 cpu\n"))
    calls.main(["answer", "--backends", "cpu"])
    told = facts.told(capsys.readouterr().out.splitlines())["answer"]
    assert told == {"why": "RuntimeError: an illegal memory access was encountered", "stays": True}


# A process that answers as its form's name says, and writes down that it began.
ANSWERS = """
import json, os, sys, time
open(%r, "a").write("x")
for line in sys.stdin:
    number, _, form = line.strip().partition(" ")
    print("at", form, number, flush=True)
    why = "wrong pick" if "wrong" in form and number == "0" else ""
    if number == "1":
        if "dies" in form: print("Segmentation fault", flush=True); os._exit(11)
        if "hangs" in form: time.sleep(900)
        if "stays" in form: why = "illegal access"
    told = {"why": why, "stays": "stays" in form and number == "1"}
    print("@ " + json.dumps({"answer": told}), flush=True)
"""


@pytest.fixture
def picked(monkeypatch, tmp_path, capfd):
    """Runs picks over forms of these names, of three problems each; returns what is wrong, the facts, and processes."""
    begun = tmp_path / "begun"
    monkeypatch.setattr(picks, "python", lambda *_: [sys.executable, "-S", "-c", ANSWERS % str(begun)])

    def run(*names, children=1, seconds=60.0, most=60.0, kinds=("streamed pools",) * 3):
        monkeypatch.setattr(picks, "ANSWER_SECONDS", most)
        listed = [problems.Small(f"P={n}", "mmr", kind, "float16", dict) for n, kind in enumerate(kinds)]
        made = [problems.Form(name, "cuda", tuple(listed), "corpus=dense" if "dense" in name else "") for name in names]
        monkeypatch.setattr(picks, "forms", lambda backend, few: tuple(made))
        begun.write_text("")
        wrong = picks.Picks(["cuda"], True, seconds).run(children)
        return wrong, facts.told(capfd.readouterr().out.splitlines()), len(begun.read_text())

    return run


@pytest.mark.parametrize("children", [1, 3])
def test_a_form_that_is_wrong_or_dies_hides_no_other(picked, children):
    names = ["good", "wrong", "dies", "dense stays", "last"]
    wrong, told, begun = picked(*names, children=children)
    assert {name: form["state"] for name, form in told["forms"].items()} == {
        "good": "right", "wrong": "wrong", "dies": "died", "dense stays": "died", "last": "right",
    }  # fmt: skip
    assert {name: form["problems"] for name, form in told["forms"].items()} == {
        "good": 3, "wrong": 3, "dies": 2, "dense stays": 2, "last": 3,
    }  # fmt: skip
    assert wrong == [
        "wrong: P=0: wrong pick",
        "dies: P=1: status 11: Segmentation fault",
        "dense stays: P=1: illegal access",
    ]
    dense = {
        "form": "dense stays",
        "backend": "cuda",
        "variants": "corpus=dense",
        "op": "mmr",
        "kind": "streamed pools",
    }
    assert {**dense, "dtype": "float16", "problem": "P=1", "why": "illegal access"} in told["wrong_forms"]
    assert len(told["wrong_forms"]) == 3
    assert told["picks"]["mmr: cuda, corpus=dense"] == "P=1: illegal access"
    # One of two reasons, which no later form that is right hides.
    assert told["picks"]["mmr, streamed pools: cuda"] in (
        "P=0: wrong pick",
        "P=1: status 11: Segmentation fault",
    )
    assert "left_out" not in told
    assert begun == 3 if children == 1 else 3 <= begun <= 5


def test_what_a_form_that_died_has_not_answered_is_not_right(picked):
    _, told, _ = picked("dies", kinds=("pools on chip", "streamed pools", "whole corpus"))
    ended = "P=1: status 11: Segmentation fault"
    assert told["picks"] == {
        "mmr, pools on chip: cuda": "", "mmr, streamed pools: cuda": ended, "mmr, whole corpus: cuda": ended,
        "mmr: cuda": ended,
    }  # fmt: skip


def test_a_form_that_hangs_is_ended(picked):
    begin = monotonic()
    for most in (2.0, 8.0, 32.0):  # until the others have had the time to answer
        wrong, told, begun = picked("hangs", "last", most=most)
        if told["forms"]["last"]["state"] == "right":
            break
    assert monotonic() - begin < 600
    assert wrong == [f"hangs: P=1: no answer in {most:.0f} s"]
    assert {name: form["state"] for name, form in told["forms"].items()} == {"hangs": "hung", "last": "right"}
    assert begun == 2


def test_what_the_time_of_the_picks_does_not_reach_is_left_out(picked):
    for seconds in (2.0, 8.0, 32.0):  # until the first has had the time to answer
        wrong, told, _ = picked("good", "hangs", "last", seconds=seconds)
        if told["forms"]["good"]["state"] == "right":
            break
    assert wrong == []
    assert told["forms"]["last"] == {"state": "left out", "problems": 0, "seconds": 0.0}
    assert told["left_out"] == ["last: its problems, as the time was up"]
    assert told["forms"]["good"]["state"] == "right"
    assert not any("last" in key for key in told["picks"])


def test_a_backend_that_is_asked_for_and_cannot_run_is_wrong(on_cpu, capsys):
    if calls._dispatch.why_not("cuda") is None:
        pytest.skip("it can run here")
    assert calls.main(["config", "--backends", "cpu,cuda"]) == 1
    assert "WRONG: backend cuda: " in capsys.readouterr().out


def test_the_error_of_long_sums_is_measured(on_cpu, capsys):
    assert calls.main(["linear", "--backends", "cpu", "--small"]) == 0
    told = facts.told(capsys.readouterr().out.splitlines())
    assert len(told["linear"]) == len(calls.LINEAR_DIMS) * 3
    worst, bias = told["linear"]["D=4096, float32, cpu"]
    assert abs(bias) <= worst < 1e-5


def test_one_call_of_each_kind_is_profiled(on_cpu, capsys):
    assert calls.main(["profile", "--backends", "cpu", "--small"]) == 0
    assert "streamed pools, cpu" in capsys.readouterr().out


# --- The whole flow.


@pytest.fixture
def check(monkeypatch, tmp_path):
    """Runs `gpu_check.py` in a process of its own against a stub of a device, on arrays of the processor."""

    def run(*options, prepared="pass", **more):
        code = (
            f"import sys; sys.path.insert(0, {str(ROOT / 'benchmarks')!r}); import gpu_check; "
            f"gpu_check.why_no_driver = lambda: None; sys.path.insert(0, {str(ROOT)!r}); {prepared}; "
            "sys.exit(gpu_check.main())"
        )
        stub = str(ROOT / "tests" / "tools" / "gpu" / "stub_device")
        environment = {
            **os.environ,
            "PYTHONPATH": stub,
            "TRITON_INTERPRET": "1",
            "RAGSYS_KERNELS_COMMIT": "0123abc",
            **more,
        }
        command = [sys.executable, "-c", code, "--small", "--backends", "cpu", *map(str, options)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)

    return run


# The extension is there, and the tests of the flow are few.
PREPARED = (
    "from benchmarks.stages import stage, steps; from pathlib import Path; "
    "steps.build = lambda: stage.Step('build', lambda seconds: {{'setup.py': stage.python('-c', 'print(1)')}}, 60); "
    "steps.TESTS = Path({!r}); steps.PROCESSES = 2"
)


@pytest.mark.slow
def test_two_stages_on_a_stub_of_a_device(check, compiled, tmp_path):
    tests, out = tmp_path / "test_few.py", tmp_path / "out"
    tests.write_text("import warnings\n\ndef test_of_a_package_that_warns():\n    warnings.warn('foreign')\n")
    options = ("--budget", "200", "--no-compile", "--out", out, "--match", "^token_logprobs T8-V151936, bfloat16")
    for name in ("works", "ledger"):
        result = check("--stage", name, *options, prepared=PREPARED.format(str(tests)))
        log = (out / f"{name}.log").read_text()
        assert result.returncode == 0, result.stdout + result.stderr + log
    assert "1 passed" in (out / "works.log").read_text()
    assert sorted(path.name for path in out.iterdir()) == [
        "gpu.csv", "gpu.md", "ledger.json", "ledger.log", "works.json", "works.log",
    ]  # fmt: skip
    works, ledger = (json.loads((out / f"{name}.json").read_text()) for name in ("works", "ledger"))
    assert [step["status"] for step in works["steps"]] == ["done"] * 5
    assert [step["name"] for step in ledger["steps"]] == ["build", "config", "rows", "page"]
    assert ledger["steps"][2]["facts"]["rows"] > 1
    rows = (out / "gpu.csv").read_text().splitlines()
    assert any(row.startswith("token_logprobs,cpu,T8-V500,bfloat16") for row in rows)
    assert (out / "gpu.md").read_text().startswith("# ")


@pytest.mark.slow
def test_a_backend_that_is_required_and_cannot_run_fails_the_check(check, tmp_path):
    """Also the tests fail then: none of them is skipped."""
    result = check(
        "--stage", "works", "--budget", "100", "--out", tmp_path, "--backends", "cuda",
        prepared=PREPARED.format(str(ROOT / "tests" / "gpu" / "test_gpu.py")), PYTEST_ADDOPTS="-k no_rows",
    )  # fmt: skip
    assert result.returncode == 1
    assert result.stdout.rstrip().endswith("gpu-check: FAILED")
    summary = json.loads((tmp_path / "works.json").read_text())
    assert any(line.startswith("backend cuda: ") for line in summary["wrong"])
    statuses = {step["name"]: step["status"] for step in summary["steps"]}
    assert (statuses["config"], statuses["tests"]) == ("wrong", "wrong")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--budget", "0"], "argument --budget: must be above 0, got 0"),
        (["--match", "("], "argument --match: must be a regular expression, got '('"),
        (["--stage", "all"], "invalid choice"),
    ],
)
def test_bad_options_are_refused(check, options, message):
    result = check(*options)
    assert result.returncode == 2
    assert message in result.stderr


# Steps that have no use for a stub: one wants a driver for CUDA C++, one measures what a compiler's launches take.
NOTHING = "lambda given: stage.Step({0!r}, lambda seconds: {{{0!r}: stage.python('-c', 'print(1)')}}, 60)"
WITHOUT = "; ".join(f"steps.{name} = {NOTHING.format(name)}" for name in ("config", "host"))
# A sanitizer that does not know the device.
REFUSES = "#!/bin/sh\necho '========= Error: Device not supported'\nexit 9\n"


@pytest.mark.slow
def test_the_race_on_a_stub_of_a_device(check, compiled, tmp_path):
    """Picks, the forms of a shape on both backends, torch, the host, a headline, a tool that refuses, the table."""
    refusing, out = tmp_path / "bin" / "compute-sanitizer", tmp_path / "out"
    refusing.parent.mkdir()
    refusing.write_text(REFUSES)
    refusing.chmod(0o755)
    result = check(
        "--stage", "race", "--budget", "2000", "--out", out, "--backends", "triton,cuda", "--match", "^mmr .*P20-",
        prepared=f"{PREPARED.format('none')}; {WITHOUT}", PATH=f"{refusing.parent}{os.pathsep}{os.environ['PATH']}",
    )  # fmt: skip
    log = (out / "race.log").read_text()
    summary = json.loads((out / "race.json").read_text())
    steps = {step["name"]: step["status"] for step in summary["steps"]}
    assert list(steps) == [
        "build", "config", "machine", "picks", "race", "host", "peers", "headline", "sanitizers", "table",
    ], log  # fmt: skip
    assert steps.pop("sanitizers") == "refused"
    assert set(steps.values()) == {"done"}, log
    assert result.returncode == 0, result.stdout + result.stderr + log
    table = (out / "gpu.txt").read_text()
    assert table in log
    assert "1 of 20 rows have a winner" in table
    lines = [line.split() for line in table.splitlines()]
    assert sum(line[-1:] == ["reached"] or "lost" in line for line in lines) >= 3
    assert sorted(path.name for path in out.iterdir()) == ["gpu.csv", "gpu.txt", "race.json", "race.log"]


@pytest.mark.slow
def test_a_race_whose_time_is_up_has_its_table(check, compiled, tmp_path):
    """Here before anything was timed: there is none, and it says so."""
    result = check("--stage", "race", "--budget", "1", "--out", tmp_path, prepared=PREPARED.format("none"))
    summary = json.loads((tmp_path / "race.json").read_text())
    assert {step["name"]: step["reason"] for step in summary["steps"]}["table"].count("No such file or directory") == 1
    assert result.returncode == 0
