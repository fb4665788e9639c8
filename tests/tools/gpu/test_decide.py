"""What a race's ledger decides: each outcome of each decision, of times that are made up."""

import itertools

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from benchmarks.gpu import decide, forms, goals, preference
from benchmarks.gpu.decide import DECISIONS
from benchmarks.gpu.forms import Form
from benchmarks.gpu.shapes import LEDGER
from benchmarks.harness.contender import COPY
from benchmarks.harness.ledger import ROOT
from benchmarks.reports import gpu_measured

BY_NAME = {decision.name: decision for decision in DECISIONS}
EACH = pytest.mark.parametrize("decision", DECISIONS, ids=lambda decision: decision.name)


KEY = {"device": "NVIDIA H200", "commit": "0123abc", "date": "2026-12-01"}


def ledger(us=lambda goal, form: 50.0, peers=None, **more):
    """The rows of a race whose forms take so long: µs, or a state and a reason; None: there is no row.

    ``peers``: µs of copies, products and all of torch; None: they have no rows.
    """
    rows = []
    for goal in goals.GOALS:
        names = () if peers is None else (*goals.roofs(goal), *forms.peers(goal.shape))
        rows += [
            LEDGER.texts({**KEY, "op": goal.shape.op, "shape": str(goal.shape), "dtype": goal.shape.dtype})
            | {"contender": name, "us": str(peers)}
            for name in names
        ]
        for form in forms.of(goal.shape):
            found = us(goal, form)
            if found is None:
                continue
            state, reason = ("", "") if isinstance(found, float) else found
            row = {"op": goal.shape.op, "shape": str(goal.shape), "dtype": goal.shape.dtype, "device": "NVIDIA H200"}
            row |= {"backend": form.backend, "contender": form.contender, "state": state, "reason": reason}
            row |= {
                "us": found if not state else "",
                "commit": "0123abc",
                "date": "2026-12-01",
                "iqr_us": 0.1,
                "bytes": 1e6,
            }
            rows.append(LEDGER.texts({**row, **more}))
    return rows


def outcome(decision, us, **more):
    return decide.decided(decision, decide.Race(ledger(us, **more)))


def by_choice(decision, times):
    """Times of the choices of a decision by their names, a time or what gives one for a goal; of all else 50 µs."""
    known = {choice.form: times[choice.name] for choice in (decision.stays, *decision.others) if choice.name in times}

    def us(goal, form):
        found = known.get(form, 50.0) if goal.shape in decision.shapes else 50.0
        return found(goal) if callable(found) else found

    return us


@EACH
def test_each_form_of_a_decision_is_one_of_the_race_and_each_file_is_there(decision):
    assert decision.shapes
    for goal, choice in itertools.product(goals.GOALS, (decision.stays, *decision.others)):
        if goal.shape in decision.shapes:
            assert choice.form in forms.of(goal.shape), f"{goal.title}: {choice.name}"
    for part in (part for choice in (decision.stays, *decision.others) for part in choice.goes):
        assert decide.lines_of(part) or " " in part, part
        assert (ROOT / part).is_file() or "/" not in part


@EACH
def test_what_stays_otherwise_wins_where_nothing_is_faster(decision):
    found = outcome(decision, by_choice(decision, {decision.stays.name: 20.0}))
    assert not found.open
    assert set(found.winners.values()) == {decision.stays.name}
    assert set(found.goes) == {part for choice in decision.others for part in choice.goes}
    assert found.verdict == decision.stays.name


@EACH
def test_another_form_wins_where_it_is_faster(decision):
    for choice in decision.others:
        found = outcome(decision, by_choice(decision, {choice.name: 20.0}))
        assert not found.open
        assert set(found.winners.values()) == {choice.name}
        assert set(found.goes) == set(decision.stays.goes)
        assert "by 150%" in found.told[0]


@EACH
@pytest.mark.parametrize(("more", "wins"), [({}, 0.03), ({"iqr_us": 4.0}, 0.08), ({"spread": 0.2}, 0.2)])
def test_a_win_within_what_times_vary_by_is_none(decision, more, wins):
    for share, wanted in ((wins - 0.005, decision.stays.name), (wins + 0.02, decision.others[0].name)):
        us = by_choice(decision, {decision.others[0].name: 50.0 / (1 + share)})
        found = outcome(decision, us, **more)
        assert set(found.winners.values()) == {wanted}, share
        assert ("by which times vary" in found.told[0]) == (wanted == decision.stays.name)


@EACH
def test_either_of_two_times_may_vary(decision):
    other = decision.others[0]
    rows = ledger(by_choice(decision, {other.name: 45.0}))
    for choice in (decision.stays, other):
        varying = [{**row, "spread": "0.2"} if row["contender"] == choice.form.contender else row for row in rows]
        found = decide.decided(decision, decide.Race(varying))
        assert set(found.winners.values()) == {decision.stays.name}
    assert set(decide.decided(decision, decide.Race(rows)).winners.values()) == {other.name}


@EACH
def test_rows_may_be_won_by_different_forms_which_then_stay(decision):
    if len(decision.shapes) == 1:
        return
    first, other = decision.shapes[0], decision.others[0]
    us = by_choice(decision, {other.name: lambda goal: 20.0 if goal.shape == first else 80.0})
    found = outcome(decision, us)
    assert set(found.winners.values()) == {decision.stays.name, other.name}
    assert found.goes == ()
    assert found.verdict.endswith(", each for its rows")


@EACH
@pytest.mark.parametrize("state", [None, ("left out", "the time was up"), ("begun", ""), ("absent", "no nvcc")])
def test_without_a_time_nothing_is_guessed(decision, state):
    for choice in (decision.stays, *decision.others):
        found = outcome(decision, by_choice(decision, {choice.name: state}))
        assert found.verdict == "undecided"
        assert found.goes == ()
        reason = "left out: not reached" if state is None else ": ".join(filter(None, state))
        assert len(found.open) == len(decision.shapes)
        assert all(line.endswith(f"{choice.name} ({choice.form.name}) {reason}") for line in found.open)


@EACH
@pytest.mark.parametrize("state", ["wrong", "failed", "killed"])
def test_a_form_that_is_not_right_loses(decision, state):
    """That the form which stays failed or was killed is no reason to take another: it may be the run's fault."""
    stays, other = decision.stays, decision.others[0]
    lost = (state, "off by 0.1")
    found = outcome(decision, by_choice(decision, {other.name: lost, stays.name: 80.0}))
    assert set(found.winners.values()) == {stays.name}
    assert f"{other.name} {state}: off by 0.1" in found.told[0]
    found = outcome(decision, by_choice(decision, {stays.name: lost}))
    if state != "wrong":
        assert (found.verdict, found.goes, found.winners) == ("undecided", (), {})
        assert f"{stays.name} ({stays.form.name}) {state}: off by 0.1" in found.open[0]
        return
    assert set(found.winners.values()) == {other.name}
    found = outcome(
        decision, by_choice(decision, dict.fromkeys([stays.name, *(x.name for x in decision.others)], lost))
    )
    assert found.verdict == "undecided"
    assert "no form is right and within its limit" in found.open[0]


@EACH
@pytest.mark.parametrize(
    "state", [("killed", "before its turn: status 1"), ("failed", "its problem: OutOfMemoryError: no room")]
)
def test_a_form_that_had_no_turn_has_not_lost(decision, state):
    for choice in (decision.stays, *decision.others):
        found = outcome(decision, by_choice(decision, {choice.name: state}))
        assert (found.verdict, found.goes, found.winners) == ("undecided", (), {})
        assert all(line.endswith(": ".join(state)) for line in found.open)


def test_a_winner_below_its_stop_is_named():
    decision = BY_NAME["vrsd out of 129 to 1,024 rows"]  # whose stop is 30% of the copy
    for us, below in ((50.0, True), (10.0, False)):
        (line,) = outcome(decision, by_choice(decision, {"stream": us, "columns": 80.0}), peers=10.0).told
        assert (", below its stop of 30% (" in line) == below


@pytest.mark.parametrize(
    ("name", "choice", "limit"),
    [
        *((f"{op} out of up to 128 rows", "CUDA gram", 90.0) for op in ("mmr", "vrsd", "msd")),
        ("vrsd out of 129 to 1,024 rows", "columns", 1_200.0),
        ("mmr out of 129 to 1,024 rows", "columns", 850.0),
    ],
)
def test_a_form_above_its_limit_is_not_taken(name, choice, limit):
    decision = BY_NAME[name]
    for us, wins in ((limit, True), (limit + 0.1, False)):
        found = outcome(decision, by_choice(decision, {decision.stays.name: 10 * limit, choice: us}))
        first = next(goal.title for goal in goals.GOALS if goal.shape in decision.shapes)
        assert (found.winners[first] == choice) == wins
        assert ("above its" in found.told[0]) != wins


# --- The report.


@pytest.fixture
def reported(monkeypatch):
    """The sections of a report, by their titles; without the pages, which are a command."""
    monkeypatch.setattr(decide, "pages", lambda rows: "")

    def of(rows, published=()):
        parts = decide.report(rows, published).split("\n\n")
        return {part.partition(":")[0]: part.partition(":")[2].strip() for part in parts}

    return of


def test_a_report_has_the_table_of_preferences_and_what_goes(reported):
    def us(goal, form):
        large = form.backend == "cuda" and goal.shape.P == 1000
        return 20.0 if large else 100.0 if form.backend == "cuda" or form == decide.DENSE else 40.0

    found = reported(ledger(us))
    assert (
        '("vrsd", "float16"): (Pools(129, 1024, 1024),),' in found["Preferences, in ragsys_kernels/_gpu/preference.py"]
    )
    assert (
        '("mmr", "float16"): (Pools(129, 1024, 1024),),' in found["Preferences, in ragsys_kernels/_gpu/preference.py"]
    )
    goes = found["Goes"].splitlines()
    assert "the switch corpus" in map(str.strip, goes)
    lines = [int(line.split(": ")[1].split()[0].replace(",", "")) for line in goes if line.endswith(" lines")]
    assert goes[-1] == f"  {sum(lines):,} lines of files"
    assert found["device"] == "NVIDIA H200\ncommit: 0123abc"
    assert found["Lines of README and docs"] == "nothing"


def test_a_race_that_ended_early_leaves_the_published_preferences(reported):
    before = LEDGER.read()
    table = "\n".join(f"  {line}" for line in preference.lines(*preference.choice(before))).strip()
    found = reported(ledger(lambda goal, form: None), before)
    assert found["Preferences, in ragsys_kernels/_gpu/preference.py"] == table
    assert found["Goes"] == "0 lines of files"
    assert all(found[decision.name].startswith("undecided\n") for decision in DECISIONS)


def test_experiments_are_named_and_win_nothing(reported):
    def us(goal, form):
        return 10.0 if form.change == forms.STAGES_4 else 1.0 if form.change == forms.ONE_BLOCK else 50.0

    rows = ledger(us)
    found = reported(rows)["Experiments that are faster than all that the package has"].splitlines()
    (search,) = (line for line in found if "4 stages" in line)
    assert "triton, 4 stages 10.0 µs, 400% before triton" in search
    assert not any("stages" in row["contender"] or "block" in row["contender"] for row in merged(rows, ()))
    large = decide.decided(BY_NAME["vrsd out of 129 to 1,024 rows"], decide.Race(rows))
    assert set(large.winners.values()) == {"stream"}


def merged(rows, published):
    return decide.merged(rows, published, outcomes(rows))


def outcomes(rows):
    return [decide.decided(decision, decide.Race(rows)) for decision in DECISIONS]


def of_small_mmr(rows):
    small = ("mmr", "N2000003-D384-P100-K10-Q2000", "float16")
    return [row for row in rows if (row["op"], row["shape"], row["dtype"]) == small]


def test_rows_of_a_race_take_the_place_of_published_ones():
    old, new = ledger(peers=9.0, date="2026-11-26", commit="0000000"), ledger(peers=8.0)
    other = [{**row, "device": "NVIDIA H100"} for row in old]
    kept = [row for row in new if not row["backend"] or preference.is_own(row)]
    found = merged(new, [*(row for row in old if not row["backend"] or preference.is_own(row)), *other])
    assert sorted(found, key=str) == sorted([*kept, *other], key=str)


@pytest.mark.parametrize("lacks", ["torch.compile", "cuda", COPY])
def test_times_of_a_shape_are_published_together_or_not_at_all(lacks):
    """Else a page has torch of one day beside ours of another, and the table compares backends of two days."""
    old, new = ledger(peers=9.0, date="2026-11-26"), ledger(peers=8.0)
    some = [row for row in new if row not in of_small_mmr(new) or lacks not in (row["contender"], row["backend"])]
    assert len(some) == len(new) - 1
    own = [row for row in old if not row["backend"] or preference.is_own(row)]
    found = merged(some, own)
    assert of_small_mmr(found) == of_small_mmr(own)
    assert {row["date"] for row in found if row not in of_small_mmr(found)} == {"2026-12-01"}
    (why,) = decide.unpublished(some, own, outcomes(some)).values()
    assert why == f"the ledger has no time of {lacks}"


def test_times_about_which_a_decision_is_open_stay():
    """Also where each form of the shape is known: the one that stays was killed."""
    new = ledger(lambda goal, form: ("killed", "hung for 100 s") if form == Form("triton") else 40.0)
    old = [row for row in ledger(date="2026-11-26") if preference.is_own(row)]
    assert of_small_mmr(merged(new, old)) == of_small_mmr(old)
    assert "a decision about it is open" in decide.unpublished(new, old, outcomes(new)).values()


def test_times_of_two_days_are_no_run():
    new = [{**row, "date": "2026-12-02"} if row["backend"] == "cuda" else row for row in ledger()]
    assert of_small_mmr(merged(new, ())) == []
    assert "its times are of several commits or days" in decide.unpublished(new, (), outcomes(new)).values()


def test_published_times_of_a_form_that_is_wrong_now_are_left_out():
    cuda = Form("cuda")
    old = [row for row in ledger() if preference.is_own(row)]
    new = ledger(lambda goal, form: ("wrong", "other picks") if form == cuda else 40.0)
    found = of_small_mmr(merged(new, old))
    assert {row["us"] for row in found} == {"40"}
    assert not any(row["backend"] == "cuda" for row in found)


def test_rows_without_a_decision_keep_what_stands_in_the_table(reported):
    """CUDA C++ of an older ledger is not compared with Triton of this one."""

    def before(goal, form):
        return 100.0 if form.backend == "triton" else 50.0

    old = [row for row in ledger(before, date="2026-11-26", commit="0000000") if preference.is_own(row)]
    table = "\n".join(f"  {line}" for line in preference.lines(*preference.choice(old))).strip()
    assert 'mmr", "float16"): (Pools(1, 1024, 1024)' in table
    new = ledger(lambda goal, form: 10.0 if form.backend == "triton" else ("killed", "before its turn: status 1"))
    found = reported(new, old)
    assert found["Preferences, in ragsys_kernels/_gpu/preference.py"] == table
    stay = found["Times that stay as they are published"].splitlines()
    assert all(": the ledger has no time of cuda" in line for line in stay)
    assert reported(ledger(), old)["Preferences, in ragsys_kernels/_gpu/preference.py"] != table


def test_where_the_table_differs_from_a_decision_the_reason_is_told(reported):
    def us(goal, form):
        return 20.0 if form.backend == "cuda" and goal.shape.P == 1000 else 40.0

    title = "Rows for which the preferences are not what is decided"
    assert reported(ledger(us))[title] == "nothing"
    old = ledger(lambda goal, form: 40.0, peers=9.0, date="2026-11-26")
    differ = reported(ledger(us), old)[title].splitlines()
    assert len(differ) == 3
    assert all("triton is first, though columns wins: its times stay as they are published" in line for line in differ)


def test_what_goes_within_the_noise_is_told(reported):
    decision = BY_NAME["mmr out of the whole corpus"]
    titles = "; ".join(goal.title for goal in goals.GOALS if goal.shape in decision.shapes)
    for us, told in ((49.5, True), (50.5, False)):
        goes = reported(ledger(by_choice(decision, {"proof": us})))["Goes"]
        line = f"proof goes though it is faster, within what times vary by: {titles}"
        assert (line in goes) == told


def test_the_table_of_the_race_has_the_same_noise():
    for us, within in ((51.0, True), (52.0, False)):
        text = goals.told(ledger(lambda goal, form, us=us: us if form == Form("cuda") else 50.0))
        assert ("lost by 4%" in text) != within


# --- Ledgers that nothing can be decided by.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": "N61-D24-P20-K3-Q2"}, "no row is of a shape that has a goal"),
        ({"device": "Intel(R) Xeon(R), 2 cores"}, "rows must be of a GPU, got 'Intel(R) Xeon(R), 2 cores'"),
        ({"device": ""}, "rows must be of a GPU, got ''"),
        ({"contender": "ragsys_kernels", "backend": "cuda"}, "two rows are of the same call"),
    ],
)
def test_a_ledger_of_no_race_on_a_gpu_is_refused(tmp_path, capsys, change, message):
    path = tmp_path / "race.csv"
    LEDGER.at(path).replace([{**row, **change} for row in ledger()])
    refused(path, message, capsys)


def refused(path, message, capsys, *more):
    with pytest.raises(SystemExit) as ended:
        decide.main([str(path), *more])
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert message in error
    assert len(error.splitlines()) == 1


def test_a_ledger_of_two_devices_is_refused(tmp_path, capsys):
    first, *rows = ledger()
    path = tmp_path / "race.csv"
    LEDGER.at(path).replace([{**first, "device": "NVIDIA H100"}, *rows])
    refused(path, "rows must be of one device, got 'NVIDIA H100', 'NVIDIA H200'", capsys)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"op,shape\n\xff\xfe,1\n", "must be a CSV in UTF-8"),
        (b"op,shape\nmmr,1,2\nmmr,1\n", "row 1 must have the 2 columns of its header, got 3"),
        (b"", "has no rows of a race"),
        (None, "must be a CSV, is a folder"),
    ],
)
def test_what_is_no_ledger_is_refused(tmp_path, capsys, data, message):
    path = tmp_path / "race.csv"
    path.mkdir() if data is None else path.write_bytes(data)
    refused(path, message, capsys)


def test_a_row_that_was_cut_is_named_and_ignored(tmp_path, capsys):
    ledger_ = LEDGER.at(tmp_path / "race.csv")
    ledger_.replace(ledger())
    data, rows = ledger_.path.read_bytes(), ledger_.read()
    assert capsys.readouterr().err == ""
    start = data.rstrip(b"\n").rindex(b"\n") + 1
    for end in (len(data) - 1, (start + len(data)) // 2, start + 1):
        for tail in (b"", b"\n"):
            if end == len(data) - 1 and tail:
                continue  # that is the whole row
            ledger_.path.write_bytes(data[:end] + tail)
            assert ledger_.read() == rows[:-1]
            assert "race.csv: the last row is incomplete and ignored: '" in capsys.readouterr().err
    ledger_.path.write_bytes(data[:start])
    assert ledger_.read() == rows[:-1]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "bad", [{"us": "6x0"}, {"us": "nan"}, {"us": "-5"}, {"us": "0"}, {"us": "inf"}, {"spread": "nan"}, {"iqr_us": "x"}]
)
def test_figures_that_are_none_decide_nothing(tmp_path, bad, monkeypatch):
    monkeypatch.setattr(decide, "pages", lambda rows: "")
    path = tmp_path / "race.csv"
    ((name, value),) = bad.items()
    LEDGER.at(path).replace([{**row, **bad} if row["backend"] == "cuda" else row for row in ledger()])
    rows = decide.ledger_of(path)
    found = decide.decided(BY_NAME["msd out of up to 128 rows"], decide.Race(rows))
    assert found.verdict == "undecided"
    assert f"CUDA gram (cuda) unreadable: {name} must be a number" in found.open[0]
    assert found.open[0].endswith(f"0, got {value!r}")
    assert not any(row["backend"] == "cuda" for row in merged(rows, ()))


def test_a_row_without_a_time_or_a_state_decides_nothing():
    rows = [{**row, "us": ""} if row["backend"] == "cuda" else row for row in ledger()]
    found = decide.decided(BY_NAME["msd out of up to 128 rows"], decide.Race(rows))
    assert found.open[0].endswith("CUDA gram (cuda) has no time")


@pytest.mark.parametrize(
    ("commits", "message"),
    [
        ([""], "times must be of a commit, got '': set RAGSYS_KERNELS_COMMIT"),
        (["0123abc-dirty"], "times must be of a commit, got '0123abc-dirty': set RAGSYS_KERNELS_COMMIT"),
        (["0123abc", "4567def"], "times must be of one commit, got '0123abc', '4567def'"),
    ],
)
def test_times_of_no_commit_are_not_applied(tmp_path, monkeypatch, capsys, commits, message):
    monkeypatch.setattr(decide, "pages", lambda rows: "")
    monkeypatch.setattr(decide, "LEDGER", LEDGER.at(tmp_path / "gpu.csv"))
    path = tmp_path / "race.csv"
    LEDGER.at(path).replace({**row, "commit": commits[i % len(commits)]} for i, row in enumerate(ledger()))
    assert decide.main([str(path)]) == 0
    capsys.readouterr()
    refused(path, message, capsys, "--apply")
    assert not (tmp_path / "gpu.csv").exists()


def test_pages_are_by_the_fastest_form_of_each_backend():
    (row, *_) = ledger()
    rows = [
        row,
        {**row, "contender": "ragsys_kernels, corpus=dense", "us": "30"},
        {**row, "backend": "cuda", "us": "70"},
    ]
    peer = {**row, "backend": "", "contender": "torch", "us": "1"}
    assert decide.defaults([*rows, peer]) == [{**row, "us": "30"}, rows[2], peer]


@pytest.mark.slow
def test_lines_of_pages_that_change_are_printed(tmp_path, capsys):
    path = tmp_path / "race.csv"
    LEDGER.at(path).replace(ledger(lambda goal, form: 44.0, peers=88.0))
    assert decide.main([str(path)]) == 0
    printed = capsys.readouterr().out
    assert "--- README.md" in printed
    assert "--- docs/gpu.md" in printed
    assert "  +On an NVIDIA H200, by time on the device: MMR, 10 of 100" in printed
    LEDGER.at(path).replace(ledger(lambda goal, form: 44.0))  # without torch no line changes
    assert decide.main([str(path)]) == 0
    printed = capsys.readouterr().out
    assert "--- README.md" not in printed
    assert "--- docs/gpu.md" not in printed


def test_the_table_is_written_only_if_that_is_asked_for(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(decide, "pages", lambda rows: "")
    published, race_ledger, written = LEDGER.at(tmp_path / "gpu.csv"), LEDGER.at(tmp_path / "race.csv"), []
    monkeypatch.setattr(decide, "LEDGER", published)
    monkeypatch.setattr(preference, "main", lambda: written.append(len(published.read())))
    race_ledger.replace(ledger())
    assert decide.main([str(race_ledger.path)]) == 0
    assert not published.path.exists()
    assert written == []
    assert decide.main([str(race_ledger.path), "--apply"]) == 0
    assert written == [len(merged(ledger(), ()))]
    capsys.readouterr()
    refused(tmp_path / "none.csv", "none.csv has no rows of a race", capsys)


def test_pages_are_written_of_rows_without_the_time_of_the_host():
    text = gpu_measured.section(ledger(peers=9.0, host_us="", flops="", bytes=""))
    assert "| mmr" not in text
    assert "N2000003-D384-P100-K10-Q2000, float16 | triton | 50.0 |" in text


def test_lines_of_pages_compare_times_of_one_run():
    old = ledger(peers=9.0, date="2026-11-26", commit="0000000")
    torch = [{**row, "date": "2026-12-02"} if row["contender"].startswith("torch") else row for row in old]
    (line,) = (line for line in gpu_measured.usual(torch).splitlines() if line.startswith("| MMR, 10 of 100;"))
    assert "torch" not in line
    assert "torch" in gpu_measured.usual(old)
    assert "(2026" not in gpu_measured.usual(old)
    newer = [{**row, "date": "2026-12-02"} if row["op"] == "vrsd" else row for row in old]
    assert "| VRSD, 10 of 100; D = 384, 2,000 queries, float16 (2026-12-02) |" in gpu_measured.usual(newer)
    lines = [line for line in gpu_measured.section(torch).splitlines() if line.startswith("| N2000003")]
    assert not any("torch" in line for line in lines)
