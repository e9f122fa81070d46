"""What ``Defend``, ``protected`` and a site's gate add to a train message of somebody else's app, as ratios over it.

One ClientApp as everybody writes it (plain SGD, ``--steps`` batches of 32 random 3 x 32 x 32 images), called in this
process with the message that a server would send, dense. Arms take turns; the median over the turns of an arm's own
ratio is printed, and its range. Seconds are of the processor, one thread: the model's loading and the answer's arrays,
which every app pays, are in all arms. Behind the gate the app has no Mod, and the site requires the defense; there a
model with batch norm is refused, but for a channel. Under an ε the gradients of single examples are most of it.

    python -m prunella.benchmarks.speed.mod [--repeat 7] [--steps 8] [--models lenet,resnet18] [--json]
"""

import tempfile
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from prunella.benchmarks.engine.inprocess import FIRST_NODE, InProcessGrid
from prunella.benchmarks.speed.bench import Work, command, show_table, turns
from prunella.core.randomness import stream
from prunella.flower.defend import Defend
from prunella.flower.gate import Gate
from prunella.flower.loop import protected
from prunella.tasks.task import Task, initial

BATCH, RATE, BARE, GATED = 32, 0.01, "the app alone", "{} behind the gate"
UPDATE, LOOP = ("none", "dgp", "top-k"), ("priprune", "channel-natural", "dp-sgd")
Loop = Callable[[nn.Module, Message, Context, list[tuple[Tensor, Tensor]]], None]


def plain(model: nn.Module, message: Message, context: Context, batches: list[tuple[Tensor, Tensor]]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for x, y in batches:
        optimizer.zero_grad()
        torch.autograd.backward(cross_entropy(model(x), y))
        optimizer.step()


def guarded(model: nn.Module, message: Message, context: Context, batches: list[tuple[Tensor, Tensor]]) -> None:
    optimizer, guard = torch.optim.SGD(model.parameters(), lr=RATE), protected(message, context, model, batches)
    for x, y in batches:
        guard.step(x, y, cross_entropy, optimizer)


def app_of(
    mods: list[Any], loop: Loop, build: Callable[[], nn.Module], batches: list[tuple[Tensor, Tensor]]
) -> ClientApp:
    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = build()
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        loop(model.train(), message, context, batches)
        told = MetricRecord({"num-examples": len(batches) * BATCH})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": told}), reply_to=message)

    return app


def messages(model: str, steps: int, repeat: int, folder: Path) -> dict[str, dict[str, float]]:
    """Every arm's time over the app's alone, ``repeat`` times; defenses of single examples where there is no batch
    norm. Raises where an answer is an error."""
    task, g = Task(model, (3, 32, 32), 10), stream(0, purpose="images")
    x, y = torch.rand(steps * BATCH, 3, 32, 32, generator=g), torch.randint(10, (steps * BATCH,), generator=g)
    batches = list(zip(torch.split(x, BATCH), torch.split(y, BATCH), strict=True))
    has_buffers, sent = bool(initial(task, 0)[1]), task.build().state_dict()

    def work(name: str, mods: list[Any], loop: Loop, gated: bool = False) -> Work:
        app, at = app_of(mods, loop, task.build, batches), folder / f"{name}{gated}"
        rule: dict[str, Any] = {"require": f"{name}, local-steps={steps}"} if gated else {}
        grid = InProcessGrid(app, 1, {"defenses": name}, at, **rule)
        grid.app = Gate(app, grid.contexts[FIRST_NODE].node_config) if gated else app

        def one() -> None:
            asked = Message(RecordDict({"arrays": ArrayRecord(sent)}), FIRST_NODE, "train")
            (reply,) = grid.send_and_receive([asked])
            if reply.has_error():
                raise RuntimeError(f"{name}: {reply.error.reason}")

        return one

    arms = {BARE: work(BARE, [], plain)} | {name: work(name, [Defend()], plain) for name in UPDATE}
    arms |= {name: work(name, [Defend()], guarded) for name in LOOP if not (has_buffers and name == "dp-sgd")}
    for name in ("channel-natural",) if has_buffers else (*UPDATE[1:], *LOOP):
        arms[GATED.format(name)] = work(name, [], plain if name in UPDATE else guarded, gated=True)
    return turns(arms, BARE, repeat)


def measure(options: Any) -> dict[str, Any]:
    """The result of a command line."""
    if options.repeat < 1 or options.steps < 1:
        raise ArgumentTypeError("--repeat and --steps must be at least 1")
    torch.set_num_threads(1)
    found = {}
    for name in [name for name in options.models.split(",") if name]:
        with tempfile.TemporaryDirectory() as folder:
            found[name] = messages(name, options.steps, options.repeat, Path(folder))
    return {"messages": found, "steps": options.steps, "repeat": options.repeat, "torch": torch.__version__}


def show(result: dict[str, Any]) -> None:
    lines = [
        (model, arm, f"{cost['seconds']:.3f}", f"{cost['ratio']:.2f}", f"{cost['least']:.2f} to {cost['most']:.2f}")
        for model, arms in result["messages"].items()
        for arm, cost in arms.items()
    ]
    show_table("a train message of somebody else's app", "model, defenses, seconds, ratio, range", lines)


def main() -> None:
    command(__doc__, measure, show, {"--repeat": 7, "--steps": 8, "--models": "lenet,resnet18"})


if __name__ == "__main__":
    main()
