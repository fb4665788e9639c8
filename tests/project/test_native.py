"""The kernels without Python: the tools of tests/cpp compiled plainly, every instruction set of this machine."""

import fcntl
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from cpp import score_driver, select_driver
from cpp.score_problems import all_cases as score_cases
from cpp.select_checks import Scan
from cpp.select_problems import all_cases

ROOT = Path(__file__).parents[2]
THREADS = [1, 2, 7]

pytestmark = pytest.mark.slow  # each tool takes 40 s to compile


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("native")


def build(name, flags="plain"):
    """A tool, where `make native` has it."""
    out = ROOT / "build" / "native"
    out.mkdir(parents=True, exist_ok=True)
    binary = out / flags / name
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    make = ["make", "-s", "-j2", "-f", "tests/cpp/native.mk", f"NATIVE_OUT={out}", str(binary)]
    with (out / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        built = subprocess.run(make, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    assert "warning" not in built.stderr, built.stderr
    return str(binary)


@pytest.fixture(scope="module")
def tool(folder):
    return select_driver.Tool([build("select_tool")], folder, all_cases())


@pytest.fixture(scope="module")
def score_tool(folder):
    return score_driver.Tool([build("score_tool")], folder, score_cases())


def refused(tool, *arguments):
    done = subprocess.run([*tool.command, *arguments], capture_output=True, text=True)
    assert done.returncode == 2, done.stdout + done.stderr
    return done.stderr


def test_every_instruction_set_and_thread_count(tool):
    isas = tool.isas()
    assert isas[0] == "base"
    for isa in isas:
        tool.check(isa, THREADS)


def test_avx512_without_vnni(tool, folder):
    """Products of codes by other instructions, scans of few vectors only: every other answer is the same."""
    if "avx512" not in tool.isas():
        pytest.skip("instruction set avx512 is not here")
    cases = [case for case in tool.cases if not isinstance(case, Scan)]
    own = tool.folder / "no_vnni_answers"
    own.mkdir()
    lesser = select_driver.Tool([build("select_tool", "no_vnni")], own, cases)
    lesser.check("avx512", [1])
    same = select_driver.Tool(tool.command, own, cases)
    answers, work = lesser.answers("avx512", 1, "coded")
    assert (answers, work) == same.answers("avx512", 1, "coded")
    scans = select_driver.Tool(lesser.command, own, [case for case in tool.cases if isinstance(case, Scan)])
    select_driver.judge(scans.cases, scans.answers("avx512", 1)[0])
    many = [case for case in scans.cases if case.by_codes and np.prod(case.vectors.shape[:2]) > 2]
    scans = select_driver.Tool(lesser.command, own, many)
    assert many
    assert len(scans.answers("avx512", 1)[0]) == 4 * 8 * len(many)


def test_widest_instruction_set_is_the_default(tool):
    path = tool.folder / "answers.bin"
    tool.run(str(tool.problems), str(path))
    assert path.read_bytes() == tool.answers(tool.isas()[-1], 1)[0]


def test_wrong_answers_are_found(tool):
    cases = all_cases()[:1]
    small = select_driver.Tool(tool.command, tool.folder, cases)
    answers = small.answers("base", 1)[0]
    select_driver.judge(cases, answers)
    for offset in range(8, len(answers), 97):
        wrong = bytearray(answers)
        wrong[offset] ^= 0x40
        with pytest.raises((AssertionError, IndexError, ValueError)):
            select_driver.judge(cases, bytes(wrong))


def test_bad_arguments_and_files_are_refused(tool, tmp_path):
    problems, answers = str(tool.problems), str(tmp_path / "answers.bin")
    assert "is not built in" in refused(tool, "--isa", "avx1024", problems, answers)
    assert "no bounds" in refused(tool, "--bounds", "quick", problems, answers)
    assert "usage" in refused(tool, problems)
    assert "usage" in refused(tool, "--isa")
    assert "usage" in refused(tool, "--quick", "1", problems, answers)
    assert "usage" in refused(tool, "--threads", "0", problems, answers)
    assert "is not a file of problems" in refused(tool, str(tmp_path / "missing.bin"), answers)
    assert "cannot write" in refused(tool, problems, str(tmp_path / "missing" / "answers.bin"))
    short = tmp_path / "short.bin"
    short.write_bytes(tool.problems.read_bytes()[:-9])
    assert "ends too early" in refused(tool, str(short), answers)


def test_scores_of_every_instruction_set_and_thread_count(score_tool):
    isas = score_tool.isas()
    assert isas[0] == "base"
    for isa in isas:
        score_tool.check(isa, THREADS)


def test_scores_without_a_matrix_unit(score_tool, folder):
    """Products of bfloat16 by dot products or as float32, which tests on a processor with the unit do not reach."""
    if "avx512" not in score_tool.isas():
        pytest.skip("instruction set avx512 is not here")
    own = folder / "no_amx_answers"
    own.mkdir()
    cases = [c for c in score_cases() if c.hidden is not None and c.dtype == c.weight_dtype == "bfloat16"]
    score_driver.Tool([build("score_tool", "no_vnni")], own, cases).check("avx512", [1, 2])


def test_wrong_scores_are_found(score_tool):
    case = score_tool.cases[0]
    fields = score_tool.answers("base", 1)[0]
    case.judge(*fields)
    for number in (0, 2, 4):  # reference, sum, target
        for sign in range(3 if number != 2 else 7, len(fields[number]), 8 if number == 2 else 4):
            wrong = bytearray(fields[number])
            wrong[sign] ^= 0x40
            with pytest.raises(AssertionError), np.errstate(all="ignore"):
                case.judge(*fields[:number], bytes(wrong), *fields[number + 1 :])


def test_bad_arguments_of_scores_are_refused(score_tool, tmp_path):
    answers = str(tmp_path / "answers.bin")
    assert "is not built in" in refused(score_tool, "--isa", "avx1024", answers, answers)
    assert "usage" in refused(score_tool, answers)
    assert "usage" in refused(score_tool, "--threads", "0", answers, answers)
    assert "is not a file of problems" in refused(score_tool, str(tmp_path / "missing.bin"), answers)
