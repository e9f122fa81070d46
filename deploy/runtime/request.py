"""What a run is asked to do, as ``launch.json`` keeps it, and how it is handed to a SuperLink."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prunella.deploy.console.terminal import Consent
from prunella.deploy.ports import LOOPBACK
from prunella.deploy.runs import RunDir, RunError
from prunella.deploy.runtime import settings
from prunella.deploy.runtime.processes import Process
from prunella.deploy.runtime.services import Folders, Value, control


@dataclass(frozen=True)
class RunRequest:
    """What to run. ``settings`` are typed run-config overrides, already checked."""

    app: Path
    runs: Path
    settings: Mapping[str, Value] = field(default_factory=dict)
    supernodes: int = 4
    run_id: str = ""
    audit: Consent = "pictures"
    client_seed: int | None = None
    stock: bool = False
    simulate: bool = False
    cpus_per_client: int = 1
    gpus_per_client: float = 0.0
    keep: bool = False


def describe(request: RunRequest) -> dict[str, Any]:
    """The request as ``launch.json`` keeps it."""
    plain = {name: value for name, value in vars(request).items() if name != "runs"}
    return {**plain, "app": str(request.app), "settings": dict(request.settings)}


def restored(run: RunDir, keep: bool = False) -> RunRequest:
    """The request a run was started with. Raises ``RunError``."""
    saved = run.launch()
    try:
        return RunRequest(
            **{**saved, "app": Path(saved["app"]), "runs": run.path.parent, "run_id": run.id, "keep": keep}
        )
    except (KeyError, TypeError):
        raise RunError(
            f"{run.path}/launch.json is missing or was written by another version: start a new run"
        ) from None


def run_config(request: RunRequest, run: RunDir, metrics_port: int, resume: bool) -> dict[str, Value]:
    """The user's settings, and the launcher's own as far as the app has them."""
    known = settings.defaults(settings.read_app(request.app))
    own: dict[str, Value] = {
        "run-dir": str(run.path),
        "resume": resume,
        "metrics-address": f"{LOOPBACK}:{metrics_port}",
        "expected-clients": request.supernodes,
    }
    return {key: value for key, value in own.items() if key in known} | dict(request.settings)


def submission(request: RunRequest, run: RunDir, config: Mapping[str, Value], **target: Any) -> Process:
    """The process that submits the app and reports on it in ``run.events``.

    ``target`` says where the Control API is and how to follow the run (``deploy.runtime.control_api``).
    """
    sent = {
        "app": str(request.app),
        "packages": str(settings.packages_of(request.app)),
        "config": config,
        "out": str(run.events),
        **target,
    }
    return control(Folders(run.logs, run.home("control")), run.flower, sent)
