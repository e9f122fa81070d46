import pytest

from prunella.attacks.score.level import value
from prunella.server.report.evidence import (
    control_behind,
    control_state,
    fitted,
    in_words,
    is_evidence,
    valid_audits,
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
    ("objective", "reached", "fits"),
    [(0.005, None, True), (0.02, 0.005, False), (0.2, 0.11, True), (0.2, 0.09, False), (None, 0.1, False)],
)
def test_an_update_is_explained_if_nearly_whole_or_as_well_as_its_control(
    objective: float | None, reached: float | None, fits: bool
) -> None:
    control = CONTROL | {"objective": reached}
    assert fitted(audit(scores=NOTHING, objective=objective), [control]) is fits


def test_a_failed_control_is_no_yardstick_of_a_fit() -> None:
    assert not fitted(audit(scores=NOTHING, objective=0.5), [CONTROL_FAILED | {"objective": 0.5}])


def test_worst_first_orders_by_level_then_psnr() -> None:
    order = [TRACES, REBUILT, NOTHING, {**NOTHING, "psnr": spread(9.5, 10.0)}]
    assert [value(a, "psnr") for a in worst_first(audit(scores=s) for s in order)] == [25.0, 13.0, 9.5, 9.0]


def test_what_could_not_be_judged_is_worse_than_what_found_nothing() -> None:
    unknown = audit(scores={"psnr": {"worst": 17.0}})
    assert worst_first([audit(scores=NOTHING), unknown, audit(scores=TRACES)])[1] is unknown
    assert worst_of([CONTROL, DEFENDED, audit(scores=NOTHING), unknown], True) is unknown


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
    assert in_words(audit(scores=negative)).startswith("Client 1: an image rebuilt, PSNR 5.0")
    assert in_words(audit(scores=NOTHING)).startswith("Client 1: PSNR 9.0"), "its control may have failed"


def test_every_kind_has_a_name_and_the_attack_that_found_it() -> None:
    kinds = ("control", "control-defended", "single", "single-defended")
    assert len({who(audit(kind)) for kind in kinds}) == 4
    assert "(portfolio, lbfgs against dgp)" in in_words(audit(scores=REBUILT, attack="portfolio", found_by="lbfgs"))


def test_audits_that_do_not_fit_the_store_are_counted() -> None:
    line = audit(scores=NOTHING) | {"adaptive": True, "threat": "", "seconds": 1.0}
    controls = [line | {"kind": kind, "client": None} for kind in ("single-defended", "control")]
    valid, damaged = valid_audits([line, *controls, {"round": 1}])
    assert [a["kind"] for a in valid] == ["control", "single-defended", "client"] and damaged == 1
