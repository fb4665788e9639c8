"""What the wheels are declared for, and the program that each must run."""

import importlib.util
import os
import re
import runpy
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import ragsys_kernels as rk
from ragsys_kernels import _dispatch
from ragsys_kernels.selection import cpu

ROOT = Path(__file__).parents[2]
WHEELS = ROOT / "packaging" / "wheels"
pytestmark = pytest.mark.skipif(not WHEELS.is_dir(), reason="not in a checkout")


def loaded(name):
    spec = importlib.util.spec_from_file_location(f"wheels_{name}", WHEELS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pythons():
    return loaded("pythons")


def test_versions_are_those_of_the_metadata_and_the_workflow_builds_and_runs_each(pythons, build):
    text = (ROOT / "pyproject.toml").read_text()
    assert list(pythons.VERSIONS) == re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text)
    workflow = (ROOT / ".github" / "workflows" / "wheels.yml").read_text()
    asked = re.findall(r'python-version: "(.+)"', workflow)
    assert asked == ["\\n".join(pythons.VERSIONS)] * 2
    (built,) = re.findall(r'make wheels ARGS="--machine (.+)"', workflow)
    assert built.split() == list(build.TARGETS) == re.findall(r"machine: (\w+)", workflow)


def test_a_wheel_for_this_machine_is_told_what_its_python_says_of_itself(build, tmp_path):
    found = build.compiler(tmp_path, f"3.{sys.version_info[1]}", os.uname().machine)
    assert found["_PYTHON_HOST_PLATFORM"] == sysconfig.get_platform()
    assert found["SETUPTOOLS_EXT_SUFFIX"] == sysconfig.get_config_var("EXT_SUFFIX")


def test_wheels_that_are_asked_for_must_run(monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(str(WHEELS))
    check = loaded("check")
    monkeypatch.setattr(check, "HERE", "x86_64")
    monkeypatch.setattr(check, "run_native", lambda wheel, version, place: f"Python {version}")
    monkeypatch.setattr(check, "run_foreign", lambda *of: None)
    platforms = ("macosx_11_0_arm64", "manylinux_2_17_x86_64.manylinux2014_x86_64", "manylinux_2_28_aarch64")
    names = [f"ragsys_kernels-0.1.0-cp310-cp310-{platform}.whl" for platform in platforms]
    for name in names:
        (tmp_path / name).touch()

    def said(*options):
        monkeypatch.setattr(sys, "argv", ["check.py", str(tmp_path), *options])
        check.main()
        return capsys.readouterr().out.splitlines()

    lacks = "not run: no interpreter of its version and processor here"
    *lines, last = said()
    assert lines == [f"{names[0]}: {lacks}", f"{names[1]}: Python 3.10", f"{names[2]}: {lacks}"]
    assert last == "not run: 2 of 3 wheels"
    assert said("--machine", "x86_64") == [f"{names[1]}: Python 3.10"]
    for machine in ("aarch64", "macos"):
        with pytest.raises(SystemExit, match=r"^make check-wheels: not run: 1 of 1 wheels$"):
            said("--machine", machine)
    with pytest.raises(SystemExit, match="has no wheel for sparc;"):
        said("--machine", "sparc")


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


@pytest.fixture
def pack(monkeypatch, tmp_path):
    """`race_pack.py` over a tree in which only the extension has sources."""
    monkeypatch.syspath_prepend(str(WHEELS))
    monkeypatch.delitem(sys.modules, "build", raising=False)  # a package has this name too
    module = loaded("race_pack")
    monkeypatch.delitem(sys.modules, "build", raising=False)
    (tmp_path / "csrc" / "cpu").mkdir(parents=True)
    (tmp_path / "ragsys_kernels").mkdir()
    for path in (tmp_path / "setup.py", tmp_path / "csrc" / "cpu" / "a.cpp"):
        path.write_text("")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "PACKAGE", tmp_path / "ragsys_kernels")
    return module


def test_an_extension_of_other_sources_is_built_again(pack, monkeypatch, tmp_path):
    path, commands = tmp_path / "ragsys_kernels" / "_C.cpython-312-x86_64-linux-gnu.so", []

    def run(*words, **options):
        commands.append(words)
        path.write_bytes(b"ELF" + bytes.fromhex(pack.sources.of_extension(tmp_path)))

    monkeypatch.setattr(pack.build, "run", run)
    for _ in range(2):
        assert pack.extension("3.12", "x86_64", Path("python")) == path
    assert len(commands) == 1
    assert {"--force", "--inplace"} <= set(commands[0])  # by times of files setuptools might build nothing
    (tmp_path / "csrc" / "cpu" / "a.cpp").write_text("changed")
    pack.extension("3.12", "x86_64", Path("python"))
    assert len(commands) == 2
    (tmp_path / "setup.py").write_text("changed")
    monkeypatch.setattr(pack.build, "run", lambda *words, **options: None)
    with pytest.raises(SystemExit, match="does not have the digest of its sources as its build id"):
        pack.extension("3.12", "x86_64", Path("python"))


def test_what_is_carried_has_a_limit(pack, monkeypatch, tmp_path, capsys):
    binaries, extension = tmp_path / "ragsys_kernels" / "_cuda_bin", tmp_path / "ragsys_kernels" / "_C.so"
    binaries.mkdir()
    (binaries / "one.fatbin").write_bytes(bytes(2 << 20))
    extension.write_bytes(bytes(1 << 20))
    monkeypatch.setattr(pack, "BINARIES", binaries)
    monkeypatch.setattr(pack, "extension", lambda *of: extension)
    monkeypatch.setattr(pack.build, "interpreters", lambda versions: dict.fromkeys(versions, Path("a")))
    monkeypatch.setattr(pack.build, "environment", lambda version, python: python)
    monkeypatch.setattr(pack.build, "run", lambda *words, **options: "all right")
    monkeypatch.setattr(sys, "argv", ["race_pack.py"])
    pack.main()
    printed = capsys.readouterr().out.splitlines()
    assert printed == [
        "all right",
        "ragsys_kernels/_C.so  1.0 MiB",
        "ragsys_kernels/_cuda_bin  2.0 MiB",
        "in all 3.0 MiB",
    ]
    monkeypatch.setattr(pack, "LIMIT", (3 << 20) - 1)
    with pytest.raises(SystemExit, match=r"^make race-pack: 3\.0 MiB are more than 2, which can be carried"):
        pack.main()


def test_the_folder_packaging_does_not_hide_the_package_of_that_name():
    """Tools run in the root, which Python then searches first."""
    program = "import packaging.version; print(packaging.__file__)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert found.returncode == 0, found.stderr
    assert WHEELS.parent not in Path(found.stdout.strip()).parents


def test_constants_of_templates_can_be_linked_by_clang_too():
    """A specialisation of a constant has a definition in each file that includes it, unless it is inline."""
    found = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "csrc" / "cpu").rglob("*")
        if path.is_file() and re.search(r"^template\s*<>\s*(static\s+)?constexpr\b", path.read_text("utf-8"), re.M)
    ]
    assert found == []


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
