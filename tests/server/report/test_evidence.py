import pytest

from prunella.attacks.score.level import value
from prunella.server.report.evidence import (
    NORMALISED,
    UNTRUE,
    control_behind,
    control_state,
    fitted,
    in_words,
    is_evidence,
    judged,
    valid_audits,
    weakness,
    who,
    without_control,
    worst_first,
    worst_of,
)
from tests.server.report.audits import (
    CONTROL,
    CONTROL_FAILED,
    DEFENDED,
    NOTHING,
    REBUILT,
    SINGLE,
    TRACES,
    audit,
    spread,
)


def test_a_control_counts_for_its_own_attack_and_its_own_round() -> None:
    client = audit(scores=NOTHING)
    assert control_behind(client, [CONTROL]) == "rebuilt"
    for change in ({"round": 1}, {"round": 9}, {"attack": "dlg"}, {"kind": "single"}, {"kind": "control-defended"}):
        assert control_behind(client, [CONTROL | change]) == "missing"
    assert control_behind(client, [CONTROL, CONTROL_FAILED]) == "failed", "every control it relies on has to hold"


def test_a_client_s_view_is_without_a_control_where_that_has_no_result_and_none_may_come() -> None:
    client, unanswered = audit("client", NOTHING), CONTROL | {"outcome": "failed", "scores": None, "ok": None}
    assert without_control([client]) == without_control([client, unanswered]) == [client]
    assert without_control([client, CONTROL]) == without_control([client, CONTROL_FAILED]) == []
    assert without_control([client], {client["round"]}) == without_control([client | {"outcome": "failed"}]) == []
    own = unanswered | {"client": client["client"]}
    assert without_control([client, CONTROL, own]) == [client], "another's control vouches for another view"


def test_the_worst_case_relies_on_a_control_of_its_own() -> None:
    worst_case = audit("single-defended", NOTHING)
    assert not is_evidence(worst_case, [CONTROL]) and is_evidence(worst_case, [SINGLE])


def test_what_was_found_needs_no_control() -> None:
    assert is_evidence(audit(scores=REBUILT), []) and is_evidence(audit(scores=TRACES), [])


def test_a_control_without_a_word_of_its_own_is_judged_by_its_scores() -> None:
    assert control_state(audit("control", REBUILT, ok=None)) == "rebuilt"
    assert control_state(audit("control", NOTHING, ok=None)) == "failed"
    assert control_state(CONTROL | {"outcome": "failed"}) == "failed" and control_state(None) == "missing"


@pytest.mark.parametrize(
    ("objective", "fits"),
    [(0.0, True), (0.01, True), (0.02, False), (0.5, False), (None, False), (float("nan"), False)],
)
def test_an_update_is_explained_if_nearly_whole(objective: float | None, fits: bool) -> None:
    assert fitted(audit(scores=NOTHING, objective=objective)) is fits


@pytest.mark.parametrize("kind", ["client", "control-defended", "single-defended"])
def test_an_attack_that_explained_nothing_shows_nothing_where_it_finds_nothing(kind: str) -> None:
    controls = [CONTROL, SINGLE]
    assert judged(audit(kind, NOTHING), controls) == "baseline" and weakness(audit(kind, NOTHING), controls) is None
    found = audit(kind, NOTHING, objective=0.6)
    assert judged(found, controls) == "unknown" and weakness(found, controls) == "not explained"
    assert judged(found | {"objective": None}, controls) == "unknown", "an attack that compares with no update"
    assert judged(audit(kind, TRACES, objective=0.6), controls) == "traces", "what was found needs no fit"


def test_a_control_that_fits_poorly_vouches_for_no_fit() -> None:
    poor = [CONTROL | {"objective": 0.25}, SINGLE | {"objective": 0.25}]
    for kind in ("client", "control-defended", "single-defended"):
        assert judged(audit(kind, NOTHING, objective=0.4), poor) == "unknown"


def test_an_undefended_canary_that_was_not_rebuilt_is_no_harmless_one() -> None:
    for kind in ("control", "single"):
        assert judged(audit(kind, NOTHING), [audit(kind, NOTHING)]) == "unknown"


def test_worst_first_orders_by_level_then_psnr() -> None:
    order = [TRACES, REBUILT, NOTHING, {**NOTHING, "psnr": spread(9.5, 10.0)}]
    assert [value(a, "psnr") for a in worst_first([audit(scores=s) for s in order], [])] == [25.0, 13.0, 9.5, 9.0]


def test_what_could_not_be_judged_is_worse_than_what_found_nothing() -> None:
    unknown = audit(scores={"psnr": {"worst": 17.0}})
    assert worst_first([audit(scores=NOTHING), unknown, audit(scores=TRACES)], [CONTROL])[1] is unknown
    assert worst_of([CONTROL, DEFENDED, audit(scores=NOTHING), unknown], True) is unknown


def test_a_run_is_not_summed_up_by_what_was_explained_beside_what_was_not() -> None:
    unexplained = audit(scores={**NOTHING, "psnr": spread(6.0, 10.0)}, objective=0.6, client=2)
    assert worst_first([audit(scores=NOTHING), unexplained], [CONTROL])[0] is unexplained
    assert worst_of([CONTROL, DEFENDED, audit(scores=NOTHING), unexplained], True) is unexplained


def test_a_run_is_summed_up_by_what_its_headline_is_of() -> None:
    traces, rebuilt, single = audit(scores=TRACES), audit("control-defended", REBUILT), audit("single", REBUILT)
    asked = audit("single-defended", REBUILT)
    assert worst_of([CONTROL, rebuilt, asked, traces], True) is rebuilt
    assert worst_of([CONTROL, audit("control-defended", TRACES), audit(scores=NOTHING), traces], True) is traces
    assert worst_of([CONTROL, asked, traces], True) is traces
    assert worst_of([CONTROL, asked, audit(scores=NOTHING), DEFENDED], True) is asked
    assert worst_of([CONTROL, asked, audit("control-defended", TRACES)], True) is asked
    assert worst_of([CONTROL, single, audit(scores=NOTHING)], False) is single
    assert worst_of([CONTROL, single, DEFENDED, audit()], True) is DEFENDED
    assert worst_of([CONTROL_FAILED, DEFENDED], True) is None and worst_of([CONTROL], True) is None


def test_the_words_of_an_audit_say_what_its_decibels_may_hide() -> None:
    negative = {"psnr": spread(5.0, 9.0), "ncc": spread(0.95, 0.3) | {"blind": 0.4}}
    assert in_words(audit(scores=negative), "rebuilt").startswith("Client 1: an image rebuilt, PSNR 5.0")
    assert in_words(audit(scores=NOTHING), "baseline").startswith("Client 1: PSNR 9.0")
    assert in_words(audit(scores=NOTHING), "unknown").startswith("Client 1: not judged, PSNR 9.0")
    told = audit(level="baseline", outcome="scored")
    assert in_words(told, "baseline").startswith("Client 1: no more than another image shows, as the client reported")
    assert in_words(told, "unknown").startswith("Client 1: not judged, and the client told no numbers, round 5")
    named = in_words(told | {"reason": UNTRUE}, "unknown")
    assert named.startswith("Client 1: not judged, the images named as the truth make another update, round 5")
    seen = in_words(told | {"reason": f"{NORMALISED}(x - 0.5) / 0.5"}, "unknown")
    assert seen.startswith("Client 1: not judged, the images named as the truth make this update only once they are")


def test_every_kind_has_a_name_and_the_attack_that_found_it() -> None:
    kinds = ("control", "control-defended", "single", "single-defended")
    assert len({who(audit(kind)) for kind in kinds}) == 4
    assert "(portfolio, lbfgs against dgp)" in in_words(
        audit(scores=REBUILT, attack="portfolio", found_by="lbfgs"), "rebuilt"
    )


def test_audits_that_do_not_fit_the_store_are_counted() -> None:
    line = audit(scores=NOTHING) | {"adaptive": True, "threat": "", "seconds": 1.0}
    controls = [line | {"kind": kind, "client": None} for kind in ("single-defended", "control")]
    valid, damaged = valid_audits([line, *controls, {"round": 1}])
    assert [a["kind"] for a in valid] == ["control", "single-defended", "client"] and damaged == 1
