"""The entry refuses models without the bottleneck; with it, an attack that rebuilt the plain model's image does not."""

import pytest
import torch

from prunella.attacks.engine.inversion import reconstruct
from prunella.attacks.ig import Ig
from prunella.attacks.score.leakage import score
from prunella.core.errors import DefenseError
from prunella.core.randomness import rehearsal, stream
from prunella.core.trees import full_mask
from prunella.core.types import PrivateBatch, ServerView
from prunella.privacy.chain import build_chain, start
from prunella.strategies.round.local import Procedure, Received, local_update
from prunella.tasks.examples import Examples
from prunella.tasks.public import digits
from prunella.tasks.task import Task, initial
from prunella.tasks.training import Sgd


def psnr(model: str, defense: str) -> float:
    task = Task(model, (1, 8, 8), 10)
    params, buffers = initial(task, 0)
    x, y = digits().x[:1], digits().y[:1]
    chain = build_chain([defense], {})
    received = Received(params, full_mask(params), buffers)
    state = start(chain, x, params, {}, rehearsal(0, purpose="fit"))
    procedure = Procedure(task.build(), Sgd(0.1), chain)
    done = local_update(procedure, received, iter([Examples(x, y)]), state, rehearsal(0, purpose="x"))
    view = ServerView(params, done.outgoing.update, labels=y, num_examples=1, batch_size=1, steps=1, learning_rate=0.1)
    rebuilt = reconstruct(view, task, Ig(iterations=100), stream(0, purpose="attack"))
    return score(rebuilt, PrivateBatch(x, y)).psnr.mean


def test_a_bottleneck_lowers_what_the_plain_model_gives_away() -> None:
    control, defended = psnr("cnn", "none"), psnr("precode-cnn", "precode")
    assert control > 20 and defended < control - 5


def test_a_model_without_a_bottleneck_is_refused_with_the_mend() -> None:
    chain, params = build_chain(["precode"], {}), initial(Task("cnn", (1, 8, 8), 10), 0)[0]
    with pytest.raises(DefenseError, match="model=precode-"):
        start(chain, torch.zeros(1, 1, 8, 8), params, {}, rehearsal(0, purpose="fit"))
    with pytest.raises(DefenseError, match="no variational bottleneck"):
        chain.links[0].defense.apply(params, {}, rehearsal(0, purpose="test"))
