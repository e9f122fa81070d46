"""The Grafana dashboards, which are edited as JSON. That their queries have answers: ``test_queries``."""

from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from prunella.attacks.score.level import ORDER
from tests.monitoring.dashboards import DASHBOARDS, GRAFANA, dashboard


def panels(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = dashboard(name)["panels"]
    return found


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_panel_is_a_question_with_a_way_to_read_it(name: str) -> None:
    for panel in panels(name):
        assert panel["title"].endswith("?"), panel["title"]
        if panel["type"] != "text":
            assert panel["description"] and panel["fieldConfig"]["defaults"]["noValue"]
            assert all(target["legendFormat"] for target in panel["targets"])
        if panel["type"] == "timeseries":
            assert panel["fieldConfig"]["defaults"]["unit"]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_are_few_and_fill_the_grid_without_overlap(name: str) -> None:
    places = [panel["gridPos"] for panel in panels(name)]
    assert len(places) <= 12
    cells = [{(x, y) for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])} for p in places]
    assert not [1 for a, b in combinations(cells, 2) if a & b]
    area = set().union(*cells)
    assert area == {(x, y) for x in range(24) for y in range(max(y for _, y in area) + 1)}


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_state_is_that_of_now_and_not_the_last_of_the_window(name: str) -> None:
    for panel in panels(name):
        for target in panel.get("targets", []):
            assert (target["instant"], target["range"]) == ((True, False) if panel["type"] == "stat" else (False, True))


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_panel_without_an_answer_states_nothing_that_nobody_measured(name: str) -> None:
    for panel in panels(name):
        if panel["type"] != "text":
            assert panel["fieldConfig"]["defaults"]["noValue"].startswith("nothing known: "), panel["title"]


def words(name: str, title: str) -> dict[str, tuple[str, str]]:
    (found,) = [each for each in panels(name) if each["title"] == title]
    (mapping,) = found["fieldConfig"]["defaults"]["mappings"]
    return {value: (word["text"], word["color"]) for value, word in mapping["options"].items()}


def test_a_server_that_is_gone_is_red_before_anything_else_is_said() -> None:
    assert words("federation", "Is the run going on?") == {
        "0": ("going on", "green"),
        "1": ("no round for 5 minutes", "orange"),
        "2": ("ended", "blue"),
        "3": ("SERVER GONE", "red"),
    }
    (found,) = [each for each in panels("federation") if each["title"] == "Is the run going on?"]
    assert found["targets"][0]["expr"].startswith("(federation:prunella_server:gone{")


def test_the_verdict_comes_first_and_only_clear_is_no_warning() -> None:
    assert panels("privacy")[0]["title"] == "What does the report say so far?"
    shown = words("privacy", "What does the report say so far?")
    assert [shown[str(number)][0] for number in range(5)] == ["nothing known", "not judged", "clear", "traces", "LEAK"]
    assert [value for value, (_, color) in shown.items() if color not in ("orange", "red")] == ["2"]


def test_an_epsilon_that_was_lost_is_no_defense_without_one() -> None:
    (found,) = [each for each in panels("privacy") if each["title"] == "Is all of ε known?"]
    assert "epsilon:lost" in found["targets"][0]["expr"] and "epsilon_unknown" in found["targets"][0]["expr"]
    assert words("privacy", "Is all of ε known?")["-1"] == ("NO BOUND", "red")


@pytest.mark.parametrize("name", DASHBOARDS)
def test_everything_asks_the_provisioned_source(name: str) -> None:
    (source,) = provisioned("datasources/prometheus.yml")["datasources"]
    wanted = {"uid": source["uid"], "type": source["type"]}
    asking = [part for panel in panels(name) if panel["type"] != "text" for part in [panel, *panel["targets"]]]
    (choice,) = dashboard(name)["templating"]["list"]
    assert choice["name"] == "federation"
    assert all(part["datasource"] == wanted for part in [choice, *asking])


def test_the_privacy_dashboard_states_its_threat_model() -> None:
    (text,) = [p["options"]["content"] for p in panels("privacy") if p["type"] == "text"]
    assert "follows the protocol" in text and "control" in text and "not a zero" in text


@pytest.mark.parametrize("title", ["Was a client's image rebuilt?", "Was the canary rebuilt through the defenses?"])
def test_what_was_not_judged_and_traces_have_words_of_their_own(title: str) -> None:
    (found,) = [each for each in panels("privacy") if each["title"] == title]
    (target,), (mapping,) = found["targets"], found["fieldConfig"]["defaults"]["mappings"]
    assert "prunella_leakage_level:worst{" in target["expr"] and len(mapping["options"]) == len(ORDER)
    words = [mapping["options"][str(number)]["text"] for number in range(len(ORDER))]
    assert words == ["not judged", "not by this attack", "traces", "REBUILT"]


def test_a_control_that_has_no_result_is_no_reason_to_believe() -> None:
    (found,) = [each for each in panels("privacy") if each["title"] == "May these figures be believed?"]
    assert "prunella_audits_without_control" in found["targets"][0]["expr"]


def test_uids_differ_and_dashboards_cannot_be_edited_into_something_else() -> None:
    boards = [dashboard(name) for name in DASHBOARDS]
    assert len({board["uid"] for board in boards}) == len(boards)
    assert not any(board["editable"] for board in boards)
    (provider,) = provisioned("dashboards/prunella.yml")["providers"]
    assert provider["allowUiUpdates"] is False and provider["options"]["path"] == "$PRUNELLA_DASHBOARDS"


def provisioned(name: str) -> dict[str, Any]:
    path: Path = GRAFANA / "provisioning" / name
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found
