"""A client's round under masks of whole filters: time of a local step and bytes of its messages, over the dense ones.

All arms train the same batches of CIFAR-10 from the same initial weights, as a client does, behind ``--defenses``
(none):

* ``dense``: a full mask;
* ``weights``: the largest weights (the strategy ``magnitude``), as many as the arm below keeps;
* ``filters, masked``: half of every layer's filters (``granularity=filter``, ``scope=layer``), in the dense network;
* ``filters``: the same mask, the small network (``strategies.round.small``); ``apart`` is how far the two updates lie
  apart after one step, the largest difference over the largest entry; later steps enlarge what rounding leaves.

Time is of whole rounds of ``--steps`` steps, with all that finds the small network, cuts it out and puts it back; a
thread, arms in turns, processor seconds, the median of an arm's over the dense one's in the same turn. Bytes are the
coded model and the coded update, batch norm's statistics with both; masks are known, as they are after the first round.
``idle`` is the share of a message of ``filters`` that is about channels it has lost: float32 biases, norms, statistics.

With ``--rounds`` whole federations follow, each in one process, ``--clients`` clients (Dirichlet partition, alpha 1),
all in every round: ``dense`` and the two ways to prune at that rate, reached in ``--ramp`` rounds (0: a third of all).
Accuracy is on all test images, for each of ``--seeds``, the mean of the last three of ten evaluations, since a single
round's moves by points. Seconds are of a whole round, all its clients one after the other and the server, the median of
the rounds at the full rate; processor seconds are the mean of all rounds, those before it and the evaluations too;
bytes are those of the last; ``lost`` is how many answers did not count, 1 % at most. Clients learn at ``--rate``, which
falls to zero along half a cosine over ``--horizon`` rounds (0: it stays). ``--jobs`` federations go at a time, on
``--device``; ``--arms`` leaves some out. With ``--repeat 0`` nothing but federations is measured.

A round of the small network takes less time: ``--filter-rounds`` gives ``filters`` more of them (0: as many as the
others), its ramp and its horizon longer in proportion. ``total`` is of a federation's whole length.

    python -m prunella.benchmarks.speed.structured --data DIR [--models cnn] [--defenses priprune] [--rounds 30]
"""

import json
import statistics
import sys
import tempfile
import time
from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from prunella.benchmarks.engine.inprocess import FEDAVG, accuracies, failures, run_in_process
from prunella.benchmarks.engine.measuring import workers
from prunella.benchmarks.engine.views import NONE
from prunella.benchmarks.speed.bench import Work, command, show_table, turns
from prunella.benchmarks.speed.updates import CLASSES, SHAPE, examples
from prunella.core.randomness import rehearsal
from prunella.core.trees import Mask, Tree, apply_mask, full_mask
from prunella.privacy.chain import build_chain, start
from prunella.pruning.channels import Group, channel_groups
from prunella.pruning.compact import living, places
from prunella.pruning.filters import keep_channels
from prunella.pruning.scores import magnitude
from prunella.pruning.selection import density, keep_by_score
from prunella.strategies.round.local import LocalResult, Procedure, Received, local_update
from prunella.strategies.round.replies import build_reply
from prunella.tasks.data import Examples, batches
from prunella.tasks.task import Task, initial, prunable
from prunella.tasks.training import Sgd
from prunella.wire.encode import dense_bytes
from prunella.wire.records import record_bytes, to_coded, to_dense

DENSE, WEIGHTS, MASKED, FILTERS = "dense", "weights", "filters, masked", "filters"
SGD, HALVINGS = Sgd(0.05), 10
EVALUATIONS, LAST = 10, 3  # of a federation; accuracy is the mean of the last
LOST = 0.01  # of the answers: a young network may look planted now and then (``client.planted``)


@dataclass(frozen=True)
class Arm:
    """One client: how it trains, and what it is sent."""

    procedure: Procedure
    received: Received

    def trained(self, data: list[Examples]) -> LocalResult:
        """Its round."""
        chain, params = self.procedure.chain, self.received.params
        state = start(chain, data[0].x, params, {}, rehearsal(0, purpose="fit"))
        return local_update(self.procedure, self.received, iter(data), state, rehearsal(0, purpose="defense"))

    def sent(self, result: LocalResult) -> dict[str, int]:
        """Bytes of the message to it, and of its reply."""
        mask, buffers = self.received.mask, self.received.buffers
        model = [to_coded(self.received.params, mask, mask), *([to_dense(buffers)] if buffers else [])]
        reply = build_reply(result, mask, frozenset())
        return {"down": sum(map(record_bytes, model)), "up": sum(map(record_bytes, reply.values()))}


def half_of_filters(params: Tree, groups: list[Group], names: frozenset[str]) -> Mask:
    """The mask of the smallest rate, to 1 in 2^``HALVINGS``, at which no more than half of all channels are left."""
    low, high, scores = 0.0, 1.0, magnitude(params)
    mask = full_mask(params)
    for _ in range(HALVINGS):
        rate = (low + high) / 2
        kept = keep_channels(scores, groups, names, rate, "layer")
        alive = torch.cat(living(groups, kept))
        if int(alive.sum()) > len(alive) // 2:
            low = rate
        else:
            high, mask = rate, kept
    return mask


def arms(model: str, defenses: str = NONE) -> tuple[float, dict[str, Arm], float]:
    """The rate, the arms behind the chain ``defenses``, and the float32 bytes of what is about lost channels in a
    message of ``FILTERS``."""
    task = Task(model, SHAPE, CLASSES)
    module, (params, buffers) = task.build(), initial(task, 0)
    groups, names = channel_groups(module, SHAPE), prunable(module)
    mask = half_of_filters(params, groups, names)
    rate = 1 - density(mask, names)
    weights = keep_by_score(magnitude(params), names, rate)
    dense = Procedure(module, SGD, build_chain(defenses.split(","), {}))
    small = replace(dense, shape=SHAPE)
    made = {DENSE: (dense, full_mask(params)), WEIGHTS: (small, weights), MASKED: (dense, mask), FILTERS: (small, mask)}
    dead = [~alive for alive in living(groups, mask)]
    lost = places(groups, dead, {name: t for name, t in (params | buffers).items() if t.ndim == 1})
    idle = 4.0 * sum(at.numel() for at in lost.values())
    named = {name: Arm(how, Received(apply_mask(params, kept), kept, buffers)) for name, (how, kept) in made.items()}
    return rate, named, idle


def _apart(a: Tree, b: Tree) -> float:
    return max(float((a[n] - b[n]).abs().max()) for n in a) / max(float(t.abs().max()) for t in b.values())


def measure(model: str, images: Examples, options: Any) -> dict[str, Any]:
    """One model's rows; of ``--repeat 0`` none, only the rate."""
    rate, made, idle = arms(model, options.defenses)
    if not options.repeat:
        return {"rate": rate}
    data = list(batches(images, options.batch, options.steps, rehearsal(0, purpose="batches")))
    done = {name: arm.trained(data) for name, arm in made.items()}
    first = {name: made[name].trained(data[:1]).outgoing.update for name in (MASKED, FILTERS)}
    if [result.small for result in done.values()] != [False, False, False, True]:
        raise RuntimeError(f"{model}: the small network was not trained where it should be, or where it should not")
    sent = {name: arm.sent(done[name]) for name, arm in made.items()}
    work: dict[str, Work] = {name: lambda arm=arm: arm.trained(data) for name, arm in made.items()}  # type: ignore[misc]
    times = turns(work, DENSE, options.repeat)
    rows = {
        name: {
            **times[name],
            "seconds": times[name]["seconds"] / options.steps,
            **sent[name],
            **{f"{way} ratio": sent[name][way] / sent[DENSE][way] for way in ("down", "up")},
        }
        for name in made
    }
    return {
        "rate": rate,
        "bare": dense_bytes(made[DENSE].received.params | made[DENSE].received.buffers),
        "apart": _apart(first[FILTERS], first[MASKED]),
        "idle": {way: idle / sent[FILTERS][way] for way in ("down", "up")},
        "arms": rows,
    }


def federation(model: str, rate: float, options: Any, seed: int, arm: str) -> dict[str, float]:
    """A whole federation: accuracy at its end, seconds and bytes of a round at the full rate."""
    torch.set_num_threads(1)
    dataset = f"cifar10:{options.data}" if options.data else "digits"
    same = {**FEDAVG, "model": model, "dataset": dataset, "defenses": options.defenses, "seed": seed}
    rounds = options.filter_rounds or options.rounds if arm == FILTERS else options.rounds
    same |= {
        "rounds": rounds,
        "local_steps": options.steps,
        "batch_size": options.batch,
        "device": options.device,
        "learning_rate": options.rate,
        "learning_rate_horizon": options.horizon * rounds // options.rounds,
        "momentum": 0.9,
        "evaluate_every": max(1, rounds // EVALUATIONS),
    }
    ramp = options.ramp * rounds // options.rounds or max(1, rounds // 3)
    pruned = {"strategy": "magnitude", "rate": rate, "magnitude__ramp_rounds": ramp}
    filters = {"magnitude__granularity": "filter", "magnitude__scope": "layer"}
    own = {DENSE: {}, WEIGHTS: pruned, FILTERS: pruned | filters}[arm]
    with tempfile.TemporaryDirectory() as folder:
        begin = time.process_time()
        done = run_in_process(Path(folder), options.clients, **{**same, **own})
        spent = time.process_time() - begin
        lost = failures(done)
        if lost > LOST * rounds * options.clients:
            why = {name: n for name, n in done.counters.items() if name.startswith("client_failures_total") and n}
            raise RuntimeError(f"{model}, {arm}, seed {seed}: answers of clients did not count: {why}")
        lines = list(done.store.metrics())
        seconds = [line["value"] for line in lines if line["metric"] == "round_seconds" and line["round"] > ramp]
        bytes_ = {way: _bytes(lines, way) for way in ("down", "up")}
        sent = {way: totals[-1] - totals[-2] for way, totals in bytes_.items()}
        total = {"processor total": spent, "bytes total": sum(totals[-1] for totals in bytes_.values())}
        accuracy = list(accuracies(done).values())[-LAST:]
        found = {"accuracy": statistics.mean(accuracy), "seconds": statistics.median(seconds)}
        return {**found, "processor": spent / rounds, **sent, **total, "lost": lost}


def _bytes(lines: Sequence[Mapping[str, Any]], way: str) -> list[float]:
    """Of a run up to each of its rounds, from its counters."""
    return [e["value"] for e in lines if e["metric"] == "wire_bytes_total" and e["labels"] == {"direction": way}]


def federations(rates: Mapping[str, float], options: Any) -> dict[str, dict[str, list[dict[str, float]]]]:
    """By model and arm, every seed's."""
    if not options.rounds:
        return {}
    arms = options.arms.split(",")
    asked = [(name, seed, arm) for name in rates for seed in range(options.seeds) for arm in arms]
    with workers(options.jobs) as pool:
        begun = [pool.submit(federation, name, rates[name], options, seed, arm) for name, seed, arm in asked]
        found: dict[str, dict[str, list[dict[str, float]]]] = {name: {} for name in rates}
        for (name, seed, arm), future in zip(asked, begun, strict=True):
            done = future.result()
            # All there is if a later one fails.
            print(f"{name}, {arm}, seed {seed}: {json.dumps(done)}", file=sys.stderr)
            found[name].setdefault(arm, []).append(done)
    return found


def compare(options: Any) -> dict[str, Any]:
    """The result of a command line."""
    if min(options.batch, options.steps, options.jobs) < 1 or options.rounds == 1:
        raise ArgumentTypeError("--batch, --steps and --jobs must be at least 1, --rounds 0 or at least 2")
    if options.ramp and not 0 < options.ramp < options.rounds:
        raise ArgumentTypeError("--ramp must lie between 0 and --rounds: seconds are of the rounds after it")
    if options.horizon and options.horizon < options.rounds:
        raise ArgumentTypeError("--horizon must be 0 or at least --rounds: nothing is learnt after it")
    if options.filter_rounds and options.filter_rounds < max(2, options.rounds):
        raise ArgumentTypeError("--filter-rounds must be 0 or at least --rounds: a round of that arm takes less time")
    if options.filter_rounds and FILTERS not in options.arms.split(","):
        raise ArgumentTypeError("--filter-rounds is of an arm that --arms leaves out")
    if options.repeat < 0 or not (options.repeat or options.rounds):
        raise ArgumentTypeError("--repeat must be at least 1, or 0 with --rounds, which is then all that is measured")
    if DENSE not in (arms := options.arms.split(",")) or set(arms) - {DENSE, WEIGHTS, FILTERS}:
        raise ArgumentTypeError(f"--arms: {DENSE}, which the others are compared with, {WEIGHTS} and {FILTERS}")
    torch.set_num_threads(1)
    images, source = examples(Path(options.data) if options.data else None, 0)
    models = {name: measure(name, images, options) for name in options.models.split(",")}
    learnt = federations({name: row["rate"] for name, row in models.items()}, options)
    asked = {key: value for key, value in vars(options).items() if key not in ("data", "json")}
    return {"models": models, "federations": learnt, "images": source, "asked": asked, "torch": torch.__version__}


def show(result: dict[str, Any]) -> None:
    timed = {model: found for model, found in result["models"].items() if "arms" in found}
    rows = [
        (
            model,
            name,
            f"{row['seconds']:.3f}",
            f"{row['ratio']:.2f} ({row['least']:.2f} to {row['most']:.2f})",
            f"{row['down']:,} ({row['down ratio']:.3f})",
            f"{row['up']:,} ({row['up ratio']:.3f})",
        )
        for model, found in timed.items()
        for name, row in found["arms"].items()
    ]
    heads = "model, arm, s a step, over dense (range), bytes down (over dense), bytes up (over dense)"
    if timed:
        show_table("a client's round", heads, rows, 130)
    for model, found in timed.items():
        lost = ", ".join(f"{share:.2%} {way}" for way, share in found["idle"].items())
        print(f"{model}: rate {found['rate']:.3f}, updates {found['apart']:.0e} apart, idle {lost}")
    learnt = [
        (
            model,
            arm,
            f"{statistics.mean(seed['accuracy'] for seed in seeds):.3f}",
            ", ".join(f"{seed['accuracy']:.3f}" for seed in seeds),
            *(
                f"{statistics.mean(seed[key] / dense[key] for seed, dense in zip(seeds, arms[DENSE], strict=True)):.3f}"
                for key in ("seconds", "processor", "down", "up", "processor total", "bytes total")
            ),
        )
        for model, arms in result["federations"].items()
        for arm, seeds in arms.items()
    ]
    if learnt:
        show_table(
            "federations",
            "model, arm, accuracy, seeds, s a round over dense, processor s, bytes down, bytes up, "
            "processor s in all, bytes in all",
            learnt,
            160,
        )


if __name__ == "__main__":
    lengths = {"--steps": 8, "--batch": 16, "--repeat": 9, "--rounds": 0, "--seeds": 3, "--clients": 8, "--ramp": 0}
    chosen = {"--models": "cnn,vgg11-bn,resnet18", "--defenses": NONE, "--arms": f"{DENSE},{WEIGHTS},{FILTERS}"}
    other = {"--data": "", "--device": "cpu", "--rate": 0.05, "--horizon": 0, "--filter-rounds": 0, "--jobs": 1}
    command(__doc__, compare, show, {**other, **chosen, **lengths})
