"""The command that repeats a run: `prunella run` with every setting that is not the default of this version."""

import shlex
from typing import Any

from prunella.attacks import SECTIONS as ATTACK_SECTIONS
from prunella.core.config import RATE, Run, kebab, section_defaults
from prunella.core.errors import ConfigError
from prunella.privacy import SECTIONS as PRIVACY_SECTIONS
from prunella.server.store.schema import LOCAL_SETTINGS, StoreLine
from prunella.strategies import SECTIONS as STRATEGY_SECTIONS
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


def command(run: StoreLine) -> str:
    """The command line that repeats ``run``, as a shell takes it."""
    defaults = default_settings() | _recommended(run)
    given = {k: v for k, v in run.get("settings", {}).items() if k not in LOCAL_SETTINGS and defaults.get(k) != v}
    parts = [shlex.quote(f"{key}={str(v).lower() if isinstance(v, bool) else v}") for key, v in sorted(given.items())]
    return " \\\n  ".join(["prunella run", *(f"-c {part}" for part in parts)])
