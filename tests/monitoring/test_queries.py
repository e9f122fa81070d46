"""Every query of every panel, rule and alert, asked of a real Prometheus that scrapes the exporter of a real run.

An empty answer fails. An alert is its recorded series compared with a number, and in a healthy run that comparison is
empty by design: so the number is cut off, and what is left has to answer. Two runs have something to say everywhere:
one with a data channel for its bound, a broken reply for the failures and a consenting client for the audits, and one
under DP-SGD for its epsilon, the one that is promised and the one that a consenting client measured.
"""

import re
import shutil
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message, MetricRecord

import prunella.client.app
from prunella.attacks.score.level import level
from prunella.core.config import parse_run
from prunella.core.metrics import METRICS
from prunella.server.app import assemble, describe
from prunella.server.attest.bound import measured_epsilon
from prunella.server.exporter import Exporter
from prunella.server.grid import OrderedGrid
from prunella.server.rounds import Federation, federate
from prunella.server.store.read import read_audits
from prunella.server.store.schema import row
from tests.local_grid import LocalGrid, settings
from tests.monitoring.dashboards import DASHBOARDS, dashboard
from tests.monitoring.draw import Range, page
from tests.monitoring.prometheus import NEEDS, Server, prometheus
from tests.monitoring.test_prometheus_files import rules

pytestmark = [pytest.mark.federation, pytest.mark.skipif(shutil.which("prometheus") is None, reason=NEEDS)]
ROUNDS, CLIENTS = 3, 3
NAME, NOISY, KILLED = "audited", "noisy", "killed"
ALERT = re.compile(r"(?P<series>.*\S) (?P<comparison>>=|<=|==|>|<) (?P<number>[\d.]+)", re.DOTALL)


@dataclass(frozen=True)
class Watched:
    """A Prometheus, and the finished runs that it has seen."""

    server: Server
    federation: Federation
    noisy: Federation


def break_one_update() -> Callable[[Message], Message]:
    """A handler of replies that takes the numbers out of the second update it sees."""
    updates = count(1)

    def tamper(reply: Message) -> Message:
        if reply.has_content() and "update" in reply.content.array_records and next(updates) == 2:
            reply.content["metrics"] = MetricRecord()
        return reply

    return tamper


def a_real_run(folder: Path, **overrides: Any) -> tuple[Federation, OrderedGrid]:
    clients = overrides.pop("clients", CLIENTS)
    raw = settings(
        run_dir=str(folder / "run"), metrics_address="127.0.0.1:0", attack="sgi", sgi__iterations=30, **overrides
    )
    federation = assemble(parse_run({key: value for key, value in raw.items() if "." not in key}), raw)
    describe(federation)
    grid = LocalGrid(prunella.client.app.app, clients, raw, folder / "nodes", break_one_update(), audit="numbers")
    return federation, OrderedGrid(grid, 0.01)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("monitoring")
    audited, grid = a_real_run(folder / NAME, rounds=ROUNDS, audit_every=ROUNDS, defenses="channel-natural,priprune")
    told = {"evaluation": "clients", "privacy__validation_noise": 1.0}  # they hold out examples: outsiders of the model
    few = {"strategy": "fedavg", "defenses": "dp-sgd", "clients": 2, **told}  # so that each has a hundred
    noisy, other_grid = a_real_run(folder / NOISY, rounds=1, audit_every=1, **few)
    killed = Exporter("127.0.0.1:0", {})
    killed.update([row("round", 3), row("rounds", 10), row("run_ended", 0)])
    assert audited.exporter is not None and noisy.exporter is not None
    for exporter in (audited.exporter, noisy.exporter):  # as ``server.app.run_to_end`` begins
        exporter.update([row("run_ended", 0), row("rounds_void_total", 0)])
    targets = {NAME: audited.exporter.address, NOISY: noisy.exporter.address, KILLED: killed.address}
    try:
        with prometheus(folder, targets) as server:
            server.until(f'prunella_round{{federation="{KILLED}"}}')
            killed.close()
            federate(noisy, other_grid)
            federate(audited, grid)
            server.until(f'federation:prunella_privacy_epsilon_exceeded:last1h{{federation="{NOISY}"}}')
            server.until(f'federation:prunella_attack_control:ok{{federation="{NAME}"}}')
            yield Watched(server, audited, noisy)
    finally:
        audited.auditor.close()
        audited.exporter.close()
        noisy.auditor.close()
        noisy.exporter.close()
        killed.close()


def panel_queries() -> list[tuple[str, str]]:
    """Title and query of every target of the committed dashboards."""
    panels = [panel for name in DASHBOARDS for panel in dashboard(name)["panels"]]
    return [(panel["title"], target["expr"]) for panel in panels for target in panel.get("targets", [])]


@pytest.mark.parametrize(("title", "query"), panel_queries())
def test_every_panel_has_an_answer(watched: Watched, title: str, query: str) -> None:
    assert "$federation" in query
    federation = NOISY if "epsilon" in query else NAME
    answers = watched.server.ask(query.replace("$federation", federation))
    assert answers and all(value == value for _, value in answers), title


def test_both_dashboards_can_be_drawn_and_looked_at(watched: Watched) -> None:
    end = time.time()
    drawn = page(f"http://{watched.server.address}", NAME, Range(end - 600, end))
    assert any(f"<b>{state}</b>" in drawn for state in ("going on", "ended")) and "channel-natural,priprune" in drawn
    absent = [words for words in ("no data", "no score", "no audit") if f"nothing known: {words}" in drawn]
    assert not absent and "nothing known: no ε was told" in drawn


def test_a_question_with_a_slip_of_the_pen_has_none(watched: Watched) -> None:
    for query in (f"prunella_acuracy_ratio{{federation={NAME!r}}}", 'prunella_round{federation="another"}'):
        assert watched.server.ask(query, 0.0) == []


@pytest.mark.parametrize(("name", "expression"), [(n, e) for n, e in rules().items() if not n.startswith("Prunella")])
def test_every_recorded_series_is_there(watched: Watched, name: str, expression: str) -> None:
    federation = NOISY if "epsilon" in name else NAME
    assert watched.server.ask(f'{name}{{federation="{federation}"}}'), name
    assert watched.server.ask(expression), expression


@pytest.mark.parametrize(("name", "expression"), [(n, e) for n, e in rules().items() if n.startswith("Prunella")])
def test_every_alert_watches_something_that_exists(watched: Watched, name: str, expression: str) -> None:
    parts = ALERT.fullmatch(expression)
    assert parts is not None, f"{name} is not a series compared with a number"
    assert watched.server.ask(parts["series"]), name


def test_no_panel_or_rule_asks_for_a_metric_that_is_not_in_the_table() -> None:
    known = {metric.prometheus_name for metric in METRICS.values()}
    known |= {name + suffix for name in known for suffix in ("_sum", "_count", "_bucket")}
    recorded = rules().keys()
    for expression in [*rules().values(), *(query for _, query in panel_queries())]:
        for name in re.findall(r"[a-z_]*:prunella_[a-z0-9_:]+", expression):
            assert name in recorded, name
        for name in re.findall(r"(?<![:\w])prunella_\w+", expression):
            assert name in known, name


def test_an_epsilon_that_is_lost_leaves_the_count_by_which_the_rule_knows_it() -> None:
    page = Exporter("127.0.0.1:0", {})
    try:
        page.update([row("round", 1), row("privacy_epsilon_unknown", 0), row("privacy_epsilon", 2.0, stat="worst")])
        page.update([row("round", 2)])  # as `ledger_rows` tells a client without a bound: not at all
        with urllib.request.urlopen(f"http://{page.address}/metrics", timeout=10) as reply:
            shown = reply.read().decode()
    finally:
        page.close()
    assert "prunella_privacy_epsilon_unknown 0.0" in shown and "prunella_privacy_epsilon{" not in shown


def test_prometheus_evaluates_every_rule_without_an_error(watched: Watched) -> None:
    groups = watched.server.get("/api/v1/rules")["groups"]
    found = {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}
    assert found.keys() == rules().keys() and set(found.values()) == {"ok"}


def test_a_leak_is_what_the_report_calls_rebuilt(watched: Watched) -> None:
    audits = {a["kind"]: a for a in read_audits(watched.federation.folder)}
    for kind, view in (("client", "client"), ("control-defended", "canary")):
        rebuilt = watched.server.value(f'audit:prunella_leakage:rebuilt{{federation="{NAME}", view="{view}"}}')
        assert rebuilt == float(level(audits[kind]) == "rebuilt")
    shown = watched.server.value(f"federation:prunella_attack_control:ok{{federation={NAME!r}}}")
    assert shown == float(audits["control"]["ok"])


def test_the_figures_are_those_of_the_run(watched: Watched) -> None:
    server, lines = watched.server, watched.federation.store.metrics()
    last = {(line["metric"], *line["labels"].values()): line["value"] for line in lines}
    assert server.value(f"prunella_accuracy_ratio{{federation={NAME!r}}}") == last["accuracy_ratio",]
    assert last["client_failures_total", "metrics"] == 1.0
    assert server.value(f"prunella_client_failures_total{{federation={NAME!r}}}") == 1.0
    share = server.value(f"federation:prunella_client_failures:ratio15m{{federation={NAME!r}}}")
    assert share == pytest.approx(1 / (ROUNDS * CLIENTS))


def test_epsilon_is_a_share_of_the_budget(watched: Watched) -> None:
    (spent,) = [r["value"] for r in watched.noisy.store.metrics() if r["labels"] == {"stat": "worst"}]
    shown = watched.server.value(f'federation:prunella_privacy_epsilon:budget_ratio{{federation="{NOISY}"}}')
    assert shown == pytest.approx(spent / 8) and shown > 0


def test_the_epsilon_that_was_measured_is_beside_the_one_that_was_promised(watched: Watched) -> None:
    (audit,) = [a for a in read_audits(watched.noisy.folder) if a["kind"] == "membership"]
    bound = measured_epsilon([audit["membership"]["scores"]["model"]], 1e-5)
    shown = watched.server.value(f'federation:prunella_privacy_epsilon_measured:budget_ratio{{federation="{NOISY}"}}')
    assert bound is not None and shown == pytest.approx(bound / 8)
    spent = watched.server.value(f'prunella_privacy_epsilon{{federation="{NOISY}", stat="worst"}}')
    over = watched.server.value(f'federation:prunella_privacy_epsilon_exceeded:last1h{{federation="{NOISY}"}}')
    assert bound < spent and over == 0.0


def test_a_killed_server_is_told_from_one_that_is_there(watched: Watched) -> None:
    watched.server.until(f'federation:prunella_server:gone{{federation="{KILLED}"}} == 1')
    assert watched.server.value(f'federation:prunella_server:gone{{federation="{NAME}"}}') == 0.0
