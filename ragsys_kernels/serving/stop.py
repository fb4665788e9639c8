"""Ends a call of the kernels that nobody waits for any more."""

from __future__ import annotations

import numpy as np

from .. import _dispatch


class StoppedError(BaseException):
    """A call of the kernels has ended before its end. No `Exception`: it is no error of a query."""


class Stop:
    """A context: in it, calls of the compiled kernels by this thread raise `StoppedError` once another calls `set`.

    They look between queries, and in long pools between picks. Other backends do not look.
    """

    def __init__(self) -> None:
        self._flag = np.zeros(1, np.int32)

    def set(self) -> None:
        self._flag[0] = 1

    @property
    def given(self) -> bool:
        return bool(self._flag[0])

    def __enter__(self) -> None:
        if (kernels := _dispatch.extension()) is not None:
            kernels.stop_on(self._flag, StoppedError)

    def __exit__(self, *_: object) -> None:
        if (kernels := _dispatch.extension()) is not None:
            kernels.stop_on(None, None)
