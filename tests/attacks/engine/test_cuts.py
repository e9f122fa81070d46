"""What passes through few numbers tells no more than these, whatever the layers behind are made of."""

import dataclasses

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from prunella.attacks.engine.cuts import cuts
from prunella.attacks.engine.matching import determined
from prunella.core.trees import Tree, map_trees
from prunella.core.types import ServerView
from prunella.library.module import own_task
from prunella.tasks.task import initial
from prunella.tasks.training import loss_and_gradient


def narrow() -> nn.Sequential:
    """An 8 x 8 image, of which 12 numbers reach a wide head."""
    return nn.Sequential(nn.Conv2d(1, 3, 3, stride=4), nn.Tanh(), nn.Flatten(), nn.Linear(12, 200), nn.Linear(200, 10))


def test_what_follows_from_the_few_inputs_of_a_layer_counts_as_these() -> None:
    """2600 values arrive from a head that 12 numbers decide: an image of 64 pixels does not follow from them."""
    module = narrow()
    assert cuts(module, (1, 8, 8)) == [(12, frozenset({"3.weight", "3.bias", "4.weight", "4.bias"}))]
    task = own_task(module, (1, 8, 8))
    params, _ = initial(task, 0)
    _, gradient, _ = loss_and_gradient(task.build(), params, {}, torch.rand(1, 1, 8, 8), torch.tensor([3]))
    view = ServerView(params, gradient, num_examples=1, labels=torch.tensor([3]))
    head = {name: torch.full_like(t, name > "3", dtype=torch.bool) for name, t in params.items()}
    assert sum(int(seen.sum()) for seen in head.values()) > 2600
    assert not determined(dataclasses.replace(view, shared=head), task)
    assert not determined(view, task)  # 30 values of the convolution, and the 12
    wide = own_task(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), (1, 8, 8))
    of_wide = {name: torch.ones_like(t) for name, t in initial(wide, 0)[0].items()}
    assert determined(dataclasses.replace(view, update=of_wide, params=of_wide), wide)
    two = dataclasses.replace(view, update=of_wide, params=of_wide, num_examples=2, steps=1, batch_size=2)
    assert determined(two, wide)  # two rows of 64


def test_the_count_of_independent_values_is_the_rank_of_the_gradient() -> None:
    """The oracle: how many directions a small change of the image moves the head's gradient in."""
    task = own_task(narrow(), (1, 8, 8))
    module, params = task.build().double(), map_trees(lambda t: t.double(), initial(task, 0)[0])
    y, names = torch.tensor([3]), [n for n in params if n > "3"]

    def gradient(x: torch.Tensor) -> torch.Tensor:
        def loss(head: Tree) -> torch.Tensor:
            return nn.functional.cross_entropy(torch.func.functional_call(module, {**params, **head}, (x,)), y)

        return torch.cat([g.flatten() for g in torch.func.grad(loss)({n: params[n] for n in names}).values()])

    x = torch.rand(1, 1, 8, 8, dtype=torch.float64)
    jacobian = torch.func.jacrev(gradient)(x).reshape(-1, 64)
    assert len(jacobian) > 2600 and int(torch.linalg.matrix_rank(jacobian)) == 12


def test_a_narrow_convolution_hides_a_wide_one_behind_it() -> None:
    module = nn.Sequential(
        nn.Conv2d(1, 1, 3, stride=4), nn.Tanh(), nn.Conv2d(1, 500, 1), nn.Tanh(), nn.Flatten(), nn.Linear(2000, 10)
    )
    assert [values for values, _ in cuts(module, (1, 8, 8))] == [4]
    task = own_task(module, (1, 8, 8))
    ones = {name: torch.ones_like(t) for name, t in initial(task, 0)[0].items()}
    assert not determined(ServerView(ones, ones, num_examples=1, labels=torch.tensor([3])), task)


def test_a_model_that_takes_no_image_of_zeros_has_no_cuts_and_is_left_as_it_was() -> None:
    class Picky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not bool(x.any()):
                raise ValueError("empty")
            found: torch.Tensor = self.layer(x.flatten(1))
            return found

    picky = Picky()
    assert cuts(picky, (1, 8, 8)) == [] and picky.training


class Head(nn.Module):
    """A wide head on 12 numbers, of parameters that no layer holds."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.last = nn.Parameter(torch.randn(200, 12)), nn.Parameter(torch.randn(200, 10))

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.wide) @ self.last


class Attention(nn.Module):
    """A transformer block on the same 12 numbers as one token, and a linear layer of normalised weights."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.TransformerEncoderLayer(12, 2, 100, batch_first=True)
        self.last = nn.utils.parametrizations.weight_norm(nn.Linear(12, 10))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(self.block(x[:, None])[:, 0])
        return found


@pytest.mark.parametrize("head", [Head, Attention])
def test_what_lies_behind_is_seen_whatever_it_is_made_of(head: type[nn.Module]) -> None:
    front, whole = narrow()[:3], head()
    module = nn.Sequential(*front, whole)
    behind = frozenset(f"3.{name}" for name, _ in whole.named_parameters())
    assert (12, behind) in cuts(module, (1, 8, 8))
    task = own_task(module, (1, 8, 8))
    ones = {name: torch.ones_like(t) for name, t in initial(task, 0)[0].items()}
    shared = {name: torch.full_like(t, name in behind, dtype=torch.bool) for name, t in ones.items()}
    view = ServerView(ones, ones, num_examples=1, labels=torch.tensor([3]), shared=shared)
    assert sum(int(seen.sum()) for seen in shared.values()) > 64
    assert not determined(view, task)


def test_what_a_way_around_leads_past_is_no_cut() -> None:
    """An adapter of rank 2 beside a layer, as in LoRA: the layer sees all of the image, and so does what follows."""

    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.last = nn.Linear(64, 80), nn.Linear(80, 10)
            self.down, self.up = nn.Linear(64, 2), nn.Linear(2, 80)

        def forward(self, x: Tensor) -> Tensor:
            x = x.flatten(1)
            found: Tensor = self.last(torch.relu(self.layer(x) + self.up(self.down(x))))
            return found

    assert cuts(Adapted(), (1, 8, 8)) == []
    task = own_task(Adapted(), (1, 8, 8))
    ones = {name: torch.ones_like(t) for name, t in initial(task, 0)[0].items()}
    shared = {name: torch.full_like(t, name.startswith("last"), dtype=torch.bool) for name, t in ones.items()}
    assert determined(ServerView(ones, ones, num_examples=1, labels=torch.tensor([3]), shared=shared), task)
