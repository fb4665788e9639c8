"""What tests of jobs share."""

import pytest


@pytest.fixture
def job(tmp_path):
    """A job of seven shards with its undisturbed result; see `jobs.Job`."""
    pytest.importorskip("pyarrow")
    from jobs import Job

    return Job(tmp_path)


@pytest.fixture
def data(tmp_path):
    """Arrays of a small job, which are .npy files in tmp_path too."""
    pytest.importorskip("pyarrow")
    from job_arrays import write_arrays

    return write_arrays(tmp_path)
