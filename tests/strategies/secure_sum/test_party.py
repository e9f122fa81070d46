from dataclasses import replace

import pytest

from prunella.core.errors import WireError
from prunella.strategies.secure_sum.party import MOST, Party, threshold
from tests.strategies.secure_sum.made import Honest


def test_no_client_less_than_a_third_of_them_helps_a_server_to_both_shares() -> None:
    """Honest clients reveal one share for each peer, colluding ones both: the server needs 2t of these."""
    for n in range(2, MOST + 1):
        colluding = max(c for c in range(n) if 3 * c < n)
        assert (n - colluding) + 2 * colluding < 2 * threshold(n) <= 2 * n


def test_a_party_of_one_number_or_one_key_twice_is_none() -> None:
    party = Honest(3).party
    first, second, third = party.adverts
    for adverts in (
        (first,),
        (second, first, third),
        (first, first, third),
        (first, replace(second, masks=first.masks), third),
        (first, replace(second, letters=first.masks), third),
    ):
        with pytest.raises(WireError):
            Party("run|1", adverts)


def test_a_digest_names_clients_keys_run_and_round() -> None:
    party = Honest(3).party
    digests = {party.digest, Party("run|2", party.adverts).digest, Party("run|1", party.adverts[:2]).digest}
    assert len(digests) == 3 and Honest(3).party.digest not in digests


def test_keys_of_another_length_or_for_two_purposes_are_none() -> None:
    advert = Honest(2).party.adverts[0]
    for change in ({"masks": b""}, {"signature": bytes(1000)}, {"masks": advert.letters}, {"voice": advert.masks}):
        with pytest.raises(WireError):
            replace(advert, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["letters", "masks"])
@pytest.mark.parametrize("public", [bytes(32), b"\x01" + bytes(31)])
def test_a_key_with_which_nobody_can_agree_is_refused_where_it_is_advertised(name: str, public: bytes) -> None:
    with pytest.raises(WireError):
        replace(Honest(2).party.adverts[0], **{name: public})
