"""``prunella audit``: an attack on a recorded view, which may come from another federation.

A trace (``attacks.trace``) holds only what a server received, so the result is a reconstruction and an objective that
says how well it explains the update. Scores need the truth, which only its owner has: a safetensors file of
x [N, C, H, W] in [0, 1] and y [N]. A canary's trace has one beside it. What else an attack needs comes from files that
the user names: ``deploy.tools.audit_inputs``.

A trace may name a model by its import path. It is built, and its code run, only if the user names the same model. An
attack of the user's own is also named by its import path; both may be in the current directory.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from prunella.attacks import PROBES, SECTIONS, find_attack
from prunella.attacks.engine.resume import ResumeStore
from prunella.attacks.score.leakage import LabelLeakage, Leakage, label_leakage, rdlv, score
from prunella.attacks.score.level import level
from prunella.attacks.score.lpips import lpips
from prunella.attacks.score.membership import Separation, exact
from prunella.attacks.score.membership import found as members_told
from prunella.attacks.trace import load_trace, recorded_task
from prunella.core.config import parse_section, section_defaults
from prunella.core.device import pick_device
from prunella.core.errors import AttackError
from prunella.core.files import read_tree
from prunella.core.foreign import is_foreign, unlisted
from prunella.core.memory import keep_freed_memory
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch, Reconstruction, ServerView
from prunella.deploy.errors import UsageError, writable
from prunella.deploy.runtime.settings import parse
from prunella.deploy.tools.audit_inputs import attack_keywords, infer_membership, labelled_images, membership_examples
from prunella.deploy.tools.client_rounds import VIEW, check_one_client, earlier_rounds, last_round
from prunella.library import pictures
from prunella.server.audit.attempt import Attempt, Order, attempt
from prunella.server.audit.job import PUBLIC
from prunella.server.audit.shadow import RunShadow, read_public, shadow_beside
from prunella.server.report.membership import figures
from prunella.server.report.units import plural
from prunella.tasks.examples import Examples
from prunella.tasks.task import Task

Store = Callable[[Path | None], ResumeStore]
Tell = Callable[[int, int, float, int], None]  # a descent's number, iteration, objective, and iterations in all
TRUTH = "truth.safetensors"
SCORES = ("psnr", "ssim", "nmi", "ami", "mse", "ncc")


@dataclass(frozen=True)
class Replay:
    """An attack's result and where its pictures are."""

    attack: str
    threat: str
    adaptive: bool
    view: ServerView
    answer: Reconstruction
    pictures: Path | None
    leakage: Leakage | None = None
    labels: LabelLeakage | None = None
    perceptual: str = ""
    attempt: Attempt | None = None
    seconds: float = 0.0
    untrue: bool = False  #: images that made another update are held against what was found

    def lines(self) -> list[str]:
        """What to tell the user."""
        labels = "" if self.answer.y is None else f", labels {self.answer.y.tolist()}"
        by = f", by {self.answer.found_by}" if self.answer.found_by else ""
        adapted = "adapted to masked updates" if self.adaptive else "not adapted to masked updates"
        return [
            f"view       {self.view.describe()}",
            f"attack     {self.attack} ({adapted}): {self.threat}",
            f"rebuilt    {plural(len(self.answer.x), 'image')}{labels}{by}",
            f"objective  {self.answer.objective:.6g} after {self.answer.iterations} iterations (lower fits better)",
            *([] if self.pictures is None else [f"pictures   {self.pictures}"]),
            *(self.scores() if find_attack(self.attack).gives == "images" else self.verdict()),
        ]

    def verdict(self) -> list[str]:
        """The lines of an attack that infers labels."""
        if self.labels is None:
            return ["scores     none: they need the truth (--truth)"]
        found = self.labels
        words = "the update tells which classes the batch had" if found.told else "a guess is as good too often"
        return [
            f"labels     {found.accuracy:.3g} named (guessing {found.chance:.3g})",
            f"verdict    {words}: {found.as_good:.2%} of guesses are as good",
        ]

    def scores(self) -> list[str]:
        """One line per score: mean and worst image beside the two baselines."""
        if self.leakage is None:
            return ["scores     none: they need the truth (--truth)"]
        found = self.leakage.to_dict()
        lines = list[str]()
        for name in SCORES:
            mean, worst, random, other = (found[name][stat] for stat in ("mean", "worst", "random", "other"))
            beside = "no other image to compare with" if other is None else f"other {other:.4g}"
            lines.append(f"{name:<10} {mean:.4g}, worst {worst:.4g} (random {random:.4g}, {beside})")
        ahead, own = rdlv(self.leakage.ssim), self.leakage.label_accuracy
        lines.append(
            f"rdlv       {'undefined: the other image has no SSIM' if ahead is None else f'{ahead:.4g} of SSIM'}"
        )
        lines.append(f"lpips      {self.perceptual}")
        chance = {"random": self.leakage.iip_random, "other": self.leakage.iip_other}
        known = ", ".join(f"{name} {share:.4g}" for name, share in chance.items() if share is not None)
        lines.append(f"iip        {self.leakage.iip:.4g} ({known})")
        reached = level({"scores": found})
        other = ", of images that made another update" if self.untrue else ""
        nothing = ", which by itself shows nothing" if reached == "baseline" else ""
        worth = ": the verdict says what it is worth" if other or nothing else ""
        lines.append(f"level      {reached}{other}{nothing}{worth}")
        return [*lines, *([] if own is None else [f"labels     {own:.4g} named"])]


def settings_of(name: str, given: Sequence[str]) -> Any:
    """The attack's settings after ``-c ig.iterations=200``. Raises ``ConfigError``."""
    if name not in SECTIONS and not is_foreign(name):
        raise unlisted("attack", name, SECTIONS)
    section = find_attack(name).settings if is_foreign(name) else SECTIONS[name]
    return parse_section(parse(given, section_defaults(name, section)), name, section)


def import_from_current_directory() -> None:
    """Make modules of the current directory importable."""
    here = str(Path.cwd())
    sys.path[:0] = [] if here in sys.path else [here]


def save(images: Tensor, path: Path) -> None:
    """A sheet of the images [N, C, H, W] in [0, 1], enlarged without smoothing. Raises ``UsageError``."""
    with writable(path):
        pictures.write(pictures.sheet(images), path)


def find_trace(trace: Path) -> tuple[Path, str]:
    """A trace, given as its file, as the directory a run keeps it in, or as a directory of one client's traces, whose
    last it then is; and its name. Raises ``UsageError``."""
    file = trace / VIEW if trace.is_dir() else trace
    if trace.is_dir() and not file.is_file():
        file = last_round(trace) or file
    if not file.is_file():
        early = trace.is_dir() and trace.name.startswith("round-")
        there = f"{trace} has no trace, so its audit failed early" if early else f"no trace {trace}"
        raise UsageError(f"{there}: name one in runs/ID/traces")
    return file, file.absolute().parent.name if file.name == VIEW else file.stem


def read_truth(file: Path | None, trace: Path, task: Task) -> PrivateBatch | None:
    """The truth the user names, or the one beside a canary's trace: examples of the ``task``. Raises ``UsageError``."""
    path = file if file is not None else trace.parent / TRUTH
    if file is None and (trace.name != VIEW or not path.is_file()):
        return None
    try:
        tree, _ = read_tree(path)
        x, y = tree["x"], tree["y"]
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}") from None
    except (OSError, SafetensorError, KeyError):
        raise UsageError(f"{path} is not a safetensors file with images x and labels y") from None
    return labelled_images(path, x, y, task)


def vouched_task(file: Path, model: str) -> Task | None:
    """The task of the trace if the user vouches for its ``model``; None leaves it to ``load_trace``."""
    if not model:
        return None
    task = recorded_task(file)
    if task.model != model:
        raise UsageError(f"the trace is of the model {task.model!r}, not of {model!r}: name that one with --model")
    import_from_current_directory()
    return task


@dataclass(frozen=True)
class Sources:
    """Where things are: traces and files of the user's, the model they vouch for, and where pictures go."""

    trace: Path
    out: Path
    model: str = ""
    truth: Path | None = None
    known: Path | None = None
    earlier: tuple[Path, ...] = ()
    keep: Path | None = None
    device: str = "auto"

    def shadow(self, view: ServerView, task: Task) -> RunShadow | None:
        """The run's own client, where the trace lies in the directory of a run. A defense that is named by its import
        path is not imported for a file that says so."""
        file, _ = find_trace(self.trace)
        if any(is_foreign(name) for name in view.defenses):
            return None
        return shadow_beside(file, view, task, load_trace(file, task)[2])

    def gallery(self, task: Task) -> Examples | None:
        """Public images of the run in whose directory a canary's trace lies, which its own audit was scored with."""
        file, _ = find_trace(self.trace)
        if load_trace(file, task)[2].get("kind", "client") == "client":
            return None
        beside = file.absolute().parent.parent / PUBLIC
        return read_public(beside)[0] if beside.is_file() else None

    def views(self, every_round: bool = False) -> tuple[ServerView, Task, list[ServerView]]:
        """The view, its task and the earlier views of the same task: those that the user names or, with
        ``every_round``, all that lie beside it of the same client."""
        file, _ = find_trace(self.trace)
        named = [find_trace(each)[0] for each in self.earlier]
        check_one_client(file, named)
        earlier = earlier_rounds(file) if every_round and not named else named
        view, task, _ = load_trace(file, vouched_task(file, self.model))
        device = pick_device(self.device)
        return view.on(device), task, [load_trace(each, task)[0].on(device) for each in earlier]


@dataclass(frozen=True)
class MembershipFound:
    """What membership inference found."""

    threat: str
    separation: Separation

    def lines(self) -> list[str]:
        """What to tell the user, in a report's words and with its limits."""
        apart = self.separation
        told = "told" if members_told([apart]) else "not told"
        return [
            f"attack     mia: {self.threat}",
            f"asked      {apart.members} members and {apart.outsiders} outsiders",
            f"result     members {told} from outsiders better than by chance",
            *(f"           {each}" for each in figures({"mia": exact(apart)})),
        ]


def perceptual_score(truth: PrivateBatch, answer: Reconstruction, leakage: Leakage) -> str:
    """LPIPS, mean and worst, or why it is left out."""
    pairs = leakage.assignment
    try:
        found = lpips(truth.x[[t for t, _ in pairs]], answer.x[[g for _, g in pairs]])
    except AttackError as error:
        return f"left out: {error}"
    return f"mean {sum(found) / len(found):.4g}, worst {min(found):.4g}"


def audit_membership(sources: Sources, name: str, given: Sequence[str], seed: int) -> MembershipFound:
    """Membership inference against the weights a view ends with."""
    if unused := [f"--{option}" for option in ("keep", "earlier") if getattr(sources, option)]:
        raise UsageError(f"{name} is over at once and of one view: leave out {' and '.join(unused)}")
    settings = settings_of(name, given)
    view, task, _ = sources.views()
    known = membership_examples(sources.known, "--known", task)
    asked = membership_examples(sources.truth, "--truth", task)
    found = infer_membership(view, task, settings, known, asked, stream(seed, purpose="replay"))
    return MembershipFound(PROBES[name].threat, found)


def replay(
    sources: Sources, name: str, given: Sequence[str], seed: int, tell: Tell | None = None, store: Store = ResumeStore
) -> Replay:
    """Attack the view in ``sources.trace``, write pictures into ``sources.out``; ``tell`` is called with progress, and
    ``store`` makes what keeps it."""
    if name in PROBES:
        raise UsageError(f"{name} infers membership and reconstructs nothing: use `prunella audit`")
    import_from_current_directory()
    keep_freed_memory()
    settings = settings_of(name, given)
    file, title = find_trace(sources.trace)
    view, task, earlier = sources.views(find_attack(name).every_round)
    batch = read_truth(sources.truth, file, task)
    resume = store(sources.keep)
    if tell is not None:
        resume.tell = lambda start, turn, loss: tell(start, turn, loss, getattr(settings, "iterations", 0))
    attack, more = find_attack(name), attack_keywords(name, sources.known, earlier, resume)
    order = Order(name, settings, stream(seed, purpose="replay"), {k: v for k, v in more.items() if k != "resume"})
    begun = time.perf_counter()
    found = attempt(view, task, order, resume, lambda: sources.shadow(view, task))
    answer, plain = found.rebuilt, (name, attack.threat, attack.adaptive, view, found.rebuilt)
    timed: dict[str, Any] = {"attempt": found, "seconds": time.perf_counter() - begun}
    if attack.gives == "labels":
        named = None if batch is None or answer.y is None else label_leakage(answer.y, batch.y, task.classes)
        return Replay(*plain, None, labels=named, **timed)
    path = sources.out / f"{title}-{name}.png"
    save(answer.x, path)
    if batch is None:
        return Replay(*plain, path, **timed)
    leakage = score(answer, batch, gallery=sources.gallery(task))
    told = perceptual_score(batch, answer, leakage)
    return Replay(*plain, path, leakage, perceptual=told, **timed)
