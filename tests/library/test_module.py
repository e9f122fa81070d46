"""A module at hand becomes a task that keeps its weights; what can be inferred is, and an error names the keyword."""

import pytest
import torch
from torch import nn

from prunella.core.errors import ConfigError
from prunella.library.module import infer_shape, own_task
from prunella.tasks.normalisation import normalised
from prunella.tasks.task import initial


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 16 * 16, 7))


def test_the_task_is_a_copy_with_its_weights_whatever_the_seed() -> None:
    module = net()
    task = own_task(module)
    assert (task.shape, task.classes, task.model) == ((3, 32, 32), 7, "Sequential")
    for seed in (0, 1):
        for name, tensor in initial(task, seed)[0].items():
            assert torch.equal(tensor, dict(module.named_parameters())[name])
    with torch.no_grad():
        module[0].bias.add_(1)
    assert not torch.equal(initial(task, 0)[0]["0.bias"], module[0].bias)
    assert task.build() is not task.build()


def test_what_cannot_be_told_is_asked_for() -> None:
    anything = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))
    with pytest.raises(ConfigError, match="pass shape="):
        infer_shape(anything)
    assert own_task(anything, shape=(3, 17, 17)).classes == 10
    with pytest.raises(ConfigError, match="pass shape="):
        own_task(nn.Sequential(nn.Flatten(), nn.Linear(5, 2)))
    for wrong in ((3, 32), (1, 32, 32)):
        with pytest.raises(ConfigError, match="shape"):
            own_task(net(), shape=wrong)
    with pytest.raises(ConfigError, match="Module"):
        own_task("cnn")  # type: ignore[arg-type]
    for wide in (net().half(), net().double()):
        with pytest.raises(ConfigError, match=r"0.weight is of float\d\d.*pass model.float\(\)"):
            own_task(wide, shape=(3, 32, 32))
    frozen = net()
    frozen[0].weight.requires_grad_(False)
    with pytest.raises(ConfigError, match="frozen"):
        own_task(frozen)


def test_the_model_of_normalised_images_takes_those_in_0_to_1() -> None:
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    x = torch.rand(2, 3, 32, 32)
    own = own_task(net(), normalize=(mean, std)).build()
    torch.testing.assert_close(own(x), normalised(net(), (mean, std))(x))
