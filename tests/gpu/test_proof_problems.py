"""Two thousand problems for the search and the proof of whole corpora, interpreted: no wrong draft is ever proven.

``tests/helpers/proof_problems.py`` makes them. The slow test runs all, in parts that processes can share; a few, and
those whose bound is just large enough, run with every test.
"""

import os
import subprocess
import sys
from pathlib import Path

import interpreted
import numpy as np
import pytest

import ragsys_kernels as rk

pytest.importorskip("torch")
pytest.importorskip("triton")

if interpreted.HERE:
    import proof_problems
    import searches

    from ragsys_kernels.selection.triton import bit_search as triton_filter

CASES, TOGETHER = 140, 10
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=interpreted.HERE)
def small(monkeypatch):
    proof_problems.make_small(monkeypatch.setattr)


def second_pick(seed, dtype):
    """The second pick of a problem whose first draft is wrong, and the one that it should be."""
    given, best = proof_problems.behind(np.random.default_rng(seed), dtype)
    with proof_problems.hidden(np.array([best])):
        return int(rk.mmr(**given, backend="triton").indices[0, 1]), best


def found_first(seed, dtype):
    problem, best = proof_problems.search_behind(np.random.default_rng(seed), dtype)
    index, _ = searches.found(problem)
    return int(index[0, 0]), best


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
@pytest.mark.parametrize(
    ("pick", "dtype"),
    [
        *((second_pick, "float16"), (found_first, "bfloat16")),
        *(pytest.param(second_pick, dtype, marks=pytest.mark.slow) for dtype in ("bfloat16", "float32")),
    ],
)
def test_the_bound_is_large_enough_and_no_tenth_too_large(pick, dtype, seed, monkeypatch):
    """With nine tenths of it, wrong drafts are proven and best rows are lost."""
    found, best = pick(seed, dtype)
    assert found == best
    monkeypatch.setattr(triton_filter, "LONGER", 0.9 * triton_filter.LONGER)
    found, best = pick(seed, dtype)
    assert found != best


def test_a_case_of_wrong_drafts():
    ask, _ = proof_problems.draw(1, 1, 3)
    with proof_problems.counted() as calls:
        proof_problems.check(ask, hide=True)
    assert calls[0][1] > 0, "every draft was right"


interpreted.elsewhere(globals())

if not interpreted.HERE:

    @pytest.mark.slow
    @pytest.mark.parametrize("first", range(0, CASES, TOGETHER))
    def test_two_thousand_problems(first):
        command = ["tests/helpers/proof_problems.py", "--seed", "1", "--first", str(first)]
        result = subprocess.run(
            [sys.executable, "-W", "ignore", *command, "--cases", str(TOGETHER)],
            env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-10000:]
