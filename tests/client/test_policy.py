"""A client takes part on its owner's conditions or not at all."""

import sys
from pathlib import Path

import pytest
import torch

from client.policy import Policy, check_run, read_policy, within
from core.config import parse_run, parse_section
from core.errors import ConfigError, DefenseError
from privacy.accounting import Privacy
from tests.client.test_app import model, send
from tests.client.test_audit import question
from tests.client.test_budget import PRIVATE


def against(config: dict[str, object], **raw: object) -> None:
    settings = {"defenses": "dgp", "dgp.bottom": 0.75, **raw}
    check_run(read_policy(config), parse_run(settings), settings, parse_section(settings, "privacy", Privacy))


@pytest.mark.parametrize(
    "require",
    ["", "dgp", "dgp, dgp.bottom=0.75", "dgp.bottom = 0.75", "rounds=10", "evaluation=server", "model='cnn'"],
)
def test_a_run_that_meets_them_passes(require: str) -> None:
    against({"require": require}, rounds=10, evaluation="server", model="cnn")
    against({"require": "dgp"}, defenses="channel-natural,dgp")


@pytest.mark.parametrize(
    ("require", "words"),
    [
        ("top-k", "the defenses top-k; the run has dgp"),
        ("dgp, dgp.bottom=0.8", "dgp.bottom=0.8; the run has 0.75"),
        ("dgp.top=0.05", "dgp.top=0.05; the run has no such setting"),
        ("model=cnn", "model=cnn; the run has attacks.rob:cnn"),
    ],
)
def test_another_is_refused_in_words(require: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        against({"require": require}, model="attacks.rob:cnn")


@pytest.mark.parametrize("config", [{"require": "dgp"}, {"require": "rounds=10"}, {"epsilon-budget": 8.0}])
def test_a_defense_of_nobody_knows_whom_is_neither_let_in_nor_imported(config: dict[str, object], capsys) -> None:
    """``this`` prints when it is imported."""
    with pytest.raises(ConfigError, match="defenses of this release; the run has this:KEEP"):
        against(config, rounds=10, defenses="dp-sgd,dgp,this:KEEP")
    with pytest.raises(ConfigError, match="unknown defense in require"):
        read_policy({"require": "this:KEEP"})
    assert "this" not in sys.modules
    against({}, defenses="this:KEEP")  # a client without conditions runs the code of whoever submits


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"require": "dpg"}, "did you mean 'dgp'"),
        ({"require": "dgp.botom=0.75"}, "did you mean 'dgp.bottom'"),
        ({"epsilon-budget": -1.0}, "epsilon-budget in the node configuration"),
        ({"epsilon-budget": "much"}, "epsilon-budget in the node configuration"),
        ({"epsilon-budget": float("nan")}, "epsilon-budget in the node configuration"),
        ({"delta": 1.0}, "delta"),
    ],
)
def test_a_condition_that_cannot_be_held_is_no_condition(config: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_policy(config)


def test_a_model_that_the_server_has_imported_here_must_be_the_owner_s_word() -> None:
    against({}, model="this:model")
    against({"require": "dgp, model=this:model"}, model="this:model")
    for config in ({"require": "dgp"}, {"require": "dgp, model=other:model"}):
        with pytest.raises(ConfigError, match="takes part only with"):
            against(config, model="this:model")
    assert "this" not in sys.modules


def test_a_budget_asks_for_an_epsilon_at_no_larger_a_delta() -> None:
    budget = {"epsilon-budget": 3.0}
    against(budget, defenses="dp-sgd")
    with pytest.raises(ConfigError, match="only with a defense with an ε; the run has dgp"):
        against(budget)
    with pytest.raises(ConfigError, match="privacy.delta of 1e-05 or less; the run has 0.001"):
        against(budget, defenses="dp-sgd", **{"privacy.delta": 1e-3})
    against({**budget, "delta": 1e-3}, defenses="dp-sgd", **{"privacy.delta": 1e-3})


@pytest.mark.parametrize(("own", "run", "holds"), [(0.0, 0.0, 0.0), (0.0, 2.0, 2.0), (3.0, 0.0, 3.0), (3.0, 2.0, 2.0)])
def test_the_smaller_budget_holds(own: float, run: float, holds: float) -> None:
    assert within(Policy(epsilon_budget=own), Privacy(epsilon_budget=run)).epsilon_budget == holds


@pytest.mark.parametrize("kind", ["query.hello", "train", "train.initial", "evaluate", "query.audit"])
def test_no_question_of_a_run_that_does_not_fit_is_answered(tmp_path: Path, kind: str) -> None:
    """The client whose owner asks for nothing answers the same question."""
    content = {"query.audit": question(torch.rand(4, 1, 8, 8))}.get(kind, model())
    run = {"evaluation": "clients", "defenses": "none"}
    assert send(tmp_path / "open", kind, content, **run).has_content()
    with pytest.raises(ConfigError, match="takes part only with the defenses dp-sgd"):
        send(tmp_path / "closed", kind, content, node={"require": "dp-sgd"}, **run)
    assert not (tmp_path / "closed").exists()


def test_the_owner_s_budget_stops_training_whatever_the_run_says(tmp_path: Path) -> None:
    run = {**PRIVATE, "privacy.epsilon-budget": 1e6}
    spent = send(tmp_path / "a", "train", model(1), **run).content["ledger"]["epsilon"]
    mine = {"epsilon-budget": 1.001 * spent}
    line = send(tmp_path / "b", "train", model(1), node=mine, **run).content["ledger"]
    assert line["epsilon_budget"] == pytest.approx(1.001 * spent) and line["epsilon_next"] > spent
    with pytest.raises(DefenseError, match="past"):
        send(tmp_path / "b", "train", model(2), node=mine, **run)
    send(tmp_path / "a", "train", model(2), **run)
