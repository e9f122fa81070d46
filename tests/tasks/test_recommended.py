import pytest

from prunella.core.errors import ConfigError
from prunella.tasks import DATASETS
from prunella.tasks.recommended import choice, settled


def test_the_main_job_trains_as_it_always_did() -> None:
    for raw in ({}, {"dataset": "digits", "learning-rate": "auto"}):
        assert settled(raw)["learning-rate"] == 0.25


@pytest.mark.parametrize("name", DATASETS)
def test_every_dataset_names_a_rate_that_a_run_takes_wherever_the_data_lies(name: str) -> None:
    here, there = (settled({"dataset": f"{name}{place}", "learning-rate": "auto"}) for place in ("", ":/a/b"))
    assert 0 < here["learning-rate"] == there["learning-rate"] <= 0.25


def test_larger_pictures_take_smaller_steps() -> None:
    rate = [settled({"dataset": f"imagefolder{size}"})["learning-rate"] for size in ("@3x16x16", "", "@3x64x64")]
    assert rate[0] == rate[1] == 4 * rate[2]


@pytest.mark.parametrize("given", [0.25, 1, "0.25"])
def test_a_number_that_somebody_chose_stays_and_nothing_is_said_of_it(given: float | str) -> None:
    raw = {"dataset": "mnist", "learning-rate": given}
    assert settled(raw) == {"dataset": "mnist", "learning-rate": float(given)} and choice(raw) == ""


def test_settling_twice_changes_nothing() -> None:
    once = settled({"dataset": "mnist", "learning-rate": "auto"})
    assert settled(once) == once


def test_a_word_is_no_rate_and_an_unknown_dataset_recommends_none() -> None:
    with pytest.raises(ConfigError, match="'fast' is neither a number nor auto"):
        settled({"learning-rate": "fast"})
    with pytest.raises(ConfigError, match="did you mean 'mnist'"):
        settled({"dataset": "mnits", "learning-rate": "auto"})


def test_what_was_chosen_names_the_dataset_and_not_its_place() -> None:
    said = choice({"dataset": "mnist:/secret/place", "learning-rate": "auto"})
    assert said == "learning-rate 0.05, recommended for mnist; -c learning-rate=... overrides it"
