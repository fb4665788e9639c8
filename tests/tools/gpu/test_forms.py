"""The small problems of `benchmarks/stages`: each form reaches its own kernels, and together they reach all of them.

Launches are recorded and not made, so that problems have their true sizes: which kernels a call launches is decided by
shapes, types and options alone. `picks` and `sanitize` have no problems but these.
"""

import importlib
import re
from pathlib import Path

import interpreted
import pytest
from cuda_on_cpu import emulator

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from benchmarks.stages import calls  # noqa: E402
from benchmarks.stages.picks import parts  # noqa: E402
from benchmarks.stages.problems import forms  # noqa: E402
from ragsys_kernels import _dispatch  # noqa: E402
from ragsys_kernels._base import arrays  # noqa: E402
from ragsys_kernels._gpu import cuda_module  # noqa: E402

PACKAGE = Path(cuda_module.__file__).parents[1]
FEW = pytest.mark.parametrize("few", [True, False], ids=["few", "all"])

# What each problem of a form launches: a pattern of a kernel's name, its arguments that are so, and what it must not
# launch, which is how another form would do it.
OWN = {
    "triton proof": ("proof_product_kernel", {}, ""),  # dense kernels too, for queries that are left
    "triton search": ("filter_product_kernel", {}, "proof_.*|corpus_.*"),
    "triton gram": ("select_gram_kernel", {}, "select_stream.*|select_bounds.*"),
    "triton estimates, float32=estimates": ("select_estimates_kernel", {}, "select_gram.*"),
    "triton bounds": ("select_bounds_kernel", {}, ""),
    "triton stream": ("select_stream_kernel", {}, ""),
    "triton dense": ("corpus_step_kernel", {}, "proof_.*|filter_.*"),
    "triton dense, corpus=dense": ("corpus_step_kernel", {}, "proof_.*|filter_.*"),
    "triton search, search=values": ("corpus_found_kernel", {}, "filter_.*"),
    "triton logits": ("logprob_logits_kernel", {}, ""),
    "triton linear": ("logprob_linear_kernel", {}, ""),
    "cuda gram": (r"rsk_\w+_gram_\w+", {}, ""),
    "cuda resident": (r"rsk_\w+_resident_\w+", {}, ""),
    "cuda streamed": (r"rsk_\w+_streamed_\w+", {}, ""),
}

# What no call of these reaches: it puts together the splits of calls that end at partials.
UNREACHED = {"logprob_merge_kernel"}


class Module:
    """CUDA kernels that are not launched."""

    def __init__(self, launched):
        self.launched = launched

    def max_shared(self, like):
        return emulator.MAX_SHARED

    def capability(self, like):
        return 90

    def launch(self, kernel, **how):
        self.launched.append((kernel, {}))


@pytest.fixture
def launched(monkeypatch):
    """What calls launch: for each problem of a form the kernels, with their arguments where these are Triton's."""
    seen, place_of, there = [], arrays.place_of, arrays.Torch("cpu")
    choose = _dispatch.choose

    def chosen(op, family, device, backend, *rest, **more):
        if backend == "cuda":
            return backend, importlib.import_module(f"ragsys_kernels.{family}.cuda.backend")
        return choose(op, family, device, backend, *rest, **more)

    monkeypatch.setattr(_dispatch, "choose", chosen)
    monkeypatch.setattr(cuda_module, "load", lambda source: Module(seen))
    # Scoring has a way of its own for tensors of a device.
    backends = _dispatch.DEVICE_BACKENDS["selection"]
    monkeypatch.setattr(arrays, "place_of", lambda device, *of: there if of[0] in backends else place_of(device, *of))
    executor = importlib.import_module("triton.runtime.interpreter").GridExecutor
    monkeypatch.setattr(executor, "__call__", lambda this, *args, **kwargs: seen.append((this.fn.__name__, kwargs)))

    def of(form):
        found = {}
        for small in form.problems:
            seen.clear()
            calls.call_of(form, small)[1]()
            found[small] = list(seen)
        return found

    return of


def names_of(launches):
    return {name for listed in launches.values() for name, _ in listed}


@FEW
def test_each_triton_and_cuda_problem_takes_the_path_of_its_form(launched, few):
    every = [form for backend in ("triton", "cuda") for form in forms(backend, few)]
    assert {form.name for form in every} == OWN.keys()
    for form in every:
        wanted, arguments, other = OWN[form.name]
        for small, listed in launched(form).items():
            own = [given for name, given in listed if re.fullmatch(wanted, name)]
            assert own, f"{form.name}, {small.name}: {[name for name, _ in listed]}"
            for given in own:
                assert arguments.items() <= given.items(), f"{form.name}, {small.name}"
            assert not [name for name, _ in listed if other and re.fullmatch(other, name)], f"{form.name}, {small.name}"


def defined():
    """The names of all kernels of Triton and of CUDA C++."""
    found = set()
    for path in sorted(PACKAGE.glob("*/triton/*.py")):
        text = path.read_text(encoding="utf-8")
        found |= set(re.findall(r"^def (\w+_kernel)\(", text, re.M))
    found |= set(re.findall(r"^def (\w+_kernel)\(", (PACKAGE / "selection/triton/launch.py").read_text("utf-8"), re.M))
    for source in cuda_module.sources():
        found |= set(emulator.kernels(source))
    return found


@pytest.mark.slow
def test_all_triton_and_cuda_kernels_are_reached(launched):
    reached = set().union(*(names_of(launched(form)) for backend in ("triton", "cuda") for form in forms(backend)))
    assert defined() - reached == UNREACHED


def kind_of(kernel):
    """A CUDA kernel without the type and the size that it is for."""
    return re.sub(r"_(float|int|b?f)\d+|_bfloat16|_\d+", "", kernel)


def test_few_problems_reach_every_kind_of_triton_and_cuda_kernel(launched):
    every = (form for backend in ("triton", "cuda") for form in forms(backend, True))
    reached = set().union(*(names_of(launched(form)) for form in every))
    assert {kind_of(name) for name in defined()} - {kind_of(name) for name in reached} == UNREACHED


@FEW
def test_constants_of_triton_kernels_have_all_that_decides_the_path(launched, few):
    """Variants within a kernel: parts of the query in the tile or beside it, peaks, packs, ranks, slots, all types."""
    found = {form.name: launched(form) for form in forms("triton", few)}

    def values(form, kernel, name):
        every = (given for listed in found[form].values() for at, given in listed if at == kernel)
        return {given[name] is not None if hasattr(given[name], "shape") else given[name] for given in every}

    assert {0, 2} <= values("triton gram", "select_gram_kernel", "PARTS")
    assert {True, False} <= values("triton gram", "select_gram_kernel", "MATRIX")
    assert {32, 64, 128} <= values("triton gram", "select_gram_kernel", "SLOTS")
    assert {None, True} <= values("triton proof", "proof_product_kernel", "peaks")
    assert {None, True} <= values("triton search", "filter_product_kernel", "bars")


@FEW
def test_problems_have_ties_weights_and_types(few):
    for backend in ("triton", "cuda"):
        for form in forms(backend, few):
            selections = [small for small in form.problems if small.op in calls.SELECTED]
            if not selections:
                continue
            assert any("duplicates" in small.name or "integers" in small.name for small in selections), form.name
    (proof,) = (form for form in forms("triton", few) if form.name == "triton proof")
    weights = {float(small.make().get("lambda_d", 0.75)) for small in proof.problems}
    assert {0.3, 0.75} <= weights
    assert {small.make()["k"] for small in forms("triton")[0].problems} == {2, 3, 4}
    dtypes = {small.dtype for form in forms("cuda") for small in form.problems}
    assert dtypes == {"float16", "bfloat16", "int8"}


def test_picks_and_sanitizers_have_all_triton_and_cuda_problems():
    for backend in ("triton", "cuda"):
        for few in (True, False):
            every = [(form.name, number) for form in forms(backend, few) for number in range(len(form.problems))]
            assert [unit for form in forms(backend, few) for units in parts(form) for unit in units] == every
            names = [f"{form.name}: {small.name}" for form in forms(backend, few) for small in form.problems]
            assert len(set(names)) == len(names)
        listed = [name for name, _ in calls.calls(backend, few=True)]
        assert listed == [f"{form.name}: {small.name}" for form in forms(backend, True) for small in form.problems]


@pytest.mark.slow
def test_proofs_of_triton_leave_no_query_and_every_query():
    """Problems of which the draft is proven at once, and with so many copies of the nearest row that none is."""
    import proof_problems  # makes the process one that interprets

    (form,) = (form for form in forms("triton", True) if form.name == "triton proof")
    left = {}
    for small in form.problems:
        if re.search(r"duplicates$|copies$", small.name):
            with proof_problems.counted() as counts:
                arguments, call = calls.call_of(form, small)
                calls.check(small, arguments, call())
            ((first, *_, last),) = counts
            assert first == len(arguments["queries"])
            left["copies" in small.name] = last
    assert left == {False: 0, True: 1}


interpreted.elsewhere(globals())
