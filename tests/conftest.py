"""Fixtures of all packages."""

from pathlib import Path

import pytest
import torch
from hypothesis import settings

settings.register_profile("unhurried", deadline=None)  # cores are shared: time tells nothing about the code
settings.load_profile("unhurried")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Two cores are shared by many processes, and sums keep their order."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real MNIST and CIFAR-10 images: a large one beside the repository, or else the sample in it."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    return beside if (beside / "mnist" / "train.parquet").is_file() else Path(__file__).parent / "data"
