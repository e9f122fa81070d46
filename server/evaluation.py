"""The global model on the server's test examples, beside the next round, as audits are.

A full pass over the test images can take longer than the round itself. It starts when a round's model is there, on a
copy of the module and in a thread of its own, while the clients train the next round, and is waited for before the
next one starts: one model more is in memory, and every round that is due is evaluated. A quick one is waited for at
once (``PATIENCE`` of the round's training, at least ``LEAST`` seconds), and told with its round.

It is done where the clients train, if the server has such a device: a pass of ResNet18 over CIFAR-10's test images
takes a processor longer than clients on GPUs their round.
"""

import threading
from concurrent.futures import Future, wait
from logging import WARNING

import torch
from flwr.common.logger import log
from torch import nn

from prunella.core.config import Run
from prunella.core.copies import copied
from prunella.core.device import pick_device
from prunella.core.errors import ConfigError
from prunella.core.randomness import stream
from prunella.core.trees import Tree, to_device
from prunella.strategies.round.server_model import ServerModel
from prunella.tasks.data import Examples
from prunella.tasks.training import Evaluation, evaluate

PATIENCE, LEAST = 0.1, 0.25


def on_all(run: Run, round: int) -> bool:
    """Whether a round is evaluated on every example."""
    return round % run.evaluate_every == 0 or round == run.rounds


def sampled(test: Examples, run: Run) -> Examples:
    """The test examples of the rounds in between, the same ones each time."""
    chosen = torch.randperm(len(test), generator=stream(run.seed, purpose="evaluation-sample"))
    return test.take(chosen[: run.evaluate_examples])


def device_here(run: Run) -> torch.device:
    """The clients' device, or the CPU on a server that has none like it."""
    try:
        return pick_device(run.device)
    except ConfigError:
        return torch.device("cpu")


def evaluate_on(device: torch.device, module: nn.Module, params: Tree, buffers: Tree, test: Examples) -> Evaluation:
    """On the CPU after all where the device fails: clients and audits may have its memory."""
    try:
        there = module.to(device), to_device(params, device), to_device(buffers, device)
        return evaluate(*there, test.x, test.y)
    except RuntimeError as error:  # one of the model's is raised again below
        if device.type != "cpu":
            log(WARNING, "evaluating on the CPU, since %s fails: %s", device, error)
        return evaluate(module.to("cpu"), params, buffers, test.x, test.y)


class Evaluator:
    """One evaluation at a time; ``test`` is None where the server has no examples."""

    def __init__(self, run: Run, model: ServerModel, test: Examples | None) -> None:
        self._run, self._model, self._test, self._device = run, model, test, device_here(run)
        self._module = copied(model.module)  # aggregation may use the model's meanwhile
        self._pending: tuple[int, Future[Evaluation]] | None = None

    def start(self, round: int, tree: Tree, whole: bool = False) -> None:
        """Begin with parameters and buffers of a round, if it is due or ``whole``. The one before must be taken."""
        assert self._pending is None
        whole = whole or on_all(self._run, round)
        if self._test is None or not (whole or self._run.evaluate_examples):
            return
        test, threads = self._test if whole else sampled(self._test, self._run), torch.get_num_threads()
        params, buffers = self._model.split(tree)
        found = Future[Evaluation]()

        def work() -> None:
            torch.set_num_threads(threads)  # of this thread: sums keep their order
            try:
                found.set_result(evaluate_on(self._device, self._module, params, buffers, test))
            except BaseException as error:  # noqa: BLE001 - raised again where the result is taken
                found.set_exception(error)

        # Nothing waits for a daemon's end: Ctrl-C does not last as long as a pass over the test images.
        threading.Thread(target=work, name="evaluation", daemon=True).start()
        self._pending = round, found

    def take(self, seconds: float | None = None) -> tuple[int, Evaluation] | None:
        """The round and result of the one that was begun, waited for ``seconds`` at most (None: to its end), or None.
        Raises what the evaluation raised."""
        if self._pending is None:
            return None
        round, found = self._pending
        wait([found], seconds)
        if not found.done():
            return None
        self._pending = None
        return round, found.result()
