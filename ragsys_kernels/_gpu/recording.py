"""The recorder of one call on a device, and the plan that it makes: the steps to do for the arrays of another call.

Steps are launches of kernels, and the operations of torch between them. They find tensors by their place in a list:
first those that the call was given, then those that are made on the way.
"""

# mypy: disable-error-code="misc, no-untyped-call"

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import triton
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from triton.runtime.jit import KernelInterface

from .._base import warn
from . import counters, cuda_module
from .cuda_module import Struct

# Larger calls take far longer on the device than on the host, so a plan would save nothing, and it would hold all their
# work space at once: 1 GiB for a whole corpus, and a quarter of that for a proof.
MOST_STEPS = 256
MOST_BYTES = 5 << 28

# The most memory for constants of all plans; beyond that, a plan fills its own constants at each call.
MOST_CONSTANT_BYTES = 64 << 20
_ALLOCATED = 512  # the least that torch's allocator gives

_ATEN = torch.ops.aten

# What steps are given beside tensors: it is the same in all calls of a kind.
_FIXED = (
    bool, int, float, str, type(None), np.generic, torch.dtype, torch.device, torch.layout, torch.memory_format,
    triton.language.dtype, triton.language.constexpr, KernelInterface,
)  # fmt: skip

_Step = Callable[[list[Any]], Any]


class _UnplannedError(Exception):
    """Steps cannot repeat this call."""


class _Slot:
    """Which tensor of the list an argument is."""

    def __init__(self, number: int) -> None:
        self.number = number


class Plan:
    """The steps of a call, for other tensors of the same kind."""

    def __init__(self, steps: Sequence[_Step], result: Any, device: int | None) -> None:
        self._steps, self._result, self._device = tuple(steps), result, device

    def can_run(self) -> bool:
        """Return whether steps do all that a launch would: a profiler that Triton calls is told by Triton only."""
        hooks = triton.knobs.runtime
        return not (getattr(hooks.launch_enter_hook, "calls", None) or getattr(hooks.launch_exit_hook, "calls", None))

    def run(self, tensors: list[Any]) -> Any:
        """Do the steps, and return the result."""
        if self._device is None or torch.cuda.current_device() == self._device:
            for step in self._steps:
                step(tensors)
        else:
            with torch.cuda.device(self._device):
                for step in self._steps:
                    step(tensors)
        return _filled(self._result, tensors)


class Recorder(TorchDispatchMode):
    """Writes down the steps of the call that is made in its block."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        super().__init__()
        self._slots = {id(x): slot for slot, x in enumerate(tensors)}
        self._alive = list(tensors)  # so that no other gets the id of one
        self._made = len(tensors)  # how long the list of a plan is by now
        self._devices = {x.device for x in tensors}
        self._constants: set[int] = set()
        self._grad = any(x.requires_grad for x in tensors)
        self._warned = warn.count
        self._steps: list[_Step] = []
        self._bytes = 0
        self._failed = False

    def plan(self, result: Any) -> Plan | None:
        """Return the plan of the call, which had this result, or None if it has none."""
        if self._failed or warn.count != self._warned:  # each call has to warn
            return None
        try:
            fields = self._with_slots(result)
            for x in result if isinstance(result, tuple) else (result,):
                if isinstance(x, torch.Tensor):
                    self._refuse_constants(x)
        except _UnplannedError:
            return None
        device = next((device.index for device in self._devices if device.type == "cuda"), None)
        return Plan(self._steps, fields, device)

    def launch(self, kernel: Any, grid: tuple[int, ...], arguments: dict[str, Any]) -> None:
        """Launch a Triton kernel, and write the launch down."""
        with _disable_current_modes():  # the interpreter copies arguments
            compiled = kernel[grid](**arguments)
        self._add(lambda: _launching(kernel, grid, compiled, self._with_slots(arguments)))

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Call what launches in its own way, and write the call down."""
        with _disable_current_modes():
            function(*args, **kwargs)
        prepare = getattr(getattr(function, "__self__", None), "prepare", None)  # of a module of CUDA kernels
        if prepare is None:
            self._add(lambda: _calling(function, *self._with_slots((args, kwargs))))
        else:
            self._add(lambda: _launched(prepare(*self._with_slots(args), **self._with_slots(kwargs))))

    def counters(self, like: Any, size: int) -> Any:
        """Return counts that kernels leave at zero, and write down that they were asked for."""
        with _disable_current_modes():
            made = counters.zeros(like, size)

        def step() -> _Step:
            slot = self._slot(like)
            self._new(made)
            return lambda tensors: tensors.append(counters.zeros(tensors[slot], size))

        self._add(step)
        return made

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        self._add(lambda: self._operation(function, args, kwargs or {}, made))
        return made

    def _add(self, step: Callable[[], _Step | None]) -> None:
        if self._failed:
            return
        try:
            made = step()
        except _UnplannedError:
            made, self._failed = None, True
        if made is not None:
            self._steps.append(made)
        if self._failed or len(self._steps) > MOST_STEPS or self._bytes > MOST_BYTES:
            self._failed = True
            self._steps.clear()
            self._alive.clear()

    def _operation(self, function: Any, args: Any, kwargs: dict[str, Any], made: Any) -> _Step | None:
        """Return the step that does an operation of torch."""
        outputs = [made] if isinstance(made, torch.Tensor) else made
        if not isinstance(outputs, (tuple, list)) or not all(isinstance(x, torch.Tensor) for x in outputs):
            raise _UnplannedError  # a number that the host reads
        if any(x.device not in self._devices for x in outputs):
            raise _UnplannedError  # a copy to the host
        if function is _ATEN.full.default:  # of a number in the key, and only read
            constant = _constants.like(made, args[1])
            if constant is not None:
                self._constants.add(self._made)
                self._new(made)
                return lambda tensors: tensors.append(constant)
        if function is _ATEN.empty.memory_format and made.is_contiguous():
            self._new(made)
            # Of one element; two thirds of the time of `torch.empty`, which reads a shape, a type and a device.
            with _disable_current_modes():
                like = torch.empty((1,) * made.dim(), dtype=made.dtype, device=made.device).expand(made.shape)
            return lambda tensors: tensors.append(torch.empty_like(like, memory_format=torch.contiguous_format))
        inputs = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
        mutable = function._schema.is_mutable
        same = next((x for x in inputs if not mutable and len(outputs) == 1 and _same(x, outputs[0])), None)
        if same is not None:  # detached
            self._slots[id(outputs[0])] = self._slot(same)
            self._alive.append(outputs[0])
            return None
        if self._grad:  # of which torch would keep a graph
            raise _UnplannedError
        args, kwargs = self._with_slots((args, kwargs))
        if mutable:  # in place
            if not all(id(x) in self._slots for x in outputs):
                raise _UnplannedError
            self._refuse_constants(*outputs)
            return _calling(function, args, kwargs)
        for x in outputs:
            self._new(x)
        if isinstance(made, torch.Tensor):
            return lambda tensors: tensors.append(function(*_filled(args, tensors), **_filled(kwargs, tensors)))
        return lambda tensors: tensors.extend(function(*_filled(args, tensors), **_filled(kwargs, tensors)))

    def _new(self, tensor: Any) -> None:
        self._slots[id(tensor)] = self._made
        self._alive.append(tensor)
        self._made += 1
        self._bytes += tensor.numel() * tensor.element_size()

    def _slot(self, tensor: Any) -> int:
        slot = self._slots.get(id(tensor))
        if slot is None:  # it came from elsewhere
            raise _UnplannedError
        return slot

    def _refuse_constants(self, *written: Any) -> None:
        """Make no plan where someone may write to what all calls of a kind read."""
        if any(self._slot(x) in self._constants for x in written):
            raise _UnplannedError

    def _with_slots(self, x: Any) -> Any:
        """Return nested arguments with slots in the place of tensors."""
        if isinstance(x, torch.Tensor):
            return _Slot(self._slot(x))
        if isinstance(x, dict):
            return {name: self._with_slots(value) for name, value in x.items()}
        if isinstance(x, tuple) and hasattr(x, "_fields"):
            if any(value is not None for value in getattr(x, "__dict__", {}).values()):
                raise _UnplannedError  # what is beside the fields of a result
            return type(x)(*map(self._with_slots, x))
        if isinstance(x, (tuple, list)):
            return type(x)(map(self._with_slots, x))
        if isinstance(x, Struct):
            return Struct(**self._with_slots(x.members))
        if isinstance(x, _FIXED):
            return x
        raise _UnplannedError


class _Constants:
    """Tensors filled with one value, shared by all plans.

    They are never freed: a captured graph reads them even after the plan is gone, and so may calls in flight on other
    streams.
    """

    def __init__(self) -> None:
        self._lock, self._kept, self._bytes = threading.Lock(), dict[Any, Any](), 0

    def like(self, x: Any, value: Any) -> Any:
        """Return a tensor filled with the value, or None if the constants would take too much memory."""
        key = str(value), x.shape, x.dtype, x.device  # as text, since 0 equals -0
        size = max(_ALLOCATED, x.numel() * x.element_size())
        with self._lock, _disable_current_modes():
            if key not in self._kept:
                if self._bytes + size > MOST_CONSTANT_BYTES:
                    return None
                made = torch.full_like(x, value, memory_format=torch.contiguous_format)
                if x.is_cuda:  # calls on other streams read it too
                    torch.cuda.current_stream(x.device).synchronize()
                self._kept[key], self._bytes = made, self._bytes + size
            return self._kept[key]


_constants = _Constants()


def _filled(x: Any, tensors: list[Any]) -> Any:
    """Return nested arguments with tensors in the place of slots."""
    kind = type(x)
    if kind is _Slot:
        return tensors[x.number]
    if kind is dict:
        return {name: _filled(value, tensors) for name, value in x.items()}
    if kind is tuple or kind is list:
        return kind([_filled(value, tensors) for value in x])
    if kind is Struct:
        return Struct(**_filled(x.members, tensors))
    if isinstance(x, tuple):
        return kind(*[_filled(value, tensors) for value in x])
    return x


def _same(x: Any, made: Any) -> bool:
    """Return whether a result is its argument by another name."""
    return (
        x.data_ptr() == made.data_ptr()
        and (x.shape, x.stride(), x.dtype, x.device) == (made.shape, made.stride(), made.dtype, made.device)
        and x.numel() > 0
    )


def _calling(function: Any, args: Any, kwargs: Any) -> _Step:
    return lambda tensors: function(*_filled(args, tensors), **_filled(kwargs, tensors))


def _launched(launch: Any) -> _Step | None:
    """Return the step that launches a CUDA kernel."""
    if launch is None:  # of nothing
        return None
    like, slots, run = launch.like.number, [x.number for x in launch.arrays], launch.run

    def step(tensors: list[Any]) -> None:
        device, stream = cuda_module.device_of(tensors[like]), cuda_module.stream_of(tensors[like])
        run(device, stream, [tensors[slot].data_ptr() for slot in slots])

    return step


def _launching(kernel: Any, grid: tuple[int, ...], compiled: Any, arguments: dict[str, Any]) -> _Step:
    """Return the step that launches a Triton kernel."""
    if compiled is None:  # interpreted
        return lambda tensors: kernel[grid](**_filled(arguments, tensors))
    # What Triton's own call comes to when it has bound and looked up everything.
    parameters = inspect.signature(kernel.fn).parameters.items()
    values = [arguments.get(name, parameter.default) for name, parameter in parameters]
    at = [(i, x.number) for i, x in enumerate(values) if isinstance(x, _Slot)]
    sizes = (*grid, 1, 1)[:3]
    active = triton.runtime.driver.active
    get_device, get_stream = active.get_current_device, active.get_current_stream
    run, function, metadata = compiled.run, compiled.function, compiled.packed_metadata

    def step(tensors: list[Any]) -> None:
        given = values.copy()
        for i, slot in at:
            given[i] = tensors[slot]
        run(*sizes, get_stream(get_device()), function, metadata, None, None, None, *given)

    return step
