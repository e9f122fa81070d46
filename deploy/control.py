"""Bundling an app, handing it to the SuperLink and watching the run until it ends, over Flower's Control API.

Runs in its own process (forked by the zygote, or ``python -m deploy.control FILE``), so that the launcher itself never
imports Flower. FILE holds a JSON object: ``app`` (directory of the ``pyproject.toml``), ``packages`` (directory of its
code, mostly the same one), ``address`` (HOST:PORT of the Control API), ``config`` (run-config overrides),
``simulation`` (fields of Flower's SimulationConfig, or null) and ``out``, a file that gets one JSON object a line:

    {"event": "started", "flower_run": id}      the run was accepted
    {"event": "status", "status": "running"}    each change; "finished:completed", "finished:failed", … is the last
    {"event": "error", "message": text}         the app or the settings were refused

Flower's own ``flwr run`` ends with code 0 whether or not the run failed; the status is the only truth.
"""

import hashlib
import json
import os
import sys
import time
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from deploy.ports import wait_open

EVERY = 0.2  # seconds between two looks at the status
START = 60.0  # seconds the Control API may take to open


def app_files(app: Path, packages: Path) -> dict[str, bytes | Path]:
    """What may go into the bundle: the files ``fab-include`` names below ``packages``, or all when it names none.

    Flower's own collection walks the whole directory, virtual environments included, before it looks at
    ``fab-include``; that takes seconds in a working copy.
    """
    config = tomllib.loads((app / "pyproject.toml").read_text())
    patterns = config.get("tool", {}).get("flwr", {}).get("app", {}).get("fab-include") or ["**/*"]
    found = {path.relative_to(packages).as_posix(): path for p in patterns for path in packages.glob(p.lstrip("/"))}
    found |= {name: app / name for name in ("pyproject.toml", ".gitignore", "LICENSE", "README.md")}
    return {name: path for name, path in sorted(found.items()) if path.is_file() and not path.is_symlink()}


def start_run(client: Any, request: dict[str, Any]) -> int:
    """Bundle the app and submit it; Flower's number of the run. Raises ``ValueError`` when the app is refused."""
    from flwr.cli.build import build_fab_from_files
    from flwr.common.serde import fab_to_proto, user_config_to_proto
    from flwr.proto.control_pb2 import StartRunRequest
    from flwr.proto.federation_config_pb2 import SimulationConfig
    from flwr.supercore.fab import Fab

    content, _ = build_fab_from_files(app_files(Path(request["app"]), Path(request["packages"])))
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


def statuses(client: Any, run: int) -> Iterable[tuple[str, str]]:
    """(status, details) at every change, until the run has finished."""
    from flwr.proto.control_pb2 import ListRunsRequest

    last = ""
    while not last.startswith("finished"):
        status = next(iter(client.ListRuns(ListRunsRequest(run_id=run)).run_dict.values())).status
        now = f"{status.status}:{status.sub_status}" if status.sub_status else str(status.status)
        if now != last:
            yield now, str(status.details)
            last = now
        else:
            time.sleep(EVERY)


def connect(address: str) -> Any:
    """A client of the Control API at ``address``, without TLS: it never leaves the machine."""
    from flwr.cli.cli_client_interceptor import CliClientHttpInterceptor
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    interceptors: list[Any] = [CliClientHttpInterceptor(), RuntimeVersionHttpInterceptor(component_name="flwr CLI")]
    return ControlHttpClient.from_server_address(
        server_address=address, insecure=True, root_certificates=None, interceptors=interceptors
    )


def follow(request: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """Submit the run and yield its events."""
    wait_open(int(request["address"].rsplit(":", 1)[1]), START)
    client = connect(request["address"])
    yield {"event": "started", "flower_run": (run := start_run(client, request))}
    for status, details in statuses(client, run):
        yield {"event": "status", "status": status, "details": details}


def main() -> None:
    """The process: reads the request named on the command line, writes events."""
    import click
    from flwr.cli.utils import flwr_cli_exc_handler

    request = json.loads(Path(sys.argv[1]).read_text())
    with open(request["out"], "a", opener=lambda path, flags: os.open(path, flags, 0o600)) as out:
        try:
            with flwr_cli_exc_handler():
                for event in follow(request):
                    print(json.dumps(event), file=out, flush=True)
        except (ValueError, OSError, click.ClickException) as error:
            print(json.dumps({"event": "error", "message": str(error)}), file=out, flush=True)
            sys.exit(1)


if __name__ == "__main__":
    main()
