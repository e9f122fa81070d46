"""A client of Flower's Control API: bundles an app, submits it to the SuperLink and reports on the run until it ends.

Runs in its own process (forked by the zygote, or ``python -m prunella.deploy.runtime.control_api FILE``), so that the
launcher itself never imports Flower. FILE holds a JSON object: ``app`` (directory of the ``pyproject.toml``),
``packages`` (directory of its code, mostly the same one), ``address`` (HOST:PORT of the Control API), ``config``
(run-config overrides), ``simulation`` (fields of Flower's SimulationConfig, or null) and ``out``. For a SuperLink
that was running before also ``ca`` (the file of its authority's certificate; without it there is no TLS), ``register``
(files of SuperNodes' public keys), ``remove`` (name or node id of a SuperNode to keep out), ``stop`` (Flower's number
of a run to end), and in seconds ``every`` (between two checks of the status) and ``patience`` (how long it may be away
in between).
``out`` is a file that gets one JSON object per line:

    {"event": "registered", "names": [...]}     the public keys that the SuperLink did not know before; in "removed",
                                                those that it knows and keeps out
    {"event": "removed", "node": id}            the SuperNode is kept out from now on; with "already": true, it was
    {"event": "stopped", "done": true}          the run that was to be stopped was; false when it had ended already
    {"event": "started", "flower_run": id}      the run was accepted; without ``app``, none is submitted
    {"event": "status", "status": "running"}    each change; "finished:completed", "finished:failed", … is the last
    {"event": "error", "message": text}         the app or the settings were refused

Flower's own ``flwr run`` ends with code 0 whether or not the run failed; only the status tells.
"""

import hashlib
import io
import json
import os
import sys
import time
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from prunella.deploy.ports import wait_open

EVERY = 0.2  # seconds between two checks of the status, at first
SHARE, SELDOM = 0.05, 1.0  # of the time without a change, and the most seconds: a check costs the SuperLink time
RUN = (("launch.json", "nodes"), ("run.json", "metrics.jsonl"))  # what is in the folder of a run, beside other files
START = 60.0  # seconds the Control API may take to open


def app_files(app: Path, packages: Path) -> dict[str, bytes | Path]:
    """What may go into the bundle: the files ``fab-include`` names below ``packages``, or all when it names none.

    Flower's own collection walks the whole directory, virtual environments included, before it looks at
    ``fab-include``; that takes seconds in a working copy. Runs that lie inside the app stay out: they hold what is the
    sites' own.
    """
    config = tomllib.loads((app / "pyproject.toml").read_text())
    patterns = config.get("tool", {}).get("flwr", {}).get("app", {}).get("fab-include") or ["**/*"]
    found: dict[str, Path] = {}
    for pattern in (pattern.lstrip("/") for pattern in patterns):
        first = pattern.partition("/")[0]
        # In a Prunella installed from a wheel the folder ``prunella`` is the one that holds the rooms.
        base = packages.parent if first == packages.name and not (packages / first).exists() else packages
        found |= {path.relative_to(base).as_posix(): path for path in base.glob(pattern)}
    found |= {name: app / name for name in ("pyproject.toml", ".gitignore", "LICENSE", "README.md")}
    kept = {name: path for name, path in sorted(found.items()) if path.is_file() and not path.is_symlink()}
    folders = {parent for name in kept for parent in PurePosixPath(name).parents} - {PurePosixPath(".")}
    runs = {folder for folder in folders if any(all((packages / folder / n).exists() for n in pair) for pair in RUN)}
    return {name: path for name, path in kept.items() if runs.isdisjoint(PurePosixPath(name).parents)}


def refuse_private_keys(bundle: bytes) -> None:
    """Raise ``ValueError`` if a file of the bundle is a private key: every SuperNode would be sent it.

    It looks at the content, since a key may have any name, ``site.json`` or ``site.py`` for example.
    """
    with zipfile.ZipFile(io.BytesIO(bundle)) as files:
        for name in files.namelist():
            if b"PRIVATE KEY-----" in files.read(name)[:64]:
                raise ValueError(f"{name} is a private key, and the bundle would carry it: keep keys outside the app")


def start_run(client: Any, request: dict[str, Any]) -> int:
    """Bundle the app and submit it; Flower's number of the run. Raises ``ValueError`` when the app is refused."""
    from flwr.cli.build import build_fab_from_files
    from flwr.common.serde import fab_to_proto, user_config_to_proto
    from flwr.proto.control_pb2 import StartRunRequest
    from flwr.proto.federation_config_pb2 import SimulationConfig
    from flwr.supercore.fab import Fab

    content, _ = build_fab_from_files(app_files(Path(request["app"]), Path(request["packages"])))
    refuse_private_keys(content)
    simulation = request.get("simulation")
    answer = client.StartRun(
        StartRunRequest(
            fab=fab_to_proto(Fab(hashlib.sha256(content).hexdigest(), content, {})),
            override_config=user_config_to_proto(request["config"]),
            override_federation_config=SimulationConfig(**simulation) if simulation else None,
        )
    )
    if not answer.HasField("run_id"):
        raise ValueError(f"the SuperLink refused the run: {answer.note or 'it gave no reason'}")
    return int(answer.run_id)


def run_status(client: Any, run: int, patience: float) -> Any:
    """The status of a run, from a SuperLink that may be starting again for up to ``patience`` seconds."""
    import httpx
    from flwr.proto.control_pb2 import ListRunsRequest

    end = time.monotonic() + patience
    while True:
        try:
            return next(iter(client.ListRuns(ListRunsRequest(run_id=run)).run_dict.values())).status
        except httpx.TransportError:
            if time.monotonic() > end:
                raise
            time.sleep(EVERY)


def statuses(client: Any, run: int, every: float = 0.0, patience: float = 0.0) -> Iterable[tuple[str, str]]:
    """(status, details) at every change, until the run has finished."""
    last, since = "", time.monotonic()
    while not last.startswith("finished"):
        status = run_status(client, run, patience)
        now = f"{status.status}:{status.sub_status}" if status.sub_status else str(status.status)
        if now != last:
            yield now, str(status.details)
            last, since = now, time.monotonic()
        else:
            time.sleep(max(every, EVERY, min(SELDOM, SHARE * (time.monotonic() - since))))


def register(client: Any, files: Iterable[Path]) -> tuple[list[str], list[str]]:
    """Let the SuperNodes with these public keys in; the names of those that were not registered before, and of those
    that were removed, which no registration brings back."""
    import httpx
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key
    from flwr.proto.control_pb2 import RegisterNodeRequest
    from flwr.supercore.error import FlowerError
    from flwr.supercore.error.base import ApiErrorCode
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    new, known = [], {}
    for path in files:
        loaded: Any = load_ssh_public_key(path.read_bytes())
        key = public_key_to_bytes(loaded)
        try:
            client.RegisterNode(RegisterNodeRequest(public_key=key, name=path.stem))
        except httpx.HTTPStatusError as error:
            answer = FlowerError.from_json(error.response.text)
            if not answer or answer.code != ApiErrorCode.PUBLIC_KEY_ALREADY_IN_USE:
                raise
            known[key] = path.stem
        else:
            new.append(path.stem)
    out = {bytes(node.public_key) for node in (nodes(client) if known else ()) if node.unregistered_at}
    return new, [name for key, name in known.items() if key in out]


def nodes(client: Any) -> list[Any]:
    """What the SuperLink knows of every key that it ever registered."""
    from flwr.proto.control_pb2 import ListNodesRequest

    return list(client.ListNodes(ListNodesRequest()).nodes_info)


def remove(client: Any, which: str) -> tuple[int, bool]:
    """Keep a SuperNode out, by its name or node id, for good; its node id, and whether it was out already (then of
    several the newest one's). Raises ``ValueError``."""
    from flwr.proto.control_pb2 import UnregisterNodeRequest

    known = nodes(client)
    named = [node for node in known if which in (node.name, str(node.node_id))]
    there = [node for node in known if not node.unregistered_at]
    found = [node for node in named if not node.unregistered_at]
    if named and not found:
        return int(max(named, key=lambda node: str(node.unregistered_at)).node_id), True
    if not found:
        names = ", ".join(sorted(node.name for node in there)) or "none"
        raise ValueError(f"no SuperNode {which!r} is registered there; those that are: {names}")
    if len(found) > 1:
        each = ", ".join(f"{node.node_id} (registered {node.registered_at[:16]})" for node in found)
        raise ValueError(f"{len(found)} keys are registered as {which!r}: give one of their node ids: {each}")
    client.UnregisterNode(UnregisterNodeRequest(node_id=found[0].node_id))
    return int(found[0].node_id), False


def connect(address: str, ca: str | None = None) -> Any:
    """A client of the Control API at ``address``; without ``ca`` in plain HTTP, which is for loopback."""
    from flwr.cli.cli_client_interceptor import CliClientHttpInterceptor
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    interceptors: list[Any] = [CliClientHttpInterceptor(), RuntimeVersionHttpInterceptor(component_name="flwr CLI")]
    return ControlHttpClient.from_server_address(
        server_address=address,
        insecure=ca is None,
        root_certificates=Path(ca).read_bytes() if ca else None,
        interceptors=interceptors,
    )


def explain_tls(error: Exception) -> None:
    """Explain Flower's "unavailable". Raises ``ClickException`` when TLS is what failed."""
    import click

    if "certificate has expired" in str(error) or "certificate is not yet valid" in str(error):
        raise click.ClickException(
            "the SuperLink's certificate is not valid at the time that this machine's clock shows: set the clock, or "
            "renew the certificate with `prunella keys --host`"
        )
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        raise click.ClickException(
            "the SuperLink's certificate was not signed by this ca.crt, or is for another address: use the keys the "
            "SuperLink runs with"
        )
    if "WRONG_VERSION_NUMBER" in str(error) or "wrong version number" in str(error):
        raise click.ClickException("the SuperLink speaks without TLS: add --insecure, or start it with --keys")
    if "disconnected without sending a response" in str(error):
        raise click.ClickException("the SuperLink closed the connection: if it uses TLS, leave out --insecure")


def follow(request: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """Register keys, submit the run and yield its events."""
    host, _, port = request["address"].rpartition(":")
    wait_open(int(port), START, host=host.strip("[]"))
    client = connect(request["address"], request.get("ca"))
    if keys := request.get("register"):
        new, removed = register(client, map(Path, keys))
        yield {"event": "registered", "names": new, "removed": removed}
    if which := request.get("remove"):
        node, already = remove(client, which)
        yield {"event": "removed", "node": node, "already": already}
    if run := request.get("stop"):
        from flwr.proto.control_pb2 import StopRunRequest

        yield {"event": "stopped", "done": bool(client.StopRun(StopRunRequest(run_id=run)).success)}
    if not request.get("app"):
        return
    yield {"event": "started", "flower_run": (run := start_run(client, request))}
    for status, details in statuses(client, run, request.get("every", EVERY), request.get("patience", 0.0)):
        yield {"event": "status", "status": status, "details": details}


def main() -> None:
    """The process: reads the request named on the command line, writes events."""
    import click
    from flwr.cli.utils import flwr_cli_exc_handler

    request = json.loads(Path(sys.argv[1]).read_text())
    with open(request["out"], "a", opener=lambda path, flags: os.open(path, flags, 0o600)) as out:
        try:
            with flwr_cli_exc_handler(explain_tls):
                for event in follow(request):
                    print(json.dumps(event), file=out, flush=True)
        except (ValueError, OSError, click.ClickException) as error:
            print(json.dumps({"event": "error", "message": str(error)}), file=out, flush=True)
            sys.exit(1)


if __name__ == "__main__":
    main()
