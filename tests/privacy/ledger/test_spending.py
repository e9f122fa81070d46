"""What a client may have spent since it was last heard is counted, or said not to be known."""

import pytest

from prunella.privacy.ledger.spending import UNHEARD, Line, asked, spent, uncharged, unknown

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
