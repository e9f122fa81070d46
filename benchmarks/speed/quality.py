"""What the inversion engine and the public library breaching 0.1.2 rebuild of the same updates, in as many iterations.

    python -m prunella.benchmarks.speed.quality --data /data
    python -m prunella.benchmarks.speed.quality --data /data --settings fedavg-4x4 --images 2 --iterations 40

Undefended updates of ``cnn``, ``lenet-zhu`` and ``resnet10`` at untrained weights, CIFAR-10's test images, labels
known, one start:

* ``one-image``, ``lenet``: one image, one step;
* ``batch-norm``: four images in one step of a network with batch norm in training mode;
* ``fedavg-4x1``, ``fedavg-4x4``: four steps at a rate of 0.1, of one image and of four.

Arms: breaching's Inverting Gradients; ``same``, ``reconstruct`` with the same settings (cosine, TV 0.2, signed Adam);
``sgi``, ``reconstruct`` at its defaults, without TV; ``portfolio``, what an audit asks where no attack is named, at its
own budget instead of ``--iterations`` and with training images as an audit's public ones. Mean PSNR over the updates of
``--images`` seeds, each best matching assigned, the difference from breaching's with a 95 % interval over updates
(bootstrap), and processor seconds an update on one thread. Needs ``--data`` (or the network) for the images.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.stats import bootstrap
from torch import Tensor

from prunella.attacks import portfolio
from prunella.attacks.engine.inversion import Inversion, reconstruct
from prunella.attacks.score.control import matched_view
from prunella.attacks.score.leakage import score
from prunella.attacks.sgi import Sgi
from prunella.benchmarks.engine.images import chosen_images, client_images, first, part, task_of
from prunella.benchmarks.speed.bench import command, show_table
from prunella.benchmarks.speed.peer import installed, inverting_gradients
from prunella.core.memory import keep_freed_memory
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch, Reconstruction, ServerView
from prunella.server.audit.shadow import RunShadow, SentRound, template_of
from prunella.tasks.data import Partition
from prunella.tasks.examples import Examples
from prunella.tasks.task import Task, initial


class UpdateSetting(NamedTuple):
    """A model, and its client's steps and images a step."""

    model: str
    steps: int
    batch: int


SETTINGS = {
    "one-image": UpdateSetting("cnn", 1, 1),
    "lenet": UpdateSetting("lenet-zhu", 1, 1),
    "batch-norm": UpdateSetting("resnet10", 1, 4),
    "fedavg-4x1": UpdateSetting("cnn", 4, 1),
    "fedavg-4x4": UpdateSetting("cnn", 4, 4),
}
RATE, BREACHING, PUBLIC = 0.1, "breaching", 1000
LIKE_BREACHING = Inversion(optimizer="adam", tv=0.2, tolerance=0.0)
Arm = Callable[[ServerView, Task, int], tuple[float, Tensor]]


def attacked(setting: UpdateSetting, seed: int, data: Path | None) -> tuple[Task, ServerView, PrivateBatch]:
    """An undefended update of a client of its own, whose labels the attacker knows, and what it was made from."""
    task = task_of({"model": setting.model, "dataset": "cifar10"}, data)
    params, buffers = initial(task, seed)
    many = setting.steps * setting.batch
    images = chosen_images("cifar10", data, seed, many)
    received = ServerView(
        params,
        {},
        buffers=buffers,
        num_examples=many,
        labels=images.y,
        steps=setting.steps,
        batch_size=setting.batch,
        learning_rate=RATE,
    )
    steps = [part(images, start, setting.batch) for start in range(0, many, setting.batch)]
    view = matched_view(task, received, [PrivateBatch(step.x, step.y) for step in steps])
    return task, view, PrivateBatch(images.x, images.y)


def engine(settings: Inversion) -> Arm:
    """``reconstruct`` with ``settings``, as long as it is told to."""

    def arm(view: ServerView, task: Task, iterations: int) -> tuple[float, Tensor]:
        asked = replace(settings, iterations=iterations, patience=iterations + 1)
        begin = time.process_time()
        found = reconstruct(view, task, asked, stream(0, purpose="benchmark"))
        return time.process_time() - begin, found.x

    return arm


def default(public: Examples) -> Arm:
    """The portfolio, which ``iterations`` do not bound, with the shadow that an audit gives it."""

    def arm(view: ServerView, task: Task, iterations: int) -> tuple[float, Tensor]:
        shadow = RunShadow({"strategy": "random"}, task, template_of(view, ()), SentRound(0), public)
        begin = time.process_time()
        found = portfolio.reconstruct(view, task, portfolio.Portfolio(), stream(0, purpose="benchmark"), shadow)
        return time.process_time() - begin, found.x

    return arm


def arms(data: Path | None) -> dict[str, Arm]:
    """What is compared, by name; the first is what the others are compared with."""
    train = client_images("cifar10", data, Partition("iid", clients=1))
    ours = {"same": engine(LIKE_BREACHING), "sgi": engine(Sgi())}
    return {BREACHING: inverting_gradients, **ours, "portfolio": default(first(train, PUBLIC))}


def compare(setting: UpdateSetting, images: int, iterations: int, data: Path | None) -> dict[str, Any]:
    """Of every arm the PSNR of each update, and the mean processor seconds."""
    compared = arms(data)
    psnr, seconds = {name: list[float]() for name in compared}, {name: list[float]() for name in compared}
    for seed in range(images):  # in turns: on a shared machine all meet the same neighbours
        task, view, truth = attacked(setting, seed, data)
        for name, arm in compared.items():
            took, x = arm(view, task, iterations)
            psnr[name].append(score(Reconstruction(x, truth.y, 0.0, iterations), truth).psnr.mean)
            seconds[name].append(took)
    return {"psnr": psnr, "seconds": {name: float(np.mean(took)) for name, took in seconds.items()}}


def ahead(ours: list[float], theirs: list[float]) -> str:
    """The mean difference in dB, and its 95 % interval over updates.

    >>> ahead([3.0, 3.0], [1.0, 1.0])
    '+2.0 [+2.0, +2.0]'
    """
    gain = np.subtract(ours, theirs)
    low = high = gain.mean()
    if np.ptp(gain) > 0:
        low, high = bootstrap((gain,), np.mean, method="percentile", rng=0).confidence_interval
    return f"{gain.mean():+.1f} [{low:+.1f}, {high:+.1f}]"


def measure(options: Any) -> dict[str, Any]:
    """The result of a command line."""
    torch.set_num_threads(1)
    keep_freed_memory()  # as an audit does; breaching gains by it as well
    with installed():
        found = {
            name: compare(SETTINGS[name], options.images, options.iterations, options.data) for name in options.settings
        }
    return {"settings": found, "iterations": options.iterations}


def show(result: dict[str, Any]) -> None:
    rows = []
    for name, found in result["settings"].items():
        for arm, psnr in found["psnr"].items():
            gain = "" if arm == BREACHING else ahead(psnr, found["psnr"][BREACHING])
            rows.append((name, arm, f"{np.mean(psnr):.1f}", gain, f"{found['seconds'][arm]:.1f}"))
    show_table(f"{result['iterations']} iterations", "setting, attack, PSNR, ahead by, seconds", rows)


if __name__ == "__main__":
    names = {"nargs": "+", "choices": SETTINGS, "default": list(SETTINGS)}
    data = {"type": Path, "default": None}
    command(__doc__, measure, show, {"--settings": names, "--iterations": 300, "--images": 8, "--data": data})
