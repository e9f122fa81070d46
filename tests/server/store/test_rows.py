from prunella.core.metrics import METRICS
from prunella.server.store.rows import counter_rows, evaluation_rows, ledger_rows, round_rows
from prunella.strategies.round.stats import RoundStats
from prunella.tasks.training import Evaluation


def values(rows) -> dict[tuple, float]:
    return {(r.metric, *sorted(r.labels.items())): r.value for r in rows}


def test_every_row_is_in_the_table_and_unknown_things_have_none() -> None:
    stats = RoundStats(selected=4, replies=5, train_seconds=3.0, timed=2, withheld=0.5, seen=2)
    rows = values(round_rows(1, 10, stats, 0.7, 1.0) + evaluation_rows(Evaluation(0.5, 0.9, 10)))
    assert rows[("accuracy_ratio",)] == 0.9 and rows[("train_seconds",)] == 1.5
    assert rows[("defense_rate_ratio",)] == 0.25
    assert {key[0] for key in rows} <= METRICS.keys()
    empty = values(round_rows(1, 10, RoundStats(replies=3), 0.7, 1.0))
    assert not {("accuracy_ratio",), ("loss",), ("train_seconds",), ("defense_rate_ratio",)} & empty.keys()


def test_a_diverged_model_has_an_accuracy_and_no_loss() -> None:
    rows = values(evaluation_rows(Evaluation(float("nan"), 0.1, 10)))
    assert ("accuracy_ratio",) in rows and ("loss",) not in rows


def test_counters_carry_their_label_where_they_have_one() -> None:
    rows = values(
        counter_rows({"client_failures_total|nan": 2.0, "rounds_void_total": 1.0, "wire_bytes_total|up": 9.0})
    )
    assert rows == {
        ("client_failures_total", ("reason", "nan")): 2.0,
        ("rounds_void_total",): 1.0,
        ("wire_bytes_total", ("direction", "up")): 9.0,
    }


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
