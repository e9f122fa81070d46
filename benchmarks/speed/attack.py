"""The inversion engine beside the public library breaching 0.1.2: milliseconds per iteration and start, as ratios.

    python -m prunella.benchmarks.speed.attack         # every model; PSNR means little after so few iterations
    python -m prunella.benchmarks.speed.attack --models lenet-zhu --iterations 300

Both as their users call them: ``attacks.engine.inversion.reconstruct`` on a view with known labels, with one start and
with eight, in a process that keeps what it frees (``core.memory``), as an audit does; and breaching's Inverting
Gradients with one start, in a process of its own that is as Python made it. ``kept`` is breaching in a process like
ours. Same machine, model, images (scikit-learn's digits, resized), TV 0.2, signed Adam, iteration count, one thread,
taking turns; processor time, the least of several runs. The PSNR is the mean over ``--images`` of breaching's and of
the engine's reconstruction from one start, each from its own.
"""

import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from prunella.attacks.engine.inversion import Inversion, reconstruct
from prunella.attacks.score.control import undefended_view
from prunella.attacks.score.leakage import psnr
from prunella.benchmarks.engine.measuring import workers
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


def theirs(given: ModelViews, place: int, iterations: int) -> tuple[float, Tensor]:
    """Seconds of the processor per iteration, and the reconstruction of one image, of breaching."""
    torch.set_num_threads(1)
    took, x = inverting_gradients(given.views[place], given.task, iterations)
    return took / iterations, x


def compare(model: str, images: int, iterations: int, apart: ProcessPoolExecutor) -> dict[str, float]:
    """Milliseconds an iteration and start of breaching, in a process ``apart`` and in this one, of one start and of
    each of ``STARTS``, and both PSNRs."""
    given = case(model, MODELS[model], images)
    ran: dict[str, list[tuple[float, Tensor]]] = {"breaching": [], "kept": [], "one": [], "each": []}
    for place in range(images):  # in turns: on a shared machine all meet the same neighbours
        ran["breaching"].append(apart.submit(theirs, given, place, iterations).result())
        ran["kept"].append(theirs(given, place, iterations))
        ran["one"].append(ours(given, place, 1, iterations))
        if place % 2 == 0:
            ran["each"].append(ours(given, place, STARTS, iterations))
    found = {name: 1e3 * min(took for took, _ in each) for name, each in ran.items()}
    pictures = {name: torch.cat([x for _, x in ran[name]]) for name in ("breaching", "one")}
    return {**found, **{f"psnr_{name}": fmean(psnr(given.truth, x)) for name, x in pictures.items()}}


def measure(options: Any) -> dict[str, Any]:
    """The result of a command line."""
    torch.set_num_threads(1)
    keep_freed_memory()
    with installed(), workers(1) as apart:
        models = {model: compare(model, options.images, options.iterations, apart) for model in options.models}
        return {"models": models, "iterations": options.iterations, "images": options.images}


def show(result: dict[str, Any]) -> None:
    rows = []
    for model, row in result["models"].items():
        times = (f"{row[key]:.1f} ({row['breaching'] / row[key]:.1f}x)" for key in ("kept", "one", "each"))
        rows.append(
            (model, f"{row['breaching']:.1f}", *times, f"{row['psnr_breaching']:.1f}", f"{row['psnr_one']:.1f}")
        )
    show_table("ms an iteration", "model, breaching, kept memory, one, each, PSNR: br., ours", rows)


if __name__ == "__main__":
    models = {"nargs": "+", "choices": MODELS, "default": list(MODELS)}
    command(__doc__, measure, show, {"--models": models, "--iterations": 10, "--images": 8})
