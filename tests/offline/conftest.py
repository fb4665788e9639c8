"""What tests of jobs share."""

import pytest


@pytest.fixture
def job(tmp_path):
    """A job of seven shards with its undisturbed result; see `jobs.Job`."""
    pytest.importorskip("pyarrow")
    from jobs import Job

    return Job(tmp_path)
