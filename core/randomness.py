"""Randomness is an argument, and there are two kinds of it that never mix.

*Public* (initial weights, partitions, canaries, samples of clients): ``stream``, a ``torch.Generator`` that anybody who
knows the run's seed can draw again.

>>> a = torch.rand(2, generator=stream(1, round=3, client=0, purpose="batch"))
>>> b = torch.rand(2, generator=stream(1, round=3, client=0, purpose="batch"))
>>> c = torch.rand(2, generator=stream(1, round=3, client=0, purpose="noise"))
>>> bool((a == b).all()), bool((a == c).all())
(True, False)

*Private* (all that a defense or the sampler of private examples draws): ``PrivateGenerator``, AES-256 in counter mode
under a 256-bit key. A ``torch.Generator`` on a CPU is a Mersenne twister that keeps 32 bits of its seed: whoever sees
one noised update tries all of them in minutes. The two are different types, so that mypy refuses one for the other.

Numbers are made from 63-bit words without rejection, so that the time of a draw does not depend on what is drawn.
``normal`` is Box and Muller's (1958): the radius has 126 random bits, the angle 63. The draws reach 13 deviations, and
neighbouring values are less than 2^-48 deviations apart wherever they lie; a plain 53-bit uniform would leave gaps in
the tail. Who adds such noise rounds the sum to a grid that is much coarser than that (``privacy.gaussian``), because
the low bits of a floating-point sum tell what was added (Mironov, CCS 2012; Holohan and Braghin, 2021).

>>> draw = PrivateGenerator(bytes(32))
>>> draw.normal(3).dtype, sorted(draw.permutation(4).tolist()), bool(draw.uniform(9).max() < 1)
(torch.float64, [0, 1, 2, 3], True)
"""

import hashlib
import hmac
import math
import secrets

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

KEY_BYTES = 32
PAIRS = 1 << 16  # normals are made this many pairs at a time, which stay in the processor's cache
_WORD = 2**63 - 1
_HEAD, _WORDS = 24, 624  # of a Mersenne twister's state as PyTorch keeps it: bytes before its words, and these


def stream(seed: int, *, round: int = 0, client: int = 0, purpose: str) -> torch.Generator:
    """A CPU generator that depends on every argument through SHA-256, so that two purposes never share a stream.

    Public: anybody who knows ``seed`` draws the same numbers, and it keeps 32 bits only. Nothing private may rest on
    it.
    """
    digest = hashlib.sha256(f"{seed}|{round}|{client}|{purpose}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


class PrivateGenerator:
    """Draws that cannot be repeated without ``key`` (32 bytes). One key gives one sequence, on every machine.

    Every method returns CPU tensors. Raises ``ValueError`` for a key of another length.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"a private generator needs a key of {KEY_BYTES} bytes")
        self._cipher = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()

    def _words(self, count: int) -> Tensor:
        """``count`` uniform int64 in [0, 2^63)."""
        if not count:
            return torch.empty(0, dtype=torch.int64)
        drawn = torch.frombuffer(bytearray(self._cipher.update(bytes(8 * count))), dtype=torch.int64)
        return drawn.bitwise_and_(_WORD)

    def uniform(self, *shape: int) -> Tensor:
        """Uniform in (0, 1), float64, 52 random bits each: a half more than 53 bits would be rounded, and up to 1."""
        words = self._words(math.prod(shape)) >> 11
        return words.double().add_(0.5).mul_(2.0**-52).view(shape)

    def below(self, limit: int, *shape: int) -> Tensor:
        """Uniform int64 in [0, ``limit``). The remainder favours small numbers by less than ``limit`` / 2^63."""
        return self._words(math.prod(shape)).remainder_(limit).view(shape)

    def signs(self, *shape: int) -> Tensor:
        """-1 or 1, int64."""
        return self.below(2, *shape).mul_(2).sub_(1)

    def permutation(self, count: int) -> Tensor:
        """0 to ``count`` - 1 in random order, int64."""
        order: Tensor = self._words(count).argsort(stable=True)
        return order

    def _fine(self, count: int) -> Tensor:
        """Uniform in (0, 1] with 126 random bits: exact to float64's 53 digits however small."""
        high, low = self._words(2 * count).double().view(2, count).unbind()
        return low.add_(0.5).mul_(2.0**-63).add_(high).mul_(2.0**-63)

    def exponential(self, *shape: int) -> Tensor:
        """Exponential with mean 1, float64."""
        return self._fine(math.prod(shape)).log_().neg_().view(shape)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal, float64."""
        count = math.prod(shape)
        pairs = (count + 1) // 2
        drawn = torch.empty(2, pairs, dtype=torch.float64)
        for at in range(0, pairs, PAIRS):
            first, second = drawn[0, at : at + PAIRS], drawn[1, at : at + PAIRS]
            radius = self._fine(len(first)).log_().mul_(-2).sqrt_()
            angle = self._words(len(first)).double().mul_(2 * math.pi * 2.0**-63)
            torch.mul(radius, angle.cos(), out=first)
            torch.mul(radius, angle.sin_(), out=second)
        return drawn.view(-1)[:count].view(shape)


def unseeded(device: torch.device) -> torch.Generator:
    """A generator of PyTorch's for noise that others draw, begun by the operating system: of a seed it would keep 32
    bits on the CPU, and one that a script sets is the same for everybody.

    >>> first, second = (torch.rand(4, generator=unseeded(torch.device("cpu"))) for _ in range(2))
    >>> torch.equal(first, second)
    False
    """
    generator = torch.Generator(device)
    if device.type != "cpu":
        return generator.manual_seed(secrets.randbits(64))  # all of the key of a GPU's counter
    state = generator.get_state()
    words = np.frombuffer(secrets.token_bytes(4 * _WORDS), np.uint32).astype(np.int64)
    state[_HEAD : _HEAD + 8 * _WORDS] = torch.from_numpy(words).view(torch.uint8)
    return generator.set_state(state)


def derived(key: bytes, *context: str) -> bytes:
    """A key of 256 bits for one use of ``key``: HMAC-SHA-256 over the parts of ``context``, each with its length."""
    message = b"".join(len(part.encode()).to_bytes(8, "big") + part.encode() for part in context)
    return hmac.digest(key, message, "sha256")


def rehearsal(seed: int, *, round: int = 0, client: int = 0, purpose: str) -> PrivateGenerator:
    """The draws of a defense from a public seed: for canaries, benchmarks and tests, which protect no private data.

    >>> bool((rehearsal(0, purpose="a").uniform(2) == rehearsal(0, purpose="a").uniform(2)).all())
    True
    """
    return PrivateGenerator(hashlib.sha256(f"rehearsal|{seed}|{round}|{client}|{purpose}".encode()).digest())
