import torch
from torch import nn

from prunella.core.config import Run
from prunella.pruning.selection import density
from prunella.strategies.magnitude import Magnitude, MagnitudeSettings
from prunella.strategies.round.server_model import ServerModel

NET = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 10))
PARAMS = {n: p.detach() for n, p in NET.named_parameters()}
MODEL = ServerModel(NET, (1, 1, 10), tuple(PARAMS), frozenset({"0.weight", "1.weight"}))


def test_the_rate_ramps_up_to_the_runs_and_the_smallest_go_first() -> None:
    strategy = Magnitude(Run(rate=0.6), MODEL, MagnitudeSettings(ramp_rounds=3))
    mask = strategy.first_mask(PARAMS, None, [])
    kept = []
    for round in (1, 2, 3, 4):
        mask = strategy.revise_mask(round, PARAMS, mask)
        kept.append(density(mask, MODEL.prunable))
        flat = torch.cat([PARAMS[n][mask[n]].abs() for n in sorted(MODEL.prunable)])
        gone = torch.cat([PARAMS[n][~mask[n]].abs() for n in sorted(MODEL.prunable)])
        assert flat.min() >= gone.max()
    assert kept == [0.8, 0.6, 0.4, 0.4]


def test_what_is_out_stays_out_even_if_a_kept_weight_is_zero() -> None:
    strategy = Magnitude(Run(rate=0.5), MODEL, MagnitudeSettings(ramp_rounds=1))
    mask = strategy.revise_mask(1, PARAMS, strategy.first_mask(PARAMS, None, []))
    zeroed = {n: torch.zeros_like(p) for n, p in PARAMS.items()}
    again = strategy.revise_mask(2, zeroed, mask)
    assert all(torch.equal(again[n], mask[n]) for n in mask)


def test_whole_neurons_go_on_request_and_stay_out() -> None:
    net = nn.Sequential(nn.Flatten(), *NET)
    params = {n: p.detach() for n, p in net.named_parameters()}
    model = ServerModel(net, (1, 1, 10), tuple(params), frozenset({"1.weight", "2.weight"}))
    strategy = Magnitude(Run(rate=0.4), model, MagnitudeSettings(ramp_rounds=2, granularity="filter"))
    mask = strategy.first_mask(params, None, [])
    for round, gone in ((1, 2), (2, 4), (3, 4)):  # of ten, each with as many weights in as out
        before, mask = mask, strategy.revise_mask(round, params, mask)
        assert mask["1.weight"].any(1).sum() == mask["1.weight"].all(1).sum() == 10 - gone
        assert torch.equal(mask["2.weight"], mask["1.weight"].all(1).expand(10, 10))
        assert not bool((mask["1.weight"] & ~before["1.weight"]).any())
        means = params["1.weight"].abs().mean(1)
        assert means[~mask["1.weight"].any(1)].max() < means[mask["1.weight"].any(1)].min()
