"""Jobs of selection that are killed at random moments and run again.

`python tests/fuzz/killed_jobs.py --kills 60 --seed 1`

With --sabotage something is done to a file of the folder after each kill: a bit of it is flipped, it is cut short or
removed, whichever file it is. A run then makes again what it misses; where the manifest is what was damaged it has to
refuse, and the job is begun anew as a user would. Every job has to end with the bytes of the undisturbed one.

This process imports everything once; each run is a fork of it, so that a run costs no start-up. Prints, as JSON, what
was done to the jobs; exits with 1 where a result is another one.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path

import pyarrow as pa
from job_files import contents, write_inputs

from ragsys_kernels import offline

Q = 200_000
OPTIONS = {"k": 3, "shard_size": 4_000, "chunk_size": 1_500, "num_threads": 1}
DAMAGED, NOBODYS = 2, 3  # how a run ends that refuses the folder: for its manifest, for the lack of one
REFUSALS = {"_job.json must be as a job wrote it, or overwrite be given": DAMAGED, "shards but no _job.json": NOBODYS}


def make(folder):
    """Inputs and the undisturbed result of their job; returns the options of `select` that name the inputs."""
    inputs = write_inputs(folder, Q, rows=100, dims=16)
    offline.select(**inputs, **OPTIONS, out=folder / "undisturbed")
    return inputs


def start(inputs, out, overwrite=False):
    """Run the job in a process of its own; returns its number."""
    child = os.fork()
    if child:
        return child
    try:
        warnings.simplefilter("ignore", UserWarning)  # of damaged shards
        offline.select(**inputs, **OPTIONS, out=out, overwrite=overwrite)
        os._exit(0)
    except BaseException as error:
        for text, code in REFUSALS.items():
            if text in str(error):
                os._exit(code)
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)


def finish(child):
    """Wait for the end of the run; returns how it ended."""
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code not in (0, DAMAGED, NOBODYS):
        raise SystemExit(f"a run that was not killed ended with {code}")
    return code


def kill_after(child, seconds):
    """Kill the process then; returns whether it was still running, and how it ended else."""
    time.sleep(seconds)
    if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        return False, finish(child)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True, 0


def damage(path, dice, kinds):
    """Flip one bit of a file, cut it short or remove it; returns which."""
    content, kind = bytearray(path.read_bytes()), dice.choice(kinds)
    if kind == "removed" or not content:
        path.unlink()
        return "removed"
    place = dice.randrange(len(content))
    if kind == "truncated":
        path.write_bytes(content[:place])
    else:
        content[place] ^= 1 << dice.randrange(8)
        path.write_bytes(content)
    return kind


def begin_anew(code, out, damaged):
    """Do what a user does whose folder is refused: with the manifest damaged overwrite, without one remove the files.

    Returns whether the next run has to overwrite. A refusal has to be for a manifest that was damaged.
    """
    if code and out / "_job.json" not in damaged:
        raise SystemExit(f"{out} is refused, and its manifest was left alone")
    if code == NOBODYS:
        for path in out.iterdir():
            path.unlink()
    return code == DAMAGED


def main(folder, inputs, seed, kills, sabotage):
    dice = random.Random(seed)
    pa.array([])  # what pyarrow imports when it is first used, too
    expected = contents(folder / "undisturbed")
    begin = time.perf_counter()
    finish(start(inputs, folder / f"timed-{seed}"))
    whole = time.perf_counter() - begin
    done = {"jobs": 0, "kills": 0, "truncated": 0, "flipped": 0, "removed": 0, "manifests": 0, "refused": 0}
    done["shards at a kill"] = []
    while done["kills"] < kills:
        out = folder / f"out-{seed}-{done['jobs']}"
        damaged, overwrite = set(), False
        for _ in range(dice.choice((1, 2, 4) if sabotage else (1, 1, 2))):
            killed, code = kill_after(start(inputs, out, overwrite), dice.uniform(0, whole))
            done["kills"] += killed
            done["refused"] += code > 0
            overwrite = begin_anew(code, out, damaged)
            shards = sorted(out.glob("part-*"))
            done["shards at a kill"].append(len(shards))
            if any(shard.read_bytes() != expected[shard.name] for shard in shards if shard not in damaged):
                raise SystemExit(f"a kill left half a shard in {out}")
            files = sorted(out.iterdir()) if sabotage and out.exists() else shards
            if sabotage and files and dice.random() < 0.3:  # which is one of many
                files = [path for path in files if path.suffix == ".json"] or files
            if files and dice.random() < (0.8 if sabotage else 0.5):
                path = dice.choice(files)
                damaged.add(path)
                done[
                    damage(path, dice, ("flipped", "truncated", "removed") if sabotage else ("flipped", "truncated"))
                ] += 1
                done["manifests"] += path.name == "_job.json"
        while code := finish(start(inputs, out, overwrite)):
            done["refused"] += 1
            overwrite = begin_anew(code, out, damaged)
        if contents(out) != expected:
            raise SystemExit(f"{out} is not as the undisturbed result")
        done["jobs"] += 1
        for path in out.iterdir():
            path.unlink()
        out.rmdir()
    print(json.dumps(done))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sabotage", action="store_true")
    parser.add_argument("--folder", type=Path, help="with what `make` made; default: a new one")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="killed-jobs-") as new:
        given = asked.folder
        inputs = make(Path(new)) if given is None else {
            name: given / f"{name}.npy" for name in ("corpus", "queries", "candidates")
        }  # fmt: skip
        main(given or Path(new), inputs, asked.seed, asked.kills, asked.sabotage)
