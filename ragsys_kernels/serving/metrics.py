"""What ``/metrics`` shows, in Prometheus' text format; of all workers together where there are several."""

from __future__ import annotations

import os
import platform
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest, values
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from .. import __version__
from .._base import env

if TYPE_CHECKING:
    from .corpora import Served

_SECONDS = (100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_QUERIES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_PID = "ragsys_worker_pid"
# A request is counted once, by all that it is counted by; what is shown are sums of these.
_REQUESTS = "ragsys_requests"
_SUMS = (
    (_REQUESTS, "Requests by status", "route"),
    ("ragsys_corpus_requests", "Requests of a corpus, by status", "corpus"),
    ("ragsys_token_requests", "Requests with a token, by status", "token"),
)


class Metrics:
    """The counters of one application.

    Parameters
    ----------
    corpora : function
        Returns those in service, the same in all workers.
    """

    def __init__(self, corpora: Callable[[], Iterable[Served]] = tuple) -> None:
        self._corpora = corpora
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(_REQUESTS, "", ["route", "code", "corpus", "token"], registry=registry)
        self._latency = Histogram(
            "ragsys_request_seconds", "Seconds of a request", ["route"], registry=registry, buckets=_SECONDS
        )
        self._batch = Histogram("ragsys_batch_queries", "Queries of a kernel call", registry=registry, buckets=_QUERIES)
        self._kernel = Histogram("ragsys_kernel_seconds", "Of a kernel call", registry=registry, buckets=_SECONDS)
        self._queued = Gauge(
            "ragsys_queued_queries", "Queries that wait", registry=registry, multiprocess_mode="livesum"
        )
        self._reloads = Counter("ragsys_reloads", "Reloads of a corpus", ["corpus", "outcome"], registry=registry)
        self._file_reloads = Counter(
            "ragsys_file_reloads", "Reloads of the server's files: tokens, certificate", ["file", "outcome"],
            registry=registry,
        )  # fmt: skip
        self.skipped = Counter(
            "ragsys_skipped_ids", "Ids of requests that a corpus does not have", ["corpus"], registry=registry
        )
        self.refused = Counter("ragsys_refused_connections", "Connections beyond the limit", registry=registry)
        self.closed = Counter(
            "ragsys_closed_connections", "Connections that the server closed", ["reason"], registry=registry
        )
        self.dropped = Counter("ragsys_dropped_log_lines", "Lines of the access log not written", registry=registry)
        self._waiting: int | None = None
        self._known: dict[tuple[str, int, str, str], tuple[Any, Any]] = {}  # looking up labels takes longer

    def serves(self) -> None:
        """Let the other workers find this process from now on; `_Workers` shows what they are told here."""
        Gauge(_PID, "Process of a worker", registry=None, multiprocess_mode="liveall").set(os.getpid())

    def request(self, route: str, code: int, seconds: float, corpus: str = "", token: str = "") -> None:
        """Count a request, of a corpus and with the token of this name if it got so far."""
        known = self._known.get((route, code, corpus, token))
        if known is None:
            counter = self._requests.labels(route, str(code), corpus, token)
            known = self._known[route, code, corpus, token] = counter, self._latency.labels(route)
        known[0].inc()
        known[1].observe(seconds)

    def batch(self, queries: int, seconds: float, queued: int) -> None:
        self._batch.observe(queries)
        self._kernel.observe(seconds)
        self.waiting(queued)

    def waiting(self, queued: int) -> None:
        """Note how many queries wait."""
        if queued != self._waiting:
            self._queued.set(queued)
            self._waiting = queued

    def reload(self, name: str, outcome: str) -> None:
        """Count a reload once, whatever the number of workers: it was "loaded", "refused" or "unloaded"."""
        self._reloads.labels(name, outcome).inc()

    def file_reload(self, what: str, outcome: str) -> None:
        """Count that a file of the server has changed, once whatever the number of workers: "loaded" or "refused"."""
        self._file_reloads.labels(what, outcome).inc()

    def text(self) -> bytes:
        registry = CollectorRegistry()
        if env.metrics_folder():
            registry.register(_Parts(partial(_summed, _Workers(None))))  # type: ignore[no-untyped-call]
        else:
            registry.register(_Parts(partial(_summed, self._registry)))
            registry.register(_Parts(partial(_processes, {"0": os.getpid()})))
        registry.register(_Parts(self._state))
        return bytes(generate_latest(registry))

    def _state(self) -> Iterator[Metric]:
        """Yield what each worker knows of all."""
        rows = GaugeMetricFamily("ragsys_corpus_rows", "Rows of a corpus that are not deleted", labels=["corpus"])
        text = "When the corpus was loaded, in seconds since 1970"
        loaded = GaugeMetricFamily("ragsys_corpus_loaded_timestamp_seconds", text, labels=["corpus"])
        for served in self._corpora():
            rows.add_metric([served.name], served.corpus.num_live)
            loaded.add_metric([served.name], served.loaded)
        about = {"version": __version__, "python": platform.python_version()}
        yield from (rows, loaded, InfoMetricFamily("ragsys_build", "Versions of the server", about))


class _Parts:
    """Metrics that a function yields."""

    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self.collect = collect


def _summed(collector: Any) -> Iterator[Metric]:
    """Yield the metrics of a collector, with the sums of the requests that it has counted."""
    for family in collector.collect():
        if family.name != _REQUESTS:
            yield family
            continue
        for name, text, label in _SUMS:
            sums: defaultdict[tuple[str, str], float] = defaultdict(float)
            for sample in family.samples:
                if sample.name.endswith("_total") and sample.labels[label]:
                    sums[sample.labels[label], sample.labels["code"]] += sample.value
            shown = CounterMetricFamily(name, text, labels=[label, "code"])
            for labels, value in sums.items():
                shown.add_metric(labels, value)
            yield shown


class _Workers(MultiProcessCollector):
    """What all workers have counted, and their processes."""

    def collect(self) -> Iterator[Metric]:
        for family in super().collect():  # type: ignore[no-untyped-call]
            if family.name != _PID:
                yield family
            else:
                yield from _processes({each.labels["pid"]: int(each.value) for each in family.samples})


def _processes(pids: Mapping[str, int]) -> Iterable[Metric]:
    """Return the metrics of processes that all clients of Prometheus have, by worker."""
    found: dict[str, Metric] = {}
    for worker, pid in pids.items():
        for family in ProcessCollector(pid=partial(int, pid), registry=None).collect():
            whole = found.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            whole.samples += [each._replace(labels={"worker": worker}) for each in family.samples]
    return found.values()


_place = 0  # of this process among the workers


def count_at(place: int) -> None:
    """Store the metrics of this process under its place among the workers, not under its process id.

    A new worker then continues the files of the dead one that it replaces. Files named by process id would accumulate,
    and every request for ``/metrics`` reads all files.
    """
    global _place
    _place = place
    values.ValueClass = values.MultiProcessValue(lambda: place)  # type: ignore[no-untyped-call]


def place() -> int:
    """Return the place of this process among the workers, 0 where it is alone."""
    return _place


def forget(place: int) -> None:
    """Remove the gauges of a dead worker from the sums; its counters remain."""
    mark_process_dead(place)  # type: ignore[no-untyped-call]
