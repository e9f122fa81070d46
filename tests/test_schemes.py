"""Every scheme with every kind of defense: zeros stay zero, the rate is reached, a resumed run equals a whole one."""

from pathlib import Path

import pytest
import torch

from prunella.core.trees import Mask
from prunella.pruning.selection import density, kept_count
from prunella.server.rounds import Federation
from prunella.strategies import SECTIONS, STRATEGIES
from prunella.strategies.round.personal import to_bytes
from prunella.strategies.round.roster import Member
from prunella.strategies.sparsyfed import smaller
from prunella.strategies.tickets import TicketSettings
from prunella.tasks.task import initial
from prunella.wire.encode import decode_mask
from tests.server.test_rounds import build, final, go, same, series

RATE = 0.3
MOST = {"ramp_rounds": 2, "adjust_interval": 2, "steps": 10, "tickets": 2, "iterations": 20}  # of any scheme
SHORT = {
    f"{name.replace('-', '_')}__{field}": min(most, getattr(settings, field))
    for name, settings in SECTIONS.items()
    for field, most in MOST.items()
    if hasattr(settings, field)
} | {"lotteryfl__accuracy": 0.0, "lotteryfl__step": 0.5}
HARD = {"momentum": 0.9, "learning_rate": 0.05, "weight_decay": 0.01}
EXACT = sorted(set(STRATEGIES) - {"fedavg", "prunefl", "lotteryfl", "fed-ltp-iterative", "sparsyfed"})


def masks_in_use(federation: Federation, folder: Path) -> list[Mask]:
    """Everybody's mask, and the clients' own where there are any."""
    saved = final(folder)
    own = [decode_mask(to_bytes(t), saved.mask) for t in saved.scheme.values() if t.dtype == torch.uint8]
    return [saved.mask, *own]


def cuts_layers(federation: Federation) -> bool:
    """Whether every layer has the rate, and not all of them together."""
    settings = federation.strategy.settings
    return type(settings) is TicketSettings or getattr(settings, "scope", "global") == "layer"


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
@pytest.mark.parametrize("defenses", ["none", "priprune", "dgp"])
def test_zeros_stay_zero_and_the_rate_is_reached(tmp_path: Path, strategy: str, defenses: str) -> None:
    federation = go(tmp_path, strategy=strategy, defenses=defenses, rounds=2, rate=RATE, **SHORT, **HARD)
    saved, names = final(tmp_path), federation.model.prunable
    assert federation.strategy.stats.failures == {}
    assert not any(saved.tree[name][~mask].any() for name, mask in saved.mask.items())
    assert not any(torch.equal(t, torch.zeros_like(t)) for t in saved.tree.values())
    for mask in masks_in_use(federation, tmp_path):
        assert all(bool(m.any()) if name in names else bool(m.all()) for name, m in mask.items())
    kept = series(federation, "mask_density_ratio")[-1]
    if strategy == "sparsyfed":  # every client has the rate, and the global mask is what any of them kept
        assert 0.7 <= kept < 1.0
    else:
        assert kept == 1.0 if strategy == "fedavg" else 0.3 < kept <= 0.7
    if strategy in EXACT:
        total = sum(saved.mask[name].numel() for name in names)
        within_layers = sum(kept_count(saved.mask[n].numel(), RATE) for n in names)
        expected = within_layers if cuts_layers(federation) else kept_count(total, RATE)
        assert round(density(saved.mask, names) * total) == expected


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_a_run_that_was_resumed_equals_one_that_was_not(tmp_path: Path, strategy: str) -> None:
    run = {"strategy": strategy, "defenses": "dgp", "rate": RATE, **SHORT}
    go(tmp_path / "whole", rounds=3, **run)
    for rounds in (1, 2, 3):  # before masks move, and after
        go(tmp_path / "parts", rounds=rounds, resume=rounds > 1, **run)
    whole, parts = final(tmp_path / "whole"), final(tmp_path / "parts")
    assert same(whole, parts)
    assert whole.scheme.keys() == parts.scheme.keys()
    assert all(torch.equal(whole.scheme[name], parts.scheme[name]) for name in whole.scheme)


@pytest.mark.parametrize("strategy", ["feddst", "lotteryfl", "fedtiny", "sparsyfed"])
def test_masks_that_clients_move_differ_so_the_checks_above_can_fail(tmp_path: Path, strategy: str) -> None:
    found = []
    for rounds in (1, 2, 3):
        folder = tmp_path / str(rounds)
        federation = go(folder, strategy=strategy, defenses="none", rounds=rounds, rate=0.6, **SHORT)
        found.append(masks_in_use(federation, folder))
    assert not all(torch.equal(a[n], b[n]) for a, b in zip(found[0], found[1], strict=True) for n in a)


@pytest.mark.parametrize("strategy", sorted(set(STRATEGIES) - {"prunefl", "fedtiny"}))  # these ask clients
@pytest.mark.parametrize("rate", [0.0, 0.97, 0.9999])
def test_any_rate_gives_a_first_mask_that_empties_no_layer(tmp_path: Path, strategy: str, rate: float) -> None:
    federation, _ = build(tmp_path, strategy=strategy, rate=rate, defenses="none", **SHORT)
    scheme, names = federation.strategy, federation.model.prunable
    params, _ = initial(federation.task, 0)
    weights, mask = scheme.first_model(params, None, [Member(0, 100), Member(1, 101)])  # type: ignore[arg-type]
    if strategy == "sparsyfed":
        mask = smaller(weights, mask, names, rate, "global")
    if hasattr(scheme.settings, "ramp_rounds"):
        mask = scheme.revise_mask(MOST["ramp_rounds"], weights, mask)
    total, kept = sum(params[n].numel() for n in names), sum(int(mask[n].sum()) for n in names)
    assert all(bool(m.any()) if name in names else bool(m.all()) for name, m in mask.items())
    if strategy in (*EXACT, "sparsyfed") and not cuts_layers(federation):
        assert kept == max(len(names), kept_count(total, rate))
    if rate == 0.0 and strategy != "fed-ltp-iterative":
        assert kept == total
