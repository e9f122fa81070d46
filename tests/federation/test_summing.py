"""Masked sums over real processes and gRPC: a client that is killed, and a server that is killed and resumed."""

import signal
from pathlib import Path

import pytest
import torch

from prunella.server.store.read import read_audits, read_metrics, read_run
from tests.federation.running import final, find, finish, rounds, series, start, wait_for

pytestmark = [pytest.mark.federation, pytest.mark.timeout(900)]
SUMMED = "aggregation=secure-sum,strategy=random,audit-every=0,min-clients=3,rounds=5".split(",")
FOUR = [*(part for setting in SUMMED for part in ("-c", setting)), "--client-seed", "5", "--supernodes", "4"]


def test_a_client_that_is_killed_leaves_a_sum_of_the_others(tmp_path: Path) -> None:
    process = start(tmp_path, *FOUR)
    wait_for(lambda: rounds(tmp_path) >= 2 or process.poll() is not None, "round 2")
    find(process, "supernode-1").send_signal(signal.SIGKILL)
    code, output = finish(process)
    assert code == 0, output
    path = tmp_path / "runs" / "latest"
    assert read_run(path)["status"] == "completed"
    rows = read_metrics(path)
    assert [r["value"] for r in rows if r["metric"] == "round"] == [1, 2, 3, 4, 5]
    assert {r["labels"]["reason"] for r in rows if r["metric"] == "client_failures_total"} <= {
        "unreachable",
        "timeout",
        "client-error",
    }
    accuracy = series(path, "accuracy_ratio")
    assert accuracy[-1] > max(0.5, accuracy[1]), "the three that are left go on to train the model"
    log = (path / "logs" / "server.log").read_text()
    assert "the round does not count" not in log and "the sum was not opened" not in log


def test_a_server_that_is_killed_resumes_to_the_same_bits(tmp_path: Path) -> None:
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    code, output = finish(start(tmp_path / "whole", *FOUR))
    assert code == 0, output
    parts = tmp_path / "parts"
    process = start(parts, *FOUR)
    wait_for(lambda: rounds(parts) >= 2 or process.poll() is not None, "round 2")
    find(process, "flwr-serverapp").send_signal(signal.SIGKILL)
    assert finish(process)[0] == 1 and 2 <= final(parts).round < 5
    code, output = finish(start(parts, "--resume", "latest"))
    assert code == 0, output
    whole, resumed = final(tmp_path / "whole"), final(parts)
    assert resumed.round == whole.round == 5
    assert all(torch.equal(resumed.tree[n], whole.tree[n]) for n in whole.tree)


def test_what_does_not_fit_masked_sums_ends_before_anything_starts(tmp_path: Path) -> None:
    code, output = finish(start(tmp_path, "-c", "aggregation=secure-sum"))
    assert code == 2 and "strategy=fedavg|" in output and "min-clients=3 to 200" in output


def test_a_sum_that_lost_a_client_is_audited_as_the_sum_of_those_that_are_left(tmp_path: Path) -> None:
    """Rounds 1, 3 and 4, undefended, one image a client: the control is rebuilt, and those in the sum score it."""
    audited = "rounds=4,audit-every=3,defenses=none,attack=sgi,local-steps=1,batch-size=1,secure-sum.examples=1"
    process = start(tmp_path, *FOUR, *(part for setting in audited.split(",") for part in ("-c", setting)))
    wait_for(lambda: rounds(tmp_path) >= 2 or process.poll() is not None, "round 2")
    find(process, "supernode-1").send_signal(signal.SIGKILL)
    code, output = finish(process)
    assert code == 0, output
    assert "What was attacked is the sum of 3 to 4 sites" in " ".join(output.replace("│", " ").split())
    path = tmp_path / "runs" / "latest"
    audits = read_audits(path)
    clients = [a for a in audits if a["kind"] == "client"]
    in_sum = {r: sorted(a["client"] for a in clients if a["round"] == r) for r in (1, 3, 4)}
    assert in_sum[1] == [0, 1, 2, 3] and len(in_sum[4]) == 3
    assert all(a["sites"] == len(in_sum[a["round"]]) for a in audits)
    assert {a["outcome"] for a in clients if a["client"] != 1} == {"scored"}, "client 1 may be gone when it is asked"
    failed = {r["round"] for r in read_metrics(path) if r["metric"] == "client_failures_total"}
    assert any(a["sites"] == 3 and a["round"] in failed for a in clients), "it was lost in a round that was audited"
    assert any(a["ok"] for a in audits if a["kind"] == "control" and a["sites"] == 3)
