import math
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from prunella.core.errors import ConfigError
from prunella.core.metrics import METRICS
from prunella.server.exporter import BUCKETS, MAX_CONNECTIONS, Exporter, parse_address
from prunella.server.store.schema import Row, StoreError, row
from prunella.server.store.write import RunStore

LABELS = (("prunella", "0.1.0"), ("scikit_learn", "1.5"))
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    made = Exporter("127.0.0.1:0", {"prunella": "0.1.0", "scikit-learn": "1.5"})
    yield made
    made.close()


def text(exporter: Exporter) -> str:
    with urllib.request.urlopen(f"http://{exporter.address}/metrics", timeout=10) as reply:
        return str(reply.read().decode())


def samples(exporter: Exporter) -> Samples:
    families = text_string_to_metric_families(text(exporter))
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def test_a_scrape_shows_the_rows_and_nothing_else(exporter: Exporter) -> None:
    exporter.update([row("accuracy_ratio", 0.75), row("wire_bytes_total", 10, direction="up")])
    exporter.update([row("accuracy_ratio", 0.5), row("wire_bytes_total", 4, direction="down")])
    assert samples(exporter) == {
        ("prunella_accuracy_ratio", ()): 0.5,
        ("prunella_wire_bytes_total", (("direction", "up"),)): 10.0,
        ("prunella_wire_bytes_total", (("direction", "down"),)): 4.0,
        ("prunella_build_info", LABELS): 1.0,
    }


def test_the_histogram_counts_like_the_naive_one(exporter: Exporter) -> None:
    seconds = [0.05, 0.1, 0.11, 3.0, 3.0, 700.0, 9999.0]
    exporter.update([row("round_seconds", s) for s in seconds])
    seen = samples(exporter)
    for bound in (*map(float, BUCKETS), math.inf):
        label = (("le", "+Inf" if bound == math.inf else str(bound)),)
        assert seen["prunella_round_seconds_bucket", label] == sum(s <= bound for s in seconds)
    assert seen["prunella_round_seconds_count", ()] == len(seconds)
    assert seen["prunella_round_seconds_sum", ()] == pytest.approx(sum(seconds))


def test_every_metric_of_the_table_is_served_with_its_kind_and_help(exporter: Exporter) -> None:
    shown = [m for m in METRICS.values() if m.kind != "info"]
    exporter.update([Row(m.name, 1.0, dict.fromkeys(m.labels, "x")) for m in shown])
    body = text(exporter)
    for metric in METRICS.values():
        kind = "gauge" if metric.kind == "info" else metric.kind
        assert f"# TYPE {metric.prometheus_name} {kind}\n" in body
        assert f"# HELP {metric.prometheus_name} {metric.help}\n" in body
    assert "_created" not in body and "client=" not in body


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
def test_promtool_finds_nothing_to_mend(exporter: Exporter) -> None:
    exporter.update([Row(m.name, 1.0, dict.fromkeys(m.labels, "x")) for m in METRICS.values() if m.kind != "info"])
    checked = subprocess.run(["promtool", "check", "metrics"], input=text(exporter), capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_a_resumed_run_goes_on_from_the_stored_total() -> None:
    resumed = Exporter("127.0.0.1:0", {})
    try:
        resumed.update([row("client_failures_total", 7, reason="shape")])
        resumed.update([row("client_failures_total", 9, reason="shape")])
        assert samples(resumed)["prunella_client_failures_total", (("reason", "shape"),)] == 9.0
    finally:
        resumed.close()


def test_a_resumed_run_shows_what_its_store_says_and_takes_no_counter_from_it(
    exporter: Exporter, tmp_path: Path
) -> None:
    store, leak = RunStore.open(tmp_path), {"attack": "sgi", "defense": "dgp", "view": "client"}
    both = [row("privacy_epsilon", 3.0, stat="worst"), row("round_seconds", 2.0), row("audits_left", 3)]
    store.append_metrics(
        1, [row("round", 1), row("leakage_level", 3, **leak), row("audits_total", 9, outcome="scored")]
    )
    store.append_metrics(2, [row("round", 2), *both])
    store.append_metrics(3, [row("round", 3), row("round_seconds", 0.3)])
    exporter.restore(store.metrics())
    exporter.update([row("audits_total", 2, outcome="scored")])
    seen = samples(exporter)
    assert seen["prunella_leakage_level", tuple(sorted(leak.items()))] == 3.0 and seen["prunella_round", ()] == 3.0
    assert seen["prunella_round_seconds_count", ()] == 2.0 and seen["prunella_round_seconds_sum", ()] == 2.3
    assert seen["prunella_audits_total", (("outcome", "scored"),)] == 2.0, "some were taken back"
    assert not {name for name, _ in seen} & {"prunella_privacy_epsilon", "prunella_audits_left"}


def test_a_counter_that_goes_down_is_refused(exporter: Exporter) -> None:
    exporter.update([row("audits_total", 3, outcome="scored")])
    with pytest.raises(StoreError, match="went down"):
        exporter.update([row("audits_total", 2, outcome="scored")])


def test_a_bound_that_a_client_lacks_since_this_round_is_shown_no_more(exporter: Exporter) -> None:
    exporter.update([row("round", 1), row("privacy_epsilon", 3.0, stat="worst"), row("accuracy_ratio", 0.5)])
    exporter.update([row("leakage_level", 1, attack="sgi", defense="dgp", view="client")])
    assert samples(exporter)["prunella_privacy_epsilon", (("stat", "worst"),)] == 3.0
    exporter.update([row("round", 2)])
    assert {name for name, _ in samples(exporter)} & {"prunella_privacy_epsilon", "prunella_accuracy_ratio"} == {
        "prunella_accuracy_ratio"
    }


def test_a_bad_row_is_refused_together_with_its_good_neighbours(exporter: Exporter) -> None:
    for bad in (Row("secret", 1.0), Row("loss", 1.0, {"client": "3"}), Row("loss", math.nan)):
        with pytest.raises((ConfigError, StoreError)):
            exporter.update([Row("accuracy_ratio", 0.5), bad])
    assert {name for name, _ in samples(exporter)} == {"prunella_build_info"}


def test_two_exporters_do_not_mix(exporter: Exporter) -> None:
    other = Exporter("127.0.0.1:0", {})
    try:
        other.update([row("round", 4)])
        assert ("prunella_round", ()) not in samples(exporter)
        assert samples(other)["prunella_round", ()] == 4.0
    finally:
        other.close()


def silent(exporter: Exporter, count: int, said: bytes = b"") -> list[socket.socket]:
    made = [socket.create_connection(parse_address(exporter.address), timeout=10) for _ in range(count)]
    for connection in made:
        connection.sendall(said)
    return made


@pytest.mark.parametrize("said", [b"", b"GET /metrics HTTP/1.1\r\nHost: local", b"GET /" + b"a" * 60_000])
def test_connections_that_do_not_finish_asking_keep_nobody_out(exporter: Exporter, said: bytes) -> None:
    before, begin = threading.active_count(), time.monotonic()
    waiting = silent(exporter, 300, said)
    assert [samples(exporter)["prunella_build_info", LABELS] for _ in range(20)] == [1.0] * 20
    assert time.monotonic() - begin < 5 and threading.active_count() - before <= 2 * MAX_CONNECTIONS
    waiting[0].settimeout(5)
    assert waiting[0].recv(1) == b"", "the oldest went first"
    for connection in waiting:
        connection.close()


def test_a_connection_that_says_a_little_all_the_time_is_ended(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prunella.server.exporter.MAX_SECONDS", 0.5)
    (slow,) = silent(exporter, 1)
    begin = time.monotonic()
    with pytest.raises(OSError):
        while time.monotonic() - begin < 5:
            slow.sendall(b"G")
            time.sleep(0.05)
    assert time.monotonic() - begin < 3 and text(exporter)
    slow.close()


def test_readers_that_do_not_read_are_ended_too(exporter: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is larger than what the system keeps for a socket."""
    monkeypatch.setattr("prunella.server.exporter.MAX_SECONDS", 0.5)
    exporter.update([Row("audits_total", 1.0, {"outcome": f"{i:09}" * 400}) for i in range(3000)])
    before = threading.active_count()
    waiting = silent(exporter, 10, b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
    end = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < end:
        time.sleep(0.05)
    assert threading.active_count() <= before and time.monotonic() < end
    for connection in waiting:
        connection.close()


def test_close_frees_the_port_and_may_be_called_again() -> None:
    made = Exporter("127.0.0.1:0", {})
    host, port = parse_address(made.address)
    made.close()
    made.close()
    with socket.socket() as probe:
        assert probe.connect_ex((host, port)) != 0


def test_close_waits_for_a_scrape_of_the_last_update_where_there_was_one_before() -> None:
    made = Exporter("127.0.0.1:0", {})
    assert ("prunella_round", ()) not in samples(made)
    made.update([row("round", 7)])
    closing = threading.Thread(target=made.close, args=(20.0,))
    closing.start()
    time.sleep(0.3)
    assert closing.is_alive() and samples(made)["prunella_round", ()] == 7.0
    closing.join(5)
    assert not closing.is_alive(), "it was scraped"


@pytest.mark.parametrize("scrapes", [0, 1, 2])
def test_close_does_not_wait_for_nobody_nor_for_what_was_read(scrapes: int) -> None:
    made, begin = Exporter("127.0.0.1:0", {}), time.monotonic()
    for _ in range(scrapes - 1):
        samples(made)
    made.update([row("round", 7)])
    for _ in range(min(scrapes, 1)):
        samples(made)
    made.close(20.0)
    made.close(20.0)
    assert time.monotonic() - begin < 5


def test_close_waits_no_longer_than_it_may_nor_once_it_is_told_to_hurry() -> None:
    for hurry, patience in ((False, 0.3), (True, 20.0)):
        made = Exporter("127.0.0.1:0", {})
        made.update([row("round", 6)])
        samples(made)
        made.update([row("round", 7)])
        begin = time.monotonic()
        if hurry:
            threading.Timer(0.3, made.hurry).start()
        made.close(patience)
        assert 0.25 < time.monotonic() - begin < 5


def test_ctrl_c_ends_a_close_that_waits_and_frees_the_port() -> None:
    made = Exporter("127.0.0.1:0", {})
    made.update([row("round", 6)])
    samples(made)
    made.update([row("round", 7)])
    begin = time.monotonic()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # Flower's apps, which tests run, set their own
    try:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            made.close(20.0)
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - begin < 5
    with socket.socket() as probe:
        assert probe.connect_ex(parse_address(made.address)) != 0


def test_a_taken_port_says_which_setting_to_change(exporter: Exporter) -> None:
    with pytest.raises(ConfigError, match="metrics-address"):
        Exporter(exporter.address, {})


@pytest.mark.parametrize("address", ["", "9100", "host:", "host:port", "host:70000"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        parse_address(address)


def test_without_a_host_only_this_machine_can_read() -> None:
    assert parse_address(":9100") == ("127.0.0.1", 9100)
