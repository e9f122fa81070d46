"""Smaller networks of equal FLOPs: what ``prunella export`` makes of masks, beside Torch-Pruning 1.6.1.

A network is trained, cut to a share of its FLOPs in every way there is, and trained on for the same few batches:

* ``weights``: the smallest weights masked, then ``pruning.shrink``, which finds nothing to remove; not trained on;
* ``filters, by layer`` and ``filters, global``: channels masked by ``keep_channels`` (the strategy ``magnitude`` with
  ``granularity=filter``), then ``shrink``; the result computes what the dense *masked* network does, to ``apart``;
* ``torch-pruning, by layer`` and ``torch-pruning, global``: its ``MagnitudePruner`` at its defaults, the last layer
  kept. It cuts groups of layers that depend on each other, as ``keep_channels`` does; it scores with the weights that
  read a channel, too.

Each is given the rate at which its FLOPs are the nearest below the share that was asked, found by bisection. FLOPs are
PyTorch's count (two a multiplication with addition) for one image. Accuracy is of the whole test set, over seeds of
weights and batches, or of its first ``--tested``; ``at once`` is before training on. With ``--epochs 0`` nothing is
trained, and none is measured. Time is a forward pass of ``BATCH`` images, evaluation mode, one thread, arms in
turns, processor seconds, the median of the dense network's over the arm's own; the first seed's.

    pip install torch-pruning==1.6.1    # into an environment of its own
    python -m prunella.benchmarks.speed.smaller --data DIR [--model resnet18] [--size 16] [--flops 0.5,0.25] [--json]
"""

import copy
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate
from torch.utils.flop_counter import FlopCounterMode

from prunella.benchmarks.speed.bench import command, importable, show_table, turns
from prunella.core.randomness import stream
from prunella.core.trees import Tree, apply_mask
from prunella.deploy.tools.export import difference
from prunella.pruning.channels import channel_groups
from prunella.pruning.filters import keep_channels
from prunella.pruning.scores import magnitude
from prunella.pruning.selection import Scope, keep_by_score
from prunella.pruning.shrink import shrink
from prunella.tasks.data import Partition, describe, load_client, load_test
from prunella.tasks.examples import Examples
from prunella.tasks.exported import fitted
from prunella.tasks.task import Task, initial, prunable

PACKAGES = {"torch_pruning": "torch-pruning==1.6.1"}
BATCH, DENSE, PEER, HALVINGS = 16, "dense", "torch-pruning", 8
STEP, RATE, MOMENTUM = 32, 0.02, 0.9  # images in a training step; of SGD
SCOPES: dict[str, Scope] = {"by layer": "layer", "global": "global"}
Cut = Callable[[nn.Module, float], nn.Module]  # a trained network and a rate to a smaller network


def _tree(module: nn.Module) -> Tree:
    return {name: t.detach() for name, t in module.state_dict().items() if t.is_floating_point()}


def _ours(task: Task, scope: Scope | None, module: nn.Module, rate: float) -> nn.Module:
    """The exported network; ``scope`` None masks single weights. ``masked`` is what it has to equal."""
    masked = _masked(task, scope, module, rate)
    return fitted(task.build(), shrink(task.build(), _tree(masked), task.shape)).eval()


def _masked(task: Task, scope: Scope | None, module: nn.Module, rate: float) -> nn.Module:
    params, names = {name: p.detach() for name, p in module.named_parameters()}, prunable(module)
    if scope is None:
        mask = keep_by_score(magnitude(params), names, rate)
    else:
        mask = keep_channels(magnitude(params), channel_groups(module, task.shape), names, rate, scope)
    return fitted(task.build(), {**_tree(module), **apply_mask(params, mask)}).eval()


def _peer(task: Task, scope: Scope, module: nn.Module, rate: float) -> nn.Module:
    """Torch-Pruning's network at a share of channels."""
    import torch_pruning

    cut = copy.deepcopy(module).eval()
    last = [layer for layer in cut.modules() if isinstance(layer, nn.Linear)][-1:]
    torch_pruning.pruner.MagnitudePruner(
        cut,
        torch.zeros(1, *task.shape),
        importance=torch_pruning.importance.MagnitudeImportance(),
        pruning_ratio=rate,
        global_pruning=scope == "global",
        ignored_layers=last,
    ).step()
    return cut


def flops(module: nn.Module, shape: tuple[int, ...]) -> int:
    """Of one image's forward pass."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(torch.zeros(1, *shape))
    return int(counter.get_total_flops())


def at_flops(cut: Callable[[float], nn.Module], most: float, shape: tuple[int, ...]) -> tuple[float, nn.Module]:
    """The rate in [0, 1] of the most FLOPs that are no more than ``most``, to 1 in 2^``HALVINGS``, and its network."""
    low, high, found = 0.0, 1.0, None
    for _ in range(HALVINGS):
        rate = (low + high) / 2
        module = cut(rate)
        if flops(module, shape) > most:
            low = rate
        else:
            high, found = rate, (rate, module)
    return found or (high, cut(high - 2**-HALVINGS))


def train(module: nn.Module, examples: Examples, epochs: float, seed: int) -> None:
    """SGD over batches that depend on the seed alone; the module is changed, or with 0 epochs left as it is."""
    if not epochs:
        return
    g = stream(seed, purpose="smaller")
    order = torch.cat([torch.randperm(len(examples), generator=g) for _ in range(-int(-epochs // 1))])
    optimizer = torch.optim.SGD(module.parameters(), RATE, MOMENTUM)
    module.train()
    for chosen in torch.split(order[: int(epochs * len(examples))], STEP):
        optimizer.zero_grad()
        loss: Any = cross_entropy(module(examples.x[chosen]), examples.y[chosen])
        loss.backward()
        optimizer.step()
    module.eval()


@torch.no_grad()
def accuracy(module: nn.Module, examples: Examples) -> float:
    """Share of right labels, in evaluation mode."""
    right = [
        module(x).argmax(1) == y for x, y in zip(torch.split(examples.x, 64), torch.split(examples.y, 64), strict=True)
    ]
    return float(torch.cat(right).double().mean())


def _score(test: Examples | None, module: nn.Module) -> float | None:
    return None if test is None else accuracy(module, test)


def arms(task: Task, there: set[str]) -> dict[str, Cut]:
    """Every way to cut, by name."""
    found: dict[str, Cut] = {"weights": partial(_ours, task, None)}
    found |= {f"filters, {name}": partial(_ours, task, scope) for name, scope in SCOPES.items()}
    if PACKAGES.keys() <= there:
        found |= {f"{PEER}, {name}": partial(_peer, task, scope) for name, scope in SCOPES.items()}
    return found


def _apart(task: Task, name: str, dense: nn.Module, small: nn.Module, rate: float) -> float | None:
    """How far ours is off the masked network, as exported."""
    if name.startswith(PEER):
        return None
    scope = SCOPES.get(name.removeprefix("filters, "))
    images = torch.rand(BATCH, *task.shape, generator=stream(0, purpose="export"))
    return difference(_masked(task, scope, dense, rate), small, images)


def measure(
    task: Task, data: tuple[Examples, Examples], options: Any, seed: int
) -> tuple[dict[str, Any], dict[str, nn.Module]]:
    """One seed's rows by network, and the networks."""
    learn, test = data
    dense = fitted(task.build(), dict(pair for tree in initial(task, seed) for pair in tree.items()))
    train(dense, learn, options.epochs, seed)
    whole, score = flops(dense, task.shape), partial(_score, test if options.epochs else None)
    rows: dict[str, Any] = {DENSE: {"flops": whole, "accuracy": score(dense), "at_once": None, "apart": None}}
    networks = {DENSE: dense}
    for share in (float(each) for each in options.flops.split(",")):
        for name, cut in arms(task, importable(PACKAGES)).items():
            if name == "weights":  # no rate of which changes the FLOPs
                rate, small = 1 - share, cut(dense, 1 - share)
            else:
                rate, small = at_flops(partial(cut, dense), share * whole, task.shape)
            apart, at_once = _apart(task, name, dense, small, rate), score(small)
            if name != "weights":
                train(small, learn, options.tune, seed + 1000)
            networks[f"{name} {share:g}"] = small
            rows[f"{name} {share:g}"] = {"flops": flops(small, task.shape), "rate": rate, "apart": apart,
                                         "at_once": at_once, "accuracy": score(small)}  # fmt: skip
    for name, module in networks.items():
        rows[name]["parameters"] = sum(p.numel() for p in module.parameters())
    return rows, networks


def _data(options: Any) -> tuple[Task, Examples, Examples]:
    root = Path(options.data) if options.data else None
    (channels, *_), classes = describe(options.dataset, root)
    task = Task(options.model, (channels, options.size, options.size), classes)

    def sized(found: Examples, most: int) -> Examples:
        return Examples(interpolate(found.x[:most], task.shape[1:], mode="bilinear", antialias=True), found.y[:most])

    test = load_test(options.dataset, root)
    learn = load_client(options.dataset, Partition("iid", 1), 0, root)
    if test is None:
        raise SystemExit(f"{options.dataset} has no test examples")
    return task, sized(learn, options.images), sized(test, options.tested or len(test))


def compare(options: Any) -> dict[str, Any]:
    """The result of a command line."""
    torch.set_num_threads(options.threads)
    task, learn, test = _data(options)
    seeds = [measure(task, (learn, test), options, seed) for seed in range(options.seeds)]
    torch.set_num_threads(1)
    images = torch.rand(BATCH, *task.shape, generator=stream(0, purpose="export"))

    @torch.no_grad()
    def forward(module: nn.Module) -> Tensor:
        answer: Tensor = module(images)
        return answer

    first = seeds[0][1]
    times = turns({name: partial(forward, module) for name, module in first.items()}, DENSE, options.repeat)
    found = {
        name: {
            "seeds": [rows[name] for rows, _ in seeds],
            "faster": 1 / times[name]["ratio"],
            "least": 1 / times[name]["most"],
            "most": 1 / times[name]["least"],
            "seconds": times[name]["seconds"],
        }
        for name in first
    }
    asked = {key: value for key, value in vars(options).items() if key not in ("data", "json")}
    return {"arms": found, "batch": BATCH, "asked": asked, "torch": torch.__version__}


def _span(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.mean(known):.3f} ({min(known):.3f} to {max(known):.3f})" if known else ""


def show(result: dict[str, Any]) -> None:
    """Parameters and FLOPs are the first seed's; the others' differ by a channel."""
    dense = result["arms"][DENSE]["seeds"][0]
    rows = []
    for name, row in result["arms"].items():
        first = row["seeds"][0]
        apart = [each["apart"] for each in row["seeds"] if each["apart"] is not None]
        rows.append(
            (
                name,
                f"{first['parameters']:,}",
                f"{first['parameters'] / dense['parameters']:.3f}",
                f"{first['flops'] / dense['flops']:.3f}",
                f"{row['faster']:.2f} ({row['least']:.2f} to {row['most']:.2f})",
                _span([each["at_once"] for each in row["seeds"]]),
                _span([each["accuracy"] for each in row["seeds"]]),
                f"{max(apart):.0e}" if apart else "",
            )
        )
    heads = "network, parameters, share, FLOPs, times as fast, accuracy at once, accuracy, apart"
    show_table(result["asked"]["model"], heads, rows, 160)


if __name__ == "__main__":
    settings = {"--model": "resnet18", "--dataset": "mnist", "--data": "", "--size": 16, "--flops": "0.5,0.25"}
    lengths = {"--images": 2000, "--tested": 0, "--epochs": 3.0, "--tune": 1.0, "--seeds": 3, "--repeat": 9}
    lengths["--threads"] = 2
    command(__doc__, compare, show, {**settings, **lengths})
