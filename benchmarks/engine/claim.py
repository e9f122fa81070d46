"""A claim of a paper, declared once: what it says, what was published, what to measure, when it counts as holding.

A *cell* is one measurement at some settings and one seed; it gives metrics by series (``{"dgp": {"mb": 52.2}}``). A
*point* is one series at one setting over all seeds.
"""

import dataclasses
import itertools
import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from prunella.attacks.score.control import PSNR_FLOOR
from prunella.benchmarks.engine.rules import REFUSED, Judgement

Size = Literal["small", "paper"]
SIZES: tuple[Size, ...] = ("small", "paper")
Settings = dict[str, Any]
Found = dict[str, dict[str, float]]
Label = tuple[str, ...]
_RESAMPLES = 4000


@dataclass(frozen=True)
class Column:
    """A column: its key in what a cell gives, its heading and how many digits are printed.

    ``published`` has the paper's number for a point's label; a label it lacks was not published.
    """

    key: str
    heading: str
    digits: int = 2
    published: Mapping[Label, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Measure:
    """How a cell is made: settings, seed and a folder of local datasets (or None) to metrics by series.

    ``name`` and ``version`` are in a cell's digest, so that claims share cells. The positive control of a cell is the
    cell with the settings in ``control`` in place of its own, and without ``names``, which only label a point; None:
    nothing here is an attack. A control succeeded when every series (or the one that is ``told``) has at least
    ``least`` of each metric there that it has, and there is one: an image rebuilt to ``PSNR_FLOOR`` in the mean.
    """

    name: str
    make: Callable[[Settings, int, Path | None], Found]
    version: int = 1
    control: Settings | None = None
    names: tuple[str, ...] = ()
    least: Mapping[str, float] = field(default_factory=lambda: {"psnr": PSNR_FLOOR})
    told: str = ""

    def control_of(self, cell: Settings) -> Settings:
        """The settings of a cell's positive control."""
        changed = self.control or {}
        return {key: changed.get(key, value) for key, value in cell.items() if key not in self.names}

    def works(self, found: Found) -> bool:
        """Whether a control succeeded.

        >>> measure = Measure("m", lambda *cell: {})
        >>> [measure.works({"ig": {"psnr": psnr}, "training": {"accuracy": 0.1}}) for psnr in (30.0, 12.0)]
        [True, False]
        """
        rows = [found.get(self.told, {})] if self.told else found.values()
        checked = [row[key] >= least for row in rows for key, least in self.least.items() if key in row]
        return bool(checked) and all(checked)

    def attacks(self, found: Found) -> bool:
        """Whether anything of a cell is an attack's: training alone needs no control."""
        return any(key in row for row in found.values() for key in self.least)


@dataclass(frozen=True)
class Sweep:
    """The cells of one size. ``note`` says how it departs from the paper's setting, ``dropped`` what was left out since
    its control failed."""

    cells: tuple[Settings, ...]
    seeds: tuple[int, ...] = (0, 1, 2)
    note: str = ""
    dropped: str = ""


@dataclass(frozen=True)
class Point:
    """One series at one setting. ``label`` are the settings named in ``Experiment.keys`` and the series, as text;
    ``seeds`` are those of the values, in their order, and empty where nobody wrote them down."""

    label: Label
    values: Mapping[str, tuple[float, ...]]
    control: bool = True
    seeds: tuple[int, ...] = ()

    def at(self, seeds: Sequence[int]) -> "Point":
        """The same at some of its seeds."""
        places = [self.seeds.index(seed) for seed in seeds] if self.values else []
        values = {metric: tuple(found[place] for place in places) for metric, found in self.values.items()}
        return dataclasses.replace(self, values=values, seeds=tuple(seeds) if self.values else ())

    def mean(self, metric: str) -> float:
        return statistics.fmean(self.values[metric])

    def spread(self, metric: str) -> float:
        """Standard deviation over seeds."""
        found = self.values[metric]
        return statistics.stdev(found) if len(found) > 1 else math.nan

    def interval(self, metric: str) -> tuple[float, float] | None:
        """The middle 95 % of the mean over seeds and images, both drawn again with replacement (a bootstrap in two
        levels), for a metric whose images were kept (``each``). For a table only: of three seeds it misses the truth in
        3 to 25 %, as much of the variance is the seed's (``rules``), and no verdict reads it."""
        kept = self._images(metric)
        if not kept:
            return None
        by_seed = np.array(kept).T  # [seeds, images]
        seeds, images = by_seed.shape
        draw = np.random.default_rng(0)
        rows = draw.integers(seeds, size=(_RESAMPLES, seeds, 1))
        means = by_seed[rows, draw.integers(images, size=(_RESAMPLES, seeds, images))].mean(axis=(1, 2))
        low, high = np.quantile(means, (0.025, 0.975))
        return float(low), float(high)

    def covers(self, metric: str) -> bool:
        """Whether the images that were kept are those of the metric's mean. Where an attack answered fewer on a seed,
        only what all seeds have is kept, and its interval is of another mean. Stored values have eight digits."""
        means = list(map(statistics.fmean, zip(*self._images(metric), strict=True)))
        pairs = zip(means, self.values[metric], strict=False)
        return bool(means) and all(math.isclose(*pair, rel_tol=1e-6, abs_tol=1e-9) for pair in pairs)

    def _images(self, metric: str) -> list[tuple[float, ...]]:
        """A metric of every image that was kept, seed by seed."""
        names = itertools.takewhile(self.values.__contains__, (f"{metric}.{i}" for i in itertools.count()))
        return [self.values[name] for name in names]


def each(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Metrics of a cell from those of each image: their means, and every image's beside them.

    >>> each([{"psnr": 10.0}, {"psnr": 20.0}])
    {'psnr': 15.0, 'psnr.0': 10.0, 'psnr.1': 20.0}
    """
    found: dict[str, float] = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        found |= {name: statistics.fmean(values)} | {f"{name}.{i}": value for i, value in enumerate(values)}
    return found


@dataclass(frozen=True)
class Plot:
    """Lines of ``metrics`` over the label's entry ``x``, or bars where ``x`` is None; ``split``: a panel per value of
    that entry of the label. ``over``: a metric that is drawn along the axis instead, as a trade-off: marks and a Pareto
    front. ``apart``: metrics, or the ``x_name``, whose panels have axes of their own, since they are not to be
    compared."""

    metrics: tuple[str, ...]
    x: int | None = None
    x_name: str = ""
    split: int | None = None
    over: str = ""
    apart: tuple[str, ...] = ()


@dataclass(frozen=True)
class Own:
    """What a page has in place of the plot and, if anything, of the table of all points, in Markdown."""

    draw: Callable[[Sequence[Point], Path], None]
    table: Callable[[Sequence[Point]], str] | None = None


@dataclass(frozen=True)
class Experiment:
    """What runs: ``keys`` are the settings that tell points apart, ``series`` the name of the column of series. A table
    that claims nothing has no ``judge``."""

    measure: Measure
    sweeps: Mapping[Size, Sweep]
    keys: tuple[str, ...]
    series: str
    metrics: tuple[Column, ...]
    plot: Plot
    judge: Callable[[Sequence[Point]], Judgement] | None = None
    own: Own | None = None


def on_shared_seeds(found: Sequence[Point]) -> tuple[Sequence[Point], str]:
    """Points at the seeds that all of them have, since rules pair values by their place, and a word on it where a
    series lacks a seed: an attack may find nothing left to do there."""
    every = [point.seeds for point in found if point.values]
    if len(set(every)) < 2:
        return found, ""
    shared = [seed for seed in every[0] if all(seed in seeds for seeds in every)]
    said = f"on seeds {', '.join(map(str, shared))}, which every series has: "
    return [point.at(shared) for point in found] if shared else [], said


def judged(experiment: Experiment, size: Size, found: Sequence[Point], missing: int = 0) -> Judgement:
    """The claim's own rule on the seeds that every series has, unless cells are missing or a positive control failed;
    first what was dropped."""
    if missing:
        return Judgement(REFUSED, f"{missing} cells have not been measured yet")
    bad = sum(not point.control for point in found)
    if bad:
        text = f"the positive control of {bad} of {len(found)} points failed: the attack does not work here, so its"
        return Judgement(REFUSED, f"{text} failing elsewhere would prove nothing")
    if not experiment.judge:
        return Judgement(REFUSED, "this is a table without a rule")
    paired, said = on_shared_seeds(found)
    if said and not paired:
        return Judgement(REFUSED, "no seed is known to have every series, so that nothing can be compared")
    verdict, dropped = experiment.judge(paired), experiment.sweeps[size].dropped
    reason = f"{said}{verdict.reason}"
    return Judgement(verdict.word, f"not judged: {dropped}; {reason}" if dropped else reason)


@dataclass(frozen=True)
class Claim:
    """``published`` is what stands in the paper, in words, and empty for a measurement of our own; the paper's numbers
    are with the metrics."""

    name: str
    paper: str
    where: str
    says: str
    published: str
    experiment: Experiment
    remarks: tuple[str, ...] = ()

    @property
    def compared(self) -> str:
        """What the measured numbers stand beside."""
        return f"Published: {self.published}" if self.published else "Our own measurement; no paper has its numbers"

    def sizes(self) -> tuple[Size, ...]:
        return tuple(size for size in SIZES if size in self.experiment.sweeps)

    def datasets(self, size: Size) -> list[str]:
        """The images a size is measured on, as its cells name them."""
        return sorted({str(cell["dataset"]) for cell in self.experiment.sweeps[size].cells if "dataset" in cell})

    def needs(self, size: Size) -> str:
        """Its images, and whether it wants a GPU."""
        found = [", ".join(self.datasets(size)) or "no images", *(["wants a GPU"] if size == "paper" else [])]
        return "; ".join(found)


def columns(text: str, published: Mapping[str, Mapping[Label, float]] | None = None) -> tuple[Column, ...]:
    """Columns from text, key, digits and heading of each; ``published`` has the paper's numbers by key.

    >>> [(column.key, column.digits, column.heading) for column in columns("psnr 1 PSNR in dB; ssim 2 SSIM")]
    [('psnr', 1, 'PSNR in dB'), ('ssim', 2, 'SSIM')]
    """
    parts = [part.split(maxsplit=2) for part in text.split(";")]
    return tuple(Column(key, heading, int(digits), (published or {}).get(key, {})) for key, digits, heading in parts)


def declared(
    text: str,
    measure: Measure,
    points: str,
    shown: str,
    plot: Plot,
    judge: Callable[[Sequence[Point]], Judgement] | None = None,
    small: Iterable[Settings] = (),
    paper: Iterable[Settings] = (),
    printed: Mapping[str, Mapping[Label, float]] | None = None,
    seeds: tuple[int, ...] = (0, 1, 2),
) -> Claim:
    """A claim in one piece. ``text`` has its words: name, paper, place and what it says between bars; then, each on
    lines of its own, what was ``published:``, if anything was, the notes of the ``small:`` and the ``paper:`` cells,
    what was ``dropped:`` from the small ones since its control failed, and remarks after stars. ``points`` are the keys
    and, after a colon, the series; ``shown`` the ``columns``, of which ``printed`` has the paper's numbers. Raises
    ``ValueError`` or ``KeyError`` for words that are not of this form.

    >>> words = "T1 | Toy | Table 1 | it falls\\n  or not\\n  published: nothing\\n  small: one cell\\n  * a remark"
    >>> toy = declared(words, Measure("m", lambda *_: {}), "rate: attack", "psnr 1 PSNR", Plot(("psnr",)), small=[{}])
    >>> toy.says, toy.experiment.keys, toy.experiment.sweeps["small"].note, toy.remarks
    ('it falls or not', ('rate',), 'one cell', ('a remark',))
    """
    parts = re.split(r"\n\s*(?=published:|small:|dropped:|paper:|\* )", text.strip())
    head, *rest = (" ".join(part.split()) for part in parts)
    name, of, where, says = head.split(" | ", 3)
    words = dict(part.split(":", 1) for part in rest if not part.startswith("* "))
    by_size: dict[Size, tuple[Settings, ...]] = {"small": tuple(small), "paper": tuple(paper)}
    dropped = {"small": words.get("dropped", "").strip()}
    sweeps = {
        size: Sweep(cells, seeds, words.get(size, "").strip(), dropped.get(size, ""))
        for size, cells in by_size.items()
        if cells
    }
    keys, series = points.split(":")
    shape = tuple(keys.split()), series.strip()
    experiment = Experiment(measure, sweeps, *shape, columns(shown, printed), plot, judge)
    remarks = tuple(part[2:] for part in rest if part.startswith("* "))
    return Claim(name, of, where, says, words.get("published", "").strip(), experiment, remarks)


def seeds_of(points: Iterable[Point], metric: str) -> dict[Label, tuple[float, ...]]:
    """A metric of every point that has it, seed by seed."""
    return {point.label: point.values[metric] for point in points if metric in point.values}


def paired(
    found: Mapping[Any, Sequence[float]], sides: Mapping[str, tuple[Label, Label]]
) -> dict[str, list[tuple[float, float]]]:
    """Two points of ``seeds_of`` seed by seed, by what the comparison is called, as ``rules.at_least`` takes them."""
    return {name: list(zip(found[a], found[b], strict=True)) for name, (a, b) in sides.items()}


def curves(
    points: Iterable[Point],
    metric: str,
    x: int,
    name: Callable[[Label], str] = lambda label: label[0],
    sign: float = 1.0,
) -> dict[str, list[tuple[float, Sequence[float]]]]:
    """(x, the metric seed by seed) of every point by the line it is on, as ``rules.falls`` takes them; ``x`` is the
    entry of the label that runs along a line, and a ``sign`` of -1 turns it around."""
    found: dict[str, list[tuple[float, Sequence[float]]]] = {}
    for point in points:
        found.setdefault(name(point.label), []).append((sign * float(point.label[x]), point.values[metric]))
    return found


def numbers(text: str) -> dict[Label, float]:
    """A table as it stands in a paper: columns in the first line, then a row a line; "-" is not published.

    Labels may not contain blanks. Raises ``ValueError`` for a row of the wrong length or what is no number.

    >>> numbers('''
    ...       dgp  top-k
    ... lenet 1.5  -
    ... ''')
    {('lenet', 'dgp'): 1.5}
    """
    lines = [line.split() for line in text.strip().splitlines()]
    heads, found = lines[0], dict[Label, float]()
    for row in lines[1:]:
        if len(row) != len(heads) + 1:
            raise ValueError(f"row {row[0]} has {len(row) - 1} numbers, not {len(heads)}")
        found |= {(row[0], head): float(cell) for head, cell in zip(heads, row[1:], strict=True) if cell != "-"}
    return found
