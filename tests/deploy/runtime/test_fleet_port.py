"""Two ports, one app: what SuperNodes may reach is the Fleet API and nothing else."""

import asyncio
import socket
import threading
import types
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import uvicorn

from prunella.deploy.ports import LOOPBACK, Address, free_ports, wait_open
from prunella.deploy.runtime import fleet_port
from prunella.deploy.runtime.fleet_port import FLEET, TwoPorts, only_fleet

CONTROL = "/v1/control/start-run"


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers any path with that path."""
    if scope["type"] == "lifespan":
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": f"{message['type']}.complete"})
        return await send({"type": "lifespan.shutdown.complete"})
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope["path"].encode()})


@pytest.fixture
def ports(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """The ports of a real server: for everything, and for SuperNodes."""
    servers: list[uvicorn.Server] = []

    class Server(uvicorn.Server):
        def __init__(self, config: uvicorn.Config) -> None:
            super().__init__(config)
            servers.append(self)

    monkeypatch.setattr(uvicorn, "Server", Server)
    control, fleet = free_ports(2)
    link = types.SimpleNamespace(config=types.SimpleNamespace(fleet_api_address=f"{LOOPBACK}:{fleet}"))

    class App:
        state = types.SimpleNamespace(superlink_lifespan=link)

        async def __call__(self, *arguments: Any) -> None:
            await app(*arguments)

    thread = threading.Thread(target=TwoPorts().run, args=(App(), LOOPBACK, control), kwargs={"log_level": "error"})
    thread.start()
    assert wait_open(control, 20) and wait_open(fleet, 20)
    yield control, fleet
    servers[0].should_exit = True
    thread.join(20)


def ask(port: int, path: str) -> int:
    return httpx.get(f"http://{LOOPBACK}:{port}{path}").status_code


def raw(port: int, target: str) -> int:
    """The status of a request whose target no client library has tidied up."""
    with socket.create_connection((LOOPBACK, port), 10) as connection:
        connection.sendall(
            f"GET {target} HTTP/1.1\r\nHost: {LOOPBACK}:1\r\nX-Forwarded-For: {LOOPBACK}\r\n\r\n".encode()
        )
        return int(connection.recv(100).split()[1])


def test_supernodes_reach_the_fleet_api_and_nothing_else(ports: tuple[int, int]) -> None:
    control, fleet = ports
    assert ask(control, CONTROL) == ask(control, FLEET + "pull-messages") == 200
    assert ask(fleet, FLEET + "pull-messages") == 200
    for path in (CONTROL, "/", "/docs", "/openapi.json", "/v1/runtime/pull", "/v1/fleetx", "/v1/fleet", "//v1/fleet/"):
        assert ask(fleet, path) == 404, path
    # An absolute target, which names another port, and other ways to write a path.
    for target in (f"http://{LOOPBACK}:{control}{CONTROL}", "/V1/FLEET/x", "/v1/control/../fleet/x", "/v1\\fleet/"):
        assert raw(fleet, target) != 200, target
    assert raw(fleet, FLEET + "x") == 200


def test_a_websocket_is_not_the_fleet_api() -> None:
    asked: list[str] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["type"])

    async def nothing(*_: Any) -> None:
        return None

    scope = {"type": "websocket", "path": FLEET, "server": (LOOPBACK, 2), "extensions": {}}
    asyncio.run(only_fleet(inner, 1)(scope, nothing, nothing))
    asyncio.run(only_fleet(inner, 1)({**scope, "server": (LOOPBACK, 1)}, nothing, nothing))
    asyncio.run(only_fleet(inner, 1)({"type": "lifespan"}, nothing, nothing))
    assert asked == ["websocket", "lifespan"]


def test_flowers_own_paths_are_the_ones_let_through() -> None:
    """Every path of the installed Flower's Fleet API, if it has one over HTTP, and no path of another API."""
    main = pytest.importorskip("flwr.superlink.routers.fleet.router")
    from flwr.superlink.routers.control import router as control

    assert all(route.path.startswith(FLEET) for route in main.router.routes) and main.router.routes
    assert not any(route.path.startswith(FLEET) for route in control.routes)


def test_one_port_for_both_and_a_taken_one_end_the_process() -> None:
    link = types.SimpleNamespace(config=types.SimpleNamespace(fleet_api_address="10.0.0.1:8000"))
    state = types.SimpleNamespace(superlink_lifespan=link)
    with pytest.raises(SystemExit, match="need no login"):
        TwoPorts().run(types.SimpleNamespace(state=state), LOOPBACK, 8000)
    with socket.create_server((LOOPBACK, 0)) as taken, pytest.raises(SystemExit, match="address already in use"):
        fleet_port.listen(Address(LOOPBACK, taken.getsockname()[1]))
