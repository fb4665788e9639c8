"""Micro-batching without waiting: requests that arrive while a kernel call runs form the next call.

An idle server answers at once. A call that should take less than `_INLINE` seconds runs on the event loop, since
handing it to a thread would take as long. Other calls run in one thread, while the loop reads requests.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..selection.problem import Selection
from .asked import BLOCK, Asked
from .kernel import Block, answer, apart, joined, split
from .limits import Limits, RefusedError, gone
from .metrics import Metrics

_INLINE = 200e-6
# Seconds of an empty call, and of one element of a row until a call has been measured.
_CALL, _ELEMENT = 15e-6, 0.2e-9
# Weights of a new measurement below and above the estimate: a busy machine only makes calls longer.
_BELOW, _ABOVE = 0.5, 0.02
_PACE = 0.2


class Pending:
    """What ends once, well or with an ``error``: then it is ``done``, and calls whoever waits for it."""

    def __init__(self) -> None:
        self.done = False
        self.error: BaseException | None = None
        self._then: list[Callable[[], None]] = []

    def then(self, function: Callable[[], None]) -> None:
        """Call a function, which raises nothing, when this is done, at once if it is."""
        if self.done:
            function()
        else:
            self._then.append(function)

    async def wait(self) -> None:
        """Wait until this is done; raise its error."""
        if not self.done:
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.then(lambda: None if ended.done() else ended.set_result(None))
            await ended
        if self.error is not None:
            raise self.error

    def end(self, error: BaseException | None = None) -> None:
        if self.done:
            return
        self.done, self.error = True, error
        waiting, self._then = self._then, []  # they know this: without it only the garbage collector would end both
        for function in waiting:
            function()


class Ticket(Pending):
    """A request on its way through the kernels; it is done when all its blocks have their picks.

    Attributes
    ----------
    begun, kernel : float
        When the first call began, and the seconds of all calls.
    waiting : int
        Queries that are not in a call yet.
    """

    def __init__(self, batcher: Batcher, asked: Asked, queries: int) -> None:
        super().__init__()
        self._batcher, self.asked = batcher, asked
        self._picks: list[Any] = [None] * len(asked.blocks)
        self.waiting, self._left = queries, len(asked.blocks)
        self.submitted = time.perf_counter()
        self.begun, self.kernel = self.submitted, 0.0
        self.done = not asked.blocks
        self._timer: asyncio.TimerHandle | None = None

    def expire_at(self, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        self._timer = loop.call_at(deadline, self.end, RefusedError(504, "select: the deadline has passed"))

    def put(self, index: int, picks: Selection, begun: float, seconds: float) -> None:
        """Take the picks of a block."""
        if self._left == len(self._picks):
            self.begun = begun
        self.kernel += seconds
        self._picks[index] = picks
        self._left -= 1
        if not self._left and not self.done:
            self.asked.take(self._picks)
            self.end()

    def end(self, error: BaseException | None = None) -> None:
        if self.waiting:  # nobody waits for them any more
            self._batcher.drop(self.waiting)
            self.waiting = 0
        if self._timer is not None:
            self._timer.cancel()
        super().end(error)


Entry = tuple[Block, Ticket, int]  # a block, whose it is, and its number there


class Batcher:
    """Gives blocks of queries to the kernels, those of one key together.

    Parameters
    ----------
    num_threads : int, optional
        Threads of a call that runs beside the event loop; default: all processors.
    wait_us : int
        Microseconds that a block waits for others even if nothing runs.
    """

    def __init__(self, limits: Limits, metrics: Metrics, num_threads: int | None = None, wait_us: int = 0) -> None:
        self._limits, self._metrics, self._num_threads, self._wait = limits, metrics, num_threads, wait_us * 1e-6
        self._waiting: dict[tuple[object, ...], deque[Entry]] = {}  # the longest waiting first
        self._thread = ThreadPoolExecutor(1, "kernel")
        self._seconds: dict[tuple[object, ...], float] = {}  # of an element, by kind of call
        self._pace = 0.0  # seconds of a query, lately
        self._scheduled = self._running = False
        self.queued = 0  # queries that wait

    async def answer(self, asked: Asked, deadline: float | None = None) -> Ticket:
        """Return the ticket of a request that has its picks; see `submit`."""
        ticket = self.submit(asked, deadline)
        try:
            await ticket.wait()
        except asyncio.CancelledError:
            ticket.end(gone())
            raise
        return ticket

    def check_room(self, queries: int) -> None:
        """Refuse queries for which the queue has no room."""
        if self.queued + queries > self._limits.queue:
            seconds = max(1, math.ceil(self.queued * self._pace))
            message = f"select: the queue must have room, got {self.queued} queries that wait"
            raise RefusedError(429, message, headers={"retry-after": str(seconds)})

    def submit(self, asked: Asked, deadline: float | None = None, look: bool = True) -> Ticket:
        """Return the ticket of a request, which is done when all its blocks have their picks.

        Parameters
        ----------
        deadline : float, optional
            In the event loop's time.
        look : bool
            False: the caller submits more, and then calls `look`.

        Raises
        ------
        RefusedError
            429: the queue is full. 504: the deadline has passed; what waits is dropped.
        """
        loop, queries = asyncio.get_running_loop(), sum(map(len, asked.blocks))
        ticket = Ticket(self, asked, queries)
        if not asked.blocks:
            return ticket
        self.check_room(queries)
        self.queued += queries
        for index, block in enumerate(asked.blocks):
            if block.skipped:
                self._metrics.skipped.labels(block.served.name).inc(sum(map(len, block.skipped.values())))
            self._waiting.setdefault(block.key, deque()).append((block, ticket, index))
        if deadline is not None:
            ticket.expire_at(loop, deadline)
        if look:
            self._schedule(loop)
        return ticket

    def look(self) -> None:
        """Look at the queue now, at the end of a round of the event loop."""
        loop = asyncio.get_running_loop()
        if self._wait:
            self._schedule(loop)
        elif not (self._scheduled or self._running):
            self._flush(loop)

    def drop(self, queries: int) -> None:
        """Stop counting queries whose request has ended."""
        self.queued -= queries
        self._metrics.queued.set(self.queued)

    def close(self) -> None:
        self._thread.shutdown(wait=True)

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look at the queue after the requests that have arrived with this one are read."""
        if self._scheduled or self._running:
            return
        self._scheduled = True
        if self._wait:
            loop.call_later(self._wait, self._flush, loop)
        else:
            loop.call_soon(self._flush, loop)

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        self._scheduled = False
        entries = self._next()
        if not entries:
            return
        kind, work, seconds = self._expected(entries)
        if seconds < _INLINE:
            begin = time.perf_counter()
            try:
                picks = answer(joined([block for block, _, _ in entries]), 1, "raise")
            except Exception:  # finding the query that caused it may take long
                self._run(loop, entries, kind, work)
                return
            self._finish(entries, [picks], kind, work, begin, time.perf_counter() - begin)
            if self._waiting:
                self._schedule(loop)
        else:
            self._run(loop, entries, kind, work)

    def _run(self, loop: asyncio.AbstractEventLoop, entries: list[Entry], kind: tuple[object, ...], work: int) -> None:
        """Answer in the kernels' thread; meanwhile the loop reads requests."""
        self._running = True
        begin = time.perf_counter()
        task = loop.run_in_executor(self._thread, _answers, [block for block, _, _ in entries], self._num_threads)

        def done(task: asyncio.Future[tuple[list[Selection | Exception], float]]) -> None:
            self._running = False
            if self._waiting:  # before anything else: the kernels shall not wait for answers to be written
                self._flush(loop)
            self._finish(entries, task.result()[0], kind, work, begin, task.result()[1])

        task.add_done_callback(done)

    def _next(self) -> list[Entry]:
        """Take the blocks of the key that has waited longest, up to one kernel call; skip requests that have ended."""
        entries: list[Entry] = []
        size = 0
        while self._waiting and not entries:
            key, queue = next(iter(self._waiting.items()))
            del self._waiting[key]
            while queue and (not entries or size + len(queue[0][0]) <= BLOCK):
                entry = queue.popleft()
                ticket = entry[1]
                if not ticket.done:
                    self.queued -= len(entry[0])
                    ticket.waiting -= len(entry[0])
                    entries.append(entry)
                    size += len(entry[0])
            if queue:  # to the end: others have their turn
                self._waiting[key] = queue
        return entries

    def _expected(self, entries: list[Entry]) -> tuple[tuple[object, ...], int, float]:
        """Return the kind of a call, its work, and how many seconds it should take."""
        block = entries[0][0]
        request = block.request
        kind = (block.served.name, request.op, request.candidates is None, block.pool is None, block.given is None)
        work = sum(block.work for block, _, _ in entries)
        return kind, work, _CALL + work * self._seconds.get(kind, _ELEMENT)

    def _finish(
        self,
        entries: list[Entry],
        answers: Sequence[Selection | Exception],
        kind: tuple[object, ...],
        work: int,
        begin: float,
        seconds: float,
    ) -> None:
        """Give each request its picks, and update the estimate of the time per element."""
        queries = sum([block.size for block, _, _ in entries])
        if work:
            element = max(0.0, seconds - _CALL) / work
            known = self._seconds.get(kind, _ELEMENT)
            self._seconds[kind] = known + (_BELOW if element < known else _ABOVE) * (element - known)
        self._pace += _PACE * (seconds / queries - self._pace)
        self._metrics.batch(queries, seconds, self.queued)
        if len(answers) == 1 and not isinstance(answers[0], Exception):
            answers = split(answers[0], [block for block, _, _ in entries])
        for (_, ticket, index), picks in zip(entries, answers, strict=True):
            if not isinstance(picks, Exception):
                try:
                    ticket.put(index, picks, begin, seconds)
                    continue
                except Exception as error:
                    picks = error
            ticket.end(picks)


def _answers(blocks: list[Block], num_threads: int | None) -> tuple[list[Selection | Exception], float]:
    """Return one selection for all blocks, or if the call fails one for each block; and the seconds that it took."""
    begin = time.perf_counter()
    found: list[Selection | Exception] = []
    try:
        found.append(answer(joined(blocks), num_threads))
    except Exception:
        for block in blocks:
            try:
                found.append(apart(block, num_threads))
            except Exception as error:
                found.append(error)
    return found, time.perf_counter() - begin
