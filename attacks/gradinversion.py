"""GradInversion, "See through gradients" (Yin, Mallya, Vahdat, Alvarez, Kautz, Molchanov 2021); "GI" in DGP.

    minimise over x_1 ... x_G:  |g(x_i) - target|^2 + tv TV(x_i) + bn R_BN(x_i) + group |x_i - mean_j x_j|^2

(Eqs. 2 to 12), by Adam on G starts at once that are held together (group consistency); the one that explains the
update best is kept. R_BN is the mean over batch-norm layers of |mean(x) - mean|^2 + |deviation(x) - deviation|^2.

Threat model: an honest-but-curious server that knows the model, the update, the number of images, the learning rate
and, where the model has batch norm, its statistics: those of the client's own batch, solved from the buffers that came
back, or the running ones where none did. It takes every coordinate it did not receive for zero unless ``mask_aware``.

Departures: labels by ``attacks.engine.labels`` instead of the paper's column minima, which name no class twice; the
group's mean is not registered first; no pixel noise; deviations instead of variances, so that layers weigh alike; the
relative Euclidean distance of ``attacks.engine.objectives``. Without batch norm there is no R_BN.

>>> shared_mean([torch.zeros(1, 1, 1, 1), torch.ones(1, 1, 1, 1)]).item()
0.5
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from prunella.attacks.engine.inversion import (
    DECAY_AT,
    LBFGS_CHUNK,
    NOWHERE,
    Guess,
    Inversion,
    Progress,
    Weight,
    descent,
    evaluator,
    explained,
    first_guess,
    labels_to_try,
    lbfgs,
    slot_of,
)
from prunella.attacks.engine.matching import Target, target_of
from prunella.attacks.engine.resume import Descent, Shelf, Slot
from prunella.core.config import Count
from prunella.core.trees import Tree
from prunella.core.types import Reconstruction, ServerView
from prunella.tasks.task import Task

Statistics = dict[str, tuple[Tensor, Tensor]]  # of every batch-norm layer, mean and deviation [channels]
Joint = tuple[Callable[[], Tensor], list[float]]
_MOMENTUM = 0.1


@dataclass(frozen=True)
class GradInversion(Inversion):
    """``restarts`` is the size of the group; ``bn`` and ``group`` weigh the two priors."""

    objective: Literal["cosine", "euclidean"] = "euclidean"
    signed: bool = False
    mask_aware: bool = False
    tolerance: Weight = 1e-9
    iterations: Count = 1000
    bn: Weight = 0.1
    group: Weight = 0.01
    restarts: Count = 2


def norms(module: nn.Module) -> dict[str, _BatchNorm]:
    return {
        n: layer for n, layer in module.named_modules() if isinstance(layer, _BatchNorm) and layer.track_running_stats
    }


def batch_statistics(module: nn.Module, view: ServerView) -> Statistics:
    """Mean and deviation of the client's own batches before every batch-norm layer.

    A step moves a buffer by r' = (1 - m) r + m s, so that after n steps the server solves for the average of the s,
    the later ones weighing more; exact at one step. Where no buffer came back: the running statistics it sent.
    """
    found: Statistics = {}
    device = next(iter(view.params.values())).device
    for name, layer in norms(module).items():
        momentum = _MOMENTUM if layer.momentum is None else layer.momentum
        left = (1 - momentum) ** (view.steps or 1)
        pair = []
        for kind in ("running_mean", "running_var"):
            key = f"{name}.{kind}" if name else kind
            sent = view.buffers.get(key, getattr(layer, kind)).detach().to(device)
            back = view.received_buffers.get(key)
            pair.append(sent if back is None else (back - left * sent) / (1 - left))
        found[name] = (pair[0], pair[1].clamp_min(0).sqrt())
    return found


def statistics_gap(target: Target, wanted: Statistics, x: Tensor) -> tuple[Tensor, Tensor]:
    """R_BN at x [N, C, H, W], the mean over layers and channels, and its gradient."""
    x = x.detach().requires_grad_()
    caught: dict[str, Tensor] = {}

    def catch(name: str) -> object:
        layer = target.module.get_submodule(name)
        return layer.register_forward_pre_hook(lambda _, inputs: caught.__setitem__(name, inputs[0]))

    hooks = [catch(name) for name in wanted]
    buffers: Tree = {name: buffer.clone() for name, buffer in target.buffers.items()}
    params = {name: tensor.detach() for name, tensor in target.params.items()}
    try:
        with torch.enable_grad():
            functional_call(target.module, (params, buffers), (x,))
    finally:
        for hook in hooks:
            hook.remove()  # type: ignore[attr-defined]
    gaps = []
    for name, (mean, deviation) in wanted.items():
        seen = caught[name].transpose(0, 1).flatten(1)
        spread = (seen.var(dim=1) + torch.finfo(seen.dtype).eps).sqrt()  # running_var is unbiased, too
        gaps.append((seen.mean(dim=1) - mean).square().mean() + (spread - deviation).square().mean())
    gap = torch.stack(gaps).mean()
    return gap.detach(), torch.autograd.grad(gap, x)[0]


def shared_mean(members: Sequence[Tensor]) -> Tensor:
    return torch.stack([member.detach() for member in members]).mean(dim=0)


def joint(attack: GradInversion, target: Target, wanted: Statistics, guesses: Sequence[Guess]) -> Joint:
    """A closure that puts the gradient of everything that is minimised on all guesses and returns its value, 0-d, and
    the list in which it leaves each guess's own objective: the priors do not choose between the members."""
    evaluates = [evaluator(target, attack, guess) for guess in guesses]
    own = [float("inf")] * len(guesses)

    def evaluate() -> Tensor:
        middle, total = shared_mean([guess.x for guess in guesses]), target.flat.new_zeros(())
        for i, (guess, run) in enumerate(zip(guesses, evaluates, strict=True)):
            value = run()
            own[i] = float(value)
            apart = guess.x.detach() - middle
            total = total + value + attack.group * apart.square().mean()
            pull = apart * (2 * attack.group / apart.numel())
            if wanted and attack.bn:
                gap, slope = statistics_gap(target, wanted, guess.x)
                total, pull = total + attack.bn * gap, pull + attack.bn * slope
            guess.x.grad = pull if guess.x.grad is None else guess.x.grad + pull
        return total

    return evaluate, own


def descend(
    attack: GradInversion, target: Target, wanted: Statistics, guesses: Sequence[Guess], slot: Slot = NOWHERE
) -> Reconstruction:
    """All guesses at once, by Adam or L-BFGS as elsewhere; the best of each is kept, and the best of those."""
    over = slot.over()
    if over is not None:
        return min(over, key=lambda best: best.objective)
    evaluate, own = joint(attack, target, wanted, guesses)
    variables = [variable for guess in guesses for variable in guess.variables()]
    progress = [Progress(attack, guess) for guess in guesses]
    newton = descent(attack, target.module) == "lbfgs"
    optimizer: torch.optim.Optimizer = torch.optim.Adam(variables, lr=attack.learning_rate)
    if newton:
        optimizer = lbfgs(variables, attack.iterations)
    milestones = [int(share * attack.iterations) for share in DECAY_AT]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [] if newton else milestones, gamma=0.1)
    state = Descent(optimizer, variables, progress)
    schedule.last_epoch = begin = slot.take_up(state)[0]
    for iteration in range(begin, attack.iterations + 1, LBFGS_CHUNK if newton else 1):
        slot.keep(state, iteration, range(len(guesses)))
        evaluate()
        stops = [member.stop(value, iteration) for member, value in zip(progress, own, strict=True)]
        if all(stops) or iteration == attack.iterations:
            break
        if newton:
            optimizer.step(evaluate)  # type: ignore[arg-type]
            continue
        for guess in guesses:
            if attack.signed and guess.x.grad is not None:
                guess.x.grad.sign_()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            for guess in guesses:
                guess.x.clamp_(0.0, 1.0)
    slot.finish(state)
    return min((member.best for member in progress), key=lambda best: best.objective)


def reconstruct(
    view: ServerView, task: Task, attack: GradInversion, generator: Generator, shelf: Shelf | None = None
) -> Reconstruction:
    """The images [N, C, H, W] and labels [N] that explain the view best, over up to ``labels_tried`` labels."""
    shelf = shelf or Shelf()
    target = target_of(view, task.build(), attack.mask_aware, attack.max_images, attack.bf16)
    wanted = batch_statistics(target.module, view)
    found: list[Reconstruction] = []
    for labels in labels_to_try(view, target, task, attack, generator)[: attack.labels_tried]:
        guesses = [first_guess(target, task, labels, generator) for _ in range(attack.restarts)]
        slot = slot_of(shelf, attack, [target], guesses)
        found.append(descend(attack, target, wanted, guesses, slot))
        if explained(found[-1], attack):
            break
    return min(found, key=lambda reconstruction: reconstruction.objective)
