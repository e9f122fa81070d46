"""The inversion engine beside the public library breaching 0.1.2: milliseconds per iteration and start, as ratios.

    python -m prunella.benchmarks.speed.attack         # every model; PSNR means little after so few iterations
    python -m prunella.benchmarks.speed.attack --models lenet-zhu --iterations 300

Both as their users call them: ``attacks.engine.inversion.reconstruct`` on a view with known labels, with one start and
with eight, and breaching's Inverting Gradients with one. Same machine, model, images (scikit-learn's digits, resized),
TV 0.2, signed Adam, iteration count, one thread, both in one process, taking turns; processor time, the least of
several runs. The PSNR is the mean over ``--images`` of breaching's and of the engine's reconstruction from one start,
each from its own.
"""

import time
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from prunella.attacks.engine.inversion import Inversion, reconstruct
from prunella.attacks.score.control import undefended_view
from prunella.attacks.score.leakage import psnr
from prunella.benchmarks.speed.bench import command, show_table
from prunella.benchmarks.speed.peer import installed, inverting_gradients
from prunella.core.memory import keep_freed_memory
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch, ServerView
from prunella.tasks.public import digits, in_shape
from prunella.tasks.task import Task, initial

MODELS = {"lenet-zhu": (3, 32, 32), "conv-2": (1, 28, 28), "resnet18": (3, 32, 32)}
TV = 0.2
STARTS = 8


@dataclass(frozen=True)
class ModelViews:
    """Undefended views of one image each at one model's first weights."""

    task: Task
    truth: Tensor
    views: list[ServerView]


def case(model: str, shape: tuple[int, int, int], images: int) -> ModelViews:
    task = Task(model, shape, 10)
    params, buffers = initial(task, seed=0)
    examples = in_shape(digits(), task)
    views = []
    for i in range(images):
        view = undefended_view(task, params, buffers, PrivateBatch(examples.x[i : i + 1], examples.y[i : i + 1]))
        views.append(replace(view, labels=examples.y[i : i + 1]))
    return ModelViews(task, examples.x[:images], views)


def ours(given: ModelViews, place: int, starts: int, iterations: int) -> tuple[float, Tensor]:
    """Seconds of the processor per iteration and start, and the reconstruction of one image."""
    attack = Inversion(
        iterations=iterations, optimizer="adam", tv=TV, restarts=starts, patience=iterations + 1, tolerance=0.0
    )
    begin = time.process_time()
    found = reconstruct(given.views[place], given.task, attack, stream(place, purpose="benchmark"))
    return (time.process_time() - begin) / (iterations + 1) / starts, found.x


def compare(model: str, images: int, iterations: int) -> dict[str, float]:
    """Milliseconds an iteration and start of breaching, of one start and of each of ``STARTS``, and both PSNRs."""
    given = case(model, MODELS[model], images)
    theirs, one, many = list[tuple[float, Tensor]](), list[tuple[float, Tensor]](), list[tuple[float, Tensor]]()
    for place in range(images):  # in turns: on a shared machine all three meet the same neighbours
        took, x = inverting_gradients(given.views[place], given.task, iterations)
        theirs.append((took / iterations, x))
        one.append(ours(given, place, 1, iterations))
        if place % 2 == 0:
            many.append(ours(given, place, STARTS, iterations))
    found = {name: 1e3 * min(t for t, _ in ran) for name, ran in (("breaching", theirs), ("one", one), ("each", many))}
    found["psnr_breaching"] = fmean(psnr(given.truth, torch.cat([x for _, x in theirs])))
    return {**found, "psnr_ours": fmean(psnr(given.truth, torch.cat([x for _, x in one])))}


def measure(options: Any) -> dict[str, Any]:
    """The result of a command line."""
    torch.set_num_threads(1)
    keep_freed_memory()  # as an audit does; breaching gains by it as well
    with installed():
        return {"models": {model: compare(model, options.images, options.iterations) for model in options.models}}


def show(result: dict[str, Any]) -> None:
    rows = []
    for model, row in result["models"].items():
        base, each = row["breaching"], [f"{row[key]:.1f}" for key in ("psnr_breaching", "psnr_ours")]
        times = [text for key in ("one", "each") for text in (f"{row[key]:.1f}", f"{base / row[key]:.1f}x")]
        rows.append((model, f"{base:.1f}", *times, *each))
    show_table("ms an iteration", "model, breaching, one, ratio, each, ratio, PSNR: br., ours", rows)


if __name__ == "__main__":
    models = {"nargs": "+", "choices": MODELS, "default": list(MODELS)}
    command(__doc__, measure, show, {"--models": models, "--iterations": 10, "--images": 8})
