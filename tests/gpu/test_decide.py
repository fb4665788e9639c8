"""What a race's ledger decides: each outcome of each decision, of times that are made up."""

import itertools

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from benchmarks.gpu import decide, forms, goals, preference
from benchmarks.gpu.decide import DECISIONS
from benchmarks.gpu.forms import Form
from benchmarks.gpu.shapes import LEDGER
from benchmarks.harness.ledger import ROOT

BY_NAME = {decision.name: decision for decision in DECISIONS}
EACH = pytest.mark.parametrize("decision", DECISIONS, ids=lambda decision: decision.name)


def ledger(us=lambda goal, form: 50.0, **more):
    """The rows of a race whose forms take so long: µs, or a state and a reason; None: there is no row."""
    rows = []
    for goal in goals.GOALS:
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


def test_what_goes_has_the_lines_that_were_counted():
    assert sum(map(decide.lines_of, decide.SELECT)) + decide.lines_of("csrc/cuda/select_args.cuh") == 1_248
    cuda = sum(decide.lines_of(part) for part in decide.SCORING if part.startswith("csrc"))
    assert (cuda, decide.lines_of("ragsys_kernels/scoring/triton/linear_tma.py")) == (952, 153)


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
    stays, other = decision.stays, decision.others[0]
    lost = (state, "off by 0.1")
    found = outcome(decision, by_choice(decision, {other.name: lost, stays.name: 80.0}))
    assert set(found.winners.values()) == {stays.name}
    assert f"{other.name} {state}: off by 0.1" in found.told[0]
    found = outcome(decision, by_choice(decision, {stays.name: lost}))
    assert set(found.winners.values()) == {other.name}
    found = outcome(
        decision, by_choice(decision, dict.fromkeys([stays.name, *(x.name for x in decision.others)], lost))
    )
    assert found.verdict == "undecided"
    assert "no form is right and within its limit" in found.open[0]


@pytest.mark.parametrize(
    ("name", "choice", "limit"),
    [
        *((f"{op} out of up to 128 rows", "small", 90.0) for op in ("mmr", "vrsd", "msd")),
        ("vrsd out of 129 to 1,024 rows", "held", 1_200.0),
        ("mmr out of 129 to 1,024 rows", "held", 850.0),
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
        return 20.0 if form == Form("cuda", "pools=held") else 100.0 if form.backend == "cuda" else 40.0

    found = reported(ledger(us))
    assert (
        '("vrsd", "float16"): (Pools(129, 1024, 1024),),' in found["Preferences, in ragsys_kernels/_gpu/preference.py"]
    )
    assert (
        '("mmr", "float16"): (Pools(129, 1024, 1024),),' in found["Preferences, in ragsys_kernels/_gpu/preference.py"]
    )
    goes = found["Goes"].splitlines()
    assert "  csrc/cuda/greedy_select.cu: 127 lines" in goes
    assert "  ragsys_kernels/scoring/triton/linear_tma.py: 153 lines" in goes
    assert "  the switch pools" in goes
    lines = [int(line.split(": ")[1].split()[0].replace(",", "")) for line in goes if line.endswith(" lines")]
    assert goes[-1] == f"  {sum(lines):,} lines of files"
    assert found["device"] == "NVIDIA H200\ncommit: 0123abc"
    assert found["Lines of README and docs"] == "nothing"


def test_a_race_that_ended_early_leaves_the_published_preferences(reported):
    before = LEDGER.read()
    table = "\n".join(f"  {line}" for line in preference.lines(*preference.choice(before))).strip()
    found = reported(ledger(lambda goal, form: None), before)
    assert found["Preferences, in ragsys_kernels/_gpu/preference.py"] == table
    assert found["Goes"].splitlines()[-1] == "  0 lines of files"
    assert all(found[decision.name].startswith("undecided\n") for decision in DECISIONS)


def test_experiments_are_named_and_win_nothing(reported):
    def us(goal, form):
        return 10.0 if form.change == forms.STAGES_4 else 1.0 if form.change == forms.ONE_BLOCK else 50.0

    rows = ledger(us)
    found = reported(rows)["Experiments that are faster than all that the package has"].splitlines()
    (search,) = (line for line in found if "4 stages" in line)
    assert "triton, 4 stages 10.0 µs, 400% before triton" in search
    assert not any("stages" in row["contender"] or "block" in row["contender"] for row in decide.merged(rows, ()))
    held = decide.decided(BY_NAME["vrsd out of 129 to 1,024 rows"], decide.Race(rows))
    assert set(held.winners.values()) == {"stream"}


def test_rows_of_a_race_take_the_place_of_published_ones():
    (old, *_) = ledger(lambda goal, form: 70.0)
    other = {**old, "device": "NVIDIA H100"}
    new, state = {**old, "us": "60"}, {**old, "us": "60", "state": "wrong"}
    assert decide.merged([new], [old, other]) == [new, other]
    assert decide.merged([state], [old]) == [old]
    peer = {**old, "backend": "", "contender": "torch"}
    assert decide.merged([peer], [old]) == [old, peer]


def test_pages_are_by_the_fastest_form_of_each_backend():
    (row, *_) = ledger()
    rows = [row, {**row, "contender": "ragsys_kernels, pools=held", "us": "30"}, {**row, "backend": "cuda", "us": "70"}]
    peer = {**row, "backend": "", "contender": "torch", "us": "1"}
    assert decide.defaults([*rows, peer]) == [{**row, "us": "30"}, rows[2], peer]


@pytest.mark.slow
def test_lines_of_pages_that_change_are_printed(tmp_path, capsys):
    path = tmp_path / "race.csv"
    LEDGER.at(path).replace(ledger(lambda goal, form: 44.0))
    assert decide.main([str(path)]) == 0
    printed = capsys.readouterr().out
    assert "--- README.md" in printed
    assert "--- docs/gpu.md" in printed
    assert "  +On an NVIDIA H200, by time on the device: MMR, 10 of 100" in printed


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
    assert written == [len(decide.merged(ledger(), ()))]
    with pytest.raises(SystemExit):
        decide.main([str(tmp_path / "none.csv")])
    assert "none.csv has no rows of a race" in capsys.readouterr().err
