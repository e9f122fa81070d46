"""Every attribute of Flower that the zygote replaces, in one place, each with its reason.

Nothing on disk changes: attributes of modules are replaced in the zygote, before it forks the SuperLink, the
SuperNodes and the SuperExecs. ``prunella run --stock`` applies none of it. An attribute that is not there means
another version of Flower than those this was written for: ``PatchError``, never a silent skip.

Times are seconds. Flower sleeps 3 s between two requests for work, 0.5 s between two checks for a reply, waits
1 s and then twice that for an object that is not there yet, and needs 60 s to notice a dead SuperNode.
"""

import asyncio
import functools
import importlib
import inspect
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from prunella.deploy.ports import Address
from prunella.deploy.runtime import callers, flower_release, uploads
from prunella.deploy.runtime.approved import Bundles
from prunella.deploy.runtime.fleet_port import TwoPorts
from prunella.deploy.runtime.own_code import checked, loading_own
from prunella.deploy.runtime.templates import Apps

POLL = 0.1
SHARE = 0.05  # of the time without work: the longest pause before the next request
OBJECT_BACKOFF = 0.05
HEARTBEAT = 10  # the least the SuperLink accepts; Flower's is 30. Dead is who is silent for two
TASK_STARTS = 90  # seconds a task may take from being claimed to its first heartbeat; Flower gives it 30
TASK_SILENT = 60  # seconds without a heartbeat after which Flower calls a task dead
CALM = 1.0  # seconds between two looks of a SuperNode's server whether it should end
_TASKS = ("flwr.supercore.corestate.in_memory_corestate", "flwr.supercore.corestate.sql_corestate")

Spawn = Callable[[list[str], str], None]
Entry = Callable[[], Any]


def poll_for(supernodes: int) -> float:
    """Seconds between two requests for work, while there is some.

    A SuperNode that asks ten times a second and its executor take 6 % of a core. With this interval all SuperNodes of
    a machine together take a third of a core, however many they are, and so does the SuperLink of as many machines.

    >>> poll_for(4), poll_for(50)
    (0.1, 1.0)
    """
    return max(POLL, 0.02 * supernodes)


def heartbeat_for(poll: float) -> int:
    """Seconds between two heartbeats that a SuperNode promises; it counts as dead after twice as many.

    The more SuperNodes a machine has, the longer a heartbeat waits for its turn: of a hundred on two busy processors
    three counted as dead in a round, after 20 s of silence.

    >>> heartbeat_for(poll_for(4)), heartbeat_for(poll_for(50)), heartbeat_for(poll_for(200))
    (10, 15, 60)
    """
    return max(HEARTBEAT, int(15 * poll))


class PatchError(Exception):
    """The installed Flower does not have what this launcher replaces: ``what`` completes "flwr 1.39.0 …"."""

    def __init__(self, what: str) -> None:
        super().__init__(f"flwr {flower_release.version()} {what}: {flower_release.install()}, or add --stock")


def _attribute(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        raise PatchError(f"has no {module}.{name}") from None


def replace(module: str, name: str, value: Any) -> None:
    """Set ``module.name``, which must exist."""
    _attribute(module, name)
    setattr(importlib.import_module(module), name, value)


def set_default(module: str, function: str, parameter: str, value: Any) -> None:
    """Change the default of a keyword-only ``parameter`` of ``module.function``."""
    defaults = getattr(_attribute(module, function), "__kwdefaults__", None) or {}
    if parameter not in defaults:
        raise PatchError(f"has no {parameter!r} in {module}.{function}")
    defaults[parameter] = value


class PatientTime:
    """Replaces the module ``time`` in a loop that asks for work: it sleeps ``least`` seconds, or, if that is longer, a
    twentieth of the time since there was work, which is cut to what Flower sleeps.

    SuperNodes that wait for their next round or run must not keep the SuperLink busy: thirty that ask ten times a
    second take a whole core of it. A sleep below a second waits for a reply that is being computed, which counts as
    work.

    >>> clock, begin = PatientTime(0.01), time.monotonic()
    >>> clock.sleep(3)
    >>> time.monotonic() - begin < 3
    True
    """

    def __init__(self, least: float) -> None:
        self._least, self._idle = least, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def work(self) -> None:
        """There was work: ask often again."""
        self._idle = 0.0

    def sleep(self, seconds: float) -> None:
        if seconds < 1:
            self.work()
            pause = min(seconds, self._least)
        else:
            pause = max(self._least, min(seconds, SHARE * self._idle))
            self._idle += pause
        time.sleep(pause)


class CalmLoop:
    """Replaces the module ``asyncio`` in uvicorn, whose server wakes up ten times a second to see if it should end: of
    200 SuperNodes, each of which serves its Runtime API, that was more than half of what they cost while they wait (1.1
    processors). It wakes up every ``CALM`` seconds; requests do not wait for it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(seconds, CALM))


class ForkedPopen:
    """Stands in for the module ``subprocess`` in Flower's executor: ``Popen`` asks the zygote for a fork.

    The command line is the one Flower's own executor wrote. ``clock`` is told that there was work. ``launching`` wraps
    the executor's ``launch``, the only place that knows which bundle the task is of.
    """

    DEVNULL = None

    def __init__(self, spawn: Spawn, clock: PatientTime) -> None:
        self._spawn, self._clock, self._bundle = spawn, clock, ""

    def Popen(self, command: list[str], **_: Any) -> None:  # noqa: N802 - the name it replaces
        self._clock.work()
        self._spawn(command, self._bundle)

    def launching(self, launch: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def launch_of(executor: Any, spec: Any) -> Any:
            self._bundle = str(getattr(spec, "fab_hash", None) or "")
            return launch(executor, spec)

        return launch_of


def faster_supernode(poll: float) -> None:
    """The SuperNode checks for replies every ``poll`` seconds, for work patiently, and its death shows sooner, unless
    the machine has many of them."""
    replace("flwr.supernode.start_client_internal", "time", PatientTime(poll))
    # What it promises, and what ServerApps and ClientApps keep to.
    replace(flower_release.connection(), "HEARTBEAT_DEFAULT_INTERVAL", heartbeat_for(poll))
    replace("flwr.supercore.heartbeat", "HEARTBEAT_DEFAULT_INTERVAL", HEARTBEAT)


def supernode_entry(entry: Entry, poll: float = POLL) -> Entry:
    """The SuperNode's entry point: it says as often as it promises that it is alive, and a ClientApp counts as crashed
    when it has been silent for as long as a dead SuperNode, 20 s where the machine has few, and not for 60. One of many
    on a machine wakes up less often.

    In that process alone: a ServerApp that waits longer, for a SuperLink that restarts or on an overloaded machine,
    must not count as dead. For a ClientApp a mistake costs one reply.
    """

    def start() -> Any:
        replace("flwr.supercore.heartbeat", "HEARTBEAT_DEFAULT_INTERVAL", heartbeat_for(poll))
        if poll > POLL:
            replace("uvicorn.server", "asyncio", CalmLoop())
        for module in _TASKS:
            replace(module, "HEARTBEAT_PATIENCE", 2 * heartbeat_for(poll) / TASK_STARTS)
        return entry()

    return start


def patient_start() -> None:
    """A task may take longer to start: with fifty of them on a busy machine, one waits more than 30 s for its turn."""
    for module in _TASKS:  # Flower multiplies the two where a task has started, and takes the first where it has not
        replace(module, "HEARTBEAT_DEFAULT_INTERVAL", TASK_STARTS)
        replace(module, "HEARTBEAT_PATIENCE", TASK_SILENT / TASK_STARTS)


def faster_objects() -> None:
    """A tensor that its sender has not uploaded yet is asked for again after 0.05 s, not after 1 s."""
    for function in ("pull_objects", "pull_and_inflate_object_from_tree"):
        set_default("flwr.supercore.inflatable.inflatable_utils", function, "initial_backoff", OBJECT_BACKOFF)


def repeated_calls() -> None:
    """A SuperNode makes a call again that ended as cancelled, as it does when the SuperLink is away.

    On busy processors gRPC cancels calls, which nobody asked for. Then Flower's SuperNode ends, drops the message that
    it was fetching, or says no more that it is alive.
    """
    if not flower_release.speaks_grpc():
        return
    import grpc

    module, name = "flwr.supernode.start_client_internal", "make_simple_grpc_retry_invoker"
    make = _attribute(module, name)

    def make_patient() -> Any:
        invoker = make()
        gives_up = invoker.should_giveup
        invoker.should_giveup = lambda error: error.code() != grpc.StatusCode.CANCELLED and gives_up(error)
        return invoker

    replace(module, name, make_patient)


def repeatable_uploads() -> None:
    """A link that was cut costs no reply whose upload had begun, though parts of it come twice or its SuperNode is
    silent for longer than a living one would be (``deploy.runtime.uploads``). Our ServerApp waits for it until its
    round is over."""
    from prunella.server.grid import within_the_round  # which imports Flower

    grid = "flwr.superlink.grid.http_grid"
    replace(grid, "pull_objects", within_the_round(_attribute(grid, "pull_objects")))
    for kind, name, answered in (
        ("in_memory", "InMemoryLinkState", uploads.answered_in_memory),
        ("sql", "SqlLinkState", uploads.answered_on_disk),
    ):
        module = f"flwr.server.superlink.linkstate.{kind}_linkstate"
        state = _attribute(module, name)
        wrapped: dict[str, Callable[[Any], Any]] = {
            "store_object": uploads.stored_once,
            "store_message_and_object_tree": uploads.announced_once,
            "get_message_res": functools.partial(uploads.found_despite_silence, answered=answered),
        }
        for method, wrap in wrapped.items():
            if not hasattr(state, method):
                raise PatchError(f"has no {module}.{name}.{method}")
            setattr(state, method, wrap(getattr(state, method)))
        check = "check_node_availability_for_in_message"
        replace(module, check, uploads.silent_unanswered(_attribute(module, check)))
        replace(f"flwr.supercore.corestate.{kind}_corestate", "OBJECT_PUSH_SESSION_TTL_SECONDS", uploads.PATIENCE)


def heartbeats_that_go_on() -> None:
    """A SuperLink that fails inside for a moment, on a full disk for example, loses no SuperNode. In Flower 1.39 an
    "internal server error" ends the thread of heartbeats and nothing else: the process runs on, and counts as offline
    until somebody starts it again."""
    module = "flwr.supercore.heartbeat"
    sender, failure = _attribute(module, "HeartbeatSender"), _attribute(module, "HeartbeatFailure")
    if not hasattr(sender, "_heartbeat"):
        raise PatchError(f"has no {module}.HeartbeatSender._heartbeat")
    beat = sender._heartbeat

    def again(self: Any) -> None:
        try:
            beat(self)
        except Exception as error:
            if failed_inside(error):
                raise failure from error  # which Flower tries again
            raise

    sender._heartbeat = again


def failed_inside(error: Exception) -> bool:
    """Whether a server answered that it could not, and not that it would not."""
    import grpc
    import httpx

    if isinstance(error, httpx.HTTPStatusError):
        return error.response.is_server_error
    return isinstance(error, grpc.Call) and error.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)


def readable_replies() -> None:
    """A reply that the ServerApp cannot read is one that is left out, and not the end of its run
    (``server.envelopes``)."""
    from prunella.server.envelopes import noting_envelopes, read_or_refused  # which imports Flower

    grid, name = "flwr.superlink.grid.http_grid", "inflate_object_from_contents"
    client = _attribute(grid, "RuntimeHttpClient")
    if not hasattr(client, "PullMessages"):
        raise PatchError("has no RuntimeHttpClient.PullMessages")
    client.PullMessages = noting_envelopes(client.PullMessages)
    replace(grid, name, read_or_refused(_attribute(grid, name)))


def forked_tasks(spawn: Spawn, poll: float) -> None:
    """SuperExecs ask for tasks as patiently as SuperNodes for messages, and have the zygote fork each one, instead of
    starting Python and importing everything again."""
    executor = _attribute("flwr.supercore.superexec.executor.subprocess_executor", "SubprocessExecutor")
    if "subprocess.Popen(" not in inspect.getsource(executor.launch):
        raise PatchError("starts its tasks in another way")
    clock = PatientTime(poll)
    replace("flwr.supercore.superexec.run_superexec", "time", clock)
    popen = ForkedPopen(spawn, clock)
    replace("flwr.supercore.superexec.executor.subprocess_executor", "subprocess", popen)
    executor.launch = popen.launching(executor.launch)


def quiet_superlink() -> None:
    """No line in the log for every request: tight polling would write megabytes an hour and hide the errors."""
    original = _attribute("flwr.superlink.cli.flower_superlink", "get_uvicorn_log_config")

    def without_access(level: int) -> dict[str, Any]:
        config: dict[str, Any] = original(level)
        config["loggers"]["uvicorn.access"]["level"] = "WARNING"
        return config

    replace("flwr.superlink.cli.flower_superlink", "get_uvicorn_log_config", without_access)


def fleet_port() -> None:
    """Where SuperNodes connect over HTTP, they get a port of their own on which nothing else is answered."""
    if not flower_release.speaks_grpc():
        replace("flwr.superlink.cli.flower_superlink", "uvicorn", TwoPorts())


def known_callers() -> None:
    """No web page's request, and where that is asked for no other user's, reaches the servers of this machine."""
    config = _attribute("uvicorn", "Config")
    load = config.load

    def guarded(self: Any) -> None:
        load(self)
        self.loaded_app = callers.without_browsers(self.loaded_app)
        if callers.asked_for() and callers.kernel_tells():
            self.http_protocol_class = callers.of_one_user(self.http_protocol_class)

    config.load = guarded
    if not flower_release.speaks_grpc():
        return
    module, name = "flwr.superlink.cli.flower_superlink", "generic_create_grpc_server"
    create = _attribute(module, name)

    def created(*, server_address: str, interceptors: Any = None, **options: Any) -> Any:
        if callers.asked_for():
            interceptors = [callers.interceptor(Address.parse(server_address).port), *(interceptors or [])]
        return create(server_address=server_address, interceptors=interceptors, **options)

    replace(module, name, created)


def addressed(state: Any, queue: Any, nodes: Mapping[int, Any], stop: threading.Event) -> None:
    """Flower's ``add_messages_to_queue``, which asks its state for the messages of every virtual client in turn, each
    time looking through all that are open: a thousand clients that are sent one message each take minutes. This one
    asks for the clients that have one."""
    while not stop.is_set():
        with state.lock:
            waiting = [m.metadata for m in state.message_ins_store.values() if m.metadata.delivered_at == ""]
        for node in {each.dst_node_id for each in waiting} & nodes.keys():
            for message in state.get_message_ins(node_id=node, limit=1):
                queue.put(message)
        stop.wait(0.1)


def many_virtual_clients() -> None:
    """The simulation engine hands out messages in time that grows with the messages, and not with all clients too."""
    _attribute("flwr.server.superlink.linkstate", "InMemoryLinkState")
    replace("flwr.server.superlink.fleet.vce.vce_api", "add_messages_to_queue", addressed)


def client_apps() -> Apps:
    """If its SuperNode's owner asks for it, a ClientApp runs the installed release and nothing of a run's bundle, or
    an approved bundle behind the site's gate and no other. In a fork of a template it is loaded already."""
    module = "flwr.supernode.runtime.run_clientapp"
    bundles = Bundles(_attribute(module, "install_from_fab"), _attribute(module, "get_load_client_app_fn"))
    apps = Apps(checked(bundles.install), loading_own(bundles.get_loader))
    replace(module, "install_from_fab", apps.install)
    replace(module, "get_load_client_app_fn", apps.get_loader)
    return apps


def apply(spawn: Spawn, poll: float = POLL) -> Apps:
    """All of the above but the entry point. ``spawn`` receives the command line of a task and the SHA-256 of the bundle
    it is of, or "". Raises ``PatchError``."""
    apps = client_apps()
    faster_supernode(poll)
    patient_start()
    faster_objects()
    repeated_calls()
    repeatable_uploads()
    heartbeats_that_go_on()
    readable_replies()
    forked_tasks(spawn, poll)
    quiet_superlink()
    fleet_port()
    known_callers()
    many_virtual_clients()
    return apps
