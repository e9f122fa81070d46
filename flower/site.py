"""What a site says about an app that is not Prunella's: which defenses, how strong, where its state lies.

Settings come from two sides. The app's ``run_config`` (the server's) names ``defenses`` and their settings by the keys
of Prunella's own app (``dgp.top``). The node's configuration (the site's own) may have

``require``, ``epsilon-budget``, ``delta``    as in ``client.policy``: defenses, their settings and ``local-steps``
``state-dir``                                 where state, the site's secret and its account lie
``metrics``                                   names of metrics that may leave beside ``num-examples``

The stricter of the two wins: a required defense that the run does not name is added, and a weaker setting is raised to
the site's. What then still does not fit (another defense in the stage of a required one, another order) is refused. No
defense named on either side is an error: ``defenses = "none"`` runs without one.

Errors: ``ConfigError``, which the server is told; it names settings.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context

from prunella.client.accounts import APPS, Accounts
from prunella.client.policy import Policy, check_run, read_policy, within
from prunella.client.session import state_directory
from prunella.client.state import ClientStore
from prunella.core.config import Raw, Run, kebab, parse_run, parse_section
from prunella.core.errors import ConfigError
from prunella.core.randomness import PrivateGenerator, derived
from prunella.privacy import DEFENSES, SECTIONS, find_defense
from prunella.privacy.accounting import NOISE, Privacy
from prunella.privacy.chain import Chain, build_chain, working_chain
from prunella.privacy.channel_personalized import own_map
from prunella.privacy.defense import STAGES, Stronger
from prunella.privacy.ledger.ledger import charge

KIND, STEPS = "defenses", "local-steps"
OWN = {  # what an app of others does not have, and what to take instead
    "precode": "a layer inside Prunella's models: take a channel, or a defense of the update",
    "leakage-guard": "a client that attacks its own update on the images; docs/choose.md says what else there is",
}


def asked_names(run_config: Mapping[str, object]) -> list[str]:
    """The defenses that the run names."""
    return [name.strip() for name in str(run_config.get(KIND, "")).split(",") if name.strip()]


def check_spelling(run_config: Mapping[str, object]) -> None:
    """Refuse a key that is a setting of a defense but for its punctuation, the budget without its section, or
    ``defenses`` in another spelling: the app's other settings are its own affair, and these would not be heard of."""
    known = {f"{section}.{kebab(f.name)}" for section, settings in SECTIONS.items() for f in fields(settings)}
    plain = {key.replace(".", "-"): key for key in known} | {"epsilon-budget": "privacy.epsilon-budget"}
    plain |= dict.fromkeys((KIND, "defense", "defence", "defences"), KIND)
    for key in run_config:
        meant = plain.get(key.lower().replace("_", "-").replace(".", "-"))
        if meant is not None and key != meant:
            raise ConfigError(f"{key} is no setting of a defense: write {meant}")


def defense_settings(run_config: Mapping[str, object]) -> Raw:
    """The run's settings of defenses. Raises ``ConfigError`` for what is nearly one."""
    check_spelling(run_config)
    given = {k: v for k, v in run_config.items() if isinstance(v, str | int | float | bool)}
    return {key: value for key, value in given.items() if "." in key and key.split(".")[0] in SECTIONS}


def read_names(run_config: Mapping[str, object], policy: Policy) -> tuple[str, ...]:
    """The run's defenses with those that the site requires beside them, by stage. Raises ``ConfigError``."""
    asked = asked_names(run_config)
    if not asked and not policy.defenses:
        raise ConfigError(
            "no defense is named: write defenses = 'dgp' below [tool.flwr.app.config], or 'none' to run without one"
        )
    missing = [name for name in policy.defenses if name not in asked]
    if not missing:
        return tuple(asked)
    every = [name for name in asked if name != "none"] + missing
    return tuple(sorted(every, key=lambda name: STAGES.index(find_defense(name).stage)))


def _stricter(which: Stronger, asked: Any, own: Any) -> Any:
    if which is Stronger.EQUAL:
        return own
    return max(asked, own) if which is Stronger.LARGER else min(asked, own)


def _compared(raw: Raw, policy: Policy) -> Iterator[tuple[str, Any, Any, Stronger]]:
    """Every setting of the required defenses: its key, what the run has, the stricter of that and the site's, and which
    way is stricter."""
    for section in policy.defenses:
        if (settings := SECTIONS.get(section)) is None:
            continue
        own: Any = parse_section(policy.settings, section, settings)
        asked: Any = parse_section(raw, section, settings)
        for name, which in policy.ways(section, settings).items():
            found = getattr(asked, name)
            yield f"{section}.{kebab(name)}", found, _stricter(which, found, getattr(own, name)), which


def strengthened(raw: Raw, policy: Policy) -> Raw:
    """The run's settings, those of required defenses at least as strong as the site's."""
    return {**raw, **{key: strict for key, _, strict, _ in _compared(raw, policy)}}


def check_weakened(run_config: Mapping[str, object], raw: Raw, policy: Policy) -> None:
    """Refuse a run that asks in so many words for less than the site requires. Raises ``ConfigError``."""
    names = asked_names(run_config)
    if policy.conditions and set(names) - DEFENSES.keys():
        raise ConfigError("this site takes part only with defenses of this release: the run names another")
    if policy.defenses and "none" in names:
        raise ConfigError(f"this site requires {', '.join(policy.defenses)}: leave defenses = 'none' out of the run")
    for key, found, strict, which in _compared(raw, policy):
        if key in raw and found != strict:
            bound = f"{strict} {which.value}".strip()
            raise ConfigError(f"this site requires {key} of {bound}; the run has {found}: run it with {key}={strict}")


def _check_known(policy: Policy) -> None:
    if other := [key for key in policy.settings if "." not in key and key != STEPS]:
        raise ConfigError(f"require names {other[0]}, which no app but Prunella's own tells: leave it out")


def check_own(name: str) -> None:
    """Refuse a defense that only Prunella's own app can have. Raises ``ConfigError``."""
    if name in OWN or find_defense(name).guards:
        raise ConfigError(f"{name} needs Prunella's own app{': ' + OWN[name] if name in OWN else ''}")


def check_conditions(policy: Policy) -> None:
    """Refuse conditions that only Prunella's own app can meet, or none. Raises ``ConfigError``."""
    _check_known(policy)
    if policy.settings and not policy.defenses:
        raise ConfigError("require names settings and no defense: write the defense first, as in 'dgp, bottom>=0.75'")
    for name in policy.defenses:
        check_own(name)
    if not policy.epsilon_budget:
        return
    if not any(find_defense(name).private for name in policy.defenses):
        raise ConfigError("epsilon-budget counts a defense that has an ε, and none is required: require dp-sgd, too")
    if not charge(build_chain(policy.defenses, policy.settings), "", 1, 1, 1).covered:
        raise ConfigError(f"epsilon-budget counts noise from {NOISE[0]:g} to {NOISE[1]:g} times the clip: require that")


@dataclass(frozen=True)
class Site:
    """One message's worth of a site: its defenses, its policy, its files."""

    context: Context
    kind: str

    @cached_property
    def policy(self) -> Policy:
        return read_policy(self.context.node_config)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return read_names(self.context.run_config, self.policy)

    @cached_property
    def asked(self) -> Raw:
        """The run's settings of defenses: the app's other settings are its own affair."""
        return defense_settings(self.context.run_config)

    @cached_property
    def raw(self) -> Raw:
        return strengthened(own_map(self.asked, self.context.node_config.get("importance")), self.policy)

    @cached_property
    def privacy(self) -> Privacy:
        """Under the smaller budget, and with one of the site's own at the smaller δ."""
        found = within(self.policy, parse_section(self.raw, "privacy", Privacy))
        return replace(found, delta=min(found.delta, self.policy.delta)) if self.policy.epsilon_budget else found

    @cached_property
    def chain(self) -> Chain:
        """The defenses of both sides, checked against the site's conditions."""
        chain = working_chain(self.names, self.raw)
        self.check_scheme("fedavg")
        for name in self.names:
            check_own(name)
        return chain

    def check_scheme(self, scheme: str) -> None:
        """``client.policy.check_run`` for an app of which only the defenses and their settings are known."""
        _check_known(self.policy)
        if self.policy.sums:
            raise ConfigError("this site's sum-... are of masked sums, and an approved app sends single updates")
        run = parse_run({KIND: ",".join(self.names), "strategy": scheme, STEPS: 1})
        known = {key: value for key, value in self.policy.settings.items() if key != STEPS}
        check_run(replace(self.policy, settings=known), run, self.raw, parse_section(self.raw, "privacy", Privacy))

    def require_few(self, steps: int) -> None:
        """Refuse more local steps than the site lets a defense of single steps take (``client.policy``)."""
        limit = int(str(self.policy.settings.get(STEPS, Run.model_fields["local_steps"].default)))
        stepwise = [name for name in self.policy.defenses if find_defense(name).stage != "update"]
        if stepwise and not self.policy.epsilon_budget and steps > limit:
            raise ConfigError(f"this client's owner lets {stepwise[0]} take {limit} local steps a message at most")

    @cached_property
    def _home(self) -> Path:
        config, node = self.context.node_config, self.context.node_id
        if self.policy.epsilon_budget and not {"state-dir", "client-id", "partition-id"} & set(config):
            raise ConfigError(
                "epsilon-budget without state-dir or partition-id: a SuperNode's number is new at every start, and so "
                "would be its account; write state-dir='/var/lib/prunella' into the node's configuration"
            )
        client = config.get("client-id", config.get("partition-id", node))
        return state_directory(config, int(str(client))) / APPS

    @cached_property
    def store(self) -> ClientStore:
        """State of this run and this type of message."""
        return ClientStore(self._home, f"run-{self.context.run_id}-{self.kind}")

    @cached_property
    def wire(self) -> ClientStore:
        """What messages of any type of this run are read by: the last mask, and the shapes of the model."""
        return ClientStore(self._home, f"run-{self.context.run_id}")

    @cached_property
    def accounts(self) -> Accounts:
        """One account for all examples of the site: an app does not say which it trains on. What Prunella's own app
        spent of any counts in it."""
        return Accounts(self.store.home, torch.zeros(1, dtype=torch.int64), beside=self.store.home.parent)

    def first(self, notice: str) -> bool:
        """Whether nobody has asked this of a ``notice`` before, in this run and for this type of message: a client may
        be another process for every message."""
        try:
            (self.store.folder / f"told-{notice}").touch(exist_ok=False)
        except OSError:  # it is there, or the disk is full: a notice stops no answer
            return False
        return True

    def generator(self, *question: str) -> PrivateGenerator:
        """Draws that only this site can repeat."""
        return PrivateGenerator(derived(self.accounts.key(), *question))

    def metrics(self, listed: tuple[str, ...]) -> frozenset[str]:
        """Names of metrics that may leave. Under an ε none but the count: no noise covers them."""
        own = self.context.node_config.get("metrics")
        names = listed if own is None and not self.policy.conditions else tuple(str(own or "").split(","))
        names = () if self.chain.private is not None else names
        return frozenset(name.strip() for name in names if name.strip())
