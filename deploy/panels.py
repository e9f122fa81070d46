"""Shorthand over the Grafana Foundation SDK: the three kinds of panel that the dashboards consist of.

A panel is titled with the question it answers, its description says how to read it, every query has a legend, and a
query may hold ``$federation``, the dashboard's one variable. Only the generator needs the SDK, which is a development
dependency: what it writes is committed.

>>> panel = timeseries("Does it learn?", "Accuracy.", {"accuracy": "prunella_accuracy_ratio"}, unit="percentunit")
>>> [target.expr for target in panel.build().targets]
['prunella_accuracy_ratio']
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from string import ascii_uppercase

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, text
from grafana_foundation_sdk.builders import timeseries as series
from grafana_foundation_sdk.models import common as styles
from grafana_foundation_sdk.models import dashboard as model

SOURCE = model.DataSourceRef("prometheus", "prunella-prometheus")  # uid: provisioning/datasources/prometheus.yml
Queries = Mapping[str, str]
Panel = series.Panel | stat.Panel | text.Panel


@dataclass(frozen=True)
class Look:
    """How a time series is drawn. ``limits`` are (value, colour) from which it counts; ``dashed`` matches legends."""

    width: int = 12
    limits: tuple[tuple[float, str], ...] = ()
    dashed: str = ""
    top: float | None = None
    empty: str = "no data yet"


def _targets(queries: Queries) -> list[prometheus.Dataquery]:
    return [
        prometheus.Dataquery().ref_id(ref).datasource(SOURCE).expr(expr).legend_format(legend).range()
        for ref, (legend, expr) in zip(ascii_uppercase, queries.items(), strict=False)
    ]


def _thresholds(limits: tuple[tuple[float, str], ...]) -> dashboard.ThresholdsConfig:
    steps = [model.Threshold(None, "green"), *(model.Threshold(value, colour) for value, colour in limits)]
    return dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(steps)


def timeseries(title: str, description: str, queries: Queries, unit: str, look: Look | None = None) -> series.Panel:
    """Gauges that hold until the next round or audit, hence steps; a limit is a dashed line."""
    look = look or Look()
    panel = (
        series.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .targets(list(_targets(queries)))
        .unit(unit)
        .min(0)
        .height(8)
        .span(look.width)
        .no_value(look.empty)
        .line_interpolation(styles.LineInterpolation.STEP_AFTER)
        .line_width(2)
        .show_points(styles.VisibilityMode.NEVER)
        .span_nulls(True)
        .legend(
            common.VizLegendOptions().placement(styles.LegendPlacement.BOTTOM).show_legend(True).calcs(["lastNotNull"])
        )
        .tooltip(common.VizTooltipOptions().mode(styles.TooltipDisplayMode.MULTI))
        .thresholds(_thresholds(look.limits))
    )
    if look.limits:
        panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(styles.GraphThresholdsStyleMode.DASHED))
    if look.top is not None:
        panel.max(look.top)
    if look.dashed:
        dashes = model.DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [6, 6]})
        panel.override_by_regexp(look.dashed, [dashes])
    return panel


def answer(
    title: str, description: str, queries: Queries, words: Mapping[str, tuple[str, str]], empty: str
) -> stat.Panel:
    """One word for the latest value: ``words`` maps a value to text and colour, and no value has a word too."""
    results = {value: model.ValueMappingResult(word, colour) for value, (word, colour) in words.items()}
    return (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .targets(list(_targets(queries)))
        .height(5)
        .span(8)
        .no_value(empty)
        .mappings([model.ValueMap(results)] if results else [])
        .thresholds(
            dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps([model.Threshold(None, "text")])
        )
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .graph_mode(styles.BigValueGraphMode.NONE)
        .color_mode(styles.BigValueColorMode.BACKGROUND if results else styles.BigValueColorMode.VALUE)
    )


def words(title: str, markdown: str, width: int, height: int) -> text.Panel:
    """A text panel, for what no figure says."""
    return text.Panel().title(title).content(markdown).span(width).height(height)


def board(uid: str, title: str, description: str, panels: Iterable[Panel]) -> dashboard.Dashboard:
    """A dashboard with the choice of a federation, and its panels from left to right, rows of 24 columns."""
    choice = (
        dashboard.QueryVariable("federation")
        .label("Federation")
        .datasource(SOURCE)
        .query("label_values(prunella_build_info, federation)")
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.ALPHABETICAL_ASC)
    )
    made = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags(["prunella"])
        .readonly()
        .time("now-1h", "now")
        .refresh("10s")
        .timezone("browser")
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .variables([choice])
        .link(
            dashboard.DashboardLink("Prunella")
            .type(model.DashboardLinkType.DASHBOARDS)
            .tags(["prunella"])
            .include_vars(True)
            .keep_time(True)
        )
    )
    for number, panel in enumerate(panels, 1):
        made.with_panel(panel.id(number))
    return made
