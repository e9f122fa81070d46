"""Rebuild a picture out of nothing but the answers to audits.

    python -m tests.redteam.audit_oracle [--broken]

Every round trains on one picture. The server sends two images for it: black, and black with one pixel lit. The
difference of the two scores is a linear equation in that pixel: MSE(x, e_j) - MSE(x, 0) = (1 - 2 x_j) / pixels. Where
only words come back, the server does the best it can with them: it starts from the image that was scored highest among
all it has sent.
"""

import argparse
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import torch
from flwr.app import RecordDict
from torch import Tensor

from prunella.attacks.score.level import ORDER
from tests.redteam.broken import talkative_audits
from tests.redteam.site import SIDE, Site, guess, model, psnr, weights

PIXELS = SIDE * SIDE


def told(site: Site, image: Tensor, round: int) -> RecordDict:
    return site.ask("query.audit", guess(image[None], round), defenses="none")


def attack(
    home: Path, broken: bool, consent: str = "scores", pixels: Sequence[int] = range(PIXELS)
) -> tuple[float, int]:
    """The best likeness (dB) of ``pixels`` that the server gets, and how many answers it was given."""
    site, answered = Site(home, audit=consent), 0
    found, best = torch.full((1, SIDE, SIDE), 0.5), -1
    with talkative_audits() if broken else nullcontext():
        for pixel in pixels:
            site.ask("train", model(weights(), pixel + 1), defenses="none")
            images = [torch.zeros(1, SIDE, SIDE), torch.zeros(1, SIDE, SIDE)]
            images[1].view(-1)[pixel] = 1.0
            replies = [told(site, image, pixel + 1) for image in images]
            answered += sum(reply["audit"]["outcome"] == "scored" for reply in replies)
            scores = [reply.metric_records.get("scores") for reply in replies]
            if None not in scores:
                low, high = (float(str(score["mse.mean"])) for score in scores if score is not None)
                found.view(-1)[pixel] = min(max((1 - PIXELS * (high - low)) / 2, 0.0), 1.0)
                continue
            words = [ORDER.index(reply["audit"].get("level", "unknown")) for reply in replies]  # type: ignore[arg-type]
            if max(words) > best:
                best, found = max(words), images[words.index(max(words))].clone()
    return psnr(found.flatten()[pixels], site.images[0].flatten()[pixels]), answered


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broken", action="store_true", help="a build that scores freely: the positive control")
    parser.add_argument("--consent", default="scores", choices=("deny", "scores", "numbers"))
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        likeness, answered = attack(Path(home), chosen.broken, "numbers" if chosen.broken else chosen.consent)
    print(f"{answered} answers, the picture at {likeness:.1f} dB")
    return int(likeness > 20)


if __name__ == "__main__":
    raise SystemExit(main())
