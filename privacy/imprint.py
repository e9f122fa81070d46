"""A client's check of the model before it trains: is there an imprint module (Robbing the Fed, Fowl et al. 2021)?

A linear layer that copies its inputs into its gradient measures every input along one direction and compares the
result with many thresholds. So the check looks for a linear layer, other than the last, in which ``CLUSTER`` rows or
more point along one line, up to sign and length, and compare with different thresholds. Two rows do that where their
thresholds lie ``APART`` times as far from each other as what they measure does: over the answers to some inputs, where
there are any, or else by their biases. Rows of fewer than ``SUPPORT`` values other than zero do not count, since
pruning makes short rows alike.

Weight decay points rows of honest networks along one line, too, and their thresholds mostly with them. What is
refused of honest ones: of ``tasks.MODELS`` as drawn, also pruned to 1 %, none; of 36 networks for digits of 8x8 with
weight decay of 0 to 0.03, four with sigmoids, which it had left at an accuracy of 0.10 to 0.78. On tables of few
columns, however, rows that share a line and have thresholds of their own are what a network learns. So where only
weights can be looked at, and not what the rows do (``client.planted``), rows count that are ``EXACTLY`` on a line.

What this does not see: rows turned apart by noise below that cosine, small groups, without answers also thresholds that
are no biases of the layer, and any other malicious model. It costs one product of each layer's rows with themselves,
in at most ``SKETCH`` dimensions: 1 s for AlexNet, nothing for models with one linear layer. Whoever knows the
dimensions can hide rows along one line from them, so the client draws them in private.

>>> net = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
>>> params = {name: p.detach() for name, p in net.named_parameters()}
>>> draw = PrivateGenerator(bytes(32))
>>> imprint_layers(net, params, draw), imprint_layers(net, {**params, "0.weight": torch.ones(100, 64)}, draw)
([], ['0'])
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor, nn

from prunella.core.randomness import PrivateGenerator
from prunella.core.trees import Tree
from prunella.core.untrusted import is_number

ALIKE = 0.9  # cosine of two rows along one line
EXACTLY = 0.9999  # the same where nothing but weights tells an imprint from an honest layer
CLUSTER = 16  # rows along one line
SUPPORT = 8  # values other than zero of a row that counts
SKETCH = 128  # dimensions in which rows are compared first
APART = 4.0  # what thresholds differ by, over what one weight differs by
_SAME = 1e-6  # square of a difference that is rounding
_SLACK = 0.15  # what the comparison in fewer dimensions may be wrong by


class LinearRows(NamedTuple):
    """A linear layer: ``weight`` [out, in], and what tells its thresholds apart: ``bias`` [out], or better ``answers``
    [P, out], what the rows make of P inputs, in which a threshold may also be a constant among the layer's inputs."""

    weight: Tensor
    bias: Tensor | None = None
    answers: Tensor | None = None

    def counted(self) -> "LinearRows":
        """Those that are long enough, of length 1."""
        rows = self.weight.detach().float()
        size = rows.abs().amax(dim=1)  # squares of what a server chose may overflow, or vanish
        rows = rows / size[:, None]
        length = rows.norm(dim=1)
        kept = (self.weight != 0).sum(dim=1) >= SUPPORT
        bias, answers = ((t.detach().float() / size / length)[..., kept] if t is not None else None for t in self[1:])
        return LinearRows((rows / length[:, None])[kept], bias, answers)

    def differ(self, part: Tensor, cosine: Tensor) -> Tensor:
        """Whether the thresholds of the rows ``part`` [R] differ from all rows' [R, out] by more than the rows do."""
        sign = cosine.sign()
        if self.answers is None:
            assert self.bias is not None
            at, same = self.bias * self.weight.shape[1] ** 0.5, cosine.abs()
        else:
            spread, mean = torch.std_mean(self.answers, dim=0, correction=0)
            spread = spread.clamp_min(torch.finfo(spread.dtype).tiny)
            centred, at = (self.answers - mean) / spread, mean / spread
            same = sign * (centred[:, part].T @ centred) / len(centred)
        apart: Tensor = (at[part, None] - sign * at).abs() >= APART * (2 - 2 * same).clamp_min(_SAME).sqrt()
        return apart


def largest_cluster(found: LinearRows, generator: PrivateGenerator, alike: float = ALIKE) -> int:
    """How many rows lie within ``alike`` of one of them, itself included, and have another threshold; of fewer than
    ``CLUSTER`` it may say 1."""
    found = found.counted()
    rows = found.weight
    if len(rows) < CLUSTER:
        return len(rows)
    short, slack = rows, 0.0
    if rows.shape[1] > 4 * SKETCH:
        draw = generator.normal(rows.shape[1], SKETCH).to(rows)
        short, slack = rows @ draw, _SLACK
        short = short / short.norm(dim=1, keepdim=True).clamp_min(torch.finfo(short.dtype).tiny)
    near = torch.cat([((part @ short.T).abs() >= alike - slack).sum(dim=1) for part in torch.split(short, 1024)])
    most = 1
    for part in torch.split((near >= CLUSTER).nonzero()[:, 0], 64):
        cosine = rows[part] @ rows.T
        others = (cosine.abs() >= alike) & found.differ(part, cosine)
        most = max([most, *(1 + others.sum(dim=1)).tolist()])
    return most


def imprint_layers(
    module: nn.Module,
    params: Tree,
    generator: PrivateGenerator,
    alike: float = ALIKE,
    answers: Mapping[str, Tensor] = MappingProxyType({}),
) -> list[str]:
    """Names of the linear layers that look like an imprint; the last one, which makes the logits, is left out. So are
    those that have no bias and made no ``answers`` [P, out], of which thresholds are not known."""
    layers = [(name, layer) for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]

    def tensor(name: str, kind: str, own: Tensor) -> Tensor:
        """The weight or bias; one that is tied, or made of others (weight norm), is not among ``params``."""
        return params.get(f"{name}.{kind}" if name else kind, own)

    found = {
        name: LinearRows(
            tensor(name, "weight", layer.weight),
            None if layer.bias is None else tensor(name, "bias", layer.bias),
            answers.get(name),
        )
        for name, layer in layers[:-1]
    }
    known = {name: rows for name, rows in found.items() if rows.bias is not None or rows.answers is not None}
    return [name for name, rows in known.items() if largest_cluster(rows, generator, alike) >= CLUSTER]


def imprint_arrays(arrays: Tree, generator: PrivateGenerator) -> list[str]:
    """The same of arrays without a module: matrices with a vector of as many biases, which has the name that belongs to
    it or, of numbered arrays, the next number. Nothing follows from the order or the types, which whoever sent them
    chose, so that the last layer is looked at, too."""
    real = {name: (t.real if t.is_complex() else t).float() for name, t in arrays.items()}
    layers = dict[str, LinearRows]()
    for name in (name for name, tensor in real.items() if tensor.ndim == 2):
        bias = real.get(str(int(name) + 1) if is_number(name) else f"{name.removesuffix('weight')}bias")
        if bias is not None and bias.shape == real[name].shape[:1]:
            layers[name] = LinearRows(real[name], bias)
    return [name for name, rows in layers.items() if largest_cluster(rows, generator, EXACTLY) >= CLUSTER]
