import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from core.errors import ConfigError
from tasks.data import Partition, describe, load_client, load_test, make_task


def test_digits_are_shared_out_and_held_out():
    shares = [load_client("digits", Partition("dirichlet", 4, 1.0, 0), client, None) for client in range(4)]
    held_out = load_test("digits", None)
    assert sum(map(len, shares)) + len(held_out) == 1797
    assert all(share.x.shape[1:] == (1, 8, 8) and share.x.dtype == torch.float32 for share in shares)
    assert make_task("cnn", "digits", None).build()(held_out.x).shape == (359, 10)


def test_an_unknown_dataset_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'mnist'"):
        describe("mnits", None)
    with pytest.raises(ConfigError, match="unknown dataset"):
        load_client("digts:/somewhere", Partition("iid", 2), 0, None)


def test_hub_datasets_are_described_without_data():
    assert make_task("conv-2", "femnist", None).classes == 62
    assert describe("cifar100", None) == ((3, 32, 32), 100)


def test_a_nodes_root_goes_before_the_place_in_the_name(tmp_path: Path):
    for name, classes in (("here", 2), ("there", 3)):
        for k in range(classes):
            (tmp_path / name / f"class{k}").mkdir(parents=True)
    spec = f"imagefolder:{tmp_path / 'here'}"
    assert describe(spec, None)[1] == 2
    assert describe(spec, tmp_path / "there")[1] == 3


@pytest.mark.parametrize(("name", "shape"), [("mnist", (1, 28, 28)), ("cifar10", (3, 32, 32))])
def test_a_local_copy_of_the_hub(name, shape, shared_data):
    spec, partition = f"{name}:{shared_data / name}", Partition("dirichlet", 40, 0.5, 1)
    mine = load_client(spec, partition, 5, None)
    assert mine.x.shape == (len(mine.y), *shape) and 0 <= mine.x.min() < 0.1 and 0.9 < mine.x.max() <= 1
    assert len(np.unique(mine.y)) > 1
    assert torch.equal(load_client(name, partition, 5, shared_data / name).x, mine.x)


def test_a_client_message_imports_nothing_heavy():
    code = """
import sys
import client.app
from tasks.data import Partition, load_client
load_client("digits", Partition("dirichlet", 4), 0, None)
heavy = {"torchvision", "datasets", "pyarrow", "PIL", "sklearn", "scipy", "attacks"} & sys.modules.keys()
sys.exit(", ".join(sorted(heavy)) or None)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
