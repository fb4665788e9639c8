"""The workers of a job on Ray: each makes a shard at a time, and one that is lost is replaced.

Its shard goes to the next worker that is free. Ray places workers; one that waits for a node has no shard, so that the
others go on without it.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from typing import Any

from .._manifest import ShardRecord
from . import room
from ._ray import lost
from .holders import Watch
from .options import SILENT, START, RayOptions

_log = logging.getLogger(__name__)

_DEATHS = 5  # of workers, at the same shard
_QUIET = 60.0  # seconds without a shard, after which one is told
_PATIENCE = 10.0  # seconds for a worker that was ended to be gone


class Pool:
    """So many workers, which `start` starts one by one."""

    def __init__(self, ray: Any, start: Callable[[], Any], size: int, options: RayOptions, watch: Watch) -> None:
        self._ray, self._start, self._size, self._options, self._watch = ray, start, size, options, watch
        # What is waited for: of a worker at work its shard, of one that is being started None.
        self._calls: dict[Any, tuple[Any, int | None]] = {}
        self._on: dict[str, str] = {}  # by the id of a worker; the dead stay
        self._given_way = 0.0
        self._tell = SILENT

    def write(self, indices: Sequence[int]) -> Generator[ShardRecord, None, None]:
        """Yield the record of each shard when it is in its place, in any order."""
        todo, deaths = deque(indices), Counter[int]()
        idle: list[Any] = []
        at_work = told = time.monotonic()
        quiet = _QUIET
        try:
            while todo or self._shards():
                self._fill(len(todo) + len(self._shards()), len(idle))
                while todo and idle:
                    worker, shard = idle.pop(), todo.popleft()
                    self._calls[worker.write.remote(shard)] = worker, shard
                if not todo:  # CPUs for others; a worker for a shard that comes back is soon started
                    idle.clear()
                if not self._calls:  # all gave way
                    time.sleep(1)
                for call in self._ray.wait([*self._calls], timeout=1)[0] if self._calls else ():
                    worker, index = self._calls.pop(call)
                    try:
                        found = self._ray.get(call)
                    except self._ray.exceptions.RayTaskError as error:
                        raise error.cause from error
                    except lost(self._ray) as error:
                        node = self._on.get(_id(worker), "a node")
                        if index is None:
                            continue
                        todo.appendleft(index)
                        deaths[index] += 1
                        why = " ".join(str(error).split())
                        if deaths[index] == _DEATHS:
                            raise OSError(
                                f"select: shard {index} must be made by a worker, got {_DEATHS} that ended at it: {why}"
                            ) from error
                        _log.warning(
                            "select: the worker at shard %d, on %s, is lost, time %d of at most %d; another makes the "
                            "shard: %s", index, node, deaths[index], _DEATHS, why,
                        )  # fmt: skip
                        continue
                    idle.append(worker)
                    if index is None:
                        self._on[_id(worker)] = room.addresses(self._ray).get(found, found)
                    else:
                        told, quiet = time.monotonic(), _QUIET
                        yield found
                now = time.monotonic()
                at_work = now if self._shards() else at_work
                self._watch.look()
                self._give_way(todo)
                self._wait_for_workers(now - at_work, todo)
                if now - told > quiet:
                    quiet *= 2
                    _log.warning("select: no shard is done since %.0f s: %s", now - told, self._state(todo))
        finally:
            self._end()

    def _shards(self) -> list[int]:
        return [index for _, index in self._calls.values() if index is not None]

    def _fill(self, wanted: int, idle: int) -> None:
        """Start workers up to the number that has something to do, unless holders wait for CPUs."""
        if self._given_way and not self._watch.starved():
            self._given_way = 0.0
        if not self._given_way:
            for _ in range(min(self._size, wanted) - len(self._calls) - idle):
                worker = self._start()
                self._calls[worker.node.remote()] = worker, None

    def _give_way(self, todo: deque[int]) -> None:
        """End a worker where a holder that was lost has memory on a node, and no CPU."""
        now = time.monotonic()
        if now - self._given_way < _PATIENCE or not self._calls or not self._watch.starved():
            return
        self._given_way = now
        call = max(self._calls, key=lambda call: self._calls[call][1] is None)  # one that is being started, if any
        worker, index = self._calls.pop(call)
        self._ray.kill(worker)
        if index is not None:
            todo.appendleft(index)
        _log.warning(
            "select: a worker ends on %s, for a holder needs its CPUs", self._on.get(_id(worker), "no node yet")
        )

    def _wait_for_workers(self, since: float, todo: Sequence[int]) -> None:
        """Tell that no worker is at work, and end the job when that takes too long."""
        # The first may be slow to start, or wait for other jobs; later ones take the place of one that was lost.
        limit = self._options.wait if self._on else max(self._options.wait, START)
        if since > limit:
            raise OSError(f"select: workers must start within {limit:g} s, got {self._state(todo)}")
        if since < SILENT:
            self._tell = SILENT
        elif since >= self._tell:
            self._tell *= 2
            _log.warning("select: no worker is at work for %.0f s, at most %g: %s", since, limit, self._state(todo))

    def _state(self, todo: Sequence[int]) -> str:
        """Return in words what is waited for."""
        at = [f"{index} on {self._on.get(_id(worker))}" for worker, index in self._calls.values() if index is not None]
        starting = len(self._calls) - len(at)
        words = [f"workers are at shards {', '.join(at[:5])}{' and others' * (len(at) > 5)}"] if at else []
        if starting:
            words.append(
                f"{starting} wait for {room.said(self._options.each)}, and free are "
                f"{room.most(room.free(self._ray), self._ray)}"
            )
        return "; ".join([*words, f"{len(todo)} shards are to be begun"])

    def _end(self) -> None:
        """End all workers, and wait until those at work write no more: the folder may be cleared then."""
        for worker, _ in self._calls.values():
            self._ray.kill(worker)
        at_work = [call for call, (_, index) in self._calls.items() if index is not None]
        if at_work:
            self._ray.wait(at_work, num_returns=len(at_work), timeout=_PATIENCE)
        self._calls.clear()


def _id(worker: Any) -> str:
    return str(worker._actor_id)
