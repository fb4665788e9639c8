"""Calls under a debugger, a profiler or anything else that looks at the variables of frames as they run."""

import ast
import sys
from pathlib import Path

import numpy as np
import pytest
import rule_problems
from operations import QUERIES, f32

import ragsys_kernels as rk
from ragsys_kernels import offline
from ragsys_kernels.comparison import compare_files

PACKAGE = Path(rk.__file__).parent
pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")


def taking_their_variables():
    """The functions of the package that call `locals()`."""
    found = set()
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and any(
                isinstance(each, ast.Call) and getattr(each.func, "id", "") == "locals" for each in ast.walk(node)
            ):
                found.add((str(file), node.name))
    return found


@pytest.fixture
def looked():
    """What looks at the variables of each frame of the package, and of its caller, at each line; it notes the frames.

    Until Python 3.13 this writes to what `locals()` gave, and puts back what had been changed there.
    """
    seen, before = set(), sys.gettrace()

    def look(frame, event, arg):
        code = frame.f_code
        if not code.co_filename.startswith(str(PACKAGE)):
            return None
        seen.add((code.co_filename, code.co_name))
        assert None not in (frame.f_locals, frame.f_back.f_locals)
        return look

    sys.settrace(look)
    yield seen
    sys.settrace(before)


def calls(folder):
    """One call of each function, with what it does with its variables."""
    for rule in rule_problems.OPTIONS:
        method, problem = rule_problems.problem_of(rule, "plain")
        yield getattr(rk, method), problem
    method, problem = rule_problems.problem_of("mmr", "plain")
    yield rk.mmr_path, {name: x for name, x in problem.items() if name != "lambda_d"}
    yield rk.gist, {"queries": f32(3, 6), "embeddings": f32(20, 6), "k": 4}
    method, problem = rule_problems.problem_of("msd", "budget")
    yield rk.msd, problem | {"lambda_d": "adagres"}
    yield rk.Corpus(f32(50, 6)).select, {"queries": QUERIES["queries"], "k": 2, "pool": "certified"}
    rows, queries = folder / "rows.npy", folder / "queries.npy"
    np.save(rows, f32(30, 6))
    np.save(queries, f32(4, 6))
    yield offline.select, {"corpus": rows, "queries": queries, "out": folder / "picks", "k": 2, "pool": 5}
    yield offline.build_corpus, {"corpus": rows, "out": folder / "corpus", "rows_per_segment": 20}
    yield offline.append_corpus, {"corpus": rows, "to": folder / "corpus"}


def refused(folder):
    """Calls that end where they miss a file or a package, once they have taken their variables."""
    missing = folder / "missing.parquet"
    yield offline.sync_corpus, {"source": missing, "to": folder / "segments"}
    yield compare_files, {"corpus": missing, "queries": missing, "out": folder / "report"}
    yield offline.selector_for_ray, {"corpus": missing}


def test_looking_at_variables_changes_nothing(looked, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # its import takes long
    for call, given in calls(tmp_path):
        call(**given)
    for call, given in refused(tmp_path):
        with pytest.raises((FileNotFoundError, ModuleNotFoundError)):
            call(**given)
    assert looked >= taking_their_variables()
