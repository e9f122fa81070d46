"""``Account``: the ε of an app that makes it itself, with Opacus or otherwise: added up on disk, up to a budget.

    account = Account(context)                              # in train(), before the first batch
    account.spend(steps=len(loader), rate=batch / len(data), noise=1.1)
    account.opacus(optimizer, loader, epochs=1)             # the same, read from Opacus's own objects

Every message's steps are charged before they are taken, and stay charged whatever happens then: Gaussian noise of
``noise`` times the clip bound on every step's sum, over Poisson samples with probability ``rate``, both drawn from
randomness that nobody can repeat (not after ``torch.manual_seed``). A loader that shuffles is no Poisson sampler: say
``rate=1``; one that may draw an example twice in a batch has no ε at all. The budget is the site's (``epsilon-budget``
and ``delta`` of the node's configuration) or the run's (``privacy.epsilon-budget``), whichever is smaller; 0 is none.

The account counts all apps with ``Account`` or ``Defend`` and Prunella's own app in one state directory together, over
all runs, whichever examples they use. What an answer tells without an ε (a heuristic defense alone, a listed metric)
leaves the account without one for good; an update defense of ``Defend`` beside ``Account`` changes nothing about the ε.
The account does not see what the app does: a charge is the app's word. ``Defend`` with ``dp-sgd`` needs none of this.
"""

import logging
import secrets
from collections.abc import Callable, Sized
from contextlib import nullcontext
from numbers import Integral
from typing import Any

import torch
from flwr.app import Context

from prunella.core.errors import DefenseError
from prunella.core.randomness import unseeded
from prunella.flower.handled import HANDLED, LOCKED
from prunella.flower.site import Site
from prunella.privacy.accounting import NOISE, STEPS, Charge
from prunella.privacy.ledger.ledger import spend

_CPU = torch.device("cpu")
logger = logging.getLogger(__name__)


class Paid:
    """Opacus's hook of an optimiser, called before each noised step moves the model: the step has to be one of those
    that were charged, with no less noise, whatever a scheduler of noise or a longer loop makes of it."""

    def __init__(self, noise: float, steps: int, before: Callable[[Any], None] | None) -> None:
        self.noise, self.steps, self.before = noise, steps, before

    def __call__(self, optimizer: Any) -> None:
        if optimizer.noise_multiplier < self.noise:
            raise DefenseError(
                "account: the optimiser's noise has fallen below what was charged: charge the least noise of all "
                "steps by account.spend(steps=, rate=, noise=)"
            )
        if not self.steps:
            raise DefenseError("account: there are more steps than were charged: charge them before they are taken")
        self.steps -= 1
        if self.before is not None:
            self.before(optimizer)


class Account:
    """The account of this site. Raises ``DefenseError`` past the budget, and for noise or steps that give no ε."""

    def __init__(self, context: Context) -> None:
        self._site = Site(context, "account")

    @property
    def epsilon(self) -> float | None:
        """ε of everything so far at the site's δ; None where something had none."""
        return self._site.accounts.ledger().epsilon(self._site.privacy)

    def spend(self, *, steps: int, rate: float, noise: float) -> float | None:
        """Charge ``steps`` noised steps, on the disk when this returns: ε afterwards."""
        if not isinstance(steps, Integral):
            raise DefenseError("account: steps are a whole number: round up")
        if not (1 <= steps <= STEPS and 0 < rate <= 1 and NOISE[0] <= noise <= NOISE[1]):
            raise DefenseError("account: steps of at least 1, a rate in (0, 1] and noise of 0.1 or more give an ε")
        site, work = self._site, HANDLED.get()
        new = Charge(secrets.token_hex(16), float(noise), float(rate), int(steps))
        if work is not None:
            work.pay(new)
            work.accounted = True
        else:
            # Where Defend handles this message, evaluation or query, it has locked the directory.
            with nullcontext() if LOCKED.get() == site.store.home else site.store.alone():
                spend(site.accounts.ledger(), new, site.privacy)
                site.accounts.charge(new)
        return self.epsilon

    def opacus(self, optimizer: Any, loader: Any, epochs: int = 1) -> float | None:
        """Charge what Opacus is about to take: its optimiser's noise, and its loader's steps and sampling rate.

        A loader that ``PrivacyEngine.make_private`` made with ``poisson_sampling=False`` has no sampling rate and is
        charged without amplification. A step with less noise than that, or one more, raises ``DefenseError`` before
        it moves the model. Noise and batches come from generators of the operating system's randomness from here on:
        Opacus takes PyTorch's global one unless in its secure mode, and after ``torch.manual_seed`` everybody can draw
        that again. The model has to be on its device by now.
        """
        noise = getattr(optimizer, "noise_multiplier", None)
        if not isinstance(noise, int | float):
            raise DefenseError("account: the optimiser has no noise_multiplier: make it private with Opacus first")
        known = getattr(loader, "dataset", None)
        if isinstance(known, Sized) and (doubt := self._site.privacy.doubt(len(known))):
            logger.warning("%s", doubt)
        rate, steps = getattr(loader, "sample_rate", None), epochs * len(loader)
        found = self.spend(steps=steps, rate=1.0 if rate is None else float(rate), noise=float(noise))
        weights = [p for group in optimizer.param_groups for p in group["params"]]
        if not getattr(optimizer, "secure_mode", False):
            optimizer.generator = unseeded(weights[0].device if weights else _CPU)
        sampler: Any = getattr(loader, "batch_sampler", None)
        if hasattr(sampler, "generator"):
            sampler.generator = unseeded(_CPU)
        before = getattr(optimizer, "step_hook", None)
        if isinstance(before, Paid):  # of an epoch before: each step is one of either
            before.noise, before.steps = max(before.noise, float(noise)), before.steps + steps
        elif hasattr(optimizer, "attach_step_hook"):
            optimizer.attach_step_hook(Paid(float(noise), steps, before))
        return found
