from pathlib import Path

import pytest
import torch
from flwr.app import Context, RecordDict

from prunella.client.session import Session, read_node
from prunella.core.errors import ConfigError
from tests.local_grid import settings


def session(tmp_path: Path, node: dict | None = None, **overrides: object) -> Session:
    config = {"partition-id": 1, "num-partitions": 4, "state-dir": str(tmp_path), **(node or {})}
    return Session(Context(1, 1, config, RecordDict(), settings(**{"run_dir": "/x/run", **overrides})))


def test_consent_is_the_nodes_alone_and_denied_by_default(tmp_path: Path) -> None:
    assert session(tmp_path).node.consent == "deny"
    assert session(tmp_path, {"audit": "scores"}).node.consent == "scores"
    with pytest.raises(ConfigError, match="deny, scores, numbers, pictures"):
        session(tmp_path, {"audit": "yes"})


@pytest.mark.parametrize(("dataset", "rate"), [("digits", 0.25), ("mnist:/nowhere", 0.05)])
def test_a_rate_that_nobody_chose_is_a_number_before_the_owner_s_conditions_are_held_against_it(
    tmp_path: Path, dataset: str, rate: float
) -> None:
    """As `flwr run` hands it to a client."""
    run = settings(run_dir="/x/run") | {"learning-rate": "auto", "dataset": dataset}

    def start(**node: str) -> Session:
        config = {"partition-id": 1, "num-partitions": 4, "state-dir": str(tmp_path), **node}
        return Session(Context(1, 1, config, RecordDict(), run))

    assert start().run.learning_rate == start(require=f"learning-rate={rate}").run.learning_rate == rate
    assert start().raw["learning-rate"] == rate
    with pytest.raises(ConfigError, match=f"takes part only with learning-rate=0.5; the run has {rate}"):
        start(require="learning-rate=0.5")


def test_a_simulation_gives_consent_through_the_environment_and_a_nodes_own_word_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRUNELLA_AUDIT", "scores")
    assert session(tmp_path).node.consent == "scores"
    assert session(tmp_path, {"audit": "deny"}).node.consent == "deny"


def test_a_node_without_a_number_says_how_to_give_one() -> None:
    with pytest.raises(ConfigError, match="partition-id=0"):
        read_node({})


def test_state_lies_where_the_node_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_node({"partition-id": 2, "state-dir": "/here"}).state_dir == Path("/here")
    monkeypatch.setenv("PRUNELLA_STATE_DIR", "/base")
    assert read_node({"partition-id": 2}).state_dir == Path("/base/2/state")
    monkeypatch.delenv("PRUNELLA_STATE_DIR")
    monkeypatch.setenv("FLWR_HOME", "/home/flwr")
    assert read_node({"partition-id": 2}).state_dir == Path("/home/flwr/prunella/2")


def first_batch(one: Session, round: int = 1) -> torch.Tensor:
    return next(one.batches(one.request("train", round))).x


def test_batches_of_a_request_can_be_drawn_again_and_differ_between_requests(tmp_path: Path) -> None:
    first, again = (session(tmp_path) for _ in range(2))
    a, b, c = (list(s.batches(s.request("train", r))) for s, r in ((first, 3), (again, 3), (first, 4)))
    assert len(a) == first.run.local_steps
    assert all(torch.equal(x.x, y.x) and torch.equal(x.y, y.y) for x, y in zip(a, b, strict=True))
    assert not all(torch.equal(x.x, y.x) for x, y in zip(a, c, strict=True))


def test_the_server_cannot_draw_a_clients_batches_unless_the_node_was_given_a_seed(tmp_path: Path) -> None:
    secret, other = session(tmp_path / "a"), session(tmp_path / "b")
    assert not torch.equal(first_batch(secret), first_batch(other))
    seeded = [session(tmp_path / name, {"client-seed": 5}) for name in "cd"]
    assert torch.equal(first_batch(seeded[0]), first_batch(seeded[1]))


CHANGES: dict[str, dict[str, object]] = {
    "strategy": {"strategy": "magnitude"},
    "its section": {"prunefl.initial-interval": 7},
    "another section": {"dgp.top": 0.07},
    "order of examples": {"seed": 1},
    "share": {"partition": "iid"},
    "held out": {"evaluation": "clients"},
    "optimiser": {"momentum": 0.5},
    "steps": {"local_steps": 9},
    "batch": {"batch_size": 15},
    "model": {"model": "precode-cnn"},
    "values": {"values": "int8"},
}


@pytest.mark.parametrize("changed", CHANGES.values(), ids=CHANGES.keys())
def test_whatever_can_change_an_answer_changes_its_digest_and_so_its_noise(
    tmp_path: Path, changed: dict[str, object]
) -> None:
    one, two = session(tmp_path), session(tmp_path, **changed)
    a, b = one.request("train", 1), two.request("train", 1)
    assert a.digest != b.digest and a.key == b.key
    assert not torch.equal(a.generator("defense").normal(4), b.generator("defense").normal(4))


def test_kind_round_and_tensors_change_a_digest_and_places_do_not(tmp_path: Path) -> None:
    one = session(tmp_path)
    tree = {"w": torch.ones(2)}
    asked = [("train", 1, []), ("initial", 1, []), ("train", 2, []), ("train", 1, [tree]), ("train", 1, [tree, tree])]
    assert len({one.request(*each).digest for each in asked}) == len(asked)
    moved = session(tmp_path, resume=True, poll_seconds=0.5, metrics_address="127.0.0.1:1")
    assert moved.request("train", 1) == one.request("train", 1)
    draws = [one.request("train", 1).generator(purpose).normal(3) for purpose in ("batches", "defense", "batches")]
    assert torch.equal(draws[0], draws[2]) and not torch.equal(draws[0], draws[1])


def test_examples_held_out_for_evaluation_are_never_trained_on(tmp_path: Path) -> None:
    here = session(tmp_path, evaluation="clients")
    everything = session(tmp_path).data.examples
    assert len(here.data.examples.y) + len(here.data.held_out.y) == len(everything.y)
    rows = {tuple(x.flatten().tolist()) for x in here.data.held_out.x}
    assert not rows & {tuple(x.flatten().tolist()) for x in here.data.examples.x}


def test_without_a_run_dir_the_memory_of_a_run_has_flowers_number_of_it(tmp_path: Path) -> None:
    """Two runs of Flower's own ``flwr run`` must not meet the state of each other."""

    def name(run: int, **overrides: str) -> str:
        config = {"partition-id": 1, "num-partitions": 4, "state-dir": str(tmp_path)}
        return Session(Context(run, 1, config, RecordDict(), settings(**overrides))).store.folder.name

    assert (name(7), name(8), name(8, run_dir="/x/first")) == ("7", "8", "first")


def test_a_round_trains_at_its_own_rate_and_on_the_network_of_the_round(tmp_path: Path) -> None:
    decaying = session(
        tmp_path, learning_rate=0.5, learning_rate_decay=0.5, strategy="prunefl", prunefl__adjust_interval=2
    )
    rates = [decaying.procedure_of(round).sgd for round in (1, 2, 3)]
    assert [sgd.learning_rate for sgd in rates] == [0.5, 0.25, 0.125]
    shapes = [decaying.procedure_of(round).shape for round in (1, 2)]  # importances are asked for in the second
    assert shapes == [decaying.procedure.shape, None]
    assert session(tmp_path, learning_rate=0.5).procedure_of(9).sgd.learning_rate == 0.5
    halved = session(tmp_path, learning_rate=0.5, learning_rate_horizon=16).procedure_of(9)
    assert halved.sgd.learning_rate == pytest.approx(0.25)
