from pathlib import Path

import pytest

from prunella.deploy.console.summary import rows
from prunella.server.budget import past_budget, too_few
from tests.server.test_rounds import final, go, series

PRIVATE = {"strategy": "random", "defenses": "dp-sgd", "local_steps": 1, "partition": "iid"}


def test_without_a_budget_nobody_is_past_it() -> None:
    assert past_budget({"0": {"epsilon_next": 9.0}}, 0.0) == {}


def test_a_run_ends_before_the_round_that_would_pass_the_budget_and_says_why(tmp_path: Path) -> None:
    free = go(tmp_path / "free", clients=2, rounds=4, **PRIVATE)
    after = series(free, "privacy_epsilon", stat="worst")
    budget = {"privacy__epsilon_budget": after[1] * 1.001}
    federation = go(tmp_path / "paid", clients=2, rounds=4, **budget, **PRIVATE)
    assert final(tmp_path / "paid").round == 2
    assert series(federation, "privacy_epsilon", stat="worst") == pytest.approx(after[:2])
    assert not any(name.startswith("client_failures_total") for name in federation.counters)  # nobody was asked in vain
    note = federation.store.run()["note"]
    assert note.startswith("stopped before round 3: it would bring 2 of 2 clients past privacy.epsilon-budget")
    assert ("note", note) in rows(federation.store.run(), federation.store.metrics(), [])
    resumed = go(tmp_path / "paid", clients=2, rounds=4, **budget, **PRIVATE, resume=True)
    assert final(tmp_path / "paid").round == 2 and resumed.store.run()["note"] == note


def test_a_client_that_spent_more_before_is_left_out_and_the_others_go_on(tmp_path: Path) -> None:
    twice = series(go(tmp_path / "free", clients=3, rounds=2, **PRIVATE), "privacy_epsilon", stat="worst")[1]
    go(tmp_path, clients=3, rounds=1, learning_rate=0.1, **PRIVATE)  # another question, so charged beside the next
    for node in ("1", "2"):  # these two have no other run in their accounts
        for path in sorted((tmp_path / "nodes" / node).rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
    (tmp_path / "run").rename(tmp_path / "earlier")
    budget = {"privacy__epsilon_budget": twice * 1.001, "run_dir": str(tmp_path / "later")}
    federation = go(tmp_path, clients=3, rounds=3, min_clients=2, **budget, **PRIVATE)
    assert series(federation, "clients_selected") == [3.0, 2.0]  # then nobody can afford a third round
    assert federation.strategy.roster.spent == {0, 1, 2}
    assert not any(name.startswith("client_failures_total") for name in federation.counters)


def test_a_budget_of_the_client_s_owner_counts_and_the_note_says_whose_it_was() -> None:
    lines = {"0": {"epsilon_next": 2.1, "epsilon_budget": 2.0}, "1": {"epsilon_next": 2.1, "epsilon_budget": 3.0}}
    assert past_budget(lines, 0.0) == {0: (2.1, 2.0)} and past_budget(lines, 1.0).keys() == {0, 1}
    assert "their own ε budget, the least 2 " in too_few([0, 1], past_budget(lines, 0.0), 2, 0.0, 3)
