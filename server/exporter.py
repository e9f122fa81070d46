"""The Prometheus exporter: the rows of the run store over HTTP at ``/metrics``, and the live page beside them.

Names, help, kinds and labels come from ``core.metrics.METRICS``; a row that is not in that table is refused, so no
name or label leaves that was not meant to. Values are kept as given and read by a collector of our own: the rows of a
counter are cumulative, so a resumed run goes on from the stored total, and no ``_created`` series appear. Rows of a
histogram are one observation each; feed the stored rows again after a resume to get its past back.

The address is ``host:port``; without a host it is the loopback one, and port 0 takes a free port.

>>> parse_address(":9100"), parse_address("[::1]:0")
(('127.0.0.1', 9100), ('::1', 0))
"""

import contextlib
import re
import sys
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from socket import AF_INET6, SHUT_RDWR
from socketserver import ThreadingMixIn
from threading import Lock, Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from prunella.core.errors import ConfigError
from prunella.core.metrics import METRICS, Metric
from prunella.server.report.live import application
from prunella.server.store import Row, StoreError, check_row

LOOPBACK = "127.0.0.1"
# Seconds: from digits on one machine (tenths) to a federation that waits for its slowest site (default limit 600).
BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)

MOST = 64  # connections at a time; a browser opens six, Prometheus one
SECONDS = 10.0  # a connection may last

Labels = tuple[str, ...]


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port``, ``:port`` or ``[v6]:port``. Raises ``ConfigError``."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"metrics-address: expected host:port, got {address!r}")
    return host.strip("[]") or LOOPBACK, int(port)


def _info_labels(versions: Mapping[str, str]) -> dict[str, str]:
    """Prometheus label names have no dash or dot: ``scikit-learn`` becomes ``scikit_learn``."""
    return {re.sub(r"\W", "_", name, flags=re.ASCII): str(version) for name, version in versions.items()}


class _Values(Collector):
    """The last value of every series, safe to read while a round writes."""

    def __init__(self, versions: Mapping[str, str]) -> None:
        self._lock = Lock()
        self._versions = _info_labels(versions)
        self._values: dict[str, dict[Labels, float]] = {}
        self._observed: dict[str, tuple[list[int], float]] = {}

    def take(self, rows: Iterable[Row]) -> None:
        with self._lock:
            for row in rows:
                metric = METRICS[row.metric]
                if metric.kind == "histogram":
                    self._observe(row)
                else:
                    self._set(metric, tuple(row.labels[name] for name in metric.labels), row.value)

    def _set(self, metric: Metric, labels: Labels, value: float) -> None:
        series = self._values.setdefault(metric.name, {})
        if metric.kind == "counter" and value < series.get(labels, 0.0):
            raise StoreError(f"counter {metric.name!r} went down")
        series[labels] = value

    def _observe(self, row: Row) -> None:
        counts, total = self._observed.setdefault(row.metric, ([0] * (len(BUCKETS) + 1), 0.0))
        counts[bisect_left(BUCKETS, row.value)] += 1
        self._observed[row.metric] = counts, total + row.value

    def collect(self) -> Iterator[Family]:
        with self._lock:
            families = [family for metric in METRICS.values() if (family := self._family(metric)) is not None]
        yield from families

    def _family(self, metric: Metric) -> Family | None:
        name, text = metric.prometheus_name, metric.help
        if metric.kind == "info":
            info = InfoMetricFamily(name.removesuffix("_info"), text)
            info.add_metric([], self._versions)
            return info
        if metric.kind == "histogram":
            return self._histogram(metric)
        if metric.name not in self._values:
            return None
        kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        family = kind(name, text, labels=metric.labels)
        for labels, value in sorted(self._values[metric.name].items()):
            family.add_metric(labels, value)
        return family

    def _histogram(self, metric: Metric) -> Family | None:
        if metric.name not in self._observed:
            return None
        counts, total = self._observed[metric.name]
        bounds = [str(float(bound)) for bound in BUCKETS] + ["+Inf"]
        buckets = list(zip(bounds, map(float, accumulate(counts)), strict=True))
        return HistogramMetricFamily(metric.prometheus_name, metric.help, buckets=buckets, sum_value=total)


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each connection, and no more than ``2 * MOST`` of them, for ``SECONDS`` at most.

    With ``MOST`` connections open, a new one ends the oldest: a reader who asks at once has its answer before it is the
    oldest, while those who open connections and say nothing, or little, only push out one another. An ended connection
    counts until its thread has noticed; where too many have not yet, the new one is closed unheard.
    """

    daemon_threads = True
    request_queue_size = 1024  # whom the kernel has no room for waits a second before it asks again

    def __init__(self, *given: Any) -> None:
        self._lock = Lock()
        self._begun: dict[Any, float] = {}  # by connection, oldest first
        self._ended: set[Any] = set()
        super().__init__(*given)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            crowded = len(self._begun) >= 2 * MOST
            live = [each for each in self._begun if each not in self._ended]
            if len(live) >= MOST:
                self._end(live[0])
            if not crowded:
                self._begun[request] = time.monotonic()
        if crowded:
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def _end(self, request: Any) -> None:
        """Its thread's next read finds the end, its next write fails."""
        self._ended.add(request)
        with contextlib.suppress(OSError):
            request.shutdown(SHUT_RDWR)

    def service_actions(self) -> None:
        """Called ten times a second: no connection lasts for ever by saying a little now and then."""
        with self._lock:
            for request, begun in self._begun.items():
                if request not in self._ended and time.monotonic() - begun > SECONDS:
                    self._end(request)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._begun.pop(request, None)
            self._ended.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that went away, or was sent away, is no news."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Server6(_Server):
    address_family = AF_INET6


class _Silent(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """A scrape is no news."""


class Exporter:
    """An HTTP server for one run, on a registry of its own, so that two runs in one process do not mix.

    With ``run_dir``, the directory of the run's store, the live page of the run is at ``/``.
    """

    def __init__(self, address: str, versions: Mapping[str, str], run_dir: Path | None = None) -> None:
        host, port = parse_address(address)
        registry = CollectorRegistry()
        self._values = _Values(versions)
        registry.register(self._values)
        serve = application(make_wsgi_app(registry), host, run_dir)
        try:
            self._server = make_server(host, port, serve, _Server6 if ":" in host else _Server, _Silent)
        except OSError as error:
            raise ConfigError(f"metrics-address: cannot listen on {address!r}: {error.strerror}") from None
        self._thread = Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()
        self.address = f"[{host}]:{self._server.server_port}" if ":" in host else f"{host}:{self._server.server_port}"

    def update(self, rows: Iterable[Row]) -> None:
        """Show ``rows``. One that is not in the table is refused, and then none of them is shown."""
        self._values.take([check_row(row) for row in rows])

    def close(self) -> None:
        """Stop serving and free the port. A second call does nothing."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
