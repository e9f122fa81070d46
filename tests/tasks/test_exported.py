"""What is written can be run without this package, and loaded with it."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from prunella.core.errors import ConfigError
from prunella.tasks.exported import fitted, layers, load_exported, write_exported
from prunella.tasks.task import Task, initial

TASK = Task("lenet", (1, 28, 28), 10)


def small_tree() -> dict[str, torch.Tensor]:
    """LeNet with three filters instead of six in its first layer."""
    params, _ = initial(TASK, 0)
    params["0.0.weight"], params["0.0.bias"] = params["0.0.weight"][:3], params["0.0.bias"][:3]
    params["0.3.weight"] = params["0.3.weight"][:, :3]
    return params


def test_a_module_takes_the_sizes_of_the_tensors_it_is_given() -> None:
    module = fitted(TASK.build(), small_tree())
    conv = module.get_submodule("0.0")
    assert (conv.out_channels, module.get_submodule("0.3").in_channels) == (3, 3)
    assert module(torch.rand(2, 1, 28, 28)).shape == (2, 10)
    with pytest.raises(ConfigError, match="no tensor 0.0.scale"):
        fitted(TASK.build(), {"0.0.scale": torch.ones(1)})


def test_batch_norm_and_its_statistics_too() -> None:
    norm = fitted(nn.Sequential(nn.BatchNorm2d(4)), {"0.weight": torch.ones(2), "0.running_var": torch.ones(2)})
    assert norm.get_submodule("0").num_features == 2


def test_another_program_without_this_package_gets_the_same_outputs(tmp_path: Path) -> None:
    module = fitted(TASK.build(), small_tree()).eval()
    write_exported(tmp_path, TASK, module, {"speed_up": 1.5})
    x = torch.rand(5, 1, 28, 28)
    torch.save(x, tmp_path / "x")
    code = """
import sys, torch
from safetensors.torch import load_file
folder = sys.argv[1]
images = torch.load(folder + "/x")
torch.save(torch.export.load(folder + "/model.pt2").module()(images), folder + "/y")
assert load_file(folder + "/model.safetensors")["0.0.weight"].shape == (3, 1, 5, 5)
assert "prunella" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, cwd=tmp_path, env={"PYTHONPATH": ""})
    expected = module(x)
    assert torch.allclose(torch.load(tmp_path / "y"), expected, atol=1e-6)
    assert torch.allclose(load_exported(tmp_path)(x), expected, atol=1e-6)
    notes = json.loads((tmp_path / "model.json").read_text())
    assert notes["speed_up"] == 1.5 and notes["shape"] == [1, 28, 28]
    assert notes["layers"][0] | {"out_channels": 3, "kernel_size": [5, 5]} == notes["layers"][0]


def test_a_folder_without_a_model_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no exported model"):
        load_exported(tmp_path)
    (tmp_path / "model.json").write_text('{"format": 0}')
    with pytest.raises(ConfigError, match="another release"):
        load_exported(tmp_path)


def test_a_grouped_convolution_keeps_its_own_sizes() -> None:
    """Sixteen channels in four groups to four, whose weight [4, 4, 3, 3] looks like a depthwise convolution's."""
    net = nn.Sequential(nn.Conv2d(16, 4, 3, groups=4), nn.Conv2d(4, 4, 3, groups=4))
    again = fitted(copy.deepcopy(net), {name: p.detach() for name, p in net.named_parameters()})
    assert layers(again) == layers(net) and repr(again) == repr(net)
