"""What was let through of examples is not forgotten when a server renames a run, cuts the data or decodes it anew."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, RecordDict
from PIL import Image

from prunella.client import accounts
from prunella.client.accounts import APPS, BEGUN, FILE, Accounts
from prunella.client.charging import FAILED
from prunella.client.state import ClientStore
from prunella.core.errors import DefenseError
from prunella.core.files import read_tree, write_tree
from prunella.core.trees import full_mask
from prunella.privacy.accounting import Charge, epsilon
from prunella.privacy.ledger.ledger import UNBOUNDED, Ledger
from prunella.tasks.per_example import per_example_gradients
from prunella.tasks.task import Task, initial
from prunella.wire.records import to_coded
from tests.client.test_app import model, send
from tests.client.test_charging import update_of
from tests.client.test_session import session

PRIVATE: dict[str, Any] = {"defenses": "dp-sgd", "local_steps": 2, "node": {"client-seed": None}}
RAW = torch.arange(6)


def charge(name: str, nats: float | None = None) -> Charge:
    return Charge(name, 1.0, 0.1, 2, nats=nats)


def test_an_account_is_found_by_any_shared_example_and_by_no_other(tmp_path: Path) -> None:
    Accounts(tmp_path, RAW[:4]).charge(charge("1", 3.0))
    Accounts(tmp_path, RAW[3:5]).charge(charge("2", 4.0))
    assert Accounts(tmp_path, RAW[:3]).ledger().nats == 3.0
    both = Accounts(tmp_path, RAW[3:4]).ledger()
    assert both.nats == 7.0 and len(both.charges) == 2
    assert Accounts(tmp_path, RAW[5:]).ledger() == Ledger()
    Accounts(tmp_path, RAW[3:4]).charge(UNBOUNDED)
    assert not Accounts(tmp_path, RAW[:4]).ledger().covered and Accounts(tmp_path, RAW[:4]).ledger().nats is None
    assert Accounts(tmp_path, RAW[:3]).ledger().covered


def test_one_question_is_one_charge_and_one_file_holds_all_for_its_owner_alone(tmp_path: Path) -> None:
    account = Accounts(tmp_path, RAW)
    for name in ("1", "2", "1"):
        account.charge(charge(name))
    assert [c.digest for c in account.ledger().charges] == ["1", "2"]
    assert Accounts(tmp_path, RAW.flip(0)).name == account.name  # a set has no order
    files = {path.name: path.stat() for path in tmp_path.rglob("*") if path.is_file()}
    assert files.keys() == {FILE, BEGUN} and stat.S_IMODE(files[FILE].st_mode) == 0o600 and not files[BEGUN].st_size


def test_the_key_is_256_bits_of_this_client_alone_and_stays(tmp_path: Path) -> None:
    key = Accounts(tmp_path / "a", RAW).key()
    assert len(key) == 32 and Accounts(tmp_path / "a", RAW[2:]).key() == key
    keys = {Accounts(tmp_path / str(n), RAW).key() for n in range(50)} | {key}
    assert len(keys) == 51
    flips = sum(bin(a ^ b).count("1") for other in keys - {key} for a, b in zip(key, other, strict=True))
    assert 0.4 < flips / (50 * 256) < 0.6


def test_answers_are_rationed_by_question_and_in_all_about_any_of_the_examples(tmp_path: Path) -> None:
    a, b, c = Accounts(tmp_path, RAW[:4]), Accounts(tmp_path, RAW[3:]), Accounts(tmp_path, RAW[5:])
    assert [one.claim("audits", "x", 2, 4) for one in (a, b, a)] == [True, True, False]
    assert [one.claim("audits", name, 2, 4) for one, name in ((b, "p"), (b, "q"), (a, "r"))] == [True, True, False]
    assert c.claim("numbers", "x", 2, 4), "another kind has its own ration"


def test_ever_new_sets_become_one_and_nothing_of_them_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = 16
    monkeypatch.setattr("prunella.client.accounts.SETS", many)
    raw = torch.arange(1000)
    for number in range(3 * many):
        account = Accounts(tmp_path, raw[number : number + 5])
        account.charge(Charge(str(number), 1.0, 0.1, 1))
        assert account.claim("audits", "x", 10**6, 10**6)
    sets, _ = read_tree(tmp_path / FILE)
    assert len(sets) <= many and sum(len(each) for each in sets.values()) < 500
    whole = Accounts(tmp_path, raw)
    assert {charge.digest for charge in whole.ledger().charges} == {str(number) for number in range(3 * many)}
    assert not whole.claim("audits", "y", 10**6, 3 * many) and whole.claim("audits", "y", 10**6, 3 * many + 1)
    assert Accounts(tmp_path, raw[900:]).ledger() == Ledger()


@pytest.mark.parametrize("damage", ["bytes", "gone", "key", "charges", "tensor", "empty"])
def test_a_damaged_or_lost_account_stops_the_client(tmp_path: Path, damage: str) -> None:
    send(tmp_path, "train", model(1), **PRIVATE)
    path = tmp_path / FILE
    sets, notes = read_tree(path)
    if damage == "gone":
        path.unlink()
    elif damage in ("bytes", "empty"):
        path.write_bytes(b"x" * 100 if damage == "bytes" else b"")
    elif damage == "key":
        write_tree(path, sets, notes | {"key": "00"})
    elif damage == "charges":
        write_tree(path, sets, notes | {"charges": json.dumps({name: [{"digest": 1}] for name in sets})})
    else:
        write_tree(path, {}, notes)
    with pytest.raises(DefenseError):
        send(tmp_path, "train", model(2), **{**PRIVATE, "run_dir": "/x/other"})


def test_an_account_that_is_all_a_client_keeps_is_missed_too(tmp_path: Path) -> None:
    account = Accounts(tmp_path, RAW)
    account.charge(charge("1"))
    (tmp_path / FILE).unlink()
    for use in (account.ledger, account.key, lambda: Accounts(tmp_path, RAW[5:]).charge(charge("2"))):
        with pytest.raises(DefenseError, match="restore"):
            use()


def test_what_approved_apps_spent_counts_in_the_own_app_s_account_and_the_other_way_round(tmp_path: Path) -> None:
    own, apps = Accounts(tmp_path, RAW, tmp_path / APPS), Accounts(tmp_path / APPS, torch.zeros(1).long(), tmp_path)
    own.charge(charge("1"))
    assert [c.digest for c in apps.ledger().charges] == ["1"]
    apps.charge(charge("2"))
    assert {c.digest for c in own.ledger().charges} == {c.digest for c in apps.ledger().charges} == {"1", "2"}
    (tmp_path / APPS / FILE).unlink()
    with pytest.raises(DefenseError, match=f"restore {APPS}/{FILE}"):
        own.ledger()


def test_two_apps_at_once_could_each_spend_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prunella.client.state.LOCK_SECONDS", 0.05)
    own, apps = ClientStore(tmp_path, "run"), ClientStore(tmp_path / APPS, "run")
    for one, other in ((own, apps), (apps, own)):
        with one.alone(), pytest.raises(DefenseError, match="still being handled"), other.alone():
            raise AssertionError("both at once")


def test_a_renamed_run_neither_resets_epsilon_nor_pays_twice_for_one_answer(tmp_path: Path) -> None:
    node = session(tmp_path / "like", {"partition-id": 0})
    rate = node.run.batch_size / len(node.data.examples)
    one, same = (send(tmp_path, "train", model(1), **PRIVATE, run_dir=f"/x/{name}").content for name in "ab")
    assert torch.equal(update_of(one), update_of(same)) and one["ledger"]["epsilon"] == same["ledger"]["epsilon"]
    other = send(tmp_path, "train", model(2), **PRIVATE, run_dir="/x/c").content
    assert not torch.equal(update_of(one), update_of(other))
    assert other["ledger"]["epsilon"] == pytest.approx(epsilon([Charge("", 1.0, rate, 4)], 1e-5, "rdp"))


def test_a_budget_holds_over_run_names(tmp_path: Path) -> None:
    spent = send(tmp_path / "a", "train", model(1), **PRIVATE).content["ledger"]["epsilon"]
    budget = {**PRIVATE, "privacy.epsilon-budget": float(spent) * 1.0001}
    send(tmp_path / "b", "train", model(1), **budget)
    with pytest.raises(DefenseError, match="past privacy.epsilon-budget"):
        send(tmp_path / "b", "train", model(2), **budget, run_dir="/x/other")


@pytest.mark.parametrize("changed", [{"num-partitions": 1}, {"num-partitions": 2}])
def test_the_same_data_cut_another_way_still_counts(tmp_path: Path, changed: dict[str, Any]) -> None:
    send(tmp_path, "train", model(1), defenses="none")
    cut = {**PRIVATE, "node": {"client-seed": None, **changed}, "run_dir": "/x/other"}
    line = send(tmp_path, "train", model(1), **cut).content["ledger"]
    assert "epsilon" not in line  # a heuristic round elsewhere ended the claim
    assert "epsilon" in send(tmp_path / "fresh", "train", model(1), **cut).content["ledger"]


def test_the_nats_of_all_runs_add(tmp_path: Path) -> None:
    chosen: dict[str, Any] = {"defenses": "channel-natural", "local_steps": 2, "node": {"client-seed": None}}
    first, again, other = (
        float(send(tmp_path, "train", model(round), **chosen, run_dir=f"/x/{name}").content["ledger"]["channel_nats"])
        for round, name in ((1, "a"), (1, "b"), (2, "c"))
    )
    assert first == again and other == 2 * first  # the same answer once more tells nothing more


def pictures(folder: Path) -> Path:
    for label in ("cat", "dog"):
        (folder / label).mkdir(parents=True)
        for number in range(4):
            pixels = torch.randint(256, (20, 20), generator=torch.Generator().manual_seed(number + len(label)))
            Image.fromarray(pixels.byte().numpy()).save(folder / label / f"{number}.png")
    return folder


def of_size(side: int) -> tuple[RecordDict, dict[str, Any]]:
    params, _ = initial(Task("cnn", (1, side, side), 2), 0)
    content = RecordDict({"model": to_coded(params, full_mask(params)), "config": ConfigRecord({"round": 1})})
    return content, {**PRIVATE, "dataset": f"imagefolder@1x{side}x{side}", "batch_size": 2}


def test_an_epsilon_is_of_the_files_at_whatever_size_they_are_decoded(tmp_path: Path) -> None:
    node = {"client-seed": None, "data": str(pictures(tmp_path / "data")), "partition-id": 0, "num-partitions": 1}
    spent = []
    for side in (16, 18, 20):
        content, run = of_size(side)
        reply = send(tmp_path / "home", "train", content, **{**run, "node": node}).content
        spent.append(float(reply["ledger"]["epsilon"]))
    rate = 2 / 8
    assert spent == pytest.approx([epsilon([Charge("", 1.0, rate, 2 * n)], 1e-5, "rdp") for n in (1, 2, 3)])
    budget = {"node": node, "privacy.epsilon-budget": spent[2] * 1.0001}
    content, run = of_size(24)
    with pytest.raises(DefenseError, match="past privacy.epsilon-budget"):
        send(tmp_path / "home", "train", content, **{**run, **budget})


def test_the_same_question_is_not_answered_in_another_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that rounds otherwise would put another sum under the same noise, and the difference leaves bare."""
    first = send(tmp_path, "train", model(1), **PRIVATE).content
    assert torch.equal(update_of(send(tmp_path, "train", model(1), **PRIVATE).content), update_of(first))

    def rounded_otherwise(*arguments: Any, **keywords: Any) -> Any:
        for tree in per_example_gradients(*arguments, **keywords):
            yield {name: tensor * (1 + 1e-3) for name, tensor in tree.items()}

    monkeypatch.setattr("prunella.strategies.round.local.per_example_gradients", rounded_otherwise)
    with pytest.raises(DefenseError, match=FAILED):
        send(tmp_path, "train", model(1), **PRIVATE)
    assert send(tmp_path, "train", model(2), **PRIVATE).content["ledger"]["epsilon"] > first["ledger"]["epsilon"]


def test_a_full_account_is_still_read_and_takes_no_further_charge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A longer header than the file's format allows could never be read again."""
    monkeypatch.setattr(accounts, "FULL", 2_000)
    mine = Accounts(tmp_path, torch.arange(9))
    with pytest.raises(DefenseError, match="account is full"):
        for number in range(100):
            mine.charge(Charge(str(number), 1.0, 0.1, 1))
    known = mine.ledger()
    assert 5 < len(known.charges) == number < 100
    with pytest.raises(DefenseError, match="account is full"):
        mine.charge(Charge("one more", 1.0, 0.1, 1))
    assert mine.ledger() == known
