"""The zygote: a single-threaded process that has imported Flower and PyTorch, and from which all others are forked.

Starting Python, Flower and PyTorch takes 4 to 6 s of processor time, and stock Flower spends it on every message to
every client. A fork of this process takes milliseconds: the SuperLink, the SuperNodes, the SuperExecs, and each
ClientApp and ServerApp task are forks. Only third-party modules are preloaded, never the app's own (its bundle may
change between runs), and nothing here touches CUDA or starts a thread, so that a fork is safe. Messages to clients of
Prunella's own app are forked from a template instead, which is a zygote of one bundle (``deploy.runtime.templates``).

Protocol, one JSON object per packet: the launcher sends ``Process``; the zygote sends ``{"name", "code"}`` when one
has ended and ``{"error"}`` before giving up. SuperExecs send the ``Process`` of a task over a second socket that they
inherit, and the first ClientApp of a bundle ``{"loaded", "env"}``. A template takes and sends the same as the zygote,
which is its launcher, and ``{"ready"}``. When the launcher closes its end, the zygote ends everything.
"""

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import sysconfig
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib import metadata
from typing import Any, NoReturn

from prunella.core.installation import IMPORT_ROOT
from prunella.deploy.ports import LOOPBACK, wait_open
from prunella.deploy.runtime import control_api, patches
from prunella.deploy.runtime.processes import CONTROL, GRACE, START, Process, die_with_parent, set_process_name
from prunella.deploy.runtime.services import SUPERNODE
from prunella.deploy.runtime.templates import Apps, Loaded, Template, Templates, key

# What Flower's processes import on first use; imported once, before the first fork.
FLOWER = (
    "flwr.superlink.cli",
    "flwr.superlink.main",
    "flwr.supernode.cli",
    "flwr.supernode.main",
    "flwr.supercore.cli",
    "flwr.simulation.app",
    "flwr.serverapp.strategy",
    "flwr.clientapp",
    "flwr.cli.build",
    "flwr.supercore.control",
    "flwr.cli.cli_client_interceptor",
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.websockets.auto",
    "httpcore",
    "h11",
    "encodings.idna",
)
# Of a machine with many SuperNodes: they and their ClientApps leave the processors to the SuperLink that all wait for.
AFTER_SERVER = 10  # of niceness
TO_LOAD = 60.0  # seconds that tasks wait for a template at most
SUPERNODE_COMMAND, CLIENT_APP, TEMPLATE = "flower-supernode", "flwr-clientapp", "template"
Entry = Callable[[], Any]


def entry_points() -> dict[str, Entry]:
    """The functions behind Flower's console scripts, and ours, by the script's name."""
    scripts = {e.name: e for e in metadata.distribution("flwr").entry_points if e.group == "console_scripts"}
    wanted = [name for name in scripts if name.startswith(("flower-", "flwr-"))]
    return {name: scripts[name].load() for name in wanted} | {CONTROL: control_api.main}


def fresh_randomness() -> None:
    """New seeds for the global generators, which forks would otherwise share: two clients drawing the same noise."""
    if torch := sys.modules.get("torch"):
        torch.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(int.from_bytes(os.urandom(4)))  # noqa: NPY002 - the global one is the one to reseed


def forget_prunella() -> None:
    """Drop Prunella's modules: an app is loaded from its bundle, which may hold another release than the one here."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "prunella"]:
        del sys.modules[name]


def redirect(path: str) -> None:
    """Standard output and error of this process to the end of ``path``."""
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def run_and_exit(entry: Entry) -> NoReturn:
    """Run a console script's function as a process would, and never return into the zygote."""
    code = 1
    try:
        entry()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:  # noqa: BLE001 - this is the top of a process: nothing above would print it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class Zygote:
    """The children, the requests not yet served, and the two sockets they come over."""

    def __init__(self, launcher: socket.socket) -> None:
        self.launcher = launcher
        self.tasks, self.ask = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.getpid()
        self.children: dict[int, str] = {}
        self.waiting: list[Process] = []
        self.preloaded = 0
        self.origin = Process("zygote", "")  # in a child: the request it was forked for
        self.entries: dict[str, Entry] = {}
        self.apps: Apps | None = None
        self.templates = Templates()
        self.is_template = self.crowded = False
        self.begun: dict[tuple[str, ...], float] = {}  # when the first task was forked that its kind's template is of

    def request_task(self, command: list[str], bundle: str = "") -> None:
        """Called in a SuperExec: have the zygote fork a task that inherits this SuperExec's environment."""
        name = f"{command[0]} of {self.origin.name}"
        bundle = bundle if command[0] == CLIENT_APP else ""
        task = Process(name, command[0], tuple(command[1:]), self.origin.task_log, self.origin.env, bundle=bundle)
        self.ask.send(json.dumps(asdict(task)).encode())

    def report_loaded(self, loaded: Loaded, ours: bool) -> None:
        """Called in a ClientApp: have the zygote make a template that has loaded the same, or wait for none."""
        if ours or self.crowded:
            said = {"loaded": asdict(loaded), "ours": ours, "env": self.origin.env}
            self.ask.send(json.dumps(said).encode())

    def holds(self, process: Process) -> bool:
        """Whether a task waits for its template, as all but the first do where there are many: from the template a
        message costs a twelfth, and a hundred that import the app side by side take minutes."""
        if not self.crowded or not process.bundle or self.is_template:
            return False
        template, kind = self.templates.find(process.bundle, process.env), key(process.bundle, process.env)
        given_up = template is None and not self.templates.wants(process.bundle, process.env)
        if given_up or (template is not None and template.ready):
            return False
        return kind in self.begun and time.monotonic() < self.begun[kind] + TO_LOAD

    def fork(self, process: Process) -> None:
        template = self.templates.find(process.bundle, process.env)
        if template and template.send(json.dumps(asdict(process)).encode()):
            return
        self.begun.setdefault(key(process.bundle, process.env), time.monotonic())
        if pid := os.fork():
            self.children[pid] = process.name
        else:
            run_and_exit(lambda: self.child(process))

    def fork_template(self, loaded: Loaded, env: dict[str, str]) -> None:
        if not self.templates.wants(loaded.bundle, env):
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if pid := os.fork():
            theirs.close()
            self.children[pid] = f"{TEMPLATE} {loaded.bundle[:8]}"
            self.templates.add(loaded.bundle, env, Template(ours))
        else:
            ours.close()
            run_and_exit(lambda: self.template(theirs, loaded, env))

    def template(self, launcher: socket.socket, loaded: Loaded, env: dict[str, str]) -> None:
        """Become a template: load the app, then fork what the zygote sends, until it closes its end."""
        die_with_parent(self.pid, signal.SIGKILL)
        self.leave()
        self.launcher, self.pid, self.waiting = launcher, os.getpid(), []
        self.tasks, nobody = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        set_process_name(TEMPLATE)
        os.environ.update(env)
        sys.dont_write_bytecode = False  # the next run of this bundle need not compile it again
        forget_prunella()
        try:
            assert self.apps is not None
            self.apps.preload(loaded)
        except Exception as error:  # noqa: BLE001 - whatever a bundle's import raises, messages go on without a template
            launcher.send(json.dumps({"unfit": f"{type(error).__name__}: {error}"}).encode())
            return
        self.is_template = True
        gc.freeze()
        signal.signal(signal.SIGTERM, self.end_tasks)
        launcher.send(json.dumps({"ready": loaded.bundle}).encode())
        try:
            while True:
                self.serve(0.05)
        except (EOFError, ConnectionError):
            nobody.close()
        while self.children:
            self.reap()
            time.sleep(0.02)

    def end_tasks(self, *_: object) -> NoReturn:
        """A template's handler of SIGTERM: to those it has forked, and take no more."""
        for pid in self.children:
            os.kill(pid, signal.SIGTERM)
        raise EOFError

    def leave(self) -> None:
        """In a fork: nothing of the zygote's but the socket over which tasks are asked for."""
        self.launcher.close()
        self.tasks.close()
        self.templates.close()
        self.children = {}

    def child(self, process: Process) -> None:
        """Become ``process``: its own log, environment, signals and randomness; then its entry point."""
        die_with_parent(self.pid, signal.SIGKILL)
        self.leave()
        self.origin = process
        if self.crowded and (self.is_template or process.command == SUPERNODE_COMMAND):
            os.nice(AFTER_SERVER)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        gc.enable()
        sys.dont_write_bytecode = False  # every message imports the same bundle: a fifth of its time is compiling it
        set_process_name(process.name)
        redirect(process.log)
        os.environ.update(process.env)
        fresh_randomness()
        for port in process.wait_for:
            if not wait_open(port, START):
                sys.exit(f"nothing listens on {LOOPBACK}:{port} after {START:.0f} s")
        sys.argv = [process.command, *process.args]
        entry = self.entries[process.command]
        if process.command != CONTROL and not self.is_template:
            forget_prunella()
        entry()

    def serve(self, seconds: float) -> None:
        """Take requests for up to ``seconds``, fork what may be forked, report what has ended."""
        sources = [self.launcher, self.tasks]
        while ready := select.select([*sources, *self.templates.channels()], [], [], seconds)[0]:
            for template in [each for channel, each in self.templates.channels().items() if channel in ready]:
                self.hear(template)
            for source in [source for source in sources if source in ready]:
                self.take(source)
            seconds = 0
        for process in [p for p in self.waiting if p.after <= self.preloaded]:
            if not self.holds(process):
                self.waiting.remove(process)
                self.fork(process)
        for name, code in self.reap():
            self.launcher.send(json.dumps({"name": name, "code": code}).encode())

    def take(self, source: socket.socket) -> None:
        packet = source.recv(1 << 16)
        if not packet:
            raise EOFError
        request = json.loads(packet)
        if "loaded" in request and not request["ours"]:
            self.templates.refuse(request["loaded"]["bundle"], request["env"])
        elif "loaded" in request:
            self.fork_template(Loaded(**request["loaded"]), request["env"])
        else:
            self.waiting.append(Process(**{**request, **{k: tuple(request[k]) for k in ("args", "wait_for")}}))

    def hear(self, template: Template) -> None:
        """What a template says: that it is ready or cannot be, or what has ended, which the launcher is told."""
        packet = template.receive()
        said = json.loads(packet) if packet else {"unfit": "its template has ended"}
        if "name" in said:
            self.launcher.send(packet)
        elif "ready" in said:
            print(f"messages of bundle {said['ready'][:8]} are forked from a template", flush=True)
            template.ready = True
        else:
            print(f"every message imports its app again: {said['unfit']}", flush=True)
            self.templates.give_up(template)

    def reap(self) -> list[tuple[str, int]]:
        """Names and exit codes of the children that have ended since the last look."""
        ended = []
        while self.children:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if not pid:
                break
            name = self.children.pop(pid, "?")
            if name.startswith(CLIENT_APP):
                seconds, source = usage.ru_utime + usage.ru_stime, TEMPLATE if self.is_template else "zygote"
                print(f"{name}, of the {source}: {seconds:.3f} s, {usage.ru_maxrss // 1024} MiB at most", flush=True)
            ended.append((name, os.waitstatus_to_exitcode(status)))
        return ended

    def end(self) -> NoReturn:
        """SIGTERM to the apps, and when they are gone, or after ``GRACE`` seconds, SIGKILL to all of our process group.

        Flower's own processes keep their state in memory and have nothing to clean up, except a SuperNode whose
        federation outlives it: it signs off, so that its key may come back at once.
        """
        apps = [pid for pid, name in self.children.items() if name.startswith(("flwr-", TEMPLATE)) or name == SUPERNODE]
        for pid in apps:
            os.kill(pid, signal.SIGTERM)
        limit = time.monotonic() + GRACE
        while self.children.keys() & set(apps) and time.monotonic() < limit:
            self.reap()
            time.sleep(0.02)
        os.killpg(0, signal.SIGKILL)
        raise AssertionError("unreachable: we are in that group")


def launcher_gone(*_: object) -> NoReturn:
    """Handler of SIGTERM, which the kernel sends when the launcher is gone; once."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise EOFError


def until_launcher_gone(work: Callable[[], None]) -> None:
    """``work``, until the launcher's end shows. It shows twice, in microseconds: its socket closes and the kernel sends
    SIGTERM. Whichever comes second must not end what the first has begun, or processes that an app started survive."""
    try:
        signal.signal(signal.SIGTERM, launcher_gone)
        with suppress(EOFError, ConnectionError):
            work()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except EOFError:  # SIGTERM, after ``work`` had ended by the socket
        return


def preload(zygote: Zygote, modules: Sequence[str]) -> None:
    """Import ``modules`` one by one, serving requests in between. One that is not installed is skipped."""
    for number, module in enumerate(modules, 1):
        zygote.serve(0)
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as missing:
            print(f"not preloaded: {missing}", flush=True)
        if module == "torch":
            sys.modules["torch"].set_num_threads(1)
        gc.freeze()
        zygote.preloaded = number


def drop_own_path() -> None:
    """Take Prunella's own directory off the path: an app must find its modules in its bundle or not at all.

    Installed from a wheel, that directory is ``site-packages``, which every other package needs: it stays. So does the
    current directory if ``PYTHONPATH`` names it: a user's own model may be there.
    """
    installed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    named = {os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry}
    dropped = ({"", os.getcwd()} - named | {str(IMPORT_ROOT)}) - installed
    sys.path[:] = [entry for entry in sys.path if entry not in dropped]
    kept = [entry for entry in os.environ.pop("PYTHONPATH", "").split(os.pathsep) if entry not in dropped]
    if kept:
        os.environ["PYTHONPATH"] = os.pathsep.join(kept)


def import_flower(zygote: Zygote, poll: float) -> None:
    """Import and patch Flower; report a failure to the launcher."""
    gc.disable()
    try:
        for module in FLOWER:
            importlib.import_module(module)
        zygote.entries = entry_points()
        zygote.entries[SUPERNODE_COMMAND] = patches.supernode_entry(zygote.entries[SUPERNODE_COMMAND], poll)
        zygote.apps = patches.apply(zygote.request_task, poll)
        zygote.crowded = poll > patches.POLL
        zygote.apps.tell = zygote.report_loaded
    except (ImportError, patches.PatchError) as error:
        zygote.launcher.send(json.dumps({"error": str(error)}).encode())
        sys.exit(1)
    drop_own_path()
    gc.freeze()


def main(argv: Sequence[str]) -> None:
    """``python -m prunella.deploy.runtime.zygote FD POLL [MODULE …]``; ``FD`` is a socket from the launcher."""
    descriptor, poll, *modules = argv
    zygote = Zygote(socket.socket(fileno=int(descriptor)))

    def work() -> None:
        import_flower(zygote, float(poll))
        preload(zygote, modules)
        alone = len(os.listdir("/proc/self/task")) == 1
        print("ready, single-threaded" if alone else "ready, but a thread runs: forks may hang", flush=True)
        while True:
            zygote.serve(0.05)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    until_launcher_gone(work)
    zygote.end()


if __name__ == "__main__":
    main(sys.argv[1:])
