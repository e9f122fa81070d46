"""Shadow clients: other draws are other clients, and what they send is what the attacked client would."""

import torch

from prunella.benchmarks.engine.shadows import Population, ShadowSender
from prunella.core.trees import full_mask
from prunella.strategies.round.local import Received
from prunella.tasks.data import Examples, load_test
from prunella.tasks.task import Task, initial


def population(chain: str, batch: int = 1, steps: int = 1) -> tuple[Population, Examples]:
    task, images = Task("cnn", (1, 8, 8), 10), load_test("digits", None)
    assert images is not None
    params, buffers = initial(task, 0)
    return Population(task, Received(params, full_mask(params), buffers), chain, {}, 0, batch, steps), images


def flat(update: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([u.flatten() for u in update.values()])


def test_another_draw_is_another_client() -> None:
    """Other noise on the same image; and behind a defense that learns, another state as well."""
    for chain in ("channel-natural", "priprune"):
        where, images = population(chain)
        for taught in (0, 2):
            shadow = ShadowSender(where, images, taught)
            one = images.take(torch.tensor([0]))
            sent = [flat(shadow.send(one, draw).update) for draw in (1, 1, 2)]
            assert torch.equal(sent[0], sent[1]) and not torch.equal(sent[0], sent[2])


def test_taught_clients_take_turns_with_draws_of_their_own() -> None:
    where, images = population("priprune")
    shadow = ShadowSender(where, images, 2)
    shadow.send(images.take(torch.tensor([0])), 5)
    assert len(shadow.learners) == 2 and shadow.learner(0).state.keys() == shadow.learners[0].state.keys()


def test_local_steps_are_gradient_steps_in_order() -> None:
    where, images = population("none", batch=2, steps=2)
    four = images.take(torch.arange(4))
    view = ShadowSender(where, images).send(four, 0)
    assert (view.steps, view.batch_size, view.num_examples) == (2, 2, 4)
    by_hand = population("none", batch=2)[0]
    first = ShadowSender(by_hand, images).send(four.take(torch.arange(2)), 0)
    params = {name: w + first.update[name] for name, w in first.params.items()}
    then = Population(where.task, Received(params, where.received.mask, where.received.buffers), "none", {}, 0, 2)
    second = ShadowSender(then, images).send(four.take(torch.arange(2, 4)), 0)
    both = flat({name: first.update[name] + second.update[name] for name in params})
    assert torch.allclose(flat(view.update), both, atol=1e-6)
