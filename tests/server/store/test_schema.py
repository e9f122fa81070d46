from typing import Any

import pytest

from prunella.core.errors import ConfigError
from prunella.server.store.schema import Row, StoreError, check_audit, check_row


def audit(**changes: Any) -> dict[str, Any]:
    scores = {"psnr": {"mean": 12.0, "worst": 14.0, "random": 8.0, "other": 10.0}, "images": 2}
    base = {
        "round": 1, "kind": "client", "client": 0, "sites": None, "attack": "sgi", "defense": "priprune",
        "adaptive": True, "threat": "saw update", "objective": 0.5, "seconds": 1.0, "outcome": "scored",
        "scores": scores, "level": None, "pictures": None, "ok": None, "reason": None, "found_by": None,
        "membership": None,
    }  # fmt: skip
    return base | changes


def test_only_the_metrics_and_labels_of_the_table_pass() -> None:
    with pytest.raises(ConfigError, match="did you mean 'accuracy_ratio'"):
        check_row(Row("accuracy", 1.0))
    for labels in ({}, {"direction": "up", "client": "3"}, {"way": "up"}):
        with pytest.raises(StoreError, match="takes the labels"):
            check_row(Row("wire_bytes_total", 1.0, labels))
    assert check_row(Row("wire_bytes_total", 1.0, {"direction": "up"})).value == 1.0


@pytest.mark.parametrize(
    "changes",
    [{"kind": "server"}, {"outcome": "fine"}, {"secret": 1}, {"outcome": "scored", "scores": None}, {"sites": 0}],
)
def test_an_audit_that_does_not_fit_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(StoreError):
        check_audit(audit(**changes))


NAMES = ("hits", "images", "gallery", "chance", "low")


@pytest.mark.parametrize(
    "scores",
    [
        {"psnr": {"worst": float("nan"), "random": 8.0, "other": 10.0}},
        {"psnr": {"worst": float("inf")}},
        {"psnr": {"worst": "25.0"}},
        {"psnr": {"worst": True}},
        {"psnr": {"worst": 10**400}},
        {"psnr": [25.0, 10.0]},
        {"psnr": "<b>25</b>"},
        {"images": "many"},
        {"recognition": dict.fromkeys(NAMES, 1) | {"low": float("nan")}},
        {"recognition": {"hits": 1}},
        {"recognition": 1},
    ],
)
def test_a_score_that_is_no_number_is_not_passed_over(scores: dict[str, Any]) -> None:
    """What is passed over leaves an audit to be judged by its other scores, which may show nothing."""
    with pytest.raises(StoreError, match="scores"):
        check_audit(audit(scores=audit()["scores"] | scores))
    told = audit(scores=audit()["scores"] | {"recognition": dict.fromkeys(NAMES, 1.0), "label_accuracy": None})
    assert check_audit(told)["scores"] == told["scores"]


def test_the_refusal_does_not_repeat_the_value() -> None:
    with pytest.raises(StoreError) as caught:
        check_audit(audit(seconds="patient 4711"))
    assert "seconds" in str(caught.value) and "4711" not in str(caught.value)
