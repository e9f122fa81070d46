"""GradInversion, "See through gradients" (Yin, Mallya, Vahdat, Alvarez, Kautz, Molchanov 2021); "GI" in DGP.

    minimise over x_1 ... x_G:  |g(x_i) - target|^2 + tv TV(x_i) + bn R_BN(x_i) + group |x_i - mean_j x_j|^2

(Eqs. 2 to 12), by Adam on G starts at once that are held together (group consistency); the one that explains the
update best is kept. R_BN is the mean over batch-norm layers of |mean(x) - mean|^2 + |deviation(x) - deviation|^2.

Threat model: an honest-but-curious server that knows the model, the update, the number of images, the learning rate
and, where the model has batch norm, its statistics: those of the client's own batch, solved from the buffers that came
back, or the running ones where none did. It takes every coordinate it did not receive for zero unless ``mask_aware``.

Departures: labels by ``attacks.engine.label_inference`` instead of the paper's column minima, which name no class
twice; the group's mean is not registered first; no pixel noise; deviations instead of variances, so that layers weigh
alike; the relative Euclidean distance of ``attacks.engine.objectives``. Without batch norm there is no R_BN.

>>> shared_mean([torch.zeros(1, 1, 1, 1), torch.ones(1, 1, 1, 1)]).item()
0.5
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from prunella.attacks.engine.descent import UNSAVED, Problem, descend
from prunella.attacks.engine.inversion import (
    Guess,
    Inversion,
    evaluator,
    explained,
    file_of,
    first_guess,
    labels_to_try,
    optimizer_of,
)
from prunella.attacks.engine.matching import Target, target_of
from prunella.attacks.engine.progress import Progress
from prunella.attacks.engine.resume import DescentFile, ResumeStore
from prunella.core.config import Count, Weight
from prunella.core.trees import Tree
from prunella.core.types import Reconstruction, ServerView
from prunella.tasks.task import Task

Statistics = dict[str, tuple[Tensor, Tensor]]  # of every batch-norm layer, mean and deviation [channels]
_MOMENTUM = 0.1


@dataclass(frozen=True)
class GradInversion(Inversion):
    """A group of starts that are held together, with batch-norm statistics where there are any."""

    objective: Literal["cosine", "euclidean"] = "euclidean"
    signed: bool = False
    mask_aware: bool = False
    tolerance: Weight = 1e-9
    iterations: Count = 1000
    bn: Weight = 0.1  #: weight of the distance from the batch-norm statistics
    group: Weight = 0.01  #: weight of the distance from the group's mean
    restarts: Count = 2  #: starts in the group


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


def joint_problem(attack: GradInversion, target: Target, wanted: Statistics, guesses: Sequence[Guess]) -> Problem:
    """The group's problem: its minimum takes in the priors, but they do not choose between the members."""
    objectives = [evaluator(target, attack, guess) for guess in guesses]

    def evaluate() -> tuple[Tensor, Tensor]:
        middle, total = shared_mean([guess.x for guess in guesses]), target.flat.new_zeros(())
        own: list[Tensor] = []
        for guess, objective in zip(guesses, objectives, strict=True):
            own.append(objective())
            apart = guess.x.detach() - middle
            total = total + own[-1] + attack.group * apart.square().mean()
            pull = apart * (2 * attack.group / apart.numel())
            if wanted and attack.bn:
                gap, slope = statistics_gap(target, wanted, guess.x)
                total, pull = total + attack.bn * gap, pull + attack.bn * slope
            guess.x.grad = pull if guess.x.grad is None else guess.x.grad + pull
        return total, torch.stack(own)

    variables = [variable for guess in guesses for variable in guess.variables()]
    return Problem(variables, evaluate, [Progress(attack, guess.snapshot) for guess in guesses], joint=True)


def descend_group(
    attack: GradInversion, target: Target, wanted: Statistics, guesses: Sequence[Guess], saved: DescentFile = UNSAVED
) -> Reconstruction:
    """The best that any member of the group came to. L-BFGS takes whole chunks only."""
    optimizer = optimizer_of(attack, target.module, guesses)
    iterations = attack.iterations - attack.iterations % optimizer.chunk
    found = descend(joint_problem(attack, target, wanted, guesses), optimizer, iterations, saved)
    return min(found, key=lambda best: best.objective)


def reconstruct(
    view: ServerView, task: Task, attack: GradInversion, generator: Generator, resume: ResumeStore | None = None
) -> Reconstruction:
    """The images [N, C, H, W] and labels [N] that explain the view best, over up to ``labels_tried`` labels."""
    store = resume or ResumeStore()
    target = target_of(view, task.build(), attack.mask_aware, attack.max_images, attack.bf16)
    wanted = batch_statistics(target.module, view)
    found: list[Reconstruction] = []
    for labels in labels_to_try(view, target, task, attack, generator)[: attack.labels_tried]:
        guesses = [first_guess(target, task, labels, generator) for _ in range(attack.restarts)]
        saved = file_of(store, attack, [target], guesses)
        found.append(descend_group(attack, target, wanted, guesses, saved))
        if explained(found[-1], attack):
            break
    return min(found, key=lambda reconstruction: reconstruction.objective)
