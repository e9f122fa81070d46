from typing import Any

import pytest
import torch
from torch import nn

from prunella.core.errors import PrunellaError
from prunella.pruning.grasp import grasp
from prunella.pruning.snip import snip
from prunella.strategies.round.public_loss import loss_on, public_batch, public_examples
from prunella.strategies.round.server_model import ServerModel
from prunella.tasks.data import Examples, load_test

NET = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 10))
PARAMS = {n: p.detach() for n, p in NET.named_parameters()}
PUBLIC = load_test("digits", None)


def model(public: Examples | None) -> ServerModel:
    return ServerModel(NET, (1, 8, 8), tuple(PARAMS), frozenset({"1.weight", "4.weight"}), public)


def test_the_batch_is_drawn_by_seed_and_never_larger_than_what_is_public() -> None:
    assert len(public_batch(model(PUBLIC), 10**6, 0)) == len(PUBLIC)
    a, b, c = (public_batch(model(PUBLIC), 16, seed).x for seed in (0, 0, 1))
    assert torch.equal(a, b) and not torch.equal(a, c)


def test_the_loss_is_plain_cross_entropy_without_dropout_and_leaves_the_module_alone() -> None:
    batch = public_batch(model(PUBLIC), 16, 0)
    double = {n: p.double() for n, p in PARAMS.items()}
    hidden = torch.relu(batch.x.double().flatten(1) @ double["1.weight"].T + double["1.bias"])
    logits = hidden @ double["4.weight"].T + double["4.bias"]
    for temperature in (1.0, 5.0):
        plain = nn.functional.cross_entropy(logits / temperature, batch.y)
        assert torch.allclose(loss_on(model(PUBLIC), batch, temperature)(double), plain)
    assert NET.training and next(NET.parameters()).dtype == torch.float32


def test_without_public_examples_it_says_so() -> None:
    with pytest.raises(PrunellaError, match="public examples"):
        public_examples(model(None))


class Tied(nn.Module):
    """A model of words whose two matrices are one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.out(self.embed(x).mean(1))
        return found


NORMED = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 10))


@pytest.mark.parametrize("score", [snip, grasp])
@pytest.mark.parametrize(
    ("module", "batch", "unscored"),
    [
        (NORMED, Examples(torch.rand(9, 1, 8, 8), torch.arange(9)), {"1.running_mean", "1.running_var"}),
        (Tied(), Examples(torch.randint(20, (9, 5)), torch.arange(9)), {"out.weight"}),
    ],
    ids=["batch norm", "tied, token ids"],
)
def test_every_array_of_somebody_s_model_is_given_and_its_weights_alone_are_scored(
    score: Any, module: nn.Module, batch: Examples, unscored: set[str]
) -> None:
    state = {name: t.detach() for name, t in module.state_dict().items() if t.is_floating_point()}
    weights = frozenset(name for name in state if name.endswith("weight"))
    found = score(state, loss_on(ServerModel(module, tuple(batch.x.shape[1:]), tuple(state), weights, batch), batch))
    assert all(bool(found[name].any()) != (name in unscored) for name in weights | unscored)
    assert all(torch.equal(state[name], module.state_dict()[name]) for name in state)
