"""Epsilon against Opacus and closed forms on a grid, monotone in everything, composed with Laplace."""

import math
from collections import Counter

import dp_accounting as dp
import pytest
from opacus.accountants import PRVAccountant, RDPAccountant
from scipy.optimize import brentq
from scipy.stats import norm

from prunella.core.errors import ConfigError, DefenseError
from prunella.privacy.accounting import EVENTS, Charge, Privacy, _by_losses, _events, _few, epsilon

GRID = [(1.4, 15 / 955, 3000), (1.0, 0.1, 50), (0.8, 64 / 1500, 200), (4.0, 0.5, 20)]


def charge(noise: float, sampling: float, steps: int, laplace: float = 0.0) -> Charge:
    return Charge("r", noise, sampling, steps, laplace)


def exact_gaussian(noise: float, delta: float) -> float:
    """The analytic Gaussian mechanism (Balle and Wang 2018)."""

    def excess(e: float) -> float:
        return norm.cdf(0.5 / noise - e * noise) - math.exp(e) * norm.cdf(-0.5 / noise - e * noise) - delta

    return float(brentq(excess, 0, 100))


@pytest.mark.parametrize("noise, sampling, steps", GRID)
def test_rdp_agrees_with_opacus(noise: float, sampling: float, steps: int) -> None:
    theirs = RDPAccountant()
    theirs.history = [(noise, sampling, steps)]
    ours = epsilon([charge(noise, sampling, steps)], 1e-5, "rdp")
    assert ours == pytest.approx(theirs.get_epsilon(1e-5), rel=0.05)


@pytest.mark.parametrize("noise, sampling, steps", GRID)
def test_accountants_are_ordered_and_bound_each_other(noise: float, sampling: float, steps: int) -> None:
    pld, rdp, zcdp = (epsilon([charge(noise, sampling, steps)], 1e-5, a) for a in ("pld", "rdp", "zcdp"))
    assert 0 < pld <= rdp * (1 + 1e-6) and rdp <= zcdp * (1 + 1e-6)
    direct = dp.rdp.RdpAccountant()
    direct.compose(dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(sampling, dp.GaussianDpEvent(noise)), steps))
    assert rdp == pytest.approx(direct.get_epsilon(1e-5), rel=1e-9)


@pytest.mark.parametrize("noise", [0.8, 2.0, 10.0])
def test_one_full_step_is_between_the_exact_value_and_a_little_more(noise: float) -> None:
    exact = exact_gaussian(noise, 1e-5)
    assert exact * (1 - 1e-3) <= epsilon([charge(noise, 1.0, 1)], 1e-5, "pld") <= exact * 1.01
    assert exact <= epsilon([charge(noise, 1.0, 1)], 1e-5, "rdp") <= exact * 1.25


@pytest.mark.parametrize("accountant", ["rdp", "zcdp"])
def test_monotone_in_steps_noise_and_sampling(accountant: str) -> None:
    def spent(noise: float = 1.2, sampling: float = 0.05, steps: int = 100, laplace: float = 0.0) -> float:
        return epsilon([charge(noise, sampling, steps, laplace)], 1e-5, accountant)  # type: ignore[arg-type]

    assert spent(steps=10) < spent(steps=100) < spent(steps=1000)
    assert spent(noise=0.9) > spent(noise=1.2) > spent(noise=3.0)
    assert spent(sampling=0.01) <= spent(sampling=0.05) <= spent(sampling=1.0)
    assert spent() < spent(laplace=20.0) < spent(laplace=5.0)


def test_charges_compose_whatever_their_order_and_split() -> None:
    parts = [charge(1.1, 0.1, 10), charge(2.0, 0.3, 5, laplace=9.0), charge(1.1, 0.1, 30)]
    whole = [charge(2.0, 0.3, 5, laplace=9.0), charge(1.1, 0.1, 40)]
    assert epsilon(parts, 1e-5, "rdp") == pytest.approx(epsilon(whole, 1e-5, "rdp"), rel=1e-9)
    assert epsilon([], 1e-5, "pld") == 0.0


def test_a_laplace_answer_alone_costs_at_most_its_pure_epsilon() -> None:
    answer = [Charge("v", laplace=2.0)]
    assert 0.3 < epsilon(answer, 1e-5, "pld") <= 0.5 + 1e-3
    assert 0.3 < epsilon(answer, 1e-5, "rdp") <= 0.51


def test_the_published_epsilon_of_dp_fed() -> None:
    """30 000 steps at 15 / 955 and sigma 1.4: what the table prints for DP-Fed (METHODS 7)."""
    ours = epsilon([charge(1.4, 15 / 955, 30_000)], 1e-3, "rdp")
    assert ours == pytest.approx(9.71, abs=0.15)


@pytest.mark.parametrize(
    "bad", [{"epsilon_budget": -1.0}, {"delta": 0.0}, {"delta": 1.0}, {"epsilon_budget": math.inf}]
)
def test_bad_settings_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Privacy(**bad)  # type: ignore[arg-type]


def test_a_charge_without_noise_is_not_covered_and_composes_to_nothing() -> None:
    assert not charge(0.0, 0.1, 1).covered and epsilon([charge(0.0, 0.1, 1)], 1e-5, "rdp") == 0.0
    assert charge(1.0, 0.1, 1).covered and Charge("v", laplace=2.0).covered


@pytest.mark.parametrize("bad", [(-1.0, 0.1, 1), (math.nan, 0.1, 1), (1.0, 0.0, 1), (1.0, 1.1, 1), (1.0, 0.1, -1)])
def test_a_charge_with_odd_numbers_is_none(bad: tuple[float, float, int]) -> None:
    with pytest.raises(DefenseError):
        charge(*bad)


def test_ever_other_steps_cost_no_less_and_stay_few() -> None:
    """A server that asks with ever other noise must not make every later message slow."""
    many = [Charge(str(n), 1.0 + n / 100, 0.1 + n / 1000, 3) for n in range(EVENTS)]
    assert len(_few(Counter({(c.noise, c.sampling): c.steps for c in many}))) == EVENTS
    more = [*many, Charge("x", 1.7, 0.3, 3)]
    assert epsilon(more, 1e-5, "rdp") >= sum(c.steps for c in more) / sum(c.steps for c in many) * 0.9 * epsilon(
        many, 1e-5, "rdp"
    )
    few = _few(Counter({(c.noise, c.sampling): c.steps for c in more}))
    assert len(few) <= EVENTS and few.total() == sum(c.steps for c in more)
    assert min(noise for noise, _ in few) <= 1.0 and max(sampling for _, sampling in few) >= 0.3
    wild = Counter({(0.1 * 2.0**n, 2.0 ** -(n % 7 * 5)): 1 for n in range(200)})
    assert len(_few(wild)) == EVENTS and _few(wild).total() == 200
    assert min(noise for noise, _ in _few(wild)) == 0.1, "no noise but that of a step"


def test_one_kind_of_step_more_than_are_told_apart_costs_little_more() -> None:
    kinds = [(1 + n / 20, 0.05 + n / 200, 3) for n in range(EVENTS + 8)]
    oracle = PRVAccountant()
    oracle.history = kinds
    exact = oracle.get_epsilon(1e-5)  # to 0.01
    rdp, pld = (epsilon([charge(*kind) for kind in kinds], 1e-5, a) for a in ("rdp", "pld"))
    assert exact - 0.02 < pld <= rdp < 1.2 * exact


@pytest.mark.parametrize("far", [(1.0, 1.0, 8000), (0.1, 1.0, 10_000), (10.0, 1e-3, 10**9), (1e-3, 0.0, 1)])
def test_losses_too_wide_to_be_listed_have_the_bound_of_rdp(far: tuple[float, float, int]) -> None:
    noise, sampling, steps = far
    charges = [charge(noise, sampling, steps)] if sampling else [Charge("v", laplace=noise)]
    assert epsilon(charges, 1e-5, "pld") == epsilon(charges, 1e-5, "rdp") > 15


@pytest.mark.parametrize("noise, sampling, steps", [(1.0, 1.0, 80), (0.4, 1e-3, 100)])
def test_a_coarser_grid_of_losses_is_still_a_bound(noise: float, sampling: float, steps: int) -> None:
    exact = (
        exact_gaussian(noise / math.sqrt(steps), 1e-5)
        if sampling == 1
        else _by_losses(tuple(_events([charge(noise, sampling, steps)], True)), 1e-5, 1e-4)
    )
    assert exact - 1e-3 <= epsilon([charge(noise, sampling, steps)], 1e-5, "pld") <= 1.01 * exact


def test_ever_other_answers_stay_few_and_cost_no_less() -> None:
    answers = [Charge(str(n), laplace=50 + n / 10) for n in range(200)]
    assert len(_events(answers, True)) == EVENTS and len(_events(answers, False)) == EVENTS
    least = epsilon([Charge(str(n), laplace=70) for n in range(200)], 1e-5, "rdp")
    most = epsilon([Charge(str(n), laplace=50) for n in range(200)], 1e-5, "rdp")
    assert least < epsilon(answers, 1e-5, "pld") <= epsilon(answers, 1e-5, "rdp") < most


@pytest.mark.parametrize(
    "odd", [{"noise": 1e-170}, {"noise": 1e7}, {"laplace": 1e-320}, {"nats": 1e13}, {"noise": 1.0, "steps": 10**10}]
)
def test_a_charge_that_nobody_could_add_up_is_none(odd: dict[str, float]) -> None:
    with pytest.raises(DefenseError):
        Charge("x", **odd)  # type: ignore[arg-type]


@pytest.mark.parametrize("accountant", ["rdp", "zcdp"])
def test_what_is_remembered_of_one_step_composes_as_dp_accounting_does(accountant: str) -> None:
    charges = [charge(1.2, 0.1, 7), charge(2.0, 1.0, 3, laplace=4.0), charge(1.2, 0.1, 5)]
    whole = dp.rdp.RdpAccountant(None, dp.NeighboringRelation.REPLACE_SPECIAL)
    for event in _events(charges, sampled=accountant == "rdp"):
        whole.compose(event)
    first, again = (epsilon(charges, 1e-5, accountant) for _ in range(2))
    assert first == again == whole.get_epsilon(1e-5)
    assert epsilon(charges[:1], 1e-5, accountant) < first
