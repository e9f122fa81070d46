"""What a GPU makes of the two costly parts of a run, attacks and local training: the same work on every device.

    python -m prunella.benchmarks.speed.gpu                               # the CPU, and CUDA where PyTorch sees it
    python -m prunella.benchmarks.speed.gpu --devices cpu --models lenet-zhu --iterations 5

Attacks: ``attacks.engine.inversion.reconstruct`` (cosine, TV 0.2, signed Adam) on views of one digit with a known
label, with 1 and 8 starts, on a GPU 64, too; milliseconds an iteration and start,
and the PSNR, which should not depend on the device. Training: ``strategies.round.local.local_update`` on
random images of 3 x 32 x 32, batch 64, without a defense and behind some; milliseconds a step. Wall time with every
kernel waited for, the least of ``--repeat`` turns after one that is not counted. The ratio is the first device's time
over this one's.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from prunella.attacks.engine.inversion import Inversion, reconstruct
from prunella.attacks.score.leakage import psnr
from prunella.benchmarks.speed.attack import MODELS, TV, case
from prunella.benchmarks.speed.bench import Work, command, show_table
from prunella.benchmarks.speed.defenses import IMAGES, epoch
from prunella.core.memory import keep_freed_memory
from prunella.core.randomness import stream
from prunella.privacy.chain import build_chain
from prunella.tasks.examples import Examples
from prunella.tasks.task import Task, initial

STARTS = (1, 8, 64)
CHAINS = ("none", "dgp", "priprune", "dp-sgd")
STEPS = 4


def least(work: Work, device: str, repeat: int) -> float:
    """Seconds until the device is done with ``work``."""
    taken = []
    for _ in range(repeat + 1):
        begin = time.perf_counter()
        work()
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - begin)
    return min(taken[1:])


def attacks(model: str, device: str, iterations: int, repeat: int) -> dict[str, dict[str, float]]:
    """Milliseconds an iteration and start, and the PSNR, by the number of starts."""
    given, found = case(model, MODELS[model], 1), dict[str, dict[str, float]]()
    view, plain = (
        given.views[0].on(torch.device(device)),
        Inversion(iterations=iterations, optimizer="adam", tv=TV, tolerance=0.0),
    )
    on_gpu = torch.device(device).type == "cuda"
    for starts in STARTS if on_gpu else STARTS[:2]:
        how = replace(plain, restarts=starts, patience=iterations + 1, max_images=max(STARTS))
        attack = partial(reconstruct, view, given.task, how)
        rebuilt = attack(stream(0, purpose="benchmark")).x.cpu()
        taken = least(lambda go=attack: go(stream(0, purpose="benchmark")), device, repeat)  # type: ignore[misc]
        each = 1e3 * taken / (iterations + 1) / starts
        found[f"{starts} of {model}"] = {"ms": each, "psnr": psnr(given.truth, rebuilt)[0]}
    return found


def training(model: str, device: str, repeat: int) -> dict[str, dict[str, float]]:
    """Milliseconds a step, by the defense; DP-SGD where the model has no batch norm."""
    task, g, found = Task(model, (3, 32, 32), 10), stream(0, purpose="images"), dict[str, dict[str, float]]()
    data = Examples(torch.rand(IMAGES, 3, 32, 32, generator=g), torch.randint(10, (IMAGES,), generator=g))
    data = Examples(data.x.to(device), data.y.to(device))
    has_buffers = bool(initial(task, 0)[1])
    for name in CHAINS:
        if has_buffers and name == "dp-sgd":  # batch norm: no example has a gradient of its own
            continue
        work, _ = epoch(task, build_chain([name], {}), data, STEPS)
        found[f"{model}, {name}"] = {"ms": 1e3 * least(work, device, repeat) / STEPS}
    return found


def measure(options: Any) -> dict[str, Any]:
    """The result of a command line."""
    keep_freed_memory()
    by_device: dict[str, Mapping[str, Any]] = {}
    for device in options.devices:
        rows = dict[str, dict[str, float]]()
        for model in options.models:
            rows |= attacks(model, device, options.iterations, options.repeat)
            rows |= training(model, device, options.repeat)
        by_device[device] = rows
    names = {d: torch.cuda.get_device_name(d) for d in options.devices if torch.device(d).type == "cuda"}
    return {"devices": by_device, "names": names, "iterations": options.iterations, "torch": torch.__version__}


def show(result: dict[str, Any]) -> None:
    first, *_ = result["devices"].values()
    rows = [
        (
            device,
            name,
            f"{row['ms']:.2f}",
            f"{first[name]['ms'] / row['ms']:.1f}x" if name in first else "",
            f"{row['psnr']:.1f}" if "psnr" in row else "",
        )
        for device, found in result["devices"].items()
        for name, row in found.items()
    ]
    show_table("ms an iteration and start, or a step", "device, work, ms, ratio, PSNR", rows)


if __name__ == "__main__":
    models = {"nargs": "+", "choices": MODELS, "default": list(MODELS)}
    seen = {"nargs": "+", "default": ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]}
    command(__doc__, measure, show, {"--models": models, "--devices": seen, "--iterations": 20, "--repeat": 3})
