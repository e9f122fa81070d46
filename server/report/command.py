"""The command that repeats a run: `prunella run` with every setting that is not the default of this version."""

import json
import shlex
from pathlib import Path
from typing import Any

from prunella.attacks import SECTIONS as ATTACK_SECTIONS
from prunella.core.config import RATE, Run, kebab, section_defaults
from prunella.core.errors import ConfigError
from prunella.privacy import SECTIONS as PRIVACY_SECTIONS
from prunella.server.store.schema import LOCAL_SETTINGS, StoreLine
from prunella.strategies import SECTIONS as STRATEGY_SECTIONS
from prunella.strategies.round.roster import CONSENTS
from prunella.tasks.data import recommended_rate


def default_settings() -> dict[str, Any]:
    found = {kebab(name): field.default for name, field in Run.model_fields.items()}
    for name, settings in {**PRIVACY_SECTIONS, **STRATEGY_SECTIONS, **ATTACK_SECTIONS}.items():
        found |= section_defaults(name, settings)
    return found


def _recommended(run: StoreLine) -> dict[str, Any]:
    """The learning rate of the run's dataset, since that is what a run has that names none."""
    try:
        return {RATE: recommended_rate(str(run.get("settings", {}).get("dataset", "")))}
    except ConfigError:
        return {RATE: None}


def _launched(folder: Path | None) -> dict[str, Any]:
    """What the launcher kept beside the run, if it was started on this machine."""
    try:
        found = json.loads((folder / "launch.json").read_text()) if folder else {}
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def command(run: StoreLine, folder: Path | None = None) -> str:
    """The command line that repeats ``run``, as a shell takes it; from its ``folder`` how it was started."""
    defaults = default_settings() | _recommended(run)
    given = {k: v for k, v in run.get("settings", {}).items() if k not in LOCAL_SETTINGS and defaults.get(k) != v}
    nodes, launch = given.pop("expected-clients", 0), _launched(folder)
    options = [f"--supernodes {nodes}"] if type(nodes) is int and nodes else []
    options += [f"--audit {launch['audit']}"] if launch.get("audit") in CONSENTS[:-1] else []
    options += [f"--client-seed {launch['client_seed']}"] if type(launch.get("client_seed")) is int else []
    parts = [shlex.quote(f"{key}={str(v).lower() if isinstance(v, bool) else v}") for key, v in sorted(given.items())]
    verb = "prunella simulate" if launch.get("simulate") is True else "prunella run"
    return " \\\n  ".join([" ".join([verb, *options]), *(f"-c {part}" for part in parts)])
