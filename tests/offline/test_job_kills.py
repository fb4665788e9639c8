"""Jobs killed with SIGKILL at random moments, and run again until they are done."""

import json
import os
import subprocess
import sys

import killed_jobs
import numpy as np
import pyarrow.parquet as pq
import pytest

from ragsys_kernels import offline

KILLS = 30  # `make fuzz` has more


@pytest.mark.slow
def test_killed_jobs_end_as_undisturbed_ones(tmp_path):
    """Of 200,000 queries. Shards that are cut short or have a bit flipped between the runs are made again."""
    killed_jobs.make(tmp_path)
    assert offline.status(tmp_path / "undisturbed").shards == 50
    rows = pq.read_table(tmp_path / "undisturbed")
    assert np.array_equal(rows["query_id"].to_numpy(), np.arange(killed_jobs.Q))
    assert offline.verify(tmp_path / "undisturbed") == []
    command = [sys.executable, killed_jobs.__file__, "--folder", str(tmp_path), "--seed", "1", "--kills", str(KILLS)]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    environment = {**os.environ, **threads, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert (ended.stderr, ended.returncode) == ("", 0)
    done = json.loads(ended.stdout)
    assert done["kills"] >= KILLS
    assert done["truncated"] >= 3
    assert done["flipped"] >= 3
    # At the beginning, in the middle, and near the end of jobs.
    assert len(set(done["shards at a kill"])) >= 8
