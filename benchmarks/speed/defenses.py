"""What the defenses cost in time, as ratios: selection over one ``torch.topk``, an epoch over plain SGD.

Selection: DGP's two thresholds (5 % and 75 %, whole layer as one tensor) over the single 20 % ``torch.topk`` that Top-k
pays, at the sizes of ResNet18 and VGG-11; the paper's DGP pays 1.3 to 2.4 times. Epochs: local training under a defense
over the same without, batch 64, on random 3 x 32 x 32 images, and Opacus DP-SGD beside it in the same run; CHN prints
4 to 10 % for the channels. ``dp-sgd, seeded`` is what DP-SGD would cost without its precautions: sums in float32 and
noise of a ``torch.Generator``, which is no promise at all. Arms take turns in every repetition, so that a busy machine
slows all of them; the median over repetitions of an arm's own ratio is printed, and its range. Seconds are of the
processor, one thread. Opacus gets the model with group norm in place of batch norm, and not its secure mode. Fitting a
channel (once per client) is not in an epoch; its seconds are printed apart.

    python -m prunella.benchmarks.speed.defenses [--repeat 5] [--steps 4] [--models lenet,conv-2,resnet10] [--json]
"""

import time
from argparse import ArgumentTypeError
from collections.abc import Sequence
from typing import Any

import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from opacus.validators import ModuleValidator
from torch.nn.functional import cross_entropy

from prunella.benchmarks.speed.bench import Work, command, show_table, turns
from prunella.core.randomness import PrivateGenerator, rehearsal, stream
from prunella.core.trees import Tree, full_mask, map_trees, to_device, zeros_like
from prunella.privacy import DEFENSES
from prunella.privacy.chain import Chain, Link, build_chain, start
from prunella.privacy.defense import State, Step, StepDefense
from prunella.privacy.dgp import dual_mask
from prunella.privacy.dp_sgd import DpSgd, no_state
from prunella.strategies.round.local import Procedure, Received, local_update
from prunella.tasks.examples import Examples
from prunella.tasks.task import Task, initial
from prunella.tasks.training import Sgd

SIZES = {"resnet18": 11_173_962, "vgg-11": 9_231_114}
SEEDED = "dp-sgd, seeded"
COMPARED = ("channel-natural", "channel-white", "channel-personalized", "priprune", "dgp", SEEDED)
IMAGES, BATCH = 512, 64


def selection(size: int, repeat: int) -> dict[str, dict[str, float]]:
    """DGP's selection and Top-k's on a normal vector of ``size``."""
    values = torch.randn(size, generator=stream(0, purpose="selection"))
    inside = torch.ones(size, dtype=torch.bool)
    arms: dict[str, Work] = {
        "torch.topk": lambda: torch.topk(values.abs(), size // 5),
        "dgp": lambda: dual_mask(values, inside, 0.05, 0.75),
    }
    return turns(arms, "torch.topk", repeat)


def epoch(task: Task, chain: Chain, data: Examples, steps: int) -> tuple[Work, float]:
    """A function that trains ``steps`` batches under the chain where ``data`` is, and the seconds it took to fit the
    chain."""
    device = data.x.device
    params, buffers = (to_device(tree, device) for tree in initial(task, 0))
    begin = time.process_time()
    state = start(chain, data.x, params, {}, rehearsal(0, purpose="fit"))
    fitted = time.process_time() - begin
    procedure = Procedure(task.build().to(device), Sgd(0.01), chain)
    received = Received(params, full_mask(params), buffers)
    batches = [Examples(data.x[i * BATCH :][:BATCH], data.y[i * BATCH :][:BATCH]) for i in range(steps)]
    work = lambda: local_update(procedure, received, iter(batches), state, rehearsal(0, purpose="noise"))  # noqa: E731
    return work, fitted


def seeded_dp_sgd(settings: DpSgd | None = None) -> Chain:
    """DP-SGD as it is often written: norms and sums in float32, noise of a Mersenne twister, nothing rounded."""
    settings, draws = settings or DpSgd(), torch.Generator().manual_seed(0)

    def apply(gradient: Tree, step: Step, state: State, generator: PrivateGenerator) -> tuple[Tree, State]:
        total = zeros_like(step.params)
        for each in step.per_example():
            flat = {name: g.reshape(len(g), -1) for name, g in each.items()}
            norms = torch.stack([torch.linalg.vector_norm(g, dim=1) for g in flat.values()]).norm(dim=0)
            factors = (settings.clip / norms).clamp(max=1.0)
            total = map_trees(lambda t, g, f=factors: t + (f @ g).view(t.shape), total, flat)
        noise = settings.clip * settings.noise_multiplier
        return map_trees(lambda t: (t + noise * torch.randn(t.shape, generator=draws)) / step.batch, total), state

    return Chain((Link("dp-sgd", settings, StepDefense(no_state, apply), DEFENSES["dp-sgd"]),))


def _opacus(task: Task, data: Examples, steps: int) -> Work:
    """Opacus DP-SGD on the same batches."""
    model = GradSampleModule(ModuleValidator.fix(task.build()))
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = DPOptimizer(sgd, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=BATCH)

    def work() -> None:
        for i in range(steps):
            optimizer.zero_grad()
            loss = cross_entropy(model(data.x[i * BATCH :][:BATCH]), data.y[i * BATCH :][:BATCH])
            torch.autograd.backward(loss)
            optimizer.step()

    return work


def epochs(
    model: str, steps: int, repeat: int, defenses: Sequence[str] = COMPARED, seed: int = 0
) -> dict[str, dict[str, Any]]:
    """Every defense's training time over plain SGD's on ``model``; DP-SGD where the model has no batch norm."""
    task, g = Task(model, (3, 32, 32), 10), stream(seed, purpose="images")
    data = Examples(torch.rand(IMAGES, 3, 32, 32, generator=g), torch.randint(10, (IMAGES,), generator=g))
    arms: dict[str, Work] = {}
    fitted: dict[str, float] = {}
    has_buffers = bool(initial(task, 0)[1])
    for name in ("none", *defenses, "dp-sgd"):
        if not (has_buffers and name in ("dp-sgd", SEEDED)):
            chain = seeded_dp_sgd() if name == SEEDED else build_chain([name], {})
            arms[name], fitted[name] = epoch(task, chain, data, steps)
    arms["opacus"] = _opacus(task, data, steps)
    return {"arms": turns(arms, "none", repeat), "fit_seconds": {k: v for k, v in fitted.items() if "channel" in k}}


def show(result: dict[str, Any]) -> None:
    rows = {f"selection {name}": arms for name, arms in result["selection"].items()}
    rows |= {f"epoch {name}": found["arms"] for name, found in result["epochs"].items()}
    lines = [
        (what, arm, f"{cost['seconds']:.3f}", f"{cost['ratio']:.2f}", f"{cost['least']:.2f} to {cost['most']:.2f}")
        for what, arms in rows.items()
        for arm, cost in arms.items()
    ]
    show_table("what defenses cost", "what, arm, seconds, ratio, range", lines)


def measure(options: Any) -> dict[str, Any]:
    """The result of a command line."""
    if options.repeat < 1 or not 1 <= options.steps <= IMAGES // BATCH:
        raise ArgumentTypeError(f"--repeat must be at least 1 and --steps between 1 and {IMAGES // BATCH}")
    torch.set_num_threads(1)
    names = [name for name in options.models.split(",") if name]
    return {
        "selection": {name: selection(size, options.repeat) for name, size in SIZES.items()},
        "epochs": {name: epochs(name, options.steps, options.repeat) for name in names},
        "repeat": options.repeat,
        "torch": torch.__version__,
    }


def main() -> None:
    command(__doc__, measure, show, {"--repeat": 5, "--steps": 4, "--models": "lenet,conv-2,resnet10"})


if __name__ == "__main__":
    main()
