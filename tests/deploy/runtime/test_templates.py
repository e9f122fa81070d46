"""A template forks the messages of one bundle, as the zygote would; where it cannot, the zygote does."""

import hashlib
import json
import os
import signal
import socket
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from prunella.deploy.runtime import templates, zygote
from prunella.deploy.runtime.processes import Process
from prunella.deploy.runtime.templates import Apps, Loaded, OtherBundle
from prunella.deploy.runtime.zygote import CLIENT_APP, Zygote

FAB = b"a bundle"
BUNDLE = hashlib.sha256(FAB).hexdigest()
LOADED = Loaded("prunella/prunella", "1.0", BUNDLE)
ENV = {"FLWR_HOME": "/home/1", "PRUNELLA_OWN_CODE": "1"}


def our_app(monkeypatch: pytest.MonkeyPatch) -> object:
    """An object that stands for the loaded ClientApp of Prunella."""
    app = object()
    monkeypatch.setitem(sys.modules, templates.OUR_APP, types.SimpleNamespace(app=app))
    return app


def loader_of(app: object) -> Callable[..., Callable[..., object]]:
    return lambda **_: lambda *names: app


def test_the_zygote_hears_which_app_was_loaded_and_whether_it_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[Loaded, bool]] = []
    for app in (our_app(monkeypatch), object()):
        apps = Apps(lambda fab, **_: fab, loader_of(app))
        apps.tell = lambda *said: heard.append(said)
        assert apps.install(FAB, skip_prompt=True) == FAB  # passed on
        assert apps.get_loader(default_app_ref="")("prunella/prunella", "1.0", BUNDLE) is app
    assert heard == [(LOADED, True), (LOADED, False)]


def test_a_template_runs_one_bundle_and_unpacks_none(monkeypatch: pytest.MonkeyPatch) -> None:
    app = our_app(monkeypatch)
    monkeypatch.setattr(templates, "_unsafe", lambda: "")  # tests have threads
    unpacked: list[bytes] = []
    apps = Apps(lambda fab, **_: unpacked.append(fab), loader_of(app))
    apps.preload(LOADED)
    apps.install(FAB, skip_prompt=True)
    assert apps.get_loader()("whatever", "the server", "names") is app
    with pytest.raises(OtherBundle):
        apps.install(FAB + b"!", skip_prompt=True)
    assert not unpacked


def test_cuda_in_use_cannot_be_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    our_app(monkeypatch)
    monkeypatch.setattr(templates.os, "listdir", lambda _: ["1"])
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    with pytest.raises(RuntimeError, match="CUDA"):
        Apps(lambda *_: None, loader_of(sys.modules[templates.OUR_APP].app)).preload(LOADED)


def test_somebody_elses_app_gets_no_template() -> None:
    with pytest.raises(RuntimeError, match="not Prunella's own"):
        Apps(lambda *_: None, loader_of(object())).preload(LOADED)


class Federation:
    """A zygote in this process, whose ClientApps write who forked them and what they found in ``sys``."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.pid = directory, os.getpid()
        self.launcher, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.launcher.setblocking(False)
        self.zygote = Zygote(theirs)
        self.zygote.entries = {CLIENT_APP: self.client_app}
        self.ended: dict[str, int] = {}

    def client_app(self) -> None:
        name, wait = sys.argv[1:]
        found: dict[str, Any] = {"parent": os.getppid(), "app": getattr(sys, "app_of_template", None)}
        found |= {"home": os.environ["FLWR_HOME"], "nice": os.nice(0)}
        (self.directory / name).write_text(json.dumps(found))
        time.sleep(float(wait))

    def template(self, prepare: Callable[[Loaded], Any], loaded: Loaded = LOADED) -> None:
        self.zygote.apps = types.SimpleNamespace(preload=prepare)
        self.zygote.fork_template(loaded, ENV)
        channel = self.zygote.templates.find(loaded.bundle, ENV)
        self.until(lambda: channel.ready or not self.zygote.templates.channels())

    def message(self, name: str, bundle: str = BUNDLE, wait: float = 0.0, env: dict[str, str] = ENV) -> None:
        log = str(self.directory / "client.log")
        self.zygote.waiting.append(Process(name, CLIENT_APP, (name, str(wait)), log, env, bundle=bundle))

    def result(self, name: str) -> Any:
        self.until(lambda: name in self.ended)
        return json.loads((self.directory / name).read_text())

    def until(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + 60
        while not done():
            assert time.monotonic() < end, "nothing happened"
            self.zygote.serve(0.01)
            try:
                said = json.loads(self.launcher.recv(1 << 16))
                self.ended[said["name"]] = said["code"]
            except BlockingIOError:
                continue

    def pids(self) -> list[int]:
        return [pid for pid, name in self.zygote.children.items() if name.startswith("template")]


def load(loaded: Loaded) -> None:
    sys.app_of_template = loaded.bundle  # type: ignore[attr-defined]


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    made = Federation(tmp_path)
    yield made
    for pid in made.zygote.children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_messages_of_a_bundle_are_forked_from_its_template(federation: Federation) -> None:
    federation.message("first")
    assert federation.result("first")["parent"] == federation.pid  # there is no template yet
    federation.template(load)
    [template] = federation.pids()
    federation.message("second", env={**ENV, "FLWR_HOME": "/home/2"})
    assert federation.result("second") == {
        "parent": template, "app": BUNDLE, "home": "/home/2", "nice": os.nice(0)
    }  # fmt: skip
    assert federation.ended["second"] == 0  # the launcher hears of its end
    for name, bundle, env in (("bundle", "another", ENV), ("none", "", ENV), ("env", BUNDLE, {"FLWR_HOME": "/home/1"})):
        federation.message(name, bundle, env=env)
        assert federation.result(name)["parent"] == federation.pid and federation.result(name)["app"] is None
    federation.zygote.fork_template(LOADED, ENV)
    assert federation.pids() == [template]  # one is enough


def starts_a_thread(loaded: Loaded) -> None:
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    Apps(lambda *_: None, loader_of(sys.modules[templates.OUR_APP].app)).preload(loaded)


def test_where_there_are_many_all_messages_but_the_first_wait_for_their_template(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred that imported the app side by side took so long that their greetings expired."""
    federation.zygote.crowded = True
    federation.message("first")
    federation.message("second")
    first = federation.result("first")
    assert first["parent"] == federation.pid and [each.name for each in federation.zygote.waiting] == ["second"]
    federation.template(load)
    second = federation.result("second")
    assert second["app"] == BUNDLE and [second["parent"]] == federation.pids()
    assert (first["nice"], second["nice"]) == (os.nice(0), min(19, os.nice(0) + zygote.AFTER_SERVER))
    for name in ("third", "fourth"):
        federation.message(name, bundle="somebody else's")
    federation.result("third")
    federation.zygote.origin = Process("third", CLIENT_APP, env=ENV)
    federation.zygote.report_loaded(Loaded("other/app", "1.0", "somebody else's"), ours=False)
    assert federation.result("fourth")["parent"] == federation.pid
    monkeypatch.setattr(zygote, "TO_LOAD", 0.1)  # nobody says that this bundle was loaded
    for name in ("fifth", "sixth"):
        federation.message(name, bundle="broken")
    assert federation.result("sixth")["parent"] == federation.pid


def test_an_app_that_cannot_be_forked_is_imported_for_every_message(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    our_app(monkeypatch)
    # ``forget_prunella`` is for real modules: the stand-in must outlive it
    monkeypatch.setattr("prunella.deploy.runtime.zygote.forget_prunella", lambda: None)
    federation.template(starts_a_thread)
    assert "imports its app again: RuntimeError: a thread runs" in capfd.readouterr().out
    federation.message("only")
    assert federation.result("only")["parent"] == federation.pid
    federation.until(lambda: not federation.pids())
    federation.zygote.fork_template(LOADED, ENV)
    assert not federation.pids()  # and not tried again


def test_when_a_template_is_killed_the_zygote_forks_again(federation: Federation) -> None:
    federation.template(load)
    [template] = federation.pids()
    os.kill(template, signal.SIGKILL)
    federation.until(lambda: not federation.pids())
    federation.message("after")
    assert federation.result("after")["parent"] == federation.pid


def test_an_old_template_ends_after_its_tasks(federation: Federation) -> None:
    federation.template(load)
    [oldest] = federation.pids()
    federation.message("running", wait=1.0)
    federation.until(lambda: (federation.directory / "running").exists())
    for name in "xy":
        federation.template(load, Loaded("prunella/prunella", "1.0", name))
    assert oldest in federation.pids()  # its task still runs
    federation.until(lambda: oldest not in federation.pids())
    assert json.loads((federation.directory / "running").read_text())["parent"] == oldest
    assert len(federation.zygote.templates.channels()) == templates.KEPT
    federation.message("again")
    assert federation.result("again")["parent"] == federation.pid


def test_sigterm_reaches_a_templates_tasks(federation: Federation) -> None:
    federation.template(load)
    [template] = federation.pids()
    federation.message("long", wait=60)
    federation.until(lambda: (federation.directory / "long").exists())
    os.kill(template, signal.SIGTERM)
    federation.until(lambda: not federation.pids())
    assert federation.ended["template " + BUNDLE[:8]] == 0
