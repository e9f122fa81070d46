"""Smaller networks: what ``prunella export`` makes of masks, beside Torch-Pruning 1.6.1 on the same weights.

The two do different things, and a row says how far each gets; no row says which network is the better one:

* ``weights``: the smallest weights masked, then ``pruning.shrink``, which removes units with nothing to do;
* ``filters, by layer`` and ``filters, global``: whole channels masked by ``keep_channels`` (the strategy ``magnitude``
  with ``granularity=filter``), then ``shrink``. The result computes what the dense *masked* network does, to ``apart``,
  and so needs no training of its own;
* ``torch-pruning``: its ``MagnitudePruner`` by groups of layers that depend on each other, residual sums included. It
  cuts through those, so that its result is no network that was trained or measured before: it has to be fine-tuned.

``rate`` is the share of the prunable weights that a mask removes. Torch-Pruning is asked for a share of channels, and
gets 1 - sqrt(1 - rate), by which about ``rate`` of the weights go where input and output channels are both cut.
Accuracy is not compared: the weights are the initial ones, as size and speed do not depend on them. FLOPs are PyTorch's
count (two a multiplication with addition) for one image; time is a forward pass of ``BATCH`` images, evaluation mode,
one thread, arms in turns, processor seconds, the median of the dense network's over the arm's own.

    pip install torch-pruning==1.6.1    # into an environment of its own
    python -m prunella.benchmarks.speed.smaller [--model resnet18] [--rates 0.3,0.5,0.7] [--repeat 9] [--json]
"""

import copy
import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from prunella.benchmarks.speed.bench import command, importable, show_table, turns
from prunella.core.randomness import stream
from prunella.core.trees import apply_mask
from prunella.deploy.tools.export import difference
from prunella.pruning.channels import channel_groups
from prunella.pruning.filters import keep_channels
from prunella.pruning.scores import magnitude
from prunella.pruning.selection import Scope, keep_by_score
from prunella.pruning.shrink import shrink
from prunella.tasks.exported import fitted
from prunella.tasks.task import Task, initial, prunable

PACKAGES = {"torch_pruning": "torch-pruning==1.6.1"}
BATCH, DENSE, PEER = 16, "dense", "torch-pruning"


def _ours(task: Task, granularity: str, rate: float) -> tuple[nn.Module, nn.Module]:
    """The exported network, and the masked one that it has to equal."""
    params, buffers = initial(task, 0)
    scores, names = magnitude(params), prunable(task.build())
    if granularity == "weights":
        mask = keep_by_score(scores, names, rate)
    else:
        scope: Scope = "layer" if granularity == "filters, by layer" else "global"
        mask = keep_channels(scores, channel_groups(task.build(), task.shape), names, rate, scope)
    masked = {**apply_mask(params, mask), **buffers}
    small = shrink(task.build(), masked, task.shape)
    return fitted(task.build(), small).eval(), fitted(task.build(), masked).eval()


def _peer(task: Task, rate: float) -> nn.Module:
    """Torch-Pruning's network at about the rate, its defaults but for the last layer, which keeps the classes."""
    import torch_pruning

    params, buffers = initial(task, 0)
    module = copy.deepcopy(fitted(task.build(), {**params, **buffers})).eval()
    last = [layer for layer in module.modules() if isinstance(layer, nn.Linear)][-1:]
    torch_pruning.pruner.MagnitudePruner(
        module,
        torch.zeros(1, *task.shape),
        importance=torch_pruning.importance.MagnitudeImportance(),
        pruning_ratio=1 - math.sqrt(1 - rate),
        ignored_layers=last,
    ).step()
    return module


def flops(module: nn.Module, shape: tuple[int, ...]) -> int:
    """Of one image's forward pass."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(torch.zeros(1, *shape))
    return int(counter.get_total_flops())


def networks(task: Task, rates: list[float], there: set[str]) -> dict[str, tuple[nn.Module, nn.Module | None]]:
    """Every arm's network, and the one that it promises to equal."""
    params, buffers = initial(task, 0)
    found: dict[str, tuple[nn.Module, nn.Module | None]] = {
        DENSE: (fitted(task.build(), {**params, **buffers}).eval(), None)
    }
    for rate in rates:
        for granularity in ("weights", "filters, by layer", "filters, global"):
            found[f"{granularity} {rate:g}"] = _ours(task, granularity, rate)
        if PACKAGES.keys() <= there:
            found[f"{PEER} {rate:g}"] = (_peer(task, rate), None)
    return found


def compare(options: Any) -> dict[str, Any]:
    """The result of a command line."""
    there, task = importable(PACKAGES), Task(options.model, (3, 32, 32), 10)
    torch.set_num_threads(1)
    made = networks(task, [float(rate) for rate in options.rates.split(",")], there)
    images = torch.rand(BATCH, *task.shape, generator=stream(0, purpose="export"))

    @torch.no_grad()
    def forward(module: nn.Module) -> Tensor:
        answer: Tensor = module(images)
        return answer

    times = turns({name: partial(forward, module) for name, (module, _) in made.items()}, DENSE, options.repeat)
    arms = {
        name: {
            "parameters": sum(p.numel() for p in module.parameters()),
            "flops": flops(module, task.shape),
            "apart": None if equal is None else difference(equal, module, images),
            "faster": 1 / times[name]["ratio"],
            "least": 1 / times[name]["most"],
            "most": 1 / times[name]["least"],
            "seconds": times[name]["seconds"],
        }
        for name, (module, equal) in made.items()
    }
    return {"model": options.model, "arms": arms, "batch": BATCH, "repeat": options.repeat, "torch": torch.__version__}


def show(result: dict[str, Any]) -> None:
    arms = result["arms"]
    rows = [
        (
            name,
            f"{row['parameters']:,}",
            f"{row['parameters'] / arms[DENSE]['parameters']:.3f}",
            f"{row['flops'] / arms[DENSE]['flops']:.3f}",
            f"{row['faster']:.2f} ({row['least']:.2f} to {row['most']:.2f})",
            "" if row["apart"] is None else f"{row['apart']:.0e}",
        )
        for name, row in arms.items()
    ]
    show_table(result["model"], "network, parameters, share, FLOPs, times as fast, apart", rows)


if __name__ == "__main__":
    command(__doc__, compare, show, {"--model": "resnet18", "--rates": "0.3,0.5,0.7", "--repeat": 9})
