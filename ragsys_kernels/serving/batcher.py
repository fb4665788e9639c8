"""Micro-batching without waiting: requests that arrive while a kernel call runs form the next call.

An idle server answers at once. A call that should take less than `_INLINE` seconds of one thread runs on the event
loop: another thread would wait as long for its turns beside a busy loop. Other calls run in a thread, while the loop
reads requests.

A call ends after about `_TURN` seconds or `_LONG_TURN`, so that others have their turns: longer requests are answered
in parts, and take turns in a lane of their own, beside which the others go on. What nobody waits for any more is
stopped.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from .. import _dispatch
from .._base import env
from ..selection.problem import Selection
from .asked import BLOCK, Asked
from .kernel import Block, answer, apart, joined, split
from .limits import Limits, RefusedError, gone
from .metrics import Metrics
from .stop import Stop, StoppedError

# A call of 8 queries over 100 candidates, 0.3 ms, took 1 ms in a thread beside a busy loop: the thread waits for its
# turn before and after the kernels. On the loop calls were larger, and the server answered 1.6 times as many requests.
_INLINE = 1e-3
# Seconds of a call, where its queries leave a choice, and of one of requests that take longer: these have a thread of
# their own. Blocks of 256 queries over 100 candidates, 6 ms each, took 5 to 13 % more of the processor when cut.
_TURN, _LONG_TURN = 5e-3, 8e-3
# What the queries of a call may add to the work that they share, in times of it: a search of all rows is made once for
# as many queries as add so much. For 40 queries it takes 8 % more of the processor a query than for 256.
_SHARED = 8.0
# Seconds of an empty call, and of one element of a row until a call has been measured.
_CALL, _ELEMENT = 15e-6, 0.2e-9
# Elements that are not worth a second thread: `worthwhile_threads` in csrc/cpu/parallel.h.
_SERIAL = 4e6
# How much nicer than the rest of the process long calls are: where both want a processor, it has a tenth.
_NICE = 10
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
    """A request on its way through the kernels; it is done when all its queries have their picks.

    Attributes
    ----------
    begun, kernel : float
        When the first call began, and the seconds of all calls.
    waiting : int
        Queries that are not in a call yet.
    callers : int
        Requests that go together as this one.
    """

    def __init__(self, batcher: Batcher, asked: Asked, callers: int = 1) -> None:
        super().__init__()
        self._batcher, self.asked, self.callers = batcher, asked, callers
        self._parts: list[tuple[Block, Selection]] = []
        self.waiting = self._left = sum([block.size for block in asked.blocks])
        self.submitted = time.perf_counter()
        self.begun, self.kernel = self.submitted, 0.0
        self.done = not asked.blocks
        self._timer: asyncio.TimerHandle | None = None

    def expire_at(self, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        self._timer = loop.call_at(deadline, self.end, RefusedError(504, "select: the deadline has passed"))

    def put(self, block: Block, picks: Selection, begun: float, seconds: float) -> None:
        """Take the picks of a block, or of a part of one."""
        if self.done:
            return
        if not self._parts:
            self.begun = begun
        self.kernel += seconds
        self._parts.append((block, picks))
        self._left -= len(block)
        if not self._left:
            if len(self._parts) > 1:
                self._parts.sort(key=lambda part: part[0].positions[0])
            self.asked.take(self._parts)
            self.end()

    def end(self, error: BaseException | None = None) -> None:
        if self.waiting:  # nobody waits for them any more
            self._batcher.drop(self.waiting)
            self.waiting = 0
        if self._timer is not None:
            self._timer.cancel()
        super().end(error)
        if error is not None:
            self._parts.clear()
            self._batcher.stop_unwanted()


@dataclass(slots=True, eq=False)
class Turn:
    """The blocks of one key of a request, as far as they wait."""

    ticket: Ticket
    blocks: deque[Block]
    begun: int = 0  # queries of the first of them that have been in a call
    element: float | None = None  # seconds, as the last call of its queries took; None: not known


Entry = tuple[Block, Turn]  # some queries, and whose they are


class Lane:
    """What waits for one thread, and the call that runs there."""

    def __init__(self, name: str, gives_way: bool) -> None:
        self.alone: Turn | None = None  # what waits, if nothing else does: most meet no other, and need no key
        self.waiting: dict[tuple[object, ...], deque[Turn]] = {}  # by key, the longest waiting first
        self.thread = ThreadPoolExecutor(1, name, initializer=_give_way if gives_way else None)
        self.call: list[Entry] = []
        self.stop = Stop()

    def add(self, turn: Turn) -> None:
        if self.alone is None and not self.waiting:
            self.alone = turn
            return
        self.by_key()
        self.waiting.setdefault(turn.blocks[0].key, deque()).append(turn)

    def by_key(self) -> None:
        """Put what waits alone where others can come to it."""
        if self.alone is not None:
            self.waiting[self.alone.blocks[0].key] = deque([self.alone])
            self.alone = None

    @property
    def waits(self) -> bool:
        return self.alone is not None or bool(self.waiting)


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
        self._threads = 1 if _dispatch.why_not("cpu") else num_threads or env.num_threads()
        self._short, self._long = self._lanes = (Lane("kernel", False), Lane("long kernel", True))
        self._elements: dict[tuple[object, ...], float] = {}  # seconds of an element, by kind of call
        self._pace = 0.0  # seconds of a query, lately
        self._scheduled = False
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

    def submit(self, asked: Asked, deadline: float | None = None, look: bool = True, callers: int = 1) -> Ticket:
        """Return the ticket of a request, which is done when all its queries have their picks.

        Parameters
        ----------
        deadline : float, optional
            In the event loop's time.
        look : bool
            False: the caller submits more, and then calls `look`.
        callers : int
            Whose requests these are, together.

        Raises
        ------
        RefusedError
            429: the queue is full. 504: the deadline has passed; what waits is dropped, what runs is stopped.
        """
        loop, ticket = asyncio.get_running_loop(), Ticket(self, asked, callers)
        if not asked.blocks:
            return ticket
        self.check_room(ticket.waiting)
        self.queued += ticket.waiting
        turns: dict[tuple[object, ...], Turn] = {}
        for block in asked.blocks:
            if block.skipped:
                self._metrics.skipped.labels(block.served.name).inc(sum(map(len, block.skipped.values())))
            key = block.key if len(asked.blocks) > 1 else ()
            if (turn := turns.get(key)) is None:
                turn = turns[key] = Turn(ticket, deque())
            turn.blocks.append(block)
        long = sum(map(self._remaining, turns.values())) > _TURN * callers
        for turn in turns.values():
            (self._long if long else self._short).add(turn)
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
        elif not self._scheduled:
            self._flush(loop)

    def drop(self, queries: int) -> None:
        """Stop counting queries whose request has ended."""
        self.queued -= queries
        self._metrics.waiting(self.queued)

    def stop_unwanted(self) -> None:
        """Stop the calls whose requests have all ended."""
        for lane in self._lanes:
            if lane.call and all(turn.ticket.done for _, turn in lane.call):
                lane.stop.set()

    def close(self) -> None:
        for lane in self._lanes:
            lane.thread.shutdown(wait=True)

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look at the queue after the requests that have arrived with this one are read."""
        if self._scheduled or not any(lane.waits and not lane.call for lane in self._lanes):
            return
        self._scheduled = True
        if self._wait:
            loop.call_later(self._wait, self._flush, loop)
        else:
            loop.call_soon(self._flush, loop)

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        self._scheduled = False
        for lane in self._lanes:
            if lane.waits and not lane.call:
                self._begin(loop, lane)

    def _begin(self, loop: asyncio.AbstractEventLoop, lane: Lane) -> None:
        """Begin the next call of a lane."""
        entries = self._next(lane)
        if not entries:
            return
        work = self._work([(block, len(block)) for block, _ in entries], 1)
        block, turn = entries[0]
        if _CALL + work * (turn.element or self._elements.get(block.cost.kind, _ELEMENT)) >= _INLINE:
            self._run(loop, lane, entries)
            return
        begin, used = time.perf_counter(), time.thread_time()
        try:
            picks = answer(joined([block for block, _ in entries]), 1, "raise")
        except Exception:  # finding the query that caused it may take long
            self._run(loop, lane, entries)
            return
        seconds = time.perf_counter() - begin
        self._measure(entries, work, seconds, time.thread_time() - used)
        self._finish(entries, [picks], begin, seconds)
        if lane.waits:
            self._schedule(loop)

    def _run(self, loop: asyncio.AbstractEventLoop, lane: Lane, entries: list[Entry]) -> None:
        """Answer in the thread of a lane; meanwhile the loop reads requests."""
        lane.call, lane.stop = entries, Stop()
        begin = time.perf_counter()
        blocks = [block for block, _ in entries]
        work = self._work([(block, len(block)) for block in blocks], self._threads_of(blocks[0]))
        task = loop.run_in_executor(lane.thread, _answers, blocks, self._num_threads, lane.stop)

        def done(task: asyncio.Future[tuple[list[Selection | Exception], float, float]]) -> None:
            lane.call = []
            answers, seconds, used = task.result()
            if answers:
                self._measure(entries, work, seconds, used)
            self._flush(loop)  # before anything else: the kernels shall not wait for answers to be written
            if answers:
                self._finish(entries, answers, begin, seconds)

        task.add_done_callback(done)

    def _next(self, lane: Lane) -> list[Entry]:
        """Take queries of the key that has waited longest, up to one call; skip requests that have ended."""
        if (turn := lane.alone) is not None and turn.ticket.waiting == 1:  # all that it was asked for
            lane.alone = None
            return [(self._taken(turn, 1), turn)]
        lane.by_key()
        seconds = _TURN if lane is self._short else _LONG_TURN
        entries: list[Entry] = []
        while lane.waiting and not entries:
            key, turns = next(iter(lane.waiting.items()))
            del lane.waiting[key]
            size, room = 0, 0.0
            while turns and size < BLOCK:
                turn = turns[0]
                if turn.ticket.done:
                    turns.popleft()
                    continue
                if turn.element and lane is self._short and self._remaining(turn) > _TURN * turn.ticket.callers:
                    self._long.add(turns.popleft())  # it takes longer than expected
                    continue
                block = turn.blocks[0]
                _, shared, own = block.cost
                whole = max(seconds / self._element(turn), _SHARED * shared)  # of a call that begins with this block
                if not entries:
                    room = whole
                rounds = max(int(room / own), 0 if entries else 1)  # in each of which every thread has a query
                threads, left = self._threads_of(block), len(block) - turn.begun
                count = min(left, rounds * threads, BLOCK - size)
                # A block is cut where it has to be: cutting it takes as long as a dozen of its queries.
                if not count or (entries and count < left <= int(whole / own) * threads):
                    break
                turns.popleft()
                entries.append((self._taken(turn, count), turn))
                size, room = size + count, room - own * count / threads
                if turn.blocks:  # to the end: others have their turn
                    turns.append(turn)
            if turns:
                lane.waiting[key] = turns
        return entries

    def _taken(self, turn: Turn, count: int) -> Block:
        """Take so many queries of the first block that waits."""
        block, begin = turn.blocks[0], turn.begun
        turn.begun += count
        if turn.begun == len(block):
            turn.blocks.popleft()
            turn.begun = 0
        self.queued -= count
        turn.ticket.waiting -= count
        return block if count == len(block) else block[begin : begin + count]

    def _element(self, turn: Turn) -> float:
        """Return how many seconds an element of the queries should take that wait."""
        return turn.element or self._elements.get(turn.blocks[0].cost.kind, _ELEMENT)

    def _remaining(self, turn: Turn) -> float:
        """Return how many seconds the queries of a turn should take that wait."""
        queries = [(block, len(block)) for block in turn.blocks]
        queries[0] = (queries[0][0], queries[0][1] - turn.begun)
        return self._work(queries, self._threads_of(turn.blocks[0])) * self._element(turn)

    def _threads_of(self, block: Block) -> int:
        """Return how many queries are worked through at the same time: one by the rule that only NumPy has."""
        return 1 if block.request.op == "gist" else self._threads

    def _work(self, queries: Sequence[tuple[Block, int]], threads: int) -> float:
        """Return how many elements one of the threads works through in a call of so many queries of each block."""
        total = longest = most = 0.0
        for block, count in queries:
            _, shared, own = block.cost
            most, total, longest = max(most, shared), total + own * count, max(longest, own)
        if total >= _SERIAL:
            total = max(total / threads, longest)
        return most + total

    def _measure(self, entries: list[Entry], work: float, seconds: float, used: float) -> None:
        """Update the estimates of the time per element, by what a call ``used`` of its processor.

        By the seconds that have passed, short requests would be long on a busy machine, and wait for long ones.
        """
        block, queries = entries[0][0], sum([block.size for block, _ in entries])
        on_host = isinstance(block.request.embeddings.data, np.ndarray)  # a device computes while the thread waits
        element = max(0.0, (used if on_host else seconds) - _CALL) / work
        kind = block.cost.kind
        known = self._elements.get(kind, _ELEMENT)
        self._elements[kind] = known + (_BELOW if element < known else _ABOVE) * (element - known)
        for _, turn in entries:
            turn.element = element
        self._pace += _PACE * (seconds / queries - self._pace)
        self._metrics.batch(queries, seconds, self.queued)

    def _finish(
        self, entries: list[Entry], answers: Sequence[Selection | Exception], begin: float, seconds: float
    ) -> None:
        """Give each request its picks."""
        if len(answers) == 1 and not isinstance(answers[0], Exception):
            answers = split(answers[0], [block for block, _ in entries])
        for (block, turn), picks in zip(entries, answers, strict=True):
            if not isinstance(picks, Exception):
                try:
                    turn.ticket.put(block, picks, begin, seconds)
                    continue
                except Exception as error:
                    picks = error
            turn.ticket.end(picks)


def _give_way() -> None:
    """Let other threads of this process go before this one, and those that it starts, where the system can."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + _NICE)


def _answers(
    blocks: list[Block], num_threads: int | None, stop: Stop
) -> tuple[list[Selection | Exception], float, float]:
    """Return one selection for all blocks, or if the call fails one for each block.

    Beside them the seconds that it took, and those of the processor that this thread used, which are those of the other
    threads of the call too. A call that was stopped returns no selection.
    """
    begin, used = time.perf_counter(), time.thread_time()
    found: list[Selection | Exception] = []
    with stop:
        try:
            try:
                found.append(answer(joined(blocks), num_threads))
            except Exception:
                for block in blocks:
                    try:
                        found.append(apart(block, num_threads))
                    except Exception as error:
                        found.append(error)
        except StoppedError:
            found.clear()
    return found, time.perf_counter() - begin, time.thread_time() - used
