"""What ``/metrics`` shows, in Prometheus' text format; of all workers together where there are several."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, values
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from .._base import env

_SECONDS = (100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_QUERIES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The counters of one application."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter("ragsys_requests", "Requests by status", ["route", "code"], registry=registry)
        self._latency = Histogram(
            "ragsys_request_seconds", "Seconds of a request", ["route"], registry=registry, buckets=_SECONDS
        )
        self._batch = Histogram("ragsys_batch_queries", "Queries of a kernel call", registry=registry, buckets=_QUERIES)
        self._kernel = Histogram("ragsys_kernel_seconds", "Of a kernel call", registry=registry, buckets=_SECONDS)
        self.queued = Gauge(
            "ragsys_queued_queries", "Queries that wait", registry=registry, multiprocess_mode="livesum"
        )
        self.rows = Gauge(
            "ragsys_corpus_rows", "Rows of a corpus", ["corpus"], registry=registry, multiprocess_mode="livemax"
        )
        self._reloads = Counter("ragsys_reloads", "Reloads of a corpus", ["corpus", "outcome"], registry=registry)
        self.skipped = Counter(
            "ragsys_skipped_ids", "Ids of requests that a corpus does not have", ["corpus"], registry=registry
        )
        self.refused = Counter("ragsys_refused_connections", "Connections beyond the limit", registry=registry)
        self.closed = Counter(
            "ragsys_closed_connections", "Connections that the server closed", ["reason"], registry=registry
        )
        self.dropped = Counter("ragsys_dropped_log_lines", "Lines of the access log not written", registry=registry)
        self._known: dict[tuple[str, int], tuple[Any, Any]] = {}  # looking up labels takes longer than counting

    def request(self, route: str, code: int, seconds: float) -> None:
        known = self._known.get((route, code))
        if known is None:
            known = self._requests.labels(route, str(code)), self._latency.labels(route)
            self._known[route, code] = known
        known[0].inc()
        known[1].observe(seconds)

    def batch(self, queries: int, seconds: float, queued: int) -> None:
        self._batch.observe(queries)
        self._kernel.observe(seconds)
        self.queued.set(queued)

    def reload(self, name: str, well: bool) -> None:
        self._reloads.labels(name, "loaded" if well else "refused").inc()

    def text(self) -> bytes:
        registry = self._registry
        if env.metrics_folder():
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return bytes(generate_latest(registry))


def count_at(place: int) -> None:
    """Store the metrics of this process under its place among the workers, not under its process id.

    A new worker then continues the files of the dead one that it replaces. Files named by process id would accumulate,
    and every request for ``/metrics`` reads all files.
    """
    values.ValueClass = values.MultiProcessValue(lambda: place)  # type: ignore[no-untyped-call]


def forget(place: int) -> None:
    """Remove the gauges of a dead worker from the sums; its counters remain."""
    mark_process_dead(place)  # type: ignore[no-untyped-call]
