"""The attacks by name, ``ATTACKS``, those that ask about given examples, ``PROBES``, and what a line of each says."""

import inspect
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from torch import Generator, Tensor

from prunella.attacks import (
    april,
    components,
    denoise,
    every_round,
    expectation,
    extraction,
    fishing,
    ggl,
    gradinversion,
    inverter,
    label,
    loki,
    mia,
    model_inversion,
    portfolio,
    r_gap,
    representation,
    rob,
    rog,
    scale_mia,
    seer,
    spear,
    unrolling,
)
from prunella.attacks.dlg import Dlg
from prunella.attacks.engine.inversion import reconstruct, reconstruct_each
from prunella.attacks.idlg import Idlg
from prunella.attacks.ig import Ig
from prunella.attacks.sgi import Sgi
from prunella.core.errors import ConfigError, with_article
from prunella.core.foreign import lookup
from prunella.core.types import PrivateBatch, Reconstruction
from prunella.tasks.task import Task


class Attack(NamedTuple):
    """A line of ``ATTACKS``: the settings (a frozen dataclass), the attack, its threat model, whether it is adapted to
    masked updates, and what of its answer counts: one that gives labels has flat images.

    ``needs`` names keyword arguments without which it cannot run: such an attack cannot replay a trace. Keywords may be
    optional, too: ``unrolling`` and ``denoise`` take a client's ``earlier`` views. ``ready`` raises ``AttackError``
    where a file that the settings name is missing or does not fit the task. ``every_round``: on a trace, its
    ``earlier`` views are all that lie beside it of the same client, unless the user names some.
    ``learns``: it needs a shadow of the client, or what ``--known`` names where it takes that.
    ``each``: the same attack of several views, (views, task, settings, generators) -> an answer each, where it is
    faster so.

    What an audit gives to those that take it: ``resume``, a store from which an attack goes on where it was stopped;
    ``deadline``, of ``time.monotonic``, by which it ends with what it has; ``stopped``, which says while it runs that
    it is to end so; ``shadow``, the attacked client played on public images (``attacks.engine.shadow``).
    """

    settings: type
    reconstruct: Callable[..., Reconstruction]
    threat: str
    adaptive: bool = False
    gives: Literal["images", "labels"] = "images"
    needs: tuple[str, ...] = ()
    ready: Callable[[Any, Task], None] | None = None
    every_round: bool = False
    learns: bool = False
    each: Callable[..., list[Reconstruction]] | None = None

    def takes(self, name: str) -> bool:
        """Whether it takes this keyword argument."""
        return name in inspect.signature(self.reconstruct).parameters

    def taken(self, **offered: Any) -> dict[str, Any]:
        """Of the keyword arguments that are ``offered``, those that it takes."""
        return {name: value for name, value in offered.items() if self.takes(name)}


ATTACKS: dict[str, Attack] = {
    "dlg": Attack(
        Dlg,
        reconstruct,
        "honest-but-curious; guesses images and labels; takes what it misses for zero",
        each=reconstruct_each,
    ),
    "idlg": Attack(
        Idlg,
        reconstruct,
        "honest-but-curious; labels from the last layer; takes what it misses for zero",
        each=reconstruct_each,
    ),
    "ig": Attack(
        Ig,
        reconstruct,
        "honest-but-curious; direction of the update; takes what it misses for zero",
        each=reconstruct_each,
    ),
    "sgi": Attack(
        Sgi, reconstruct, "honest-but-curious; compares only where values arrived", adaptive=True, each=reconstruct_each
    ),
    "gradinversion": Attack(
        gradinversion.GradInversion,
        gradinversion.reconstruct,
        "honest-but-curious; batch-norm statistics, a group of starts; takes what it misses for zero",
    ),
    "r-gap": Attack(r_gap.RGap, r_gap.reconstruct, "honest-but-curious; one image, exact update, invertible layers"),
    "representation": Attack(
        representation.Representation,
        representation.reconstruct,
        "honest-but-curious; reads the input of the first linear layer, whatever is random behind it",
        adaptive=True,
    ),
    "extraction": Attack(
        extraction.Extraction,
        extraction.reconstruct,
        "honest-but-curious; reads the images that stand alone in a row of the first linear layer; one step",
        adaptive=True,
    ),
    "spear": Attack(
        spear.Spear,
        spear.reconstruct,
        "honest-but-curious; takes the first linear layer's gradient apart by its ReLU's zeros; whole batches",
        adaptive=True,
    ),
    "april": Attack(
        april.April,
        april.reconstruct,
        "honest-but-curious; one image of a vision transformer, solved for with the position embedding's gradient",
        adaptive=True,
    ),
    "portfolio": Attack(
        portfolio.Portfolio,
        portfolio.reconstruct,
        "honest-but-curious; every attack here that fits, in the time given, the best kept",
        adaptive=True,
    ),
    "rob": Attack(rob.Rob, rob.reconstruct, "active; plants an imprint module in front of the model; one step"),
    "loki": Attack(loki.Loki, loki.reconstruct, "active; one client's images out of the mean of all updates; one step"),
    "scale-mia": Attack(
        scale_mia.ScaleMia, scale_mia.reconstruct, "active; plants weights that copy latent codes, and decodes them"
    ),
    "fishing": Attack(
        fishing.Fishing, fishing.reconstruct, "active; silences all classes but one; one step", adaptive=True
    ),
    "seer": Attack(
        seer.Seer,
        seer.reconstruct,
        "active; plants weights that single an image out for a secret decoder; public images",
        ready=seer.ready,
    ),
    "ggl": Attack(
        ggl.Ggl,
        ggl.reconstruct,
        "honest-but-curious; knows the mask; a generator learnt from public images",
        adaptive=True,
        ready=ggl.ready,
    ),
    "rog": Attack(
        rog.Rog,
        rog.reconstruct,
        "honest-but-curious; knows the mask; few unknowns and a repair learnt from public images",
        adaptive=True,
        ready=rog.ready,
    ),
    "components": Attack(
        components.Components,
        components.reconstruct,
        "honest-but-curious; compares where values arrived, in the principal components of public images",
        adaptive=True,
        learns=True,
    ),
    "model-inversion": Attack(
        model_inversion.ModelInversion, model_inversion.reconstruct, "honest-but-curious; one typical image per class"
    ),
    "unrolling": Attack(
        unrolling.Unrolling,
        unrolling.reconstruct,
        "honest-but-curious; keeps every round, unrolls error feedback",
        True,
    ),
    "every-round": Attack(
        every_round.EveryRound,
        every_round.reconstruct,
        "honest-but-curious; keeps every round, one guess that explains them all",
        adaptive=True,
        every_round=True,
    ),
    "expectation": Attack(
        expectation.Expectation, expectation.reconstruct, "honest-but-curious; expects over the random mask", True
    ),
    "denoise": Attack(
        denoise.Denoise,
        denoise.reconstruct,
        "honest-but-curious; knows the noise, or the chain and public images",
        learns=True,
    ),
    "inverter": Attack(
        inverter.Inverter,
        inverter.reconstruct,
        "honest-but-curious; knows the defense chain; an inverter learnt on public images behind it",
        learns=True,
    ),
    "label": Attack(label.Label, label.reconstruct, "honest-but-curious; last layer only", gives="labels"),
}


def find_attack(name: str) -> Attack:
    """The line of ``ATTACKS``, or somebody's own by import path (``core.foreign``). Raises ``ConfigError``."""
    found = lookup("attack", name, ATTACKS)
    if not isinstance(found, Attack):
        raise ConfigError(f"attack {name!r} is {with_article(found)}, not an attacks.Attack")
    return found


class Probe(NamedTuple):
    """A line of ``PROBES``: an attack that asks about given examples instead of rebuilding some, and so needs more than
    a trace. ``infer`` maps (attacked model, known members, known outsiders, candidates, settings, Generator) to scores.
    """

    settings: type
    infer: Callable[[mia.AttackedModel, PrivateBatch, PrivateBatch, PrivateBatch, Any, Generator], Tensor]
    threat: str


PROBES: dict[str, Probe] = {"mia": Probe(mia.Mia, mia.infer, "white box; knows some members and some outsiders")}

SECTIONS: dict[str, type] = {name: line.settings for lines in (ATTACKS, PROBES) for name, line in lines.items()}
