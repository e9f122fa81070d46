"""Whether anything but guarded steps moves a model while its loop is guarded.

An ``optimizer.step()`` of PyTorch's is seen by hooks, and refused on gradients that no defense has seen. Whatever else
moves the parameters shows before the next step or when the guard closes. Batch norm's statistics leave beside the
update, so where a defense changes images they may be moved by the images it has shown, and by no others.

Errors: ``DefenseError`` and ``ConfigError``, which refuse the message.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from prunella.core.errors import ConfigError, DefenseError
from prunella.core.trees import Tree
from prunella.flower.arrays import is_buffer
from prunella.flower.handled import Handled

Optimizer = torch.optim.Optimizer


class MovedBy:
    """What moves ``params`` and, where ``hides_images``, the buffers of ``model``. ``stepped`` is called after a step
    of an optimiser on defended gradients."""

    def __init__(
        self,
        work: Handled,
        model: nn.Module,
        params: Mapping[str, nn.Parameter],
        hides_images: bool,
        stepped: Callable[[Optimizer], None],
    ) -> None:
        self._work, self._model, self._params, self.hides_images = work, model, params, hides_images
        self._after_step = stepped
        self._left: Tree | None = None  # the parameters as the last step left them; None before a step is seen
        self._statistics: Tree | None = None  # None between a batch and its step
        self._fresh = set[int]()  # parameters whose gradients are defended and not yet used
        self.settled()
        before, after = self._before_optimizer, self._after_optimizer
        self._hooks = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]

    def _buffers(self) -> Tree:
        return {name: b.detach().clone() for name, b in self._model.named_buffers()} if self.hides_images else {}

    def settled(self) -> None:
        """As the model is now, it may be."""
        self._left = {name: p.detach().clone() for name, p in self._params.items()}
        self._statistics = self._buffers()

    def require_unmoved(self) -> None:
        left = self._left
        if left is not None and not all(torch.equal(left[n].to(p.device), p) for n, p in self._params.items()):
            what = "the model moved outside guard.step and outside an optimizer of PyTorch's"
            raise self._work.refuse(DefenseError(f"protected: {what}"))

    def require_statistics(self) -> None:
        held = self._statistics
        moved = [] if held is None else [n for n, b in self._buffers().items() if not torch.equal(held[n], b)]
        if moved:
            what = "batch norm has seen images outside the loop: call model.eval() before, and train() after"
            if not is_buffer(moved[0], self._buffers()):
                what = f"the buffer {moved[0]} moved outside guard.step: put its layer in eval() while the loop runs"
            raise self._work.refuse(DefenseError(f"protected: {what}"))

    def shows_images(self) -> None:
        """Images that the defenses have changed come next, and move the statistics."""
        self.require_statistics()
        self._statistics = None

    def takes_gradients(self) -> None:
        """The caller's own optimiser may move the parameters now."""
        self._left = None

    def defended(self) -> None:
        """The gradients at hand have passed the defenses."""
        self._fresh = {id(p) for p in self._params.values()}

    def used(self) -> bool:
        """Whether an optimiser of PyTorch's has used all of the defended gradients. They are used up in any case."""
        left, self._fresh = self._fresh, set()
        return not left

    def _mine(self, optimizer: Optimizer) -> set[int]:
        own = {id(p) for p in self._params.values()}
        return {id(p) for group in optimizer.param_groups for p in group["params"]} & own

    def _before_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Refuse a step on gradients that no defense has seen. Called for every optimiser of the process."""
        if not (mine := self._mine(optimizer)):
            return
        if any(callable(given) for given in [*args[1:], *kwargs.values()]):
            what = "optimizer.step(closure) takes gradients of its own: choose another optimizer"
            raise self._work.refuse(ConfigError(f"protected: {what}"))
        if not mine <= self._fresh:
            what = (
                "an optimizer.step() without guard.gradients() before it: call it there, or write guard.step, which "
                "takes one optimizer (of several: an object whose step() calls theirs)"
            )
            raise self._work.refuse(DefenseError(f"protected: {what}"))

    def _after_optimizer(self, optimizer: Optimizer, *_: Any) -> None:
        if mine := self._mine(optimizer):
            self._fresh -= mine
            self._after_step(optimizer)

    def release(self) -> None:
        """Look at no optimiser any more."""
        for hook in self._hooks:
            hook.remove()
