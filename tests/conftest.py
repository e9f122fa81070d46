"""Fixtures of all packages."""

import os
import re
from pathlib import Path

# Two workers share two cores: a pool of threads each, which wait for one another by spinning, doubles the processor
# time of linear algebra. Before NumPy and PyTorch are imported, which read it once.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest  # noqa: E402
import torch  # noqa: E402
from hypothesis import settings  # noqa: E402

settings.register_profile("unhurried", deadline=None)  # cores are shared: time tells nothing about the code
settings.load_profile("unhurried")
MARKED = re.compile(r"mark\.(federation|slow)\b")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where only federations and slow tests are asked for, a file that marks none is not imported."""
    if config.getoption("markexpr") != "federation or slow" or not collection_path.match("test_*.py"):
        return None
    return True if not MARKED.search(collection_path.read_text()) else None


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Two cores are shared by many processes, and sums keep their order."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real MNIST and CIFAR-10 images: a large one beside the repository, or else the sample in it."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    return beside if (beside / "mnist" / "train.parquet").is_file() else Path(__file__).parent / "data"
