import torch
from torch import nn
from torch.nn.utils import prune

from prunella.core.randomness import stream
from prunella.pruning import scores
from prunella.pruning.selection import keep_by_score


def test_magnitude_mask_equals_pytorchs_own_pruning() -> None:
    net = nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 5))
    params = {n: p.detach().clone() for n, p in net.named_parameters()}
    ours = keep_by_score(scores.magnitude(params), {"0.weight", "1.weight"}, 0.3)
    prune.global_unstructured([(net[0], "weight"), (net[1], "weight")], prune.L1Unstructured, amount=0.3)
    assert torch.equal(ours["0.weight"], net[0].weight_mask.bool())
    assert torch.equal(ours["1.weight"], net[1].weight_mask.bool())


def test_random_scores_ignore_the_weights_and_follow_the_generator() -> None:
    a, b = {"w": torch.zeros(1000)}, {"w": torch.randn(1000)}
    first = scores.random(a, stream(1, purpose="mask"))["w"]
    assert torch.equal(first, scores.random(b, stream(1, purpose="mask"))["w"])
    assert not torch.equal(first, scores.random(a, stream(2, purpose="mask"))["w"])
    assert abs(first.mean() - 0.5) < 0.05 and abs(first.var() - 1 / 12) < 0.01
