"""The reference of the settings is the one that the code and ``pyproject.toml`` make, and leaves no setting out."""

import tomllib

import pytest

from prunella.attacks import SECTIONS as ATTACK_SECTIONS
from prunella.core.installation import ROOMS
from prunella.deploy.tools import settings_page
from prunella.deploy.tools.settings_page import PAGE, comments, declarer, groups, kind, meaning, page, shown

TEXT = """
[project]
name = "x"  # not a setting
[tool.flwr.app.config]
# the task
model = "cnn"  # what is trained
# the federation
rounds = 10
[tool.flwr.app.config.dgp]  # prunes
top = 0.05  # largest
[tool.other]
top = 1  # nor this
"""


def test_the_page_is_current() -> None:
    again = "python -m prunella.deploy.tools.settings_page"
    assert PAGE.read_text(encoding="utf-8") == page(), f"docs/settings.md is out of date: {again}"


def test_every_setting_is_on_the_page() -> None:
    config = tomllib.loads((ROOMS / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    keys = {key for key, value in config.items() if not isinstance(value, dict)}
    keys |= {f"{name}.{key}" for name, section in config.items() if isinstance(section, dict) for key in section}
    told = {line.split("`")[1]: line for line in PAGE.read_text().splitlines() if line.startswith("| `")}
    assert keys <= told.keys()
    assert not [line for line in told.values() if any(not cell.strip() for cell in line.split("|")[1:-1])]


def test_comments_are_read_in_the_settings_only() -> None:
    found = comments(TEXT)
    assert found == {("", "model"): "what is trained", ("dgp", ""): "prunes", ("dgp", "top"): "largest"}
    assert list(groups(TEXT)) == [("the task", ["model"]), ("the federation", ["rounds"])]


def test_a_field_means_what_it_means_where_it_was_declared() -> None:
    notes = {("dlg", "tv"): "smooth", ("ggl", "tv"): "another class's"}
    assert meaning(notes, "sgi", "tv", ATTACK_SECTIONS) == "smooth"
    assert meaning(notes, "rog", "tv", ATTACK_SECTIONS) == "another class's"
    assert declarer(ATTACK_SECTIONS["sgi"], "mask_aware").__name__ == "Inversion"
    with pytest.raises(KeyError, match="sgi.signed has no comment"):
        meaning(notes, "sgi", "signed", ATTACK_SECTIONS)


def test_types_and_defaults_in_words() -> None:
    assert kind({"type": "integer", "minimum": 1, "maximum": 10**9}) == "whole number, ≥ 1"
    assert kind({"type": "boolean"}) == "true, false" and shown(False) == "`false`" and shown("") == "empty"
    assert settings_page.table([["a", "b"]], ["x", "y"]) == "| x | y |\n| --- | --- |\n| a | b |\n"
