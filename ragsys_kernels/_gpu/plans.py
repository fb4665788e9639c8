"""Plans: a call on a device that is like an earlier one launches what that one launched, with its own arrays.

What the host does for a call (checks, the choice of kernels and tiles, Triton's binding of sixty arguments) depends on
types, shapes, strides and options, not on what is in the arrays. So the third call of a kind and all later ones skip
it: the second is recorded (`recording.py`), step by step, and its steps are done again. Two calls are of a kind where
all of that is equal, plain arguments by value. A call that reads the device on the host, uploads arrays, warns, or
works in hundreds of steps is not planned.
"""

from __future__ import annotations

import functools
import itertools
import sys
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from .._base import env
from .._base.hints import explain

P = ParamSpec("P")
R = TypeVar("R")

# How many kinds of calls are remembered; beyond that, the half that was seen first is forgotten.
MOST_PLANS = 4096

_SEEN, _NONE = object(), object()  # a kind of which one call was made, and one that cannot be planned
_PLAIN = frozenset((bool, int, float, str))
_plans: dict[Any, Any] = {}


class _Thread(threading.local):
    recorder: Any = None


_thread = _Thread()
_watching = False  # whether arrays on a device have been seen: until then, a call is not looked at
_hosts = False  # whether calls with tensors on the host are planned too: in tests, and to measure host overhead


def watch(hosts: bool | None = None) -> None:
    """Plan calls from here on: a device has been used. ``hosts``: whether to plan those with tensors on the host."""
    global _watching, _hosts
    _watching = True
    if hosts is not None:
        _hosts = hosts


def clear_plans() -> None:
    """Forget all plans."""
    _plans.clear()


def launch(kernel: Any, grid: tuple[int, ...], /, **arguments: Any) -> None:
    """Launch a Triton kernel; ``arguments`` has its options too."""
    if _thread.recorder is None:
        kernel[grid](**arguments)
    else:
        _thread.recorder.launch(kernel, grid, arguments)


def call(function: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Call what launches in its own way; a plan does it again with the arrays of its call."""
    if _thread.recorder is None:
        function(*args, **kwargs)
    else:
        _thread.recorder.call(function, args, kwargs)


def counters(like: Any, size: int) -> Any:
    """Return counts for kernels, which leave them at zero (`counters.py`); a plan finds those of its stream."""
    from . import counters

    if _thread.recorder is None:
        return counters.zeros(like, size)
    return _thread.recorder.counters(like, size)


def planned(op: str | None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate the operation ``op``: calls of it are planned, and its errors are those of `_hints.hinted`.

    None: that of the request which is the first argument.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                if not _watching or _thread.recorder is not None or kwargs.get("similarity") is not None:
                    return function(*args, **kwargs)
                return _by_plan(function, args, kwargs)
            except (MemoryError, TypeError) as error:
                name: Any = cast(Any, args[0]).op if op is None else op
                explain(name, function, kwargs, error)
                raise

        return call

    return decorate


def _by_plan(function: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
    kind = _kind(function, args, kwargs)
    if kind is None:
        return function(*args, **kwargs)
    key, tensors = kind
    plan = _plans.get(key)
    if plan is None:
        _remember(key, _SEEN)
    elif plan is _SEEN and not _captured(tensors[0]):
        return cast(R, _record(key, tensors, function, args, kwargs))
    elif plan is not _SEEN and plan is not _NONE and plan.can_run():
        return cast(R, plan.run(tensors))
    return function(*args, **kwargs)


def _kind(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, list[Any]] | None:
    """Return what makes calls alike, and the tensors of this one; None where no call of its kind is planned."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    tensor, parameter = torch.Tensor, torch.nn.Parameter
    key: list[Any] = [function, env.backend(), env.variants(), *kwargs]
    tensors: list[Any] = []
    if args and hasattr(type(args[0]), "plan_arguments"):  # a request
        args = (*args[0].plan_arguments(), *args[1:])
    for x in (*args, *kwargs.values()):
        kind = type(x)
        if x is None:
            key.append(None)
        elif kind is tensor or kind is parameter:
            if not (x.is_cuda or _hosts):
                return None
            tensors.append(x)
            key.append((x.dtype, x.shape, x.stride(), x.device, x.data_ptr() % 16, x.requires_grad))
        elif kind in _PLAIN:
            key.append((kind, x))
        elif kind is tuple and all(type(part) is str for part in x):
            key.append(x)
        elif hasattr(kind, "plan_tensors"):  # a corpus
            mark, own = x.plan_tensors()
            if not all(type(each) is tensor and (each.is_cuda or _hosts) for each in own):
                return None
            tensors += own
            key.append(mark)
        else:
            return None
    if not tensors or len({id(x) for x in tensors}) < len(tensors):  # the steps could not tell them apart
        return None
    return tuple(key), tensors


def _captured(tensor: Any) -> bool:
    """Return whether a graph is being captured, to which memory that is made now belongs."""
    return tensor.is_cuda and bool(sys.modules["torch"].cuda.is_current_stream_capturing())


def _remember(key: Any, plan: Any) -> None:
    if len(_plans) >= MOST_PLANS:
        for old in list(itertools.islice(_plans, MOST_PLANS // 2)):
            _plans.pop(old, None)
    _plans[key] = plan


def _record(key: Any, tensors: list[Any], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    from .recording import Recorder

    recorder = Recorder(tensors)
    _thread.recorder = recorder
    try:
        with recorder:
            result = function(*args, **kwargs)
    finally:
        _thread.recorder = None
    _remember(key, recorder.plan(result) or _NONE)
    return result
