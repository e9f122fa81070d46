"""Every defense beside none: accuracy, bytes, time, and what plain IG and mask-aware SGI rebuild, with the control.

One row is one chain. Its federation (in process, ``benchmarks.engine.inprocess``): FedAvg, Dirichlet partition with
alpha 1, the same seed, model, steps and learning rate for all, no audits; accuracy is on the first ``TEST`` test
images. Its time: processor seconds of one client's local training over plain SGD's, in turns, the median of ``REPEAT``;
fitting a data defense, once per client, is left out. Its leakage: ``--images`` test images, one after the other, each
through one local step of batch 1 under the chain, at the weights every run starts from, where attacks are strongest,
and in a client's first round, in which no error of earlier rounds is sent along; PriPrune, whose masks are learned,
takes ``WARM`` steps on other images first. The attacks are given the label, which most gradients tell.

The control of an image is the same attack, settings and seed on the same image without a defense; a leakage figure
whose control failed proves nothing, and the table says so. Both attacks: Euclidean distance with L-BFGS on sigmoid
networks, cosine with signed Adam elsewhere. ``--attacks`` may name ``ggl`` and ``rog`` too; what they bring along is
learnt from training images, and the images attacked are test images. For ``ats`` the likeness to the transformed image
that was trained on is a row of its own (ATS-R). The attack that ``leakage-guard`` makes is not in its time. ``precode``
trains and is attacked with the bottleneck in the model; its control is the plain model's.

Cells are kept in ``--cache`` as they are finished, by a digest of all their settings: a second run takes up where the
first one was stopped.

    python -m prunella.benchmarks.papers.leakage --dataset mnist:/data/mnist [--defenses dgp,priprune] [--json]
"""

import argparse
import dataclasses
import functools
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import prunella.client.session
import prunella.server.app
from prunella.attacks import find_attack
from prunella.attacks.score.control import PSNR_FLOOR
from prunella.attacks.score.leakage import score
from prunella.benchmarks.engine.cells import Cache, Row
from prunella.benchmarks.engine.inprocess import run_in_process
from prunella.benchmarks.engine.views import LEARNS, Sender, model_of, seen, sender, warmed
from prunella.benchmarks.papers.adapted import learn
from prunella.benchmarks.speed.defenses import turns
from prunella.core.errors import PrunellaError
from prunella.core.randomness import rehearsal, stream
from prunella.core.trees import full_mask
from prunella.core.types import PrivateBatch
from prunella.privacy import DEFENSES
from prunella.privacy.chain import build_chain, start
from prunella.strategies.round.local import Procedure, Received, local_update
from prunella.tasks.data import Examples, Partition, batches, load_client, load_test, make_task
from prunella.tasks.task import Task, initial
from prunella.tasks.training import Sgd

VERSION = 1  # of what a cell means: a change forgets the cells of before
WARM = 5
LEARNT = {"ggl", "rog"}  # attacks that bring a prior along
REPEAT, STEPS = 3, 5
STILL = 1e-6  # the learning rate of timed steps: their time does not depend on it, and none may diverge
TEST = 1000
POOL = 256  # images a data defense is fitted on
CHAINS = tuple(DEFENSES) + ("dgp,mask-hiding", "top-k,mask-hiding", "channel-natural,dgp")


_test = functools.lru_cache(maxsize=1)(load_test)
_client = functools.lru_cache(maxsize=16)(load_client)


def few_test(dataset: str, root: Path | None) -> Examples | None:
    found = _test(dataset, root)
    return found and Examples(found.x[:TEST], found.y[:TEST])


def few_of(own: Examples, examples: int) -> Examples:
    """A client's first ``examples``, or all of them where that is 0."""
    return own.take(torch.arange(min(examples, len(own)))) if examples else own


@contextmanager
def data_kept(examples: int = 0) -> Iterator[None]:
    """Federations of one process decode their images once, and are tested on the first ``TEST``. Clients have their
    first ``examples`` only, where that is not 0."""
    modules: tuple[Any, Any] = prunella.server.app, prunella.client.session
    before = modules[0].load_test, modules[1].load_client
    modules[0].load_test = few_test
    modules[1].load_client = lambda *asked: few_of(_client(*asked), examples)
    try:
        yield
    finally:
        modules[0].load_test, modules[1].load_client = before


def federation(chosen: argparse.Namespace, defenses: str) -> Row:
    """One run: accuracies and megabytes, and the largest epsilon of a client; or why no client sent anything."""
    fixed = {"strategy": "fedavg", "audit_every": 0, "partition": "dirichlet", "values": "float32"}
    asked = {"dataset": chosen.dataset, "rounds": chosen.rounds, "local_steps": chosen.steps}
    asked |= {"batch_size": chosen.batch, "learning_rate": chosen.learning_rate, "seed": chosen.seed}
    asked |= {"model": model_of(chosen.model, defenses.split(",")), "defenses": defenses}
    with tempfile.TemporaryDirectory() as folder, data_kept():
        try:
            done = run_in_process(Path(folder), chosen.clients, **fixed, **asked)
        except PrunellaError as error:  # every client withheld its update: no accuracy, and never a zero
            return {"failed": str(error)}
        lines, counters, ledgers = done.store.metrics(), done.counters, list(done.ledgers.values())
    values: dict[str, list[float]] = {}
    for line in lines:
        values.setdefault(line["metric"], []).append(line["value"])
    spent = [float(line["epsilon"]) for line in ledgers if "epsilon" in line]
    return {
        "accuracy": values["accuracy_ratio"][-1],
        "best_accuracy": max(values["accuracy_ratio"]),
        "megabytes_up": counters["wire_bytes_total|up"] / 1e6,
        "megabytes_down": counters["wire_bytes_total|down"] / 1e6,
        "failures": sum(v for name, v in counters.items() if name.startswith("client_failures_total")),
        "epsilon": max(spent) if len(spent) == len(ledgers) and spent else None,
    }


def seconds(bench: "Bench", chosen: argparse.Namespace, defenses: str) -> Row:
    """A client's local training under the chain over plain SGD's."""

    def work(chain: str) -> Callable[[], object]:
        names = chain.split(",")
        task = dataclasses.replace(bench.task, model=model_of(chosen.model, names))
        params, buffers = initial(task, bench.seed)
        made, received = build_chain(names, {}), Received(params, full_mask(params), buffers)
        procedure = Procedure(task.build(), Sgd(STILL), made, chosen.batch)
        state = start(made, bench.pool.x, params, {}, rehearsal(bench.seed, purpose="fit"))
        few = min(chosen.steps, STEPS)
        drawn = list(batches(bench.pool, chosen.batch, few, rehearsal(bench.seed, purpose="leakage-time")))
        return lambda: local_update(procedure, received, iter(drawn), state, rehearsal(0, purpose="leakage-time"))

    return turns({"none": work("none"), defenses: work(defenses)}, "none", REPEAT)[defenses]


def attack_settings(attack: str, model: str, iterations: int, priors: Callable[[], Mapping[str, str]]) -> Any:
    """The attack's settings for a model: see the module. ``priors`` are asked for where the attack learnt one."""
    asked: Row = {"objective": "euclidean", "optimizer": "lbfgs"} if "zhu" in model else {}
    asked |= {"prior": priors()[attack]} if attack in LEARNT else {}
    return dataclasses.replace(find_attack(attack).settings(), iterations=iterations, **asked)  # type: ignore[type-var]


@dataclasses.dataclass(frozen=True)
class Bench:
    """The images of a table: those attacked, and a pool to fit and warm defenses on. ``priors`` are files by attack."""

    task: Task
    pool: Examples
    seed: int
    priors: Callable[[], Mapping[str, str]]

    def one(self, number: int) -> Examples:
        return Examples(self.pool.x[number : number + 1], self.pool.y[number : number + 1])


@functools.lru_cache(maxsize=2)
def prepared(bench: Bench, defenses: str, model: str, images: int) -> Sender:
    """A client behind a chain; one that learns took ``WARM`` steps on images of the pool that are not attacked."""
    names = defenses.split(",")
    task = dataclasses.replace(bench.task, model=model_of(model, names))
    params, buffers = initial(task, bench.seed)
    client = sender(task, Received(params, full_mask(params), buffers), defenses, {}, bench.pool.x[:POOL], 1)
    others = [bench.one(images + turn) for turn in range(WARM if LEARNS & set(names) else 0)]
    return warmed(client, others, lambda turn: rehearsal(bench.seed, round=turn, purpose="leakage-warm"))


def attacked(bench: Bench, chosen: argparse.Namespace, defenses: str, attack: str, number: int) -> Row:
    """Scores of one image under one attack; ``shown`` are those against what the model was shown."""
    settings = attack_settings(attack, chosen.model, chosen.iterations, bench.priors)
    private = bench.one(number)
    begin = time.process_time()
    try:
        client = prepared(bench, defenses, chosen.model, chosen.images)
        view, trained_on = seen(client, private, lambda p: rehearsal(bench.seed, round=number, purpose=f"leakage-{p}"))
        draw = stream(bench.seed, round=number, purpose="leakage-attack")
        rebuilt = find_attack(attack).reconstruct(view, client.task, settings, draw)
    except PrunellaError as error:  # withheld, nothing arrived, or the attack diverged: no score, and never a zero
        return {"failed": str(error), "seconds": time.process_time() - begin}
    found, there = score(rebuilt, PrivateBatch(private.x, private.y)), score(rebuilt, trained_on)
    return {
        "psnr": found.psnr.mean,
        "ssim": found.ssim.mean,
        "psnr_shown": there.psnr.mean,
        "ssim_shown": there.ssim.mean,
        "objective": rebuilt.objective,
        "seconds": time.process_time() - begin,
    }


def spread(values: Sequence[float]) -> Row:
    """Mean, standard deviation and largest of scores."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": statistics.fmean(values), "deviation": deviation, "worst": max(values), "images": len(values)}


def summary(cells: Sequence[Row], controls: Sequence[Row]) -> Row:
    """Scores over images; ``control`` counts the images whose undefended update was rebuilt."""
    scored = [cell for cell in cells if "failed" not in cell]
    ok = [c for c in controls if "failed" not in c and c["psnr"] >= PSNR_FLOOR]
    kinds = ("psnr", "ssim", "psnr_shown", "ssim_shown") if scored else ()
    found = {kind: spread([cell[kind] for cell in scored]) for kind in kinds}
    return {**found, "control": len(ok), "images": len(cells), "failed": len(cells) - len(scored)}


def rows(chosen: argparse.Namespace, folder: Path) -> Iterator[Row]:
    """One row a chain, as they are finished. ``folder`` gets what attacks learn, where there is a cell to measure."""
    cache, data = Cache(Path(chosen.cache), VERSION), _test(chosen.dataset, None)
    if data is None:
        raise SystemExit(f"{chosen.dataset} has no test examples")
    order = torch.randperm(len(data.y), generator=stream(chosen.seed, purpose="leakage-images"))[:POOL]
    task, pool = make_task(chosen.model, chosen.dataset, None), Examples(data.x[order], data.y[order])
    whole = Partition("iid", clients=1)
    priors = functools.cache(lambda: learn(task, load_client(chosen.dataset, whole, 0, None), folder))
    bench = Bench(task, pool, chosen.seed, priors)
    trains = ("dataset", "model", "clients", "rounds", "steps", "batch", "learning_rate", "seed")
    common = {name: vars(chosen)[name] for name in trains}  # a federation is the same however long one attacks
    for defenses in chosen.defenses.split("+"):
        row: Row = {"defenses": defenses}
        about = {**common, "defenses": defenses, "kind": "federation"}
        row["federation"] = cache.get(about, lambda d=defenses: federation(chosen, d))  # type: ignore[misc]
        about = {**common, "defenses": defenses, "kind": "seconds"}
        row["seconds"] = cache.get(about, lambda d=defenses: seconds(bench, chosen, d))  # type: ignore[misc]
        for attack in chosen.attacks.split(","):
            found: dict[str, list[Row]] = {}
            for arm in ("none", defenses):
                about = {"dataset": chosen.dataset, "model": chosen.model, "seed": chosen.seed, "defenses": arm}
                about |= {"attack": attack, "iterations": chosen.iterations, "images": chosen.images}
                found[arm] = [
                    cache.get({**about, "number": n}, lambda a=attack, d=arm, n=n: attacked(bench, chosen, d, a, n))  # type: ignore[misc]
                    for n in range(chosen.images)
                ]
            row[attack] = summary(found[defenses], found["none"])
        yield row


def cell_text(found: Row, kind: str, suffix: str = "") -> str:
    if not found.get("psnr"):
        return "nothing arrived"
    one = found[kind + suffix]
    digits = 1 if kind == "psnr" else 2
    return f"{one['mean']:.{digits}f} ± {one['deviation']:.{digits}f} ({one['worst']:.{digits}f})"


def lines(found: Sequence[Row], attacks: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of the table."""
    heads = ["defense", "accuracy", "MB up", "MB down", "time"]
    heads += [f"{attack} {kind}" for attack in attacks for kind in ("PSNR", "SSIM")] + ["control"]
    made = []
    for row in found:
        fed = row["federation"]
        epsilon = f" (ε {fed['epsilon']:.1f})" if fed.get("epsilon") is not None else ""
        numbers = ["withheld", "–", "–"]
        if "failed" not in fed:
            numbers = [f"{fed['accuracy']:.3f}", f"{fed['megabytes_up']:.2f}", f"{fed['megabytes_down']:.2f}"]
        numbers.append(f"{row['seconds']['ratio']:.2f}")
        scores = [cell_text(row[attack], kind) for attack in attacks for kind in ("psnr", "ssim")]
        control = ", ".join(f"{row[attack]['control']}/{row[attack]['images']}" for attack in attacks)
        made.append([row["defenses"] + epsilon, *numbers, *scores, control])
        if "ats" in row["defenses"].split(","):
            shown = [cell_text(row[attack], kind, "_shown") for attack in attacks for kind in ("psnr", "ssim")]
            made.append([f"{row['defenses']}, to what was trained on (ATS-R)", *[""] * 4, *shown, control])
    return heads, made


def markdown(heads: Sequence[str], made: Sequence[Sequence[str]]) -> str:
    """The table as it stands in docs/defenses.md."""
    return "\n".join("| " + " | ".join(row) + " |" for row in (heads, ["---"] * len(heads), *made))


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--defenses", default="+".join(CHAINS), help="chains, + between them")
    parser.add_argument("--attacks", default="ig,sgi")
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache", default="runs/leakage")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


def main() -> None:
    chosen = options()
    torch.set_num_threads(1)
    done, attacks, begin = [], chosen.attacks.split(","), time.perf_counter()
    if not chosen.defenses.startswith("none"):
        chosen.defenses = f"none+{chosen.defenses}"
    with tempfile.TemporaryDirectory() as folder:
        for number, row in enumerate(rows(chosen, Path(folder)), 1):
            done.append(row)
            of = len(chosen.defenses.split("+"))
            print(f"{number}/{of} {row['defenses']}: {time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)
    machine = {"processors": os.cpu_count(), "platform": platform.platform(), "torch": torch.__version__}
    if chosen.json:
        print(json.dumps({"settings": vars(chosen), "rows": done, "machine": machine}))
        return
    heads, made = lines(done, attacks)
    table = Table(*heads)
    for line in made:
        table.add_row(*line)
    Console(width=240).print(table)
    print(markdown(heads, made))


if __name__ == "__main__":
    main()
