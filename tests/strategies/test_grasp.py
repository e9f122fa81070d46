import torch
from torch import nn

from prunella.core.config import Run
from prunella.pruning.grasp import grasp
from prunella.pruning.selection import kept_count
from prunella.strategies.grasp import GraSP, GraSPSettings
from prunella.strategies.round.public_loss import loss_on, public_batch
from prunella.strategies.round.server_model import ServerModel
from prunella.tasks.data import load_test

NET = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
PARAMS = {n: p.detach() for n, p in NET.named_parameters()}
MODEL = ServerModel(NET, (1, 8, 8), tuple(PARAMS), frozenset({"1.weight", "3.weight"}), load_test("digits", None))


def first(rate: float = 0.5, seed: int = 0, **settings):
    return GraSP(Run(rate=rate, seed=seed), MODEL, GraSPSettings(**settings)).first_mask(PARAMS, None, [])


def test_the_mask_has_the_exact_count_and_follows_the_scores() -> None:
    mask = first(rate=0.5, batch=32)
    assert int(mask["1.weight"].sum() + mask["3.weight"].sum()) == kept_count(64 * 16 + 160, 0.5)
    assert bool(mask["1.bias"].all() and mask["3.bias"].all())
    loss = loss_on(MODEL, public_batch(MODEL, 32, 0), 200.0)
    scores = {n: -s for n, s in grasp(PARAMS, loss).items() if n in MODEL.prunable}
    assert (
        torch.cat([s[mask[n]] for n, s in scores.items()]).min()
        >= torch.cat([s[~mask[n]] for n, s in scores.items()]).max()
    )


def test_the_same_seed_gives_the_same_bits_and_another_batch_another_mask() -> None:
    a, b, c = first(batch=16), first(batch=16), first(batch=16, seed=1)
    assert torch.equal(a["1.weight"], b["1.weight"])
    assert not torch.equal(a["1.weight"], c["1.weight"])


def test_within_each_layer() -> None:
    mask = first(rate=0.25, scope="layer")
    assert (int(mask["1.weight"].sum()), int(mask["3.weight"].sum())) == (768, 120)
