"""Accuracy, gradient inversion and membership inference of one federation: the cells of C4.

A cell is one of ``benchmarks.papers.tradeoff`` (a federation behind a defense, then SGI and GI on what client 0 sends
next), and beside it the white-box membership inference of the channel paper on the weights training ended with
(``attacks.mia``). The attacker knows ``KNOWN`` of the members and as many outsiders, and is asked about all other
members and ``OUTSIDERS`` test images. Every client has few ``examples``, so that there is something to learn by heart.

auc     of the scores of members over outsiders, 0.5 for nothing
mse     of the better of SGI and GI, as ``mse_strongest`` in the other claims

The positive control is the same federation without a defense: inversion must reach ``PSNR_FLOOR`` and the area under
the curve ``TELLS``.
"""

from pathlib import Path

import torch

from prunella.attacks.mia import AttackedModel, Mia, infer, membership_leakage
from prunella.benchmarks.engine.claim import Found, Measure, Settings, rebuilds
from prunella.benchmarks.engine.images import every_test_image, place
from prunella.benchmarks.engine.views import received_of
from prunella.benchmarks.papers import tradeoff
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch
from prunella.tasks.data import make_task

KNOWN = 0.25
OUTSIDERS = 1000
TELLS = 0.55


def split(settings: Settings, seed: int, data: Path | None) -> tuple[PrivateBatch, PrivateBatch, PrivateBatch, int]:
    """Members the attacker knows, outsiders it knows, those it is asked about, and how many of these are members."""
    clients = [tradeoff.examples_of(settings, client, seed, data) for client in range(settings["clients"])]
    x, y = torch.cat([one.x for one in clients]), torch.cat([one.y for one in clients])
    test = every_test_image(settings["dataset"], data)
    mine = torch.randperm(len(y), generator=stream(seed, purpose="claim-members"))
    rest = torch.randperm(len(test), generator=stream(seed, purpose="claim-outsiders"))[: OUTSIDERS + len(y)]
    known = round(KNOWN * len(y))
    inside, asked, outside, others = mine[:known], mine[known:], rest[:known], rest[known : known + OUTSIDERS]
    candidates = PrivateBatch(torch.cat([x[asked], test.x[others]]), torch.cat([y[asked], test.y[others]]))
    return PrivateBatch(x[inside], y[inside]), PrivateBatch(test.x[outside], test.y[outside]), candidates, len(asked)


def membership(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell, as one series: ``arm``."""
    trained = tradeoff.federation(settings, seed, data)
    found = tradeoff.weighed(settings, seed, data, trained)
    received = received_of(trained.saved)
    task = make_task(settings["model"], place(settings["dataset"], data), None)
    model = AttackedModel(task, received.params, received.buffers)
    members, outsiders, candidates, inside = split(settings, seed, data)
    scores = infer(model, members, outsiders, candidates, Mia(), stream(seed, purpose="claim-membership"))
    found["auc"] = membership_leakage(scores[:inside], scores[inside:]).auc
    return {settings["arm"]: found}


def works(found: Found) -> bool:
    """Both attacks succeed without a defense."""
    return rebuilds(found) and all(row["auc"] >= TELLS for row in found.values())


MEMBERSHIP = Measure("membership", membership, control=tradeoff.CONTROL, names=tradeoff.NAMES, works=works)
