"""Spend a whole ε for every size at which one picture can be decoded.

    python -m tests.redteam.epsilon_by_resolution [--broken]

The site allows an ε for all of its pictures. The server asks at 8x8 until the client refuses, then at 9x9, 10x10, ...:
the same picture, in other pixels.
"""

import argparse
import tempfile
from contextlib import nullcontext
from pathlib import Path

from prunella.core.errors import PrunellaError
from tests.redteam.broken import accounts_of_pixels
from tests.redteam.site import Site, model, weights

SIDES = (8, 9, 10, 12)
BUDGET = 12.0


def answers(site: Site, side: int, most: int = 20) -> int:
    """How many rounds the client answers at this size."""
    for number in range(1, most + 1):
        try:
            site.ask("train", model(weights(side), number), dataset=f"imagefolder@1x{side}x{side}", defenses="dp-sgd")
        except PrunellaError as error:
            if "budget" not in str(error):
                raise
            return number - 1
    return most


def attack(home: Path, broken: bool) -> list[int]:
    """Rounds answered at each size in turn."""
    site = Site(home, **{"epsilon-budget": BUDGET, "require": f"model={'tests.redteam.nets:linear'}"})
    with accounts_of_pixels() if broken else nullcontext():
        return [answers(site, side) for side in SIDES]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broken", action="store_true", help="a build with an account a resolution: the control")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        found = attack(Path(home), chosen.broken)
    for side, number in zip(SIDES, found, strict=True):
        print(f"{side}x{side}: {number} rounds answered under one budget of ε = {BUDGET:g}")
    return int(sum(found[1:]) > 0)


if __name__ == "__main__":
    raise SystemExit(main())
