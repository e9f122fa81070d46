"""What gradient pruning costs: bytes of a round both ways (DGP Table 3) and seconds of the search (DGP Table 4).

Bytes, in MiB (2^20), of one client and one round, up and down. Batch-norm buffers, dense and both ways, are only in
``wire_mib``.

paper_mib  the accounting behind Table 3, recovered from its numbers, on the coordinates our code really keeps: with D
           the dense float32 parameters, nothing 2 D; Top-k and DGP D + s (1 + 1/8), s the float32 values sent; ADGP
           (s + t) (1 + 1/16), t the values of the location set.
wire_mib   bytes of the coded messages: values lossless and compressed, masks, headers. The update is four SGD steps on
           a client's CIFAR-10 images from the run's initial weights; the download is the model after it, and under ADGP
           its values inside the location set, which is another client's.
saved      share of 2 D that ``wire_mib`` saves.
"""

from collections.abc import Callable
from pathlib import Path

import torch

from prunella.benchmarks.engine.claim import Found, Settings
from prunella.benchmarks.engine.images import client_images
from prunella.benchmarks.engine.views import NONE, initial_sender
from prunella.benchmarks.speed.bench import turns
from prunella.core.randomness import rehearsal, stream
from prunella.core.ranking import part_of
from prunella.core.trees import Mask, Tree, add, apply_mask, count, full_mask, map_trees, size
from prunella.privacy.adgp import AlignedPruning, aligned_mask, location_set
from prunella.privacy.dgp import DualPruning, dual_mask
from prunella.privacy.top_k import TopK, top_mask
from prunella.strategies.round.local import Received
from prunella.tasks.data import Partition, batches
from prunella.tasks.task import Task, initial
from prunella.wire.encode import encode

SHAPE, CLASSES = (3, 32, 32), 10
CLIENTS = 40
MIB = 2**20
FLOAT = 4


def updates(settings: Settings, seed: int, data: Path | None) -> tuple[Received, list[Tree]]:
    """Where two clients began, and the undefended update of each."""
    task, made = Task(settings["model"], SHAPE, CLASSES), []
    for client in (0, 1):
        partition = Partition("iid", clients=CLIENTS, seed=seed)  # all with the same distribution
        private = client_images(settings["dataset"], data, partition, client)
        drawn = batches(private, settings["batch"], settings["steps"], rehearsal(seed, client=client, purpose="costs"))
        one = initial_sender(task, seed, NONE, {}, private.x, settings["batch"], settings["learning_rate"])
        made.append(one.trained(drawn, rehearsal(seed, purpose="costs-defense")).outgoing.update)
    return one.received, made


def masks_of(update: Tree, other: Tree) -> tuple[dict[str, Mask], Mask]:
    """What each scheme sends of an update at the paper's rates, and ADGP's location set from another's update."""
    inside, dual, aligned = full_mask(update), DualPruning(), AlignedPruning()
    locations = location_set(other, inside, aligned)
    sent = {
        "baseline": inside,
        "top-k": map_trees(lambda t, m: top_mask(t, m, TopK().keep), update, inside),
        "dgp": map_trees(lambda t, m: dual_mask(t, m, dual.top, dual.bottom), update, inside),
        "adgp": map_trees(lambda t, m, where: aligned_mask(t, m, where, aligned), update, inside, locations),
    }
    return sent, locations


def paper_mib(scheme: str, dense: int, sent: int, locations: int) -> float:
    """Table 3's accounting, from numbers of coordinates.

    >>> round(paper_mib("dgp", 11_173_962, 11_173_962 // 5, 0), 3)
    52.216
    """
    rule = {
        "baseline": 2.0 * dense,
        "top-k": dense + sent * (1 + 1 / 8),
        "dgp": dense + sent * (1 + 1 / 8),
        "adgp": (sent + locations) * (1 + 1 / 16),
    }
    return FLOAT * rule[scheme] / MIB


def traffic(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell of D3: every scheme on one model."""
    received, (update, other) = updates(settings, seed, data)
    sent, locations = masks_of(update, other)
    dense, buffers = size(update), 2 * FLOAT * size(received.buffers)
    new, everything = add(received.params, update), full_mask(update)
    down = {"adgp": len(encode(apply_mask(new, locations), locations))}
    whole = len(encode(new, everything))
    found: Found = {}
    for scheme, mask in sent.items():
        reference = locations if scheme == "adgp" else None
        up = len(encode(apply_mask(update, mask), mask, reference))
        wire = up + down.get(scheme, whole) + buffers
        found[scheme] = {
            "paper_mib": paper_mib(scheme, dense, count(mask), count(locations)),
            "wire_mib": wire / MIB,
            "saved": 1 - wire / (2 * FLOAT * dense + buffers),
        }
    return found


def search_time(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell of D4: processor time of finding what is sent in one update, over Top-k's in the same turn.

    Values are normal: how long a search takes hardly depends on them, and all three search the same ones.
    """
    params, _ = initial(Task(settings["model"], SHAPE, CLASSES), seed)
    generator = stream(seed, purpose="search")
    values = {name: torch.randn(t.shape, generator=generator) for name, t in params.items()}
    other = {name: torch.randn(t.shape, generator=generator) for name, t in params.items()}
    inside, dual, aligned = full_mask(values), DualPruning(), AlignedPruning()
    locations = location_set(other, inside, aligned)
    arms: dict[str, Callable[[], object]] = {
        "top-k": lambda: map_trees(lambda t, m: top_mask(t, m, TopK().keep), values, inside),
        "torch.topk": lambda: [
            torch.topk(t.abs().flatten(), part_of(0.2, t.numel(), up=True)) for t in values.values()
        ],
        "dgp": lambda: map_trees(lambda t, m: dual_mask(t, m, dual.top, dual.bottom), values, inside),
        "adgp": lambda: map_trees(lambda t, m, i: aligned_mask(t, m, i, aligned), values, inside, locations),
    }
    took = turns(arms, "top-k", settings["repeat"])
    return {name: {"ratio": took[name]["ratio"], "milliseconds": took[name]["seconds"] * 1e3} for name in arms}
