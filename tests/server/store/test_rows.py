from functools import partial

import pytest

from prunella.attacks.score.level import ORDER
from prunella.core.metrics import METRICS
from prunella.server.report.evidence import judged
from prunella.server.store import rows
from prunella.server.store.rows import (
    counter_rows,
    evaluation_rows,
    ledger_rows,
    round_rows,
)
from prunella.strategies.round.stats import RoundStats
from prunella.tasks.training import Evaluation

audit_rows = partial(rows.audit_rows, judged)
SCORE = {"mean": 1.0, "worst": 2.0, "random": 0.25, "other": 0.5}
OUTCOME = {
    "round": 4,
    "kind": "client",
    "attack": "sgi",
    "defense": "dgp",
    "seconds": 1.5,
    "ok": None,
    "outcome": "scored",
    "level": None,
    "objective": 0.001,
    "scores": {k: SCORE for k in ("psnr", "nmi", "ssim", "mse")} | {"iip": 0.5, "label_accuracy": None},
}


CONTROL = OUTCOME | {"kind": "control", "ok": True, "defense": "none", "level": "rebuilt", "scores": None}


def _level_row(outcome: dict, before: list[dict]) -> float:
    return values(audit_rows(outcome, before))[
        "leakage_level", ("attack", "sgi"), ("defense", "dgp"), ("view", "client")
    ]


def values(rows) -> dict[tuple, float]:
    return {(r.metric, *sorted(r.labels.items())): r.value for r in rows}


def _labels(stat: str) -> list[tuple[str, str]]:
    return [("attack", "sgi"), ("defense", "dgp"), ("stat", stat), ("view", "client")]


def test_every_row_is_in_the_table_and_unknown_things_have_none() -> None:
    stats = RoundStats(selected=4, replies=2, train_seconds=3.0, withheld=0.5)
    rows = values(round_rows(1, 10, stats, 0.7, 1.0) + evaluation_rows(Evaluation(0.5, 0.9, 10)))
    assert rows[("accuracy_ratio",)] == 0.9 and rows[("train_seconds",)] == 1.5
    assert rows[("defense_rate_ratio",)] == 0.25
    assert {key[0] for key in rows} <= METRICS.keys()
    empty = values(round_rows(1, 10, RoundStats(), 0.7, 1.0))
    assert not {("accuracy_ratio",), ("loss",), ("train_seconds",), ("defense_rate_ratio",)} & empty.keys()


def test_a_diverged_model_has_an_accuracy_and_no_loss() -> None:
    rows = values(evaluation_rows(Evaluation(float("nan"), 0.1, 10)))
    assert ("accuracy_ratio",) in rows and ("loss",) not in rows


def test_counters_carry_their_one_label() -> None:
    rows = values(counter_rows({"client_failures_total|nan": 2.0, "wire_bytes_total|up": 9.0}))
    assert rows == {("client_failures_total", ("reason", "nan")): 2.0, ("wire_bytes_total", ("direction", "up")): 9.0}


def test_a_bound_that_one_client_lacks_exists_for_nobody() -> None:
    both = values(ledger_rows({"0": {"channel_nats": 5.0, "epsilon": 1.0}, "1": {"channel_nats": 9.0, "epsilon": 3.0}}))
    assert both[("channel_information_nats",)] == 9.0
    assert both[("privacy_epsilon", ("stat", "worst"))] == 3.0 and both[("privacy_epsilon", ("stat", "mean"))] == 2.0
    assert ledger_rows({"0": {"channel_nats": 5.0}, "1": {}}) == []
    lost = values(
        ledger_rows({"0": {"channel_nats": 5.0, "unheard": 1}, "1": {"channel_nats": 9.0}, "2": {"unheard": 3}})
    )
    assert lost == {("channel_information_nats",): 9.0, ("privacy_epsilon_unknown",): 2.0}
    assert ledger_rows({}) == []


def test_a_mean_of_enormous_figures_is_a_number() -> None:
    """As a checkpoint of a run from before such claims were bounded may hold them."""
    rows = values(ledger_rows({"0": {"epsilon": 1.7e308}, "1": {"epsilon": 1.7e308}}))
    assert rows[("privacy_epsilon", ("stat", "mean"))] == 1.7e308


def test_client_and_canary_have_their_own_series_and_a_failed_audit_no_leakage() -> None:
    client = values(audit_rows(OUTCOME))
    canary = values(audit_rows(OUTCOME | {"kind": "control", "ok": True}))
    shared = {key for key in client if key[0].startswith("leakage")} & {
        key for key in canary if key[0].startswith("leakage")
    }
    assert not shared and canary[("attack_control_ok",)] == 1.0
    score = [client["leakage_psnr_decibels", *_labels(stat)] for stat in ("mean", "worst", "random", "other")]
    assert score == [1.0, 2.0, 0.25, 0.5], "a score leaves with both of its baselines"
    assert client["leakage_level", ("attack", "sgi"), ("defense", "dgp"), ("view", "client")] == ORDER.index("traces")
    failed = values(audit_rows(OUTCOME | {"outcome": "failed", "scores": None, "objective": None}))
    assert failed == {("audit_seconds",): 1.5}


def test_of_a_round_s_clients_the_worst_is_shown_and_a_failed_control_stays_so() -> None:
    worse, better = ({**OUTCOME, "level": word, "scores": None} for word in ("rebuilt", "traces"))
    assert not [key for key in values(audit_rows(better, [worse])) if key[0].startswith("leakage")]
    assert [key for key in values(audit_rows(worse, [better])) if key[0] == "leakage_level"]
    assert [key for key in values(audit_rows(better, [{**worse, "attack": "ig"}])) if key[0] == "leakage_level"]
    nothing, unjudged = ({**OUTCOME, "level": word, "scores": None} for word in ("baseline", "unknown"))
    assert not [key for key in values(audit_rows(nothing, [CONTROL, unjudged])) if key[0] == "leakage_level"]
    control = OUTCOME | {"kind": "control", "ok": True}
    assert values(audit_rows(control, [control | {"ok": False}]))[("attack_control_ok",)] == 0.0
    single = values(audit_rows(OUTCOME | {"kind": "single"}, []))
    assert not [key for key in single if key[0].startswith("leakage")], "it shares the labels of a canary"


def test_a_leak_and_a_failed_control_of_an_earlier_round_stay() -> None:
    leak, now = OUTCOME | {"round": 2, "level": "rebuilt"}, OUTCOME
    rows = values(audit_rows(now, [leak]))
    assert rows["leakage_level", ("attack", "sgi"), ("defense", "dgp"), ("view", "client")] == ORDER.index("rebuilt")
    assert rows["leakage_psnr_decibels", *_labels("worst")] == 2.0, "a score is of its own round"
    control = OUTCOME | {"kind": "control", "ok": True}
    assert values(audit_rows(control, [control | {"round": 2, "ok": False}]))[("attack_control_ok",)] == 0.0


@pytest.mark.parametrize("weak", [{"ok": False}, {"reason": "stopped after 600 s"}, {"objective": 0.6},
                                  {"objective": None}, {"round": 9}])  # fmt: skip
def test_what_shows_nothing_where_it_finds_nothing_is_not_judged(weak: dict[str, object]) -> None:
    nothing = OUTCOME | {"scores": None, "level": "baseline"}
    assert _level_row(nothing, [CONTROL]) == ORDER.index("baseline")
    assert _level_row(nothing | weak, [CONTROL]) == ORDER.index("unknown")
    assert _level_row(nothing, []) == ORDER.index("unknown")
    assert _level_row(nothing, [CONTROL, nothing | weak | {"round": 2}]) == ORDER.index("unknown"), "worst so far"


def test_a_word_without_numbers_is_a_level() -> None:
    told = values(audit_rows(OUTCOME | {"scores": None, "level": "rebuilt"}))
    assert told["leakage_level", ("attack", "sgi"), ("defense", "dgp"), ("view", "client")] == ORDER.index("rebuilt")


def test_a_blind_guess_is_a_baseline_where_it_is_known() -> None:
    with_blind = {k: SCORE | {"blind": 0.75} for k in ("psnr", "nmi", "ssim", "mse", "ncc")}
    rows = values(audit_rows(OUTCOME | {"scores": {**OUTCOME["scores"], **with_blind}}))
    assert rows["leakage_psnr_decibels", *_labels("blind")] == rows["leakage_ncc_ratio", *_labels("blind")] == 0.75


@pytest.mark.parametrize("ok", [True, False])
def test_the_control_is_a_number_either_way(ok: bool) -> None:
    assert values(audit_rows(OUTCOME | {"kind": "control", "ok": ok}))[("attack_control_ok",)] == float(ok)
