"""What a chain of defenses costs: a federation under it, and a client's local training beside plain SGD's.

``accuracy``, ``megabytes_up`` and ``_down`` of the whole run, the largest ``epsilon`` of a client where every client
has one. A federation in which every client withheld its update has no accuracy (``withheld``). ``precode`` trains with
the bottleneck in the model.

``time`` is the processor time of one client's local training over plain SGD's, in turns, the median of ``REPEAT``;
fitting a data defense, once per client, is left out, and so are the attack that ``leakage-guard`` makes and what a
client asks its model before every step (``client.planted``).
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from prunella.benchmarks.engine.claim import Found, Settings
from prunella.benchmarks.engine.images import task_of
from prunella.benchmarks.engine.views import NONE, initial_sender, model_of
from prunella.benchmarks.papers.defended import TRAINING, federated, images_of
from prunella.benchmarks.speed.bench import turns
from prunella.core.errors import DefenseError, PrunellaError
from prunella.core.randomness import rehearsal
from prunella.tasks.data import batches

REPEAT, STEPS = 3, 5
STILL = 1e-6  # the learning rate of timed steps: their time does not depend on it, and none may diverge


def seconds_ratio(settings: Settings, seed: int, data: Path | None) -> float:
    """A client's local training under the chain over plain SGD's."""
    pool, task = images_of(settings, seed, data), task_of(settings, data)

    def work(defenses: str) -> Callable[[], object]:
        model, rows = model_of(task.model, defenses.split(",")), settings["batch_size"]
        one = initial_sender(replace(task, model=model), seed, defenses, {}, pool.x, rows, STILL)
        drawn = list(batches(pool, rows, min(settings["local_steps"], STEPS), rehearsal(seed, purpose="leakage-time")))
        return lambda: one.trained(drawn, rehearsal(0, purpose="leakage-time"))

    chain = settings["defenses"]
    return turns({NONE: work(NONE), chain: work(chain)}, NONE, REPEAT)[chain]["ratio"]


def price(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell."""
    try:
        found = {**federated({**settings, "attack": TRAINING}, seed, data), "withheld": 0.0}
    except PrunellaError:  # every client withheld its update: no accuracy, and never a zero
        found = {"withheld": 1.0}
    with suppress(DefenseError):  # a defense that withheld an update while it was timed has no time
        found["time"] = seconds_ratio(settings, seed, data)
    return {TRAINING: found}
