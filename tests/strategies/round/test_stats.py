from prunella.strategies.round.stats import RoundStats


def test_failures_are_counted_by_reason_and_rounds_share_nothing() -> None:
    one, other = RoundStats(), RoundStats()
    for reason in ("timeout", "nan", "timeout"):
        one.fail(reason)
    assert one.failures == {"timeout": 2, "nan": 1} and other.failures == {}
