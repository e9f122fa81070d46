"""What a round, a privacy ledger or an audit's scores say, as rows of numbers for the run store and Prometheus."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from prunella.core.metrics import METRICS
from prunella.privacy.ledger.spending import UNHEARD, spent, unknown
from prunella.server.store.schema import Row, row
from prunella.strategies.round.stats import RoundStats
from prunella.tasks.training import Evaluation

_SCORES = {
    "leakage_nmi_ratio": "nmi",
    "leakage_psnr_decibels": "psnr",
    "leakage_ssim_ratio": "ssim",
    "leakage_mse": "mse",
    "leakage_ncc_ratio": "ncc",
}


def round_rows(round: int, rounds: int, stats: RoundStats, density: float, seconds: float) -> list[Row]:
    """The metrics of one round. What is not known has no row."""
    rows = [
        row("round", round),
        row("rounds", rounds),
        row("mask_density_ratio", density),
        row("clients_available", stats.available),
        row("clients_selected", stats.selected),
        row("round_seconds", seconds),
        row("aggregate_seconds", stats.aggregate_seconds),
    ]
    if stats.timed:
        rows.append(row("train_seconds", stats.train_seconds / stats.timed))
    if stats.seen:
        rows.append(row("defense_rate_ratio", stats.withheld / stats.seen))
    return rows


def evaluation_rows(result: Evaluation) -> list[Row]:
    loss = [row("loss", result.loss)] if math.isfinite(result.loss) else []  # a diverged model has no loss
    return [row("accuracy_ratio", result.accuracy), *loss]


def half_interval(result: Evaluation) -> float:
    """Half of the widest 95 % interval of an accuracy on a sample (Wald's, of a share that counts one more of either
    kind, so that none is 0).

    >>> round(half_interval(Evaluation(0.5, 0.8, 400)), 3), half_interval(Evaluation(0.0, 1.0, 10)) > 0
    (0.039, True)
    """
    share = (result.accuracy * result.examples + 2) / (result.examples + 4)
    return 1.96 * math.sqrt(share * (1 - share) / (result.examples + 4))


def stage_rows(begin: float, ends: Mapping[str, float]) -> list[Row]:
    """How long each part of a round took, from when it was over, in order.

    >>> [(row.labels["stage"], row.value) for row in stage_rows(1.0, {"train": 5.0, "evaluate": 5.5})]
    [('train', 4.0), ('evaluate', 0.5)]
    """
    starts = [begin, *ends.values()]
    return [
        row("round_stage_seconds", end - start, stage=name)
        for start, (name, end) in zip(starts, ends.items(), strict=False)
    ]


def counter_rows(counters: Mapping[str, float]) -> list[Row]:
    """Cumulative counters, kept under ``metric|label``, or ``metric`` where that has no label.

    >>> counter_rows({"wire_bytes_total|up": 7.0})
    [Row(metric='wire_bytes_total', value=7.0, labels={'direction': 'up'})]
    """
    rows = []
    for key, value in sorted(counters.items()):
        name, _, label = key.partition("|")
        rows.append(Row(name, value, dict.fromkeys(METRICS[name].labels, label)))
    return rows


def ledger_rows(ledgers: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """Bounds over all clients, worst and mean. A bound that any client lacks has no row. One that was never heard is
    counted among those that may have spent more than is known."""
    rows: list[Row] = []
    told = [line for line in ledgers.values() if line.keys() != {UNHEARD}]
    nats = [line.get("channel_nats") for line in told]
    if nats and all(isinstance(value, float | int) for value in nats):
        rows.append(row("channel_information_nats", max(float(str(v)) for v in nats)))
    values = [value for value in map(spent, told) if value is not None]
    bounded = bool(values) and len(values) == len(told)
    if rows or bounded:
        rows.append(row("privacy_epsilon_unknown", unknown(ledgers)))
    if bounded:
        rows.append(row("privacy_epsilon", max(values), stat="worst"))
        rows.append(row("privacy_epsilon", math.fsum(value / len(values) for value in values), stat="mean"))
    return rows


def audits_counted(counters: Mapping[str, float]) -> dict[str, float]:
    """Of the counters those of audits, by which lines that are lost are missed."""
    return {name: count for name, count in counters.items() if name.startswith("audits_total|")}


def leakage_rows(audit: Mapping[str, Any], labels: Mapping[str, str]) -> list[Row]:
    """The objective and the scores of one audit. What it did not tell has no row, and nothing that could be read as low
    leakage."""
    rows = [] if audit["objective"] is None else [row("attack_objective", audit["objective"], **labels)]
    return rows + ([] if audit["scores"] is None else list(_scores(audit["scores"], labels)))


def _scores(scores: Mapping[str, Any], labels: Mapping[str, str]) -> Iterable[Row]:
    for metric, key in _SCORES.items():
        for stat in ("mean", "worst", "random", "other", "blind"):
            if scores.get(key, {}).get(stat) is not None:
                yield row(metric, scores[key][stat], **labels, stat=stat)
    for stat, key in {"mean": "iip", "random": "iip_random", "other": "iip_other"}.items():
        if scores.get(key) is not None:
            yield row("leakage_iip_ratio", scores[key], **labels, stat=stat)
    if scores.get("label_accuracy") is not None:
        yield row("leakage_label_accuracy_ratio", scores["label_accuracy"], **labels, stat="mean")
