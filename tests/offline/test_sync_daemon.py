"""``corpus sync`` beside stores that fail: what can pass is a line and is tried again; nothing secret is printed."""

import os
import re
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest
from segmented import in_segments

pytest.importorskip("typer")

import ragsys_kernels as rk
from ragsys_kernels import offline
from ragsys_kernels.cli import corpus as cli_corpus
from ragsys_kernels.corpus import segments
from ragsys_kernels.offline import stores

D = 4
SOURCE = "chroma:notes?collection=c"
DOWN = OSError("the store is away")
REFUSED = ValueError("sync_corpus: chroma must have collection 'c', got another")


def vectors(count, seed=0):
    return np.random.default_rng(seed).standard_normal((count, D)).astype(np.float32)


class Store:
    """A store that has some rows, or fails as it is told: an error before its rows, or in the midst of them."""

    def __init__(self, monkeypatch, *states):
        self.states, self.calls = list(states), 0
        monkeypatch.setitem(stores._READERS, "chroma", self)

    def __call__(self, source, size):
        source.taken("collection")
        state = self.states[min(self.calls, len(self.states) - 1)]
        self.calls += 1
        if isinstance(state, Exception):
            raise state
        ids, rows, *after = state
        yield len(ids)
        for begin in range(0, len(ids), 3):
            yield list(ids[begin : begin + 3]), rows[begin : begin + 3]
        for error in after:
            raise error


@pytest.fixture
def sync(monkeypatch, command, tmp_path):
    """Runs ``corpus sync --every 7s`` for so many rounds; returns what it printed and the pauses that it made."""

    def run(rounds, *options):
        pauses = []

        def sleep(seconds):
            pauses.append(seconds)
            if len(pauses) == rounds:
                raise KeyboardInterrupt

        monkeypatch.setattr(cli_corpus, "time", types.SimpleNamespace(sleep=sleep))  # other threads sleep as ever
        return command(tmp_path, "corpus", "sync", "--from", SOURCE, "--to", "to", "--every", "7s", *options), pauses

    return run


def ids_of(folder):
    corpus = rk.Corpus.load(folder, verify=True)
    live = np.ones(len(corpus), bool) if corpus.live is None else corpus.live
    return np.asarray(corpus.ids[np.flatnonzero(live)]).tolist()


def test_what_passes_is_a_line_and_is_tried_again(monkeypatch, sync, tmp_path):
    rows = vectors(9)
    good, longer = (list(range(8)), rows[:8]), (list(range(9)), rows)
    Store(monkeypatch, DOWN, DOWN, good, (*longer, DOWN), longer)
    shown, pauses = sync(5)
    assert shown.stdout == "8 rows: 8 added, 0 changed, 0 deleted\n9 rows: 1 added, 0 changed, 0 deleted\n"
    lines = shown.stderr.splitlines()
    assert len(lines) == 4
    for line in lines[:3]:
        assert re.fullmatch(
            r"error: corpus sync: chroma must answer, got OSError: the store is away; trying again in \d s", line
        )
    assert lines[3] == "error: corpus sync: interrupted: the folder is as it was, or as the source is"
    assert 1 <= pauses[0] <= 2 <= pauses[1] <= 4
    assert pauses[2] == 7
    assert 1 <= pauses[3] <= 2  # as at the first
    assert pauses[4] == 7
    assert ids_of(tmp_path / "to") == list(range(9))


def test_pauses_grow_to_five_minutes_and_differ(monkeypatch, sync, tmp_path):
    Store(monkeypatch, DOWN)
    _, pauses = sync(40)
    for number, pause in enumerate(pauses):
        longest = min(2 ** (number + 1), 300)
        assert longest / 2 <= pause <= longest
    assert len(set(pauses[10:])) > 20
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize("error", [REFUSED, ModuleNotFoundError("sync_corpus needs chromadb: pip install chromadb")])
def test_what_waiting_does_not_mend_ends_the_first_run(monkeypatch, sync, error):
    store = Store(monkeypatch, error)
    shown, pauses = sync(3)
    said = str(error).replace("sync_corpus", "corpus sync")
    assert (shown.returncode, shown.stderr, pauses) == (1, f"error: {said}\n", [])
    assert store.calls == 1


def test_after_a_success_every_failure_is_tried_again(monkeypatch, sync, tmp_path):
    """A table may be made anew, and a row may get its vector later."""
    rows = vectors(4)
    holed = [list(range(4)), [*rows[:3], None]]
    store = Store(monkeypatch, (list(range(4)), rows), REFUSED, holed, ([], []), (list(range(3)), rows[:3]))
    shown, _ = sync(5)
    assert store.calls == 5
    *lines, _ = shown.stderr.splitlines()
    assert [line.partition("; trying")[0].removeprefix("error: corpus sync: ") for line in lines] == [
        "chroma must have collection 'c', got another",
        "vectors must be lists of numbers, got none for id 3 in chroma",
        "source must have at least one row, got none",
    ]
    assert ids_of(tmp_path / "to") == [0, 1, 2]


@pytest.mark.parametrize("error", [DOWN, REFUSED])
def test_a_store_that_is_down_is_one_line_and_no_success(monkeypatch, command, tmp_path, error):
    Store(monkeypatch, error)
    shown = command(tmp_path, "corpus", "sync", "--from", SOURCE, "--to", "to")
    assert (shown.returncode, shown.stdout, len(shown.stderr.splitlines())) == (1, "", 1)
    assert shown.stderr.startswith("error: corpus sync: chroma must ")


HANGING = """
import sys, time
from ragsys_kernels.offline import stores, sync
sync._PATIENCE = 0.2
def hangs(source, size):
    yield 5
    yield [1, 2], [[1.0, 2.0, 3.0, 4.0]] * 2
    print("reading", flush=True)
    time.sleep(600)
stores._READERS["chroma"] = hangs
from ragsys_kernels.cli import main
sys.argv = ["ragsys-kernels", "corpus", "sync", "--from", "chroma:x?collection=c", "--to", sys.argv[1], "--every", "1s"]
main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_run_whose_store_hangs_and_the_folder_is_as_it_was(monkeypatch, tmp_path, number):
    Store(monkeypatch, (list(range(8)), vectors(8)))
    offline.sync_corpus(SOURCE, tmp_path / "to")
    before = segments.described(tmp_path / "to")
    environment = {**os.environ, "PYTHONPATH": str(Path(rk.__file__).parents[1])}
    child = subprocess.Popen(
        [sys.executable, "-c", HANGING, tmp_path / "to"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert child.stdout.readline() == "reading\n"
        begin = time.monotonic()
        child.send_signal(number)
        _, errors = child.communicate(timeout=300)
    finally:
        child.kill()
        child.wait()
    assert time.monotonic() - begin < 300
    assert child.returncode == 128 + number
    assert errors == "error: corpus sync: interrupted: the folder is as it was, or as the source is\n"
    assert segments.described(tmp_path / "to") == before
    assert sorted(os.listdir(tmp_path / "to" / segments.SEGMENTS)) == in_segments(tmp_path / "to")
    assert ids_of(tmp_path / "to") == list(range(8))


def test_rows_that_cannot_be_used_are_left_out_and_listed(monkeypatch, command, tmp_path):
    rows = list(vectors(9))
    rows[2], rows[4], rows[6] = None, np.array([1, np.nan, 0, 0], np.float32), rows[6][:3]
    ids = [f"d{i}" for i in range(9)]
    ids[7] = None
    Store(monkeypatch, (ids, rows))
    shown = command(tmp_path, "corpus", "sync", "--from", SOURCE, "--to", "to")
    assert shown.returncode == 1
    assert shown.stderr == "error: corpus sync: vectors must be lists of numbers, got none for id 'd2' in chroma\n"
    assert not (tmp_path / "to").exists()
    shown = command(tmp_path, "corpus", "sync", "--from", SOURCE, "--to", "to", "--bad-rows", "skip")
    assert shown.stdout == "5 rows: 5 added, 0 changed, 0 deleted\n"
    assert "4 rows that cannot be used are left out; to.skipped.csv lists them" in shown.stderr
    assert ids_of(tmp_path / "to") == ["d0", "d1", "d3", "d5", "d8"]
    assert (tmp_path / "to.skipped.csv").read_text().splitlines() == [
        "input,row,id,reason",
        'source,2,d2,"vectors must be lists of numbers, got none"',
        'source,4,d4,"vectors must be finite, got NaN or inf"',
        'source,6,d6,"vectors must have 4 values as most have, got 3"',
        'source,7,,"ids must be integers or strings, got none"',
    ]
    whole = [f"d{i}" for i in range(9)], vectors(9)
    Store(monkeypatch, whole)
    assert str(offline.sync_corpus(SOURCE, tmp_path / "to", bad_rows="skip")).endswith("4 added, 0 changed, 0 deleted")
    assert not (tmp_path / "to.skipped.csv").exists()
    Store(monkeypatch, (ids, rows))  # a row that has lost its vector leaves the folder
    assert offline.sync_corpus(SOURCE, tmp_path / "to", bad_rows="skip").deleted == 4
    Store(monkeypatch, (["a"], [None]))
    with pytest.raises(
        ValueError, match=r"^sync_corpus: source must have at least one row, got none that can be used: v"
    ):
        offline.sync_corpus(SOURCE, tmp_path / "to", bad_rows="skip")
    assert len(ids_of(tmp_path / "to")) == 5


PASSWORD = "s3%40cret"  # of which a client may write the other form


@pytest.mark.parametrize(
    "source",
    [
        f"postgresql://me:{PASSWORD}@127.0.0.1:1/x?table=t",
        f"postgres://me:{PASSWORD}@127.0.0.1:1/x?table=t&nonsense=1",
        f"postgresql://127.0.0.1:1/x?table=t&user=me&password={PASSWORD}",
        "postgresql://me:s3/@cret@127.0.0.1:1/x?table=t",
        "postgresql://me:s3?@cret@127.0.0.1:1/x?table=t",
        f"qdrant:http://me:{PASSWORD}@127.0.0.1:1?collection=c",
        f"mysql://me:{PASSWORD}@127.0.0.1:1/x?table=t",
        f"ftp://me:{PASSWORD}@127.0.0.1:1/x.parquet",
    ],
)
def test_a_password_is_never_printed(monkeypatch, command, tmp_path, source):
    """Whatever the client says, and without a client too."""

    def told(given, size):
        raise RuntimeError(f"cannot connect with {given.place} {given.options} s3@cret")
        yield

    for kind in ("postgresql", "postgres"):
        monkeypatch.setitem(stores._READERS, kind, told)
    shown = command(tmp_path, "corpus", "sync", "--from", source, "--to", "to")
    assert shown.returncode == 1
    assert len(shown.stderr.splitlines()) == 1
    assert "s3" not in shown.stderr
    assert "cret" not in shown.stderr
    with pytest.raises((ValueError, OSError, ModuleNotFoundError)) as raised:
        offline.sync_corpus(source, tmp_path / "to")
    if stores.is_store(source):
        error = raised.value
        while error is not None:
            assert "cret" not in str(error)
            error = error.__cause__ or error.__context__


def test_keys_come_from_the_environment_or_a_file(monkeypatch, tmp_path):
    seen = []

    def told(source, size):
        source.taken("collection")
        seen.append(source.key())
        raise RuntimeError(f"refused the key {source.key()}")
        yield

    monkeypatch.setitem(stores._READERS, "qdrant", told)
    (tmp_path / "key").write_text("of the file\n")
    for variable, option, key in (
        (None, "", None),
        ("of the variable", "", "of the variable"),
        ("of the variable", f"&key_file={tmp_path / 'key'}", "of the file"),
    ):
        monkeypatch.delenv("QDRANT_API_KEY", raising=False)
        if variable:
            monkeypatch.setenv("QDRANT_API_KEY", variable)
        with pytest.raises(ConnectionError) as raised:
            offline.sync_corpus(f"qdrant:http://h?collection=c{option}", tmp_path / "to")
        assert seen[-1] == key
        assert str(raised.value).endswith(f"the key {'***' if key else 'None'}")
    for option, error in (
        ("&api_key=k", "have options of ca_file, collection, key_file, got 'api_key'"),
        ("&key_file=nowhere", "be an existing file, got nowhere"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=f"^sync_corpus: .* must {error}$"):
            offline.sync_corpus(f"qdrant:http://h?collection=c{option}", tmp_path / "to")
    with pytest.raises(
        ValueError, match="must get its key by QDRANT_API_KEY or key_file, got a password in the source"
    ):
        offline.sync_corpus("qdrant:http://u:p4ss@h?collection=c", tmp_path / "to")
