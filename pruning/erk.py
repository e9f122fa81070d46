"""Layer densities by ERK, Erdős–Rényi with kernels. Evci et al., RigL, ICML 2020, Sec. 3; used by FedDST.

A layer of shape [out, in, kh, kw] has density ε (out + in + kh + kw) / (out · in · kh · kw), at most 1, with ε such
that all layers together keep what is asked: the number kept is proportional to the sum of the layer's dimensions.
Counts are whole, by largest remainder (ties to the first name), at least 1 a layer, and add up exactly.

>>> erk_counts({"a": (10, 10), "b": (30, 30)}, 200)
{'a': 50, 'b': 150}
>>> uniform_counts({"a": (10, 10), "b": (30, 30)}, 200)
{'a': 20, 'b': 180}
>>> proportional_counts({"a": (10, 10), "b": (30, 30)}, 200, {"a": 1.0, "b": 3.0})
{'a': 50, 'b': 150}
"""

import math
from collections.abc import Mapping

Shapes = Mapping[str, tuple[int, ...]]


def proportional_counts(shapes: Shapes, total: int, weights: Mapping[str, float]) -> dict[str, int]:
    """How many weights each layer keeps, in proportion to ``weights`` as far as its size allows."""
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    if not 0 <= total <= sum(sizes.values()):
        raise ValueError(f"cannot keep {total} of {sum(sizes.values())} weights")
    full: set[str] = set()
    while True:
        rest = [name for name in sizes if name not in full]
        room = total - sum(sizes[name] for name in full)
        epsilon = room / max(1, sum(weights[name] for name in rest))
        over = {name for name in rest if epsilon * weights[name] > sizes[name]}
        if not over:
            break
        full |= over
    exact = {name: float(sizes[name]) if name in full else epsilon * weights[name] for name in sizes}
    return _whole(exact, sizes, max(total, len(sizes)))


def _whole(exact: Mapping[str, float], sizes: Mapping[str, int], total: int) -> dict[str, int]:
    """Whole numbers next to ``exact`` that add up to ``total``, each between 1 and its size."""
    counts = {name: min(sizes[name], max(1, math.floor(value))) for name, value in exact.items()}
    while (missing := total - sum(counts.values())) != 0:
        step = 1 if missing > 0 else -1
        movable = [n for n in counts if (counts[n] < sizes[n] if step > 0 else counts[n] > 1)]
        chosen = sorted(movable, key=lambda name: step * (counts[name] - exact[name]))[: abs(missing)]
        for name in chosen:
            counts[name] += step
    return counts


def erk_counts(shapes: Shapes, total: int) -> dict[str, int]:
    """How many weights each layer keeps."""
    return proportional_counts(shapes, total, {name: sum(shape) for name, shape in shapes.items()})


def uniform_counts(shapes: Shapes, total: int) -> dict[str, int]:
    """The same density in every layer."""
    return proportional_counts(shapes, total, {name: math.prod(shape) for name, shape in shapes.items()})
