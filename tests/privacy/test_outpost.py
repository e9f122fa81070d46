"""Outpost: what is pruned, where noise goes and how much, and how often."""

import pytest
import torch

from prunella.core.errors import ConfigError
from prunella.core.randomness import rehearsal
from prunella.core.trees import Tree, map_trees
from prunella.privacy.outpost import Outpost, fisher_information, most_informed, outpost, perturb, risk
from prunella.tasks.task import Task, initial
from tests.privacy.steps import make, step_of


def gradient(params: Tree) -> Tree:
    g = torch.Generator().manual_seed(5)
    return {name: torch.randn(t.shape, generator=g) for name, t in params.items()}


def test_fisher_information_is_the_mean_square_against_a_loop() -> None:
    net, params, x, y = make()
    total = map_trees(torch.zeros_like, params)
    for i in range(len(y)):
        (single,) = step_of(net, params, x[i : i + 1], y[i : i + 1]).per_example()
        total = map_trees(lambda t, s: t + s[0] ** 2 / len(y), total, single)
    ours = fisher_information(step_of(net, params, x, y))
    for name in params:
        torch.testing.assert_close(ours[name], total[name], rtol=1e-4, atol=1e-8)


def test_without_noise_it_prunes_the_smallest_of_each_layer() -> None:
    net, params, x, y = make()
    given = gradient(params)
    made = perturb(given, step_of(net, params, x, y), Outpost(noise=0.0), rehearsal(0, purpose="test"))
    for name, tensor in given.items():
        order = sorted(range(tensor.numel()), key=lambda i: (float(tensor.flatten()[i].abs()), i))
        gone = set(order[: int(0.8 * tensor.numel() + 1e-9)])
        assert {i for i in range(tensor.numel()) if made[name].flatten()[i] == 0} == gone


def test_noise_lies_where_fisher_information_is_large_and_scales_with_risk() -> None:
    net, params, x, y = make()
    zero, step = map_trees(torch.zeros_like, params), step_of(net, params, x, y)
    where, g = most_informed(fisher_information(step), 0.4), rehearsal(0, purpose="test")
    draws = [perturb(zero, step, Outpost(), g) for _ in range(400)]
    for name in params:
        noise = torch.stack([draw[name] for draw in draws])
        assert not bool(noise[:, ~where[name]].any())
        if bool(where[name].any()):
            n = noise[:, where[name]].numel()
            expected = 0.8 * min(1.0, float(params[name].var()))
            assert float(noise[:, where[name]].std()) == pytest.approx(expected, rel=5 / (2 * n) ** 0.5)
    kept = sum(int(m.sum()) for m in where.values())
    assert kept == -int(-0.4 * sum(t.numel() for t in params.values()) // 1)


@pytest.mark.parametrize("number, chance", [(0, 1.0), (10, 0.5), (90, 0.1)])
def test_it_perturbs_less_often_at_later_steps(number: int, chance: float) -> None:
    net, params, x, y = make(batch=1)
    given, g = gradient(params), rehearsal(0, purpose="test")
    defense, step = outpost(Outpost()), step_of(net, params, x, y, None, number)
    hits = sum(not torch.equal(defense.apply(given, step, {}, g)[0]["conv.weight"], given["conv.weight"])
               for _ in range(150))  # fmt: skip
    assert abs(hits - 150 * chance) <= 5 * (150 * chance * (1 - chance)) ** 0.5


def test_risk_is_capped_and_settings_are_checked() -> None:
    assert risk(torch.tensor([0.0, 100.0])) == 1.0
    for bad in ({"noise": -1.0}, {"fisher": 0.0}, {"decay": -0.1}, {"prune": 1.0}):
        with pytest.raises(ConfigError):
            Outpost(**bad)


def test_the_noise_in_cnn_as_drawn_is_what_the_module_says() -> None:
    params, _ = initial(Task("cnn", (3, 32, 32), 10), 0)
    deviations = [Outpost().noise * risk(tensor) for name, tensor in params.items() if name.endswith("weight")]
    assert deviations == pytest.approx([0.014, 0.006, 2e-5], rel=0.15)
    assert Outpost().noise * risk(torch.empty(10_000).uniform_(-0.5, 0.5)) == pytest.approx(0.067, rel=0.05)
