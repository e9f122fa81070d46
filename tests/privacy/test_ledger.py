"""The ledger adds, never forgets, and claims nothing it has not."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import DefenseError
from privacy.chain import build_chain
from privacy.ledger import Ledger, from_json, line, nats_per_step, record, to_json

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
