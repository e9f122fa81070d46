"""No game proves more than the ledger says, every game against a broken build does, and without an example none does.

A game's bound on a sound build has confidence 1 - 1e-5, so that all of them together are above the ledger once in a
thousand fresh seeds at most; one run's has 99.9 %, and is never that close. Broken builds are caught at 95 %. The seeds
are fixed. The slow tests have the trials to see a clip that is twice too long.
"""

import functools
from pathlib import Path

import numpy as np
import pytest

from prunella.benchmarks.papers import epsilon_games as bench
from prunella.benchmarks.papers.epsilon_games import (
    BUILDS,
    COARSE,
    DELTA,
    PRIVATE,
    Build,
    Setting,
    canary_scores,
    guess,
    play,
)
from prunella.benchmarks.reproduce import reproduce
from prunella.privacy.ledger.empirical import from_game, if_normal

SURE = 1 - 1e-5
ONE, SAMPLED = Setting(4.0, 1, 1), Setting(3.0, 2, 2)  # ε 0.9 and 1.1 at 1e-5
TRIALS = 120  # see a build without noise in either setting
SETTINGS = pytest.mark.parametrize("setting", [ONE, SAMPLED], ids=["one step", "sampled steps"])
claimed = functools.cache(bench.claimed)  # a privacy loss distribution takes half a second


def test_every_defense_with_an_epsilon_is_played() -> None:
    assert set(PRIVATE) == {"dp-sgd", "dp-psac", "dp-fed", "fed-ltp-client", "fed-spa"}


@SETTINGS
@pytest.mark.parametrize("name", PRIVATE)
def test_the_ledger_holds_and_a_build_without_noise_breaks_it(name: str, setting: Setting) -> None:
    sound, broken = (play(name, setting, build, TRIALS, 0) for build in (Build(), BUILDS["no noise"]))
    for delta in (DELTA, COARSE):
        assert from_game(*sound, delta, SURE) <= claimed(setting, delta, "pld") <= claimed(setting, delta, "rdp")
        assert from_game(*broken, delta) > 1 + claimed(setting, delta, "rdp")
    assert guess(name, setting, Build(), 200, 0, 0.999)["epsilon"] <= claimed(setting, DELTA, "pld")


@pytest.mark.parametrize(
    ("name", "label"),
    [(name, label) for name in ("dp-sgd", "fed-spa") for label in ("not clipped", "noise reused")]
    + [("dp-sgd", "no sampling")],  # all have one sampler
)
def test_other_broken_builds_break_the_ledger(name: str, label: str) -> None:
    setting, trials = (Setting(0.3, 32, 1), 200) if label == "no sampling" else (ONE, TRIALS)
    scores = play(name, setting, BUILDS[label], trials, 0)
    ledger = claimed(setting, COARSE, "pld")
    assert from_game(*scores, COARSE, SURE) > 0.5 + ledger
    assert from_game(*play(name, setting, Build(), trials, 0), COARSE, SURE) <= ledger


@SETTINGS
@pytest.mark.parametrize("name", ["dp-sgd", "fed-spa"])
def test_no_example_no_epsilon(name: str, setting: Setting) -> None:
    scores = play(name, setting, BUILDS["no example"], 100, 0)
    assert from_game(*scores, DELTA, SURE) == if_normal(*scores, DELTA, SURE) == 0
    assert guess(name, setting, BUILDS["no example"], 200, 0, 0.999)["epsilon"] == 0


def test_one_run_without_noise_breaks_the_ledger() -> None:
    for name in PRIVATE:
        found = guess(name, ONE, BUILDS["no noise"], 200, 0)
        assert found["right"] == found["guesses"] and found["epsilon"] > 1 + claimed(ONE, DELTA, "rdp")


@pytest.mark.parametrize("name", PRIVATE)
def test_scores_are_as_far_apart_as_the_theory_says(name: str) -> None:
    """Both attackers are as strong as one can be: a distance of sqrt(T) / sigma deviations, and not less."""
    setting = Setting(0.5, 1, 2)
    inside, outside = play(name, setting, Build(), 300, 0)
    scores, coins = canary_scores(name, setting, Build(), 600, 0)
    seen = scores != 0  # fed-spa sends nothing of some canaries
    for one, other in ((inside, outside), (scores[coins & seen], scores[~coins & seen])):
        distance = (one.mean() - other.mean()) / np.sqrt((one.var() + other.var()) / 2)
        assert distance == pytest.approx(np.sqrt(2) / 0.5, rel=0.15)


# The margins below are those that bounds of truly normal scores kept in 200 simulations of each size.


@pytest.mark.slow
@pytest.mark.parametrize("name", PRIVATE)
def test_a_long_game_comes_close_to_the_ledger_and_sees_a_clip_that_is_twice_too_long(name: str) -> None:
    setting = Setting(1.0, 1, 1)
    fine, coarse = (claimed(setting, delta, "pld") for delta in (DELTA, COARSE))
    scores = play(name, setting, Build(), 4000, 1)
    assert 0.3 * coarse < from_game(*scores, COARSE, SURE) <= coarse
    assert 0.8 * fine < if_normal(*scores, DELTA, SURE) <= fine
    assert from_game(*scores, DELTA, SURE) <= fine
    broken = play(name, setting, BUILDS["clip twice as long"], 3000, 1)
    assert from_game(*broken, COARSE) > 1.5 * coarse and if_normal(*broken, DELTA) > 1.5 * fine
    found = guess(name, setting, Build(), 2000, 1)
    assert 0.5 < found["epsilon"] <= fine


@pytest.mark.slow
@pytest.mark.parametrize("name", PRIVATE)
def test_a_long_game_over_sampled_steps_stays_below_the_ledger(name: str) -> None:
    setting = bench.SETTINGS[1]
    scores = play(name, setting, Build(), 1000, 1)
    for delta in (DELTA, COARSE):
        assert from_game(*scores, delta, SURE) <= claimed(setting, delta, "pld")


@pytest.mark.slow
def test_a_game_without_an_example_seldom_finds_an_epsilon() -> None:
    bounds = [from_game(*play("dp-sgd", ONE, BUILDS["no example"], 100, seed), DELTA) for seed in range(100)]
    assert sum(bound > 0 for bound in bounds) <= 13  # of 100 at 95 %: 5 on the average at most, 13 once in 2000


def test_every_build_is_a_row_of_the_table(tmp_path: Path) -> None:
    claim = bench.table(("dp-sgd",), trials=20, canaries=20)
    points = reproduce(claim, "small", tmp_path, None, lambda line: None).points
    sampled = {point.label[-1] for point in points if point.label[2] == "4"}
    assert sampled == set(BUILDS) and {p.label[-1] for p in points if p.label[2] == "1"} == sampled - {"no sampling"}
    noiseless = next(point for point in points if point.label[-1] == "no noise")
    assert noiseless.values["right"] == noiseless.values["guesses"] and "one_run_if_normal" in noiseless.values
