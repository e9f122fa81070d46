"""The leakage guard: a client attacks what it is about to send, and strengthens or withholds it.

The guard fails closed. First it attacks a positive control: the same images, trained on in the same steps and batches
from the same weights, undefended. Where the attack rebuilds none of them, its failure on the update would prove
nothing, and the update is withheld: so is every update of more steps or images than this attack can undo, and one of
fewer values than its images have pixels, which anything explains. Then it attacks the update as the server would see
it, with known labels where every image can be guessed, at every level of noise (``privacy.leakage_guard``) until no
image is rebuilt at a threshold. Without noise an update leaves only if the attack explained it all the same, and other
images would not (``engine.others``): one that it did not may be read by another attack. The update is withheld if the
attack raises, if scores are not finite, or if the last level still leaks.

The error has the same text for every reason and holds no number, so that no score leaves. The images are scored in this
module only. The guard protects against the attack that it runs, and no other.
"""

import dataclasses
import logging
from typing import Any

import torch
from torch import Generator, Tensor

from prunella.attacks import ATTACKS
from prunella.attacks.engine.inversion import Inversion, explained
from prunella.attacks.engine.matching import determined
from prunella.attacks.engine.others import as_near
from prunella.attacks.score.control import matched_view, rebuilt_control
from prunella.attacks.score.leakage import Leakage, score
from prunella.core.errors import ConfigError, DefenseError, unknown
from prunella.core.randomness import PrivateGenerator
from prunella.core.types import PrivateBatch, ServerView
from prunella.privacy.defense import Outgoing
from prunella.privacy.leakage_guard import NAME, LeakageGuard, strengthen
from prunella.tasks.task import Task

_FITS = 0.01  # objective at which images explain an update, as in a run's audits
WITHHELD = f"{NAME}: this update is withheld"
logger = logging.getLogger(__name__)


def attack_of(settings: LeakageGuard) -> Inversion:
    """The settings of the guard's attack; ``ConfigError`` unless it is one that inverts gradients."""
    if settings.attack not in ATTACKS:
        raise unknown("attack", settings.attack, ATTACKS)
    made: Any = ATTACKS[settings.attack].settings()
    if not isinstance(made, Inversion):
        raise ConfigError(f"{NAME}.attack={settings.attack}: choose an attack that rebuilds images, such as sgi or ig")
    return dataclasses.replace(made, iterations=settings.iterations, max_images=settings.images)


def leaks(leakage: Leakage, settings: LeakageGuard) -> bool:
    """Whether the worst image is rebuilt at the threshold or above, in any of the three."""
    found = {"psnr": leakage.psnr, "ssim": leakage.ssim, "ncc": leakage.ncc}
    return any(stat.worst >= getattr(settings, name) for name, stat in found.items())


def known_labels(private: PrivateBatch, images: int) -> Tensor | None:
    """The labels, where the attack can guess every image and so knows which is whose."""
    return private.y if len(private.y) <= images else None


def as_seen(view: ServerView, outgoing: Outgoing, private: PrivateBatch, images: int) -> ServerView:
    """``view`` with this update and with the labels that the attack can use."""
    labels = known_labels(private, images)
    return dataclasses.replace(view, update=outgoing.update, shared=outgoing.shared, labels=labels)


def control_succeeds(
    view: ServerView, private: PrivateBatch, task: Task, settings: LeakageGuard, generator: Generator
) -> bool:
    """Whether the attack rebuilds an image of an undefended update that is like this one in all else."""
    size = view.batch_size or len(private.y)
    used = zip(torch.split(private.x, size), torch.split(private.y, size), strict=True)
    plain = matched_view(task, view, [PrivateBatch(x, y) for x, y in used])
    seen = dataclasses.replace(plain, labels=known_labels(private, settings.images))
    rebuilt = ATTACKS[settings.attack].reconstruct(seen, task, attack_of(settings), generator)
    # Of several images one may look like a guess by chance: there the guesses must explain the update, too.
    fits = len(private.y) == 1 or explained(rebuilt, attack_of(settings))
    return fits and rebuilt_control(score(rebuilt, private).to_dict())


def guarded(
    outgoing: Outgoing,
    view: ServerView,
    private: PrivateBatch,
    task: Task,
    settings: LeakageGuard,
    generator: PrivateGenerator,
) -> Outgoing:
    """What may leave: ``outgoing`` with as little noise as the attack allows. ``view`` has the public rest of what the
    server knows. Raises ``DefenseError`` when the update must stay."""
    attack = attack_of(settings)
    starts = Generator().manual_seed(int(generator.below(2**62, 1)))
    try:
        if not control_succeeds(view, private, task, settings, starts):
            logger.warning("the guard's attack does not rebuild an undefended update of this kind: it proves nothing")
            raise DefenseError(WITHHELD)
        for level in range(settings.levels + 1):
            stronger = strengthen(outgoing, level, settings, generator)
            if not any(bool(t.any()) for t in stronger.update.values()):
                return stronger  # nothing leaves, so nothing is rebuilt
            seen = as_seen(view, stronger, private, settings.images)
            if not determined(seen, task, len(private.y)):
                logger.warning("the update has fewer values than its images have pixels: an attack proves nothing")
                raise DefenseError(WITHHELD)
            rebuilt = ATTACKS[settings.attack].reconstruct(seen, task, attack, starts)
            fits = level or (rebuilt.objective <= _FITS and not as_near(seen, task, rebuilt))
            if not leaks(score(rebuilt, private), settings) and fits:
                return stronger
        logger.warning("the guard's attack succeeds at the last level of noise")
    except DefenseError:
        raise
    except Exception:
        logger.exception("the guard's attack failed")
        raise DefenseError(WITHHELD) from None
    raise DefenseError(WITHHELD)
