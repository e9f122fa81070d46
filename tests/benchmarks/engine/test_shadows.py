"""Shadow clients: other draws are other clients, and what they send is what the attacked client would."""

import torch

from prunella.attacks import find_attack
from prunella.attacks.score.leakage import psnr
from prunella.attacks.sgi import Sgi
from prunella.benchmarks.engine.images import part
from prunella.benchmarks.engine.shadows import FITS, Population, ShadowSender
from prunella.benchmarks.engine.views import after_rounds, seen
from prunella.core.randomness import rehearsal, stream
from prunella.core.trees import full_mask
from prunella.core.types import PrivateBatch
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
    """Other noise on the same image, and another client's state where a turn comes round."""
    for chain in ("channel-natural", "gaussian"):
        where, images = population(chain)
        shadow = ShadowSender(where, images)
        one = images.take(torch.tensor([0]))
        sent = [flat(shadow.send(one, draw).update) for draw in (1, 1, 2, 1 + FITS)]
        assert torch.equal(sent[0], sent[1])
        assert not any(torch.equal(sent[0], each) for each in sent[2:])


def test_a_client_is_in_its_first_round() -> None:
    """PriPrune then shares what it has no weights of its own for, and the image is in it; after five steps not."""
    where, images = population("priprune")
    truth, rest = PrivateBatch(images.x[:1], images.y[:1]), images.take(torch.arange(100, 200))
    for earlier, rebuilt in ((0, True), (5, False)):
        steps = [part(rest, turn) for turn in range(earlier)]
        client = after_rounds(where.client(rest), steps, lambda turn: rehearsal(0, round=turn, purpose="warm"))
        view = seen(client, images.take(torch.tensor([0])), lambda _: rehearsal(0, purpose="draws")).view
        found = find_attack("sgi").reconstruct(view, where.task, Sgi(iterations=200), stream(0, purpose="attack"))
        assert (psnr(truth.x, found.x)[0] > 30) is rebuilt


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
