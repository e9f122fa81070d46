"""Public images under the attack that a portfolio would make: what a rehearsal plays, and what it found.

The same chain, weights and steps as the attacked client's (``engine.shadow``), and images whose truth is known: how an
attack does there says how it does on the client's (``attacks.portfolio``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from prunella.attacks.engine.case import Case, Found, Key
from prunella.attacks.engine.choice import Gain
from prunella.attacks.engine.shadow import Shadow
from prunella.attacks.score.leakage import assign, paired, psnr
from prunella.core.errors import AttackError, DefenseError
from prunella.core.types import Reconstruction, ServerView
from prunella.tasks.examples import Examples


@dataclass
class Others:
    """A shadow without the public images that its client was shown: what an attacker knows in a rehearsal."""

    public: Examples
    send: Callable[..., ServerView]


class Play(NamedTuple):
    """A view of public images under attack, what was found, and all that is public beside them."""

    case: Case
    shown: Examples
    found: list[Found]
    others: Others


def mean_psnr(shown: Examples, answer: Reconstruction) -> float:
    gain = psnr(*paired(shown.x, answer.x.cpu(), assign(shown.x, answer.x.cpu())))
    return sum(gain) / len(gain)


def played(case: Case, shadow: Shadow, views: int) -> list[Play]:
    """Views of public images behind the same chain."""
    made, number = list[Play](), case.view.images_used or case.images
    for draw in range(views):
        order = torch.randperm(len(shadow.public), generator=case.generator)
        shown, others = (shadow.public.take(rows) for rows in (order[:number], order[number:]))
        try:
            view = shadow.send(shown, draw)
            its = Case(view, case.task, case.attack, case.generator, case.end, case.budget)
            its.ambiguous = case.ambiguous
            made.append(Play(its, shown, [], Others(others, shadow.send)))
        except (AttackError, DefenseError):
            continue
    return made


def scored(plays: Sequence[Play]) -> dict[Key, Gain]:
    """The gains of everything that was found in every play: means over plays, in each of which the best counts."""
    each = [
        {
            key: max(Gain(mean_psnr(p.shown, f.answer), f.missed) for f in p.found if f.key == key)
            for key in {f.key for f in p.found}
        }
        for p in plays
    ]
    return {
        key: Gain(*(sum(values) / len(each) for values in zip(*(one[key] for one in each), strict=True)))
        for key in each[0]
        if all(key in one for one in each)
    }
