"""What a client's owner requires of a run before the client takes part in it: the node sets it, not the server.

A run's settings come from the server, and the server is whom the defenses are against. In the node's configuration

``require``         a list such as "dgp, dgp.bottom=0.8, batch-size=16": defenses and settings; quote commas in values
``epsilon-budget``  the most ε that all runs together may cost this client's examples, at ``delta`` (1e-5): a run that
                    promises none, or counts at a larger delta, is refused, and so is the round that would pass it

A defense is required at a strength: every setting of its section is a bound, the default or what the owner wrote, read
in the direction in which the defense grows stronger (``privacy.defense.Stronger``); a setting with no such direction
must be equal, and so must settings of the run. A setting of a defense (``dgp.bottom=0.8``) requires the defense, too,
and after the name of one its settings need no prefix. ``<=`` and ``>=`` say the direction: where a setting has one it
must be that, and where it has none the owner's holds (``"dp-sgd, clip<=1, noise-multiplier>=1"``).

**Beside it.** In the stage of a required defense there is no other, and the order is the owner's: Top-k before DGP
would leave DGP the largest coordinates only, PriPrune after it would tell by its mask where the largest are. A guard
that tells how an attack on the private images went has to be named. What passes by a required defense does not leave:

===============================  ================================================================================
scores of examples               the run is refused: ``evaluation=clients``, LotteryFL. A count with noise is told
                                 where the owner named ``privacy.validation-noise`` or an ``epsilon-budget``. FedTiny's
                                 candidates for the first mask are not scored, and the run goes on without
masks, squared gradients         made of gradients, so a required data or gradient defense covers them, one of the
                                 update does not: FedDST is refused, PruneFL and FedTiny go on without them. PruneFL's
                                 first mask may take any number of steps and leaves only where an ``epsilon-budget``
                                 counts them
batch norm's statistics          made of images, so only a data defense covers them: the model is refused
time of training                 is not told
===============================  ================================================================================

A data or gradient defense draws anew at every local step, and 400 steps at a small learning rate average Gaussian
noise away (cosine with the undefended gradient 0.74 after one step, 0.999 after 400): where one is required and no
``epsilon-budget`` counts the steps, ``local-steps`` is at most the default or the owner's.

What is not bounded: how often the server asks, and what with. Weights, masks and the number of rounds are the server's,
so it can wear a heuristic down; an ``epsilon-budget`` counts every answer.

A run that does not fit is refused before any example is read, and so is one with a defense that is not of this release
(``package.module:NAME``), since what follows a required defense could undo it, or with such a model that ``require``
does not name: the server would choose what is imported and called here. The conditions are looked at by the code that
runs here, so they are worth something only if that code is the owner's: ``prunella supernode`` then takes no code of
the server's (``deploy.runtime.own_code``).

Errors: ``ConfigError``, which the server is told; it names settings.

>>> read_policy({"require": "dgp.bottom=0.75, rounds=10"})
Policy(defenses=('dgp',), settings={'dgp.bottom': 0.75, 'rounds': 10}, epsilon_budget=0.0, delta=1e-05, bounds={})
>>> read_policy({"require": "dp-sgd, clip<=1, noise-multiplier>=2"}).settings
{'dp-sgd.clip': 1, 'dp-sgd.noise-multiplier': 2}
"""

import difflib
import math
import re
import shlex
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from prunella.core.config import Raw, Run, kebab, parse_run, parse_section, section_defaults
from prunella.core.errors import ConfigError, unknown
from prunella.core.foreign import is_foreign
from prunella.privacy import DEFENSES, SECTIONS
from prunella.privacy.accounting import LARGEST_DELTA, Privacy
from prunella.privacy.chain import build_chain
from prunella.privacy.defense import STAGES, Stronger, directions
from prunella.strategies import STRATEGIES, validates

DELTA = 1e-5
KEYS = ("require", "epsilon-budget", "delta")
SUMS = ("sum-least", "sum-with", "sum-key", "sum-peers")  # of ``client.trust``
COMPARED = {"=": None, "<=": Stronger.SMALLER, ">=": Stronger.LARGER}


@dataclass(frozen=True)
class Policy:
    """The conditions. ``defenses`` are those required, in the order they are to be applied; ``epsilon_budget`` 0 is
    none; ``bounds`` are the directions of settings that the owner compared. ``sums``: there are conditions of masked
    sums (``client.trust``), which count for what is imported here alone."""

    defenses: tuple[str, ...] = ()
    settings: Raw = field(default_factory=dict)
    epsilon_budget: float = 0.0
    delta: float = DELTA
    bounds: Mapping[str, Stronger] = field(default_factory=dict)
    sums: bool = field(default=False, repr=False)

    @property
    def conditions(self) -> bool:
        return bool(self.defenses or self.settings or self.epsilon_budget)

    @property
    def covers_gradients(self) -> bool:
        """Whether every required defense has done its work once a gradient is made. One with an ε has."""
        return all(DEFENSES[name].stage != "update" for name in self.defenses)

    @property
    def covers_images(self) -> bool:
        """Whether every required defense has done its work once an image is shown."""
        return not self.epsilon_budget and all(DEFENSES[name].stage == "data" for name in self.defenses)

    def ways(self, section: str, settings: type) -> dict[str, Stronger]:
        """The direction of every field of a section: none, as declared, or as the owner compared it."""
        names = [each.name for each in fields(settings)]
        own = {name: self.bounds[key] for name in names if (key := f"{section}.{kebab(name)}") in self.bounds}
        return {**dict.fromkeys(names, Stronger.EQUAL), **directions(settings), **own}


def _parts(text: str) -> list[str]:
    """The list, split at commas outside quotation marks."""
    words = shlex.shlex(text, posix=True)
    words.whitespace, words.whitespace_split, words.commenters, words.escape = ",", True, "", ""
    try:
        return [part.strip() for part in words if part.strip()]
    except ValueError:
        raise ConfigError("require in the node configuration lacks a quotation mark: close the quotation") from None


def _value(text: str) -> Any:
    """As TOML would read it, and a bare word as itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _setting_names() -> set[str]:
    own = {key for name, settings in SECTIONS.items() for key in section_defaults(name, settings)}
    return own | {kebab(name) for name in Run.model_fields}


def _amount(config: Mapping[str, object], key: str, default: float) -> float:
    try:
        found = float(str(config.get(key, default)))
    except ValueError:
        found = math.nan
    if not 0 <= found < math.inf:
        raise ConfigError(f"{key} in the node configuration must be a number of at least 0")
    return found


def _whole_key(key: str, last: str) -> str:
    """The key of a setting that may be written without the section of ``last``, the defense named before it."""
    whole, known = f"{last}.{key}", _setting_names()
    if last and whole in known:
        if key in known:
            raise ConfigError(f"require: {key} is a setting of {last} and of the run: write {whole}, or {key} first")
        return whole
    if key not in known:
        bare = {name.removeprefix(f"{last}.") for name in known}
        raise unknown("setting in require", key, known | bare)
    return key


def _bound(key: str, sign: str, value: Any) -> dict[str, Stronger]:
    """The direction of a comparison. Raises ``ConfigError`` for one in which the defense would grow weaker."""
    if sign not in COMPARED:
        raise ConfigError(f"require: a bound is part of what it allows: write {key}{sign}={value}")
    way = COMPARED[sign]
    if way is None:
        return {}
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"require: {key}{sign}... compares numbers: write {key}=...")
    section, _, name = key.rpartition(".")
    declared = {kebab(n): each for n, each in directions(SECTIONS[section]).items()} if section else {}
    if declared.get(name, Stronger.EQUAL) not in (Stronger.EQUAL, way):
        right = {each: sign for sign, each in COMPARED.items()}[declared[name]]
        raise ConfigError(f"require: {key}{sign}{value} lets a weaker defense pass: write {key}{right}{value}")
    return {key: way}


def _read_require(text: str) -> tuple[tuple[str, ...], dict[str, Any], dict[str, Stronger]]:
    """Names, settings and compared settings of a list. A setting of a defense names it."""
    names, settings, bounds = list[str](), dict[str, Any](), dict[str, Stronger]()
    for part in _parts(text):
        key, sign, value = ([word.strip() for word in re.split(r"([<>]=|[=<>])", part, maxsplit=1)] + ["", ""])[:3]
        if not sign and key not in DEFENSES:
            raise unknown("defense in require", key, DEFENSES)
        if key == "defenses":
            raise ConfigError("require: defenses=... says nothing of their settings: name the defenses themselves")
        if sign:
            key = _whole_key(key, names[-1] if names else "")
            if key in settings:
                raise ConfigError(f"require: {key} is given twice: leave one out")
            settings[key] = _value(value)
            bounds |= _bound(key, sign, settings[key])
        name = key.partition(".")[0]
        names += [name] if name in DEFENSES else []
    if "none" in names:
        raise ConfigError("require: none is no defense: leave it out")
    ordered = sorted(dict.fromkeys(names), key=lambda name: STAGES.index(DEFENSES[name].stage))
    return tuple(ordered), settings, bounds


def _check_keys(config: Mapping[str, object]) -> None:
    """Refuse a key that somebody meant to be a condition: it would be none, in silence."""
    known = KEYS + SUMS
    for key in config:
        meant = key.lower().replace("_", "-")
        if meant == "state-dir" != key:
            raise ConfigError(f"{key} in the node configuration is not read: write {meant}")
        near = {meant, meant.rpartition(".")[2]} & {*known, "budget"} or meant.startswith(("require", "epsilon"))
        if key not in known and (near or difflib.get_close_matches(meant, SUMS, cutoff=0.8)):
            raise ConfigError(f"{key} in the node configuration is no condition: write {', '.join(known)}")


def read_policy(config: Mapping[str, object]) -> Policy:
    """The conditions in a node's configuration. One that no run can meet is raised."""
    _check_keys(config)
    names, settings, bounds = _read_require(text := str(config.get("require", "")))
    if text and not settings and not names:
        raise ConfigError("require in the node configuration names nothing: leave it out, or name a defense")
    parse_run({key: value for key, value in settings.items() if "." not in key})
    parse_section(settings, "privacy", Privacy)
    if names:
        build_chain(names, settings)
    delta = _amount(config, "delta", DELTA)
    if not 0 < delta <= LARGEST_DELTA:
        raise ConfigError(f"delta in the node configuration must lie in (0, {LARGEST_DELTA:g}]")
    if "delta" in config and not config.get("epsilon-budget"):
        raise ConfigError(
            "delta in the node configuration is that of epsilon-budget, which is missing: add it, or write "
            f"require='privacy.delta<={delta:g}' with a defense that has an ε"
        )
    return Policy(names, settings, _amount(config, "epsilon-budget", 0.0), delta, bounds, bool(set(SUMS) & set(config)))


def check_run(policy: Policy, run: Run, raw: Raw, privacy: Privacy) -> None:
    """Raise ``ConfigError`` unless the run with these settings meets every condition."""
    foreign = [name for name in run.defense_names if name not in DEFENSES]
    own = policy.conditions or policy.sums
    if own and foreign:
        raise _refused("defenses of this release", ",".join(foreign))
    _check_defenses(policy, run)
    for wanted, found in _unmet(policy, run, raw):
        raise _refused(wanted, found)
    if own and is_foreign(run.model) and policy.settings.get("model") != run.model:
        raise _refused("a model of this release, or the one that its conditions name (model=...)", run.model)
    if policy.conditions:
        _check_beside(policy, run, privacy)
    if not policy.epsilon_budget:
        return
    if not _private(run):
        raise _refused("a defense with an ε", ",".join(run.defense_names))
    if privacy.delta > policy.delta:
        raise _refused(f"privacy.delta of {policy.delta:g} or less", f"{privacy.delta:g}")


def _private(run: Run) -> bool:
    return any(DEFENSES[name].private for name in run.defense_names if name in DEFENSES)


def _check_defenses(policy: Policy, run: Run) -> None:
    """Every required defense is there, alone in its stage, in the owner's order."""
    found = ",".join(run.defense_names)
    missing = [name for name in policy.defenses if name not in run.defense_names]
    if missing:
        raise _refused(f"the defenses {', '.join(missing)}", found)
    for stage in dict.fromkeys(DEFENSES[name].stage for name in policy.defenses):
        wanted = [name for name in policy.defenses if DEFENSES[name].stage == stage]
        there = [name for name in run.defense_names if DEFENSES[name].stage == stage]
        if set(there) - set(wanted):
            raise _refused(f"no {stage} defense but {', '.join(wanted)}, unless its conditions name it", found)
        if there != wanted:
            raise _refused(f"the {stage} defenses in the order {', '.join(wanted)}", found)
    for name in set(run.defense_names) - set(policy.defenses) if policy.defenses else ():
        if DEFENSES[name].guards:
            raise _refused(f"a chain without {name}, unless its conditions name it", found)


def _unmet(policy: Policy, run: Run, raw: Raw) -> Iterator[tuple[str, object]]:
    """What the owner wants of a setting, and what the run has instead."""
    least, written = parse_run({key: v for key, v in policy.settings.items() if "." not in key}), policy.settings
    for name in Run.model_fields:
        wanted, found = getattr(least, name), getattr(run, name)
        which = policy.bounds.get(kebab(name), Stronger.EQUAL)
        if kebab(name) in written and not _as_strong(found, wanted, which):
            yield _wanted(kebab(name), wanted, which), found
    stepwise = [name for name in policy.defenses if DEFENSES[name].stage != "update" and not policy.epsilon_budget]
    if stepwise and run.local_steps > least.local_steps:
        yield f"local-steps of {least.local_steps} or less, since {stepwise[0]} works step by step", run.local_steps
    for section, settings in SECTIONS.items():
        keys = [key for key in section_defaults(section, settings) if section in policy.defenses or key in written]
        if not keys:
            continue
        own: Any = parse_section(written, section, settings)
        runs: Any = parse_section(raw, section, settings)
        for name, which in policy.ways(section, settings).items():
            key, wanted, found = f"{section}.{kebab(name)}", getattr(own, name), getattr(runs, name)
            if key in keys and not _as_strong(found, wanted, which):
                yield _wanted(key, wanted if which.value else repr(wanted), which), found


def _wanted(key: str, value: Any, which: Stronger) -> str:
    return f"{key} of {value} {which.value}" if which.value else f"{key}={value}"


def _as_strong(found: Any, wanted: Any, which: Stronger) -> bool:
    """Never of a NaN."""
    if which is Stronger.LARGER:
        return bool(found >= wanted)
    return bool(found <= wanted) if which is Stronger.SMALLER else bool(found == wanted)


def _check_beside(policy: Policy, run: Run, privacy: Privacy) -> None:
    """Nothing leaves that passes by what is required, as far as settings decide about it."""
    priced = bool(policy.epsilon_budget) or "privacy.validation-noise" in policy.settings
    if run.evaluation == "clients" and not (priced and _private(run) and privacy.validation_noise):
        wanted = "evaluation=server (noisy scores: an ε, and privacy.validation-noise or a budget among its conditions)"
        raise _refused(wanted, f"evaluation={run.evaluation}")
    if validates(run.strategy):
        raise _refused("a strategy without scores of held-out examples, as magnitude", run.strategy)
    if not policy.covers_gradients and run.strategy in STRATEGIES and STRATEGIES[run.strategy].client.plan is not None:
        raise _refused("a strategy whose clients send no masks of their own, as magnitude", run.strategy)


def check_model(policy: Policy, model: str, buffers: Collection[str]) -> None:
    """Refuse a model whose buffers would leave beside what is required."""
    promised = policy.defenses or policy.epsilon_budget
    if promised and buffers and not policy.covers_images:
        raise _refused("a model without buffers (batch norm), which leave beside its defenses", model)


def check_first_mask(policy: Policy) -> None:
    """Refuse to make the run's first mask where it would pass by what is required, or come of more steps than anybody
    counts."""
    if policy.defenses and not (policy.epsilon_budget and policy.covers_gradients):
        raise ConfigError("this client's owner lets no mask of this client's making leave; the run asks for one")


def check_scores(policy: Policy) -> None:
    """Refuse to score candidates for the run's first mask where there is any condition: losses and batch norm's
    statistics of examples pass by every defense of gradients and updates, and labels by one of images."""
    if policy.conditions:
        raise ConfigError("this client's owner lets no score of its examples leave; the run asks for some")


def _refused(wanted: str, found: object) -> ConfigError:
    return ConfigError(f"this client's owner takes part only with {wanted}; the run has {found}")


def within(policy: Policy, privacy: Privacy) -> Privacy:
    """The run's privacy settings under the smaller of the two budgets."""
    if not policy.epsilon_budget:
        return privacy
    both = [budget for budget in (policy.epsilon_budget, privacy.epsilon_budget) if budget]
    return replace(privacy, epsilon_budget=min(both))
