"""Whole runs in one process: real ClientApp and ServerApp code over an in-process Grid."""

import json
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.request import urlopen

import pytest
import torch
from flwr.app import ConfigRecord, Error, Message, MetricRecord
from flwr.app.message import make_message
from PIL import Image

import prunella.client.app
from prunella.client.accounts import FILE as ACCOUNT
from prunella.core.config import parse_run
from prunella.core.errors import ConfigError, PrunellaError
from prunella.core.files import read_tree, write_json
from prunella.core.trees import full_mask, map_trees, zeros_like
from prunella.privacy.accounting import Privacy
from prunella.privacy.ledger import spending
from prunella.privacy.ledger.ledger import Ledger, from_json
from prunella.server import checkpoint
from prunella.server import rounds as server_rounds
from prunella.server.app import NUMBERS, assemble, describe, run_to_end
from prunella.server.audit.job import Job
from prunella.server.grid import OrderedGrid
from prunella.server.report.state import run_state
from prunella.server.rounds import EMPTY_ROUNDS, Federation, federate
from prunella.server.store.rows import counter_rows
from prunella.server.store.write import RunStore
from prunella.tasks.task import Task, initial
from prunella.wire.records import from_coded, to_coded
from tests.local_grid import LocalGrid, settings


def build(folder: Path, **overrides: Any) -> tuple[Federation, dict[str, Any]]:
    raw = settings(**{"run_dir": str(folder / "run"), "rounds": 4, "audit_every": 0, "learning_rate": 0.3, **overrides})
    federation = assemble(parse_run({k: v for k, v in raw.items() if "." not in k}), raw)
    describe(federation)
    return federation, raw


def go(
    folder: Path, clients: int = 3, tamper: Any = None, node: dict[str, Any] | None = None, **overrides: Any
) -> Federation:
    federation, raw = build(folder, **overrides)
    grid = LocalGrid(prunella.client.app.app, clients, raw, folder / "nodes", tamper, **(node or {}))
    try:
        federate(federation, OrderedGrid(grid, 0.01))
    finally:
        federation.auditor.close()
    return federation


def final(folder: Path) -> checkpoint.Checkpoint:
    saved = checkpoint.load(folder / "run" / "checkpoint")
    assert saved is not None
    return saved


def series(federation: Federation, metric: str, **labels: str) -> list[float]:
    return [r["value"] for r in federation.store.metrics() if r["metric"] == metric and r["labels"] == labels]


def same(a: checkpoint.Checkpoint, b: checkpoint.Checkpoint) -> bool:
    trees = zip((a.tree, a.mask), (b.tree, b.mask), strict=True)
    return all(torch.equal(x[n], y[n]) for x, y in trees for n in x)


def test_a_model_that_diverges_says_so_in_the_round_in_which_it_does(tmp_path: Path) -> None:
    federation = go(tmp_path, rounds=1, defenses="none", strategy="fedavg", learning_rate=1e4)
    assert series(federation, "model_diverged") == [1.0]
    assert series(go(tmp_path / "well", rounds=1), "model_diverged") == [0.0]


def test_a_round_that_nobody_could_train_on_from_does_not_count_and_the_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One client of three adds finite numbers near the largest that there are, in the second round of three."""

    def lie(reply: Message) -> Message:
        told = reply.content.config_records.get("provenance") if reply.has_content() else None
        if told is not None and told["round"] == 2 and reply.metadata.src_node_id == 101:
            like, _ = initial(Task("cnn", (1, 8, 8), 10), 0)
            huge = map_trees(lambda t: torch.full_like(t, 3.3e38), like)
            reply.content["update"] = to_coded(huge, full_mask(like), full_mask(like))
        return reply

    federation = go(tmp_path, tamper=lie, rounds=3, strategy="fedavg", defenses="none")
    assert federation.counters["rounds_void_total"] == 1 and "robust=median" in caplog.text
    after = series(federation, "accuracy_ratio")
    assert after[1] == after[0] and federation.strategy.stats.replies == 3
    assert all(float(t.abs().max()) < 10 for t in final(tmp_path).tree.values())


@pytest.mark.parametrize(("consent", "denying"), [("deny", 3.0), ("scores", 0.0)])
def test_how_many_clients_deny_audits_is_recorded(tmp_path: Path, consent: str, denying: float) -> None:
    federation = go(tmp_path, node={"audit": consent}, rounds=1)
    assert series(federation, "clients_denying_audits") == [denying]


@pytest.mark.parametrize("defenses", ["priprune", "dgp", "adgp", "channel-natural,random"])
def test_a_run_that_is_stopped_and_resumed_equals_one_that_was_not(tmp_path: Path, defenses: str) -> None:
    go(tmp_path / "whole", rounds=6, defenses=defenses)
    go(tmp_path / "parts", rounds=3, defenses=defenses)
    resumed = go(tmp_path / "parts", rounds=6, defenses=defenses, resume=True)
    assert final(tmp_path / "whole").round == final(tmp_path / "parts").round == 6
    assert same(final(tmp_path / "whole"), final(tmp_path / "parts"))
    assert series(resumed, "round") == [1, 2, 3, 4, 5, 6]


def test_monitoring_knows_after_a_resume_what_it_knew_before(tmp_path: Path) -> None:
    go(tmp_path, rounds=2, defenses="channel-natural,random", metrics_address="127.0.0.1:0")
    federation, _ = build(
        tmp_path, rounds=2, defenses="channel-natural,random", metrics_address="127.0.0.1:0", resume=True
    )
    assert server_rounds.begin(federation)[0] == 2 and federation.exporter is not None
    with urlopen(f"http://{federation.exporter.address}/metrics", timeout=10) as reply:
        shown = dict(line.rsplit(" ", 1) for line in reply.read().decode().splitlines() if line[0] != "#")
    stored = {line["metric"]: line["value"] for line in federation.store.metrics() if not line["labels"]}
    assert float(shown["prunella_round_seconds_count"]) == 2 == len(series(federation, "round_seconds"))
    for name in stored.keys() - {"round_seconds"}:
        assert float(shown[f"prunella_{name}"]) == stored[name], name
    assert float(shown['prunella_wire_bytes_total{direction="up"}']) > 0
    federation.exporter.close()


@pytest.mark.parametrize("answered", [False, True])
def test_a_failed_audit_whose_line_was_lost_is_missed_after_a_resume_too(tmp_path: Path, answered: bool) -> None:
    """Unless the worker's answer still lies in its folder, so that it gets its line now."""
    go(tmp_path, rounds=2)
    saved = final(tmp_path)
    counters = {**saved.counters, "audits_total|failed": 1.0, "audits_total|scored": 1.0}  # a full disk: and no line
    checkpoint.save(tmp_path / "run" / "checkpoint", replace(saved, counters=counters))
    federation, _ = build(tmp_path, rounds=2, resume=True)
    job = Job(1, "client", 0, "curious", "none")
    folder = federation.auditor.queue / job.folder
    if answered:
        folder.mkdir(parents=True)
        write_json(folder / "job.json", {"job": asdict(job)})
        write_json(folder / "result.json", {"error": "x", "reason": "x", "seconds": 1.0, "objective": None})
    server_rounds.begin(federation)
    server_rounds.take_audits(federation, Mock())
    assert federation.counters["audits_total|failed"] == 1.0
    assert federation.counters["audits_total|scored"] == 0.0, "it can be attacked again"
    assert len(federation.store.audits()) == answered
    federation.emit(2, counter_rows(federation.counters))
    state = run_state({"status": "completed"}, federation.store.metrics(), federation.store.audits())
    assert state.lost == (not answered)


def test_a_server_that_dies_after_clients_trained_repeats_the_round_with_their_old_state(tmp_path: Path) -> None:
    go(tmp_path / "whole", rounds=4, defenses="priprune")
    federation, raw = build(tmp_path / "dies", rounds=4, defenses="priprune")
    grid = LocalGrid(prunella.client.app.app, 3, raw, tmp_path / "dies" / "nodes")
    save = checkpoint.save

    def crash(folder: Path, saved: checkpoint.Checkpoint) -> None:
        if saved.round == 3:
            raise KeyboardInterrupt
        save(folder, saved)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(checkpoint, "save", crash)
        federate(federation, OrderedGrid(grid, 0.01))
    go(tmp_path / "dies", rounds=4, defenses="priprune", resume=True)
    assert same(final(tmp_path / "whole"), final(tmp_path / "dies"))


def test_a_directory_that_holds_a_run_is_not_written_over(tmp_path: Path) -> None:
    go(tmp_path, rounds=1)
    with pytest.raises(ConfigError, match="holds a run already"):
        go(tmp_path, rounds=2)
    assert final(tmp_path).round == 1


def test_resume_refuses_changed_settings(tmp_path: Path) -> None:
    go(tmp_path, rounds=1)
    with pytest.raises(ConfigError, match="rate"):
        go(tmp_path, rounds=2, rate=0.5, resume=True)


def test_prunefl_moves_its_mask_only_when_it_reconfigures(tmp_path: Path) -> None:
    masks = []
    for rounds in (1, 2, 3):
        go(tmp_path / str(rounds), rounds=rounds, strategy="prunefl", defenses="none", prunefl__adjust_interval=2)
        masks.append(final(tmp_path / str(rounds)).mask)
    moved = [any(not torch.equal(a[n], b[n]) for n in a) for a, b in zip(masks, masks[1:], strict=False)]
    assert moved == [True, False]


@pytest.mark.parametrize("leave", [True, False])
def test_rounds_in_which_squared_gradients_came_are_told_where_none_was_audited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leave: bool
) -> None:
    """Also after a resume; and not of sites that kept theirs, which send zeros."""
    monkeypatch.setattr("prunella.server.app.first_telling", lambda *_: 0)  # as where nobody answered in that round
    if not leave:
        where = "prunella.strategies.round.local.importance_that_leaves"
        monkeypatch.setattr(where, lambda chain, squares, *_: zeros_like(squares))
    asked = {
        "strategy": "prunefl",
        "defenses": "top-k",
        "prunefl__adjust_interval": 2,
        "audit_every": 3,
        "attack": "sgi",
    }
    asked |= {"sgi__iterations": 2, "membership": False}
    federation = go(tmp_path, rounds=3, **asked)
    told = "squared gradients left beside the updates of round 2, which was not audited (audit-every=2 audits them)"
    assert federation.store.run()["unaudited"] == (told if leave else None)
    if leave:
        assert go(tmp_path, rounds=3, resume=True, **asked).store.run()["unaudited"] == told


def poison_first_client(message: Message) -> Message:
    if message.metadata.src_node_id == 100 and message.has_content() and "update" in message.content:
        message.content["metrics"] = MetricRecord({"num-examples": -1})
    return message


def test_a_bad_reply_is_left_out_counted_and_the_round_equals_one_without_that_client(tmp_path: Path) -> None:
    run = {"strategy": "random", "defenses": "none", "partition": "iid", "rounds": 3}
    bad = go(tmp_path / "bad", tamper=poison_first_client, **run)
    assert bad.counters["client_failures_total|metrics"] == 3

    def silent_first_client(message: Message) -> Message | None:
        return None if message.metadata.src_node_id == 100 and "hello" not in message.content else message

    absent = go(tmp_path / "absent", tamper=silent_first_client, round_seconds=0.2, **run)
    assert absent.counters["client_failures_total|timeout"] == 3
    assert same(final(tmp_path / "bad"), final(tmp_path / "absent"))


@pytest.mark.parametrize("defenses", ["none", "dgp", "channel-natural,soteria"])
def test_gradients_that_are_not_finite_withhold_the_update_and_are_counted(tmp_path: Path, defenses: str) -> None:
    """Nothing of such a training reaches the server: the model stays what it was."""
    run = {"clients": 2, "rounds": 1, "local_steps": 4, "strategy": "random", "defenses": defenses}
    federation = go(tmp_path / "far", learning_rate=1e38, momentum=0.9, **run)
    assert federation.counters["client_failures_total|client-error"] == 2 and not federation.strategy.stats.replies
    params, _ = initial(federation.task, federation.run.seed)
    assert all(torch.equal(final(tmp_path / "far").tree[n], t * federation.strategy.mask[n]) for n, t in params.items())
    near = go(tmp_path / "near", learning_rate=1e-3, **run)
    assert "client_failures_total|client-error" not in near.counters and near.strategy.stats.replies == 2


def test_behind_an_epsilon_gradients_that_are_not_finite_cannot_be_told_from_others(tmp_path: Path) -> None:
    """A reply that stays away would say that there was such an example, without noise and without a charge."""
    run = {"clients": 2, "rounds": 1, "local_steps": 4, "strategy": "random", "defenses": "dp-sgd"}
    federation = go(tmp_path, learning_rate=1e38, momentum=0.9, **run)
    assert federation.strategy.stats.replies == 2 and "client_failures_total|client-error" not in federation.counters


def test_a_run_goes_on_without_a_site_that_lacks_a_class_and_says_so(tmp_path: Path) -> None:
    for site, classes in {"centre": "ab", "0": "ab", "1": "ab", "2": "a"}.items():
        for split in ("train", "test"):
            for number, name in enumerate(classes):
                (tmp_path / site / split / name).mkdir(parents=True)
                Image.new("RGB", (8, 8), (90 * number,) * 3).save(tmp_path / site / split / name / "1.png")
    federation, raw = build(
        tmp_path, dataset=f"imagefolder:{tmp_path}/centre", rounds=1, expected_clients=3, defenses="none",
        strategy="random", seed=0,
    )  # fmt: skip
    grid = LocalGrid(prunella.client.app.app, 3, raw, tmp_path / "nodes")
    for index, context in enumerate(grid.contexts.values()):
        context.node_config["data"] = str(tmp_path / str(index))
    federate(federation, OrderedGrid(grid, 0.01))
    federation.auditor.close()
    assert series(federation, "clients_selected") == [2.0] and series(federation, "clients_refusing")[-1] == 1.0
    assert "1 said no to this run: this client's classes are not the server's" in federation.store.run()["note"]


def test_a_client_that_raises_is_counted_and_its_message_names_no_value(tmp_path: Path) -> None:
    def break_state(message: Message) -> Message:
        for file in (tmp_path / "nodes" / "1" / "runs" / "run").glob("round-*"):
            file.write_bytes(b"damaged")
        return message

    federation = go(tmp_path, tamper=break_state, strategy="random", defenses="dgp", rounds=2)
    assert federation.counters["client_failures_total|client-error"] == 1


@pytest.mark.parametrize(
    "line", [{"x": b"abc"}, {"channel_nats": float("nan")}, {"rounds": -1.0}, {"claims": "x" * 9999}]
)
def test_an_odd_ledger_line_costs_that_reply_and_not_the_run(tmp_path: Path, line: dict[str, Any]) -> None:
    def odd(message: Message) -> Message:
        if message.metadata.src_node_id == 100 and message.has_content() and "update" in message.content:
            message.content["ledger"] = ConfigRecord(line)
        return message

    federation = go(tmp_path, tamper=odd, strategy="random", defenses="channel-natural", rounds=2)
    assert federation.counters["client_failures_total|metrics"] == 2
    ledgers = final(tmp_path).ledgers
    assert sorted(ledgers) == ["0", "1", "2"] and ledgers["0"] == {"unheard": 2}, "what it told is not believed"


def test_two_enormous_ledger_lines_and_a_time_do_not_end_the_run_nor_its_figures(tmp_path: Path) -> None:
    """Each number was finite, their sum was not, and the row of it was refused: the end of the run."""

    def odd(message: Message) -> Message:
        if message.has_content() and "update" in message.content and message.metadata.src_node_id != 102:
            message.content["ledger"]["epsilon"] = 1.7e308
        elif message.has_content() and "update" in message.content:
            message.content["metrics"]["train-seconds"] = 9e5
        return message

    federation = go(tmp_path, tamper=odd, strategy="random", defenses="dp-sgd", local_steps=1, rounds=2)
    assert federation.counters["client_failures_total|metrics"] == 4
    assert all(0 < value < 100 for value in series(federation, "privacy_epsilon", stat="mean"))
    assert series(federation, "train_seconds") == [600.0, 600.0], "no longer than the round may take"


def test_seconds_that_clients_do_not_tell_are_no_seconds(tmp_path: Path) -> None:
    assert series(go(tmp_path, defenses="dp-sgd", local_steps=1, rounds=1), "train_seconds") == []

    def silent(message: Message) -> Message:
        if message.has_content() and "update" in message.content and message.metadata.src_node_id == 100:
            del message.content["metrics"]["train-seconds"]
        elif message.has_content() and "update" in message.content:
            message.content["metrics"]["train-seconds"] = 3.0
        return message

    some = go(tmp_path / "some", tamper=silent, strategy="random", defenses="none", rounds=1)
    assert series(some, "train_seconds") == [3.0], "of those that told"


def test_rounds_that_do_not_count_are_counted(tmp_path: Path) -> None:
    run = {"strategy": "random", "defenses": "none", "rounds": 2}
    few = go(tmp_path, tamper=poison_first_client, min_clients=3, **run)
    assert series(few, "rounds_void_total") == [1.0, 2.0]
    assert series(go(tmp_path / "well", min_clients=3, **run), "rounds_void_total") == [0.0, 0.0]


def test_a_liar_decides_no_evaluation_under_a_robust_rule(tmp_path: Path) -> None:
    def boast(message: Message) -> Message:
        if message.metadata.src_node_id == 100 and message.has_content() and list(message.content) == ["metrics"]:
            message.content["metrics"] = MetricRecord({"num-examples": 10**9, "accuracy": 1.0, "loss": 1e6})
        return message

    run = {"strategy": "fedavg", "evaluation": "clients", "defenses": "none", "rounds": 1, "min_clients": 3}
    plain = go(tmp_path / "plain", tamper=boast, **run)
    assert series(plain, "accuracy_ratio")[0] > 0.999, "the control: the mean over examples believes it"
    robust = go(tmp_path / "robust", tamper=boast, robust="median", **run)
    assert series(robust, "accuracy_ratio")[0] < 0.9 and series(robust, "loss")[0] < 10


def test_a_client_that_tells_no_loss_does_not_take_it_from_the_others(tmp_path: Path) -> None:
    def silent(message: Message) -> Message:
        if message.metadata.src_node_id == 100 and message.has_content() and list(message.content) == ["metrics"]:
            del message.content["metrics"]["loss"]
        return message

    federation = go(tmp_path, tamper=silent, strategy="random", evaluation="clients", defenses="none", rounds=1)
    assert len(series(federation, "loss")) == 1


def test_a_round_with_too_few_replies_to_outvote_a_liar_moves_nothing_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = {"strategy": "random", "defenses": "none", "rounds": 4, "min_clients": 3}
    with caplog.at_level("WARNING", "flwr"):
        federation = go(tmp_path, tamper=poison_first_client, robust="trimmed-mean", **run)
    params, _ = initial(federation.task, federation.run.seed)
    mask = federation.strategy.mask
    assert all(torch.equal(final(tmp_path).tree[n], t * mask[n]) for n, t in params.items())
    assert [r for r in caplog.records if "2 valid replies" in r.getMessage() and "3" in r.getMessage()]


def test_what_strangers_write_does_not_reach_the_log_or_the_run_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def shout(message: Message) -> Message:
        if message.has_content() and "update" in message.content:
            reason = "\x1b[2J\nround 4/4: accuracy 1.000\n" + "x" * 60_000
            return make_message(metadata=message.metadata, error=Error(code=2, reason=reason))
        return message

    federation, raw = build(tmp_path, strategy="random", rounds=9)
    grid = LocalGrid(prunella.client.app.app, 2, raw, tmp_path / "nodes", shout)
    with caplog.at_level("INFO", "flwr"), pytest.raises(PrunellaError, match="no valid reply"):
        run_to_end(federation, grid)
    words = [record.getMessage() for record in caplog.records]
    assert any("Flower error 2" in line for line in words)
    assert all(line.isprintable() and len(line) < 600 for line in words)
    assert federation.store.run()["error"].isprintable()


def test_with_registered_keys_another_node_cannot_go_on_as_a_client_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    run = {"strategy": "random", "defenses": "none", "registered_keys": True, "round_seconds": 2.0}
    go(tmp_path, clients=2, rounds=1, **run)
    assert (tmp_path / "flower" / NUMBERS).exists()
    federation, raw = build(tmp_path, rounds=2, resume=True, **run)
    grid = LocalGrid(prunella.client.app.app, 2, raw, tmp_path / "nodes")
    grid.contexts[666] = grid.contexts.pop(100)
    with pytest.raises(PrunellaError, match=r"1 of 2 clients .* client 0 is another node's"):
        federate(federation, OrderedGrid(grid, 0.01))
    assert federation.strategy.roster.find(0) is None
    go(tmp_path, clients=2, rounds=2, resume=True, **run)
    assert final(tmp_path).round == 2


def test_a_defense_that_was_not_applied_is_not_taken_for_one_that_was(tmp_path: Path) -> None:
    def claim(message: Message) -> Message:
        if message.metadata.src_node_id == 100 and message.has_content() and "update" in message.content:
            message.content["provenance"]["applied"] = ["dgp", "magic"]
        return message

    federation = go(tmp_path, tamper=claim, strategy="random", defenses="dgp", rounds=1)
    assert federation.counters["client_failures_total|metrics"] == 1


@pytest.mark.parametrize(
    "bad", [{"accuracy": 7.0}, {"accuracy": float("nan")}, {"loss": float("inf")}, {"num-examples": 0}]
)
def test_an_odd_evaluation_is_left_out_and_counted(tmp_path: Path, bad: dict[str, float]) -> None:
    def odd(message: Message) -> Message:
        if message.metadata.src_node_id == 100 and message.has_content() and list(message.content) == ["metrics"]:
            message.content["metrics"] = MetricRecord({**message.content["metrics"], **bad})
        return message

    federation = go(tmp_path, tamper=odd, strategy="random", evaluation="clients", defenses="none", rounds=1)
    assert federation.counters["client_failures_total|metrics"] == 1
    assert 0 <= series(federation, "accuracy_ratio")[0] <= 1


def test_a_clients_error_reaches_the_server_without_the_label_it_stumbled_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(PrunellaError, match="client-error"):

        def stumble(*args: object) -> None:
            raise IndexError("Target 9 is out of bounds.")

        patch.setattr(prunella.client.app, "local_update", stumble)
        go(tmp_path, strategy="random", rounds=9)
    server_words = [r.getMessage() for r in caplog.records if "left out" in r.getMessage()]
    assert server_words and "IndexError" in server_words[0]
    assert not [words for words in server_words if "Target 9" in words]


def test_prunefl_prunes_a_model_with_batch_norm_from_the_first_round(tmp_path: Path) -> None:
    federation = go(tmp_path, clients=2, model="resnet10", rounds=1, local_steps=1, strategy="prunefl", defenses="none",
                    prunefl__initial_steps=1, prunefl__initial_interval=1)  # fmt: skip
    assert series(federation, "mask_density_ratio")[0] <= 0.7


def test_nobody_answering_ends_the_run_with_the_reasons(tmp_path: Path) -> None:
    def all_bad(message: Message) -> Message:
        if "update" in message.content:
            message.content["provenance"]["round"] = 99
        return message

    with pytest.raises(PrunellaError, match=rf"no valid reply in {EMPTY_ROUNDS} rounds, last: stale \(3\)"):
        go(tmp_path, tamper=all_bad, strategy="random", rounds=9)


@pytest.mark.parametrize(("round", "status"), [(99, "failed"), (2, "completed")])
def test_a_short_run_in_which_nobody_answered_failed(tmp_path: Path, round: int, status: str) -> None:
    """One that ends before it could give up, with the accuracy of initial weights; not one with a late answer."""

    def renumber(message: Message) -> Message:
        if "update" in message.content:
            message.content["provenance"]["round"] = round
        return message

    federation, raw = build(tmp_path, strategy="random", defenses="none", rounds=2)
    grid = LocalGrid(prunella.client.app.app, 2, raw, tmp_path / "nodes", renumber)
    failed = pytest.raises(PrunellaError, match=r"no valid reply in 2 rounds, last: stale \(2\)")
    with failed if status == "failed" else nullcontext():
        run_to_end(federation, grid)
    assert federation.store.run()["status"] == status


def test_what_the_clients_said_stands_in_the_error_that_ends_the_run(tmp_path: Path) -> None:
    own = {"defenses": "dp-sgd", "dp_sgd__noise_multiplier": 1.0, "privacy__epsilon_budget": 0.01}
    with pytest.raises(
        PrunellaError, match=r"client-error \(3\): Flower error 2: DefenseError: this round would bring ε"
    ):
        go(tmp_path, rounds=9, **own)


def test_bytes_counted_are_bytes_sent_and_masks_travel_once(tmp_path: Path) -> None:
    federation, raw = build(tmp_path, strategy="random", defenses="none", rounds=3)
    grid = LocalGrid(prunella.client.app.app, 2, raw, tmp_path / "nodes")
    federate(federation, OrderedGrid(grid, 0.01))
    trains = [m for m in grid.sent if m.metadata.message_type == "train"]
    sizes = [sum(len(a.data) for r in m.content.array_records.values() for a in r.values()) for m in trains]
    assert federation.counters["wire_bytes_total|down"] == sum(sizes)
    # Lossless coding makes a model's size depend on its weights: equal within a round, not between rounds.
    assert sizes[2] == sizes[3] and sizes[4] == sizes[5] and max(sizes[2:]) < sizes[0] == sizes[1]
    assert federation.counters["wire_bytes_total|down"] < federation.counters["wire_dense_bytes_total|down"]
    assert federation.counters["wire_bytes_total|up"] < federation.counters["wire_dense_bytes_total|up"]


def test_a_client_that_lost_its_mask_fails_once_and_gets_it_again(tmp_path: Path) -> None:
    forgotten = tmp_path / "forgotten"

    def forget(message: Message) -> Message:
        if message.has_content() and "update" in message.content and not forgotten.exists():
            forgotten.touch()
            (tmp_path / "nodes" / "0" / "runs" / "run" / "mask.safetensors").unlink()
        return message

    federation = go(tmp_path, clients=2, tamper=forget, strategy="random", defenses="none", rounds=4)
    assert federation.counters["client_failures_total|client-error"] == 1
    assert federation.strategy.stats.replies == 2


def test_batch_norm_buffers_are_averaged(tmp_path: Path) -> None:
    go(tmp_path, clients=2, model="resnet10", rounds=1, local_steps=1, strategy="fedavg", defenses="none")
    saved = final(tmp_path)
    means = [t for name, t in saved.tree.items() if name.endswith("running_mean")]
    assert means and all(bool(t.abs().sum() > 0) for t in means)


def test_clients_evaluate_on_what_they_hold_out(tmp_path: Path) -> None:
    federation = go(tmp_path, evaluation="clients", defenses="none", rounds=2)
    accuracy = series(federation, "accuracy_ratio")
    assert len(accuracy) == 2 and all(0 <= a <= 1 for a in accuracy)
    assert federation.test is not None
    assert not any("unheard" in line for line in federation.ledgers.values()), "exact scores are no charge to wait for"


def test_clients_evaluate_under_an_epsilon_by_noisy_counts_without_a_loss(tmp_path: Path) -> None:
    noise = {"evaluation": "clients", "privacy__validation_noise": 5.0}
    federation = go(tmp_path, clients=2, defenses="dp-sgd", strategy="random", rounds=2, local_steps=1, **noise)
    assert len(series(federation, "accuracy_ratio")) == 2 and not series(federation, "loss")
    without = go(tmp_path / "b", clients=2, defenses="dp-sgd", strategy="random", rounds=2, local_steps=1)
    spent, less = (series(f, "privacy_epsilon", stat="worst") for f in (federation, without))
    assert spent[1] > less[1]


def accounts(folder: Path, clients: int) -> list[float]:
    """The ε that each client's own account has written down."""
    found = []
    for client in range(clients):
        (path,) = (folder / "nodes").glob(f"**/{client}/**/{ACCOUNT}")
        _, metadata = read_tree(path)
        charges = [charge for rows in json.loads(metadata["charges"]).values() for charge in from_json(rows)]
        spent = Ledger(tuple(charges)).epsilon(Privacy())
        assert spent is not None
        found.append(spent)
    return found


@pytest.mark.parametrize("ends", ["after its rounds", "early"])
def test_the_epsilon_of_a_run_counts_the_noisy_counts_of_its_last_round(ends: str, tmp_path: Path) -> None:
    told = {"evaluation": "clients", "privacy__validation_noise": 0.5, "dp_sgd__noise_multiplier": 4.0}
    more = {"privacy__epsilon_budget": 2.104, "rounds": 9, "evaluate_every": 5} if ends == "early" else {"rounds": 2}
    federation = go(tmp_path, clients=2, defenses="dp-sgd", strategy="random", local_steps=1, **told, **more)
    owned, rounds = accounts(tmp_path, 2), max(series(federation, "round"))
    assert (1 < rounds < 5) if ends == "early" else rounds == 2
    assert max(owned) > 1.9, "each count is worth 2"
    assert max(owned) == pytest.approx(series(federation, "privacy_epsilon", stat="worst")[-1])
    assert [final(tmp_path).ledgers[str(client)]["epsilon"] for client in (0, 1)] == pytest.approx(owned)


@pytest.mark.parametrize("lost", ["last", "two", "all", "spoilt"])
def test_what_was_charged_for_answers_that_did_not_come_is_counted_or_said(lost: str, tmp_path: Path) -> None:
    def tamper(message: Message) -> Message | None:
        if not message.has_content() or "update" not in message.content or message.metadata.src_node_id != 100:
            return message
        round = message.content["provenance"]["round"]
        if lost == "spoilt" and round == 4:
            message.content["metrics"]["num-examples"] = -1
        return None if round >= {"last": 4, "two": 3, "all": 1, "spoilt": 9}[lost] else message

    federation = go(tmp_path, defenses="dp-sgd", strategy="fedavg", local_steps=1, tamper=tamper, round_seconds=3.0)
    spent, owned = series(federation, "privacy_epsilon", stat="worst")[-1], accounts(tmp_path, 3)
    state = run_state({"settings": {"privacy.delta": 1e-5}}, list(federation.store.metrics()))
    assert state.unknown == (lost in ("two", "all")) and ("or more" in state.promise) is (state.unknown > 0)
    assert spent == pytest.approx(max(owned)) if not state.unknown else spent <= max(owned) + 1e-9
    if not state.unknown:
        assert spending.spent(final(tmp_path).ledgers["0"]) == pytest.approx(owned[0])


@pytest.mark.parametrize("when", ["before the answers", "before the checkpoint"])
def test_what_clients_have_spent_outlives_a_server_that_is_killed(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its third round, of which no checkpoint says anything; its second one is on the disk."""
    made = {"defenses": "dp-sgd", "strategy": "fedavg", "local_steps": 1, "min_clients": 1}

    def tamper(message: Message) -> Message | None:
        if "update" in message.content and message.content["provenance"]["round"] == 3:
            raise KeyboardInterrupt
        return message

    save = server_rounds._save
    if when == "before the checkpoint":
        killed = Mock(side_effect=lambda f, round, *more: save(f, round, *more) if round < 3 else 1 / 0)
        monkeypatch.setattr(server_rounds, "_save", killed)
    with pytest.raises((KeyboardInterrupt, ZeroDivisionError)):
        go(tmp_path, clients=2, tamper=tamper if when == "before the answers" else None, **made)
    folder = tmp_path / "run" / "checkpoint"
    known, owned = checkpoint.load_ledgers(folder), accounts(tmp_path, 2)
    asked = when == "before the answers"
    assert final(tmp_path).round == 2 and all(("unheard" in line) is asked for line in known.values())
    if not asked:
        assert [spending.spent(known[client]) for client in "01"] == pytest.approx(owned)
        assert final(tmp_path).ledgers["0"]["epsilon"] < owned[0], "the checkpoint alone says less"
    assert all(spending.spent(known[client]) >= mine - 1e-9 for client, mine in zip("01", owned, strict=True))
    told = run_state({"settings": {}}, RunStore(tmp_path / "run").metrics())
    assert told.epsilon == max(map(spending.spent, known.values())), "the report says what an attestation would"
    monkeypatch.setattr(server_rounds, "_save", save)
    gone = lambda message: None if message.metadata.src_node_id == 101 else message  # noqa: E731 - it does not come back
    resumed = go(tmp_path, clients=2, tamper=gone, resume=True, rounds=3, round_seconds=2.0, **made)
    assert spending.spent(resumed.ledgers["1"]) >= owned[1] - 1e-9


def test_while_a_round_goes_on_it_is_charged_and_no_answer_is_missed_yet(tmp_path: Path) -> None:
    """Of the noise of a channel no line tells what the next answer brings, so that in every round it may be more."""
    federation, _ = build(tmp_path, strategy="fedavg", defenses="dp-sgd", rounds=1)
    federation.exporter = Mock()
    federation.ledgers = {"0": {"epsilon": 1.0, "epsilon_next": 1.5, "channel_nats": 2.0}}
    federation.round = 4
    federation.on_question([0])
    stored = {line["metric"]: line["value"] for line in federation.store.metrics() if line["round"] == 4}
    assert stored["privacy_epsilon"] == 1.5 and stored["privacy_epsilon_unknown"] == 1
    shown = {row.metric: row.value for row in federation.exporter.update.call_args.args[0]}
    assert shown == {"privacy_epsilon": 1.5, "channel_information_nats": 2.0}, "an alert would ring in every round"


def test_a_client_that_says_no_has_spent_nothing_for_it(tmp_path: Path) -> None:
    node = {"require": "dp-sgd", "epsilon-budget": 100.0}
    federation = go(tmp_path, clients=2, defenses="dp-sgd", strategy="fedavg", local_steps=1, rounds=2, node=node)
    assert not any("unheard" in line for line in federation.ledgers.values())
    assert series(federation, "privacy_epsilon_unknown")[-1] == 0


def test_a_damaged_value_changes_the_result_so_the_checks_above_can_fail(tmp_path: Path) -> None:
    def scale(message: Message) -> Message:
        if "update" in message.content and message.metadata.src_node_id == 100:
            expected = federation_box[0].strategy.downlink.expected()
            tree, mask = from_coded(message.content["update"], expected.params, expected.mask)
            message.content["update"] = to_coded(map_trees(lambda t: t * 2, tree), mask, expected.mask)
        return message

    federation_box: list[Federation] = []
    federation, raw = build(tmp_path / "scaled", strategy="random", defenses="none", rounds=1)
    federation_box.append(federation)
    grid = LocalGrid(prunella.client.app.app, 2, raw, tmp_path / "scaled" / "nodes", scale)
    federate(federation, OrderedGrid(grid, 0.01))
    go(tmp_path / "plain", clients=2, strategy="random", defenses="none", rounds=1)
    assert not same(final(tmp_path / "scaled"), final(tmp_path / "plain"))


def test_rounds_in_between_are_evaluated_on_the_same_sample_and_the_last_on_all(tmp_path: Path) -> None:
    federation = go(tmp_path, rounds=5, evaluate_every=3, evaluate_examples=50)
    whole = go(tmp_path / "whole", rounds=5)
    errors = series(federation, "accuracy_error_ratio")
    assert [error == 0 for error in errors] == [False, False, True, False, True]
    assert all(0.02 < error < 0.15 for error in errors if error)
    found, all_of_them = series(federation, "accuracy_ratio"), series(whole, "accuracy_ratio")
    assert [found[i] == all_of_them[i] for i in (2, 4)] == [True, True] and found[0] * 50 == pytest.approx(
        round(found[0] * 50)
    )
    assert same(final(tmp_path), final(tmp_path / "whole"))  # how it is measured changes nothing of what is learnt


def test_without_a_sample_rounds_in_between_have_no_accuracy(tmp_path: Path) -> None:
    federation = go(tmp_path, rounds=4, evaluate_every=3)
    assert len(series(federation, "accuracy_ratio")) == 2 and not series(federation, "accuracy_error_ratio")
    on_clients = go(tmp_path / "clients", rounds=4, evaluate_every=3, evaluation="clients")
    assert len(series(on_clients, "accuracy_ratio")) == 2


def test_a_run_that_its_budget_ends_early_is_evaluated_on_all_examples(tmp_path: Path) -> None:
    budget = {"defenses": "dp-sgd", "dp_sgd__noise_multiplier": 1.0, "privacy__epsilon_budget": 2.5}
    federation = go(tmp_path, rounds=50, evaluate_every=40, evaluate_examples=20, **budget)
    done = int(series(federation, "round")[-1])
    assert 1 < done < 40 and series(federation, "accuracy_error_ratio")[-1] == 0.0
    assert len(series(federation, "accuracy_ratio")) == done + 1


def test_a_round_s_time_is_told_by_its_parts(tmp_path: Path) -> None:
    federation = go(tmp_path, rounds=2)
    parts = [series(federation, "round_stage_seconds", stage=stage) for stage in ("train", "evaluate", "store")]
    assert all(len(part) == 2 and min(part) >= 0 for part in parts)
    whole = series(federation, "round_seconds")
    assert all(sum(each) <= total for each, total in zip(zip(*parts, strict=True), whole, strict=True))
