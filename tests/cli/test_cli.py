"""The command line: exit codes, one-line errors, progress, the summary."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import COMMAND, SELECT
from rich.console import Console

import ragsys_kernels as rk
from ragsys_kernels import cli, offline
from ragsys_kernels._base import warn
from ragsys_kernels.cli import _app


def test_select_prints_one_summary_line_and_again_that_all_is_done(run, folder):
    result = run(folder, *SELECT, "--k", "4", "--pool", "20", "--num-threads", "1")
    assert (result.returncode, result.stderr) == (0, "")
    assert re.fullmatch(
        r"90 queries in \d+\.\d\d s \(\d+ queries/s, corpus read in \d+\.\d\d s\), "
        r"\d+ % of queries proven equal to the whole corpus, mmr, k=4, pool=20, "
        r"backend \w+( \(\w+\))?, 1 thread -> \S+/out \(1 shard\)\n",
        result.stdout,
    )
    assert {len(row) for row in pq.read_table(folder / "out")["ids"].to_pylist()} == {4}
    result = run(folder, *SELECT, "--k", "4", "--pool", "20")
    assert (result.returncode, result.stderr) == (0, "")
    assert re.fullmatch(
        r"nothing to do: all 90 queries are done, and their files as they were written, "
        r"\d+ % of queries proven equal to the whole corpus -> \S+/out \(1 shard\)\n",
        result.stdout,
    )


def test_pool_takes_a_number_or_a_word(run, folder):
    assert run(folder, *SELECT, "--pool", "all", "--quiet").returncode == 0
    assert run(folder, *SELECT, "--pool", "certified", "--quiet", "--overwrite").returncode == 0
    result = run(folder, *SELECT, "--pool", "some")
    assert result.returncode == 2
    assert "must be a number, 'all' or 'certified'" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((*SELECT[:2], "no.npy", *SELECT[3:]), r"error: select: corpus must be an existing file, got no\.npy"),
        ((*SELECT, "--k", "0"), r"error: select: .*k must .*, got 0"),
        ((*SELECT, "--lambda-d", "2"), r"error: select: .*--lambda-d must .*, got 2\.0"),
        ((*SELECT, "--backend", "abacus"), "error: select: .*abacus.*"),
        ((*SELECT[:-1], "corpus.npy"), "error: select: out must not be an input, .*"),
        ((*SELECT[:-1], "corpus.npy/out"), "error: select: out must be a folder that can be made, .*"),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else "",
)
def test_bad_input_is_one_line(run, folder, arguments, match):
    result = run(folder, *arguments)
    assert (result.returncode, result.stdout) == (1, "")
    assert re.fullmatch(match + "\n", result.stderr)
    assert sorted(path.name for path in folder.iterdir()) == ["corpus.npy", "queries.npy"]


OF_ROWS = "--group-column or --groups"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--min-per-group", "1"), f"--min-per-group must come with {OF_ROWS}, got 1 alone"),
        (("--half-life", "1m"), "--half-life must come with --time-column or --time, got 60.0 alone"),
        (("--lambda-d", "2"), "--lambda-d must be within [0, 1], got 2.0"),
        (("--candidate-column", "k"), "--candidate-column must come with --candidates, got 'k' alone"),
        (("--id-column", "lambda_d"), "corpus must not be a .npy file to have a column 'lambda_d', got corpus.npy"),
        (("--queries", "lambda_d.npy"), "queries must be an existing file, got lambda_d.npy"),
        (("--queries", "bias_column/k.npy"), "queries must be an existing file, got bias_column/k.npy"),
        (("--groups", "in/max_per_group"), "groups must be an existing file, got in/max_per_group"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_errors_speak_of_options(run, folder, arguments, said):
    """And leave files and columns as they are, which may have the names of arguments."""
    assert run(folder, *SELECT, *arguments).stderr == f"error: select: {said}\n"


def test_errors_of_other_commands_speak_of_their_own_options(run, folder):
    subset = ("subset", "--corpus", "corpus.npy", "--out", "o.parquet", "--k", "3")
    said = run(folder, *subset, "--budget", "1").stderr
    assert said == "error: subset: budget must come with --cost-column, got none\n"
    said = run(folder, *subset, "--max-per-group", "1").stderr
    assert said == "error: subset: --max-per-group must come with --group-column, got none\n"
    build = ("corpus", "build", "--corpus", "corpus.npy", "--out", "c")
    assert run(folder, *build).returncode == 0
    assert run(folder, *build).stderr.endswith("; pass --overwrite to replace a corpus\n")
    assert run(folder, *build, "--overwrite").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((*SELECT, "--min-per-group", "a=1.5"), r"Invalid value for '--min-per-group': must be an integer, .*"),
        ((*SELECT, "--lambda", "1"), r".*--lambda.*"),
        (("corpus", "buil"), r"No such command 'buil'.*; see ragsys-kernels corpus --help"),
        (("--nothing",), r"No such option:? '?--nothing'?; see ragsys-kernels --help"),
        ((*SELECT, "--backend"), r"Option '--backend' requires an argument.*"),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else "",
)
def test_wrong_usage_is_one_line(run, folder, arguments, said):
    result = run(folder, *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert re.fullmatch(f"error: {said}\n", result.stderr)


def test_full_disk_is_one_line(folder):
    limited = "trap '' XFSZ; ulimit -f 1; exec \"$@\""  # in blocks of 512 or 1024 bytes
    command = ["sh", "-c", limited, "sh", *COMMAND, *SELECT]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert result.returncode == 1
    assert re.fullmatch(r"error: select: .*File too large.*\n", result.stderr)
    assert sorted(path.name for path in folder.iterdir()) == ["corpus.npy", "queries.npy"]


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_an_answer_on_a_full_disk_is_one_line(tmp_path, option):
    with open("/dev/full", "w") as full:
        result = subprocess.run([*COMMAND, option], cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (result.returncode, result.stderr) == (1, "error: [Errno 28] No space left on device\n")


@pytest.mark.parametrize(
    ("way", "option", "needed"),
    [
        (("--vectors", "v.npy"), ("--token-file", "t"), "--url"),
        (("m:f",), ("--corpus", "c"), "--url"),
        (("m:f",), ("--overwrite",), "--vectors"),
        (("--url", "http://localhost"), ("--adapter", "qdrant"), "MODULE:NAME"),
        (("--url", "http://localhost"), ("--argument", "k=n"), "MODULE:NAME"),
        (("--vectors", "v.npy"), ("--option", "a=1"), "MODULE:NAME"),
    ],
)
def test_conform_refuses_options_of_another_way_to_call(run, tmp_path, way, option, needed):
    result = run(tmp_path, "conform", *way, *option)
    assert result.returncode == 2
    assert result.stderr == f"error: conform: {option[0]} must come with {needed}, got {option[0]} alone\n"
    assert not [*tmp_path.iterdir()]


PLAN = ("plan", "--rows", "1e6", "--queries", "10", "--no-measure", "--processor", "avx2")


@pytest.mark.parametrize(
    ("arguments", "stream", "unbuffered"),
    [
        (PLAN, "stdout", ""),
        (PLAN, "stdout", "1"),
        (SELECT, "stdout", "1"),
        (("corpus", "show", "corpus.npy"), "stderr", "1"),
        (("--help",), "stdout", ""),
    ],
    ids=["plan", "unbuffered", "select", "error", "help"],
)
def test_a_closed_pipe_ends_a_command_silently(folder, arguments, stream, unbuffered):
    """As the signal of a pipe without a reader would."""
    reader, writer = os.pipe()
    os.close(reader)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: writer}
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    result = subprocess.run([*COMMAND, *arguments], cwd=folder, env=environment, text=True, **streams)
    os.close(writer)
    assert (result.returncode, result.stdout or "", result.stderr or "") == (141, "", "")


def test_an_error_of_another_pipe_is_said(capsys):
    with pytest.raises(_app.typer.Exit) as stopped, _app.one_line_errors("corpus sync"):
        raise BrokenPipeError(32, "Broken pipe")
    assert stopped.value.exit_code == 1
    assert capsys.readouterr().err == "error: corpus sync: [Errno 32] Broken pipe\n"


def test_messages_have_flags_as_they_are_typed(monkeypatch):
    """Of a flag with two forms also the one that says no."""
    from ragsys_kernels.cli import plan, serve, subset

    for command, said, shown in (
        (plan.plan, "processor must come with measure=False, got 1", "processor must come with --no-measure, got 1"),
        (plan.plan, "memory must come with measure=True", "memory must come with --measure"),
        (serve.serve, "with verify=False, as access_log=False", "with --no-verify, as --no-access-log"),
        (subset.subset, "must come with neighbors, got exact=True", "must come with --neighbors, got --exact"),
        (subset.subset, "rows=False, index=False", "rows=False, index=False"),
    ):  # fmt: skip
        monkeypatch.setattr(_app.Commands, "running", command)
        assert _app.shown(said) == shown


def test_memory_that_torch_does_not_get_is_one_line(capsys):
    torch = pytest.importorskip("torch")
    with pytest.raises(_app.typer.Exit) as stopped, _app.one_line_errors("bias"):
        torch.empty(1 << 60)
    assert stopped.value.exit_code == 1
    assert re.fullmatch(r"error: bias: .*can't allocate memory.*\n", capsys.readouterr().err)
    with pytest.raises(RuntimeError, match="a defect"), _app.one_line_errors("bias"):
        raise RuntimeError("a defect")


def test_usage_errors_exit_with_2(run, folder):
    for arguments, word in ((("select",), "--queries"), (("select", "--nope"), "--nope"), (("chose",), "chose")):
        result = run(folder, *arguments)
        assert result.returncode == 2
        assert word in result.stderr
        assert "Traceback" not in result.stderr


def test_pool_size_warning_is_one_line(run, folder):
    result = run(folder, *SELECT, "--k", "200", "--pool", "all", "--chunk-size", "10", "--quiet")
    assert result.returncode == 0
    assert re.fullmatch("warning: .*pool.*\n", result.stderr)


def test_a_warning_is_shown_once_whatever_becomes_of_the_filters(capsys):
    """A change of them, as by an import in another thread, lets Python show a warning again."""
    with _app.one_line_errors("select"):
        for text in ("the same", "the same", "another"):
            warnings.simplefilter("default")
            warn.warn(text, UserWarning)
    assert capsys.readouterr().err == "warning: the same\nwarning: another\n"


@pytest.mark.parametrize(("k", "pool"), [(20, 10), (10, 10), (100, None)])
def test_pool_no_larger_than_k_is_refused_and_does_not_block_the_next(run, folder, k, pool):
    result = run(folder, *SELECT, "--k", k, *([] if pool is None else ["--pool", pool]))
    assert (result.returncode, result.stdout) == (1, "")
    rule = f"select: pool must be above k = {k}, or its rows only get another order, got {pool or 100}"
    assert result.stderr == f"error: {rule}\n"
    assert not (folder / "out").exists()
    result = run(folder, *SELECT, "--k", k, "--pool", k + 1)
    assert (result.returncode, result.stderr) == (0, "")


def test_id_columns_that_are_not_there(run, folder):
    """An error where one is named; else a notice where the file has columns, before the work; nothing for arrays."""
    for name, column in (("corpus", "doc"), ("queries", "question")):
        vectors = np.load(folder / f"{name}.npy").tolist()
        pq.write_table(pa.table({column: range(len(vectors)), "v": vectors}), folder / f"{name}.parquet")
    tables = ("select", "--corpus", "corpus.parquet", "--queries", "queries.parquet", "--out", "out")
    result = run(folder, *tables, "--id-column", "nope")
    said = r"error: select: corpus must have a column 'nope', got \['doc', 'v'\] in corpus\.parquet\n"
    assert re.fullmatch(said, result.stderr)
    assert not (folder / "out").exists()
    result = run(folder, *tables, "--query-id-column", "nope")
    said = r"error: select: queries must have a column 'nope', got \['question', 'v'\] in queries\.parquet\n"
    assert re.fullmatch(said, result.stderr)
    result = run(folder, *tables)
    assert result.returncode == 0
    assert result.stderr.splitlines() == [
        "notice: select: the ids of corpus are row numbers, for corpus.parquet has no column 'id'; "
        "--id-column names another",
        "notice: select: the ids of queries are row numbers, for queries.parquet has no column 'id'; "
        "--query-id-column names another",
    ]
    named = ("--id-column", "doc", "--query-id-column", "question", "--overwrite")
    assert run(folder, *tables, *named).stderr == ""
    assert run(folder, *tables, "--overwrite", "--quiet").stderr == ""
    assert run(folder, *SELECT, "--overwrite").stderr == ""


def test_files_may_have_any_names(run, folder):
    """Bytes that are no UTF-8 too; the summary and the errors show them escaped, whatever the terminal."""
    odd = os.fsdecode(b"odd\xff")
    (folder / odd).mkdir()
    corpus, queries = (
        pa.table({"id": range(len(rows)), "v": rows.tolist()})
        for rows in (np.load(folder / f"{name}.npy") for name in ("corpus", "queries"))
    )
    with open(folder / odd / "c.parquet", "wb") as file:
        pq.write_table(corpus, file)
    with open(folder / odd / "q.arrow", "wb") as file, pa.ipc.new_file(file, queries.schema) as writer:
        writer.write_table(queries)
    job = ("select", "--corpus", f"{odd}/c.parquet", "--queries", f"{odd}/q.arrow", "--out", f"{odd}/out")
    for command, begin, end in (
        (job, "90 queries in ", r"/odd\udcff/out (1 shard)"),
        (job, "nothing to do", r"/odd\udcff/out (1 shard)"),
        (("job", "verify", f"{odd}/out"), "right: 90 queries in 1 shard", ""),
    ):
        done = run(folder, *command)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(begin)
        assert done.stdout.rstrip().endswith(end)
    assert r"odd\udcff" in run(folder, "job", "status", f"{odd}/out").stdout
    done = run(folder, *job, "--k", "2")
    assert done.returncode == 1
    assert done.stderr.startswith("error: select: out must hold a job of the same inputs")


def test_indexes_and_tensors_may_have_any_names(folder):
    faiss, safetensors = pytest.importorskip("faiss"), pytest.importorskip("safetensors.numpy")
    odd, vectors = os.fsdecode(b"odd\xff"), np.load(folder / "corpus.npy")
    index = rk.Corpus(vectors).to_faiss()
    (folder / odd).write_bytes(faiss.serialize_index(index).tobytes())
    (folder / f"{odd}.safetensors").write_bytes(safetensors.save({"embedding": vectors}))
    files = {"queries": folder / "queries.npy", "out": folder / "out", "pool": 20}
    offline.select(corpus=folder / f"{odd}.safetensors", index=folder / odd, **files)
    assert offline.verify(folder / "out") == []


@pytest.mark.parametrize("columns", [["id", "id", "v"], ["id", "v", "v"]])
def test_two_columns_of_one_name(run, folder, columns):
    values = {"id": pa.array(range(200)), "v": pa.array(np.load(folder / "corpus.npy").tolist())}
    pq.write_table(pa.Table.from_arrays([values[name] for name in columns], columns), folder / "corpus.parquet")
    twice, kind = ("v", "vector") if columns.count("v") > 1 else ("id", "id")
    for argument, option in (("corpus", f"--{kind}-column"), ("queries", f"--query-{kind}-column")):
        files = [part.replace(f"{argument}.npy", "corpus.parquet") for part in SELECT]
        for named in ([], [option, twice]):
            result = run(folder, *files, *named)
            said = f"select: {argument} must have one column {twice!r}, got {columns} in corpus.parquet"
            assert (result.returncode, result.stderr) == (1, f"error: {said}\n")


@pytest.mark.parametrize(
    ("error", "skip"),
    [
        (MemoryError(), ()),
        (MemoryError("std::bad_alloc"), ("--on-error", "skip")),
        (np.zeros, ()),
        (pa.ArrowMemoryError("malloc of size 7"), ("--on-error", "skip")),
    ],
)
def test_no_memory_is_one_line(run, folder, monkeypatch, error, skip):
    """Not a file that cannot be read, nor queries to skip, although Arrow's errors are one kind."""
    pq.write_table(
        pa.table({"id": range(90), "v": np.load(folder / "queries.npy").tolist()}), folder / "queries.parquet"
    )

    def fail(*_, **__):
        if error is np.zeros:
            np.zeros(1 << 58)
        raise error

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", fail)
    result = run(folder, "select", "--corpus", "corpus.npy", "--queries", "queries.parquet", "--out", "out", *skip)
    assert (result.returncode, result.stdout) == (1, "")
    said = "Unable to allocate .*" if error is np.zeros else str(error)
    assert re.fullmatch(f"error: select: not enough memory{f': {said}' if said else ''}\n", result.stderr)
    assert not (folder / "out").exists()


def write_long_queries(folder):
    """For a job that takes long, and its command but for the size of shards."""
    np.save(folder / "queries.npy", np.random.default_rng(0).standard_normal((400_000, 8)).astype(np.float32))
    return (*SELECT, "--chunk-size", "10", "--shard-size")


def test_stopped_job_finishes_its_shard_and_goes_on_later(run, folder, monkeypatch):
    command, number = write_long_queries(folder), signal.SIGTERM
    monkeypatch.setattr(cli, "_leave_threads", lambda: None)  # which may end this process
    ended = threading.Event()

    def stop_soon():
        while not list(folder.glob("out/part-*")) and not ended.wait(0.01):
            pass
        os.kill(os.getpid(), number)

    before = signal.signal(number, signal.SIG_IGN)  # but while the command runs
    thread = threading.Thread(target=stop_soon)
    thread.start()
    try:
        stopped = run(folder, *command, 500)
    finally:
        ended.set()
        thread.join()
        signal.signal(number, before)
    assert stopped.returncode == 128 + number
    assert "stopping: finishing the current shard of at most 500 queries first" in stopped.stderr
    state = offline.status(folder / "out")
    assert 0 < state.shards < state.num_shards
    assert state.done == 500 * state.shards
    assert not [name for name in os.listdir(folder / "out") if name.startswith(".")]
    np.save(folder / "queries.npy", np.load(folder / "queries.npy")[:90])
    assert "queries's rows 400000, now 90" in run(folder, *SELECT, "--shard-size", 500).stderr


def test_second_signal_stops_at_once(folder):
    command, number = [*COMMAND, *write_long_queries(folder), str(10**6)], signal.SIGINT
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        while not list(folder.glob("out/.part-*")) and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(number)
        line = process.stderr.readline()
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert "a second signal stops at once" in line
    assert process.returncode == 128 + number, errors
    assert errors.splitlines()[-1] == "error: select: interrupted; run it again to resume"
    assert not (folder / "out").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_a_finaliser_is_not_lost(run_python, number):
    done = run_python(
        f"""
import signal, time, typer
from ragsys_kernels.cli import _app
class Finalised:
    def __del__(self):
        signal.raise_signal({int(number)})  # Python ignores what its handler raises here
try:
    with _app.one_line_errors("select"):
        Finalised()
        time.sleep(10)
except typer.Exit as error:
    raise SystemExit(error.exit_code)
""",
        check=False,
    )
    assert done.returncode == 128 + number
    assert done.stderr == "error: select: interrupted, nothing was written\n"


@pytest.mark.parametrize(("code", "waits"), [(130, False), (1, True)])
def test_threads_of_an_interrupted_command_are_left(run_python, code, waits):
    """Python ends them where they are, and aborts if that is in C++."""
    done = run_python(
        f"""
import atexit, sys, threading, time
from ragsys_kernels import cli
from ragsys_kernels.cli import _app, config  # a command, which is there before the application is replaced
sys.argv.append("show-config")
def fail(prog_name):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    raise SystemExit({code})
_app.app = fail
atexit.register(print, "Python's own end")
cli.main()""",
        check=False,
    )
    assert (done.returncode, "own end" in done.stdout) == (code, waits), done.stderr


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
        expected = rf"error: {command}: folder must be a job's, with a file \S+\.job/_job\.json, got \.\n"
        assert re.fullmatch(expected, result.stderr)


def test_plain_progress_lines(monkeypatch, capsys):
    monkeypatch.setattr(_app, "_LINE_INTERVAL", 0.0)
    seconds = iter((0.0, 90.0, 100.5, 110.5, 111.0))  # made; told that nothing is done, twice; and the rest
    monkeypatch.setattr(_app, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    with _app.progress_bar(quiet=False) as report:
        for done in (0, 0, 250, 1000):
            report(done, 1000)
    assert capsys.readouterr().err == "250 of 1000 queries, 25 queries/s, 30 s left\n"


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
        shown, hangs = capsys.readouterr().err, time.monotonic() + 60
        while terminal and "4/20" not in shown and time.monotonic() < hangs:  # rich draws ten times a second
            shown += capsys.readouterr().err
    shown += capsys.readouterr().err
    if terminal:
        assert "4/20" in shown
    else:
        assert re.findall(r"^(\d+ of \d+) queries, (?:\d+) queries/s, (?:\d+) s left$", shown, re.M) == [
            "5 of 10", "10 of 20", "4 of 20",
        ]  # fmt: skip
        assert len(shown.splitlines()) == 3


def test_bar_on_a_terminal(run, folder, monkeypatch):
    """In a pseudo-terminal: a bar with rate and time left, then the summary."""
    pty = pytest.importorskip("pty")
    parent, child = pty.openpty()
    shown = []

    def read():
        with contextlib.suppress(OSError):  # the end of a pseudo-terminal, on Linux
            while part := os.read(parent, 4096):
                shown.append(part)

    reading = threading.Thread(target=read)
    reading.start()
    monkeypatch.setenv("TERM", "xterm")
    with open(child, "w") as terminal, monkeypatch.context() as patch:
        for name in ("stdout", "stderr"):
            patch.setattr(sys, name, terminal)
        assert run(folder, *SELECT).returncode == 0
    reading.join()
    os.close(parent)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", b"".join(shown).decode())
    assert "selecting" in text
    assert "90/90" in text
    assert re.search(r"90 queries in \d", text)


@pytest.mark.parametrize("url", ["file:///data/it", "s3://bucket/it", "http://host/it", "nosuch://it"])
@pytest.mark.parametrize(
    ("begins", "option", "given"),
    [
        ("serve", "corpus", "docs={}"),
        *(("serve", name, "{}") for name in ("token-file", "tls-cert", "tls-key", "load-from", "encoder-token-file")),
        ("conform", "vectors", "{}"),
        ("conform --url http://localhost:1", "token-file", "{}"),
        ("bias --model m --out o.npy", "pairs", "{}"),
        ("embed --model m --out o.npy", "texts", "{}"),
        ("subset --corpus v.npy --k 1", "out", "{}.parquet"),
    ],
)
def test_a_url_where_only_paths_are_taken_is_named_as_it_was_given(run, tmp_path, url, begins, option, given):
    result = run(tmp_path, *begins.split(), f"--{option}", given.format(url))
    name, place = begins.split()[0], given.format(url).removeprefix("docs=")
    assert (result.returncode != 0, result.stdout) == (True, "")
    assert re.fullmatch(rf"error: {name}: (--)?{option} must be a local path, got {re.escape(place)}\n", result.stderr)
    assert not list(tmp_path.iterdir())
