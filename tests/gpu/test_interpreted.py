"""A sample of the tests that need the interpreter of Triton, in one process; slow tests run their files whole."""

from pathlib import Path

import interpreted
import pytest

FOLDER = Path(__file__).parent


@pytest.mark.skipif(interpreted.HERE, reason="the tests run here")
def test_a_sample_in_the_interpreter(tmp_path):
    files = [path for path in sorted(FOLDER.glob("test_*.py")) if "interpreted.elsewhere(" in path.read_text("utf-8")]
    assert len(files) > 10
    interpreted.run(files, tmp_path, "-m", "not slow")
