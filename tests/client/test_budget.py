"""An epsilon through real handlers: charged before, refused past the budget, never forgotten, noise drawn once."""

from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import RecordDict

from client.budget import require_charged
from core.errors import DefenseError
from core.records import from_coded, to_coded
from core.trees import full_mask
from privacy.accounting import Charge, epsilon
from tasks.task import initial
from tests.client.test_app import TASK, model, send
from tests.client.test_session import session

PRIVATE: dict[str, Any] = {"defenses": "dp-sgd", "local_steps": 2}


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
    rate = node.run.batch_size / len(node.examples)
    for round in (1, 2, 3):
        ledger = send(tmp_path, "train", model(round), **PRIVATE).content["ledger"]
        assert ledger["epsilon"] == pytest.approx(epsilon([Charge("", "", 1.0, rate, 2 * round)], 1e-5, "rdp"))
    assert ledger["delta"] == 1e-5 and ledger["steps"] == 6.0


def test_the_round_past_the_budget_is_refused_before_anything_is_computed(tmp_path: Path) -> None:
    spent = send(tmp_path / "a", "train", model(1), **PRIVATE).content["ledger"]["epsilon"]
    budget = {**PRIVATE, "privacy.epsilon-budget": spent * 1.0001}
    send(tmp_path / "b", "train", model(1), **budget)
    with pytest.raises(DefenseError, match="past privacy.epsilon-budget"):
        send(tmp_path / "b", "train", model(2), **budget)
    assert [p.name for p in (tmp_path / "b").rglob("round-*")] == ["round-00000001.safetensors"]


def test_the_same_request_is_the_same_answer_and_another_model_in_that_round_is_refused(tmp_path: Path) -> None:
    first = send(tmp_path, "train", model(1), **PRIVATE).content
    later = send(tmp_path, "train", model(2), **PRIVATE).content
    again = send(tmp_path, "train", model(1), **PRIVATE).content
    assert torch.equal(update_of(first), update_of(again)) and not torch.equal(update_of(first), update_of(later))
    assert again["ledger"]["epsilon"] == later["ledger"]["epsilon"]  # going back does not forget round 2
    with pytest.raises(DefenseError, match="another model"):
        send(tmp_path, "train", other_model(1), **PRIVATE)


def test_another_run_draws_other_noise(tmp_path: Path) -> None:
    one = send(tmp_path, "train", model(1), **PRIVATE).content
    two = send(tmp_path, "train", model(1), **PRIVATE, run_dir="/x/other").content
    assert not torch.equal(update_of(one), update_of(two))


def test_a_heuristic_round_ends_the_claim_and_a_budget_refuses_heuristics(tmp_path: Path) -> None:
    send(tmp_path, "train", model(1), defenses="dgp")
    assert "epsilon" not in send(tmp_path, "train", model(2), **PRIVATE).content["ledger"]
    with pytest.raises(DefenseError, match="dp-sgd"):
        send(tmp_path / "b", "train", model(1), defenses="dgp", **{"privacy.epsilon-budget": 5.0})


def test_lost_accounts_stop_the_client(tmp_path: Path) -> None:
    send(tmp_path, "train", model(1), **PRIVATE)
    next(tmp_path.rglob("spent.json")).unlink()
    with pytest.raises(DefenseError, match="restore it"):
        send(tmp_path, "train", model(2), **PRIVATE)


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
    rate = node.run.batch_size / len(node.examples)
    charges = [Charge("", "", 1.0, rate, 4), Charge("", "", 1.0, 1.0, 0, laplace=2.0)]
    assert spent == pytest.approx(epsilon(charges, 1e-5, "rdp"))


def test_a_count_is_noise_drawn_once_and_is_that_of_the_model(tmp_path: Path) -> None:
    first = counts(tmp_path, scale=2.0)["metrics"]["accuracy"]
    assert counts(tmp_path, scale=2.0)["metrics"]["accuracy"] == first
    exact = send(tmp_path / "a", "evaluate", model(), evaluation="clients", defenses="none").content["metrics"]
    close = counts(tmp_path / "b", scale=1e-3)["metrics"]["accuracy"]
    assert close == pytest.approx(exact["accuracy"], abs=1e-3)
    with pytest.raises(DefenseError, match="another model"):
        counts(tmp_path / "b", scale=1e-3, content=other_model(1))


def test_a_count_past_the_budget_is_refused_before_it_is_told(tmp_path: Path) -> None:
    noise = {"evaluation": "clients", "privacy.validation-noise": 1.0, "privacy.epsilon-budget": 0.5}
    with pytest.raises(DefenseError, match="past privacy.epsilon-budget"):
        send(tmp_path, "evaluate", model(), **noise, **PRIVATE)
    assert not list(tmp_path.rglob("accounts/*"))


def test_examples_that_were_only_held_out_are_in_the_account_of_their_scores(tmp_path: Path) -> None:
    counts(tmp_path)
    later = send(tmp_path, "train", model(1), **PRIVATE, run_dir="/x/later").content["ledger"]["epsilon"]
    node = session(tmp_path, {"partition-id": 0})
    rate = node.run.batch_size / len(node.examples)
    charges = [Charge("", "", 1.0, rate, 2), Charge("", "", 1.0, 1.0, 0, laplace=2.0)]
    assert later == pytest.approx(epsilon(charges, 1e-5, "rdp"))


def test_scores_of_examples_a_heuristic_trained_on_stay(tmp_path: Path) -> None:
    send(tmp_path, "train", model(1), evaluation="clients", defenses="dgp")
    with pytest.raises(DefenseError, match="stay here"):
        counts(tmp_path)


def test_the_line_tells_what_the_next_round_would_bring_where_there_is_a_budget(tmp_path: Path) -> None:
    budget = {**PRIVATE, "privacy.epsilon-budget": 50.0}
    first = send(tmp_path, "train", model(1), **budget).content["ledger"]
    second = send(tmp_path, "train", model(2), **budget).content["ledger"]
    assert first["epsilon_next"] == pytest.approx(second["epsilon"])
    assert "epsilon_next" not in send(tmp_path / "b", "train", model(1), **PRIVATE).content["ledger"]


def test_a_scheme_that_prunes_by_private_scores_is_refused_under_an_epsilon(tmp_path: Path) -> None:
    with pytest.raises(DefenseError, match="choose another strategy"):
        send(tmp_path, "train", model(), strategy="lotteryfl", **PRIVATE)


def test_initial_pruning_is_charged(tmp_path: Path) -> None:
    content = model(0)
    send(tmp_path, "train.initial", content, strategy="prunefl", rate=0.5, **PRIVATE)
    node = session(tmp_path, {"partition-id": 0})
    rate = node.run.batch_size / len(node.examples)
    spent = send(tmp_path, "train", model(1), **PRIVATE).content["ledger"]["epsilon"]
    assert spent == pytest.approx(epsilon([Charge("", "", 1.0, rate, 22)], 1e-5, "rdp"))


def test_more_steps_than_were_charged_are_not_sent(tmp_path: Path) -> None:
    with pytest.raises(DefenseError, match="charged"):
        require_charged(session(tmp_path, **PRIVATE), 3, 2)
    require_charged(session(tmp_path, defenses="dgp"), 3, 2)


def test_private_batches_are_poisson_samples(tmp_path: Path) -> None:
    drawn = session(tmp_path, **PRIVATE)
    sizes = [len(batch) for batch in drawn.batches(1, 60)]
    assert len(set(sizes)) > 3 and drawn.procedure.expected_batch == drawn.run.batch_size
    plain = session(tmp_path, defenses="dgp")
    assert {len(batch) for batch in plain.batches(1, 5)} == {plain.run.batch_size}
