"""breaching 0.1.2, the public attack library, asked about the views that ``reconstruct`` is asked about.

It is installed into a throw-away folder (``installed``). Its total variation presumes three colours: for grey images
the filter is cut to one. It knows what our attack knows: weights, update, learning rate, and labels by step. A model
with batch norm is in training mode, as the client's was.
"""

import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from prunella.attacks.engine.matching import target_gradient
from prunella.core.types import ServerView
from prunella.tasks.task import Task

PACKAGES = ("breaching==0.1.2", "hydra-core", "omegaconf", "antlr4-python3-runtime==4.9.*")


@contextmanager
def installed() -> Iterator[None]:
    """breaching and what it configures itself with can be imported in here; PyTorch is there."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, *PACKAGES]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        sys.path.append(folder)
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
            sys.path.remove(folder)


class _Metadata(SimpleNamespace):
    def keys(self) -> Any:
        return vars(self).keys()

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key)


def inverting_gradients(view: ServerView, task: Task, iterations: int) -> tuple[float, Tensor]:
    """Processor seconds of its Inverting Gradients (cosine, TV 0.2, signed Adam, one start), and its images
    [N, C, H, W].

    ``view`` knows its labels in the order of the steps.
    """
    import breaching as library
    from breaching.attacks import prepare_attack
    from omegaconf import OmegaConf

    folder, shape = Path(library.__file__).parent / "config" / "attack", task.shape
    files = ("_default_optimization_attack.yaml", "invertinggradients.yaml")
    config = OmegaConf.merge(*(OmegaConf.load(folder / name) for name in files))
    config.optim.max_iterations = iterations
    attacker = prepare_attack(task.build(), nn.CrossEntropyLoss(), config)
    for prior in attacker.regularizers if shape[0] == 1 else []:
        prior.weight, prior.groups = prior.weight[:2], 1
    means = {"mean": (0.0,) * shape[0], "std": (1.0,) * shape[0]}
    metadata = _Metadata(shape=shape, classes=task.classes, task="classification", modality="vision", **means)
    payload = [{"parameters": list(view.params.values()), "buffers": None, "metadata": metadata}]
    gradients = [each.clone() for each in (target_gradient(view) if view.steps == 1 else view.update).values()]
    sent = {"num_data_points": view.num_examples, "labels": view.labels, "local_hyperparams": _local(view)}
    shared = [{"gradients": gradients, "buffers": None, "metadata": sent}]
    models, labels, stats = attacker.prepare_attack(payload, shared)
    begin = time.process_time()
    found = attacker._run_trial(models, shared, labels, stats, 0)
    return time.process_time() - begin, found


def _local(view: ServerView) -> dict[str, Any] | None:
    """How the client trained, in the library's words; nothing for one step."""
    if view.steps == 1 or view.labels is None or view.batch_size is None:
        return None
    parts = list(torch.split(view.labels, view.batch_size))
    return {"lr": view.learning_rate, "steps": view.steps, "data_per_step": view.batch_size, "labels": parts}
