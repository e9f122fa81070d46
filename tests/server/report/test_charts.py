import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prunella.server.report.charts import DRAWN, HEIGHT, WIDTH, Band, Series, line_chart, thin, ticks
from prunella.server.report.units import percent, score

numbers = st.floats(min_value=-1e6, max_value=1e6, allow_nan=False).map(lambda v: round(v, 3))


def parsed(chart: str) -> ElementTree.Element:
    return ElementTree.fromstring(str(chart))


@given(low=numbers, span=st.floats(min_value=1e-3, max_value=1e6))
def test_ticks_are_few_even_and_hold_the_data(low: float, span: float) -> None:
    marks = ticks(low, low + span)
    steps = {round((b - a) / (marks[1] - marks[0]), 3) for a, b in zip(marks, marks[1:], strict=False)}
    assert 2 <= len(marks) <= 9 and steps == {1.0}
    assert marks[0] <= low + 1e-6 * span and marks[-1] >= low + span - 1e-6 * span


@given(st.lists(st.tuples(st.integers(1, 500), numbers), min_size=1, max_size=60, unique_by=lambda p: p[0]))
def test_everything_is_drawn_inside_the_frame(points: list[tuple[int, float]]) -> None:
    chart = line_chart("Loss", [Series("loss", "blue", tuple(sorted(points)))], score)
    plot = parsed(chart).findall(".//svg")[-1]
    drawn = " ".join(line.get("points", "") for line in plot.iter("polyline"))
    for x, y in re.findall(r"(-?[\d.]+),(-?[\d.]+)", drawn):
        assert -0.1 <= float(x) <= WIDTH + 0.1 and -0.1 <= float(y) <= HEIGHT + 0.1


def test_higher_values_are_drawn_higher() -> None:
    plot = parsed(line_chart("A", [Series("a", "blue", ((1, 0.1), (2, 0.9)))], percent, (0, 1))).findall(".//svg")[-1]
    (line,) = plot.iter("polyline")
    (x1, y1), (x2, y2) = (map(float, p.split(",")) for p in line.get("points", "").split())
    assert x2 > x1 and y2 < y1


def test_a_single_round_and_a_constant_are_drawn() -> None:
    band = Band("noise", ((3, 0.1, 0.2),))
    for points in (((3, 0.5),), ((1, 0.0), (2, 0.0))):
        root = parsed(line_chart("A", [Series("a", "red", points)], score, None, band))
        assert root.findall(".//svg")[-1].get("role") == "img"


def test_a_single_point_is_seen_whatever_its_role() -> None:
    for role in ("blue", "red", "yellow", "grey"):
        chart = parsed(line_chart("A", [Series("worst case", role, ((6, 36.8),))], score))  # type: ignore[arg-type]
        assert [each.text for each in chart.findall(".//svg")[-1].iter("title")] == ["worst case, round 6: 36.80"]


def test_no_points_is_said_and_not_drawn() -> None:
    chart = line_chart("Accuracy", [Series("model", "blue")], percent)
    assert "Nothing measured" in chart and "<svg" not in chart


def test_long_series_are_thinned_and_lose_their_markers() -> None:
    points = tuple((float(i), float(i % 7)) for i in range(5000))
    assert len(thin(points)) == DRAWN and thin(points)[-1] == points[-1]
    leak = (*points[:2345], (2345.0, 99.0), *points[2346:])
    assert leak[2345] in thin(leak) and len(thin(leak)) <= DRAWN
    plot = parsed(line_chart("A", [Series("a", "blue", points)], score)).findall(".//svg")[-1]
    assert not list(plot.iter("circle")) and len(str(ElementTree.tostring(plot))) < 20_000


def test_names_are_escaped_everywhere() -> None:
    evil = '<script>alert("1")</script>'
    chart = line_chart(evil, [Series(evil, "blue", ((1, 1), (2, 2)), ((2, 1),))], lambda v: evil, None, Band(evil))
    assert "<script" not in chart
    assert parsed(chart).find("figcaption").text == evil  # type: ignore[union-attr]


@pytest.mark.parametrize("role", ["blue", "red", "yellow", "grey"])
def test_a_legend_shows_every_role_with_its_own_mark(role: str) -> None:
    root = parsed(line_chart("A", [Series("name", role, ((1, 1), (2, 2)))], score))  # type: ignore[arg-type]
    key = root.find(".//span")
    assert key is not None and "".join(key.itertext()) == "name"
    assert {each.get("class") for each in key.iter()} >= {f"line {role}", f"mark {role}"}


def test_the_description_tells_first_and_last() -> None:
    chart = line_chart("Accuracy", [Series("model", "blue", ((1, 0.1), (9, 0.9)))], percent)
    words = parsed(chart).findall(".//svg")[-1].get("aria-label", "")
    assert "round 1" in words and "round 9" in words and percent(0.9) in words and "at most" not in words


def test_the_description_tells_the_worst_round_in_between() -> None:
    clients = Series("clients", "blue", ((1, 9.0), (5, 30.0), (9, 8.0)), ((1, 7.0),))
    words = parsed(line_chart("PSNR", [clients], score)).findall(".//svg")[-1].get("aria-label", "")
    assert "at most 30.00 in round 5" in words
