"""The board as a page: what leaks behind every chain in every scenario, what the chain costs, and both in one picture.

An entry is the mean PSNR in dB, over all seeds and images, of the attack with the highest one. ``rebuilt`` are images
that a report would call so. PSNR stops at ``MOST``, since beyond it nothing is left to see and a mean of 100s and 20s
tells nothing. A chain is on the front of a picture if no other leaks less and is at least as accurate.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from prunella.attacks.score.control import PSNR_FLOOR
from prunella.benchmarks.engine.claim import Point
from prunella.benchmarks.engine.labels import annotate
from prunella.benchmarks.engine.plots import FLOOR, FRONT, PAPERS, front, save
from prunella.benchmarks.engine.rules import interval
from prunella.benchmarks.engine.views import NONE
from prunella.benchmarks.papers.defended import TRAINING
from prunella.benchmarks.scenarios.meeting import MATCHING, MEAN
from prunella.server.report.units import plural

COST = "costs"  # in place of a scenario, of a federation
MOST = 60.0
DRAWN = 60.0  # megabytes up that the largest mark stands for
PICTURED = {"cifar10": "one-image", "mnist": "one-digit"}  # dataset to the scenario that its picture shows
_LOST = """Points of accuracy lost are beside the same seeds without a defense, with Student's interval of 95 %: where
it holds 0, so few seeds show neither a cost nor that there is none."""
WITH_EPSILON, WITHOUT = "#0072B2", "#E69F00"


class Best(NamedTuple):
    """The attack with the highest PSNR behind a chain in a scenario; and the ``counted`` one, which rebuilt the most
    images."""

    attack: str
    point: Point
    counted: Point

    @property
    def by_seed(self) -> tuple[float, ...]:
        """The mean PSNR over the images of every seed, of each no higher than ``MOST``."""
        images = [values for key, values in self.point.values.items() if key.startswith("psnr.")]
        return tuple(statistics.fmean(min(MOST, value) for value in row) for row in zip(*images, strict=True))

    @property
    def mean(self) -> float:
        return statistics.fmean(self.by_seed)

    @property
    def text(self) -> str:
        """Mean, interval and share rebuilt, and who did it, unless every update was withheld."""
        sent = self.point.mean("sent") if "sent" in self.point.values else 1.0
        if not sent:
            return "nothing was sent"
        low, high = self.interval
        share, by = f"{_rebuilt(self.counted):.0%}", self.counted.label[-1]
        end = f", {sent:.0%} sent" if sent < 1 else ""
        end += "" if self.point.control else ", control failed"
        who = f"{share} {by}" if by == self.attack else f"{self.attack}, {share} {by}"
        return f"**{self.mean:.0f}** [{low:.0f}, {high:.0f}] {who}{end}"

    @property
    def interval(self) -> tuple[float, float]:
        values = {key: tuple(min(MOST, v) for v in seeds) for key, seeds in self.point.values.items()}
        found = Point(self.point.label, values).interval("psnr")
        return found or (self.mean, self.mean)


def strongest(points: Iterable[Point]) -> dict[tuple[str, str], Best]:
    """The best attacks by (scenario, chain); of two that are as good, ``matching``, whose answers others hand on. What
    is not sent is attacked by nobody: such seeds are left out where another one was."""
    met = dict[tuple[str, str], list[Point]]()
    for point in sorted(points, key=lambda point: point.label[-1] != MATCHING):
        scenario, _, chain, attack = point.label
        if scenario != COST and attack != MEAN:
            met.setdefault((scenario, chain), []).append(_sent(point))
    found = dict[tuple[str, str], Best]()
    for key, attacks in met.items():
        best = max((Best(point.label[-1], point, point) for point in attacks), key=lambda one: one.mean)
        most = max(attacks, key=lambda point: (_rebuilt(point), point is best.point))
        found[key] = best._replace(counted=most)
    return found


def _rebuilt(point: Point) -> float:
    return point.mean("rebuilt") if "rebuilt" in point.values else 0.0


def _sent(point: Point) -> Point:
    """With the scores of those seeds alone in which something was sent, if any was."""
    sent = point.values.get("sent", ())
    if all(sent) or not any(sent):
        return point
    kept = {
        key: tuple(value for value, there in zip(values, sent, strict=True) if there) if key != "sent" else values
        for key, values in point.values.items()
    }
    return replace(point, values=kept, seeds=())


def costs(points: Iterable[Point]) -> dict[tuple[str, str], Point]:
    """The federation by (dataset, chain)."""
    return {(p.label[1], p.label[2]): p for p in points if p.label[0] == COST and p.label[3] == TRAINING}


def _markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (heads, ["---"] * len(heads), *rows))


def leaks(points: Sequence[Point]) -> str:
    """Chain by scenario."""
    found = strongest(points)
    scenarios, chains = (list(dict.fromkeys(key[i] for key in found)) for i in (0, 1))
    blind = {p.label[0]: p.mean("psnr") for p in points if p.label[3] == MEAN}
    rows = [
        [chain, *(found[s, chain].text if (s, chain) in found else "not measured" for s in scenarios)]
        for chain in chains
    ]
    floor = ["*class mean, no update*", *(f"{blind[s]:.0f}" if s in blind else "" for s in scenarios)]
    return _markdown(["defenses", *scenarios], [*rows, floor])


def _spread(point: Point, metric: str, digits: int) -> str:
    if metric not in point.values:  # an accuracy of some seeds only would be that of the lucky ones
        withheld = point.values.get("withheld", ()) if metric == "accuracy" else ()
        return f"withheld, {sum(withheld):.0f} of {len(withheld)} runs" if any(withheld) else ""
    end = f" ± {point.spread(metric):.{digits}f}" if len(point.values[metric]) > 1 else ""
    return f"{point.mean(metric):.{digits}f}{end}"


def lost(point: Point, plain: Point) -> str:
    """Points of accuracy that a chain costs, seed by seed beside no defense, and their interval; of the seeds that both
    have, where some were not measured yet.

    >>> own, plain = ({"accuracy": values} for values in ((0.8, 0.79), (0.9, 0.89, 0.7)))
    >>> lost(Point((), own, seeds=(0, 1)), Point((), plain, seeds=(0, 1, 2)))
    '10.0 [10.0, 10.0] (2 seeds)'
    """
    both = [(each.values.get("accuracy", ()), each.seeds) for each in (point, plain)]
    own, other = (dict(zip(seeds or range(len(values)), values, strict=False)) for values, seeds in both)
    withheld = any(len(values) < len(seeds) for values, seeds in both)
    points = [round(100 * (other[seed] - own[seed]), 9) for seed in own if seed in other]
    if point is plain or withheld or not points:
        return ""
    low, high = interval(points)
    few = f" ({plural(len(points), 'seed')})" if len(points) < max(len(own), len(other)) else ""
    return f"{statistics.fmean(points):.1f}" + (f" [{low:.1f}, {high:.1f}]" if len(points) > 1 else "") + few


def prices(points: Sequence[Point]) -> str:
    """What a chain costs, on every dataset."""
    shown, paid = (("megabytes_up", 1), ("megabytes_down", 1), ("time", 2), ("epsilon", 1)), costs(points)
    rows = [
        [
            *(*key, _spread(point, "accuracy", 3), lost(point, paid.get((key[0], NONE), point))),
            *(_spread(point, metric, digits) for metric, digits in shown),
        ]
        for key, point in paid.items()
    ]
    heads = ["dataset", "defenses", "accuracy", "points lost", "MB up", "MB down", "time over plain", "ε"]
    return _markdown(heads, rows)


def table(points: Sequence[Point]) -> str:
    """Both tables, with what an entry means."""
    said = f"Mean PSNR in dB (at most {MOST:.0f}) of the attack with the highest, [the middle 95 % of a bootstrap of "
    said += "seeds and images, too narrow for few seeds],"
    seeds = sorted({len(best.point.values["psnr"]) for best in strongest(points).values()})
    rest = f" Seeds behind an entry: {' to '.join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))}." if seeds else ""
    parts = [
        f"{said} the largest share of images that one attack brings back as a report calls rebuilt, and who did each."
        f"{rest}",
        leaks(points),
    ]
    if costs(points):
        parts.append(f"What each costs: a federation of four clients; mean ± standard deviation over seeds. {_LOST}")
        parts.append(prices(points))
    return "\n\n".join(parts)


def _floors(axes: Any, points: Sequence[Point], scenario: str) -> None:
    """What counts as rebuilt, and the best picture that needs no update."""
    axes.axvline(PSNR_FLOOR, color="grey", linestyle=":", label=PAPERS, zorder=0)
    blind = [p.mean("psnr") for p in points if p.label[0] == scenario and p.label[3] == MEAN]
    if blind:
        axes.axvline(statistics.fmean(blind), **FLOOR, linestyle="--", label=f"{MEAN}, no update")


def _leaks(points: Sequence[Point], path: Path) -> None:
    """The leak of every chain, a panel a scenario, where no federation tells what a chain costs."""
    from matplotlib.figure import Figure

    found = strongest(points)
    scenarios, chains = (list(dict.fromkeys(key[place] for key in found)) for place in (0, 1))
    figure = Figure(figsize=(2.6 + 3.2 * max(1, len(scenarios)), 1.4 + 0.26 * len(chains)), layout="constrained")
    panels = figure.subplots(1, max(1, len(scenarios)), squeeze=False, sharex=True, sharey=True)[0]
    for axes, scenario in zip(panels, scenarios, strict=False):
        _floors(axes, points, scenario)
        for row, chain in enumerate(chains):
            if best := found.get((scenario, chain)):
                axes.plot(best.interval, (row, row), color=WITHOUT, linewidth=2, zorder=2)
                axes.plot(best.mean, row, "o", color=WITHOUT, markeredgecolor="black", zorder=3)
            else:
                paper = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # over the line of the class mean
                axes.text(1, row, "not measured", fontsize=7, va="center", bbox=paper)
        axes.set_title(scenario, fontsize=10)
        axes.set_xlabel("PSNR of the strongest attack in dB", fontsize=9)
        axes.set_xlim(0, MOST + 2)
        axes.grid(alpha=0.3)
    panels[0].set_yticks(range(len(chains)), chains, fontsize=8)
    panels[0].invert_yaxis()
    if scenarios:
        panels[-1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    save(figure, path, "board")


def draw(points: Sequence[Point], path: Path) -> None:
    """Leak against accuracy, a panel a dataset. A mark's size is what went up (``DRAWN`` at most), blue has an ε.
    Without a dataset for which both were measured, the leak alone."""
    from matplotlib.figure import Figure

    found, paid = strongest(points), costs(points)
    there = {d: s for d, s in PICTURED.items() if any(key[0] == d for key in paid) and any(k[0] == s for k in found)}
    if not there:
        _leaks(points, path)
        return
    figure = Figure(figsize=(7.2 * len(there), 5.2), layout="constrained")
    panels = figure.subplots(1, len(there), squeeze=False)[0]
    marked = list[tuple[Any, dict[str, tuple[float, float]]]]()
    shown = [chain for scenario, chain in found if scenario in there.values()]
    numbers = {chain: number for number, chain in enumerate(dict.fromkeys([*(c for _, c in paid), *shown]), 1)}
    for axes, (dataset, scenario) in zip(panels, there.items(), strict=False):
        chains = [chain for of, chain in paid if of == dataset and (scenario, chain) in found]
        chains = [chain for chain in chains if "accuracy" in paid[dataset, chain].values]
        places = {c: (found[scenario, c].mean, paid[dataset, c].mean("accuracy")) for c in chains}
        best = front(places)
        axes.plot(*zip(*(places[c] for c in best), strict=True), **FRONT)
        _floors(axes, points, scenario)
        for chain in chains:
            number, point, (leak, accuracy) = numbers[chain], paid[dataset, chain], places[chain]
            low, high = found[scenario, chain].interval
            colour = WITH_EPSILON if "epsilon" in point.values else WITHOUT
            axes.plot((low, high), (accuracy, accuracy), color=colour, linewidth=1, alpha=0.6, zorder=2)
            sent = point.mean("megabytes_up")
            size = 30 + 4 * min(sent, DRAWN)
            mark = "D" if "epsilon" in point.values else "o"
            axes.scatter(leak, accuracy, s=size, color=colour, marker=mark, edgecolor="black", alpha=0.8, zorder=3)
            more = (", ε" if "epsilon" in point.values else "") + (f", {sent:.0f} MB" if sent > DRAWN else "")
            axes.plot([], [], " ", label=f"{number} {chain}{more}")
        for chain in (chain for chain in numbers if chain not in chains):
            axes.plot([], [], " ", label=f"{numbers[chain]} {chain}: not measured")
        axes.set_title(f"{dataset}, {scenario}", fontsize=10)
        axes.set_xlabel("PSNR of the strongest attack in dB: less leaks less", fontsize=9)
        axes.set_xlim(0, MOST + 2)
        axes.set_ylabel("accuracy", fontsize=9)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
        marked.append((axes, {str(numbers[chain]): places[chain] for chain in chains}))
    for axes, texts in marked:  # once all panels have their size
        annotate(axes, texts)
    save(figure, path, "board")
