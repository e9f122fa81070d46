"""The plot of a claim: bars, lines over a true scale, or a trade-off of two metrics with its Pareto front.

No two series of a plot share a colour, a marker or, up to fourteen, a hatching, so that a print in grey is enough. The
first six colours are Okabe and Ito's, which colour-blind eyes tell apart, the others Tol's. What an attack reaches
without an update, a floor, is a dashed line. A bar that was not measured says so.
"""

import colorsys
import itertools
import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from prunella.attacks.score.control import PSNR_FLOOR
from prunella.benchmarks.engine.claim import Claim, Column, Label, Plot, Point

OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
TOL = ("#332288", "#999933", "#882255", "#DDCC77", "#117733", "#AA4499", "#661100", "#44AA99")
COLOURS = (*OKABE_ITO, *TOL)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", "p", ">", "h", "*", "d", "8")
HATCHES = ("", "//", "..", "xx", "\\\\", "++", "oo", "--", "||", "**", "OO", "/.", "\\o", "-.")
DASHES = ("-", "--", "-.", ":")
FLOORS = {  # metric to the keys of what it is without an update, and how their line is called
    "psnr": {"null": "flat or another image", "psnr_other": "flat or another image", "psnr_mean": "class mean"},
    "nmi": {"nmi_random": "noise"},
    "mse": {"mse_flat": "flat image", "mse_other": "another image", "mse_mean": "class mean"},
}
# The rule of reports is another one: many an image below this line counts as rebuilt there.
PAPERS = f"{PSNR_FLOOR:.0f} dB: rebuilt, in papers"
BLIND = ("class mean", "mean")  # series of an attack that sees no update
LESS = ("nmi", "psnr", "ssim", "auc", "mib", "megabytes")  # less is better for who defends; of all else, more
UNEVEN = 4.0  # from this ratio of the widest gap on an axis to the narrowest its scale is logarithmic
WIDE, SLOT, GROUP, LEGEND = 5.0, 0.13, 0.4, 1.4  # inches: a panel that has a row to itself; a bar, a group, a legend
FLOOR, FRONT = {"color": "#333333", "linewidth": 1.2, "zorder": 4}, {"color": "#888888", "zorder": 1, "label": "front"}
Name = TypeVar("Name", bound=Hashable)
MISSING = {"rotation": 90, "ha": "center", "va": "bottom", "fontsize": 5.5, "color": "#555555"}


class Style(NamedTuple):
    """How a series looks."""

    colour: str
    marker: str
    hatch: str
    dash: str


def style(i: int) -> Style:
    """Of the ``i``-th series of a plot; after the last colour a hue and, as marker, a number that no other has."""
    hatch, dash = HATCHES[i % len(HATCHES)], DASHES[i % len(DASHES)]
    if i < len(COLOURS):
        return Style(COLOURS[i], MARKERS[i], hatch, dash)
    parts = colorsys.hls_to_rgb(i * 0.618 % 1, 0.25 + 0.15 * (i % 3), 0.9)
    return Style("#" + "".join(f"{round(255 * part):02X}" for part in parts), f"${i}$", hatch, dash)


def front(places: Mapping[Name, tuple[float, float]]) -> list[Name]:
    """The names that no other beats: (leak, accuracy) with less leak and at least the accuracy, or as little and more.

    >>> front({"none": (60, 0.9), "noise": (12, 0.7), "bad": (30, 0.6), "same": (12, 0.6)})
    ['noise', 'none']
    """
    beaten = {
        name
        for name, (leak, accuracy) in places.items()
        for other, (less, more) in places.items()
        if other != name and less <= leak and more >= accuracy and (less, more) != (leak, accuracy)
    }
    return sorted((name for name in places if name not in beaten), key=lambda name: places[name])


def scale(values: Sequence[float]) -> str:
    """How an axis with these sorted numbers is scaled: evenly, where they are spread so."""
    gaps = [b - a for a, b in itertools.pairwise(values)]
    if len(gaps) < 2 or max(gaps) < UNEVEN * min(gaps):
        return "linear"
    return "log" if values[0] > 0 else "symlog"


def is_number(label: str) -> bool:
    """Whether an entry of a label is one."""
    try:
        float(label)
    except ValueError:
        return False
    return True


def places(labels: Iterable[str]) -> tuple[dict[str, float], str]:
    """Where labels stand on an axis, numbers at their value and anything else (``none``) beyond, and its scale.

    >>> places(["50", "none", "100"])
    ({'50': 50.0, '100': 100.0, 'none': 125.0}, 'linear')
    """
    every = dict.fromkeys(labels)
    found = {label: float(label) for label in sorted(filter(is_number, every), key=float)}
    values = list(found.values()) or [0.0]
    kind, last = scale(values), values[-1]
    beyond = last + ((last - values[0]) / 2 or 1.0) if kind == "linear" else 4 * last
    return found | dict.fromkeys((label for label in every if label not in found), beyond), kind


def told_by(plot: Plot, keys: Sequence[str]) -> int:
    """The entry of a label that bars are called by: the last, unless that is the panel's."""
    return len(keys) - (2 if plot.split == len(keys) - 1 else 1)


def named(label: Label, plot: Plot, keys: Sequence[str], varying: Sequence[int]) -> str:
    """What a series is called: lines and marks by all entries that vary, a number with its key before it."""
    if plot.x is None and not plot.over:
        return label[told_by(plot, keys)]
    parts = [f"{keys[i]} {label[i]}" if is_number(label[i]) else label[i] for i in varying if i != plot.x]
    return ", ".join(parts) or label[-1]


class Panel(NamedTuple):
    """One metric of the ``points`` of one panel. ``series`` are all names of the plot, in order, ``row`` those of this
    metric in all panels; ``keys`` what the entries of a label are, ``varying`` those in which points of a panel
    differ; ``at`` and ``kind``: the ``places`` of the axis."""

    axes: Any
    metric: Column
    plot: Plot
    points: Sequence[Point]
    series: Sequence[str]
    row: Sequence[str]
    keys: Sequence[str]
    varying: Sequence[int]
    at: Mapping[str, float]
    kind: str

    @property
    def seen(self) -> list[Point]:
        """The points of attacks that see an update."""
        return [point for point in self.points if point.label[-1] not in BLIND]

    def curves(self) -> Iterable[tuple[str, Style, list[Point]]]:
        """Name, look and points of every series that the panel has."""
        for i, name in enumerate(self.series):
            points = [point for point in self.seen if named(point.label, self.plot, self.keys, self.varying) == name]
            if points:
                yield name, style(i), points

    def floors(self) -> dict[str, list[tuple[Label, float]]]:
        """Labels and values by the name of a floor: of an attack that sees no update, or in a metric of its own."""
        found: dict[str, list[tuple[Label, float]]] = {}
        for point in self.points:
            if point.label[-1] in BLIND:
                found.setdefault(point.label[-1], []).append((point.label, point.mean(self.metric.key)))
        keys = {} if found else FLOORS.get(self.metric.key.partition("_")[0], {})
        for key, name in keys.items():
            rows = [(point.label, point.mean(key)) for point in self.points if key in point.values]
            found |= {name: rows} if rows else {}
        return found


def _floors(panel: Panel, place: Callable[[Label], float | None], half: float = 0.0) -> None:
    """A dashed line a floor, through its mean at every place, or ``half`` to both sides of it; level where there is one
    place only."""
    for i, (name, rows) in enumerate(panel.floors().items()):
        look: dict[str, Any] = {**FLOOR, "linestyle": ((0, (5, 2)), (0, (1, 1)))[i % 2], "label": name}
        found: dict[float | None, list[float]] = {}
        for label, value in rows:
            found.setdefault(place(label), []).append(value)
        means = {at: statistics.fmean(values) for at, values in found.items() if at is not None}
        if None in found or len(means) < 2:
            panel.axes.axhline(statistics.fmean(value for _, value in rows), **look)
        elif half:
            panel.axes.hlines(list(means.values()), [x - half for x in means], [x + half for x in means], **look)
        else:
            panel.axes.plot(*zip(*sorted(means.items()), strict=True), **look)


def _published(panel: Panel, where: Iterable[tuple[float, Point]]) -> None:
    known = [(x, panel.metric.published[p.label]) for x, p in where if p.label in panel.metric.published]
    if known:
        look: dict[str, Any] = {"markersize": 8, "markeredgewidth": 1.5, "zorder": 5, "label": "published"}
        panel.axes.plot(*zip(*known, strict=True), "kx", **look)


def _lines(panel: Panel) -> None:
    """A line a series over the entry ``x``, error bars of one standard deviation; what has no number is not joined."""
    axes, key, x, at = panel.axes, panel.metric.key, panel.plot.x or 0, panel.at
    axes.set_xscale(panel.kind, **({"linthresh": min(v for v in at.values() if v)} if panel.kind == "symlog" else {}))
    axes.set_xticks(list(at.values()), list(at))
    axes.set_xticks([], minor=True)
    for name, look, curve in panel.curves():
        for joined in (True, False):
            part = [point for point in curve if is_number(point.label[x]) is joined]
            rows = [(at[p.label[x]], p.mean(key), p.spread(key)) for p in part]
            dress = {"color": look.colour, "marker": look.marker, "linestyle": look.dash if joined else "none"}
            if rows:
                axes.errorbar(*zip(*rows, strict=True), capsize=3, label=name, **dress)
    _published(panel, [(at[point.label[x]], point) for point in panel.seen])
    _floors(panel, lambda label: at[label[x]])
    axes.set_xlabel(panel.plot.x_name, fontsize=9)


def _marks(panel: Panel) -> None:
    """A mark a point, the metric over another, those of a series joined; and the front."""
    axes, key, over = panel.axes, panel.metric.key, panel.plot.over
    for name, look, curve in panel.curves():
        rows = [(p.mean(over), p.mean(key), p.spread(key), p.spread(over)) for p in curve]
        dress = {"color": look.colour, "marker": look.marker, "linestyle": look.dash}
        axes.errorbar(*zip(*rows, strict=True), capsize=2, markersize=7, elinewidth=0.8, label=name, **dress)
    where = {point.label: (point.mean(over), point.mean(key)) for point in panel.seen}
    across, up = (1 if metric.startswith(LESS) else -1 for metric in (over, key))
    best = front({label: (across * x, -up * y) for label, (x, y) in where.items()})
    axes.plot(*zip(*(where[label] for label in best), strict=True), **FRONT)
    _published(panel, [(point.mean(over), point) for point in panel.seen])
    _floors(panel, lambda _: None)
    axes.set_xlabel(panel.plot.x_name or over, fontsize=9)


def _bars(panel: Panel) -> None:
    """One bar a point in the colour of its series, those of one setting together; a missing one says so."""
    axes, own = panel.axes, told_by(panel.plot, panel.keys)
    apart = [i for i in panel.varying if i != own]

    def group(label: Label) -> str:
        return ", ".join(label[i] for i in apart) if apart else label[own]

    groups = list(dict.fromkeys(group(point.label) for point in panel.seen)) if apart else panel.row
    slots = panel.row if apart else [""]
    wide, drawn = 0.8 / len(slots), list[tuple[float, Point]]()
    there = {(group(point.label), point.label[own] if apart else ""): point for point in panel.seen}
    for (g, one), (s, slot) in itertools.product(enumerate(groups), enumerate(slots)):
        x, point = g + (s - (len(slots) - 1) / 2) * wide, there.get((one, slot))
        if point is None:
            axes.text(x, 0.03, "not measured", transform=axes.get_xaxis_transform(), **MISSING)
            continue
        look, spread = style(panel.series.index(point.label[own])), point.spread(panel.metric.key)
        dress: dict[str, Any] = {"color": look.colour, "hatch": look.hatch, "edgecolor": "white"}
        dress |= {"yerr": spread} if math.isfinite(spread) else {}
        axes.bar(x, point.mean(panel.metric.key), wide, capsize=1.5 if apart else 3, label=slot or None, **dress)
        drawn.append((x, point))
    _published(panel, drawn)
    numbers = {one: float(g) for g, one in enumerate(groups)}
    _floors(panel, lambda label: numbers.get(group(label)), 0.45)
    axes.set_xlim(-0.6, len(groups) - 0.4)
    texts = [one.replace("prunella.attacks.", "") for one in groups]
    axes.set_xticks(range(len(groups)), texts, rotation=35, ha="right", rotation_mode="anchor")
    axes.set_xlabel(", ".join(panel.keys[i] for i in apart) if apart else panel.keys[own], fontsize=9)


def _title(panel: Panel) -> str:
    """The panel's own value, and that of every setting that is the same for all its points."""
    split, label = panel.plot.split, panel.points[0].label
    fixed = [i for i in range(len(label) - 1) if i not in (*panel.varying, panel.plot.x, split)]
    own = [] if split is None else [label[split]]
    return ",\n".join([*own, *(f"{panel.keys[i]} {label[i]}" for i in fixed)])


def panels(claim: Claim, points: Sequence[Point]) -> list[list[Panel]]:
    """What the panels draw, a row a metric, still without axes."""
    plot, keys = claim.experiment.plot, (*claim.experiment.keys, claim.experiment.series)
    drawn = [point for point in points if any(key in point.values for key in plot.metrics)]
    groups: dict[str, list[Point]] = {}
    for point in drawn:
        groups.setdefault("" if plot.split is None else point.label[plot.split], []).append(point)
    seen = [point for point in drawn if point.label[-1] not in BLIND]
    entries = [list(zip(*(p.label for p in group if p in seen), strict=True)) for group in groups.values()]
    varying = [i for i in range(len(keys)) if i != plot.split and any(len(set(e[i])) > 1 for e in entries if e)]
    found = []
    for metric in (next(m for m in claim.experiment.metrics if m.key == key) for key in plot.metrics):
        series, row_of = (
            list(dict.fromkeys(named(p.label, plot, keys, varying) for p in seen if key in p.values or not key))
            for key in ("", metric.key)
        )
        row = []
        for group in groups.values():
            shown = [point for point in group if metric.key in point.values]
            on = shown if plot.x_name in plot.apart else seen
            at, kind = ({}, "") if plot.x is None else places(point.label[plot.x] for point in on)
            row.append(Panel(None, metric, plot, shown, series, row_of, keys, varying, at, kind))
        found.append(row)
    return found


def figure(claim: Claim, points: Sequence[Point]) -> Any:
    """The plot: a row a metric and a column a group, or groups below each other where bars are many. Panels share axes
    but those whose metric or ``x_name`` stands ``apart``; in dB, with a line from where on papers call an image
    rebuilt."""
    from matplotlib.figure import Figure

    plot, grid = claim.experiment.plot, panels(claim, points)
    bars, own = plot.x is None and not plot.over, told_by(plot, grid[0][0].keys)
    room = 2.8 if plot.over else 2.3
    for panel in itertools.chain(*grid) if bars else ():
        settings = {(*p.label[:own], *p.label[own + 1 :]) for p in panel.seen}
        room = max(room, SLOT * len(panel.row) * len(settings), GROUP * len(settings))
    down = room > WIDE and len(grid) == 1
    shape = (len(grid[0]), 1) if down else (len(grid), len(grid[0]))
    whole = Figure(figsize=(max(3.5, shape[1] * room) + LEGEND, 2.7 * shape[0]), layout="constrained")
    every = whole.subplots(*shape, squeeze=False)
    for axes_row, row in zip(every.T if down else every, grid, strict=True):
        for axes, panel in zip(axes_row, row, strict=True):
            one = panel._replace(axes=axes)
            if not panel.points:  # a budget ended before them
                axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center")
                continue
            _dress(one, axes_row[0], every[0][0])
            (_bars if bars else _marks if plot.over else _lines)(one)
    told: dict[str, Any] = {}
    for axes in every.flat:
        told |= {text: handle for handle, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    if told:
        series = grid[0][0].series
        names = [*(name for name in series if name in told), *(name for name in told if name not in series)]
        whole.legend([told[name] for name in names], names, loc="outside right upper", fontsize=8)
    return whole


def _dress(panel: Panel, first: Any, corner: Any) -> None:
    """What all panels have; ``first`` is the first of the metric, ``corner`` of the plot."""
    axes, plot = panel.axes, panel.plot
    if panel.metric.key.startswith("psnr"):
        axes.axhline(PSNR_FLOOR, color="grey", linestyle=":", zorder=0, label=PAPERS)
    axes.set_title(_title(panel), fontsize=10)
    axes.grid(axis="both" if plot.over else "y", alpha=0.3)
    axes.tick_params(labelsize=8)
    left = axes.get_subplotspec().is_first_col()
    axes.set_ylabel(panel.metric.heading if left else "", fontsize=9)
    if axes is not first and panel.metric.key not in plot.apart:
        axes.sharey(first)
        axes.tick_params(labelleft=left)
    if axes is not corner and (plot.over or plot.x is not None) and plot.x_name not in plot.apart:
        axes.sharex(corner)


def draw(claim: Claim, points: Sequence[Point], path: Path) -> None:
    """Writes the ``figure``; the same numbers give the same file."""
    save(figure(claim, points), path, claim.name)


def save(figure: Any, path: Path, name: str) -> None:
    """Writes a figure without a date, its identifiers from ``name``."""
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": name}):
        undated = {"Date": None} if path.suffix == ".svg" else {}
        figure.savefig(path, format=path.suffix.removeprefix("."), dpi=150, metadata=undated)
