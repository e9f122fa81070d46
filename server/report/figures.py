"""The figures of a run: what it learned, kept and sent, and how much its audits found, by round."""

from collections.abc import Callable, Sequence

from markupsafe import Markup

from prunella.server.report.charts import Point, Role, Series, line_chart
from prunella.server.report.series import baseline_band, increments, leak_series, points
from prunella.server.report.units import decibels, duration, percent, score, size
from prunella.server.store.schema import StoreLine


def whole(share: float | None) -> str:
    """Percent, without a decimal that is zero: for axes.

    >>> whole(0.2), whole(0.125)
    ('20\u202f%', '12.5\u202f%')
    """
    return percent(share).replace(".0", "")


def whole_decibels(value: float | None) -> str:
    """Decibels for axes."""
    return decibels(value).replace(".0", "")


Axis = tuple[str, str, Callable[[float | None], str], tuple[float, float]]
AUDITED: dict[str, tuple[str, Role]] = {
    "control": ("control, undefended", "red"),
    "control-defended": ("control, defended", "yellow"),
    "single-defended": ("worst case, defended", "grey"),
    "single": ("worst case, undefended", "grey"),  # where no other is there: what the server may ask for
    "client": ("clients", "blue"),
}
AXES: tuple[Axis, ...] = (
    ("psnr", "PSNR", whole_decibels, (0.0, 20.0)),
    ("ssim", "SSIM", score, (0.0, 1.0)),
    ("nmi", "NMI", score, (0.0, 1.0)),
)


def _bytes_chart(lines: Sequence[StoreLine]) -> Markup:
    def each_round(metric: str, direction: str) -> tuple[Point, ...]:
        return increments(points(lines, metric, direction=direction))

    up, down = (each_round("wire_dense_bytes_total", way) for way in ("up", "down"))
    dense = [Series("dense, either way", "grey", up)] if up == down else [
        Series("dense, up", "grey", up), Series("dense, down", "red", down)]  # fmt: skip
    sent = [
        Series("from clients", "blue", each_round("wire_bytes_total", "up")),
        Series("to clients", "yellow", each_round("wire_bytes_total", "down")),
    ]
    return line_chart("Bytes on the wire, per round", [*sent, *dense], size)


def run_charts(lines: Sequence[StoreLine]) -> list[Markup]:
    accuracy = [Series("global model", "blue", points(lines, "accuracy_ratio"))]
    stages: tuple[tuple[str, str, Role], ...] = (
        ("train", "training, sending, aggregation", "blue"),
        ("evaluate", "evaluation", "yellow"),
        ("store", "checkpoint", "grey"),
    )
    times = [Series(said, role, points(lines, "round_stage_seconds", stage=name)) for name, said, role in stages]
    kept = [
        Series("weights kept", "blue", points(lines, "mask_density_ratio")),
        Series("of these withheld by clients", "yellow", points(lines, "defense_rate_ratio")),
    ]

    return [
        line_chart("Accuracy", accuracy, whole, (0.0, 1.0)),
        line_chart("Model kept and withheld", kept, whole, (0.0, 1.0)),
        _bytes_chart(lines),
        *([line_chart("Where a round's time goes", times, duration)] if any(each.line for each in times) else []),
    ]


def leakage_charts(audits: Sequence[StoreLine]) -> list[Markup]:
    charts = []
    behind = any(audit["kind"] == "single-defended" for audit in audits)
    shown = {kind: named for kind, named in AUDITED.items() if kind != "single" or not behind}
    for metric, title, unit, limits in AXES:
        series = [Series(name, role, *leak_series(audits, kind, metric)) for kind, (name, role) in shown.items()]
        charts.append(line_chart(title, series, unit, limits, baseline_band(audits, metric)))
    return charts
