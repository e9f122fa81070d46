"""The client's half, against servers that lie. What honest clients add up to is in ``test_summation``."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from prunella.core.errors import DefenseError, WireError
from prunella.strategies.secure_sum import participant
from prunella.strategies.secure_sum.fixed_point import encode, reduced
from prunella.strategies.secure_sum.party import Party
from prunella.strategies.secure_sum.primitives import join, mark, public_of
from tests.strategies.secure_sum.made import ABOUT, MODEL, Honest


def bytes_of(honest: Honest, words: np.ndarray) -> np.ndarray:
    columns = [(words >> np.uint64(8 * byte)).astype(np.uint8) for byte in range(honest.form.width)]
    return np.concatenate(columns)


def test_masked_words_are_uniform_whatever_is_under_the_mask() -> None:
    honest = Honest(3, words=100_000)
    honest.inputs = {c: encode(np.full(100_000, 1.5), 7, honest.form) for c in honest.peers}
    counts = np.bincount(bytes_of(honest, honest.masked(3)), minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-6
    bare = np.bincount(bytes_of(honest, honest.inputs[3]), minlength=256)
    assert stats.chisquare(bare).pvalue < 1e-6, "the test sees what is not uniform"


@pytest.mark.parametrize("known", ["own mask", "masks with others"])
def test_one_mask_that_the_server_lacks_hides_the_words(known: str) -> None:
    honest = Honest(4, words=100_000)
    party, form = honest.party, honest.form
    honest.inputs[3] = encode(np.zeros(100_000), 1, form)
    left = honest.masked(3)
    if known == "own mask":
        left = left - participant.own_mask(honest.own[3].own, party, 3, 100_000, form)
    else:
        for peer in (4, 5, 6):
            left = left - participant.pair_mask(honest.own[3].masks, party, 3, peer, 100_000, form)
    counts = np.bincount(bytes_of(honest, reduced(left, form)), minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-6


def test_no_two_sums_share_a_mask() -> None:
    one, other = Honest(3), Honest(3)
    assert not np.array_equal(one.masked(3) - one.inputs[3], other.masked(3) - other.inputs[3])


def test_a_client_takes_part_only_with_the_keys_that_it_has_just_made() -> None:
    honest, older = Honest(3), Honest(3)
    with pytest.raises(WireError, match="other keys"):
        participant.share(honest.own[3], older.party, 3)
    with pytest.raises(WireError, match="not in this sum"):
        participant.share(honest.own[3], Party(ABOUT, honest.party.adverts[1:]), 3)


def test_letters_of_another_sum_or_of_another_client_do_not_open() -> None:
    honest, older = Honest(4), Honest(4)
    participant.require_letters(honest.own[3], honest.party, 3, honest.letters[3])
    for wrong in (older.letters[3][4], honest.letters[3][5], honest.letters[5][4], b""):
        with pytest.raises(WireError, match="the letter of client 4 to client 3 is none"):
            participant.require_letters(honest.own[3], honest.party, 3, honest.letters[3] | {4: wrong})
    for few in (
        {c: letter for c, letter in honest.letters[3].items() if c != 3},
        dict(list(honest.letters[3].items())[:2]),
    ):
        with pytest.raises(WireError, match="must be there"):
            participant.require_letters(honest.own[3], honest.party, 3, few)


def test_for_every_client_one_share_is_revealed_and_never_both() -> None:
    honest = Honest(4)
    survivors = frozenset({3, 4, 5})
    votes = honest.votes(survivors)
    told = {c: honest.reveal(c, survivors, votes) for c in survivors}
    for about in honest.peers:
        secret = join({honest.party.number(c): told[c][about] for c in survivors}, honest.party.threshold)
        is_own, is_key = mark(secret) == honest.party.of(about).mark, public_of(secret) == honest.party.of(about).masks
        assert (is_own, is_key) == (about in survivors, about not in survivors)


def test_too_few_survivors_get_no_vote() -> None:
    honest = Honest(4)
    with pytest.raises(DefenseError, match="3 must be"):
        participant.vote(honest.own[3], honest.party, 3, honest.peers, honest.attested({3, 4}), MODEL)
    for survivors in ({4, 5, 6}, {3, 4, 5, 99}):
        with pytest.raises(WireError):
            participant.vote(honest.own[3], honest.party, 3, honest.peers, dict.fromkeys(survivors, b""), MODEL)


def test_a_server_that_tells_clients_of_different_survivors_gets_nothing() -> None:
    """Half of the clients are told that 8 survived, half that it was lost: else, shares of both its secrets."""
    honest = Honest(6)
    with_it, without = frozenset({3, 4, 5, 6, 8}), frozenset({3, 4, 5, 6, 7})
    votes = {c: honest.votes(with_it)[c] for c in (3, 4, 8)} | {c: honest.votes(without)[c] for c in (5, 6, 7)}
    for client, told in ((3, with_it), (5, without)):
        with pytest.raises(DefenseError, match="nothing is revealed"):
            honest.reveal(client, told, votes)


def test_a_server_that_sends_one_client_another_model_gets_nothing() -> None:
    honest = Honest(4)
    everybody = honest.peers
    votes = honest.votes(everybody, "the model of the others") | {3: honest.votes(everybody)[3]}
    with pytest.raises(DefenseError, match="words and model"):
        honest.reveal(3, everybody, votes)


def test_clients_that_saw_other_words_named_open_nothing_together() -> None:
    """Of one sum and another with the same clients, in which one put something else."""
    honest = Honest(4)
    everybody = honest.peers
    mine = honest.votes(everybody)
    honest.named = {4: b"x" * participant.COMMITMENT}
    votes = honest.votes(everybody) | {3: mine[3]}
    honest.named = None
    with pytest.raises(DefenseError, match="same survivors, words and model"):
        honest.reveal(3, everybody, votes)
    assert honest.reveal(3, everybody, mine)


@pytest.mark.parametrize("other", [3, 4])
def test_one_client_with_another_model_is_enough_to_open_nothing(other: int) -> None:
    """Three of four that were sent zeros are a threshold, and the sum would be the fourth one's update."""
    honest = Honest(4)
    for attested in (honest.attested({other}, "another"), {other: honest.attested({5})[5]}, {other: b""}):
        with pytest.raises(DefenseError, match="same model"):
            participant.vote(
                honest.own[3], honest.party, 3, honest.peers, honest.attested(honest.peers) | attested, MODEL
            )


def test_votes_that_are_forged_copied_or_of_another_sum_do_not_count() -> None:
    honest, older, everybody = Honest(4), Honest(4), frozenset({3, 4, 5, 6})
    votes = honest.votes(everybody)
    for wrong in (
        {c: votes[3] for c in everybody},
        older.votes(everybody),
        {c: bytes(64) for c in everybody},
        {c: votes[c] for c in (3, 4)},
    ):
        with pytest.raises(DefenseError, match="nothing is revealed"):
            honest.reveal(3, everybody, wrong)
    assert honest.reveal(3, everybody, votes)


def test_an_advert_is_signed_with_whose_it_is_and_what_it_is_for() -> None:
    signed: list[bytes] = []

    def signer(message: bytes) -> bytes:
        signed.append(message)
        return b"signature"

    _, advert = participant.fresh(ABOUT, 3, signer)
    assert advert.signature == b"signature" and signed == [advert.signed(ABOUT)]
    others = [
        advert.signed("run|2"),
        replace(advert, client=4).signed(ABOUT),
        replace(advert, mark=bytes(32)).signed(ABOUT),
    ]
    assert not set(others) & set(signed)
