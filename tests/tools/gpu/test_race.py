"""The race: what a ledger says, and that nothing that happens to a process costs more than the form that it was at."""

import json
import math
import os
import signal
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from time import monotonic
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from benchmarks.gpu import causes, forms, goals, race
from benchmarks.gpu.shapes import LEDGER
from benchmarks.stages import steps

ROOT = Path(__file__).parents[3]
POOLS, SEARCH = goals.GOALS[0], next(goal for goal in goals.GOALS if goal.shape.op == "search")


def row(goal, contender, backend="", us="", state="", reason=""):
    own = {"op": goal.shape.op, "shape": str(goal.shape), "dtype": goal.shape.dtype, "device": "a device"}
    return LEDGER.texts({**own, "contender": contender, "backend": backend, "us": us, "state": state, "reason": reason})


def rows_of(goal, us, **states):
    """A row for each form, of these times; the roof takes 50 µs."""
    times = iter(us)
    found = [row(goal, form.contender, form.backend, next(times, "")) for form in forms.of(goal.shape)]
    return [row(goal, name, "", 50.0) for name in goals.roofs(goal)] + found


# --- What a ledger says.


def test_a_row_has_one_winner_and_the_others_are_lost():
    every = goals.found([*rows_of(POOLS, (130.0, 60.0)), row(POOLS, "torch", "", 200.0)], [POOLS])
    assert [one.form.name for one in every] == ["cuda", "triton"]
    winner = goals.winners(every)[POOLS]
    assert [goals.verdict(one, winner) for one in every] == ["wins, reached", "lost by 117%, below its stop"]
    assert (every[0].share, every[0].torch, every[0].measured_here) == (pytest.approx(50 / 60), 200.0, True)
    every = goals.found(rows_of(POOLS, (70.0, 60.0)), [POOLS])
    assert [goals.verdict(one, every[0]) for one in every] == ["wins, reached", "lost by 17%"]


def test_a_winner_may_miss_its_goal_and_be_below_its_stop():
    for us, text in ((100.0, "wins, goal 70% missed"), (140.0, "wins, below its stop")):
        every = goals.found(rows_of(POOLS, (us, us + 1)), [POOLS])
        assert goals.verdict(every[0], every[0]) == text
    assert not every[0].above_stop


def test_a_wrong_form_never_wins_however_fast_it_is():
    rows = rows_of(POOLS, (70.0, 60.0))
    rows[-1] |= {"state": goals.WRONG, "reason": "picks: AssertionError"}
    every = goals.found(rows, [POOLS])
    assert goals.winners(every)[POOLS].form.name == "triton"
    assert (every[-1].form.name, every[-1].us) == ("cuda", 60.0)
    assert goals.verdict(every[-1], every[0]) == "WRONG: picks: AssertionError"


def test_the_table_says_of_each_form_what_is_missing_and_why():
    rows = rows_of(POOLS, (70.0,))[:2]
    rows.append(row(POOLS, "ragsys_kernels", "cuda", state=goals.KILLED, reason="signal SIGSEGV"))
    text = goals.told(rows)
    assert f"{POOLS.title}: roof 50.0 µs, torch 355.0 µs (published, not timed here)" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["cuda", "-", "KILLED:", "signal", "SIGSEGV"] in lines
    assert ["triton,", "search=values", "-", "LEFT", "OUT:", "not", "reached"] in lines
    forms_in_all = sum(len(forms.of(goal.shape)) for goal in goals.GOALS)
    assert sum(line[-4:] == ["LEFT", "OUT:", "not", "reached"] for line in lines) == forms_in_all - 2
    assert text.endswith(f"1 of 20 rows have a winner; {forms_in_all - 1} of {forms_in_all} forms have no time.")


def test_the_table_of_nothing():
    count = sum(len(forms.of(goal.shape)) for goal in goals.GOALS)
    assert goals.told([]).endswith(f"0 of 20 rows have a winner; {count} of {count} forms have no time.")
    assert all(math.isnan(one.us) for one in goals.found([]))


def test_what_explains_the_winner_stands_below_it():
    rows = rows_of(POOLS, (70.0, 60.0))
    rows[-1] |= {"clock_mhz": "1755", "counts": "queries left: 3 0", "kernels": "a 50.0; b 10.0"}
    text = goals.told(rows, [POOLS])
    assert "      1755 MHz under load\n      queries left: 3 0\n      a 50.0; b 10.0 µs" in text


def test_what_could_not_be_had_has_no_unit():
    rows = rows_of(POOLS, (70.0, 60.0))
    rows[-1] |= {"counts": "refused: ValueError: x", "kernels": "refused: AssertionError: y"}
    assert "      counts refused: ValueError: x\n      kernels refused: AssertionError: y\n" in goals.told(
        rows, [POOLS]
    )


def test_times_within_the_noise_are_equal():
    every = goals.found(rows_of(POOLS, (60.0, 61.2)), [POOLS])
    said = sorted(goals.verdict(one, goals.winners(every)[POOLS]) for one in every)
    assert said == ["as fast", "wins, reached"]
    every = goals.found(rows_of(POOLS, (60.0, 62.4)), [POOLS])
    said = [goals.verdict(one, every[0]) for one in every]
    assert said == ["wins, reached", "lost by 4%"]


def test_a_table_of_a_file_that_is_no_ledger_is_refused(tmp_path, capsys):
    path, header = tmp_path / "gpu.csv", ",".join((*LEDGER.key, "us")).encode()
    for content, message in (
        (None, "No such file or directory"),
        (header + b"\n\xff\n", "can't decode byte 0xff"),
        (b"name,us\nx,1\n", "must be the CSV of a race, got one without op, "),
        (header + b"\nmmr,cuda,N1,float16,d,x,6x0\n", "us must be a number above 0, got '6x0' in row 1"),
        (header + b"\nmmr,cuda,N1,float16,d,x,nan\n", "us must be a number above 0, got 'nan' in row 1"),
        (header + b"\nmmr,cuda,N1,float16,d,x,6\n", "no row has a shape of the race; there are mmr N1, float16"),
    ):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(SystemExit) as ended:
            race.main(["--table", "--ledger", str(path)])
        (line,) = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
        assert (ended.value.code, message in line) == (2, True), line


def test_a_table_is_of_the_sizes_that_the_ledger_has(tmp_path, capsys):
    """Also of one from before the race, which has neither states nor reasons."""
    small = goals.of(small=True)[0]
    path = tmp_path / "gpu.csv"
    path.write_text(
        "op,backend,shape,dtype,device,contender,us\n"
        f"{small.shape.op},cuda,{small.shape},{small.shape.dtype},a device,ragsys_kernels,60\n"
    )
    assert race.main(["--table", "--ledger", str(path)]) == 0
    printed = capsys.readouterr().out
    assert small.title in printed
    assert "1 of 20 rows have a winner" in printed


def test_small_shapes_take_the_forms_of_the_large_ones():
    small = goals.of(small=True)
    assert [forms.of(goal.shape) for goal in small] == [forms.of(goal.shape) for goal in goals.GOALS]
    assert len({goal.title for goal in small}) == len(small)


def test_suspicion_is_of_a_kernel_and_falls_on_its_changes(tmp_path):
    path = tmp_path / "race.json"
    picks = {"mmr, pools on chip: cuda": "died", "mmr: triton": "AssertionError", "mmr, pools on chip: triton": ""}
    path.write_text(json.dumps({"steps": [{"facts": {"picks": picks}}, {"facts": {}}]}))
    known = race.suspects(path)
    one_block = forms.Form("cuda", "", forms.ONE_BLOCK)
    assert race.suspicion(POOLS.shape, forms.Form("cuda"), known) == "picks: died"
    assert race.suspicion(POOLS.shape, forms.Form("triton"), known) == ""
    whole = next(goal for goal in goals.GOALS if goal.shape.op == "mmr" and goal.shape.P is None)
    assert race.suspicion(whole.shape, forms.Form("triton", "", forms.CHECK_64), known) == "picks: AssertionError"
    assert race.suspicion(whole.shape, one_block, known) == ""
    assert race.suspects(tmp_path / "none") == {}


# --- The course, with processes that time nothing.

HEAT = """
import json, os, sys, time
from pathlib import Path
from benchmarks.gpu import goals
from benchmarks.gpu.shapes import LEDGER

FAULTS = {}
job = json.loads(sys.stdin.readline() or "null")
if job is None:
    sys.exit()
shape, ledger = goals.of(job["small"])[job["goal"]].shape, LEDGER.at(Path(job["ledger"]))
with open(job["ledger"] + ".processes", "a") as file:
    file.write(f"{len(job['entries'])}\\n")
if "start" in FAULTS:
    sys.exit("no problem can be made")
for place, (backend, name) in enumerate(job["entries"]):
    own = {"op": shape.op, "shape": str(shape), "dtype": shape.dtype, "device": "stub"}
    own |= {"backend": backend, "contender": name}
    ledger.update([{**own, "state": goals.BEGUN}])
    fault = FAULTS.get(f"{shape.op} {name} {backend}", "")
    if fault == "die":
        os.kill(os.getpid(), 11)
    while fault == "hang":
        time.sleep(1)
    if fault == "raise":
        ledger.update([{**own, "state": goals.FAILED, "reason": "RuntimeError: an illegal memory access"}])
        sys.exit(3)
    ledger.update([{**own, "us": 100.0 + place, "state": ""}])
"""


class Clock:
    """Stands still until a form of this op and backend has begun, and then goes fast."""

    def __init__(self, path, op, backend):
        self.path, self.late, self.now = path, (op, backend, goals.BEGUN), 0.0

    def __call__(self):
        rows = LEDGER.at(self.path).read()
        self.now += 10.0 * any((row["op"], row["backend"], row["state"]) == self.late for row in rows)
        return self.now


@pytest.fixture
def course(tmp_path):
    """Runs some goals with processes to which something happens; returns rows by form, and the processes of each."""
    path = tmp_path / "gpu.csv"

    def run(faults, match, end=1e9, patience=1e9, late=("", "")):
        code = HEAT.replace("FAULTS = {}", f"FAULTS = {faults!r}")
        processes = race.Processes((sys.executable, "-c", code))
        processes.clock = Clock(path, *late)
        try:
            made = race.Course(path, True, end, processes, {})
            made.run(race.heats(True, match, patience=patience))
        finally:
            processes.close()
        every = goals.found(LEDGER.at(path).read(), made.goals)
        started = Path(f"{path}.processes")
        reached = [one for one in every if one.us > 0 or one.reason != "not reached"]
        found = {(one.goal.shape.op, one.form.name): one for one in reached}
        return found, started.read_text().split() if started.exists() else []

    run.path = path
    return run


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def test_a_form_that_dies_costs_itself_alone(course):
    found, started = course({"mmr ragsys_kernels triton": "die"}, "^mmr .*P100-K3-Q2,|^vrsd .*P100-K3-Q3,")
    assert {name: one.state for name, one in found.items()} == {
        ("mmr", "triton"): goals.KILLED,
        ("mmr", "cuda"): "",
        ("vrsd", "triton"): "",
        ("vrsd", "cuda"): "",
    }
    assert found["mmr", "triton"].reason == "signal SIGSEGV"
    assert started == ["3", "1", "3"]  # the roof, then the form that dies; a fresh process; the next shape
    table = course.path.with_suffix(".txt").read_text()
    assert "KILLED: signal SIGSEGV" in table
    assert "wins, reached" in table


def test_what_a_form_raises_ends_its_process_and_the_next_is_fresh(course):
    found, started = course({"mmr ragsys_kernels cuda": "raise"}, "^mmr .*P100-K3-Q2,")
    assert (found["mmr", "cuda"].state, found["mmr", "cuda"].reason) == (
        goals.FAILED,
        "RuntimeError: an illegal memory access",
    )
    assert started == ["3"]  # nothing was left
    found, started = course({"mmr ragsys_kernels triton": "raise"}, "^mmr .*P100-K3-Q2,")
    assert started == ["3", "3", "1"]
    assert found["mmr", "cuda"].state == ""


def test_a_form_that_hangs_is_ended(course):
    faults = {"mmr ragsys_kernels triton": "hang"}
    found, _ = course(faults, "^mmr .*P100-K3-Q2,", patience=45.0, late=("mmr", "triton"))
    assert found["mmr", "triton"].reason == "hung for 45 s"
    assert found["mmr", "cuda"].state == ""


def test_a_process_that_cannot_begin_costs_its_shape(course):
    found, started = course({"start": ""}, "^mmr .*P100-K3-Q2,|^vrsd .*P100-K3-Q3,")
    assert {one.state for one in found.values()} == {goals.KILLED}
    assert {one.reason for one in found.values()} == {"before its turn: status 1"}
    assert started == ["3", "3"]


def test_when_the_time_is_up_what_is_left_is_named(course):
    """Also the form that was under way, which is not to blame."""
    faults = {"mmr ragsys_kernels cuda": "hang"}
    found, _ = course(faults, "^mmr .*P100-K3-Q2,|^vrsd .*P100-K3-Q3,", end=100.0, late=("mmr", "cuda"))
    assert found["mmr", "triton"].state == ""
    assert [found[op, "cuda"].state for op in ("mmr", "vrsd")] == [goals.LEFT_OUT] * 2
    assert {one.reason for one in found.values() if one.state} == {race.TIME_UP}


def test_an_interrupted_race_prints_its_table(course, tmp_path):
    """Its ledger has what was timed, and the form that was under way."""
    code = HEAT.replace("FAULTS = {}", "FAULTS = {'mmr ragsys_kernels cuda': 'hang'}")
    start = f"""
import sys
from benchmarks.gpu import race
race.Processes.__init__.__defaults__ = ((sys.executable, "-c", {code!r}),)
sys.exit(race.main(["--small", "--ledger", {str(course.path)!r}, "--match", "^mmr .*P100-K3-Q2,"]))
"""
    running = subprocess.Popen([sys.executable, "-c", start], stdout=subprocess.PIPE, text=True)
    begin = monotonic()

    def interrupt():
        while not any(
            row["state"] == goals.BEGUN and row["backend"] == "cuda" for row in LEDGER.at(course.path).read()
        ):
            assert monotonic() - begin < 400
        running.send_signal(signal.SIGTERM)

    threading.Thread(target=interrupt, daemon=True).start()
    printed, _ = running.communicate(timeout=500)
    lines = [line.split() for line in printed.splitlines()]
    assert ["cuda", "-", "ended", "with", "the", "race"] in lines
    assert any(line[:1] == ["triton"] and line[-2:] == ["wins,", "reached"] for line in lines)
    children = subprocess.run(["ps", "--ppid", str(running.pid), "-o", "pid="], capture_output=True, text=True).stdout
    assert not children.split()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_race_that_is_killed_leaves_no_process_behind(course):
    code = HEAT.replace("FAULTS = {}", "FAULTS = {'mmr ragsys_kernels cuda': 'hang'}")
    code = code.replace('".processes", "a") as file:', '".processes", "a") as file:\n    file.write(f"{os.getpid()} ")')
    start = f"""
import sys
from benchmarks.gpu import race
race.Processes.__init__.__defaults__ = ((sys.executable, "-c", {code!r}),)
sys.exit(race.main(["--small", "--ledger", {str(course.path)!r}, "--match", "^mmr .*P100-K3-Q2,"]))
"""
    running, begin = subprocess.Popen([sys.executable, "-c", start], stdout=subprocess.DEVNULL), monotonic()
    while not any(row["state"] == goals.BEGUN and row["backend"] == "cuda" for row in LEDGER.at(course.path).read()):
        assert monotonic() - begin < 400
    child = Path("/proc", Path(f"{course.path}.processes").read_text().split()[0], "stat")
    assert child.exists()
    running.kill()
    running.wait()
    while child.exists() and child.read_text().split()[2] != "Z":  # ended, whether or not anybody has asked
        assert monotonic() - begin < 500


@pytest.mark.parametrize("budget", [480.0, 200.0, 20.0])
def test_a_rehearsal_says_what_a_budget_leaves_out(budget):
    lines = race.rehearsed(budget).splitlines()[1:-1]
    given = steps.Given(ROOT, ROOT / "gpu.csv", budget)
    named = [line[15:].strip().partition(":")[0].removesuffix(", cut short") for line in lines]
    assert list(dict.fromkeys(named)) == [step.name for step in steps.race(given)]
    assert named.count("race") == len(goals.GOALS)
    times = [(float(line[:7]), float(line[8:14].rstrip(" s"))) for line in lines if "left out" not in line]
    assert all(begin + takes == pytest.approx(later, abs=1.1) for (begin, takes), (later, _) in pairwise(times))
    assert times[-1][0] <= budget
    left = [name for line, name in zip(lines, named, strict=True) if "left out" in line]
    assert ("race" in left, "sanitizers" in left) == (budget < 400, True)


def test_what_was_nearest_to_winning_is_timed_first():
    order = [heat.title for heat in race.heats(False, peers=True)]
    assert order[0].startswith("mmr N100000-D384-Pall-K6-Q256, float16")  # torch.compile won
    assert len(order) == len(goals.GOALS) - 1  # nobody wrote MSD


def test_times_of_kernels_are_of_a_call_and_the_longest_comes_first(monkeypatch):
    class Profiled:
        def __init__(self, activities):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def key_averages(self):
            times = (("copy", 3.0), ("a;b" + "c" * 100, 90.0), ("on the host", 0.0))
            return [SimpleNamespace(key=name, self_device_time_total=us) for name, us in times]

    monkeypatch.setattr(causes.torch.profiler, "profile", Profiled)
    assert causes.kernels(lambda: None) == f"a,b{'c' * 57} 30.0; copy 1.0"


# --- On a stub of a device.


def job(path, goal, entries):
    """What a process of the race is asked for."""
    asked = {"ledger": str(path), "goal": goal, "small": True, "entries": entries, "samples": 3, "seconds": 1.0}
    return {**asked, "suspects": {}, "columns": {}}


def stubbed(*options, faults=None):
    """Python in a process of its own, where the interpreter runs Triton's kernels, and what g++ makes CUDA C++."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests" / "tools" / "gpu" / "stub_device"))),
        "TRITON_INTERPRET": "1",
        "STUB_DEVICE_FAULTS": json.dumps(faults or {}),
    }
    command = [sys.executable, *map(str, options)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800)


@pytest.mark.slow
def test_each_fault_of_a_device_costs_its_form_alone(compiled, tmp_path):
    faults = {
        "rsk_mmr_gram_112_float16": "hang",
        "rsk_vrsd_gram_112_float16": "die",
        "rsk_msd_gram_112_float16": "memory",
        "filter_bars_kernel": "compile",
        "select_stream_kernel": "illegal",  # of the first form, which the others outlive
        "rsk_vrsd_resident_256_384_float16": "wrong",  # of two forms; the third reads rows in each pass
    }
    match = r"^(mmr|vrsd|msd) .*P100-.*-Q[234],|^search|^vrsd .*P140-K3-"
    options = ("--small", "--ledger", tmp_path / "gpu.csv", "--match", match, "--patience", "100")
    result = stubbed("-m", "benchmarks.gpu.race", *options, faults=faults)
    every = goals.found(LEDGER.at(tmp_path / "gpu.csv").read(), goals.of(small=True))
    found = {(one.goal.shape.op, one.goal.shape.P, one.form.name): one for one in every if one.reason != "not reached"}
    assert len(found) == 14, result.stdout + result.stderr
    reasons = {key: (one.state, one.reason) for key, one in found.items() if one.state}
    assert reasons.pop(("mmr", 100, "cuda")) == (goals.KILLED, "hung for 100 s")
    assert reasons.pop(("vrsd", 100, "cuda")) == (goals.KILLED, "signal SIGSEGV")
    assert reasons.pop(("msd", 100, "cuda"))[1].startswith("OutOfMemoryError: CUDA out of memory")
    assert reasons.pop(("vrsd", 140, "triton"))[1].endswith("an illegal memory access was encountered")
    for name in ("triton", *(f"triton, {change}" for change in (forms.STAGES_4, forms.TILES_64))):
        assert reasons.pop(("search", None, name)) == (
            goals.FAILED,
            "RuntimeError: filter_bars_kernel: no code can be made of it",
        )
    for name in ("cuda", f"cuda, {forms.ONE_BLOCK}"):
        assert reasons.pop(("vrsd", 140, name))[0] == goals.WRONG
    assert not reasons  # all others are timed
    winners = {(goal.shape.op, goal.shape.P): one.form.name for goal, one in goals.winners(every).items()}
    assert (winners["search", None], winners["vrsd", 140]) == (
        "triton, search=values",
        f"cuda, {forms.EACH_PASS}",
    )
    assert result.returncode == 1
    assert "KILLED: hung for 100 s" in result.stdout


@pytest.mark.slow
def test_every_form_is_right_and_timed_on_a_stub(compiled, tmp_path):
    """One shape of those with the same forms; in one process, as none of them ends it."""
    small = goals.of(small=True)
    shapes = {(goal.shape.op, forms.of(goal.shape)): number for number, goal in reversed(list(enumerate(small)))}
    path, numbers = tmp_path / "gpu.csv", sorted(shapes.values())
    jobs = [job(path, number, [(f.backend, f.contender) for f in forms.of(small[number].shape)]) for number in numbers]
    code = f"from benchmarks.gpu.heat import Heat\nassert not any(Heat(**job).run() for job in {jobs!r})"
    result = stubbed("-c", code)
    asked = [small[number] for number in numbers]
    every = goals.found(LEDGER.at(path).read(), asked)
    assert len(every) > 25
    assert {one.form.name: one.reason for one in every if not one.timed} == {}, result.stdout + result.stderr
    assert result.returncode == 0, result.stderr
    rows = LEDGER.at(path).read()
    assert all(float(row["clock_mhz"]) > 0 for row in rows)
    counts = [row["counts"] for row in rows if row["contender"] == "ragsys_kernels" and "-Pall-" in row["shape"]]
    assert all("contenders: " in text for text in counts)
    assert sum("queries left: " in text for text in counts) == 1
    assert any(row["kernels"].startswith("refused: ") for row in rows)  # a processor has no profiler of kernels
    assert goals.told(rows, asked).endswith(
        f"{len(asked)} of {len(asked)} rows have a winner; 0 of {len(every)} forms have no time."
    )
