"""Counts what a call has a device launch: operations of torch, and kernels of Triton.

    with Launches() as launched:
        rk.token_logprobs(logits, targets, backend="triton")
    launched.total(), launched

An operation of torch that makes a view or memory that is not written launches nothing. Every other counts as one,
though some, such as sorts, are several kernels.
"""

import contextlib
from collections import Counter

from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

_NOTHING = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "lift_fresh", "set_"}


class Launches(TorchDispatchMode, Counter):
    """Launches by the name of the operation or kernel, in Triton's interpreter."""

    def __init__(self):
        TorchDispatchMode.__init__(self)
        Counter.__init__(self)
        self.stack = contextlib.ExitStack()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        views = any(x.alias_info is not None and not x.alias_info.is_write for x in function._schema.returns)
        if not views and name not in _NOTHING:
            self[name] += 1
        return function(*args, **(kwargs or {}))

    def __enter__(self):
        self._count_triton()
        return TorchDispatchMode.__enter__(self)

    def __exit__(self, *error):
        TorchDispatchMode.__exit__(self, *error)
        self.stack.close()

    def _count_triton(self):
        from triton.runtime import interpreter

        executor = interpreter.GridExecutor
        launch = executor.__call__

        def counted(this, *args, **kwargs):
            self[this.fn.__name__] += 1
            with _disable_current_modes():  # the interpreter copies arguments
                return launch(this, *args, **kwargs)

        executor.__call__ = counted
        self.stack.callback(setattr, executor, "__call__", launch)
