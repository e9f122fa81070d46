"""SNIP and GraSP: one batch of public images gives every weight a score, and the lowest ones go."""

from typing import Any

import pytest
import torch
from torch import nn

from prunella.core.config import Run
from prunella.core.trees import Mask, Tree
from prunella.pruning.grasp import grasp
from prunella.pruning.selection import kept_count
from prunella.pruning.snip import snip
from prunella.strategies.grasp import GraSP, GraSPSettings
from prunella.strategies.round.public_loss import loss_on, public_batch
from prunella.strategies.round.server_model import ServerModel
from prunella.strategies.snip import Snip, SnipSettings
from prunella.tasks.data import load_test

NET = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
PARAMS = {n: p.detach() for n, p in NET.named_parameters()}
MODEL = ServerModel(NET, (1, 8, 8), tuple(PARAMS), frozenset({"1.weight", "3.weight"}), load_test("digits", None))

each = pytest.mark.parametrize("name", ["snip", "grasp"])


def first(name: str, rate: float = 0.5, seed: int = 0, **settings: Any) -> Mask:
    run = Run(rate=rate, seed=seed)
    rule = (
        Snip(run, MODEL, SnipSettings(**settings)) if name == "snip" else GraSP(run, MODEL, GraSPSettings(**settings))
    )
    return rule.first_mask(PARAMS, None, [])


def scores(name: str, batch: int) -> Tree:
    """By which weights are kept, highest first."""
    images = public_batch(MODEL, batch, 0)
    if name == "snip":
        return snip(PARAMS, loss_on(MODEL, images))
    return {n: -s for n, s in grasp(PARAMS, loss_on(MODEL, images, 200.0)).items()}


@each
def test_the_mask_has_the_exact_count_and_follows_the_scores(name: str) -> None:
    mask = first(name, rate=0.5, batch=32)
    assert int(mask["1.weight"].sum() + mask["3.weight"].sum()) == kept_count(64 * 16 + 160, 0.5)
    assert bool(mask["1.bias"].all() and mask["3.bias"].all())
    scored = {n: s for n, s in scores(name, 32).items() if n in MODEL.prunable}
    kept = torch.cat([s[mask[n]] for n, s in scored.items()])
    assert kept.min() >= torch.cat([s[~mask[n]] for n, s in scored.items()]).max()


@each
def test_the_same_seed_gives_the_same_bits_and_another_batch_another_mask(name: str) -> None:
    a, b, c = first(name, batch=16), first(name, batch=16), first(name, batch=16, seed=1)
    assert torch.equal(a["1.weight"], b["1.weight"])
    assert not torch.equal(a["1.weight"], c["1.weight"])


@each
def test_within_each_layer(name: str) -> None:
    mask = first(name, rate=0.25, scope="layer")
    assert (int(mask["1.weight"].sum()), int(mask["3.weight"].sum())) == (768, 120)
