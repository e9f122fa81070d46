"""Line charts as inline SVG without library or script; the page's style sheet sets the colours for dark mode and print.

The role of a ``Series`` (``blue``, ``red``, ``yellow``, ``grey``) also sets its marker and dash, so that nothing is
shown by colour alone. ``line`` is drawn through its points, ``dots`` are only marked. All text is escaped.

>>> from prunella.server.report.units import percent
>>> chart = line_chart("Accuracy", [Series("accuracy", "blue", ((1, 0.1), (2, 0.9)))], percent, (0.0, 1.0))
>>> "accuracy: 10.0" in chart and chart.count("<svg") == 2
True
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from markupsafe import Markup

Role = Literal["blue", "red", "yellow", "grey"]
Point = tuple[float, float]
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 360.0, 210.0, 52.0, 10.0, 10.0, 34.0
STEPS = 6  # of an axis, at most
MARKED = 40  # a line with more points than this carries no markers
DRAWN = 400  # a line never has more points than there are pixels


@dataclass(frozen=True)
class Series:
    """Points are (round, value), rounds ascending."""

    name: str
    role: Role
    line: tuple[Point, ...] = ()
    dots: tuple[Point, ...] = ()

    @property
    def points(self) -> tuple[Point, ...]:
        return self.line + self.dots


@dataclass(frozen=True)
class Band:
    """An area between a low and a high value per round: (round, low, high)."""

    name: str
    edges: tuple[tuple[float, float, float], ...] = field(default_factory=tuple)


class Frame(NamedTuple):
    """Data limits, and the way from data to the view box."""

    x: tuple[float, float]
    y: tuple[float, float]

    def at(self, x: float, y: float) -> Point:
        return (
            LEFT + (WIDTH - LEFT - RIGHT) * (x - self.x[0]) / (self.x[1] - self.x[0]),
            HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (y - self.y[0]) / (self.y[1] - self.y[0]),
        )


def ticks(low: float, high: float) -> list[float]:
    """Round numbers from at or below ``low`` to at or above ``high``, a step of 1, 2 or 5 times a power of ten.

    >>> ticks(0.0, 1.0), ticks(3, 47)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [0.0, 10.0, 20.0, 30.0, 40.0, 50.0])
    """
    span = high - low or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(span / STEPS))
    step = next(m * power for m in (1, 2, 5, 10) if span / (m * power) <= STEPS + 1e-9)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(k * step, 12) for k in range(first, max(last, first + 1) + 1)]


def thin(points: tuple[Point, ...], most: int = DRAWN) -> tuple[Point, ...]:
    """At most ``most`` points: first and last, and of stretches of equal length the lowest and the highest, so that no
    single round that leaks is left out.

    >>> [x for x, _ in thin(tuple((float(i), float(i == 4)) for i in range(10)), 6)]
    [0.0, 1.0, 4.0, 5.0, 9.0]
    """
    if len(points) <= most:
        return points
    inner, stretches = points[1:-1], (most - 2) // 2
    ends = [round(i * len(inner) / stretches) for i in range(stretches + 1)]
    kept = [of(inner[a:b], key=lambda p: p[1]) for a, b in itertools.pairwise(ends) for of in (min, max)]
    return tuple(sorted({points[0], *kept, points[-1]}))


def _limits(values: Sequence[float], fixed: tuple[float, float] | None) -> tuple[float, float]:
    low, high = fixed or (min(0.0, min(values)), max(values))
    marks = ticks(min(low, *values), max(high, *values))
    return marks[0], marks[-1]


def _round_ticks(low: float, high: float) -> list[float]:
    """Whole rounds only, and none outside the axis."""
    marks = [t for t in ticks(low, high) if t == int(t) and low <= t <= high]
    return sorted({low, *marks}) if not marks or marks[0] - low > (high - low) / 8 else marks


def _axes(frame: Frame, unit: Callable[[float], str]) -> Markup:
    parts = []
    for value in ticks(*frame.y):
        x, y = frame.at(frame.x[0], value)
        parts.append(
            Markup('<line class="grid" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>').format(
                LEFT, WIDTH - RIGHT, y, y
            )
        )
        parts.append(
            Markup('<text class="tick" x="{:.1f}" y="{:.1f}" text-anchor="end">{}</text>').format(
                x - 6, y + 4, unit(value)
            )
        )
    for value in _round_ticks(*frame.x):
        x, y = frame.at(value, frame.y[0])
        parts.append(
            Markup('<text class="tick" x="{:.1f}" y="{:.1f}" text-anchor="middle">{:.0f}</text>').format(
                x, y + 14, value
            )
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        Markup('<text class="tick" x="{:.1f}" y="{:.1f}" text-anchor="middle">round</text>').format(middle, HEIGHT - 4)
    )
    return Markup("").join(parts)


def marker(role: Role, x: float, y: float, title: str = "", faint: bool = False) -> Markup:
    """A circle, square, triangle or small dot, by role."""
    shapes = {
        "blue": Markup('<circle cx="{0:.1f}" cy="{1:.1f}" r="3.4"{2}'),
        "red": Markup('<path d="M{0:.1f} {1:.1f}m-3.3 -3.3h6.6v6.6h-6.6z"{2}'),
        "yellow": Markup('<path d="M{0:.1f} {1:.1f}m0 -4.4l4.2 7.4h-8.4z"{2}'),
        "grey": Markup('<circle cx="{0:.1f}" cy="{1:.1f}" r="2"{2}'),
    }
    style = Markup(' class="mark {}{}"').format(role, " faint" if faint else "")
    return shapes[role].format(x, y, style) + Markup("><title>{}</title></{}>").format(
        title, "circle" if role in ("blue", "grey") else "path"
    )


def _draw(series: Series, frame: Frame, unit: Callable[[float], str]) -> Markup:
    line = thin(series.line)
    path = " ".join("{:.1f},{:.1f}".format(*frame.at(*point)) for point in line)
    drawn = Markup('<polyline class="line {}" points="{}"/>').format(series.role, path) if len(line) > 1 else Markup("")

    def mark(point: Point, faint: bool) -> Markup:
        title = f"{series.name}, round {point[0]:.0f}: {unit(point[1])}"
        return marker(series.role, *frame.at(*point), title, faint)

    dots = [mark(point, True) for point in thin(series.dots)]
    marked = len(line) == 1 or (len(line) <= MARKED and series.role != "grey")  # a line of one point is not seen
    marks = [mark(point, False) for point in line] if marked else []
    return drawn + Markup("").join(dots + marks)


def _draw_band(band: Band, frame: Frame) -> Markup:
    edges = band.edges
    if len(edges) == 1:  # one audited round: as wide as the chart
        edges = ((frame.x[0], *edges[0][1:]), (frame.x[1], *edges[0][1:]))
    corners = [frame.at(x, high) for x, _, high in edges] + [frame.at(x, low) for x, low, _ in reversed(edges)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
    return Markup('<polygon class="band" points="{}"/>').format(path)


def _legend(series: Sequence[Series], band: Band | None) -> Markup:
    swatch = Markup(
        '<span class="key"><svg viewBox="0 0 26 12" width="26" height="12" aria-hidden="true">{}</svg>{}</span>'
    )
    line = Markup('<polyline class="line {}" points="1,6 25,6"/>')
    keys = [swatch.format(line.format(s.role) + marker(s.role, 13, 6), s.name) for s in series]
    if band:
        keys.append(swatch.format(Markup('<rect class="band" x="1" y="1" width="24" height="10"/>'), band.name))
    return Markup('<div class="legend">{}</div>').format(Markup("").join(keys))


def describe(title: str, series: Sequence[Series], unit: Callable[[float], str]) -> str:
    """The chart in a sentence, for those who do not see it."""
    parts = []
    for each in series:
        points = sorted(each.points)
        first, last, most = points[0], points[-1], max(points, key=lambda point: point[1])
        text = f"{each.name}: {unit(first[1])} in round {first[0]:.0f}"
        text += f", {unit(last[1])} in round {last[0]:.0f}" if last[0] != first[0] else ""
        above = most[1] > max(first[1], last[1])
        parts.append(text + (f", at most {unit(most[1])} in round {most[0]:.0f}" if above else ""))
    return f"{title} over rounds. " + "; ".join(parts)


def line_chart(
    title: str,
    series: Sequence[Series],
    unit: Callable[[float], str],
    limits: tuple[float, float] | None = None,
    band: Band | None = None,
) -> Markup:
    """A figure with caption, legend and SVG; ``limits`` is the least range of the value axis. Series without points are
    left out; with none left the figure says so."""
    shown = [each for each in series if each.points]
    caption = Markup("<figcaption>{}</figcaption>").format(title)
    if not shown:
        return Markup('<figure class="chart">{}<p class="none">Nothing measured.</p></figure>').format(caption)
    band = band if band and band.edges else None
    rounds = [x for each in shown for x, _ in each.points]
    values = [y for each in shown for _, y in each.points]
    values += [edge for _, low, high in band.edges for edge in (low, high)] if band else []
    low, high = min(rounds), max(rounds)
    frame = Frame((low, high) if high > low else (low - 1, low + 1), _limits(values, limits))
    body = (_draw_band(band, frame) if band else Markup("")) + _axes(frame, unit)
    body += Markup("").join(_draw(each, frame, unit) for each in shown)
    svg = Markup('<svg class="plot" viewBox="0 0 {:.0f} {:.0f}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, HEIGHT, describe(title, shown, unit), body
    )
    return Markup('<figure class="chart">{}{}{}</figure>').format(caption, _legend(shown, band), svg)
