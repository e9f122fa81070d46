from pathlib import Path

from prunella.server.report.audit_table import ROWS
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


def test_hundreds_of_rounds_and_audits_stay_readable(tmp_path: Path) -> None:
    store = new_run(tmp_path, rounds=400)
    add_audit(store, 1, "control", 0.02)
    add_audit(store, 1, "client", 2.0)
    template = store.audits()[-1]
    for r in range(2, 402):
        store.append_audit(template | {"round": r})
    found = page(tmp_path)
    assert f"The last {ROWS} of 402 audits" in found.text and "12 of 402 audits with pictures" in found.text
    assert found.tags.count("tr") == ROWS + 1 + 2 + 5  # audits, failures, settings and versions
    assert (tmp_path / "report.html").stat().st_size < 600_000
