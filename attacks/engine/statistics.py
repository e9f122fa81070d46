"""Batch norm's statistics of a client's own batch: what the server solves for, and how far a guess's are from them.

A client's running statistics come back as its training left them, and no defense of the update changes them. After one
step the server solves for mean and variance of its batch before every such layer, exactly.
"""

import math
from collections.abc import Iterable
from contextlib import ExitStack

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from prunella.attacks.engine.matching import Target
from prunella.core.types import ServerView
from prunella.tasks.models.layers import Shape

Statistics = dict[str, tuple[Tensor, Tensor]]  # of every batch-norm layer, mean and deviation [channels]
_DEAD = 1e-2  # of a layer's largest deviation: below, the channel is pruned away, and rounding is left
_EQUATIONS = 1.5  # statistics per pixel: of two images with 1.25, what had them to 1e-4 was 20 dB from these


def _key(layer: str, buffer: str) -> str:
    return f"{layer}.{buffer}" if layer else buffer


def norms(module: nn.Module) -> dict[str, _BatchNorm]:
    return {
        n: layer for n, layer in module.named_modules() if isinstance(layer, _BatchNorm) and layer.track_running_stats
    }


def moved(module: nn.Module, view: ServerView) -> list[str]:
    """The layers whose statistics came back as they were not sent: not those that nobody calls, or that evaluate."""
    found = []
    for name in norms(module):
        sent, back = (each.get(_key(name, "running_mean")) for each in (view.buffers, view.received_buffers))
        if sent is not None and back is not None and not torch.equal(sent, back):
            found.append(name)
    return found


def determined_by(module: nn.Module, view: ServerView, shape: Shape, images: int) -> bool:
    """Whether the statistics that training moved are enough numbers for the pixels of so many images. Channels that are
    pruned away tell none."""
    found = batch_statistics(module, view, moved(module, view)).values()
    alive = sum(int((deviation > _DEAD * deviation.max()).sum()) for _, deviation in found)
    return 2 * alive >= _EQUATIONS * images * math.prod(shape)


def batch_statistics(module: nn.Module, view: ServerView, names: Iterable[str] | None = None) -> Statistics:
    """Mean and deviation of the client's own batches before every batch-norm layer, or before those of ``names``.

    A step moves a buffer by r' = (1 - m) r + m s, so that after n steps the server solves for the average of the s,
    the later ones weighing more; exact at one step. Without a momentum, r is the mean over all steps so far, of which
    the server knows the number. Where no buffer came back: the running statistics it sent.
    """
    found: Statistics = {}
    layers, device = norms(module), next(iter(view.params.values())).device
    for name in layers if names is None else names:
        layer, pair = layers[name], []
        steps, before = view.steps or 1, view.buffers.get(_key(name, "num_batches_tracked"))
        left = (1 - (layer.momentum or 0.0)) ** steps
        if layer.momentum is None:
            left = 1 - steps / (steps + (0 if before is None else int(before)))
        for kind in ("running_mean", "running_var"):
            key = _key(name, kind)
            sent = view.buffers.get(key, getattr(layer, kind)).detach().to(device)
            back = view.received_buffers.get(key)
            pair.append(sent if back is None else (back - left * sent) / (1 - left))
        found[name] = pair[0], _deviation(pair[1].clamp_min(0))
    return found


def _deviation(variance: Tensor) -> Tensor:
    return (variance + torch.finfo(variance.dtype).eps).sqrt()


def statistics_of(target: Target, names: Iterable[str], x: Tensor) -> Statistics:
    """Mean and deviation before each of these layers where the target's weights train on x [N, C, H, W], with their
    graph. ``KeyError`` for a layer that nobody calls."""
    caught: dict[str, Tensor] = {}
    params = {name: tensor.detach() for name, tensor in target.params.items()}
    names = list(names)
    with ExitStack() as hooks, torch.enable_grad():
        for name in names:
            watch = target.module.get_submodule(name).register_forward_pre_hook
            hooks.enter_context(watch(lambda _, inputs, name=name: caught.__setitem__(name, inputs[0])))
        target.logits(x, params)
        each = {name: caught[name].transpose(0, 1).flatten(1) for name in names}
        return {n: (t.mean(dim=1), _deviation(t.var(dim=1))) for n, t in each.items()}  # running_var is unbiased, too


def statistics_gap(target: Target, wanted: Statistics, x: Tensor) -> tuple[Tensor, Tensor]:
    """R_BN (GradInversion, Eq. 8) at x [N, C, H, W], the mean over layers and channels, and its gradient."""
    x = x.detach().requires_grad_()
    seen = statistics_of(target, wanted, x)
    gaps = [(a - b).square().mean() for name, pair in wanted.items() for a, b in zip(seen[name], pair, strict=True)]
    gap = 2 * torch.stack(gaps).mean()
    return gap.detach(), torch.autograd.grad(gap, x)[0]
