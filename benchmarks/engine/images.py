"""The images of a cell: where they lie, which ones are attacked, and their scores."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from prunella.attacks.score.leakage import Leakage
from prunella.benchmarks.engine.claim import each
from prunella.core.errors import ConfigError
from prunella.core.randomness import stream
from prunella.tasks.data import Examples, Partition, load_client, load_test, make_task
from prunella.tasks.task import Task

TESTED = 1000  # test images that a federation's model is tried on, where it is measured often
cached_test = functools.lru_cache(maxsize=2)(load_test)
cached_client = functools.lru_cache(maxsize=16)(load_client)


def place(dataset: str, data: Path | None) -> str:
    """The dataset's name with its local copy, where there is one."""
    return f"{dataset}:{data / dataset}" if data is not None and (data / dataset).is_dir() else dataset


def task_of(settings: Mapping[str, Any], data: Path | None) -> Task:
    """A cell's model on its dataset."""
    return make_task(settings["model"], place(settings["dataset"], data), None)


def part(images: Examples, start: int, length: int = 1) -> Examples:
    """``length`` images from ``start`` on."""
    return Examples(images.x[start : start + length], images.y[start : start + length])


def first(own: Examples, many: int) -> Examples:
    """The first ``many``, or all of them where that is 0."""
    return own.take(torch.arange(min(many, len(own)))) if many else own


def every_test_image(dataset: str, data: Path | None) -> Examples:
    """Raises ``ConfigError`` where there are none."""
    test = cached_test(place(dataset, data), None)
    if test is None:
        raise ConfigError(f"{dataset} has no test examples")
    return test


def drawn(images: Examples, seed: int, purpose: str = "claim-images") -> torch.Tensor:
    """Positions in the seed's order."""
    return torch.randperm(len(images), generator=stream(seed, purpose=purpose))


def chosen_images(dataset: str, data: Path | None, seed: int, many: int, purpose: str = "claim-images") -> Examples:
    """The seed's first ``many`` test images."""
    test = every_test_image(dataset, data)
    chosen = drawn(test, seed, purpose)[:many]
    return Examples(test.x[chosen], test.y[chosen])


def client_images(dataset: str, data: Path | None, partition: Partition, client: int = 0) -> Examples:
    """What one client has."""
    return cached_client(place(dataset, data), partition, client, None)


def class_means(images: Examples, classes: int) -> torch.Tensor:
    """The mean image of every class [K, C, H, W]: the best picture that needs no update."""
    return torch.stack([images.x[images.y == label].mean(dim=0) for label in range(classes)])


def means(rows: Sequence[Leakage], *columns: str) -> dict[str, float]:
    """Of scores by name, and every row's beside them (``claim.each``): ``psnr`` is the attack's, ``nmi_random`` that of
    noise."""

    def value(row: Leakage, column: str) -> float:
        name, _, which = column.partition("_")
        return float(getattr(getattr(row, name), which or "mean"))

    return each([{column: value(row, column) for column in columns} for row in rows])
