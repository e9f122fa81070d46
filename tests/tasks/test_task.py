import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from prunella.core.errors import ConfigError
from prunella.tasks import MODELS
from prunella.tasks.task import Task, identity, initial, prunable, require_fit

NAMES = """cnn conv-1 conv-2 conv-4 conv-6 vgg-4 vgg-6 vgg-9 vgg-11 lenet-zhu lenet cnn6 alexnet vgg16 resnet10
resnet18 vit ltp-1 ltp-2"""
DIGITS = Task("cnn", (1, 8, 8), 10)


def test_every_documented_model_is_there():
    assert set(NAMES.split()) <= set(MODELS)


@pytest.mark.parametrize("name", ["conv-1", "cnn", "lenet", "lenet-zhu", "cnn6", "ltp-2", "resnet10", "vit"])
def test_a_built_model_answers_for_other_shapes_and_classes(name):
    module = Task(name, (3, 28, 28), 7).build().eval()
    assert module(torch.rand(2, 3, 28, 28)).shape == (2, 7)


def test_initial_is_the_seeds_alone():
    torch.manual_seed(1)
    first, _ = initial(DIGITS, seed=5)
    torch.manual_seed(2)
    again, _ = initial(DIGITS, seed=5)
    other, _ = initial(DIGITS, seed=6)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["0.0.weight"], other["0.0.weight"])


def test_global_randomness_is_left_alone():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    initial(DIGITS, seed=5)
    DIGITS.build()
    assert torch.equal(torch.rand(4), expected)


def test_initial_has_the_modules_names_and_float_buffers_only():
    task = Task("resnet10", (1, 8, 8), 3)
    params, buffers = initial(task, seed=0)
    module = task.build()
    assert params.keys() == dict(module.named_parameters()).keys()
    assert buffers.keys() == {n for n, _ in module.named_buffers() if "num_batches_tracked" not in n} != set()
    assert not any(t.requires_grad for t in params.values())


def test_prunable_is_linear_and_convolution_weights():
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.GroupNorm(1, 2), nn.Flatten(), nn.Linear(2, 2))
    assert prunable(module) == {"0.weight", "4.weight"}
    assert prunable(nn.Linear(2, 2)) == {"weight"}


@pytest.mark.parametrize(
    "made",
    [
        nn.utils.parametrizations.weight_norm,
        nn.utils.parametrizations.spectral_norm,
        nn.utils.weight_norm,
        nn.utils.spectral_norm,
    ],
)
def test_a_weight_that_is_made_of_others_is_not_prunable(made):
    module = nn.Sequential(made(nn.Conv2d(1, 2, 3)), nn.Flatten(), nn.Linear(2, 2))
    assert prunable(module) == {"2.weight"} <= dict(module.named_parameters()).keys()


def test_an_unknown_model_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'resnet18'"):
        Task("resnet81", (3, 32, 32), 10).build()


def test_a_model_of_ones_own(monkeypatch):
    module = ModuleType("my_models")
    module.build = lambda shape, classes: nn.Sequential(
        nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes)
    )
    module.wrong = lambda shape, classes: "a string"
    module.number = 3
    module.Needy = lambda classes: nn.Linear(16, classes)
    module.Net = type("Net", (nn.Linear,), {"__init__": lambda self: nn.Linear.__init__(self, 16, 3)})
    monkeypatch.setitem(sys.modules, "my_models", module)
    assert initial(Task("my_models:build", (1, 4, 4), 3), 0)[0]["1.weight"].shape == (3, 16)
    assert initial(Task("my_models:Net", (1, 4, 4), 3), 0)[0]["weight"].shape == (3, 16), "a class as apps have it"
    for name, message in {
        "my_models:biuld": "did you mean 'build'",
        "my_models:Needy": "not a function of",
        "my_models.build": "package.module:NAME, with a colon",
        "no_such_package.models:build": "install its package on every machine",
        "my_models:wrong": "built a str",
        "my_models:number": "not a function",
    }.items():
        with pytest.raises(ConfigError, match=message):
            Task(name, (1, 4, 4), 3).build()


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_registered_model_fits_its_task(name):
    task = Task(name, (3, 32, 32), 7)
    require_fit(task, task.build())


def test_a_model_that_cannot_be_trained_on_the_task_is_refused_with_the_reason():
    task = Task("mine:build", (1, 4, 4), 3)
    flat = nn.Flatten()
    shared = nn.Sequential(flat, nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 3))
    shared[2].weight = shared[1].weight
    frozen, dropout = nn.Linear(16, 3), nn.Sequential(flat, nn.Linear(16, 3), nn.Dropout(0.5))
    frozen.bias.requires_grad_(False)
    require_fit(task, dropout)
    assert dropout.training
    for module, message in [
        (nn.Sequential(flat, nn.Linear(16, 2)), r"\(2, 2\), not with one logit for each of 3"),
        (nn.Sequential(flat, nn.Linear(16, 4)), r"\(2, 4\), not with one logit"),
        (nn.LSTM(4, 3), "does not take images|a tuple"),
        (nn.Sequential(flat, nn.Linear(9, 3)), r"does not take images of \(1, 4, 4\): .*mat1"),
        (shared, "2.weight is also another layer's weight"),
        (nn.Sequential(flat, frozen), "1.bias is frozen"),
        (nn.Sequential(flat, nn.Linear(16, 3).double()), "1.weight is torch.float64"),
        (nn.Sequential(flat, nn.LazyLinear(3)), "lazy layers"),
        (flat, "no parameters"),
    ]:
        with pytest.raises(ConfigError, match=message):
            require_fit(task, module)
    with pytest.raises(ConfigError, match="one class is always 0: give it two logits"):
        require_fit(Task("mine:build", (1, 4, 4), 1), nn.Sequential(flat, nn.Linear(16, 1)))


def test_an_identity_tells_models_apart_that_have_equal_tensors() -> None:
    plain, scaled = (Task(f"tests.redteam.nets:{name}", (1, 8, 8), 3) for name in ("linear", "scaled"))
    names = [list(dict(task.build().named_parameters())) for task in (plain, scaled)]
    assert names[0] == names[1]
    assert identity(plain, plain.build()) != identity(scaled, scaled.build())
    assert identity(plain, plain.build()) == identity(plain, plain.build())
    assert identity(DIGITS, DIGITS.build()) != identity(Task("cnn", (1, 8, 8), 9), DIGITS.build())


def test_an_identity_follows_the_source_of_somebody_s_own_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "own_net.py"
    file.write_text("from torch import nn\ndef build(shape, classes):\n    return nn.Linear(4, classes)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    task = Task("own_net:build", (1, 2, 2), 3)
    before = identity(task, task.build())
    file.write_text(file.read_text() + "# edited\n")
    assert identity(task, task.build()) != before


def test_a_model_that_raises_is_a_line_without_its_text(monkeypatch):
    def build(shape, classes):
        raise ValueError("a path of this machine")

    monkeypatch.setitem(MODELS, "raising", build)
    with pytest.raises(ConfigError, match="cannot be built \\(ValueError\\): call it with") as refused:
        Task("raising", (1, 8, 8), 10).build()
    assert "a path" not in str(refused.value)
