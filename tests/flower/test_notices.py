"""What nothing else would show is told once in a run, by the side whose owner can do something about it."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord
from flwr.clientapp import ClientApp
from flwr.common.logger import FLOWER_LOGGER
from flwr.serverapp.strategy import FedAvg, Strategy
from torch import nn

from prunella.flower import notices
from prunella.flower.defend import Defend
from prunella.flower.prune import Prune
from prunella.flower.record import Record, Recorder, Training, record
from prunella.tasks.task import Task
from tests.flower.foreign import Net, Seen, make, run
from tests.flower.test_defend import Norm
from tests.flower.test_loop import guarded, poisson
from tests.flower.test_prune import mixed

QUIET: dict[str, Any] = {"fraction_evaluate": 0.0}
TASK, HOW = Task("tests.flower.test_record:small", (1, 8, 8), 10), Training(0.1, 8)
DGP = {"defenses": "dgp"}


class Told(logging.Handler):
    """What Flower's logger is told."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.levelno, record.getMessage()))

    def of(self, text: str) -> list[tuple[int, str]]:
        return [line for line in self.lines if text in line[1]]


@pytest.fixture
def told() -> Iterator[Told]:
    handler = Told()
    FLOWER_LOGGER.addHandler(handler)
    yield handler
    FLOWER_LOGGER.removeHandler(handler)


def pruned(folder: Path) -> Strategy:
    return Prune(FedAvg(**QUIET), "magnitude", rate=0.3)


def recorded(folder: Path) -> Strategy:
    return Record(FedAvg(**QUIET), folder, TASK, HOW)


def by_function(folder: Path) -> Strategy:
    return record(FedAvg(**QUIET), Recorder(TASK, folder, HOW))


def both(folder: Path) -> Strategy:
    return Record(pruned(folder), folder, TASK, HOW)


@pytest.mark.parametrize(
    ("wrap", "app", "who", "dense"),
    [
        (pruned, make([]), "2 of 2", ", and dense"),
        (recorded, make([]), "2 of 2", ""),
        (by_function, make([]), "2 of 2", ""),
        (both, mixed({}), "1 of 2", ", and dense"),
    ],
)  # fmt: skip
def test_clients_without_defend_are_told_once_where_the_run_names_defenses(
    wrap: Any, app: ClientApp, who: str, dense: str, tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "get_fused_config", lambda run: DGP)
    run(app, tmp_path / "state", DGP, wrap(tmp_path / "traces"), rounds=2)
    (found,) = told.of("without Defend")
    text = f"the run names defenses 'dgp', but {who} clients answered without Defend: undefended{dense}: write "
    assert found == (logging.WARNING, text + "ClientApp(mods=[Defend()])")


def test_who_has_defend_is_no_news_and_without_a_named_defense_it_is_no_warning(tmp_path: Path, told: Told) -> None:
    run(make([Defend()]), tmp_path / "a", DGP, Prune(FedAvg(**QUIET), "magnitude", rate=0.3, run_config=DGP))
    assert not told.of("without Defend")
    none = {"defenses": "none"}
    run(make([]), tmp_path / "b", none, Prune(FedAvg(**QUIET), "magnitude", rate=0.3, run_config=none))
    (found,) = told.of("without Defend")
    assert found == (logging.INFO, "2 of 2 clients answered without Defend: undefended, and dense")


def test_statistics_that_leave_undefended_are_told_once(tmp_path: Path, told: Told) -> None:
    run(make([Defend()], build=Norm), tmp_path / "a", {"defenses": "none"}, build=Norm)
    run(make([Defend()]), tmp_path / "b", DGP)
    assert not told.of("statistics")
    run(make([Defend()], build=Norm), tmp_path / "c", DGP, build=Norm, rounds=2)
    (level, text), _ = told.of("statistics leave undefended")  # of two clients
    assert level == logging.WARNING and "norm.running_mean" in text and "dgp works on weights only" in text
    assert "use GroupNorm" in text and "BatchNorm" not in text, "under an ε no batch norm is taken"


def test_what_no_epsilon_knows_of_a_loader_of_one_s_own_is_said_once(tmp_path: Path, told: Told) -> None:
    for number, (loop, config, count) in enumerate(
        [(guarded, {"defenses": "dp-sgd"}, 2), (poisson, {"defenses": "dp-sgd"}, 0), (guarded, DGP, 0)]
    ):
        told.lines.clear()
        run(make([Defend()], loop), tmp_path / str(number), config, rounds=2)
        lines = told.of("a loader of your own")
        assert len(lines) == count, "of two clients"
        assert all(level == logging.WARNING and "guard.loader(loader)" in text for level, text in lines)


class Body(Net):
    """Of which only the last layer travels: what is before it was trained at the client, and stands still now."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(1, 1, 8, 8))
        self.conv.requires_grad_(False)
        self.fc1.requires_grad_(False)

    def load_state_dict(self, state: Any, **more: Any) -> Any:  # type: ignore[override]
        return super().load_state_dict(state, strict=False)


class Turned(Net):
    """With numbers that its own code makes anew at every start, and that no ``state_dict`` holds."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("inv_freq", torch.arange(8.0), persistent=False)


def head(model: nn.Module) -> ArrayRecord:
    return ArrayRecord({name: t for name, t in model.state_dict().items() if name.startswith("fc2")})


def test_layers_that_did_not_come_are_named_once_under_an_epsilon(tmp_path: Path, told: Told) -> None:
    for number, (build, config, count) in enumerate(
        [
            (Body, {"defenses": "dp-sgd"}, 2),
            (Body, {"defenses": "priprune"}, 0),
            (Net, {"defenses": "dp-sgd"}, 0),
            (Turned, {"defenses": "dp-sgd"}, 0),
        ]
    ):
        told.lines.clear()
        seen, arrays = Seen(), head if build is Body else lambda model: ArrayRecord(model.state_dict())
        app = make([Defend()], guarded, build, arrays)
        run(app, tmp_path / str(number), config, rounds=2, tamper=seen, start=arrays(build()))
        lines = told.of("did not come with the message")
        assert not seen.errors and len(lines) == count, "of two clients"
        named = "(conv.weight, conv.bias, fc1.weight and 2 more)"
        assert all(level == logging.WARNING and named in text for level, text in lines)


def test_numbers_that_stay_are_named_once_with_what_lets_them_out(tmp_path: Path, told: Told) -> None:
    run(make([Defend()]), tmp_path / "a", DGP, FedAvg(), rounds=2)
    stay = [text for _, text in told.of("stay on this client")]
    assert len(stay) == 4, "of two clients, once of training, once of evaluation"
    assert "train_loss, secret; list" in stay[0] and "Defend(metrics=('train_loss', 'secret'))" in stay[0]
    assert "eval_loss, labels" in stay[2]
    told.lines.clear()
    run(make([Defend(metrics=("train_loss", "secret"))]), tmp_path / "b", DGP, rounds=2)
    assert not told.of("stay on this client")


@pytest.mark.parametrize(("loss", "stay"), [(0.5, "secret"), (float("nan"), "train_loss, secret")])
def test_listed_numbers_that_cannot_leave_are_named_once(loss: float, stay: str, tmp_path: Path, told: Told) -> None:
    """The app's ``secret`` is a list."""
    app = make([Defend(metrics=("train_loss", "secret"))], lambda model, message, context: loss)
    run(app, tmp_path, DGP, FedAvg(**QUIET), rounds=2)
    found = told.of("did not leave")
    assert len(found) == 2, "of two clients"
    assert found[0][0] == logging.WARNING and f"listed and did not leave: {stay};" in found[0][1]
