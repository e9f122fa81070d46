"""PriPrune: pseudo-pruning with an adaptive defense mask (PRI, Algorithm 3 and Eqs. 16 to 18).

Every parameter j, biases and normalisation included, has a probability alpha_j in (0, 1) of NOT being shared. Eq. 16,

    L = lambda_acc L_acc + lambda_pri L_pri + lambda_sha sum_j alpha_j,
    L_pri = sum_l sum_j -(N_l / sum N) (|g_j| / sum_l |g|) log alpha_j,

is stepped on alpha beside the weights: L_pri pushes alpha up where gradients are large, lambda_sha pulls it down. Large
gradients stay home, and the rate follows the training instead of a setting. Withheld weights are kept and rejoin.

- ``compose`` draws the mask (Eq. 18, hard sample): the stored weight where it says withhold and one is stored, else the
  received weight. The caller then applies the base mask.
- ``observe`` steps alpha on the gradient of L in closed form. L_acc reaches alpha through the straight-through mask:
  w = v w_received + (1 - v) w_stored with v = sigmoid((log((1 - alpha) / alpha) + G1 - G0) / tau), so that
  dL_acc/dalpha = -(dL_acc/dw) (w_received - w_stored) v (1 - v) / (tau alpha (1 - alpha)).
- ``apply`` shares j iff 1 - alpha_j > alpha_j; what is withheld leaves ``shared`` and ``participates`` and is stored.

State: ``alpha``, ``withheld`` (weights, zero where none), ``held`` (bool: one is stored), and within a round ``noise``
(G1 - G0). Errors: ``ConfigError`` for settings; a NaN in state or update is stopped by the chain.

Readings and departures. (1) Algorithm 3 prints the composition inside the epoch loop, where a second epoch would throw
away the first one's training; the text says "in each FL round ... sample ... compose ... initiates local training", and
the experiments have one local step, where both agree. Here: one sample and one composition per round, all local steps
of the round differentiate through that sample. (2) Neither temperature nor initial alpha is printed. At the published
rates alpha moves less than 0.01 in 20 000 rounds, so that only a start at 1/2, where either side can win, adapts: that
is the default; a coordinate with alpha exactly 1/2 is withheld. (3) lambda_sha = 2e-5 was tuned on 6,603,710 parameters
(Conv-2) while L_pri is normalised over all of them. On n parameters lambda_sha is multiplied by 6,603,710 / n, which
keeps the balance lambda_pri / (n lambda_sha) of the paper; ``as_printed`` switches this off. (4) alpha is kept inside
[0.001, 0.999]. (5) A layer is one named tensor. (6) A layer whose gradient is zero has no L_pri. (7) Line 9 steps the
weights on the gradient of all of Eq. 16; here they step on that of L_acc. The factor lambda_acc is left out because it
makes the learning rate lambda_acc times as large behind the back of server and attacker, who know the setting. Set
``learning-rate`` so for that reading, which without weight decay is exact (a test plays line 9 beside it) and which the
measurements P7 and P8 use; at 5 * 0.25 the default job does not learn (accuracy 0.09 to 0.11 after 10 rounds on three
seeds, 0.88 to 0.96 at 0.25). L_pri depends on the weights through |g|
only; its gradient takes second derivatives, which the paper nowhere mentions, and is left out. (8) The
gradient in rows and columns of which the base mask keeps no weight, as where whole filters go, does not count in the
sum over a layer, and their alpha stays: the smaller network has no such gradient. What is left weighs no less than it
would beside them. N_l and n are those of the whole model, and other pruned weights count.

Measured on scikit-learn's digits (4 clients, 20 rounds of 5 steps, batch 16, learning rate 0.1, base rate 0.3, one
seed): the defaults withhold 11 % of the kept coordinates of a 13,706-parameter CNN and 5 % of a 19,210-parameter MLP,
whose accuracy after 50 rounds is 0.914 with and without; lambda_sha = 2e-6 withholds 43 % and 59 %, and there digits
are not learnt in 50 rounds; ``as_printed`` 56 % and 78 %, likewise. What it leaves open: within a small layer no share
of the gradient is large enough, so biases almost always leave, the last one, which names labels, included.

>>> state = _init({"w": torch.zeros(3)}, PriPrune())
>>> state["alpha"]["w"].tolist(), state["held"]["w"].tolist()
([0.5, 0.5, 0.5], [False, False, False])
"""

import functools
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from prunella.core.config import Positive, Weight
from prunella.core.errors import ConfigError
from prunella.core.randomness import PrivateGenerator
from prunella.core.trees import (
    Mask,
    Tree,
    apply_mask,
    full_mask,
    intersect,
    invert,
    map_trees,
    put,
    size,
    subtract,
    take,
    where,
    zeros_like,
)
from prunella.privacy.defense import Equal, Larger, Outgoing, Smaller, State, UpdateDefense

PAPER_SIZE = 6_603_710
MARGIN = 1e-3
_Chance = Annotated[float, Field(ge=MARGIN, le=1 - MARGIN)]


@dataclass(frozen=True)
class PriPrune:
    """Learns which coordinates to withhold, and withholds the largest gradients.

    Eq. 16 with the paper's weights for PruneFL on FEMNIST and its learning rate, but for ``lambda_sha``: the paper's
    2e-5 withholds 0.2 % of the default job's model in 10 rounds, 7e-6 (inside the paper's range) 12 to 16 % and the
    model still learns, 5e-6 a third and it hardly does.
    """

    lambda_acc: Equal[Weight] = 5.0  #: weight of accuracy in the mask's loss
    lambda_pri: Larger[Weight] = 15.0  #: weight of privacy: more is withheld
    #: weight of sharing: less is withheld; the paper's 2e-5 hardly withholds anything from the main job's small model
    lambda_sha: Smaller[Weight] = 7e-6
    temperature: Equal[Positive] = 1.0  #: of the soft mask through which the gradient flows
    mask_learning_rate: Equal[Positive] = 0.25  #: of the probabilities to withhold
    initial_alpha: Larger[_Chance] = 0.5  #: probability at the start that a coordinate is withheld
    as_printed: Equal[bool] = False  #: do not scale lambda-sha to the size of the model

    def __post_init__(self) -> None:
        if not min(self.lambda_acc, self.lambda_pri, self.lambda_sha) >= 0:
            raise ConfigError("priprune: lambda-acc, lambda-pri and lambda-sha must not be negative")
        if not MARGIN <= self.initial_alpha <= 1 - MARGIN:
            raise ConfigError(f"priprune.initial-alpha must lie between {MARGIN} and {1 - MARGIN}")

    def sharing_weight(self, parameters: int) -> float:
        """lambda_sha for a model of this many parameters.

        >>> PriPrune().sharing_weight(PAPER_SIZE), PriPrune(as_printed=True).sharing_weight(100)
        (7e-06, 7e-06)
        """
        return self.lambda_sha if self.as_printed else self.lambda_sha * PAPER_SIZE / parameters


def _init(like: Tree, settings: PriPrune) -> State:
    alpha = map_trees(lambda t: torch.full_like(t, settings.initial_alpha), like)
    return {"alpha": alpha, "withheld": zeros_like(like), "held": invert(full_mask(like))}


def gumbel_difference(like: Tree, generator: PrivateGenerator) -> Tree:
    """G1 - G0 per coordinate: the difference of two standard Gumbels is one standard logistic, drawn as logit(U)."""

    def draw(tensor: Tensor) -> Tensor:
        return torch.logit(generator.uniform(*tensor.shape)).to(dtype=tensor.dtype, device=tensor.device)

    return map_trees(draw, like)


def soft_share(alpha: Tensor, noise: Tensor, temperature: float) -> Tensor:
    """v(1) of Eq. 18, the soft decision to share.

    >>> round(soft_share(torch.tensor(0.25), torch.tensor(0.0), 1.0).item(), 6)
    0.75
    """
    return torch.sigmoid((torch.log1p(-alpha) - torch.log(alpha) + noise) / temperature)


def sampled_share(alpha: Tree, noise: Tree, temperature: float) -> Mask:
    """The hard sample: True where this round starts from the received weight."""
    return map_trees(lambda a, g: soft_share(a, g, temperature) > 0.5, alpha, noise)


def shares(alpha: Tree) -> Mask:
    """The defense mask that leaves: share iff 1 - alpha > alpha."""
    return map_trees(lambda a: 1 - a > a, alpha)


def accuracy_gradient(gradient: Tree, gap: Tree, alpha: Tree, noise: Tree, temperature: float) -> Tree:
    """dL_acc/dalpha through the straight-through mask; ``gap`` is received minus stored, zero where none is stored."""

    def one(g: Tensor, d: Tensor, a: Tensor, n: Tensor) -> Tensor:
        v = soft_share(a, n, temperature)
        return -g * d * v * (1 - v) / (temperature * a * (1 - a))

    return map_trees(one, gradient, gap, alpha, noise)


def privacy_gradient(gradient: Tree, alpha: Tree, model: Tree) -> Tree:
    """dL_pri/dalpha of Eq. 17; the sizes of ``model`` are N_l."""
    total = max(1, size(model))

    def one(g: Tensor, a: Tensor, whole: Tensor) -> Tensor:
        magnitude = g.abs()
        layer = magnitude.sum()
        share = magnitude / torch.where(layer > 0, layer, torch.ones_like(layer))
        return -(whole.numel() / total) * share / a

    return map_trees(one, gradient, alpha, model)


def alpha_gradient(gradient: Tree, gap: Tree, state: State, model: Tree, settings: PriPrune) -> Tree:
    """dL/dalpha of Eq. 16 for one step's gradient of L_acc with respect to the weights, or to some of ``model``'s."""
    alpha = state["alpha"]
    accuracy = accuracy_gradient(gradient, gap, alpha, state["noise"], settings.temperature)
    privacy = privacy_gradient(gradient, alpha, model)
    sharing = settings.sharing_weight(max(1, size(model)))
    return map_trees(lambda a, p: settings.lambda_acc * a + settings.lambda_pri * p + sharing, accuracy, privacy)


def _compose(received: Tree, state: State, generator: PrivateGenerator, settings: PriPrune) -> tuple[Tree, State]:
    noise = gumbel_difference(state["alpha"], generator)
    keep = invert(sampled_share(state["alpha"], noise, settings.temperature))
    start = where(intersect(keep, state["held"]), state["withheld"], received)
    return start, {**state, "noise": noise}


def _counted(mask: Mask) -> Tree:
    """Places of the coordinates that count, [rows, columns, rest] (departure 8), of tensors of which not all do."""
    found = {}
    for name, kept in mask.items():
        if kept.ndim < 2:
            continue
        rows, columns = (kept.transpose(0, dim).flatten(1).any(1) for dim in (0, 1))
        if not bool(rows.all() and columns.all()):
            rest = torch.arange(kept.shape[2:].numel(), device=kept.device)
            pairs = rows.nonzero() * len(columns) + columns.nonzero().T
            found[name] = pairs[..., None] * len(rest) + rest
    return found


def _observe(
    gradient: Tree, received: Tree, mask: Mask, state: State, generator: PrivateGenerator, settings: PriPrune
) -> State:
    if "noise" not in state:
        state = {**state, "noise": gumbel_difference(state["alpha"], generator)}
    at = _counted(mask)
    ours = {name: take(tree, at) for name, tree in state.items()}
    gap = apply_mask(subtract(take(received, at), ours["withheld"]), ours["held"])
    slope = alpha_gradient(take(gradient, at), gap, ours, state["alpha"], settings)
    rate = settings.mask_learning_rate
    alpha = map_trees(lambda a, s: (a - rate * s).clamp(MARGIN, 1 - MARGIN), ours["alpha"], slope)
    return {**state, "alpha": put(state["alpha"], alpha, at)}


def _apply(outgoing: Outgoing, state: State, generator: PrivateGenerator) -> tuple[Outgoing, State]:
    decision = shares(state["alpha"])
    shared = intersect(outgoing.shared, decision)
    held = intersect(outgoing.participates, invert(decision))
    participates = intersect(outgoing.participates, decision)
    after = {"alpha": state["alpha"], "withheld": apply_mask(outgoing.local, held), "held": held}
    return Outgoing(apply_mask(outgoing.update, shared), shared, participates, outgoing.local), after


def priprune(settings: PriPrune) -> UpdateDefense:
    return UpdateDefense(
        init=functools.partial(_init, settings=settings),
        compose=functools.partial(_compose, settings=settings),
        observe=functools.partial(_observe, settings=settings),
        apply=_apply,
    )
