"""A small ``Shadow`` for tests: the project's own chain and local training on public images, for one attacked round."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from prunella.attacks.engine.shadow import Shadow
from prunella.core.randomness import PrivateGenerator, rehearsal
from prunella.core.trees import Mask, Tree, full_mask
from prunella.core.types import ServerView
from prunella.privacy.chain import ChainState, build_chain, start
from prunella.strategies.round.local import Procedure, Received, local_update
from prunella.tasks.data import Examples, batches
from prunella.tasks.task import Task, initial
from prunella.tasks.training import Sgd

LEARNS = {"priprune"}
WARM = 5  # rounds of one step that a learning defense has behind it


@dataclass
class ShadowClient:
    """Clients of ``task`` who received ``params`` and train on ``steps`` batches of ``batch_size`` behind ``chain``.

    Data defenses are fitted on ``public``. The attacked client of a test is one of these, too: a draw that no attack
    asks for, such as a negative one.
    """

    task: Task
    public: Examples
    defenses: str = "none"
    steps: int = 1
    batch_size: int = 1
    seed: int = 0
    rate: float = 0.1
    raw: dict[str, Any] = field(default_factory=dict)
    weights: tuple[Tree, Tree] | None = None
    mask: Mask | None = None

    def send(self, shown: Examples, draw: int, steps: int | None = None, batch_size: int | None = None) -> ServerView:
        steps, size = steps or self.steps, batch_size or self.batch_size
        names = self.defenses.split(",")
        params, buffers = self.weights if self.weights is not None else initial(self.task, self.seed)
        received = Received(params, self.mask or full_mask(params), buffers)
        procedure = Procedure(self.task.build(), Sgd(self.rate), build_chain(names, self.raw), size)
        state = self._warm(procedure, received, draw) if LEARNS & set(names) else self._fitted(procedure, received)
        drawn = batches(shown, size, steps, self._draws(draw, "batches"))
        out = local_update(procedure, received, drawn, state, self._draws(draw, "defense"))
        return ServerView(
            params=params,
            update=out.outgoing.update,
            mask=self.mask,
            buffers=buffers,
            num_examples=len(shown),
            steps=steps,
            batch_size=size,
            learning_rate=self.rate,
            defenses=out.applied,
        )

    def attacked(self, x: Tensor, y: Tensor, draw: int = -1) -> ServerView:
        """The view of a client that holds these images; its labels are known."""
        view = self.send(Examples(x, y), draw)
        return ServerView(**{**view.__dict__, "labels": y})

    def _draws(self, draw: int, purpose: str) -> PrivateGenerator:
        return rehearsal(self.seed, client=draw, purpose=f"shadow-{purpose}")

    def _fitted(self, procedure: Procedure, received: Received) -> ChainState:
        """Fitted once: a channel's covariance of many images is slow to find."""
        key = (self.defenses, self.batch_size, id(self.public), repr(self.raw))
        if key not in _FITTED:
            _FITTED[key] = start(procedure.chain, self.public.x, received.params, {}, self._draws(0, "fit"))
        return _FITTED[key]

    def _warm(self, procedure: Procedure, received: Received, draw: int) -> ChainState:
        state = start(procedure.chain, self.public.x, received.params, {}, self._draws(0, "fit"))
        generator = self._draws(draw, "warm")
        for turn in range(WARM):
            shown = batches(self.public, self.batch_size, 1, generator)
            state = local_update(procedure, received, shown, state, self._draws(draw, f"warm-{turn}")).state
        return state


_FITTED: dict[tuple[object, ...], ChainState] = {}


def _is_a_shadow(client: ShadowClient) -> Shadow:
    """For mypy: it has the attack's interface."""
    return client
