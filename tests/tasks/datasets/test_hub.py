import errno
import logging
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from prunella.core.errors import DataError
from prunella.tasks.datasets import DATASETS, HUBS
from prunella.tasks.datasets.hub import Hub, UnreachableHub, _reached, fetch_test, fetch_train, partitioner
from prunella.tasks.datasets.parquet import Table
from prunella.tasks.partition import Partition


@pytest.fixture
def hub(shared_data, tmp_path, monkeypatch):
    """A folder in place of the hub: ``datasets`` takes either for a name."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    return Hub(str(shared_data / "mnist"), HUBS["mnist"].table)


def rows(folder: Path, split: str) -> int:
    return pq.read_metadata(folder / f"{split}.parquet").num_rows


@pytest.mark.parametrize("kind", ["iid", "dirichlet"])
def test_the_hub_and_a_local_copy_give_the_same_share(kind, hub, shared_data):
    partition = Partition(kind, rows(shared_data / "mnist", "train") // 100, 5.0, seed=4)
    fetched = fetch_train(hub, partition, 1)
    local = DATASETS["mnist"].train(shared_data / "mnist", partition, 1)
    assert len(fetched) > 20
    assert torch.equal(fetched.y, local.y) and torch.equal(fetched.x, local.x)


def test_the_held_out_split(hub, shared_data):
    held_out = fetch_test(hub)
    assert held_out.x.shape == (rows(shared_data / "mnist", "test"), 1, 28, 28)
    assert fetch_test(Hub(hub.name, hub.table, has_test=False)) is None


def test_a_client_or_an_id_that_is_not_there(hub):
    with pytest.raises(DataError, match="not one of 2"):
        fetch_train(hub, Partition("iid", 2), 2)
    with pytest.raises(DataError, match="no natural ids"):
        fetch_train(hub, Partition("natural", 2), 0)
    with pytest.raises(DataError, match="has no share"):
        fetch_train(Hub(hub.name, Table("image", "label", "label", (1, 28, 28), 10)), Partition("natural", 99), 50)


def test_femnist_goes_by_writer():
    from flwr_datasets.partitioner import NaturalIdPartitioner

    chosen = partitioner(Partition("natural", 10), HUBS["femnist"].table)
    assert isinstance(chosen, NaturalIdPartitioner) and chosen._partition_by == "writer_id"


def test_without_network_the_error_says_what_to_do(tmp_path):
    code = """
from prunella.core.errors import DataError
from prunella.tasks.data import Partition, load_client
try:
    load_client("cifar10", Partition("iid", 2), 0, None)
except DataError as error:
    print(error)
"""
    environment = {
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path),
        "FLWR_TELEMETRY_ENABLED": "0",
        "HOME": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[3],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "uoft-cs/cifar10 cannot be fetched" in done.stdout and "mnist:/folder" in done.stdout, done.stderr


def test_tries_that_fail_log_nothing_and_their_error_does(caplog):
    """The hub's client logs two lines for each of its six tries."""
    log, hub = logging.getLogger("huggingface_hub"), HUBS["cifar10"]
    with pytest.raises(UnreachableHub, match="cannot be fetched"), _reached(hub):
        log.getChild("utils._http").warning("Retrying in 8s [Retry 4/5].")
        raise ConnectionError
    assert not caplog.records


def test_a_full_disk_is_no_network_that_is_away_and_its_path_is_not_told():
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/home/somebody/cache")
    with pytest.raises(DataError, match="cifar10 cannot be kept in the hub's cache: No space left") as told:
        with _reached(HUBS["cifar10"]):
            raise full
    assert not isinstance(told.value, UnreachableHub) and "somebody" not in str(told.value)
