"""What is typed on the command line is refused or understood, never half of it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prunella.core.errors import ConfigError
from prunella.core.installation import IMPORT_ROOT as ROOT
from prunella.deploy.runtime import settings
from prunella.deploy.runtime.settings import (
    anchored,
    app_directory,
    check,
    defaults,
    flatten,
    is_prunella,
    packages_of,
    parse,
    read_app,
    typed,
)

KNOWN = {"rounds": 10, "rate": 0.3, "resume": False, "strategy": "prunefl", "dgp.top": 0.05, "fast": True}
KNOWN |= {"learning-rate": "auto"}


@given(st.one_of(st.integers(), st.floats(allow_nan=False), st.booleans(), st.text()))
def test_a_value_printed_and_typed_again_is_the_same(value: int | float | bool | str) -> None:
    again = typed("key", str(value), value)
    assert again == value and type(again) is type(value)


@pytest.mark.parametrize(
    "item, told",
    [
        ("rounds=many", "rounds: 'many' is not a whole number"),
        ("rounds=3.5", "not a whole number"),
        ("learning-rate=high", "learning-rate: 'high' is not a number"),
        ("rate=high", "rate: 'high' is not a number"),
        ("fast=perhaps", "neither true nor false"),
        ("rounds", "write key=value"),
        ("=3", "write key=value"),
        ("round=3", "did you mean 'rounds'"),
        ("dgp.tip=3", "did you mean 'dgp.top'"),
        ("run-dir=/x", "set by the launcher"),
        ("resume=true", "--resume"),
    ],
)
def test_one_line_names_the_mend(item: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        parse([item], KNOWN)


def test_types_follow_the_defaults_and_the_last_wins() -> None:
    given_ = ["rounds=3", "rate = 1", "fast=off", "strategy=a=b", "dgp.top=0.5", "rounds=4"]
    assert parse(given_, KNOWN) == {"rounds": 4, "rate": 1.0, "fast": False, "strategy": "a=b", "dgp.top": 0.5}
    assert parse([], KNOWN) == {}


def test_tables_flatten_as_flower_flattens_them() -> None:
    from flwr.common.config import flatten_dict

    nested = {"a": 1, "b": {"c": 2.0, "d": {"e": "x"}}}
    assert flatten(nested) == flatten_dict(nested)


def test_an_app_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no pyproject.toml.*--app"):
        read_app(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool")
    with pytest.raises(ConfigError, match="not valid TOML"):
        read_app(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[project]\nname='x'\n")
    with pytest.raises(ConfigError, match="no Flower app"):
        read_app(tmp_path)


def test_prunellas_own_app_is_found_and_its_defaults_pass() -> None:
    assert app_directory() == ROOT
    app = read_app(ROOT)
    assert is_prunella(app)
    check(app, defaults(app))


def test_an_installed_app_is_found_by_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "env" / "share" / "prunella" / "pyproject.toml"
    installed.parent.mkdir(parents=True)
    installed.write_text("")

    class File(type(Path())):
        def locate(self) -> Path:
            return tmp_path / "env" / self

    monkeypatch.setattr(settings, "ROOMS", tmp_path / "site-packages" / "prunella")
    monkeypatch.setattr(settings.metadata, "files", lambda name: [File("share/prunella/pyproject.toml")])
    assert app_directory() == installed.parent
    assert packages_of(installed.parent) == tmp_path / "site-packages" / "prunella"
    assert packages_of(tmp_path) == tmp_path
    monkeypatch.setattr(settings.metadata, "files", lambda name: None)
    with pytest.raises(ConfigError, match="--app"):
        app_directory()


@pytest.mark.parametrize(
    "given_, told",
    [
        ({"rate": 1.5}, "rate"),
        ({"strategy": "prunfl"}, "unknown strategy 'prunfl': did you mean 'prunefl'"),
        ({"defenses": "dgp,pripune"}, "unknown defense 'pripune'"),
        ({"defenses": "dgp,mine"}, "package.module:NAME"),
        ({"attack": "magic"}, "unknown attack"),
        ({"model": "cn"}, "unknown model"),
        ({"audit-cluster": "gpu"}, "ray://HOST:PORT"),
        ({"dgp.top": 7.0}, "dgp.top"),
    ],
)
def test_the_rooms_rules_apply_to_prunella(given_: dict, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        check(read_app(ROOT), given_)


def test_somebodys_own_model_data_and_app_are_theirs(smallest_app: Path) -> None:
    check(read_app(ROOT), {"model": "theirs.models:build", "dataset": "imagefolder:/data"})
    check(read_app(ROOT), {"defenses": "dgp,theirs:KEEP", "attack": "theirs.attacks:SMOOTH"})
    check(read_app(smallest_app), {"rate": 99})


def test_the_learning_rate_is_a_number_or_auto() -> None:
    assert parse(["learning-rate=0.1"], KNOWN) == {"learning-rate": 0.1}
    assert parse(["learning-rate=auto"], KNOWN) == {"learning-rate": "auto"}


def test_settings_that_nothing_in_the_run_reads_are_told() -> None:
    """A defense and a strategy may have one name: `random.rate` is the defense's."""
    ours = read_app(ROOT)
    assert check(ours, {"strategy": "random", "random.rate": 0.5}).startswith("random.rate is of the defense random")
    assert check(ours, {"random-mask.scope": "layer"}) == "random-mask.scope is of strategy=random"
    assert "strategy=fedavg prunes nothing" in check(ours, {"strategy": "fedavg", "rate": 0.5})
    for used in ({"strategy": "random", "random-mask.scope": "layer"}, {"defenses": "random", "random.rate": 0.5}):
        assert check(ours, used) == ""
    assert check(ours, {"sgi.iterations": 5, "privacy.delta": 1e-6, "rate": 0.5}) == ""


def test_a_rate_that_was_chosen_for_another_dataset_or_model_is_told() -> None:
    ours = read_app(ROOT)
    assert check(ours, {"dataset": "mnist:/a"}).startswith("learning-rate 0.05, recommended for mnist")
    assert check(ours, {"model": "conv-1"}).startswith("learning-rate 0.25, recommended for digits")
    for other in ({}, {"strategy": "snip"}, {"dataset": "mnist", "learning-rate": 0.3}):
        assert check(ours, other) == ""
    with pytest.raises(ConfigError, match="learning-rate"):
        check(ours, {"learning-rate": -1.0})


def test_a_relative_folder_is_named_from_the_root_and_nothing_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "ggl.safetensors").touch()
    monkeypatch.chdir(tmp_path)
    given = {"dataset": "imagefolder@1x8x8:photos", "ggl.prior": "ggl.safetensors", "model": "photos", "rounds": 3}
    found = anchored(given)
    assert found["dataset"] == f"imagefolder@1x8x8:{tmp_path / 'photos'}" and found["model"] == "photos"
    assert found["ggl.prior"] == str(tmp_path / "ggl.safetensors") and found["rounds"] == 3
    monkeypatch.chdir("/")
    assert anchored(found) == found and anchored(given) == given, "what is not here may lie elsewhere"
    assert anchored({"dataset": "digits", "ggl.prior": ""}) == {"dataset": "digits", "ggl.prior": ""}


def test_a_defense_or_an_attack_of_one_s_own_without_its_colon_is_told_how_it_is_written() -> None:
    for key in ("defenses", "attack"):
        with pytest.raises(ConfigError, match=r"unknown \w+ 'own.SIGNS': your own is written package.module:NAME"):
            settings.check_names({**settings.defaults(settings.read_app(settings.app_directory())), key: "own.SIGNS"})
