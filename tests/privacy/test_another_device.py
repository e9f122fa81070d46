"""Every defense on a device beside the CPU, as a client with ``device=cuda`` runs it: on one that is there, or on one
that is not (``tests.pretended``), where two devices that meet raise as they would on a GPU."""

from dataclasses import replace

import pytest
import torch

from prunella.benchmarks.engine.views import RATE, model_of
from prunella.core.randomness import rehearsal
from prunella.core.trees import Tree, full_mask, to_device
from prunella.privacy import DEFENSES
from prunella.privacy.chain import build_chain, start
from prunella.privacy.leakage_guard import NAME as GUARD
from prunella.privacy.leakage_guard import unguarded
from prunella.strategies.round.local import Procedure, Received, local_update
from prunella.tasks.datasets.digits import everything
from prunella.tasks.examples import Examples
from prunella.tasks.task import Task, initial
from prunella.tasks.training import Sgd

CUDA = torch.device("cuda", 0)
WHERE_ONE_IS = pytest.mark.skipif(not torch.cuda.is_available(), reason="its Jacobian wants tensors that are there")
CHAINS = [pytest.param(name, marks=WHERE_ONE_IS) if name == "soteria" else name for name in DEFENSES]


def updates(chain: str, device: torch.device) -> list[Tree]:
    """What two rounds of two steps send; a data defense is fitted on images of the CPU, as a client's lie there."""
    names, images = chain.split(","), everything()
    task = Task(model_of("cnn", names), (1, 8, 8), 10)
    built, module = build_chain(names, {}), task.build()
    params, buffers = (to_device(tree, device) for tree in initial(task, 0))
    module = module if device.type == "cpu" else module.to_empty(device=device)  # its own weights are not used
    received = Received(params, to_device(full_mask(params), device), buffers)
    state, found = start(built, images.x[:64], params, {}, rehearsal(0, purpose="fit")), list[Tree]()
    for turn in range(2):
        if built.guard is not None:
            state = {**state, GUARD: unguarded(state[GUARD])}
        batches = [images.take(torch.arange(8) + 8 * number) for number in range(2)]
        there = iter([Examples(batch.x.to(device), batch.y.to(device)) for batch in batches])
        procedure = replace(Procedure(module, Sgd(RATE), built, 8), shape=task.shape)
        done = local_update(procedure, received, there, state, rehearsal(0, round=turn, purpose="defense"))
        state = done.state
        assert all(tensor.device == device for tensor in done.outgoing.update.values())
        found.append(to_device(done.outgoing.update, "cpu"))
    return found


@pytest.mark.parametrize("chain", [*CHAINS, "channel-natural,dgp,mask-hiding"])
def test_a_defense_sends_there_what_it_sends_here(chain: str, pretended: None) -> None:
    for here, there in zip(updates(chain, torch.device("cpu")), updates(chain, CUDA), strict=True):
        for name, sent in here.items():
            far = (sent - there[name]).abs() > 1e-4 + 1e-3 * sent.abs()
            assert far.float().mean() < 1e-3, name  # a value beside a threshold may fall on either side of it
