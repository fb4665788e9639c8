"""Jobs of selection that are killed at random moments and run again: `python killed_jobs.py FOLDER SEED JOBS`.

This process imports everything once; each run is a fork of it, so that a run costs no start-up. FOLDER has the inputs
and an undisturbed result. Prints, as JSON, what was done to the jobs; exits with 1 where a result is another one.
"""

import json
import os
import random
import signal
import sys
import time
import warnings
from pathlib import Path

import pyarrow as pa
from job_files import contents

from ragsys_kernels import offline

OPTIONS = {"k": 3, "shard_size": 4_000, "chunk_size": 1_500, "num_threads": 1}


def start(inputs, out):
    """Run the job in a process of its own; returns its number."""
    child = os.fork()
    if child:
        return child
    try:
        warnings.simplefilter("ignore", UserWarning)  # of damaged shards
        offline.select(**inputs, **OPTIONS, out=out)
        os._exit(0)
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)


def finish(child):
    _, status = os.waitpid(child, 0)
    if status:
        raise SystemExit(f"a run that was not killed ended with {status}")


def kill_after(child, seconds):
    """Kill the process then; returns whether it was still running."""
    time.sleep(seconds)
    ended, status = os.waitpid(child, os.WNOHANG)
    if ended:
        if status:
            raise SystemExit(f"a run ended with {status} before it was killed")
        return False
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def damage(path, random):
    """Cut a file short or flip one of its bits; returns which."""
    content = bytearray(path.read_bytes())
    place = random.randrange(len(content))
    if random.random() < 0.5:
        path.write_bytes(content[:place])
        return "truncated"
    content[place] ^= 1 << random.randrange(8)
    path.write_bytes(content)
    return "flipped"


def main(folder, seed, jobs):
    dice = random.Random(seed)
    pa.array([])  # what pyarrow imports when it is first used, too
    inputs = {name: folder / f"{name}.npy" for name in ("corpus", "queries", "candidates")}
    expected = contents(folder / "undisturbed")
    begin = time.perf_counter()
    finish(start(inputs, folder / f"timed-{seed}"))
    whole = time.perf_counter() - begin
    done = {"jobs": 0, "kills": 0, "truncated": 0, "flipped": 0, "shards at a kill": []}
    while done["jobs"] < jobs:
        out = folder / f"out-{seed}-{done['jobs']}"
        kills, damaged = 0, set()
        for _ in range(dice.choice((1, 1, 2))):
            kills += kill_after(start(inputs, out), dice.uniform(0, whole))
            shards = sorted(out.glob("part-*"))
            done["shards at a kill"].append(len(shards))
            if any(shard.read_bytes() != expected[shard.name] for shard in shards if shard not in damaged):
                raise SystemExit(f"a kill left half a shard in {out}")
            if shards and dice.random() < 0.5:
                shard = dice.choice(shards)
                damaged.add(shard)
                done[damage(shard, dice)] += 1
        finish(start(inputs, out))
        if contents(out) != expected:
            raise SystemExit(f"{out} is not as the undisturbed result")
        if kills:
            done["jobs"] += 1
            done["kills"] += kills
        for path in out.iterdir():
            path.unlink()
        out.rmdir()
    print(json.dumps(done))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
