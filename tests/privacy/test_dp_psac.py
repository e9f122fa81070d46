"""DP-PSAC: the weight of the paper, its bound, and its limits."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prunella.core.errors import ConfigError
from prunella.core.randomness import rehearsal
from prunella.core.trees import map_trees, zeros_like
from prunella.privacy.dp_psac import DpPsac, dp_psac, psac_weight
from tests.privacy.steps import make, step_of


@given(st.floats(0, 1e6), st.floats(1e-3, 1e3), st.floats(1e-3, 10))
def test_no_example_weighs_more_than_the_clip(norm: float, clip: float, r: float) -> None:
    weight = float(psac_weight(torch.tensor(norm, dtype=torch.float64), clip, r))
    assert weight * norm <= clip * (1 + 1e-12) and weight == pytest.approx(clip / (norm + r / (norm + r)))


def test_small_gradients_keep_their_order_where_normalising_would_not() -> None:
    norms = torch.tensor([1e-6, 1e-4, 1e-2])
    weighed = psac_weight(norms, 1.0, 0.1) * norms
    assert bool((weighed[1:] > weighed[:-1]).all()) and float(weighed[0]) < 1e-5


def test_the_step_equals_a_loop_over_examples() -> None:
    net, params, x, y = make()
    step = step_of(net, params, x, y)
    made, _ = dp_psac(DpPsac(0.5, 1e-12)).apply(zeros_like(params), step, {}, rehearsal(0, purpose="test"))
    total = zeros_like(params)
    for i in range(len(y)):
        (single,) = step_of(net, params, x[i : i + 1], y[i : i + 1]).per_example()
        norm = sum(float(t.double().square().sum()) for t in single.values()) ** 0.5
        total = map_trees(lambda t, g, n=norm: t + g[0] * 0.5 / (n + 0.1 / (n + 0.1)), total, single)
    for name in params:
        torch.testing.assert_close(made[name], total[name] / len(y), rtol=1e-4, atol=1e-7)


def test_a_stability_of_zero_is_refused() -> None:
    with pytest.raises(ConfigError):
        DpPsac(stability=0.0)
