"""An epsilon through real handlers: charged before, refused past the budget, never forgotten, noise drawn once."""

import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import RecordDict
from torch import nn

import prunella.client.app
from prunella.client.accounts import Accounts
from prunella.client.charging import CHARGED, FAILED, TRIES, charged, require_charged, require_coverable
from prunella.core.errors import DefenseError
from prunella.core.trees import full_mask
from prunella.privacy.accounting import Charge, epsilon
from prunella.tasks.examples import poisson_batches
from prunella.tasks.task import Task, initial
from prunella.tasks.training import evaluate
from prunella.wire.records import from_coded, to_coded
from tests.client.test_app import TASK, model, send
from tests.client.test_session import session

RUN: dict[str, Any] = {"defenses": "dp-sgd", "local_steps": 2}
PRIVATE: dict[str, Any] = {**RUN, "node": {"client-seed": None}}


def update_of(content: RecordDict) -> torch.Tensor:
    tree, _ = from_coded(content["update"], initial(TASK, 0)[0], full_mask(initial(TASK, 0)[0]))
    return torch.cat([t.flatten() for t in tree.values()])


def other_model(round: int) -> RecordDict:
    content = model(round)
    params = {name: t + 0.01 for name, t in initial(TASK, 0)[0].items()}
    content["model"] = to_coded(params, full_mask(params))
    return content


def test_the_ledger_line_is_what_the_accountant_says_of_every_step(tmp_path: Path) -> None:
    node = session(tmp_path, {"partition-id": 0})
    rate = node.run.batch_size / len(node.data.examples)
    for round in (1, 2, 3):
        ledger = send(tmp_path, "train", model(round), **PRIVATE).content["ledger"]
        assert ledger["epsilon"] == pytest.approx(epsilon([Charge("", 1.0, rate, 2 * round)], 1e-5, "rdp"))
    assert ledger["delta"] == 1e-5 and ledger["steps"] == 6.0


def test_a_delta_that_allows_an_example_to_be_handed_out_is_said_with_the_claim(tmp_path: Path) -> None:
    examples = len(session(tmp_path, {"partition-id": 0}).data.examples)
    for share, said in ((1.0, True), (0.99, False)):
        private = {**PRIVATE, "privacy.delta": share / examples}
        ledger = send(tmp_path / str(said), "train", model(1), **private).content["ledger"]
        assert (f"not below one over this client's {examples} examples" in str(ledger["claims"])) is said
    plain = send(tmp_path / "plain", "train", model(1), **{**RUN, "defenses": "dgp", "privacy.delta": 1 / examples})
    assert "examples" not in str(plain.content["ledger"]["claims"])


def test_the_round_past_the_budget_is_refused_before_anything_is_computed(tmp_path: Path) -> None:
    spent = send(tmp_path / "a", "train", model(1), **PRIVATE).content["ledger"]["epsilon"]
    budget = {**PRIVATE, "privacy.epsilon-budget": spent * 1.0001}
    send(tmp_path / "b", "train", model(1), **budget)
    with pytest.raises(DefenseError, match="past privacy.epsilon-budget"):
        send(tmp_path / "b", "train", model(2), **budget)
    assert [p.name for p in (tmp_path / "b").rglob("round-*")] == ["round-00000001.safetensors"]


def test_the_same_request_is_the_same_answer_and_another_model_in_that_round_is_charged_anew(tmp_path: Path) -> None:
    first = send(tmp_path, "train", model(1), **PRIVATE).content
    later = send(tmp_path, "train", model(2), **PRIVATE).content
    again = send(tmp_path, "train", model(1), **PRIVATE).content
    assert torch.equal(update_of(first), update_of(again)) and not torch.equal(update_of(first), update_of(later))
    assert again["ledger"]["epsilon"] == later["ledger"]["epsilon"]  # going back does not forget round 2
    other = send(tmp_path, "train", other_model(1), **PRIVATE).content
    assert other["ledger"]["epsilon"] > again["ledger"]["epsilon"]
    apart = (update_of(other) - update_of(first)).double()
    noise = 0.25 * 1.0 / 16  # learning rate * deviation / batch, for either of two steps and two answers
    assert apart.std() > 0.9 * 2 * noise, "the two answers share noise"


def test_a_seed_that_others_may_know_has_no_epsilon_and_meets_no_budget(tmp_path: Path) -> None:
    ledger = send(tmp_path, "train", model(1), **RUN).content["ledger"]
    assert "epsilon" not in ledger and "client-seed" in ledger["claims"]
    with pytest.raises(DefenseError, match="had an ε"):
        send(tmp_path / "b", "train", model(1), **RUN, **{"privacy.epsilon-budget": 50.0})
    channel = send(tmp_path / "c", "train", model(1), defenses="channel-natural").content["ledger"]
    assert "channel_nats" not in channel


@pytest.mark.parametrize("round", [0, -1, 2**40, True, "1", 1.0])
def test_rounds_that_a_run_does_not_have_are_not_answered(tmp_path: Path, round: object) -> None:
    content = model(1)
    content["config"]["round"] = round  # type: ignore[index]
    for kind, run in (("train", {}), ("evaluate", {"evaluation": "clients", "privacy.validation-noise": 2.0})):
        with pytest.raises(Exception, match="numbered from 1"):
            send(tmp_path, kind, content, **run, **PRIVATE)


# ---- errors answer nothing


def loud(times: float, round: int = 1) -> RecordDict:
    """A model that multiplies: its gradients overflow where an image lights up."""
    content = model(round)
    params = {name: t * times for name, t in initial(TASK, 0)[0].items()}
    content["model"] = to_coded(params, full_mask(params))
    return content


@pytest.mark.parametrize("times", [1e5, 1e12, 1e30])
def test_a_gradient_that_overflows_is_charged_and_tells_nothing(tmp_path: Path, times: float) -> None:
    account = Accounts(tmp_path, session(tmp_path, {"partition-id": 0}).accounts.raw)
    try:
        send(tmp_path, "train", loud(times), **PRIVATE)
    except DefenseError as error:
        assert str(error) == FAILED
    assert len(account.ledger().charges) == 1, "an answer, or a failure, that nobody paid for"


def test_what_fails_after_nats_were_charged_says_so_and_is_no_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise DefenseError("training led to values that are not finite")

    monkeypatch.setattr("prunella.client.app.local_update", fail)
    with pytest.raises(DefenseError, match="not finite .*" + CHARGED):
        send(tmp_path, "train", model(1), {"client-seed": None}, defenses="channel-natural")
    assert session(tmp_path, {"partition-id": 0}).accounts.ledger().nats, "and it was charged"
    with pytest.raises(DefenseError, match="not finite$"):
        send(tmp_path / "none", "train", model(1), defenses="none")


@pytest.mark.parametrize("fault", ["training", "reply", "disk"])
def test_after_the_charge_every_failure_has_one_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        charges = session(tmp_path, {"partition-id": 0}).accounts.ledger().charges
        raise ValueError(f"pixel 0.25 of the image; {len(charges)} charges by now")

    where = {"training": "prunella.client.app.local_update", "reply": "prunella.client.training.build_reply"}
    target = where.get(fault, "prunella.client.state.ClientStore.save")
    monkeypatch.setattr(target, fail)
    with pytest.raises(DefenseError) as caught:
        send(tmp_path, "train", model(1), **PRIVATE)
    assert str(caught.value) == FAILED and caught.value.__cause__ is None
    assert len(session(tmp_path, {"partition-id": 0}).accounts.ledger().charges) == 1


def test_the_charge_is_on_the_disk_before_the_first_example_is_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    charges = []

    def watched(*arguments: Any) -> Any:
        charges.append(session(tmp_path, {"partition-id": 0}).accounts.ledger().charges)
        return poisson_batches(*arguments)

    monkeypatch.setattr("prunella.client.session.poisson_batches", watched)
    send(tmp_path, "train", model(1), **PRIVATE)
    send(tmp_path, "train.initial", model(0), strategy="prunefl", rate=0.5, **PRIVATE)
    assert [len(found) for found in charges] == [1, 2]


def test_the_time_of_a_poisson_batch_does_not_leave(tmp_path: Path) -> None:
    assert set(send(tmp_path, "train", model(1), **PRIVATE).content["metrics"]) == {"num-examples"}


class Drops(nn.Module):
    """``cnn`` with a layer that draws, from a generator of the test's choice."""

    def __init__(self, draw: Callable[[], object]) -> None:
        super().__init__()
        self.inner, self.draw = TASK.build(), draw

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.draw()
        return self.inner(x)  # type: ignore[no-any-return]


def test_models_that_draw_are_refused_under_an_epsilon_before_the_charge(tmp_path: Path) -> None:
    for number, draw in enumerate((lambda: torch.rand(1), lambda: np.random.rand(1), random.random)):  # noqa: NPY002
        here = session(tmp_path / str(number), {"partition-id": 0}, **RUN)
        here.procedure = replace(here.procedure, module=Drops(draw))
        with pytest.raises(DefenseError, match="draws random numbers"):
            require_coverable(here, {})
    for free in ({"model": "precode-cnn", "defenses": "dp-sgd"}, {"model": "resnet10", "defenses": "dp-sgd"}):
        one = session(tmp_path / "x", {"partition-id": 0}, **free)
        with pytest.raises(DefenseError):
            require_coverable(one, one.data.like[1])
    quiet = session(tmp_path / "y", {"partition-id": 0}, **RUN)
    require_coverable(quiet, {})


@pytest.mark.parametrize(("passes", "refused"), [(TRIES - 1, False), (TRIES, True)])
def test_a_draw_of_flower_s_own_threads_costs_no_answer(tmp_path: Path, passes: int, refused: bool) -> None:
    """They draw from Python's generator, at times during a pass: what does so in every pass is the model."""
    left = iter(range(passes))
    here = session(tmp_path, **RUN)
    here.procedure = replace(
        here.procedure, module=Drops(lambda: random.random() if next(left, None) is not None else 0)
    )
    with pytest.raises(DefenseError, match="draws random numbers") if refused else nullcontext():
        require_coverable(here, {})


def normed(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Batch norm without statistics: nothing that a look for buffers finds."""
    inputs = shape[0] * shape[1] * shape[2]
    norm = nn.BatchNorm1d(16, track_running_stats=False)
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 16), norm, nn.ReLU(), nn.Linear(16, classes))


class Remembers(nn.Module):
    """Its answer depends on how many came before."""

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        self.linear, self.seen = nn.Linear(shape[0] * shape[1] * shape[2], classes), 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1.0
        return self.linear(x.flatten(1)) * self.seen  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["train", "evaluate"])
@pytest.mark.parametrize(("build", "words"), [("normed", "2 is batch norm.* group"), ("Remembers", "otherwise every")])
def test_a_model_that_mixes_examples_is_refused_before_the_charge(
    build: str, words: str, kind: str, tmp_path: Path
) -> None:
    task = Task(f"{__name__}:{build}", TASK.shape, TASK.classes)
    params, _ = initial(task, 0)
    content = model(1)
    content["model"] = to_coded(params, full_mask(params))
    noise = {"evaluation": "clients", "privacy.validation-noise": 2.0}
    with pytest.raises(DefenseError, match=words):
        send(tmp_path, kind, content, model=task.model, **noise, **PRIVATE)
    assert not session(tmp_path, {"partition-id": 0}).accounts.ledger().charges


def test_a_draw_in_the_middle_of_the_work_stops_the_answer(tmp_path: Path) -> None:
    with pytest.raises(DefenseError, match=FAILED), charged(session(tmp_path, **RUN)):
        torch.rand(1)
    with charged(session(tmp_path, defenses="dgp")):
        torch.rand(1)


def test_a_heuristic_round_ends_the_claim_and_a_budget_refuses_heuristics(tmp_path: Path) -> None:
    send(tmp_path, "train", model(1), defenses="dgp")
    assert "epsilon" not in send(tmp_path, "train", model(2), **PRIVATE).content["ledger"]
    with pytest.raises(DefenseError, match="dp-sgd"):
        send(tmp_path / "b", "train", model(1), defenses="dgp", **{"privacy.epsilon-budget": 5.0})


def test_scores_of_private_examples_do_not_leave_under_an_epsilon(tmp_path: Path) -> None:
    with pytest.raises(DefenseError, match="evaluation=server"):
        send(tmp_path, "evaluate", model(), evaluation="clients", **PRIVATE)


def counts(folder: Path, round: int = 1, scale: float = 2.0, content: RecordDict | None = None) -> RecordDict:
    noise = {"evaluation": "clients", "privacy.validation-noise": scale}
    return send(folder, "evaluate", content or model(round), **noise, **PRIVATE).content


def test_under_an_epsilon_a_noisy_count_leaves_and_is_charged(tmp_path: Path) -> None:
    noise = {"evaluation": "clients", "privacy.validation-noise": 2.0}
    send(tmp_path, "train", model(1), **noise, **PRIVATE)
    told = counts(tmp_path)["metrics"]
    assert set(told) == {"num-examples", "accuracy"} and 0 <= told["accuracy"] <= 1
    spent = send(tmp_path, "train", model(2), **noise, **PRIVATE).content["ledger"]["epsilon"]
    node = session(tmp_path, {"partition-id": 0}, evaluation="clients")
    rate = node.run.batch_size / len(node.data.examples)
    charges = [Charge("", 1.0, rate, 4), Charge("", laplace=2.0)]
    assert spent == pytest.approx(epsilon(charges, 1e-5, "rdp"))


def test_a_count_is_noise_drawn_once_and_is_that_of_the_model(tmp_path: Path) -> None:
    first = counts(tmp_path, scale=2.0)["metrics"]["accuracy"]
    assert counts(tmp_path, scale=2.0)["metrics"]["accuracy"] == first
    exact = send(tmp_path / "a", "evaluate", model(), evaluation="clients", defenses="none").content["metrics"]
    close = counts(tmp_path / "b", scale=1e-3)["metrics"]["accuracy"]
    assert close == pytest.approx(exact["accuracy"], abs=1e-3)
    draws = {counts(tmp_path / "c", scale=4.0, content=loud(1 + n / 100))["metrics"]["accuracy"] for n in range(16)}
    assert len(draws) > 3, "other models are other questions with noise of their own"


class Centred(nn.Module):
    """Logits less their mean over the batch, as an attention without ``batch_first`` mixes examples: one alone has no
    logits but zero."""

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(shape[0] * shape[1] * shape[2], classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.linear(x.flatten(1))
        return logits - logits.mean(0)  # type: ignore[no-any-return]


def test_one_example_is_at_most_one_of_the_count_though_the_model_mixes_them(tmp_path: Path) -> None:
    task = Task(f"{__name__}:Centred", TASK.shape, TASK.classes)
    params, _ = initial(task, 1)
    content = model(1)
    content["model"] = to_coded(params, full_mask(params))
    noise = {"evaluation": "clients", "privacy.validation-noise": 1e-3}
    told = send(tmp_path, "evaluate", content, model=task.model, **noise, **PRIVATE).content["metrics"]
    held = session(tmp_path, {"partition-id": 0}, evaluation="clients").data.held_out
    alone = float((held.y == 0).float().mean())  # the first of equal logits
    together = evaluate(task.build(), params, {}, held.x, held.y).accuracy
    assert told["accuracy"] == pytest.approx(alone, abs=1e-3) and abs(together - alone) > 0.02


def test_a_count_past_the_budget_is_refused_before_it_is_told(tmp_path: Path) -> None:
    noise = {"evaluation": "clients", "privacy.validation-noise": 1.0, "privacy.epsilon-budget": 0.5}
    with pytest.raises(DefenseError, match="past privacy.epsilon-budget"):
        send(tmp_path, "evaluate", model(), **noise, **PRIVATE)
    assert not session(tmp_path, {"partition-id": 0}).accounts.ledger().charges


def test_examples_that_were_only_held_out_are_in_the_account_of_their_scores(tmp_path: Path) -> None:
    counts(tmp_path)
    later = send(tmp_path, "train", model(1), **PRIVATE, run_dir="/x/later").content["ledger"]["epsilon"]
    node = session(tmp_path, {"partition-id": 0})
    rate = node.run.batch_size / len(node.data.examples)
    charges = [Charge("", 1.0, rate, 2), Charge("", laplace=2.0)]
    assert later == pytest.approx(epsilon(charges, 1e-5, "rdp"))


def test_scores_of_examples_a_heuristic_trained_on_stay(tmp_path: Path) -> None:
    send(tmp_path, "train", model(1), evaluation="clients", defenses="dgp")
    with pytest.raises(DefenseError, match="stay here"):
        counts(tmp_path)


def test_the_line_tells_what_the_next_round_would_bring_and_the_budget(tmp_path: Path) -> None:
    budget = {**PRIVATE, "privacy.epsilon-budget": 50.0}
    first = send(tmp_path, "train", model(1), **budget).content["ledger"]
    second = send(tmp_path, "train", model(2), **budget).content["ledger"]
    assert first["epsilon_next"] == pytest.approx(second["epsilon"])
    assert first["epsilon_budget"] == 50.0
    free = send(tmp_path / "b", "train", model(1), **PRIVATE).content["ledger"]
    assert free["epsilon_next"] == pytest.approx(second["epsilon"]) and "epsilon_budget" not in free
    assert "epsilon_next" not in send(tmp_path / "c", "train", model(1), defenses="dgp").content["ledger"]


def test_a_scheme_that_prunes_by_private_scores_is_refused_under_an_epsilon(tmp_path: Path) -> None:
    with pytest.raises(DefenseError, match="choose another strategy"):
        send(tmp_path, "train", model(), strategy="lotteryfl", **PRIVATE)


def test_initial_pruning_is_charged(tmp_path: Path) -> None:
    content = model(0)
    first = send(tmp_path, "train.initial", content, strategy="prunefl", rate=0.5, **PRIVATE).content["ledger"]
    node = session(tmp_path, {"partition-id": 0})
    rate = node.run.batch_size / len(node.data.examples)
    spent = send(tmp_path, "train", model(1), **PRIVATE).content["ledger"]["epsilon"]
    assert spent == pytest.approx(epsilon([Charge("", 1.0, rate, 22)], 1e-5, "rdp"))
    assert first["epsilon"] == pytest.approx(epsilon([Charge("", 1.0, rate, 20)], 1e-5, "rdp"))


def test_more_steps_than_were_charged_are_not_sent(tmp_path: Path) -> None:
    with pytest.raises(DefenseError, match="charged"):
        require_charged(session(tmp_path, **RUN), 3, 2)
    require_charged(session(tmp_path, defenses="dgp"), 3, 2)


@pytest.mark.parametrize(("defenses", "fixed"), [("channel-natural", True), ("dgp", False), ("none", False)])
def test_on_a_gpu_an_answer_that_may_only_be_given_again_is_made_in_one_order(
    defenses: str, fixed: bool, tmp_path: Path, pretended: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a server that resumes asks a client again, and its own answer is not the one that may leave."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    update, asked = prunella.client.app.local_update, list[bool]()

    def noted(*given: Any) -> Any:
        asked.append(torch.are_deterministic_algorithms_enabled())
        return update(*given)

    monkeypatch.setattr(prunella.client.app, "local_update", noted)
    send(tmp_path, "train", model(1), defenses=defenses, device="cuda:0", node={"client-seed": None})
    assert asked == [fixed] and not torch.are_deterministic_algorithms_enabled()


def test_private_batches_are_poisson_samples(tmp_path: Path) -> None:
    drawn = session(tmp_path, **RUN)
    sizes = [len(batch) for batch in drawn.batches(drawn.request("train", 1), 60)]
    assert len(set(sizes)) > 3 and drawn.procedure.expected_batch == drawn.run.batch_size
    plain = session(tmp_path, defenses="dgp")
    assert {len(batch) for batch in plain.batches(plain.request("train", 1), 5)} == {plain.run.batch_size}
