"""What a client may have spent since it was last heard is counted, or said not to be known."""

import pytest

from prunella.privacy.ledger.spending import ANEW, UNHEARD, Line, asked, heard, spent, uncharged, unknown
from prunella.server.budget import Overrun, past_budget

HEARD: Line = {"epsilon": 1.0, "epsilon_next": 1.3}


def test_an_answer_that_did_not_come_is_what_the_next_one_would_have_brought() -> None:
    once, twice = (asked({"0": HEARD}, [0] * times) for times in (1, 2))
    assert spent(HEARD) == 1.0 and spent(once["0"]) == spent(twice["0"]) == 1.3
    assert (unknown({"0": HEARD}), unknown(once), unknown(twice)) == (0, 0, 1)
    assert HEARD == {"epsilon": 1.0, "epsilon_next": 1.3}, "the line is as it came"


def test_of_a_client_that_told_of_no_next_answer_or_never_spoke_it_is_not_known() -> None:
    for line in ({"epsilon": 1.0}, {}):
        ledgers = asked({"0": HEARD, "1": line}, [1])
        assert unknown(ledgers) == 1 and spent(ledgers["1"]) == line.get("epsilon")


def test_where_nobody_has_a_bound_nothing_is_missing() -> None:
    assert unknown(asked({"0": {"rounds": 1.0}}, [0, 0, 1])) == 0


def test_of_nats_no_line_tells_what_the_next_answer_brings() -> None:
    for line in ({"channel_nats": 5.0}, {"channel_nats": 5.0, **HEARD}):
        assert (unknown({"0": line}), unknown(asked({"0": line}, [0]))) == (0, 1)
    assert unknown(asked({"0": {"channel_nats": 5.0}}, [1])) == 1, "one that was never heard"


@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_refusal_takes_its_question_back(before: int) -> None:
    ledgers = asked({"0": HEARD, "1": HEARD}, [0] * before)
    assert uncharged(asked(ledgers, [0]), 0) == ledgers
    assert uncharged(asked({}, [3]), 3) == {}, "a client that only ever refused has no line"
    assert UNHEARD not in uncharged(asked({"0": HEARD}, [0]), 0)["0"]


def test_an_account_that_grows_or_answers_the_same_question_again_is_believed() -> None:
    before: Line = {"epsilon": 1.0, "epsilon_next": 1.3, "rounds": 2.0}
    for line, trained in (({"epsilon": 1.3, "rounds": 3.0}, True), ({"epsilon": 1.0, "rounds": 2.0}, False)):
        assert heard(before, line, trained) == line
    assert heard({UNHEARD: 3}, {"epsilon": 0.1, "rounds": 1.0}, True) == {"epsilon": 0.1, "rounds": 1.0}
    assert heard({"rounds": 2.0}, {"rounds": 1.0}, True) == {"rounds": 1.0}, "nothing is counted"


@pytest.mark.parametrize(
    "line",
    [
        {"epsilon": 0.7, "rounds": 1.0},  # a folder that is new, or an older copy of it
        {"epsilon": 1.0, "rounds": 1.0},  # after one round each, which cost the same
        {"epsilon": 1.2, "rounds": 2.0},  # another site's
        {"epsilon": 1.3, "rounds": 3.0, "channel_nats": 2.0},
    ],
)
def test_an_account_that_began_anew_counts_as_more_than_either_tells_for_good(line: Line) -> None:
    before: Line = {"epsilon": 1.0, "epsilon_next": 1.3, "rounds": 2.0, "channel_nats": 5.0}
    anew = heard(before, line, trained=True)
    assert spent(anew) == max(1.0, float(line["epsilon"])) and anew[ANEW] == 1 and unknown({"0": anew}) == 1
    if "channel_nats" in line:
        assert anew["channel_nats"] == 5.0
    later = heard(anew, {"epsilon": 9.0, "rounds": 9.0}, trained=True)
    assert later[ANEW] == 1 and spent(later) == 9.0 and unknown({"0": later}) == 1


def test_a_site_that_removed_the_folder_of_its_run_has_the_account_that_it_had() -> None:
    """Its rounds are counted in that folder, and what it has spent in another."""
    before: Line = {"epsilon": 1.0, "epsilon_next": 1.1, "rounds": 5.0, "channel_nats": 5.0}
    again: Line = {"epsilon": 1.1, "epsilon_next": 1.2, "rounds": 1.0, "channel_nats": 6.0}
    assert heard(before, again, trained=True) == again
    for name in ("epsilon", "channel_nats"):
        assert ANEW in heard(before, {**again, name: before[name]}, trained=True)


def test_whoever_is_past_the_budget_by_its_old_account_is_asked_no_more() -> None:
    anew = heard({"epsilon": 1.95, "epsilon_next": 2.05}, {"epsilon": 0.3, "epsilon_next": 0.4}, trained=True)
    assert past_budget({"0": anew}, 2.0) == {0: Overrun(2.05, 2.0)}


def test_what_was_charged_for_an_answer_that_never_came_stays_when_the_account_is_gone() -> None:
    (before,) = asked({"0": {**HEARD, "rounds": 1.0}}, [0]).values()
    assert spent(heard(before, {"epsilon": 1.0, "rounds": 1.0}, trained=True)) == 1.3


def test_a_line_for_the_next_answer_that_is_below_what_was_spent_lowers_nothing() -> None:
    anew = heard(HEARD, {"epsilon": 0.1, "epsilon_next": 0.2}, trained=False)
    assert spent(asked({"0": anew}, [0])["0"]) >= 1.0
