from pathlib import Path

import pytest

from prunella.server.report.audit_table import ROWS, _cells, audit_table, no_pictures, result_of
from tests.server.report.audits import CONTROL, NOTHING, SINGLE, TRACES, audit
from tests.server.report.test_build import add_audit, new_run, page


def test_audits_stand_by_round_with_their_control_first(tmp_path: Path) -> None:
    store = new_run(tmp_path)
    for kind in ("client", "control-defended", "control"):
        add_audit(store, 4, kind, 0.02, pictures=False)
    text = page(tmp_path).text
    places = [text.index(f"{who} 4 images") for who in ("Control, undefended", "Control, defended", "Client 2")]
    assert places == sorted(places)


def test_scores_without_pictures_are_shown(tmp_path: Path) -> None:
    store = new_run(tmp_path)
    add_audit(store, 4, "control", 0.02, pictures=False)
    add_audit(store, 4, "client", 2.0, pictures=False)
    assert "consented to scores or numbers only" in page(tmp_path).text


def test_pictures_of_audits_that_failed_are_not_missing_for_want_of_consent() -> None:
    assert "every audit of a client failed" in no_pictures([CONTROL, audit(outcome="failed")])


def test_an_attack_that_shows_nothing_where_it_finds_nothing_is_not_in_the_colour_of_a_clear_result() -> None:
    assert result_of(audit(scores=NOTHING), [CONTROL]) == ("clear", "○ nothing")
    for why in ({"ok": False}, {"reason": "stopped after 600 s"}):
        assert result_of(audit(scores=NOTHING, **why), [CONTROL]) == ("unproven", "proves nothing")
        assert result_of(audit(scores=TRACES, **why), [CONTROL])[0] == "traces"


@pytest.mark.parametrize("kind", ["client", "control-defended", "single-defended"])
@pytest.mark.parametrize("objective", [0.6, None])
def test_an_update_that_was_not_explained_is_not_in_the_colour_of_a_clear_result(
    kind: str, objective: float | None
) -> None:
    controls = [CONTROL, SINGLE]
    assert result_of(audit(kind, NOTHING), controls) == ("clear", "○ nothing")
    assert result_of(audit(kind, NOTHING, objective=objective), controls) == ("unproven", "? not explained")
    assert result_of(audit(kind, TRACES, objective=objective), controls)[0] == "traces"


def test_scores_stand_beside_their_baselines_and_chance() -> None:
    def cells(scores: dict[str, object]) -> list[dict[str, object]]:
        return _cells({"scores": scores, "objective": 0.5, "seconds": 1.0})

    spread = {"mean": 10.0, "worst": 13.04, "random": 6.0, "other": 9.0}
    recognition = {"hits": 3.0, "images": 4.0, "gallery": 99.0, "chance": 0.01, "low": 0.25}
    found = cells({"psnr": {**spread, "blind": 11.5}, "recognition": recognition, "label_accuracy": 1.0,
                   "label_chance": 0.1, "iip": 0.75, "iip_random": 0.4})  # fmt: skip
    assert [found[0]["worst"], *found[0]["rest"]] == ["13.0", "10.0", "(6.0, 9.0, 11.5)"]
    assert len(found) == 10 and [found[7]["worst"], *found[7]["rest"]] == ["3 of 4", "(1.0\u202f%)"]
    assert [found[8]["worst"], *found[8]["rest"]] == ["100.0\u202f%", "(10.0\u202f%)"]
    assert [found[6]["worst"], *found[6]["rest"]] == ["75.0\u202f%", "(40.0\u202f%)"]
    older = cells({"psnr": spread, "label_accuracy": 1.0})
    assert older[0]["rest"] == ("10.0", "(6.0, 9.0)") and older[7]["rest"] == older[8]["rest"] == ()


def test_the_audit_that_the_headline_is_of_is_in_the_table_however_long_ago_it_was() -> None:
    line = CONTROL | {"adaptive": True, "threat": "", "seconds": 1.0}
    leak = line | audit(scores=TRACES, round=1)
    audits = [leak, *(line | {"round": r} for r in range(2, ROWS + 3))]
    found = audit_table(audits, [""], leak)
    assert len(found) == ROWS and (found[0]["round"], found[0]["tone"]) == (1, "traces")


def test_hundreds_of_rounds_and_audits_stay_readable(tmp_path: Path) -> None:
    store = new_run(tmp_path, rounds=400)
    add_audit(store, 1, "control", 0.02)
    add_audit(store, 1, "client", 2.0)
    template = store.audits()[-1]
    for r in range(2, 402):
        store.append_audit(template | {"round": r})
    found = page(tmp_path)
    assert "The last of 402 audits, and the worst" in found.text and "12 of 402 audits with pictures" in found.text
    assert found.tags.count("tr") == ROWS + 1 + 2 + 5  # audits, failures, settings and versions
    assert (tmp_path / "report.html").stat().st_size < 600_000
