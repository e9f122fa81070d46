"""What a curious server may see and what it must not, as two types that never meet outside scoring."""

from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from prunella.core.trees import Mask, Tree, to_device


@dataclass(frozen=True)
class ServerView:
    """All that an attack may use. A field left ``None`` was withheld, or is not known to the server.

    ``params`` are the weights training began from, ``update`` is local minus those, zero where nothing was shared;
    ``shared`` marks the coordinates whose value arrived. ``buffers`` were sent, ``received_buffers`` came back.
    ``steps``, ``batch_size``, ``learning_rate``, ``momentum`` and ``weight_decay`` are the public training settings of
    the run. ``num_examples``: the examples that the client has, or those of them that its steps use. ``frozen`` names
    the tensors that it is taken not to have trained, where ``shared`` does not tell them from what a defense withheld.
    """

    params: Tree
    update: Tree
    mask: Mask | None = None
    shared: Mask | None = None
    buffers: Tree = field(default_factory=dict)
    received_buffers: Tree = field(default_factory=dict)
    importance: Tree | None = None
    num_examples: int | None = None
    labels: Tensor | None = None
    steps: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    defenses: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()

    @property
    def images_used(self) -> int | None:
        """How many of its images the client trained on, None where nobody tells.

        >>> ServerView({}, {}, steps=2, batch_size=16, num_examples=100).images_used
        32
        """
        taken = None if self.batch_size is None else (self.steps or 1) * self.batch_size
        known = [each for each in (taken, self.num_examples) if each is not None]
        return min(known, default=None)

    def on(self, device: torch.device) -> "ServerView":
        """The same view with its tensors on ``device``."""
        moved: dict[str, Any] = {}
        for name in (f.name for f in fields(self)):
            value = getattr(self, name)
            if isinstance(value, Tensor):
                moved[name] = value.to(device)
            elif isinstance(value, dict):
                moved[name] = to_device(value, device)
        return replace(self, **moved)

    def describe(self) -> str:
        """The threat model in one line: which fields the server had."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        seen = [name for name, value in values.items() if isinstance(value, Tensor) or value]
        return "honest-but-curious server; saw " + ", ".join(name.replace("_", " ") for name in seen)


@dataclass(frozen=True)
class PrivateBatch:
    """The truth: images [N, C, H, W] in [0, 1] and labels [N], cloned BEFORE any defense touches them."""

    x: Tensor
    y: Tensor

    def on(self, device: torch.device) -> "PrivateBatch":
        return PrivateBatch(self.x.to(device), self.y.to(device))


@dataclass(frozen=True)
class Reconstruction:
    """An attack's answer: images [B, C, H, W] in [0, 1], labels [B] or None, final objective (lower = better fit).

    ``found_by`` names the attack of a portfolio that rebuilt them, with what was chosen for it: "sgi tv=0.01".
    ``explained`` is whether they would have sent the update, where the attack itself says so; ``cut`` whether it ended
    for want of time; ``compared`` whether the objective comes of a comparison with the update that was attacked."""

    x: Tensor
    y: Tensor | None
    objective: float
    iterations: int
    found_by: str | None = None
    explained: bool | None = None
    cut: bool = False
    compared: bool = True

    @property
    def fit(self) -> float | None:
        """The objective, where it says how well the images explain the update."""
        return self.objective if self.compared else None
