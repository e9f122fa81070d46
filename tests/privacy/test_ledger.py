"""The ledger adds, never forgets, and claims nothing it has not."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import DefenseError
from privacy.accounting import Charge, Privacy, epsilon
from privacy.chain import build_chain
from privacy.ledger import Ledger, charge, digest, from_json, line, merge, nats_per_step, record, to_json

CHANNEL = build_chain(["channel-natural", "priprune"], {"channel-natural.kappa": 3.0})
HEURISTIC = build_chain(["priprune"], {})
NONE = build_chain(["none"], {})


def test_a_channel_adds_kappa_for_every_step() -> None:
    ledger = record(record(Ledger(), CHANNEL, 5), CHANNEL, 2)
    assert (ledger.rounds, ledger.steps, ledger.channel_nats) == (2, 7, 21.0)
    assert nats_per_step(CHANNEL) == 3.0 and nats_per_step(HEURISTIC) is None


@pytest.mark.parametrize("other", [HEURISTIC, NONE])
def test_one_round_without_a_channel_ends_the_bound_for_good(other: object) -> None:
    ledger = record(record(Ledger(), CHANNEL, 5), other, 1)  # type: ignore[arg-type]
    assert ledger.channel_nats is None
    ledger = record(ledger, CHANNEL, 5)
    assert ledger.channel_nats is None and "channel_nats" not in line(ledger)


def test_heuristics_say_so_and_have_no_epsilon() -> None:
    report = line(record(Ledger(), HEURISTIC, 1))
    assert report == {"rounds": 1.0, "steps": 1.0, "claims": "priprune: heuristic, no ε"}
    assert "no defense" in str(line(record(Ledger(), NONE, 1))["claims"])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([CHANNEL, HEURISTIC, NONE]), st.integers(0, 9)), max_size=8))
def test_it_is_monotone_and_survives_json(rounds: list[tuple[object, int]]) -> None:
    ledger = Ledger()
    for chain, steps in rounds:
        after = record(ledger, chain, steps)  # type: ignore[arg-type]
        assert after.rounds == ledger.rounds + 1 and after.steps >= ledger.steps
        assert set(after.claims) >= set(ledger.claims) and len(set(after.claims)) == len(after.claims)
        if after.channel_nats is not None:
            assert ledger.channel_nats is not None and after.channel_nats >= ledger.channel_nats
        ledger = from_json(json.loads(json.dumps(to_json(after))))
        assert ledger == after


@pytest.mark.parametrize(
    "change",
    [{"rounds": -1}, {"channel_nats": float("inf")}, {"channel_nats": float("nan")}, {"rounds": "two"}, {"claims": 3}]
    + [{"extra": 1}],
)
def test_an_unreadable_ledger_is_an_error_never_a_fresh_one(change: dict[str, object]) -> None:
    with pytest.raises(DefenseError):
        from_json({**to_json(Ledger()), **change})
    with pytest.raises(DefenseError):
        from_json({})


def test_steps_are_not_negative() -> None:
    with pytest.raises(DefenseError):
        record(Ledger(), NONE, -1)


PRIVATE = build_chain(["dp-sgd", "dgp"], {"dp-sgd.noise-multiplier": 1.1})


def new(request: str, digest: str = "a", steps: int = 10) -> Charge:
    made = charge(PRIVATE, (request, digest), steps, examples=500, batch_size=25)
    assert made is not None and (made.noise, made.sampling) == (1.1, 0.05)
    return made


def rounds(count: int, privacy: Privacy | None = None) -> Ledger:
    ledger = Ledger()
    for number in range(count):
        ledger = record(ledger, PRIVATE, 10, new(str(number)), privacy)
    return ledger


def test_epsilon_composes_every_step_of_every_round() -> None:
    ledger = rounds(3)
    assert ledger.epsilon == pytest.approx(epsilon([Charge("", "", 1.1, 0.05, 30)], 1e-5, "rdp"), rel=1e-9)
    assert line(ledger)["epsilon"] == ledger.epsilon and line(ledger)["delta"] == 1e-5
    assert "one example present or replaced by nothing" in str(line(ledger)["claims"])
    assert [rounds(n).epsilon or 0 for n in range(4)] == sorted(rounds(n).epsilon or 0 for n in range(4))


def test_one_uncovered_round_ends_epsilon_for_good() -> None:
    ledger = record(rounds(2), HEURISTIC, 1)
    assert ledger.epsilon is None and not ledger.covered
    ledger = record(ledger, PRIVATE, 10, new("9"))
    assert ledger.epsilon is None and "epsilon" not in line(ledger)
    assert record(Ledger(), PRIVATE, 10).epsilon is None  # no charge, no claim
    assert record(Ledger(), PRIVATE, 11, new("0", steps=10)).epsilon is None  # more steps than were paid for


def test_the_same_request_costs_nothing_and_another_answer_is_refused() -> None:
    ledger = rounds(2)
    assert record(ledger, PRIVATE, 10, new("1")).epsilon == ledger.epsilon
    with pytest.raises(DefenseError, match="another model"):
        record(ledger, PRIVATE, 10, new("1", digest="b"))


def test_the_round_that_would_pass_the_budget_is_refused_with_the_reason() -> None:
    limit = Privacy(epsilon_budget=(rounds(3).epsilon or 0) * 1.0001)
    ledger = rounds(3, limit)
    with pytest.raises(DefenseError, match="past privacy.epsilon-budget"):
        record(ledger, PRIVATE, 10, new("3"), limit)
    with pytest.raises(DefenseError, match="dp-sgd"):
        record(Ledger(), HEURISTIC, 1, None, Privacy(epsilon_budget=1.0))


def test_what_was_spent_is_remembered_by_an_older_ledger() -> None:
    old = merge(rounds(1), rounds(4))
    assert len(old.charges) == 4 and old.rounds == 1
    assert record(old, PRIVATE, 10, new("4")).epsilon == pytest.approx(rounds(5).epsilon, rel=1e-9)
    assert not merge(rounds(1), record(Ledger(), NONE, 1)).covered
    assert from_json(json.loads(json.dumps(to_json(old)))) == old


def test_a_digest_sees_names_values_types_and_text() -> None:
    tree = {"w": torch.tensor([1.0, 2.0])}
    made = [
        digest([tree], "t"),
        digest([tree], "u"),
        digest([{"v": tree["w"]}], "t"),
        digest([{"w": torch.tensor([1.0, 2.5])}], "t"),
        digest([{"w": tree["w"].double()}], "t"),
        digest([{"w": tree["w"][None]}], "t"),
        digest([tree, {}], "t"),
    ]
    assert len(set(made)) == len(made) and digest([{"w": torch.tensor([1.0, 2.0])}], "t") == made[0]
