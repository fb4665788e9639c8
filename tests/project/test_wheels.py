"""What the wheels are declared for, and the program that each must run."""

import importlib.util
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import ragsys_kernels as rk
from ragsys_kernels import _dispatch
from ragsys_kernels.selection import cpu

ROOT = Path(__file__).parents[2]
WHEELS = ROOT / "wheels"
pytestmark = pytest.mark.skipif(not WHEELS.is_dir(), reason="not in a checkout")


def loaded(name):
    spec = importlib.util.spec_from_file_location(f"wheels_{name}", WHEELS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pythons():
    return loaded("pythons")


def test_versions_are_those_of_the_metadata_and_of_cibuildwheel(pythons):
    text = (ROOT / "pyproject.toml").read_text()
    classifiers = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text)
    built = [f"3.{minor}" for minor in re.findall(r'"cp3(\d+)-\*"', text)]
    assert list(pythons.VERSIONS) == classifiers == built


def test_an_interpreter_is_found_only_with_headers_of_its_version(pythons):
    here = f"3.{sys.version_info[1]}"
    found = pythons.find_python(here)
    assert found is not None
    printed = subprocess.run(
        [found, "-c", "import sys; print(*sys.version_info[:2], sep='.')"], capture_output=True, text=True
    )
    assert printed.stdout.strip() == here
    assert pythons.find_python("3.99") is None
    assert pythons.find_foreign("3.99", "aarch64") is None


@pytest.fixture
def build(monkeypatch):
    monkeypatch.syspath_prepend(str(WHEELS))
    module = loaded("build")
    monkeypatch.setattr(module, "find_python", {"3.10": Path("a"), "3.13": Path("b")}.get)
    monkeypatch.setattr(module, "run", None)
    return module


def test_missing_interpreters_are_all_named_before_anything_is_built(build, monkeypatch, tmp_path):
    given = {(): "3.11, 3.12, 3.14", ("--python", "3.14", "3.10"): "3.14", ("--python", "3.12", "--available"): "3.12"}
    for options, missing in given.items():
        monkeypatch.setattr(sys, "argv", ["build.py", "--out", str(tmp_path / "dist"), *options])
        with pytest.raises(SystemExit, match=rf"^make wheels: Python {missing} with headers must be here, found "):
            build.main()
    assert not (tmp_path / "dist").exists()


def test_versions_that_are_here_are_built_if_told(build, capsys):
    assert build.interpreters(["3.10", "3.12", "3.13"], available=True) == {"3.10": Path("a"), "3.13": Path("b")}
    assert capsys.readouterr().out == "left out: Python 3.12, of which no interpreter with headers is here\n"


def test_smoke_program_runs_every_instruction_set_and_sees_a_wrong_kernel(tmp_path, monkeypatch):
    if _dispatch.extension() is None:
        pytest.skip("the kernels are not compiled")
    good = subprocess.run(
        [sys.executable, WHEELS / "smoke.py"],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(Path(rk.__file__).parents[1])},
        cwd=tmp_path,
    )
    assert good.returncode == 0, good.stderr
    assert f"| {', '.join(_dispatch.extension().SUPPORTED_ISAS)} |" in good.stdout
    monkeypatch.setenv("RAGSYS_KERNELS_SMOKE_PYTHON", "/bin/false")
    with pytest.raises(SystemExit, match="base: "):
        runpy.run_path(str(WHEELS / "smoke.py"), run_name="__main__")
    right = cpu.mmr

    def wrong(*arguments, **options):
        found = right(*arguments, **options)
        found[0][:] = found[0][:, ::-1].copy()
        return found

    monkeypatch.setattr(cpu, "mmr", wrong)
    monkeypatch.setenv("RAGSYS_KERNELS_SMOKE_CHILD", "1")
    with pytest.raises(AssertionError, match="Arrays are not equal"):
        runpy.run_path(str(WHEELS / "smoke.py"), run_name="__main__")


def test_workflows_call_targets_that_the_makefile_has():
    makefile = (ROOT / "Makefile").read_text()
    called = {
        name
        for path in (ROOT / ".github/workflows").glob("*.yml")
        for name in re.findall(r"\bmake ([\w-]+)", path.read_text())
    }
    assert called >= {"lint", "test", "docs"}
    assert all(re.search(rf"^{name}:", makefile, re.M) for name in called)
