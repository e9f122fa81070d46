"""The committed Grafana dashboards, for tests."""

import json
import re
from pathlib import Path
from typing import Any

GRAFANA = Path(__file__).parents[2] / "deploy" / "grafana"
DASHBOARDS = sorted(path.stem for path in (GRAFANA / "dashboards").glob("*.json"))


def dashboard(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GRAFANA / "dashboards" / f"{name}.json").read_text(encoding="utf-8"))
    return found


def panel(name: str, title: str) -> dict[str, Any]:
    (found,) = [panel for panel in dashboard(name)["panels"] if panel["title"] == title]
    return dict(found)


def limits(name: str, title: str, series: str | None = None) -> list[float]:
    """The values from which a panel, or one ``series`` of it, changes its colour."""
    config = panel(name, title)["fieldConfig"]
    found = config["defaults"]["thresholds"]
    if series is not None:
        (override,) = [each for each in config["overrides"] if each["matcher"]["options"] == series]
        found = {each["id"]: each["value"] for each in override["properties"]}["thresholds"]
    return [step["value"] for step in found["steps"] if step["value"]]


def states(name: str, title: str) -> tuple[str, set[str]]:
    """The recorded series that a panel shows in words, and the values that have some."""
    found = panel(name, title)
    (target,) = found["targets"]
    (mapping,) = found["fieldConfig"]["defaults"]["mappings"]
    (series,) = re.findall(r"\w+:\w+:\w+", target["expr"])
    return series, set(mapping["options"])
