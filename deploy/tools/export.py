"""``prunella export``: the model of a run, without the filters and neurons that are pruned entirely.

The model is checked and measured before it is written: its outputs on random images must equal those of the dense
masked model, and both run on the same images in turn, on one thread, to compare their median times. If no filter or
neuron is pruned entirely, the model keeps its size and the report says that nothing gets faster: a multiplication by
zero takes as long as any other.

Other forms (``deploy.tools.forms``) are made of the smaller model, run by their own runtime, and compared with the
dense masked model before they are written (``deploy.tools.verified``): in float32 to ``FORM_TOLERANCE``; of int8 the
difference is told, and what it does to the accuracy where the server's test examples are at hand. A quarter of these is
set apart to calibrate int8 (``tasks.public``), and accuracy is of at most ``EXAMPLES`` of the others.
"""

import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from prunella.core.config import Run, parse_run
from prunella.core.errors import DataError, PrunellaError
from prunella.core.files import write_atomically
from prunella.core.folders import unwritable
from prunella.core.randomness import stream
from prunella.core.trees import Tree, apply_mask
from prunella.deploy.errors import LaunchError, UsageError, writable
from prunella.deploy.runs import RunDir, state
from prunella.deploy.tools.forms import FORMS, Form, Format
from prunella.deploy.tools.verified import BATCH, PASSES, Original, Verified, verified
from prunella.pruning.shrink import shrink
from prunella.server.best import FOLDER as BEST
from prunella.server.checkpoint import Checkpoint, load
from prunella.server.report.series import last
from prunella.server.store.read import read_metrics, read_run
from prunella.tasks.data import describe, load_test, make_task
from prunella.tasks.examples import Examples
from prunella.tasks.exported import PROGRAM, fitted, write_exported, write_program
from prunella.tasks.public import MINIMUM, SHARE, set_apart
from prunella.tasks.task import Task

FOLDER = "export"
TOLERANCE = 1e-5  # of the largest output, or of 1 where all are smaller
FORM_TOLERANCE = 1e-4  # the same for another runtime's own arithmetic
TURNS = 15
EXAMPLES, CALIBRATION = 2000, 256


@dataclass(frozen=True)
class Wanted:
    """What to write beside PyTorch's files: ``formats``, each as int8 too, timed or not; ``data`` is where the server's
    test examples lie."""

    out: Path | None = None
    best: bool = False
    formats: tuple[Format, ...] = ()
    int8: bool = False
    bench: bool = False
    data: Path | None = None


@dataclass(frozen=True)
class Exported:
    """What was written, and the gain. ``units`` are filters and neurons; ``speed_up`` is dense time over small."""

    folder: Path
    round: int
    parameters: tuple[int, int]
    units: tuple[int, int]
    difference: float
    speed_up: float
    notes: tuple[str, ...] = ()
    forms: tuple[str, ...] = ()
    bench: tuple[str, ...] = ()

    @property
    def smaller(self) -> bool:
        return self.parameters[1] < self.parameters[0]

    def lines(self) -> list[str]:
        """What to tell the user."""
        (dense, small), (before, after) = self.parameters, self.units
        units = f"{after} of {before} filters and neurons"
        size = f"model      {small:,} of {dense:,} parameters, {units}, round {self.round}"
        same = f"outputs    equal to the dense masked model's to {self.difference:.1e} on {BATCH} random images"
        how = f"batch {BATCH}, median of {TURNS}, one thread"
        faster = f"speed      {self.speed_up:.2f} times the dense model's ({how})"
        if not self.smaller:
            faster = "speed      no whole filter is pruned: nothing gets faster"
        marked = (("form", self.forms), ("bench", self.bench), ("note", self.notes))
        return [size, same, faster, *(f"{m:10} {text}" for m, texts in marked for text in texts),
                f"files      {self.folder}"]  # fmt: skip


def _checkpoint(run: RunDir, best: bool) -> Checkpoint:
    """The last one, or the best. One that is damaged has another before it, whose model is not what the run ended with:
    refused."""
    ended = 0 if best else int(last(read_metrics(run.path), "round") or 0)  # before the checkpoint: the run may go on
    saved = load(run.path / (BEST if best else "checkpoint"))
    if saved is None and best:
        raise UsageError(f"run {run.id} has no best round: leave out --best, or run with -c evaluation=clients")
    if saved is None:
        raise UsageError(f"run {run.id} has no checkpoint yet: wait for the end of its first round")
    if saved.round < ended:
        raise UsageError(
            f"the checkpoint of round {ended}, the last of run {run.id}, is damaged or missing, and the newest other "
            f"is of round {saved.round}: restore it, or train what is missing with `prunella run --resume {run.id}`"
        )
    return saved


def _masked(saved: Checkpoint) -> Tree:
    inside = apply_mask({name: saved.tree[name] for name in saved.mask}, saved.mask)
    return {**saved.tree, **inside}


def _units(tree: Tree) -> int:
    return sum(len(tensor) for tensor in tree.values() if tensor.ndim > 1)


def _size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def _seconds(work: Callable[[], Tensor]) -> float:
    begin = time.process_time()  # of one thread: a busy machine takes none of it
    work()
    return time.process_time() - begin


def speed_up(dense: nn.Module, small: nn.Module, images: Tensor) -> float:
    """Median processor time of a forward pass of ``dense`` over that of ``small``, taken in turn on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            dense(images), small(images)
            pairs = [(_seconds(lambda: dense(images)), _seconds(lambda: small(images))) for _ in range(TURNS)]
    finally:
        torch.set_num_threads(threads)
    return median(p[0] for p in pairs) / median(p[1] for p in pairs)


def difference(dense: nn.Module, small: nn.Module, images: Tensor) -> float:
    """The largest difference of two networks' outputs, relative to the largest output where that exceeds 1."""
    with torch.no_grad():
        expected, got = dense(images), small(images)
    return float((expected - got).abs().max() / expected.abs().max().clamp(min=1.0))


def _task(run: RunDir, settings: Run, data: Path | None) -> Task:
    """The task of the run. Its images may lie elsewhere by now, so it is what the run recorded; a run of an older
    release did not, and is described by the images in ``data`` or where they lay. Raises ``UsageError``."""
    known = read_run(run.path)
    if known.get("shape") and known.get("classes"):
        channels, height, width = map(int, known["shape"])
        return Task(settings.model, (channels, height, width), int(known["classes"]))
    try:
        return make_task(settings.model, settings.dataset, data)
    except DataError as error:
        raise UsageError(f"{error}: name the directory of the run's images with --data") from None


def _unfinished(run: RunDir, round: int, rounds: int) -> tuple[str, ...]:
    """That the model is not the one that the run was to end with, where it has not completed."""
    if (now := state(run)) == "completed":
        return ()
    return (f"the run is {now}: this is its model after round {round} of {rounds}",)


def _smaller(task: Task, tree: Tree) -> tuple[Tree, tuple[str, ...]]:
    try:
        return shrink(task.build(), tree, task.shape), ()
    except PrunellaError as error:
        return tree, (f"{error}, so every unit was left in place",)


def _test(task: Task, settings: Run, wanted: Wanted) -> tuple[Tensor | None, Examples | None, tuple[str, ...]]:
    """Images to calibrate on and test examples, or None of both and the reason. Raises ``UsageError`` where int8 was
    wanted and there are none."""
    try:
        test = load_test(settings.dataset, wanted.data)
        why = "" if test is not None and len(test) >= SHARE * MINIMUM else "the server has too few test examples"
        if describe(settings.dataset, wanted.data) != (task.shape, task.classes):
            why = "the images have another shape or other classes than the run's"
    except PrunellaError as error:
        test, why = None, str(error)
    if why and wanted.int8:
        raise UsageError(f"int8 is calibrated on the server's test images: name their directory with --data ({why})")
    if why or test is None:
        return None, None, (f"accuracy was not measured: {why}",)
    public, rest = set_apart(task, test, settings.seed)
    if rest is None:
        return public.x[:CALIBRATION], None, ()
    return public.x[:CALIBRATION], Examples(rest.x[:EXAMPLES], rest.y[:EXAMPLES]), ()


@torch.no_grad()
def _original(dense: nn.Module, images: Tensor, test: Examples | None) -> Original:
    scored = None if test is None else torch.cat([dense(part) for part in torch.split(test.x, BATCH)])
    return Original(images, dense(images), test, scored)


def _write(form: Form, asked: str, small: nn.Module, images: Tensor, path: Path) -> None:
    """Raises ``LaunchError`` where the other runtime's own packages cannot."""
    try:
        form.write(small, images, path)
    except PrunellaError:
        raise
    except Exception as error:  # noqa: BLE001 - somebody's own model, in other people's hands
        why = f"{form.file}: this model cannot be written in that form ({type(error).__name__})"
        raise LaunchError(f"{why}: leave out {asked}; nothing was written") from None


def _forms(
    small: nn.Module, wanted: Wanted, original: Original, calibration: Tensor | None, folder: Path
) -> list[Verified]:
    """Write every form that is wanted into ``folder``, and have it run."""
    formats = wanted.formats or (("onnx",) if wanted.int8 else ())
    found = []
    for name in formats:
        for int8 in (False, True)[: 1 + wanted.int8]:
            form = FORMS[name, int8]
            images = calibration if int8 and calibration is not None else original.images
            _write(form, f"--format {name}{' --int8' if int8 else ''}", small, images, folder / form.file)
            checked = verified(folder / form.file, original, PASSES if wanted.bench else 0)
            if not int8 and not checked.difference <= FORM_TOLERANCE:
                raise LaunchError(f"{form.file}: outputs differ by {checked.difference:.1e}: nothing was written")
            found.append(checked)
    return found


def _bench(dense: nn.Module, small: nn.Module, task: Task, original: Original, folder: Path) -> list[Verified]:
    """PyTorch's own file of the smaller model, and what it would be of the dense one."""
    rows = []
    for name, module in (("dense.pt2", dense), (PROGRAM, small)):
        write_program(folder / name, task, module)
        rows.append(verified(folder / name, original, PASSES))
    return rows


def export(run: RunDir, wanted: Wanted) -> Exported:
    """Write the smaller model of a run's last checkpoint, or of the round clients scored best, into ``wanted.out``, by
    default ``export/`` in the run."""
    if wanted.data is not None and not wanted.data.is_dir():
        raise UsageError(f"there is no directory {wanted.data}: name that of the test examples with --data")
    folder = wanted.out if wanted.out is not None else run.path / FOLDER
    if reason := unwritable(folder):  # before the minutes that --bench may take
        raise UsageError(f"cannot write {folder} ({reason}): choose another with --out")
    saved = _checkpoint(run, wanted.best)
    settings = parse_run({name: value for name, value in saved.settings.items() if "." not in name})
    task = _task(run, settings, wanted.data)
    whole = _masked(saved)
    tree, notes = _smaller(task, whole)
    notes = _unfinished(run, saved.round, settings.rounds) + notes
    dense, small = (fitted(task.build(), t).eval() for t in (whole, tree))
    images = torch.rand(BATCH, *task.shape, generator=stream(0, purpose="export"))
    apart = difference(dense, small, images)
    if not apart <= TOLERANCE:
        raise LaunchError(f"the smaller model's outputs differ by {apart:.1e}: nothing was written")
    gain = speed_up(dense, small, images) if tree is not whole and _size(small) < _size(dense) else 1.0
    others = bool(wanted.formats or wanted.int8)
    calibration, test, why = _test(task, settings, wanted) if others else (None, None, ())
    original = _original(dense, images, test)
    with TemporaryDirectory() as made:
        forms = _forms(small, wanted, original, calibration, Path(made))
        bench = [*_bench(dense, small, task, original, Path(made)), *forms] if wanted.bench else []
        done = Exported(
            folder, saved.round, (_size(dense), _size(small)), (_units(whole), _units(tree)), apart, gain,
            notes + why, tuple(f.said(original) for f in forms), tuple(f.costs() for f in bench),
        )  # fmt: skip
        facts = {"round": done.round, "run": run.id, "dense_parameters": done.parameters[0], "speed_up": gain,
                 "dense_units": done.units[0], "units": done.units[1], "largest_difference": apart, "batch": BATCH,
                 "forms": [asdict(f) for f in forms], "bench": [asdict(f) for f in bench]}  # fmt: skip
        with writable(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for form in forms:
                write_atomically(folder / form.file, partial(shutil.copyfile, Path(made) / form.file))
            write_exported(folder, task, small, facts)
    return done
