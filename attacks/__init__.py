"""The curious server: one file per attack, the inversion engine they share, scoring, traces and the positive control.

An attack maps (ServerView, Task, settings, Generator) to a Reconstruction. Only ``attacks.leakage`` reads the truth.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from torch import Generator

from attacks import gradinversion, label, r_gap, rob
from attacks.dlg import Dlg
from attacks.idlg import Idlg
from attacks.ig import Ig
from attacks.inversion import reconstruct
from attacks.sgi import Sgi
from core.types import Reconstruction, ServerView
from tasks.task import Task


class Attack(NamedTuple):
    """A line of ``ATTACKS``: the settings (a frozen dataclass), the attack, what the server is taken to do, whether the
    attack is adapted to masked updates, and what of its answer counts: one that gives labels has flat images."""

    settings: type
    reconstruct: Callable[[ServerView, Task, Any, Generator], Reconstruction]
    threat: str
    adaptive: bool = False
    gives: Literal["images", "labels"] = "images"


ATTACKS: dict[str, Attack] = {
    "dlg": Attack(Dlg, reconstruct, "honest-but-curious; guesses images and labels; takes what it misses for zero"),
    "idlg": Attack(Idlg, reconstruct, "honest-but-curious; labels from the last layer; takes what it misses for zero"),
    "ig": Attack(Ig, reconstruct, "honest-but-curious; direction of the update; takes what it misses for zero"),
    "sgi": Attack(Sgi, reconstruct, "honest-but-curious; compares only where values arrived", adaptive=True),
    "gradinversion": Attack(
        gradinversion.GradInversion,
        gradinversion.reconstruct,
        "honest-but-curious; batch-norm statistics, a group of starts; takes what it misses for zero",
    ),
    "r-gap": Attack(r_gap.RGap, r_gap.reconstruct, "honest-but-curious; one image, exact update, invertible layers"),
    "rob": Attack(rob.Rob, rob.reconstruct, "active; plants an imprint module in front of the model; one step"),
    "label": Attack(label.Label, label.reconstruct, "honest-but-curious; last layer only", gives="labels"),
}

SECTIONS: dict[str, type] = {name: attack.settings for name, attack in ATTACKS.items()}
