"""Metrics for Prometheus, counted when it asks: from the database, and of the leader."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from winnow.core import ConfigError
from winnow.deploy.server.database_reads import Queries
from winnow.deploy.server.request_router import RequestRouter


class TrafficCounter:
    """Bytes of blobs that were received and sent."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.received = self.sent = 0

    def __call__(self, received: int, sent: int) -> None:
        with self._lock:
            self.received += received
            self.sent += sent


class PrometheusCollector(Collector):
    def __init__(self, router: RequestRouter, queries: Queries, traffic: TrafficCounter) -> None:
        self._router = router
        self._queries = queries
        self._traffic = traffic

    def collect(self) -> Iterator[Metric]:
        leader = self._router.leader
        yield _gauge("winnow_leader", "1 while this server is the leader, else 0", 0 if leader is None else 1)
        yield _gauge(
            "winnow_lease_token",
            "Fencing token of this server's lease; 0 without one",
            0 if leader is None else leader.token,
        )
        sites = 0 if leader is None else sum(each.connection is not None for each in list(leader.hub.sites.values()))
        yield _gauge("winnow_sites_connected", "Sites connected to this server", sites)
        jobs = GaugeMetricFamily("winnow_jobs", "Jobs of the project, by status", labels=["status"])
        for status, count in self._queries.job_counts().items():
            jobs.add_metric([status], count)
        yield jobs
        yield _counter("winnow_rounds_committed", "Rounds committed, over all jobs", self._queries.round_count())
        yield _counter("winnow_received_bytes", "Bytes of blobs received", self._traffic.received)
        yield _counter("winnow_sent_bytes", "Bytes of blobs sent", self._traffic.sent)


@contextmanager
def serve_metrics(address: str, collector: PrometheusCollector) -> Iterator[None]:
    """Serve the metrics at HOST:PORT, in a thread."""
    host, _, port = address.rpartition(":")
    registry = CollectorRegistry()
    registry.register(collector)
    try:
        server, thread = start_http_server(int(port), host or "127.0.0.1", registry)
    except (OSError, ValueError) as error:
        raise ConfigError(f"metrics_address = {address!r}: cannot listen at this address: {error}") from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _gauge(name: str, what: str, value: float) -> Metric:
    return GaugeMetricFamily(name, what, value=value)


def _counter(name: str, what: str, value: float) -> Metric:
    return CounterMetricFamily(name, what, value=value)
