"""Every number that leaves the process, as a typed value: name, unit, kind, direction, help.

One table serves the Prometheus exporter, the run store and the report. No metric has a client label: it would be
unbounded, and how much each client leaks is itself sensitive. The round is a value, not a label.
"""

from dataclasses import dataclass
from typing import Literal

PREFIX = "prunella_"
# What clients spent, of all of them: told when they are asked, too, and not only at the end of a round.
LEDGER_METRICS = ("privacy_epsilon", "privacy_epsilon_unknown", "channel_information_nats")
Kind = Literal["gauge", "counter", "histogram", "info"]


@dataclass(frozen=True)
class Metric:
    """A metric. ``leaks``: the direction in which more privacy is lost, or None if it has none."""

    name: str
    kind: Kind
    help: str
    unit: str = ""
    labels: tuple[str, ...] = ()
    leaks: Literal["up", "down"] | None = None

    @property
    def prometheus_name(self) -> str:
        return PREFIX + self.name


# ``view`` is canary or client: a control and a real update must not overwrite each other. ``stat`` is mean or worst, or
# a baseline, which a leak has to beat: random (noise scored in place of a reconstruction), other (another image) or
# blind (the best guess without the update).
_LEAK = ("attack", "defense", "view", "stat")
_ALL = (
    Metric("round", "gauge", "Last finished round."),
    Metric("rounds", "gauge", "Rounds planned for this run."),
    Metric(
        "rounds_void_total", "counter", "Rounds that did not count: few replies, a sum not opened, no finite model."
    ),
    Metric("run_ended", "gauge", "0 while the run goes on, 1 once it completed, failed or was stopped."),
    Metric("accuracy_ratio", "gauge", "Share of evaluation examples labelled right by the global model.", "ratio"),
    Metric("accuracy_error_ratio", "gauge", "Half of its 95 % interval, on a sample; 0: on all examples.", "ratio"),
    Metric("loss", "gauge", "Mean cross-entropy of the global model on the evaluation examples.", "nats"),
    Metric("model_diverged", "gauge", "1 when the loss is not finite or above twice that of guessing, else 0."),
    Metric("mask_density_ratio", "gauge", "Share of the prunable weights the global mask keeps.", "ratio"),
    Metric(
        "defense_rate_ratio", "gauge", "Share of kept coordinates that clients withheld, mean of those seen.", "ratio"
    ),
    Metric(
        "wire_bytes_total", "counter", "Bytes of coded models and updates, headers included.", "bytes", ("direction",)
    ),
    Metric(
        "wire_dense_bytes_total", "counter", "Bytes the same tensors take dense in float32.", "bytes", ("direction",)
    ),
    Metric("round_seconds", "histogram", "Wall time of a round.", "seconds"),
    Metric("round_stage_seconds", "gauge", "Wall time of a part of the last round.", "seconds", ("stage",)),
    Metric("train_seconds", "gauge", "Time of local training, mean of the round's clients that tell it.", "seconds"),
    Metric("aggregate_seconds", "gauge", "Time spent decoding and adding replies in the last round.", "seconds"),
    Metric("client_failures_total", "counter", "Replies left out, by reason.", "", ("reason",)),
    Metric("clients_available", "gauge", "Clients that are connected and within their budget."),
    Metric("clients_denying_audits", "gauge", "Clients that take part and let nobody score their images."),
    Metric("clients_refusing", "gauge", "Clients that are connected and said no to this run."),
    Metric("clients_selected", "gauge", "Clients asked to train in the last round."),
    Metric("leakage_nmi_ratio", "gauge", "Normalised mutual information, 16 levels.", "ratio", _LEAK, "up"),
    Metric("leakage_psnr_decibels", "gauge", "Peak signal-to-noise ratio of the best match.", "dB", _LEAK, "up"),
    Metric("leakage_ssim_ratio", "gauge", "Structural similarity of the best match.", "ratio", _LEAK, "up"),
    Metric("leakage_ncc_ratio", "gauge", "Correlation of the best match, without its sign.", "ratio", _LEAK, "up"),
    Metric("leakage_mse", "gauge", "Mean squared error of the best match, pixels in [0, 1].", "", _LEAK, "down"),
    Metric("leakage_iip_ratio", "gauge", "Share of images nearest to their own reconstruction.", "ratio", _LEAK, "up"),
    Metric("leakage_label_accuracy_ratio", "gauge", "Share of labels the attack names.", "ratio", _LEAK, "up"),
    Metric(
        "leakage_level",
        "gauge",
        "Worst so far: 0 not judged, 1 baseline, 2 traces, 3 rebuilt.",
        "",
        ("attack", "defense", "view"),
        "up",
    ),
    Metric(
        "verdict_tone",
        "gauge",
        "The report's verdict: 0 not audited, 1 not judged or proves nothing, 2 clear, 3 traces, 4 leak.",
        "",
        (),
        "up",
    ),
    Metric("attack_objective", "gauge", "Final objective of the last attack.", "", ("attack", "defense", "view")),
    Metric("attack_control_ok", "gauge", "1 when every undefended positive control so far was rebuilt, else 0."),
    Metric(
        "audits_without_control", "gauge", "Scored views of clients, last audited round, whose control has no result."
    ),
    Metric("audit_seconds", "gauge", "Wall time of the last audit.", "seconds"),
    Metric("audits_left", "gauge", "Audits that the run's end waits for."),
    Metric("audits_left_seconds", "gauge", "About how long these take, by those before.", "seconds"),
    Metric("audits_left_limit_seconds", "gauge", "How long the run's end waits for these, at most.", "seconds"),
    Metric("audits_total", "counter", "Audits by outcome.", "", ("outcome",)),
    Metric("privacy_epsilon", "gauge", "Epsilon at privacy.delta; absent for heuristic defenses.", "", ("stat",), "up"),
    Metric(
        "privacy_epsilon_measured",
        "gauge",
        "Epsilon that membership audits showed at least, worst client.",
        "",
        (),
        "up",
    ),
    Metric(
        "privacy_epsilon_unknown",
        "gauge",
        "Clients that may have spent more epsilon or nats than is known.",
        "",
        (),
        "up",
    ),
    Metric(
        "privacy_epsilon_exceeded", "gauge", "Clients of whom an audit showed more than their epsilon.", "", (), "up"
    ),
    Metric(
        "channel_information_nats",
        "gauge",
        "Bound on what the data channel let through so far, worst client.",
        "nats",
        (),
        "up",
    ),
    Metric("build_info", "info", "Versions of the running server."),
)
METRICS: dict[str, Metric] = {metric.name: metric for metric in _ALL}
