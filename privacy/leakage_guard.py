"""The defense half of the leakage guard: an attack on the client's own update decides how much noise is added.

Not from a paper. Before an update leaves, the client attacks it (``attacks.self_attack``, which calls this module).
While the reconstruction is too similar to the client's own images, the noise grows:

    level l >= 1 adds N(0, (noise * 4^(l - 1) * rms)^2) to every shared coordinate, rms of that tensor's shared values

and past ``levels`` the update is withheld. Level 0 adds nothing, and is for an update that the attack explained. Small
images under a large model need much noise: a gradient has hundreds of coordinates for every pixel, over which an attack
averages the noise away. Where no attack is run (the server's canary), ``apply`` adds the noise of the last level: a
guard that did not look assumes the worst.

What it costs and means: an attack or more per round on the client, and accuracy where noise is needed. What leaves
depends on private data: a server sees how much noise there was, or that an update was withheld, and can conclude that
an attack succeeded; no score leaves, and an ε would not cover it, so a chain with an ε refuses the guard. It protects
against the attack it runs, not against a better one. A heuristic, no ε.

>>> settings = LeakageGuard()
>>> [round(deviation(torch.tensor([3.0, -4.0]), level, settings), 2) for level in range(4)]
[0.0, 1.77, 7.07, 28.28]
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from prunella.core.config import Count, Positive, Share
from prunella.core.errors import ConfigError, DefenseError
from prunella.core.randomness import PrivateGenerator
from prunella.core.trees import Tree
from prunella.privacy.defense import (
    Equal,
    Larger,
    Outgoing,
    Smaller,
    State,
    UpdateDefense,
    ignore_gradient,
    keep_received,
)

NAME = "leakage-guard"


@dataclass(frozen=True)
class LeakageGuard:
    """Last in the chain: the client attacks its own update and adds noise, or withholds it, until the attack fails.

    The attack runs with its default settings except ``iterations`` and ``images``. With fewer ``levels`` an update that
    still leaks is withheld sooner. No number of iterations or images is the best for the attack on every update.
    """

    psnr: Smaller[Positive] = 15.0  #: an image rebuilt at this many dB counts as a leak
    ssim: Smaller[Share] = 0.5  #: an image rebuilt at this SSIM counts as a leak
    ncc: Smaller[Share] = 0.55  #: an image whose pixels correlate this much counts as a leak, however pale it is
    #: of the first level, over the root mean square of what a tensor sends; each further level has four times as much
    noise: Larger[Positive] = 0.5
    levels: Smaller[Count] = 4  #: levels of noise before the update is withheld
    attack: Equal[str] = "sgi"  #: what the client attacks with; an entry of the list of attacks
    iterations: Equal[Count] = 100  #: of that attack
    images: Equal[Count] = 4  #: most images that it guesses

    def __post_init__(self) -> None:
        if not (0 < self.psnr < float("inf") and 0 < self.noise < float("inf") and 0 < self.ssim <= 1 >= self.ncc > 0):
            raise ConfigError("leakage-guard needs psnr and noise above 0 and finite, ssim and ncc in (0, 1]")


def deviation(shared: Tensor, level: int, settings: LeakageGuard) -> float:
    """The noise's standard deviation for a tensor's shared values [n]."""
    if level == 0 or not shared.numel():
        return 0.0
    return settings.noise * 4.0 ** (level - 1) * float(shared.double().square().mean().sqrt())


def strengthen(outgoing: Outgoing, level: int, settings: LeakageGuard, generator: PrivateGenerator) -> Outgoing:
    """The update with the noise of ``level`` on what is shared. Draws do not depend on values."""
    if not 0 <= level <= settings.levels:
        raise DefenseError(f"{NAME}: there is no level {level}")
    update: Tree = {}
    for name, values in outgoing.update.items():
        sent = outgoing.shared[name]
        noise = generator.normal(*values.shape).to(values)
        update[name] = values + noise * deviation(values[sent], level, settings) * sent
    return replace(outgoing, update=update)


def unguarded(state: State) -> State:
    """The state of a client that will attack the update before it leaves: the chain itself adds nothing."""
    return {**state, "level": {"level": torch.zeros_like(state["level"]["level"])}}


def leakage_guard(settings: LeakageGuard) -> UpdateDefense:
    def init(like: Tree) -> State:
        return {"level": {"level": torch.tensor(settings.levels)}}

    def apply(outgoing: Outgoing, state: State, generator: PrivateGenerator) -> tuple[Outgoing, State]:
        level = int(state["level"]["level"])
        return strengthen(outgoing, level, settings, generator), init({})  # the next round is guarded anew

    return UpdateDefense(init, keep_received, ignore_gradient, apply)
