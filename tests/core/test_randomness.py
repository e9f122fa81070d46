"""Both kinds of randomness: streams, the keystream of a key, and the distributions made from it.

The keys are fixed, so every draw here is the same on every run. Bounds are those of the sampling error: five standard
deviations, or a probability of 1e-6 where many things are looked at.
"""

import itertools
import math

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import ndtr

from prunella.core.randomness import KEY_BYTES, PAIRS, PrivateGenerator, derived, rehearsal, stream

RARE = 1e-6
LAST = 2**63 - 1  # the largest word
BITS = 62  # that ``below(2**62)`` shows of a word
DRAWS, CHUNK = 20, 1_000_000


def draw(number: int = 0) -> PrivateGenerator:
    return PrivateGenerator(number.to_bytes(KEY_BYTES, "big"))


def words(key: bytes, count: int) -> np.ndarray:
    return PrivateGenerator(key).below(2**BITS, count).numpy()


class Scripted(PrivateGenerator):
    """Draws these words, over and over."""

    def __init__(self, *script: int) -> None:
        self.script = itertools.cycle(script)

    def _words(self, count: int) -> torch.Tensor:
        return torch.tensor([next(self.script) for _ in range(count)], dtype=torch.int64)


# ---- streams


def test_every_argument_matters_and_the_same_ones_repeat() -> None:
    keys = [
        dict(seed=s, round=r, client=c, purpose=p)
        for s, r, c, p in itertools.product((0, 1), (0, 1), (0, 1), ("batch", "noise"))
    ]
    for make in (lambda key: torch.rand(4, generator=stream(**key)), lambda key: rehearsal(**key).uniform(4)):
        draws = [make(key) for key in keys]
        assert all(not torch.equal(a, b) for a, b in itertools.combinations(draws, 2))
        assert all(torch.equal(a, make(key)) for a, key in zip(draws, keys, strict=True))


def test_fields_cannot_run_into_each_other() -> None:
    a, b = stream(1, round=11, purpose="x"), stream(11, round=1, purpose="x")
    assert not torch.equal(torch.rand(2, generator=a), torch.rand(2, generator=b))
    assert rehearsal(1, round=11, purpose="x").uniform(1) != rehearsal(11, round=1, purpose="x").uniform(1)


# ---- the key


def test_the_keystream_is_that_of_aes_256_in_counter_mode() -> None:
    """E(0, 0), E(0, 1) and E(0, 2) stand in test cases 13 and 14 of the GCM specification (McGrew and Viega, 2005)."""
    blocks = "dc95c078a2408989ad48a21492842087530f8afbc74536b9a963b4f1c4cb738bcea7403d4d606b6e074ec5d3baf39d18"
    expected = np.frombuffer(bytes.fromhex(blocks), "<i8") & (2**BITS - 1)
    assert words(bytes(KEY_BYTES), 6).tolist() == expected.tolist()


def test_the_keystream_goes_on_where_it_stopped_and_is_the_library_s() -> None:
    key = bytes(range(KEY_BYTES))
    theirs = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor().update(bytes(8 * 5000))
    ours, made = PrivateGenerator(key), []
    for count in (1, 2, 0, 997, 4000):  # odd numbers of words end within a block of AES
        made += ours.below(2**BITS, count).tolist()
    assert made == (np.frombuffer(theirs, "<i8") & (2**BITS - 1)).tolist()


@pytest.mark.parametrize("length", [0, 16, 31, 33, 64])
def test_a_key_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        PrivateGenerator(bytes(length))


def test_two_keys_that_differ_in_one_bit_share_nothing() -> None:
    count = 512
    whole = words(bytes(KEY_BYTES), count)
    seen, distances = set(whole.tolist()), []
    for bit in range(8 * KEY_BYTES):
        other = words((1 << bit).to_bytes(KEY_BYTES, "big"), count)
        assert seen.isdisjoint(other.tolist())
        seen |= set(other.tolist())
        distances.append(int(np.unpackbits((whole ^ other).view(np.uint8)).sum()) / (count * BITS))
    deviation = 0.5 / math.sqrt(count * BITS)
    assert max(abs(d - 0.5) for d in distances) < 5 * deviation
    assert abs(np.mean(distances) - 0.5) < 5 * deviation / math.sqrt(len(distances))


def test_the_same_key_repeats_every_kind_of_draw() -> None:
    def all_of_them(g: PrivateGenerator) -> torch.Tensor:
        drawn = (g.uniform(3), g.below(9, 3), g.signs(3), g.permutation(7), g.exponential(3), g.normal(5), g.normal(5))
        return torch.cat([t.double() for t in drawn])

    assert torch.equal(all_of_them(draw()), all_of_them(draw()))
    assert not torch.equal(all_of_them(draw()), all_of_them(draw(1)))


PARTS = st.lists(st.text(max_size=6), max_size=4).map(tuple)


def test_a_derived_key_knows_where_one_part_ends() -> None:
    key = bytes(range(KEY_BYTES))
    alike = [("abc",), ("ab", "c"), ("a", "bc"), ("abc", ""), ("", "abc"), (), ("",), ("ä", "b"), ("äb",), ("a", "̈b")]
    alike += [("a\x00b",), ("a", "b"), ("a\x00", "b"), ("a|b",), ("batch", "1"), ("batch1",), ("noise", "1")]
    assert len({derived(key, *parts) for parts in alike}) == len(alike)
    assert len(derived(key)) == KEY_BYTES and derived(key, "a") != derived(bytes(KEY_BYTES), "a")
    # A part that looks like a length and the part after it.
    assert derived(key, "a", "b") != derived(key, "a" + (1).to_bytes(8, "big").decode() + "b")


@given(PARTS, PARTS)
def test_derived_keys_are_equal_only_for_equal_contexts(one: tuple[str, ...], two: tuple[str, ...]) -> None:
    assert (derived(b"k" * 32, *one) == derived(b"k" * 32, *two)) == (one == two)


# ---- shapes and limits


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (5,), (2, 3), (2 * PAIRS - 1,), (2 * PAIRS + 1,)])
def test_every_shape_is_filled(shape: tuple[int, ...]) -> None:
    g = draw()
    for made in (g.uniform(*shape), g.normal(*shape), g.exponential(*shape), g.below(5, *shape), g.signs(*shape)):
        assert made.shape == shape and bool(torch.isfinite(made).all())
    assert g.normal(*shape).dtype == g.uniform(*shape).dtype == g.exponential(*shape).dtype == torch.float64
    assert g.below(5, *shape).dtype == g.signs(*shape).dtype == torch.int64
    assert g.normal(*shape).unique().numel() == math.prod(shape)  # nothing twice, and nothing left as memory had it


@pytest.mark.parametrize("word", [0, 1, 1023, 1024, 2047, LAST - 2048, LAST - 1024, LAST - 1, LAST])
def test_uniform_is_never_zero_or_one(word: int) -> None:
    (made,) = Scripted(word).uniform(1).tolist()
    assert 0 < made < 1 and made == pytest.approx(word / 2**63, abs=2**-52)
    assert math.isfinite(float(torch.logit(torch.tensor(made, dtype=torch.float64))))


def test_no_word_makes_a_normal_or_an_exponential_infinite() -> None:
    extremes = (0, 1, 2**62, LAST - 1, LAST)
    for script in itertools.product(extremes, repeat=3):  # high and low words of a radius, and an angle
        x = Scripted(*script).normal(2)
        assert bool(torch.isfinite(x).all()) and float(x.abs().max()) < 13.3
        (e,) = Scripted(*script).exponential(1).tolist()
        assert 0 <= e < 88.1
    assert float(Scripted(0).normal(1)) > 13.2  # as far as 126 bits go


def test_radii_far_out_lie_as_close_as_those_near_the_middle() -> None:
    """At 8.5 deviations two neighbours of a uniform with 53 bits are 0.08 apart, and none lies further out."""
    high, step = 2**10, 2**22  # 2^10 / 2^63 is the smallest of 53 bits; ``step`` in the low word is its last bit
    radii = torch.cat([Scripted(high, low, 0).normal(1) for low in range(0, 500 * step, step)])
    assert 8.5 < float(radii.min()) and float(radii.diff().max()) <= 0
    assert 0 < float(radii.diff().abs().max()) < 2**-48


# ---- distributions


@pytest.mark.parametrize("limit", [2, 7, 10, 24])
def test_below_is_unbiased(limit: int) -> None:
    made = draw(limit).below(limit, 1_000_000)
    assert 0 <= int(made.min()) and int(made.max()) == limit - 1
    assert stats.chisquare(torch.bincount(made, minlength=limit).numpy()).pvalue > RARE
    pairs = made[::2] * limit + made[1::2]  # and one draw does not tell the next
    assert stats.chisquare(torch.bincount(pairs, minlength=limit**2).numpy()).pvalue > RARE


def test_signs_are_fair() -> None:
    made = draw(1).signs(1_000_000)
    assert set(made.unique().tolist()) == {-1, 1} and abs(int(made.sum())) < 5 * 1000


@pytest.mark.parametrize("count", [0, 1, 2, 1000])
def test_a_permutation_is_one(count: int) -> None:
    assert sorted(draw().permutation(count).tolist()) == list(range(count))


def test_every_order_of_four_is_as_likely() -> None:
    g, seen = draw(4), dict.fromkeys(itertools.permutations(range(4)), 0)
    for _ in range(24_000):
        seen[tuple(g.permutation(4).tolist())] += 1
    assert stats.chisquare(list(seen.values())).pvalue > RARE


@pytest.mark.parametrize(("kind", "law"), [("uniform", "uniform"), ("exponential", "expon"), ("normal", "norm")])
def test_it_is_distributed_as_it_says(kind: str, law: str) -> None:
    made = getattr(draw(5), kind)(CHUNK).numpy()
    assert stats.kstest(made, law).pvalue > RARE
    assert stats.kstest(made + 0.01, law).pvalue < RARE  # the test can tell


def test_the_moments_of_an_exponential() -> None:
    made = draw(6).exponential(CHUNK)
    for power, (mean, second) in {1: (1, 2), 2: (2, 24), 3: (6, 720)}.items():
        assert float((made**power).mean()) == pytest.approx(mean, abs=5 * math.sqrt((second - mean**2) / CHUNK))


@pytest.fixture(scope="module")
def many() -> dict[str, float]:
    """Sums over twenty million normals, drawn a million at a time."""
    g, sums = draw(7), dict[str, float]()
    for _ in range(DRAWS):
        x = g.normal(CHUNK)
        found = {f"moment {k}": float((x**k).sum()) for k in (1, 2, 3, 4, 6)}
        found |= {f"above {k}": float((x > k).sum()) for k in (3, 4, 5)}
        found |= {f"below {k}": float((x < -k).sum()) for k in (3, 4, 5)}
        sums = {name: sums.get(name, 0.0) + value for name, value in found.items()}
    return sums


@pytest.mark.parametrize("power", [1, 2, 3, 4, 6])
def test_the_moments_of_a_normal(many: dict[str, float], power: int) -> None:
    """Mean, variance, skewness, kurtosis and the sixth; E x^2k = (2k - 1)!!."""
    n = DRAWS * CHUNK
    expected = 0 if power % 2 else math.prod(range(1, power, 2))
    spread = math.sqrt((math.prod(range(1, 2 * power, 2)) - expected**2) / n)
    assert many[f"moment {power}"] / n == pytest.approx(expected, abs=5 * spread)


@pytest.mark.parametrize("side", ["above", "below"])
@pytest.mark.parametrize("deviations", [3, 4, 5])
def test_the_tails_of_a_normal(many: dict[str, float], side: str, deviations: int) -> None:
    low, high = stats.binom.interval(1 - RARE, DRAWS * CHUNK, ndtr(-deviations))
    assert 0 < low <= many[f"{side} {deviations}"] <= high or (low == 0 and many[f"{side} {deviations}"] <= high)


def unrelated(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Neither values nor sizes correlate."""
    pairs = ((a, b), (a.square(), b.square()), (a.abs(), b), (a, b.abs()))
    return all(abs(float(torch.corrcoef(torch.stack(pair))[0, 1])) < 5 / math.sqrt(len(a)) for pair in pairs)


def echo(x: torch.Tensor) -> float:
    """The largest autocorrelation of all lags up to half the length, in deviations of one that is there by chance."""
    centred = (x - x.mean()) / x.std()
    found = torch.fft.irfft(torch.fft.rfft(centred, 2 * len(x)).abs().square())[1 : len(x) // 2 + 1]
    return float((found / torch.arange(len(x) - 1, len(x) - 1 - len(found), -1).sqrt()).abs().max())


def test_one_normal_tells_nothing_about_another() -> None:
    """Of one call at every distance, the two halves of Box and Muller, and two calls."""
    g = draw(8)
    x, later = g.normal(8 * PAIRS), g.normal(8 * PAIRS)
    half = len(x) // 2
    highest = -float(stats.norm.ppf(RARE / len(x)))
    assert all(echo(t) < highest for t in (x, x.square(), x.sign(), x.abs().log()))
    assert echo(torch.cat([x[:half], x[:PAIRS], later[: half - PAIRS]])) > highest  # an eighth that comes twice
    assert unrelated(x[:half], x[half:]) and unrelated(x, later)
    assert not unrelated(x, x + 99 * later) and not unrelated(x, x.abs() * later.sign())
    assert stats.kstest(torch.atan2(x[half:], x[:half]).numpy() / math.tau + 0.5, "uniform").pvalue > RARE
    assert stats.kstest((x[:half].square() + x[half:].square()).numpy() / 2, "expon").pvalue > RARE


def test_what_is_drawn_by_small_calls_is_as_independent() -> None:
    g = draw(9)
    x = torch.cat([g.normal(3) for _ in range(20_000)])
    highest = -float(stats.norm.ppf(RARE / len(x)))
    assert all(echo(t) < highest for t in (x, x.square(), x.sign())) and stats.kstest(x.numpy(), "norm").pvalue > RARE
