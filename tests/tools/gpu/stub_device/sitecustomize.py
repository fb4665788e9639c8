"""A device that is not there: `torch.cuda` says that it is, and tells the time by the processor's clock.

With this folder on PYTHONPATH and TRITON_INTERPRET=1, `gpu_check.py` goes through its stages on arrays of the
processor, in processes of their own as on a machine with a GPU. The interpreter runs Triton's kernels, CUDA C++ runs
in the emulator. STUB_DEVICE_FAULTS, a JSON object, has what goes wrong at the launch of a kernel, by its name:

- ``"illegal"``: from there on everything on the device raises, in this process;
- ``"hang"``: the launch does not return; ``"die"``: the process is gone;
- ``"memory"``, ``"compile"``: the launch raises what torch and Triton do;
- ``"wrong"``: the kernel does not run, and its outputs are what memory has: NaN, and -1.
"""

import importlib.abc
import importlib.util
import json
import os
import sys
from pathlib import Path
from time import perf_counter, sleep
from types import SimpleNamespace

NAME = "a stub of a device"
TESTS = Path(__file__).parents[3]
FAULTS = json.loads(os.environ.get("STUB_DEVICE_FAULTS", "{}"))
ILLEGAL = "CUDA error: an illegal memory access was encountered"
lost = []  # the kernel that lost the device


class Event:
    def __init__(self, enable_timing=False):
        self.at = 0.0

    def record(self, stream=None):
        synchronize()
        self.at = perf_counter()

    def synchronize(self):
        synchronize()

    def elapsed_time(self, other):
        return 1e3 * (other.at - self.at)


def synchronize(device=None):
    if lost:
        raise RuntimeError(ILLEGAL)


def pretend(torch):
    """Put the stub in the place of what the check asks `torch.cuda` for."""
    cuda = torch.cuda
    cuda.is_available = lambda: True
    cuda.get_device_name = lambda device=None: NAME
    cuda.get_device_properties = lambda device=None: SimpleNamespace(name=NAME, L2_cache_size=1 << 16)
    cuda.Event = Event
    cuda._sleep = lambda cycles: sleep(cycles / 2e9)
    cuda.synchronize = synchronize


def launch(kernel):
    """Do what goes wrong at the launch of a kernel; return whether it is not to run."""
    import torch
    from torch.overrides import TorchFunctionMode

    class Lost(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            raise RuntimeError(ILLEGAL)

    synchronize()
    fault = FAULTS.get(kernel)
    if fault == "illegal":  # which the host hears of later
        lost.append(kernel)
        Lost().__enter__()
    elif fault == "hang":
        sleep(1e6)
    elif fault == "die":
        os.kill(os.getpid(), 11)
    elif fault == "memory":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 TiB")
    elif fault == "compile":
        raise RuntimeError(f"{kernel}: no code can be made of it")
    return fault in ("illegal", "wrong")


def run_kernels(bench):
    """Have kernels run on the processor, once the library is there."""
    sys.path += [str(TESTS), str(TESTS / "helpers")]
    import cuda_selection
    import interpreted  # noqa: F401, makes the interpreter faster
    from cuda_on_cpu import emulator
    from triton.runtime import interpreter

    from ragsys_kernels import _dispatch
    from ragsys_kernels._base import arrays
    from ragsys_kernels._gpu import cuda_module

    executor, empty = interpreter.GridExecutor, arrays.empty

    def unwritten(like, shape, dtype):
        """Memory in which every number that no kernel writes shows: NaN, or -1."""
        made = empty(like, shape, dtype)
        tensor = bench.torch.as_tensor(made)  # of the same memory
        if tensor.numel():
            tensor.view(bench.torch.uint8).fill_(0xFF)
        return made

    by_triton, choose, loaded = executor.__call__, _dispatch.choose, {}

    def interpret(this, *given, **named):
        return None if launch(this.fn.__name__) else by_triton(this, *given, **named)

    def load(source):
        if source not in loaded:
            name, dtypes = cuda_selection._TYPES.get(source, ("", ()))
            module = emulator.Module(source, defines=(f"{name}={1 << dtypes.index('float16')}",) if name else ())
            run = module.launch
            module.launch = lambda kernel, **how: None if launch(kernel) else run(kernel, **how)
            loaded[source] = module
        return loaded[source]

    def with_cuda(op, family, device, backend, *rest, **named):
        if backend != "cuda":
            return choose(op, family, device, "triton" if backend == "auto" else backend, *rest, **named)
        return "cuda", _dispatch.module_of(family, "cuda")

    executor.__call__, arrays.empty = interpret, unwritten
    cuda_module.load, cuda_module.why_not = load, emulator.why_not
    _dispatch.choose = with_cuda


CHANGED = {"torch": pretend}
if os.environ.get("TRITON_INTERPRET") == "1":
    CHANGED["benchmarks.gpu.bench"] = run_kernels


class Finder(importlib.abc.MetaPathFinder):
    """Changes modules once they have been imported."""

    def find_spec(self, name, path=None, target=None):
        change = CHANGED.pop(name, None)
        if change is None:
            return None
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            change(module)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Finder())
