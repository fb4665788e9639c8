"""Jobs killed with SIGKILL at random moments, and run again until they are done."""

import killed_jobs
import numpy as np
import pyarrow.parquet as pq
import pytest
from fuzz_runs import printed

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
    done = printed(killed_jobs.__file__, "--folder", tmp_path, "--seed", 1, "--kills", KILLS)
    assert done["kills"] >= KILLS
    assert done["truncated"] >= 3
    assert done["flipped"] >= 3
    # At the beginning, in the middle, and near the end of jobs.
    assert len(set(done["shards at a kill"])) >= 8
