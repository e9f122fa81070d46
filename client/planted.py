"""A client's check of the model before every step of its training: would its update tell single examples apart?

An update is a mean over examples, and what a malicious server plants makes single ones readable in it. So the client
asks the model itself: it trains on ``PROBES`` images of its own making, drawn in private, and looks at what each of
them contributes. Nothing private goes in, so that a refusal tells nothing. Refused are, by kind:

- *imprint*: rows that point along one line with thresholds of their own (``privacy.imprint``);
- *bins*: rows that respond alike (correlation ``ALIKE`` over the probes), and whose gradients differ by one probe only
  (``OWNED`` of the difference). To read a single example, Robbing the Fed, LOKI and Scale-MIA subtract such rows, so
  noise on the weights, in whatever layer, hides them only where it blurs what they read. ``ROWS`` of them, which
  isolate ``SINGLED`` different probes, are refused;
- *trap*: more than half of a layer's rows that respond at all are moved by one probe each (bins with two ends);
- values that are not finite, of the weights or of what they make of a probe: of these nothing can be told;
- *silenced*: over all probes and all labels y, the gradient W^T (softmax - e_y) at the last layer's input, which the
  update of everything before it scales with, is that of few pairs: the effective share (sum n)^2 / (N sum n^2) of the
  N pairs' norms n is under ``HEARD``. Class fishing (Wen et al. 2022) leaves 1 / classes. All labels are asked about,
  as a model that learned well is silent about the right one only.

The first step's weights are not the only ones that matter: a last layer of zeros, which the first step fills, keeps
rows silent that copy from the second step on, weight decay wakes a saturated layer, and PriPrune trains on what it
withheld in earlier rounds beside what was sent. So ``PlantedCheck`` is asked before every step. Refused is what was
sent alone. What training made of it depends on private images, so that a refusal would tell of them: training ends
there instead, and what leaves is the update of the steps before, behind the client's defenses as ever.

What it does not see is listed in docs/threats.md. It costs one pass over the probes, and a backward pass from the loss
to the first hidden linear layer where there is one; rows' directions are looked at before a first step alone. Linear
layers that take more than one row for an image are checked by their weights only, and a model whose logits no linear
layer makes is not asked about silenced classes.

Errors: ``DefenseError`` with the kind and the names of the layers.

>>> net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
>>> params = {name: p.detach() for name, p in net.named_parameters()}
>>> planted_layers(net, params, {}, (1, 8, 8), 10, PrivateGenerator(bytes(32)))
[]
>>> only = torch.arange(10) == 3
>>> fished = {**params, "3.weight": params["3.weight"] * only[:, None], "3.bias": 1000.0 * ~only}
>>> "silenced classes in 3" in planted_layers(net, fished, {}, (1, 8, 8), 10, PrivateGenerator(bytes(32)))
True
"""

import logging
from contextlib import ExitStack
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy, normalize

from prunella.core.errors import DefenseError
from prunella.core.randomness import PrivateGenerator
from prunella.core.trees import Tree, all_finite, same_trees, to_device
from prunella.privacy.imprint import CLUSTER, imprint_layers
from prunella.tasks.models.layers import Shape
from prunella.tasks.models.precode import take_divergence
from prunella.tasks.training import drawing, mode

logger = logging.getLogger(__name__)

PROBES, FEW = 64, 8  # images: where there is a hidden linear layer, and where there is none
ALIKE = 0.98  # correlation over the probes of two rows that read the same
OWNED = 0.5  # share of the difference of two rows that is one probe's
ROWS, SINGLED = 6, 4  # rows that differ by one probe, and different probes they differ by
ALONE, TRAPS = 0.9, 0.5  # share of a row's gradient that is one probe's, share of a layer's rows of which that holds
HEARD = 0.25  # effective share of (probe, label) pairs
NOT_FINITE = "values that are not finite"
ENDED = "training ends before step %d: from there the model would copy single images into the update (%s)"
_NEAR = 4  # rows that a row is compared with
_PART = 256  # rows at a time, which bounds the memory
_TRACE = 1e-4  # a difference of two rows counts above this share of them: below, it is rounding


class Response(NamedTuple):
    """What a linear layer made of the probes, ``out`` [P, K], and the loss gradient there, ``slope`` [P, K]."""

    out: Tensor
    slope: Tensor


def probes(count: int, shape: Shape, generator: PrivateGenerator) -> Tensor:
    """[count, C, H, W] in [0, 1]: noise with the spectrum of photographs (1 / frequency), channels mostly alike, from
    bright to as dark as digits are, and from pale to full of contrast."""
    channels, height, width = shape
    squared = torch.fft.fftfreq(height)[:, None] ** 2 + torch.fft.fftfreq(width) ** 2
    spectrum = (squared + (0.5 / max(height, width)) ** 2).rsqrt()
    waves = 0.3 * generator.normal(count, channels, height, width, 2) + generator.normal(count, 1, height, width, 2)
    x = torch.fft.ifft2(torch.view_as_complex(waves.float()) * spectrum).real
    x = (x - x.mean((1, 2, 3), keepdim=True)) / x.std((1, 2, 3), keepdim=True)
    mean, contrast = 0.95 * generator.uniform(count, 1, 1, 1) - 0.25, 0.15 + 0.25 * generator.uniform(count, 1, 1, 1)
    made: Tensor = (mean + contrast * x).clamp(0, 1).float()
    return made


def respond(
    module: nn.Module, params: Tree, buffers: Tree, x: Tensor, y: Tensor
) -> tuple[Tensor, str | None, dict[str, Response]]:
    """The logits [P, K] for the probes, the name of the linear layer that made them (or None), and what every other
    linear layer made of them."""
    layers = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    outs, handed = dict[str, Tensor](), dict[str, Tensor]()

    def keep(name: str, out: Tensor) -> Tensor | None:
        if out.ndim != 2:
            return None
        outs[name] = out if out.requires_grad else out.requires_grad_()  # nothing before this layer needs a graph
        handed[name] = out.clone()  # an activation that works in place changes this one
        return handed[name]

    state = {name: t.detach().clone() for name, t in {**dict(module.named_buffers()), **buffers}.items()}
    with ExitStack() as hooks, mode(module, True), torch.enable_grad():
        for name in layers:
            watch = module.get_submodule(name).register_forward_hook
            hooks.enter_context(watch(lambda _, __, out, name=name: keep(name, out)))
        logits = functional_call(module, ({name: p.detach() for name, p in params.items()}, state), (x,))
        loss = cross_entropy(logits, y, reduction="sum") + take_divergence(module)
    last = next((name for name, out in handed.items() if out is logits), None)
    hidden = {name: out for name, out in outs.items() if name != last}
    slopes = torch.autograd.grad(loss, list(hidden.values()), materialize_grads=True) if hidden else ()
    found = zip(hidden.items(), slopes, strict=True)
    return logits.detach(), last, {name: Response(out.detach(), slope) for (name, out), slope in found}


def heard(logits: Tensor, weight: Tensor) -> float:
    """Effective share of (probe, label) pairs [P, K] by the norm of W^T (softmax - e_y); 1 where there is none at all,
    as in a model whose last layer is pruned away."""
    chance, products = logits.double().softmax(dim=1), weight.double() @ weight.double().T
    mixed = chance @ products
    squared = (mixed * chance).sum(dim=1, keepdim=True) - 2 * mixed + products.diagonal()
    norms = squared.clamp_min(0).sqrt()
    whole = norms.pow(2).sum()
    return float(norms.sum() ** 2 / (whole * norms.numel())) if float(whole) > 0 else 1.0


def traps(slope: Tensor) -> float:
    """Share of the rows that any probe moves which one probe moves by itself."""
    size = slope.abs()
    total = size.sum(dim=0)
    return float((size.amax(dim=0) >= ALONE * total)[total > 0].float().mean()) if bool((total > 0).any()) else 0.0


def _sized(columns: Tensor) -> Tensor:
    """The largest of each column is 1: a server may scale rows until squares overflow."""
    return columns / columns.abs().amax(dim=0).clamp_min(torch.finfo(columns.dtype).tiny)


def bins(found: Response) -> tuple[int, int]:
    """How many rows have one near them that responds alike and whose gradient, scaled alike, differs by one probe only;
    and how many different probes they differ by."""
    alive = found.slope.abs().amax(dim=0) > 0
    slope, out = _sized(found.slope[:, alive]), found.out[:, alive]
    if slope.shape[1] < ROWS:
        return 0, 0
    slopes, outs = normalize(slope, dim=0), normalize(_sized(out - out.mean(dim=0)), dim=0)
    rows, singled = 0, torch.zeros(len(slope), dtype=torch.bool, device=slope.device)
    for part in torch.split(torch.arange(slope.shape[1], device=slope.device), _PART):
        alike = (outs[:, part].T @ outs).abs_() >= ALIKE
        paired = alike.sum(dim=1) > 1  # few rows of an honest model respond like another one
        part, alike = part[paired], alike[paired]
        cosines = (slopes[:, part].T @ slopes).abs()
        cosines[cosines > 1 - 1e-5] = 0  # itself, and those that the same probes move: their difference is nothing
        near = cosines.topk(min(_NEAR, cosines.shape[1]), dim=1).indices
        at, nth = alike.gather(1, near).nonzero(as_tuple=True)
        one, other = slope[:, part[at]], slope[:, near[at, nth]]
        both = (one != 0) & (other != 0)
        factor = torch.where(both, one / torch.where(both, other, 1), torch.nan).nanmedian(dim=0).values.nan_to_num(0)
        rest = (one - factor * other).abs()
        most, who = rest.max(dim=0)
        total = rest.sum(dim=0)
        hit = (most >= OWNED * total) & (total > _TRACE * one.abs().sum(dim=0)) & (both.sum(dim=0) > 2)
        rows += len(torch.unique(at[hit]))
        singled[who[hit]] = True
    return rows, int(singled.sum())


class PlantedCheck:
    """The check of one message's model, with the same probes [P, *shape] before every step. Weights that ``passed``
    before are not looked at again."""

    def __init__(self, shape: Shape, classes: int, generator: PrivateGenerator, passed: Tree | None = None) -> None:
        self._shape, self._classes, self._generator = shape, classes, generator
        self._probes: tuple[Tensor, Tensor] | None = None
        self._passed = passed or {}
        self.ended: list[str] = []  # why training did

    def layers(self, module: nn.Module, params: Tree, buffers: Tree, rows: bool = True) -> list[str]:
        """What looks planted, as "kind in layer"; empty for an honest model. Where ``rows`` point is looked at on the
        CPU, or not at all."""
        if self._probes is None:
            linear = sum(isinstance(layer, nn.Linear) for layer in module.modules())
            count = PROBES if linear > 1 else FEW
            self._probes = probes(count, self._shape, self._generator), self._generator.below(self._classes, count)
        device = next(iter(params.values())).device
        with drawing(module, self._generator):
            logits, last, hidden = respond(module, params, buffers, *(each.to(device) for each in self._probes))
        answers = {name: response.out for name, response in hidden.items()}
        lines = imprint_layers(module, params, self._generator, answers=answers) if rows else []
        found = [f"imprint in {name}" for name in lines]
        seen = [logits, *(each for response in hidden.values() for each in response)]
        if not (all_finite(params) and all_finite({str(i): each for i, each in enumerate(seen)})):
            return [*found, NOT_FINITE]  # one such probe would hide what the others show
        if last is not None:
            tied: Tensor = module.get_submodule(last).weight  # type: ignore[assignment]  # or made of other parameters: not among ``params``
            if heard(logits, params.get(f"{last}.weight" if last else "weight", tied)) < HEARD:
                found.append(f"silenced classes in {last}")
        for name, response in hidden.items():
            alike, singled = bins(response)
            if alike >= ROWS and singled >= SINGLED:
                found.append(f"bins in {name}")
            if response.slope.shape[1] >= CLUSTER and traps(response.slope) > TRAPS:
                found.append(f"traps in {name}")
        return found

    def allows(self, module: nn.Module, params: Tree, buffers: Tree, step: int, begins: bool) -> bool:
        """Whether the step ``step``, from 0, may be taken from these weights; after one that may not, none may.
        ``begins``: a mask that moved made them, as it may make rows parallel that were not when they were sent."""
        begins = begins or step == 0
        passed = step == 0 and bool(self._passed) and same_trees(params, self._passed)
        if not self.ended and not passed:
            first = (to_device(params, "cpu"), to_device(buffers, "cpu")) if begins else (params, buffers)
            self.ended = self.layers(module, *first, rows=begins)
            if self.ended:
                logger.warning(ENDED, step + 1, ", ".join(self.ended))
        return not self.ended


def planted_layers(
    module: nn.Module, params: Tree, buffers: Tree, shape: Shape, classes: int, generator: PrivateGenerator
) -> list[str]:
    """What ``PlantedCheck`` finds in one model."""
    return PlantedCheck(shape, classes, generator).layers(module, params, buffers)


def refuse_planted(
    module: nn.Module, params: Tree, buffers: Tree, shape: Shape, classes: int, generator: PrivateGenerator
) -> None:
    """Raise ``DefenseError`` where a model that was sent is planted: nothing is trained, and nothing leaves."""
    found = planted_layers(module, params, buffers, shape, classes, generator)
    if found == [NOT_FINITE]:
        raise DefenseError(
            f"the model has, or makes of images, {NOT_FINITE}: not trained. Start a new run with a lower learning-rate "
            "or, if a client sends such updates, robust=median"
        )
    if found:
        raise DefenseError(f"the model would copy single images into its update ({', '.join(found)}): not trained")
