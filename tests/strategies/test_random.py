import torch
from torch import nn

from core.config import Run
from strategies.masked import Model
from strategies.random import Draw, Random

NET = nn.Sequential(nn.Linear(20, 10), nn.Linear(10, 30))
PARAMS = {n: p.detach() for n, p in NET.named_parameters()}
MODEL = Model(NET, (1, 1, 20), tuple(PARAMS), frozenset({"0.weight", "1.weight"}))


def draw(seed: int, params: dict[str, torch.Tensor] = PARAMS) -> dict[str, torch.Tensor]:
    return Random(Run(rate=0.3, seed=seed), MODEL, Draw()).first_mask(params, None, [])


def test_the_mask_depends_on_the_seed_alone_and_holds_the_rate_in_every_layer() -> None:
    mask = draw(1)
    assert all(torch.equal(mask[n], draw(1, {k: torch.zeros_like(p) for k, p in PARAMS.items()})[n]) for n in mask)
    assert any(not torch.equal(mask[n], draw(2)[n]) for n in mask)
    assert int(mask["0.weight"].sum()) == 140 and int(mask["1.weight"].sum()) == 210
    assert bool(mask["0.bias"].all() and mask["1.bias"].all())
