"""What a channel adds to training time beside DP-SGD (CHN Table 2): the cells of C5, from
``benchmarks.speed.defenses``.

Ratios over plain SGD of local training on the same batches, in processor time of one thread, arms in turns, medians
over turns. ``dp-sgd (ours)`` is this project's, on models without batch norm; ``dp-sgd (opacus)`` the library's, with
group norm in place of batch norm. Fitting a channel, once per client, is not in the ratio: its seconds are a column.
"""

from pathlib import Path

from prunella.benchmarks.engine.claim import Found, Settings
from prunella.benchmarks.speed.defenses import epochs

CHANNELS = ("channel-natural", "channel-white", "channel-personalized")
OPACUS, OURS = "dp-sgd (opacus)", "dp-sgd (ours)"
NAMES = {"opacus": OPACUS, "dp-sgd": OURS}


def training_time(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell: every arm's ratio over plain SGD, milliseconds a step, and the seconds of fitting."""
    del data
    done = epochs(settings["model"], settings["steps"], settings["repeat"], CHANNELS, seed)
    return {
        NAMES.get(arm, arm): {
            "ratio": cost["ratio"],
            "milliseconds": 1000 * cost["seconds"] / settings["steps"],
            "fit_seconds": done["fit_seconds"].get(arm, 0.0),
        }
        for arm, cost in done["arms"].items()
    }
