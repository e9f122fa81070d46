"""Fixtures of all rooms."""

from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Two cores are shared by many processes, and sums keep their order."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real images beside the project, or a skip that says where it should be."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.exists():
        pytest.skip("no ../shared/data beside the project: real MNIST and CIFAR-10 images are not at hand")
    return folder
