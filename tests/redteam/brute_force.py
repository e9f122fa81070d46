"""Try every seed that a ``torch.Generator`` can tell apart, and subtract the noise.

    python -m tests.redteam.brute_force                     2^32 seeds against the release (20 minutes on one core)
    python -m tests.redteam.brute_force --broken --bits 24  against a build whose noise is seeded with 24 bits

One reply of a client under dp-sgd (batch 1, one step). The server has silenced one class, so that its row of the update
is noise and nothing else. PyTorch turns two outputs of its Mersenne twister into two normals (Box and Muller, in groups
of 16), so the first and the ninth of that row name 24 bits of the first output. For every seed the first output needs
three words of the twister's initial state; whichever seeds agree are drawn in full and compared.
"""

import argparse
import math
import tempfile
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tests.redteam.broken import seeded_noise
from tests.redteam.site import RATE, SIDE, Site, psnr, weights

BLOCK = 1 << 14  # seeds at a time: they stay in the processor's cache
SLACK = 96  # of 2^24: what rounding to float32 and to the grid can move the word by
_UPPER, _LOWER, _TWIST, _STEP = 0x80000000, 0x7FFFFFFF, 0x9908B0DF, 1812433253


def first_words(seeds: np.ndarray) -> np.ndarray:
    """The first output of mt19937 for each of ``seeds`` [n] uint32."""
    state, moved = seeds.copy(), np.empty_like(seeds)
    kept = {0: seeds.copy()}
    for number in range(1, 398):
        np.right_shift(state, 30, out=moved)
        np.bitwise_xor(state, moved, out=state)
        np.multiply(state, np.uint32(_STEP), out=state)
        np.add(state, np.uint32(number), out=state)
        if number == 1:
            kept[1] = state.copy()
    mixed = (kept[0] & np.uint32(_UPPER)) | (kept[1] & np.uint32(_LOWER))
    word = state ^ (mixed >> 1) ^ ((mixed & 1) * np.uint32(_TWIST))
    word ^= word >> 11
    word ^= (word << 7) & np.uint32(0x9D2C5680)
    word ^= (word << 15) & np.uint32(0xEFC60000)
    return np.asarray(word ^ (word >> 18))


def search(noise: Tensor, bits: int) -> int | None:
    """The seed below 2^``bits`` whose first normals are ``noise`` [16 or more], or None."""
    radius, wanted = float(torch.hypot(noise[0], noise[8])), 2.0**24
    target = round((1 - math.exp(-(radius**2) / 2)) * wanted)
    for begin in range(0, 1 << bits, BLOCK):
        seeds = np.arange(begin, min(begin + BLOCK, 1 << bits), dtype=np.uint32)
        words = (first_words(seeds) & 0xFFFFFF).astype(np.int64)
        for seed in seeds[np.abs(words - target) <= SLACK].tolist():
            drawn = torch.randn(len(noise), generator=torch.Generator().manual_seed(seed)).double()
            if torch.allclose(drawn[:16], noise[:16].double(), atol=1e-4):
                return int(seed)
    return None


def attack(home: Path, bits: int, broken: bool) -> tuple[int | None, float]:
    """The seed, if one was found, and how near the image is that came out, in dB."""
    site = Site(home)
    with seeded_noise(bits) if broken else nullcontext():
        update = site.update(weights(), defenses="dp-sgd")
    noised = torch.cat([t.flatten() for t in update.values()]).double() / -RATE
    seed = search(noised[: SIDE * SIDE], bits)
    if seed is None:
        return None, psnr(noised[SIDE * SIDE : 2 * SIDE * SIDE].clamp(0, 1), site.images[0].flatten())
    clean = noised - torch.randn(len(noised), generator=torch.Generator().manual_seed(seed)).double()
    row = clean[SIDE * SIDE : 2 * SIDE * SIDE].abs()
    return seed, psnr((row / row.max()).clamp(0, 1), site.images[0].flatten())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bits", type=int, default=32)
    parser.add_argument("--broken", action="store_true", help="a build with seeded noise: the positive control")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        seed, likeness = attack(Path(home), chosen.bits, chosen.broken)
    print(f"{'no seed' if seed is None else f'seed {seed}'} of 2^{chosen.bits}; the image at {likeness:.1f} dB")
    return int(seed is not None)


if __name__ == "__main__":
    raise SystemExit(main())
