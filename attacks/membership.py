"""Membership from what a server received of a client: was this example trained on?

No training of an attack, no public data and no other model: each score is one number per candidate from the weights
that a client was sent and the update that it returned, in every round that was kept. Higher speaks for membership.

``model``      minus the loss under the last weights sent (Yeom et al. 2018): of the model alone
``local``      minus the loss under these weights plus the client's update: of the client's own model
``drop``       by how much each update lowers the loss, summed over rounds: the weights before it calibrate for how
               difficult an example is (Watson et al. 2022), and differ from those after it by this client's training
``alignment``  cosine of each update with the step that the candidate alone would ask for, summed over rounds (Nasr et
               al. 2019; over rounds as in FedMIA, Zhu et al. 2024), in the last linear layer, whose gradient
               (p - e_y) h^T needs no backward pass: as good as in all layers on the main job

Departures: FedMIA compares with the other clients' updates; here the client's other examples are what is compared with
(``client.membership``). Evaluation mode throughout, with the buffers that were sent. Losses in nats.

>>> net = torch.nn.Linear(2, 2, bias=False)
>>> seen = Seen({"weight": torch.zeros(2, 2)}, {}, {"weight": torch.tensor([[1.0, 0.0], [-1.0, 0.0]])})
>>> found = candidate_scores(net, 2, [seen], torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
>>> {name: [round(float(each), 2) for each in scores] for name, scores in found.items()}
{'model': [-0.69, -0.69], 'local': [-0.13, -0.69], 'drop': [0.57, 0.0], 'alignment': [1.0, 0.0]}
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy, one_hot, softmax

from prunella.attacks.engine.label_inference import last_linear
from prunella.core.errors import AttackError
from prunella.core.trees import Tree, add
from prunella.tasks.training import mode

BATCH = 256
MODEL, UPDATES = frozenset({"model"}), frozenset({"local", "drop", "alignment"})  # of the model alone; of the updates
WORST = 1e30  # of a score that is not finite: an error would tell of the example that made it so


@dataclass(frozen=True)
class Seen:
    """One round of a client: weights and buffers it was sent, and the update that arrived, zero where none did."""

    params: Tree
    buffers: Tree
    update: Tree


def candidate_scores(
    module: nn.Module, classes: int, rounds: Sequence[Seen], x: Tensor, y: Tensor
) -> dict[str, Tensor]:
    """Every score [N] of candidates x [N, C, H, W], y [N], from ``rounds`` in order. A model that ends in no linear
    layer has no ``alignment``. Raises ``AttackError`` without a round."""
    if not rounds:
        raise AttackError("membership needs at least one round")
    try:
        layer = last_linear(module, classes)
    except AttackError:
        layer = None
    drop, alignment = torch.zeros(len(y)), torch.zeros(len(y))
    for seen in rounds:
        logits, features = _forward(module, seen.params, seen.buffers, x, layer)
        after = _losses(_forward(module, add(seen.params, seen.update), seen.buffers, x, None)[0], y)
        before = _losses(logits, y)
        drop += before - after
        if layer is not None:
            alignment += _alignment(logits, features, y, seen.update[f"{layer}.weight" if layer else "weight"])
    found = {"model": -before, "local": -after, "drop": drop}
    found |= {} if layer is None else {"alignment": alignment}
    return {name: torch.nan_to_num(score, nan=-WORST, posinf=WORST, neginf=-WORST) for name, score in found.items()}


def _losses(logits: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(logits, y.to(logits.device), reduction="none").cpu()


def _forward(module: nn.Module, params: Tree, buffers: Tree, x: Tensor, layer: str | None) -> tuple[Tensor, Tensor]:
    """Logits [N, K], and the inputs [N, F] of the linear ``layer``, if one is named."""
    caught: list[Tensor] = []
    device = next(iter(params.values())).device
    hook: AbstractContextManager[Any] = nullcontext()
    if layer is not None:
        hook = module.get_submodule(layer).register_forward_pre_hook(lambda _, inputs: caught.append(inputs[0]))
    with hook, mode(module, False), torch.no_grad():
        state = {**params, **buffers}
        logits = torch.cat([functional_call(module, state, (part.to(device),)) for part in torch.split(x, BATCH)])
    return logits, torch.cat(caught) if caught else logits


def _alignment(logits: Tensor, features: Tensor, y: Tensor, update: Tensor) -> Tensor:
    """Cosine [N] of -(p - e_y) h^T with ``update`` [K, F], over the coordinates that arrived; 0 where none did."""
    residual = one_hot(y.to(logits.device), logits.shape[1]).to(logits) - softmax(logits, dim=1)
    dot = ((residual @ update) * features).sum(dim=1)
    norm = ((residual.square() @ (update != 0).to(update)) * features.square()).sum(dim=1) * update.square().sum()
    return (dot / norm.clamp_min(torch.finfo(norm.dtype).tiny).sqrt()).cpu()
