"""Which backend runs, what is said where it cannot, and what an import costs."""

import importlib
import re
import runpy
import shutil
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels import _dispatch, _info, testing
from ragsys_kernels._gpu import cuda_module
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
    every = "'auto', 'cpu', 'numpy', 'reference', 'triton', 'cuda'"
    rows, corpus = problem["embeddings"], rk.Corpus(problem["embeddings"])
    calls = (
        lambda: rk.mmr(**problem),
        lambda: rk.mmr(None, None, 2, similarity=np.ones((1, 3, 3)), relevance=np.ones((1, 3))),
        lambda: rk.token_logprobs(np.zeros((1, 3), np.float32), [0]),
        lambda: rk.duplicates(rows, 0.9),
        lambda: corpus.search(problem["queries"], 2),
        lambda: corpus.select(problem["queries"], 2, pool="certified"),
        _info.active,
    )
    for call in calls:
        with pytest.raises(ValueError, match=f"^RAGSYS_KERNELS_BACKEND must be one of {every}, got 'tpu'$"):
            call()


@pytest.mark.parametrize("named", ["numpy", "cuda"])
def test_operations_without_the_backend_of_the_environment_choose_their_own(monkeypatch, named):
    """One process has both selections and log-probabilities; and what has kernels on the host alone."""
    problem = testing.selection_problem(2, 8, 3, 5)
    corpus, pairs = rk.Corpus(problem["embeddings"]), np.ones((1, 3, 3), np.float32)
    calls = {
        "mmr": lambda: rk.mmr(**problem).indices,
        "search": lambda: corpus.search(problem["queries"], 2).indices,
        "similarity": lambda: rk.mmr(None, None, 2, similarity=pairs, relevance=pairs[:, 0]).indices,
        "certified": lambda: corpus.select(problem["queries"], 2, pool="certified").indices,
        "gist": lambda: rk.gist(problem["queries"], problem["embeddings"], 2).indices,
        "duplicates": lambda: rk.duplicates(problem["embeddings"], 0.9).kept,
        "scoring": lambda: rk.token_logprobs(np.eye(2, 4, dtype=np.float32), [0, 1]),
    }
    without = {"numpy": {*calls} - {"scoring"}, "cuda": {"scoring", "duplicates", "gist"}}[named]
    expected = {name: call() for name, call in calls.items()}
    monkeypatch.setenv("RAGSYS_KERNELS_BACKEND", named)
    if named == "cuda":  # as on a machine that has it
        why_not = _dispatch.why_not
        monkeypatch.setattr(_dispatch, "why_not", lambda name: None if name == "cuda" else why_not(name))
    for name, call in calls.items():
        if name in without or named == "numpy":
            np.testing.assert_allclose(call(), expected[name], rtol=1e-6, err_msg=name)
            continue
        with pytest.raises((rk.BackendUnavailableError, ValueError), match="'cuda' of RAGSYS_KERNELS_BACKEND"):
            call()


ABSENT = (
    "the compiled extension is not installed; install a C++ compiler (Debian and Ubuntu: apt-get install g++) and "
    "reinstall, with RAGSYS_KERNELS_REQUIRE_EXT=1 to see what fails"
)
PROBLEM = """
import os, warnings
import numpy as np
import ragsys_kernels as rk
from ragsys_kernels import testing
problem, logits = testing.selection_problem(2, 8, 3, 5), np.zeros((2, 4), np.float32)
"""
WITHOUT_EXTENSION = """
def print_error(call):
    try:
        call()
    except rk.BackendUnavailableError as error:
        print(error)

warnings.simplefilter("error")  # what was asked for does not warn
rk.mmr(**problem, backend="reference")
for backend in ("numpy", "reference"):
    rk.answer_logprobs(logits, targets=[0, 3], backend=backend)
os.environ["RAGSYS_KERNELS_BACKEND"] = "reference"
rk.vrsd(**problem)
os.environ["RAGSYS_KERNELS_BACKEND"] = "cpu"
print_error(lambda: rk.mmr(**problem))
del os.environ["RAGSYS_KERNELS_BACKEND"]
print_error(lambda: rk.mmr(**problem, backend="cpu"))
print_error(lambda: rk.answer_logprobs(logits, targets=[0, 3], backend="cpu"))
corpus = rk.Corpus(problem["embeddings"])
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(3):
        testing.check_selection("mmr", problem, rk.mmr(**problem))
        testing.check_selection("vrsd", problem, rk.vrsd(**problem))
        corpus.search(problem["queries"], 2)
        assert np.allclose(rk.token_logprobs(logits, [0, 3]), -np.log(4))
for warning in caught:
    print(warning.category.__name__, warning.message, warning.filename, sep=": ")
"""


def test_without_the_extension_calls_fall_back_with_one_warning_each(without_extension, run_python):
    """Which points at the call; the compiled kernels are an error where they were asked for."""
    lines = run_python(PROBLEM + WITHOUT_EXTENSION, package=without_extension).stdout.splitlines()
    refused = f"backend 'cpu' was requested but cannot run here: {ABSENT}. Available for arrays on 'cpu':"
    slow = "running the NumPy reference, which is slow"
    assert lines == [
        f"mmr: {refused} 'reference'".replace("'cpu'", "'cpu' of RAGSYS_KERNELS_BACKEND", 1),
        f"mmr: {refused} 'reference'",
        f"answer_logprobs: {refused} 'numpy', 'reference'",
        *(f"RuntimeWarning: {op}: {slow}: {ABSENT}: <string>" for op in ("mmr", "vrsd", "search")),
        f"RuntimeWarning: token_logprobs: running NumPy, which is slower than the compiled kernels: {ABSENT}: <string>",
    ]


BROKEN = {  # a library that is none, and an import that fails within a module that is there
    f"_C{sysconfig.get_config_var('EXT_SUFFIX')}": ("not a library", "_C"),
    "_C.py": ("import a_library_that_is_not_there\n", "No module named 'a_library_that_is_not_there'"),
}


@pytest.mark.parametrize("file", BROKEN)
def test_a_broken_extension_is_not_taken_for_its_absence(without_extension, run_python, tmp_path, file):
    shutil.copytree(without_extension, tmp_path, dirs_exist_ok=True)
    text, reason = BROKEN[file]
    (tmp_path / "ragsys_kernels" / file).write_text(text)
    code = """
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    rk.mmr(**problem)
print(caught[0].message)
try:
    rk.mmr(**problem, backend="cpu")
except rk.BackendUnavailableError as error:
    print(error)
"""
    warned, refused = run_python(PROBLEM + code, package=tmp_path).stdout.splitlines()
    broken = f"the compiled extension is broken: .*{reason}"
    assert re.match(f"mmr: running the NumPy reference, which is slow: {broken}", warned)
    assert re.match(f"mmr: backend 'cpu' was requested but cannot run here: {broken}", refused)


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


HEAVY = ("torch", "pyarrow", "typer", "rich", "triton", "cupy", "faiss", "transformers", "ray", "scipy", "click")


IMPORT = f"""
import os, sys, time
begin = time.process_time()
import numpy as np
between = time.process_time()
import ragsys_kernels as rk
share = (time.process_time() - between) / (between - begin)
assert "ragsys_kernels.testing" not in sys.modules
for name in ("BACKEND", "ISA", "NUM_THREADS"):
    assert os.environ.pop("RAGSYS_KERNELS_" + name) == "x"
rk.Corpus(np.eye(3, dtype=np.float32)).select(np.eye(3, dtype=np.float32), 2, pool=None)
assert not set(sys.modules) & set({HEAVY}), set(sys.modules) & set({HEAVY})
from ragsys_kernels import *
assert mmr is rk.mmr and not hasattr(rk, "mnr")
print(share)
"""


def test_import_takes_less_time_than_that_of_numpy_and_reads_no_setting(run_python):
    """A twentieth of it, about. A bad setting is an error of the call that uses it, and a selection imports no heavy
    module either."""
    bad = {"RAGSYS_KERNELS_BACKEND": "x", "RAGSYS_KERNELS_ISA": "x", "RAGSYS_KERNELS_NUM_THREADS": "x"}
    assert any(float(run_python(IMPORT, **bad).stdout) < 0.5 for _ in range(5))


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


def test_show_config_without_the_extension(monkeypatch):
    monkeypatch.setattr(_dispatch, "_extension", lambda: (None, "it is not installed"))
    lines = _info.config().splitlines()
    assert {"backend cpu: unavailable: it is not installed", "backend reference: available"} <= set(lines)
    assert not any(line.startswith("instruction set") for line in lines)


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


def test_python_m_prints_the_configuration_and_with_arguments_is_the_command_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["ragsys_kernels"])
    runpy.run_module("ragsys_kernels", run_name="__main__")
    assert capsys.readouterr().out.startswith(f"ragsys_kernels {rk.__version__}\n")
    pytest.importorskip("typer")
    for argument, status, told in (("--version", 0, rk.__version__), ("comapre", 2, "No such command 'comapre'")):
        monkeypatch.setattr(sys, "argv", ["ragsys_kernels", argument])
        with pytest.raises(SystemExit) as ended:
            runpy.run_module("ragsys_kernels", run_name="__main__")
        assert (ended.value.code or 0) == status
        assert told in "".join(capsys.readouterr())


@pytest.mark.parametrize("module", ["ragsys_kernels.__main__", "ragsys_kernels.cli.__main__"])
def test_an_import_of_main_runs_nothing(monkeypatch, capsys, module):
    if module.startswith("ragsys_kernels.cli"):
        pytest.importorskip("typer")
    monkeypatch.setattr(sys, "argv", ["pytest", "--no-such-option"])
    runpy.run_module(module, run_name="imported")
    assert capsys.readouterr().out == ""


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
    with pytest.raises(ValueError, match=r"^token_logprobs: all arrays must be on one device, got logits on cuda:0, "):
        rk.token_logprobs(OnDevice(), [0])
    if _dispatch.why_not("triton") and _dispatch.why_not("cuda"):
        message = "no backend runs on arrays on 'cuda:0': triton: .+; cuda: .+"
        with pytest.raises(rk.BackendUnavailableError, match=f"^mmr: {message}$"):
            rk.mmr(OnDevice(), OnDevice(), 2)
        with pytest.raises(rk.BackendUnavailableError, match=r"^token_logprobs: no backend runs .+: triton: .+$"):
            rk.token_logprobs(OnDevice(), OnDevice(), temperature=OnDevice())


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


@pytest.mark.parametrize(("backend", "library"), [("triton", "triton"), ("triton", "torch"), ("cuda", "cupy")])
def test_missing_library_of_a_device_is_named_with_its_installation(monkeypatch, backend, library):
    """Everything else works without it: an import brings none of them."""

    def imported(name):
        if name == library:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(_dispatch, "imported", imported)
    monkeypatch.setattr(cuda_module, "imported", imported)
    monkeypatch.setattr(_dispatch, "_why_not_triton", _dispatch._why_not_triton.__wrapped__)
    monkeypatch.setattr(cuda_module, "why_not", cuda_module.why_not.__wrapped__)
    rows = np.eye(3, dtype=np.float32)
    with pytest.raises(rk.BackendUnavailableError, match=f"{library} is not installed: pip install '.*\\[cuda\\]'"):
        rk.mmr(rows, rows, 2, backend=backend)
    of = " (selection)" if backend == "cuda" else ""
    assert f"backend {backend}{of}: unavailable: {library} is not installed: " in _info.config()


def test_backend_of_a_device_says_what_is_missing():
    """Arrays of the host, and a torch without GPUs or a machine without a driver."""
    rows = np.eye(3, dtype=np.float32)
    for backend in _dispatch.DEVICE_BACKENDS["selection"]:
        reason = _dispatch.why_not(backend) or "the arrays are on 'cpu'"
        message = (
            f"mmr: backend '{backend}' was requested but cannot run here: {reason}. Available for arrays on 'cpu': "
        )
        with pytest.raises(rk.BackendUnavailableError, match=f"^{re.escape(message)}"):
            rk.mmr(rows, rows, 2, backend=backend)


@pytest.mark.parametrize("op", ["token_logprobs", "top_logprobs"])
def test_log_probabilities_by_cuda_are_refused_by_name(op):
    rest = {"token_logprobs": {"targets": [0]}, "top_logprobs": {"k": 1}}[op]
    reason = "log-probabilities have no kernels in CUDA C\\+\\+; Triton has them"
    message = f"^{op}: backend 'cuda' was requested but cannot run here: {reason}. Available for arrays on 'cpu': 'cpu'"
    with pytest.raises(rk.BackendUnavailableError, match=message):
        getattr(rk, op)(np.zeros((1, 3), np.float32), **rest, backend="cuda")
