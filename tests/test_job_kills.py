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
from job_files import contents, write_inputs  # noqa: E402

from ragsys_kernels import offline  # noqa: E402

Q = 200_000
JOBS = 15  # of each of two processes

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """200,000 queries and the undisturbed result of their job."""
    folder = tmp_path_factory.mktemp("killed")
    inputs = write_inputs(folder, Q, rows=100, dims=16)
    summary = offline.select(**inputs, **killed_jobs.OPTIONS, out=folder / "undisturbed")
    assert summary.shards == 50
    return folder


def environment():
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return {**os.environ, **threads, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def test_undisturbed_result_has_every_row_once(folder):
    rows = pq.read_table(folder / "undisturbed")
    assert np.array_equal(rows["query_id"].to_numpy(), np.arange(Q))
    assert offline.verify(folder / "undisturbed") == []


def test_killed_jobs_end_as_undisturbed_ones(folder):
    """Shards that are cut short or have a bit flipped between the runs are made again."""
    command = [sys.executable, killed_jobs.__file__, str(folder)]
    runs = [
        subprocess.Popen(
            [*command, str(seed), str(JOBS)],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in (1, 2)
    ]
    ended = [(*run.communicate(timeout=300), run.returncode) for run in runs]
    assert [(errors, code) for _, errors, code in ended] == [("", 0)] * 2
    done = [json.loads(output) for output, _, _ in ended]
    assert sum(item["jobs"] for item in done) == 2 * JOBS
    assert sum(item["kills"] for item in done) >= 2 * JOBS
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
