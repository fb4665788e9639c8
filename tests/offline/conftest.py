"""What tests of jobs share."""

from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("pyarrow") else ["test_*.py"]


@pytest.fixture
def job(tmp_path):
    """A job of seven shards with its undisturbed result; see `jobs.Job`."""
    from jobs import Job

    return Job(tmp_path)


@pytest.fixture
def data(tmp_path):
    """Arrays of a small job, which are .npy files in tmp_path too."""
    from job_arrays import write_arrays

    return write_arrays(tmp_path)


@pytest.fixture(scope="session")
def arrays():
    """What files of every format hold."""
    from source_files import make_arrays

    return make_arrays()
