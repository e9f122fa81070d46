"""An audit of a user's own model and images, without a federation: what a curious server would rebuild.

The images are trained on and defended as a client of a run trains and defends (``server.audit.shadow``), the update is
attacked and scored, and beside it, for the same attack, the matched controls of a run: public images sent in the same
way, without a defense and behind it, and the worst case, one image in one step (``server.audit.canary``). One rule
says what all of it shows, that of a run's report (``server.report.verdict``).

Public images are the user's (``public``) or scikit-learn's digits, resized. Both serve as controls; an original of the
batch is compared with the user's only, which are taken to be of its kind.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from prunella.attacks import find_attack
from prunella.attacks.engine.resume import ResumeStore
from prunella.attacks.score.level import value
from prunella.core.config import parse_section, section_defaults
from prunella.core.device import pick_device
from prunella.core.errors import AttackError, ConfigError, DefenseError, unknown
from prunella.core.memory import keep_freed_memory
from prunella.core.trees import zeros_like
from prunella.core.types import ServerView
from prunella.library import DEFAULT_ATTACK, pictures
from prunella.library.attack import data_uri, teller
from prunella.library.module import own_task
from prunella.library.trial import Attacker, Stage, Trial, as_single, failed, judge_trials, judging
from prunella.privacy import find_defense
from prunella.server.audit.canary import load_pool
from prunella.server.report.evidence import in_words, judged, who
from prunella.server.report.state import RunState
from prunella.server.report.verdict import RunVerdict
from prunella.server.store.schema import StoreLine
from prunella.tasks.data import load_test
from prunella.tasks.datasets.digits import everything
from prunella.tasks.examples import Examples
from prunella.tasks.normalisation import Normal
from prunella.tasks.task import Task, are_classes, initial
from prunella.tasks.training import evaluate

Batch = tuple[Tensor, Tensor]
SCORES = ("psnr", "ssim", "ncc")


@dataclass(frozen=True)
class Report:
    """What an audit found. ``verdict`` has a ``badge``, a ``headline`` and the reasons; ``trials`` the attacks on the
    batch and on its controls; ``public`` says whose images the controls were. A notebook shows all of it."""

    verdict: RunVerdict
    trials: tuple[Trial, ...]
    public: str

    @property
    def lines(self) -> list[StoreLine]:
        """One for each attacked update, as a run keeps it in ``audits.jsonl``."""
        return [trial.line for trial in self.trials]

    @property
    def table(self) -> Any:
        """A row for each attacked update, with its baselines: a pandas ``DataFrame``, or a list of dicts without
        pandas."""
        rows = [_row(trial, self.lines) for trial in self.trials]
        if find_spec("pandas") is None:
            return rows
        import pandas as pd

        return pd.DataFrame(rows)

    def figure(self) -> Any:
        """Originals above what was made of them, for each attacked update: a matplotlib ``Figure``, or the bytes of a
        PNG without matplotlib."""
        shown = [(trial.title, picture) for trial in self.trials if (picture := trial.picture()) is not None]
        if not shown:
            raise AttackError("nothing was rebuilt, so there is nothing to show")
        if find_spec("matplotlib") is None:
            return self._repr_png_()
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 2.4 * len(shown)), layout="constrained")
        for axes, (title, picture) in zip(figure.subplots(len(shown), squeeze=False)[:, 0], shown, strict=True):
            axes.imshow(pictures.shown(picture).permute(1, 2, 0).squeeze(-1).numpy(), cmap="gray", vmin=0, vmax=1)
            axes.set_title(title, fontsize="small")
            axes.set_axis_off()
        return figure

    def __repr__(self) -> str:
        answer, rows = self.verdict, [f"{who(t.line)}, {t.line['attack']}: {t.words(self.lines)}" for t in self.trials]
        worst = [] if answer.worst is None else [f"Worst: {in_words(answer.worst, answer.worst_level)}"]
        return "\n".join(
            [f"{answer.badge}. {answer.headline}", *worst, *answer.notes, *rows, f"Controls: {self.public}"]
        )

    def _repr_png_(self) -> bytes | None:
        shown = [picture for trial in self.trials if (picture := trial.picture()) is not None]
        return pictures.encode(pictures.stacked(shown)) if shown else None

    def _repr_html_(self) -> str:
        parts = [f"<h3>{escape(self.verdict.badge)}</h3><p>{escape(self.verdict.headline)}</p>"]
        parts += [f"<p>{escape(sentence)}</p>" for sentence in self.verdict.sentences]
        for trial in self.trials:
            parts.append(f"<h4>{escape(trial.title)}</h4><p>{escape(trial.words(self.lines))}</p>")
            if (picture := trial.picture()) is not None:
                parts.append(f'<img alt="{escape(trial.title)}" src="{data_uri(pictures.encode(picture))}">')
        return "".join([*parts, f"<p>Controls: {escape(self.public)}</p>"])

    def save(self, folder: str | Path) -> Path:
        """Write a picture of each attacked update into ``folder``; only the owner can read them."""
        for trial in self.trials:
            trial.save(Path(folder), "")
        return Path(folder)


def _row(trial: Trial, lines: Sequence[StoreLine]) -> dict[str, Any]:
    line = trial.line
    row = {key: line[key] for key in ("kind", "attack", "defense", "outcome")} | {"level": judged(line, lines)}
    row["images"] = (line["scores"] or {}).get("images")
    for metric in SCORES:
        row[metric] = value(line, metric)
        row |= {f"{metric}_{stat}": value(line, metric, stat) for stat in ("random", "other", "blind")}
    return row | {"objective": line["objective"], "seconds": line["seconds"], "words": trial.words(lines)}


def _require_above_zero(**numbers: float | None) -> None:
    for name, number in numbers.items():
        if number is not None and not number > 0:
            raise ConfigError(f"{name}={number} is not above 0")


def _tensors(batch: Any, what: str) -> Batch:
    """Images [N, C, H, W] and labels from whatever torch makes tensors of: lists, arrays. Raises ``ConfigError``."""
    try:
        x, y = (torch.as_tensor(each).detach().cpu() for each in batch)
    except (TypeError, ValueError, RuntimeError):
        raise ConfigError(
            f"the {what} must be a pair of images [N, C, H, W] and labels [N]: tensors, or what torch makes tensors of"
        ) from None
    if x.dim() != 4:
        raise ConfigError(f"the images of the {what} have shape {tuple(x.shape)}, and not [N, C, H, W]")
    return x, y


def _checked(batch: Batch, task: Task, what: str) -> Examples:
    x, given = batch
    x, y = x.float(), given.long()
    if not torch.equal(y.to(given.dtype), given):
        raise ConfigError(f"the labels of the {what} must be whole numbers")
    if tuple(x.shape[1:]) != task.shape or y.shape != (len(x),) or not len(y):
        raise ConfigError(f"the {what} must be images [N, {', '.join(map(str, task.shape))}] and labels [N]")
    if not bool(torch.isfinite(x).all()) or x.min() < 0 or x.max() > 1:
        raise ConfigError(f"the {what} must have values in [0, 1]: pass images before, and normalize=(mean, std)")
    if not are_classes(y, task.classes):
        raise ConfigError(f"the labels of the {what} must be classes from 0 to {task.classes - 1}")
    return Examples(x.contiguous(), y)


def _public(public: Batch | str | None, task: Task) -> tuple[Examples | None, str]:
    """The user's public images, if any, and whose they are."""
    if public is None:
        return None, "scikit-learn's digits, resized; public= takes images like yours"
    if isinstance(public, str):
        found = load_test(public, None)
        if found is None:
            raise ConfigError(f"public={public!r}: this dataset has no test images; pass (images, labels)")
        return found, f"test images of {public}"
    return _checked(_tensors(public, "public images"), task, "public images"), "the public images that were given"


def learned(task: Task, like: ServerView, batch: Examples | None, public: Examples | None) -> RunState:
    """What is known of the weights of ``like``: their accuracy on public images of the task's kind or, where these are
    not known, on the batch. Too few of the batch's say nothing, so that then nothing is known."""
    own = public is not None and tuple(public.x.shape[1:]) == task.shape and are_classes(public.y, task.classes)
    shown = public if own else batch
    if shown is None:
        return RunState(classes=task.classes)
    device = next(iter(like.params.values())).device
    found = evaluate(task.build().to(device), like.params, like.buffers, shown.x, shown.y)
    most = float(shown.y.bincount().max()) / len(shown)  # what a model that always answers the same would reach
    state = RunState(
        accuracy=found.accuracy, loss=found.loss, classes=task.classes, examples=found.examples, largest_class=most
    )
    return state if own or not state.at_chance else RunState(loss=found.loss, classes=task.classes)


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    listed = given.split(",") if isinstance(given, str) else given
    return tuple(name.strip() for name in listed if name.strip())


def _judging(attacks: str | Sequence[str]) -> list[str]:
    if not (names := _names(attacks)):
        raise ConfigError(f"attacks={attacks!r} names none: leave it out, which is {DEFAULT_ATTACK}")
    return [judging(name) for name in names]


def _raw(settings: Mapping[str, Any], defenses: Sequence[str], attacks: Sequence[str]) -> dict[str, Any]:
    """Dotted settings of the named defenses and attacks. Raises ``ConfigError`` for any other."""
    sections = {name: find_defense(name).settings for name in defenses}
    sections |= {name: find_attack(name).settings for name in attacks}
    for key in settings:
        if key.rpartition(".")[0] not in sections:
            raise unknown("setting", key, [key for name in sections for key in section_defaults(name, sections[name])])
    for name, section in sections.items():
        parse_section(settings, name, section)
    return dict(settings)


def audit(
    model: nn.Module,
    batch: Batch,
    *,
    defenses: str | Sequence[str] = "none",
    attacks: str | Sequence[str] = DEFAULT_ATTACK,
    settings: Mapping[str, Any] | None = None,
    public: Batch | str | None = None,
    classes: int | None = None,
    steps: int = 1,
    batch_size: int | None = None,
    learning_rate: float = 0.1,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    worst_case: bool = True,
    normalize: Normal | None = None,
    seconds: float | None = None,
    seed: int = 0,
    progress: bool | Callable[[str], None] = False,
    device: str = "auto",
) -> Report:
    """What a curious server would rebuild of ``batch``, images [N, C, H, W] in [0, 1] and labels [N], from the update
    that a client with these images and ``defenses`` sends after ``steps`` steps of SGD from the weights of ``model``.

    ``defenses``, ``attacks``  names, as in docs/settings.md; defenses in the order data, gradient, update
    ``settings``    theirs: ``{"dgp.top": 0.1, "sgi.iterations": 500}``
    ``public``      images that anybody may see, (x, y) or the name of a dataset; best of the batch's kind
    ``batch_size``  images in a step; by default all
    ``worst_case``  attack one public image in one step, too
    ``normalize``   (mean, std) of each channel, where the model was trained on normalised images
    ``seconds``     most of each attack, which then ends with what it has
    ``progress``    True prints how far each attack is, now and then; a function gets the same lines

    The defenses' noise is drawn from ``seed`` and protects nothing here. Raises ``ConfigError`` that says what to pass.
    """
    _require_above_zero(steps=steps, batch_size=batch_size, learning_rate=learning_rate)
    x, y = _tensors(batch, "batch")
    task = own_task(model, tuple(x.shape[1:]), classes, normalize)
    own, (others, whose) = _checked((x, y), task, "batch"), _public(public, task)
    names, wanted, where = _names(defenses) or ("none",), _judging(attacks), pick_device(device)
    raw = _raw(settings or {}, names, wanted)
    size = min(len(own) if batch_size is None else batch_size, len(own))
    like = _like(task, steps, size, len(own), (learning_rate, momentum, weight_decay)).on(where)
    run: dict[str, Any] = {
        "strategy": "fedavg",
        "defenses": ",".join(names),
        "seed": seed,
        "local-steps": steps,
        "batch-size": size,
    }
    stage = Stage(task, like, names, {**run, **raw}, *_pool(like, task, others, seed))
    state = replace(learned(task, like, own, others), defended=stage.defended)
    keep_freed_memory()
    trials: list[Trial] = []
    for name in wanted:
        chosen: Any = parse_section(raw, name, find_attack(name).settings)
        attacker = Attacker(name, chosen, seed, _stores(chosen, progress, seconds))
        trials += _attack(stage, own, attacker, others is not None, worst_case)
    return Report(judge_trials(trials, state, stage.alone), tuple(trials), whose)


def _like(task: Task, steps: int, size: int, images: int, sgd: tuple[float, float, float]) -> ServerView:
    """The pattern of the client's view: what the server knows before an update comes."""
    params, buffers = initial(task, 0)
    return ServerView(
        params,
        zeros_like(params),
        buffers=buffers,
        received_buffers=buffers,
        num_examples=min(steps * size, images),
        steps=steps,
        batch_size=size,
        learning_rate=sgd[0],
        momentum=sgd[1],
        weight_decay=sgd[2],
    )


def _pool(like: ServerView, task: Task, others: Examples | None, seed: int) -> tuple[Examples, Examples]:
    """Canaries, and public images to learn from. Raises ``ConfigError`` where there are too few for a control."""
    needed = like.num_examples or 1
    canaries, rest = load_pool(task, others or everything(), seed, needed)
    if needed > len(canaries) or not len(rest):
        have = len(others) if others is not None else len(canaries) + len(rest)
        raise ConfigError(
            f"the control needs {needed} public images and as many to compare with, and there are {have}: "
            "pass more as public=(images, labels), or a smaller batch"
        )
    return canaries, rest


def _stores(
    settings: Any, progress: bool | Callable[[str], None], seconds: float | None
) -> Callable[[str], ResumeStore]:
    def store(what: str) -> ResumeStore:
        deadline = None if seconds is None else time.monotonic() + seconds
        return ResumeStore(tell=teller(settings, progress, what), deadline=deadline)

    return store


def _attack(stage: Stage, own: Examples, attacker: Attacker, known: bool, worst_case: bool) -> list[Trial]:
    """The batch's own update and its controls. ``known``: the user gave public images, to compare the batch with."""
    try:
        sent = stage.shadow(stage.defenses, "client").play(own, 0)
    except (AttackError, DefenseError) as error:
        client = failed("client", attacker.name, ",".join(stage.defenses), str(error))
    else:
        client = stage.attack("client", sent, attacker, stage.public if known else None)
    behind = ("", "-defended") if stage.defended else ("",)
    controls = [stage.attack_canary(f"control{defended}", attacker) for defended in behind]
    if not worst_case:
        return [client, *controls]
    if stage.alone:
        return [client, *controls, *map(as_single, controls)]
    return [client, *controls, *(stage.attack_canary(f"single{defended}", attacker) for defended in behind)]
