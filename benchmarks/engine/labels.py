"""Short texts in the marks of a scatter plot, or beside them with a line to the mark where marks lie on each other."""

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

HIGH, WIDE = 8.0, 5.0  # points: of a line, and of a letter, at the size of 7
RINGS = (14.0, 22.0, 30.0, 40.0, 52.0, 66.0)  # points: how far from its mark a text is put, nearest first
TURNS = 16  # directions in which a ring is tried
_HALO = 1.6  # points of white around a letter, so that it is read on any colour


def offsets() -> list[tuple[float, float]]:
    """Where a text may be put, points from its mark: into it, else the nearest ring first."""
    turns = [2 * math.pi * turn / TURNS for turn in range(TURNS)]
    around = itertools.product(RINGS, turns)
    return [(0.0, 0.0), *((ring * math.cos(turn), ring * math.sin(turn)) for ring, turn in around)]


def apart(
    places: Mapping[str, tuple[float, float]], bounds: tuple[float, float, float, float] | None = None
) -> dict[str, tuple[float, float]]:
    """The offset of every text from its place, all in points: no two texts overlap, none lies on a mark that is not its
    own, and all are within the ``bounds`` (left, right, bottom, top), where there is room for that.

    >>> apart({"1": (0.0, 0.0), "2": (100.0, 0.0)})
    {'1': (0.0, 0.0), '2': (0.0, 0.0)}
    """
    put, found = dict[str, tuple[float, float]](), dict[str, tuple[float, float]]()

    def meets(text: str, x: float, y: float, other: str, at: tuple[float, float]) -> bool:
        half = WIDE * (len(text) + len(other)) / 2
        return abs(x - at[0]) < half and abs(y - at[1]) < HIGH

    def free(text: str, x: float, y: float) -> bool:
        others = [(other, at) for other, at in (*put.items(), *places.items()) if other != text]
        half = WIDE * len(text) / 2
        inside = bounds is None or (
            bounds[0] + half < x < bounds[1] - half and bounds[2] + HIGH / 2 < y < bounds[3] - HIGH / 2
        )
        return inside and not any(meets(text, x, y, *other) for other in others)

    for text, (x, y) in sorted(places.items(), key=lambda item: item[1]):
        tried = offsets()
        found[text] = next(((dx, dy) for dx, dy in tried if free(text, x + dx, y + dy)), tried[0])
        put[text] = (x + found[text][0], y + found[text][1])
    return found


def annotate(axes: Any, places: Mapping[str, tuple[float, float]]) -> None:
    """Write the texts at their ``places``, in the units of the data, once all else is drawn."""
    from matplotlib.patheffects import withStroke

    figure = axes.figure
    figure.draw_without_rendering()  # only then is it known where things lie
    points = 72 / figure.dpi
    seen = np.array(axes.transData.transform(list(places.values()))) * points
    box = axes.get_window_extent()
    bounds = tuple(edge * points for edge in (box.x0, box.x1, box.y0, box.y1))
    moved = apart({text: (x, y) for text, (x, y) in zip(places, seen.tolist(), strict=True)}, bounds)
    for text, place in places.items():
        line = {"arrowstyle": "-", "linewidth": 0.5, "color": "#333333"} if any(moved[text]) else None
        written = axes.annotate(
            text,
            place,
            moved[text],
            textcoords="offset points",
            arrowprops=line,
            ha="center",
            va="center",
            fontsize=7,
            zorder=6,
            path_effects=[withStroke(linewidth=_HALO, foreground="white")],
        )
        written.set_in_layout(False)  # or the panels move once more
