"""What a sum of updates gives away, against the number of sites in it (docs/secure-aggregation.md).

Every site takes one step on one image of its own, its label known, undefended: the worst case of a client. The server
sees what masked sums show it: the sum of the fixed-point updates and of the example counts, read back
(``strategies.secure_sum.vector``), and nothing else. With one site that is the site's update.

``honest``    the server follows the protocol; ``ATTACKS`` and ``components``, which has public images, descend on the
              mean update for the images of all sites, each matched with the site's image that it is most like, and the
              best of them counts, by the truth
``silenced``  an active server sends every site but one a model of zeros, under which nothing but the last layer's bias
              has a gradient, and takes that gradient, which it can compute itself, off the sum
``loki``      an active server sends every site a convolution of its own (``attacks.loki``)

The two active servers need sites that train different models. The protocol here opens no sum of such
(``tests/strategies/secure_sum/test_participant.py``), as long as the sites know each other's keys: these rows are what
happens without that. ``psnr`` and ``ssim`` are means over the images, ``best`` the best-rebuilt one of a sum; ``null``
is what the pictures score against other people's images of the same classes; ``rebuilt`` the share of images that a
report would call so. Weights are untrained, test images are attacked. PSNR in dB.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch

from prunella.attacks import components
from prunella.attacks.engine.matching import target_of
from prunella.attacks.loki import CLIENTS, for_client
from prunella.attacks.score.leakage import score
from prunella.attacks.score.level import ORDER, level
from prunella.benchmarks.engine.claim import Claim, Found, Measure, Plot, Point, Settings, declared, seeds_of
from prunella.benchmarks.engine.images import chosen_images, client_images, part, task_of
from prunella.benchmarks.engine.machine import device
from prunella.benchmarks.engine.priors import PUBLIC
from prunella.benchmarks.engine.rules import Judgement, above
from prunella.benchmarks.engine.views import answer, draws, initial_sender, seen
from prunella.core.randomness import stream
from prunella.core.trees import Tree, full_mask, map_trees, zeros_like
from prunella.core.types import PrivateBatch, Reconstruction, ServerView
from prunella.strategies.secure_sum import vector
from prunella.tasks.data import Examples, Partition
from prunella.tasks.task import Task

SITES = (1, 2, 4, 8, 16, 32, 64)
ATTACKS = ("ig", "gradinversion")
HONEST, SILENCED, LOKI = "honest", "silenced", "loki"
DATASETS = ("digits", "mnist", "cifar10")


def opened(updates: Sequence[Tree]) -> Tree:
    """The mean that the server reads back of the sum of updates, each of one example."""
    mean, _ = vector.opened(updates, full_mask(updates[0]), [{}] * len(updates), vector.SecureSum())
    return map_trees(lambda found, like: found.to(like.dtype), mean, updates[0])


def view_of(task: Task, private: Examples, seed: int, site: int, models: Sequence[Tree] = ()) -> ServerView:
    """What one site would have sent, on the CPU, where updates are added up; with ``models``, trained on its own of
    these."""
    one = initial_sender(task, seed, "none", {}, private.x, 1)
    if models:
        one = dataclasses.replace(one, received=dataclasses.replace(one.received, params=models[site]))
    return seen(one, part(private, site), draws(seed, site, "masked-sum")).view.on(torch.device("cpu"))


def honest(task: Task, private: Examples, seed: int) -> ServerView:
    """The view of a sum: an update of all sites' images."""
    views = [view_of(task, private, seed, site) for site in range(len(private))]
    mean = opened([view.update for view in views])
    return dataclasses.replace(
        views[0], update=mean, labels=private.y, num_examples=len(private), batch_size=len(private)
    )


def silenced(task: Task, private: Examples, seed: int) -> ServerView:
    """The view of the first site, out of a sum in which the others got zeros."""
    first, count = view_of(task, private, seed, 0), len(private)
    models = [first.params] + [zeros_like(first.params)] * (count - 1)
    mean = opened([view_of(task, private, seed, site, models).update for site in range(count)])
    blank = Examples(torch.zeros_like(private.x), private.y)  # the image does not matter: the server needs none
    known = [view_of(task, blank, seed, site, models).update for site in range(1, count)]
    own = {name: count * tensor - sum(update[name] for update in known) for name, tensor in mean.items()}
    return dataclasses.replace(first, update=own)


def planted(task: Task, private: Examples, seed: int) -> ServerView:
    """The view of the first site under LOKI: the whole sum, and the convolution that this site was sent."""
    first = view_of(task, private, seed, 0)
    groups = [0, *(1 + site % (CLIENTS - 1) for site in range(len(private) - 1))]
    models = [for_client(first.params, group) for group in groups]
    views = [view_of(task, private, seed, site, models) for site in range(len(private))]
    return dataclasses.replace(views[0], update=opened([view.update for view in views]))


def by_components(view: ServerView, task: Task, public: Examples, iterations: int, seed: int) -> Reconstruction:
    """``components`` for an image of every site, all at once."""
    attack, draw = components.Components(iterations=iterations), stream(seed, purpose="components")
    assert view.labels is not None
    target = target_of(view, task.build(), attack.mask_aware, len(view.labels))
    latent = components.coordinates(public, task, attack, draw, target.flat.device)
    z = components.drawn(latent, 1, len(view.labels), task, draw)
    return components.matched(target, attack, latent, z, view.labels[None])


def told(found: Reconstruction, truth: Examples, public: Examples) -> dict[str, float]:
    """What the pictures of one sum tell."""
    row = score(found, PrivateBatch(truth.x, truth.y), gallery=public)
    rebuilt = float(ORDER.index(level({"scores": row.to_dict()})) >= ORDER.index("rebuilt"))
    return {"psnr": row.psnr.mean, "ssim": row.ssim.mean, "best": row.psnr.worst, "null": row.psnr.null,
            "rebuilt": rebuilt}  # fmt: skip


def make(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell: a number of sites under every server."""
    task, sites = task_of(settings, data), settings["sites"]
    private = chosen_images(settings["dataset"], data, seed, max(SITES)).take(torch.arange(sites))
    train = client_images(settings["dataset"], data, Partition("iid", clients=1))
    public = Examples(train.x[:PUBLIC], train.y[:PUBLIC])
    one = part(private, 0)

    def best(view: ServerView, truth: Examples) -> dict[str, float]:
        steps, view = settings["iterations"], view.on(device())
        found = [answer(name, view, task, steps, stream(seed, purpose=name)) for name in ATTACKS]
        found.append(by_components(view, task, public, settings["components"], seed))
        rows = [told(pictures, truth, public) for pictures in found]
        return max(rows, key=lambda row: row["psnr"])

    planting = dataclasses.replace(task, model=f"prunella.attacks.loki:{task.model}")
    by_loki = answer(LOKI, planted(planting, private, seed).on(device()), planting, 0, stream(seed, purpose=LOKI))
    return {
        HONEST: best(honest(task, private, seed), private),
        SILENCED: best(silenced(task, private, seed), one),
        LOKI: told(by_loki, one, public),
    }


def judge(points: Sequence[Point]) -> Judgement:
    """An honest server rebuilds less the more sites there are; an active one rebuilds one of eight's images better."""
    of, pairs = seeds_of(points, "psnr"), {}
    for dataset in dict.fromkeys(label[0] for label in of):
        at = {(label[1], label[2]): seeds for label, seeds in of.items() if label[0] == dataset}
        for fewer, more in zip(SITES, SITES[1:], strict=False):
            pairs[f"{dataset}: {fewer} above {more} sites"] = at[str(fewer), HONEST], at[str(more), HONEST]
        for active in (SILENCED, LOKI):
            key = f"{dataset}: {active} above honest, {SITES[-1]} sites"
            pairs[key] = at[str(SITES[-1]), active], at[str(SITES[-1]), HONEST]
    return above(pairs)


MASKED_SUMS: Claim = declared(
    """masked-sums | Prunella | docs/secure-aggregation.md | a sum gives less away the more sites are in it, unless the
    server is active
    small: A seed is a set of test images, an initialisation and the attacks' draws; one image a site, one step.""",
    Measure("masked-sums", make),
    "dataset sites: server",
    "psnr 1 PSNR; best 1 best image; ssim 2 SSIM; null 1 null PSNR; rebuilt 2 share of sums with a rebuilt image",
    Plot(("psnr",), x=1, x_name="sites", split=0),
    judge,
    [
        {"model": "cnn", "dataset": name, "sites": sites, "iterations": 100, "components": 300}
        for name in DATASETS
        for sites in SITES
    ],
    seeds=(0, 1, 2),
)
