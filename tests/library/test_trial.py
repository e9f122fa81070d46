"""A trial's line is a line of a run; a withheld update is a failed trial; the verdict is the rule of reports."""

from dataclasses import replace
from pathlib import Path

import pytest

from prunella.attacks.ggl import Ggl
from prunella.attacks.ig import Ig
from prunella.attacks.rob import Rob
from prunella.attacks.score.level import level
from prunella.core.errors import ConfigError
from prunella.library.audit import _like, _pool
from prunella.library.trial import Attacker, Stage, Trial, attacked, judge_trials, judging
from prunella.server.audit.shadow import SentRound
from prunella.server.audit.view import STATISTICS
from prunella.server.report.evidence import fitted
from prunella.server.report.state import RunState
from prunella.server.report.verdict import verdict
from prunella.server.store.schema import check_audit
from prunella.tasks.task import Task
from tests.server.report.audits import CONTROL, DEFENDED, NOTHING, audit


def stage(defenses: tuple[str, ...] = ("none",), model: str = "cnn", **raw: float) -> Stage:
    task = Task(model, (1, 8, 8), 10)
    like = _like(task, 2, 1, 2, (0.1, 0.0, 0.0))
    return Stage(task, like, defenses, {"strategy": "fedavg", **raw}, *_pool(like, task, None, 0))


def few() -> Attacker:
    return Attacker("ig", Ig(iterations=2))


def test_a_canary_s_trial_has_the_line_of_a_run_and_its_pictures(tmp_path: Path) -> None:
    found = stage().attack_canary("control", few())
    assert check_audit(found.line) == found.line and found.line["outcome"] == "control-failed"
    assert found.line["scores"]["images"] == 2 and "honest-but-curious" in found.line["threat"]
    saved = found.save(tmp_path, "mine")
    assert saved is not None and saved.name == "mine-ig-control.png"
    assert "cannot judge" in found.words([found.line])


def test_the_single_canary_is_one_image_in_one_step() -> None:
    sent = stage().canary("single")
    assert (sent.view.steps, sent.view.num_examples, len(sent.truth.y)) == (1, 1, 1)
    assert (stage().canary("control").view.steps, stage(("dgp",)).canary("control").view.defenses) == (2, ("none",))
    assert stage(("dgp",)).canary("control-defended").view.defenses == ("dgp",)


def test_what_keeps_an_attack_from_running_is_a_failed_trial() -> None:
    sent = stage().canary("control")
    found = attacked("control", sent.view, sent.truth, stage().task, Attacker("ggl", Ggl()))
    assert found.line["outcome"] == "failed" and found.line["reason"] and found.picture() is None
    assert found.words([found.line]).startswith("failed: ")
    unknown = attacked("client", sent.view, None, stage().task, few())
    assert (
        unknown.line["outcome"] == "no-consent" and "not scored" in unknown.words([]) and unknown.picture() is not None
    )


def test_statistics_beside_a_defended_update_leave_a_doubt() -> None:
    task = Task("tests.attacks.engine.test_beside:wide", (1, 8, 8), 10)
    like = _like(task, 1, 1, 1, (0.1, 0.0, 0.0))
    sent = Stage(task, like, ("dgp",), {"strategy": "fedavg"}, *_pool(like, task, None, 0)).canary("control-defended")
    found = attacked("client", sent.view, sent.truth, task, few())
    assert (found.line["outcome"], found.line["ok"], found.line["reason"]) == ("scored", False, STATISTICS)
    assert attacked("single-defended", sent.view, sent.truth, task, few()).line["reason"] == STATISTICS
    kept = attacked("client", replace(sent.view, received_buffers={}), sent.truth, task, few())
    assert kept.line["reason"] is None and kept.line["ok"] is not False


@pytest.mark.parametrize("error", [RuntimeError("no derivative"), KeyError("1.weight")])
def test_a_model_that_an_attack_cannot_take_apart_is_a_failed_trial(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise error

    monkeypatch.setattr("prunella.library.trial.attempt", broken)
    line = stage().attack_canary("control", few()).line
    assert line["outcome"] == "failed" and line["reason"].startswith(type(error).__name__)


def test_an_objective_that_is_no_fit_of_the_update_is_not_told_as_one() -> None:
    """Else an attack that compares its images with no update would explain them all, and finding nothing be clear."""
    control = stage(model="prunella.attacks.rob:cnn").attack_canary("single", Attacker("rob", Rob())).line
    assert control["outcome"] == "scored" and level(control) == "rebuilt" and control["objective"] is None
    assert not fitted({**control, "kind": "single-defended"})
    assert few().name == "ig" and stage().attack_canary("single", few()).line["objective"] is not None


def test_the_verdict_is_that_of_the_lines() -> None:
    trials = [stage().attack_canary(kind, few()) for kind in ("single", "control")]
    assert judge_trials(trials, RunState()) == verdict([t.line for t in reversed(trials)], RunState())
    assert judge_trials(trials, RunState()).badge == "Proves nothing"


def test_the_controls_of_one_image_in_one_step_are_the_worst_case_where_none_was_tried() -> None:
    """Else a clear verdict would miss it; of any other client it does."""
    line = {"adaptive": True, "threat": "", "seconds": 1.0, "round": 0, "client": None, "reason": None}
    lines = [CONTROL, DEFENDED, audit(scores=NOTHING)]
    trials = [Trial(each | line) for each in lines]
    state = RunState(accuracy=0.9, loss=0.3, classes=10, examples=359, defended=True)
    assert judge_trials(trials, state, alone=True).badge == "Nothing rebuilt"
    assert judge_trials(trials, state).badge == "Worst case unknown"
    assert stage().alone is False


def test_a_control_with_rounds_behind_it_is_no_worst_case_behind_a_defense() -> None:
    task = Task("cnn", (1, 8, 8), 10)
    like = _like(task, 1, 1, 1, (0.1, 0.0, 0.0))
    pool = _pool(like, task, None, 0)
    for defense, number, alone in (("dgp", 1, True), ("dgp", 5, False), ("none", 5, True)):
        assert Stage(task, like, (defense,), {}, *pool, SentRound(number)).alone is alone


def test_an_attack_that_cannot_judge_is_refused() -> None:
    assert judging("sgi") == "sgi"
    with pytest.raises(ConfigError, match="cannot judge"):
        judging("label")
