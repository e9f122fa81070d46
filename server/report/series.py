"""Series out of the lines of ``metrics.jsonl`` and ``audits.jsonl``; values have the unit of their metric."""

import math
from collections.abc import Iterable, Sequence

from prunella.attacks.score.level import value
from prunella.server.report.charts import Band, Point
from prunella.server.store.schema import StoreLine


def points(lines: Iterable[StoreLine], metric: str, **labels: str) -> tuple[Point, ...]:
    """(round, value) of one series; a round written twice counts with its last value.

    >>> line = lambda r, v: {"metric": "loss", "round": r, "value": v, "labels": {}}
    >>> points([line(2, 0.5), line(1, 0.9), line(2, 0.4)], "loss")
    ((1.0, 0.9), (2.0, 0.4))
    """
    found = {
        float(line["round"]): float(line["value"])
        for line in lines
        if line["metric"] == metric and labels.items() <= line["labels"].items()
    }
    return tuple(sorted(found.items()))


def last(lines: Iterable[StoreLine], metric: str, **labels: str) -> float | None:
    series = points(lines, metric, **labels)
    return series[-1][1] if series else None


def present(lines: Sequence[StoreLine], metric: str, **labels: str) -> float | None:
    """The value since the end of the last round, None where there is none: a bound is told of all clients, or no more,
    and what was told in a round before its answers came is no longer true at its end.

    >>> line = lambda metric, time: {"metric": metric, "round": 3, "value": 1.5, "labels": {}, "time": time}
    >>> end = line("round", 2.0)
    >>> present([line("bound", 1.0), end], "bound"), present([end, line("bound", 2.0)], "bound")
    (None, 1.5)
    """
    ends = [(line["round"], line.get("time", 0.0)) for line in lines if line["metric"] == "round"]
    since = max(ends, default=(-math.inf, 0.0))
    return last([line for line in lines if (line["round"], line.get("time", math.inf)) >= since], metric, **labels)


def label_values(lines: Iterable[StoreLine], metric: str, label: str) -> list[str]:
    return sorted({line["labels"][label] for line in lines if line["metric"] == metric and label in line["labels"]})


def total(lines: Sequence[StoreLine], metric: str, label: str) -> float | None:
    """The sum of a counter's last values over its label."""
    values = [last(lines, metric, **{label: each}) for each in label_values(lines, metric, label)]
    return sum(each for each in values if each is not None) if values else None


def increments(series: Sequence[Point]) -> tuple[Point, ...]:
    """A cumulative counter as amounts per round; after a fall it started again from zero.

    >>> increments([(1, 10), (2, 15), (3, 4)])
    ((1, 10.0), (2, 5), (3, 4))
    """
    before = [0.0, *(y for _, y in series)]
    return tuple((x, y - b if y >= b else y) for (x, y), b in zip(series, before, strict=False))


def leak_series(audits: Iterable[StoreLine], kind: str, metric: str) -> tuple[tuple[Point, ...], tuple[Point, ...]]:
    """The worst value of every round as a line, and the other audits of that round as dots."""
    rounds: dict[float, list[float]] = {}
    for audit in audits:
        found = value(audit, metric)
        if audit["kind"] == kind and found is not None:
            rounds.setdefault(float(audit["round"]), []).append(found)
    line = tuple((x, max(rounds[x])) for x in sorted(rounds))
    return line, tuple((x, y) for x in sorted(rounds) for y in sorted(rounds[x])[:-1])


def baseline_band(audits: Iterable[StoreLine], metric: str) -> Band:
    """Per round, from the lowest to the highest of what a random and another image score."""
    rounds: dict[float, list[float]] = {}
    for audit in audits:
        found = [value(audit, metric, stat) for stat in ("random", "other")]
        rounds.setdefault(float(audit["round"]), []).extend(y for y in found if y is not None)
    edges = tuple((x, min(ys), max(ys)) for x, ys in sorted(rounds.items()) if ys)
    return Band("random to other image", edges)
