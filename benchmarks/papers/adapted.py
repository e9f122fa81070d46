"""Attacks adapted to a defense beside those that are not, on one set of images, against the defenses a client runs.

priprune   after eight rounds of training on other images: ``ig``, ``sgi`` and ``expectation``, which knows the coin.
rounds     DGP and Top-k with error feedback, the same image in every round, the model following what was sent: ``ig``
           and ``sgi`` on the last round, ``unrolling`` on all of them.
learnt     an undefended update, Top-k (2 % of the coordinates), DGP, and noise of twice and eight times every layer's
           deviation: ``sgi``, and ``ggl`` and ``rog`` with priors learnt from digits that are not attacked. "mean" is
           the mean image of the class.

``cnn`` untrained, batch 1, labels known; scikit-learn's digits, or another dataset's images. PSNR in dB, mean and
deviation over images. Two arms are told apart by their images' own differences and twice their standard error, as in
``benchmarks.papers.orderings``.

    python -m prunella.benchmarks.papers.adapted [--parts priprune rounds learnt]
        [--dataset cifar10:DIRECTORY] [--images 4] [--json]
"""

import argparse
import dataclasses
import json
import math
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from prunella.attacks import ATTACKS, ggl, rog
from prunella.attacks.score.control import undefended_view
from prunella.attacks.score.leakage import psnr
from prunella.benchmarks.engine.cells import Cache
from prunella.benchmarks.engine.machine import machine
from prunella.benchmarks.engine.views import Sender, seen, sender, warmed
from prunella.benchmarks.papers.orderings import masked, verdict
from prunella.core.randomness import rehearsal, stream
from prunella.core.ranking import keep_largest
from prunella.core.trees import add, apply_mask, full_mask
from prunella.core.types import PrivateBatch, ServerView
from prunella.strategies.round.local import Received
from prunella.tasks.data import Partition, load_client, load_test, make_task
from prunella.tasks.examples import Examples
from prunella.tasks.task import Task, initial

ROUNDS = 4
WARM = 8
PARTS = ("priprune", "rounds", "learnt")
PUBLIC = 5000  # images priors are learnt from, at most
Row = dict[str, float]


@dataclasses.dataclass(frozen=True)
class Bench:
    """What all parts share: the task, images that are not attacked, and iterations an attack."""

    task: Task
    train: Examples
    iterations: int


def sending(bench: Bench, defense: str, image: int) -> Sender:
    """A client about to train behind ``defense`` from weights of its own image's seed."""
    params, buffers = initial(bench.task, image)
    return sender(bench.task, Received(params, full_mask(params), buffers), defense, {}, bench.train.x, 1)


def undefended(bench: Bench, truth: PrivateBatch, image: int) -> ServerView:
    """One step on the image from weights of its own seed, label known."""
    return dataclasses.replace(undefended_view(bench.task, *initial(bench.task, image), truth), labels=truth.y)


def attacked(bench: Bench, name: str, view: ServerView, image: int, **more: Any) -> torch.Tensor:
    """The images [1, C, H, W] an attack finds, by its defaults but for the iterations."""
    keywords = {"earlier": more.pop("earlier")} if "earlier" in more else {}
    settings = dataclasses.replace(ATTACKS[name].settings(), iterations=bench.iterations, **more)
    answer = ATTACKS[name].reconstruct(view, bench.task, settings, stream(image, purpose="attack"), **keywords)
    return answer.x


def priprune(bench: Bench, truth: PrivateBatch, image: int) -> Row:
    """PSNR of the attacks on the ninth round, and on an undefended one."""
    one, train = sending(bench, "priprune", image), bench.train
    rows = range(WARM * image, WARM * (image + 1))
    earlier = [Examples(train.x[i : i + 1], train.y[i : i + 1]) for i in rows]
    one = warmed(one, earlier, lambda turn: rehearsal(image, round=turn, purpose="warm"))
    view = seen(one, Examples(truth.x, truth.y), lambda purpose: rehearsal(image, purpose=purpose)).view
    open_ = undefended(bench, truth, image)
    sent = sum(int((u != 0).sum()) for u in view.update.values()) / sum(u.numel() for u in view.update.values())
    found = {name: attacked(bench, name, view, image) for name in ("ig", "sgi", "expectation")}
    found["sgi undefended"] = attacked(bench, "sgi", open_, image)
    return {name: psnr(truth.x, x)[0] for name, x in found.items()} | {"share sent": sent}


def rounds(bench: Bench, truth: PrivateBatch, image: int) -> Row:
    """PSNR behind each defense with error feedback, of the last of ``ROUNDS`` views and of all."""
    row: Row = {}
    private = Examples(truth.x, truth.y)
    for defense in ("top-k", "dgp"):
        one, views = sending(bench, defense, image), list[ServerView]()
        for turn in range(ROUNDS):
            draw = lambda purpose, turn=turn: rehearsal(image, round=turn, purpose=purpose)  # noqa: E731
            views.append(seen(one, private, draw).view)
            one = warmed(one, [private], lambda _, draw=draw: draw("defense"))  # type: ignore[misc]
            moved = add(one.received.params, views[-1].update)
            one = dataclasses.replace(one, received=dataclasses.replace(one.received, params=moved))
        for name in ("ig", "sgi"):
            row[f"{name} {defense}"] = psnr(truth.x, attacked(bench, name, views[-1], image))[0]
        found = attacked(bench, "unrolling", views[-1], image, earlier=views[:-1])
        row[f"unrolling {defense}"] = psnr(truth.x, found)[0]
    return row


def behind(view: ServerView, arm: str, image: int) -> ServerView:
    """The view through a defense's first round."""
    if arm in ("none", "dgp"):
        return masked(view, arm)
    if arm == "top 2 %":
        mask = {n: keep_largest(u.abs(), math.ceil(u.numel() / 50)) for n, u in view.update.items()}
        return dataclasses.replace(view, update=apply_mask(view.update, mask), shared=mask)
    draw, level = stream(image, purpose="noise"), float(arm.removeprefix("noise "))
    noisy = {n: u + level * u.std() * torch.randn(u.shape, generator=draw) for n, u in view.update.items()}
    return dataclasses.replace(view, update=noisy, shared=full_mask(noisy))


ARMS = ("none", "top 2 %", "dgp", "noise 2", "noise 8")


def learnt(bench: Bench, truth: PrivateBatch, image: int, priors: Mapping[str, str]) -> Row:
    """PSNR with and without public images."""
    view, train = undefended(bench, truth, image), bench.train
    row = {"mean": psnr(truth.x, train.x[train.y == truth.y].mean(dim=0)[None])[0]}
    for arm in ARMS:
        seen_ = behind(view, arm, image)
        row[f"sgi {arm}"] = psnr(truth.x, attacked(bench, "sgi", seen_, image))[0]
        for name, prior in priors.items():
            row[f"{name} {arm}"] = psnr(truth.x, attacked(bench, name, seen_, image, prior=prior))[0]
    return row


def learn(task: Task, train: Examples, folder: Path) -> dict[str, str]:
    """The two priors, from training images; test images are attacked."""
    draw, x, y = stream(0, purpose="prior"), train.x[:PUBLIC], train.y[:PUBLIC]
    ggl.save(folder / "ggl.safetensors", ggl.train(PrivateBatch(x, y), task.classes, draw))
    rog.save(folder / "rog.safetensors", rog.train(x, draw, epochs=10))
    return {name: str(folder / f"{name}.safetensors") for name in ("ggl", "rog")}


QUESTIONS = {
    "priprune": (("expectation", "sgi"), ("sgi", "ig"), ("sgi undefended", "expectation")),
    "rounds": (
        ("ig top-k", "ig dgp"),
        ("unrolling top-k", "unrolling dgp"),
        ("unrolling dgp", "sgi dgp"),
        ("unrolling top-k", "sgi top-k"),
    ),
    "learnt": tuple((f"{name} {arm}", f"sgi {arm}") for name in ("ggl", "rog") for arm in ARMS)
    + (("ggl noise 8", "mean"), ("ggl top 2 %", "mean")),
}


def measure(bench: Bench, part: str, images: list[PrivateBatch], cache: Cache, dataset: str) -> dict[str, Any]:
    """Figures and orderings of a part."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        priors: dict[str, str] = {}
        for image, truth in enumerate(images):
            about = {"part": part, "image": image, "iterations": bench.iterations, "dataset": dataset}
            if part == "learnt" and not priors and not cache.has(about):
                priors = learn(bench.task, bench.train, Path(folder))
            make = {"priprune": priprune, "rounds": rounds}.get(part)
            rows.append(
                cache.get(
                    about,
                    lambda: (
                        make(bench, truth, image)  # noqa: B023 - called at once
                        if make  # noqa: B023
                        else learnt(bench, truth, image, priors)  # noqa: B023
                    ),
                )
            )
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    said = {f"{a} above {b}": verdict(columns[a], columns[b]) for a, b in QUESTIONS[part]}
    return {"figures": columns, "orderings": said}


def show(part: str, result: Mapping[str, Any]) -> None:
    print(f"\n{part}")
    for name, values in result["figures"].items():
        print(f"  {name:20} {statistics.mean(values):7.2f} ± {statistics.stdev(values):.2f}")
    for words, outcome in result["orderings"].items():
        print(f"  {outcome:10} {words}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--cache", type=Path, default=Path("runs/adapted"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.images < 2 or options.iterations < 1:
        parser.error("--images must be at least 2 and --iterations at least 1")
    torch.set_num_threads(1)
    name = options.dataset
    test, train = load_test(name, None), load_client(name, Partition("iid", clients=1), 0, None)
    if test is None:
        parser.error(f"{name} has no test images")
    bench = Bench(make_task("cnn", name, None), train, options.iterations)
    images = [PrivateBatch(test.x[i : i + 1], test.y[i : i + 1]) for i in range(options.images)]
    cache, found = Cache(options.cache, version=2), {}
    for part in options.parts:
        found[part] = measure(bench, part, images, cache, name)
        if not options.json:
            show(part, found[part])
    if options.json:
        print(json.dumps({"images": options.images, "dataset": name, "parts": found, "machine": machine()}))


if __name__ == "__main__":
    main()
