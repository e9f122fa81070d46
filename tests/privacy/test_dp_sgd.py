"""DP-SGD: clipping against a loop and Opacus, the bound of one example, moments of the noise, refusals."""

import math

import numpy as np
import pytest
import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch.nn.functional import cross_entropy

from prunella.core.errors import ConfigError
from prunella.core.randomness import rehearsal
from prunella.core.trees import Tree, full_mask, l2, map_trees, subtract, zeros_like
from prunella.privacy.defense import Step, StepDefense
from prunella.privacy.dp_psac import DpPsac, dp_psac
from prunella.privacy.dp_sgd import BLOCK, PIECE, DpSgd, clipped_sum, dp_sgd, example_norms, flat_weight, noisy_mean
from prunella.privacy.fed_ltp import FedLtp, fed_ltp
from prunella.privacy.fed_spa import FedSpa, fed_spa
from prunella.privacy.gaussian import grid_of
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
        torch.testing.assert_close(ours[name].float(), p.summed_grad, rtol=1e-4, atol=1e-7)


def test_without_clipping_or_noise_it_is_the_mean_gradient() -> None:
    net, params, x, y = make()
    defense, step = dp_sgd(DpSgd(1e4, 1e-12)), step_of(net, params, x, y)
    made, _ = defense.apply(zeros_like(params), step, {}, rehearsal(0, purpose="test"))
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
    g = rehearsal(0, purpose="test")
    noise = noisy_mean(empty, weigh(2.0), DpSgd(2.0, 1.5), g, full_mask(wide))["w"].double()
    n = noise.numel()
    assert abs(float(noise.mean())) < 5 * 3.0 / n**0.5
    assert float(noise.var()) == pytest.approx(9.0, rel=5 * (2 / n) ** 0.5)
    assert float((noise**4).mean()) / 81 == pytest.approx(3.0, abs=5 * (96 / n) ** 0.5)


def test_the_given_gradient_never_gets_through() -> None:
    net, params, x, y = make()
    loud = map_trees(lambda t: torch.full_like(t, 1e6), params)
    defense = dp_sgd(DpSgd())
    one, _ = defense.apply(loud, step_of(net, params, x, y), {}, rehearsal(1, purpose="test"))
    two, _ = defense.apply(zeros_like(params), step_of(net, params, x, y), {}, rehearsal(1, purpose="test"))
    assert all(torch.equal(one[k], two[k]) for k in params)


# ---- single gradients given by hand


def given(*chunks: Tree) -> Step:
    """A step whose single gradients are ``chunks`` [b, *shape]; two examples are expected, whatever there are."""
    params = {name: torch.zeros(t.shape[1:], dtype=t.dtype) for name, t in chunks[0].items()}
    return Step(params, full_mask(params), 0, 2, lambda: iter(chunks), lambda: ("w", torch.zeros(1), torch.zeros(1)))


def noised(step: Step, defense: StepDefense) -> Tree:
    return defense.apply(zeros_like(step.params), step, defense.init(step.params), rehearsal(9, purpose="test"))[0]


def gradients(examples: int, dtype: torch.dtype = torch.float32) -> Tree:
    g = torch.Generator().manual_seed(examples)
    shapes = {"w": (examples, 3, 5), "b": (examples, 2), "scale": (examples,)}
    return {name: torch.randn(shape, generator=g, dtype=dtype) for name, shape in shapes.items()}


PRIVATE = {"dp-sgd": dp_sgd(DpSgd()), "dp-psac": dp_psac(DpPsac()), "fed-ltp": fed_ltp(FedLtp())}
PRIVATE |= {"fed-spa": fed_spa(FedSpa(keep=1.0))}
BAD = {"nan": torch.nan, "inf": torch.inf, "minus": -torch.inf, "large": 1e300}


@pytest.mark.parametrize("name", PRIVATE)
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("places", [[0], [4], [1, 2], [0, 1, 2, 3, 4]])
def test_an_example_that_is_not_finite_counts_as_zero_bit_for_bit(name: str, bad: str, places: list[int]) -> None:
    """One with a single bad number among others that would count, and one that is bad throughout; 1e300 is finite, and
    its square is not."""
    honest, defense = gradients(5, torch.float64), PRIVATE[name]
    keep = torch.tensor([i for i in range(5) if i not in places], dtype=torch.int64)
    expected = noised(given({n: t[keep] for n, t in honest.items()}), defense)
    for one in honest:
        poisoned = {n: t.clone() for n, t in honest.items()}
        poisoned[one].view(5, -1)[places, -1] = BAD[bad]
        made = noised(given(poisoned), defense)
        assert all(torch.equal(made[n], expected[n]) and bool(torch.isfinite(made[n]).all()) for n in made)
    throughout = {n: t.index_fill(0, torch.tensor(places), BAD[bad]) for n, t in honest.items()}
    assert all(torch.equal(t, expected[n]) for n, t in noised(given(throughout), defense).items())
    if len(keep):  # and the others do count
        assert not torch.equal(noised(given({n: t[:0] for n, t in honest.items()}), defense)["w"], expected["w"])


def test_a_network_that_fails_on_one_image_takes_its_step_on_the_others() -> None:
    net, params, x, y = make()
    x[2] = torch.inf
    (each,) = step_of(net, params, x, y).per_example()
    keep = torch.arange(len(y)) != 2
    finite = torch.stack([torch.isfinite(t.flatten(1)).all(1) for t in each.values()]).all(0)
    assert torch.equal(finite, keep)  # the control: this image does it, and no other
    made = clipped_sum(step_of(net, params, x, y), weigh(0.5), full_mask(params))
    without = clipped_sum(step_of(net, params, x[keep], y[keep]), weigh(0.5), full_mask(params))
    for name in params:
        torch.testing.assert_close(made[name], without[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e-3, 1e-25, 1e15])
def test_the_norm_of_a_wide_layer_is_not_short(value: float) -> None:
    """2^24 equal numbers, whose float32 sum of squares is wrong in its third digit; 1e-25 squared is no float32."""
    one = {"w": torch.full((1, 1 << 24), value)}
    norm = math.sqrt(1 << 24) * float(one["w"][0, 0])
    assert norm <= float(example_norms(one)) <= norm * (1 + 2e-5) + 1e-17
    factor = flat_weight(example_norms(one), norm / 3)
    assert (norm / 3 - 1e-17) * (1 - 2e-5) <= float(factor) * norm <= norm / 3


def test_a_float32_sum_would_have_been_short() -> None:
    """The control of the test above: added up one by one, an example of 1.004 times the bound would leave unclipped."""
    squares = np.full(1 << 24, 0.1, dtype=np.float32) ** 2
    short = math.sqrt(float(np.cumsum(squares, dtype=np.float32)[-1]))
    assert short * 1.004 < math.sqrt(1 << 24) * float(np.float32(0.1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_example_among_many_moves_the_sum_by_at_most_the_clip(dtype: torch.dtype) -> None:
    """All of 60,000 point one way, so that the sum is large, and one of them is in its last digits in float32."""
    clip, count, wide = 0.3, 60_000, 8
    direction = torch.full((wide,), 1 / math.sqrt(wide), dtype=dtype)
    inside = {"w": torch.ones(wide, dtype=torch.bool)}
    sizes = torch.rand(count, generator=torch.Generator().manual_seed(0), dtype=dtype) * 50 + 0.5

    def total(sizes: torch.Tensor) -> torch.Tensor:
        chunks = [{"w": part[:, None] * direction} for part in sizes.split(4096)]
        return clipped_sum(given(*chunks), weigh(clip), inside)["w"]

    whole = total(sizes)
    assert whole.dtype == torch.float64
    assert count * clip * (1 - 2e-5) <= float(whole.norm()) <= count * clip * (1 + 1e-12)
    for number in (0, 5000, 59_999):
        moved = whole - total(torch.cat([sizes[:number], sizes[number + 1 :]]))
        assert clip * (1 - 2e-5) <= float(moved.norm()) <= clip * (1 + 1e-7)


WIDTHS = [(7, 0), (7, 1), (7, 2 * BLOCK - 1), (7, BLOCK), (7, PIECE + 1), (0, 5), (3, PIECE + 2, 2)]


@pytest.mark.parametrize("shape", WIDTHS)
def test_pieces_of_columns_add_up_to_the_whole(shape: tuple[int, ...]) -> None:
    tree = {"w": torch.randn(shape, generator=torch.Generator().manual_seed(0)), "b": torch.ones(shape[0])}
    flat = torch.cat([tree["w"].flatten(1), tree["b"][:, None]], 1).double()
    assert bool((example_norms(tree) >= flat.norm(dim=1)).all())
    torch.testing.assert_close(example_norms(tree), flat.norm(dim=1), rtol=2e-5, atol=0)
    made = clipped_sum(given(tree), weigh(0.7), {n: torch.ones(t.shape[1:], dtype=torch.bool) for n, t in tree.items()})
    factors = (0.7 / example_norms(tree)).clamp(max=1)
    expected = (factors[:, None] * flat).sum(0)
    torch.testing.assert_close(torch.cat([made["w"].flatten(), made["b"][None]]), expected, rtol=1e-12, atol=1e-14)


def test_every_coordinate_that_leaves_lies_on_the_grid_of_the_noise() -> None:
    """The mean divides by two here, which rounds nothing."""
    clip, grid = 1.5, grid_of(1.5 * 0.9)
    for honest in (gradients(4), gradients(5, torch.float64)):
        made = noised(given(honest), dp_sgd(DpSgd(clip, 0.9)))
        for tensor in made.values():
            steps = tensor.double() * 2 / grid
            assert torch.equal(steps, steps.round()) and tensor.dtype == honest["w"].dtype
        before = clipped_sum(given(honest), weigh(clip), full_mask(made))["w"] / grid
        assert int((before == before.round()).sum()) == 0


def test_norms_cover_all_parameters_and_scalars() -> None:
    tree = {"a": torch.tensor([[3.0], [0.0]]), "b": torch.tensor([4.0, 2.0])}
    assert example_norms(tree).tolist() == pytest.approx([5.0, 2.0], rel=2e-5)
    assert example_norms({"a": torch.full((1, 4), 1e25)}).isinf().all()  # no float32 holds its square: counts as zero


WRONG = [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (math.inf, 1.0), (1.0, math.nan), (1e-200, 1e-200), (1e200, 1e200)]


@pytest.mark.parametrize("settings", WRONG)
def test_no_clip_or_no_noise_is_refused(settings: tuple[float, float]) -> None:
    with pytest.raises(ConfigError):
        DpSgd(*settings)
