"""``docs/settings.md``, the reference of every setting, from where each fact has its one place.

Key, default and meaning are those of ``[tool.flwr.app.config]`` in ``pyproject.toml``, the meaning being the comment
on the setting's line; types come from the dataclasses the settings are parsed into, choices from the registries. A key
without a comment means what it means in the section where the field was first declared: ``sgi.tv`` is ``dlg.tv``.

After a change: ``python -m prunella.deploy.tools.settings_page``.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import TypeAdapter

from prunella.attacks import ATTACKS
from prunella.attacks import SECTIONS as ATTACK_SECTIONS
from prunella.core.config import RATE, Run
from prunella.core.installation import ROOMS
from prunella.privacy import DEFENSES
from prunella.privacy import SECTIONS as PRIVACY_SECTIONS
from prunella.privacy.defense import Stronger, directions
from prunella.strategies import SECTIONS as STRATEGY_SECTIONS
from prunella.strategies import STRATEGIES
from prunella.strategies.round.robust import ROBUST
from prunella.strategies.round.robust import SECTIONS as ROBUST_SECTIONS
from prunella.tasks import DATASETS, MODELS

PAGE = ROOMS / "docs" / "settings.md"
CONFIG = "tool.flwr.app.config"
_LINE = re.compile(r'([\w-]+) = (?:"[^"]*"|[^#\s]+)\s*(?:#\s*(.+))?')
_HEAD = re.compile(r"\[([\w.-]+)\]\s*(?:#\s*(.+))?")
Comments = dict[tuple[str, str], str]  # (section, key); a section's own comment has the key ""

INTRODUCTION = """# Settings

Every setting of a run, with its default. `prunella run -c KEY=VALUE` overrides one (`-c rounds=20 -c dgp.top=0.1`), and
so do `simulate` and `submit`; a wrong key is answered with the nearest right one. The defaults stand in
`pyproject.toml`, under `[tool.flwr.app.config]`.

*Stronger* says which way a site's own condition bounds a setting of a defense
([deployment.md](deployment.md#a-sites-own-conditions)): a run may have the site's value or one that is stronger; `=`
means that it must be equal.

This page is generated: `python -m prunella.deploy.tools.settings_page`.
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


def comments(text: str) -> Comments:
    """What the comments of the settings in a ``pyproject.toml`` say, and of the groups of those without a section."""
    found: Comments = {}
    section: str | None = None
    for line in text.splitlines():
        if head := _HEAD.fullmatch(line):
            name, note = head[1], head[2] or ""
            section = name.removeprefix(CONFIG).removeprefix(".") if name.startswith(CONFIG) else None
            if section:
                found[section, ""] = note
        elif section is not None and (entry := _LINE.fullmatch(line)) and entry[2]:
            found[section, entry[1]] = entry[2]
    return found


def groups(text: str) -> Iterator[tuple[str, list[str]]]:
    """The settings without a section, by the comment lines between them."""
    body = text.split(f"[{CONFIG}]\n")[1].split("\n[")[0]
    for group in re.split(r"^# ", body, flags=re.MULTILINE)[1:]:
        title, *lines = group.splitlines()
        yield title, [entry[1] for line in lines if (entry := _LINE.fullmatch(line))]


def declarer(settings: type, field: str) -> type:
    """The class that declared a dataclass's field first."""
    return next(cls for cls in reversed(settings.__mro__) if field in cls.__dict__.get("__annotations__", ()))


def meaning(notes: Comments, section: str, key: str, sections: Mapping[str, type]) -> str:
    """The comment on ``section.key``, or on the same field elsewhere. Raises ``KeyError`` where nothing is said."""
    if (section, key) in notes:
        return notes[section, key]
    field = key.replace("-", "_")
    first = declarer(sections[section], field)
    for other, settings in sections.items():
        if (other, key) in notes and issubclass(settings, first) and declarer(settings, field) is first:
            return notes[other, key]
    raise KeyError(f"{section}.{key} has no comment in pyproject.toml")


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


def section(name: str, notes: Comments, values: Mapping[str, object], sections: Mapping[str, type]) -> str:
    """An algorithm's settings."""
    settings = sections[name]
    schema = TypeAdapter(settings).json_schema()["properties"]
    ways = {key.replace("_", "-"): SIGNS[way] for key, way in directions(settings).items()}
    rows = []
    for key, value in values.items():
        what = meaning(notes, name, key, sections)
        row = [f"`{name}.{key}`", shown(value), kind(schema[key.replace("-", "_")]), what]
        rows.append([*row, ways[key]] if ways else row)
    head = ["setting", "default", "type", "meaning", *(["stronger"] if ways else [])]
    return f"### {name}\n\n{sentence(notes[name, ''])}.\n\n{table(rows, head)}\n"


def page() -> str:
    """The whole page."""
    text = (ROOMS / "pyproject.toml").read_text(encoding="utf-8")
    config: dict[str, Any] = tomllib.loads(text)["tool"]["flwr"]["app"]["config"]
    notes = comments(text)
    run = Run.model_json_schema(by_alias=True)["properties"]
    parts = [INTRODUCTION, "\n## The run\n\n"]
    for title, keys in groups(text):
        kinds = {key: kind(run[key]) + (", or auto" if key == RATE else "") for key in keys}
        rows = [[f"`{key}`", shown(config[key]), kinds[key], notes["", key]] for key in keys]
        parts.append(f"### {sentence(title)}\n\n{table(rows, ['setting', 'default', 'type', 'meaning'])}\n")
    parts.append("### The lists\n\n")
    parts.append(table([[f"`{key}`", ", ".join(names)] for key, names in CHOICES.items()], ["setting", "entries"]))
    pruning = {name: settings for name, settings in STRATEGY_SECTIONS.items() if name not in ROBUST_SECTIONS}
    families = {
        "Privacy and defenses": {"privacy": PRIVACY_SECTIONS["privacy"], **PRIVACY_SECTIONS},
        "Pruning strategies": pruning,
        "Robust aggregation": ROBUST_SECTIONS,
        "Attacks": ATTACK_SECTIONS,
    }
    for title, sections in families.items():
        parts.append(f"\n## {title}\n\n")
        parts.extend(section(name, notes, config[name], sections) for name in sections)
    return "".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
