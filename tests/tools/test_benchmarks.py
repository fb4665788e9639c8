"""The benchmark suite: its quick run, the ledger, the report, and the command that runs it."""

import csv
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ragsys_kernels as rk

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

pytest.importorskip("pytest_benchmark")
pytestmark = pytest.mark.skipif(not (ROOT / "benchmarks").is_dir(), reason="the tests run outside of the source tree")


def run(*arguments, cwd=ROOT, **environment):
    package = str(Path(rk.__file__).parents[1])
    # pytest-benchmark measures nothing where it takes itself for a worker of pytest-xdist.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    environment = {**inherited, **THREADS, "PYTHONPATH": package, **environment}
    return subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="module")
def quick(tmp_path_factory, compiled):
    """The whole suite on synthetic vectors, with a ledger."""
    path = tmp_path_factory.mktemp("quick") / "ledger.csv"
    result = run("-m", "pytest", "benchmarks", "--quick", "--results", path.parent)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr
    with path.open(newline="") as file:
        return result, list(csv.DictReader(file))


@pytest.mark.slow
def test_quick_run_records_every_op_and_contender(quick):
    result, rows = quick
    assert {row["op"] for row in rows} == {*rk.METHODS, "search", "drop-in"} - {
        "sift",
        "gist",
    }  # which pyversity does not have
    names = {row["contender"] for row in rows}
    assert {"ragsys_kernels", "ragsys_kernels, relevance given", "ragsys_kernels, dense rule"} <= names
    assert {"NumPy", "matrix product", "read floor"} <= names
    assert "µs" in result.stdout
    assert "synthetic-N400" in result.stdout


@pytest.mark.slow
def test_rows_are_complete(quick, module):
    _, rows = quick
    ledger = module("suites.selection").LEDGER
    assert tuple(rows[0]) == ledger.columns
    assert len({tuple(row[name] for name in ledger.key) for row in rows}) == len(rows)
    for row in rows:
        assert float(row["us_per_query"]) > 0
        assert float(row["ratio"]) > 0
        assert float(row["iqr_us"]) >= 0
        assert all(row[name] for name in ("backend", "hardware", "N", "D", "K", "Q", "threads", "date", "versions"))
        if row["contender"] == "ragsys_kernels" and row["op"] == "mmr":
            assert 0 < float(row["products"]) <= float(row["dense_products"])
            assert float(row["bytes"]) > 0
            assert row["dtype"] != "float32" or row["same_picks"] == "1"


@pytest.mark.slow
def test_quick_run_leaves_the_ledger_alone(module, tmp_path):
    before = module("suites.selection").LEDGER.path
    content = before.read_bytes() if before.exists() else None
    result = run("-m", "pytest", "benchmarks", "--quick", "-k", "stream")
    assert result.returncode == 0, result.stdout + result.stderr
    assert (before.read_bytes() if before.exists() else None) == content


def test_more_than_one_thread_is_refused():
    result = run("-m", "pytest", "benchmarks", OPENBLAS_NUM_THREADS="2", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert result.returncode != 0
    assert "single threads" in result.stdout + result.stderr


def test_wrong_picks_are_not_timed(module):
    """The gate refuses a contender that leaves its rule at one pick of one query."""
    selection, shapes = module("suites.selection"), module("suites.shapes")
    problem = shapes.Problem(shapes.POOLS[2].small())
    ours, numpy = selection.ours("vrsd", problem), module("suites.peers").vrsd_in_numpy(problem)
    race = selection.Selecting("vrsd", problem, [ours, numpy])
    assert [race.facts(contender)["same_picks"] > 0.9 for contender in race.contenders] == [True, True]

    def swapped(n):
        results = numpy.run(n)
        results[1] = results[1][::-1]
        return results

    wrong = replace(numpy, run=swapped)
    with pytest.raises(AssertionError, match="NumPy, query 1, step 0"):
        selection.Selecting("vrsd", problem, [ours, wrong]).run()


def test_near_duplicates_are_half_of_each_pool(module):
    shapes = module("suites.shapes")
    shape = shapes.DUPLICATES[0].small()
    problem = shapes.Problem(shape)
    originals = problem.candidates < shape.N // 2
    assert (originals.sum(axis=1) == shape.P // 2).all()
    copies = (problem.rows[: shape.N // 2] * problem.rows[shape.N // 2 :]).sum(axis=1)
    assert ((copies > 0.99) & (copies < 0.999)).all()


def test_ledger_replaces_or_adds(module, tmp_path):
    ledger = module("suites.selection").LEDGER.at(tmp_path / "results" / "ledger.csv")
    key = dict.fromkeys(ledger.key, "x")
    ledger.update([{**key, "us_per_query": 3.0}, {**key, "dtype": "float16", "us_per_query": 2.0}])
    ledger.update([{**key, "us_per_query": 1.5}, {**key, "lambda_d": 0.5, "us_per_query": 4.0, "P": None}])
    rows = ledger.read()
    assert [row["us_per_query"] for row in rows] == ["1.5", "2", "4"]
    assert (rows[2]["lambda_d"], rows[2]["P"]) == ("0.5", "")


def fake_rows(shapes):
    """A ledger with the main shapes: ours 10 µs, peers 200 µs, the floor 8 µs; drop-ins 30 µs, LangChain 120."""
    times = {("ragsys_kernels", "float32"): 10, ("ragsys_kernels, relevance given", "float32"): 8.5}
    calls = times | {("LangChain, arrays", "float32"): 120, ("pyversity, arrays", "float32"): 40}
    calls |= {(f"drop-in for {peer}, arrays", "float32"): 30 for peer in ("LangChain", "pyversity")}
    times |= {("ragsys_kernels", "bfloat16"): 9, ("pyversity", "float32"): 200, ("read floor", "float32"): 8}
    times |= {("FAISS IndexFlatIP", "float32"): 16, ("matrix product", "float32"): 5}
    cases = [*((shape, lambda_d) for shape in shapes.POOLS for lambda_d in shapes.LAMBDAS), *shapes.WHOLE]
    races = [("mmr", times, *case) for case in cases] + [("drop-in", calls, each, 0.75) for each in shapes.ONE_CALL]
    for op, measured, shape, lambda_d in races:
        for (contender, dtype), time in measured.items():
            yield {
                "op": op, "backend": "cpu", "isa": "avx2", "shape": shape, "dtype": dtype, "lambda_d": lambda_d,
                "hardware": "A processor, 2 cores", "contender": contender, "us_per_query": float(time),
                "ratio": time / 10, "products": 50.0, "dense_products": 100.0, "date": "2000-01-01", "duplicates": 0,
                **{name: getattr(shape, name) for name in ("N", "D", "P", "K", "Q")},
            }  # fmt: skip


@pytest.mark.slow
def test_report_from_a_ledger(module, tmp_path):
    pytest.importorskip("matplotlib")
    shapes = module("suites.shapes")
    module("suites.selection").LEDGER.at(tmp_path / "ledger.csv").update(fake_rows(shapes))
    parts = "<!-- {0}:begin -->\nold\n<!-- {0}:end -->\n"
    (tmp_path / "README.md").write_text(parts.format("speed"))
    page = tmp_path / "docs" / "speed.md"
    page.parent.mkdir()
    below = "".join(map(parts.format, ("scoring", "drop-ins", "rules-speed")))
    page.write_text(f"before\n{parts.format('ledger')}after\n{below}")
    command = ("-m", "benchmarks.reports", "--ledger", tmp_path / "ledger.csv", "--root", tmp_path)
    command += ("--out", tmp_path / "r")
    for _ in range(2):  # the second changes nothing
        result = run(*command)
        assert result.returncode == 0, result.stderr
    text = page.read_text()
    assert text.startswith("before\n<!-- ledger:begin -->\n")
    assert "<!-- ledger:end -->\nafter\n<!-- scoring:begin -->\n<!-- scoring:end -->\n<!-- drop-ins:begin -->\n" in text
    assert text.endswith("<!-- rules-speed:begin -->\nNot measured on this machine.\n<!-- rules-speed:end -->\n")
    assert "| LangChain, arrays, P=20, K=4 | 120 | 30.0 (4.0x) | 10.0 (12.0x) |" in text
    assert "| pyversity, arrays, P=100, K=10 | 40.0 | 30.0 (1.33x) | 8.5 (4.7x) |" in text
    assert "old" not in text
    assert "| 100, 10, 384, 0.75 | 10.0 | 8.5 | 9.0 | 200 (24x) |" in text
    assert "16.0 (1.60x)" in text
    readme = (tmp_path / "README.md").read_text()
    assert "| LangChain: 4 of 20 candidates | 120 | 30.0 (4.0x) | 10.0 (12.0x) |" in readme
    assert "| one exact FAISS search: 6 of 19,000 MiniLM rows (384) | 16.0 |  | 10.0 (1.60x) |" in readme
    report = (tmp_path / "r" / "report.md").read_text()
    assert "| pyversity / ours, P=100, D=384 | 0.5 | 20 | ≥ 14 | yes |" in report
    assert "| pyversity / ours, P=20, D=384 | 0.5 | 20 | ≥ 25 | **no** |" in report
    assert "| ours, relevance given / read floor, P=100, D=768 | 0.75 | 1.06 | ≤ 1.5 | yes |" in report
    assert "not measured" in report
    assert "50" in (tmp_path / "r" / "whole_corpus.md").read_text()
    plots = {path.stem for path in (tmp_path / "r").glob("*.svg")}
    assert plots == {"peers", "scaling", "whole_corpus", "work"}


PLOTS = sorted(path.name for path in RESULTS.glob("*.svg"))


@pytest.mark.slow
def test_plots_are_of_the_results(tmp_path):
    """Drawn anew they are these, no more and no less.

    The texts are the same by any version of matplotlib, the places by the one that drew the plot.
    """
    pytest.importorskip("matplotlib")
    for page in RESULTS.glob("*.md"):
        (tmp_path / page.name).symlink_to(page)
    script = (
        "import sys; from pathlib import Path; from benchmarks.suites.selection import LEDGER;"
        "from benchmarks.reports import certificate, compare, page_plots, plots, rule_plots, runs, serve;"
        "out = Path(sys.argv[1]);"
        "plots.draw(runs.Runs(LEDGER.read()), out); page_plots.draw(out); rule_plots.draw(out); compare.draw(out);"
        "certificate.draw(out); serve.draw(out)"
    )
    result = run("-c", script, tmp_path)
    assert result.returncode == 0, result.stderr
    assert sorted(path.name for path in tmp_path.glob("*.svg")) == PLOTS
    for name in PLOTS:
        kept, made = ((folder / name).read_text(encoding="utf-8") for folder in (RESULTS, tmp_path))
        assert _texts(kept) == _texts(made), f"{name}: python -m benchmarks.reports draws it again"
        if _creator(kept) == _creator(made):
            np.testing.assert_allclose(_places(kept), _places(made), atol=0.1, err_msg=name)


def _texts(svg):
    return re.findall(r"<text [^>]*>([^<]+)</text>", svg)


def _places(svg):
    """All coordinates, in points."""
    drawn = " ".join(re.findall(r' (?:d|x|y|transform)="([^"]*)"', svg))
    return [float(number) for number in re.findall(r"-?\d+\.?\d*", drawn)]


def _creator(svg):
    return re.search(r"<dc:title>(.*?)</dc:title>", svg)[1]


@pytest.mark.parametrize("name", PLOTS)
def test_plot_is_small_and_legible_on_a_phone(name):
    """On a page 360 pixels wide letters have 6 pixels at least, and a white ground, whatever the page's."""
    text = (RESULTS / name).read_text(encoding="utf-8")
    assert len(text) < 150_000
    width = float(re.search(r'<svg [^>]*width="([\d.]+)pt"', text)[1])
    sizes = [float(size) for size in re.findall(r"font-size: ([\d.]+)px", text)]
    assert min(sizes) * 360 / width >= 6
    assert text.index("fill: #ffffff") < text.index("<text")


def test_readme_without_its_place_is_refused(module, tmp_path):
    (tmp_path / "README.md").write_text("nothing")
    with pytest.raises(SystemExit, match="must have one <!-- speed:begin --> and one"):
        module("reports.places").fill(tmp_path, "speed", "text")


def test_figures_of_changes_in_no_commit_are_not_published(module, tmp_path):
    runs, speed = module("reports.runs"), module("reports.speed")
    ledger = module("suites.selection").LEDGER.at(tmp_path / "ledger.csv")
    rows = [{**row, "commit": "abc"} for row in fake_rows(module("suites.shapes"))]
    ledger.update(rows)
    expected = speed.full_report(runs.Runs(ledger.read()))
    later = {"hardware": "B processor", "commit": "abc-dirty", "date": "2001-01-01"}
    ledger.update([{**row, **later} for row in rows])
    found = ledger.read()
    assert len(found) == 2 * len(rows)
    assert speed.full_report(runs.Runs(found)) == expected
    assert not [row for row in module("harness.ledger").published(found) if "dirty" in row["commit"]]


def test_tables_name_the_commits_of_their_own_rows(module):
    runs, speed, shapes = module("reports.runs"), module("reports.speed"), module("suites.shapes")
    rows = [{name: str(value) for name, value in row.items()} for row in fake_rows(shapes)]
    for row in rows:
        row["commit"] = "fed" if row["D"] == "384" and row["op"] == "mmr" else "abc"
    rows.append({**rows[0], "shape": "of no table", "commit": "123"})  # the last that was measured
    made = runs.Runs(rows)
    assert "2000-01-01, commits abc and fed." in speed.summary(made)
    assert "2000-01-01, commits abc and fed. Written" in speed.whole_page(made)
    assert "123" not in speed.summary(made) + speed.short(made)


def test_few_rows_of_another_machine_take_no_tables_away(module, tmp_path):
    ledger = module("suites.selection").LEDGER.at(tmp_path / "ledger.csv")
    rows = list(fake_rows(module("suites.shapes")))
    ledger.update([*rows, {**rows[0], "hardware": "B processor"}])
    assert module("reports.runs").Runs(ledger.read()).last["hardware"] == "A processor, 2 cores"
    ledger.update([{**rows[0], "hardware": "B processor", "date": "2000-01-02"}])
    assert module("reports.runs").Runs(ledger.read()).last["hardware"] == "B processor"


def test_pages_have_what_the_ledgers_say(module):
    speed, places = module("reports.speed"), module("reports.places")
    runs = module("reports.runs").Runs(module("suites.selection").LEDGER.read())
    parts = {"speed": speed.short(runs), "ledger": speed.summary(runs), "drop-ins": speed.drop_ins(runs)}
    parts["rules-speed"] = speed.rules(runs)
    scores = module("reports.runs").Runs(module("suites.scoring_shapes").LEDGER.read())
    parts["scoring"] = module("reports.scoring").summary(scores)
    for part, text in parts.items():
        assert places.filled(part, text) in (ROOT / places.PLACES[part]).read_text(encoding="utf-8")
    assert len(re.findall(r"^\| .*\d", parts["speed"], re.MULTILINE)) == 8
    assert "dirty" not in "".join((ROOT / page).read_text(encoding="utf-8") for page in places.PLACES.values())


# --- The command.


CONFTEST = """
import os

def pytest_addoption(parser):
    parser.addoption("--quick", action="store_true")

def pytest_report_header(config):
    return f"quick {config.getoption('quick')} -k {config.option.keyword!r} {os.environ['OMP_NUM_THREADS']}"
"""


@pytest.fixture
def checkout(tmp_path):
    """A checkout with one benchmark and a report, which say how they were run."""
    folder = tmp_path / "benchmarks"
    (folder / "reports").mkdir(parents=True)
    for package in (folder, folder / "reports"):
        (package / "__init__.py").touch()
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\npython_files = bench_*.py\npython_functions = bench_*\n")
    (folder / "bench_one.py").write_text("def bench_good():\n    pass\ndef bench_bad():\n    assert False\n")
    (folder / "reports" / "__main__.py").write_text("print('reported')\n")
    return tmp_path


@pytest.mark.parametrize(
    ("options", "code", "end"),
    [(["--select", "good"], 0, "reported"), (["--select", "good", "--quick"], 0, "="), ([], 1, "=")],
    ids=["all", "quick", "one fails"],
)
def test_command_runs_suite_and_report(checkout, command, monkeypatch, options, code, end):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    done = command(checkout, "bench", *options)
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith(end)
    if not code:
        assert f"quick {'--quick' in options} -k 'good' 1" in done.stdout


def test_command_outside_of_a_checkout(tmp_path, monkeypatch, command):
    monkeypatch.setattr(rk, "__file__", str(tmp_path / "site" / "ragsys_kernels" / "__init__.py"))
    done = command(tmp_path, "bench")
    assert done.returncode == 1
    assert done.stderr.startswith("error: bench: no folder benchmarks in ")
