"""The kernels without Python: tests/cpp/select_tool.cpp compiled plainly, every instruction set of this machine."""

import os
import subprocess
from pathlib import Path

import pytest
from cpp import driver

ROOT = Path(__file__).parents[1]
THREADS = [1, 2, 7]


@pytest.fixture(scope="module")
def tool(tmp_path_factory):
    folder = tmp_path_factory.mktemp("native")
    binary = folder / "plain" / "select_tool"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    make = ["make", "-s", "-j2", "-f", "tests/cpp/native.mk", f"NATIVE_OUT={folder}", str(binary)]
    built = subprocess.run(make, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    assert "warning" not in built.stderr, built.stderr
    return driver.Tool([str(binary)], folder, driver.all_cases())


def refused(tool, *arguments):
    done = subprocess.run([*tool.command, *arguments], capture_output=True, text=True)
    assert done.returncode == 2, done.stdout + done.stderr
    return done.stderr


def test_every_instruction_set_and_thread_count(tool):
    isas = tool.isas()
    assert isas[0] == "base"
    for isa in isas:
        tool.check(isa, THREADS)


def test_widest_instruction_set_is_the_default(tool):
    path = tool.folder / "answers.bin"
    tool.run(str(tool.problems), str(path))
    assert path.read_bytes() == tool.answers(tool.isas()[-1], 1)[0]


def test_wrong_answers_are_found(tool):
    cases = driver.all_cases()[:1]
    small = driver.Tool(tool.command, tool.folder, cases)
    answers = small.answers("base", 1)[0]
    driver.judge(cases, answers)
    for offset in range(8, len(answers), 97):
        wrong = bytearray(answers)
        wrong[offset] ^= 0x40
        with pytest.raises((AssertionError, IndexError, ValueError)):
            driver.judge(cases, bytes(wrong))


def test_bad_arguments_and_files_are_refused(tool, tmp_path):
    problems, answers = str(tool.problems), str(tmp_path / "answers.bin")
    assert "is not built in" in refused(tool, "--isa", "avx1024", problems, answers)
    assert "no rule" in refused(tool, "--rule", "quick", problems, answers)
    assert "usage" in refused(tool, problems)
    assert "usage" in refused(tool, "--isa")
    assert "usage" in refused(tool, "--quick", "1", problems, answers)
    assert "usage" in refused(tool, "--threads", "0", problems, answers)
    assert "is not a file of problems" in refused(tool, str(tmp_path / "missing.bin"), answers)
    assert "cannot write" in refused(tool, problems, str(tmp_path / "missing" / "answers.bin"))
    short = tmp_path / "short.bin"
    short.write_bytes(tool.problems.read_bytes()[:-9])
    assert "ends too early" in refused(tool, str(short), answers)
