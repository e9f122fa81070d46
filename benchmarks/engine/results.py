"""A measured claim as files: a page, a plot and a JSON, and the list of all claims."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prunella.benchmarks.engine.claim import Claim, Column, Experiment, Label, Point, Settings, Size, judged
from prunella.benchmarks.engine.plots import draw
from prunella.benchmarks.engine.rules import Judgement
from prunella.core.errors import ConfigError
from prunella.core.files import write_atomically

ALL = "All of a size, what tells most per second first: prunella reproduce --size small --budget 30min"
_LONG = 1e9  # from here on a number is written with its exponent
DIGITS = 8  # of a stored value: as many again would double the files, and no page has them


@dataclass(frozen=True)
class Measured:
    """``seconds`` is the time of all cells, those kept from earlier runs included."""

    claim: Claim
    size: Size
    points: Sequence[Point]
    verdict: Judgement
    seconds: float
    machine: dict[str, Any]
    missing: int = 0  # cells that the time did not suffice for
    version: int | None = None  # of the measure; None where nobody wrote it down
    code: Mapping[str, str] = field(default_factory=dict)  # digests of somebody's own, by name, as it was measured

    @property
    def experiment(self) -> Experiment:
        return self.claim.experiment

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.experiment.sweeps[self.size].seeds


def listing(claims: Iterable[Claim]) -> str:
    """All claims: name, sizes and what they need, where it stands, what it says and what it is compared with; and how
    to measure them all."""
    lines = []
    for claim in claims:
        sizes = ", ".join(f"{size} ({claim.needs(size)})" for size in claim.sizes())
        lines += [f"{claim.name:3} {claim.paper}, {claim.where}: {claim.says}", f"    [runs: {sizes}]"]
        lines.append(f"    {claim.compared}")
    return "\n".join([*lines, ALL])


def number(value: float, digits: int) -> str:
    """
    >>> number(2.34, 1), number(3.2e13, 2)
    ('2.3', '3e+13')
    """
    return f"{value:.{digits}f}" if abs(value) < _LONG or not math.isfinite(value) else f"{value:.0e}"


def as_printed(value: float, digits: int) -> str:
    """A published number with no more digits than it has.

    >>> as_printed(0.44, 4), as_printed(40.0, 1)
    ('0.44', '40')
    """
    text = number(value, digits)
    return text.rstrip("0").rstrip(".") if "." in text else text


def cell(point: Point, metric: Column) -> str:
    """Mean and spread, or its interval where images were kept, and the published number where there is one.

    >>> cell(Point(("a",), {"x": (1.0, 3.0)}), Column("x", "x", 1, {("a",): 2.5}))
    '2.0 ± 1.4 (2.5)'
    >>> cell(Point(("a",), {"x": (2.0,), "x.0": (2.0,), "x.1": (2.0,)}), Column("x", "x", 1))
    '2.0 [2.0, 2.0]'
    """
    if metric.key not in point.values:
        return ""
    spread = point.spread(metric.key)
    interval = point.interval(metric.key) if point.covers(metric.key) else None
    text = number(point.mean(metric.key), metric.digits)
    if interval is not None:
        text += f" [{', '.join(number(end, metric.digits) for end in interval)}]"
    elif math.isfinite(spread):
        text += f" ± {number(spread, metric.digits)}"
    published = metric.published.get(point.label)
    return text + (f" ({as_printed(published, metric.digits)})" if published is not None else "")


def table(result: Measured) -> str:
    """Measured mean ± standard deviation over seeds, published in brackets."""
    experiment, seeds = result.experiment, result.experiment.sweeps[result.size].seeds
    heads = [*experiment.keys, experiment.series]
    heads += [metric.heading + (" (published)" if metric.published else "") for metric in experiment.metrics]
    rows = []
    for point in result.points:
        row, measured = [*point.label, *(cell(point, metric) for metric in experiment.metrics)], seeds_in(point)
        said = [] if point.control else ["**control failed**"]
        said += [] if measured in (0, len(seeds)) else [f"({measured} of {len(seeds)} seeds)"]
        rows.append([*row[:-1], " ".join([row[-1], *said]).strip()])
    return "\n".join("| " + " | ".join(row) + " |" for row in (heads, ["---"] * len(heads), *rows))


def seeds_in(point: Point) -> int:
    """How many seeds a point was measured with."""
    return max(map(len, point.values.values()), default=0)


def known_seeds(result: Measured) -> list[int]:
    """The seeds that any point was measured with."""
    return [seed for seed in result.seeds if any(seed in point.seeds for point in result.points)]


def assumed(points: Sequence[Point], seeds: Sequence[int], missing: int) -> list[tuple[int, ...]]:
    """The seeds of points of which a JSON does not say them: all, or the first, where cells are missing (they go seed
    by seed) and the series of a setting have as many. None where neither tells."""
    lengths: dict[Label, set[int]] = {}
    for point in points:
        lengths.setdefault(point.label[:-1], set()).add(seeds_in(point))
    told = [(seeds_in(point), len(lengths[point.label[:-1]]) == 1) for point in points]
    return [tuple(seeds[:many]) if many == len(seeds) or (missing and alike) else () for many, alike in told]


def described(cells: Sequence[Settings], keys: Sequence[str]) -> dict[str, str]:
    """Every setting but ``keys``, which the table has, and ``arm``, the name of a series; with all values it takes.

    >>> described([{"model": "lenet", "steps": 4, "seed": 0}, {"model": "cnn", "steps": 1, "seed": 0}], ["model"])
    {'steps': '4 or 1', 'seed': '0'}
    """
    found: dict[str, list[str]] = {}
    for cell in cells:
        for key, value in cell.items():
            known = found.setdefault(key, [])
            known += [str(value)] if str(value) not in known and value != {} else []
    return {key: " or ".join(values) for key, values in found.items() if key not in (*keys, "arm") and values}


def other_version(version: int | None, now: int) -> str:
    """That a result is of another version of its measure than today's, or of one that nobody wrote down; "" where it is
    of the same. Versions count from 1: as long as there was only one, it is known.

    >>> other_version(1, 2), other_version(None, 2)[:31], other_version(2, 2), other_version(None, 1)
    (" Measured by version 1 of its measure; today's is 2.", ' Measured by an unknown version', '', '')
    """
    said = "an unknown version" if version is None else f"version {version}"
    same = version == now or (version is None and now == 1)
    return "" if same else f" Measured by {said} of its measure; today's is {now}."


def _beside(result: Measured) -> str:
    """What stands beside a mean in the table."""
    kept = any(point.interval(metric.key) for point in result.points[:1] for metric in result.experiment.metrics)
    if not kept:
        return "± standard deviation"
    return "and, of what was kept for every image, [the middle 95 % of a bootstrap of seeds and images, too narrow],"


def page(result: Measured, plot: str) -> str:
    """The page of a claim, Markdown."""
    claim, experiment = result.claim, result.experiment
    sweep = experiment.sweeps[result.size]
    said = described(sweep.cells, experiment.keys)
    box = result.machine
    seeds = known_seeds(result)
    told = f"{len(seeds)} seed{'s' * (len(seeds) != 1)} ({', '.join(map(str, seeds))})"
    parts = [
        f"# {claim.name}: {claim.says}",
        f"{claim.paper}, {claim.where}. {claim.compared}.",
        f"**Verdict: {result.verdict.word}.** {result.verdict.reason[:1].upper()}{result.verdict.reason[1:]}.",
        f"![{claim.name}: measured]({plot})",
        f"Mean {_beside(result)} over {told}; published numbers in brackets."
        + other_version(result.version, experiment.measure.version),
        experiment.own.table(result.points) if experiment.own and experiment.own.table else table(result),
        "## Settings",
        f"`prunella reproduce {claim.name} --size {result.size}`",
        sweep.note,
        "\n".join(f"* {key}: {value}" for key, value in said.items()),
        "Remarks:" if claim.remarks else "",
        "\n".join(f"* {remark}" for remark in claim.remarks),
        f"Took {result.seconds:.0f} s in all cells, on {box['processors']} shared CPU cores with a load of "
        f"{box['load']:.0f}, {box['threads']} threads, Python {box['python']}; images from {box['data']}.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def short(value: float) -> float:
    """A value as it is stored: to ``DIGITS`` digits, and from ten thousand on, which are bytes and counts, as it is.

    >>> short(14.468513778074467), short(49051481.754)
    (14.468514, 49051481.754)
    """
    return float(f"{value:.{DIGITS}g}") if abs(value) < 10**4 else value


def as_json(result: Measured) -> dict[str, Any]:
    """Every number, seed by seed, to ``DIGITS`` digits, with settings, verdict and machine."""
    experiment = result.experiment
    sweep, metrics = experiment.sweeps[result.size], experiment.metrics
    return {
        "claim": result.claim.name,
        "size": result.size,
        "version": result.version,
        **({"code": result.code} if result.code else {}),
        "verdict": result.verdict.word,
        "reason": result.verdict.reason,
        "settings": sweep.cells,
        "seeds": sweep.seeds,
        "points": [
            {
                "label": point.label,
                "control": point.control,
                **({"seeds": point.seeds} if point.seeds != usual else {}),
                "values": {key: list(map(short, own)) for key, own in point.values.items()},
                "published": {m.key: m.published[point.label] for m in metrics if point.label in m.published},
            }
            for point, usual in zip(result.points, assumed(result.points, result.seeds, result.missing), strict=True)
        ],
        "missing": result.missing,
        "seconds": result.seconds,
        "machine": result.machine,
    }


def points_of(found: dict[str, Any]) -> list[Point]:
    """The points that ``as_json`` was given."""
    points = [
        Point(tuple(row["label"]), {key: tuple(seeds) for key, seeds in row["values"].items()}, row["control"])
        for row in found["points"]
    ]
    usual = zip(found["points"], points, assumed(points, tuple(found["seeds"]), found.get("missing", 0)), strict=True)
    return [replace(point, seeds=tuple(row.get("seeds", seeds))) for row, point, seeds in usual]


def from_json(found: dict[str, Any], claim: Claim) -> Measured:
    """The result that ``as_json`` was given, judged by the rule of today, so that its page can be rewritten. Raises
    ``ConfigError`` where the claim has other cells or seeds by now: its numbers are no longer those of its settings."""
    size: Size = found["size"]
    sweep = claim.experiment.sweeps.get(size)
    now = [] if sweep is None else [sweep.cells, sweep.seeds]
    if sweep is None or json.loads(json.dumps(now)) != [found["settings"], found["seeds"]]:
        raise ConfigError(f"{claim.name} was measured at other settings than it has now: measure it again")
    points, left = points_of(found), found.get("missing", 0)
    verdict = judged(claim.experiment, size, points, left)
    of = found.get("version"), found.get("code", {})
    return Measured(claim, size, points, verdict, found["seconds"], found["machine"], left, *of)


def stem(name: str, size: str) -> str:
    """What the files of a claim are called: somebody's own by module and name, and a size other than small is in it.

    >>> stem("D3", "small"), stem("paper.table:MINE", "paper"), stem("board --submit own:SIGNS", "small")
    ('D3', 'paper.table.MINE-paper', 'own.SIGNS')
    """
    short = name.rpartition(" ")[2].replace(":", ".")
    return short if size == "small" else f"{short}-{size}"


def write(result: Measured, out: Path) -> list[Path]:
    """The files of a claim."""
    out.mkdir(parents=True, exist_ok=True)
    name = stem(result.claim.name, result.size)
    paths = [out / f"{name}.{suffix}" for suffix in ("md", "svg", "png", "json")]
    markdown, svg, png, data = paths
    own = result.experiment.own
    for path in (svg, png):
        own.draw(result.points, path) if own else draw(result.claim, result.points, path)
    write_atomically(markdown, lambda p: p.write_text(page(result, svg.name), encoding="utf-8"), 0o644)
    write_atomically(data, lambda p: p.write_text(in_lines(as_json(result)), encoding="utf-8"), 0o644)
    return paths


def in_lines(record: dict[str, Any]) -> str:
    """The JSON of a record, with a line for every entry of its lists: a number a line is half of a large file.

    >>> print(in_lines({"claim": "P1", "seeds": [0, 1]}), end="")
    {
    "claim": "P1",
    "seeds": [
    0,
    1
    ]
    }
    """
    lines = {k: "[\n" + ",\n".join(map(json.dumps, v)) + "\n]" if isinstance(v, list) and v else json.dumps(v)
             for k, v in record.items()}  # fmt: skip
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {value}" for key, value in lines.items()) + "\n}\n"
