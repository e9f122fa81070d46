import re

import pytest

from prunella.core.metrics import METRICS, Mean


def test_names_follow_prometheus_habits() -> None:
    for metric in METRICS.values():
        assert re.fullmatch(r"prunella_[a-z]+(_[a-z]+)*", metric.prometheus_name)
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        assert metric.help.endswith(".")
        assert not {"client", "node", "round"} & set(metric.labels)


def test_every_leakage_metric_says_its_direction() -> None:
    leakage = [m for m in METRICS.values() if m.name.startswith("leakage_")]
    assert len(leakage) == 7
    assert all(m.leaks in ("up", "down") for m in leakage)


def test_a_mean_merges_by_weight_and_refuses_nothing() -> None:
    assert Mean.merge([Mean.of(1.0, 3), Mean.of(5.0)]).value == 2.0
    with pytest.raises(ValueError, match="nothing"):
        _ = Mean.merge([]).value
