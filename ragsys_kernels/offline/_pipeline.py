"""Stages of a job that run at the same time."""

from __future__ import annotations

from collections.abc import Generator
from queue import SimpleQueue
from threading import Event, Semaphore, Thread
from typing import TypeVar

from .._base.warn import keep, warn

T = TypeVar("T")


def ahead(items: Generator[T, None, None], depth: int, patience: float | None = None) -> Generator[T, None, None]:
    """Yield the items of a generator that runs in a thread of its own, at most `depth` items ahead.

    Its warnings and its error are raised here, the error after the items before it. Closing this generator closes that
    one in its thread and waits for its current item, `patience` seconds at most; nested, one error or one `close` stops
    all stages.
    """
    # An item, or none after the last; the error that made it the last; the warnings since the item before.
    ready: SimpleQueue[tuple[tuple[T, ...], BaseException | None, list[tuple[str, type[Warning]]]]] = SimpleQueue()
    room, stopped = Semaphore(depth), Event()

    def run() -> None:
        error, warned = None, keep()

        def put(*item: T) -> None:
            ready.put((item, error, warned.copy()))
            warned.clear()

        try:
            while room.acquire() and not stopped.is_set():
                put(next(items))
        except StopIteration:
            pass
        except BaseException as raised:  # whatever it is, it belongs to the thread that asks for the items
            error = raised
        finally:
            items.close()
            put()

    thread = Thread(target=run, name="ragsys-kernels-stage", daemon=True)
    thread.start()
    try:
        while True:
            item, error, warned = ready.get()
            for message, category in warned:
                warn(message, category)
            if error is not None:
                raise error
            if not item:
                return
            room.release()
            yield item[0]
    finally:
        stopped.set()
        room.release()
        thread.join(patience)
