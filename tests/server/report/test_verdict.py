"""The wording is the product: what may be said when, and what may never be said."""

from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from sklearn.datasets import load_digits

from prunella.attacks.score.leakage import score
from prunella.attacks.score.level import level, value
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch, Reconstruction
from prunella.server.report.evidence import NORMALISED, UNTRUE
from prunella.server.report.state import RunState, run_state
from prunella.server.report.verdict import NEXT, UNDER_EPSILON, RunVerdict, Tone, judge
from prunella.server.report.verdict import verdict as of_state
from prunella.strategies.secure_sum.vector import NAME as SECURE_SUM
from prunella.tasks.examples import Examples
from tests.server.report.audits import (
    CONTROL,
    CONTROL_FAILED,
    DEFENDED,
    NOTHING,
    REBUILT,
    SINGLE,
    TRACES,
    Audit,
    audit,
    spread,
)
from tests.server.report.test_state import line

LEARNED = RunState(accuracy=0.9, loss=0.3, classes=10, examples=359, defended=True)
CLEAR = [CONTROL, DEFENDED, SINGLE, audit("single-defended", NOTHING), audit(scores=NOTHING)]


def spent(epsilon: float | None) -> list[dict[str, Any]]:
    return [] if epsilon is None else [line(1, "privacy_epsilon", epsilon, stat="worst")]


def verdict(audits: list[Audit], **state: Any) -> RunVerdict:
    return of_state(audits, replace(LEARNED, **state))


@pytest.mark.parametrize(
    ("audits", "tone", "words"),
    [
        ([], "silent", "Nothing was audited"),
        ([CONTROL, audit(scores=REBUILT)], "leak", "could rebuild images"),
        ([CONTROL, audit(scores=TRACES)], "traces", "In part"),
        (CLEAR, "clear", "Not with this attack"),
        ([CONTROL, audit(scores=NOTHING)], "unproven", "no defense was audited"),
        ([*CLEAR, audit(outcome="failed")], "unproven", "audits failed"),
        ([*CLEAR, audit("control-defended", outcome="failed")], "unproven", "audits failed"),
        ([CONTROL_FAILED, audit(scores=NOTHING)], "unproven", "cannot judge this setting"),
        ([CONTROL_FAILED, audit(scores=TRACES)], "traces", "In part"),
        ([CONTROL_FAILED, audit(scores=REBUILT)], "leak", "could rebuild images"),
        ([audit(scores=NOTHING)], "unproven", "no undefended control was run"),
        ([CONTROL | {"scores": NOTHING}, *CLEAR[1:]], "unproven", "failed on its undefended control"),
        ([*CLEAR, audit(scores=NOTHING, round=9)], "unproven", "had no undefended control"),
        ([*CLEAR, CONTROL_FAILED | {"round": 9}], "unproven", "failed on an undefended control"),
        ([CONTROL_FAILED], "unproven", "cannot judge this setting"),
        ([audit()], "unproven", "no undefended control was run"),
        ([CONTROL, audit()], "unproven", "No client's images were scored"),
        ([CONTROL, audit("control-defended", REBUILT)], "leak", "were rebuilt behind this run's defense"),
        ([CONTROL, audit("control-defended", TRACES), audit()], "traces", "give something away"),
        ([CONTROL, audit("control-defended", TRACES), audit(scores=NOTHING)], "traces", "give something away"),
        ([CONTROL, audit("control-defended", NOTHING), audit()], "unproven", "gave nothing away"),
        ([CONTROL, audit("control-defended", REBUILT), audit(scores=NOTHING)], "leak", "public images"),
        ([CONTROL, audit("control-defended", REBUILT), audit(scores=TRACES)], "leak", "only in part, but public"),
        ([CONTROL, audit("single-defended", REBUILT), audit(scores=TRACES)], "traces", "In part: some"),
        ([*CLEAR, audit("single-defended", REBUILT)], "traces", "one image in one step"),
        ([*CLEAR, audit("single-defended", TRACES)], "traces", "one image in one step"),
        ([CONTROL, audit("single-defended", REBUILT), audit()], "traces", "one image in one step"),
        ([CONTROL, audit(scores={"psnr": {"worst": 9.0}})], "unproven", "cannot be judged"),
        ([*CLEAR[:-1], audit(scores=NOTHING, objective=0.6)], "unproven", "could not explain"),
        ([*CLEAR, audit("control-defended", NOTHING, objective=0.6)], "unproven", "could not explain"),
        ([*CLEAR[:-1], audit(scores=NOTHING, objective=-5.0)], "unproven", "could not explain"),
        ([*CLEAR, audit("single-defended", NOTHING, objective=0.6)], "unproven", "could not explain"),
        (
            [CONTROL | {"objective": 0.25}, *CLEAR[1:-1], audit(scores=NOTHING, objective=0.4)],
            "unproven",
            "not explain",
        ),
        ([CONTROL, DEFENDED, audit(scores=NOTHING)], "unproven", "which the server may ask for, was not tried"),
        ([CONTROL, DEFENDED, SINGLE, audit(scores=NOTHING)], "unproven", "was not tried"),
        ([*CLEAR, *(a | {"round": 9} for a in (CONTROL, DEFENDED, CLEAR[-1]))], "unproven", "was not tried"),
    ],
)
def test_headlines(audits: list[Audit], tone: str, words: str) -> None:
    found = verdict(audits)
    assert found.tone == tone and words in found.headline


@pytest.mark.parametrize(
    ("state", "badge"),
    [
        ({"accuracy": 0.1}, "Not learned"),
        ({"accuracy": None}, "Not judged"),
        ({"classes": None}, "Not judged"),
        ({"loss": 723.0}, "Diverged"),
        ({"loss": float("inf")}, "Diverged"),
        ({"defended": False}, "Worst case rebuilt"),
    ],
)
def test_a_clear_verdict_needs_a_model_that_learned_and_a_defense(state: dict[str, Any], badge: str) -> None:
    found = verdict(CLEAR, **state)
    assert found.badge == badge and found.tone != "clear"


def test_a_leak_is_a_leak_whatever_the_model_learned_and_the_doubt_stands_beside_it() -> None:
    found = verdict([CONTROL, audit(scores=REBUILT)], accuracy=0.1, loss=float("inf"), defended=False)
    assert found.badge == "Leak found" and any("training diverged" in note for note in found.notes)


def test_what_is_unknown_of_clients_is_not_denied_beside_a_worse_finding() -> None:
    found = verdict([CONTROL_FAILED, SINGLE, audit("single-defended", REBUILT), audit(scores=NOTHING)])
    assert found.headline.startswith("The clients' images could not be judged, but one image in one step")


@pytest.mark.parametrize(
    "client",
    [
        audit(scores={"psnr": {"worst": 9.0}}),
        audit(scores=NOTHING, ok=False),
        audit(scores=NOTHING, reason="cut"),
        audit(scores=NOTHING, objective=0.6),
        audit(scores=NOTHING, objective=None),
        audit(level="baseline", outcome="scored", objective=0.6),
    ],
)
def test_a_client_s_image_that_could_not_be_judged_is_not_said_to_be_kept(client: Audit) -> None:
    found = verdict([CONTROL, SINGLE, audit("single-defended", REBUILT), client])
    assert found.headline.startswith("The clients' images could not be judged, but one image in one step")


@pytest.mark.parametrize("canary", ["control-defended", "single-defended"])
def test_what_was_not_explained_of_clients_is_not_denied_beside_a_canary(canary: str) -> None:
    for found in (REBUILT, TRACES):
        client = audit(scores=NOTHING, objective=0.6)
        said = verdict([CONTROL, SINGLE, audit(canary, found), client]).headline
        assert said.startswith("The clients' images could not be judged, but")


@pytest.mark.parametrize(
    "weak",
    [
        {"scores": {"psnr": {"worst": 9.0}}, "outcome": "scored"},
        {"reason": "stopped after 600 s"},
        {"objective": 0.6},
        {"round": 9},
    ],
)
def test_a_defended_update_that_was_not_judged_did_not_give_nothing_away(weak: dict[str, Any]) -> None:
    found = verdict([CONTROL, DEFENDED, DEFENDED | weak, audit()])
    assert "gave nothing away" not in found.headline and found.badge == "Clients unknown"


def test_audits_that_cannot_be_read_are_no_clear_verdict() -> None:
    assert of_state(CLEAR, LEARNED, damaged=1).tone == "unproven"
    assert judge({}, [], [{"round": 4, "kind": "alien"}]).badge == "Not judged"
    traces = of_state([CONTROL, audit(scores=TRACES)], LEARNED, damaged=2)
    assert "2 audits could not be read, so more is unknown." in traces.notes, "a leak may be among them"


def test_rounds_that_were_not_audited_are_no_clear_verdict() -> None:
    """Squared gradients left in other rounds; or the first round is the only one, in which the model has learnt
    nothing."""
    what = "squared gradients left beside the updates of rounds 4 and 8, none of which was audited"
    found = verdict(CLEAR, unaudited=what)
    assert (found.badge, found.headline) == ("Not judged", f"Nothing was rebuilt, but {what}.")
    assert (
        f"S{what[1:]}." in found.notes
        and f"S{what[1:]}." in verdict([CONTROL, audit(scores=REBUILT)], unaudited=what).notes
    )
    first = [each | {"round": 1} for each in CLEAR]
    assert verdict(first, rounds=10).badge == "Not judged" and "first round" in verdict(first, rounds=10).headline
    assert verdict(first, rounds=1).tone == verdict(CLEAR, rounds=10).tone == "clear"
    for later in (audit(outcome="no-consent", round=90), CONTROL | {"round": 90}):
        found = verdict([*CLEAR, later], rounds=100)
        assert (found.badge, "no client's images were scored in a later one" in found.headline) == ("Not judged", True)


def test_audits_that_the_run_counted_and_that_are_not_there_are_no_clear_verdict() -> None:
    """The last line of a file that a full disk or a copy cut short says of the worst image."""
    counted = [line(4, "audits_total", count, outcome=outcome) for outcome, count in (("scored", 5), ("failed", 1))]
    state = run_state({"status": "completed"}, counted, CLEAR)
    assert state.lost == 1 and run_state({"status": "running"}, counted, CLEAR).lost == 0
    found = verdict(CLEAR, lost=state.lost)
    assert found.badge == "Not judged" and "1 audit could not be read, so more is unknown." in found.notes


def test_a_membership_question_alone_is_no_audit_that_proves_nothing() -> None:
    found = verdict([audit("membership", outcome="no-consent")])
    assert (found.tone, found.badge) == ("silent", "Not audited") and "denied" not in " ".join(found.notes)


def test_what_was_compared_with_images_of_another_update_is_not_known() -> None:
    untrue = audit(scores=None, outcome="scored", level="unknown") | {"reason": UNTRUE, "ok": False}
    assert verdict([CONTROL, untrue]).headline.startswith("It is not known what was rebuilt")
    seen = untrue | {"reason": f"{NORMALISED}(x - 0.5) / 0.5"}
    assert verdict([CONTROL, seen]).headline.endswith("let the audit's model do that, as (x - 0.5) / 0.5.")
    assert verdict([CONTROL, audit("control-defended", REBUILT), untrue]).badge == "Defense failed"


@pytest.mark.parametrize("client", [REBUILT, TRACES, NOTHING, None])
@pytest.mark.parametrize("control", [CONTROL, CONTROL_FAILED, None])
def test_nothing_is_ever_called_private_or_safe(client: Any, control: Audit | None) -> None:
    found = verdict([a for a in (control, audit(scores=client)) if a])
    text = " ".join([found.badge, found.headline, *found.sentences]).lower()
    assert not any(word in text for word in ("private", "safe", "secure", "protected"))


def test_an_all_clear_warns_of_stronger_attacks_and_names_its_control() -> None:
    text = " ".join(verdict(CLEAR).sentences)
    assert "stronger attack" in text and "the same attack rebuilds some" in text


def test_nan_is_no_score() -> None:
    assert value({"scores": {"psnr": {"worst": float("nan")}}}, "psnr") is None
    assert level({"scores": {"psnr": spread(float("nan"), 10.0)}}) == "unknown"


def digits(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    data = load_digits()
    return torch.tensor(data.images[:count], dtype=torch.float32)[:, None] / 16, torch.tensor(data.target[:count])


def level_of(rebuilt: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> str:
    others = Examples(*(each[200:] for each in digits(1200)))
    return level({"scores": score(Reconstruction(rebuilt, y, 0.0, 1), PrivateBatch(x, y), gallery=others).to_dict()})


@pytest.mark.parametrize("count", [1, 4, 16])
def test_on_real_scores_noise_is_nothing_and_a_near_copy_is_rebuilt(count: int) -> None:
    x, y = digits(count)
    generator = stream(0, purpose="test")
    for _ in range(10):
        noise = torch.rand(x.shape, generator=generator)
        assert level_of(noise, x, y) == "baseline"
    copy = (x + 0.05 * torch.randn(x.shape, generator=generator)).clamp(0, 1)
    assert level_of(copy, x, y) == "rebuilt", "positive control"


@pytest.mark.parametrize("count", [1, 4, 16])
def test_on_real_scores_the_mean_digit_is_not_a_rebuilt_image(count: int) -> None:
    x, y = digits(200)
    mean = x.mean(dim=0, keepdim=True).expand(count, -1, -1, -1)
    assert level_of(mean, x[:count], y[:count]) != "rebuilt"


@pytest.mark.parametrize("epsilon", [None, 3.0])
def test_of_masked_sums_the_next_step_asks_for_the_consent_that_audits_of_them_need(epsilon: float | None) -> None:
    alone, sums = (
        judge({"status": "completed", "settings": {"aggregation": how}}, spent(epsilon), []).next_step
        for how in ("holders", SECURE_SUM)
    )
    assert "--audit scores" in alone and "--audit pictures" not in alone
    assert "every site of a sum" in sums and "--audit pictures" in sums and "--audit scores" not in sums


def test_every_tone_has_a_next_step_and_none_says_that_all_is_well() -> None:
    assert set(NEXT) == set(get_args(Tone))
    more_time = [text for text in (*NEXT.values(), *UNDER_EPSILON.values()) if "more time" in text]
    assert len(more_time) == 2, "of the default attack's two limits the smaller one counts"
    assert all("audit-seconds" in text and "portfolio.seconds" in text for text in more_time)
    assert not [text for text in NEXT.values() if "safe" in text or "nothing to do" in text]


def test_what_to_do_next_knows_an_epsilon_that_is_there() -> None:
    line = {"kind": "membership", "client": 0, "round": 2, "outcome": "scored", "membership": {"word": "found"}}
    line |= {"attack": "membership", "defense": "dp-sgd", "scores": None, "level": None}
    without, under = (of_state([line], RunState(epsilon=each, delta=1e-5)) for each in (None, 3.0))
    assert without.badge == under.badge == "Members found" and without.promise == "no ε"
    assert "a defense that has an ε" in without.next_step and "Lower it (more noise" in under.next_step


def of_a_sum(audits: list[Audit], sites: int) -> list[Audit]:
    return [a | {"sites": sites} for a in audits]


def test_the_headline_of_a_sum_says_of_how_many_sites_it_is() -> None:
    leak = verdict(of_a_sum([CONTROL, audit(scores=REBUILT)], 4))
    assert leak.tone == "leak" and leak.headline.endswith("What was attacked is the sum of 4 sites' updates.")
    clear = verdict(of_a_sum(CLEAR, 32))
    assert clear.tone == "clear" and "the sum of 32 sites' updates" in clear.headline
    assert "sum of" not in verdict(CLEAR).headline


@pytest.mark.parametrize(
    "weak",
    [
        [CONTROL_FAILED, *CLEAR[1:]],
        [CONTROL, DEFENDED, audit("single", NOTHING, outcome="control-failed", ok=False), *CLEAR[3:]],
        [*CLEAR[:-1], audit(scores=NOTHING, ok=False, reason="the sum hides how much each client weighs")],
        [*CLEAR, audit(outcome="failed", client=2, reason="the round's sum was not opened")],
    ],
)
def test_a_sum_of_many_sites_is_not_clear_because_the_attack_was_too_weak(weak: list[Audit]) -> None:
    found = verdict(of_a_sum(weak, 32))
    assert found.tone in ("unproven", "traces") and "the sum of 32 sites' updates" in found.headline


def test_what_is_unknown_of_a_sum_without_clients_names_its_own_worst_case() -> None:
    found = verdict(of_a_sum([SINGLE | {"ok": True}], 4))
    assert "rebuilds one image of each site in one step without a defense" in found.headline


@pytest.mark.parametrize(
    ("status", "epsilon", "words"),
    [
        ("failed", None, "what the error says"),
        ("stopped", None, "--resume"),
        ("running", None, "--resume"),
        ("completed", None, "audit-every"),
        ("completed", 3.0, "Rest on the ε"),
        ("completed", 3.0, "run again with audits: with audit-every"),
        ("failed", 3.0, "what the error says"),
    ],
)
def test_what_to_do_next_after_a_run_without_audits_is_what_would_help(
    status: str, epsilon: float | None, words: str
) -> None:
    lines = [] if epsilon is None else [line(1, "privacy_epsilon", epsilon, stat="worst")]
    found = judge({"status": status, "settings": {"privacy.delta": 1e-5}}, lines, [])
    assert words in found.next_step and (found.badge == "Not finished") is (status != "completed")
    assert "Nothing was audited" in found.headline


@pytest.mark.parametrize("audits", [[audit("membership")], [audit("membership"), SINGLE | {"ok": True}], [audit()]])
def test_a_run_that_was_stopped_before_its_controls_is_not_finished(audits: list[Audit]) -> None:
    found = verdict(audits, status="stopped")
    assert found.badge == "Not finished" and "not complete" in found.headline and "--resume" in found.next_step
    assert verdict(audits).badge != "Not finished"


def test_an_epsilon_holds_whatever_an_audit_says() -> None:
    """A run whose audits prove nothing is not one of which nothing is known."""
    without, under = (of_state([CONTROL_FAILED], RunState(epsilon=each, delta=1e-5)) for each in (None, 3.0))
    assert without.tone == under.tone == "unproven"
    assert "nothing should rest on it" in without.next_step and "Rest on the ε" in under.next_step


@pytest.mark.parametrize("audits", [[CONTROL_FAILED], []])
def test_nobody_is_told_to_rest_on_an_epsilon_that_bounds_nothing(audits: list[Audit]) -> None:
    for epsilon, rests in ((16.0, True), (16.5, False), (1e12, False)):
        found = of_state(audits, RunState(epsilon=epsilon, delta=1e-5))
        assert ("Rest on the ε" in found.next_step) is rests
        assert any("keeps next to nothing secret" in note for note in found.notes) is not rests


def test_audits_that_cannot_be_read_hide_nothing_that_is_known_without_them() -> None:
    found = of_state([], RunState(clients=4, denied=4, refuted=1, lost=2))
    assert found.badge == "Not judged" and "All 4 clients denied audits" in found.notes[0]
    assert "2 audits could not be read, so more is unknown." in found.notes
    assert any("more than the ε that was promised" in note for note in found.notes)


def test_audits_that_failed_for_one_reason_are_named_together() -> None:
    failed = {"outcome": "failed", "scores": None, "level": None, "reason": "memory"}
    audits = [CONTROL, *(audit(client=c, **failed) for c in (1, 2)), audit(client=3, **{**failed, "reason": "time"})]
    (said,) = (text for text in verdict(audits).notes if "audits failed" in text)
    assert said.count("memory") == 1 and "(time)" in said and all(f"client {c}" in said for c in (1, 2, 3))


@pytest.mark.parametrize(
    ("status", "every", "left", "words"),
    [
        ("running", 2, 3, "No audit has ended yet, with 3 audits to come if the run goes on, so nothing is known"),
        ("running", 2, 0, "No audit has ended yet, so nothing is known"),
        ("running", 0, 0, "Nothing was audited, and the run is not complete"),
        ("stopped", 2, 3, "Nothing was audited, and the run is not complete"),
        ("completed", 2, 0, "Nothing was audited, so nothing is known"),
    ],
)
def test_a_run_whose_audits_are_going_is_not_told_as_one_without(
    status: str, every: int, left: int, words: str
) -> None:
    lines = [line(2, "round", 2.0), line(2, "audits_left", float(left))]
    assert judge({"status": status, "settings": {"audit-every": every}}, lines, []).headline.startswith(words)


@pytest.mark.parametrize("run", [{}, {"status": "completed"}, {"settings": {}}])
def test_settings_that_are_lost_are_not_taken_for_no_defense(run: dict[str, Any]) -> None:
    shown = [CONTROL, SINGLE, audit("single-defended", REBUILT), audit(scores=NOTHING)]
    settings = {"settings": {"defenses": "none"}}
    undefended = [CONTROL, SINGLE, audit(scores=NOTHING)]
    assert of_state(undefended, run_state(run | settings, [])).badge == "Worst case rebuilt"
    for audits in (shown, undefended):
        found = of_state(audits, run_state(run, []))
        assert (found.tone, found.badge) == ("unproven", "Not judged") and "names no settings" in found.headline
    assert of_state([CONTROL, audit(scores=REBUILT)], run_state(run, [])).badge == "Leak found"
    for canary in (SINGLE, audit("control-defended", REBUILT)):
        assert of_state([CONTROL, canary, audit(scores=TRACES)], run_state(run, [])).badge == "Traces found"
