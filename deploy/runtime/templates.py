"""A process per bundle that has imported the run's ClientApp, from which the messages of that bundle are forked.

A fork of the zygote has Flower and PyTorch, but still unpacks the bundle (Flower does so for every message, compares
all hashes and throws the copy away) and imports the app: two thirds of a message's processor time. Neither changes
between two messages of a run. So the first ClientApp that has loaded Prunella's own app tells the zygote, which forks a
template that loads the same, and from then on has tasks of this bundle forked there.

What makes this the same as a new process: a task is forked before anything of a message arrived, so no message sees
another's data; a template serves one bundle, by its SHA-256, in one environment (``FLWR_HOME`` aside, where the copies
of one bundle lie), and a message with any other bundle is refused; other people's apps, approved ones among them, are
imported for every message as ever, since what their imports do is not known; a template that has started a thread or
CUDA cannot be forked and is given up.
"""

import hashlib
import os
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

OUR_APP = "prunella.client.app"
KEPT = 2  # templates at a time: a run that is being resumed beside its successor


class OtherBundle(Exception):
    """A message came with another bundle than the task it was announced with."""


@dataclass(frozen=True)
class Loaded:
    """An app that a ClientApp process has loaded: the names Flower finds it by, the last the bundle's SHA-256."""

    fab_id: str
    version: str
    bundle: str


@dataclass
class Template:
    """The zygote's end of one: the socket it takes tasks from, and whether its app is loaded."""

    channel: socket.socket
    ready: bool = False

    def send(self, task: bytes) -> bool:
        """Whether it took a task."""
        try:
            return self.ready and self.channel.send(task) > 0
        except OSError:  # it is ending
            return False

    def receive(self) -> bytes:
        """What it says; nothing once it has ended."""
        try:
            return self.channel.recv(1 << 16)
        except OSError:
            return b""


def key(bundle: str, env: Mapping[str, str]) -> tuple[str, ...]:
    """What two tasks must share to be forked from the same template.

    >>> key("ab", {"FLWR_HOME": "/1", "X": "y"}) == key("ab", {"FLWR_HOME": "/2", "X": "y"}) != key("ab", {})
    True
    """
    return bundle, *(f"{name}={value}" for name, value in sorted(env.items()) if name != "FLWR_HOME")


class Templates:
    """The templates that there are, by what their tasks share, and those that were given up."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, ...], Template] = {}
        self._given_up: set[tuple[str, ...]] = set()

    def wants(self, bundle: str, env: Mapping[str, str]) -> bool:
        return key(bundle, env) not in self._kept.keys() | self._given_up

    def add(self, bundle: str, env: Mapping[str, str], template: Template) -> None:
        """Keep this one, and of the others the youngest. A closed one ends when the tasks it has forked have."""
        for oldest in list(self._kept)[: len(self._kept) + 1 - KEPT]:
            self._kept.pop(oldest).channel.close()
        self._kept[key(bundle, env)] = template

    def give_up(self, template: Template) -> None:
        """Its messages are forked from the zygote from now on."""
        for each in [each for each, kept in self._kept.items() if kept is template]:
            self._kept.pop(each).channel.close()
            self._given_up.add(each)

    def refuse(self, bundle: str, env: Mapping[str, str]) -> None:
        """There will be none of this bundle."""
        self._given_up.add(key(bundle, env))

    def find(self, bundle: str, env: Mapping[str, str]) -> Template | None:
        return self._kept.get(key(bundle, env)) if bundle else None

    def channels(self) -> dict[socket.socket, Template]:
        return {template.channel: template for template in self._kept.values()}

    def close(self) -> None:
        """In a fork: they are the zygote's."""
        for channel in self.channels():
            channel.close()
        self._kept.clear()


class Apps:
    """Stands in for the installer and the loader's maker of Flower's ``run_clientapp``, around those given.

    In a fork of the zygote it passes on what they do, and ``tell`` hears of an app that is loaded, and whether it is
    Prunella's own. In a template's fork the app is there already, and the bundle is only compared.
    """

    def __init__(self, install: Callable[..., Any], get_loader: Callable[..., Callable[..., Any]]) -> None:
        self._install, self._get_loader = install, get_loader
        self.tell: Callable[[Loaded, bool], None] = lambda *_: None
        self._bundle, self._app = "", None

    def preload(self, loaded: Loaded) -> None:
        """In a template: load the app. Raises ``RuntimeError`` where forks of this process would not be safe."""
        names = (loaded.fab_id, loaded.version, loaded.bundle)
        app = self._get_loader(default_app_ref="", app_path=None, multi_app=True)(*names)
        if why := "it is not Prunella's own app" if not _ours(app) else _unsafe():
            raise RuntimeError(why)
        self._bundle, self._app = loaded.bundle, app

    def install(self, fab_file: bytes, *args: Any, **keywords: Any) -> Any:
        """Flower's ``install_from_fab``. Raises ``OtherBundle``."""
        if not self._bundle:
            return self._install(fab_file, *args, **keywords)
        if hashlib.sha256(fab_file).hexdigest() != self._bundle:
            raise OtherBundle("the bundle that came with this message is not the one that its run was announced with")
        return None

    def get_loader(self, *args: Any, **keywords: Any) -> Callable[..., Any]:
        """Flower's ``get_load_client_app_fn``."""
        if self._bundle:
            return lambda *_: self._app
        load = self._get_loader(*args, **keywords)

        def loading(*names: str) -> Any:
            app = load(*names)
            self.tell(Loaded(*names), _ours(app))
            return app

        return loading


def _ours(app: Any) -> bool:
    return app is not None and app is getattr(sys.modules.get(OUR_APP), "app", None)


def _unsafe() -> str:
    """Why a fork of this process may hang or fail, or nothing."""
    if len(os.listdir("/proc/self/task")) > 1:
        return "a thread runs"
    return "CUDA is in use" if (torch := sys.modules.get("torch")) and torch.cuda.is_initialized() else ""
