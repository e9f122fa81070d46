"""Every query of every panel, rule and alert, asked of a real Prometheus that scrapes the exporter of a real run.

An empty answer fails. An alert is its recorded series compared with a number, and in a healthy run that comparison is
empty by design: so the number is cut off, and what is left has to answer. The run is one that has something to
say everywhere: a data channel for its bound, a broken reply for the failures, a consenting client for the audits. No
defense of the list reports an epsilon yet; its row is made from a ledger line by the code that would make it.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
from flwr.app import Message, MetricRecord

import client.app
from core.config import parse_run
from core.metrics import METRICS
from deploy.dashboards import DASHBOARDS, FOLDER
from server.app import assemble, describe
from server.exporter import Exporter
from server.grid import OrderedGrid
from server.numbers import ledger_rows
from server.rounds import Federation, federate
from server.store import read_audits, row
from server.verdict import level
from tests.local_grid import LocalGrid, settings
from tests.monitoring.prometheus import NEEDS, Server, prometheus
from tests.monitoring.test_prometheus_files import rules

pytestmark = [
    pytest.mark.federation,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason=NEEDS),
]
ROUNDS, CLIENTS = 3, 3
NAME, KILLED = "test", "killed"
ALERT = re.compile(r"(?P<series>.*\S) (?P<comparison>>=|<=|==|>|<) (?P<number>[\d.]+)", re.DOTALL)


@dataclass(frozen=True)
class Watched:
    """A Prometheus, and the finished run that it has seen."""

    server: Server
    federation: Federation


def break_one_update() -> Callable[[Message], Message]:
    """A handler of replies that takes the numbers out of the second update it sees."""
    updates = count(1)

    def tamper(reply: Message) -> Message:
        if reply.has_content() and "update" in reply.content.array_records and next(updates) == 2:
            reply.content["metrics"] = MetricRecord()
        return reply

    return tamper


def a_real_run(folder: Path) -> tuple[Federation, LocalGrid]:
    raw = settings(
        run_dir=str(folder / "run"),
        rounds=ROUNDS,
        audit_every=ROUNDS,
        defenses="channel-natural,priprune",
        metrics_address="127.0.0.1:0",
        sgi__iterations=30,
    )
    federation = assemble(parse_run({key: value for key, value in raw.items() if "." not in key}), raw)
    describe(federation)
    grid = LocalGrid(client.app.app, CLIENTS, raw, folder / "nodes", break_one_update(), audit="scores")
    return federation, grid


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("monitoring")
    federation, grid = a_real_run(folder)
    killed = Exporter("127.0.0.1:0", {})
    killed.update([row("round", 3), row("rounds", 10)])
    assert federation.exporter is not None
    try:
        with prometheus(folder, {NAME: federation.exporter.address, KILLED: killed.address}) as server:
            server.until(f'prunella_round{{federation="{KILLED}"}}')
            killed.close()
            federate(federation, OrderedGrid(grid, 0.01))
            federation.emit(ROUNDS, ledger_rows({"0": {"epsilon": 2.0}, "1": {"epsilon": 3.0}}))
            server.until(f'federation:prunella_privacy_epsilon:budget_ratio{{federation="{NAME}"}}')
            server.until(f"federation:prunella_attack_control:ok{{federation={NAME!r}}}")
            yield Watched(server, federation)
    finally:
        federation.auditor.close()
        federation.exporter.close()
        killed.close()


def panel_queries() -> list[tuple[str, str]]:
    """Title and query of every target of the committed dashboards."""
    boards = [json.loads((FOLDER / f"{name}.json").read_text()) for name in DASHBOARDS]
    panels = [panel for board in boards for panel in board["panels"]]
    return [(panel["title"], target["expr"]) for panel in panels for target in panel.get("targets", [])]


@pytest.mark.parametrize(("title", "query"), panel_queries())
def test_every_panel_has_an_answer(watched: Watched, title: str, query: str) -> None:
    assert "$federation" in query
    answers = watched.server.ask(query.replace("$federation", NAME))
    assert answers and all(value == value for _, value in answers), title


def test_a_question_with_a_slip_of_the_pen_has_none(watched: Watched) -> None:
    for query in (f"prunella_acuracy_ratio{{federation={NAME!r}}}", 'prunella_round{federation="another"}'):
        assert watched.server.ask(query, 0.0) == []


@pytest.mark.parametrize(("name", "expression"), [(n, e) for n, e in rules().items() if not n.startswith("Prunella")])
def test_every_recorded_series_is_there(watched: Watched, name: str, expression: str) -> None:
    assert watched.server.ask(f"{name}{{federation={NAME!r}}}"), name
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
    assert server.value(f"federation:prunella_privacy_epsilon:budget_ratio{{federation={NAME!r}}}") == 3.0 / 8
    assert last["client_failures_total", "metrics"] == 1.0
    assert server.value(f"prunella_client_failures_total{{federation={NAME!r}}}") == 1.0
    share = server.value(f"federation:prunella_client_failures:ratio15m{{federation={NAME!r}}}")
    assert share == pytest.approx(1 / (ROUNDS * CLIENTS))


def test_a_killed_server_is_told_from_one_that_is_there(watched: Watched) -> None:
    watched.server.until(f'federation:prunella_server:gone{{federation="{KILLED}"}} == 1')
    assert watched.server.value(f'federation:prunella_server:gone{{federation="{NAME}"}}') == 0.0
