"""What is generated from the settings is what the code makes today, and leaves no setting out."""

import dataclasses
import tomllib

import pytest

from prunella.attacks import SECTIONS as ATTACK_SECTIONS
from prunella.core.config import Run, kebab, section_defaults
from prunella.core.errors import ConfigError
from prunella.deploy.tools import settings_page
from prunella.deploy.tools.settings_page import COMMAND, about, block, generated, groups, kind, meaning, page, shown
from prunella.privacy.dgp import DualPruning
from prunella.server.app import SECTIONS


@dataclasses.dataclass(frozen=True)
class Base:
    """Does one thing,
    and does it well.

    The paper has more.
    """

    #: most
    #: things
    things: int = 3  #: at a time
    silent: bool = False  # not what it means


class Changed(Base):
    things: int = 4
    own: float = 0.5  #: its own


@dataclasses.dataclass(frozen=True)
class Bare:
    things: int = 3


def test_what_is_generated_is_current() -> None:
    stale = [path.name for path, text in generated().items() if path.read_text(encoding="utf-8") != text]
    assert not stale, f"out of date; run: {COMMAND}"


def test_flower_is_given_every_setting_with_its_default() -> None:
    config = tomllib.loads(block())["tool"]["flwr"]["app"]["config"]
    flat = {f"{name}.{key}": value for name in SECTIONS for key, value in config.pop(name).items()}
    assert config == {**Run().model_dump(by_alias=True), "learning-rate": "auto"}
    wanted = [item for name, settings in SECTIONS.items() for item in section_defaults(name, settings).items()]
    assert sorted(map(repr, flat.items())) == sorted(map(repr, wanted))


def test_every_setting_is_on_the_page() -> None:
    lines = page().splitlines()
    told = {line.split("`")[1]: line for line in lines if line.startswith("| `")}
    keys = {kebab(name) for name in Run.model_fields}
    assert keys | {key for name in SECTIONS for key in section_defaults(name, SECTIONS[name])} <= told.keys()
    assert not [line for line in told.values() if any(not cell.strip() for cell in line.split("|")[1:-1])]
    assert [key for _, keys in groups() for key in keys] == [kebab(name) for name in Run.model_fields]


def test_a_field_means_what_it_means_where_it_was_declared() -> None:
    assert meaning(Base, "things") == meaning(Changed, "things") == "most things at a time"
    assert meaning(Changed, "own") == "its own"
    assert meaning(ATTACK_SECTIONS["sgi"], "tv") == meaning(ATTACK_SECTIONS["dlg"], "tv")
    assert meaning(ATTACK_SECTIONS["gradinversion"], "restarts") != meaning(ATTACK_SECTIONS["sgi"], "restarts")
    with pytest.raises(ConfigError, match="Base: write what silent means"):
        meaning(Base, "silent")


def test_an_algorithm_is_told_by_the_docstring_of_its_settings() -> None:
    assert about("base", Base) == "Does one thing, and does it well."
    assert about("dgp", DualPruning).startswith("Defense of the update. Dual Gradient")
    with pytest.raises(ConfigError, match="Bare: write in one sentence what bare does"):
        about("bare", Bare)


def test_types_and_defaults_in_words() -> None:
    assert kind({"type": "integer", "minimum": 1, "maximum": 10**9}) == "whole number, ≥ 1"
    assert kind({"type": "boolean"}) == "true, false" and shown(False) == "`false`" and shown("") == "empty"
    assert settings_page.table([["a", "b"]], ["x", "y"]) == "| x | y |\n| --- | --- |\n| a | b |\n"
