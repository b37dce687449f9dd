"""What Prometheus is told: sizes, counts and times, never what was asked."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from fastapi import Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class NodeMetrics:
    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.rows = Counter("fedspm_rows", "Rows answered.", registry=registry)
        self.seconds = Histogram(
            "fedspm_request_seconds", "Time of a request.", buckets=SECONDS, registry=self._registry
        )
        self.batch_rows = Histogram(
            "fedspm_batch_rows", "Rows of a micro-batch.", buckets=ROWS, registry=self._registry
        )
        self._add(registry)

    def _add(self, registry: CollectorRegistry) -> None:
        """Register further metrics; a router has some."""

    @contextmanager
    def timed(self) -> Iterator[None]:
        began = perf_counter()
        try:
            yield
        finally:
            self.seconds.observe(perf_counter() - began)

    def response(self) -> Response:
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)


class RouterMetrics(NodeMetrics):
    def _add(self, registry: CollectorRegistry) -> None:
        self.requests = Counter("fedspm_requests", "Requests by status.", ["path", "status"], registry=registry)
        self.answered = Counter("fedspm_answered_rows", "Rows by who answered.", ["client"], registry=registry)
        self.fallbacks = Counter("fedspm_fallback_rows", "Rows answered by another.", ["meant"], registry=registry)
        self.novel = Counter("fedspm_novel_rows", "Rows that resemble no client.", registry=registry)
        self.up = Gauge("fedspm_node_up", "1 if the node answers.", ["client"], registry=registry)
        self.waiting = Gauge("fedspm_waiting_rows", "Rows inside the router now.", registry=registry)
