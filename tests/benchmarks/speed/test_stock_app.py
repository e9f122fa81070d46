"""Flower's own app is a whole Flower app whose client trains what it was sent, and whose settings are those of ours."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from prunella.benchmarks.speed.stock_app import write_stock_app
from prunella.deploy.runtime.settings import app_directory, defaults, is_prunella, read_app
from prunella.tasks.data import make_task


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    app = write_stock_app(tmp_path / "app")
    monkeypatch.syspath_prepend(app)
    yield app
    for name in ("stock_client", "stock_server"):
        sys.modules.pop(name, None)


def test_flower_accepts_it_and_it_trains_as_long_as_ours(app: Path) -> None:
    from flwr.cli.build import build_fab_from_disk

    assert len(build_fab_from_disk(app)) > 1000
    theirs, ours = (defaults(read_app(each)) for each in (app, app_directory()))
    assert not is_prunella(read_app(app))
    for key in ("dataset", "model", "local-steps", "batch-size", "fraction"):
        assert theirs[key] == ours[key]


def test_a_message_is_answered_with_weights_that_fit_the_images_better(app: Path) -> None:
    import stock_client

    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    node = {"num-partitions": 2, "partition-id": 1}
    context = Context(1, 1, node, RecordDict(), defaults(read_app(app)) | {"local-steps": 40})
    model = make_task("cnn", "digits", None).build()
    sent = RecordDict({"arrays": ArrayRecord(model.state_dict()), "config": ConfigRecord({"lr": 0.25})})
    message = Message(sent, dst_node_id=1, message_type="train")
    reply = stock_client.app(message, context)
    assert reply.content["metrics"]["num-examples"] in (718, 719)
    examples = stock_client.load_client("digits", stock_client.Partition("iid", 2), 0, None)  # another client's

    def loss() -> float:
        with torch.no_grad():
            return float(torch.nn.functional.cross_entropy(model(examples.x), examples.y))

    before = loss()
    model.load_state_dict(reply.content["arrays"].to_torch_state_dict())
    assert loss() < 0.6 * before
