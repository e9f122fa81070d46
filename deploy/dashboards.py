"""The two Grafana dashboards, as code: ``python -m prunella.deploy.dashboards`` writes
``deploy/grafana/dashboards/*.json``.

*Federation* answers: does it learn, what does it cost, who falls out. *Privacy* answers: may the figures be believed,
was anything rebuilt, what is guaranteed. The JSON is committed; a test compares it with what this module makes, and
another asks a real Prometheus every query. Limits are those of ``server.report.verdict`` and of the alerts.
"""

import json
from pathlib import Path

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from prunella.attacks.score.level import RECOGNISABLE
from prunella.deploy.panels import Look, Panel, answer, board, timeseries, words

FOLDER = Path(__file__).parent / "grafana" / "dashboards"
FAILING = 0.2  # share of replies left out: alert PrunellaClientsFailing
NEAR_BUDGET, OVER_BUDGET = 0.8, 1.0  # alerts on epsilon
HERE = 'federation="$federation"'

THREAT = """\
**Who attacks.** The server itself: it follows the protocol, and uses all that it received: updates, masks, batch-norm \
buffers, the model and every setting. Each audit attacks exactly what it received. An *active* server, one that alters \
the model to see more, is not what these panels measure.

**Who is seen.** *canary*: the server's own image, once without a defense (the **control**, which has to be rebuilt) \
and once behind it. *client*: a real update of a client that consented; it scores the result itself and returns \
scores, never images, unless it said so.

**How to read it.** "Not rebuilt" means that *this attack* found nothing, and only while the control succeeds. A score \
is a leak when it beats **chance**: what noise, or simply another image, would score. A defense without a theorem has \
no ε, and an empty panel is not a zero.

**What is not here.** Figures of single clients, on purpose. With several audited clients a round, the last one's \
show; the run's report has all of them."""


def _learning() -> list[Panel]:
    return [
        timeseries(
            "Does the pruned model learn?",
            "Accuracy of the global model on held-out examples, after each round.",
            {"accuracy": f"prunella_accuracy_ratio{{{HERE}}}"},
            "percentunit",
            Look(top=1.0),
        ),
        timeseries(
            "How much is pruned, and how much withheld?",
            "Density: share of the prunable weights that the global mask keeps. Withheld: share of those that clients "
            "keep for themselves, mean over clients.",
            {
                "density": f"prunella_mask_density_ratio{{{HERE}}}",
                "withheld": f"prunella_defense_rate_ratio{{{HERE}}}",
            },
            "percentunit",
            Look(top=1.0),
        ),
    ]


def _cost() -> list[Panel]:
    return [
        timeseries(
            "What does it cost on the wire?",
            "Bytes of coded models and updates since the start, headers included. Dashed: the same tensors dense in "
            "float32. The gap is what pruning and coding save.",
            {
                "{{direction}}": f"sum by (direction) (prunella_wire_bytes_total{{{HERE}}})",
                "{{direction}}, dense": f"sum by (direction) (prunella_wire_dense_bytes_total{{{HERE}}})",
            },
            "decbytes",
            Look(dashed="/dense/"),
        ),
        timeseries(
            "Where does the time go?",
            "Mean and 95th percentile of all rounds so far; within a round, local training (mean of clients) and "
            "aggregation. An audit runs beside the rounds.",
            {
                "round, mean": f"prunella_round_seconds_sum{{{HERE}}} / prunella_round_seconds_count{{{HERE}}}",
                "round, 95 %": f"histogram_quantile(0.95, sum by (le) (prunella_round_seconds_bucket{{{HERE}}}))",
                "training": f"prunella_train_seconds{{{HERE}}}",
                "aggregation": f"prunella_aggregate_seconds{{{HERE}}}",
                "audit": f"prunella_audit_seconds{{{HERE}}}",
            },
            "s",
        ),
    ]


def _failures() -> list[Panel]:
    return [
        timeseries(
            "Are clients falling out?",
            "Replies left out, as a share of those asked for in the last 15 minutes. From the dashed line on, "
            "PrunellaClientsFailing rings.",
            {"left out": f"federation:prunella_client_failures:ratio15m{{{HERE}}}"},
            "percentunit",
            Look(limits=((FAILING, "red"),), top=1.0),
        ),
        timeseries(
            "Why are replies left out?",
            "Replies left out since the start, by reason. The server's log names the client and says what was wrong.",
            {"{{reason}}": f"sum by (reason) (prunella_client_failures_total{{{HERE}}})"},
            "short",
            Look(empty="no reply was left out"),
        ),
    ]


def _state() -> list[Panel]:
    return [
        answer(
            "Is the run going on?",
            "Idle: rounds are left and none ended within 5 minutes; also before the first one.",
            {"idle": f"federation:prunella_round:idle5m{{{HERE}}}"},
            {"0": ("going on, or done", "green"), "1": ("no round for 5 minutes", "orange")},
            "no server answers",
        ),
        answer(
            "How far is it?",
            "Rounds finished, of those planned.",
            {"finished": f"prunella_round{{{HERE}}}", "planned": f"prunella_rounds{{{HERE}}}"},
            {},
            "no round has ended",
        ),
        answer(
            "How many clients take part?",
            "Clients asked to train in the last round, of those that are there.",
            {
                "asked": f"prunella_clients_selected{{{HERE}}}",
                "there": f"prunella_clients_available{{{HERE}}}",
            },
            {},
            "no client has come",
        ),
    ]


def federation() -> Dashboard:
    """Is the run going on, does it learn, what does it cost?"""
    panels = [*_state(), *_learning(), *_cost(), *_failures()]
    return board("prunella-federation", "Prunella: federation", "Does the model learn, and what does it cost?", panels)


def _verdicts() -> list[Panel]:
    rebuilt = {"0": ("nothing recognisable", "green"), "1": ("REBUILT", "red")}
    return [
        answer(
            "May these figures be believed?",
            "The positive control: the same attack on an image without a defense. If it fails there, its failure "
            "elsewhere proves nothing.",
            {"control": f"federation:prunella_attack_control:ok{{{HERE}}}"},
            {"1": ("yes: control rebuilt", "green"), "0": ("NO: control failed", "red")},
            "no control yet",
        ),
        answer(
            "Was a client's image rebuilt?",
            "On a real update, by the rule of the report: 18 dB PSNR or 0.5 SSIM, and 6 dB above chance.",
            {"client": f'max(audit:prunella_leakage:rebuilt{{{HERE}, view="client"}})'},
            rebuilt,
            "no client was scored",
        ),
        answer(
            "Does the defense hide the canary?",
            "The server's own image, alone in its batch, through the defenses of the run: the hardest case.",
            {"canary": f'max(audit:prunella_leakage:rebuilt{{{HERE}, view="canary"}})'},
            rebuilt,
            "no defense, or no audit yet",
        ),
    ]


def _reconstructions() -> list[Panel]:
    return [
        timeseries(
            "How good are the reconstructions?",
            "PSNR of the worst image; higher leaks more. Above the dashed limit a picture is plainly recognisable. "
            "Dashed series: what chance would score, and the control.",
            {
                "{{view}}, {{attack}} against {{defense}}": f"audit:prunella_leakage_psnr_decibels:worst{{{HERE}}}",
                "chance, {{view}}": f"audit:prunella_leakage_psnr_decibels:chance{{{HERE}}}",
                "control": f'prunella_leakage_psnr_decibels{{{HERE}, view="canary", defense="none", stat="worst"}}',
            },
            "dB",
            Look(limits=((RECOGNISABLE["psnr"], "red"),), dashed="/chance|control/", empty="no audit yet"),
        ),
        timeseries(
            "Do clients' images keep their structure?",
            "SSIM and NMI on clients' real updates, worst image; dashed: the same score for another image. The line is "
            "the limit of SSIM.",
            {
                "SSIM": f'audit:prunella_leakage_ssim_ratio:worst{{{HERE}, view="client"}}',
                "SSIM, chance": f'prunella_leakage_ssim_ratio{{{HERE}, view="client", stat="other"}}',
                "NMI": f'prunella_leakage_nmi_ratio{{{HERE}, view="client", stat="worst"}}',
                "NMI, chance": f'prunella_leakage_nmi_ratio{{{HERE}, view="client", stat="other"}}',
            },
            "none",
            Look(limits=((RECOGNISABLE["ssim"], "red"),), dashed="/chance/", top=1.0, empty="no client was scored"),
        ),
    ]


def _guarantees() -> list[Panel]:
    return [
        timeseries(
            "How much of the privacy budget is spent?",
            "ε of the client that spent most, over all rounds, as a share of the budget in rules/recording.yml. "
            "Defenses without a theorem have no ε.",
            {"spent": f"federation:prunella_privacy_epsilon:budget_ratio{{{HERE}}}"},
            "percentunit",
            Look(limits=((NEAR_BUDGET, "orange"), (OVER_BUDGET, "red")), width=8, empty="heuristic defenses: no ε"),
        ),
        timeseries(
            "What can have passed the data channel?",
            "An upper bound on the information about the data in all updates so far, worst client, in nats.",
            {"at most": f"prunella_channel_information_nats{{{HERE}}}"},
            "short",
            Look(width=8, empty="no data channel: no bound"),
        ),
        timeseries(
            "Are audits answered?",
            "Audits since the start by outcome. A failed audit is no low leakage: the panels above keep the figure "
            "before it.",
            {"{{outcome}}": f"sum by (outcome) (prunella_audits_total{{{HERE}}})"},
            "short",
            Look(width=8, empty="no audit yet"),
        ),
    ]


def privacy() -> Dashboard:
    """May the figures be believed, was anything rebuilt, what is guaranteed?"""
    threat = words("What can these figures say, and what not?", THREAT, 24, 9)
    panels = [*_verdicts(), *_reconstructions(), *_guarantees(), threat]
    return board("prunella-privacy", "Prunella: privacy", "What could a curious server rebuild?", panels)


DASHBOARDS = {"federation": federation, "privacy": privacy}


def render(name: str) -> str:
    """A dashboard as the text of its file."""
    return json.dumps(DASHBOARDS[name]().build(), cls=JSONEncoder, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for each in DASHBOARDS:
        (FOLDER / f"{each}.json").write_text(render(each), encoding="utf-8")
