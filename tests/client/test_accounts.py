"""What was let through of examples is not forgotten when a server renames a run, or the data."""

import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from client.accounts import Accounts, digests_of
from core.errors import DefenseError
from privacy.accounting import Charge, epsilon
from privacy.ledger import Ledger
from tests.client.test_app import model, send
from tests.client.test_budget import update_of
from tests.client.test_session import session

PRIVATE: dict[str, Any] = {"defenses": "dp-sgd", "local_steps": 2}
X = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(0))


def ledger(request: str, nats: float | None = 0.0, covered: bool = True) -> Ledger:
    return Ledger(1, 2, nats, covered=covered, charges=(Charge(request, "d", 1.0, 0.1, 2),))


def test_digests_are_of_pixels_and_not_of_order() -> None:
    assert np.array_equal(digests_of(X), digests_of(X.flip(0))) and len(digests_of(X)) == 6
    assert not np.array_equal(digests_of(X), digests_of(X + 1e-6))


def test_an_account_is_found_by_any_shared_example_and_by_no_other(tmp_path: Path) -> None:
    Accounts(tmp_path, "first", X[:4]).write(ledger("1", 3.0))
    Accounts(tmp_path, "second", X[3:5]).write(ledger("1", 4.0))
    assert Accounts(tmp_path, "first", X[:4]).elsewhere().channel_nats == 4.0
    both = Accounts(tmp_path, "third", X[3:4]).elsewhere()
    assert both.channel_nats == 7.0 and len(both.charges) == 2
    assert Accounts(tmp_path, "third", X[5:]).elsewhere() == Ledger()
    Accounts(tmp_path, "fourth", X[3:4]).write(ledger("1", None, covered=False))
    assert not Accounts(tmp_path, "x", X[:4]).elsewhere().covered
    assert Accounts(tmp_path, "x", X[:4]).elsewhere().channel_nats is None
    assert Accounts(tmp_path, "x", X[:3]).elsewhere().covered


def test_what_a_run_was_charged_stays_when_it_goes_back(tmp_path: Path) -> None:
    account = Accounts(tmp_path, "run", X)
    account.write(ledger("1"))
    account.write(ledger("2"))
    assert [c.request for c in account.charged().charges] == ["2", "1"] and account.elsewhere() == Ledger()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600} and len(files) == 1


@pytest.mark.parametrize("damage", ["bytes", "gone"])
def test_damaged_or_lost_accounts_stop_the_client(tmp_path: Path, damage: str) -> None:
    send(tmp_path, "train", model(1), **PRIVATE)
    folder = tmp_path / "accounts"
    for path in folder.iterdir():
        if damage == "gone":
            path.unlink()
        else:
            path.write_bytes(b"x")
    if damage == "gone":
        folder.rmdir()
    with pytest.raises(DefenseError, match="accounts cannot be read"):
        send(tmp_path, "train", model(1), **PRIVATE, run_dir="/x/other")


def test_a_renamed_run_does_not_reset_epsilon_and_draws_other_noise(tmp_path: Path) -> None:
    node = session(tmp_path / "like", {"partition-id": 0})
    rate = node.run.batch_size / len(node.examples)
    answers = [send(tmp_path, "train", model(1), **PRIVATE, run_dir=f"/x/{name}").content for name in ("a", "b", "c")]
    spent = [float(answer["ledger"]["epsilon"]) for answer in answers]
    expected = [epsilon([Charge("", "", 1.0, rate, 2 * n)], 1e-5, "rdp") for n in (1, 2, 3)]
    assert spent == pytest.approx(expected)
    assert not torch.equal(update_of(answers[0]), update_of(answers[1]))
    again = send(tmp_path, "train", model(1), **PRIVATE, run_dir="/x/a").content
    assert torch.equal(update_of(again), update_of(answers[0]))  # the same answer costs nothing
    assert float(again["ledger"]["epsilon"]) == pytest.approx(expected[2])


def test_a_budget_holds_over_run_names(tmp_path: Path) -> None:
    spent = send(tmp_path / "a", "train", model(1), **PRIVATE).content["ledger"]["epsilon"]
    budget = {**PRIVATE, "privacy.epsilon-budget": float(spent) * 1.0001}
    send(tmp_path / "b", "train", model(1), **budget)
    with pytest.raises(DefenseError, match="past privacy.epsilon-budget"):
        send(tmp_path / "b", "train", model(1), **budget, run_dir="/x/other")


def test_the_same_data_cut_another_way_still_counts(tmp_path: Path) -> None:
    send(tmp_path, "train", model(1), defenses="none")
    whole = {"num-partitions": 1}
    line = send(tmp_path, "train", model(1), whole, **PRIVATE, run_dir="/x/other").content["ledger"]
    assert "epsilon" not in line  # a heuristic round elsewhere ended the claim
    fresh = send(tmp_path / "fresh", "train", model(1), whole, **PRIVATE, run_dir="/x/other").content["ledger"]
    assert "epsilon" in fresh


def test_the_nats_of_all_runs_add(tmp_path: Path) -> None:
    chosen: dict[str, Any] = {"defenses": "channel-natural", "local_steps": 2}
    lines = [send(tmp_path, "train", model(1), **chosen, run_dir=f"/x/{n}").content["ledger"] for n in "ab"]
    assert lines[1]["channel_nats"] == 2 * float(lines[0]["channel_nats"])
