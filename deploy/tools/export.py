"""``prunella export``: the model of a run, without the filters and neurons that are pruned entirely.

The model is checked and measured before it is written: its outputs on random images must equal those of the dense
masked model, and both run on the same images in turn, on one thread, to compare their median times. If no filter or
neuron is pruned entirely, the model keeps its size and the report says that nothing gets faster: a multiplication by
zero takes as long as any other.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

from prunella.core.config import parse_run
from prunella.core.errors import PrunellaError
from prunella.core.randomness import stream
from prunella.core.trees import Tree, apply_mask
from prunella.deploy.errors import LaunchError, UsageError
from prunella.deploy.runs import RunDir
from prunella.pruning.shrink import shrink
from prunella.server.best import FOLDER as BEST
from prunella.server.checkpoint import Checkpoint, load
from prunella.tasks.data import make_task
from prunella.tasks.exported import fitted, write_exported
from prunella.tasks.task import Task

FOLDER = "export"
TOLERANCE = 1e-5  # of the largest output, or of 1 where all are smaller
BATCH, PASSES = 64, 15


@dataclass(frozen=True)
class Exported:
    """What was written, and the gain. ``units`` are filters and neurons; ``speed_up`` is dense time over small."""

    folder: Path
    round: int
    parameters: tuple[int, int]
    units: tuple[int, int]
    difference: float
    speed_up: float
    note: str = ""

    @property
    def smaller(self) -> bool:
        return self.parameters[1] < self.parameters[0]

    def lines(self) -> list[str]:
        """What to tell the user."""
        (dense, small), (before, after) = self.parameters, self.units
        units = f"{after} of {before} filters and neurons"
        size = f"model      {small:,} of {dense:,} parameters, {units}, round {self.round}"
        same = f"outputs    equal to the dense masked model's to {self.difference:.1e} on {BATCH} random images"
        how = f"batch {BATCH}, median of {PASSES}, one thread"
        faster = f"speed      {self.speed_up:.2f} times the dense model's ({how})"
        if not self.smaller:
            faster = "speed      no whole filter is pruned: nothing gets faster"
        return [size, same, faster, *([f"note       {self.note}"] if self.note else []), f"files      {self.folder}"]


def _checkpoint(run: RunDir, best: bool) -> Checkpoint:
    saved = load(run.path / (BEST if best else "checkpoint"))
    if saved is None and best:
        raise UsageError(f"run {run.id} has no best round: leave out --best, or run with -c evaluation=clients")
    if saved is None:
        raise UsageError(f"run {run.id} has no checkpoint yet: wait for the end of its first round")
    return saved


def _masked(saved: Checkpoint) -> Tree:
    inside = apply_mask({name: saved.tree[name] for name in saved.mask}, saved.mask)
    return {**saved.tree, **inside}


def _units(tree: Tree) -> int:
    return sum(len(tensor) for tensor in tree.values() if tensor.ndim > 1)


def _size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def _seconds(work: Callable[[], Tensor]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def speed_up(dense: nn.Module, small: nn.Module, images: Tensor) -> float:
    """Median time of a forward pass of ``dense`` over that of ``small``, taken in turn on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            dense(images), small(images)
            pairs = [(_seconds(lambda: dense(images)), _seconds(lambda: small(images))) for _ in range(PASSES)]
    finally:
        torch.set_num_threads(threads)
    return median(p[0] for p in pairs) / median(p[1] for p in pairs)


def difference(dense: nn.Module, small: nn.Module, images: Tensor) -> float:
    """The largest difference of two networks' outputs, relative to the largest output where that exceeds 1."""
    with torch.no_grad():
        expected, got = dense(images), small(images)
    return float((expected - got).abs().max() / expected.abs().max().clamp(min=1.0))


def _smaller(task: Task, tree: Tree) -> tuple[Tree, str]:
    try:
        return shrink(task.build(), tree, task.shape), ""
    except PrunellaError as error:
        return tree, f"{error}, so every unit was left in place"


def export(run: RunDir, out: Path | None, best: bool = False) -> Exported:
    """Write the smaller model of a run's last checkpoint, or of the round clients scored ``best``, into ``out``, by
    default ``export/`` in the run."""
    saved = _checkpoint(run, best)
    settings = parse_run({name: value for name, value in saved.settings.items() if "." not in name})
    task = make_task(settings.model, settings.dataset, None)
    whole = _masked(saved)
    tree, note = _smaller(task, whole)
    dense, small = (fitted(task.build(), t).eval() for t in (whole, tree))
    images = torch.rand(BATCH, *task.shape, generator=stream(0, purpose="export"))
    apart = difference(dense, small, images)
    if not apart <= TOLERANCE:
        raise LaunchError(f"the smaller model's outputs differ by {apart:.1e}: nothing was written")
    gain = speed_up(dense, small, images) if tree is not whole and _size(small) < _size(dense) else 1.0
    folder = out if out is not None else run.path / FOLDER
    done = Exported(folder, saved.round, (_size(dense), _size(small)), (_units(whole), _units(tree)), apart, gain, note)
    facts = {"round": done.round, "run": run.id, "dense_parameters": done.parameters[0], "dense_units": done.units[0],
             "units": done.units[1], "largest_difference": apart, "speed_up": gain, "batch": BATCH}  # fmt: skip
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_exported(folder, task, small, facts)
    except OSError as error:
        raise UsageError(f"cannot write {folder} ({error.strerror}): choose another directory with --out") from None
    return done
