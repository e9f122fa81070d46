"""A client's check of the model before it trains: is there an imprint module (Robbing the Fed, Fowl et al. 2021)?

A linear layer that copies its inputs into its gradient measures every input along one direction and compares the
result with many thresholds. So the check looks for a linear layer, other than the last, in which ``CLUSTER`` rows or
more point along one line, up to sign and length. Rows of fewer than ``SUPPORT`` values other
than zero do not count, since pruning makes short rows alike.

What honest models have: over ``tasks.MODELS`` as drawn, also pruned to 1 %, no row has a second one within a cosine of
``ALIKE``; after 300 steps of fast training on MNIST (rate 0.1, momentum 0.9) LeNet-5 has a group of 3.

What this does not see: rows turned apart by noise below that cosine, small groups, and any other malicious model;
``client.planted``, of which this is a part, looks at what the rows do. It costs one product of each layer's rows with
themselves, in at most ``SKETCH`` dimensions: 1 s for AlexNet, nothing for models with one linear layer. Whoever knows
the dimensions can hide rows along one line from them, so the client draws them in private.

>>> net = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
>>> params = {name: p.detach() for name, p in net.named_parameters()}
>>> draw = PrivateGenerator(bytes(32))
>>> imprint_layers(net, params, draw), imprint_layers(net, {**params, "0.weight": torch.ones(100, 64) / 64}, draw)
([], ['0'])
"""

import torch
from torch import Tensor, nn

from prunella.core.randomness import PrivateGenerator
from prunella.core.trees import Tree

ALIKE = 0.9  # cosine of two rows along one line
CLUSTER = 16  # rows along one line
SUPPORT = 8  # values other than zero of a row that counts
SKETCH = 128  # dimensions in which rows are compared first
_SLACK = 0.15  # what the comparison in fewer dimensions may be wrong by


def largest_cluster(weight: Tensor, generator: PrivateGenerator) -> int:
    """How many rows of [out, in] lie within ``ALIKE`` of one of them, itself included."""
    rows = weight.detach().float()
    rows = rows[(rows != 0).sum(dim=1) >= SUPPORT]
    if len(rows) < CLUSTER:
        return len(rows)
    rows = rows / rows.abs().amax(dim=1, keepdim=True)  # squares of what a server chose may overflow, or vanish
    rows = rows / rows.norm(dim=1, keepdim=True)
    short, slack = rows, 0.0
    if rows.shape[1] > 4 * SKETCH:
        draw = generator.normal(rows.shape[1], SKETCH).to(rows)
        short, slack = rows @ draw, _SLACK
        short = short / short.norm(dim=1, keepdim=True).clamp_min(torch.finfo(short.dtype).tiny)
    near = torch.cat([((part @ short.T).abs() >= ALIKE - slack).sum(dim=1) for part in short.split(1024)])
    if int(near.max()) < CLUSTER or not slack:
        return int(near.max())
    candidates = rows[near >= CLUSTER]
    return int(torch.cat([((part @ rows.T).abs() >= ALIKE).sum(dim=1) for part in candidates.split(64)]).max())


def imprint_layers(module: nn.Module, params: Tree, generator: PrivateGenerator) -> list[str]:
    """Names of the linear layers that look like an imprint; the last one, which makes the logits, is left out."""
    layers = [(name, layer) for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    # A weight that is tied, or made of other parameters (weight norm), is not among them.
    found = {name: params.get(f"{name}.weight" if name else "weight", layer.weight) for name, layer in layers[:-1]}
    return [name for name, weight in found.items() if largest_cluster(weight, generator) >= CLUSTER]


def imprint_arrays(arrays: Tree, generator: PrivateGenerator) -> list[str]:
    """The same of arrays without a module, in its order: matrices that a vector of as many biases follows, without the
    last of them. An imprint needs biases, its thresholds; an embedding, whose rows training makes alike, has none."""
    following = list(arrays.items())
    layers = [
        (name, weight)
        for (name, weight), (after, bias) in zip(following, following[1:], strict=False)
        if weight.ndim == 2 and weight.is_floating_point() and bias.shape == weight.shape[:1]
        and (name.isdigit() or after == f"{name.removesuffix('weight')}bias")
    ]  # fmt: skip
    return [name for name, weight in layers[:-1] if largest_cluster(weight, generator) >= CLUSTER]
