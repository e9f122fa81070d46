"""What a plot shows: a colour for one series only, floors, fronts, true scales and what was not measured."""

from pathlib import Path
from typing import Any

import pytest

from prunella.benchmarks.engine.claim import Claim, Measure, Plot, Point, declared
from prunella.benchmarks.engine.plots import COLOURS, HATCHES, MARKERS, draw, figure, front, style
from prunella.benchmarks.registry import CLAIMS
from prunella.strategies import STRATEGIES

THREE = (0.5, 0.6, 0.7)
SHOWN = "psnr 1 PSNR in dB; nmi 2 NMI; nmi_random 2 NMI of noise; accuracy 2 accuracy"


def claim(plot: Plot) -> Claim:
    return declared(
        "T | Toy | Table 1 | it is", Measure("m", lambda *_: {}), "kind rate: attack", SHOWN, plot, small=[{}]
    )


def point(*label: str, **values: float) -> Point:
    return Point(label, {key: (value, value, value) for key, value in values.items()})


def shown(plot: Plot, points: list[Point]) -> list[Any]:
    return figure(claim(plot), points).axes


def named(axes: Any) -> list[str]:
    return axes.get_legend_handles_labels()[1]


def test_no_two_series_share_a_colour_or_a_marker_and_the_first_differ_in_hatching() -> None:
    many = [style(i) for i in range(30)]
    assert len({one.colour for one in many}) == len({one.marker for one in many}) == 30
    assert len(STRATEGIES) + 1 <= len(COLOURS) == len(MARKERS) == len(HATCHES) == len(set(HATCHES))


def test_a_colour_means_one_series_in_all_panels(tmp_path: Path) -> None:
    found = [Point(("digits", "cnn", "dgp", "training"), {"accuracy": THREE})]
    found.append(Point(("digits", "cnn", "dgp", "ig"), {"ssim": THREE}))
    draw(CLAIMS["D7"], found, tmp_path / "two.svg")
    text = (tmp_path / "two.svg").read_text().upper()
    assert all(colour in text for colour in COLOURS[:2]) and COLOURS[2] not in text


def test_bars_of_one_name_have_one_colour_where_a_panel_lacks_another() -> None:
    found = [Point((model, name), {"ratio": THREE}) for model, name in (("a", "x"), ("a", "y"), ("b", "y"))]
    bars = [axes.patches for axes in figure(CLAIMS["C5"], found).axes]
    assert bars[0][1].get_facecolor() == bars[1][0].get_facecolor() != bars[0][0].get_facecolor()


def test_a_metric_that_no_cell_has_yet_is_an_empty_panel() -> None:
    """As where a budget ended before the federations that measure it."""
    axes = figure(CLAIMS["D7"], [Point(("digits", "cnn", "dgp", "ig"), {"ssim": THREE})]).axes
    empty = [each for each in axes if [text.get_text() for text in each.texts] == ["not measured"]]
    assert len(axes) > len(empty) >= 1 and not any(each.lines or each.patches for each in empty)


def test_a_missing_bar_says_not_measured() -> None:
    found = [
        point("cnn", "0.1", "ig", psnr=9.0),
        point("cnn", "0.5", "ig", psnr=9.0),
        point("cnn", "0.5", "sgi", psnr=0),
    ]
    (axes,) = shown(Plot(("psnr",)), found)
    assert [text.get_text() for text in axes.texts] == ["not measured"] and len(axes.patches) == 3
    (whole,) = shown(Plot(("psnr",)), found[1:])
    assert not whole.texts


def test_floors_are_labelled_lines() -> None:
    found = [point("cnn", rate, "ig", psnr=9.0, nmi=0.5, nmi_random=0.1) for rate in ("0.1", "0.5")]
    found.append(point("cnn", "0.1", "class mean", psnr=13.0))
    above, below = shown(Plot(("psnr", "nmi")), found)
    assert {"20 dB: rebuilt, in papers", "class mean"} <= set(named(above)) and "noise" in named(below)
    assert len(above.patches) == 2 and "class mean" not in named(below)  # a line and no bar
    _, below = shown(Plot(("psnr", "nmi"), x=1, x_name="rate"), found)
    assert "noise" in named(below)


def test_a_tradeoff_is_marks_with_a_front() -> None:
    assert front({"none": (60, 0.9), "noise": (12, 0.7), "bad": (30, 0.6), "same": (12, 0.6)}) == ["noise", "none"]
    found = [point("cnn", "0.1", name, nmi=leak, accuracy=good) for name, leak, good in
             (("none", 0.9, 0.9), ("good", 0.2, 0.8), ("bad", 0.8, 0.5))]  # fmt: skip
    (axes,) = shown(Plot(("nmi",), over="accuracy"), found)
    assert {"none", "good", "bad", "front"} <= set(named(axes)) and not axes.patches
    line = next(line for line in axes.lines if line.get_label() == "front")
    assert list(line.get_xdata()) == pytest.approx([0.9, 0.8]) and axes.get_xlabel() == "accuracy"


@pytest.mark.parametrize("name", ["C1", "C4", "P6", "P7", "P8"])
def test_claims_of_two_quantities_are_tradeoffs(name: str) -> None:
    assert CLAIMS[name].experiment.plot.over == "accuracy"


@pytest.mark.parametrize(("values", "scale"), [("0.1 0.5 0.9", "linear"), ("1 16 256", "log"), ("0 1 10", "symlog")])
def test_an_axis_is_true_to_scale_and_marked_where_it_was_measured(values: str, scale: str) -> None:
    found = [point("cnn", value, "ig", psnr=9.0) for value in (*values.split(), "none")]
    (axes,) = shown(Plot(("psnr",), x=1, x_name="rate"), found)
    assert axes.get_xscale() == scale and axes.get_xlabel() == "rate"
    assert [text.get_text() for text in axes.get_xticklabels()] == [*values.split(), "none"]
    lines = [line for line in axes.lines if len(line.get_xdata()) == 3 and line.get_linestyle() not in ("None", "")]
    assert lines and list(lines[0].get_xdata()) == [float(value) for value in values.split()]  # none is not joined


def test_panels_share_their_axis_unless_a_metric_stands_apart() -> None:
    plot = Plot(("psnr", "nmi"), split=0, apart=("psnr",))
    found = [point(kind, "0.1", "ig", psnr=size, nmi=size) for kind, size in (("a", 10.0), ("b", 90.0))]
    panels = shown(plot, found)
    assert panels[0].get_ylim() != panels[1].get_ylim() and panels[2].get_ylim() == panels[3].get_ylim()
    assert panels[2].get_ylim()[1] > 90  # wide enough for all


def test_the_same_numbers_draw_the_same_file(tmp_path: Path) -> None:
    values = {"paper_mib": (2.0, 2.0, 2.0), "wire_mib": (1.0, 1.1, 1.2), "saved": (0.5, 0.45, 0.4)}
    found = [Point(("resnet18", scheme), values) for scheme in ("baseline", "dgp")]
    for name in ("a.svg", "b.svg"):
        draw(CLAIMS["D3"], found, tmp_path / name)
    assert (tmp_path / "a.svg").read_text() == (tmp_path / "b.svg").read_text()
