"""Labels from the last layer's gradient, before any image is guessed.

For a linear last layer with cross-entropy, the bias gradient of class c is r_c, the batch mean of p_c - [y = c]: at
batch 1 exactly one is negative, the label's (iDLG, Zhao et al. 2020). For a batch, LLG (Wainakh et al. 2022,
Algorithm 1): each example of a class lowers its r_c by the impact m = (1 + 1/K) / N * (sum of negative r_c), so take
every negative class once, subtract m from it, then take the lowest class again and again until N labels are named.

Where the bias did not arrive, r_c is estimated from its row of the weight gradient, a mean of (p_c - [y = c])
times the features: the projection on the features of uninformed images, over the coordinates that did arrive; zero
where none did. Several local steps are treated as one (their mean gradient), exact only while the model hardly moves.

Departure: LLG uses the plain row sum, which presumes features that are never negative.

>>> count_labels(torch.tensor([-0.6, 0.2, -0.1, 0.5]), 3).tolist()
[0, 0, 2]
"""

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call

from attacks.matching import Target
from core.errors import AttackError
from core.trees import Tree

_REFERENCES = 64  # uninformed images whose mean feature stands for the batch's


def last_linear(module: nn.Module, classes: int) -> str:
    """The name of the layer that makes the logits. Raises ``AttackError`` where the last linear layer does not."""
    layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, nn.Linear)}
    name = next(reversed(layers), "")
    if not layers or layers[name].out_features != classes:
        raise AttackError("the model ends in no linear layer of one output per class: set labels to 'optimise'")
    return name


def typical_features(target: Target, layer: str, shape: tuple[int, int, int], generator: Generator) -> Tensor:
    """The mean input [F] of ``layer`` on uniform noise: what a server can know of it without data."""
    caught: list[Tensor] = []
    hook = target.module.get_submodule(layer).register_forward_pre_hook(lambda _, inputs: caught.append(inputs[0]))
    noise = torch.rand((_REFERENCES, *shape), generator=generator).to(target.flat.device)
    buffers = {name: buffer.clone() for name, buffer in target.buffers.items()}
    try:
        with torch.no_grad():
            functional_call(target.module, (target.params, buffers), (noise,))
    finally:
        hook.remove()
    return caught[0].mean(dim=0)


def split(flat: Tensor, like: Tree) -> Tree:
    """A flat vector as the tree it came from."""
    parts = torch.split(flat, [tensor.numel() for tensor in like.values()])
    return {name: part.view_as(like[name]) for name, part in zip(like, parts, strict=True)}


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


def count_labels(evidence: Tensor, images: int) -> Tensor:
    """LLG's selection: ``images`` labels in ascending order, int64."""
    left = evidence.detach().double().cpu().clone()
    impact = left.clamp_max(0).sum() * (1 + 1 / len(left)) / images
    taken: list[int] = []
    for label in torch.argsort(left, stable=True)[: int((left < 0).sum())].tolist()[:images]:
        taken.append(label)
        left[label] -= impact
    while len(taken) < images:
        label = int(left.argmin())
        taken.append(label)
        left[label] -= impact if impact < 0 else -1.0 / images
    return torch.tensor(sorted(taken), dtype=torch.int64)


def infer_labels(target: Target, shape: tuple[int, int, int], classes: int, generator: Generator) -> Tensor:
    """The labels of the batch, ascending, [images]."""
    layer = last_linear(target.module, classes)
    evidence = class_evidence(target, layer, typical_features(target, layer, shape, generator))
    return count_labels(evidence, target.plan.images).to(target.flat.device)
