"""The selection job on Ray: one machine or a cluster, an actor for each worker, the corpus once on each node.

Or a corpus in segments is spread over the nodes, in actors of its own, of which each holds some (`spread.py`).

The shards to make are the rows of a Ray data set and each is one task: it writes its file as the local engine does,
whole or not at all, under a name that says which it is. A task that Ray runs again writes the same file.
"""

from __future__ import annotations

import json
import logging
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

import ragsys_kernels as rk

from ..._base import checks
from ..._base.extras import needed
from ..._base.types import PathLike
from .._held import Held
from .._manifest import JobFolder, ShardRecord
from .._options import JobSpec, absolute
from .._spec import Inputs
from .._worker import Worker
from ..spread import Holder, Share, Spread, held_by, shares

Records = Callable[[Sequence[int], JobFolder, "Callable[[int], None] | None"], Generator[ShardRecord, None, None]]


@dataclass(frozen=True)
class RayOptions:
    """How many workers, what each of them is given, and the cluster; None: as many as fit, and where Ray runs."""

    workers: int | None = None
    cpus_per_worker: float = 1
    gpus_per_worker: float = 0
    address: str | None = None

    @classmethod
    def of(cls, spec: JobSpec) -> RayOptions | None:
        """Return what a job says of Ray, None where it runs in this process."""
        checks.choice("select", "engine", spec.engine, ("local", "ray"))
        if spec.engine == "local":
            for name in ("workers", "cpus_per_worker", "gpus_per_worker", "ray_address"):
                if (value := getattr(spec, name)) is not None:
                    raise ValueError(f"select: {name} must come with engine 'ray', got {value!r} alone")
            return None
        if spec.gpus_per_worker and spec.device is None:
            raise ValueError(f"select: gpus_per_worker must come with a device, got {spec.gpus_per_worker!r} alone")
        cpus = 1 if spec.cpus_per_worker is None else spec.cpus_per_worker
        gpus = (0 if spec.device is None else 1) if spec.gpus_per_worker is None else spec.gpus_per_worker
        if spec.workers is not None and spec.workers < 1:
            raise ValueError(f"select: workers must be at least 1, got {spec.workers}")
        if not cpus > 0:
            raise ValueError(f"select: cpus_per_worker must be above 0, got {cpus}")
        if not gpus >= 0:
            raise ValueError(f"select: gpus_per_worker must not be negative, got {gpus}")
        return cls(spec.workers, cpus, gpus, spec.ray_address)


@contextmanager
def running(spec: JobSpec, inputs: Inputs, options: RayOptions) -> Iterator[Records]:
    """Start the engine, with the corpus in the object store; give what makes shards, as `Worker.write_shards` does."""
    ray = import_ray("select")
    with _session(ray, options.address), ExitStack() as quiet:
        workers = _placed(ray, options)
        for name in ("ray.data", "ray.data._internal"):
            quiet.enter_context(_level(logging.getLogger(name), logging.ERROR))
        # Held by this process until the end: actors that are started again need it too.
        with _one_line(ray):
            corpus = ray.put(_held(spec, inputs))
        threads = spec.request.num_threads or max(1, int(options.cpus_per_worker))
        remote = replace(spec.absolute(), request=spec.request.changed(num_threads=threads))

        def records(
            indices: Sequence[int], job: JobFolder, advance: Callable[[int], None] | None = None
        ) -> Generator[ShardRecord, None, None]:
            # One block a shard, from this process: no tasks that read need a CPU beside the workers'.
            shards = ray.data.from_items([{"index": index} for index in indices], override_num_blocks=len(indices))
            written = shards.map_batches(
                _ShardWriter,
                fn_constructor_args=(remote, job, [corpus]),
                batch_size=1,
                # A second task of an actor would only wait there for its turn.
                compute=ray.data.ActorPoolStrategy(size=min(workers, len(indices)), max_tasks_in_flight_per_actor=1),
                num_cpus=options.cpus_per_worker,
                num_gpus=options.gpus_per_worker,
            )
            with _one_line(ray):
                for row in written.iter_rows():
                    if row["error"]:
                        error, trace = pickle.loads(row["error"])
                        raise error from RuntimeError(trace)
                    record = ShardRecord(**json.loads(row["record"]))
                    if advance is not None:
                        advance(record.rows)
                    yield record
                job.folder.remove_unfinished()  # what workers were writing that died

        yield records


def _held(spec: JobSpec, inputs: Inputs) -> Held:
    if spec.memory is None:
        return Held.of(spec, inputs)
    assert inputs.saved is not None
    assert spec.corpus is not None
    threads = spec.request.num_threads
    corpus = in_actors("select", spec.corpus, inputs.saved, spec.memory, threads, spec.instruction_set)
    return Held.spread(spec, inputs, corpus)


def in_actors(
    op: str, path: PathLike, corpus: rk.Corpus, memory: int, threads: int | None, instruction_set: str | None
) -> Spread:
    """Return a corpus whose segments actors hold, at most so many bytes each; they go with the object.

    Ray places each where that memory is, starts it again where it has died, and repeats what it was asked. They take no
    CPUs of Ray: where a node is lost, those of the others hold its segments too, if they have the memory.
    """
    ray = import_ray(op)
    found = shares(op, absolute(path), corpus, memory)
    _check_room(ray, op, found)
    holder = ray.remote(Holder)
    holders = [
        holder.options(
            num_cpus=0, memory=share.bytes, max_restarts=-1, max_task_retries=-1, scheduling_strategy="SPREAD"
        ).remote(share, threads, instruction_set)
        for share in found
    ]
    return held_by(holders, found, corpus, _asked)


def _check_room(ray: Any, op: str, wanted: list[Share]) -> None:
    """Refuse what no nodes have the memory for, which would wait for ever."""
    room = sorted((int(node["Resources"].get("memory", 0)) for node in ray.nodes() if node["Alive"]), reverse=True)
    left = list(room)
    for share in sorted(wanted, key=lambda share: -share.bytes):
        place = next((node for node, free in enumerate(left) if free >= share.bytes), None)
        if place is None:
            raise ValueError(
                f"{op}: memory must be what nodes have for actors, got {len(wanted)} of up to "
                f"{max(share.bytes for share in wanted)} bytes, and nodes with {', '.join(map(str, room))}"
            )
        left[place] -= share.bytes


def _asked(calls: Sequence[tuple[Any, str, tuple[Any, ...]]]) -> list[Any]:
    """Call actors at the same time; an array that several get is put into the object store once."""
    ray = import_ray("select")
    stored: dict[int, Any] = {}

    def given(value: Any) -> Any:
        if len(calls) == 1 or not isinstance(value, np.ndarray):
            return value
        if id(value) not in stored:
            stored[id(value)] = ray.put(value)
        return stored[id(value)]

    with _one_line(ray):
        try:
            return list(ray.get([getattr(one, method).remote(*map(given, all_)) for one, method, all_ in calls]))
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None


class _ShardWriter:
    """A worker on Ray: built once in its process, with the corpus that the node's processes share.

    Errors are results, so that they arrive as they are.
    """

    def __init__(self, spec: JobSpec, job: JobFolder, corpus: list[Any]) -> None:
        self._spec, self._job, self._corpus = spec, job, corpus
        self._worker: Worker | None = None

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        record, problem = "", b""
        try:
            if self._worker is None:
                self._worker = Worker(self._spec, import_ray("select").get(self._corpus[0]))
            record = json.dumps(asdict(self._worker.write_shard(int(batch["index"][0]), self._job)))
        except Exception as error:
            problem = pickle.dumps((error, traceback.format_exc()))
        return {"record": [record], "error": [problem]}


def import_ray(op: str) -> Any:
    with needed(op, "ray"):
        import ray
        import ray.data
    return ray


@contextmanager
def _session(ray: Any, address: str | None) -> Iterator[None]:
    """Use the Ray that runs in this process; else connect to the one at the address, or start one, until the end."""
    if ray.is_initialized():
        if address is not None:
            raise ValueError(f"select: ray_address must be left out where Ray is initialised, got {address!r}")
        yield
        return
    with _signals_kept():
        try:
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ValueError(
                f"select: ray_address must be that of a running cluster, got {address!r}: {error}"
            ) from error
    context = ray.data.DataContext.get_current()
    before = context.enable_progress_bars
    context.enable_progress_bars = False
    try:
        yield
    finally:
        context.enable_progress_bars = before
        ray.shutdown()


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Undo what Ray's start does to SIGTERM: its handler aborts, the caller's may finish the current shard."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _placed(ray: Any, options: RayOptions) -> int:
    """Return the number of workers; refuse more than fit on the nodes, which would wait for ever."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    room = 0
    for node in nodes:
        slots = node.get("CPU", 0) / options.cpus_per_worker
        if options.gpus_per_worker:
            slots = min(slots, node.get("GPU", 0) / options.gpus_per_worker)
        room += int(slots)
    wanted = options.workers or room
    if not room or wanted > room:
        cpus, gpus = (sum(node.get(name, 0) for node in nodes) for name in ("CPU", "GPU"))
        raise ValueError(
            f"select: workers must be at most {room}, for which {cpus:g} CPUs and {gpus:g} GPUs in {len(nodes)} nodes "
            f"have room, got {wanted} with {options.cpus_per_worker:g} CPUs and {options.gpus_per_worker:g} GPUs each"
        )
    return wanted


@contextmanager
def _one_line(ray: Any) -> Iterator[None]:
    try:
        yield
    except ray.exceptions.RayError as error:
        raise OSError(f"select: Ray failed: {' '.join(str(error).split())}") from error


@contextmanager
def _level(logger: logging.Logger, level: int) -> Iterator[None]:
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)
