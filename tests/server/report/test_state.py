import math
from typing import Any

import pytest

from prunella.server.report.build import bounds
from prunella.server.report.state import RunState, run_state
from prunella.server.report.verdict import NEXT, NEXT_UNDER_EPSILON, verdict
from prunella.server.store.schema import StoreLine


def line(round: int, metric: str, value: float, **labels: str) -> StoreLine:
    return {"round": round, "metric": metric, "value": value, "labels": labels, "time": 0.0}


def test_the_largest_class_is_what_guessing_gives() -> None:
    assert RunState(accuracy=0.9, classes=2, examples=100, largest_class=0.9).at_chance
    assert not RunState(accuracy=0.9, classes=2, examples=100, largest_class=0.5).at_chance


def test_fewer_examples_leave_more_room_for_chance() -> None:
    few, many = (RunState(accuracy=0.14, classes=10, examples=n) for n in (100, 10_000))
    unknown = RunState(accuracy=0.14, classes=10)
    assert few.at_chance and not many.at_chance and unknown.at_chance


def test_a_loss_far_above_that_of_guessing_is_divergence() -> None:
    found = [RunState(loss=loss, classes=10).diverged for loss in (2.4, 4.5, 4.7, math.inf)]
    assert found == [False, False, True, True]
    assert RunState(loss=math.inf).diverged and not RunState(loss=5.0).diverged


def test_what_is_not_known_is_no_learning() -> None:
    for state in (RunState(), RunState(accuracy=0.9), RunState(classes=10)):
        assert state.doubt == ("Not judged", "it is not known whether the model learned")
    assert RunState(accuracy=0.9, loss=0.3, classes=10, examples=359).doubt is None


@pytest.mark.parametrize(("evaluation", "loss"), [("server", math.inf), ("clients", None)])
def test_a_loss_that_is_missing_was_not_finite_unless_clients_did_not_tell_it(
    evaluation: str, loss: float | None
) -> None:
    lines = [line(1, "accuracy_ratio", 0.8), line(1, "loss", 0.5), line(2, "accuracy_ratio", 0.1)]
    assert run_state({"settings": {"evaluation": evaluation}}, lines).loss == loss


def test_a_bound_that_was_told_before_a_round_s_answers_and_not_after_them_is_none() -> None:
    def at(time: float, metric: str, value: float, round: int = 2, **labels: str) -> dict[str, Any]:
        return {**line(round, metric, value, **labels), "time": time}

    asked = at(1.0, "privacy_epsilon", 1.2, stat="worst"), at(1.0, "privacy_epsilon_unknown", 1)
    ended = [*asked, at(2.0, "round", 2)]
    assert run_state({}, ended).epsilon is None and run_state({}, ended).unknown == 0
    kept = run_state({}, [*ended, at(2.0, "privacy_epsilon", 1.3, stat="worst")])
    assert kept.epsilon == 1.3 and kept.unknown == 0
    cut = run_state({}, [*ended, at(3.0, "privacy_epsilon", 1.6, round=3, stat="worst")])
    assert cut.epsilon == 1.6, "the third round has begun, and is charged"


def test_denials_are_those_told_at_the_start_and_those_of_audits() -> None:
    lines = [line(0, "clients_available", 3), line(1, "clients_available", 4), line(2, "clients_available", 2)]
    refusals = [{"client": number, "outcome": "no-consent"} for number in (1, 1, 3)]
    assert run_state({}, lines, refusals).denial == "2 of 4 clients denied audits"
    told = [*lines, line(2, "clients_denying_audits", 4)]
    left = run_state({}, [*told, line(3, "clients_denying_audits", 0)])
    assert left.denied == 4, "a resumed run has not seen those again that have left"
    assert run_state({}, told, refusals).all_denied and RunState(denied=1).denial == "1 client denied audits"


@pytest.mark.parametrize(("defenses", "defended"), [("none", False), ("", False), ("none, none", False), ("dgp", True)])
def test_none_is_no_defense(defenses: str, defended: bool) -> None:
    assert run_state({"settings": {"defenses": defenses}}, []).defended is defended


def test_an_epsilon_names_its_delta_or_that_it_is_unknown() -> None:
    spent = [line(1, "privacy_epsilon", 2.0, stat="worst")]
    assert run_state({"settings": {"privacy.delta": 1e-6}}, spent).guarantee.startswith("ε 2 at δ 1e-06 for")
    assert "ε 2 at an unknown δ" in run_state({}, spent).guarantee and not RunState().guarantee


def test_an_epsilon_that_an_attack_passed_is_no_promise_and_that_is_said() -> None:
    lines = [line(1, "round", 1), line(1, "privacy_epsilon", 2.0, stat="worst"), line(1, "privacy_epsilon_exceeded", 0)]
    members = {"kind": "membership", "client": 0, "outcome": "scored", "attack": "membership", "round": 1}
    found = [{**members, "membership": {"word": "found", "scores": None}}]
    held = verdict(found, run_state({}, lines))
    assert held.promise.startswith("ε 2") and held.next_step == NEXT_UNDER_EPSILON and "Guaranteed" in held.notes[-1]
    broken = verdict(found, run_state({}, [*lines, line(1, "privacy_epsilon_exceeded", 2)]))
    assert broken.promise == "no ε" and broken.next_step == NEXT["traces"]
    assert not any("Guaranteed" in note for note in broken.notes) and "2 clients" in broken.notes[-1]
    grown = [line(1, "privacy_epsilon_exceeded", 2), line(2, "privacy_epsilon", 9.0, stat="worst"), line(2, "round", 2)]
    later = run_state({}, [*lines, *grown, line(2, "privacy_epsilon_exceeded", 0)])
    assert later.promise == "no ε", "what was wrong of less is wrong of more"


def test_an_epsilon_that_the_last_round_has_not_is_no_promise() -> None:
    """A client came later that has none: what the others had before says nothing of all of them."""
    first = [line(1, "round", 1), line(1, "privacy_epsilon", 2.0, stat="worst"), line(1, "channel_information_nats", 9)]
    later = [*first, line(2, "round", 2)]
    assert run_state({}, first).promise == "ε 2 at an unknown δ" and len(bounds(run_state({}, first), first)) == 2
    assert run_state({}, later).promise == "no ε" and not bounds(run_state({}, later), later)


def test_nats_are_a_bound_only_where_every_answer_came() -> None:
    lines = [line(1, "round", 1), line(1, "channel_information_nats", 9), line(1, "privacy_epsilon_unknown", 0)]
    lost = [*lines[:2], line(1, "privacy_epsilon_unknown", 2)]
    (whole,), (part,) = (bounds(run_state({}, each), each) for each in (lines, lost))
    assert whole[1].startswith("at most 9 nats")
    assert part[1].startswith("9 nats or more") and "answers of 2 clients have not come" in part[1]


def test_a_run_that_lacks_its_last_rounds_is_not_complete() -> None:
    """A copy that was cut short lacks audits, and the lines that count them."""
    lines = [line(5, "round", 5.0), line(5, "rounds", 100.0)]
    run: dict[str, Any] = {"status": "completed", "settings": {"defenses": "dgp"}}
    assert run_state(run, lines).unfinished and not run_state(run, [*lines, line(100, "round", 100.0)]).unfinished
    early = "stopped before round 6: it would bring 1 of 2 clients past privacy.epsilon-budget = 2 (ε up to 2.100)"
    assert not run_state(run | {"note": early}, lines).unfinished and run_state(run | {"note": "x"}, lines).unfinished


def test_an_audit_that_is_there_twice_stands_for_no_other() -> None:
    audits = [{"round": 5, "kind": "client", "client": client, "outcome": "scored"} for client in (1, 2, 2)]
    counted = [line(5, "audits_total", 3.0, outcome="scored")]
    assert [run_state({"status": "completed"}, counted, audits[:n]).lost for n in (1, 2, 3)] == [2, 1, 1]


def test_clients_that_nobody_audited_are_not_passed_over() -> None:
    """Audits are of audit-clients clients in a round, one by default."""
    audits = [
        {"round": 5, "kind": "client", "client": client, "outcome": outcome}
        for client, outcome in ((1, "scored"), (1, "scored"), (2, "scored"), (3, "no-consent"), (4, "failed"))
    ]
    state = run_state({}, [line(5, "clients_available", 10.0)], audits)
    assert (state.denied, state.unscored) == (1, 7) and "7 more of 10 clients" in state.unheard
    later = [*audits, {"round": 9, "kind": "client", "client": 1, "outcome": "no-consent"}]
    assert run_state({}, [line(5, "clients_available", 10.0)], later).unscored == 7, "one of the scored denies now"
    assert run_state({}, [line(5, "clients_available", 10.0)], audits[3:]).unheard == "", "none was scored"
    assert run_state({}, [], audits).unheard == "", "nobody knows how many there are"


@pytest.mark.parametrize("delta", [1.0, 7, -1e-5, math.nan, "<b>", True])
def test_a_delta_that_is_no_chance_is_told_as_unknown(delta: Any) -> None:
    state = run_state({"settings": {"privacy.delta": delta}}, [line(1, "privacy_epsilon", 2.0, stat="worst")])
    assert state.promise == "ε 2 at an unknown δ"
