"""Settings of a run from the command line: split, typed by their defaults, checked before anything starts.

The defaults, and so the valid keys, are in ``[tool.flwr.app.config]`` of the app's ``pyproject.toml``; Flower
refuses any other. For Prunella's own app the rules of every package apply as well.

>>> defaults = {"rounds": 10, "rate": 0.3, "strategy": "prunefl"}
>>> parse(["rounds=3", "rate=1"], defaults)
{'rounds': 3, 'rate': 1.0}
>>> parse(["round=3"], defaults)
Traceback (most recent call last):
core.errors.ConfigError: unknown setting 'round': did you mean 'rounds'? Valid: rate, rounds, strategy
"""

import tomllib
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prunella.core.errors import ConfigError, unknown
from prunella.core.installation import ROOMS

if TYPE_CHECKING:
    from prunella.core.config import Run

Value = str | int | float | bool
NAME = "prunella"
# Settings whose values are names in other packages' registries; to check them those packages are imported.
NAMED = ("strategy", "defenses", "attack", "model", "dataset")
DEVICES = ("device", "attack-device")
# What may not fit the rest.
TOGETHER = (*NAMED, *DEVICES, "robust", "aggregation", "min-clients", "evaluation", "audit-cluster")
RATE, AUTO = "learning-rate", "auto"  # as in core.config, which is slow to import
# Set by the launcher.
RESERVED = ("run-dir", "resume")
_TRUTH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Value]:
    """
    >>> flatten({"rounds": 3, "dgp": {"top": 0.05}})
    {'rounds': 3, 'dgp.top': 0.05}
    """
    flat: dict[str, Value] = {}
    for key, value in nested.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat


def read_app(app: Path) -> dict[str, Any]:
    """The parsed ``pyproject.toml`` of a Flower app. Raises ``ConfigError``."""
    path = app / "pyproject.toml"
    try:
        parsed = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise ConfigError(f"{app} has no pyproject.toml: name the app's directory with --app") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    if "components" not in parsed.get("tool", {}).get("flwr", {}).get("app", {}):
        raise ConfigError(f"{path} describes no Flower app: name its directory with --app")
    return parsed


def app_directory() -> Path:
    """Where the app's ``pyproject.toml`` is: beside the code, or installed under ``share/prunella``."""
    if (ROOMS / "pyproject.toml").exists():
        return ROOMS
    try:
        installed = metadata.files(NAME) or []
    except metadata.PackageNotFoundError:
        installed = []
    for file in installed:
        if file.as_posix().endswith(f"share/{NAME}/pyproject.toml"):
            return Path(str(file.locate())).resolve().parent
    raise ConfigError("the app's pyproject.toml is not installed: name the app's directory with --app")


def packages_of(app: Path) -> Path:
    """Where an app's code is: beside its ``pyproject.toml``, except for a Prunella installed from a wheel."""
    try:
        own = app_directory()
    except ConfigError:
        return app
    return ROOMS if app.resolve() == own else app


def defaults(app: Mapping[str, Any]) -> dict[str, Value]:
    return flatten(app["tool"]["flwr"]["app"].get("config", {}))


def is_prunella(app: Mapping[str, Any]) -> bool:
    return bool(app.get("project", {}).get("name") == NAME and app["tool"]["flwr"]["app"].get("publisher") == NAME)


def typed(key: str, text: str, default: Value) -> Value:
    """``text`` as the type of ``default``. Raises ``ConfigError``."""
    if isinstance(default, bool):
        if text.lower() not in _TRUTH:
            raise ConfigError(f"{key}: {text!r} is neither true nor false: write one of them")
        return _TRUTH[text.lower()]
    if key == RATE and default == AUTO and text != AUTO:
        default = 0.25  # a number, although its default is a word
    if isinstance(default, str):
        return text
    try:
        return type(default)(text)
    except ValueError:
        kind = "a whole number" if isinstance(default, int) else "a number"
        word = f", or {AUTO}" if key == RATE else ""
        raise ConfigError(f"{key}: {text!r} is not {kind}: write one, for example {default}{word}") from None


def anchored(given: Mapping[str, Value]) -> dict[str, Value]:
    """The settings with the folder of a dataset and the file of an attack's prior, where they lie below the current
    directory, from the root: a run goes on from wherever it is resumed.

    >>> anchored({"dataset": "imagefolder:.", "rounds": 2})["dataset"] == f"imagefolder:{Path.cwd()}"
    True
    """
    found = dict(given)
    for key, value in given.items():
        kind, colon, place = str(value).partition(":") if key == "dataset" else ("", "", str(value))
        if (colon or key.endswith(".prior")) and place and Path(place).exists():
            found[key] = f"{kind}{colon}{Path(place).absolute()}"
    return found


def relatives(key: str, known: Iterable[str]) -> list[str]:
    """The keys to suggest to a user who typed ``key``: those of its section or of one that begins with that word, else
    those without a section, else all.

    >>> relatives("dgp.tip", ["rounds", "dgp.top", "ig.tv"]), relatives("round", ["rounds", "dgp.top"])
    (['dgp.top'], ['rounds'])
    >>> relatives("random.scop", ["random.rate", "random-mask.scope", "snip.scope"])
    ['random.rate', 'random-mask.scope']
    >>> relatives("tv", ["ig.tv"])
    ['ig.tv']
    """
    keys = list(known)
    word = key.split(".")[0]
    section = [each for each in keys if "." in key and "." in each and each.startswith((word + ".", word + "-"))]
    return section or [each for each in keys if ("." in each) == ("." in key)] or keys


def parse(given: Iterable[str], known: Mapping[str, Value]) -> dict[str, Value]:
    """``key=value`` texts as typed settings; the last one wins. Raises ``ConfigError``."""
    settings: dict[str, Value] = {}
    for item in given:
        key, equals, text = (part.strip() for part in item.partition("="))
        if not equals or not key:
            raise ConfigError(f"{item!r} is not a setting: write key=value, for example -c rounds=3")
        if key in RESERVED:
            raise ConfigError(f"{key!r} is set by the launcher: use --runs, --run-id or --resume")
        if key not in known and ":" in key:
            raise ConfigError(
                f"{key}: a run has no keys for your own code's settings, and takes your dataclass's defaults: define "
                "another name with other ones"
            )
        if key not in known:
            raise unknown("setting", key, relatives(key, known))
        settings[key] = typed(key, text, known[key])
    return settings


def sections() -> dict[str, type]:
    """The settings of every algorithm, by the word before the dot."""
    from prunella import attacks, privacy, strategies

    return {**privacy.SECTIONS, **strategies.SECTIONS, **attacks.SECTIONS}


def check_names(settings: Mapping[str, Value]) -> None:
    """Refuse a strategy, defense, attack, model or dataset that no registry has."""
    from prunella import attacks, privacy, strategies, tasks
    from prunella.core.foreign import unlisted

    registries: dict[str, Iterable[str]] = {
        "strategy": strategies.STRATEGIES,
        "defenses": privacy.DEFENSES,
        "attack": attacks.ATTACKS,
        "model": tasks.MODELS,
        "dataset": tasks.DATASETS,
    }
    for key, registry in registries.items():
        for name in str(settings[key]).split(","):
            if ":" in name or (key in ("model", "dataset") and set(name) & set("/.@")):
                continue  # the user's own: "package.module:NAME", "imagefolder:/path", a Hugging Face name, a file
            if name.strip() and name.strip() not in registry:
                refuse = unlisted if key in ("defenses", "attack", "model") else unknown
                raise refuse(key.removesuffix("s"), name.strip(), registry)


def ignored(run: "Run", given: Iterable[str]) -> list[str]:
    """What is said of the keys ``given`` that nothing in this run reads: of another strategy, of no defense of it.

    >>> from prunella.core.config import Run
    >>> ignored(Run(strategy="snip"), ["dgp.top", "random-mask.scope", "snip.batch"])
    ['dgp.top is of the defense dgp, which is not in this run', 'random-mask.scope is of strategy=random']
    >>> ignored(Run(strategy="fedavg"), ["rate"])
    ['rate: strategy=fedavg prunes nothing']
    """
    from prunella.privacy import DEFENSES
    from prunella.strategies import STRATEGIES

    schemes = {scheme.section or name: name for name, scheme in STRATEGIES.items()}
    found = []
    for key in given:
        section, dot, _ = key.partition(".")
        if not dot:
            found += ["rate: strategy=fedavg prunes nothing"] if (key, run.strategy) == ("rate", "fedavg") else []
        elif section in schemes:
            found += [] if schemes[section] == run.strategy else [f"{key} is of strategy={schemes[section]}"]
        elif section in DEFENSES and section not in run.defense_names:
            found.append(f"{key} is of the defense {section}, which is not in this run")
    return found


def check(app: Mapping[str, Any], given: Mapping[str, Value], here: bool = False) -> str:
    """Apply Prunella's rules to ``given``; another app has none. Raises ``PrunellaError``. Returns what the user should
    know of a setting that nothing reads, or that was chosen for another dataset or model than the default, or "".
    ``here``: the run takes place on this machine.

    The registries import PyTorch, so they are consulted only for what the user changed.
    """
    if not is_prunella(app):
        return ""
    from prunella.core.config import check_sections, parse_run

    everything = {**defaults(app), **given}
    run, notes = parse_run({key: value for key, value in everything.items() if (key, value) != (RATE, AUTO)}), []
    if any("." in key for key in given):
        check_sections(given, sections())
    if any("." in key for key in given) or run.strategy == "fedavg":
        notes = ignored(run, given)
    if any(key in TOGETHER for key in given):
        check_names(everything)
        from prunella.server.preflight import check_together
        from prunella.tasks.recommended import choice, settled

        raw = settled(everything)
        check_together(parse_run({key: value for key, value in raw.items() if "." not in key}), raw, here)
        notes += [choice(everything)] if {"dataset", "model"} & given.keys() else []
    return "; ".join(filter(None, notes))
