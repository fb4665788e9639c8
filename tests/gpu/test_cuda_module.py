"""CUDA sources: where they are found, what compiles them, and how a driver that is not there launches kernels."""

import importlib
import importlib.util
import itertools
import os
import re
import struct
import sys
import threading
import types
from pathlib import Path

import gpu_budgets
import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels._base import extras as _extras
from ragsys_kernels._base import sources
from ragsys_kernels._gpu import cuda_module, driver
from ragsys_kernels._gpu.driver import DriverError

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "csrc" / "cuda"
# The oldest that NVRTC 13 has, those of the binaries, and once with the assembler; each takes seconds of a source. nvcc
# compiled all but the first for the ledger, whose rows are held to the sources: one is enough unless all is compiled.
TARGETS = ("compute_80",)
if os.environ.get("RAGSYS_KERNELS_TEST_COMPILE") == "all":
    TARGETS += ("compute_75", "sm_90", "compute_100")


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Nothing found or loaded yet."""
    monkeypatch.setattr(cuda_module, "_loaded", {})
    for cached in (cuda_module.why_not, cuda_module._attribute):
        cached.cache_clear()
    yield
    for cached in (cuda_module.why_not, cuda_module._attribute):
        cached.cache_clear()


# --- Sources.


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package folder with a working tree round it, both empty."""
    folder = tmp_path / "ragsys_kernels"
    folder.mkdir()
    monkeypatch.setattr(cuda_module, "_PACKAGE", folder)
    return folder


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_cuh", ".cuh").replace("_cu", ".cu")).write_text(text)
    return folder


def test_sources_come_from_the_package_before_the_tree(package):
    tree = write(package.parent / "csrc" / "cuda", one_cu="tree", two_cu="tree", shared_cuh="")
    assert cuda_module.sources() == ["one", "two"]
    assert cuda_module.source_path("one") == tree / "one.cu"
    installed = write(package / "_cuda_src", one_cu="installed")
    assert cuda_module.sources() == ["one"]
    assert cuda_module.source_path("one") == installed / "one.cu"


def test_error_names_both_places(package):
    assert cuda_module.sources() == []
    for find in (cuda_module.source_path, cuda_module.load):
        with pytest.raises(FileNotFoundError) as caught:
            find("lost")
        text = str(caught.value)
        assert text.startswith("the CUDA source 'lost' is neither ")
        assert str(package / "_cuda_src" / "lost.cu") in text
        assert str(package.parent / "csrc" / "cuda" / "lost.cu") in text


def test_text_of_a_source_has_each_of_its_headers_once(package):
    folder = write(
        package / "_cuda_src",
        one_cu='#include "a.cuh"\n#include "b.cuh"\nint one;\n',
        a_cuh="#pragma once\nint a;\n",
        b_cuh='#pragma once\n  # include "a.cuh"\nint b;\n',
    )
    text = cuda_module.source("one")
    numbered, line, place = [], 0, ""
    for row in text.splitlines():
        if row.startswith("#line "):
            line, place = int(row.split()[1]), row.split()[2].strip('"')
            continue
        if row:
            numbered.append((row, place, line))
        line += 1
    assert numbered == [("int a;", "a.cuh", 2), ("int b;", "b.cuh", 3), ("int one;", "one.cu", 3)]
    write(folder, a_cuh="int other;\n")  # which a cache must see
    assert "int other;" in cuda_module.source("one")


def test_every_source_of_the_tree_is_found_and_whole():
    assert cuda_module.sources() == sorted(path.stem for path in SOURCES.glob("*.cu"))
    for name in cuda_module.sources():
        text = cuda_module.source(name)
        assert "#include" not in text
        assert 'extern "C" __global__' in text


def binary(package, content=b"", name="one"):
    """Puts a binary of a source in its place: of the source as it is."""
    folder = write(package / "_cuda_bin")
    path = folder / sources.binary_of(cuda_module.source_path(name))
    path.write_bytes(content)
    return path


def test_compiled_form_is_known_by_the_digest_of_its_sources(package):
    """Not by times of files, which are arbitrary in a copy."""
    tree = write(package.parent / "csrc" / "cuda", one_cu='#include "shared.cuh"\n', shared_cuh="int a;\n")
    assert cuda_module.built_path("one") is None
    assert cuda_module.described() == "compiled when first used"
    first = binary(package)
    for time in (1, 2**32):
        os.utime(tree / "shared.cuh", (time, time))
        assert cuda_module.built_path("one") == first
    write(tree, shared_cuh="int a;  // a comment\n")
    assert cuda_module.built_path("one") == first
    write(tree, shared_cuh="int b;\n")
    assert cuda_module.built_path("one") is None
    other = "compiled ahead of time from other sources, so not used: one"
    assert cuda_module.described() == f"{other}; compiled when first used"
    second = binary(package)
    assert second != first
    assert cuda_module.built_path("one") == second
    assert cuda_module.described() == "compiled ahead of time: one"
    write(tree, two_cu="")
    assert cuda_module.described() == "compiled ahead of time: one; the others compiled when first used"


def test_compiled_form_without_a_digest_is_not_used_and_named(package):
    write(package.parent / "csrc" / "cuda", one_cu="")
    write(package / "_cuda_bin")
    (package / "_cuda_bin" / "one.fatbin").write_bytes(b"")
    assert cuda_module.built_path("one") is None
    assert "from other sources, so not used: one" in cuda_module.described()


def test_options_are_part_of_the_digest(package, monkeypatch):
    write(package.parent / "csrc" / "cuda", one_cu="")
    binary(package)
    monkeypatch.setattr(sources, "CUDA_OPTIONS", ("-std=c++17",))
    assert cuda_module.built_path("one") is None


# --- Compilers.


def nvrtc():
    """CuPy's binding, which compiles without a driver, where its other ways do not."""
    if importlib.util.find_spec("cupy") is None:
        return None, "cupy is not installed"
    try:
        from cupy.cuda import nvrtc

        nvrtc.getVersion()
    except Exception as error:
        return None, f"no NVRTC: {error}"
    return nvrtc, ""


def spilled_in(cubin, target):
    """Kernels of a binary that have a stack, and how many bytes, beyond what is known of NVRTC."""
    pytest.importorskip("triton")  # has the tool
    resources = pytest.importorskip("benchmarks.gpu.resources")
    said = resources._run([resources._tool("cuobjdump"), "--dump-resource-usage", str(cubin)])
    stacks = re.findall(r"Function (\S+):\s+REG:\d+ STACK:(\d+)", said)
    assert stacks
    known = gpu_budgets.SPILLED_BY_NVRTC
    return {name: stack for name, stack in stacks if int(stack) > gpu_budgets.spilled(name, target, known)}


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", cuda_module.sources())
def test_nvrtc_compiles_every_source(name, target, tmp_path):
    compiler, reason = nvrtc()
    if compiler is None:
        pytest.skip(reason)
    program = compiler.createProgram(cuda_module.source(name), f"{name}.cu", [], [])
    try:
        compiler.compileProgram(program, [f"-arch={target}", *cuda_module.OPTIONS, "-Werror=all-warnings"])
        if target.startswith("sm_"):
            cubin = tmp_path / "kernel.cubin"
            cubin.write_bytes(compiler.getCUBIN(program) + b"\0")  # CuPy leaves out the last byte
            assert not spilled_in(cubin, target)
        else:
            assert f".target {target.replace('compute', 'sm')}" in str(compiler.getPTX(program))
    except compiler.NVRTCError:
        pytest.fail(compiler.getProgramLog(program))
    finally:
        compiler.destroyProgram(program)


# --- Arguments.


class Pointer:
    def __init__(self, ptr):
        self.ptr = ptr


class Fake:
    """CUDA as its driver, CuPy and torch show it: two devices, each with a current stream, and memory of a stream.

    A kernel that is launched on another device or stream than its arrays were made on fails, as it would race.
    """

    def __init__(self):
        fake = self
        self.device = 0  # CuPy's
        self.current = {0: 10, 1: 11}  # CuPy's current stream of each device
        self.memory = {}  # pointer: (device, stream)
        self.compiled, self.images, self.launches, self.limits, self.attribute_reads = [], [], [], {}, 0
        self.pointers = itertools.count(0x7F0000000000, 256)
        self.handles = {}  # handle: (device, name)
        self.error, self.capturing, self.capability, self.count = None, False, 90, 2
        self.slow = threading.Event()

        class Device:
            def __init__(self, number):
                self.id, self.previous = number, []

            def __enter__(self):
                self.previous.append(fake.device)
                fake.device = self.id

            def __exit__(self, *_):
                fake.device = self.previous.pop()

        class RawModule:
            def __init__(self, *, code, options, backend):
                self.code, self.options, self.backend = code, options, backend
                fake.slow.wait(0.01)
                fake.compiled.append(self)

            def get_function(self, name):
                return types.SimpleNamespace(kernel=types.SimpleNamespace(ptr=fake.function(fake.device, 0, name)))

        class Array:
            def __init__(self, device=0):
                self.device, self.data = Device(device), Pointer(next(fake.pointers))
                fake.memory[self.data.ptr] = (device, fake.current[device])

        self.cupy = types.ModuleType("cupy")
        self.cupy.ndarray, self.cupy.RawModule = Array, RawModule
        self.cupy.cuda = types.SimpleNamespace(
            Device=Device,
            nvrtc=types.SimpleNamespace(getVersion=lambda: (13, 0)),
            get_current_stream=lambda: Pointer(fake.current[fake.device]),
        )

        class Tensor:
            def __init__(self, device="cuda", index=0):
                self.device = types.SimpleNamespace(type=device, index=index, __str__=lambda: device)
                self.is_cuda, self.ptr = device == "cuda", next(fake.pointers)
                fake.memory[self.ptr] = (index, fake.torch_streams[index])

            def data_ptr(self):
                return self.ptr

        self.torch_streams = {0: 0, 1: 21}  # torch's default stream is the null stream
        self.torch = types.ModuleType("torch")
        self.torch.Tensor = Tensor
        self.torch.cuda = types.SimpleNamespace(
            current_stream=lambda device: types.SimpleNamespace(cuda_stream=self.torch_streams[device.index])
        )

    # As `Driver` has them.

    def device_count(self):
        return self.count

    def attribute(self, device, number):
        self.attribute_reads += 1
        return {
            driver.SHARED_OF_BLOCK: 232448 - device,
            driver.CAPABILITY_MAJOR: self.capability // 10,
            driver.CAPABILITY_MINOR: self.capability % 10,
        }[number]

    def load(self, device, image):
        assert not self.capturing, "loaded during capture"
        self.images.append((device, image))
        return len(self.images)

    def function(self, device, module, name):
        assert not self.capturing, "loaded during capture"
        assert module == 0 or self.images[module - 1][0] == device, "not loaded on this device"
        if name == "absent":
            raise DriverError("named symbol not found")
        self.handles[len(self.handles) + 1] = (device, name)
        return len(self.handles)

    def allow_shared(self, device, function, size):
        assert not self.capturing, "allowed during capture"
        self.limits[self.handles[function]] = size

    def launch(self, device, function, grid, block, shared, stream, arguments, places):
        if self.error:
            raise self.error
        where, name = self.handles[function]
        assert where == device, "not loaded on this device"
        assert 0 not in grid
        assert shared <= self.limits[where, name], "more shared memory than allowed"
        values = [struct.unpack_from("@Q", arguments, place)[0] for place in range(0, len(arguments) - 7, 8)]
        for x in values:
            of = self.memory.get(x, (device, stream))
            assert of == (device, stream), f"memory of {of} used on {(device, stream)}"
        self.launches.append((name, device, stream, grid, block, [values[place // 8] for place in places], shared))


@pytest.fixture
def fake(monkeypatch, package):
    fake = Fake()
    monkeypatch.setitem(sys.modules, "cupy", fake.cupy)
    monkeypatch.setitem(sys.modules, "torch", fake.torch)
    monkeypatch.setattr(cuda_module, "driver", lambda: fake)
    write(package / "_cuda_src", one_cu='extern "C" __global__ void f() {}\n')
    return fake


def launch(like, *arguments, kernel="f", grid=(2, 1, 1), block=(128, 1, 1), shared=0):
    module = cuda_module.load("one")
    module.launch(kernel, grid=grid, block=block, shared=shared, arguments=(like, *arguments), like=like)


def test_arguments_have_the_width_that_kernels_take(fake):
    array = fake.cupy.ndarray()
    given = (None, 7, -(1 << 40), 0.1, np.int32(3), np.float32(2), np.float64(0.1), array)
    packed, begins, pointers = cuda_module.pack(given)
    assert begins == [0, 16, 32, 48, 64, 80, 96, 112]
    expected = "=Q8xq8xq8xf12xi12xf12xd8xQ"
    assert struct.unpack(expected, packed) == (0, 7, -(1 << 40), np.float32(0.1), 3, 2, 0.1, 0)
    assert pointers == [(112, array)]


def test_a_struct_is_laid_out_as_c_does_it(fake):
    array, other = fake.cupy.ndarray(), fake.torch.Tensor()
    members = cuda_module.Struct(a=7, b=np.int32(3), c=array, d=None, e=0.5, f=other, g=np.int32(1))
    packed, begins, pointers = cuda_module.pack((5, members))
    assert packed == struct.pack("=q8xqi4xQQf4xQi4x", 5, 7, 3, 0, 0, 0.5, 0, 1)
    assert begins == [0, 16]
    assert pointers == [(16 + 16, array), (16 + 40, other)]
    with pytest.raises(TypeError, match="takes no bool"):
        cuda_module.pack((cuda_module.Struct(a=True),))


def test_what_is_no_argument_is_refused(fake):
    array = fake.cupy.ndarray()
    for wrong, said in (
        (np.bool_(False), "takes no bool"),
        ("text", "take numbers, None, and arrays of torch or CuPy on a CUDA device, got str"),
        (np.zeros(2), "on a CUDA device, got ndarray"),
        (fake.torch.Tensor("cpu"), "on a CUDA device, got a tensor on "),
    ):
        with pytest.raises(TypeError, match=said):
            launch(array, wrong)
    with pytest.raises(TypeError, match="CUDA device, got ndarray"):
        launch(np.zeros(3))
    with pytest.raises(OverflowError):
        launch(array, 1 << 63)
    assert not fake.launches


# --- Launches.


@pytest.mark.parametrize("device", [0, 1])
def test_a_cupy_array_is_used_on_its_device_and_on_cupys_current_stream(fake, device):
    fake.current[device] = 77  # as inside `with stream:`
    array = fake.cupy.ndarray(device)
    launch(array, 5, None, shared=100)
    ((name, where, stream, grid, block, arguments, shared),) = fake.launches
    assert (name, where, stream, grid, block, shared) == ("f", device, 77, (2, 1, 1), (128, 1, 1), 100)
    assert arguments == [array.data.ptr, 5, 0]
    assert fake.device == 0, "the caller's device is current again"


@pytest.mark.parametrize("device", [0, 1])
def test_a_tensor_is_used_on_its_device_and_on_torchs_current_stream(fake, device):
    before = dict(fake.current)
    for stream in (0, 1234):
        fake.torch_streams[device] = stream
        launch(fake.torch.Tensor(index=device))
    assert [launched[1:3] for launched in fake.launches] == [(device, 0), (device, 1234)]
    assert fake.current == before, "CuPy's current stream is its own again"


def test_a_launch_takes_other_arrays_later(fake):
    first, second = fake.torch.Tensor(), fake.torch.Tensor()
    module = cuda_module.load("one")
    how = {"grid": (2, 1, 1), "block": (128, 1, 1), "like": "like"}
    prepared = module.prepare("f", arguments=("a", cuda_module.Struct(n=3, x="b", y=None)), **how)
    for arrays in ({"a": first, "b": second}, {"a": second, "b": first}):
        prepared.run(0, 0, [arrays[name].data_ptr() for name in prepared.arrays])
        module.launch(
            "f", arguments=(arrays["a"], cuda_module.Struct(n=3, x=arrays["b"], y=None)), **{**how, "like": first}
        )
        assert fake.launches[-1] == fake.launches[-2]
    assert fake.launches[0] != fake.launches[2]
    with pytest.raises(ValueError, match="argument"):
        prepared.run(0, 0, [first.data_ptr()])
    assert module.prepare("f", arguments=(), **{**how, "grid": (0, 1, 1)}) is None


def test_an_empty_grid_is_no_launch(fake):
    for grid in ((0, 1, 1), (3, 0, 1)):
        launch(fake.cupy.ndarray(), grid=grid)
    assert fake.launches == []
    assert fake.compiled == []


def test_all_shared_memory_is_allowed_first_on_each_device(fake):
    for device in (0, 1):
        for shared in (0, 10, 100_000, 60_000, 200_000):
            launch(fake.cupy.ndarray(device), shared=shared)
        assert fake.limits[device, "f"] == 232448 - device
    with pytest.raises(AssertionError, match="more shared memory than allowed"):
        launch(fake.cupy.ndarray(), shared=232449)
    assert (1, "g") not in fake.limits


def test_a_kernel_that_has_run_can_be_captured_in_any_shape(fake):
    """During capture nothing is compiled, loaded or allowed: a driver may refuse all that."""
    array = fake.cupy.ndarray()
    launch(array, grid=(1, 1, 1), shared=100)
    fake.capturing = True
    launch(array, grid=(500, 1, 1), shared=200_000)
    with pytest.raises(RuntimeError, match="during capture"):
        launch(array, kernel="g")
    assert len(fake.launches) == 2


def test_properties_of_the_device_of_an_array(fake):
    module = cuda_module.load("one")
    for device in (0, 1, 0, 1):
        assert module.max_shared(fake.cupy.ndarray(device)) == 232448 - device
        assert module.capability(fake.torch.Tensor(index=device)) == 90
    assert fake.attribute_reads == 6, "they are read once"


def test_source_is_compiled_once_however_many_threads_want_it(fake):
    failures = []

    def work():
        try:
            launch(fake.cupy.ndarray())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(fake.launches) == 8
    (module,) = fake.compiled
    assert module.code == cuda_module.source("one")
    assert (module.options, module.backend) == (cuda_module.OPTIONS, "nvrtc")
    assert cuda_module.load("one") is cuda_module.load("one")


@pytest.mark.parametrize(("capability", "compiled"), [(75, False), (80, True), (86, True), (120, True)])
def test_compiled_form_is_loaded_on_devices_that_it_is_for(fake, package, capability, compiled):
    binary(package, b"binary")
    fake.capability = capability
    for device in (0, 1, 0):
        launch(fake.cupy.ndarray(device))
    assert fake.images == ([(0, b"binary"), (1, b"binary")] if compiled else [])
    assert len(fake.compiled) == (0 if compiled else 1)


def test_compiled_form_needs_no_source_and_no_cupy(fake, package, monkeypatch):
    binary(package)
    (package / "_cuda_src" / "one.cu").unlink()
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert cuda_module.why_not() is None
    launch(fake.torch.Tensor())
    assert len(fake.launches) == 1


def test_failures_name_the_kernel(fake):
    array = fake.cupy.ndarray()
    with pytest.raises(
        RuntimeError, match=r"^absent: compiling one\.cu for compute capability 90 failed: named symbol"
    ):
        launch(array, kernel="absent")
    fake.error = DriverError("CUDA_ERROR_INVALID_VALUE")
    where = r"grid \(2, 1, 1\), block \(2048, 1, 1\), 0 bytes of shared memory"
    with pytest.raises(RuntimeError, match=rf"^f: the launch failed \({where}\): CUDA_ERROR_INVALID_VALUE$"):
        launch(array, block=(2048, 1, 1))


# --- Whether anything can run.


def test_reasons(fake, package, monkeypatch):
    def why():
        cuda_module.why_not.cache_clear()
        return cuda_module.why_not()

    def failing(error):
        def fail(*_):
            raise error

        return fail

    assert why() is None
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "cupy", None)  # what an import then raises names the module
        assert why() == f"cupy is not installed: {_extras.install('cuda')}, which compiles the CUDA sources"
    for error in (ImportError("libcuda.so.1: cannot open", name="cupy_backends"), OSError("no")):
        with monkeypatch.context() as patch:
            patch.setattr(cuda_module, "imported", failing(error))
            assert why() == f"cupy, which compiles the CUDA sources, is broken: {error}"
    with monkeypatch.context() as patch:
        patch.setattr(cuda_module, "driver", failing(DriverError("libcuda.so.1: cannot open")))
        assert why() == "there is no CUDA driver or device: libcuda.so.1: cannot open; a GPU needs NVIDIA's driver"
    fake.count = 0
    assert why() == "there is no CUDA device"
    fake.count, fake.cupy.cuda.nvrtc.getVersion = 1, failing(RuntimeError("libnvrtc.so.13 not found"))
    expected = "NVRTC, which compiles the CUDA sources, cannot be loaded: libnvrtc.so.13 not found; pip install"
    assert why().startswith(expected)
    compiled = binary(package)  # all is compiled
    assert why() is None
    (package / "_cuda_src" / "one.cu").unlink()
    compiled.unlink()
    for part in ("the CUDA sources are neither in ", str(package / "_cuda_src"), str(package.parent / "csrc" / "cuda")):
        assert part in why()


def test_a_cupy_that_warns_is_not_broken(fake, tmp_path, monkeypatch):
    """Warnings are errors in these tests, and the import must get past its own all the same."""
    (tmp_path / "cupy.py").write_text("import warnings, sys\nwarnings.warn('two CuPys')\ncuda = sys.cupy.cuda\n")
    monkeypatch.setattr(sys, "cupy", fake.cupy, raising=False)
    monkeypatch.delitem(sys.modules, "cupy")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert cuda_module.why_not() is None
    del sys.modules["cupy"]
    cuda_module.why_not.cache_clear()
    with pytest.warns(UserWarning, match="two CuPys"):
        assert cuda_module.why_not() is None


def test_reason_on_this_machine_is_a_text_or_none_and_an_import_costs_nothing(run_python):
    code = """
import sys
import ragsys_kernels as rk
from ragsys_kernels import _dispatch
from ragsys_kernels._gpu import cuda_module, driver
from ragsys_kernels._gpu.driver import DriverError
cuda_module.sources()
assert "cupy" not in sys.modules and "torch" not in sys.modules
reason = _dispatch.why_not("cuda")
assert reason is None or isinstance(reason, str)
print(reason)
"""
    assert run_python(code).stdout.strip()


def test_real_cupy_has_what_is_asked_of_it():
    cupy = pytest.importorskip("cupy")
    module = cupy.RawModule(code="", options=cuda_module.OPTIONS, backend="nvrtc")
    assert callable(module.get_function)
    assert hasattr(cupy.RawKernel, "kernel")
    assert hasattr(importlib.import_module("cupy.cuda.function").Function, "ptr")
    assert callable(cupy.cuda.get_current_stream)
    assert callable(cupy.cuda.Device)
    assert callable(cupy.cuda.Stream.is_capturing)
    assert rk.__version__
