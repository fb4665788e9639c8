"""The race: what a ledger says, and that nothing that happens to a process costs more than the form that it was at."""

import json
import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from time import monotonic

import pytest

pytest.importorskip("torch")

from benchmarks.gpu import forms, race  # noqa: E402
from benchmarks.gpu.shapes import LEDGER  # noqa: E402

ROOT = Path(__file__).parents[2]
POOLS, SEARCH = race.GOALS[0], next(goal for goal in race.GOALS if goal.shape.op == "search")


def row(goal, contender, backend="", us="", state="", reason=""):
    shape = {"op": goal.shape.op, "shape": str(goal.shape), "dtype": goal.shape.dtype, "device": "a device"}
    return LEDGER.texts({**shape, "contender": contender, "backend": backend, "us": us, "state": state, "reason": reason})


def rows_of(goal, us, **states):
    """A row for each form, of these times; the roof takes 50 µs."""
    times = iter(us)
    found = [row(goal, form.contender, form.backend, next(times, "")) for form in forms.of(goal.shape)]
    return [row(goal, name, "", 50.0) for name in race.roofs(goal)] + found


# --- What a ledger says.


def test_a_row_has_one_winner_and_the_others_are_lost():
    every = race.found([*rows_of(POOLS, (70.0, 130.0, 60.0)), row(POOLS, "torch, x", "", 200.0)], [POOLS])
    assert [one.form.name for one in every] == ["cuda", "triton", "triton, gram=query-beside"]
    winner = race.winners(every)[POOLS]
    assert [race.verdict(one, winner) for one in every] == [
        "wins, reached",
        "lost by 17%",
        "lost by 117%, below its stop",
    ]
    assert (every[0].share, every[0].torch, every[0].measured_here) == (pytest.approx(50 / 60), 200.0, True)


def test_a_winner_may_miss_its_goal_and_be_below_its_stop():
    for us, text in ((100.0, "wins, goal 70% missed"), (140.0, "wins, below its stop")):
        every = race.found(rows_of(POOLS, (us, us + 1, us + 2)), [POOLS])
        assert race.verdict(every[0], every[0]) == text
    assert not every[0].above_stop


def test_a_wrong_form_never_wins_however_fast_it_is():
    rows = rows_of(POOLS, (70.0, 130.0, 60.0))
    rows[-1] |= {"state": race.WRONG, "reason": "picks: AssertionError"}
    every = race.found(rows, [POOLS])
    assert race.winners(every)[POOLS].form.name == "triton"
    assert (every[-1].form.name, every[-1].us) == ("cuda", 60.0)
    assert race.verdict(every[-1], every[0]) == "WRONG: picks: AssertionError"


def test_the_table_says_of_each_form_what_is_missing_and_why():
    rows = rows_of(POOLS, (70.0,))[:2]
    rows.append(row(POOLS, "ragsys_kernels", "cuda", state=race.KILLED, reason="signal SIGSEGV"))
    text = race.told(rows)
    assert f"{POOLS.title}: roof 50.0 µs, torch 355.0 µs (published, not timed here)" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["cuda", "-", "KILLED:", "signal", "SIGSEGV"] in lines
    assert ["triton,", "gram=query-beside", "-", "LEFT", "OUT:", "not", "reached"] in lines
    forms_in_all = sum(len(forms.of(goal.shape)) for goal in race.GOALS)
    assert sum(line[-4:] == ["LEFT", "OUT:", "not", "reached"] for line in lines) == forms_in_all - 2
    assert text.endswith(f"1 of 19 rows have a winner; {forms_in_all - 1} of {forms_in_all} forms have no time.")


def test_the_table_of_nothing():
    count = sum(len(forms.of(goal.shape)) for goal in race.GOALS)
    assert race.told([]).endswith(f"0 of 19 rows have a winner; {count} of {count} forms have no time.")
    assert all(math.isnan(one.us) for one in race.found([]))


def test_what_explains_the_winner_stands_below_it():
    rows = rows_of(POOLS, (70.0, 130.0, 60.0))
    rows[-1] |= {"clock_mhz": "1755", "counts": "queries left: 3 0", "kernels": "a 50.0; b 10.0"}
    text = race.told(rows, [POOLS])
    assert "      1755 MHz under load\n      queries left: 3 0\n      a 50.0; b 10.0 µs" in text


def test_small_shapes_take_the_forms_of_the_large_ones():
    small = race.goals(small=True)
    assert [forms.of(goal.shape) for goal in small] == [forms.of(goal.shape) for goal in race.GOALS]
    assert len({goal.title for goal in small}) == len(small)


def test_suspicion_is_of_a_kernel_and_falls_on_its_changes(tmp_path):
    path = tmp_path / "race.json"
    picks = {"mmr, pools on chip: cuda": "died", "mmr: triton": "AssertionError", "mmr, pools on chip: triton": ""}
    path.write_text(json.dumps({"steps": [{"facts": {"picks": picks}}, {"facts": {}}]}))
    known = race.suspects(path)
    held = forms.Form("cuda", "pools=held", forms.ONE_BLOCK)
    assert race.suspicion(POOLS.shape, forms.Form("cuda"), known) == "picks: died"
    assert race.suspicion(POOLS.shape, forms.Form("triton"), known) == ""
    whole = next(goal for goal in race.GOALS if goal.shape.op == "mmr" and goal.shape.P is None)
    assert race.suspicion(whole.shape, forms.Form("triton", "", forms.CHECK_64), known) == "picks: AssertionError"
    assert race.suspicion(whole.shape, held, known) == ""
    assert race.suspects(tmp_path / "none") == {}


# --- The course, with processes that time nothing.

HEAT = """
import json, os, sys, time
from pathlib import Path
from benchmarks.gpu import race
from benchmarks.gpu.shapes import LEDGER

FAULTS = {}
job = json.loads(sys.stdin.readline() or "null")
if job is None:
    sys.exit()
shape, ledger = race.goals(job["small"])[job["goal"]].shape, LEDGER.at(Path(job["ledger"]))
with open(job["ledger"] + ".processes", "a") as file:
    file.write(f"{len(job['entries'])}\\n")
if "start" in FAULTS:
    sys.exit("no problem can be made")
for place, (backend, name) in enumerate(job["entries"]):
    own = {"op": shape.op, "shape": str(shape), "dtype": shape.dtype, "device": "stub"}
    own |= {"backend": backend, "contender": name}
    ledger.update([{**own, "state": race.BEGUN}])
    fault = FAULTS.get(f"{shape.op} {name} {backend}", "")
    if fault == "die":
        os.kill(os.getpid(), 11)
    while fault == "hang":
        time.sleep(1)
    if fault == "raise":
        ledger.update([{**own, "state": race.FAILED, "reason": "RuntimeError: an illegal memory access"}])
        sys.exit(3)
    ledger.update([{**own, "us": 100.0 + place, "state": ""}])
"""


class Clock:
    """Stands still until a form of this op and backend has begun, and then goes fast."""

    def __init__(self, path, op, backend):
        self.path, self.late, self.now = path, (op, backend, race.BEGUN), 0.0

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
        every = race.found(LEDGER.at(path).read(), made.goals)
        started = Path(f"{path}.processes")
        return {(one.goal.shape.op, one.form.name): one for one in every if one.us > 0 or one.reason != "not reached"}, (
            started.read_text().split() if started.exists() else []
        )

    run.path = path
    yield run


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def test_a_form_that_dies_costs_itself_alone(course):
    found, started = course({"mmr ragsys_kernels triton": "die"}, "^mmr .*P100-K3-Q2,|^vrsd .*P100-K3-Q3,")
    assert {name: one.state for name, one in found.items()} == {
        ("mmr", "triton"): race.KILLED,
        ("mmr", "triton, gram=query-beside"): "",
        ("mmr", "cuda"): "",
        ("vrsd", "triton"): "",
        ("vrsd", "triton, gram=query-beside"): "",
        ("vrsd", "cuda"): "",
    }
    assert found["mmr", "triton"].reason == "signal SIGSEGV"
    assert started == ["4", "2", "4"]  # the roof, then the form that dies; a fresh process; the next shape
    table = course.path.with_suffix(".txt").read_text()
    assert "KILLED: signal SIGSEGV" in table
    assert "wins, reached" in table


def test_what_a_form_raises_ends_its_process_and_the_next_is_fresh(course):
    found, started = course({"mmr ragsys_kernels cuda": "raise"}, "^mmr .*P100-K3-Q2,")
    assert (found["mmr", "cuda"].state, found["mmr", "cuda"].reason) == (
        race.FAILED,
        "RuntimeError: an illegal memory access",
    )
    assert started == ["4"]  # nothing was left
    found, started = course({"mmr ragsys_kernels triton": "raise"}, "^mmr .*P100-K3-Q2,")
    assert started == ["4", "4", "2"]
    assert found["mmr", "cuda"].state == ""


def test_a_form_that_hangs_is_ended(course):
    faults = {"mmr ragsys_kernels triton": "hang"}
    found, _ = course(faults, "^mmr .*P100-K3-Q2,", patience=45.0, late=("mmr", "triton"))
    assert found["mmr", "triton"].reason == "hung for 45 s"
    assert found["mmr", "cuda"].state == ""


def test_a_process_that_cannot_begin_costs_its_shape(course):
    found, started = course({"start": ""}, "^mmr .*P100-K3-Q2,|^vrsd .*P100-K3-Q3,")
    assert {one.state for one in found.values()} == {race.KILLED}
    assert {one.reason for one in found.values()} == {"before its turn: status 1"}
    assert started == ["4", "4"]


def test_when_the_time_is_up_what_is_left_is_named(course):
    """Also the form that was under way, which is not to blame."""
    faults = {"mmr ragsys_kernels cuda": "hang"}
    found, _ = course(faults, "^mmr .*P100-K3-Q2,|^vrsd .*P100-K3-Q3,", end=100.0, late=("mmr", "cuda"))
    assert found["mmr", "triton"].state == ""
    assert [found[op, "cuda"].state for op in ("mmr", "vrsd")] == [race.LEFT_OUT] * 2
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
        while not any(row["state"] == race.BEGUN and row["backend"] == "cuda" for row in LEDGER.at(course.path).read()):
            assert monotonic() - begin < 60
        running.send_signal(signal.SIGTERM)

    threading.Thread(target=interrupt, daemon=True).start()
    printed, _ = running.communicate(timeout=60)
    lines = [line.split() for line in printed.splitlines()]
    assert ["cuda", "-", "ended", "with", "the", "race"] in lines
    assert any(line[:1] == ["triton"] and line[-2:] == ["wins,", "reached"] for line in lines)
    children = subprocess.run(["ps", "--ppid", str(running.pid), "-o", "pid="], capture_output=True, text=True).stdout
    assert not children.split()


def test_a_process_is_begun_only_where_there_is_time_for_it():
    rehearsed = race.rehearsed(100.0, peers=False)
    times = [float(line.split("s")[0]) for line in rehearsed.splitlines()[1:-1] if "left out" not in line]
    assert times == sorted(times)
    assert times[-1] + race.LEAST <= 100
    assert rehearsed.count("left out") + len(times) == len(race.GOALS)
    assert "cut short" in rehearsed


# --- On a stub of a device.


def on_stub(path, *options, faults=None, **more):
    """The race in a process of its own, on the processor: the interpreter runs Triton's kernels, g++'s CUDA C++."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests" / "gpu" / "stub_device"))),
        "TRITON_INTERPRET": "1",
        "STUB_DEVICE_FAULTS": json.dumps(faults or {}),
        **more,
    }
    command = [sys.executable, "-m", "benchmarks.gpu.race", "--small", "--ledger", path, *options]
    return subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, timeout=900)


@pytest.mark.slow
def test_each_fault_of_a_device_costs_its_form_alone(compiled, tmp_path):
    faults = {
        "rsk_mmr_small_112_float16": "illegal",
        "rsk_vrsd_small_112_float16": "die",
        "rsk_msd_small_112_float16": "memory",
        "filter_bars_kernel": "compile",
        "select_stream_kernel": "hang",
        "rsk_vrsd_held_256_384_float16": "wrong",
    }
    match = r"^(mmr|vrsd|msd) .*P100-.*-Q[234],|^search|^vrsd .*P140-K3-"
    result = on_stub(tmp_path / "gpu.csv", "--match", match, "--patience", "40", faults=faults)
    every = race.found(LEDGER.at(tmp_path / "gpu.csv").read(), race.goals(small=True))
    found = {(one.goal.shape.op, one.goal.shape.P, one.form.name): one for one in every if one.reason != "not reached"}
    assert len(found) == 18, result.stdout + result.stderr
    reasons = {key: (one.state, one.reason) for key, one in found.items() if one.state}
    assert reasons.pop(("mmr", 100, "cuda"))[1].endswith("an illegal memory access was encountered")
    assert reasons.pop(("vrsd", 100, "cuda")) == (race.KILLED, "signal SIGSEGV")
    assert reasons.pop(("msd", 100, "cuda"))[1].startswith("OutOfMemoryError: CUDA out of memory")
    assert reasons.pop(("vrsd", 140, "triton")) == (race.KILLED, "hung for 40 s")
    for name in ("triton", *(f"triton, {change}" for change in (forms.STAGES_4, forms.TILES_64, forms.QUARTER))):
        assert reasons.pop(("search", None, name)) == (
            race.FAILED,
            "RuntimeError: filter_bars_kernel: no code can be made of it",
        )
    for name in ("cuda, pools=held", f"cuda, pools=held, {forms.ONE_BLOCK}"):
        assert reasons.pop(("vrsd", 140, name))[0] == race.WRONG
    assert not reasons  # all others are timed
    winners = {(goal.shape.op, goal.shape.P): one.form.name for goal, one in race.winners(every).items()}
    assert (winners["search", None], winners["vrsd", 140]) == ("triton, search=values", "cuda")
    assert result.returncode == 1
    assert "KILLED: hung for 40 s" in result.stdout


@pytest.mark.slow
def test_every_form_is_right_and_timed_on_a_stub(compiled, tmp_path):
    result = on_stub(tmp_path / "gpu.csv")
    every = race.found(LEDGER.at(tmp_path / "gpu.csv").read(), race.goals(small=True))
    assert {one.form.name: one.reason for one in every if not one.timed} == {}, result.stdout + result.stderr
    assert result.returncode == 0
    rows = LEDGER.at(tmp_path / "gpu.csv").read()
    assert all(float(row["clock_mhz"]) > 0 for row in rows if row["backend"])
    counts = [row["counts"] for row in rows if row["contender"] == "ragsys_kernels" and "-Pall-" in row["shape"]]
    assert all("contenders: " in text for text in counts)
    assert sum("queries left: " in text for text in counts) == 2
    assert len(result.stdout.split(" have a winner")) == 2
