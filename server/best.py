"""The round that clients scored highest, kept beside the last one: LTP Sec. 4.4, Eqs. (17) to (19).

Under ``evaluation=clients`` every member scores the aggregated model of a round on examples it never trains on, by
noisy counts under an epsilon (``privacy.ledger.noisy_count``), and the paper's server ends with the model of the
highest score. Choosing it costs no more epsilon: it is computed from what was paid for. The server's own test examples
choose nothing: an accuracy on them would then be of examples that had a say.

Departures. The score is the share of held-out examples labelled right, where the paper adds the counts: not every
client answers every round. A client's noisy share is cut to [0, 1]. Of equal scores the earlier round stays.

    run-dir/best/round-00000007.safetensors      a checkpoint; ``prunella export --best`` takes it
"""

from dataclasses import replace
from pathlib import Path

from prunella.core.errors import PrunellaError
from prunella.server.checkpoint import Checkpoint, load, save

FOLDER = "best"
SCORE = "validation_score"


def best_score(folder: Path) -> float:
    """The score of the round kept in the run's ``folder``, -1 where there is none that can be read."""
    try:
        saved = load(folder / FOLDER)
    except PrunellaError:
        saved = None
    return saved.counters[SCORE] if saved is not None else -1.0


def keep_best(folder: Path, checkpoint: Checkpoint, score: float, before: float) -> float:
    """Keep this round if it was scored higher than ``before``; the score of the round that is kept now."""
    if not score > before:
        return before
    save(folder / FOLDER, replace(checkpoint, counters={SCORE: score}))
    return score
