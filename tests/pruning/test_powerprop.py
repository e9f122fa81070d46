import pytest
import torch

from prunella.core.trees import map_trees
from prunella.pruning.powerprop import Power

DRAW = torch.Generator().manual_seed(0)
WEIGHTS = {"w": torch.randn(5, 4, generator=DRAW) * (torch.rand(5, 4, generator=DRAW) < 0.7), "b": torch.ones(5)}
NAMES = frozenset({"w"})


@pytest.mark.parametrize("beta", [1.0, 1.25, 2.0, 3.0])
def test_the_pulled_gradient_is_autograd_s(beta: float) -> None:
    power = Power(beta, NAMES)
    hidden = power.hidden(WEIGHTS)
    leaf = hidden["w"].clone().requires_grad_()
    (power.shown({"w": leaf})["w"] ** 2 * 3).sum().backward()
    pulled = power.pulled({"w": 6 * WEIGHTS["w"], "b": torch.ones(5)}, hidden)
    kept = WEIGHTS["w"] != 0  # at zero autograd differentiates |θ|^β by its own convention
    assert torch.allclose(pulled["w"][kept], leaf.grad[kept], rtol=1e-4)
    assert torch.equal(pulled["b"], torch.ones(5)) and torch.equal(hidden["b"], WEIGHTS["b"])
    assert torch.allclose(power.shown(hidden)["w"], WEIGHTS["w"], rtol=1e-5)


def test_a_weight_of_zero_does_not_move_unless_beta_is_1() -> None:
    for beta, moves in ((1.0, True), (1.25, False)):
        power = Power(beta, NAMES)
        hidden = power.hidden(WEIGHTS)
        pulled = power.pulled(map_trees(torch.ones_like, WEIGHTS), hidden)
        assert bool(pulled["w"][WEIGHTS["w"] == 0].any()) == moves


@pytest.mark.parametrize("beta", [1.25, 2.0])
def test_one_step_is_undone_exactly_and_several_to_first_order(beta: float) -> None:
    power, rate = Power(beta, NAMES), 0.01
    gradient = {"w": torch.randn(5, 4, generator=DRAW), "b": torch.randn(5, generator=DRAW)}
    hidden = power.hidden(WEIGHTS)
    for steps, exact in ((1, True), (5, False)):
        moved = hidden
        for _ in range(steps):
            pulled = power.pulled(gradient, moved)
            moved = map_trees(lambda h, g: h - rate * g, moved, pulled)
        update = map_trees(torch.sub, power.shown(moved), WEIGHTS)
        plain = map_trees(lambda g, w, s=steps: torch.where(w != 0, -rate * s * g, 0.0), gradient, WEIGHTS)
        undone = power.undone(WEIGHTS, update)
        large = WEIGHTS["w"].abs() > 0.3
        near = 1e-4 if exact else 0.15
        assert torch.allclose(undone["w"][large], plain["w"][large], rtol=near, atol=1e-6 if exact else 1e-3)
        assert not undone["w"][WEIGHTS["w"] == 0].any() and torch.equal(undone["b"], update["b"])
    assert not torch.allclose(update["w"], plain["w"], rtol=0.15, atol=1e-3), "and without it the update is another one"


def test_what_was_not_sent_stays_zero() -> None:
    nothing = map_trees(torch.zeros_like, WEIGHTS)
    assert not any(bool(t.any()) for t in Power(1.25, NAMES).undone(WEIGHTS, nothing).values())
