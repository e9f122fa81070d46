"""Ask a client under dp-sgd, one overflow at a time, how bright each pixel of a private picture is.

    python -m tests.redteam.pixel_oracle [--broken]

One weight and one bias are so large that their logit overflows where the pixel is brighter than a threshold, and the
example's gradient is then not finite. If that shows (an error, another text, a missing charge), four questions tell one
of 17 brightnesses, and the whole picture costs about 266 questions and no ε.
"""

import argparse
import tempfile
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import torch

from prunella.core.errors import PrunellaError
from tests.redteam.broken import late_charge
from tests.redteam.site import SIDE, Site, psnr, weights

LEVELS = 16
LARGEST = torch.finfo(torch.float32).max


def overflows(site: Site, pixel: int, threshold: float, round: int) -> bool:
    """What the server takes from the reply, which is all it sees: whether the pixel is above the threshold."""
    params = weights()
    params["1.weight"][1, pixel], params["1.bias"][1] = LARGEST, LARGEST * (1 - threshold)
    try:
        update = site.update(params, round, defenses="dp-sgd")
    except PrunellaError:
        return True
    return not all(bool(torch.isfinite(t).all()) for t in update.values())


def attack(home: Path, broken: bool, pixels: int = SIDE * SIDE) -> tuple[float, int, int]:
    """Likeness of the picture (dB), questions asked, and charges on the account."""
    site, questions = Site(home), 0
    found = torch.zeros(SIDE * SIDE)
    # The look at planted models refuses some of these by chance, which tells nothing: what if it saw none of them?
    with late_charge() if broken else nullcontext(), patch("prunella.client.app.refuse_planted"):
        for pixel in range(pixels):
            low, high = 0, LEVELS + 1
            while high - low > 1:
                middle = (low + high) // 2
                questions += 1
                if overflows(site, pixel, (middle - 0.5) / LEVELS, questions):
                    low = middle
                else:
                    high = middle
            found[pixel] = low / LEVELS
    return psnr(found[:pixels], site.images[0].flatten()[:pixels]), questions, len(site.charges())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broken", action="store_true", help="a build that charges late: the positive control")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        likeness, questions, charges = attack(Path(home), chosen.broken)
    print(f"{questions} questions, {charges} charges, the picture at {likeness:.1f} dB")
    return int(likeness > 30 or charges < questions)


if __name__ == "__main__":
    raise SystemExit(main())
