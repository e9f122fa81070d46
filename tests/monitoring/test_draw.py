"""The page that is looked at in place of Grafana: it shows what JSON and answers say, and stops where it cannot."""

from copy import deepcopy
from typing import Any

import pytest

from tests.monitoring import draw
from tests.monitoring.dashboards import DASHBOARDS, dashboard, panel

OVER = draw.Range(0.0, 600.0)
Answer = list[tuple[dict[str, str], list[tuple[float, float]]]]


def drawn(monkeypatch: pytest.MonkeyPatch, which: dict[str, Any], answers: dict[str, Answer]) -> str:
    """A panel where the queries that contain a key of ``answers`` are answered so, and others not at all."""

    def ask(address: str, query: str, over: draw.Range) -> Answer:
        return next((answer for part, answer in answers.items() if part in query), [])

    monkeypatch.setattr(draw, "ask", ask)
    return draw.draw_panel(which, "", "local", OVER)


def test_a_state_is_shown_in_its_words_and_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    which = panel("federation", "Does the model diverge?")
    for value, word, color in ((0.0, "no", "green"), (1.0, "DIVERGED", "red")):
        page = drawn(monkeypatch, which, {"diverged": [({}, [(0, 0.0), (600, value)])]})
        assert f"<b>{word}</b>" in page and f"background:{draw.NAMED[color]}" in page
    assert "nothing known: no loss" in drawn(monkeypatch, which, {})


def test_a_state_is_asked_at_the_end_of_the_range_only(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[draw.Range] = []

    def ask(address: str, query: str, over: draw.Range) -> Answer:
        asked.append(over)
        return []

    monkeypatch.setattr(draw, "ask", ask)
    draw.draw_panel(panel("federation", "Does the model diverge?"), "", "local", OVER)
    draw.draw_panel(panel("federation", "Are clients falling out?"), "", "local", OVER)
    assert asked == [draw.Range(600.0, 600.0), OVER]


def test_one_series_of_a_panel_has_its_own_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    which = panel("federation", "How many clients take part?")
    one = [({}, [(0, 1.0)])]
    page = drawn(monkeypatch, which, {"selected": one, "available": one, "refusing": one})
    assert page.count(draw.NAMED["red"]) == 1 and "<span>refuse</span>" in page


def test_a_line_has_its_unit_its_limit_its_dashes_and_its_last_value(monkeypatch: pytest.MonkeyPatch) -> None:
    which = panel("privacy", "How good are the reconstructions?")
    seen = ({"view": "client", "attack": "sgi", "defense": "<dgp>"}, [(0, 10.0), (300, 14.25)])
    page = drawn(monkeypatch, which, {":worst": [seen], ":chance": [({"view": "client"}, [(0, 9.0)])]})
    assert "client, sgi against &lt;dgp&gt; <span>Last *: 14.2 dB</span>" in page
    assert page.count('stroke-dasharray="6 6"') == 1 and page.count('stroke-dasharray="none"') == 1
    assert f'stroke="{draw.NAMED["red"]}" stroke-dasharray="4 4"' in page


def test_every_committed_panel_can_be_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = {"direction": "up", "reason": "nan", "outcome": "scored", "stage": "train", "view": "client"}
    monkeypatch.setattr(draw, "ask", lambda *_: [(labels, [(0.0, 0.0), (600.0, 1.0)])])
    page = draw.page("", "local", OVER)
    for name in DASHBOARDS:
        assert all(draw.escape(each["title"]) in page for each in dashboard(name)["panels"])
    assert page.count("<section") == sum(len(dashboard(name)["panels"]) for name in DASHBOARDS)


def test_what_it_cannot_draw_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = {**deepcopy(panel("federation", "How far is it?")), "type": "gauge"}
    with pytest.raises(ValueError, match="no such panel"):
        drawn(monkeypatch, odd, {"round": [({}, [(0, 1.0)])]})
    with pytest.raises(ValueError, match="no such unit"):
        draw.shown(1.0, "furlongs")


def test_axes_have_few_round_numbers() -> None:
    assert draw.ticks(0, 3.24e6) == [0, 1e6, 2e6, 3e6] and draw.ticks(0, 1) == [0, 0.25, 0.5, 0.75, 1]
    assert draw.steps([(0, 1.0), (5, 2.0)]) == [(0, 1.0), (5, 1.0), (5, 2.0)]
    assert draw.legend("{{direction}}, dense", {"direction": "up"}) == "up, dense"
    shown = [draw.shown(*each) for each in ((0.153, "percentunit"), (51_200, "decbytes"), (0.034, "s"), (90, "s"))]
    assert shown == ["15.3%", "51.2 kB", "34 ms", "1.5 min"]
