"""How much of an image an attack rebuilds under a pruning scheme: the cells of the PriPrune claims on leakage.

A cell is a federation (in process, real client and server code) under one scheme and rate, and then the attacks on what
its server would see next: for each of ``images`` test images the undefended update of one local step at batch 1, inside
the scheme's mask, from the global weights after ``rounds`` rounds. Scores are means over all images; none is left out,
and an attack that diverges ends the cell with an error, since a failure is not a score.

GI and SGI share everything but the support: GI takes what it misses for zero, SGI compares only where values arrived,
which it reads off the update itself. Both know the label, which most gradients tell. On sigmoid networks they use the
Euclidean distance and L-BFGS, elsewhere what the attack chooses itself. NMI is of 16 grey levels.

The positive control of a cell is the dense one, FedAvg at the same rounds, seed and images: GI and SGI must both
rebuild it to ``PSNR_FLOOR`` in the mean.
"""

import tempfile
from pathlib import Path

from prunella.attacks import find_attack
from prunella.attacks.score.leakage import score
from prunella.benchmarks.engine.claim import Found, Measure, Settings
from prunella.benchmarks.engine.images import TESTED, chosen_images, means, part, place
from prunella.benchmarks.engine.inprocess import run_in_process
from prunella.benchmarks.engine.views import NONE, attack_settings, draws, received_of, seen, sender
from prunella.core.randomness import stream
from prunella.core.trees import density
from prunella.core.types import PrivateBatch
from prunella.server.checkpoint import Checkpoint, load
from prunella.tasks.data import make_task

ARMS = {"gi": "ig", "sgi": "sgi"}
DENSE = "fedavg"
RUN = ("model", "rounds", "local_steps", "batch_size", "learning_rate")


def global_model(settings: Settings, seed: int, data: Path | None) -> Checkpoint:
    """What a federation under the scheme holds after its last round."""
    own = {"strategy": settings["scheme"], "rate": settings["rate"], "defenses": NONE, "audit_every": 0}
    asked = {key: settings[key] for key in RUN}
    run = {"dataset": place(settings["dataset"], data), "partition": "dirichlet", "seed": seed, **own, **asked}
    with tempfile.TemporaryDirectory() as folder:
        done = run_in_process(Path(folder), settings["clients"], settings["rounds"], tested=TESTED, **run)
        saved = load(done.folder / "checkpoint")
    if saved is None:
        raise RuntimeError(f"the federation of {settings['scheme']} left no checkpoint")
    return saved


def leakage(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell: what GI and SGI rebuild under one scheme and rate."""
    saved = global_model(settings, seed, data)
    task = make_task(settings["model"], place(settings["dataset"], data), None)
    private = chosen_images(settings["dataset"], data, seed, settings["images"])
    client = sender(task, received_of(saved), NONE, {}, private.x, 1)
    found: Found = {}
    for arm, name in ARMS.items():
        rows, how = [], attack_settings(name, task.model, settings["iterations"])
        for number in range(len(private)):
            one = part(private, number)
            view = seen(client, one, draws(seed)).view
            draw = stream(seed, round=number, purpose="claim-attack")
            rows.append(score(find_attack(name).reconstruct(view, task, how, draw), PrivateBatch(one.x, one.y)))
        found[arm] = {
            **means(rows, "psnr", "psnr_other", "nmi", "nmi_random"),
            "psnr_worst": max(row.psnr.mean for row in rows),
            "kept": density(saved.mask),
        }
    return found


LEAKAGE = Measure("leakage", leakage, control={"scheme": DENSE, "rate": 0.0})
