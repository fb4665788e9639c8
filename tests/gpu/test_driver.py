"""The driver's functions as ctypes calls them, in a library that launches nothing (`libcuda.cpp`)."""

import ctypes
import shutil
import struct
import subprocess
import threading
from pathlib import Path

import pytest

from ragsys_kernels._gpu import driver
from ragsys_kernels._gpu.driver import Driver, DriverError

IMAGE = b"\x7fE\0F and more"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    library = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    source = Path(__file__).with_name("libcuda.cpp")
    subprocess.run(["g++", "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, source], check=True)
    return library


@pytest.fixture
def library(path):
    return ctypes.CDLL(str(path))


@pytest.fixture
def cuda(library):
    return Driver(library)


class Launched(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("function", ctypes.c_void_p),
        ("first", ctypes.c_int64),
        ("second", ctypes.c_float),
    )


def launch(cuda, device=0, block=(128, 2, 1), shared=100, stream=0x77):
    function = cuda.function(device, cuda.load(device, IMAGE), "add")
    cuda.allow_shared(device, function, 1000)
    arguments = bytearray(struct.pack("=q8xf", -5, 0.5))
    cuda.launch(device, function, (7, 6, 5), block, shared, stream, arguments, (0, 16))


def test_devices(cuda):
    assert cuda.device_count() == 2
    assert cuda.attribute(0, driver.CAPABILITY_MAJOR) == 75000
    assert cuda.attribute(1, driver.SHARED_OF_BLOCK) == 97001
    with pytest.raises(DriverError, match=r"^CUDA_ERROR_INVALID_VALUE$"):
        cuda.attribute(2, driver.CAPABILITY_MAJOR)


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize("current", [None, 0, 1])
def test_a_launch_is_made_in_the_context_of_its_device(library, cuda, device, current):
    found = ctypes.c_void_p()

    def work():
        if current is not None:
            library.cuCtxPushCurrent_v2(ctypes.c_void_p(0x100 + current))
        launch(cuda, device)
        library.cuCtxGetCurrent(ctypes.byref(found))

    thread = threading.Thread(target=work)  # which has no context at first
    thread.start()
    thread.join()
    assert found.value == (None if current is None else 0x100 + current)
    launched = Launched.in_dll(library, "launched")
    assert (list(launched.grid), list(launched.block), launched.shared) == ([7, 6, 5], [128, 2, 1], 100)
    assert (launched.stream, launched.context, launched.function) == (0x77, 0x100 + device, 0x2000)
    assert (launched.first, launched.second) == (-5, 0.5)


def test_what_a_kernel_declares_counts_as_shared_memory(cuda):
    launch(cuda, shared=936)
    with pytest.raises(DriverError, match="CUDA_ERROR_INVALID_VALUE"):
        launch(cuda, shared=937)


def test_failures_leave_no_context(library, cuda):
    def work():
        with pytest.raises(DriverError, match=r"^CUDA_ERROR_INVALID_VALUE$"):
            cuda.load(1, b"\x7fELF")
        with pytest.raises(DriverError, match=r"^CUDA_ERROR_NOT_FOUND: named symbol not found$"):
            cuda.function(1, cuda.load(1, IMAGE), "absent")
        with pytest.raises(DriverError):
            launch(cuda, block=(1024, 2, 1))
        library.cuCtxGetCurrent(ctypes.byref(found))

    found = ctypes.c_void_p(1)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found.value is None


def test_a_library_that_is_not_there(monkeypatch):
    monkeypatch.setattr(driver, "LIBRARIES", ("libno.so.1", "libno.so"))
    driver.driver.cache_clear()
    with pytest.raises(DriverError, match=r"^libno\.so\.1: cannot open"):
        driver.driver()
    driver.driver.cache_clear()


def test_the_first_library_that_is_there(monkeypatch, path):
    monkeypatch.setattr(driver, "LIBRARIES", ("libno.so.1", str(path)))
    driver.driver.cache_clear()
    assert driver.driver() is driver.driver()
    assert driver.driver().device_count() == 2
    driver.driver.cache_clear()
