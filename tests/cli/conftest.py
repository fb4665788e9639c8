"""What tests of the command line share."""

import numpy as np
import pytest


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for name, rows in (("corpus", 200), ("queries", 90)):
        np.save(tmp_path / f"{name}.npy", rng.standard_normal((rows, 8)).astype(np.float32))
    return tmp_path


@pytest.fixture
def run(command):
    """In this process: what only one of its own can show is started by a test itself."""
    return command
