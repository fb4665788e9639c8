"""Stages of a job that run at the same time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from contextvars import copy_context
from queue import SimpleQueue
from threading import Event, Semaphore, Thread
from typing import TypeVar

from .._base.warn import keep, warn

S = TypeVar("S")
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


def side_by_side(work: Callable[[S], T], items: Generator[S, None, None], count: int) -> Generator[T, None, None]:
    """Yield what `work` makes of each item, in their order, of at most `count` items at the same time.

    An error is raised in its place in the order; the work that has begun by then ends first. One at a time stays in
    this thread, to which a device may be bound.
    """
    if count == 1:
        with closing(items):
            yield from map(work, items)
        return
    begun: deque[Future[T]] = deque()
    with closing(items), ThreadPoolExecutor(count, "ragsys-kernels-side") as threads:
        for item in items:
            # Warnings go where those of this thread go.
            begun.append(threads.submit(copy_context().run, work, item))
            if len(begun) == count:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
