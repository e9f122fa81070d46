"""The smaller network computes what the dense masked one does, and loses every unit it can lose."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from prunella.core.errors import PrunellaError
from prunella.core.randomness import stream
from prunella.core.trees import Tree
from prunella.pruning.channels import channel_groups
from prunella.pruning.shrink import shrink
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


def rows_of(task: Task, tree: Tree, zeroed: dict[int, list[int]]) -> Tree:
    """Rows of all that write a group's channels zeroed, by the group's number."""
    groups, pruned = channel_groups(task.build(), task.shape), dict(tree)
    for number, rows in zeroed.items():
        for layer in groups[number].writers:
            pruned[f"{layer}.weight"] = pruned[f"{layer}.weight"].index_fill(0, torch.tensor(rows), 0.0)
    return pruned


def test_channels_of_a_residual_sum_go_where_nothing_is_added_into_them() -> None:
    task = Task("resnet10", (3, 16, 16), 10)
    pruned = rows_of(task, trained(task), {0: list(range(20)), 3: [0, 1, 2]})
    small = shrink(task.build(), pruned, task.shape)
    # one of the twenty says what all say, as zeros are padded
    assert len(small["0.0.weight"]) == len(small["2.body.2.0.weight"]) == len(small["0.1.running_var"]) == 45
    assert small["2.body.0.0.weight"].shape[1] == small["3.shortcut.0.weight"].shape[1] == 45
    assert len(small["2.body.0.0.weight"]) == 64 and len(small["3.shortcut.0.weight"]) == 128 - 2
    assert torch.allclose(outputs(task, pruned), outputs(task, small), atol=1e-5, rtol=1e-5)


def test_a_channel_stays_where_one_of_the_layers_that_add_into_it_has_a_weight_left() -> None:
    task = Task("resnet10", (3, 16, 16), 10)
    pruned, _ = without_rows(task, trained(task), 0.2)
    one = {**pruned, "0.0.weight": pruned["0.0.weight"].clone()}
    small, expected = shrink(task.build(), one, task.shape), outputs(task, one)
    gone = ~(one["0.0.weight"].flatten(1).any(1) | one["2.body.2.0.weight"].flatten(1).any(1))
    assert 0 < int(gone.sum()) < 20 and len(small["0.0.weight"]) == 64 - int(gone.sum()) + 1
    assert torch.allclose(expected, outputs(task, small), atol=1e-5, rtol=1e-5)


def depthwise(padding: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(2, 6, 1), nn.ReLU(), nn.Conv2d(6, 6, 3, padding=padding, groups=6), nn.ReLU(),
                         nn.Conv2d(6, 4, 1), nn.Flatten(), nn.Linear(4 * (4 + 2 * padding) ** 2, 3))  # fmt: skip


@pytest.mark.parametrize(("padding", "left"), [(0, 3), (1, 5)])
def test_a_depthwise_filter_goes_with_its_channel_unless_the_borders_tell(padding: int, left: int) -> None:
    """A constant is one behind a depthwise convolution, too; where zeros are padded around it, only if it is zero."""
    net = depthwise(padding).eval()
    tree = {n: torch.rand(p.shape, generator=stream(6, purpose=n)) for n, p in net.named_parameters()}
    tree["0.weight"][:3] = 0  # what they say is their bias,
    tree["0.bias"][0] = -1  # and the first one, behind its ReLU, nothing
    small = shrink(net, tree, (2, 6, 6))
    assert [tuple(small[f"{at}.weight"].shape[:2]) for at in (0, 2, 4)] == [(left, 2), (left, 1), (4, left)]
    x = torch.rand(5, 2, 6, 6, generator=stream(7, purpose="images"))
    expected = functional_call(net, tree, (x,))
    assert torch.allclose(expected, fitted(depthwise(padding), small).eval()(x), atol=1e-4, rtol=1e-5)


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
    assert [group.writers for group in channel_groups(net, (1, 6, 6))] == [("first",)]
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


class Overwritten(nn.Module):
    """An activation in place on what a sum takes besides, as in Xception's blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.activation, self.last = nn.ReLU(inplace=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        logits: Tensor = self.last((self.second(self.activation(x)) + x).mean((2, 3)))
        return logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_works_in_place_is_followed_or_left_and_nothing_given_is_changed(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    net = Overwritten().to(dtype)
    tree = {name: p.detach().clone() for name, p in net.named_parameters()}
    for name in ("first", "second"):
        tree[f"{name}.weight"][:2] = 0.0
        tree[f"{name}.bias"][:2] = -1.0  # which the activation makes zero
    deep = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.Flatten(), nn.Linear(144, 2))
    wide = {name: p.detach().to(dtype) for name, p in deep.to(dtype).named_parameters()}
    wide["0.weight"][:2], wide["0.bias"][:2] = 0.0, 1.0  # one of the two says what both say
    x = torch.rand(3, 1, 8, 8, dtype=dtype, generator=stream(2, purpose="images"))
    for module, given in ((net, tree), (deep, wide)):
        before = {name: tensor.clone() for name, tensor in given.items()}
        small = shrink(module, given, (1, 8, 8))
        assert all(torch.equal(given[name], before[name]) for name in given)
        with torch.no_grad():
            found = fitted(copy.deepcopy(module), small)(x)
            assert torch.allclose(found, fitted(module, before)(x), atol=1e-5, rtol=1e-5)
