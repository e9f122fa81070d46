import torch
from torch import nn

from prunella.core.config import Run
from prunella.strategies.random import Random, RandomSettings
from prunella.strategies.round.server_model import ServerModel

NET = nn.Sequential(nn.Linear(20, 10), nn.Linear(10, 30))
PARAMS = {n: p.detach() for n, p in NET.named_parameters()}
MODEL = ServerModel(NET, (1, 1, 20), tuple(PARAMS), frozenset({"0.weight", "1.weight"}))


def draw(seed: int, params: dict[str, torch.Tensor] = PARAMS) -> dict[str, torch.Tensor]:
    return Random(Run(rate=0.3, seed=seed), MODEL, RandomSettings()).first_mask(params, None, [])


def test_the_mask_depends_on_the_seed_alone_and_holds_the_rate_in_every_layer() -> None:
    mask = draw(1)
    assert all(torch.equal(mask[n], draw(1, {k: torch.zeros_like(p) for k, p in PARAMS.items()})[n]) for n in mask)
    assert any(not torch.equal(mask[n], draw(2)[n]) for n in mask)
    assert int(mask["0.weight"].sum()) == 140 and int(mask["1.weight"].sum()) == 210
    assert bool(mask["0.bias"].all() and mask["1.bias"].all())


def test_a_ramp_gives_nested_masks_that_end_where_the_one_shot_begins() -> None:
    params = {"w": torch.randn(1000)}
    model = ServerModel(None, (1, 1, 1), ("w",), frozenset({"w"}))
    once = Random(Run(rate=0.6), model, RandomSettings()).first_mask(params, None, [])
    slow = Random(Run(rate=0.6), model, RandomSettings(ramp_rounds=3))
    masks = [slow.first_mask(params, None, [])]
    for round in (1, 2, 3, 4):
        masks.append(slow.revise_mask(round, params, masks[-1]))
    assert [int(m["w"].sum()) for m in masks] == [1000, 800, 600, 400, 400]
    assert not any(bool((later["w"] & ~earlier["w"]).any()) for earlier, later in zip(masks, masks[1:], strict=False))
    assert torch.equal(masks[-1]["w"], once["w"])
