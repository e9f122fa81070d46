"""The ledger adds, never forgets, and claims nothing it has not."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prunella.core.errors import DefenseError
from prunella.privacy.accounting import Charge, Privacy, epsilon
from prunella.privacy.chain import Chain, build_chain
from prunella.privacy.ledger.ledger import (
    UNBOUNDED,
    Ledger,
    Tally,
    add,
    charge,
    digest,
    from_json,
    line,
    nats_per_step,
    spend,
    tallied,
    to_json,
)

CHANNEL = build_chain(["channel-natural", "priprune"], {"channel-natural.kappa": 3.0})
HEURISTIC = build_chain(["priprune"], {})
NONE = build_chain(["none"], {})
PRIVATE = build_chain(["dp-sgd", "dgp"], {"dp-sgd.noise-multiplier": 1.1})


def made(chain: Chain, name: str, steps: int = 10) -> Charge:
    return charge(chain, name, steps, examples=500, batch_size=25)


def rounds(count: int, privacy: Privacy | None = None) -> Ledger:
    ledger = Ledger()
    for number in range(count):
        ledger = spend(ledger, made(PRIVATE, str(number)), privacy or Privacy())
    return ledger


def test_a_channel_adds_kappa_for_every_step() -> None:
    ledger = add(Ledger(), made(CHANNEL, "a", 5), made(CHANNEL, "b", 2))
    assert ledger.nats == 21.0 and line(Tally(), ledger, Privacy())["channel_nats"] == 21.0
    assert nats_per_step(CHANNEL) == 3.0 and nats_per_step(HEURISTIC) is None


@pytest.mark.parametrize("other", [HEURISTIC, NONE])
def test_one_answer_without_a_channel_ends_the_bound_for_good(other: Chain) -> None:
    ledger = add(Ledger(), made(CHANNEL, "a"), made(other, "b"), made(CHANNEL, "c"))
    assert ledger.nats is None and "channel_nats" not in line(Tally(), ledger, Privacy())


def test_heuristics_say_so_have_no_epsilon_and_one_charge_for_all() -> None:
    ledger = add(Ledger(), made(HEURISTIC, "a"), made(NONE, "b"))
    assert ledger.charges == (UNBOUNDED,)
    report = line(tallied(Tally(), HEURISTIC, 1), ledger, Privacy())
    assert report == {"rounds": 1.0, "steps": 1.0, "claims": "priprune: heuristic, no ε"}
    assert "no defense" in str(line(tallied(Tally(), NONE, 1), ledger, Privacy())["claims"])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([CHANNEL, HEURISTIC, NONE, PRIVATE]), st.integers(0, 9)), max_size=8))
def test_it_is_monotone_whatever_the_order_and_survives_json(answers: list[tuple[Chain, int]]) -> None:
    ledger, backwards = Ledger(), Ledger()
    charges = [made(chain, str(number), steps) for number, (chain, steps) in enumerate(answers)]
    for new in charges:
        after = add(ledger, new)
        assert set(after.charges) >= set(ledger.charges) and not (after.covered and not ledger.covered)
        if after.nats is not None:
            assert ledger.nats is not None and after.nats >= ledger.nats
        ledger = after
    backwards = add(Ledger(), *reversed(charges))
    assert set(backwards.charges) == set(ledger.charges) and backwards.nats == ledger.nats
    assert from_json(json.loads(json.dumps(to_json(ledger.charges)))) == ledger.charges


GOOD = {"digest": "a", "noise": 1.0, "sampling": 0.1, "steps": 2, "laplace": 0.0, "nats": None}


@pytest.mark.parametrize(
    "change",
    [{"steps": -1}, {"nats": float("inf")}, {"nats": float("nan")}, {"steps": "two"}, {"digest": 3}, {"extra": 1}]
    + [{"sampling": 0.0}, {"sampling": 1.1}, {"noise": -1.0}],
)
def test_unreadable_charges_are_an_error_and_never_forgotten(change: dict[str, object]) -> None:
    assert from_json([GOOD])
    with pytest.raises(DefenseError):
        from_json([{**GOOD, **change}])


def test_steps_are_not_negative() -> None:
    with pytest.raises(DefenseError):
        made(NONE, "a", -1)
    with pytest.raises(DefenseError):
        Tally(-1)


def test_epsilon_composes_every_step_of_every_answer() -> None:
    ledger = rounds(3)
    assert made(PRIVATE, "a") == Charge("a", 1.1, 0.05, 10)
    assert ledger.epsilon(Privacy()) == pytest.approx(epsilon([Charge("", 1.1, 0.05, 30)], 1e-5, "rdp"), rel=1e-9)
    told = line(tallied(Tally(), PRIVATE, 10), ledger, Privacy())
    assert told["epsilon"] == ledger.epsilon(Privacy()) and told["delta"] == 1e-5
    assert "one example present or replaced by nothing" in str(told["claims"])
    spent = [rounds(n).epsilon(Privacy()) or 0.0 for n in range(4)]
    assert spent == sorted(spent)


def test_one_uncovered_answer_ends_epsilon_for_good() -> None:
    ledger = add(rounds(2), made(HEURISTIC, "h"))
    assert not ledger.covered and ledger.epsilon(Privacy()) is None
    assert "epsilon" not in line(Tally(), add(ledger, made(PRIVATE, "9")), Privacy())
    assert add(rounds(1), made(CHANNEL, "c")).epsilon(Privacy()) is None  # a channel bounds nats, and no epsilon


def test_the_same_question_costs_nothing_and_another_one_is_charged_for_itself() -> None:
    ledger = rounds(2)
    assert spend(ledger, made(PRIVATE, "1"), Privacy()) == ledger
    assert len(spend(ledger, made(PRIVATE, "other"), Privacy()).charges) == 3
    with pytest.raises(DefenseError, match="damaged"):
        spend(ledger, made(PRIVATE, "1", steps=11), Privacy())


def test_the_answer_that_would_pass_the_budget_is_refused_with_the_reason() -> None:
    limit = Privacy(epsilon_budget=(rounds(3).epsilon(Privacy()) or 0) * 1.0001)
    ledger = rounds(3, limit)
    assert spend(ledger, made(PRIVATE, "2"), limit) == ledger  # asked again: paid already
    with pytest.raises(DefenseError, match="past privacy.epsilon-budget"):
        spend(ledger, made(PRIVATE, "3"), limit)
    with pytest.raises(DefenseError, match="dp-sgd"):
        spend(Ledger(), made(HEURISTIC, "h"), Privacy(epsilon_budget=1.0))


def test_a_digest_sees_names_values_types_shapes_order_and_text() -> None:
    tree = {"w": torch.tensor([1.0, 2.0])}
    digests = [
        digest([tree], "t"),
        digest([tree], "u"),
        digest([{"v": tree["w"]}], "t"),
        digest([{"w": torch.tensor([1.0, 2.5])}], "t"),
        digest([{"w": tree["w"].double()}], "t"),
        digest([{"w": tree["w"].bfloat16()}], "t"),
        digest([{"w": tree["w"][None]}], "t"),
        digest([tree, {}], "t"),
        digest([{}, tree], "t"),
        digest([{"a": tree["w"], "b": tree["w"]}], "t"),
        digest([{"a": tree["w"]}, {"b": tree["w"]}], "t"),
        digest([{"w": torch.tensor(1.0)}], "t"),
    ]
    assert len(set(digests)) == len(digests) and digest([{"w": torch.tensor([1.0, 2.0])}], "t") == digests[0]


@pytest.mark.parametrize("noise", [1e-9, 1e-170, 0.05, 1e9])
def test_noise_that_no_accountant_adds_up_covers_nothing(noise: float) -> None:
    chain = build_chain(["dp-sgd"], {"dp-sgd.noise-multiplier": noise})
    assert made(chain, "a") == UNBOUNDED
    with pytest.raises(DefenseError, match="had an ε"):
        spend(Ledger(), made(chain, "a"), Privacy(epsilon_budget=1e9))


@pytest.mark.parametrize("names", [["channel-natural", "leakage-guard"], ["ats", "channel-natural"]])
def test_a_channel_beside_something_that_looks_at_the_images_bounds_nothing(names: list[str]) -> None:
    assert nats_per_step(build_chain(names, {})) is None
    assert nats_per_step(build_chain(["channel-natural", "channel-white", "dgp"], {})) == 50.0


def test_enormous_nats_are_no_bound_and_do_not_end_the_account() -> None:
    huge = build_chain(["channel-natural"], {"channel-natural.kappa": 1e300})
    ledger = add(Ledger(), made(huge, "a"), made(huge, "b"), made(CHANNEL, "c"))
    assert ledger.nats is None and "channel_nats" not in line(Tally(), ledger, Privacy())
    large = add(Ledger(), made(build_chain(["channel-natural"], {"channel-natural.kappa": 1e10}), "a"))
    assert ledger.nats is None and "channel_nats" not in line(Tally(), large, Privacy())
