"""The backends under test, Hypothesis profiles, and Python in a sub-process."""

import gc
import itertools
import os
import signal
import subprocess
import sys
import warnings
import zlib
from contextlib import contextmanager
from pathlib import Path

# Haystack reports its use over the network unless told not to before it is imported.
os.environ.setdefault("HAYSTACK_TELEMETRY_ENABLED", "False")
# Read when torch, FAISS or NumPy is loaded: the tests run in two processes, and with two threads in each they take the
# cores from each other, which doubled the time of what multiplies matrices. `make test-blas` sets another number.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# What a test names is not looked for on the Hub.
os.environ["HF_HUB_OFFLINE"] = "1"

# Of the benchmarks, which are no part of the package.
sys.path.append(str(Path(__file__).parents[1]))

import hypothesis
import numpy as np
import pytest
from backends import missing

import ragsys_kernels as rk
from ragsys_kernels import _dispatch
from ragsys_kernels._base import arrays as _arrays
from ragsys_kernels.selection import relevance

# A shell has what it starts in the background ignore this signal, which tests send.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Waits for the disk a thousand times, for a loss of power that no test has.
os.fsync = lambda descriptor: None

# The same examples at every run; --hypothesis-profile=search looks for new ones.
hypothesis.settings.register_profile("repeatable", max_examples=20, deadline=None, derandomize=True)
hypothesis.settings.register_profile("search", max_examples=1000, deadline=None)
hypothesis.settings.load_profile("repeatable")


def pytest_addoption(parser):
    parser.addoption("--part", metavar="I/N", help="run the I-th of N parts of the tests, I from 0")


def pytest_configure(config):
    """Let the second of two processes read the tests from the other end: each compiles half of what both import."""
    if os.environ.get("PYTEST_XDIST_WORKER", "gw0") != "gw0" and config.args == config.getini("testpaths"):
        ignored = {Path(path).resolve() for path in config.getoption("ignore") or ()}
        folders = sorted(Path(__file__).resolve().parent.glob("[a-z]*/"), reverse=True)
        config.args = [str(folder) for folder in folders if folder not in ignored]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark what is not in a sample as slow. Files with slow tests go first: two processes then end together."""
    begun = set()
    for item in items:
        sampled, function = item.get_closest_marker("sampled"), (item.path, getattr(item, "originalname", item.name))
        fewer = 4 if SCORERS[-1] == "triton" and "scorer" in item.fixturenames else 1  # the interpreter takes its time
        if sampled and function in begun and zlib.crc32(item.nodeid.encode()) % (fewer * sampled.args[0]):
            item.add_marker("slow")
        begun.add(function)
    if part := config.getoption("--part"):
        index, parts = map(int, part.split("/"))
        others = [item for item in items if zlib.adler32(item.nodeid.encode()) % parts != index]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if zlib.adler32(item.nodeid.encode()) % parts == index]
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path not in slow, item.path))


def pytest_collection_finish():
    gc.freeze()  # what is imported is no garbage, and takes a second to go through


@pytest.fixture(autouse=True)
def looks_at_relevance():
    """Every test begins as a process does: of calls of one query only the first are looked at."""
    relevance._looks = itertools.count()


@pytest.fixture(scope="session", params=_dispatch.BACKENDS["selection"])
def backend(request):
    """Every backend; one that cannot run is skipped, or fails if RAGSYS_KERNELS_TEST_BACKENDS names it."""
    reason = _dispatch.why_not(request.param)
    if reason is not None:
        missing(request.param, reason)
    return request.param


# Backends of scoring; the compiled one with every instruction set.
COMPILED_SCORERS = ("cpu-base", "cpu-avx2", "cpu-avx512")
SCORERS = ("reference", "numpy", *COMPILED_SCORERS)
if os.environ.get("TRITON_INTERPRET") == "1":  # such a process is there for Triton: on host arrays, and as on a device
    COMPILED_SCORERS, SCORERS = (), ("triton-device", "triton")


@contextmanager
def scoring_with(scorer):
    if scorer.startswith("triton"):
        import scoring_device

        with scoring_device.interpreted_backend(scorer):
            yield scorer
        return
    name, _, isa = scorer.partition("-")
    reason = _dispatch.why_not(name)
    if reason is not None:
        missing(name, reason)
    if isa and isa not in _dispatch.extension().SUPPORTED_ISAS:
        pytest.skip(f"instruction set {isa} is not here")
    with pytest.MonkeyPatch.context() as patch:
        if isa:
            patch.setenv("RAGSYS_KERNELS_ISA", isa)
        yield name


def each_of(scorers):
    @pytest.fixture(scope="module", params=scorers)
    def scorer(request):
        with scoring_with(request.param) as name:
            yield name

    return scorer


# Every backend of scoring, the compiled one with each instruction set of this processor; that one alone.
scorer = each_of(SCORERS)
compiled_scorer = each_of(COMPILED_SCORERS)


@pytest.fixture(scope="session")
def compiled():
    """The compiled module, for tests of what only it does."""
    reason = _dispatch.why_not("cpu")
    if reason is not None:
        missing("cpu", reason)
    return _dispatch.extension()


@pytest.fixture(scope="module", params=["base", "avx2", "avx512"])
def isa(request, compiled):
    """The compiled kernels with each instruction set of this processor; its number."""
    if request.param not in compiled.SUPPORTED_ISAS:
        pytest.skip(f"instruction set {request.param} is not here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAGSYS_KERNELS_ISA", request.param)
        yield compiled.ISAS.index(request.param)


@pytest.fixture
def place(monkeypatch):
    """CPU tensors are those of a device "cuda:0", whose values may only be looked at through `_arrays.to_host`."""
    torch = pytest.importorskip("torch")
    device_of, to_host = _arrays.device_of, _arrays.to_host
    monkeypatch.setattr(_arrays, "device_of", lambda x: "cuda:0" if isinstance(x, torch.Tensor) else device_of(x))

    def brought(x):
        if not isinstance(x, torch.Tensor):
            return to_host(x)
        return x.view(torch.int16).numpy().view(np.uint16) if x.dtype is torch.bfloat16 else x.numpy()

    monkeypatch.setattr(_arrays, "to_host", brought)
    torch_place = _arrays.Torch("cpu")
    monkeypatch.setattr(_arrays, "place_of", lambda device, *_: _arrays.HOST if device == "cpu" else torch_place)
    return torch_place


@pytest.fixture(scope="session")
def run_python():
    """Runs code in a fresh interpreter that finds the package where this one did (or in ``package``)."""

    def run(code, *arguments, package=None, check=True, **environment):
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAGSYS_KERNELS_")}
        where = str(package or Path(rk.__file__).parents[1])
        result = subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments)],
            env={**inherited, "PYTHONPATH": where, **environment},
            cwd=where,
            capture_output=True,
            text=True,
            timeout=300,  # it hangs
        )
        if check:
            assert result.returncode == 0, result.stdout + result.stderr
        return result

    return run


@pytest.fixture
def command(monkeypatch, capfd):
    """Runs the command line in this process, in a folder; returns its status and what it printed, as a process's."""
    cli = pytest.importorskip("ragsys_kernels.cli")

    def run(folder, *arguments):
        capfd.readouterr()
        with monkeypatch.context() as patch, warnings.catch_warnings():
            patch.chdir(folder)
            patch.setenv("NO_COLOR", "1")
            patch.setenv("COLUMNS", "100")
            patch.setattr(sys, "argv", ["ragsys-kernels", *map(str, arguments)])
            patch.setattr(cli, "_leave_threads", lambda: None)  # other tests have some
            warnings.resetwarnings()  # to Python's own, from errors
            for hidden in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
                warnings.simplefilter("ignore", hidden)
            with pytest.raises(SystemExit) as ended:
                cli.main()
        printed = capfd.readouterr()
        return subprocess.CompletedProcess(arguments, ended.value.code or 0, printed.out, printed.err)

    return run
