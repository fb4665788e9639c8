"""A sample of the tests that need the interpreter of Triton, in one process; slow tests run their files whole."""

from pathlib import Path

import interpreted
import pytest

FOLDER = Path(__file__).parent
# Tests of `scorer`, which in such a process is Triton.
OF_SCORERS = [FOLDER.with_name("scoring") / f"test_{name}.py" for name in ("scoring", "scoring_linear", "top_logprobs")]

pytestmark = pytest.mark.skipif(interpreted.HERE, reason="the tests run here")


def test_a_sample_in_the_interpreter(tmp_path):
    files = [path for path in sorted(FOLDER.glob("test_*.py")) if "interpreted.elsewhere(" in path.read_text("utf-8")]
    assert len(files) > 10
    interpreted.run([*files, OF_SCORERS[0]], tmp_path, "-m", "not slow", "-k", "gpu or triton")


@pytest.mark.slow
@pytest.mark.parametrize("scorer", ["triton-device", "triton and not device"])
@pytest.mark.parametrize("file", OF_SCORERS, ids=lambda file: file.stem)
def test_scoring_in_the_interpreter(file, scorer, tmp_path):
    interpreted.run([file], tmp_path, "-k", scorer)
