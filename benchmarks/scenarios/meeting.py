"""One cell of the board: a chain of defenses in a scenario, under every attack that fits.

``matching``  the portfolio: whatever can be read, solved or descended to within the scenario's passes; from version 2
              of a scenario on with public images, in whose principal components it descends, too, and on which it
              rehearses
``every-round``  of all updates of a client together, where there are rounds
``inverter``, ``denoise``  learnt once for the cell from shadow clients, where the portfolio would ask them (the latter
              where a defense may draw noise), and asked of every update that matching does not explain already, or
              that is of noisy images
``class mean``  the mean public image of each class, the best picture that needs no update: where there is no defense

Somebody's own attack (``module:NAME``) has its default settings, and a shadow where it takes one. Scores are of every
image, paired as ``attacks.score.leakage`` does it; ``null`` is what the picture scores against other people's images of
its class. An update that an attack gives no answer for, or that was withheld, counts as its class means. What attacks
one update gets a client's first: a server has it whatever follows, and a defense that learns hides least in it.
"""

import functools
import inspect
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from prunella.attacks import find_attack
from prunella.attacks.denoise import Denoise, Denoiser
from prunella.attacks.engine.case import Case
from prunella.attacks.engine.signals import likely_labels
from prunella.attacks.inverter import Inverse, Inverter
from prunella.attacks.portfolio import LEARNT, Portfolio
from prunella.attacks.portfolio import reconstruct as portfolio
from prunella.attacks.score.leakage import assign, score
from prunella.attacks.score.level import ORDER, level
from prunella.benchmarks.engine.claim import Found, Settings, each
from prunella.benchmarks.engine.images import chosen_images, class_means, client_images, first, place
from prunella.benchmarks.engine.priors import PUBLIC
from prunella.benchmarks.engine.shadows import POOL, Population, ShadowSender
from prunella.benchmarks.engine.views import NONE, answer, model_of
from prunella.benchmarks.scenarios.scenario import Scenario, clients, of, received
from prunella.core.errors import AttackError, DefenseError
from prunella.core.foreign import is_foreign
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch, Reconstruction, ServerView
from prunella.privacy import find_defense
from prunella.tasks.data import Examples, Partition, make_task

MATCHING, EVERY, MEAN, STRONG = "matching", "every-round", "class mean", "strongest"
LEARNS_FROM: Mapping[str, Any] = {"shadows": 300, "epochs": 10, "polish": 50}
REBUILT = 100  # iterations in which a noisy shadow image is rebuilt
GALLERY = 256  # other people's images that a picture is compared with
ITERATIONS = 100  # of every-round
PUBLIC_SINCE = 2  # version of a scenario since which matching has a shadow
Rows = list[dict[str, float]]  # an image each
Updates = list[tuple[PrivateBatch, list[ServerView]]]
Attack = Callable[[list[ServerView], int], Reconstruction]
Answers = Iterator[tuple[str, list[Reconstruction], float]]


def matching(scenario: Scenario, shadow: ShadowSender) -> Attack:
    """Whatever learns nothing."""
    population = shadow.population

    def one(views: list[ServerView], number: int) -> Reconstruction:
        draw = stream(population.seed, round=number, purpose="board-matching")
        attack = Portfolio(passes=scenario.passes, label_passes=scenario.passes)
        known = shadow if scenario.version >= PUBLIC_SINCE else None
        return portfolio(views[0], population.task, attack, draw, known, learn=False)

    return one


def every_round(population: Population) -> Attack:
    """All updates of a client together."""

    def one(views: list[ServerView], number: int) -> Reconstruction:
        draw = stream(population.seed, round=number, purpose="board-matching")
        return answer(EVERY, views[-1], population.task, ITERATIONS, draw, earlier=views[:-1])

    return one


def learnt(name: str, scenario: Scenario, shadow: ShadowSender, view: ServerView) -> Attack:
    """One that learns from shadow clients, ready for every update of the cell, of which ``view`` is one."""
    task, draw = shadow.population.task, stream(shadow.population.seed, purpose=f"board-{name}")
    if name == "denoise":
        denoiser = Denoiser(task, Denoise(match=REBUILT), draw, shadow)
        return lambda views, number: denoiser(views[0])
    inverse = Inverse(view, scenario.images, task, Inverter(**LEARNS_FROM), draw, shadow)
    return lambda views, number: inverse(views[0], likely_labels(views[0], task, scenario.images, draw))


def submitted(name: str, shadow: ShadowSender) -> Attack:
    """Somebody's own attack, by import path."""
    line = find_attack(name)
    takes = inspect.signature(line.reconstruct).parameters

    def one(views: list[ServerView], number: int) -> Reconstruction:
        more: dict[str, Any] = {"shadow": shadow} if "shadow" in takes else {}
        more |= {"earlier": views[:-1]} if (rounds := "earlier" in takes and len(views) > 1) else {}
        draw = stream(shadow.population.seed, round=number, purpose=f"board-{name}")
        return line.reconstruct(views[-1 if rounds else 0], shadow.population.task, line.settings(), draw, **more)

    return one


def noisy(chain: str) -> bool:
    """Whether a defense of the chain draws noise, or may: somebody's own."""
    entries = {name: find_defense(name) for name in chain.split(",")}
    return any(is_foreign(name) or entry.noisy or entry.stage == "data" for name, entry in entries.items())


def asked(name: str, scenario: Scenario, shadow: ShadowSender, updates: Updates, means: torch.Tensor) -> Answers:
    """The attacks of a cell, one after the other: each one's name, answers and processor seconds."""
    population, there = shadow.population, [views[0] for _, views in updates if views]
    if not there:  # nothing was sent
        yield answered(MATCHING, lambda: matching(scenario, shadow), updates, means)
        return
    view = there[0]
    if name != STRONG:
        yield answered(name, lambda: submitted(name, shadow), updates, means)
        return
    name, plain, seconds = answered(MATCHING, lambda: matching(scenario, shadow), updates, means)
    yield name, plain, seconds
    if scenario.rounds > 1:
        yield answered(EVERY, lambda: every_round(population), updates, means)
    setting = Case(view, population.task, Portfolio(), stream(0, purpose="board-setting"), math.inf).setting
    for candidate in LEARNT:
        if candidate.applies(setting) and (candidate.attack != "denoise" or noisy(population.defenses)):
            learn = functools.cache(lambda name=candidate.attack: learnt(name, scenario, shadow, view))

            def one(views: list[ServerView], number: int, learn: Callable[[], Attack] = learn) -> Reconstruction:
                settled = plain[number].explained and not setting.noisy_images
                return plain[number] if settled else learn()(views, number)

            yield answered(candidate.attack, lambda one=one: one, updates, means)  # type: ignore[misc]


def answered(
    name: str, prepare: Callable[[], Attack], updates: Updates, means: torch.Tensor
) -> tuple[str, list[Reconstruction], float]:
    """What one attack makes of every update."""
    start, found = time.process_time(), list[Reconstruction]()
    attack: Attack | None = None
    for number, (truth, views) in enumerate(updates):
        try:
            attack = attack or prepare()
            one = attack(views, number) if views else None
            if one is not None and not bool(torch.isfinite(one.x).all()):  # no picture
                one = None
        except (AttackError, DefenseError):
            one = None
        found.append(one or Reconstruction(means[truth.y], truth.y, 0.0, 0))
    return name, found, time.process_time() - start


def scored(answer: Reconstruction, truth: PrivateBatch, others: Examples, means: torch.Tensor) -> Rows:
    """The scores of every image of an update. One guess an image: more would be drawn from the public images until one
    fits. An image that none is given for has the mean of its class."""
    found, given = Rows(), answer.x[: len(truth.x)].cpu()
    guesses = means[truth.y].clone()
    for real, guess in assign(truth.x, given):
        guesses[real] = given[guess]
    for real in range(len(truth.x)):
        mine = Reconstruction(guesses[real : real + 1], None, answer.objective, answer.iterations)
        row = score(mine, PrivateBatch(truth.x[real : real + 1], truth.y[real : real + 1]), gallery=others)
        said = ORDER.index(level({"scores": row.to_dict()}))
        words = {word: float(said >= ORDER.index(word)) for word in ("traces", "rebuilt")}
        found.append({"psnr": row.psnr.mean, "ssim": row.ssim.mean, "null": row.psnr.null, **words})
    return found


def meet(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell."""
    scenario, names = of(settings), settings["defenses"].split(",")
    task = make_task(model_of(scenario.model, names), place(scenario.dataset, data), None)
    train = client_images(scenario.dataset, data, Partition("iid", clients=1))
    public = first(train, PUBLIC)
    many = scenario.updates * scenario.images + POOL
    images = chosen_images(scenario.dataset, data, seed, many, "scenario-images")
    start = received(scenario, task, seed, public)
    population = Population(task, start, settings["defenses"], settings["raw"], seed, scenario.batch, scenario.steps)
    updates = [(PrivateBatch(x.x, x.y), views) for x, views in clients(scenario, population, images, public)]
    means, gallery, found = class_means(public, task.classes), first(public, GALLERY), Found()
    plain, base = list[Reconstruction](), list[Rows]()  # what matching found, which others may hand on
    for name, answers, seconds in asked(settings["attack"], scenario, ShadowSender(population, public), updates, means):
        rows = [
            base[number] if base and one is plain[number] else scored(one, updates[number][0], gallery, means)
            for number, one in enumerate(answers)
        ]
        plain, base = plain or answers, base or rows
        there = sum(bool(views) for _, views in updates) / len(updates)
        found[name] = {**each([image for update in rows for image in update]), "seconds": seconds, "sent": there}
    if settings["defenses"] == NONE:
        blind = [scored(Reconstruction(means[truth.y], truth.y, 0.0, 0), truth, gallery, means) for truth, _ in updates]
        found[MEAN] = each([image for update in blind for image in update])
    return found
