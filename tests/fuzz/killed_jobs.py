"""Jobs of selection that are killed at random moments and run again.

`python tests/fuzz/killed_jobs.py --kills 60 --seed 1`

Between the runs shards are cut short or have a bit flipped, which makes them again; `fuzz_jobs.py` damages all other
files. Every job has to end with the bytes of the undisturbed one.

This process imports everything once; each run is a fork of it, so that a run costs no start-up. Prints, as JSON, what
was done to the jobs; exits with 1 where a result is another one.
"""

import argparse
import json
import os
import random
import shutil
import signal
import tempfile
import time
import warnings
from pathlib import Path

import pyarrow as pa
from job_files import contents, write_inputs
from killed_saves import forked

from ragsys_kernels import offline

Q = 200_000
OPTIONS = {"k": 3, "shard_size": 4_000, "chunk_size": 1_500, "num_threads": 1}


def make(folder):
    """Inputs and the undisturbed result of their job; returns the options of `select` that name the inputs."""
    inputs = write_inputs(folder, Q, rows=100, dims=16)
    offline.select(**inputs, **OPTIONS, out=folder / "undisturbed")
    return inputs


def start(inputs, out):
    """Run the job in a process of its own; returns its number."""

    def job():
        warnings.simplefilter("ignore", UserWarning)  # of damaged shards
        offline.select(**inputs, **OPTIONS, out=out)

    return forked(job)


def finish(child):
    """Wait for the end of the run."""
    if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise SystemExit(f"a run that was not killed ended with {code}")


def kill_after(child, seconds):
    """Kill the process then; returns whether it was still running."""
    time.sleep(seconds)
    if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        finish(child)
        return False
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def damage(path, dice):
    """Flip one bit of a file or cut it short; returns which."""
    content = bytearray(path.read_bytes())
    place = dice.randrange(len(content))
    if dice.random() < 0.5:
        path.write_bytes(content[:place])
        return "truncated"
    content[place] ^= 1 << dice.randrange(8)
    path.write_bytes(content)
    return "flipped"


def main(folder, inputs, seed, kills):
    dice = random.Random(seed)
    pa.array([])  # what pyarrow imports when it is first used, too
    expected = contents(folder / "undisturbed")
    begin = time.perf_counter()
    finish(start(inputs, folder / f"timed-{seed}"))
    whole = time.perf_counter() - begin
    done = {"jobs": 0, "kills": 0, "truncated": 0, "flipped": 0, "shards at a kill": []}
    while done["kills"] < kills:
        out = folder / f"out-{seed}-{done['jobs']}"
        damaged = set()
        for _ in range(dice.choice((1, 1, 2))):
            done["kills"] += kill_after(start(inputs, out), dice.uniform(0, whole))
            shards = sorted(out.glob("part-*"))
            done["shards at a kill"].append(len(shards))
            if any(shard.read_bytes() != expected[shard.name] for shard in shards if shard not in damaged):
                raise SystemExit(f"a kill left half a shard in {out}")
            if shards and dice.random() < 0.5:
                path = dice.choice(shards)
                damaged.add(path)
                done[damage(path, dice)] += 1
        finish(start(inputs, out))
        if contents(out) != expected:
            raise SystemExit(f"{out} is not as the undisturbed result")
        done["jobs"] += 1
        shutil.rmtree(out)
    print(json.dumps(done))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="with what `make` made; default: a new one")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="killed-jobs-") as new:
        given = asked.folder
        inputs = make(Path(new)) if given is None else {
            name: given / f"{name}.npy" for name in ("corpus", "queries", "candidates")
        }  # fmt: skip
        main(given or Path(new), inputs, asked.seed, asked.kills)
