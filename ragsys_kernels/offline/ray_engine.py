"""The selection job on Ray: one machine or a cluster, an actor for each worker, the corpus once on each node.

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

from .._extras import needed
from ._manifest import JobFolder, ShardRecord
from ._spec import Inputs, JobSpec
from ._worker import Held, Worker

Records = Callable[[Sequence[int], JobFolder, "Callable[[int], None] | None"], Generator[ShardRecord, None, None]]


@dataclass(frozen=True)
class RayOptions:
    """How many workers, what each of them is given, and the cluster; None: as many as fit, and where Ray runs."""

    workers: int | None = None
    cpus_per_worker: float = 1
    gpus_per_worker: float = 0
    address: str | None = None

    def check(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"select: workers must be at least 1, got {self.workers}")
        if not self.cpus_per_worker > 0:
            raise ValueError(f"select: cpus_per_worker must be above 0, got {self.cpus_per_worker}")
        if not self.gpus_per_worker >= 0:
            raise ValueError(f"select: gpus_per_worker must not be negative, got {self.gpus_per_worker}")


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
            corpus = ray.put(Held.of(spec, inputs))
        threads = spec.num_threads or max(1, int(options.cpus_per_worker))
        remote = replace(spec.absolute(), num_threads=threads)

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
