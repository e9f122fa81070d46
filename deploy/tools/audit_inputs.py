"""What some attacks need besides a view, from files the user names for ``prunella audit``.

``--known`` is a safetensors file: for denoise, ``public`` images [M, C, H, W] and the channel's ``noise``, a covariance
[d, d] or a variance (0-d); for mia, examples ``x`` [N, C, H, W] with labels ``y`` [N] and ``member`` [N], whether each
was trained on. ``--earlier`` are the same client's earlier traces, oldest first (every-round finds them beside the
trace). ``--keep`` is a folder in which a long attack saves its progress, which the same command resumes. Nothing is
unpickled.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Generator, Tensor

from prunella.attacks import ATTACKS, PROBES, find_attack
from prunella.attacks.denoise import Channel
from prunella.attacks.engine.resume import ResumeStore
from prunella.attacks.mia import AttackedModel
from prunella.attacks.score.membership import Separation, compare
from prunella.core.files import read_tree
from prunella.core.trees import Tree, add
from prunella.core.types import PrivateBatch, ServerView
from prunella.deploy.errors import UsageError
from prunella.tasks.task import Task, are_classes

_ROUNDING = 1e-3  # of pixels in another format


@dataclass(frozen=True)
class MembershipExamples:
    """Examples and whether each was trained on: ``member`` [N], bool."""

    batch: PrivateBatch
    member: Tensor

    def part(self, member: bool) -> PrivateBatch:
        rows = self.member == member
        return PrivateBatch(self.batch.x[rows], self.batch.y[rows])


def read_tensors(path: Path, names: Sequence[str]) -> Tree:
    """These tensors of a safetensors file. Raises ``UsageError``."""
    try:
        tree, _ = read_tree(path)
        return {name: tree[name] for name in names}
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}") from None
    except (OSError, SafetensorError, KeyError):
        raise UsageError(f"{path} is not a safetensors file with the tensors {', '.join(names)}") from None


def attack_keywords(
    name: str, known: Path | None, earlier: Sequence[ServerView], resume: ResumeStore
) -> dict[str, Any]:
    """Keyword arguments for the attack ``name``. Raises ``UsageError`` for what it cannot use, or lacks."""
    attack = find_attack(name)
    if earlier and not attack.takes("earlier"):
        raise UsageError(f"{name} attacks one view: --earlier is for unrolling, every-round and denoise")
    if known is not None and not attack.takes("known"):
        raise UsageError(f"{name} needs only a view: --known is for denoise and mia")
    if resume.folder is not None and not attack.takes("resume"):
        able = [n for n, line in ATTACKS.items() if line.takes("resume")]
        raise UsageError(f"{name} has no progress to save: --keep is for {', '.join(able)}")
    given = attack.taken(resume=resume) | ({"earlier": list(earlier)} if earlier else {})
    return given | ({"known": Channel(**read_tensors(known, ("public", "noise")))} if known is not None else {})


def require_pixels(path: Path, x: Tensor) -> None:
    """Raise ``UsageError`` where images are not of pixels in [0, 1]."""
    if len(x) and not -_ROUNDING <= float(x.min()) <= float(x.max()) <= 1 + _ROUNDING:
        raise UsageError(
            f"{path} has pixels from {float(x.min()):.3g} to {float(x.max()):.3g}, and scores are of pixels from 0 to "
            "1: bring them there, with (x - mean) / std in the model, where the attack can undo it"
        )


def labelled_images(path: Path, x: Tensor, y: Tensor, task: Task) -> PrivateBatch:
    """Images and labels of a file, if they are examples of the ``task``. Raises ``UsageError``."""
    images, labels = x.float(), y.long()
    if tuple(images.shape[1:]) != task.shape or not len(images):
        takes = ", ".join(map(str, task.shape))
        raise UsageError(f"{path} has images x of shape {list(x.shape)}, and the model takes [N, {takes}]")
    require_pixels(path, images)
    if labels.shape != (len(images),):
        advice = "name the class of each, as y.argmax(1) of one-hot labels" if y.dim() > 1 else "one label an image"
        raise UsageError(f"{path} has labels y of shape {list(y.shape)} for {len(images)} images: {advice}")
    if not torch.equal(labels.to(y.dtype), y) or not are_classes(labels, task.classes):
        raise UsageError(f"{path}: the labels y must be classes from 0 to {task.classes - 1}")
    return PrivateBatch(images, labels)


def membership_examples(path: Path | None, option: str, task: Task) -> MembershipExamples:
    """Read examples of the ``task`` with their membership. Raises ``UsageError``."""
    if path is None:
        raise UsageError(f"mia infers the membership of examples: add {option} FILE with tensors x, y and member")
    tree = read_tensors(path, ("x", "y", "member"))
    if not len(tree["x"]) == len(tree["y"]) == len(tree["member"]):
        raise UsageError(f"{path}: x, y and member must have the same length")
    return MembershipExamples(labelled_images(path, tree["x"], tree["y"], task), tree["member"].bool())


def infer_membership(
    view: ServerView,
    task: Task,
    settings: Any,
    known: MembershipExamples,
    asked: MembershipExamples,
    generator: Generator,
) -> Separation:
    """Membership of ``asked`` in the data the view's model was trained on: its weights after the update."""
    device = next(iter(view.params.values())).device
    model = AttackedModel(task, add(view.params, view.update), view.received_buffers or view.buffers)
    members, outsiders, batch = (each.on(device) for each in (known.part(True), known.part(False), asked.batch))
    scores = PROBES["mia"].infer(model, members, outsiders, batch, settings, generator).cpu()
    return compare(scores[asked.member], scores[~asked.member])
