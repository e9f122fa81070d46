"""DP-Fed is DP-SGD with LTP's settings."""

import torch

from prunella.core.randomness import rehearsal
from prunella.core.trees import zeros_like
from prunella.privacy.dp_fed import DpFed, dp_fed
from prunella.privacy.dp_sgd import DpSgd, dp_sgd
from tests.privacy.steps import make, step_of


def test_it_is_dp_sgd_on_all_coordinates() -> None:
    net, params, x, y = make()
    mask = {name: torch.zeros_like(t, dtype=torch.bool) for name, t in params.items()}
    step = step_of(net, params, x, y, mask)
    ours, _ = dp_fed(DpFed()).apply(zeros_like(params), step, {}, rehearsal(3, purpose="test"))
    theirs, _ = dp_sgd(DpSgd(10.0, 1.4)).apply(zeros_like(params), step, {}, rehearsal(3, purpose="test"))
    assert all(torch.equal(ours[k], theirs[k]) and bool(ours[k].any()) for k in params)
