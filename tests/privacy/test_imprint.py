import pytest
import torch
from sklearn.datasets import load_wine
from torch import nn

from prunella.core.randomness import PrivateGenerator, rehearsal, stream
from prunella.core.trees import Tree
from prunella.privacy.imprint import (
    ALIKE,
    APART,
    CLUSTER,
    EXACTLY,
    SKETCH,
    LinearRows,
    imprint_arrays,
    imprint_layers,
    largest_cluster,
)
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


def planted(rows: int, noise: float = 0.0, size: int = 3072) -> LinearRows:
    """A layer of 600 honest rows and some that point one way, up to length, sign and relative noise, and
    compare with different values."""
    draw = stream(0, purpose="planted")
    weight = torch.randn((600, size), generator=draw)
    one = torch.rand(size, generator=draw) * (1 + noise * torch.randn((rows, size), generator=draw))
    lengths = torch.randn((rows, 1), generator=draw)
    thresholds = torch.linspace(0.2, 0.8, max(rows, 1))[:rows] * size / 2
    bias = torch.cat([torch.randn(600, generator=draw), -lengths[:, 0] * thresholds])
    order = torch.randperm(600 + rows, generator=draw)
    return LinearRows(torch.cat([weight, lengths * one])[order], bias[order])


@pytest.mark.parametrize("size", [64, 3072])
def test_rows_along_one_line_are_counted_exactly(size: int) -> None:
    assert [largest_cluster(planted(rows, size=size), DRAW) for rows in (0, 16, 300)] == [1, 16, 300]
    assert largest_cluster(planted(15, size=size), DRAW) < CLUSTER
    noisy = largest_cluster(planted(300, 0.1, size), DRAW)  # but for the nearest thresholds
    assert 270 < noisy <= 300 and largest_cluster(planted(300, 2.0, size), DRAW) < CLUSTER


def test_rows_of_one_threshold_are_not_counted() -> None:
    """Rows that weight decay has made alike, to rounding and less so: their gradients are alike, too."""
    draw = stream(0, purpose="alike")
    rows = torch.rand(1, 401, generator=draw) * torch.rand((40, 1), generator=draw)
    for noise in (0.0, 1e-7, 1e-3, 0.1):
        turned = rows * (1 + noise * torch.randn(rows.shape, generator=draw))
        for alike in (ALIKE, EXACTLY):
            assert largest_cluster(LinearRows(turned[:, 1:], turned[:, 0]), DRAW, alike) == 1
    assert largest_cluster(LinearRows(rows[:, 1:], torch.linspace(-1, 1, 40)), DRAW, EXACTLY) == 40  # the control


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
    layer = LinearRows(weight, torch.linspace(-1, 1, 40) * line.norm())
    assert largest_cluster(layer, known) < CLUSTER <= largest_cluster(layer, DRAW)


def test_counting_equals_the_slow_obvious_loop() -> None:
    weight, bias, _ = layer = planted(40, 0.2, 700)
    assert bias is not None
    length = weight.norm(dim=1, keepdim=True)
    unit, at = weight / length, bias / length[:, 0]

    counts = []
    for row, t in zip(unit, at, strict=True):
        cosine = unit @ row
        sign = cosine.sign()
        turned, moved = (row - sign[:, None] * unit).norm(dim=1), (t - sign * at).abs()
        counts.append(1 + int(((cosine.abs() >= ALIKE) & (moved * 700**0.5 >= APART * turned) & (moved > 0)).sum()))
    slow = max(counts)
    assert largest_cluster(layer, DRAW) == slow >= CLUSTER


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
@pytest.mark.parametrize("bias", [False, True])
def test_arrays_without_their_module_are_read_by_their_names(numbered: bool, bias: bool) -> None:
    """As ``imprint_layers`` reads the module; an embedding, whose rows may well be alike, is none."""
    net = nn.Sequential(nn.Embedding(40, 64), nn.LayerNorm(64), nn.Linear(64, 30), nn.ReLU(), nn.Linear(30, 30, bias))
    with torch.no_grad():
        net[0].weight.fill_(1.0)  # type: ignore[operator]

    def arrays() -> Tree:
        named = {name: tensor.detach() for name, tensor in net.state_dict().items()}
        return {str(at): t for at, t in enumerate(named.values())} if numbered else named

    assert imprint_arrays(arrays(), DRAW) == []
    with torch.no_grad():
        net[2].weight[:CLUSTER] = net[2].weight[0]  # type: ignore[index]
    assert imprint_arrays(arrays(), DRAW) == (found := ["3" if numbered else "2.weight"])
    whole = {name: (1e6 * t).long() for name, t in arrays().items()}
    for sent in (dict(reversed(arrays().items())), dict(sorted(arrays().items())), whole):  # as a server likes
        assert imprint_arrays(sent, DRAW) == found
    if bias:
        with torch.no_grad():
            net[4].weight.fill_(1.0)  # type: ignore[operator]
        assert len(imprint_arrays(arrays(), DRAW)) == 2, "which layer is the last, whoever orders them decides"


def along_one_line(weight: torch.Tensor, alike: float) -> int:
    unit = nn.functional.normalize(weight)
    return int(((unit @ unit.T).abs() >= alike).sum(dim=1).max())


def test_rows_that_honest_training_put_on_one_line_are_no_imprint() -> None:
    """Of a table, by weight decay; the control is that there are enough of them."""
    torch.manual_seed(0)
    wine = load_wine()
    x, y = torch.tensor(wine.data, dtype=torch.float32), torch.tensor(wine.target)
    net = nn.Sequential(nn.Linear(13, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 3))
    adam, draw = torch.optim.Adam(net.parameters(), 0.01, weight_decay=0.01), stream(0, purpose="batches")
    for _ in range(1500):
        at = torch.randint(len(x), (32,), generator=draw)
        adam.zero_grad()
        nn.functional.cross_entropy(net(x[at]), y[at]).backward()
        adam.step()
    trained = {name: tensor.detach() for name, tensor in net.state_dict().items()}
    assert along_one_line(trained["0.weight"], EXACTLY) >= CLUSTER and imprint_arrays(trained, DRAW) == []
