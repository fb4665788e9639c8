"""A device that is not there: `torch.cuda` says that it is, and tells the time by the processor's clock.

With this folder on PYTHONPATH and TRITON_INTERPRET=1, `gpu_check.py` goes through its stages on arrays of the
processor, in processes of their own as on a machine with a GPU.
"""

import importlib.abc
import importlib.util
import sys
from time import perf_counter
from types import SimpleNamespace

NAME = "a stub of a device"


class Event:
    def __init__(self, enable_timing=False):
        self.at = 0.0

    def record(self, stream=None):
        self.at = perf_counter()

    def synchronize(self):
        pass

    def elapsed_time(self, other):
        return 1e3 * (other.at - self.at)


def pretend(cuda):
    """Put the stub in the place of what the check asks `torch.cuda` for."""
    cuda.is_available = lambda: True
    cuda.get_device_name = lambda device=None: NAME
    cuda.get_device_properties = lambda device=None: SimpleNamespace(name=NAME, L2_cache_size=1 << 16)
    cuda.Event = Event
    cuda._sleep = lambda cycles: None
    cuda.synchronize = lambda device=None: None


class Finder(importlib.abc.MetaPathFinder):
    """Changes torch once it has been imported."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            pretend(module.cuda)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Finder())
