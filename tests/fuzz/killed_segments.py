"""Changes of a folder of segments that are killed, with readers beside: `python killed_segments.py FOLDER SEED KILLS`.

A writer, a fork of this process, appends, deletes and compacts, one after the other; operation i leads from state i to
state i + 1, and each state has other rows. It is killed at a random moment, or before or after a random step that it
makes with files. All the while this process loads the folder: each time it has to be one state, whole, from the last
one that the writer had completed to the one that it had begun. A corpus that was loaded at the beginning has to answer
as it did. Prints, as JSON, what was done; exits with 1 where something was lost or mixed.
"""

import json
import mmap
import os
import random
import shutil
import signal
import struct
import sys
import time
from pathlib import Path

import numpy as np
from killed_saves import STEPS as OF_SAVES
from killed_saves import forked, stepping

import ragsys_kernels as rk
from ragsys_kernels import offline
from ragsys_kernels.corpus import segments, versions

STEPS = [*OF_SAVES, (os, "replace"), (os, "listdir"), (shutil, "rmtree")]
DIMS, FIRST, MORE = 24, 300, 60


def rows_of(ids):
    """The embedding and the bias of each id."""
    ids = np.asarray(ids, np.int64)
    embeddings = np.sin(np.outer(ids + 1, np.arange(1, DIMS + 1)) * 0.7).astype(np.float32)
    return {"embeddings": embeddings, "bias": (ids % 97).astype(np.float32), "ids": ids}


def operation(number):
    return ("append", "delete", "replace", "append", "compact")[number % 5]


_states, _new = [list(range(FIRST))], [FIRST]


def state(number):
    """The ids of a state, in the order of their rows; those of the first are 0, 1, ..."""
    while len(_states) <= number:
        now, what = list(_states[-1]), operation(len(_states) - 1)
        if what == "append":
            now += range(_new[0], _new[0] + MORE)
            _new[0] += MORE
        elif what == "delete":
            now = [each for place, each in enumerate(now) if place % 7 != len(_states) % 7]
        elif what == "replace":
            again = replaced(now)
            now = [each for each in now if each not in set(again)] + again
        _states.append(now)
    return _states[number]


def replaced(now):
    return sorted(now)[:: len(now) // 20]


def change(path, number):
    """Make an operation on a folder in the state of that number."""
    before, after, what = state(number), state(number + 1), operation(number)
    if what == "delete":
        offline.delete_rows(np.setdiff1d(before, after), path)
    elif what == "compact":
        offline.compact_corpus(path, rows_per_segment=100)
    else:
        new = replaced(before) if what == "replace" else np.setdiff1d(after, before)
        offline.append_corpus(rk.Corpus(**rows_of(new)), path, on_duplicate="error" if what == "append" else "replace")


def write(path, shared, kill_at=None):
    """Change the folder in a process of its own, from its state on; returns its number."""
    parent = os.getpid()

    def changed():
        steps = 0

        def step(name):
            nonlocal steps
            steps += 1
            if steps == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

        with stepping(step, step, STEPS):
            while os.getppid() == parent:  # which ends where it sees something wrong
                done = completed(shared)
                struct.pack_into("q", shared, 8, done + 1)
                change(path, done)
                struct.pack_into("q", shared, 0, done + 1)

    return forked(changed)


def completed(shared):
    """The state that the writer has completed."""
    return struct.unpack_from("q", shared, 0)[0]


def begun(shared):
    """The state that it makes or has made."""
    return struct.unpack_from("q", shared, 8)[0]


def check(path, shared):
    """Return which state the folder has, of those that it may have; raise if it has none of them."""
    low = completed(shared)
    corpus = rk.Corpus.load(path)
    high = max(low, begun(shared))
    live = np.arange(len(corpus)) if corpus.live is None else np.flatnonzero(corpus.live)
    ids = corpus.ids[live]
    for number in range(low, high + 1):
        if ids.tolist() == state(number):
            expected = rk.Corpus(**rows_of(ids))
            for name in ("data", "bias", "codes"):
                np.testing.assert_array_equal(getattr(corpus, name)[live], getattr(expected, name))
            np.testing.assert_array_equal(corpus.rows_of(ids), live)
            return number
    raise AssertionError(f"the folder has {len(ids)} rows of no state from {low} to {high}")


def main(folder, seed, kills):
    rng, path = random.Random(seed), Path(folder) / "corpus"
    first = rk.Corpus(**rows_of(np.arange(FIRST)))
    versions.build("test", path, lambda _: [(first, first.ids)], 100, False)
    held, queries = rk.Corpus.load(path), rows_of([3, 5])["embeddings"] + 0.1
    answer = held.search(queries, 20)
    shared = mmap.mmap(-1, 16)
    done = {"kills": 0, "at steps": 0, "completed": 0, "in between": 0, "loads": 0}
    while done["kills"] < kills:
        before, at_step = completed(shared), done["kills"] % 2 == 1
        child = write(path, shared, rng.randrange(1, 800) if at_step else None)
        ends, status = time.monotonic() + (120 if at_step else rng.uniform(0, 1)), 0
        while time.monotonic() < ends and not status:
            check(path, shared)
            done["loads"] += 1
            status = os.waitpid(child, os.WNOHANG)[1]
        if not status:
            os.kill(child, signal.SIGKILL)
            status = os.waitpid(child, 0)[1]
        assert status == signal.SIGKILL, "the writer failed"
        done["kills"] += 1
        done["at steps"] += at_step
        now = check(path, shared)
        done["in between"] += now == completed(shared) + 1
        struct.pack_into("qq", shared, 0, now, now)
        done["completed"] += now - before
        for field, again in zip(answer, held.search(queries, 20), strict=True):
            np.testing.assert_array_equal(field, again)
    offline.compact_corpus(path)
    assert segments.problems(path) == []
    left = sorted(name for name in os.listdir(path) if name not in ("corpus.json", "segments", "deleted"))
    assert left == [], left
    described = segments.described(path)
    keys = json.loads((path / "corpus.json").read_text())["id_keys"]["name"]
    assert sorted(os.listdir(path / "segments")) == sorted([*(each["name"] for each in described["segments"]), keys])
    assert described["rows"] == len(state(completed(shared)))
    print(json.dumps(done))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
