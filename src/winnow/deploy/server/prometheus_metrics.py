"""What Prometheus may see: counted when it asks, from the database and from what the leader knows."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from winnow.core import ConfigError
from winnow.deploy.server.queries import Queries
from winnow.deploy.server.request_router import RequestRouter


class TrafficCounter:
    """Bytes of blobs that came and went."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.received = self.sent = 0

    def __call__(self, received: int, sent: int) -> None:
        with self._lock:
            self.received += received
            self.sent += sent


class PrometheusCollector(Collector):
    def __init__(self, service: RequestRouter, records: Queries, traffic: TrafficCounter) -> None:
        self._service = service
        self._records = records
        self._traffic = traffic

    def collect(self) -> Iterator[Metric]:
        reign = self._service.reign
        yield _gauge("winnow_leader", "1 while this server leads", 0 if reign is None else 1)
        yield _gauge("winnow_lease_token", "The token under which it leads", 0 if reign is None else reign.token)
        sites = 0 if reign is None else sum(desk.session is not None for desk in list(reign.hub.desks.values()))
        yield _gauge("winnow_sites_connected", "Sites with a session here", sites)
        jobs = GaugeMetricFamily("winnow_jobs", "Jobs of the project", labels=["status"])
        for status, count in self._records.counts().items():
            jobs.add_metric([status], count)
        yield jobs
        yield _counter("winnow_rounds_committed", "Rounds of all jobs", self._records.rounds())
        yield _counter("winnow_received_bytes", "Of blobs that came in", self._traffic.received)
        yield _counter("winnow_sent_bytes", "Of blobs that went out", self._traffic.sent)


@contextmanager
def serve_metrics(address: str, collector: PrometheusCollector) -> Iterator[None]:
    """Answer Prometheus at HOST:PORT, in a thread of its own."""
    host, _, port = address.rpartition(":")
    registry = CollectorRegistry()
    registry.register(collector)
    try:
        server, thread = start_http_server(int(port), host or "127.0.0.1", registry)
    except (OSError, ValueError) as error:
        raise ConfigError(f"metrics = {address!r}: cannot listen there: {error}") from error
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
