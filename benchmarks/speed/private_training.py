"""DP-SGD as Opacus trains it beside the defense dp-sgd: time and memory of a step, and the ε of the same steps.

Every arm trains one epoch on ``IMAGES`` random 3 x 32 x 32 images, ``IMAGES / BATCH`` steps with an expected batch of
``BATCH``, clip 1, noise multiplier 1:

* ``plain``: PyTorch's SGD over a shuffled ``DataLoader``, the arm that the others are divided by;
* ``opacus``: ``PrivacyEngine.make_private`` at its defaults (Poisson loader, hooks), not its secure mode, which needs
  a package that PyTorch's current releases have none of; ``opacus, ghost clipping``: ``grad_sample_mode="ghost"``,
  which computes norms without gradients of single examples, and passes backward twice;
* ``none`` and ``dp-sgd``: a client's local training here, batches of fixed size and Poisson batches.

Arms take turns; the median over turns of an arm's ratio to ``plain`` is printed, and its range, in processor time of
one thread. Memory is the peak of a process of its own above what it held before the first step. What is *not* alike:
our noise is AES's on a grid and sums are float64, Opacus adds float32 noise of a Mersenne twister; our examples are
computed in groups of one size, half a group of blanks on average; a ``DataLoader`` joins single examples, and our loop
takes a batch at once. Neither has batch norm.

ε at δ = 1e-5 is each side's own: Opacus' RDP and PRV accountants, and the ledger's two (dp-accounting's RDP and PLD).

    python -m prunella.benchmarks.speed.private_training [--repeat 5] [--models lenet,conv-2] [--json]
"""

import multiprocessing
import warnings
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.accountants import PRVAccountant, RDPAccountant
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from prunella.benchmarks.speed.aggregate import MEBI, memory, reset_peak
from prunella.benchmarks.speed.bench import Work, command, show_table, turns
from prunella.core.randomness import rehearsal, stream
from prunella.core.trees import full_mask
from prunella.privacy.accounting import Charge, epsilon
from prunella.privacy.chain import build_chain, start
from prunella.strategies.round.local import Procedure, Received, local_update
from prunella.tasks.examples import Examples, batches, poisson_batches
from prunella.tasks.task import Task, initial
from prunella.tasks.training import Sgd

IMAGES, BATCH, RATE, NOISE, CLIP, DELTA = 512, 64, 0.01, 1.0, 1.0, 1e-5
# Noise, sampling rate, steps: one epoch and forty as they are timed here, and MNIST's 60 epochs of 256 in 60,000.
ACCOUNTED = ((NOISE, BATCH / IMAGES, 8), (NOISE, BATCH / IMAGES, 320), (1.1, 256 / 60_000, 14_063))


def _data(seed: int) -> Examples:
    generator = stream(seed, purpose="images")
    x = torch.rand(IMAGES, 3, 32, 32, generator=generator)
    return Examples(x, torch.randint(10, (IMAGES,), generator=generator))


def _loop(model: nn.Module, sgd: Any, loss: Any, loader: Iterable[tuple[Tensor, Tensor]]) -> None:
    """The loop of both libraries' tutorials."""
    for x, y in loader:
        sgd.zero_grad()
        loss(model(x), y).backward()
        sgd.step()


def torch_loop(mode: str, task: Task, seed: int = 0) -> tuple[Work, PrivacyEngine]:
    """An epoch of PyTorch's SGD, made private by Opacus in ``mode``; ``""`` leaves it as it is."""
    data, engine = _data(seed), PrivacyEngine(accountant="rdp")
    model, loss = task.build().train(), nn.CrossEntropyLoss()
    sgd = torch.optim.SGD(model.parameters(), RATE)
    loader = DataLoader(TensorDataset(data.x, data.y), BATCH, shuffle=True)
    if not mode:
        return partial(_loop, model, sgd, loss, loader), engine
    made: Any = engine.make_private(
        module=model, optimizer=sgd, criterion=loss, data_loader=loader, noise_multiplier=NOISE, max_grad_norm=CLIP,
        grad_sample_mode=mode,
    )  # fmt: skip
    made = made if mode == "ghost" else (*made[:2], loss, made[2])
    return partial(_loop, *made), engine


def client_loop(defense: str, settings: Mapping[str, Any] | None, task: Task, seed: int = 0) -> Work:
    """An epoch of a client's local training here, through a defense of its own."""
    data, (params, buffers), steps = _data(seed), initial(task, seed), IMAGES // BATCH
    chain = build_chain([defense], settings or {})
    state = start(chain, data.x, params, {}, rehearsal(seed, purpose="fit"))
    draw = batches if chain.private is None else poisson_batches
    procedure = Procedure(task.build(), Sgd(RATE), chain, None if chain.private is None else BATCH)
    received = Received(params, full_mask(params), buffers)

    def work() -> None:
        drawn = draw(data, BATCH, steps, rehearsal(seed, purpose="batches"))
        local_update(procedure, received, drawn, state, rehearsal(seed, purpose="noise"))

    return work


ARMS: dict[str, Callable[[Task], Work]] = {
    "plain": lambda task: torch_loop("", task)[0],
    "opacus": lambda task: torch_loop("hooks", task)[0],
    "opacus, ghost clipping": lambda task: torch_loop("ghost", task)[0],
    "none": partial(client_loop, "none", None),
    "dp-sgd": partial(client_loop, "dp-sgd", {"dp-sgd.clip": CLIP, "dp-sgd.noise-multiplier": NOISE}),
}


def growth(arm: str, task: Task) -> int:
    """Most bytes of resident memory that an epoch of the arm adds to what there was before: asked of a new process."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    work = ARMS[arm](task)
    reset_peak()
    before = memory("VmRSS")
    work()
    return memory("VmHWM") - before


def _alone(arm: str, task: Task) -> int:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(growth, (arm, task))


def accounted(noise: float, sampling: float, steps: int) -> dict[str, float]:
    """ε of the same steps by all four accountants."""
    found = {}
    for name, theirs in (("opacus RDP", RDPAccountant()), ("opacus PRV", PRVAccountant())):
        theirs.history = [(noise, sampling, steps)]
        found[name] = float(theirs.get_epsilon(DELTA))
    charge = [Charge("1", noise, sampling, steps)]
    return {**found, "ledger RDP": epsilon(charge, DELTA, "rdp"), "ledger PLD": epsilon(charge, DELTA, "pld")}


def measure(options: Any) -> dict[str, Any]:
    """The result of a command line."""
    if options.repeat < 1:
        raise ArgumentTypeError("--repeat must be at least 1")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # Opacus on its secure mode
    models = {}
    for name in options.models.split(","):
        task = Task(name, (3, 32, 32), 10)
        found = turns({arm: make(task) for arm, make in ARMS.items()}, "plain", options.repeat)
        models[name] = {arm: {**cost, "growth": _alone(arm, task)} for arm, cost in found.items()}
    return {
        "models": models,
        "epsilon": [{"noise": n, "sampling": q, "steps": k, **accounted(n, q, k)} for n, q, k in ACCOUNTED],
        "repeat": options.repeat,
        "torch": torch.__version__,
    }


def show(result: dict[str, Any]) -> None:
    steps = IMAGES // BATCH
    costs = [
        (
            model,
            arm,
            f"{1000 * row['seconds'] / steps:.1f}",
            f"{row['ratio']:.2f} ({row['least']:.2f} to {row['most']:.2f})",
            f"{row['growth'] / MEBI:.0f}",
        )
        for model, arms in result["models"].items()
        for arm, row in arms.items()
    ]
    show_table("an epoch", "model, arm, ms a step, over plain, MiB", costs)
    names = [name for name in result["epsilon"][0] if name not in ("noise", "sampling", "steps")]
    rows = [
        (f"{row['noise']:g}", f"{row['sampling']:.4g}", str(row["steps"]), *(f"{row[name]:.3f}" for name in names))
        for row in result["epsilon"]
    ]
    show_table("ε at 1e-5", ", ".join(("noise", "sampling", "steps", *names)), rows)


if __name__ == "__main__":
    command(__doc__, measure, show, {"--repeat": 5, "--models": "lenet,conv-2"})
