"""The ε of an app that runs Opacus itself."""

from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity
from opacus import PrivacyEngine
from opacus.schedulers import ExponentialNoise
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from prunella.client import state
from prunella.client.accounts import Accounts
from prunella.core.errors import DefenseError, PrunellaError
from prunella.flower.account import Account
from prunella.flower.defend import FAILED, Defend
from prunella.flower.handled import FAILURES
from prunella.flower.site import Site
from prunella.privacy.accounting import Charge, epsilon
from tests.flower.foreign import Net, Seen, load, make, run


def context(folder: Path, run: int = 1, **node: Any) -> Context:
    return Context(run, 1, {"partition-id": 0, "state-dir": str(folder), **node}, RecordDict(), {})


def test_it_adds_up_over_runs_as_the_accountant_does(tmp_path: Path) -> None:
    for number in (1, 2):
        found = Account(context(tmp_path, number)).spend(steps=10, rate=0.1, noise=1.5)
    both = epsilon([Charge("a", 1.5, 0.1, 10), Charge("b", 1.5, 0.1, 10)], 1e-5, "rdp")
    assert found == pytest.approx(both) and Account(context(tmp_path, 9)).epsilon == pytest.approx(both)


def test_past_the_budget_it_refuses_and_charges_nothing(tmp_path: Path) -> None:
    account = Account(context(tmp_path, **{"epsilon-budget": 3.0}))
    before = account.spend(steps=10, rate=0.1, noise=1.5)
    with pytest.raises(DefenseError, match="past privacy.epsilon-budget"):
        account.spend(steps=10_000, rate=1.0, noise=1.0)
    assert before == account.epsilon


def test_the_budget_is_one_with_prunella_s_own_app(tmp_path: Path) -> None:
    Accounts(tmp_path, torch.arange(9)).charge(Charge("own", 1.5, 0.1, 10))
    account = Account(context(tmp_path, **{"epsilon-budget": 3.0}))
    alone = epsilon([Charge("own", 1.5, 0.1, 10)], 1e-5, "rdp")
    assert account.epsilon == pytest.approx(alone)
    with pytest.raises(DefenseError, match="past privacy.epsilon-budget"):
        account.spend(steps=50, rate=0.1, noise=1.5)
    assert Account(context(tmp_path / "alone", **{"epsilon-budget": 3.0})).spend(steps=50, rate=0.1, noise=1.5)


@pytest.mark.parametrize(("steps", "rate", "noise"), [(0, 0.1, 1.0), (1, 0.0, 1.0), (1, 1.1, 1.0), (1, 0.1, 0.0)])
def test_what_gives_no_epsilon_is_refused(steps: int, rate: float, noise: float, tmp_path: Path) -> None:
    with pytest.raises(DefenseError, match="give an ε"):
        Account(context(tmp_path)).spend(steps=steps, rate=rate, noise=noise)


@pytest.mark.parametrize("poisson", [True, False])
def test_opacus_s_own_objects_are_read(poisson: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    loader = DataLoader(TensorDataset(*load(0)), batch_size=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = PrivacyEngine().make_private(
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=2.0, max_grad_norm=1.0,
        poisson_sampling=poisson,
    )  # fmt: skip
    account = Account(context(tmp_path))
    found = account.opacus(made[1], made[2], epochs=2)
    rate = 0.25 if poisson else 1.0
    assert found == pytest.approx(epsilon([Charge("a", 2.0, rate, 8)], 1e-5, "rdp"))
    with pytest.raises(DefenseError, match="noise_multiplier"):
        account.opacus(optimizer, loader)
    many = DataLoader(TensorDataset(torch.zeros(100, 1), torch.zeros(100)), batch_size=8)
    lax = Context(1, 1, {"partition-id": 0, "state-dir": str(tmp_path)}, RecordDict(), {"privacy.delta": 0.01})
    assert not caplog.records
    Account(lax).opacus(made[1], many)
    assert "one over this client's 100 examples" in caplog.text


def private(noise: float = 2.0) -> tuple[nn.Module, Any, Any]:
    """A model, Opacus's optimiser and its loader of four steps."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    loader = DataLoader(TensorDataset(*load(0)), batch_size=8)
    made = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=loader,
        noise_multiplier=noise,
        max_grad_norm=1.0,
    )
    return made


def epoch(model: nn.Module, optimizer: Any, loader: Any, after: Any = lambda: None) -> int:
    steps = 0
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        after()
        steps += 1
    return steps


def test_steps_of_opacus_are_those_that_were_charged(tmp_path: Path) -> None:
    model, optimizer, loader = private()
    account = Account(context(tmp_path))
    account.opacus(optimizer, loader)
    account.opacus(optimizer, loader)
    assert epoch(model, optimizer, loader) == epoch(model, optimizer, loader) == 4
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(DefenseError, match="more steps than were charged"):
        epoch(model, optimizer, loader)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)), "it did not move"


@pytest.mark.parametrize("charge", [False, True])
def test_a_seed_in_the_app_makes_neither_noise_nor_batches_the_same(charge: bool, tmp_path: Path) -> None:
    def trained() -> list[torch.Tensor]:
        torch.manual_seed(42)
        model, optimizer, loader = private()
        if charge:
            Account(context(tmp_path)).opacus(optimizer, loader)
        begun = [p.detach().clone() for p in model.parameters()]
        epoch(model, optimizer, loader)
        return [p.detach() - before for p, before in zip(model.parameters(), begun, strict=True)]

    one, other = trained(), trained()
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True)) is not charge, "Opacus alone repeats itself"


def test_less_noise_than_was_charged_is_refused_and_more_is_not(tmp_path: Path) -> None:
    model, optimizer, loader = private()
    Account(context(tmp_path)).opacus(optimizer, loader)
    rising = ExponentialNoise(optimizer, gamma=1.5)
    assert epoch(model, optimizer, loader, rising.step) == 4
    model, optimizer, loader = private()
    Account(context(tmp_path)).opacus(optimizer, loader)
    with pytest.raises(DefenseError, match="noise has fallen below"):
        epoch(model, optimizer, loader, ExponentialNoise(optimizer, gamma=0.5).step)


@pytest.mark.parametrize("steps", [4.5, "4", None])
def test_steps_are_whole(steps: Any, tmp_path: Path) -> None:
    with pytest.raises(DefenseError, match="whole number"):
        Account(context(tmp_path)).spend(steps=steps, rate=0.1, noise=1.0)


def test_beside_an_update_defense_the_account_stays_covered(tmp_path: Path) -> None:
    """DGP of an update that has an ε has the same one; without Account the answer has none, for good."""

    def counted(model: nn.Module, message: Message, context: Context) -> None:
        Account(context).spend(steps=4, rate=0.25, noise=2.0)

    seen, home = Seen(), tmp_path / "0"
    run(make([Defend()], counted), tmp_path, {"defenses": "dgp"}, rounds=2, tamper=seen)
    two = epsilon([Charge("a", 2.0, 0.25, 4), Charge("b", 2.0, 0.25, 4)], 1e-5, "rdp")
    assert not seen.errors and Account(context(home)).epsilon == pytest.approx(two)
    run(make([Defend()]), tmp_path, {"defenses": "dgp"})
    assert Account(context(home)).epsilon is None


@pytest.mark.parametrize("kind", ["evaluate", "query"])
def test_an_app_may_charge_wherever_defend_has_locked_the_directory(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two locks on one file in one process wait for each other."""
    monkeypatch.setattr(state, "LOCK_SECONDS", 0.1)

    def answer(message: Message, context: Context) -> Message:
        Account(context).spend(steps=4, rate=0.25, noise=2.0)
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    app = ClientApp(mods=[Defend()])
    app.evaluate()(answer)
    app.query()(answer)
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    here = context(tmp_path)
    here.run_config = {"defenses": "dgp"}
    content = RecordDict({"arrays": ArrayRecord(Net().state_dict())})
    reply = app(Message(content, dst_node_id=1, message_type=kind), here)
    found = epsilon([Charge("a", 2.0, 0.25, 4)], 1e-5, "rdp")
    assert not reply.has_error() and Account(here).epsilon == pytest.approx(found)
    with Site(here, "account").store.alone(), pytest.raises(DefenseError, match="still being handled"):
        Account(here).spend(steps=4, rate=0.25, noise=2.0)


@pytest.mark.parametrize("kind", ["evaluate", "query"])
@pytest.mark.parametrize("before", [True, False])
def test_failures_beside_an_epsilon_of_the_app_s_own_are_counted(kind: str, before: bool, tmp_path: Path) -> None:
    """Also those before its first charge: a later message makes the ε, and they would not be in it."""
    asked = []

    def fails(message: Message, context: Context) -> Message:
        asked.append(1)
        raise ValueError("an honest assertion fails on one example")

    app = ClientApp(mods=[Defend()])
    app.evaluate()(fails)
    app.query()(fails)
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    here = context(tmp_path)
    here.run_config = {"defenses": "dgp"}
    if before:
        Account(here).spend(steps=4, rate=0.25, noise=2.0)
    content = RecordDict({"arrays": ArrayRecord(Net().state_dict())})
    for number in range(2 * FAILURES):
        with pytest.raises(PrunellaError, match="failed 20 times" if number >= FAILURES else FAILED):
            app(Message(content, dst_node_id=1, message_type=kind), here)
    assert len(asked) == FAILURES
    app.train()(fails)
    known = Account(here).epsilon
    with pytest.raises(PrunellaError, match="failed 20 times"):
        app(Message(content, dst_node_id=1, message_type="train"), here)
    assert Account(here).epsilon == known and len(asked) == FAILURES, "nothing was trained, and nothing is charged"
