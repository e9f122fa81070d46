"""``prunella prior``: trains the network that the attack ggl or rog needs, on public images.

Public images are, by default, a dataset's test examples without the canaries of a run with the same seed: what a server
has, and nothing that it attacks. With ``train`` they are all training examples, for a dataset that no client holds.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from prunella.attacks import ggl, rog
from prunella.attacks.score.leakage import mse
from prunella.core.folders import unwritable
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch
from prunella.deploy.errors import UsageError, writable
from prunella.server.audit.canary import canary_count
from prunella.tasks.data import Partition, describe, load_client, load_test
from prunella.tasks.examples import Examples
from prunella.tasks.public import in_shape
from prunella.tasks.task import Task

FILE = "prior.safetensors"  # where no other is named
_HELD_OUT = 10  # one public image in this many is held out, to measure the error
_MOST = 6000
_SAMPLES = 20_000  # images seen while rog trains: about half a minute at 32x32
Kind = Literal["ggl", "rog"]


@dataclass(frozen=True)
class LearntPrior:
    """``error`` is the mean squared error on public images that were held out; ``without``, of what it improves on."""

    kind: Kind
    images: int
    seconds: float
    error: float
    without: float
    file: Path

    def lines(self) -> list[str]:
        """What to tell the user."""
        what = {"ggl": ("re-made", "the mean image of their class"), "rog": ("repaired", "enlarged only")}[self.kind]
        return [
            f"learnt     {self.kind} from {self.images} public images in {self.seconds:.0f} s",
            f"held out   error {self.error:.4f} {what[0]}, {self.without:.4f} {what[1]}",
            f"prior      {self.file}: use it with --attack {self.kind} -c {self.kind}.prior={self.file}",
        ]


def public_images(dataset: str, split: Literal["test", "train"], data: Path | None, seed: int) -> Examples:
    """Public examples in an order drawn from ``seed``. Raises ``UsageError`` where there are too few."""
    found = load_client(dataset, Partition("iid", clients=1), 0, data) if split == "train" else load_test(dataset, data)
    if found is None:
        raise UsageError(f"{dataset} has no test examples: use --split train with data that no client holds")
    order = torch.randperm(len(found.y), generator=stream(seed, purpose="canary"))
    rows = (order[canary_count(len(order)) :] if split == "test" else order)[:_MOST]
    if len(rows) < 2 * _HELD_OUT:
        raise UsageError(f"{dataset} has only {len(rows)} images to learn from: name a larger one with --dataset")
    return Examples(found.x[rows], found.y[rows])


def learn(kind: Kind, public: Examples, classes: int, out: Path, seed: int) -> LearntPrior:
    """Train on nine tenths of the public examples, judge on the rest, write the file."""
    begin, few = time.perf_counter(), len(public.y) // _HELD_OUT
    judged, rest = Examples(public.x[:few], public.y[:few]), PrivateBatch(public.x[few:], public.y[few:])
    draw = stream(seed, purpose=f"prior {kind}")
    if kind == "ggl":
        network = ggl.train(rest, classes, draw)
        with torch.no_grad():
            made = network.decode(network.encode(judged.x, judged.y)[0], judged.y)
        means = {int(y): rest.x[rest.y == y].mean(0) for y in torch.unique(rest.y)}
        without = torch.stack([means.get(int(y), rest.x.mean(0)) for y in judged.y])
        ggl.save(out, network)
    else:
        repair = rog.train(rest.x, draw, epochs=max(2, min(20, _SAMPLES // len(rest.x))))
        with torch.no_grad():
            without = repair.enlarge(torch.nn.functional.interpolate(judged.x, repair.small(), mode="area"))
            made = repair(without)
        rog.save(out, repair)
    errors = [sum(mse(judged.x, x)) / few for x in (made, without)]
    return LearntPrior(kind, len(rest.y), time.perf_counter() - begin, errors[0], errors[1], out)


def check_places(out: Path, data: Path | None) -> None:
    """Raise ``UsageError`` before minutes of training, where there is no ``data`` or ``out`` takes no file."""
    if data is not None and not data.is_dir():
        raise UsageError(f"there is no directory {data}: name that of the public images with --data")
    if out.is_dir():
        raise UsageError(f"cannot write {out}: it is a folder: name a file in it with --out, such as {out / FILE}")
    if reason := unwritable(out.parent):
        raise UsageError(f"cannot write {out}: {reason}: choose another with --out")


def prior(
    kind: Kind, dataset: str, out: Path, *, split: Literal["test", "train"], data: Path | None, like: str, seed: int
) -> LearntPrior:
    """Learn ``kind`` from ``dataset``, in the shape and classes of the dataset ``like`` where one is named."""
    check_places(out, data)
    shape, classes = describe(like or dataset, None if like else data)
    public = in_shape(public_images(dataset, split, data, seed), Task("", shape, classes))
    with writable(out):
        return learn(kind, public, classes, out, seed)
