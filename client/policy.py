"""What a client's owner asks of a run before the client takes part in it: conditions of the node, not of the server.

A run's settings come from the server, and the server is whom the defenses are against. In the node's configuration

``require``         a list such as "dgp, dgp.bottom=0.75": every name must stand among the run's defenses, and every
                    setting must have that value
``epsilon-budget``  the most ε that all runs together may cost this client's examples, at ``delta`` (1e-5): a run that
                    promises none, or counts at a larger delta, is refused, and so is the round that would pass it

A run that does not fit is refused before any example is read, and so is one with a defense that is not of this release
(``package.module:NAME``), since what follows a required defense could undo it, or with such a model that ``require``
does not name: the server would choose what is imported and called here. The conditions are looked at by the code that
runs here, so they are worth something only if that is the owner's: ``prunella supernode`` then takes no code of the
server's (``deploy.own_code``).

Errors: ``ConfigError``, which the server is told; it names settings.

>>> read_policy({"require": "dgp, dgp.bottom=0.75"})
Policy(defenses=('dgp',), settings={'dgp.bottom': 0.75}, epsilon_budget=0.0, delta=1e-05)
"""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from core.config import Raw, Run, kebab, section_defaults
from core.errors import ConfigError, unknown
from core.foreign import is_foreign
from privacy import DEFENSES, SECTIONS
from privacy.accounting import Privacy

DELTA = 1e-5


@dataclass(frozen=True)
class Policy:
    """The conditions; ``epsilon_budget`` 0 is none."""

    defenses: tuple[str, ...] = ()
    settings: Raw = field(default_factory=dict)
    epsilon_budget: float = 0.0
    delta: float = DELTA

    @property
    def conditions(self) -> bool:
        return bool(self.defenses or self.settings or self.epsilon_budget)


def _value(text: str) -> Any:
    """As TOML would read it, and a bare word as itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _known() -> set[str]:
    sections = {**SECTIONS, "privacy": Privacy}
    own = {key for name, settings in sections.items() for key in section_defaults(name, settings)}
    return own | {kebab(name) for name in Run.model_fields}


def _amount(config: Mapping[str, object], key: str, default: float) -> float:
    try:
        found = float(str(config.get(key, default)))
    except ValueError:
        found = math.nan
    if not 0 <= found < math.inf:
        raise ConfigError(f"{key} in the node configuration is no number that is not negative")
    return found


def read_policy(config: Mapping[str, object]) -> Policy:
    """The conditions in a node's configuration. One that names nothing there is raises: it would hold of no run."""
    names, settings = list[str](), dict[str, Any]()
    for part in filter(None, (part.strip() for part in str(config.get("require", "")).split(","))):
        key, equals, text = (word.strip() for word in part.partition("="))
        if not equals and key not in DEFENSES:
            raise unknown("defense in require", key, DEFENSES)
        if equals and key not in _known():
            raise unknown("setting in require", key, _known())
        if equals:
            settings[key] = _value(text)
        else:
            names.append(key)
    delta = _amount(config, "delta", DELTA)
    if not 0 < delta < 1:
        raise ConfigError("delta in the node configuration must lie in (0, 1)")
    return Policy(tuple(names), settings, _amount(config, "epsilon-budget", 0.0), delta)


def check_run(policy: Policy, run: Run, raw: Raw, privacy: Privacy) -> None:
    """Raise ``ConfigError`` unless the run with these settings meets every condition."""
    foreign = [name for name in run.defense_names if name not in DEFENSES]
    if policy.conditions and foreign:
        raise _refused("defenses of this release", ",".join(foreign))
    missing = [name for name in policy.defenses if name not in run.defense_names]
    if missing:
        raise _refused(f"the defenses {', '.join(missing)}", ",".join(run.defense_names))
    for key, wanted in policy.settings.items():
        if key not in raw or raw[key] != wanted:
            raise _refused(f"{key}={wanted}", raw.get(key, "no such setting"))
    if policy.conditions and is_foreign(run.model) and policy.settings.get("model") != run.model:
        raise _refused("a model of this release, or the one that its conditions name (model=...)", run.model)
    if not policy.epsilon_budget:
        return
    if not any(DEFENSES[name].private for name in run.defense_names if name in DEFENSES):
        raise _refused("a defense with an ε", ",".join(run.defense_names))
    if privacy.delta > policy.delta:
        raise _refused(f"privacy.delta of {policy.delta:g} or less", f"{privacy.delta:g}")


def _refused(wanted: str, found: object) -> ConfigError:
    return ConfigError(f"this client's owner takes part only with {wanted}; the run has {found}")


def within(policy: Policy, privacy: Privacy) -> Privacy:
    """The run's privacy settings under the smaller of the two budgets."""
    if not policy.epsilon_budget:
        return privacy
    both = [budget for budget in (policy.epsilon_budget, privacy.epsilon_budget) if budget]
    return replace(privacy, epsilon_budget=min(both))
