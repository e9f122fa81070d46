"""Lower bounds on ε: the paper's example, coverage where the truth is known, nothing out of nothing, edges."""

import math
from functools import cache

import dp_accounting as dp
import numpy as np
import pytest
from scipy import stats

from prunella.privacy.ledger.empirical import (
    _at_least,
    _at_most,
    _p_value,
    from_game,
    if_normal,
    one_run,
    right_guesses,
)

bound_of = cache(one_run)  # runs of one kind differ in whole numbers only, and often in none
RUNS = 400
# How many of RUNS bounds may lie above the truth: a right 95 % bound fails this once in 10,000 times at most.
ALLOWED = int(stats.binom.ppf(1 - 1e-4, RUNS, 0.05))


def flip(rng: np.random.Generator, bits: np.ndarray, epsilon: float) -> np.ndarray:
    """Randomised response."""
    return np.where(rng.random(bits.shape) < 1 / (1 + math.exp(-epsilon)), bits, ~bits)


# ---- one run


def test_the_example_of_the_paper() -> None:
    assert one_run(75, 100, 1000, 1e-4, 0.95) == pytest.approx(0.673, abs=5e-4)  # Steinke et al. 2023, Appendix D


@pytest.mark.parametrize(("correct", "guesses", "delta"), [(0, 5, 0.1), (5, 5, 0.1), (40, 50, 1e-3), (1, 1, 0.0)])
def test_the_p_value_is_the_sum_it_stands_for(correct: int, guesses: int, delta: float) -> None:
    q = 1 / (1 + math.exp(-0.7))
    mass = [math.comb(guesses, k) * q**k * (1 - q) ** (guesses - k) for k in range(guesses + 1)]
    nearly = max((sum(mass[correct - i : correct]) / i for i in range(1, correct + 1)), default=0.0)
    assert _p_value(0.7, correct, guesses, 60, delta) == pytest.approx(sum(mass[correct:]) + 120 * delta * nearly)


@pytest.mark.parametrize("delta", [0.0, 0.02])
def test_one_run_covers_randomised_response_that_tells_all_once_in_a_while(delta: float) -> None:
    rng, bounds = np.random.default_rng(0), []
    for _ in range(RUNS):
        coins = rng.random(200) < 0.5
        said = coins if rng.random() < delta else flip(rng, coins, 1.0)
        bounds.append(bound_of(int((said == coins).sum()), 200, 200, delta, 0.95))
    assert sum(bound > 1.0 for bound in bounds) <= ALLOWED
    assert delta or np.mean(bounds) > 0.6


def test_one_run_covers_independent_leaks_of_probability_delta() -> None:
    rng, bounds = np.random.default_rng(1), []
    for _ in range(RUNS):
        coins = rng.random(100) < 0.5
        said = np.where(rng.random(100) < 0.01, coins, flip(rng, coins, 1.0))
        bounds.append(bound_of(int((said == coins).sum()), 100, 100, 0.01, 0.95))
    assert sum(bound > 1.0 for bound in bounds) <= ALLOWED


def test_one_run_of_the_gaussian_mechanism_stays_below_its_epsilon() -> None:
    rng, bounds = np.random.default_rng(2), []
    for _ in range(RUNS):
        coins = rng.random(500) < 0.5
        right = right_guesses(coins + rng.normal(size=500), coins, 50)
        bounds.append(bound_of(right, 50, 500, 1e-5, 0.95))
    assert max(bounds) < dp.get_epsilon_gaussian(1.0, 1e-5) and np.mean(bounds) > 0.8


def test_the_number_of_right_guesses() -> None:
    coins = [True, False, True, False]
    assert right_guesses([4.0, 1.0, 3.0, 2.0], coins, 4) == 4
    assert right_guesses([1.0, 4.0, 2.0, 3.0], coins, 4) == 0
    assert right_guesses([4.0, 3.0, 2.0, 1.0], coins, 2) == 2


def test_one_run_at_its_edges() -> None:
    assert one_run(0, 10, 10, 0.0) == 0.0
    assert one_run(10, 20, 20, 0.0) == 0.0
    assert one_run(20, 20, 20, 0.99) == 0.0  # a delta of this size allows anything
    all_right = one_run(100, 100, 100, 0.0)
    assert all_right == pytest.approx(math.log(0.05**0.01 / (1 - 0.05**0.01)), abs=1e-6)
    assert one_run(100, 100, 100, 1e-3) < all_right
    assert one_run(100, 100, 100, 0.0, 0.999) < all_right


# ---- the game


def test_the_limits_of_a_probability_are_scipys() -> None:
    for count in (0, 1, 7, 19, 20):
        exact = stats.binomtest(count, 20).proportion_ci(0.9, "exact")  # 5 % on either side
        assert (float(_at_least(count, 20, 0.05)), float(_at_most(count, 20, 0.05))) == pytest.approx(tuple(exact))


@pytest.mark.parametrize("delta", [1e-5, 0.1])
def test_a_game_covers_the_gaussian_mechanism(delta: float) -> None:
    rng = np.random.default_rng(3)
    truth = dp.get_epsilon_gaussian(1.0, delta)
    bounds = [from_game(1 + rng.normal(size=1000), rng.normal(size=1000), delta) for _ in range(RUNS)]
    assert sum(bound > truth for bound in bounds) <= ALLOWED and np.mean(bounds) > truth / 4


@pytest.mark.parametrize("sign", [1, -1])
def test_a_game_covers_answers_of_yes_and_no(sign: int) -> None:
    """Ties only, and no slack: the best event is the one there is."""
    rng = np.random.default_rng(4)
    yes, no = np.ones(500, dtype=bool), np.zeros(500, dtype=bool)
    bounds = [from_game(sign * flip(rng, yes, 1.0), sign * flip(rng, no, 1.0), 0.0) for _ in range(RUNS)]
    assert sum(bound > 1.0 for bound in bounds) <= ALLOWED and np.mean(bounds) > 0.6


def test_the_trials_that_choose_the_event_prove_nothing() -> None:
    noise = np.tile([0.0, 1.0], 100)
    assert from_game(np.append(np.ones(200), noise), np.append(np.zeros(200), noise), 0.0) == 0.0


def test_an_event_that_only_an_absent_example_brings_about_counts() -> None:
    rare = np.tile([1.0, 0.0, 0.0, 0.0], 250)  # never below 0.5 with the example, three times of four without
    assert from_game(np.ones(1000), rare, 0.0) > 4
    assert from_game(rare, np.ones(1000), 0.0) > 4


def test_no_signal_is_no_epsilon() -> None:
    rng = np.random.default_rng(5)
    games = [from_game(rng.normal(size=200), rng.normal(size=200), 1e-5) for _ in range(RUNS)]
    runs = [bound_of(int(rng.binomial(100, 0.5)), 100, 200, 1e-5) for _ in range(RUNS)]
    normals = [if_normal(rng.normal(size=200), rng.normal(size=200), 1e-5) for _ in range(RUNS)]
    for bounds in (games, runs, normals):
        assert sum(bound > 0 for bound in bounds) <= ALLOWED


def test_a_game_at_its_edges() -> None:
    ones, zeros = np.ones(200), np.zeros(200)
    assert from_game(ones, ones, 0.0) == 0.0
    assert from_game(ones, zeros, 0.999) == 0.0
    limit = 0.025 ** (1 / 100)  # Clopper-Pearson for 100 of 100, half of 5 % wrong
    assert from_game(ones, zeros, 0.1) == pytest.approx(math.log((limit - 0.1) / (1 - limit)))
    assert from_game(ones * math.inf, -ones * math.inf, 0.0) == from_game(ones, zeros, 0.0)
    assert from_game(ones, np.nextafter(ones, 2), 0.0) == from_game(ones, zeros, 0.0)


# ---- the estimate for normal scores


def test_the_estimate_is_close_and_seldom_above_where_scores_are_normal() -> None:
    rng = np.random.default_rng(6)
    truth = dp.get_epsilon_gaussian(1.0, 1e-5)
    found = [if_normal(3 + 2 * rng.normal(size=2000), 1 + 2 * rng.normal(size=2000), 1e-5) for _ in range(RUNS)]
    assert sum(bound > truth for bound in found) <= ALLOWED and min(found) > 0.8 * truth


def test_the_estimate_at_its_edges() -> None:
    assert if_normal(np.zeros(9), np.zeros(9), 1e-5) == 0.0
    assert if_normal(np.ones(9), np.zeros(9), 1e-5) == math.inf
    assert if_normal(np.zeros(9), np.ones(9), 1e-5) == 0.0  # the score speaks for presence, or not at all


# ---- refusals


@pytest.mark.parametrize("bound", [from_game, if_normal])
def test_scores_that_are_none_are_refused(bound: object) -> None:
    good = [0.0] * 8
    for bad in ([math.nan] * 8, [0.0], [[0.0] * 8]):
        with pytest.raises(ValueError, match="scores"):
            bound(good, bad, 1e-5)  # type: ignore[operator]
    for delta, confidence in ((-0.1, 0.95), (1.0, 0.95), (0.1, 0.0), (0.1, 1.0), (math.nan, 0.95)):
        with pytest.raises(ValueError, match="delta"):
            bound(good, good, delta, confidence)  # type: ignore[operator]


def test_counts_that_cannot_be_are_refused() -> None:
    for correct, guesses, canaries in ((5, 4, 10), (1, 11, 10), (-1, 4, 10), (0, 0, 10)):
        with pytest.raises(ValueError, match="one_run"):
            one_run(correct, guesses, canaries, 1e-5)
    for guesses in (0, 3, 6):
        with pytest.raises(ValueError, match="right_guesses"):
            right_guesses([1.0, 2.0, 3.0, 4.0], [True] * 4, guesses)
    with pytest.raises(ValueError, match="right_guesses"):
        right_guesses([1.0, 2.0, 3.0, 4.0], [True] * 3, 2)
    with pytest.raises(ValueError, match="four trials"):
        from_game([1.0] * 3, [0.0] * 3, 0.0)
