"""One descent for every attack that improves its guesses step by step: evaluate, note the best, stop or take a step.

A ``Problem`` says what is minimised over which tensors. ``Adam`` and ``Lbfgs`` take the steps. ``descend`` runs the
loop, and resumes it where a store was given (``attacks.engine.resume``).

Adam follows Geiping's published settings: the sign of the image gradient, and a learning rate that falls at 3/8, 5/8
and 7/8 of the iterations. L-BFGS counts its iterations, not its function calls, and looks at the stopping rule every
``LBFGS_CHUNK`` iterations. Adam clips pixels to [0, 1] after every step; L-BFGS does not, since a clipped step would
spoil its estimate of the curvature.

>>> x = torch.tensor([2.0])
>>> def evaluate():
...     x.grad = 2 * x
...     return x.square().sum(), x.square()
>>> from prunella.attacks.engine.inversion import Inversion
>>> best = Progress(Inversion(), lambda objective, i: Reconstruction(x.clone(), None, objective, i))
>>> descend(Problem([x], evaluate, [best]), Lbfgs([x], 20), 20)[0].objective < 1e-6
True
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from prunella.attacks.engine.progress import Progress
from prunella.attacks.engine.resume import DescentFile, DescentState
from prunella.core.types import Reconstruction

DECAY_AT = (3 / 8, 5 / 8, 7 / 8)
LBFGS_CHUNK = 20  # iterations between two looks at the stopping rule
UNSAVED = DescentFile()
Evaluate = Callable[[], tuple[Tensor, Tensor]]
OptimizerSetting = Literal["auto", "adam", "lbfgs"]


@dataclass(frozen=True)
class Problem:
    """What is minimised, over which tensors.

    ``evaluate`` puts the gradient on ``variables``; it returns what is minimised, 0-d, and the objective by which each
    guess is judged, [G]. ``progress`` has an entry for every guess. The guesses of a ``joint`` problem stop together;
    otherwise each stops by its own rule and the descent when all have. A guess that has stopped still moves, but only
    what it had found by then counts.
    """

    variables: Sequence[Tensor]
    evaluate: Evaluate
    progress: Sequence[Progress]
    joint: bool = False


class Adam:
    """Steps of Adam. ``pixels`` are the variables that stay in [0, 1] and, where ``signed``, move by the sign of their
    gradient; ``decay`` multiplies the learning rate at each of ``DECAY_AT``."""

    chunk: ClassVar[int] = 1

    def __init__(
        self,
        variables: Sequence[Tensor],
        pixels: Sequence[Tensor],
        learning_rate: float,
        iterations: int,
        *,
        signed: bool,
        decay: float = 0.1,
    ) -> None:
        self.pixels, self.signed = pixels, signed
        self.optimizer = torch.optim.Adam(list(variables), lr=learning_rate)
        milestones = [int(share * iterations) for share in DECAY_AT]
        self.schedule = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, milestones, gamma=decay)

    def step(self, evaluate: Evaluate, iteration: int) -> None:
        """One iteration, from the gradients that the last evaluation left."""
        for image in self.pixels if self.signed else ():
            if image.grad is not None:
                image.grad.sign_()
        self.optimizer.step()
        self.schedule.last_epoch = iteration  # so it is already, unless the descent was resumed
        self.schedule.step()
        with torch.no_grad():
            for image in self.pixels:
                image.clamp_(0.0, 1.0)


class Lbfgs:
    """Steps of L-BFGS, ``LBFGS_CHUNK`` iterations each. It leaves the decision to stop to ``descend``.

    Where a line search finds nothing lower (a kink of a ReLU, rounding), the chunk is over and the estimate of the
    curvature is forgotten: with it, every further chunk would fail at once. ``history`` is how many steps the estimate
    is made from, each of which keeps two copies of the variables.
    """

    chunk: ClassVar[int] = LBFGS_CHUNK

    def __init__(self, variables: Sequence[Tensor], iterations: int, history: int = 100) -> None:
        self.optimizer = torch.optim.LBFGS(
            list(variables),
            max_iter=min(LBFGS_CHUNK, iterations),
            history_size=history,
            tolerance_grad=0.0,
            tolerance_change=0.0,
            line_search_fn="strong_wolfe",
        )

    def step(self, evaluate: Evaluate, iteration: int) -> None:
        before = self.taken()
        self.optimizer.step(lambda: evaluate()[0])  # type: ignore[no-untyped-call]
        if self.taken() - before < self.optimizer.param_groups[0]["max_iter"]:
            self.optimizer.state.clear()

    def taken(self) -> int:
        """Iterations since the estimate of the curvature was begun."""
        state = self.optimizer.state.get(self.optimizer.param_groups[0]["params"][0], {})
        return int(state.get("n_iter", 0))


def optimizer_name(setting: OptimizerSetting, module: nn.Module) -> Literal["adam", "lbfgs"]:
    """The optimizer for this model. "auto" is L-BFGS for a network of sigmoids, on which Adam stays below 16 dB."""
    if setting != "auto":
        return setting
    return "lbfgs" if any(isinstance(layer, nn.Sigmoid) for layer in module.modules()) else "adam"


def descend(
    problem: Problem, optimizer: Adam | Lbfgs, iterations: int, saved: DescentFile = UNSAVED
) -> list[Reconstruction]:
    """The best that each guess came to, until ``saved`` is out of time; read from it where it holds a descent that is
    over."""
    answers = saved.answers()
    if answers is not None:
        return answers
    state = DescentState(optimizer.optimizer, problem.variables, problem.progress)
    begin, still_open = saved.resume(state)
    running = set(range(len(problem.progress))) if still_open is None else set(still_open)
    for iteration in range(begin, iterations + optimizer.chunk, optimizer.chunk):
        saved.keep(state, iteration, running)
        done = min(iteration, iterations)
        objectives = problem.evaluate()[1].tolist()
        stopped = {place for place in running if problem.progress[place].stop(objectives[place], done)}
        if stopped == running or done == iterations or (saved.out_of_time is not None and saved.out_of_time()):
            break
        if not problem.joint:
            running -= stopped
        optimizer.step(problem.evaluate, iteration)
    saved.finish(state)
    return [progress.best for progress in problem.progress]
