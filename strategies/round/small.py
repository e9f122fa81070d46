"""The small dense network behind a mask of whole channels, where training it is training the masked one.

Nobody hears a dead channel (``pruning.compact``), so that the gradient of everything in it is zero. Training the dense
network under the mask does three things, and training the small one does the same:

* Weights into and out of dead channels stay zero, and the other tensors never depend on them: they are trained alone.
* Biases and normalisation of dead channels may be inside the mask. Only weight decay moves them: ``aged`` takes SGD's
  steps with a gradient of zero.
* Batch norm's statistics of a dead channel are those of a constant: its mean depends on biases alone, and its variance
  is zero. ``aged`` moves the running ones along.

What is not the same are the gradients of pruned weights that read a dead channel: who wants those trains the dense
network. A defense that needs none of them (``Entry.small``) sees the others in the dense network's places. Before
training, both networks answer two public images in training mode; where the answers differ (a module that draws, or
reads channels in training mode alone), there is no small network. So it is where batch norm does not move its
statistics by a momentum, or where the structure cannot be followed: the dense network is trained, which is always
right.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call

from prunella.core.copies import copied
from prunella.core.errors import PrunellaError
from prunella.core.randomness import PrivateGenerator, stream
from prunella.core.trees import Mask, Tree, put, take, zeros_like
from prunella.privacy.chain import Chain, Link
from prunella.privacy.defense import State, UpdateDefense, ignore_gradient
from prunella.pruning.channels import Group, channel_groups
from prunella.pruning.compact import living, may_have_dead, places
from prunella.tasks.exported import fitted
from prunella.tasks.training import Sgd, mode, sgd_step

PROBE = 2  # images
NEAR = 1e-3  # how far the largest logits may lie apart: float32 rounds, and batch norm over two images enlarges that


@dataclass(frozen=True)
class Small:
    """``module`` is the small network's structure. ``living`` are the places of its tensors in the dense network's.

    ``dead`` are the places of the biases, norms and statistics that it lacks, and ``groups`` those that they are of,
    with the number of their dead channels.
    """

    module: nn.Module
    living: Tree
    dead: Tree
    groups: Sequence[tuple[Group, int]]

    def cut(self, tree: Tree) -> Tree:
        """The small network's tensors."""
        return take(tree, self.living)

    def back(self, whole: Tree, small: Tree) -> Tree:
        """``whole`` with the small network's tensors in their places."""
        return put(whole, small, self.living)

    def watched(self, chain: Chain, received: Tree, mask: Mask) -> Chain:
        """The chain for the small network's training: its update defenses see each gradient in the dense network's
        places, zero elsewhere, beside ``received`` and ``mask``, which are the dense network's as is their state."""

        def around(link: Link) -> Link:
            defense = link.defense
            if not isinstance(defense, UpdateDefense) or defense.observe is ignore_gradient:
                return link

            def observe(gradient: Tree, _received: Tree, _mask: Mask, state: State, draws: PrivateGenerator) -> State:
                return defense.observe(self.back(zeros_like(received), gradient), received, mask, state, draws)

            return replace(link, defense=defense._replace(observe=observe))

        return Chain(tuple(map(around, chain.links)))

    def aged(self, params: Tree, buffers: Tree, mask: Mask, sgd: Sgd, steps: int) -> tuple[Tree, Tree]:
        """Parameters and buffers whose dead channels went through so many steps of the dense network's training."""
        ours, inside, stats = (
            take({name: tree[name] for name in self.dead if name in tree}, self.dead)
            for tree in (params, mask, buffers)
        )
        velocity: Tree = {}
        for _ in range(steps):
            stats = self._statistics(ours, stats)
            ours, velocity = sgd_step(ours, zeros_like(ours), velocity, sgd, inside)
        return put(params, params | ours, self.dead), put(buffers, buffers | stats, self.dead)

    def _statistics(self, ours: Tree, stats: Tree) -> Tree:
        """Those of the dead channels after one more batch."""
        moved = dict(stats)
        for group, units in self.groups if stats else ():
            none = next(iter(stats.values())).new_zeros(units, 0)
            weightless = {f"{layer}.weight": none for layer in (*group.writers, *group.carriers)}
            for norm, mean in group.means(weightless | ours | stats).items():
                share = _momentum(self.module, norm) or 0.0
                for name, seen in ((f"{norm}.running_mean", mean), (f"{norm}.running_var", torch.zeros_like(mean))):
                    moved[name] = stats[name].lerp(seen.to(stats[name]), share)
        return moved


def small_network(module: nn.Module, shape: tuple[int, ...], params: Tree, buffers: Tree, mask: Mask) -> Small | None:
    """The small network of ``params`` under ``mask``, or None where there is none; ``shape`` is one input's, without
    the batch, and ``buffers`` are batch norm's."""
    if not may_have_dead(mask):
        return None
    try:
        groups = channel_groups(module, shape)
    except PrunellaError:
        return None
    alive = living(groups, mask)
    pairs = [(group, units) for group, units in zip(groups, alive, strict=True) if not bool(units.all())]
    norms = [step.norm for group, _ in pairs for step in group.steps if step.norm]
    if not pairs or any(_momentum(module, norm) is None for norm in norms):
        return None
    at = places(groups, alive, mask | buffers)
    flat = {name: tensor for name, tensor in (mask | buffers).items() if tensor.ndim == 1}
    dead = places([group for group, _ in pairs], [~units for _, units in pairs], flat)
    small = fitted(copied(module), take(params | buffers, at))
    found = Small(small, at, dead, [(group, int((~units).sum())) for group, units in pairs])
    return found if _answers_alike(module, found, shape, params | buffers) else None


def _answers_alike(module: nn.Module, small: Small, shape: tuple[int, ...], tree: Tree) -> bool:
    """Whether both networks give two public images the same logits in training mode."""
    x = torch.rand(PROBE, *shape, generator=stream(0, purpose="small network")).to(next(iter(tree.values())))
    try:
        whole, cut = _answer(module, tree, x), _answer(small.module, small.cut(tree), x)
        return whole.shape == cut.shape and bool((whole - cut).abs().max() <= NEAR * whole.abs().max())
    except Exception:  # noqa: BLE001 - a network of somebody else's may do anything with fewer channels
        return False


def _answer(module: nn.Module, tree: Tree, x: Tensor) -> Tensor:
    """Logits in training mode; nothing given is changed."""
    own = {name: buffer.clone() for name, buffer in (dict(module.named_buffers()) | tree).items()}
    with mode(module, True), torch.no_grad():
        logits: Tensor = functional_call(module, own, (x,))
    return logits


def _momentum(module: nn.Module, norm: str) -> float | None:
    """The share of a batch's statistics in the running ones; None where they do not move by one."""
    layer = module.get_submodule(norm)
    plain = type(layer) in (nn.BatchNorm1d, nn.BatchNorm2d)  # not one that stays in evaluation mode
    momentum: float | None = getattr(layer, "momentum", None) if plain else None
    return momentum
