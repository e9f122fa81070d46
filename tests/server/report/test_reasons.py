from dataclasses import replace
from typing import Any

import pytest

from prunella.server.report.reasons import notes, sentences
from prunella.server.report.state import RunState
from tests.server.report.audits import CONTROL, CONTROL_FAILED, DEFENDED, NOTHING, REBUILT, SINGLE, TRACES, audit

LEARNED = RunState(accuracy=0.9, loss=0.3, classes=10, examples=359, defended=True)


def test_the_notes_are_among_the_sentences() -> None:
    audits = [CONTROL, DEFENDED, audit(outcome="failed", reason="AttackError: x"), audit(scores=NOTHING)]
    assert set(notes(audits, LEARNED)) < set(sentences(audits, LEARNED, "clear"))


def test_every_failed_audit_is_counted_and_a_few_are_named() -> None:
    failed = [audit(outcome="failed", round=r, reason=f"why {r}") for r in range(1, 6)]
    text = " ".join(notes(failed, LEARNED))
    assert "5 audits failed" in text and "round 3 (why 3); 2 more" in text and "why 4" not in text
    assert "(no reason recorded)" in " ".join(notes([audit(outcome="failed")], LEARNED))


def test_a_failed_control_says_where_and_why() -> None:
    text = " ".join(notes([CONTROL_FAILED | {"reason": "8 steps"}, CONTROL | {"round": 9}], LEARNED))
    assert "in 1 of 2 trials (round 5: 8 steps)" in text and "Finding nothing there proves nothing" in text


def test_a_control_of_one_image_that_failed_says_so() -> None:
    failed = CONTROL_FAILED | {"reason": None, "kind": "single"}
    assert "(round 5: one image in one step is not rebuilt)" in " ".join(notes([failed], LEARNED))


def test_a_control_that_was_rebuilt_and_not_explained_is_told_as_that() -> None:
    """A control with readable images was told as one that failed, and no more."""
    text = " ".join(notes([audit("control", REBUILT, ok=False)], LEARNED))
    assert "(round 5: it rebuilt part of it, and does not explain the whole update)" in text
    same = audit(
        "control", REBUILT, ok=False, reason="this attack cannot judge this setting: its images do not explain"
    )
    assert "does not explain the whole update)" in " ".join(notes([same], LEARNED)), (
        "said twice, in brackets in brackets"
    )
    cut = " ".join(notes([audit("control", REBUILT, ok=False, reason="stopped after 600 s")], LEARNED))
    assert "does not explain the whole update (stopped after 600 s))" in cut


@pytest.mark.parametrize("scores", [REBUILT, TRACES])
def test_an_audit_that_found_something_is_none_that_shows_nothing(scores: dict[str, object]) -> None:
    """A worst case rebuilt at 70.2 dB stood among the audits that can show nothing."""
    cut = audit("single-defended", scores, ok=False, reason="stopped after 600 s")
    assert "can show nothing" not in " ".join(notes([CONTROL, DEFENDED, SINGLE, cut], LEARNED))
    nothing = audit("single-defended", NOTHING, ok=False, reason="stopped after 600 s")
    assert "1 audit did not finish, or can show nothing" in " ".join(notes([CONTROL, SINGLE, nothing], LEARNED))


def test_the_worst_case_is_named_as_what_it_is_or_as_missing() -> None:
    audits = [CONTROL, DEFENDED, audit(scores=NOTHING)]
    assert "was not judged" in " ".join(notes(audits, LEARNED))
    found = [*audits, SINGLE, audit("single-defended", REBUILT)]
    assert "which the server may ask for, is rebuilt behind dgp (PSNR 25.0" in " ".join(notes(found, LEARNED))


def test_a_worst_case_that_was_judged_once_and_once_not_is_not_said_to_give_nothing_away() -> None:
    cases = [audit("single-defended", scores) for scores in (NOTHING, {"psnr": {"worst": 9.0}})]
    text = " ".join(notes([CONTROL, DEFENDED, audit(scores=NOTHING), SINGLE, *cases], LEARNED))
    assert "gave nothing away" not in text and "was not judged: there is no baseline" in text


def test_an_attack_that_was_cut_short_does_not_say_that_nothing_was_given_away() -> None:
    cut = {"reason": "stopped after 600 s"}
    audits = [CONTROL, DEFENDED | cut, audit(scores=NOTHING), SINGLE, audit("single-defended", NOTHING) | cut]
    text = " ".join(sentences(audits, LEARNED, "unproven"))
    assert "was not judged: an attack on it did not finish" in text
    assert "gave nothing away" not in text and "brings it down" not in text


@pytest.mark.parametrize("objective", [0.6, None])
def test_an_attack_that_explained_nothing_does_not_say_that_nothing_was_given_away(objective: float | None) -> None:
    fit = {"objective": objective}
    audits = [CONTROL, DEFENDED | fit, audit(scores=NOTHING, **fit), SINGLE, audit("single-defended", NOTHING, **fit)]
    text = " ".join(sentences(audits, LEARNED, "unproven"))
    assert "gave nothing away" not in text and "brings it down" not in text
    assert "was not judged: the attack did not explain its update (PSNR 9.0" in text
    assert "this run's defense could not be judged, because the attack did not explain its update" in text
    assert "did not explain the update in 3 of 3 audits" in " ".join(notes(audits, LEARNED))
    assert "did not explain" not in " ".join(notes([CONTROL, DEFENDED, audit(scores=NOTHING)], LEARNED))


def test_a_sum_is_told_as_one_with_what_was_not_tried_and_its_own_worst_case() -> None:
    audits = [a | {"sites": 4} for a in (CONTROL, DEFENDED, audit(scores=NOTHING), SINGLE)]
    text = " ".join(notes([*audits, audit("single-defended", REBUILT, sites=4)], LEARNED))
    assert "What was attacked is the sum of 4 sites' updates" in text and "--sum-peers" in text
    assert "send one model in two rounds and leave a client out of one" in text and "--sum-with" in text
    assert "one image of each site in one step, which the server may ask for, is rebuilt behind dgp" in text
    alone = " ".join(notes([CONTROL, DEFENDED, audit(scores=NOTHING)], LEARNED))
    assert "sum of" not in alone and "each site" not in alone


def test_a_client_that_denies_keeps_a_sum_from_being_scored() -> None:
    audits = [CONTROL | {"sites": 4}]
    text = " ".join(notes(audits, replace(LEARNED, clients=4, denied=1)))
    assert "1 of 4 clients denied audits: what is rebuilt of a sum with their updates may be theirs" in text


def test_what_a_reconstruction_names_stands_beside_its_chance() -> None:
    scores = NOTHING | {
        "images": 4, "iip": 0.75, "iip_random": 0.5, "iip_other": 0.55, "label_accuracy": 1.0, "label_chance": 0.31,
        "recognition": {"hits": 3, "images": 4, "gallery": 100, "chance": 0.01, "low": 0.2},
    }  # fmt: skip
    text = " ".join(sentences([CONTROL, audit(scores=scores)], LEARNED, "clear"))
    assert "it picks 3 of 4 originals out of 100 look-alikes (by chance: 1.0\u202f%)" in text
    assert "nearest for 75.0\u202f% (by chance: 55.0\u202f%)" in text
    older = " ".join(sentences([CONTROL, audit(scores=NOTHING | {"images": 4, "iip": 0.75})], LEARNED, "clear"))
    assert "nearest for 75.0\u202f%." in older, "chance was not measured"
    assert "labels named: 100.0\u202f% (by chance: 31.0\u202f%)" in text
    plain = " ".join(sentences([CONTROL, audit(scores=NOTHING | {"label_accuracy": 1.0})], LEARNED, "clear"))
    assert "labels named: 100.0\u202f%." in plain and "look-alikes" not in plain


def test_a_client_that_relies_on_a_failed_control_is_counted() -> None:
    audits = [CONTROL, audit(scores=NOTHING), CONTROL_FAILED | {"round": 9}, audit(scores=NOTHING, round=9)]
    assert "Of these, 1 audit found nothing and had a control that failed or is missing" in " ".join(
        sentences(audits, LEARNED, "unproven")
    )


def test_a_defense_that_failed_names_its_images_and_what_tells_them_apart() -> None:
    """With a failed control the sentence began "On the same images", of which none had been named, and gave a PSNR
    that another image nearly has: what was found are originals told apart, which no reason said."""
    seen = {"hits": 19, "images": 128, "gallery": 18, "chance": 0.055, "low": 0.08}
    scores = NOTHING | {"psnr": {"mean": 11.4, "worst": 17.4, "random": 6.8, "other": 17.3}, "recognition": seen}
    failed = [CONTROL_FAILED, audit("control-defended", scores), audit(scores=NOTHING)]
    text = sentences(failed, LEARNED, "leak")
    assert not any("the same images" in each for each in text)
    behind = [each for each in text if each.startswith("On public images, sent as a client sends its own, this run")]
    assert len(behind) == 1 and "the attack" in behind[0]
    assert sum("it picks 19 of 128 originals out of 18 look-alikes" in each for each in text) == 1
    both = sentences([CONTROL, audit("control-defended", REBUILT)], LEARNED, "leak")
    assert any(each.startswith("On the same images this run's defense does not stop it (") for each in both)


@pytest.mark.parametrize(
    "changes", [{"status": "stopped"}, {"status": "failed"}, {"status": "running", "coming": True}]
)
def test_what_was_found_in_a_part_of_a_run_says_that_audits_may_be_missing(changes: dict[str, Any]) -> None:
    """Stopped with five of twenty audits to come, one of them of the last round's client, a run read "Traces found" as
    one that had ended."""
    found = [CONTROL, DEFENDED, audit(scores=TRACES)]
    assert any("audits may be missing" in note for note in notes(found, replace(LEARNED, **changes)))
    assert not any("missing" in note for note in notes(found, LEARNED))
