"""Whether the model of anybody's loop would copy single images into its update, as ``client.planted`` asks it.

What was sent is refused; what training made of it is not, since a refusal would tell of images: from there on no step
counts. Where batches are no images, weights alone are looked at, once.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from prunella.client.planted import PlantedCheck
from prunella.core.copies import copied
from prunella.core.randomness import PrivateGenerator
from prunella.core.trees import Tree
from prunella.flower.charged import Batch
from prunella.privacy.imprint import EXACTLY, imprint_layers


@contextmanager
def plainly(device: torch.device) -> Iterator[None]:
    """In float32, whatever precision the app has chosen, and without a draw of the app's."""
    before, on_gpu = torch.get_default_dtype(), device.type == "cuda" and torch.cuda.is_available()
    torch.set_default_dtype(torch.float32)
    try:
        with (
            torch.random.fork_rng(devices=[device] if on_gpu else []),
            torch.autocast("cpu", enabled=False),
            torch.autocast(device.type, enabled=False),
        ):
            yield
    finally:
        torch.set_default_dtype(before)


class StepQuestion:
    """What one message's model is asked; the probes are drawn from ``draw``. ``ended``: no further step counts."""

    def __init__(self, model: nn.Module, draw: PrivateGenerator) -> None:
        self._model, self._draw = model, draw
        self._device = next(model.parameters()).device
        self._refused: list[str] | None = None  # None before the first batch
        self._check: PlantedCheck | None = None
        self._copy: nn.Module | None = None
        self._step = 0
        self._begins = False
        self.ended = False

    def begins(self) -> None:
        """A mask that moved made the weights of the next step."""
        self._begins = True

    def refused(self, x: Batch) -> list[str]:
        """What looks planted in the model that was sent. Of a batch only its shape is looked at; ``{}``: none is shown,
        or it was asked about already."""
        if self._refused is None:
            with plainly(self._device):
                self._refused = self._first(x)
        elif not self._refused and self._check is not None and self._copy is not None and x != {}:
            self._step += 1
            with plainly(self._device):
                params, buffers = self._state()
                self.ended = not self._check.allows(self._copy, params, buffers, self._step, self._begins)
            self._begins = False
        return self._refused

    def _state(self) -> tuple[Tree, Tree]:
        params = {name: p.detach().float() for name, p in self._model.named_parameters()}
        buffers = {name: b.detach() for name, b in self._model.named_buffers()}
        return params, {name: b.float() if b.is_floating_point() else b for name, b in buffers.items()}

    def _first(self, x: Batch) -> list[str]:
        params = {name: p.detach().cpu().float() for name, p in self._model.named_parameters()}
        if isinstance(x, Tensor) and x.dim() == 4 and x.is_floating_point():
            shape = (x.shape[1], x.shape[2], x.shape[3])
            try:
                asked = copied(self._model).cpu().float()
                with torch.no_grad():
                    logits = asked.eval()(torch.full((1, *shape), 0.5))
            except Exception:  # noqa: BLE001 - a model that takes more than images, or that cannot be copied
                logits = None
            if isinstance(logits, Tensor) and logits.dim() == 2:
                self._check = PlantedCheck(shape, logits.shape[1], self._draw)
                found = self._check.layers(asked, params, dict(asked.named_buffers()))
                self._copy = asked.to(self._device)
                return found
        return [f"imprint in {name}" for name in imprint_layers(self._model, params, self._draw, EXACTLY)]
