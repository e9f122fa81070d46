"""``prunella audit``: an attack on a recorded view, also one of somebody else's federation.

A trace (``attacks.trace``) holds what a server received and nothing else, so the answer is a reconstruction, and its
objective says how well it explains the update. Scores need the truth, which only its owner has: a safetensors file of
x [N, C, H, W] in [0, 1] and y [N]. Beside a canary's trace there is one.

A trace may name a model by its import path. It is built, and its code run, only where the user names the same model.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor
from torch.nn.functional import interpolate
from torchvision.utils import save_image

from attacks import ATTACKS
from attacks.leakage import Leakage, score
from attacks.trace import load_trace, recorded_task
from core.config import Raw, check_sections, parse_section, section_defaults
from core.errors import unknown
from core.files import read_tree
from core.randomness import stream
from core.types import PrivateBatch, Reconstruction, ServerView
from deploy.errors import UsageError
from deploy.settings import parse
from tasks.task import Task

VIEW, TRUTH = "view.safetensors", "truth.safetensors"
SCORES = ("psnr", "ssim", "nmi", "mse")
SIDE = 128  # pixels a picture is enlarged to, so that an 8x8 digit can be looked at


@dataclass(frozen=True)
class Replay:
    """An attack's answer and where its pictures are."""

    attack: str
    threat: str
    adaptive: bool
    view: ServerView
    answer: Reconstruction
    pictures: Path
    leakage: Leakage | None = None

    def lines(self) -> list[str]:
        """What to tell the user."""
        labels = "" if self.answer.y is None else f", labels {self.answer.y.tolist()}"
        adapted = "adapted to masked updates" if self.adaptive else "not adapted to masked updates"
        return [
            f"view       {self.view.describe()}",
            f"attack     {self.attack} ({adapted}): {self.threat}",
            f"rebuilt    {len(self.answer.x)} images{labels}",
            f"objective  {self.answer.objective:.6g} after {self.answer.iterations} iterations (lower fits better)",
            f"pictures   {self.pictures}",
            *self.scores(),
        ]

    def scores(self) -> list[str]:
        """A line a score: mean and worst image beside the two baselines."""
        if self.leakage is None:
            return ["scores     none: they need the truth (--truth)"]
        found = self.leakage.to_dict()
        told = (
            f"{name:<10} {{mean:.4g}}, worst {{worst:.4g}} (random {{random:.4g}}, other {{other:.4g}})"
            for name in SCORES
        )
        return [line.format(**found[name]) for line, name in zip(told, SCORES, strict=True)]


def settings_of(name: str, given: Sequence[str]) -> Raw:
    """``-c ig.iterations=200`` typed by the attack's defaults. Raises ``ConfigError``."""
    if name not in ATTACKS:
        raise unknown("attack", name, ATTACKS)
    raw = parse(given, section_defaults(name, ATTACKS[name].settings))
    check_sections(raw, {name: ATTACKS[name].settings})
    return raw


def save(images: Tensor, path: Path) -> None:
    """A sheet of the images [N, C, H, W] in [0, 1], enlarged without smoothing. Raises ``UsageError``."""
    factor = max(1, SIDE // max(images.shape[-2:]))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_image(interpolate(images.clamp(0, 1), scale_factor=factor, mode="nearest"), path, padding=4, pad_value=0.5)
        path.chmod(0o600)
    except OSError as error:
        raise UsageError(f"cannot write {path} ({error.strerror}): choose another directory with --out") from None


def find(trace: Path) -> tuple[Path, str]:
    """A trace, given as its file or as the directory a run keeps it in, and its name. Raises ``UsageError``."""
    file = trace / VIEW if trace.is_dir() else trace
    if not file.is_file():
        raise UsageError(f"no trace {trace}: a run keeps its traces in runs/ID/traces")
    return file, file.absolute().parent.name if file.name == VIEW else file.stem


def truth_of(file: Path | None, trace: Path) -> PrivateBatch | None:
    """The truth the user names, or the one beside a canary's trace. Raises ``UsageError``."""
    path = file if file is not None else trace.parent / TRUTH
    if file is None and (trace.name != VIEW or not path.is_file()):
        return None
    try:
        tree, _ = read_tree(path)
        return PrivateBatch(tree["x"].float(), tree["y"].long())
    except (OSError, SafetensorError, KeyError):
        raise UsageError(f"{path} is no safetensors file of images x and labels y") from None


def task_of(file: Path, model: str) -> Task | None:
    """The task of the trace where the user vouches for its ``model``; None leaves it to ``load_trace``."""
    if not model:
        return None
    task = recorded_task(file)
    if task.model != model:
        raise UsageError(f"the trace is of the model {task.model!r}, not of {model!r}")
    here = str(Path.cwd())
    sys.path[:0] = [] if here in sys.path else [here]
    return task


def replay(
    trace: Path, name: str, given: Sequence[str], out: Path, seed: int, *, model: str = "", truth: Path | None = None
) -> Replay:
    """Attack the view in ``trace`` and write the pictures into ``out``."""
    settings: Any = parse_section(settings_of(name, given), name, ATTACKS[name].settings)
    file, title = find(trace)
    batch = truth_of(truth, file)
    view, task, _ = load_trace(file, task_of(file, model))
    attack = ATTACKS[name]
    answer = attack.reconstruct(view, task, settings, stream(seed, purpose="replay"))
    answer = replace(answer, x=answer.x.detach().cpu())
    pictures = out / f"{title}-{name}.png"
    save(answer.x, pictures)
    leakage = score(answer, batch) if batch is not None else None
    return Replay(name, attack.threat, attack.adaptive, view, answer, pictures, leakage)
