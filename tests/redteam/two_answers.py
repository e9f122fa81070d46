"""Ask one client the same thing in two ways, and subtract: what noise is left when both answers share it?

    python -m tests.redteam.two_answers [--broken]

Each pair of questions differs in something that changes the answer. Under dp-sgd a class is silenced, so that its row
of an update is noise and nothing else: if it is the same in both answers, their difference is free of noise. Behind a
channel, whose noise lies on the images, the linear layer tells the noisy image of each answer exactly; where the noise
is shared, the difference of two images leaves in clear.
"""

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from tests.redteam.broken import thin_digest
from tests.redteam.site import Site, weights

DP: dict[str, Any] = {"defenses": "dp-sgd"}
CHANNEL: dict[str, Any] = {"defenses": "channel-natural", "channel-natural.kappa": 5.0}
CLIENTS = 4
PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "scheme": ({}, {"strategy": "magnitude"}),
    "the scheme's section": ({"strategy": "prunefl"}, {"strategy": "prunefl", "prunefl.initial-interval": 3}),
    "order of the examples": ({}, {"seed": 1}),
    "partition": ({}, {"partition": "iid"}),
    "who evaluates": ({}, {"evaluation": "clients"}),
    "the model's code": ({}, {"model": "tests.redteam.nets:scaled"}),
    "learning rate": ({}, {"learning_rate": 0.5}),
    "momentum": ({}, {"momentum": 0.9}),
    "size of a picture": ({}, {"dataset": "imagefolder@1x8x8:/elsewhere"}),
    "the run's name and another model": ({}, {"run_dir": "/x/other", "weights": 0.01}),
}


def _rows(site: Site, run: dict[str, Any]) -> Tensor:
    """The silenced row of an update, in units of the learning rate."""
    chosen = {"learning_rate": 1.0, **DP, **run}
    params = weights()
    params["1.weight"][1] += chosen.pop("weights", 0.0)
    return site.update(params, **chosen)["1.weight"][0] / chosen["learning_rate"]


def shared_noise(home: Path) -> Iterator[tuple[str, bool]]:
    """For each pair whether its two answers came with one noise."""
    for number, (name, (one, two)) in enumerate(PAIRS.items()):
        site = Site(home / str(number), count=10)
        a, b = _rows(site, one), _rows(site, two)
        yield name, bool(cosine_similarity(a, b, dim=0) > 0.9)


def noisy_image(site: Site, **run: Any) -> Tensor:
    """The image behind a channel as an update of one example tells it: weight gradient over bias gradient."""
    update = site.update(weights(), **CHANNEL, **run)
    row = int(update["1.bias"].abs().argmax())
    return update["1.weight"][row] / update["1.bias"][row]


def image_difference(home: Path) -> float:
    """The most that the difference of two answers looks like the difference of two of the client's images: cosine."""
    site = Site(home, count=10)
    one, other = (noisy_image(site, evaluation=who) for who in ("server", "clients"))  # other examples come first
    real = site.images.flatten(1)
    differences = torch.stack([a - b for a in real for b in real if not torch.equal(a, b)])
    return float(cosine_similarity((one - other)[None], differences).max())


def image_differences(home: Path) -> float:
    """The best of several clients: at one in ten the same example came first in both answers, and nothing shows."""
    return max(image_difference(home / str(client)) for client in range(CLIENTS))


def attack(home: Path, broken: bool) -> tuple[list[str], float]:
    """The pairs that share noise, and how clearly images differ."""
    with thin_digest() if broken else nullcontext():
        shared = [name for name, same in shared_noise(home / "dp") if same]
        return shared, image_differences(home / "channel")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broken", action="store_true", help="a build with a thin digest: the positive control")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        shared, likeness = attack(Path(home), chosen.broken)
    print(f"{len(shared)} of {len(PAIRS)} pairs share their noise: {', '.join(shared) or 'none'}")
    print(f"behind a channel, the difference of two answers and of two images: cosine {likeness:.3f}")
    return int(bool(shared) or likeness > 0.95)


if __name__ == "__main__":
    raise SystemExit(main())
