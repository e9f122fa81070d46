"""Draw the committed dashboards as one page, from the JSON and the answers of a real Prometheus.

    python -m tests.monitoring.draw http://127.0.0.1:9090 LABEL dashboards.html --minutes 15

``LABEL`` is the federation's label in targets.yml. Every panel asks its own queries, as Grafana does: over the range,
or at its end where they are instant. It is drawn at its place with its title, unit, legend, limits, dashes and words
for values. It is not Grafana: what is looked at here is what the JSON says, and not how Grafana shows it. What it
cannot draw is an error.
"""

import argparse
import json
import math
import re
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from tests.monitoring.dashboards import DASHBOARDS, dashboard

COLORS = ("#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#f2495c", "#b877d9", "#8ab8ff", "#ca95e5", "#96d98d", "#ffa6b0")
NAMED = {"green": "#73bf69", "blue": "#5794f2", "orange": "#ff9830", "red": "#f2495c", "text": "#ccccdc"}
STEPS = 300  # points of a line, at most
ROW = 38  # pixels of one unit of a panel's height, Grafana's 30 and its gap of 8
STYLE = """
body{background:#111217;color:#ccccdc;font:13px sans-serif;margin:12px}h1{font-size:18px;font-weight:500}
main{display:grid;grid-template-columns:repeat(24,1fr);gap:8px}section{background:#181b1f;border:1px solid #2c2f36;
display:flex;flex-direction:column;overflow:hidden;padding:6px 8px}h2{font-size:13px;font-weight:500;margin:0 0 4px}
.stat{flex:1;display:flex;align-items:center;justify-content:space-around;border-radius:3px;text-align:center}
.stat b{display:block;font-size:24px;font-weight:500}.none{margin:auto;color:#8e8e9c}.legend{font-size:11px}
.legend i{display:inline-block;width:14px;height:3px;margin:0 4px 3px 10px}svg text{fill:#8e8e9c;font-size:11px}
"""


@dataclass(frozen=True)
class Series:
    """One line of a panel: its name in the legend, its points (seconds, value), its own panel settings."""

    name: str
    points: list[tuple[float, float]]
    settings: dict[str, Any]

    @property
    def last(self) -> float:
        return self.points[-1][1]


@dataclass(frozen=True)
class Range:
    begin: float
    end: float

    @property
    def step(self) -> int:
        return max(1, math.ceil((self.end - self.begin) / STEPS))


def ask(address: str, query: str, over: Range) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
    """Labels and points of every series of a range query."""
    asked = {"query": query, "start": f"{over.begin:.3f}", "end": f"{over.end:.3f}", "step": str(over.step)}
    url = f"{address}/api/v1/query_range?{urllib.parse.urlencode(asked)}"
    with urllib.request.urlopen(url, timeout=30) as reply:
        found = json.loads(reply.read())["data"]["result"]
    return [(each["metric"], [(float(t), float(v)) for t, v in each["values"]]) for each in found]


def legend(template: str, labels: dict[str, str]) -> str:
    """
    >>> legend("{{direction}}, dense", {"direction": "up"})
    'up, dense'
    """
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda found: labels.get(found[1], ""), template)


def settings_of(panel: dict[str, Any], name: str) -> dict[str, Any]:
    """The field settings of one series: the panel's, and what its overrides change."""
    config = panel["fieldConfig"]
    merged = {**config["defaults"], **config["defaults"].get("custom", {})}
    for override in config["overrides"]:
        how, what = override["matcher"]["id"], override["matcher"]["options"]
        if {"byName": name == what, "byRegexp": bool(re.search(what.strip("/"), name))}[how]:
            merged |= {each["id"].removeprefix("custom."): each["value"] for each in override["properties"]}
    return merged


def lines_of(panel: dict[str, Any], address: str, federation: str, over: Range) -> list[Series]:
    """The answers to all queries of a panel."""
    found = []
    for target in panel["targets"]:
        asked = Range(over.end, over.end) if target["instant"] else over
        for labels, points in ask(address, target["expr"].replace("$federation", federation), asked):
            name = legend(target["legendFormat"], labels)
            found.append(Series(name, points, settings_of(panel, name)))
    return found


def shown(value: float, unit: str) -> str:
    """A value with its unit, as Grafana writes it.

    >>> shown(0.153, "percentunit"), shown(51_200, "decbytes"), shown(0.034, "s"), shown(14.27, "dB"), shown(3, "short")
    ('15.3%', '51.2 kB', '34 ms', '14.3 dB', '3')
    """
    if unit == "percentunit":
        return f"{100 * value:.3g}%"
    if unit == "decbytes":
        power = min(int(math.log10(value) // 3), 4) if value >= 1 else 0
        return f"{value / 1000**power:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"
    if unit == "s":
        return (
            f"{1000 * value:.3g} ms" if 0 < value < 1 else f"{value:.3g} s" if value < 60 else f"{value / 60:.3g} min"
        )
    if unit in ("dB", "short", "none", ""):
        return f"{value:.3g}" + (" dB" if unit == "dB" else "")
    raise ValueError(f"no such unit here: {unit}")


def limits_of(settings: dict[str, Any]) -> list[tuple[float, str]]:
    """Value and colour of every limit, the lowest one first: -inf."""
    steps = settings["thresholds"]["steps"]
    return [(-math.inf if step["value"] is None else step["value"], NAMED[step["color"]]) for step in steps]


def stat(panel: dict[str, Any], lines: Sequence[Series]) -> str:
    """The last value of every series, in words where it has some."""
    parts, background = [], ""
    for line in lines:
        words = {key: each for mapping in line.settings["mappings"] for key, each in mapping["options"].items()}
        word = words.get(f"{line.last:g}")
        color = [color for limit, color in limits_of(line.settings) if line.last >= limit][-1]
        color = NAMED[word["color"]] if word else color
        text = escape(word["text"] if word else shown(line.last, line.settings.get("unit", "")))
        filled = panel["options"]["colorMode"] == "background"
        background = f"background:{color}" if filled else background
        name = f"<span>{escape(line.name)}</span>" if len(lines) > 1 else ""
        parts.append(f'<div style="color:{"#111217" if filled else color}">{name}<b>{text}</b></div>')
    return f'<div class="stat" style="{background}">{"".join(parts)}</div>'


def logarithm(value: float) -> float:
    """Of what is no time at all: the lowest that a clock tells."""
    return math.log10(max(value, 1e-3))


def bounds(lines: Sequence[Series], scale: Callable[[float], float]) -> tuple[float, float]:
    """The lowest and highest value of the axis, on its scale."""
    values = [value for line in lines for _, value in line.points]
    low, high = lines[0].settings.get("min", min(values)), lines[0].settings.get("max", max(values))
    if lines[0].settings.get("thresholdsStyle"):
        high = max([high, *(limit for limit, _ in limits_of(lines[0].settings))])
    low, high = scale(low), scale(high)
    return low, high if high > low else low + 1


def ticks(low: float, high: float) -> list[float]:
    """Round numbers in between.

    >>> ticks(0, 3.24e6), ticks(0, 1)
    ([0.0, 1000000.0, 2000000.0, 3000000.0], [0.0, 0.25, 0.5, 0.75, 1.0])
    """
    power = 10.0 ** math.floor(math.log10(high - low))
    size = next(power * part for part in (0.25, 0.5, 1, 2.5) if (high - low) / (power * part) <= 5)
    first, last = math.ceil(low / size), math.floor(high / size)
    return [round(number * size, 12) for number in range(first, last + 1)]


def steps(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The corners of a line that keeps its value until the next point.

    >>> steps([(0, 1.0), (5, 2.0)])
    [(0, 1.0), (5, 1.0), (5, 2.0)]
    """
    between = [pair for (_, before), (t, v) in zip(points, points[1:], strict=False) for pair in ((t, before), (t, v))]
    return [points[0], *between]


def timeseries(lines: Sequence[Series], over: Range, width: int, height: int) -> str:
    """Axes, limits, a line for every series and a legend with the last values."""
    scale = logarithm if lines[0].settings.get("scaleDistribution", {}).get("type") == "log" else float
    low, high = bounds(lines, scale)
    left, bottom = 58, height - 20

    def place(t: float, value: float) -> str:
        x = left + (width - left - 8) * (t - over.begin) / (over.end - over.begin)
        return f"{x:.1f},{bottom - (bottom - 6) * (scale(value) - low) / (high - low):.1f}"

    unit, drawn = lines[0].settings["unit"], []
    for value in ticks(low, high) if scale is float else [10.0**n for n in range(math.ceil(low), math.floor(high) + 1)]:
        y = place(over.begin, value).split(",")[1]
        drawn.append(f'<path d="M{left} {y}H{width}" stroke="#2c2f36"/>')
        drawn.append(f'<text x="{left - 6}" y="{float(y) + 4}" text-anchor="end">{shown(value, unit)}</text>')
    for part in range(4):
        t = over.begin + (over.end - over.begin) * part / 4
        clock = time.strftime("%H:%M", time.gmtime(t))
        drawn.append(f'<text x="{place(t, 1.0).split(",")[0]}" y="{height - 4}" text-anchor="middle">{clock}</text>')
    if lines[0].settings.get("thresholdsStyle"):
        for limit, color in limits_of(lines[0].settings)[1:]:
            y = place(over.begin, limit).split(",")[1]
            drawn.append(f'<path d="M{left} {y}H{width}" stroke="{color}" stroke-dasharray="4 4"/>')
    names = []
    for number, line in enumerate(lines):
        color = COLORS[number % len(COLORS)]
        dash = "6 6" if "lineStyle" in line.settings else "none"
        points = " ".join(place(t, value) for t, value in steps(line.points))
        drawn.append(
            f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2" stroke-dasharray="{dash}"/>'
        )
        last = shown(line.last, unit)
        names.append(f'<i style="background:{color}"></i>{escape(line.name)} <span>Last *: {last}</span>')
    picture = f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}">{"".join(drawn)}</svg>'
    return f'{picture}<div class="legend">{"".join(names)}</div>'


def markdown(text: str) -> str:
    for mark, tag in ((r"\*\*", "strong"), (r"\*", "em")):
        text = re.sub(rf"{mark}(.+?){mark}", rf"<{tag}>\1</{tag}>", escape(text) if tag == "strong" else text)
    return "".join(f"<p>{part}</p>" for part in text.split("\n\n"))


def draw_panel(panel: dict[str, Any], address: str, federation: str, over: Range) -> str:
    at = panel["gridPos"]
    lines = [] if panel["type"] == "text" else lines_of(panel, address, federation, over)
    if panel["type"] == "text":
        body = markdown(panel["options"]["content"])
    elif not lines:
        body = f'<div class="none">{escape(panel["fieldConfig"]["defaults"]["noValue"])}</div>'
    elif panel["type"] == "stat":
        body = stat(panel, lines)
    elif panel["type"] == "timeseries":
        body = timeseries(lines, over, 60 * at["w"] - 26, ROW * at["h"] - 26 - 20 * (1 + len(lines) // (at["w"] // 3)))
    else:
        raise ValueError(f"no such panel here: {panel['type']}")
    place = f"grid-column:{at['x'] + 1}/span {at['w']};height:{ROW * at['h'] - 22}px"
    title = f'<h2 title="{escape(panel.get("description") or "")}">{escape(panel["title"])}</h2>'
    return f'<section style="{place}">{title}{body}</section>'


def page(address: str, federation: str, over: Range) -> str:
    """All dashboards, one below the other."""
    parts = []
    for name in DASHBOARDS:
        board = dashboard(name)
        panels = sorted(board["panels"], key=lambda panel: (panel["gridPos"]["y"], panel["gridPos"]["x"]))
        drawn = "".join(draw_panel(panel, address, federation, over) for panel in panels)
        parts.append(f"<h1>{escape(board['title'])}: {escape(federation)}</h1><main>{drawn}</main>")
    return f'<!doctype html><meta charset="utf-8"><style>{STYLE}</style>{"".join(parts)}'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prometheus", help="its address, http://127.0.0.1:9090")
    parser.add_argument("federation", help="label in targets.yml")
    parser.add_argument("out", type=Path, help="the page to write")
    parser.add_argument("--minutes", type=float, default=60.0, help="how far back; the dashboards' own is 60")
    parser.add_argument("--end", type=float, default=0.0, help="seconds since 1970 of the last point; now if left out")
    given = parser.parse_args()
    end = given.end or time.time()
    text = page(given.prometheus.rstrip("/"), given.federation, Range(end - 60 * given.minutes, end))
    given.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
