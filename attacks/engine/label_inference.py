"""Labels from the last layer's gradient, before any image is guessed.

For a linear last layer with cross-entropy, the bias gradient of class c is r_c, the batch mean of p_c - [y = c]: at
batch 1 exactly one is negative, the label's (iDLG, Zhao et al. 2020). For a batch there are two counts. An attack
with restarts tries both, and labels that are optimised with the images, and keeps what explains the update best:

count_by_probability   n_c = N (p_c - r_c) with p_c taken on uninformed images (Geng et al. 2021), then rounded to add
                       up to N. Exact where the model says the same of every image: untrained. Needs the scale of r.
count_by_impact        LLG (Wainakh et al. 2022, Algorithm 1): an example of a class lowers its r_c by the impact
                       m = (1 + 1/K) / N * (sum of negative r_c); take every negative class once, subtract m from it,
                       then the lowest class again and again until N labels are named. Needs no scale.

Where the bias did not arrive, r_c is estimated from its row of the weight gradient, a mean of (p_c - [y = c]) times the
features: the projection on the features of uninformed images, over the coordinates that did arrive; zero where none
did. Several local steps are treated as one (their mean gradient), exact only while the model hardly moves.
Measured on digits (``cnn``, 5 steps of 16, 10 trials): by_probability names 0.88 of the labels of an untrained model
and 0.76 after 200 steps of training, by_impact 0.54 and 0.42; at batch 4 of a trained model by_impact is better.

Departure: LLG uses the plain row sum, which presumes features that are never negative.

>>> count_by_impact(torch.tensor([-0.6, 0.2, -0.1, 0.5]), 3).tolist()
[0, 0, 2]
>>> count_by_probability(torch.tensor([-0.4, 0.25, -0.1, 0.25]), torch.full((4,), 0.25), 3).tolist()
[0, 0, 2]
"""

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import softmax

from prunella.attacks.engine.matching import Target
from prunella.attacks.engine.objectives import split
from prunella.core.errors import AttackError
from prunella.tasks.models.layers import Shape
from prunella.tasks.task import Task

_REFERENCES = 64  # uninformed images whose mean feature stands for the batch's


def last_linear(module: nn.Module, classes: int) -> str:
    """The name of the layer that makes the logits. Raises ``AttackError`` where the last linear layer does not."""
    layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, nn.Linear)}
    name = next(reversed(layers), "")
    if not layers or layers[name].out_features != classes:
        raise AttackError("the model ends in no linear layer of one output per class: set labels to 'optimise'")
    return name


def uninformed(target: Target, layer: str, shape: Shape, generator: Generator) -> tuple[Tensor, Tensor]:
    """Mean input [F] of ``layer`` and mean probabilities [K] on uniform noise: what a server knows of them."""
    caught: list[Tensor] = []
    hook = target.module.get_submodule(layer).register_forward_pre_hook(lambda _, inputs: caught.append(inputs[0]))
    noise = torch.rand((_REFERENCES, *shape), generator=generator).to(target.flat.device)
    with hook, torch.no_grad():
        logits = target.logits(noise)
    return caught[0].mean(dim=0), softmax(logits, dim=1).mean(dim=0)


def class_evidence(target: Target, layer: str, features: Tensor) -> Tensor:
    """An estimate of r_c for every class, [K]; negative means that the class is in the batch."""
    prefix = f"{layer}." if layer else ""
    gradient = split(target.flat, target.params)
    rows = gradient[f"{prefix}weight"]
    # An exact zero is a coordinate that did not arrive: only those that did can be projected on.
    arrived = (rows != 0).to(rows.dtype)
    projected = rows @ features / (arrived @ features.square()).clamp_min(torch.finfo(rows.dtype).tiny)
    bias = gradient.get(f"{prefix}bias")
    return projected if bias is None else torch.where(bias != 0, bias, projected)


def evidence_of(target: Target, task: Task, generator: Generator) -> tuple[Tensor, Tensor]:
    """An estimate of r_c, [K], and the mean probabilities on uninformed images, [K]."""
    layer = last_linear(target.module, task.classes)
    features, probabilities = uninformed(target, layer, task.shape, generator)
    return class_evidence(target, layer, features), probabilities


def count_by_impact(evidence: Tensor, images: int) -> Tensor:
    """LLG's selection: ``images`` labels in ascending order, int64."""
    left = evidence.detach().double().cpu().clone()
    impact = min(float(left.clamp_max(0).sum()), -torch.finfo(left.dtype).tiny) * (1 + 1 / len(left)) / images
    taken = torch.argsort(left, stable=True)[: min(images, int((left < 0).sum()))].tolist()
    for label in taken:
        left[label] -= impact
    while len(taken) < images:
        label = int(left.argmin())
        taken.append(label)
        left[label] -= impact
    return torch.tensor(sorted(taken), dtype=torch.int64)


def count_by_probability(evidence: Tensor, probabilities: Tensor, images: int) -> Tensor:
    """``images`` labels in ascending order, int64: expected counts, rounded one label at a time to the largest rest."""
    return repeated(images * (probabilities - evidence), images)


def repeated(expected: Tensor, images: int) -> Tensor:
    """Every class about as often as ``expected`` [K] says, ``images`` labels in ascending order.

    >>> repeated(torch.tensor([0.4, 1.7, 0.9]), 3).tolist()
    [1, 1, 2]
    """
    expected = expected.detach().double().cpu()
    counts = torch.zeros_like(expected)
    for _ in range(images):
        counts[(expected - counts).argmax()] += 1
    return torch.repeat_interleave(torch.arange(len(counts)), counts.long())


def spread(labels: Tensor, steps: int) -> Tensor:
    """The labels in an order that gives every local step its share of each class, as shuffled batches have.

    >>> spread(torch.tensor([0, 0, 1, 1]), 2).tolist()
    [0, 1, 0, 1]
    """
    ordered = labels.sort().values
    return torch.cat([ordered[step::steps] for step in range(steps)])


def label_candidates(target: Target, task: Task, scaled: bool, generator: Generator) -> list[Tensor | None]:
    """Labels [images] to try, likeliest first, None for "optimise them"; ``scaled`` where the learning rate, and with
    it the size of r, is known. At batch 1 every class is a candidate."""
    images, (evidence, probabilities) = target.plan.images, evidence_of(target, task, generator)
    if images == 1:
        return [label.reshape(1) for label in evidence.argsort(stable=True)]
    steps, device = len(target.plan.batches), target.flat.device
    by_impact = spread(count_by_impact(evidence, images), steps).to(device)
    by_probability = spread(count_by_probability(evidence, probabilities, images), steps).to(device)
    others = [by_impact, None] if steps == 1 else [None, by_impact]
    return [by_probability, *others] if scaled else others
