import re

from prunella.core.metrics import METRICS


def test_names_follow_prometheus_habits() -> None:
    for metric in METRICS.values():
        assert re.fullmatch(r"prunella_[a-z]+(_[a-z]+)*", metric.prometheus_name)
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        assert metric.help.endswith(".")
        assert not {"client", "node", "round"} & set(metric.labels)


def test_every_leakage_metric_says_its_direction() -> None:
    leakage = [m for m in METRICS.values() if m.name.startswith("leakage_")]
    assert len(leakage) == 8
    assert all(m.leaks in ("up", "down") for m in leakage)
