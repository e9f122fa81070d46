"""Who may call the servers of a SuperLink and its SuperNodes on this machine: no web page, and no other user.

Flower's Control and Runtime APIs have no login: a request starts an app, which runs as this user. On loopback two kinds
of strangers reach them. A web site that points its name at this machine (DNS rebinding) has a visitor's browser send
requests: whatever has an ``Origin``, as a browser's have that are more than a question, or comes over loopback for the
name of a web site is refused. And other users of the machine: where ``ONE_USER`` is set, as it is for a SuperNode and
for a federation on one machine, a connection over loopback must be of a process of this user's or of root's, which the
kernel says (``/proc/net/tcp``). Where it does not, as off Linux, any user may, and the log says so.
"""

import functools
import logging
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from prunella.core.hosts import hostname, is_known, is_loopback
from prunella.deploy.ports import LOOPBACK
from prunella.deploy.runtime.fleet_port import FLEET, Asgi, Scope

logger = logging.getLogger(__name__)

ONE_USER = "PRUNELLA_ONE_USER"  # in the environment of a server: 1, where no other user may call it
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED, _LOOKS = "01", 3
_REMEMBERED = 5.0  # seconds that an answer about a connection holds where it is asked about every request
Ends = tuple[tuple[str, int], tuple[str, int]]  # the caller's and the server's address and port


def refused(scope: Scope) -> bool:
    """Whether a request may be a web page's. That of a SuperNode may come through a proxy on this machine, which keeps
    the name, and under TLS a certificate says whose a name is."""
    headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
    caller = (scope.get("client") or ("", 0))[0]
    if b"origin" in headers:
        return True
    proxied = str(scope.get("path", "")).startswith(FLEET) or scope.get("scheme") == "https"
    return not proxied and is_loopback(caller) and not is_known(hostname(headers.get(b"host", "")))


def without_browsers(app: Asgi) -> Asgi:
    """``app``, which no web page's request reaches."""
    from starlette.responses import PlainTextResponse

    async def serve(scope: Scope, receive: Any, send: Any) -> None:
        stranger = scope["type"] != "lifespan" and refused(scope)
        await (PlainTextResponse("Forbidden", 403) if stranger else app)(scope, receive, send)

    return serve


def _entries(host: str, port: int) -> set[str]:
    """How the tables write an address: words of four bytes in the machine's order, in hexadecimal."""
    packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    words = (int.from_bytes(packed[i : i + 4], sys.byteorder) for i in range(0, len(packed), 4))
    mapped = set() if ":" in host else _entries(f"::ffff:{host}", port)
    return {f"{''.join(f'{word:08X}' for word in words)}:{port:04X}", *mapped}


def owner(ends: Ends) -> int | None:
    """The user id of the process that holds the caller's end of a connection; None where no process holds it. A table
    that changes while it is read may miss one, so that it is read again."""
    caller, server = (_entries(*end) for end in ends)
    for table in TABLES * _LOOKS:
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            _, local, remote, state, *rest = line.split()
            uid, inode = rest[3], rest[5]
            # What its process has closed has no owner, and reads as root's.
            if state == _ESTABLISHED and inode != "0" and local in caller and remote in server:
                return int(uid)
    return None


@functools.cache
def kernel_tells() -> bool:
    """Whether the kernel says whose connections are: asked of one of this process's own."""
    try:
        with socket.create_server((LOOPBACK, 0)) as server, socket.create_connection(server.getsockname()) as caller:
            found = owner((caller.getsockname(), server.getsockname())) if TABLES[0].exists() else None
    except OSError as error:
        raise OSError(f"{LOOPBACK} cannot be reached ({error.strerror}): `ip link set lo up`, as root") from None
    if found != os.getuid():
        logger.warning(
            "this system does not say whose a connection is: other users of this machine may call this server"
        )
    return found == os.getuid()


def is_own(ends: Ends) -> bool:
    """Whether a connection is not over loopback, or is of this user or root."""
    if not is_loopback(ends[0][0]) or not kernel_tells():
        return True
    if (found := owner(ends)) in (0, os.getuid()):
        return True
    if found is not None:  # a caller that has left already is nobody: whoever looks whether the port is open
        logger.warning("a connection of another user (%d) was refused", found)
    return False


def asked_for() -> bool:
    return os.environ.get(ONE_USER) == "1"


def of_one_user(protocol: type) -> type:
    """An asyncio protocol class that drops connections of other users, as they are made."""

    class OwnConnections(protocol):
        own = True

        def connection_made(self, transport: Any) -> None:
            ends = [transport.get_extra_info(name) for name in ("peername", "sockname")]
            try:
                self.own = all(ends) and is_own((ends[0][:2], ends[1][:2]))
            except OSError:
                self.own = False
            super().connection_made(transport) if self.own else transport.abort()

        def connection_lost(self, error: Exception | None) -> None:
            if self.own:
                super().connection_lost(error)

    return OwnConnections


def interceptor(port: int) -> Any:
    """The same for a gRPC server, which is asked at every request."""
    import grpc

    known = dict[str, tuple[float, bool]]()

    def own(peer: str) -> bool:
        kind, _, address = peer.partition(":")
        host, _, number = address.rpartition(":")
        if kind not in ("ipv4", "ipv6") or not number.isdigit():
            return False
        then, answer = known.get(peer, (0.0, False))
        if time.monotonic() - then > _REMEMBERED or not answer:
            host = unquote(host).strip("[]")
            answer = is_own(((host, int(number)), (host, port)))
            known[peer] = (time.monotonic(), answer)
        return answer

    class OwnCalls(grpc.ServerInterceptor):
        def intercept_service(self, continuation: Any, details: Any) -> Any:
            handler = continuation(details)
            if handler is None or handler.unary_unary is None:
                return None

            def answer(request: Any, context: Any) -> Any:
                if not own(context.peer()):
                    context.abort(grpc.StatusCode.PERMISSION_DENIED, "this SuperLink is another user's")
                return handler.unary_unary(request, context)

            codecs = {"request_deserializer": handler.request_deserializer}
            codecs |= {"response_serializer": handler.response_serializer}
            return grpc.unary_unary_rpc_method_handler(answer, **codecs)

    return OwnCalls()
