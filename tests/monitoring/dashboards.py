"""The committed Grafana dashboards, for tests."""

import json
from pathlib import Path
from typing import Any

GRAFANA = Path(__file__).parents[2] / "deploy" / "grafana"
DASHBOARDS = sorted(path.stem for path in (GRAFANA / "dashboards").glob("*.json"))


def dashboard(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GRAFANA / "dashboards" / f"{name}.json").read_text(encoding="utf-8"))
    return found


def limits(name: str, title: str) -> list[float]:
    """The values from which a panel changes its colour."""
    (panel,) = [panel for panel in dashboard(name)["panels"] if panel["title"] == title]
    return [step["value"] for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"] if step["value"]]
