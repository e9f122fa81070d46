import pytest
import torch
from torch import nn

from prunella.core.randomness import PrivateGenerator, rehearsal, stream
from prunella.core.trees import Tree
from prunella.privacy.imprint import ALIKE, CLUSTER, SKETCH, imprint_arrays, imprint_layers, largest_cluster
from prunella.tasks.models import MODELS
from prunella.tasks.task import Task, initial
from prunella.tasks.training import Sgd, loss_and_gradient, sgd_step

DRAW = rehearsal(0, purpose="sketch")
BIG = {"vgg16", "alexnet", "conv-6", "conv-4"}  # their linear layers are drawn as the others' are
SHAPES = {"conv": (1, 28, 28), "ltp-": (1, 28, 28), "prec": (1, 16, 16)}


@pytest.mark.parametrize("name", sorted(set(MODELS) - BIG))
def test_honest_models_are_not_flagged_dense_or_pruned(name: str) -> None:
    task = Task(name, SHAPES.get(name[:4], (3, 32, 32)), 10)
    params, _ = initial(task, 0)
    module = task.build()
    assert imprint_layers(module, params, DRAW) == []
    for keep in (0.1, 0.01):
        draw = stream(0, purpose="mask")
        pruned = {n: p * (torch.rand(p.shape, generator=draw) < keep) for n, p in params.items()}
        assert imprint_layers(module, pruned, DRAW) == []
    assert imprint_layers(module, {n: torch.zeros_like(p) for n, p in params.items()}, DRAW) == []


def test_honest_training_is_not_flagged_when_most_classes_never_occur(images) -> None:
    """Rows of absent classes all drift one way: the last layer is left out for that, and hidden rows stay apart."""
    task = Task("ltp-1", (1, 28, 28), 62)
    module, (params, buffers) = task.build(), initial(task, 0)
    for _ in range(30):
        _, gradient, _ = loss_and_gradient(module, params, buffers, *images)
        params, _ = sgd_step(params, gradient, {}, Sgd(0.3), None)
    assert imprint_layers(module, params, DRAW) == []


@pytest.fixture
def images() -> tuple[torch.Tensor, torch.Tensor]:
    draw = stream(0, purpose="images")
    return torch.rand((32, 1, 28, 28), generator=draw), torch.randint(3, (32,), generator=draw)


def planted(rows: int, noise: float = 0.0, size: int = 3072) -> torch.Tensor:
    """A layer of 600 honest rows and some that point one way, up to length, sign and relative noise."""
    draw = stream(0, purpose="planted")
    weight = torch.randn((600, size), generator=draw)
    one = torch.rand(size, generator=draw) * (1 + noise * torch.randn((rows, size), generator=draw))
    lengths = torch.randn((rows, 1), generator=draw)
    return torch.cat([weight, lengths * one])[torch.randperm(600 + rows, generator=draw)]


@pytest.mark.parametrize("size", [64, 3072])
def test_rows_along_one_line_are_counted_exactly(size: int) -> None:
    assert [largest_cluster(planted(rows, size=size), DRAW) for rows in (0, 15, 16, 300)] == [1, 15, 16, 300]
    assert (
        largest_cluster(planted(300, 0.1, size), DRAW) == 300
        and largest_cluster(planted(300, 2.0, size), DRAW) < CLUSTER
    )


def test_rows_that_are_hidden_from_one_sketch_are_seen_in_another() -> None:
    """A server that knew the sketch would point the rows where it does not look and turn them apart where it does."""
    size, known = 3072, PrivateGenerator(bytes(32))
    sketch = PrivateGenerator(bytes(32)).normal(size, SKETCH).float()
    seen, _ = torch.linalg.qr(sketch)
    draw = stream(0, purpose="hidden")
    line = torch.randn(size, generator=draw)
    line -= seen @ (seen.T @ line)
    apart = torch.randn((40, SKETCH), generator=draw) @ seen.T
    weight = line + 0.2 * line.norm() * apart / apart.norm(dim=1, keepdim=True)
    assert largest_cluster(weight, known) < CLUSTER <= largest_cluster(weight, DRAW)


def test_counting_equals_the_slow_obvious_loop() -> None:
    weight = planted(40, 0.2, 700)
    unit = weight / weight.norm(dim=1, keepdim=True)
    slow = max(int(((unit @ row).abs() >= ALIKE).sum()) for row in unit)
    assert largest_cluster(weight, DRAW) == slow >= CLUSTER


@pytest.mark.parametrize("base", ["cnn", "cnn6", "lenet_zhu", "resnet18", "amplified_cnn"])
def test_the_imprint_of_rob_is_noticed(base: str) -> None:
    task = Task(f"prunella.attacks.rob:{base}", (3, 32, 32), 10)
    params, _ = initial(task, 0)
    assert "imprint.encode" in imprint_layers(task.build(), params, DRAW)


def test_an_honest_model_passes() -> None:
    task = Task("lenet", (3, 32, 32), 10)
    assert imprint_layers(task.build(), initial(task, 0)[0], DRAW) == []


def test_planted_weights_are_noticed_in_a_model_of_any_name() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    params: Tree = {name: p.detach() for name, p in net.named_parameters()}
    assert imprint_layers(net, params, DRAW) == []
    params["1.weight"] = torch.cat([params["1.weight"][:60], torch.ones(40, 64)])
    assert imprint_layers(net, params, DRAW) == ["1"]


@pytest.mark.parametrize("numbered", [False, True])
def test_arrays_without_their_module_are_read_by_their_order(numbered: bool) -> None:
    """As ``imprint_layers`` reads the module; an embedding, whose rows may well be alike, is none."""
    net = nn.Sequential(nn.Embedding(40, 64), nn.LayerNorm(64), nn.Linear(64, 30), nn.ReLU(), nn.Linear(30, 30))
    with torch.no_grad():
        net[0].weight.fill_(1.0)  # type: ignore[operator]
        net[4].weight.fill_(1.0)  # the last layer, which makes the logits

    def arrays() -> Tree:
        named = {name: tensor.detach() for name, tensor in net.state_dict().items()}
        return {str(at): t for at, t in enumerate(named.values())} if numbered else named

    assert imprint_arrays(arrays(), DRAW) == []
    with torch.no_grad():
        net[2].weight[:CLUSTER] = net[2].weight[0]  # type: ignore[index]
    assert imprint_arrays(arrays(), DRAW) == ["3" if numbered else "2.weight"]
