"""What the source archive and the wheel contain, and that an installation without the extension works."""

import ast
import os
import shutil
import struct
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

import ragsys_kernels as rk
from ragsys_kernels._base import sources

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not (ROOT / "setup.py").is_file(), reason="the tests run outside of the source tree")


@pytest.fixture(scope="session")
def tree(tmp_path_factory):
    """A copy of the source tree, with what an earlier build in place and `docker compose` leave behind."""
    pytest.importorskip("setuptools", "77")
    pytest.importorskip("pybind11")
    folder = tmp_path_factory.mktemp("source") / "tree"
    ignore = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "*.so", "*.pyd", "__pycache__", "*-output")
    shutil.copytree(ROOT, folder, ignore=ignore)
    shutil.copy(ROOT / ".clang-format", folder)
    (folder / "ragsys_kernels" / "_C.cpython-399-x86_64-linux-gnu.so").write_bytes(b"left over")
    (folder / "ragsys_kernels" / "__pycache__").mkdir()
    (folder / "ragsys_kernels" / "__pycache__" / "cli.cpython-399.pyc").write_bytes(b"left over")
    deployment = folder / "packaging" / "docker"
    (deployment / "corpora" / "docs").mkdir(parents=True)
    (deployment / "corpora" / "docs" / "rows.npy").write_bytes(b"a corpus")
    (deployment / "token").write_bytes(b"a secret")
    return folder


HOOKS = """
import sys
from setuptools import build_meta
out, *kinds = sys.argv[1:]
for kind in kinds:
    getattr(build_meta, f"build_{kind}")(out)
"""


@pytest.fixture(scope="session")
def build():
    """Calls the hooks of the build backend, as frontends do, and gives the result of the process."""

    def run(source, out, *kinds, **environment):
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAGSYS_KERNELS_")}
        out.mkdir(exist_ok=True)
        return subprocess.run(
            [sys.executable, "-c", HOOKS, out, *kinds],
            cwd=source,
            env={**inherited, **environment},
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


def only_file(folder, ending=""):
    (file,) = folder.glob(f"*{ending}")
    return file


@pytest.fixture(scope="session")
def built(tree, build, tmp_path_factory):
    """The source archive and a wheel without the extension."""
    out = tmp_path_factory.mktemp("built")
    off = {"RAGSYS_KERNELS_NO_EXT": "1", "CC": "/bin/false", "CXX": "/bin/false"}  # which shows that none is called
    result = build(tree, out, "sdist", "wheel", **off)
    assert result.returncode == 0, result.stdout + result.stderr
    return out


@pytest.fixture(scope="session")
def sdist(built):
    return only_file(built, ".tar.gz")


@pytest.fixture
def unpacked(sdist, tmp_path):
    """Wheels are made of the source archive, so that it must have all they need."""
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked")
    return only_file(tmp_path / "unpacked")


def files_below(*folders):
    found = (path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file())
    left_out = (".so", ".pyd", ".pyc")
    return {
        path.relative_to(ROOT).as_posix()
        for path in found
        if path.suffix not in left_out and not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
    }


def test_source_archive_has_every_source_and_nothing_built(sdist):
    with tarfile.open(sdist) as archive:
        members = {name.partition("/")[2] for name in archive.getnames() if "/" in name}
    expected = files_below("ragsys_kernels", "csrc", "tests", "requirements")
    assert {"csrc/cpu/isa.h", "csrc/cpu/simd/dot.inl", "csrc/cpu/scoring/score.cpp", "tests/conftest.py"} <= expected
    expected |= {"LICENSE", "README.md", "pyproject.toml", "setup.py", "MANIFEST.in", "Makefile"}
    assert expected <= members, expected - members
    assert not [name for name in members if name.endswith((".so", ".pyc", ".o")) or "__pycache__" in name]
    deployment = {"", "/Dockerfile", "/compose.yaml", "/kubernetes.yaml", "/grafana.json"}
    folder = "packaging/docker"
    assert {name for name in members if name.startswith(folder)} == {folder + name for name in deployment}
    assert sdist.name == f"ragsys_kernels-{rk.__version__}.tar.gz"


@pytest.fixture
def quick_compiler(tmp_path):
    """A C++ compiler that does not optimise, which takes a tenth of the time; nothing in a wheel depends on it."""
    path = tmp_path / "c++"
    path.write_text('#!/bin/sh\nexec g++ "$@" -O0\n')
    path.chmod(0o755)
    return {"CC": str(path), "CXX": str(path)} if shutil.which("g++") else {}


@pytest.mark.slow
def test_wheel_has_the_extension_types_and_every_module(unpacked, build, quick_compiler, tmp_path, run_python):
    result = build(unpacked, tmp_path / "out", "wheel", RAGSYS_KERNELS_REQUIRE_EXT="1", **quick_compiler)
    assert result.returncode == 0, result.stdout + result.stderr
    wheel = only_file(tmp_path / "out")
    with zipfile.ZipFile(wheel) as archive:
        members = set(archive.namelist())
        metadata = message_from_string(archive.read(next(n for n in members if n.endswith("/METADATA"))).decode())
        entry_points = archive.read(next(n for n in members if n.endswith("/entry_points.txt"))).decode()
        archive.extractall(tmp_path / "site")
    modules = {name for name in files_below("ragsys_kernels") if not name.endswith((".md", ".fatbin"))}
    modules |= {name.replace("csrc/cuda", "ragsys_kernels/_cuda_src") for name in files_below("csrc/cuda")}
    assert {"ragsys_kernels/py.typed", "ragsys_kernels/_C.pyi", "ragsys_kernels/selection/cpu.py"} <= modules
    extensions = {name for name in members if name.endswith((".so", ".pyd"))}
    assert len(extensions) == 1
    assert next(iter(extensions)).startswith("ragsys_kernels/_C.")
    info = f"ragsys_kernels-{rk.__version__}.dist-info/"
    rest = {name for name in members - extensions if not name.startswith(info)}
    assert rest - {name for name in rest if name.endswith(".md")} == modules
    assert any(name.startswith(info) and name.endswith("LICENSE") for name in members)

    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["License-Expression"] == "Apache-2.0"
    required = metadata.get_all("Requires-Dist")
    assert [line.partition(">")[0] for line in required if "extra" not in line] == ["numpy"]
    assert "ragsys-kernels = ragsys_kernels.cli:main" in entry_points

    code = "import ragsys_kernels as rk; rk.show_config(); print(rk.__file__)"
    text = run_python(code, package=tmp_path / "site").stdout
    assert "backend cpu: available\n" in text
    assert str(tmp_path / "site") in text


PURE = """
import sys, warnings
import numpy as np
import ragsys_kernels as rk
from ragsys_kernels import testing

warnings.simplefilter("ignore", RuntimeWarning)
problem = testing.selection_problem(3, 20, 5, 9)
for method in ("mmr", "vrsd"):
    testing.check_selection(method, problem, getattr(rk, method)(**problem))
rk.Corpus(problem["embeddings"]).search(problem["queries"], 3)
assert np.allclose(rk.token_logprobs(np.zeros((2, 4), np.float32), [0, 3]), -np.log(4))
assert "ragsys_kernels._C" not in sys.modules
print(rk.__file__)
"""


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["/nonexistent/g++", "/bin/false"])
def test_without_a_compiler_that_works_the_reference_does(unpacked, build, tmp_path, run_python, compiler):
    """One line says so; where the extension is required, it is an error."""
    broken = {"CC": compiler, "CXX": compiler}
    result = build(unpacked, tmp_path / "out", "wheel", **broken)
    assert result.returncode == 0, result.stdout + result.stderr
    lines = [line for line in (result.stdout + result.stderr).splitlines() if "kernels:" in line]
    assert len(lines) == 1
    if compiler != "/bin/false":
        assert lines[0] == (
            "ragsys_kernels: installing without the compiled kernels: there is no C++ compiler (/nonexistent/g++); "
            "install one (Debian and Ubuntu: apt-get install g++) and reinstall"
        )
    with zipfile.ZipFile(only_file(tmp_path / "out")) as archive:
        assert not [name for name in archive.namelist() if name.endswith((".so", ".pyd"))]
        archive.extractall(tmp_path / "site")
    run_python(PURE, package=tmp_path / "site")
    result = build(unpacked, tmp_path / "none", "wheel", **broken, RAGSYS_KERNELS_REQUIRE_EXT="1")
    assert result.returncode != 0
    assert not list((tmp_path / "none").iterdir())


# --- CUDA.

KERNEL = """#include "common.cuh"
extern "C" __global__ void rsk_nothing(float* x) { x[0] = rsk::infinity(); }
"""


def contents(fatbin):
    """Kind and architecture of the parts: a header of 16 bytes, then parts with headers of their own."""
    found, (begin, size) = [], struct.unpack_from("<6xHQ", fatbin)
    at = begin
    while at < begin + size:
        kind, header, payload, architecture = struct.unpack_from("<H2xIQ12xI", fatbin, at)
        found.append((kind, architecture))
        at += header + payload
    return sorted(found, key=lambda part: (part[0] == 1, part))


@pytest.fixture
def one_kernel(unpacked):
    """The source archive with one small source in place of the others."""
    folder = unpacked / "csrc" / "cuda"
    for source in folder.glob("*.cu"):
        source.unlink()
    (folder / "nothing.cu").write_text(KERNEL)
    return unpacked


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_wheel_has_the_compiled_kernels_if_asked_for(one_kernel, build, tmp_path, run_python):
    asked = {"RAGSYS_KERNELS_NO_EXT": "1", "RAGSYS_KERNELS_CUDA": "1"}
    result = build(one_kernel, tmp_path / "out", "wheel", **asked)
    assert result.returncode == 0, result.stdout + result.stderr
    site = tmp_path / "site"
    with zipfile.ZipFile(only_file(tmp_path / "out")) as archive:
        binaries = [name for name in archive.namelist() if name.endswith(".fatbin")]
        digest = sources.of_cuda(one_kernel / "csrc" / "cuda" / "nothing.cu")
        assert binaries == [f"ragsys_kernels/_cuda_bin/nothing-{digest}.fatbin"]
        archive.extractall(site)
    PTX, BINARY = 1, 2
    assert contents((site / binaries[0]).read_bytes()) == [(BINARY, 80), (BINARY, 90), (BINARY, 100), (PTX, 100)]
    code = "from ragsys_kernels._gpu import cuda_module as m; print(m.built_path('nothing'), m.source_path('nothing'))"
    found = run_python(code, package=site).stdout.split()
    assert found == [str(site / binaries[0]), str(site / "ragsys_kernels/_cuda_src/nothing.cu")]


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["none", "fails"])
def test_compiled_kernels_that_are_asked_for_and_cannot_be_are_an_error(one_kernel, build, tmp_path, compiler):
    home = tmp_path / "cuda"
    (home / "bin").mkdir(parents=True)
    if compiler == "fails":
        (home / "bin" / "nvcc").write_text("#!/bin/sh\nexit 1\n")
        (home / "bin" / "nvcc").chmod(0o755)
    asked = {"RAGSYS_KERNELS_NO_EXT": "1", "RAGSYS_KERNELS_CUDA": "1", "CUDA_HOME": str(home)}
    result = build(one_kernel, tmp_path / "out", "wheel", **asked)
    assert result.returncode != 0
    assert not list((tmp_path / "out").glob("*.whl"))
    asks = "RAGSYS_KERNELS_CUDA=1 asks for compiled CUDA kernels, but there is no nvcc in "
    said = {
        "none": f"{asks}{home / 'bin'} (CUDA_HOME)",
        "fails": "RAGSYS_KERNELS_CUDA=1: nvcc failed on csrc/cuda/nothing.cu: ",
    }
    assert said[compiler] in result.stdout + result.stderr


def test_pure_wheel_has_sources_of_kernels_and_nothing_built_and_runs_the_reference(built, tmp_path, run_python):
    wheel = only_file(built, ".whl")
    assert wheel.name == f"ragsys_kernels-{rk.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.endswith((".so", ".pyc", ".fatbin"))]
        archive.extractall(tmp_path / "site")
    code = f"""{PURE}
from ragsys_kernels._gpu import cuda_module as m
print(*m.sources(), sum(len(m.source(name)) for name in m.sources()))"""
    place, *names, size = run_python(code, package=tmp_path / "site").stdout.split()
    assert place.startswith(str(tmp_path / "site"))
    assert names == sorted(path.stem for path in (ROOT / "csrc" / "cuda").glob("*.cu"))
    assert int(size) > 10_000


# --- The types of the extension.


def stub():
    return ast.parse((Path(rk.__file__).parent / "_C.pyi").read_text()).body


def parameters(function):
    return [argument.arg for argument in function.args.args]


def documented(function):
    """Parameter names of a compiled function, from the signature in its docstring."""
    signature = function.__doc__.splitlines()[0].partition(" -> ")[0]
    return parameters(ast.parse(f"def {signature}: ...").body[0])


def test_types_of_the_extension_name_exactly_what_it_has(compiled):
    declared = {node.target.id for node in stub() if isinstance(node, ast.AnnAssign)}
    declared |= {node.name for node in stub() if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    assert declared == {name for name in dir(compiled) if not name.startswith("_")}


def test_types_of_the_extension_have_its_signatures(compiled):
    for node in stub():
        if isinstance(node, ast.FunctionDef):
            assert documented(getattr(compiled, node.name)) == parameters(node), node.name
        if isinstance(node, ast.ClassDef):
            cls = getattr(compiled, node.name)
            methods = {inner.name: parameters(inner) for inner in node.body if isinstance(inner, ast.FunctionDef)}
            public = {name for name in vars(cls) if not name.startswith("_")} | {"__init__"}
            assert set(methods) == public, node.name
            for name, names in methods.items():
                assert documented(getattr(cls, name)) == names, f"{node.name}.{name}"
