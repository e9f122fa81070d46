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
    strategy = Magnitude(Run(rate=0.4), MODEL, MagnitudeSettings(ramp_rounds=2, granularity="filter"))
    mask = strategy.first_mask(PARAMS, None, [])
    for round, rows in ((1, 4), (2, 8), (3, 8)):
        before, mask = mask, strategy.revise_mask(round, PARAMS, mask)
        assert mask["0.weight"].any(1).sum() == mask["0.weight"].all(1).sum() == 10 - rows
        assert bool(mask["1.weight"].all()) and not bool((mask["0.weight"] & ~before["0.weight"]).any())
