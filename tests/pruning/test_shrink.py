"""The smaller network computes what the dense masked one does, and loses every unit it can lose."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from prunella.core.errors import PrunellaError
from prunella.core.randomness import stream
from prunella.core.trees import Tree
from prunella.pruning.shrink import paths, shrink
from prunella.tasks.exported import fitted
from prunella.tasks.task import Task, initial, prunable

SHAPE = (1, 28, 28)


def trained(task: Task, seed: int = 0) -> Tree:
    """Tensors as training leaves them: biases, norms and running statistics that are nobody's default."""
    params, buffers = initial(task, seed)
    g = stream(seed, purpose="trained")
    moved = {n: t + 0.3 * torch.rand(t.shape, generator=g) if t.ndim < 2 else t for n, t in params.items()}
    return moved | {n: t + 0.2 * torch.rand(t.shape, generator=g) for n, t in buffers.items()}


def without_rows(task: Task, tree: Tree, share: float) -> tuple[Tree, dict[str, int]]:
    """Whole rows of every weight but the last zeroed, biases left alone; how many stay alive in each."""
    names = [n for n in tree if n in prunable(task.build())][:-1]
    g = stream(1, purpose="rows")
    pruned, alive = dict(tree), {}
    for name in names:
        rows = torch.randperm(len(tree[name]), generator=g)[: int(share * len(tree[name]))]
        pruned[name] = tree[name].index_fill(0, rows, 0.0)
        alive[name] = len(tree[name]) - len(rows)
    return pruned, alive


def outputs(task: Task, tree: Tree) -> Tensor:
    x = torch.rand(5, *task.shape, generator=stream(2, purpose="images"))
    with torch.no_grad():
        return fitted(task.build(), tree).eval()(x)


@pytest.mark.parametrize(
    ("model", "stay"),
    [  # how many dead units of each layer may stay: one to speak for all where zeros are padded or no bias is there
        ("cnn", [1, 0]),
        ("conv-2", [1, 0, 0]),
        ("lenet", [0, 0, 0, 0]),
        ("lenet-zhu", [1, 1, 0]),
        ("cnn6", [0] * 6),
        ("vgg-4", [1, 0, 0]),
        ("ltp-1", [0, 0, 0]),
    ],
)
def test_dead_units_go_and_nothing_else_changes(model: str, stay: list[int]) -> None:
    shape = (1, 28, 28) if model in ("conv-2", "ltp-1") else (3, 32, 32)
    task = Task(model, shape, 10)
    pruned, alive = without_rows(task, trained(task), 0.5)
    small = shrink(task.build(), pruned, shape)
    expected, got = outputs(task, pruned), outputs(task, small)
    assert (expected - got).abs().max() <= 1e-5 * expected.abs().max().clamp(min=1)
    assert {n: len(small[n]) for n in alive} == {
        n: count + extra for (n, count), extra in zip(alive.items(), stay, strict=True)
    }
    assert small.keys() == pruned.keys() and all(small[n].dtype == pruned[n].dtype for n in small)


def test_the_constants_of_dead_units_matter() -> None:
    """The control: leaving the dead units out without saying what they say changes the outputs."""
    task = Task("lenet", (3, 32, 32), 10)
    pruned, _ = without_rows(task, trained(task), 0.5)
    silent = {**pruned, **{n: t * (pruned[n[:-4] + "weight"].flatten(1).abs().sum(1) > 0) for n, t in pruned.items()
                           if n.endswith("bias")}}  # fmt: skip
    assert (outputs(task, pruned) - outputs(task, silent)).abs().max() > 1e-2


def test_a_residual_sum_keeps_its_channels_and_the_inside_of_a_block_shrinks() -> None:
    task = Task("resnet10", (3, 16, 16), 10)
    pruned, alive = without_rows(task, trained(task), 0.5)
    small = shrink(task.build(), pruned, task.shape)
    inside = {n for n in alive if n.endswith("body.0.0.weight")}
    assert len(inside) == 4
    for name in alive:
        assert len(small[name]) == (alive[name] + 1 if name in inside else len(pruned[name])), name
    assert torch.allclose(outputs(task, pruned), outputs(task, small), atol=1e-5, rtol=1e-5)


def test_a_dead_filter_speaks_through_its_batch_norm() -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ELU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(24, 3)
    )
    tree = {n: torch.rand(t.shape, generator=stream(5, purpose=n)) - 0.2 * ("var" not in n)
            for n, t in net.state_dict().items() if t.is_floating_point()}  # fmt: skip
    tree["0.weight"][[0, 2, 5]] = 0
    small = shrink(net, tree, (1, 6, 6))
    assert small["0.weight"].shape == (3, 1, 3, 3) and small["1.running_var"].shape == (3,)
    assert small["5.weight"].shape == (3, 12)
    x = torch.rand(7, 1, 6, 6)
    expected = functional_call(net.eval(), tree, (x,))
    assert torch.allclose(expected, fitted(net, small).eval()(x), atol=1e-5, rtol=1e-5)


def test_units_nobody_reads_go_with_all_that_fed_them() -> None:
    net = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    tree = {n: torch.rand(p.shape, generator=stream(3, purpose=n)) for n, p in net.named_parameters()}
    tree["4.weight"][:, 1:] = 0  # reads one unit of the layer before,
    tree["2.weight"][0, :3] = 0  # which reads two of its own
    small = shrink(net, tree, (6,))
    assert {n: tuple(t.shape) for n, t in small.items() if t.ndim > 1} == {
        "0.weight": (2, 6), "2.weight": (1, 2), "4.weight": (2, 1)
    }  # fmt: skip
    x = torch.rand(7, 6)
    assert torch.allclose(functional_call(net, tree, (x,)), fitted(net, small)(x), atol=1e-5)


def test_a_layer_that_is_dead_whole_keeps_one_unit() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    tree = {n: p.detach().clone() for n, p in net.named_parameters()}
    tree["0.weight"].zero_()
    small = shrink(net, tree, (3,))
    assert small["0.weight"].shape == (1, 3)
    x = torch.rand(7, 3)
    assert torch.allclose(functional_call(net, tree, (x,)), fitted(net, small)(x), atol=1e-6)


def test_single_weights_here_and_there_remove_nothing() -> None:
    task = Task("conv-2", SHAPE, 10)
    tree = trained(task)
    scattered = {n: t * (torch.rand(t.shape, generator=stream(4, purpose=n)) > 0.2) if t.ndim > 1 else t
                 for n, t in tree.items()}  # fmt: skip
    small = shrink(task.build(), scattered, SHAPE)
    assert all(torch.equal(small[n], scattered[n]) for n in tree)


class Branches(nn.Module):
    """One layer read twice, one concatenated, one used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.a, self.b = nn.Conv2d(1, 4, 1), nn.Conv2d(4, 3, 1), nn.Conv2d(4, 3, 3, padding=1)
        self.again, self.last = nn.Conv2d(6, 6, 1), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sigmoid(self.first(x))
        x = torch.cat([self.a(x), self.b(x.relu())], dim=1)
        return self.last(self.again(self.again(x)).mean((2, 3)))


def test_a_unit_with_two_readers_is_said_to_both() -> None:
    net = Branches().eval()
    assert paths(net, (1, 6, 6)).keys() == {"first"}
    tree = {n: p.detach().clone() for n, p in net.named_parameters()}
    tree["first.weight"][1:] = 0
    small = shrink(net, tree, (1, 6, 6))
    assert len(small["first.weight"]) == 2
    x = torch.rand(3, 1, 6, 6)
    expected = functional_call(net, tree, (x,))
    assert torch.allclose(expected, fitted(Branches().eval(), small)(x), atol=1e-6)


def test_a_network_whose_graph_depends_on_its_input_is_refused() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x) if x.sum() > 0 else x

    with pytest.raises(PrunellaError, match="cannot be followed"):
        shrink(Odd(), {n: p.detach() for n, p in Odd().named_parameters()}, (2,))
