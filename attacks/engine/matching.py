"""From what a server received to what a guess must reproduce.

One local step of SGD: gradient = -update / learning rate - weight decay * params, exactly. Several steps: the guess is
trained on for as many steps, differentiably (delta matching), and -update / (learning rate * steps) is compared with
the same figure of the guess. To take several steps for one makes FedAvg look safer than it is.

The support (PRI Algorithm 2, line 2, m_rec) is where values arrived: ``view.shared``, or where the update is not zero.
The paper recovers it from the weights (nonzero), which misses a coordinate that was withheld but not pruned.

Many steps make a heavy problem, so at most ``max_images`` images are guessed. Where a client used more, batches shrink
first, then steps are merged into fewer steps of a larger learning rate. The attack then rebuilds fewer images than were
used, each standing for several, and is weaker than a server with more memory; ``Reconstruction.x`` shows how many. A
server does not know which example was in which step: images are guessed in the order of their use, and used again from
the start when a client has fewer (``num_examples``) than its steps use.

Shapes: images [N, C, H, W], vectors [number of parameters]. Errors: ``AttackError``, names and shapes only.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy
from torch.nn.modules.dropout import _DropoutNd

from prunella.attacks.engine.cuts import cuts
from prunella.attacks.engine.known_dropout import fix_dropout
from prunella.attacks.engine.network import Network, network_of
from prunella.attacks.engine.objectives import flatten, split
from prunella.core.errors import AttackError
from prunella.core.trees import Mask, Tree, all_finite, apply_mask
from prunella.core.types import ServerView
from prunella.tasks.models.layers import Shape
from prunella.tasks.models.precode import Bottleneck
from prunella.tasks.task import Task
from prunella.tasks.training import Sgd, mode, sgd_step


@dataclass(frozen=True)
class TrainingPlan:
    """How the guess is trained on: ``batches`` names the rows of the guess that each local step sees."""

    images: int
    batches: tuple[tuple[int, ...], ...]
    sgd: Sgd


@dataclass(frozen=True)
class Target:
    """The problem an attack solves. ``flat`` is the target gradient, zero outside ``support`` (None: all compared).

    ``network``: the module with its derivatives by hand, None where only autograd knows them. ``slope`` [N, K]: the
    loss gradient at the logits, where it takes the place of cross-entropy's; ``made``: what of a gradient is compared,
    where that is not all of it (``engine.readings``)."""

    module: nn.Module
    params: Tree
    buffers: Tree
    mask: Mask | None
    flat: Tensor
    support: Tensor | None
    plan: TrainingPlan
    network: Network | None = None
    slope: Tensor | None = None
    made: Callable[[Tree], Tree] | None = None

    def logits(self, x: Tensor, params: Tree | None = None) -> Tensor:
        """What the model makes of x, under its own weights or these. The buffers stay as they are."""
        buffers = {name: buffer.clone() for name, buffer in self.buffers.items()}
        made: Tensor = functional_call(self.module, (self.params if params is None else params, buffers), (x,))
        return made


def check_tree(kind: str, tree: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> None:
    """Raise ``AttackError`` that names what ``tree`` has too much, too little or in another shape."""
    missing, extra = sorted(like.keys() - tree.keys()), sorted(tree.keys() - like.keys())
    if missing or extra:
        raise AttackError(f"{kind} do not fit the model: missing {missing[:3]}, unknown {extra[:3]}")
    for name, tensor in tree.items():
        if tensor.shape != like[name].shape:
            raise AttackError(f"{kind}: {name} is {tuple(tensor.shape)}, the model has {tuple(like[name].shape)}")


def check_view(view: ServerView, module: nn.Module) -> None:
    """Raise ``AttackError`` unless every tree of the view has the names and shapes of the model, and is finite."""
    like = dict(module.named_parameters())
    for kind in ("params", "update", "mask", "shared"):
        if (tree := getattr(view, kind)) is not None:
            check_tree(kind, tree, like)
    if view.importance is not None:  # of the weights that a scheme may prune, not of all
        check_tree("importance", view.importance, {n: like[n] for n in view.importance if n in like})
    if unknown := sorted(set(view.frozen) - like.keys()):
        raise AttackError(f"frozen tensors of the view do not fit the model: unknown {unknown[:3]}")
    for kind in ("buffers", "received_buffers"):
        tree = getattr(view, kind)
        check_tree(kind, tree, {name: buffer for name, buffer in module.named_buffers() if name in tree})
    for kind in ("params", "update", "buffers", "received_buffers"):
        if not all_finite(getattr(view, kind)):
            raise AttackError(f"{kind} of the view are not finite")


def plan_of(view: ServerView, max_images: int) -> TrainingPlan:
    """How many images to guess and how the client is taken to have trained on them.

    >>> view = ServerView({}, {}, steps=2, batch_size=3, num_examples=4, learning_rate=0.1)
    >>> plan_of(view, max_images=64).batches
    ((0, 1, 2), (3, 0, 1))
    >>> plan_of(view, max_images=2).batches
    ((0,), (1,))
    """
    steps = view.steps or 1
    if view.learning_rate is None and (steps > 1 or view.weight_decay):
        raise AttackError("several local steps or weight decay cannot be matched without the client's learning rate")
    known = view.num_examples if view.num_examples is not None else math.inf
    known = min(known, len(view.labels)) if view.labels is not None else known
    batch = view.batch_size if view.batch_size is not None else known if steps == 1 else math.inf
    size = min(batch, known)
    if not 1 <= size < math.inf:
        raise AttackError("the view tells no number of images: it needs batch_size, num_examples or labels")
    kept = min(steps, max_images)
    size = int(size) if steps * size <= max_images else max(1, min(int(size), max_images // kept))
    images = int(min(kept * size, known))
    rows = [tuple((step * size + i) % images for i in range(size)) for step in range(kept)]
    rate = (view.learning_rate or 1.0) * steps / kept
    return TrainingPlan(images, tuple(rows), Sgd(rate, view.momentum, view.weight_decay))


def target_gradient(view: ServerView) -> Tree:
    """-update / (learning rate * steps), less the weight decay where one step makes that exact."""
    steps, rate = view.steps or 1, view.learning_rate or 1.0
    gradient = {name: tensor.float() / (-rate * steps) for name, tensor in view.update.items()}
    if steps > 1 or not view.weight_decay:
        return gradient
    return {name: g - view.weight_decay * view.params[name].float() for name, g in gradient.items()}


def recovered_support(view: ServerView) -> Mask:
    """Where values arrived, as far as the server can tell."""
    return view.shared if view.shared is not None else {name: u != 0 for name, u in view.update.items()}


def show_zeros(module: nn.Module, shape: Shape) -> None:
    """Call the module, in evaluation mode, with an image of zeros [1, C, H, W], for what its hooks note."""
    with torch.no_grad(), mode(module, False):
        module(torch.zeros(1, *shape, device=next((p.device for p in module.parameters()), None)))


def determined(view: ServerView, task: Task, guessed: int = 1) -> bool:
    """Whether as many values arrived as the client's images have pixels. Fewer are explained by many images, so that
    explaining them shows nothing. Values that follow from a few of what a model makes of an image (``engine.cuts``)
    count as these, for every image of every step. Of a client whose number of images nobody tells, it is of as many as
    are ``guessed``.

    >>> view = ServerView({}, {"w": torch.ones(100)}, steps=2, batch_size=3, num_examples=4)
    >>> determined(view, Task("cnn", (1, 5, 5), 10)), determined(view, Task("cnn", (1, 6, 6), 10))
    (True, False)
    """
    images = max(guessed, view.images_used or guessed)
    arrived = {name: int(seen.sum()) for name, seen in recovered_support(view).items()}
    wanted, independent = images * math.prod(task.shape), float(sum(arrived.values()))
    if independent < wanted:
        return False
    rows = images if view.steps in (None, 1) else images * (view.steps or 1)
    for inputs, names in cuts(task.build(), task.shape):
        behind = sum(arrived.get(name, 0) for name in names)
        independent = min(independent, sum(arrived.values()) - behind + min(behind, rows * inputs))
    return independent >= wanted


def in_training_mode(module: nn.Module) -> nn.Module:
    """``module`` as the client trains it, but for what draws at random there (dropout, a variational bottleneck): the
    draw is unknown, its mean is what an attack can use. ``known_dropout`` has what is known of one image's."""
    module.train()
    for layer in module.modules():
        if isinstance(layer, _DropoutNd | Bottleneck) or (isinstance(layer, nn.MultiheadAttention) and layer.dropout):
            layer.eval()
    return module


def of_images(target: Target, images: int) -> Target:
    """The problem as if its one step had used so many images."""
    plan = dataclasses.replace(target.plan, images=images, batches=(tuple(range(images)),))
    return dataclasses.replace(target, plan=plan)


def target_of(view: ServerView, module: nn.Module, mask_aware: bool, max_images: int) -> Target:
    """The matching problem; ``module`` is put ``in_training_mode``, with the draws of dropout that the view tells."""
    check_view(view, module)
    in_training_mode(module)
    support = recovered_support(view)
    gradient = apply_mask(target_gradient(view), support)
    fix_dropout(module, view, gradient)
    flat = flatten(gradient.values())
    if not bool(flat.any()):
        raise AttackError("nothing arrived: the update is zero wherever it was shared")
    seen = flatten(support[name] for name in view.update)  # by the update's order, whatever the mask's
    compared = None if not mask_aware or bool(seen.all()) else seen.to(flat.dtype)
    params = {name: view.params[name].detach().clone().requires_grad_() for name in view.update}
    # Batch norm writes into the buffers it is given, its integer counter included, so all are copied for each step.
    buffers = {n: b.detach().to(flat.device) for n, b in module.named_buffers()} | dict(view.buffers)
    plan, network = plan_of(view, max_images), network_of(module)
    return Target(module, params, buffers, view.mask, flat, compared, plan, network)


def step_gradient(target: Target, params: Tree, x: Tensor, y: Tensor, graph: bool = True) -> Tree:
    """Gradient of the mean cross-entropy, or of the loss of the target's ``slope``, at ``params``; with its ``graph``
    differentiable in x, y (labels or probabilities) and params."""
    # Fused attention has no second derivative.
    with sdpa_kernel(SDPBackend.MATH):
        logits = target.logits(x, params)
    loss = cross_entropy(logits, y) if target.slope is None else (logits * target.slope).sum()
    gradients = torch.autograd.grad(loss, list(params.values()), create_graph=graph, materialize_grads=True)
    return dict(zip(params, gradients, strict=True))


def dummy_gradient(target: Target, x: Tensor, y: Tensor, graph: bool = True) -> list[Tensor]:
    """What the guess x [N, C, H, W], y [N] or [N, K] would have sent, one tensor per parameter, with its ``graph``; or
    what of it is compared."""
    gradient = _mean_gradient(target, x, y, graph)
    if target.made is not None:
        seen = {} if target.support is None else split(target.support, target.params)
        gradient = target.made({name: g * seen[name] if seen else g for name, g in gradient.items()})
    return list(gradient.values())


def _mean_gradient(target: Target, x: Tensor, y: Tensor, graph: bool) -> Tree:
    """Over the local steps."""
    plan = target.plan
    if len(plan.batches) == 1:
        return step_gradient(target, target.params, x, y, graph)
    params = target.params
    velocity: Tree = {}
    for rows in plan.batches:
        gradient = step_gradient(target, params, x[list(rows)], y[list(rows)], graph)
        params, velocity = sgd_step(params, gradient, velocity, plan.sgd, target.mask)
    scale = 1 / (plan.sgd.learning_rate * len(plan.batches))
    return {name: (target.params[name] - params[name]) * scale for name in params}
