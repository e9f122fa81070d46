"""DP-SGD: clipping against a loop and Opacus, the bound of one example, moments of the noise, refusals."""

import pytest
import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch.nn.functional import cross_entropy

from core.errors import ConfigError, DefenseError
from core.trees import full_mask, l2, map_trees, subtract, zeros_like
from privacy.dp_sgd import DpSgd, clipped_sum, dp_sgd, example_norms, flat_weight, noisy_mean
from tests.privacy.steps import Net, make, step_of


def weigh(clip: float):
    return lambda norms: flat_weight(norms, clip)


@pytest.mark.parametrize("clip", [1e-3, 0.5, 100.0])
def test_the_clipped_sum_equals_opacus(clip: float) -> None:
    net, params, x, y = make()
    ours = clipped_sum(step_of(net, params, x, y), weigh(clip), full_mask(params))
    theirs = GradSampleModule(Net(), loss_reduction="sum")
    theirs._module.load_state_dict(params)
    optimizer = DPOptimizer(
        torch.optim.SGD(theirs.parameters(), lr=1.0), noise_multiplier=0.0, max_grad_norm=clip, expected_batch_size=1
    )
    cross_entropy(theirs(x), y, reduction="sum").backward()
    optimizer.clip_and_accumulate()
    for name, p in theirs._module.named_parameters():
        torch.testing.assert_close(ours[name], p.summed_grad, rtol=1e-4, atol=1e-7)


def test_without_clipping_or_noise_it_is_the_mean_gradient() -> None:
    net, params, x, y = make()
    made, _ = dp_sgd(DpSgd(1e4, 1e-12)).apply(zeros_like(params), step_of(net, params, x, y), {}, torch.Generator())
    net.load_state_dict(params)
    cross_entropy(net(x), y).backward()
    for name, p in net.named_parameters():
        torch.testing.assert_close(made[name], p.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_one_example_moves_the_sum_by_at_most_the_clip(scale: float) -> None:
    net, params, x, y = make(scale=scale)
    everything = full_mask(params)
    whole = clipped_sum(step_of(net, params, x, y), weigh(0.3), everything)
    moved = []
    for i in range(len(y)):
        keep = torch.arange(len(y)) != i
        without = clipped_sum(step_of(net, params, x[keep], y[keep]), weigh(0.3), everything)
        moved.append(float(l2(subtract(whole, without))))
    assert max(moved) <= 0.3 * (1 + 1e-5) and max(moved) > 0.2


def test_the_noise_has_its_moments_and_an_empty_batch_is_noise_alone() -> None:
    net, params, x, y = make()
    wide = {"w": torch.zeros(300, 400)}
    empty = step_of(net, wide, x[:0], y[:0])
    g = torch.Generator().manual_seed(0)
    noise = noisy_mean(empty, weigh(2.0), DpSgd(2.0, 1.5), g, full_mask(wide))["w"].double()
    n = noise.numel()
    assert abs(float(noise.mean())) < 5 * 3.0 / n**0.5
    assert float(noise.var()) == pytest.approx(9.0, rel=5 * (2 / n) ** 0.5)
    assert float((noise**4).mean()) / 81 == pytest.approx(3.0, abs=5 * (96 / n) ** 0.5)


def test_the_given_gradient_never_gets_through() -> None:
    net, params, x, y = make()
    loud = map_trees(lambda t: torch.full_like(t, 1e6), params)
    defense = dp_sgd(DpSgd())
    one, _ = defense.apply(loud, step_of(net, params, x, y), {}, torch.Generator().manual_seed(1))
    two, _ = defense.apply(zeros_like(params), step_of(net, params, x, y), {}, torch.Generator().manual_seed(1))
    assert all(torch.equal(one[k], two[k]) for k in params)


def test_one_bad_example_stops_the_step() -> None:
    net, params, x, y = make()
    x[2] = torch.nan
    with pytest.raises(DefenseError, match="not finite"):
        dp_sgd(DpSgd()).apply(zeros_like(params), step_of(net, params, x, y), {}, torch.Generator())


def test_norms_cover_all_parameters_and_scalars() -> None:
    tree = {"a": torch.tensor([[3.0], [0.0]]), "b": torch.tensor([4.0, 2.0])}
    assert example_norms(tree).tolist() == [5.0, 2.0]


@pytest.mark.parametrize("settings", [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (float("inf"), 1.0), (1.0, float("nan"))])
def test_no_clip_or_no_noise_is_refused(settings: tuple[float, float]) -> None:
    with pytest.raises(ConfigError):
        DpSgd(*settings)
