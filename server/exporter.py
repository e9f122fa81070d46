"""The Prometheus exporter: the rows of the run store over HTTP at ``/metrics``, and the live page at ``/``.

Names, help, kinds and labels come from ``core.metrics.METRICS``. A row that is not in that table is refused, so only
listed names and labels leave the process. A collector of our own serves the values as given: the rows of a counter are
cumulative, so a resumed run continues from the stored total, and no ``_created`` series appear. Each row of a histogram
is one observation. ``restore`` gives a resumed run its past back, out of the lines of its store.

The address is ``host:port``; without a host the loopback address is used, and port 0 means any free port.

>>> parse_address(":9100"), parse_address("[::1]:0")
(('127.0.0.1', 9100), ('::1', 0))
"""

import contextlib
import re
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from pathlib import Path
from socket import AF_INET6, SHUT_RDWR
from socketserver import ThreadingMixIn
from threading import Condition, Lock, Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from prunella.core.errors import ConfigError
from prunella.core.metrics import METRICS, Metric
from prunella.server.report.live import Application, Start, application
from prunella.server.store.schema import Row, StoreError, StoreLine, check_row

LOOPBACK = "127.0.0.1"
# Seconds: from digits on one machine (tenths) to a federation that waits for its slowest site (default limit 600).
BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
BOUNDS = ("privacy_epsilon", "channel_information_nats")  # of all clients in a round's rows, or in none of these
# What a process waits for: nothing of one that has ended.
WAITED_FOR = ("audits_left", "audits_left_seconds", "audits_left_limit_seconds")

MAX_CONNECTIONS = 64  # at a time; a browser opens six, Prometheus one
MAX_SECONDS = 10.0  # that a connection may last

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
        self.updates = 0
        self._versions = _info_labels(versions)
        self._values: dict[str, dict[Labels, float]] = {}
        self._observed: dict[str, tuple[list[int], float]] = {}

    def take(self, rows: Sequence[Row]) -> None:
        with self._lock:
            self.updates += 1
            for name in BOUNDS if any(row.metric == "round" for row in rows) else ():
                self._values.pop(name, None)
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
    """One thread per connection, at most ``2 * MAX_CONNECTIONS`` of them, each for at most ``MAX_SECONDS``.

    When ``MAX_CONNECTIONS`` are open, a new one ends the oldest: a client that sends its request at once is answered
    before it is the oldest, while idle connections only displace each other. An ended connection counts until its
    thread has noticed; if too many threads have not, the new connection is closed unread.
    """

    daemon_threads = True
    request_queue_size = 1024  # a client for which the kernel queue has no space retries after a second

    def __init__(self, *given: Any) -> None:
        self._lock = Lock()
        self._begun: dict[Any, float] = {}  # by connection, oldest first
        self._ended: set[Any] = set()
        super().__init__(*given)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            crowded = len(self._begun) >= 2 * MAX_CONNECTIONS
            live = [each for each in self._begun if each not in self._ended]
            if len(live) >= MAX_CONNECTIONS:
                self._end(live[0])
            if not crowded:
                self._begun[request] = time.monotonic()
        if crowded:
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def _end(self, request: Any) -> None:
        """Shut the connection down: its thread's next read finds the end, its next write fails."""
        self._ended.add(request)
        with contextlib.suppress(OSError):
            request.shutdown(SHUT_RDWR)

    def service_actions(self) -> None:
        """End connections that are too old, also those that keep sending a little. Called ten times a second."""
        with self._lock:
            for request, begun in self._begun.items():
                if request not in self._ended and time.monotonic() - begun > MAX_SECONDS:
                    self._end(request)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._begun.pop(request, None)
            self._ended.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report nothing when a client has left or was disconnected."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Server6(_Server):
    address_family = AF_INET6


class _Silent(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: scrapes are routine."""


class _Answer(list[bytes]):
    """The body of an answer; ``close`` is what the web server calls once it has been sent."""

    def __init__(self, body: Iterable[bytes], close: Callable[[], None]) -> None:
        super().__init__(body)
        self.close = close


class Exporter:
    """An HTTP server for one run, with its own registry, so that two runs in one process do not mix.

    With ``run_dir``, the directory of the run's store, the live page of the run is at ``/``.
    """

    def __init__(self, address: str, versions: Mapping[str, str], run_dir: Path | None = None) -> None:
        host, port = parse_address(address)
        registry = CollectorRegistry()
        self._values = _Values(versions)
        registry.register(self._values)
        self._sent, self._asked, self._hurry = Condition(), False, False
        self._scraped = 0  # of the updates, those that were scraped
        serve = application(self._noting(make_wsgi_app(registry)), host, run_dir)
        try:
            self._server = make_server(host, port, serve, _Server6 if ":" in host else _Server, _Silent)
        except OSError as error:
            raise ConfigError(f"metrics-address: cannot listen on {address!r}: {error.strerror}") from None
        self._thread = Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()
        self.address = f"[{host}]:{self._server.server_port}" if ":" in host else f"{host}:{self._server.server_port}"

    def update(self, rows: Iterable[Row]) -> None:
        """Show ``rows``, or none of them if one is not in the table."""
        self._values.take([check_row(row) for row in rows])

    def restore(self, lines: Iterable[StoreLine]) -> None:
        """Show what the lines of ``metrics.jsonl`` say, as when each was written. Not counters: audits that a resume
        takes back are counted no more."""

        def shown(name: str) -> bool:
            return METRICS[name].kind != "counter" and name not in WAITED_FOR

        past = [line for line in lines if shown(line["metric"])]
        # As they were written together, since a bound that a round lacks goes with that round.
        for _, written in groupby(past, key=lambda line: line["time"]):
            self.update(Row(line["metric"], line["value"], line["labels"]) for line in written)

    def _noting(self, metrics: Application) -> Application:
        def serve(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
            self._asked = True
            updates = self._values.updates  # before they are read: what is answered may be newer
            return _Answer(metrics(environ, start), lambda: self._note(updates))

        return serve

    def _note(self, updates: int) -> None:
        with self._sent:
            self._scraped = max(self._scraped, updates)
            self._sent.notify_all()

    def hurry(self) -> None:
        """Let a ``close`` wait no longer."""
        with self._sent:
            self._hurry = True
            self._sent.notify_all()

    def close(self, patience: float = 0.0) -> None:
        """Stop serving and free the port. A second call does nothing. Where this was scraped before, wait ``patience``
        seconds at most until the last update has been, too: what the last audits found is news as well."""
        try:
            with self._sent:
                if self._asked:
                    self._sent.wait_for(lambda: self._hurry or self._scraped >= self._values.updates, patience)
        finally:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
