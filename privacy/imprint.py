"""A client's check of the model before it trains: is there an imprint module (Robbing the Fed, Fowl et al. 2021)?

A linear layer that copies its inputs into its gradient measures every input along one direction and compares the
result with many thresholds. So the check looks for a linear layer, other than the last, in which ``CLUSTER`` rows or
more point along one line, up to sign and length, and compare with different thresholds: with (w, b) as (u, t), both
over |w|, a row differs from another in t by ``APART`` times what it differs in one coordinate of u. Rows of fewer than
``SUPPORT`` values other than zero do not count, since pruning makes short rows alike.

Weight decay points rows of honest networks along one line, too, and their thresholds mostly with them. What is left of
honest ones: over ``tasks.MODELS`` as drawn, also pruned to 1 %, none; of networks for digits of 8x8 with weight decay
up to 0.03, only such as it had left at an accuracy of 0.4 or less. On tables of few columns, however, rows that share a
line and have thresholds of their own are what a network learns. So where only weights can be looked at, and not what
the rows do (``client.planted``), rows count that are ``EXACTLY`` on a line.

What this does not see: rows turned apart by noise below that cosine, small groups, thresholds that are no biases of the
layer, and any other malicious model. It costs one product of each layer's rows with themselves, in at most ``SKETCH``
dimensions: 1 s for AlexNet, nothing for models with one linear layer. Whoever knows the dimensions can hide rows along
one line from them, so the client draws them in private.

>>> net = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
>>> params = {name: p.detach() for name, p in net.named_parameters()}
>>> draw = PrivateGenerator(bytes(32))
>>> imprint_layers(net, params, draw), imprint_layers(net, {**params, "0.weight": torch.ones(100, 64)}, draw)
([], ['0'])
"""

import torch
from torch import Tensor, nn

from prunella.core.randomness import PrivateGenerator
from prunella.core.trees import Tree

ALIKE = 0.9  # cosine of two rows along one line
EXACTLY = 0.9999  # the same where nothing but weights tells an imprint from an honest layer
CLUSTER = 16  # rows along one line
SUPPORT = 8  # values other than zero of a row that counts
SKETCH = 128  # dimensions in which rows are compared first
APART = 4.0  # what thresholds differ by, over what one weight differs by
_SAME = 1e-6  # square of a difference that is rounding
_SLACK = 0.15  # what the comparison in fewer dimensions may be wrong by


def largest_cluster(weight: Tensor, bias: Tensor, generator: PrivateGenerator, alike: float = ALIKE) -> int:
    """How many rows of [out, in] lie within ``ALIKE`` of one of them, itself included, and have another threshold;
    of fewer than ``CLUSTER`` it may say 1."""
    rows, bias = weight.detach().float(), bias.detach().float()
    counted = (rows != 0).sum(dim=1) >= SUPPORT
    rows, bias = rows[counted], bias[counted]
    if len(rows) < CLUSTER:
        return len(rows)
    size = rows.abs().amax(dim=1, keepdim=True)  # squares of what a server chose may overflow, or vanish
    rows, bias = rows / size, bias / size[:, 0]
    length = rows.norm(dim=1, keepdim=True)
    rows, at = rows / length, bias / length[:, 0]
    short, slack = rows, 0.0
    if rows.shape[1] > 4 * SKETCH:
        draw = generator.normal(rows.shape[1], SKETCH).to(rows)
        short, slack = rows @ draw, _SLACK
        short = short / short.norm(dim=1, keepdim=True).clamp_min(torch.finfo(short.dtype).tiny)
    near = torch.cat([((part @ short.T).abs() >= alike - slack).sum(dim=1) for part in short.split(1024)])
    candidates, found = near >= CLUSTER, [1]
    for part, there in zip(rows[candidates].split(64), at[candidates].split(64), strict=True):
        cosine = part @ rows.T
        turned = (2 - 2 * cosine.abs()).clamp_min(_SAME).sqrt()
        moved = (there[:, None] - cosine.sign() * at).abs()
        others = (cosine.abs() >= alike) & (moved * rows.shape[1] ** 0.5 >= APART * turned)
        found += (1 + others.sum(dim=1)).tolist()
    return max(found)


def imprint_layers(module: nn.Module, params: Tree, generator: PrivateGenerator, alike: float = ALIKE) -> list[str]:
    """Names of the linear layers that look like an imprint; the last one, which makes the logits, is left out, and so
    are those without a bias, which have no thresholds."""
    layers = [(name, layer) for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]

    def tensor(name: str, kind: str, own: Tensor) -> Tensor:
        """The weight or bias; one that is tied, or made of others (weight norm), is not among ``params``."""
        return params.get(f"{name}.{kind}" if name else kind, own)

    found = {
        name: (tensor(name, "weight", layer.weight), tensor(name, "bias", layer.bias))
        for name, layer in layers[:-1]
        if layer.bias is not None
    }
    return [name for name, pair in found.items() if largest_cluster(*pair, generator, alike) >= CLUSTER]


def imprint_arrays(arrays: Tree, generator: PrivateGenerator) -> list[str]:
    """The same of arrays without a module, in its order: matrices that a vector of as many biases follows."""
    following = list(arrays.items())
    layers = [
        (name, weight, bias)
        for (name, weight), (after, bias) in zip(following, following[1:], strict=False)
        if weight.ndim == 2 and weight.is_floating_point() and bias.shape == weight.shape[:1]
        and (name.isdigit() or after == f"{name.removesuffix('weight')}bias")
    ]  # fmt: skip
    return [n for n, weight, bias in layers[:-1] if largest_cluster(weight, bias, generator, EXACTLY) >= CLUSTER]
