"""What is attacked: weights, masks, rounds and draws of a scenario are what its settings say."""

import dataclasses

import torch

from prunella.benchmarks.engine.shadows import Population
from prunella.benchmarks.scenarios.scenario import SCENARIOS, Scenario, clients, of, received
from prunella.core.trees import density
from prunella.tasks.data import Examples, load_test
from prunella.tasks.task import Task, initial, prunable
from prunella.tasks.training import loss_and_gradient

TASK = Task("cnn", (1, 8, 8), 10)


def images() -> Examples:
    found = load_test("digits", None)
    assert found is not None
    return found


def test_a_cell_s_settings_are_the_scenario() -> None:
    assert all(dataclasses.replace(one, says="") == of(one.settings(name)) for name, one in SCENARIOS.items())
    assert len(SCENARIOS) >= 6 and {one.dataset for one in SCENARIOS.values()} == {"mnist", "cifar10"}


def test_weights_are_the_first_ones_pruned_or_trained_as_it_says() -> None:
    public = images()
    params, _ = initial(TASK, 3)
    plain, pruned, trained = (
        received(Scenario("", "digits", **changed), TASK, 3, public) for changed in ({}, {"rate": 0.8}, {"trained": 40})
    )
    assert all(torch.equal(plain.params[name], params[name]) for name in params)
    inside = {name: pruned.mask[name] for name in prunable(TASK.build())}
    assert abs(density(inside) - 0.2) < 1e-3
    assert all(not bool(pruned.params[name][~pruned.mask[name]].any()) for name in params)
    losses = [
        loss_and_gradient(TASK.build(), each.params, each.buffers, public.x, public.y)[0] for each in (plain, trained)
    ]
    assert losses[1] < 0.8 * losses[0]


def population(scenario: Scenario, chain: str) -> Population:
    return Population(TASK, received(scenario, TASK, 0, images()), chain, {}, 0, scenario.batch, scenario.steps)


def test_rounds_send_the_same_images_with_other_noise_from_other_weights() -> None:
    scenario = Scenario("", "digits", rounds=3, updates=2)
    both = list(clients(scenario, population(scenario, "gaussian"), images(), images()))
    assert [len(views) for _, views in both] == [3, 3]
    (first, mine), (second, others) = both
    assert not torch.equal(first.x, second.x)
    name = next(iter(mine[0].params))
    assert not torch.equal(mine[0].params[name], mine[1].params[name])
    assert torch.equal(mine[2].params[name], others[2].params[name])  # the weights follow other clients alone


def test_unknown_labels_are_not_in_the_view_and_images_are_those_of_the_update() -> None:
    scenario = Scenario("", "digits", batch=2, steps=2, updates=2, known_labels=False)
    both = list(clients(scenario, population(scenario, "none"), images(), images()))
    for number, (private, views) in enumerate(both):
        assert views[-1].labels is None and (views[-1].steps, views[-1].batch_size) == (2, 2)
        assert torch.equal(private.x, images().x[4 * number : 4 * number + 4])
