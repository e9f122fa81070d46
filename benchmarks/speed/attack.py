"""The inversion engine beside the public library breaching 0.1.2: milliseconds per iteration and start, as ratios.

    python -m prunella.benchmarks.speed.attack         # every model; PSNR means little after so few iterations
    python -m prunella.benchmarks.speed.attack --models lenet-zhu --iterations 300

Both as their users call them: ``attacks.engine.inversion.reconstruct`` on a view with known labels, with one start and
with eight, and breaching's Inverting Gradients with one. Same machine, model, images (scikit-learn's digits, resized),
TV 0.2, signed Adam, iteration count, one thread, both in one process, taking turns; processor time, the least of
several runs. breaching is installed into a throw-away folder. Its total variation presumes three colours; for grey
images the filter is cut to one. The PSNR is the mean over ``--images`` of breaching's and of the engine's
reconstruction from one start, each from its own.
"""

import logging
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from prunella.attacks.engine.inversion import Inversion, reconstruct
from prunella.attacks.engine.matching import target_gradient
from prunella.attacks.score.control import undefended_view
from prunella.attacks.score.leakage import psnr
from prunella.benchmarks.speed.bench import command, show_table
from prunella.core.memory import keep_freed_memory
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch, ServerView
from prunella.tasks.public import digits, in_shape
from prunella.tasks.task import Task, initial

MODELS = {"lenet-zhu": (3, 32, 32), "conv-2": (1, 28, 28), "resnet18": (3, 32, 32)}
TV = 0.2
STARTS = 8
PACKAGES = ("breaching==0.1.2", "hydra-core", "omegaconf", "antlr4-python3-runtime==4.9.*")


@dataclass(frozen=True)
class ModelViews:
    """Undefended views of one image each at one model's first weights."""

    task: Task
    module: nn.Module
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
    module = task.build()
    module.load_state_dict(params, strict=False)
    return ModelViews(task, module.train(), examples.x[:images], views)


def ours(given: ModelViews, place: int, starts: int, iterations: int) -> tuple[float, Tensor]:
    """Seconds of the processor per iteration and start, and the reconstruction of one image."""
    attack = Inversion(
        iterations=iterations, optimizer="adam", tv=TV, restarts=starts, patience=iterations + 1, tolerance=0.0
    )
    begin = time.process_time()
    found = reconstruct(given.views[place], given.task, attack, stream(place, purpose="benchmark"))
    return (time.process_time() - begin) / (iterations + 1) / starts, found.x


class _Metadata(SimpleNamespace):
    def keys(self) -> Any:
        return vars(self).keys()

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key)


def breaching(given: ModelViews, place: int, iterations: int) -> tuple[float, Tensor]:
    """The same of breaching's Inverting Gradients, one image; needs ``installed``."""
    import breaching as library
    from breaching.attacks import prepare_attack
    from omegaconf import OmegaConf

    folder, shape = Path(library.__file__).parent / "config" / "attack", given.task.shape
    files = ("_default_optimization_attack.yaml", "invertinggradients.yaml")
    config = OmegaConf.merge(*(OmegaConf.load(folder / name) for name in files))
    config.optim.max_iterations = iterations
    attacker = prepare_attack(given.module, nn.CrossEntropyLoss(), config)
    for prior in attacker.regularizers if shape[0] == 1 else []:
        prior.weight, prior.groups = prior.weight[:2], 1
    means = {"mean": (0.0,) * shape[0], "std": (1.0,) * shape[0]}
    metadata = _Metadata(shape=shape, classes=10, task="classification", modality="vision", **means)
    view = given.views[place]
    payload = [{"parameters": list(view.params.values()), "buffers": None, "metadata": metadata}]
    sent = {"num_data_points": 1, "labels": view.labels, "local_hyperparams": None}
    gradients = list(target_gradient(view).values())
    models, labels, stats = attacker.prepare_attack(
        payload, [{"gradients": gradients, "buffers": None, "metadata": sent}]
    )
    shared = [{"gradients": gradients, "buffers": None, "metadata": sent}]
    begin = time.process_time()
    found = attacker._run_trial(models, shared, labels, stats, 0)
    return (time.process_time() - begin) / iterations, found


def compare(model: str, images: int, iterations: int) -> dict[str, float]:
    """Milliseconds an iteration and start of breaching, of one start and of each of ``STARTS``, and both PSNRs."""
    given = case(model, MODELS[model], images)
    theirs, one, many = list[tuple[float, Tensor]](), list[tuple[float, Tensor]](), list[tuple[float, Tensor]]()
    for place in range(images):  # in turns: on a shared machine all three meet the same neighbours
        theirs.append(breaching(given, place, iterations))
        one.append(ours(given, place, 1, iterations))
        if place % 2 == 0:
            many.append(ours(given, place, STARTS, iterations))
    found = {name: 1e3 * min(t for t, _ in ran) for name, ran in (("breaching", theirs), ("one", one), ("each", many))}
    found["psnr_breaching"] = fmean(psnr(given.truth, torch.cat([x for _, x in theirs])))
    return {**found, "psnr_ours": fmean(psnr(given.truth, torch.cat([x for _, x in one])))}


def install(folder: str) -> None:
    """breaching and what it configures itself with; PyTorch is there."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, *PACKAGES]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    sys.path.append(folder)


def measure(options: Any) -> dict[str, Any]:
    """The result of a command line."""
    torch.set_num_threads(1)
    keep_freed_memory()  # as an audit does; breaching gains by it as well
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        install(folder)
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
