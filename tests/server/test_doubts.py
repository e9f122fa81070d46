"""Rows for alerts of what several figures say together."""

from typing import Any

import pytest

from prunella.attacks.score.level import ORDER
from prunella.server.doubts import FOUND, diverged_rows, found_rows, labels_of, measured_rows, round_leakage_rows
from prunella.tasks.training import Evaluation
from tests.server.store.test_rows import values


@pytest.mark.parametrize(("loss", "on_server", "shown"), [
    (2.3, True, 0.0), (4.7, True, 1.0), (float("inf"), True, 1.0), (float("nan"), True, 1.0),
    (4.7, False, 1.0), (float("nan"), False, None),
])  # fmt: skip
def test_divergence_is_what_the_report_calls_so_and_unknown_where_clients_tell_no_loss(
    loss: float, on_server: bool, shown: float | None
) -> None:
    rows = values(diverged_rows(Evaluation(loss, 0.1, 10), 10, on_server))
    assert rows == ({} if shown is None else {("model_diverged",): shown})
    assert diverged_rows(None, 10, on_server) == []


TOLD = {"members": 200, "outsiders": 1000, "auc": 0.9, "strict": None, "loose": 150}
MEMBERSHIP = {"kind": "membership", "outcome": "scored", "membership": {"word": "found", "scores": {"model": TOLD}}}


@pytest.mark.parametrize(("epsilons", "over"), [((3.0, 9.0), 1.0), ((9.0, 9.0), 0.0), ((None, 9.0), None)])
def test_more_measured_than_promised_is_counted_by_client_and_known_only_of_both(
    epsilons: tuple[float | None, float], over: float | None
) -> None:
    ledgers = {str(n): {} if each is None else {"epsilon": each} for n, each in enumerate(epsilons)}
    rows = values(measured_rows([{**MEMBERSHIP, "client": 0}], ledgers, {}))
    assert rows["privacy_epsilon_measured",] == pytest.approx(3.54, abs=0.01)
    assert rows.get(("privacy_epsilon_exceeded",)) == over
    assert measured_rows([{**MEMBERSHIP, "client": 0, "outcome": "failed"}], ledgers, {}) == []


def test_telling_a_batch_from_the_rest_refutes_no_epsilon_that_sampling_amplified() -> None:
    """One step of noise 0.7 at a rate of 0.005 costs ε 0.4, and whoever sees it may tell its batch at an ε of 7. With
    noise 5 nothing may tell batches as well as these scores do."""
    of_updates = {"word": "found", "scores": dict.fromkeys(("local", "drop", "alignment"), TOLD)}
    line = {**MEMBERSHIP, "client": 0, "membership": of_updates}
    for noise, over in ((0.7, 0.0), (5.0, 1.0)):
        for defenses in ("dp-sgd", " dp-sgd, top-k,"):
            raw = {"defenses": defenses, "dp-sgd.noise-multiplier": noise}
            rows = values(measured_rows([line], {"0": {"epsilon": 0.4, "steps": 1.0}}, raw))
            assert rows == {("privacy_epsilon_exceeded",): over}
    assert measured_rows([line], {"0": {"epsilon": 0.4, "steps": 1.0}}, {"defenses": "my_module:DEFENSE"}) == []


SCORE = {"mean": 1.0, "worst": 2.0, "random": 0.25, "other": 0.5}
OUTCOME = {
    "round": 4, "kind": "client", "client": 1, "attack": "sgi", "defense": "dgp", "ok": None, "outcome": "scored",
    "level": None, "objective": 0.001,
    "scores": {k: SCORE for k in ("psnr", "nmi", "ssim", "mse")} | {"iip": 0.5, "label_accuracy": None},
}  # fmt: skip
CONTROL = OUTCOME | {"kind": "control", "client": None, "ok": True, "defense": "none", "level": "rebuilt"}
LEVEL = ("leakage_level", ("attack", "sgi"), ("defense", "dgp"), ("view", "client"))


def told(level: str, **changes: Any) -> dict[str, Any]:
    return {**OUTCOME, "level": level, "scores": None, **changes}


def level(*audits: dict[str, Any]) -> str:
    return ORDER[int(values(found_rows(audits))[LEVEL])]


def scores(*audits: dict[str, Any], round: int = 4) -> dict[tuple, float]:
    return values(round_leakage_rows(round, audits, set(map(labels_of, audits))))


def psnr(stat: str) -> tuple:
    return "leakage_psnr_decibels", ("attack", "sgi"), ("defense", "dgp"), ("stat", stat), ("view", "client")


def test_client_and_canary_have_their_own_series_and_a_failed_audit_no_leakage() -> None:
    client, canary = scores(OUTCOME), scores(OUTCOME | {"kind": "control", "ok": True})
    assert client and len(client) == len(canary) and not client.keys() & canary.keys()
    assert [client[psnr(stat)] for stat in ("mean", "worst", "random", "other")] == [1.0, 2.0, 0.25, 0.5], (
        "a score leaves with both of its baselines"
    )
    failed = OUTCOME | {"outcome": "failed", "scores": None, "objective": None}
    assert scores(failed) == {} == values(found_rows([failed]))
    for kind in ("single", "single-defended", "membership"):
        assert scores(OUTCOME | {"kind": kind}) == {} == values(found_rows([OUTCOME | {"kind": kind}])), (
            "it shares the labels of a canary"
        )
    assert round_leakage_rows(4, [OUTCOME], set()) == [], "only of audits that are news"
    assert {row.metric for row in found_rows([OUTCOME, CONTROL])} == set(FOUND)


@pytest.mark.parametrize("order", [1, -1])
def test_of_a_round_s_clients_the_worst_is_shown_whichever_came_first(order: int) -> None:
    """Also of two at the same level: by what was rebuilt, not by who was asked last."""
    better = OUTCOME | {"client": 2, "scores": {**OUTCOME["scores"], "psnr": SCORE | {"worst": 1.9}}}
    assert scores(*[OUTCOME, better][::order])[psnr("worst")] == 2.0
    worse = told("rebuilt", client=2)
    assert psnr("worst") not in scores(*[OUTCOME, worse][::order]), "it told no numbers, and is the worst"
    assert psnr("worst") in scores(*[OUTCOME, worse | {"attack": "ig"}][::order])
    assert scores(*[OUTCOME, better | {"round": 5}][::order], round=5)[psnr("worst")] == 1.9, "of its own round"


def test_the_worst_level_and_a_failed_control_of_an_earlier_round_stay() -> None:
    assert level(told("rebuilt", round=2), told("traces")) == level(told("traces"), told("rebuilt")) == "rebuilt"
    assert level(told("rebuilt", attack="ig"), told("traces")) == "traces"
    failed, rebuilt = ({**CONTROL, "round": round, "ok": ok} for round, ok in ((2, False), (4, True)))
    assert values(found_rows([failed, rebuilt]))["attack_control_ok",] == 0.0
    assert values(found_rows([rebuilt, rebuilt | {"ok": None}]))["attack_control_ok",] == 1.0
    assert ("attack_control_ok",) not in values(found_rows([OUTCOME, rebuilt | {"ok": None}]))


@pytest.mark.parametrize("weak", [{"ok": False}, {"reason": "stopped after 600 s"}, {"objective": 0.6},
                                  {"objective": None}, {"round": 9}])  # fmt: skip
def test_what_shows_nothing_where_it_finds_nothing_is_not_judged(weak: dict[str, object]) -> None:
    nothing = told("baseline")
    assert level(CONTROL, nothing) == "baseline"
    assert level(CONTROL, nothing | weak) == level(nothing) == "unknown"
    assert level(CONTROL, nothing | weak | {"round": 2}, nothing) == "unknown", "worst so far"


def test_the_images_nearest_to_their_own_reconstruction_stand_beside_chance() -> None:
    iip = lambda stat: ("leakage_iip_ratio", *psnr(stat)[1:])  # noqa: E731
    rows = scores(OUTCOME | {"scores": OUTCOME["scores"] | {"iip_random": 0.4, "iip_other": None}})
    assert (rows[iip("mean")], rows[iip("random")]) == (0.5, 0.4) and iip("other") not in rows
    assert iip("random") not in scores(OUTCOME), "of an older release"


def test_a_blind_guess_is_a_baseline_where_it_is_known() -> None:
    with_blind = {k: SCORE | {"blind": 0.75} for k in ("psnr", "nmi", "ssim", "mse", "ncc")}
    rows = scores(OUTCOME | {"scores": {**OUTCOME["scores"], **with_blind}})
    assert rows[psnr("blind")] == rows["leakage_ncc_ratio", *psnr("blind")[1:]] == 0.75
