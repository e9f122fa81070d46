"""One real federation of a proposal with its audits, and what is kept of it."""

from pathlib import Path

import pytest

from prunella.attacks.score.level import Line
from prunella.benchmarks.advise import trial
from prunella.benchmarks.advise.proposals import Proposal
from prunella.benchmarks.advise.search import Standing
from prunella.benchmarks.advise.trial import about, data_digest, in_rounds, overrides, try_out, worst_case
from tests.benchmarks.advise.test_proposals import question
from tests.server.report.audits import CONTROL, DEFENDED, NOTHING, REBUILT, SINGLE, audit


@pytest.mark.slow
def test_without_a_defense_an_image_comes_back_and_behind_an_epsilon_it_does_not() -> None:
    passes = {"portfolio__passes": 2000, "portfolio__label_passes": 4000}
    asked = question(rounds=3, audit_seconds=600.0, private_rate=0.25, **passes)
    asked = asked.__class__(**{**vars(asked), "short": 3})
    plain, private = Proposal("none", 0.3), Proposal("dp-sgd", 0.3, 4.0)
    rows = {one: try_out(overrides(asked, one, 0), 2) for one in (plain, private)}
    assert rows[plain]["worst"]["level"] == "rebuilt" and rows[plain]["worst"]["psnr"] > 30
    assert rows[private]["worst"]["level"] == "baseline" and 0 < rows[private]["epsilon"] <= 4.0
    assert rows[plain]["epsilon"] is None and rows[plain]["accuracy"] > 0.5 and rows[plain]["failures"] == 0
    assert Standing(plain, (rows[plain],)).tier == "rebuilt"


def test_rounds_whose_attack_was_cut_short_were_not_judged() -> None:
    assert in_rounds([CONTROL, DEFENDED, audit(scores=NOTHING)], True) == "baseline"
    assert in_rounds([CONTROL, DEFENDED, audit(scores=NOTHING, reason="stopped after 600 s")], True) == "unknown"
    assert in_rounds([CONTROL, DEFENDED, audit(scores=NOTHING, objective=0.6)], True) == "unknown"


def test_a_worst_case_that_was_not_explained_is_told_as_that_and_one_that_was_cut_as_not_judged() -> None:
    def found(**changes: object) -> tuple[object, object]:
        told = worst_case([SINGLE, audit("single-defended", NOTHING, **changes)], True)
        return told["level"], told.get("explained")

    assert found() == ("baseline", True) and found(objective=0.6) == ("baseline", False)
    assert found(objective=0.6, reason="stopped after 600 s") == ("unknown", None)


def test_one_audit_that_failed_in_any_round_leaves_nothing_known() -> None:
    def late(line: Line) -> Line:
        return {**line, "round": 9}

    first = [CONTROL, DEFENDED, audit(scores=NOTHING), SINGLE, audit("single-defended", NOTHING)]
    assert in_rounds(first, True) == "baseline" == worst_case(first, True)["level"]
    dead = [late(audit("client", None, outcome="failed", reason="out of memory")), late(CONTROL)]
    assert in_rounds([*first, *dead], True) == "unknown"
    dead = [late(SINGLE), late(audit("single-defended", None, outcome="failed", reason="out of memory"))]
    assert worst_case([*first, *dead], True)["level"] == "unknown"
    no_control = [late({**SINGLE, "ok": False, "scores": NOTHING}), late(audit("single-defended", NOTHING))]
    assert worst_case([*first, *no_control], True)["level"] == "unknown"
    found = [late(SINGLE), late(audit("single-defended", REBUILT))]
    assert worst_case([*first, *no_control, *found], True)["level"] == "rebuilt"


def test_a_line_that_cannot_be_read_leaves_nothing_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = overrides(question(rounds=1, audit_seconds=1.0), Proposal("none", 0.3), 0)
    quiet = [CONTROL, audit(scores=NOTHING, defense="none"), SINGLE]
    for damaged, level in ((0, "baseline"), (1, "unknown")):
        monkeypatch.setattr(trial, "valid_audits", lambda lines, n=damaged: (quiet, n))
        monkeypatch.setattr(trial, "worst_case", lambda audits, defended: {"level": "baseline"})
        monkeypatch.setattr(trial, "in_rounds", lambda audits, defended: "baseline")
        row = trial.try_out(asked | {"audit-every": 0}, 2)
        assert row["worst"]["level"] == row["rounds"] == level


def test_a_federation_that_cannot_train_says_why() -> None:
    asked = {"rounds": 1, "audit-every": 0, "defenses": "dgp,channel-natural", "strategy": "fedavg"}
    assert "write defenses" in try_out(asked, 2)["failed"]


def test_the_clients_of_a_masked_sum_score_what_was_rebuilt_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """They do where all consent with pictures, and a control that has to succeed is then all that may be missing."""
    kept = list[Line]()
    real = trial.in_rounds
    monkeypatch.setattr(trial, "in_rounds", lambda audits, defended: kept.extend(audits) or real(audits, defended))
    sums = {"aggregation": "secure-sum", "min-clients": 3, "secure-sum.examples": 1, "strategy": "fedavg"}
    short = {"rounds": 1, "audit-every": 1, "local-steps": 1, "batch-size": 1, "attack": "sgi", "sgi.iterations": 2}
    try_out({**sums, **short, "defenses": "none", "learning-rate": 0.01}, 3)
    asked = [each for each in kept if each["kind"] == "client"]
    assert [each["outcome"] for each in asked] == ["scored"] * 3, [each["reason"] for each in asked]


def test_a_dataset_that_changed_is_another_one(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    before = data_digest(f"imagefolder:{tmp_path}")
    (tmp_path / "a" / "1.png").write_bytes(b"1")
    assert before == data_digest("digits") == "" != data_digest(f"imagefolder:{tmp_path}")


def test_own_code_that_was_edited_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_model_of_advice.py").write_text("def build(shape, classes): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    asked = overrides(question(model="own_model_of_advice:build"), Proposal("none", 0.3), 0)
    before = about(asked, 2, "")
    (tmp_path / "own_model_of_advice.py").write_text("def build(shape, classes): return None\n")
    assert before != about(asked, 2, "")
