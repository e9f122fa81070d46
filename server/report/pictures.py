"""Originals and reconstructions of an audit, as PNG data URIs with the scores of every pair.

Pictures exist only for controls and for clients that consented to them (``audit=pictures``). Their file is named by a
line of ``audits.jsonl``, which may come from elsewhere, so a path outside the run directory is refused. Every problem
becomes a sentence in the report instead of an exception. Images are [N, C, H, W] in [0, 1], C = 1 or 3.
"""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from safetensors import SafetensorError
from torch import Tensor
from torch.nn.functional import interpolate

from prunella.attacks.score.leakage import psnr, ssim
from prunella.attacks.score.level import Line
from prunella.core.files import read_tree
from prunella.server.report.evidence import KINDS, of_kind, who, worst_first
from prunella.server.report.units import decibels, score
from prunella.server.store.schema import StoreError

STRIPS = 12  # strips in a report
IMAGES = 8  # pairs in a strip: one row on a desk
SIDE = 176  # pixels: twice the shown size; larger images are scaled down, so that a report stays at a few megabytes


@dataclass(frozen=True)
class Pair:
    """An original and its reconstruction as data URIs, with their scores."""

    original: str
    reconstruction: str
    psnr: str
    ssim: str

    @property
    def words(self) -> str:
        return f"PSNR {self.psnr}, SSIM {self.ssim}"


@dataclass(frozen=True)
class Strip:
    """The pairs of one audit. ``left`` more were scored but are not shown; ``problem`` says why there are none."""

    title: str
    detail: str
    pairs: tuple[Pair, ...] = ()
    left: int = 0
    problem: str = ""


def choose(audits: Sequence[Line], latest: bool = False) -> list[Line]:
    """The audits to show: of each kind of control the most leaking one, then clients', the most leaking first. With
    ``latest`` the newest stand in for the most leaking."""
    shown = [a for a in audits if a.get("pictures")]
    ordered = shown[::-1] if latest else worst_first(shown, audits)
    controls = [a for kind in KINDS if kind != "client" for a in of_kind(ordered, kind)[:1]]
    return controls + of_kind(ordered, "client")[: max(0, STRIPS - len(controls))]


def png(image: Tensor) -> str:
    """A data URI of one image [C, H, W] in [0, 1]; longer than ``SIDE`` it is scaled down.

    >>> png(torch.zeros(1, 2, 2)).startswith("data:image/png;base64,iVBOR")
    True
    """
    height, width = image.shape[-2:]
    if max(height, width) > SIDE:
        ratio = SIDE / max(height, width)
        size = (max(1, round(height * ratio)), max(1, round(width * ratio)))
        image = interpolate(image[None], size=size, mode="bilinear", antialias=True)[0]
    pixels = (image.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    coded = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(coded, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(coded.getvalue()).decode()


def load(run_dir: Path, relative: str) -> tuple[Tensor, Tensor]:
    """Originals and reconstructions, float32 and of one shape. Raises ``StoreError`` in words fit for the report."""
    path = (run_dir / relative).resolve()
    if not path.is_relative_to(run_dir.resolve()):
        raise StoreError("The pictures lie outside the run directory and were not read.")
    if not path.is_file():
        raise StoreError("The file with the pictures is missing.")
    try:
        tree, _ = read_tree(path)
    except (SafetensorError, OSError):
        raise StoreError("The file with the pictures cannot be read.") from None
    original, rebuilt = tree.get("original"), tree.get("reconstruction")
    if original is None or rebuilt is None or original.shape != rebuilt.shape or original.ndim != 4 or not len(rebuilt):
        raise StoreError("The file with the pictures does not hold originals and reconstructions of one shape.")
    if original.shape[1] not in (1, 3) or not all(bool(torch.isfinite(t).all()) for t in (original, rebuilt)):
        raise StoreError("The pictures are not finite grey or colour images.")
    return original.float(), rebuilt.float()


def strip(run_dir: Path, audit: Line) -> Strip:
    """The best rebuilt images of an audit first."""
    title = who(audit)
    detail = f"round {audit['round']}, attack {audit['attack']}, defense {audit['defense']}"
    try:
        original, rebuilt = load(run_dir, audit["pictures"])
    except StoreError as error:
        return Strip(title, detail, problem=str(error))
    similar, noise = ssim(original, rebuilt), psnr(original, rebuilt)
    order = sorted(range(len(similar)), key=lambda i: -noise[i])[:IMAGES]
    pairs = tuple(Pair(png(original[i]), png(rebuilt[i]), decibels(noise[i]), score(similar[i])) for i in order)
    scored = int((audit["scores"] or {}).get("images", 0))
    return Strip(title, detail, pairs, left=max(scored, len(original)) - len(pairs))
