"""Fed-LTP's client: sparse clipping, noise on the ticket only, and the decay by rounds."""

import pytest
import torch

from prunella.core.errors import ConfigError
from prunella.core.randomness import rehearsal
from prunella.core.trees import full_mask, l2, scale, subtract
from prunella.privacy.dp_sgd import DpSgd, dp_sgd
from prunella.privacy.fed_ltp import FedLtp, fed_ltp
from tests.privacy.steps import make, step_of


def test_a_full_ticket_without_decay_is_dp_sgd() -> None:
    net, params, x, y = make()
    step, settings = step_of(net, params, x, y), FedLtp(0.5, 1.0, decay=1.0)
    ours, _ = fed_ltp(settings).apply(params, step, fed_ltp(settings).init(params), rehearsal(0, purpose="test"))
    theirs, _ = dp_sgd(DpSgd(0.5, 1.0)).apply(params, step, {}, rehearsal(0, purpose="test"))
    assert all(torch.equal(ours[k], theirs[k]) for k in params)


def test_pruned_coordinates_get_no_noise_and_do_not_count_in_the_norm() -> None:
    net, params, x, y = make(batch=1)
    mask = {name: torch.rand(t.shape, generator=torch.Generator().manual_seed(1)) > 0.5 for name, t in params.items()}
    settings = FedLtp(1e-3, 1e-9, decay=1.0)
    made, _ = fed_ltp(settings).apply(
        params, step_of(net, params, x, y, mask), fed_ltp(settings).init(params), rehearsal(0, purpose="test")
    )
    assert all(not bool(made[k][~mask[k]].any()) for k in params)
    assert float(l2(made)) == pytest.approx(1e-3, rel=1e-3)  # clipped to the bound on the retained coordinates alone
    whole, fresh = step_of(net, params, x, y, full_mask(params)), fed_ltp(settings).init(params)
    full, _ = fed_ltp(settings).apply(params, whole, fresh, rehearsal(0, purpose="test"))
    assert float(l2(subtract(made, full))) > 1e-4


def test_the_rate_decays_by_rounds_not_by_steps() -> None:
    net, params, x, y = make()
    defense = fed_ltp(FedLtp(decay=0.5))
    state, seen = defense.init(params), []
    for _ in range(3):
        for number in range(2):
            g = rehearsal(0, purpose="test")
            made, state = defense.apply(params, step_of(net, params, x, y, None, number), state, g)
            seen.append(made)
    for k in range(6):
        expected = scale(seen[0], 0.5 ** (k // 2))
        assert all(torch.allclose(seen[k][name], expected[name]) for name in params)


@pytest.mark.parametrize("decay", [0.0, 1.1])
def test_a_wrong_decay_is_refused(decay: float) -> None:
    with pytest.raises(ConfigError):
        FedLtp(decay=decay)
