"""Which backend runs, what is said where it cannot, and what an import costs."""

import importlib
import importlib.util
import re
import shutil
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels import _dispatch, _info, testing
from ragsys_kernels.selection import cpu, reference

METHODS = {"mmr": rk.mmr, "vrsd": rk.vrsd}


@pytest.fixture(scope="module")
def without_extension(tmp_path_factory):
    """A folder with the package less its extension."""
    folder = tmp_path_factory.mktemp("pure")
    ignore = shutil.ignore_patterns("*.so", "*.pyd", "__pycache__")
    shutil.copytree(Path(rk.__file__).parent, folder / "ragsys_kernels", ignore=ignore)
    return folder


def called(monkeypatch):
    """The names of the backends whose functions run, in order."""
    names = []
    for module in (cpu, reference):
        for op in METHODS:
            name, function = module.__name__.rpartition(".")[2], getattr(module, op)
            monkeypatch.setattr(module, op, lambda *a, name=name, function=function: names.append(name) or function(*a))
    return names


@pytest.mark.parametrize("method", METHODS)
def test_auto_takes_the_compiled_kernels_first(compiled, monkeypatch, method):
    monkeypatch.delenv("RAGSYS_KERNELS_BACKEND", raising=False)
    names = called(monkeypatch)
    METHODS[method](**testing.selection_problem(2, 8, 3, 5))
    assert names == ["cpu"]


@pytest.mark.parametrize("method", METHODS)
def test_requested_backend_runs(backend, monkeypatch, method):
    monkeypatch.setenv("RAGSYS_KERNELS_BACKEND", "reference")
    names = called(monkeypatch)
    METHODS[method](**testing.selection_problem(2, 8, 3, 5), backend=backend)
    assert names == [backend]


def test_environment_names_the_backend_of_auto(backend, monkeypatch):
    monkeypatch.setenv("RAGSYS_KERNELS_BACKEND", backend)
    names = called(monkeypatch)
    rk.mmr(**testing.selection_problem(2, 8, 3, 5))
    rk.Corpus(np.eye(9, dtype=np.float32)).select(np.ones((1, 9), np.float32), 2, pool=4)
    assert names == [backend, backend]


def test_unknown_backend_is_refused(monkeypatch):
    problem = testing.selection_problem(2, 8, 3, 5)
    message = "mmr: backend must be one of 'auto', 'cpu', 'reference', 'triton', 'cuda', got 'tpu'"
    with pytest.raises(ValueError, match=f"^{message}$"):
        rk.mmr(**problem, backend="tpu")
    monkeypatch.setenv("RAGSYS_KERNELS_BACKEND", "tpu")
    with pytest.raises(ValueError, match=f"^{message}$"):
        rk.mmr(**problem)


PROBLEM = """
import warnings
import numpy as np
import ragsys_kernels as rk
from ragsys_kernels import testing
problem = testing.selection_problem(2, 8, 3, 5)
"""


ABSENT = (
    "the compiled extension is not installed; install a C++ compiler (Debian and Ubuntu: apt-get install g++) and "
    "reinstall, with RAGSYS_KERNELS_REQUIRE_EXT=1 to see what fails"
)


def with_problem(code):
    return PROBLEM + code


def test_missing_extension_falls_back_with_one_warning(without_extension, run_python):
    code = with_problem("""
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(3):
        result = rk.mmr(**problem)
        testing.check_selection("mmr", problem, result)
for warning in caught:
    print(warning.category.__name__, warning.message, sep=": ")
""")
    assert run_python(code, package=without_extension).stdout == (
        f"RuntimeWarning: mmr: running the NumPy reference, which is slow: {ABSENT}\n"
    )


SCORING = """
import warnings
import numpy as np
import ragsys_kernels as rk
x = np.zeros((2, 4), np.float32)
"""


def test_scoring_falls_back_to_numpy_with_one_warning(without_extension, run_python):
    code = (
        SCORING
        + """
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(3):
        assert np.allclose(rk.token_logprobs(x, [0, 3]), -np.log(4))
for warning in caught:
    print(warning.category.__name__, warning.message, warning.filename, sep=": ")
for backend in ("numpy", "reference"):
    warnings.simplefilter("error")
    rk.answer_logprobs(x, targets=[0, 3], backend=backend)
try:
    rk.answer_logprobs(x, targets=[0, 3], backend="cpu")
except rk.BackendUnavailableError as error:
    print(error)
"""
    )
    assert run_python(code, package=without_extension).stdout == (
        "RuntimeWarning: token_logprobs: running NumPy, which is slower than the compiled kernels: "
        f"{ABSENT}: <string>\n"
        f"answer_logprobs: backend 'cpu' was requested but cannot run here: {ABSENT}. "
        "Available for arrays on 'cpu': 'numpy', 'reference'\n"
    )


def test_scoring_runs_what_was_asked_for(compiled, monkeypatch):
    names, x = [], np.zeros((2, 4), np.float32)
    for name in ("cpu", "numpy_kernels", "reference"):
        module = importlib.import_module(f"ragsys_kernels.scoring.{name}")
        function = module.partials
        monkeypatch.setattr(
            module, "partials", lambda *a, name=name, function=function: names.append(name) or function(*a)
        )
    for backend in ("auto", "cpu", "numpy", "reference"):
        rk.token_logprobs(x, [0, 1], backend=backend)
    monkeypatch.setenv("RAGSYS_KERNELS_BACKEND", "numpy")
    rk.token_logprobs(x, [0, 1])
    assert names == ["cpu", "cpu", "numpy_kernels", "reference", "numpy_kernels"]


@pytest.mark.parametrize("call", ["rk.mmr(**problem)", "rk.vrsd(**problem)", "corpus.search(problem['queries'], 2)"])
def test_warning_of_the_fallback_points_at_the_call(without_extension, run_python, call):
    code = with_problem(f"""
corpus = rk.Corpus(problem["embeddings"])
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    {call}
print(*(warning.filename for warning in caught))
""")
    assert run_python(code, package=without_extension).stdout == "<string>\n"


def test_missing_extension_is_an_error_where_it_was_asked_for(without_extension, run_python):
    code = with_problem("""
for ask in ({"backend": "cpu"}, {}):
    try:
        rk.mmr(**problem, **ask)
    except rk.BackendUnavailableError as error:
        print(error)
""")
    message = (
        f"mmr: backend 'cpu' was requested but cannot run here: {ABSENT}. Available for arrays on 'cpu': 'reference'\n"
    )
    assert run_python(code, package=without_extension, RAGSYS_KERNELS_BACKEND="cpu").stdout == message * 2


def test_reference_that_was_asked_for_does_not_warn(without_extension, run_python):
    code = with_problem("""
warnings.simplefilter("error")
rk.mmr(**problem, backend="reference")
rk.vrsd(**problem, backend="reference")
""")
    run_python(code, package=without_extension)
    run_python(code.replace(', backend="reference"', ""), package=without_extension, RAGSYS_KERNELS_BACKEND="reference")


@pytest.mark.slow
def test_broken_extension_is_reported(without_extension, run_python, tmp_path):
    shutil.copytree(without_extension, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "ragsys_kernels" / f"_C{sysconfig.get_config_var('EXT_SUFFIX')}"
    file.write_bytes(b"not a library")
    code = with_problem("""
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    rk.mmr(**problem)
print(caught[0].message)
try:
    rk.mmr(**problem, backend="cpu")
except rk.BackendUnavailableError as error:
    print(error)
rk.show_config()
""")
    lines = run_python(code, package=tmp_path).stdout.splitlines()
    reason = "the compiled extension is broken: "
    assert lines[0].startswith(f"mmr: running the NumPy reference, which is slow: {reason}")
    assert lines[1].startswith(f"mmr: backend 'cpu' was requested but cannot run here: {reason}")
    assert any(line.startswith(f"backend cpu: unavailable: {reason}") for line in lines)
    assert all(file.name in line for line in lines[:2])


def test_error_inside_the_extension_is_not_taken_for_its_absence(without_extension, run_python, tmp_path):
    """An import that fails within a module that is there."""
    shutil.copytree(without_extension, tmp_path, dirs_exist_ok=True)
    (tmp_path / "ragsys_kernels" / "_C.py").write_text("import a_library_that_is_not_there\n")
    code = with_problem("""
try:
    rk.mmr(**problem, backend="cpu")
except rk.BackendUnavailableError as error:
    print(error)
""")
    output = run_python(code, package=tmp_path).stdout
    assert "the compiled extension is broken: No module named 'a_library_that_is_not_there'" in output


HEAVY = ("torch", "pyarrow", "typer", "rich", "triton", "cupy", "faiss", "transformers", "ray", "scipy", "click")


def test_import_brings_no_heavy_module(run_python):
    run_python(f"""
import sys
import ragsys_kernels
assert not set(sys.modules) & set({HEAVY}), set(sys.modules) & set({HEAVY})
assert "ragsys_kernels.testing" not in sys.modules
""")


def test_selection_brings_no_heavy_module(run_python):
    run_python(f"""
import sys
import numpy as np
import ragsys_kernels as rk
rk.Corpus(np.eye(3, dtype=np.float32)).select(np.eye(3, dtype=np.float32), 2, pool=None)
assert not set(sys.modules) & set({HEAVY}), set(sys.modules) & set({HEAVY})
""")


def test_import_takes_less_than_a_fifth_of_a_second(run_python):
    """In processor time, which other processes of the machine do not stretch."""
    code = "import time; t = time.process_time(); import ragsys_kernels; print(time.process_time() - t)"
    assert min(float(run_python(code).stdout) for _ in range(5)) < 0.2


def test_every_public_name_is_found(run_python):
    """Names are imported when first used; a name that no module has would show only then."""
    run_python("""
import ragsys_kernels as rk
assert {*rk._HOMES, "__version__"} == set(rk.__all__) <= set(dir(rk))
assert all(getattr(rk, name).__name__ == name for name in rk._HOMES if name != "METHODS")
from ragsys_kernels import *
assert mmr is rk.mmr and not hasattr(rk, "mnr")
""")


def test_import_reads_no_setting(run_python):
    """Settings are read when they are used, so that a bad one is an error of the call, not of the import."""
    bad = {"RAGSYS_KERNELS_BACKEND": "x", "RAGSYS_KERNELS_ISA": "x", "RAGSYS_KERNELS_NUM_THREADS": "x"}
    run_python("import ragsys_kernels", **bad)


def test_show_config_tells_versions_backends_instruction_set_and_threads(compiled, capsys, monkeypatch):
    monkeypatch.delenv("RAGSYS_KERNELS_ISA", raising=False)
    monkeypatch.setenv("RAGSYS_KERNELS_NUM_THREADS", "3")
    rk.show_config()
    text = capsys.readouterr().out
    assert text == _info.config() + "\n"
    lines = text.splitlines()
    assert lines[0] == f"ragsys_kernels {rk.__version__}"
    assert lines[1].startswith(f"Python {sys.version.split()[0]} on ")
    assert lines[2].startswith(f"libraries: numpy {np.__version__}, torch ")
    backends = {"backend cpu: available", "backend numpy (scoring): available", "backend reference: available"}
    assert backends | {"threads: 3"} <= set(lines)
    built, here = ", ".join(compiled.ISAS), ", ".join(compiled.SUPPORTED_ISAS)
    assert f"instruction set: {compiled.SUPPORTED_ISAS[-1]} (built: {built}; on this processor: {here})" in lines


@pytest.mark.slow
@pytest.mark.parametrize("kernels", ["Haswell", "Nehalem"])
def test_show_config_tells_whether_equal_rows_had_equal_bits(run_python, kernels):
    """OpenBLAS reads the name of its kernels when it is loaded; another BLAS pays no attention."""
    code = """
import numpy as np, ragsys_kernels as rk
h, w = np.random.default_rng(1).standard_normal((2, 1024, 64), np.float32)
equal = all(len(np.unique(x, axis=a)) == 1 for x, a in [(h[[0] * 64] @ w.T, 0), ((h[:64] @ w[[0] * 1024].T).T, 0)])
print("wanted:", "was not seen to have" if equal else "has other last bits")
rk.show_config()
"""
    first, *lines = run_python(code, OPENBLAS_CORETYPE=kernels).stdout.splitlines()
    (line,) = [line for line in lines if line.startswith("scoring of hidden states by backend numpy: a row ")]
    assert first.removeprefix("wanted: ") in line


@pytest.mark.slow
def test_show_config_works_without_the_extension(without_extension, run_python):
    text = run_python("import ragsys_kernels as rk; rk.show_config()", package=without_extension).stdout
    assert "backend cpu: unavailable: the compiled extension is not installed; " in text
    assert "backend reference: available\n" in text
    assert "instruction set" not in text


def test_python_m_prints_the_configuration(run_python):
    text = run_python("import runpy; runpy.run_module('ragsys_kernels', run_name='__main__')").stdout
    assert text.startswith(f"ragsys_kernels {rk.__version__}\n")


def test_python_m_with_arguments_is_the_command_line(run_python):
    pytest.importorskip("typer")
    code = (
        "import runpy, sys; sys.argv = ['ragsys_kernels', {}]; runpy.run_module('ragsys_kernels', run_name='__main__')"
    )
    assert run_python(code.format("'--version'")).stdout == f"ragsys_kernels {rk.__version__}\n"
    wrong = run_python(code.format("'comapre'"), check=False)
    assert wrong.returncode == 2
    assert "No such command 'comapre'" in wrong.stderr


@pytest.mark.parametrize("module", ["ragsys_kernels.__main__", "ragsys_kernels.cli.__main__"])
def test_an_import_of_main_runs_nothing(run_python, module):
    if module.startswith("ragsys_kernels.cli"):
        pytest.importorskip("typer")
    code = f"import sys; sys.argv = ['pytest', '--no-such-option']; import {module}; print('imported')"
    assert run_python(code).stdout == "imported\n"


class OnDevice:
    """An array of a library that is not NumPy, on a device that is not the CPU."""

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, **_):
        raise AssertionError("must not be read")


def test_arrays_on_another_device_are_refused(backend):
    problem = {**testing.selection_problem(2, 8, 3, 5), "queries": OnDevice()}
    message = "mmr: all arrays must be on one device, got queries on cuda:0, embeddings on cpu, candidates on cpu"
    with pytest.raises(ValueError, match=f"^{message}$"):
        rk.mmr(**problem, backend=backend)
    message = f"mmr: backend '{backend}' was requested but cannot run here: the arrays are on 'cuda:0'. Available "
    with pytest.raises(rk.BackendUnavailableError, match=f"^{message}"):
        rk.mmr(OnDevice(), OnDevice(), 2, backend=backend)
    if _dispatch.why_not("triton") and _dispatch.why_not("cuda"):
        message = "mmr: no backend runs on arrays on 'cuda:0': triton: .+; cuda: .+"
        with pytest.raises(rk.BackendUnavailableError, match=f"^{message}$"):
            rk.mmr(OnDevice(), OnDevice(), 2)


def test_torch_tensors_without_memory_are_refused():
    torch = pytest.importorskip("torch")
    nothing = torch.zeros(3, 4, device="meta")
    with pytest.raises(rk.BackendUnavailableError, match="arrays on 'meta'"):
        rk.mmr(nothing, nothing, 2)


def test_environment_is_read_in_one_place():
    """Passing the whole environment on to another process is not reading it."""
    package = Path(rk.__file__).parent
    readers = [path.name for path in package.rglob("*.py") if re.search(r"environ[.\[]|getenv", path.read_text())]
    assert readers == ["env.py"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("backend", "library"), [("triton", "triton"), ("triton", "torch"), ("cuda", "cupy")])
def test_missing_library_of_a_device_is_named_with_its_installation(run_python, backend, library):
    """Everything else works without it."""
    # Triton is looked for after torch, which may be missing where the tests run.
    named = "torch" if backend == "triton" and importlib.util.find_spec("torch") is None else library
    run_python(f"""
import sys
import numpy as np
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {library!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
import ragsys_kernels as rk
rows = np.eye(3, dtype=np.float32)
rk.mmr(rows, rows, 2)
rk.show_config()
try:
    rk.mmr(rows, rows, 2, backend={backend!r})
except rk.BackendUnavailableError as error:
    assert {named!r} + " is not installed: pip install '" in str(error), error
    assert "[cuda]'" in str(error), error
else:
    raise AssertionError("no error")
""")


def test_backend_of_a_device_says_what_is_missing():
    """Arrays of the host, and a torch without GPUs or a machine without a driver."""
    rows = np.eye(3, dtype=np.float32)
    for backend in _dispatch.DEVICE_BACKENDS:
        reason = _dispatch.why_not(backend) or "the arrays are on 'cpu'"
        message = (
            f"mmr: backend '{backend}' was requested but cannot run here: {reason}. Available for arrays on 'cpu': "
        )
        with pytest.raises(rk.BackendUnavailableError, match=f"^{re.escape(message)}"):
            rk.mmr(rows, rows, 2, backend=backend)
