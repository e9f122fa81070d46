"""The sum that the server finds equals the plain sum of what clients put in, bit for bit, whoever is lost where."""

import itertools

import numpy as np
import pytest

from prunella.core.errors import WireError
from prunella.strategies.secure_sum.fixed_point import decode, pack, reduced
from tests.strategies.secure_sum.made import Honest


def plain(honest: Honest, survivors: frozenset[int]) -> list[int]:
    total = sum(decode(honest.inputs[c], honest.form) for c in survivors)
    assert isinstance(total, np.ndarray)
    found: list[int] = total.tolist()
    return found


@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_everybody_stays(count: int) -> None:
    honest = Honest(count)
    assert honest.total(honest.peers, honest.peers).tolist() == plain(honest, honest.peers)


@pytest.mark.parametrize("letters", [0, 1])
@pytest.mark.parametrize("words", [0, 1])
@pytest.mark.parametrize("shares", [0, 1])
def test_clients_are_lost_before_letters_before_words_and_before_shares(letters: int, words: int, shares: int) -> None:
    honest = Honest(10, missing=frozenset({12} if letters else ()))
    survivors = honest.peers - frozenset({5} if words else ())
    revealing = survivors - frozenset({7} if shares else ())
    assert honest.total(survivors, revealing).tolist() == plain(honest, survivors)


def test_any_threshold_of_clients_opens_the_sum_and_one_fewer_does_not() -> None:
    honest = Honest(4)
    for revealing in itertools.combinations(honest.peers, 3):
        assert honest.total(honest.peers, frozenset(revealing)).tolist() == plain(honest, honest.peers)
    with pytest.raises(WireError):
        honest.total(honest.peers, frozenset({3, 4}))


def test_without_the_masks_taken_off_the_sum_is_another() -> None:
    honest = Honest(3)
    left = decode(reduced(honest.summation(honest.peers)._total, honest.form), honest.form)
    assert not np.isin(left, plain(honest, honest.peers)).any()


def test_wrong_shares_are_noticed() -> None:
    honest = Honest(4)
    survivors = frozenset({3, 4, 5})
    votes = honest.votes(survivors)
    for about in (4, 6):  # one that survived, one that was lost
        told = {c: dict(honest.reveal(c, survivors, votes)) for c in survivors}
        told[5][about] = told[5][about][:-1] + bytes([told[5][about][-1] ^ 1])
        with pytest.raises(WireError, match=f"of client {about}'s"):
            honest.summation(survivors).result(told)


def test_words_twice_or_of_another_length_are_left_out() -> None:
    honest = Honest(3)
    summation = honest.summation(frozenset({3}))
    for client, data in ((3, pack(honest.masked(3), honest.form)), (99, b""), (4, b"short")):
        with pytest.raises(WireError):
            summation.add(client, data)
