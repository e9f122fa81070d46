"""A port of their own for the SuperNodes of a Flower that serves everything over HTTP.

Such a SuperLink answers SuperNodes, commands and its ServerApps on one port. Commands need no login in open-source
Flower: a site that can reach its SuperLink could run code there and on every other site. So our SuperLinks listen on
two ports, as those of Flower 1.39 do: ``--fleet-api-address`` answers the paths of the Fleet API and no other, and
``--host`` and ``--port``, which stay on the loopback interface, answer all.
"""

import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from prunella.deploy.ports import Address

FLEET = "/v1/fleet/"  # the prefix of ``flwr.superlink.routers.fleet``
Scope = dict[str, Any]
Asgi = Callable[[Scope, Any, Any], Awaitable[None]]


def only_fleet(app: Asgi, control_port: int) -> Asgi:
    """``app``, of which connections to any port but ``control_port`` see the Fleet API alone; the rest is not found."""
    from starlette.responses import PlainTextResponse

    async def serve(scope: Scope, receive: Any, send: Any) -> None:
        own = scope["type"] == "lifespan" or scope["server"][1] == control_port
        fleet = scope["type"] == "http" and scope["path"].startswith(FLEET)
        await (app if own or fleet else PlainTextResponse("Not Found", 404))(scope, receive, send)

    return serve


def listen(address: Address) -> socket.socket:
    """A listening socket. Ends the process when the port is taken, with the words that Flower has for it."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family)
    except OSError as error:
        sys.exit(f"{address}: {(error.strerror or str(error)).lower()}")


class TwoPorts:
    """Replaces the module ``uvicorn`` in Flower's SuperLink, which calls ``run`` only."""

    def run(self, app: Any, host: str, port: int, **options: Any) -> None:
        """Serve ``app`` until a signal, on ``host``:``port`` and on the Fleet API's address if it has one."""
        import uvicorn

        fleet = app.state.superlink_lifespan.config.fleet_api_address
        if not fleet:
            return uvicorn.run(app, host=host, port=port, **options)
        addresses = [Address(host, port), Address.parse(fleet)]
        if addresses[1].port == port:
            sys.exit(f"{fleet}: the port of the commands, which need no login: choose another for SuperNodes")
        sockets = [listen(address) for address in addresses]
        print(f"Starting Fleet API (HTTP) on {addresses[1]}", flush=True)
        server = uvicorn.Server(uvicorn.Config(only_fleet(app, port), host=host, port=port, **options))
        server.run(sockets=sockets)
        if not server.started:
            sys.exit("the SuperLink did not start")
