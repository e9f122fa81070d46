"""Each patch takes hold of the installed Flower, and says so when it cannot."""

import subprocess
import sys
import types

import pytest

from prunella.deploy.runtime import patches
from prunella.deploy.runtime.patches import ForkedPopen, PatchError, PatientTime, replace, set_default
from prunella.deploy.runtime.processes import environment, importable


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    made = types.ModuleType("made_up")
    exec("there = 1\ndef pull(*, backoff=1): return backoff", made.__dict__)
    monkeypatch.setitem(sys.modules, "made_up", made)
    return made


def test_replace_only_what_exists(module: types.ModuleType) -> None:
    replace("made_up", "there", 2)
    assert module.there == 2
    with pytest.raises(PatchError, match=r"flwr 1\.\d+\.\d+ has no made_up.gone: .*--stock"):
        replace("made_up", "gone", 2)
    with pytest.raises(PatchError, match="no_such_module"):
        replace("no_such_module", "there", 2)


def test_set_only_a_default_that_exists(module: types.ModuleType) -> None:
    set_default("made_up", "pull", "backoff", 0.05)
    assert module.pull() == 0.05
    with pytest.raises(PatchError, match="no 'retries' in made_up.pull"):
        set_default("made_up", "pull", "retries", 1)


def test_who_finds_no_work_asks_less_and_less_often_and_never_misses_more_than_a_twentieth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(patches.time, "sleep", slept.append)
    clock = PatientTime(0.1)
    while sum(slept) < 600:
        clock.sleep(3)
    assert slept[:20] == [0.1] * 20 and slept == sorted(slept) and slept[-1] == 3
    assert all(pause <= max(0.1, 0.05 * sum(slept[:i]) + 1e-9) for i, pause in enumerate(slept))
    assert len(slept) < 300  # 6,000 at ten a second
    slept.clear()
    clock.sleep(0.5)  # an answer is being made
    clock.sleep(3)
    clock.sleep(0.01)
    assert slept == [0.1, 0.1, 0.01]
    assert clock.monotonic is patches.time.monotonic


def test_a_task_started_is_work(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(patches.time, "sleep", slept.append)
    clock, started = PatientTime(0.1), list[object]()
    for _ in range(300):
        clock.sleep(3)
    ForkedPopen(lambda *task: started.append(task), clock).Popen(["flwr-clientapp"])
    clock.sleep(3)
    assert slept[-2:] == [3, 0.1] and started == [(["flwr-clientapp"], "")]


def test_a_supernode_among_a_hundred_may_be_silent_as_long_as_flower_lets_it() -> None:
    code = """
import importlib
from prunella.deploy.runtime import flower_release, patches
connection, heartbeat = (importlib.import_module(n) for n in (flower_release.connection(), 'flwr.supercore.heartbeat'))
flowers = connection.HEARTBEAT_DEFAULT_INTERVAL
patches.faster_supernode(patches.poll_for(100))
assert connection.HEARTBEAT_DEFAULT_INTERVAL == flowers
assert heartbeat.HEARTBEAT_DEFAULT_INTERVAL == patches.HEARTBEAT < flowers
"""
    done = subprocess.run([sys.executable, "-c", code], env=importable(environment()), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_apply_reaches_every_process_of_flower() -> None:
    code = """
import inspect
from prunella.deploy.runtime import patches
commands = []
patches.apply(lambda *task: commands.append(task), 0.1)
import flwr.supernode.start_client_internal as node
import flwr.supercore.heartbeat as heartbeat
import flwr.supercore.inflatable.inflatable_utils as objects
import importlib
from prunella.deploy.runtime import flower_release
connection = importlib.import_module(flower_release.connection())
superlink = importlib.import_module('flwr.superlink.cli.flower_superlink')
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResultStatus, SubprocessExecutor
assert isinstance(node.time, patches.PatientTime)
assert isinstance(importlib.import_module('flwr.supercore.superexec.run_superexec').time, patches.PatientTime)
assert connection.HEARTBEAT_DEFAULT_INTERVAL == heartbeat.HEARTBEAT_DEFAULT_INTERVAL == patches.HEARTBEAT
tasks = importlib.import_module('flwr.supercore.corestate.in_memory_corestate')
patience = lambda: tasks.HEARTBEAT_PATIENCE * tasks.HEARTBEAT_DEFAULT_INTERVAL
assert patience() == 60  # of a SuperLink with its ServerApp
on_disk = importlib.import_module('flwr.supercore.corestate.sql_corestate')
assert on_disk.HEARTBEAT_PATIENCE * on_disk.HEARTBEAT_DEFAULT_INTERVAL == 60
assert on_disk.HEARTBEAT_DEFAULT_INTERVAL == tasks.HEARTBEAT_DEFAULT_INTERVAL == patches.TASK_STARTS
assert patches.supernode_entry(patience)() == 2 * patches.HEARTBEAT
uvicorn = importlib.import_module("uvicorn.server")
assert not isinstance(uvicorn.asyncio, patches.CalmLoop)
assert patches.supernode_entry(patience, patches.poll_for(200))() == 120 == 2 * heartbeat.HEARTBEAT_DEFAULT_INTERVAL
assert isinstance(uvicorn.asyncio, patches.CalmLoop) and uvicorn.asyncio.wait_for
calls = getattr(node, "make_simple_grpc_retry_invoker", None)  # over HTTP there is none
assert (calls is not None and calls.__module__ == patches.__name__) is flower_release.speaks_grpc()
assert inspect.signature(objects.pull_objects).parameters["initial_backoff"].default == patches.OBJECT_BACKOFF
assert superlink.get_uvicorn_log_config(20)["loggers"]["uvicorn.access"]["level"] == "WARNING"
states = importlib.import_module('flwr.server.superlink.linkstate')
for state in (states.InMemoryLinkState, states.SqlLinkState):
    assert state.store_object.__module__ == state.get_message_res.__module__ == patches.uploads.__name__
assert tasks.OBJECT_PUSH_SESSION_TTL_SECONDS == on_disk.OBJECT_PUSH_SESSION_TTL_SECONDS == patches.uploads.PATIENCE
from prunella.server import envelopes, grid
https = importlib.import_module('flwr.superlink.grid.http_grid')
assert https.pull_objects.__module__ == grid.__name__
assert https.inflate_object_from_contents.__module__ == envelopes.__name__
assert https.RuntimeHttpClient.PullMessages.__module__ == envelopes.__name__
import os, uvicorn
from prunella.deploy.runtime import callers
for one_user in ("", "1"):
    os.environ[callers.ONE_USER] = one_user
    config = uvicorn.Config(lambda *given: None)
    config.load()
    assert config.loaded_app.__module__ == callers.__name__
    assert (config.http_protocol_class.__module__ == callers.__name__) is (one_user == "1")
made = getattr(superlink, "generic_create_grpc_server", None)  # over HTTP there is none
assert (made is not None and made.__module__ == patches.__name__) is flower_release.speaks_grpc()
from prunella.deploy.runtime.fleet_port import TwoPorts
assert isinstance(superlink.uvicorn, TwoPorts) is not flower_release.speaks_grpc()
for quiet in (False, True):
    spec = ExecutionSpec(TaskType.CLIENT_APP, "127.0.0.1:1", "tok", True, None, False, 7, quiet, 1)
    assert SubprocessExecutor().launch(spec).status == LaunchResultStatus.ACCEPTED
assert commands[0] == commands[1]
assert commands[0][1] == ""
spec = ExecutionSpec(TaskType.CLIENT_APP, "127.0.0.1:1", "tok", True, None, False, 7, True, 1, fab_hash="ab")
SubprocessExecutor().launch(spec)
assert commands[2] == (commands[0][0], "ab")
print(*commands[0][0])
"""
    done = subprocess.run([sys.executable, "-c", code], env=importable(environment()), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[:3] == ["flwr-clientapp", "--runtime-api-address", "127.0.0.1:1"]
    assert "--token tok" in done.stdout and "--insecure" in done.stdout and "--parent-pid 7" in done.stdout


def test_the_slowest_sleeps_are_still_the_ones_we_cap() -> None:
    """Flower's SuperNode must still sleep through the module attribute that we replace."""
    import inspect

    import flwr.supernode.start_client_internal as node

    source = inspect.getsource(node)
    assert "time.sleep(3)" in source and "time.sleep(0.5)" in source and "\nimport time\n" in source


def test_popen_passes_the_command_on() -> None:
    seen: list[tuple[list[str], str]] = []
    popen = ForkedPopen(lambda *task: seen.append(task), PatientTime(0.1))
    launch = popen.launching(lambda _, spec: popen.Popen([spec.command, "x"], stdout=ForkedPopen.DEVNULL))
    launch(None, types.SimpleNamespace(command="flwr-clientapp", fab_hash="ab"))
    launch(None, types.SimpleNamespace(command="flwr-serverapp", fab_hash=None))
    assert seen == [(["flwr-clientapp", "x"], "ab"), (["flwr-serverapp", "x"], "")]


def test_virtual_clients_get_the_messages_that_flower_itself_would_hand_out() -> None:
    """In Flower's own state; a client without a message costs nothing, where Flower asks for each of them."""
    import inspect
    import queue
    import threading

    from flwr.server.superlink.fleet.vce import vce_api
    from flwr.server.superlink.linkstate import InMemoryLinkState

    class State:
        """Flower's store of messages and its search, without the runs and federations around it."""

        def __init__(self) -> None:
            self.lock, self.asked = threading.RLock(), 0
            metadata = [types.SimpleNamespace(dst_node_id=node, run_id=1, delivered_at="") for node in (3, 5, 5, 77)]
            metadata.append(types.SimpleNamespace(dst_node_id=4, run_id=1, delivered_at="before"))
            self.message_ins_store = {f"m{i}": types.SimpleNamespace(metadata=each) for i, each in enumerate(metadata)}

        def _check_stored_messages(self, _: object) -> None:
            return

        def get_message_ins(self, node_id: int, limit: int) -> object:
            self.asked += 1
            return InMemoryLinkState.get_message_ins(self, node_id, limit)  # type: ignore[arg-type]

    def handed_out(hand_out: object, rounds: int) -> tuple[list[str], int]:
        state, got = State(), queue.Queue[object]()
        passes = iter([False] * rounds + [True])
        stop = types.SimpleNamespace(wait=lambda _: None, is_set=lambda: next(passes))
        hand_out(state, got, dict.fromkeys(range(50)), stop)  # type: ignore[operator]
        names = {id(message): name for name, message in state.message_ins_store.items()}
        return sorted(names[id(message)] for message in list(got.queue)), state.asked

    theirs, often = handed_out(vce_api.add_messages_to_queue, 2)
    ours, seldom = handed_out(patches.addressed, 2)
    assert ours == theirs == ["m0", "m1", "m2"]  # two of them for one client, and none for whom this run does not have
    assert (often, seldom) == (100, 3)
    source = inspect.getsource(InMemoryLinkState)
    assert "self.message_ins_store: dict[str, Message]" in source and "with self.lock:" in source


BEATS = """
import sys, time
from concurrent import futures
import grpc
from flwr.supercore.heartbeat import HeartbeatSender
from prunella.deploy.runtime import patches

if sys.argv[1] == "ours":
    patches.heartbeats_that_go_on()
codes = [grpc.StatusCode[name] for name in sys.argv[2:]]

class Server(grpc.GenericRpcHandler):
    def service(self, details):
        def answer(request, context):
            if codes:
                context.abort(codes.pop(0), "no")
            return b"yes"
        return grpc.unary_unary_rpc_method_handler(answer)

server = grpc.server(futures.ThreadPoolExecutor(1))
server.add_generic_rpc_handlers([Server()])
port = server.add_insecure_port("127.0.0.1:0")
server.start()
call = grpc.insecure_channel(f"127.0.0.1:{port}").unary_unary("/Fleet/Beat")
done = []
sender = HeartbeatSender(lambda: bool(call(b"", timeout=5)) and not done.append(1))
sender.start()
while sender.is_running and not done:
    time.sleep(0.05)
print("beats" if done else "ended")
server.stop(None)
"""


@pytest.mark.parametrize(
    ("whose", "answers", "end"),
    [
        ("flower's", ("INTERNAL",), "ended"),  # or what is replaced has no reason any more
        ("ours", ("INTERNAL", "UNKNOWN"), "beats"),
        ("ours", ("UNAUTHENTICATED",), "ended"),
    ],
)
def test_a_superlink_that_fails_inside_for_a_moment_loses_no_supernode(
    whose: str, answers: tuple[str, ...], end: str
) -> None:
    command = [sys.executable, "-c", BEATS, whose, *answers]
    done = subprocess.run(command, env=importable(environment()), capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == [end], done.stderr
