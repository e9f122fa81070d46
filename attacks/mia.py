"""White-box membership inference (Nasr, Shokri, Houmansadr 2019, as CHN 6.1 uses it): was this example trained on?

Threat model: a server, or anyone who holds the trained model, with partial knowledge: some examples that were trained
on, some that were not, and candidates it asks about. It looks inside: the gradient of the last layer is an input.

Four inputs per example, each into an embedding of its own, all four joined into an MLP of four layers: the posteriors
in descending order [K], the loss [1], the last layer's gradient (p - e_y) h^T [K F], the label one-hot [K]. Inputs are
standardised by the known examples; the loss goes in as log(loss + 1e-6), as it spans decades.

Scores are of one model: an AUC of 0.5 means that *this* attack learns nothing from *these* examples. How well they part
members from outsiders, and with what certainty, is ``attacks.score.membership``.

Departures: gradients of more than ``GRADIENT`` coordinates are projected at random to as many; widths are ours.
"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, one_hot, softmax

from prunella.attacks.engine.label_inference import last_linear
from prunella.core.config import Count, Positive
from prunella.core.errors import AttackError
from prunella.core.global_draws import draws_from
from prunella.core.trees import Tree
from prunella.core.types import PrivateBatch
from prunella.tasks.task import Task

GRADIENT = 8192
_BATCH, _ROWS = 256, 64
_WIDTHS = (32, 16, 64, 16)  # of the four embeddings
Inputs = list[Tensor]  # four of [N, d]


@dataclass(frozen=True)
class Mia:
    """Which of the given examples were trained on.

    Adam on the known examples; its weight decay keeps the attack from learning them by heart.
    """

    epochs: Count = 40  #: of training the attack on known examples
    learning_rate: Positive = 1e-3  #: of that training
    decay: Positive = 1e-3  #: weight decay of that training


@dataclass(frozen=True)
class AttackedModel:
    """The model under attack."""

    task: Task
    params: Tree
    buffers: Tree


def inputs_of(model: AttackedModel, examples: PrivateBatch, generator: Generator) -> Inputs:
    """The four inputs of every example, in evaluation mode."""
    module = model.task.build().to(examples.x.device).eval()
    name = last_linear(module, model.task.classes)
    caught: list[Tensor] = []
    hook = module.get_submodule(name).register_forward_pre_hook(lambda _, inputs: caught.append(inputs[0]))
    with hook, torch.no_grad():
        state = {**model.params, **model.buffers}
        logits = torch.cat([functional_call(module, state, (x,)) for x in torch.split(examples.x, _BATCH)])
    features, posteriors = torch.cat(caught), softmax(logits, dim=1)
    labels = one_hot(examples.y, model.task.classes).to(posteriors)
    loss = torch.log(cross_entropy(logits, examples.y, reduction="none") + 1e-6)
    gradient = (posteriors - labels)[:, :, None] * features[:, None, :]
    return [posteriors.sort(dim=1, descending=True).values, loss[:, None], _shorter(gradient, generator), labels]


def _shorter(gradient: Tensor, generator: Generator) -> Tensor:
    """[N, K, F] as [N, K F], or its random projection to at most ``GRADIENT``: columns first, as F is the long side."""
    classes, features = gradient.shape[1:]
    width = max(1, GRADIENT // classes)
    if features <= width:
        return gradient.flatten(1)
    draw = torch.randn((features, width), generator=generator).to(gradient) / width**0.5
    short: Tensor = (gradient @ draw).flatten(1)
    return short


class AttackNetwork(nn.Module):
    """Four embeddings and an MLP of four layers; one logit per example."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(
            nn.Sequential(nn.Linear(size, width), nn.ReLU()) for size, width in zip(sizes, _WIDTHS, strict=True)
        )
        widths = [sum(_WIDTHS), 128, 64, 32]
        layers: list[nn.Module] = []
        for wide, narrow in zip(widths, widths[1:], strict=False):
            layers += [nn.Linear(wide, narrow), nn.ReLU()]
        self.head = nn.Sequential(*layers, nn.Linear(widths[-1], 1))

    def forward(self, inputs: Inputs) -> Tensor:
        joined = torch.cat([embed(x) for embed, x in zip(self.embeddings, inputs, strict=True)], dim=1)
        logits: Tensor = self.head(joined)
        return logits[:, 0]


def _attacker(sizes: list[int], generator: Generator) -> AttackNetwork:
    with draws_from(int(torch.randint(2**31, (1,), generator=generator))):
        return AttackNetwork(sizes)


def infer(
    model: AttackedModel,
    members: PrivateBatch,
    outsiders: PrivateBatch,
    candidates: PrivateBatch,
    attack: Mia,
    generator: Generator,
) -> Tensor:
    """A score [N] per candidate, higher for a likelier member, from an attacker trained on the known examples."""
    if not len(members.y) or not len(outsiders.y):
        raise AttackError("membership inference needs known members and known outsiders")
    both = PrivateBatch(torch.cat([members.x, outsiders.x]), torch.cat([members.y, outsiders.y]))
    secret = int(torch.randint(2**31, (1,), generator=generator))
    known, asked = (inputs_of(model, batch, torch.Generator().manual_seed(secret)) for batch in (both, candidates))
    truth = torch.cat([torch.ones(len(members.y)), torch.zeros(len(outsiders.y))]).to(known[0])
    means = [x.mean(dim=0) for x in known]
    scales = [(x - mean).square().mean(dim=0).sqrt() + 1e-6 for x, mean in zip(known, means, strict=True)]
    known, asked = ([(x - m) / s for x, m, s in zip(batch, means, scales, strict=True)] for batch in (known, asked))
    network = _attacker([x.shape[1] for x in known], generator).to(truth.device)
    optimizer = torch.optim.Adam(network.parameters(), lr=attack.learning_rate, weight_decay=attack.decay)
    for _ in range(attack.epochs):
        for rows in torch.split(torch.randperm(len(truth), generator=generator).to(truth.device), _ROWS):
            optimizer.zero_grad()
            loss = binary_cross_entropy_with_logits(network([x[rows] for x in known]), truth[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    with torch.no_grad():
        scores: Tensor = network(asked)
    return scores
