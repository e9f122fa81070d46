"""The live page over HTTP, and in a real Chromium: what it shows, what it keeps to itself, what it survives."""

import http.client
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from prunella.server.exporter import Exporter, parse_address
from prunella.server.report import live
from prunella.server.store.schema import row
from prunella.server.store.write import RunStore
from tests.server.report.test_build import Page, add_audit, full_run, new_run

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return full_run(tmp_path / "run")


@pytest.fixture
def exporter(store: RunStore) -> Iterator[Exporter]:
    made = Exporter("127.0.0.1:0", {}, store.path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exporter]:
    """One for all requests that change nothing."""
    made = Exporter("127.0.0.1:0", {}, full_run(tmp_path_factory.mktemp("lasting") / "run").path)
    made.update([row("round", 4)])
    yield made
    made.close()


def get(address: str, path: str = "/", host: str = "", method: str = "GET") -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection(address, timeout=10)
    connection.request(method, path, headers={"Host": host or address})
    reply = connection.getresponse()
    text = reply.read().decode()
    connection.close()
    return reply.status, text, dict(reply.getheaders())


def test_it_shows_the_figures_and_pictures_of_the_report(exporter: Exporter) -> None:
    status, text, headers = get(exporter.address)
    page = Page(text)
    assert status == 200 and "Prunella live" in page.text and "run r-7" in page.text
    assert page.tags.count("img") == 2 * 4 * 3 and "Nothing was rebuilt" in page.text
    assert all(address.startswith("data:") for address in page.addresses)
    assert headers["Cache-Control"] == "no-store"


def test_metrics_stay_where_they_are_and_nothing_else_is_served(exporter: Exporter) -> None:
    exporter.update([row("round", 4)])
    assert "prunella_round 4.0" in get(exporter.address, "/metrics")[1]
    for path in ("/run.json", "/pictures/4-client.safetensors", "/../run.json", "/metrics/"):
        assert get(exporter.address, path)[0] == 404
    assert [get(exporter.address, path, method="POST")[0] for path in ("/", "/metrics")] == [405, 405]


def test_an_exporter_without_a_run_has_no_page() -> None:
    made = Exporter("127.0.0.1:0", {})
    try:
        assert get(made.address)[0] == 404 and get(made.address, "/metrics")[0] == 200
    finally:
        made.close()


def test_the_page_follows_the_store_and_costs_nothing_between_changes(
    exporter: Exporter, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    real = live.context
    monkeypatch.setattr(live, "context", lambda *given, **more: made.append(given) or real(*given, **more))
    assert "covers 4 rounds" not in get(exporter.address)[1]
    store.write_run(status="running")
    store.append_metrics(5, [row("round", 5)])
    before = len(made)
    assert "covers 5 rounds" in get(exporter.address)[1] and get(exporter.address)[0] == 200
    assert len(made) == before + 1


def test_pictures_do_not_leave_the_machine(store: RunStore) -> None:
    made = Exporter("0.0.0.0:0", {}, store.path)
    try:
        page = Page(get(f"127.0.0.1:{parse_address(made.address)[1]}")[1])
        assert "img" not in page.tags and "Pictures are shown only on the server's own machine" in page.text
        assert "Nothing was rebuilt" in page.text
    finally:
        made.close()


def test_without_consent_there_are_none_either(tmp_path: Path) -> None:
    store = new_run(tmp_path / "run")
    add_audit(store, 4, "control", 0.02, pictures=False)
    add_audit(store, 4, "client", 2.0, pictures=False, outcome="no-consent", scores=None)
    made = Exporter("127.0.0.1:0", {}, store.path)
    try:
        page = Page(get(made.address)[1])
        assert "img" not in page.tags and "no client consented" in page.text
    finally:
        made.close()


@pytest.mark.parametrize("path", ["/", "/metrics"])
@pytest.mark.parametrize("host", ["localhost", "localhost:1", "[::1]:1", "127.0.0.1"])
def test_this_machine_is_answered_by_its_loopback_names(lasting: Exporter, host: str, path: str) -> None:
    assert get(lasting.address, path, host)[0] == 200


@pytest.mark.parametrize("path", ["/", "/metrics", "/elsewhere"])
@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:9464", "localhost.evil.example", "a@b", "localhost@evil.example", "[::1",
             "10.0.0.1", "localhost,evil.example", " "]
)  # fmt: skip
def test_a_name_from_elsewhere_reads_nothing(lasting: Exporter, host: str, path: str) -> None:
    status, text, _ = get(lasting.address, path, host)
    assert status == 403 and "prunella" not in text.lower()


def test_a_request_without_a_name_or_with_two_reads_nothing(exporter: Exporter) -> None:
    for head in ("", "Host: localhost\r\nHost: evil.example\r\n"):
        with socket.create_connection(parse_address(exporter.address), timeout=10) as connection:
            connection.sendall(f"GET /metrics HTTP/1.0\r\n{head}\r\n".encode())
            assert b" 403 " in connection.makefile("rb").readline()


def test_a_port_that_was_opened_answers_by_any_name_but_shows_no_page_to_a_web_site(store: RunStore) -> None:
    """Whoever reads it knows it by a name of their own: a service of a cluster, say. There are no pictures. A container
    listens to all, and its port is published to the browsers of its host."""
    made = Exporter("0.0.0.0:0", {}, store.path)
    try:
        address = f"127.0.0.1:{parse_address(made.address)[1]}"
        for name in ("executor:9464", "10.0.0.1:9464", "localhost:9464", f"{socket.gethostname()}:9464"):
            assert [get(address, path, name)[0] for path in ("/", "/metrics")] == [200, 200]
        for name in ("evil.example", "localhost.evil.example:9464"):
            assert [get(address, path, name)[0] for path in ("/", "/metrics")] == [403, 200]
    finally:
        made.close()


def test_a_broken_store_is_an_error_without_its_words(exporter: Exporter, store: RunStore) -> None:
    (store.path / "run.json").write_text("secret{")
    status, text, _ = get(exporter.address)
    assert status == 500 and "secret" not in text
    assert get(exporter.address, "/metrics")[0] == 200


def test_the_newest_audits_stand_before_the_worst(exporter: Exporter, store: RunStore) -> None:
    add_audit(store, 6, "client", 5.0)
    add_audit(store, 5, "client", 0.01)
    text = Page(get(exporter.address)[1]).text
    places = [text.index(f"round {number}, attack") for number in (6, 5, 4)]
    controls = text.index("Control, undefended")
    assert controls < places[0] < places[1]


def browse(address: str, seconds: float) -> str:
    """The document as Chromium has it after ``seconds`` of the page's own time."""
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    done = subprocess.run(
        [*command, f"--virtual-time-budget={int(seconds * 1000)}", f"http://{address}/"],
        capture_output=True, text=True, timeout=90, check=True,
    )  # fmt: skip
    return done.stdout


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian: apt-get install chromium)")
def test_a_browser_sees_the_next_round_without_a_reload(
    exporter: Exporter, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three looks show a new round each, then the server is gone. How many looks fit into Chromium's own time, which
    stands still while a page loads, is its affair: only that they do not come faster than they should is ours."""
    store.write_run(status="running")
    looks = []
    real = live.Live.page

    def page(self: live.Live) -> bytes:
        looks.append(1)
        if len(looks) > 3:
            raise OSError
        store.append_metrics(4 + len(looks), [row("round", 4 + len(looks))])
        return real(self)

    monkeypatch.setattr(live.Live, "page", page)
    periods = 8
    seen = browse(exporter.address, periods * live.EVERY / 1000)
    assert 4 <= len(looks) <= 1 + periods + 2
    assert "covers 7 rounds" in seen and seen.count("<main>") == 1
    assert re.search(r'id="gone" role="status">', seen), "a server that no longer answers is said to be gone"


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian: apt-get install chromium)")
def test_the_browser_runs_no_other_script(exporter: Exporter, store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real = live.render
    bad = "<script>document.title = 'taken'</script></main>"
    monkeypatch.setattr(live, "render", lambda shown: real(shown).replace("</main>", bad))
    assert "<title>taken" not in browse(exporter.address, 1)
