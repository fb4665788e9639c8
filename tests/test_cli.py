"""The command line: exit codes, one-line errors, progress, the summary."""

import inspect
import os
import re
import signal
import subprocess
import sys
import time
import types

import numpy as np
import pytest

typer_testing = pytest.importorskip("typer.testing")
pq = pytest.importorskip("pyarrow.parquet")

from rich.console import Console  # noqa: E402

import ragsys_kernels as rk  # noqa: E402
from ragsys_kernels import cli, offline  # noqa: E402
from ragsys_kernels.cli import _app  # noqa: E402

COMMAND = [sys.executable, "-m", "ragsys_kernels.cli"]


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for name, rows in (("corpus", 200), ("queries", 90)):
        np.save(tmp_path / f"{name}.npy", rng.standard_normal((rows, 8)).astype(np.float32))
    return tmp_path


@pytest.fixture
def run(command):
    """In this process: what only one of its own can show is started by `start`, or by a test itself."""
    return command


def start(folder, *arguments, command=COMMAND):
    environment = {**os.environ, "NO_COLOR": "1", "TERMINAL_WIDTH": "100", "COLUMNS": "100"}
    return subprocess.run([*command, *map(str, arguments)], cwd=folder, capture_output=True, text=True, env=environment)


SELECT = ("select", "--corpus", "corpus.npy", "--queries", "queries.npy", "--out", "out")


def test_select_prints_one_summary_line(folder):
    result = start(folder, *SELECT, "--k", "4", "--pool", "20", "--num-threads", "1")
    assert (result.returncode, result.stderr) == (0, "")
    assert re.fullmatch(
        r"90 queries in \d+\.\d\d s \(\d+ queries/s, corpus read in \d+\.\d\d s\), mmr, k=4, pool=20, "
        r"backend \w+( \(\w+\))?, 1 thread -> \S+/out \(1 shard\)\n",
        result.stdout,
    )
    assert {len(row) for row in pq.read_table(folder / "out")["ids"].to_pylist()} == {4}


def test_every_option_reaches_the_job(monkeypatch, tmp_path):
    """Each option of the command is passed on under its own name, and no parameter of the job is forgotten."""
    seen, select = {}, offline.select
    done = types.SimpleNamespace(complete=True)
    monkeypatch.setattr(offline, "select", lambda **options: seen.update(options) or done)
    given = {
        "corpus": "c.parquet", "queries": "q.parquet", "out": "o", "candidates": "x", "index": "f",
        "bias": "b", "groups": "g",
        "query_groups": "h", "vector_column": "v1", "id_column": "i1", "bias_column": "b1", "group_column": "g1",
        "query_vector_column": "v2", "query_id_column": "i2", "query_group_column": "g2", "candidate_column": "c1",
        "method": "vrsd", "k": 3, "pool": 7, "lambda_d": 0.25, "lambda_b": 0.5, "max_per_group": 2, "metric": "dot",
        "dtype": "float16", "backend": "reference", "num_threads": 5, "chunk_size": 11, "shard_size": 12,
        "on_error": "skip", "fingerprint": "full", "engine": "ray", "device": "cuda", "workers": 8,
        "cpus_per_worker": 1.5, "gpus_per_worker": 0.5, "ray_address": "auto",
    }  # fmt: skip
    arguments = [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    result = typer_testing.CliRunner().invoke(cli.app, ["select", *arguments, "--overwrite", "--quiet"])
    assert result.exit_code == 0, result.output
    assert seen.pop("overwrite") is True
    assert seen.pop("progress") is None
    assert seen.pop("stop")() is False
    assert set(seen) | {"overwrite", "progress", "stop"} == set(inspect.signature(select).parameters)
    assert {name: value if isinstance(value, (int, float)) else str(value) for name, value in seen.items()} == given


def test_pool_takes_a_number_or_all(run, folder):
    assert run(folder, *SELECT, "--pool", "all", "--quiet").returncode == 0
    result = run(folder, *SELECT, "--pool", "some")
    assert result.returncode == 2
    assert "must be a number or 'all'" in result.stderr


def test_quiet_prints_nothing(run, folder):
    result = run(folder, *SELECT, "--quiet")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((*SELECT[:2], "no.npy", *SELECT[3:]), r"error: select: corpus must be an existing file, got no\.npy"),
        ((*SELECT, "--k", "0"), r"error: select: .*k must .*, got 0"),
        ((*SELECT, "--lambda-d", "2"), r"error: select: .*lambda_d must .*, got 2\.0"),
        ((*SELECT, "--backend", "abacus"), "error: select: .*abacus.*"),
        ((*SELECT[:-1], "corpus.npy"), "error: select: out must be a folder, .*"),
        ((*SELECT[:-1], "corpus.npy/out"), "error: select: out must be a folder that can be made, .*"),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else "",
)
def test_bad_input_is_one_line(run, folder, arguments, match):
    result = run(folder, *arguments)
    assert (result.returncode, result.stdout) == (1, "")
    assert re.fullmatch(match + "\n", result.stderr)
    assert sorted(path.name for path in folder.iterdir()) == ["corpus.npy", "queries.npy"]


def test_error_in_a_later_chunk_is_one_line(run, folder):
    queries = np.load(folder / "queries.npy")
    queries[77] = np.nan
    np.save(folder / "queries.npy", queries)
    result = run(folder, *SELECT, "--chunk-size", "5")
    assert result.returncode == 1
    assert re.fullmatch(
        r"error: select: queries must be finite, got NaN or inf in row 77 of queries\.npy\n", result.stderr
    )
    assert sorted(path.name for path in folder.iterdir()) == ["corpus.npy", "queries.npy"]


def test_full_disk_is_one_line(folder):
    limited = "trap '' XFSZ; ulimit -f 1; exec \"$@\""  # in blocks of 512 or 1024 bytes
    result = start(folder, *SELECT, command=["sh", "-c", limited, "sh", *COMMAND])
    assert result.returncode == 1
    assert re.fullmatch(r"error: select: .*File too large.*\n", result.stderr)
    assert sorted(path.name for path in folder.iterdir()) == ["corpus.npy", "queries.npy"]


def test_memory_that_torch_does_not_get_is_one_line(capsys):
    torch = pytest.importorskip("torch")
    with pytest.raises(_app.typer.Exit) as stopped, _app.one_line_errors("bias"):
        torch.empty(1 << 60)
    assert stopped.value.exit_code == 1
    assert re.fullmatch(r"error: bias: .*can't allocate memory.*\n", capsys.readouterr().err)
    with pytest.raises(RuntimeError, match="a defect"), _app.one_line_errors("bias"):
        raise RuntimeError("a defect")


def test_usage_errors_exit_with_2(run, folder):
    for arguments, word in ((("select",), "--corpus"), (("select", "--nope"), "--nope"), (("chose",), "chose")):
        result = run(folder, *arguments)
        assert result.returncode == 2
        assert word in result.stderr
        assert "Traceback" not in result.stderr


def test_pool_size_warning_is_one_line(run, folder):
    result = run(folder, *SELECT, "--k", "20", "--pool", "10", "--chunk-size", "10")
    assert result.returncode == 0
    assert re.fullmatch("warning: .*pool.*\n", result.stderr)


def start_long_job(folder, shard_size):
    """A job that takes minutes, once its first shard is there."""
    np.save(folder / "queries.npy", np.random.default_rng(0).standard_normal((500_000, 8)).astype(np.float32))
    command = [*COMMAND, *SELECT, "--chunk-size", "10", "--shard-size", shard_size]
    process = subprocess.Popen([*map(str, command)], cwd=folder, stderr=subprocess.PIPE, text=True)
    while not list(folder.glob("out/part-*" if shard_size < 10**6 else "out/.part-*")) and process.poll() is None:
        time.sleep(0.02)
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_job_finishes_its_shard_and_goes_on_later(run, folder, number):
    with start_long_job(folder, 500) as process:
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "stopping: finishing the shard at hand of at most 500 queries first" in errors
    state = offline.status(folder / "out")
    assert 0 < state.shards < state.num_shards
    assert state.done == 500 * state.shards
    assert not [name for name in os.listdir(folder / "out") if name.startswith(".")]
    np.save(folder / "queries.npy", np.load(folder / "queries.npy")[:90])
    assert "queries's rows 500000, now 90" in run(folder, *SELECT, "--shard-size", 500).stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_second_signal_stops_at_once(folder, number):
    with start_long_job(folder, 10**6) as process:
        process.send_signal(number)
        line = process.stderr.readline()
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert "a second signal stops at once" in line
    assert process.returncode == 128 + number
    assert errors.splitlines()[-1] == "error: select: interrupted; run it again to go on"
    assert not (folder / "out").exists()


def test_status_and_verify_of_a_job(run, folder):
    assert run(folder, *SELECT, "--shard-size", "40").returncode == 0
    result = run(folder, "job", "status", "out")
    assert result.returncode == 0
    for line in ("queries: 90 of 90 done, 0 of them skipped", "shards: 3 of 3, 40 queries each", "complete: yes"):
        assert line in result.stdout
    assert run(folder, "job", "verify", "out").stdout == "right: 90 queries in 3 shards\n"
    (folder / "out" / "part-00001.parquet").unlink()
    result = run(folder, "job", "verify", "out")
    assert (result.returncode, result.stdout) == (1, "part-00001.parquet is missing\n")
    assert "missing part-00001.parquet" in run(folder, "job", "status", "out").stdout
    for command in ("status", "verify"):
        result = run(folder, "job", command, ".")
        assert (result.returncode, result.stdout) == (1, "")
        assert re.fullmatch(f"error: {command}: folder must be a job's, with a file _job.json, got .\n", result.stderr)


def test_finished_job_says_so(run, folder):
    run(folder, *SELECT)
    result = run(folder, *SELECT)
    assert (result.returncode, result.stderr) == (0, "")
    assert re.fullmatch(
        r"nothing to do: all 90 queries are done, and their files as they were written -> \S+/out \(1 shard\)\n",
        result.stdout,
    )


def test_plain_progress_lines(monkeypatch, capsys):
    monkeypatch.setattr(_app, "_LINE_INTERVAL", 0.0)
    with _app.progress_bar(quiet=False) as report:
        for done in (0, 250, 1000):
            report(done, 1000)
            time.sleep(0.01)
    assert re.fullmatch(r"250 of 1000 queries, \d+ queries/s, 0 s left\n", capsys.readouterr().err)


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_of_several_steps(monkeypatch, capsys, terminal):
    """Each step has its own total, rate and time left; one may begin long after the last line."""
    monkeypatch.setattr(_app, "_LINE_INTERVAL", 0.0)
    monkeypatch.setenv("COLUMNS", "150")
    if terminal:
        monkeypatch.setattr(_app, "Console", lambda **_: Console(file=sys.stderr, force_terminal=True, width=150))
    with _app.progress_bar(quiet=False) as report:
        for done, total in ((0, 10), (5, 10), (10, 10), (0, 20), (0, 20), (10, 20), (0, 20), (4, 20)):
            time.sleep(0.01)
            report(done, total)
        time.sleep(0.15 if terminal else 0)  # rich draws ten times a second
    shown = capsys.readouterr().err
    if terminal:
        assert "4/20" in shown
    else:
        assert re.findall(r"^(\d+ of \d+) queries, (?:\d+) queries/s, (?:\d+) s left$", shown, re.M) == [
            "5 of 10", "10 of 20", "4 of 20",
        ]  # fmt: skip
        assert len(shown.splitlines()) == 3


def test_bar_on_a_terminal(folder):
    """In a pseudo-terminal: a bar with rate and time left, then the summary."""
    pty = pytest.importorskip("pty")
    parent, child = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "150"}
    process = subprocess.Popen([*COMMAND, *SELECT], cwd=folder, stdout=child, stderr=child, env=environment)
    os.close(child)
    shown = b""
    while True:
        try:
            shown += os.read(parent, 4096)
        except OSError:  # the end of a pseudo-terminal, on Linux
            break
    os.close(parent)
    assert process.wait() == 0
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    assert "selecting" in text
    assert "90/90" in text
    assert re.search(r"90 queries in \d", text)


def test_version_and_config(run, folder):
    assert run(folder, "--version").stdout == f"ragsys_kernels {rk.__version__}\n"
    result = run(folder, "show-config")
    assert result.returncode == 0
    assert rk.__version__ in result.stdout


def test_help_names_every_option(run, folder):
    result = run(folder, "select", "--help")
    assert result.returncode == 0
    for option in ("--corpus", "--lambda-d", "--chunk-size", "--overwrite", "--query-group-column"):
        assert option in result.stdout


@pytest.mark.parametrize("module", ["typer", "rich", "pyarrow"])
def test_missing_extra_is_one_line(folder, module):
    code = f"import sys; sys.modules[{module!r}] = None; from ragsys_kernels.cli import main; main()"
    result = start(folder, "-c", code, command=[sys.executable])
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == f"error: {module} is not installed: pip install 'ragsys_kernels[cli]'\n"
