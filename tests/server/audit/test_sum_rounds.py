"""Audited rounds of masked sums, with clients that are lost, deny or weigh differently; whole runs in one process."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message

from prunella.attacks.trace import load_trace
from prunella.core.files import read_tree, write_json, write_tree
from prunella.server import checkpoint
from prunella.server.audit.canary import make_canary
from prunella.server.audit.job import JOB, REBUILT, RESULT, Job
from prunella.server.audit.queue import QUERY, SHOWN_TO_ALL
from prunella.server.audit.view import STATISTICS, UNEQUAL
from prunella.server.audit.worker import preload
from prunella.server.report.verdict import judge
from prunella.server.rounds import Federation
from prunella.strategies import STRATEGIES, one_public_mask
from tests.local_grid import LocalGrid
from tests.server.audit.test_queue import Forked
from tests.server.audit.test_shadow import SHORT, shape_of
from tests.strategies.secure_sum.federated import Route, go, lost

SUMMABLE = sorted(name for name in STRATEGIES if one_public_mask(name))
ONE_IMAGE = {"local_steps": 1, "batch_size": 1, "secure_sum__examples": 1}
AUDITED = {"audit_every": 1, "attack": "sgi", "sgi__iterations": 5, "membership": False, **ONE_IMAGE}


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    preload()


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prunella.server.audit.process.subprocess.Popen", Forked)


def audited(
    folder: Path, consent: str | Callable[[int], str] = "pictures", route: Route = lambda m: m, **overrides: Any
) -> tuple[Federation, LocalGrid]:
    """A run of four clients. ``consent`` may differ by client: it is then what ``query.hello`` is answered."""

    def told(reply: Message) -> None:
        hello = reply.content.config_records.get("hello") if reply.has_content() else None
        if hello is not None and not isinstance(consent, str):
            hello["audit"] = consent(int(str(hello["client"])))

    node = {"audit": consent if isinstance(consent, str) else "pictures"}
    return go(folder, route, tamper=told, node=node, **{**AUDITED, **overrides})


def of(federation: Federation, kind: str) -> list[dict[str, Any]]:
    return [audit for audit in federation.store.audits() if audit["kind"] == kind]


def asked(grid: LocalGrid) -> list[int]:
    return sorted(m.metadata.dst_node_id - 100 for m in grid.sent if m.metadata.message_type == QUERY)


@pytest.mark.parametrize("strategy", SUMMABLE)
def test_a_sum_is_audited_in_every_kind_of_round_and_scored_by_those_in_it(tmp_path: Path, strategy: str) -> None:
    """Client 2 is lost in the second round, so that its sum is of three."""
    federation, grid = audited(
        tmp_path, route=lost("train", 2, rounds=(2,)), rounds=2, strategy=strategy, defenses="dgp", **SHORT
    )
    clients = of(federation, "client")
    assert [(a["round"], a["client"], a["sites"]) for a in clients] == [
        (1, 0, 4), (1, 1, 4), (1, 2, 4), (1, 3, 4), (2, 0, 3), (2, 1, 3), (2, 3, 3)
    ]  # fmt: skip
    assert {a["outcome"] for a in clients} == {"scored"} and {a["scores"]["images"] for a in clients} == {1.0}
    assert asked(grid) == [0, 0, 1, 1, 2, 3, 3]
    for kind in ("control", "control-defended", "single", "single-defended"):
        assert [(a["round"], a["sites"], a["scores"]["images"]) for a in of(federation, kind)] == [(1, 4, 4), (2, 3, 3)]
    found = judge(federation.store.run(), federation.store.metrics(), federation.store.audits())
    assert "the sum of 3 to 4 sites' updates" in found.headline and found.tone != "clear"


def test_a_control_has_the_fields_of_the_sum_that_it_vouches_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prunella.server.audit.process.WorkerProcess.ensure", lambda _: True)
    monkeypatch.setattr("prunella.server.audit.queue.Auditor.at_most", lambda _: 0.0)
    hard = {"local_steps": 3, "batch_size": 4, "momentum": 0.9, "weight_decay": 0.01, "model": "resnet10"}
    audited(tmp_path, **hard, learning_rate=0.01, secure_sum__examples=12)
    queue = tmp_path / "run" / "traces"
    make_canary(queue / "round-000001-control")
    (ours, _, about), (theirs, _, same) = (
        load_trace(queue / f"round-000001-{kind}" / "view.safetensors") for kind in ("control", "client")
    )
    assert shape_of(ours) == shape_of(theirs) and about["sites"] == same["sites"] == 4
    assert (theirs.num_examples, theirs.batch_size, theirs.steps) == (48, 16, 3)
    assert any(
        "running_mean" in n and not torch.equal(t, theirs.buffers[n]) for n, t in theirs.received_buffers.items()
    )
    assert any("running_mean" in n and not torch.equal(t, ours.buffers[n]) for n, t in ours.received_buffers.items())


def test_where_one_client_denies_nobody_is_sent_what_was_rebuilt(tmp_path: Path) -> None:
    """Those who consent would be shown the images of the one that does not."""
    federation, grid = audited(tmp_path, consent=lambda client: "deny" if client == 1 else "pictures")
    assert [a["client"] for a in of(federation, "client")] == [0, 2, 3] and not asked(grid)
    assert {a["outcome"] for a in of(federation, "client")} == {"failed"}
    assert {a["kind"] for a in federation.store.audits()} == {"client", "control", "single"}
    found = judge(federation.store.run(), federation.store.metrics(), federation.store.audits())
    assert found.tone == "unproven" and "1 of 4 clients denied audits: what is rebuilt" in " ".join(found.notes)


def test_what_was_rebuilt_is_sent_to_nobody_unless_all_let_their_images_be_seen(tmp_path: Path) -> None:
    federation, grid = audited(
        tmp_path, consent=lambda client: "deny" if client == 0 else ("pictures", "numbers")[client % 2]
    )
    clients = of(federation, "client")
    assert not asked(grid)
    assert [(a["client"], a["outcome"], a["reason"], a["sites"]) for a in clients] == [
        (client, "failed", SHOWN_TO_ALL, 4) for client in (1, 2, 3)
    ]
    found = judge(federation.store.run(), federation.store.metrics(), federation.store.audits())
    assert found.tone == "unproven" and "audit=pictures" in " ".join(found.notes)


def test_a_client_whose_consent_is_not_known_has_not_given_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation, _ = audited(tmp_path)
    downlink, opened, filed = federation.strategy.downlink, federation.strategy.opened, list[str]()
    assert opened is not None
    monkeypatch.setattr(federation.auditor, "_file", lambda expected, kind, subject, client=None: filed.append(kind))
    for members, kinds in ((list(downlink.asked.values()), {"client"}), (list(downlink.asked.values())[1:], set())):
        filed.clear()
        federation.auditor.file_sum(downlink.expected(), opened, members)
        assert set(filed) - {"control"} == kinds


def test_nobody_is_asked_once_a_client_of_the_sum_has_changed_its_mind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the attack went on: its SuperNode was started again with less. One that is away has not taken it back."""
    monkeypatch.setattr("prunella.server.audit.process.WorkerProcess.ensure", lambda _: True)
    monkeypatch.setattr("prunella.server.audit.queue.Auditor.at_most", lambda _: 0.0)
    federation, grid = audited(tmp_path)
    auditor, members = federation.auditor, federation.strategy.roster.members
    path = tmp_path / "run" / "traces" / "round-000001-client"
    write_tree(path / REBUILT, {"x": torch.zeros(4, 1, 8, 8)})
    result = {"error": None, "reason": None, "objective": 0.0, "seconds": 0.0, "explained": True}
    write_json(path / RESULT, result)
    job = replace(Job.read(path / JOB), clients=(0, 2))  # 1 and 3 have answered before the server was started again
    auditor.finished.clear()
    auditor._answered(job, result, grid)
    assert asked(grid) == [0, 2] and not auditor.finished
    del members[next(node for node, member in members.items() if member.client == 3)]
    auditor._answered(job, result, grid)
    assert asked(grid) == [0, 0, 2, 2]
    node = next(node for node, member in members.items() if member.client == 1)
    members[node] = replace(members[node], consent="numbers")
    auditor._answered(job, result, grid)
    assert asked(grid) == [0, 0, 2, 2]
    assert [(a["client"], a["outcome"], a["reason"]) for a in auditor.finished] == [
        (client, "failed", SHOWN_TO_ALL) for client in (0, 2)
    ]


def test_the_others_are_asked_where_the_one_that_denies_is_not_in_the_sum(tmp_path: Path) -> None:
    _, grid = audited(tmp_path, consent=lambda client: "deny" if client == 1 else "pictures", route=lost("train", 1))
    assert asked(grid) == [0, 2, 3]


def test_a_sum_of_clients_that_may_weigh_differently_shows_nothing_where_nothing_is_found(tmp_path: Path) -> None:
    for folder, settings, reason in (("equal", {}, None), ("unequal", {"secure_sum__examples": 65536}, UNEQUAL)):
        federation, _ = audited(tmp_path / folder, defenses="dgp", **settings)
        clients = of(federation, "client")
        assert {a["reason"] for a in clients} == {reason and reason.format(1)}
        assert {a["ok"] for a in clients} == {None if reason is None else False}


def test_what_a_sum_tells_beside_its_update_leaves_a_doubt_where_nothing_explains_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prunella.server.audit.worker.unread", lambda view, task: STATISTICS)
    federation, _ = audited(tmp_path, defenses="dgp")
    assert {(a["ok"], a["reason"]) for a in of(federation, "client")} == {(False, STATISTICS)}


def test_a_sum_that_is_not_opened_is_a_failed_audit(tmp_path: Path) -> None:
    federation, grid = audited(tmp_path, route=lost("train.vote", 0, 1))
    (line,) = federation.store.audits()
    assert line["outcome"] == "failed" and "the round's sum was not opened" in line["reason"] and not asked(grid)


def test_an_audit_that_failed_without_an_attack_is_not_forgotten_when_the_server_is_killed_after_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = checkpoint.save

    def killed(folder: Path, saved: checkpoint.Checkpoint) -> None:
        save(folder, saved)
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        audited(tmp_path, route=lost("train.vote", 0, 1))
    monkeypatch.setattr(checkpoint, "save", save)
    federation, _ = audited(tmp_path, resume=True)
    (line,) = federation.store.audits()
    assert line["outcome"] == "failed" and "the round's sum was not opened" in line["reason"]


def test_an_attack_that_fails_is_a_failed_audit_of_every_client(tmp_path: Path) -> None:
    federation, _ = audited(tmp_path, attack="r-gap")  # which is of one image
    clients = of(federation, "client")
    assert [a["client"] for a in clients] == [0, 1, 2, 3] and {a["outcome"] for a in clients} == {"failed"}


def test_the_images_of_a_sum_that_are_kept_are_the_scoring_client_s_own(tmp_path: Path) -> None:
    federation, _ = audited(tmp_path, "pictures")
    for audit in of(federation, "client"):
        pictures, _ = read_tree(tmp_path / "run" / audit["pictures"])
        assert len(pictures["original"]) == len(pictures["reconstruction"]) == 1
    assert len({audit["pictures"] for audit in of(federation, "client")}) == 4


def test_a_restarted_server_asks_those_who_had_not_answered(tmp_path: Path) -> None:
    federation, _ = audited(tmp_path)
    auditor, answered = federation.auditor, federation.store.audits()
    assert not auditor.jobs
    auditor.recover(1, [a for a in answered if (a["kind"], a["client"]) not in (("client", 1), ("client", 3))])
    (left,) = auditor.jobs
    assert left == replace(Job.read(tmp_path / "run" / "traces" / left.folder / JOB), clients=(1, 3))
