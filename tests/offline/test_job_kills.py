"""Jobs killed with SIGKILL at random moments, and run again until they are done."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

import killed_jobs  # noqa: E402
from job_files import contents  # noqa: E402

from ragsys_kernels import offline  # noqa: E402

Q = killed_jobs.Q
KILLS = 15  # of each of two processes
SABOTAGED = 8  # of a third; `make fuzz` has more

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """200,000 queries and the undisturbed result of their job."""
    folder = tmp_path_factory.mktemp("killed")
    killed_jobs.make(folder)
    assert offline.status(folder / "undisturbed").shards == 50
    return folder


def environment():
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return {**os.environ, **threads, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def test_undisturbed_result_has_every_row_once(folder):
    rows = pq.read_table(folder / "undisturbed")
    assert np.array_equal(rows["query_id"].to_numpy(), np.arange(Q))
    assert offline.verify(folder / "undisturbed") == []


def test_killed_jobs_end_as_undisturbed_ones(folder):
    """Shards that are cut short or have a bit flipped between the runs are made again, as are all other files."""
    command = [sys.executable, killed_jobs.__file__, "--folder", str(folder)]
    kills = {("--seed", "1"): KILLS, ("--seed", "2"): KILLS, ("--seed", "3", "--sabotage"): SABOTAGED}
    runs = [
        subprocess.Popen(
            [*command, *options, "--kills", str(number)],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for options, number in kills.items()
    ]
    ended = [(*run.communicate(timeout=300), run.returncode) for run in runs]
    assert [(errors, code) for _, errors, code in ended] == [("", 0)] * 3
    *done, sabotaged = [json.loads(output) for output, _, _ in ended]
    assert all(item["kills"] >= KILLS for item in done)
    assert sabotaged["kills"] >= SABOTAGED
    assert sabotaged["removed"] + sabotaged["flipped"] + sabotaged["truncated"] >= SABOTAGED // 2
    assert sum(item["truncated"] for item in done) >= 3
    assert sum(item["flipped"] for item in done) >= 3
    # At the beginning, in the middle, and near the end of jobs.
    assert len({shards for item in done for shards in item["shards at a kill"]}) >= 8


def test_killed_commands_end_as_undisturbed_ones(folder, tmp_path):
    dice = random.Random(0)
    options = {
        "corpus": "corpus.npy",
        "queries": "queries.npy",
        "candidates": "candidates.npy",
        "out": tmp_path / "out",
    }
    arguments = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
    arguments += [
        str(part) for name, value in killed_jobs.OPTIONS.items() for part in (f"--{name.replace('_', '-')}", value)
    ]
    command = [sys.executable, "-m", "ragsys_kernels.cli", "select", *arguments, "--quiet"]
    for _ in range(2):
        shards = len(list(tmp_path.glob("out/part-*"))) + dice.randint(1, 20)
        with subprocess.Popen(command, cwd=folder, env=environment()) as process:
            while len(list(tmp_path.glob("out/part-*"))) < shards and process.poll() is None:
                time.sleep(0.001)
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
    assert subprocess.run(command, cwd=folder, env=environment(), timeout=300).returncode == 0
    assert contents(tmp_path / "out") == contents(folder / "undisturbed")
