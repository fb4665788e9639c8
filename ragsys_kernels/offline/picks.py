"""The picks of a long choice, kept beside its output while it is made: the same call goes on from them."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np

import ragsys_kernels as rk

from .. import _info
from .._base import warn
from .._base.files import replacing_and_sweeping
from .._base.types import Array
from ..selection.continued import continuing
from ..selection.problem import COLUMNS
from ._manifest import DAMAGE, sealed, unsealed

_log = logging.getLogger(__name__)

_LOOK, _KEEP = 0.5, 5.0  # seconds from one look at the picks to the next, and from one file or notice to the next
_BLOCK = 1 << 16  # rows that are hashed at a time


def file_beside(out: Path) -> Path:
    """Return the file that keeps the picks of what is written to `out`."""
    return out.with_name(f"{out.name}.picks")


class Picks:
    """The picks of a call so far, and the file that keeps them: who writes what, where, of which corpus and options."""

    def __init__(
        self, op: str, out: Path, k: int, corpus: rk.Corpus, options: Mapping[str, Any], arrays: Mapping[str, Any]
    ) -> None:
        self._op, self.file = op, file_beside(out)
        self.rows = np.full(k, -1, np.int64)
        self._corpus, self._options, self._arrays = corpus, options, arrays
        self._kept, self._when = 0, 0.0

    @property
    def made(self) -> int:
        """How many there are; those of the file count also while the selection takes them over, one after the other."""
        return max(self._kept, self._there)

    @property
    def _there(self) -> int:
        return int((self.rows >= 0).sum())

    @cached_property
    def _call(self) -> dict[str, Any]:
        """What the bits of the picks depend on: data by their content, wherever they lie."""
        backend, instruction_set = _info.active()
        given = {name: getattr(self._corpus, name, None) for name in ("data", "scales", *COLUMNS, "live")}
        return {
            "op": self._op, "version": rk.__version__, "backend": backend, "instruction_set": instruction_set,
            "k": len(self.rows), "metric": self._corpus.metric, "dtype": self._corpus.dtype,
            **{name: repr(value) for name, value in self._options.items()},
            "corpus": _digest(given), **{name: _digest({name: array}) for name, array in self._arrays.items()},
        }  # fmt: skip

    def resume(self, overwrite: bool) -> None:
        """Take over the picks of the file, if there is one; of another call only to leave them out, with overwrite."""
        if not self.file.exists():
            return
        must = f"{self._op}: out must have beside it"
        try:
            found = unsealed(self.file.read_bytes())
            call, rows = found["call"], np.array(found["rows"], np.int64)
            if not (rows.ndim == 1 and 0 < len(rows) <= call["k"]):
                raise ValueError("it has not the rows of its call")
        except DAMAGE as error:
            if overwrite:
                return
            raise ValueError(
                f"{must} the picks of a call as it wrote them, or overwrite be given, got {self.file}: {error}"
            ) from error
        other = [
            f"{name}: before {call.get(name)}, now {self._call.get(name)}"
            for name in dict.fromkeys((*call, *self._call))
            if call.get(name) != self._call.get(name)
        ]
        if not other:
            self.rows[: len(rows)] = rows
            self._kept = len(rows)
            _log.info("%s: goes on from %d of %d picks, kept in %s", self._op, len(rows), len(self.rows), self.file)
        elif not overwrite:
            rule = "the picks of a call of the same inputs, options and version to resume, or overwrite be given"
            raise ValueError(f"{must} {rule}, got {self.file} with {'; '.join(other)}")

    @contextmanager
    def followed(self, progress: Callable[[int, int], None] | None) -> Iterator[None]:
        """Let the selection of the block take the picks over; report and keep those it adds, also where it is ended."""
        end, errors = Event(), []
        begin = self._when = time.monotonic()

        def follow() -> None:
            while not end.wait(_LOOK):
                try:
                    if progress is not None:
                        progress(self.made, len(self.rows))
                    if time.monotonic() - self._when >= _KEEP:
                        self._keep()
                        if (there := self._there) < self._kept:
                            _log.info("%s: took over %d of %d kept picks", self._op, there, self._kept)
                except BaseException as error:
                    errors.append(error)
                    return

        thread = Thread(target=follow, daemon=True)
        thread.start()
        try:
            with continuing(self.rows):
                yield
        except BaseException:
            end.set()
            thread.join()
            if self._kept or time.monotonic() - begin >= _KEEP:  # fewer are soon made again
                self._keep()
            raise
        finally:
            end.set()
            thread.join()
        if errors:
            raise errors[0]

    def _keep(self) -> None:
        """Write the picks that are new; a full disk does not end a call that may yet succeed."""
        self._when, made = time.monotonic(), self.made
        if made <= self._kept:
            return
        try:
            with replacing_and_sweeping(self.file) as file:
                file.write(sealed({"call": self._call, "rows": self.rows[:made].tolist()}))
            self._kept = made
        except OSError as error:
            reason = error.strerror or error
            warn.warn(f"{self._op}: the picks cannot be kept in {self.file}, to be resumed: {reason}", UserWarning)

    def remove(self) -> None:
        """Remove the file, once the output is written."""
        self.file.unlink(missing_ok=True)


def _digest(arrays: Mapping[str, Array | None]) -> str | None:
    """Return the SHA-256 of arrays; None where there is none."""
    digest, some = hashlib.sha256(), False
    for name, array in arrays.items():
        if array is None:
            continue
        some = True
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        for begin in range(0, len(array), _BLOCK):
            digest.update(np.ascontiguousarray(array[begin : begin + _BLOCK]).view(np.uint8).data)
    return digest.hexdigest() if some else None
