import itertools
import secrets

import numpy as np
import pytest
from scipy import stats

from prunella.core.errors import WireError
from prunella.strategies.secure_sum import primitives
from prunella.strategies.secure_sum.fixed_point import FixedPoint

FORM = FixedPoint(16.0, 65536, 10)


def test_two_sides_agree_on_a_key_for_each_context() -> None:
    a, b = secrets.token_bytes(32), secrets.token_bytes(32)
    key = primitives.agree(a, primitives.public_of(b), b"one")
    assert key == primitives.agree(b, primitives.public_of(a), b"one")
    assert key != primitives.agree(a, primitives.public_of(b), b"other")


@pytest.mark.parametrize("public", [bytes(32), b"\x01" + bytes(31), bytes(31)])
def test_a_key_that_makes_every_agreement_the_same_is_refused(public: bytes) -> None:
    with pytest.raises(WireError):
        primitives.agree(secrets.token_bytes(32), public, b"")


def test_masks_are_uniform_over_every_byte_and_depend_on_all_of_the_key() -> None:
    words = primitives.mask_words(bytes(32), 200_000, FORM)
    for byte in range(FORM.width):
        counts = np.bincount((words >> np.uint64(8 * byte)).astype(np.uint8), minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-6
    assert int(words.max()) <= FORM.ones
    # Flower's masks come of 32 bits: keys whose words have the same XOR give the same there.
    folded = bytes([1, 0, 0, 0, 1, 0, 0, 0]) + bytes(24)
    assert not np.array_equal(primitives.mask_words(folded, 20, FORM), words[:20])


def test_flowers_masks_come_of_thirty_two_bits_and_miss_the_largest_number() -> None:
    """The reason for masks of our own. Where this fails, Flower has changed."""
    from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

    first, folded = bytes(32), bytes([1, 0, 0, 0, 1, 0, 0, 0]) + bytes(24)
    a, b = (pseudo_rand_gen(seed, 4, [(1000,)])[0] for seed in (first, folded))
    assert np.array_equal(a, b) and a.max() == 2


def test_a_letter_opens_with_its_key_about_its_matter_only() -> None:
    key = secrets.token_bytes(32)
    sealed = primitives.seal(key, b"letter", b"about")
    assert primitives.unseal(key, sealed, b"about") == b"letter"
    for other in ((key, sealed, b"else"), (bytes(32), sealed, b"about"), (key, sealed[:-1], b"about"), (key, b"", b"")):
        with pytest.raises(WireError):
            primitives.unseal(*other)


def test_signatures() -> None:
    private = secrets.token_bytes(32)
    signature = primitives.sign(private, b"ballot")
    assert primitives.signed_by(primitives.voice_of(private), signature, b"ballot")
    assert not primitives.signed_by(primitives.voice_of(private), signature, b"other")
    assert not primitives.signed_by(primitives.voice_of(bytes(32)), signature, b"ballot")
    assert not primitives.signed_by(b"", b"", b"ballot")


@pytest.mark.parametrize(("threshold", "count"), [(2, 2), (3, 4), (4, 5)])
def test_any_threshold_of_shares_gives_the_secret_back(threshold: int, count: int) -> None:
    secret = secrets.token_bytes(32)
    shares = dict(enumerate(primitives.split(secret, threshold, count), 1))
    for chosen in itertools.combinations(shares, threshold):
        assert primitives.join({number: shares[number] for number in chosen}, threshold) == secret
    with pytest.raises(WireError):
        primitives.join({1: shares[1]}, threshold)
    with pytest.raises(WireError):
        primitives.join({1: shares[2], 2: shares[1], **{n: shares[n] for n in range(3, count + 1)}}, threshold)


def test_fewer_shares_say_nothing_of_the_secret() -> None:
    """Over many sharings of one secret, a share's bytes are uniform; so is what one share too few joins to."""
    secret, bytes_seen = bytes(32), []
    for _ in range(400):
        bytes_seen.append(primitives.split(secret, 2, 2)[0][2:])
    counts = np.bincount(np.frombuffer(b"".join(bytes_seen), np.uint8), minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-6
