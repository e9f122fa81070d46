"""Fixtures of all packages."""

import functools
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Two workers share two cores: a pool of threads each, which wait for one another by spinning, doubles the processor
# time of linear algebra. Before NumPy and PyTorch are imported, which read it once.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest  # noqa: E402
import torch  # noqa: E402
from absl.logging import PythonHandler  # noqa: E402
from hypothesis import settings  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode  # noqa: E402
from xdist.scheduler import LoadScopeScheduling  # noqa: E402

from tests.pretended import Pretended  # noqa: E402

# Of absl, which dp-accounting brings: it closes the stream that it was made with, pytest's own, where logging is set up
# (as uvicorn does) while another one stands in its place. From then on every test of that worker is an error.
PythonHandler.close = logging.StreamHandler.close
settings.register_profile("unhurried", deadline=None)  # cores are shared: time tells nothing about the code
settings.load_profile("unhurried")
ROOT = Path(__file__).resolve().parents[1]
MARKED = re.compile(r"mark\.(federation|slow)\b")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where only federations and slow tests are asked for, a file that marks none is not imported."""
    if config.getoption("markexpr") != "federation or slow" or not collection_path.match("test_*.py"):
        return None
    return True if not MARKED.search(collection_path.read_text()) else None


@functools.cache
def shares_federation(file: str) -> bool:
    text = (ROOT / file).read_text()
    return "mark.federation" in text and 'scope="module"' in text


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Federations first, which take minutes, and of these what stays on one worker: what is left at the end is short
    enough for workers to end together."""

    def later(item: pytest.Item) -> tuple[bool, bool]:
        file = item.path.resolve().relative_to(ROOT).as_posix()  # a clone may be named by a link
        return item.get_closest_marker("federation") is None, not shares_federation(file)

    items.sort(key=later)


class FederationsTogether(LoadScopeScheduling):
    """A file whose tests share a federation goes to one worker; any other test to whichever is free."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return file if shares_federation(file) else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FederationsTogether | None:
    return FederationsTogether(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Two cores are shared by many processes, and sums keep their order."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _no_power_cuts() -> Iterator[None]:
    """What is written need not outlive the machine: in this process nothing waits for a disk, which took a tenth of the
    time of tests that train."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real MNIST and CIFAR-10 images: a large one beside the repository, or else the sample in it."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    return beside if (beside / "mnist" / "train.parquet").is_file() else Path(__file__).parent / "data"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tensors that have a device and a shape and no values, so that an operation between two devices raises as it would
    on a GPU; questions about values are answered."""
    for name, answer in (("__bool__", True), ("__float__", 0.5), ("__int__", 1), ("__index__", 1)):
        monkeypatch.setattr(FakeTensor, name, lambda self, answer=answer: answer, raising=False)
    monkeypatch.setattr(FakeTensor, "tolist", lambda self: [0.5] * self.numel(), raising=False)
    monkeypatch.setattr(torch, "equal", lambda a, b: True)
    with FakeTensorMode(allow_non_fake_inputs=False):
        yield


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The machine's CUDA device or, where there is none, one whose tensors have values all the same
    (``tests.pretended``), for what branches on them or learns from them."""
    if torch.cuda.is_available():
        yield
        return
    import prunella.server.evaluation

    evaluate_on = prunella.server.evaluation.evaluate_on

    def there(*given: Any) -> Any:
        with Pretended():  # a mode is of one thread, and the server evaluates in another
            return evaluate_on(*given)

    monkeypatch.setattr(prunella.server.evaluation, "evaluate_on", there)
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
    with Pretended():
        yield


@pytest.fixture
def trained_small(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each client that trains from now on does so in the small network, in their order."""
    import prunella.client.app

    found: list[bool] = []
    before = prunella.client.app.local_update

    def told(*given: Any) -> Any:
        result = before(*given)
        found.append(result.small)
        return result

    monkeypatch.setattr(prunella.client.app, "local_update", told)
    return found
