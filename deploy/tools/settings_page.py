"""What is generated from the settings in the code: the defaults in ``pyproject.toml``, and ``docs/settings.md``.

Flower accepts only those settings of a run that stand in ``[tool.flwr.app.config]`` of the app's ``pyproject.toml``
(``flwr.common.config.fuse_dicts``), so they are written there. Key, default, type and direction are those of ``Run``
and of the dataclasses in the registries. The first paragraph of such a dataclass's docstring says what the algorithm
does, and a ``#:`` comment behind or above a field what the field means; a field that a subclass gives another default
keeps the meaning it has inherited. The README's count of algorithms is that of the registries.

After a change: ``python -m prunella.deploy.tools.settings_page``.
"""

import inspect
import json
import re
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from prunella.attacks import ATTACKS
from prunella.attacks import SECTIONS as ATTACK_SECTIONS
from prunella.core.config import AUTO, RATE, Run, kebab, section_defaults
from prunella.core.errors import ConfigError
from prunella.core.installation import ROOMS
from prunella.privacy import DEFENSES
from prunella.privacy import SECTIONS as PRIVACY_SECTIONS
from prunella.privacy.defense import Stronger, directions
from prunella.strategies import SECTIONS as STRATEGY_SECTIONS
from prunella.strategies import STRATEGIES
from prunella.strategies.round.robust import ROBUST
from prunella.strategies.round.robust import SECTIONS as ROBUST_SECTIONS
from prunella.tasks import DATASETS, MODELS

COMMAND = "python -m prunella.deploy.tools.settings_page"
CONFIG = "tool.flwr.app.config"
BEGIN = f"# Generated from the settings in the code, down to the end mark, by `{COMMAND}`.\n"
END = "# End of what is generated.\n"
_FIELD = re.compile(r"    (\w+): .*?(?:  #: (.+))?")
_COUNTS = re.compile(r"\d+ pruning strategies, \d+ defenses and \d+ attacks")

INTRODUCTION = f"""# Settings

Every setting of a run, with its default. `prunella run -c KEY=VALUE` overrides one (`-c rounds=20 -c dgp.top=0.1`), and
so do `simulate` and `submit`; a wrong key is answered with the nearest right one. Flower reads the defaults in
`pyproject.toml`, under `[tool.flwr.app.config]`.

*Stronger* says which way a site's own condition bounds a setting of a defense
([deployment.md](deployment.md#a-sites-own-conditions)): a run may have the site's value or one that is stronger; `=`
means that it must be equal.

This page and the defaults in `pyproject.toml` are generated: `{COMMAND}`.
"""
CHOICES: dict[str, Iterable[str]] = {
    "dataset": DATASETS,
    "model": MODELS,
    "robust": ["none", *ROBUST],
    "strategy": STRATEGIES,
    "defenses": DEFENSES,
    "attack": ATTACKS,
}
SIGNS = {Stronger.LARGER: "larger", Stronger.SMALLER: "smaller", Stronger.EQUAL: "="}
FAMILIES: dict[str, Mapping[str, type]] = {
    "Privacy and defenses": {"privacy": PRIVACY_SECTIONS["privacy"], **PRIVACY_SECTIONS},
    "Pruning strategies": {name: each for name, each in STRATEGY_SECTIONS.items() if name not in ROBUST_SECTIONS},
    "Robust aggregation": ROBUST_SECTIONS,
    "Attacks": ATTACK_SECTIONS,
}


def meanings(settings: type) -> dict[str, str]:
    """What the ``#:`` comments of a settings class say of its fields and of those that it inherits."""
    found: dict[str, str] = {}
    for cls in (cls for cls in reversed(settings.__mro__) if not cls.__module__.startswith(("builtins", "pydantic"))):
        above: list[str] = []
        for line in inspect.getsource(cls).splitlines():
            if line.startswith("    #: "):
                above.append(line.removeprefix("    #: "))
            elif field := _FIELD.fullmatch(line):
                if note := " ".join([*above, field[2] or ""]).strip():
                    found[kebab(field[1])] = note
                above = []
    return found


def meaning(settings: type, key: str) -> str:
    """What a setting means. Raises ``ConfigError`` where nothing is said."""
    if key not in (found := meanings(settings)):
        raise ConfigError(f"{settings.__name__}: write what {key} means behind the field or above it: `#: most rounds`")
    return found[key]


def about(name: str, settings: type) -> str:
    """What an algorithm is and does. Raises ``ConfigError`` where its settings have no docstring."""
    text = inspect.cleandoc(settings.__doc__ or "").split("\n\n")[0].replace("\n", " ")
    if not text or text.startswith(f"{settings.__name__}("):  # a dataclass's own
        raise ConfigError(f"{settings.__name__}: write in one sentence what {name} does, as the class's docstring")
    if entry := DEFENSES.get(name):
        return f"Defense of the {entry.stage}{', with an ε' if entry.private else ''}. {text}"
    kinds = [scheme for scheme, line in STRATEGIES.items() if line.section == name]
    return f"Strategy `{kinds[0]}`. {text}" if kinds else text


def groups() -> Iterator[tuple[str, list[str]]]:
    """The settings without a section, by the comments between them in ``Run``."""
    _, *parts = re.split(r"^    # (.+)$", inspect.getsource(Run), flags=re.MULTILINE)
    for title, body in zip(parts[::2], parts[1::2], strict=True):
        yield title, [kebab(field) for field in re.findall(r"^    (\w+): ", body, re.MULTILINE)]


def run_defaults() -> dict[str, Any]:
    """The settings without a section as a user finds them: before ``tasks.recommended`` has settled the rate."""
    return {**Run().model_dump(by_alias=True), RATE: AUTO}


def block() -> str:
    """``[tool.flwr.app.config]`` with every setting, its default and its meaning."""
    run, lines = run_defaults(), [f"[{CONFIG}]"]
    for title, keys in groups():
        lines += [f"# {title}", *(f"{key} = {json.dumps(run[key])}  # {meaning(Run, key)}" for key in keys)]
    for name, settings in (item for family in FAMILIES.values() for item in family.items()):
        lines += ["", f"[{CONFIG}.{name}]  # {about(name, settings)}"]
        for flat, value in section_defaults(name, settings).items():
            key = flat.removeprefix(f"{name}.")
            lines.append(f"{key} = {json.dumps(value)}  # {meaning(settings, key)}")
    return "\n".join(lines) + "\n"


def kind(schema: Mapping[str, Any]) -> str:
    """The type of a setting in words, from its JSON schema.

    >>> kind({"type": "number", "minimum": 0, "exclusiveMaximum": 1}), kind({"enum": ["rdp", "pld"], "type": "string"})
    ('number, ≥ 0, < 1', 'rdp, pld')
    """
    if "enum" in schema:
        return ", ".join(schema["enum"])
    words = {"number": "number", "integer": "whole number", "boolean": "true, false", "string": "text"}
    bounds = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    limits = [f"{sign} {schema[name]:g}" for name, sign in bounds.items() if name in schema and schema[name] < 10**9]
    return ", ".join([words[schema["type"]], *limits])


def shown(value: object) -> str:
    """A default as one types it.

    >>> shown(True), shown(""), shown(1e-5)
    ('`true`', 'empty', '`1e-05`')
    """
    return f"`{str(value).lower() if isinstance(value, bool) else value}`" if value != "" else "empty"


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def table(rows: Iterable[Iterable[str]], head: Iterable[str]) -> str:
    """A Markdown table."""
    lines = [list(head), ["---" for _ in head], *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def section(name: str, settings: type) -> str:
    """An algorithm's settings."""
    schema = TypeAdapter(settings).json_schema()["properties"]
    ways = {kebab(key): SIGNS[way] for key, way in directions(settings).items()}
    rows = []
    for flat, value in section_defaults(name, settings).items():
        key = flat.removeprefix(f"{name}.")
        row = [f"`{flat}`", shown(value), kind(schema[key.replace("-", "_")]), meaning(settings, key)]
        rows.append([*row, ways[key]] if ways else row)
    head = ["setting", "default", "type", "meaning", *(["stronger"] if ways else [])]
    return f"### {name}\n\n{about(name, settings)}\n\n{table(rows, head)}\n"


def page() -> str:
    """The whole page."""
    defaults = run_defaults()
    run = Run.model_json_schema(by_alias=True)["properties"]
    parts = [INTRODUCTION, "\n## The run\n\n"]
    for title, keys in groups():
        kinds = {key: kind(run[key]) + (", or auto" if key == RATE else "") for key in keys}
        rows = [[f"`{key}`", shown(defaults[key]), kinds[key], meaning(Run, key)] for key in keys]
        parts.append(f"### {sentence(title)}\n\n{table(rows, ['setting', 'default', 'type', 'meaning'])}\n")
    parts.append("### The lists\n\n")
    parts.append(table([[f"`{key}`", ", ".join(names)] for key, names in CHOICES.items()], ["setting", "entries"]))
    for title, sections in FAMILIES.items():
        parts.append(f"\n## {title}\n\n")
        parts.extend(section(name, settings) for name, settings in sections.items())
    return "".join(parts).rstrip() + "\n"


def generated() -> dict[Path, str]:
    """The texts of the files that are generated, or have a part that is."""
    project, readme = ((ROOMS / name).read_text(encoding="utf-8") for name in ("pyproject.toml", "README.md"))
    before, rest = project.split(BEGIN)
    counts = f"{len(STRATEGIES) - 1} pruning strategies, {len(DEFENSES) - 1} defenses and {len(ATTACKS)} attacks"
    return {
        ROOMS / "pyproject.toml": f"{before}{BEGIN}{block()}{END}{rest.split(END)[1]}",
        ROOMS / "docs" / "settings.md": page(),
        ROOMS / "README.md": _COUNTS.sub(counts, readme),
    }


if __name__ == "__main__":
    ArgumentParser(description=__doc__).parse_args()
    for path, text in generated().items():
        path.write_text(text, encoding="utf-8")
