"""Whether a model's file says what the checkpoint says: its runtime is asked in another process (``runtimes``).

``difference`` is the largest one of two outputs on ``BATCH`` random images, relative to the largest output where that
exceeds 1. ``agreement`` and ``accuracy`` are of test images: the share that both give the same class, and that the file
gets right.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

from prunella.deploy.errors import LaunchError
from prunella.deploy.tools import runtimes
from prunella.tasks.examples import Examples

BATCH, PASSES = 64, 50


@dataclass(frozen=True)
class Original:
    """Random ``images`` [``BATCH``, C, H, W] and the checkpoint's logits of them, and where there are test examples,
    those and the logits of them."""

    images: Tensor
    expected: Tensor
    test: Examples | None = None
    scored: Tensor | None = None

    @property
    def accuracy(self) -> float | None:
        return None if self.test is None or self.scored is None else _share(self.scored.argmax(1), self.test.y)


@dataclass(frozen=True)
class Verified:
    """What a file holds. ``cost`` is what ``deploy.tools.runtimes`` measured: seconds and bytes."""

    file: str
    bytes: int
    difference: float
    agreement: float | None
    accuracy: float | None
    cost: Mapping[str, float]

    def said(self, original: Original) -> str:
        """How it compares with the checkpoint, for the user."""
        told = f"{self.file}, {_megabytes(self.bytes)}, outputs within {self.difference:.1e} of the checkpoint's"
        if self.accuracy is None or self.agreement is None or original.test is None:
            return told
        of = f"{len(original.test):,} test images"
        same = f"; {self.agreement:.1%} of {of} in the same class"
        return f"{told}{same}, accuracy {self.accuracy:.4f} (checkpoint {original.accuracy:.4f})"

    def costs(self) -> str:
        """Size, time and memory, for the user."""
        cost = {name: 1000 * self.cost[name] for name in ("least", "median", "most")}
        took = f"{cost['median']:.2f} ms an image ({cost['least']:.2f} at least, {cost['most']:.2f} in three of four)"
        memory = f"at most {_megabytes(self.cost['peak'])}, {_megabytes(self.cost['runtime'])} of them the runtime's"
        return (
            f"{self.file:16} {_megabytes(self.bytes):>9}  {took}  {memory if self.cost['peak'] else 'memory unknown'}"
        )


def verified(path: Path, original: Original, passes: int = 0) -> Verified:
    """Ask the file for the logits that the original has. Raises ``LaunchError`` where its runtime cannot run it."""
    count, test = len(original.images), original.test
    images = original.images if test is None else torch.cat([original.images, test.x])
    outputs, cost = _answers(path, images, passes)
    expected, got = original.expected, outputs[:count]
    apart = float((expected - got).abs().max() / expected.abs().max().clamp(min=1.0))
    if test is None or original.scored is None:
        return Verified(path.name, path.stat().st_size, apart, None, None, cost)
    chosen = outputs[count:].argmax(1)
    same, right = _share(chosen, original.scored.argmax(1)), _share(chosen, test.y)
    return Verified(path.name, path.stat().st_size, apart, same, right, cost)


def _answers(path: Path, images: Tensor, passes: int) -> tuple[Tensor, dict[str, float]]:
    with TemporaryDirectory() as folder:
        given, answered = Path(folder) / "images.npy", Path(folder) / "outputs.npy"
        np.save(given, images.numpy())
        asked = [runtimes.__file__, str(path), str(given), str(answered), str(passes)]
        done = subprocess.run([sys.executable, "-P", *asked], capture_output=True, text=True, check=False)
        if done.returncode:
            why = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
            raise LaunchError(f"{path.name} cannot be run, so it was not written: {why}")
        return torch.from_numpy(np.load(answered)), json.loads(done.stdout.strip().splitlines()[-1])


def _share(one: Tensor, other: Tensor) -> float:
    return float((one == other).double().mean())


def _megabytes(count: float) -> str:
    return f"{count / 1e6:.2f} MB" if count < 1e7 else f"{count / 1e6:.0f} MB"
