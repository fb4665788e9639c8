"""The selection job on Ray: one machine or a cluster, an actor for each worker, the corpus once on each node.

Or a corpus in segments is spread over the nodes, in actors of its own, of which each holds some (`holders.py`).

Each shard is one call of a worker (`pool.py`): it writes its file as the local engine does, whole or not at all, under
a name that says which it is. A call that is made again writes the same file.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

from .._held import Held
from .._manifest import JobFolder, ShardRecord
from .._options import JobSpec, absolute
from .._spec import Inputs
from .._worker import Worker
from . import holders, room
from ._ray import import_ray, one_line
from .holders import Asking, Watch
from .options import RayOptions
from .pool import Pool

Records = Callable[[Sequence[int], JobFolder, "Callable[[int], None] | None"], Generator[ShardRecord, None, None]]


@contextmanager
def running(spec: JobSpec, inputs: Inputs, options: RayOptions) -> Iterator[Records]:
    """Start the engine, with the corpus in the object store; give what makes shards, as `Worker.write_shards` does."""
    ray = import_ray("select")
    with _session(ray, options.address):
        workers = _workers(room.totals(ray), options)  # refused before the corpus is read
        if spec.memory is None:
            held, watch = Held.of(spec, inputs), Watch(ray, Asking("select", options.wait))
        else:
            assert inputs.saved is not None
            assert spec.corpus is not None
            corpus, watch, nodes = holders.held(
                "select", absolute(spec.corpus), inputs.saved, spec.memory,
                cpus=options.cpus_per_holder, beside=(options.workers or 1, options.each), wait=options.wait,
                threads=spec.request.num_threads, instruction_set=spec.instruction_set, verify=spec.verify,
            )  # fmt: skip
            held = Held.spread(spec, inputs, corpus)
            workers = _workers(nodes, options)
        # Held by this process until the end: workers that are started again need it too.
        with one_line(ray, "select"):
            stored = ray.put(held)
        threads = spec.request.num_threads or max(1, int(options.cpus_per_worker))
        remote = replace(spec.absolute(), request=spec.request.changed(num_threads=threads))
        made = ray.remote(_ShardWriter).options(num_cpus=options.cpus_per_worker, num_gpus=options.gpus_per_worker)

        def records(
            indices: Sequence[int], job: JobFolder, advance: Callable[[int], None] | None = None
        ) -> Generator[ShardRecord, None, None]:
            pool = Pool(ray, lambda: made.remote(remote, job, [stored]), min(workers, len(indices)), options, watch)
            with closing(pool.write(indices)) as written, one_line(ray, "select"):
                for record in written:
                    if advance is not None:
                        advance(record.rows)
                    yield record
                job.folder.remove_unfinished()  # what workers were writing that died

        yield records


class _ShardWriter:
    """A worker on Ray: built once in its process, with the corpus that the node's processes share."""

    def __init__(self, spec: JobSpec, job: JobFolder, corpus: list[Any]) -> None:
        self._spec, self._job, self._corpus = spec, job, corpus
        self._worker: Worker | None = None

    def node(self) -> str:
        """Return the node that this is on."""
        return str(import_ray("select").get_runtime_context().get_node_id())

    def write(self, index: int) -> ShardRecord:
        """Make a shard."""
        if self._worker is None:
            self._worker = Worker(self._spec, import_ray("select").get(self._corpus[0]))
        return self._worker.write_shard(index, self._job)


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
    try:
        yield
    finally:
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


def _workers(nodes: room.Nodes, options: RayOptions) -> int:
    """Return the number of workers; refuse more than fit on the nodes, which would wait for ever."""
    fitting = room.count(nodes, options.each)
    wanted = options.workers or fitting
    if not fitting or wanted > fitting:
        cpus, gpus = (sum(has.get(name, 0) for has in nodes.values()) for name in ("CPU", "GPU"))
        raise ValueError(
            f"select: workers must be at most {fitting}, for which {cpus:g} CPUs and {gpus:g} GPUs in {len(nodes)} "
            f"nodes have room, got {wanted} with {options.cpus_per_worker:g} CPUs and {options.gpus_per_worker:g} GPUs "
            "each"
        )
    return wanted
