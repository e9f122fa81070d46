"""The shortlist, the noise that an ε needs, and the neighbours of a proposal."""

import pytest

from prunella.benchmarks.advise.proposals import (
    CHAINS,
    EPSILONS,
    RATES,
    Proposal,
    Question,
    neighbours,
    noise_for,
    settings_of,
    shortlist,
)
from prunella.benchmarks.engine.inprocess import settings
from prunella.core.errors import ConfigError
from prunella.privacy.accounting import Charge, epsilon
from prunella.privacy.chain import build_chain


def question(examples: int = 300, private_rate: float = 0.1, **given: object) -> Question:
    asked = {key.replace("__", ".").replace("_", "-"): value for key, value in given.items()}
    return Question(asked, {**settings(), **asked}, 4, 10, examples, 64, 0.25, private_rate)  # type: ignore[arg-type]


@pytest.mark.parametrize("target", EPSILONS)
def test_the_noise_spends_the_epsilon_and_a_little_less_of_it_spends_more(target: float) -> None:
    noise, sampling = noise_for(target, question(rounds=20, strategy="fedavg")), 16 / 300
    spent = epsilon([Charge("", noise, sampling, 160)], 1e-5, "rdp")
    more = epsilon([Charge("", noise * 0.98, sampling, 160)], 1e-5, "rdp")
    assert 0.9 * target < spent <= target < more


def test_the_steps_for_the_first_mask_are_in_the_noise() -> None:
    """PruneFL's first client is charged 20 steps beside those of its rounds; a dense run has none."""
    pruned, dense = (noise_for(4.0, question(rounds=6, strategy=name)) for name in ("prunefl", "fedavg"))
    rounds = 6 * 8
    at = lambda noise, steps: epsilon([Charge("", noise, 16 / 300, steps)], 1e-5, "rdp")  # noqa: E731
    assert 3.6 < at(pruned, rounds + 20) <= 4.0 < at(dense, rounds + 20)
    assert 3.6 < at(dense, rounds) <= 4.0


def test_a_longer_run_and_a_smaller_site_need_more_noise() -> None:
    assert noise_for(4.0, question(rounds=100)) > noise_for(4.0, question(rounds=10))
    assert noise_for(4.0, question(examples=50)) > noise_for(4.0, question(examples=500))


def test_an_epsilon_that_no_noise_reaches_is_refused() -> None:
    with pytest.raises(ConfigError, match="no noise brings"):
        noise_for(0.05, question(examples=16, rounds=10**8))


def test_every_chain_of_the_shortlist_can_be_built_in_its_order() -> None:
    assert [build_chain(chain.split(","), {}).names for chain, _ in CHAINS]
    listed = [one.epsilon for one in shortlist(question(), 0.3)]
    assert listed[:4] == [None, 16.0, 4.0, 1.0], "a budget that ends early knows what an ε costs"
    assert len(set(shortlist(question(), 0.3))) == len(CHAINS)


def test_what_the_user_typed_stays() -> None:
    own = question(defenses="dgp", rate=0.5, channel_natural__kappa=7.0)
    assert own.rates == (0.5,) and [one.chain for one in shortlist(own, 0.5)] == ["none", "dgp"]
    assert question().rates == RATES and question(strategy="fedavg").rates == (0.0,)
    assert not neighbours(Proposal("channel-natural", 0.5), own)
    assert len(neighbours(Proposal("channel-natural", 0.3), question())) == 3  # the other rate, two strengths


def test_neighbours_are_one_step_away() -> None:
    near = neighbours(Proposal("dp-sgd", 0.3, 4.0), question())
    assert {(one.rate, one.epsilon) for one in near} == {(0.7, 4.0), (0.3, 2.0), (0.3, 8.0)}


def test_noise_has_a_learning_rate_of_its_own() -> None:
    assert settings_of(Proposal("dp-sgd,dgp", 0.3, 4.0), question())["learning-rate"] == 0.1
    assert settings_of(Proposal("dgp", 0.3), question())["learning-rate"] == 0.25
    assert "rate" not in settings_of(Proposal("none", 0.0), question(strategy="fedavg"))
