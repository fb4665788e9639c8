"""The actors on Ray that hold the segments of a corpus.

Ray starts an actor again where it has died, on a node that has what it reserves. Whoever was waiting for an answer asks
again then: an answer has the same bits from any process. Each wait ends: with the answer; after `wait` seconds without
an actor to ask; or when the same call has ended the process `_DEATHS` times.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import ragsys_kernels as rk

from ..._base.types import PathLike
from ..spread import Holder, Share, Spread, held_by, shares
from . import room
from ._ray import import_ray, lost, one_line
from .options import SILENT, START

_log = logging.getLogger(__name__)

_DEATHS = 5  # of an actor, at the same call
# Calls that do not wait for the searches before them; and whether the process is there, which waits for no call at all:
# one may read and verify all segments first, or fetch them, after a restart.
_LIGHT, _THERE = "light", "there"
_GROUPS = {"search": None, "open": None, "node": _THERE}


class SegmentHolder(Holder):
    """A holder in a process of Ray."""

    def node(self) -> str:
        """Return the node that this is on."""
        return str(import_ray("select").get_runtime_context().get_node_id())


@dataclass(frozen=True)
class _Placed:
    """A holder on Ray, and in words what it holds."""

    actor: Any
    path: PathLike
    segments: tuple[str, ...]
    first: int
    demand: dict[str, float]

    def ask(self, method: str, *arguments: Any) -> Any:
        group = _GROUPS.get(method, _LIGHT)
        options = {} if group is None else {"concurrency_group": group}
        return getattr(self.actor, method).options(**options).remote(*arguments)

    def __str__(self) -> str:
        names = dict.fromkeys((self.segments[0], self.segments[-1]))
        return f"segment{'s' * (len(names) > 1)} {' to '.join(names)} of {self.path}"


@dataclass(frozen=True)
class Asking:
    """Calls of holders at the same time; one that is lost is asked again when it has been started again."""

    op: str
    wait: float

    def __call__(
        self, calls: Sequence[tuple[_Placed, str, tuple[Any, ...]]], look: Callable[[], None] = lambda: None
    ) -> list[Any]:
        ray = import_ray(self.op)
        stored: dict[int, Any] = {}

        def given(value: Any) -> Any:
            """Put an array that several get into the object store once."""
            if len(calls) == 1 or not isinstance(value, np.ndarray):
                return value
            if id(value) not in stored:
                stored[id(value)] = ray.put(value)
            return stored[id(value)]

        def asked(n: int) -> Any:
            holder, method, arguments = calls[n]
            return holder.ask(method, *map(given, arguments))

        answers: list[Any] = [None] * len(calls)
        deaths: Counter[int] = Counter()
        with one_line(ray, self.op):
            waiting = {asked(n): n for n in range(len(calls))}
            while waiting:
                for answer in ray.wait([*waiting], timeout=1)[0]:
                    n = waiting.pop(answer)
                    try:
                        answers[n] = ray.get(answer)
                    except ray.exceptions.RayTaskError as error:
                        raise error.cause from None
                    except lost(ray) as error:
                        deaths[n] += 1
                        if deaths[n] == _DEATHS:
                            raise self._killed(ray, calls[n][0], error) from error
                        # For a pipeline, whose workers' lines Ray shows; a job has its watch.
                        _log.warning(
                            "%s: %s are lost, time %d of at most %d; they are asked again when Ray has started them, "
                            "within %g s", self.op, calls[n][0], deaths[n], _DEATHS, self.wait,
                        )  # fmt: skip
                        self._started(ray, calls[n][0], look)
                        waiting[asked(n)] = n
                look()
        return answers

    def _started(self, ray: Any, holder: _Placed, look: Callable[[], None]) -> None:
        """Return when a holder answers again."""
        end = time.monotonic() + self.wait
        while time.monotonic() < end:
            answer = holder.ask("node")
            while not ray.wait([answer], timeout=1)[0] and time.monotonic() < end:
                look()
            try:
                ray.get(answer, timeout=1)
                return
            except ray.exceptions.GetTimeoutError:
                break
            except lost(ray):
                look()
                time.sleep(0.2)  # the answer while it is being started is an error, at once
        raise OSError(
            f"{self.op}: {holder} must be held again within {self.wait:g} s of being lost, got no actor on Ray: it "
            f"needs {room.said(holder.demand)}, free are {room.most(room.free(ray), ray)}"
        )

    def _killed(self, ray: Any, holder: _Placed, error: BaseException) -> OSError:
        """Return the error of a call that ends its process each time: by the segment, if one does so alone."""
        why = f"the process that holds it ended {_DEATHS} times: {' '.join(str(error).split())}"
        for number, name in enumerate(holder.segments, holder.first):
            self._started(ray, holder, lambda: None)
            try:
                ray.get(holder.ask("probe", number))
            except ray.exceptions.RayTaskError as found:
                return OSError(f"{self.op}: segment {name} of {holder.path} must be usable, got {found.cause}")
            except lost(ray):
                return OSError(f"{self.op}: segment {name} of {holder.path} must be usable, got: {why}")
        return OSError(f"{self.op}: {holder} must be usable together, got: {why}")


class Watch:
    """Says what is waited for: nodes that are lost or new, and holders that do not answer."""

    def __init__(self, ray: Any, asking: Asking, holders: Sequence[_Placed] = ()) -> None:
        self._ray, self._asking, self._holders = ray, asking, holders
        self._nodes = room.addresses(ray).keys() & room.totals(ray).keys()
        now = time.monotonic()
        self._looked = now
        self._on = ["being started"] * len(holders)
        self._answered, self._told = [now] * len(holders), [SILENT] * len(holders)
        self._asked: dict[Any, int] = {}

    def look(self) -> None:
        """Look at most once a second, without waiting."""
        now = time.monotonic()
        if now - self._looked < 1:
            return
        self._looked = now
        self._at_nodes()
        waiting = set(self._asked.values())
        self._asked.update({
            holder.ask("node"): n for n, holder in enumerate(self._holders) if n not in waiting
        })  # fmt: skip
        if self._asked:
            names = room.addresses(self._ray)
            for answer in self._ray.wait([*self._asked], num_returns=len(self._asked), timeout=0)[0]:
                n = self._asked.pop(answer)
                try:
                    node = self._ray.get(answer)
                except lost(self._ray):
                    continue
                if self._told[n] > SILENT:
                    _log.warning("%s: %s answer, on %s", self._asking.op, self._holders[n], names.get(node, node))
                self._on[n], self._answered[n], self._told[n] = f"last on {names.get(node, node)}", now, SILENT
        self._tell_silent(now)

    def _tell_silent(self, now: float) -> None:
        silent = [n for n, answered in enumerate(self._answered) if now - answered >= self._told[n]]
        if not silent:
            return
        for n in silent:
            self._told[n] *= 2
        names = "; ".join(f"{self._holders[n]}, {self._on[n]}" for n in silent[:3])
        most = max((self._holders[n].demand for n in silent), key=lambda demand: demand["memory"])
        _log.warning(
            "%s: %d of %d holders have not answered for %.0f s or more (%s%s); each needs up to %s, and free are %s; "
            "they are asked again when Ray has started them; after %g s without the job ends, and can be resumed",
            self._asking.op, len(silent), len(self._holders), min(now - self._answered[n] for n in silent), names,
            "; ..." * (len(silent) > 3), room.said(most), room.most(room.free(self._ray), self._ray), self._asking.wait,
        )  # fmt: skip

    def _at_nodes(self) -> None:
        alive, names = set(room.totals(self._ray)), room.addresses(self._ray)
        for node in self._nodes - alive:
            name = names.get(node, node)
            held = [str(holder) for holder, on in zip(self._holders, self._on, strict=True) if on == f"last on {name}"]
            then = f", with {', '.join(held)}, which Ray starts again on a node with room" if held else ""
            _log.warning("%s: node %s is lost%s", self._asking.op, name, then)
        for node in alive - self._nodes:
            _log.warning("%s: node %s has come", self._asking.op, names.get(node, node))
        self._nodes = alive

    def starved(self) -> bool:
        """Whether a holder that does not answer would fit on a node if this had more CPUs free."""
        now = time.monotonic()
        silent = [n for n, answered in enumerate(self._answered) if now - answered >= SILENT]
        demands = [self._holders[n].demand for n in silent]
        nodes = room.free(self._ray).values() if demands else ()
        return any(
            not any(room.fits(has, demand) for has in nodes)
            and any(room.fits(has, {"memory": demand["memory"]}) for has in nodes)
            for demand in demands
        )


def demands(found: Sequence[Share], cpus: float) -> list[dict[str, float]]:
    """Return what holders reserve: the bytes of their segments, and CPUs."""
    return [{"memory": share.bytes, "CPU": cpus} for share in found]


def held(
    op: str,
    path: PathLike,
    corpus: rk.Corpus,
    memory: int,
    *,
    cpus: float | None,
    beside: tuple[int, dict[str, float]],
    wait: float,
    threads: int | None,
    instruction_set: str | None,
    verify: bool,
) -> tuple[Spread, Watch, room.Nodes]:
    """Return a corpus whose segments actors hold, at most so many bytes each, who watches them, and what they leave.

    Actors reserve the bytes and ``cpus``, and have as many threads. None: one CPU, if those beside them, so many with
    so much each, have room then; else none, and as many threads as processors. They go with the corpus.
    """
    ray = import_ray(op)
    found = shares(op, path, corpus, memory)
    cpus, left = _reserved(ray, op, found, cpus, beside)
    wanted = demands(found, cpus)
    asking = Asking(op, wait)
    _wait_for_room(ray, asking, wanted)
    names = [segment["name"] for segment in found[0].description["segments"]]
    made = ray.remote(concurrency_groups={_LIGHT: 1, _THERE: 1})(SegmentHolder)
    holders = [
        _Placed(
            made.options(
                num_cpus=cpus, memory=share.bytes, max_restarts=-1, max_task_retries=0, scheduling_strategy="SPREAD",
            ).remote(share, threads or (max(1, int(cpus)) if cpus else None), instruction_set, verify),
            path, tuple(names[number] for number in share.numbers), share.numbers.start, demand,
        )
        for share, demand in zip(found, wanted, strict=True)
    ]  # fmt: skip
    watch = Watch(ray, asking, holders)
    for holder in holders:  # there is room, so that this takes as long as processes take to start
        replace(asking, wait=max(START, wait))._started(ray, holder, watch.look)
    start, told = time.monotonic(), [SILENT]

    def look() -> None:
        watch.look()
        if (since := time.monotonic() - start) >= told[0]:
            told[0] *= 2
            _log.info("%s: the segments of %s are read and verified where they are held, for %.0f s", op, path, since)

    asking([(holder, "open", ()) for holder in holders], look)
    return held_by(holders, found, corpus, asking), watch, left


def _reserved(
    ray: Any, op: str, found: list[Share], cpus: float | None, beside: tuple[int, dict[str, float]]
) -> tuple[float, room.Nodes]:
    """Return the CPUs of each holder, and what they leave; refuse what no nodes have, which would wait for ever."""
    nodes = room.totals(ray)
    for each in (1.0, 0.0) if cpus is None else (cpus,):
        left = room.without(nodes, demands(found, each))
        if left is not None and (cpus is not None or not each or room.count(left, beside[1]) >= beside[0]):
            if cpus is None and not each:
                _log.info("%s: the nodes have no CPU for each of %d holders: they reserve none", op, len(found))
            return each, left
    got = f"{len(found)} of up to {max(share.bytes for share in found)} bytes"
    had = ", ".join(str(int(has.get("memory", 0))) for has in nodes.values())
    if cpus and room.without(nodes, demands(found, 0)) is not None:
        had = ", ".join(f"{has.get('CPU', 0):g}" for has in nodes.values())
        raise ValueError(
            f"{op}: cpus_per_holder must be what nodes have beside each other, got {got} with {cpus:g} CPUs each, and "
            f"nodes with {had} CPUs"
        )
    raise ValueError(f"{op}: memory must be what nodes have for actors, got {got}, and nodes with {had}")


def _wait_for_room(ray: Any, asking: Asking, wanted: list[dict[str, float]]) -> None:
    """Return when the nodes have free what holders reserve, which others may have or just give back."""
    start, told = time.monotonic(), 1.0
    while room.without(room.free(ray), wanted) is None:
        since = time.monotonic() - start
        state = f"{len(wanted)} of up to {room.said(max(wanted, key=lambda each: each['memory']))} each, and free are "
        state += room.most(room.free(ray), ray)
        if since >= asking.wait:
            raise ValueError(f"{asking.op}: memory must be what nodes have free for actors, got {state}")
        if since >= told:
            told *= 2
            _log.warning("%s: holders wait for room since %.0f s, at most %g: %s", asking.op, since, asking.wait, state)
        time.sleep(0.2)
