"""ATS, Automatic Transformation Search (Gao et al., CVPR 2021; DGP baseline): train on augmented images only.

A policy is ``length`` (3) of the 50 transformations of ``LIBRARY``, one after another. ``fit`` draws ``candidates``
policies and scores each on a few of the client's own images, and ``apply`` gives every presented image one of the best
``policies`` of them (the paper's hybrid strategy), so that gradients are of transformed images:

privacy   S_pri = mean over j of cos(gradient at x_j, gradient at T(x)), x_j on the line from noise to T(x), at the
          shares (j + 1/2) / K: how soon a descent towards T(x) finds the right direction. Lower is safer.
accuracy  S_acc = -sum over i of log(v_i + e) + 1/(v_i + e), v_i the eigenvalues of the correlation matrix of dL/dx over
          the images (Mellor et al. 2020): how well an untrained network tells them apart. Higher is better.
The half of the candidates with the larger S_acc stays, then the lowest S_pri wins.

What it does not do: an attack rebuilds the transformed image, which often still shows what the original did. Report
both likenesses, as DGP does: to the original (ATS-T) and to the image trained on (ATS-R).

Departures. The paper searches with 10 % of the data and a half-trained copy of the model, 1 500 candidates and a fixed
bound on S_acc; here the network of the search is a small untrained one of this module, labels are the network's own
least likely class, and the bound is the median, so that ``fit`` takes a second and needs nothing but images. The
paper's library is AutoAugment's; this one has its operations at five strengths each, with a random sign where an
operation has one. State: the chosen policies, int64 [policies, length].

Errors: ``DefenseError`` for images that are not finite. A heuristic, no ε.

>>> len(LIBRARY), LIBRARY[0], LIBRARY[-1]
(50, ('translate-x', 0.1), ('equalize', 1.0))
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cosine_similarity, cross_entropy

from prunella.core.config import Count
from prunella.core.errors import ConfigError, DefenseError
from prunella.core.extras import require
from prunella.core.randomness import PrivateGenerator, stream
from prunella.core.trees import Tree
from prunella.privacy.defense import DataDefense, Equal, State

STRENGTHS: dict[str, tuple[float, ...]] = {
    "translate-x": (0.1, 0.2, 0.3, 0.4, 0.5),  # share of the width
    "translate-y": (0.1, 0.2, 0.3, 0.4, 0.5),
    "shear-x": (6.0, 12.0, 17.0, 20.0, 25.0),  # degrees
    "shear-y": (6.0, 12.0, 17.0, 20.0, 25.0),
    "rotate": (10.0, 20.0, 30.0, 45.0, 60.0),  # degrees
    "brightness": (0.2, 0.4, 0.6, 0.8, 0.9),  # 1 plus or minus this is the factor
    "contrast": (0.2, 0.4, 0.6, 0.8, 0.9),
    "sharpness": (0.2, 0.4, 0.6, 0.8, 0.9),
    "posterize": (2.0, 3.0, 4.0, 5.0, 6.0),  # bits left
    "solarize": (0.2, 0.4, 0.6, 0.8, 0.0),  # threshold; 0 inverts
}
LIBRARY: list[tuple[str, float]] = [(name, s) for name, strengths in STRENGTHS.items() for s in strengths]
LIBRARY[-2:] = [("solarize", 0.0), ("equalize", 1.0)]
_SIGNED = ("translate-x", "translate-y", "shear-x", "shear-y", "rotate", "brightness", "contrast", "sharpness")
_CLASSES, _WIDTH, _SIDE, _STEPS, _EPSILON = 10, 8, 4, 5, 1e-3
_AT_ONCE = 512  # single gradients of the search held at a time


@dataclass(frozen=True)
class TransformationSearch:
    """Trains on transformed images only."""

    candidates: Equal[Count] = 40  #: random policies that are scored
    length: Equal[Count] = 3  #: transformations in a policy
    policies: Equal[Count] = 2  #: best policies that are kept
    images: Equal[Count] = 4  #: of the client's own, on which policies are scored

    def __post_init__(self) -> None:
        if not 1 <= self.policies <= self.candidates:
            raise ConfigError("ats.policies must lie between 1 and ats.candidates")


def _transforms() -> Any:
    """torchvision's functions; imported when needed, since every message a client answers is a new process."""
    require("vision", "torchvision")
    from torchvision.transforms.v2 import functional

    return functional


def _move(x: Tensor, sign: float, name: str, strength: float) -> Tensor:
    amount = sign * strength
    across = [amount * x.shape[-1], 0.0] if name == "translate-x" else [0.0, 0.0]
    down = [0.0, amount * x.shape[-2]] if name == "translate-y" else [0.0, 0.0]
    shear = [amount if name == "shear-x" else 0.0, amount if name == "shear-y" else 0.0]
    angle = amount if name == "rotate" else 0.0
    shift = [int(round(a + d)) for a, d in zip(across, down, strict=True)]
    moved: Tensor = _transforms().affine(x, angle=angle, translate=[float(s) for s in shift], scale=1.0, shear=shear)
    return moved


def transform(x: Tensor, name: str, strength: float, sign: float) -> Tensor:
    """One transformation of images x [B, C, H, W] in [0, 1]; ``sign`` is -1 or 1.

    >>> transform(torch.tensor([[[[0.0, 0.25], [0.5, 1.0]]]]), "solarize", 0.0, 1.0).flatten().tolist()
    [1.0, 0.75, 0.5, 0.0]
    """
    x = x.clamp(0, 1)
    if name in ("translate-x", "translate-y", "shear-x", "shear-y", "rotate"):
        return _move(x, sign, name, strength).clamp(0, 1)
    eight = (x * 255).round().to(torch.uint8)
    results: dict[str, Tensor] = {}
    if name == "brightness":
        results[name] = x * (1 + sign * strength)
    elif name == "contrast":
        grey = x.mean(dim=(1, 2, 3), keepdim=True)
        results[name] = grey + (x - grey) * (1 + sign * strength)
    elif name == "sharpness":
        results[name] = _transforms().adjust_sharpness(x, 1 + sign * strength) if min(x.shape[-2:]) > 2 else x
    elif name == "posterize":
        results[name] = _transforms().posterize(eight, int(strength)).to(x.dtype) / 255
    elif name == "solarize":
        results[name] = torch.where(x >= strength, 1 - x, x)
    elif name == "equalize":
        results[name] = _transforms().equalize(eight).to(x.dtype) / 255
    return results[name].clamp(0, 1)


def follow(x: Tensor, policy: Tensor, signs: Tensor) -> Tensor:
    """All transformations of ``policy`` [length], in order."""
    for number, sign in zip(policy.tolist(), signs.tolist(), strict=True):
        name, strength = LIBRARY[number]
        x = transform(x, name, strength, float(sign) if name in _SIGNED else 1.0)
    return x


def _probe(x: Tensor) -> tuple[nn.Module, Tree]:
    """The network of the search: two convolutions and a linear layer, its weights always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream(0, purpose="ats probe").initial_seed() % 2**31)
        module = nn.Sequential(
            nn.Conv2d(x.shape[1], _WIDTH, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(_WIDTH, _WIDTH, 3, 2, 1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(_SIDE),
            nn.Flatten(),
            nn.Linear(_WIDTH * _SIDE**2, _CLASSES),
        ).to(x.device)
        for weight in (p for p in module.parameters() if p.dim() > 1):
            nn.init.kaiming_normal_(weight)  # smaller ones make the gradient all but independent of the image
    return module, {name: p.detach() for name, p in module.named_parameters()}


def _gradients(x: Tensor, y: Tensor, module: nn.Module, params: Tree) -> Tensor:
    """The flat gradient of every image, [N, P]."""

    def loss(weights: Tree, image: Tensor, label: Tensor) -> Tensor:
        return cross_entropy(functional_call(module, weights, (image[None],)), label[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0))
    parts = [each(params, a, b) for a, b in zip(torch.split(x, _AT_ONCE), torch.split(y, _AT_ONCE), strict=True)]
    return torch.cat([torch.cat([t.flatten(1) for t in part.values()], dim=1) for part in parts])


def privacy_score(start: Tensor, end: Tensor, y: Tensor, module: nn.Module, params: Tree) -> Tensor:
    """S_pri of every image of ``end`` [N, C, H, W], descended to from ``start``: [N], at most 1; lower is safer."""
    shares = (torch.arange(_STEPS, device=end.device, dtype=end.dtype) + 0.5) / _STEPS
    between = start[None] + shares.view(-1, 1, 1, 1, 1) * (end - start)[None]
    found = _gradients(between.flatten(0, 1), y.repeat(_STEPS), module, params)
    goal = _gradients(end, y, module, params)
    return cosine_similarity(found.view(_STEPS, len(end), -1), goal[None], dim=2).mean(0)


def accuracy_score(x: Tensor, y: Tensor, module: nn.Module, params: Tree) -> float:
    """S_acc of a policy whose images are x [N, C, H, W]; higher is better."""
    image = x.detach().clone().requires_grad_()
    with torch.enable_grad():
        loss = cross_entropy(functional_call(module, params, (image,)), y, reduction="sum")
        slope = torch.autograd.grad(loss, image)[0].flatten(1).double()
    centred = slope - slope.mean(1, keepdim=True)
    unit = centred / centred.norm(dim=1, keepdim=True).clamp(min=1e-12)
    values = torch.linalg.eigvalsh(unit @ unit.T).clamp(min=0) + _EPSILON
    return -float((values.log() + 1 / values).sum())


def search(x: Tensor, settings: TransformationSearch, generator: PrivateGenerator) -> Tensor:
    """The best policies for images x [N, C, H, W], int64 [policies, length], best first."""
    shape = (settings.candidates, settings.length)
    drawn = generator.below(len(LIBRARY), *shape)
    few = x[generator.permutation(len(x))[: settings.images].to(x.device)].float()
    noise = generator.uniform(*few.shape).to(few)
    module, params = _probe(x)
    with torch.no_grad():
        y = functional_call(module, params, (few,)).argmin(1)
    shown = [follow(few, policy, generator.signs(settings.length)) for policy in drawn]
    ends = torch.cat(shown)
    privacy = privacy_score(noise.repeat(len(drawn), 1, 1, 1), ends, y.repeat(len(drawn)), module, params)
    leak = privacy.view(len(drawn), -1).mean(1).double().cpu()
    useful = torch.tensor([accuracy_score(images, y, module, params) for images in shown], dtype=torch.float64)
    if not bool(torch.isfinite(leak).all() and torch.isfinite(useful).all()):
        raise DefenseError("ats: a score of the search is not finite")
    order = torch.argsort(useful, descending=True, stable=True)
    kept = order[: max(settings.policies, len(drawn) // 2)]
    return drawn[kept[torch.argsort(leak[kept], stable=True)[: settings.policies]]]


def ats(settings: TransformationSearch) -> DataDefense:
    def fit(x: Tensor, generator: PrivateGenerator) -> State:
        if not len(x) or not bool(torch.isfinite(x).all()):
            raise DefenseError(f"ats: there are no images of shape {tuple(x.shape[1:])}, or they are not finite")
        return {"policies": {"policies": search(x, settings, generator)}}

    def apply(batch: Tensor, state: State, generator: PrivateGenerator) -> Tensor:
        policies = state["policies"]["policies"]
        if policies.dim() != 2 or not bool(((policies >= 0) & (policies < len(LIBRARY))).all()):
            raise DefenseError("ats: the saved policies are not valid: remove this client's state to search again")
        if not bool(torch.isfinite(batch).all()):  # eight bits would hide it
            raise DefenseError(f"ats: a batch of shape {tuple(batch.shape[1:])} is not finite")
        chosen = generator.below(len(policies), len(batch)).tolist()
        signs = [generator.signs(policies.shape[1]) for _ in chosen]
        shown = [follow(image[None], policies[c], s) for image, c, s in zip(batch.float(), chosen, signs, strict=True)]
        return torch.cat(shown).to(batch.dtype) if shown else batch.clone()

    return DataDefense(fit, apply)
