import json
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from prunella.deploy.panels import SOURCE, Look, answer, board, timeseries, words


def plain(built: Any) -> dict[str, Any]:
    return json.loads(json.dumps(built.build(), cls=JSONEncoder))


def test_a_series_shows_its_queries_limits_and_what_emptiness_means() -> None:
    look = Look(width=8, limits=((0.5, "red"),), dashed="/chance/", top=1.0, empty="nobody was scored")
    panel = plain(timeseries("How?", "So.", {"worst": "a", "chance": "b"}, "dB", look))
    assert panel["type"] == "timeseries" and panel["title"] == "How?" and panel["description"] == "So."
    assert [(t["refId"], t["expr"], t["legendFormat"]) for t in panel["targets"]] == [
        ("A", "a", "worst"),
        ("B", "b", "chance"),
    ]
    field = panel["fieldConfig"]["defaults"]
    assert (field["unit"], field["min"], field["max"], field["noValue"]) == ("dB", 0, 1.0, "nobody was scored")
    assert field["thresholds"]["steps"] == [{"value": None, "color": "green"}, {"value": 0.5, "color": "red"}]
    assert field["custom"]["thresholdsStyle"] == {"mode": "dashed"}
    assert panel["fieldConfig"]["overrides"][0]["matcher"] == {"id": "byRegexp", "options": "/chance/"}


def test_a_series_without_limits_draws_none() -> None:
    field = plain(timeseries("How?", "So.", {"a": "a"}, "s"))["fieldConfig"]
    assert "thresholdsStyle" not in field["defaults"]["custom"] and field["overrides"] == []
    assert "max" not in field["defaults"]


def test_an_answer_is_a_word_for_every_value_and_for_none() -> None:
    panel = plain(answer("Well?", "So.", {"ok": "a"}, {"1": ("yes", "green"), "0": ("NO", "red")}, "not known yet"))
    field = panel["fieldConfig"]["defaults"]
    assert field["mappings"][0]["options"]["0"] == {"text": "NO", "color": "red"}
    assert field["noValue"] == "not known yet" and panel["options"]["colorMode"] == "background"
    assert panel["options"]["reduceOptions"]["calcs"] == ["lastNotNull"]
    assert field["thresholds"]["steps"] == [{"value": None, "color": "text"}], "an unmapped value is not green"


def test_a_board_numbers_its_panels_and_asks_which_federation() -> None:
    made = plain(board("uid", "Title", "Why.", [words("a", "**b**", 24, 3), timeseries("c", "d", {"e": "f"}, "s")]))
    assert [(p["id"], p["type"]) for p in made["panels"]] == [(1, "text"), (2, "timeseries")]
    (choice,) = made["templating"]["list"]
    assert choice["name"] == "federation" and choice["datasource"] == {"type": "prometheus", "uid": SOURCE.uid}
    assert made["panels"][0]["options"]["content"] == "**b**" and made["uid"] == "uid"
