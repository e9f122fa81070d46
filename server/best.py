"""The model that clients scored highest, kept beside the last one: LTP Sec. 4.4, Eqs. (17) to (19).

Under ``evaluation=clients`` every client scores the aggregated model of a round on examples it never trains on, by
noisy counts under an epsilon (``privacy.ledger.noisy_count``), and the paper's server ends with the model of the
highest score. The choice costs no further epsilon, since it is computed from the noisy counts alone. The server's own
test examples are never used for the choice: accuracy on them would then be biased upwards.

Departures from the paper. The score is the share of held-out examples labelled right, where the paper adds the counts,
because not every client answers every round. A client's noisy share is clipped to [0, 1]. On a tie the earlier round
stays.

    run-dir/best/round-00000007.safetensors      a checkpoint; ``prunella export --best`` takes it
"""

from dataclasses import replace
from pathlib import Path

from prunella.core.errors import PrunellaError
from prunella.server.checkpoint import Checkpoint, load, save

FOLDER = "best"
SCORE = "validation_score"


def best_score(folder: Path) -> float:
    """The score of the best round kept in the run's ``folder``, or -1 if none can be read."""
    try:
        saved = load(folder / FOLDER)
    except PrunellaError:
        saved = None
    return saved.counters[SCORE] if saved is not None else -1.0


def keep_best(folder: Path, checkpoint: Checkpoint, score: float, before: float) -> float:
    """Keep this round if ``score`` is above ``before``. Returns the score of the round that is now kept."""
    if not score > before:
        return before
    save(folder / FOLDER, replace(checkpoint, counters={SCORE: score}))
    return score
