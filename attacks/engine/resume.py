"""Descents that can be stopped and resumed: what a long attack keeps on disk.

A ``ResumeStore`` is a folder with one safetensors file for each descent of an attack. Every ``every`` iterations the
file gets the descent's variables, its optimizer's state and the best guess so far; when the descent is over, its
answer. An attack that is started again with the same folder draws the same starts, skips the descents that are over and
goes on where it stopped. Its answer is equal to the last bit to that of an attack that was never stopped. Files are
written atomically and only their owner can read them, since they hold reconstructions. A folder of another attack
(other settings, target or starts) is refused.

A store may also have a ``deadline``: from then on every descent ends with the best it has, and ``cut`` says so.

Errors: ``AttackError`` for a file that cannot be read or belongs to something else.
"""

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.optim import Optimizer

from prunella.attacks.engine.progress import Progress
from prunella.core.errors import AttackError
from prunella.core.files import read_tree, write_tree
from prunella.core.trees import Tree
from prunella.core.types import Reconstruction

FORMAT = "prunella.descent.v1"
EVERY = 50  # iterations between two savings; fewer where they are long


def fingerprint(settings: object, tensors: Iterable[Tensor]) -> str:
    """A digest of what makes a descent what it is."""
    digest = hashlib.sha256(repr(settings).encode())
    for tensor in tensors:
        digest.update(str(tuple(tensor.shape)).encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class DescentState:
    """What is saved of a running descent: its optimizer and variables, and the ``Progress`` of every guess."""

    optimizer: Optimizer
    variables: Sequence[Tensor]
    progress: Sequence[Progress]

    def pack(self) -> tuple[Tree, dict[str, Any]]:
        tree: Tree = {f"variable/{i}": v for i, v in enumerate(self.variables)}
        numbers: dict[str, Any] = {}
        for i, variable in enumerate(self.variables):
            for key, value in self.optimizer.state.get(variable, {}).items():
                if key == "al":  # L-BFGS's scratch
                    continue
                parts = list(enumerate(value)) if isinstance(value, list) else [(-1, value)]
                for j, part in parts:
                    if isinstance(part, Tensor):
                        tree[f"optimizer/{i}/{key}/{j}"] = part
                    else:
                        numbers[f"{i}/{key}"] = part
                if isinstance(value, list) and not value:
                    numbers[f"{i}/{key}"] = []
        for i, each in enumerate(self.progress):
            tree[f"best/{i}/x"] = each.best.x
            if each.best.y is not None:
                tree[f"best/{i}/y"] = each.best.y
        told = [[p.best.objective, p.best.iterations, p.stale, p.mark] for p in self.progress]
        return tree, {"numbers": numbers, "progress": told, "rate": self.optimizer.param_groups[0]["lr"]}

    def unpack(self, tree: Tree, plain: dict[str, Any]) -> None:
        with torch.no_grad():
            for i, variable in enumerate(self.variables):
                variable.copy_(tree[f"variable/{i}"])
        for key, number in plain["numbers"].items():
            at, name = key.split("/")
            self.optimizer.state[self.variables[int(at)]][name] = number
        listed: dict[tuple[int, str], dict[int, Tensor]] = {}
        for key, tensor in tree.items():
            if key.startswith("optimizer/"):
                _, at, name, part = key.split("/")
                # A copy: sums of vectors that lie otherwise in memory, as in a file, end in other bits.
                listed.setdefault((int(at), name), {})[int(part)] = tensor.clone()
        for (place, name), parts in listed.items():
            whole = parts[-1] if -1 in parts else [parts[j] for j in sorted(parts)]
            self.optimizer.state[self.variables[place]][name] = whole
        self.optimizer.param_groups[0]["lr"] = plain["rate"]
        for i, (each, (objective, iterations, stale, mark)) in enumerate(
            zip(self.progress, plain["progress"], strict=True)
        ):
            each.best = Reconstruction(tree[f"best/{i}/x"], tree.get(f"best/{i}/y"), objective, iterations)
            each.stale, each.mark = stale, mark


@dataclass(frozen=True)
class DescentFile:
    """The file of one descent. Where ``path`` is None, nothing is saved. ``tell`` is called before every iteration with
    its number and the lowest objective so far; ``out_of_time`` says after it whether the descent must end."""

    path: Path | None = None
    about: str = ""
    every: int = EVERY
    tell: Callable[[int, float], None] | None = None
    out_of_time: Callable[[], bool] | None = None

    def _read(self) -> tuple[Tree, dict[str, Any]] | None:
        if self.path is None or not self.path.exists():
            return None
        try:
            tree, metadata = read_tree(self.path)
            plain = json.loads(metadata.get("descent", "null"))
        except (OSError, SafetensorError, ValueError) as error:
            raise AttackError(
                f"{self.path.name} is not a descent that can be resumed: {type(error).__name__}"
            ) from None
        if not isinstance(plain, dict) or plain.get("format") != FORMAT:
            raise AttackError(f"{self.path.name} is a safetensors file, but not a {FORMAT}")
        if plain["about"] != self.about:
            raise AttackError(
                f"{self.path.name} belongs to an attack with other settings, another view or other starts"
            )
        return tree, plain

    def _write(self, tree: Tree, plain: dict[str, Any]) -> None:
        if self.path is not None:
            told = {**plain, "format": FORMAT, "about": self.about}
            write_tree(self.path, {k: t.detach().clone() for k, t in tree.items()}, {"descent": json.dumps(told)})

    def answers(self) -> list[Reconstruction] | None:
        """The answer of every guess where the descent is over, else None."""
        found = self._read()
        if found is None or not found[1]["over"]:
            return None
        tree, plain = found
        return [
            Reconstruction(tree[f"best/{i}/x"], tree.get(f"best/{i}/y"), objective, iterations)
            for i, (objective, iterations, _, _) in enumerate(plain["progress"])
        ]

    def resume(self, state: DescentState) -> tuple[int, list[int] | None]:
        """Put ``state`` where the descent stopped. Returns the iteration, and the guesses that had not stopped by their
        own rule; 0 and None where nothing was saved."""
        found = self._read()
        if found is None:
            return 0, None
        state.unpack(*found)
        return int(found[1]["iteration"]), list(found[1]["open"])

    def keep(self, state: DescentState, iteration: int, open_: Iterable[int]) -> None:
        """Called before every iteration: calls ``tell``, and saves ``state`` every ``every`` iterations."""
        if self.tell is not None:
            self.tell(iteration, min(each.best.objective for each in state.progress))
        if self.path is None or iteration == 0 or iteration % self.every:
            return
        tree, plain = state.pack()
        self._write(tree, {**plain, "iteration": iteration, "open": sorted(open_), "over": False})

    def finish(self, state: DescentState) -> None:
        """Replace what was saved by the answers."""
        if self.path is None:
            return
        tree, plain = state.pack()
        best = {key: tensor for key, tensor in tree.items() if key.startswith("best/")}
        self._write(best, {"progress": plain["progress"], "over": True})


@dataclass
class ResumeStore:
    """The files of one attack, in the order of its descents; ``folder`` None saves nothing.

    ``tell`` is called before every iteration with the number of the descent, that of the iteration, and the lowest
    objective so far. ``deadline``, of ``time.monotonic``, ends every descent with the best it has; ``cut`` then says
    that one was ended before its own rule would have. So does ``stopped``, where it says that no more is wanted.
    """

    folder: Path | None = None
    every: int = EVERY
    used: int = 0
    tell: Callable[[int, int, float], None] | None = None
    deadline: float | None = None
    cut: bool = False
    stopped: Callable[[], bool] | None = None

    def out_of_time(self) -> bool:
        """Whether the deadline has passed, or it was stopped; asked only of a descent that would go on."""
        over = self.deadline is not None and time.monotonic() >= self.deadline
        over = over or (self.stopped is not None and self.stopped())
        self.cut = self.cut or over
        return over

    def alive(self) -> bool:
        """``out_of_time`` for an attack that has no descents of this store's: ``tell`` hears of descent -1."""
        if self.tell is not None:
            self.tell(-1, 0, math.inf)
        return self.out_of_time()

    def next_file(self, settings: object, tensors: Iterable[Tensor]) -> DescentFile:
        """The file of the next descent, which is told from others by the attack's settings and these tensors."""
        number, self.used = self.used, self.used + 1
        tell = None if self.tell is None else partial(self.tell, number)
        if self.folder is None:
            return DescentFile(tell=tell, out_of_time=self.out_of_time)
        path = self.folder / f"descent-{number:03d}.safetensors"
        return DescentFile(path, fingerprint(settings, tensors), self.every, tell, self.out_of_time)
