"""The wire codec on real updates: bytes beside the naive entropy bound, speed beside a copy of the dense bytes.

The bound is H(p)·n/8 + 4·nnz bytes: n coordinates of which a share p is kept, the mask at its entropy and every kept
value as a float32. ``bytes`` are the length of the blob, header and mask included, coded without a reference mask;
``later`` is what it costs once the receiver holds the mask (magnitude only: DGP's changes with every update).
``zeros`` is the share of kept values that are exactly zero: a net that learns little yet has many, and is small for
that reason. ``float16`` and ``int8`` are the rounded codings. ``gaussian`` is no update but independent normal values
under a random mask: only exponents compress there, which shows how far losslessness goes without structure.

Speed is of the model's dense bytes. A codec makes new bytes and new tensors, so ``copy`` copies the dense bytes into
new memory; ``memcpy`` copies them into memory that is already there, which nothing that returns a result can do. Each
repetition times all four in turn, the figures are the fastest of each, and ratios are over them.

    python -m prunella.benchmarks.speed.wire [--data DIRECTORY_OF_CIFAR10] [--models resnet18,vgg-11] [--json]
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from prunella.benchmarks.speed.bench import Work, command, fastest, show_table
from prunella.benchmarks.speed.updates import KINDS, LocalTraining, Update, examples, real_update
from prunella.core.parallel import threads
from prunella.core.randomness import stream
from prunella.core.trees import Tree, apply_mask, count, size
from prunella.wire.encode import decode, dense_bytes, encode

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "cifar10"


def bound(kept: int, total: int) -> float:
    """Bytes of the naive entropy bound.

    >>> bound(50, 100)
    212.5
    """
    p = kept / total
    entropy = -sum(q * math.log2(q) for q in (p, 1 - p) if q > 0)
    return entropy * total / 8 + 4 * kept


def gaussian(like: Tree, removed: float, seed: int) -> Update:
    generator = stream(seed, purpose="gaussian")
    mask = {name: torch.rand(t.shape, generator=generator) >= removed for name, t in like.items()}
    values = {name: torch.randn(t.shape, generator=generator) for name, t in like.items()}
    return Update(mask, apply_mask(values, mask), mask)


def measure(update: Update, repeat: int) -> dict[str, Any]:
    """Bytes and speed of one update. Raises ``ValueError`` when a round trip is not exact."""
    tree, mask = update.update, update.shared
    blob = encode(tree, mask)
    back, kept = decode(blob, tree)
    if not all(torch.equal(back[n], tree[n]) and torch.equal(kept[n], mask[n]) for n in tree):
        raise ValueError("the round trip is not exact")
    n, kept_count, dense = size(tree), count(mask), dense_bytes(tree)
    here, there = np.ones(n, np.float32), np.ones(n, np.float32)
    arms: dict[str, Work] = {
        "encode": lambda: encode(tree, mask),
        "decode": lambda: decode(blob, tree),
        "copy": here.copy,
    }
    seconds = fastest({**arms, "memcpy": lambda: np.copyto(there, here)}, repeat)
    naive = bound(kept_count, n)
    return {
        "coordinates": n,
        "kept": kept_count / n,
        "zeros": 1 - sum(int(torch.count_nonzero(t)) for t in tree.values()) / kept_count,
        "dense": dense,
        "bound": naive,
        "bytes": len(blob),
        "of_bound": len(blob) / naive,
        "later": len(encode(tree, mask, update.base)),
        "float16": len(encode(tree, mask, None, "float16")),
        "int8": len(encode(tree, mask, None, "int8")),
        "megabytes_per_second": {name: dense / took / 1e6 for name, took in seconds.items()},
        "of_copy": {name: seconds["copy"] / seconds[name] for name in ("encode", "decode")},
        "of_memcpy": {name: seconds["memcpy"] / seconds[name] for name in ("encode", "decode")},
    }


def compare(models: Sequence[str], data: Path | None, training: LocalTraining, repeat: int) -> dict[str, Any]:
    """Every model, pruned every way, and Gaussian noise of the first model's shapes."""
    images, source = examples(data, training.seed)
    results = {}
    for model in models:
        for kind in KINDS:
            results[f"{model} {kind}"] = measure(real_update(model, kind, images, training), repeat)
    like = real_update(models[0], "magnitude", images, training).update
    results[f"{models[0]} gaussian"] = measure(gaussian(like, training.removed, training.seed), repeat)
    return {"images": source, "training": vars(training), "threads": threads(), "updates": results}


def show(result: dict[str, Any]) -> None:
    rows = []
    for name, row in result["updates"].items():
        speed = row["megabytes_per_second"]
        ratios = [f"{row[key]['encode']:.2f} / {row[key]['decode']:.2f}" for key in ("of_copy", "of_memcpy")]
        speeds = f"{speed['encode']:.0f} / {speed['decode']:.0f}"
        size, share = f"{row['bytes'] / 1e6:.2f}", f"{row['of_bound']:.3f}"
        rows.append((name, size, share, f"{row['zeros']:.1%}", speeds, *ratios))
    show_table("encode / decode", "update, MB, of bound, zeros, MB/s, of copy, of memcpy", rows)


def main() -> None:
    data = {"type": Path, "default": DATA if DATA.exists() else None}
    asked = lambda given: compare(given.models.split(","), given.data, LocalTraining(given.seed), given.repeat)  # noqa: E731
    command(__doc__, asked, show, {"--data": data, "--models": "resnet18,vgg-11", "--repeat": 20, "--seed": 0})


if __name__ == "__main__":
    main()
