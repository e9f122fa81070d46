"""Canaries: public images on which the server may know the truth, so that it can tell what its attack is worth.

An attack that rebuilds nothing of a client says something only where it rebuilds what is just as hard and not defended.
Four kinds of canary are attacked in an audited round, on the weights, masks and buffers of that round:

``control``           trained on exactly as the audited client trains: as many images, steps, batch size, optimizer
                      settings, batch-norm mode, squared gradients, labels known or not; no defense
``control-defended``  the same under the run's own defense chain: what the defense changes, with no client involved
``single``            one image in one step, no defense: the worst that the server could have asked a client for
``single-defended``   the same under the run's chain, in a client's first round: there a defense that learns, as
                      PriPrune, has nothing to hide by yet, and a server may always ask for a first round

Where masked sums are attacked, a canary is a sum, too: of as many public clients, with as many images together; and
``single`` is one image of each in one step. One client's image alone would be what a server sees without the masks.

A run without defenses has no defended ones. The images are drawn at random, another set in every round; nobody learns
from them (``deploy.tools.prior``, ``server.audit.shadow``).
"""

from pathlib import Path

import torch

from prunella.attacks.trace import load_trace, recorded_task, save_trace
from prunella.core.errors import AttackError
from prunella.core.files import write_tree
from prunella.core.randomness import stream
from prunella.server.audit.job import PATTERN, PUBLIC, TRUTH, VIEW
from prunella.server.audit.shadow import RunShadow, Sent, is_single, read_public, round_of
from prunella.tasks.data import Examples
from prunella.tasks.public import digits, in_shape
from prunella.tasks.task import Task

POOL = 512  # canaries of a run, at most
_LEARNT = 1024  # public images beside them, at most
_VALUES = 2**24  # pixels of these, at most

UNDEFENDED, DEFENDED = ("control", "single"), ("control-defended", "single-defended")


def canary_count(images: int) -> int:
    """How many of a dataset's public images are canaries: at most half, so that some are left to learn from.

    >>> canary_count(10_000), canary_count(359)
    (512, 179)
    """
    return min(POOL, images // 2)


def load_pool(task: Task, test: Examples | None, seed: int, wanted: int = 0) -> tuple[Examples, Examples]:
    """Canaries, and public images to learn from, in the task's shape: of the test set, or scikit-learn's digits.
    ``wanted`` images are a control's, where that is known to have more than ``POOL``."""
    source = test if test is not None else digits()
    order = torch.randperm(len(source.y), generator=stream(seed, purpose="canary"))
    count = max(canary_count(len(order)), min(wanted, len(order) // 2))
    most = max(1, min(_LEARNT, _VALUES // (task.shape[0] * task.shape[1] * task.shape[2])))
    canaries, rest = order[:count], order[count : count + most]
    return in_shape(source.take(canaries), task), in_shape(source.take(rest), task)


WAY_OUT = "have twice as many test images, or fewer local-steps or a smaller batch-size"


def shortage(canaries: Examples, images: int, sites: int = 1) -> str:
    """Why a control of so many ``images`` cannot be made, or "" where it can."""
    whose = "this sum" if sites > 1 else "this client"
    few = f"{len(canaries)} public images are too few for a control of {whose}'s {images}"
    return few if images > len(canaries) else ""


def play_canary(shadow: RunShadow, canaries: Examples, kind: str) -> Sent:
    """The update of a canary of ``kind`` (module docstring). ``shadow`` plays under the defenses of that kind."""
    single, number = is_single(kind), shadow.round.number
    sites = shadow.round.sites
    images = sites if single else shadow.like.images_used or sites
    if few := shortage(canaries, images, sites):
        raise AttackError(f"{few}: {WAY_OUT}")
    order = torch.randperm(len(canaries), generator=stream(shadow.run.seed, round=number, purpose="canary-images"))
    shown = canaries.take(order[:images])
    return shadow.first().play(shown, 0, 1, sites) if single else shadow.play(shown, 0)


def make_canary(folder: Path) -> None:
    """Play the canary of the job in ``folder``: from the pattern of its view, the view and its truth."""
    if not (folder / PATTERN).exists():
        return
    task = recorded_task(folder / PATTERN)  # written by our own server, which has built this model already
    pattern, _, about = load_trace(folder / PATTERN, task)
    public, canaries, raw = read_public(folder.parent / PUBLIC)
    shadow = RunShadow(raw, task, pattern, round_of(folder, about, "canary"), public)
    sent = play_canary(shadow, canaries, about["kind"])
    write_tree(folder / TRUTH, {"x": sent.truth.x, "y": sent.truth.y})
    save_trace(folder / VIEW, sent.view, task, about)
    (folder / PATTERN).unlink()
