"""Saves over an existing corpus that are killed: `python killed_saves.py FOLDER SEED KILLS`.

The first kills are just before and after each step in which folders change places, on a file system that can exchange
two names and on one that cannot; then a third are at random moments, the others before or after a random step, every
other one where folders change places. Each save is a fork of this process. After each kill the corpus has to be the
old one or the new one, to its last byte, and now and then a save is let through, which has to leave nothing else
behind. Prints, as JSON, what was done; exits with 1 where one was lost.
"""

import builtins
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import ragsys_kernels as rk
from ragsys_kernels._base import files as _files
from ragsys_kernels.corpus import folder

# What a save does to files, as its modules call it; a kill within one of them is a kill before or after it.
STEPS = [
    (builtins, "open"), (os, "open"), (os, "mkdir"), (os, "scandir"), (folder, "_write"), (os, "fsync"), (os, "rename"),
    (_files, "_exchange"), (os, "unlink"), (os, "rmdir"),
]  # fmt: skip
# How many of them change names, from the first on, with such a file system and without.
TURNS = {True: ("_exchange",), False: ("_exchange", "rename", "rename", "rename")}
SIDES = ("before", "after")


def forked(function):
    """Run a function in a process of its own, which ends with 1 where it fails; return its number."""
    child = os.fork()
    if child:
        return child
    try:
        function()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    os._exit(1)


@contextmanager
def stepping(before, after, steps=STEPS):
    """Call `before(name)` and `after(name)` around each step of the block."""
    originals = [getattr(module, name) for module, name in steps]

    def around(function, name):
        def call(*arguments, **options):
            before(name)
            result = function(*arguments, **options)
            after(name)
            return result

        return call

    for (module, name), function in zip(steps, originals, strict=True):
        setattr(module, name, around(function, name))
    try:
        yield
    finally:
        for (module, name), function in zip(steps, originals, strict=True):
            setattr(module, name, function)


def corpora():
    """Of different files, sizes and element types, each with its number as its bias."""
    rng = np.random.default_rng(0)
    made = []
    for number, (rows, dtype) in enumerate([(3000, "float32"), (200, "int8"), (3000, "float16"), (40, "float32")]):
        groups = rng.integers(0, 9, rows) if number % 2 else None
        embeddings = rng.standard_normal((rows, 24)).astype(np.float32)
        ids = [f"{number}/{row}" for row in range(rows)] if number % 2 else rng.permutation(rows) if number else None
        bias = np.full(rows, number, np.float32)
        made.append(rk.Corpus(embeddings, bias, groups, dtype=dtype, ids=ids, costs=groups))
    return made


def save(corpus, path, exchange, kill_at=None):
    """Save in a process of its own; returns its number.

    It ends at `kill_at`: before or after a step of that number, counted from the beginning or, of those that change
    names, from the first (what an earlier kill left is removed at the beginning).
    """

    def changed():
        count = {(kind, side): 0 for kind in ("step", "turn") for side in SIDES}

        def reached(name, side):
            turn = name == "_exchange" or (name == "rename" and count["turn", "before"] > 0)
            for kind in ("step", "turn")[: 1 + turn]:
                count[kind, side] += 1
                if (kind, count[kind, side], side) == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)

        if not exchange:
            _files._exchange = lambda a, b: False
        with stepping(lambda name: reached(name, "before"), lambda name: reached(name, "after")):
            corpus.save(path, overwrite=True)

    return forked(changed)


def ended(child):
    """Whether the process was killed; another end than that or success is an error."""
    _, status = os.waitpid(child, 0)
    if status not in (0, signal.SIGKILL):
        raise SystemExit(f"a save ended with {status}")
    return status == signal.SIGKILL


def whole_save(corpus, path, exchange):
    """How many steps a save has, and its time."""
    names = []
    can = _files._exchange
    if not exchange:
        _files._exchange = lambda a, b: False
    try:
        with stepping(names.append, lambda name: None):
            begin = time.perf_counter()
            corpus.save(path, overwrite=True)
            return len(names), time.perf_counter() - begin
    finally:
        _files._exchange = can


def same(a, b):
    return repr(a) == repr(b) and all(
        np.array_equal(getattr(a, name), getattr(b, name))
        for name in ("data", "scales", "bias", "groups", "costs", "codes", "ids")
    )


def run(folder, seed, kills):
    """Kill so many saves; returns what was done."""
    dice = random.Random(seed)
    made = corpora()
    path = folder / f"corpus-{seed}"
    now = 0
    made[now].save(path)
    whole = {exchange: whole_save(made[now], path, exchange) for exchange in (True, False)}
    turns = {
        exchange: [("turn", i + 1, side) for i in range(len(TURNS[exchange])) for side in SIDES] for exchange in TURNS
    }
    first = [(exchange, kill_at) for exchange in turns for kill_at in turns[exchange]]
    done = {"kills": 0, "aimed": 0, "old": 0, "new": 0, "exchanged": 0, "left beside": 0, "turns": 0, "steps": 0}
    while done["kills"] < kills:
        new = dice.choice([number for number in range(len(made)) if number != now])
        exchange = dice.random() < 0.5
        aimed = bool(first) or done["kills"] % 3 > 0
        if first:
            exchange, kill_at = first.pop(0)
        elif dice.random() < 0.5:
            kill_at = dice.choice(turns[exchange])
        else:
            kill_at = "step", dice.randint(1, whole[exchange][0]), dice.choice(SIDES)
        if aimed:
            killed = ended(save(made[new], path, exchange, kill_at))
            done["turns" if kill_at[0] == "turn" else "steps"] += killed
        else:
            child = save(made[new], path, exchange)
            time.sleep(dice.uniform(0, 1.2 * whole[exchange][1]))
            os.kill(child, signal.SIGKILL)
            killed = ended(child)
        loaded = rk.Corpus.load(path, verify=True)
        found = [number for number in (now, new) if same(loaded, made[number])]
        if len(found) != 1 or not (killed or found == [new]):
            raise SystemExit(f"{path} is neither the old corpus nor the new one")
        if killed:
            done["kills"] += 1
            done["aimed"] += aimed
            done["exchanged"] += exchange
            done["old" if found == [now] else "new"] += 1
            done["left beside"] += len(list(folder.glob(f".{path.name}.*"))) > 0
        now = found[0]
        if dice.random() < 0.2:
            now = new
            made[now].save(path, overwrite=True)
            if list(folder.glob(f".{path.name}.*")) or not same(rk.Corpus.load(path, verify=True), made[now]):
                raise SystemExit(f"a save after a kill did not leave {path} alone as it should be")
    made[now].save(path, overwrite=True)
    if left := list(folder.glob(f".{path.name}.*")):
        raise SystemExit(f"a save after a kill left {left}")
    shutil.rmtree(path)
    return done


if __name__ == "__main__":
    print(json.dumps(run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
