"""What promtool says of the committed files."""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from prunella.attacks.score.level import LEGIBLE, ORDER
from tests.monitoring.dashboards import limits, states
from tests.monitoring.prometheus import FILES, NEEDS

STATES = [
    ("federation", "Does the model diverge?", "federation:prunella_model:diverged"),
    ("privacy", "Did an attack show more than ε?", "federation:prunella_privacy_epsilon_exceeded:last1h"),
]
RULE_TESTS = sorted(f"tests/{path.name}" for path in (FILES / "tests").glob("*.yml"))
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason=NEEDS)


def promtool(*arguments: str, cwd: Path = FILES) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *arguments], cwd=cwd, capture_output=True, text=True, timeout=60)


def rules() -> dict[str, str]:
    """Expression by the name of its alert or recorded series."""
    files = sorted((FILES / "rules").glob("*.yml"))
    groups = [group for path in files for group in yaml.safe_load(path.read_text())["groups"]]
    return {rule.get("alert") or rule["record"]: rule["expr"] for group in groups for rule in group["rules"]}


@needs_promtool
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "rules/alerts.yml", "rules/recording.yml"),
        ("test", "rules", *RULE_TESTS),
    ],
    ids=" ".join,
)
def test_promtool_is_content(arguments: tuple[str, ...]) -> None:
    done = promtool(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
@pytest.mark.parametrize(
    ("true", "wrong"),
    [
        (">= bool 3", ">= bool 2"),
        ("[1h])) / 8", "[1h])) / 9"),
        ('prunella_leakage_level{view="client"}[1h]', 'prunella_leakage_level{view="client"}[5s]'),
        ("prunella_attack_control_ok[1h]", "prunella_attack_control_ok[5s]"),
        ("prunella_audits_without_control[1h]", "prunella_audits_without_control[5s]"),
        ('{stat="worst"}[1h]', '{stat="worst"}[5s]'),
        ('view="canary", defense!="none"', 'view="canary"'),
        ("unless prunella_client_failures_total offset 15m", "unless prunella_client_failures_total"),
        ("(prunella_round < bool prunella_rounds)", "1"),
        ("> bool 1\n", "> bool 0\n"),
        ("prunella_run_ended > 0 or on (federation, instance) ", ""),
        ("or on (federation, instance) prunella_audits_left > 0", ""),
        ("(prunella_round unless prunella_round offset 5m) * 0", "(prunella_build_info * 0 + 1)"),
        ("(last_over_time(prunella_run_ended[1h])) < bool 1", "(last_over_time(prunella_run_ended[1h])) < bool 0"),
        ("(last_over_time(prunella_run_ended[1h])) < bool 1", "(prunella_run_ended) < bool 1"),
        ("min by (federation) (prunella_run_ended)", "min by (federation) (last_over_time(prunella_run_ended[1h]))"),
        ("sum by (federation, instance) (", "sum by (federation) ("),
        ("and on (federation, instance) prunella_privacy_epsilon_unknown", ""),
        ("last_over_time(prunella_privacy_epsilon_unknown[1h])", "prunella_privacy_epsilon_unknown"),
        ("last_over_time(federation:prunella_privacy_epsilon:lost[1h])", "federation:prunella_privacy_epsilon:lost"),
        ("last_over_time(prunella_verdict_tone[1h]) > 2", "last_over_time(prunella_verdict_tone[1h])"),
        ("(federation:prunella_run:ended == bool 1)", "(federation:prunella_run:ended >= bool 0)"),
        ('last_over_time(prunella_audits_total{outcome="failed"}[1h])', 'prunella_audits_total{outcome="failed"}'),
        ("increase(prunella_rounds_void_total[15m])", "prunella_rounds_void_total"),
        ("max_over_time(prunella_clients_available[1h]) > 0", "prunella_clients_available > 0"),
        ('{reason="client-error"}', ""),
        ("(last_over_time(prunella_privacy_epsilon_exceeded[1h]))", "(prunella_privacy_epsilon_exceeded)"),
        ("(prunella_privacy_epsilon_measured) / 8", "(prunella_privacy_epsilon_measured)"),
        ("(prunella_model_diverged)", "(prunella_model_diverged) * 0"),
        ("(prunella_clients_refusing)", "(prunella_clients_selected)"),
        ("(last_over_time(prunella_audits_without_control[1h]))", "(1 - prunella_attack_control_ok)"),
    ],
)
def test_the_rule_tests_notice_a_wrong_rule(tmp_path: Path, true: str, wrong: str) -> None:
    shutil.copytree(FILES, tmp_path / "files")
    path = tmp_path / "files" / "rules" / "recording.yml"
    assert true in path.read_text()
    path.write_text(path.read_text().replace(true, wrong))
    assert any(promtool("test", "rules", name, cwd=tmp_path / "files").returncode for name in RULE_TESTS)


def test_rules_dashboards_and_report_draw_the_same_lines() -> None:
    known = rules()
    rebuilt = known["audit:prunella_leakage:rebuilt"]
    assert rebuilt.endswith(f">= bool {ORDER.index('rebuilt')}\n")
    (failing,) = limits("federation", "Are clients falling out?")
    near, over = limits("privacy", "How much of the privacy budget is spent?")
    assert known["PrunellaClientsFailing"].endswith(f" > {failing:g}")
    assert known["PrunellaEpsilonNearBudget"].endswith(f" >= {near:g}")
    assert known["PrunellaEpsilonOverBudget"].endswith(f" > {over:g}")
    for board, title, series in STATES:
        assert states(board, title) == (series, {"0", "1"})
        (alert,) = [known[name] for name in known if known[name].startswith(f"{series} ")]
        assert alert == f"{series} > 0"
    assert limits("federation", "How many clients take part?", "refuse") == [1.0]
    assert known["PrunellaSiteRefusesRun"].endswith(" > 0")
    assert limits("privacy", "How good are the reconstructions?") == [LEGIBLE["psnr"]]
    assert limits("privacy", "Do clients' images keep their structure?") == [LEGIBLE["ssim"]]


def test_every_alert_is_explained_to_those_who_read_it() -> None:
    text = (FILES.parents[1] / "docs" / "monitoring.md").read_text(encoding="utf-8")
    assert not [
        name for name in rules() if name.startswith("Prunella") and f"| {name}" not in text.replace(", P", "| P")
    ]


def test_every_alert_has_a_test_of_its_own() -> None:
    text = "".join((FILES / name).read_text() for name in RULE_TESTS)
    assert not [name for name in rules() if name.startswith("Prunella") and name not in text]
