"""A network learnt on public images behind the client's own chain, from what the update tells to the image.

Threat model: an honest-but-curious server that knows the model, the training settings and the defense chain with its
settings, and has public images of the same kind. A defense is code that anyone can run: the server plays clients who
hold public images (``attacks.engine.shadow``; each with noise and masks of its own), reads off every
update what the attacked one tells, too (``attacks.engine.signals``), and learns the way back. What descent on the
attacked view alone takes for equations is here learnt for what it is worth: noise that fills withheld coordinates,
coordinates that are missing more often where they are large, a picture under a channel's noise.

1. A linear estimate by ridge regression (``attacks.engine.ridge``).
2. Six small convolutions that correct it: on every place the rows of the gradient are combined by two small linear
   maps, the same for all features; the rest works on pictures. A tenth of the public images is not learnt from and says
   how far to trust the correction.
3. A descent from there (``polish`` iterations), where it raises the mean PSNR of such images: an update that was only
   masked explains more than any network has learnt.

Several images: each is read with the labels of all, and the images of one class are told apart as far as their features
are; the guess for two of one class is their mean. ``objective`` is the mean squared error on public images that were
not learnt from (with a polish, the geometric mean, which is that of the PSNR), known before anyone sees the truth.

Not from a paper: ours; learning to invert from gradients is Wu et al. (2023). Errors: ``AttackError`` without a shadow.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple, Protocol

import torch
from pydantic import Field
from torch import Generator, Tensor, nn
from torch.nn.functional import gelu, interpolate, pixel_shuffle

from prunella.attacks.engine.image_priors import into_box
from prunella.attacks.engine.inversion import Guess, Inversion, descend_alone, evaluator
from prunella.attacks.engine.matching import target_of
from prunella.attacks.engine.ridge import Ridge
from prunella.attacks.engine.shadow import Shadow
from prunella.attacks.engine.signals import SignalReader, likely_labels
from prunella.attacks.score.leakage import psnr
from prunella.core.config import Count, Positive
from prunella.core.errors import AttackError, DefenseError
from prunella.core.global_draws import draws_from
from prunella.core.types import Reconstruction, ServerView
from prunella.tasks.examples import Examples
from prunella.tasks.models.layers import Shape
from prunella.tasks.task import Task

_BATCH = 16
_HELD = 10  # every tenth public image is held out
_TRIED = 8  # images, in at least two views, that a polish is tried on
_OF_VIEW = 2  # images of one view that are learnt from, since a large batch's are much alike
_PLAYING = 0.5  # of the seconds, at most
_LATE = 0.1  # share of the time by which the learning may be behind
_FAR = 20.0  # deviations at which an input is cut
_RATE = 4e-3
_NEAR = Inversion(learning_rate=0.03)  # the start is near already


@dataclass(frozen=True)
class Inverter:
    """A network learnt on public images behind the client's own defenses, from the update to the image.

    Without a shortage of ``seconds`` the answer depends on the generator alone; with one, fewer shadows are played and
    the learning ends early."""

    shadows: Count = 900  #: examples that it learns from, each sent by a client of its own
    epochs: Count = 14  #: passes over them
    width: Count = 48  #: channels of the widest convolutions
    #: iterations of a descent from its answer, taken where that helps on public images; 0: none
    polish: Annotated[int, Field(ge=0)] = 100
    max_images: Count = 16  #: most images that labels are inferred for and the descent may have
    #: after which it ends with what it has learnt; short of time, the answer depends on the machine
    seconds: Positive = 600.0


class Lessons(NamedTuple):
    """Pairs to learn from: ``maps`` (bfloat16) and ``flat`` of the reader, images x [S, C, H, W], their numbers."""

    maps: Tensor
    flat: list[Tensor]
    x: Tensor
    image: Tensor

    @property
    def held(self) -> Tensor:
        return self.image % _HELD == 0


class Tried(NamedTuple):
    """A view of held-out images."""

    view: ServerView
    shown: Examples


class Clock:
    """Shares of a budget of seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.start = seconds, time.monotonic()

    def share(self) -> float:
        return (time.monotonic() - self.start) / self.seconds


def play(
    shadow: Shadow, reader: SignalReader, images: int, attack: Inverter, generator: Generator, clock: Clock
) -> tuple[Lessons, list[Tried]]:
    """Shadow clients of ``images`` examples each, and some of their views that show held-out images only."""
    many, kept, trials = len(shadow.public), min(images, _OF_VIEW), max(2, _TRIED // images) if attack.polish else 0
    queue, pairs, tried = torch.empty(0, dtype=torch.int64), list[tuple[Tensor, list[Tensor], Tensor, Tensor]](), []
    for draw in range(-(-attack.shadows // kept) + trials):
        # The first clients hold only held-out images, those that a polish is tried on.
        if draw < trials:
            rows = torch.arange(0, many, _HELD)[torch.randperm(-(-many // _HELD), generator=generator)][:images]
        else:
            while len(queue) < images:
                queue = torch.cat([queue, torch.randperm(many, generator=generator)])
            rows, queue = queue[:images], queue[images:]
        shown = shadow.public.take(rows)
        try:
            view = shadow.send(shown, draw)
        except DefenseError:
            continue
        if draw < trials:
            tried.append(Tried(replace(view, labels=shown.y), shown))
            continue
        maps, flat = reader.read(view, shown.y, kept)
        if not all(bool(torch.isfinite(each).all()) for each in (maps, *flat)):
            continue  # it diverged
        pairs.append((maps.bfloat16(), flat, shown.x[:kept].cpu().clone(), rows[:kept].clone()))
        if clock.share() > _PLAYING:
            break
    if not pairs:
        raise AttackError("no shadow client's update leaves its defense, and is finite: there is nothing to learn from")
    all_maps, flats, x, numbers = zip(*pairs, strict=True)
    all_flat = [torch.cat(blocks) for blocks in zip(*flats, strict=True)]
    return Lessons(torch.cat(all_maps), all_flat, torch.cat(x), torch.cat(numbers)), tried


class Corrector(nn.Module):
    """From maps [N, C, H, W, M] and linear estimates [N, *shape] to better ones."""

    def __init__(self, maps: int, grid: Shape, shape: Shape, width: int) -> None:
        super().__init__()
        half, kept = max(1, width // 2), 4
        self.placed = grid[1] > 1 or grid[2] > 1
        self.mix = nn.Sequential(nn.Linear(maps, 24), nn.ReLU(), nn.Linear(24, kept))
        self.one = nn.Conv2d(grid[0] * kept, width, 3, padding=1)
        self.two = nn.Conv2d(width, width, 3, padding=1)
        self.three = nn.Conv2d(width, half * 4, 3, padding=1)
        self.four = nn.Conv2d(half * self.placed + shape[0], half, 3, padding=1)
        self.five = nn.Conv2d(half, half, 3, padding=1)
        self.six = nn.Conv2d(half, shape[0], 3, padding=1)
        nn.init.zeros_(self.six.weight)
        nn.init.zeros_(self.six.bias)  # type: ignore[arg-type]

    def forward(self, maps: Tensor, estimate: Tensor) -> Tensor:
        parts = [estimate - 0.5]
        if self.placed:
            mixed = self.mix(maps).permute(0, 1, 4, 2, 3).flatten(1, 2)
            seen = pixel_shuffle(self.three(gelu(self.two(gelu(self.one(mixed))))), 2)
            parts.append(gelu(interpolate(seen, estimate.shape[2:], mode="bilinear")))
        right: Tensor = self.six(gelu(self.five(gelu(self.four(torch.cat(parts, dim=1))))))
        return estimate + right


class LinearEstimate(Protocol):
    """An estimate of images [N, C, H, W] that is linear in what was read; ``unseen`` are those of the lessons, as good
    as those of views that it was not made from."""

    unseen: Tensor

    def __call__(self, flat: Sequence[Tensor], /) -> Tensor: ...


class Learnt:
    """The way back: a linear estimate (a ridge regression, or ``linear``) and its correction, and how far the latter is
    trusted."""

    def __init__(
        self,
        lessons: Lessons,
        grid: Shape,
        attack: Inverter,
        generator: Generator,
        clock: Clock,
        linear: LinearEstimate | None = None,
    ) -> None:
        squares = lessons.maps.float().square().mean(dim=(1, 2, 3)).median(dim=0).values
        self.scale = squares.clamp_min(torch.finfo(squares.dtype).tiny).sqrt()
        self.linear: LinearEstimate = linear or Ridge(lessons.flat, lessons.x, lessons.image)
        shape = lessons.x.shape[1:]
        with draws_from(int(torch.randint(2**31, (1,), generator=generator))):
            sizes = (shape[0], shape[1], shape[2])
            self.network = Corrector(lessons.maps.shape[-1], grid, sizes, attack.width)
        self.network.to(memory_format=torch.channels_last)
        self.steps = self._learn(lessons, attack, generator, clock)
        self.trust, self.error = self._trusted(lessons)

    def inputs(self, maps: Tensor) -> Tensor:
        return (maps.float() / self.scale).clamp(-_FAR, _FAR)

    def _learn(self, lessons: Lessons, attack: Inverter, generator: Generator, clock: Clock) -> int:
        """Adam on the squared error; the rate falls with the epochs, and faster where time runs out."""
        network, rows = self.network.train(), (~lessons.held).nonzero().flatten()
        optimizer = torch.optim.AdamW(network.parameters(), lr=_RATE, weight_decay=1e-2)
        total, step, begun = attack.epochs * -(-len(rows) // _BATCH), 0, clock.share()
        for _ in range(attack.epochs):
            for some in torch.split(rows[torch.randperm(len(rows), generator=generator)], _BATCH):
                late = (clock.share() - begun) / max(1 - begun, 1e-6) - _LATE
                done = max(step / total, late)  # of the steps alone, as long as there is time
                if done >= 1:
                    return step
                optimizer.param_groups[0]["lr"] = _RATE * min(done / 0.2 + 0.02, 1 - (done - 0.2) / 0.8, 1)
                found = network(self.inputs(lessons.maps[some]), self.linear.unseen[some])
                optimizer.zero_grad()
                (found - lessons.x[some]).square().mean().backward()
                nn.utils.clip_grad_norm_(network.parameters(), 1.0)
                optimizer.step()
                step += 1
        return step

    def _corrected(self, maps: Tensor, estimate: Tensor) -> Tensor:
        with torch.no_grad():
            parts = zip(torch.split(maps, _BATCH), torch.split(estimate, _BATCH), strict=True)
            return torch.cat([self.network.eval()(self.inputs(some), one) for some, one in parts])

    def _trusted(self, lessons: Lessons) -> tuple[float, float]:
        """The part of the correction that serves images not learnt from best, and the mean squared error then."""
        held = lessons.held if bool(lessons.held.any()) else ~lessons.held
        estimate, x = self.linear.unseen[held], lessons.x[held]
        step = self._corrected(lessons.maps[held], estimate) - estimate
        trust = float((step * (x - estimate)).sum() / step.square().sum().clamp_min(1e-12))
        trust = min(max(trust, 0.0), 1.0)
        return trust, float((into_box(estimate + trust * step) - x).square().mean())

    def __call__(self, maps: Tensor, flat: Sequence[Tensor]) -> Tensor:
        """Images [N, C, H, W] in [0, 1] for what was read of a view."""
        estimate = self.linear(flat)
        return into_box(estimate + self.trust * (self._corrected(maps, estimate) - estimate))


def polished(view: ServerView, task: Task, attack: Inverter, x: Tensor, y: Tensor) -> Tensor:
    """Images from a descent that starts at x [N, C, H, W], labels y [N]."""
    target = target_of(view, task.build(), True, attack.max_images)
    if target.plan.images != len(x):
        raise AttackError("there are more images than a descent may have")
    how, device = replace(_NEAR, iterations=attack.polish), target.flat.device
    guess = Guess(x.clone().to(device).requires_grad_(), y.to(device), False)
    return descend_alone(how, guess, evaluator(target, how, guess), target.module).x


class Inverse:
    """What was learnt in one round, for every view of it that comes from a client like the shadows."""

    def __init__(
        self, view: ServerView, images: int, task: Task, attack: Inverter, generator: Generator, shadow: Shadow
    ) -> None:
        clock = Clock(attack.seconds)
        self.task, self.attack, self.reader = task, attack, SignalReader(view, task, shadow.public, generator)
        lessons, tried = play(shadow, self.reader, images, attack, generator, clock)
        self.learnt = Learnt(lessons, self.reader.site.grid, attack, generator, clock)
        before, after = self._tried(tried)
        # By the mean PSNR: of a descent that finds most images and loses one, the squared error tells only of the lost.
        self.polishes = bool(after) and sum(after) > sum(before)
        self.error = 10 ** (-sum(after) / len(after) / 10) if self.polishes else self.learnt.error

    def read(self, view: ServerView, y: Tensor) -> Tensor:
        """Images [N, C, H, W], without a descent."""
        return self.learnt(*self.reader.read(view, y))

    def _tried(self, tried: Sequence[Tried]) -> tuple[list[float], list[float]]:
        """The PSNR of held-out images, only learnt and then polished; nothing where they cannot be polished."""
        before, after = list[float](), list[float]()
        for view, shown in tried:
            x, truth = self.read(view, shown.y), shown.x.cpu()
            try:
                better = polished(view, self.task, self.attack, x, shown.y)
            except AttackError:
                return [], []
            before += psnr(truth, x.cpu())
            after += psnr(truth, better.cpu())
        return before, after

    def __call__(self, view: ServerView, y: Tensor) -> Reconstruction:
        x = self.read(view, y)
        device = next(iter(view.update.values())).device
        if self.polishes:
            x = polished(view, self.task, self.attack, x, y)
        return Reconstruction(x.to(device), y.to(device), self.error, self.learnt.steps, compared=False)


def reconstruct(
    view: ServerView,
    task: Task,
    attack: Inverter,
    generator: Generator,
    shadow: Shadow | None = None,
    deadline: float = math.inf,
) -> Reconstruction:
    """The images [N, C, H, W] and labels [N] behind the view, as far as public images teach to read it.

    ``deadline``: by ``time.monotonic``."""
    if shadow is None:
        raise AttackError("inverter learns from shadow clients: it runs in a run's audit, and cannot replay a trace")
    attack = replace(attack, seconds=max(1.0, min(attack.seconds, deadline - time.monotonic())))
    images = view.images_used or view.steps or 1
    y = likely_labels(view, task, images, generator)
    return Inverse(view, images, task, attack, generator, shadow)(view, y)
