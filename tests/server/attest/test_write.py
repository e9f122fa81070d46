"""The files of an attestation: all texts escaped, audits for other tools, and none of an older one left beside them."""

import json
from pathlib import Path

import pytest

from prunella.core.errors import ConfigError
from prunella.server.attest import write
from prunella.server.attest.signing import new_key, public_key, verify
from prunella.server.attest.write import attest
from tests.server.report.audits import CONTROL, NOTHING, audit
from tests.server.report.stored import full_run, new_run

HOSTILE = "<script>alert(1)</script>"


def test_results_have_every_audit_by_attack(tmp_path: Path) -> None:
    full_run(tmp_path / "run", client_noise=0.03)
    attest(tmp_path / "run", tmp_path / "out", new_key(tmp_path / "k.key"), "")
    (entry,) = json.loads((tmp_path / "out" / write.RESULTS).read_text())
    assert set(entry) == {"log_id", "log_time", "metadata", "attack_experiment_logger"}
    instances = entry["attack_experiment_logger"]["attack_instance_logger"]
    assert [each["kind"] for each in instances.values()] == ["control", "control-defended", "client"]
    assert entry["metadata"]["attack_name"] == "sgi" and sum(entry["metadata"]["global_metrics"].values()) == 3


def test_what_shows_nothing_is_no_baseline_for_other_tools() -> None:
    said = {"run": "r-7", "made": "now"}
    base = dict.fromkeys(write._KEPT) | {"threat": "t"}
    control, cut = base | CONTROL, base | audit(scores=NOTHING, reason="stopped after 600 s")
    lone, unexplained = base | audit(scores=NOTHING, round=9), base | audit(scores=NOTHING, objective=0.6)
    (entry,) = write.results([control, base | audit(scores=NOTHING), cut, lone, unexplained], said)
    assert entry["metadata"]["global_metrics"] == {"baseline": 1, "rebuilt": 1, "unknown": 3}


def test_membership_counts_by_its_own_word() -> None:
    member = audit(kind="membership", attack="membership", membership={"word": "found", "scores": None})
    (entry,) = write.results([dict.fromkeys(write._KEPT) | {"threat": "t"} | member], {"run": "r-7", "made": "now"})
    assert entry["metadata"]["global_metrics"] == {"found": 1}


def test_a_hostile_run_is_escaped_and_the_page_fetches_nothing(tmp_path: Path) -> None:
    new_run(tmp_path / "run", id=HOSTILE, claims=[HOSTILE], threat_model=HOSTILE, settings={"model": HOSTILE})
    attest(tmp_path / "run", tmp_path / "out", new_key(tmp_path / "k.key"), "")
    page = (tmp_path / "out" / write.HTML).read_text()
    assert "<script" not in page and "&lt;script&gt;" in page
    assert "src=" not in page and "href=" not in page and "default-src 'none'" in page


def test_an_older_pdf_does_not_stay_beside_what_was_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full_run(tmp_path / "run")
    key = new_key(tmp_path / "k.key")
    monkeypatch.setattr(write, "pdf", lambda html, printer: b"%PDF-1.7 " + html.encode()[:10])
    attest(tmp_path / "run", tmp_path / "out", key, "printer")
    assert (tmp_path / "out" / write.PDF).exists()
    assert "attestation.pdf" in verify(tmp_path / "out", public_key(tmp_path / "k.pub"))[1]
    attest(tmp_path / "run", tmp_path / "out", key, "")
    assert not (tmp_path / "out" / write.PDF).exists() and verify(tmp_path / "out", public_key(tmp_path / "k.pub"))


def test_another_run_s_attestation_is_never_overwritten(tmp_path: Path) -> None:
    full_run(tmp_path / "run")
    new_run(tmp_path / "other", id="r-8")
    key = new_key(tmp_path / "k.key")
    attest(tmp_path / "run", tmp_path / "out", key, "")
    with pytest.raises(ConfigError, match="attestation of r-7"):
        attest(tmp_path / "other", tmp_path / "out", key, "")
    (tmp_path / "out" / "attestation.json").write_text("{}")
    with pytest.raises(ConfigError, match="something else"):
        attest(tmp_path / "run", tmp_path / "out", key, "")
