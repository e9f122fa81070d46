"""The gate: a site's conditions hold for an app that was written without them, and for one written against them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod
from flwr.supercore.task_identity import TaskIdentity
from torch import nn

from prunella.core.errors import DefenseError, PrunellaError
from prunella.flower.defend import FAILED, Defend
from prunella.flower.gate import Gate
from prunella.flower.loop import protected
from prunella.flower.scheme import Settled
from tests.flower.foreign import RATE, Net, batches, plain

PRIVATE = "patient 4711"
Content = Callable[[nn.Module], RecordDict]


def guarded(model: nn.Module, message: Message, context: Context, rate: float = RATE) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    with protected(message, context, model) as guard:
        for x, y in batches(0):
            guard.step(x, y, nn.functional.cross_entropy, optimizer)


def usual(model: nn.Module) -> RecordDict:
    told = MetricRecord({"num-examples": 32, "train_loss": 0.5})
    return RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": told})


def app_of(loop: Any = plain, content: Content = usual, mods: Any = ()) -> ClientApp:
    app = ClientApp(mods=list(mods))

    def handle(message: Message, context: Context) -> Message:
        model = Net()
        if message.content.array_records:
            model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        loop(model, message, context)
        return Message(content(model), reply_to=message)

    for register in (app.train, app.evaluate, app.query):
        register()(handle)
    return app


class Place:
    """A site with these conditions; its context lasts from message to message, as Flower keeps it."""

    def __init__(self, folder: Path, config: dict[str, Any] | None = None, **node: Any) -> None:
        self.node = {"partition-id": 0, "state-dir": str(folder), **node}
        self.context = Context(1, 5, dict(self.node), RecordDict(), config or {})
        torch.manual_seed(0)
        self.sent = Net().state_dict()

    def ask(self, app: ClientApp, kind: str = "train") -> RecordDict:
        content = RecordDict({"arrays": ArrayRecord(self.sent), "config": ConfigRecord({"lr": 0.1})})
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        message = Message(content, 5, kind)
        reply = Gate(app, self.node)(message, self.context)
        assert reply.metadata.group_id == message.metadata.group_id == ""
        return reply.content

    def refused(self, app: ClientApp, kind: str = "train") -> str:
        with pytest.raises(PrunellaError) as error:
            self.ask(app, kind)
        assert PRIVATE not in str(error.value)
        return str(error.value)


DGP, NOISE = {"require": "dgp, bottom>=0.9"}, {"require": "dp-sgd, clip<=1, noise-multiplier>=1"}


def moved(place: Place, content: RecordDict) -> float:
    after = content["arrays"].to_torch_state_dict()
    changed = sum(int((after[n] != t).sum()) for n, t in place.sent.items())
    return changed / sum(t.numel() for t in place.sent.values())


def test_an_app_that_knows_of_no_defense_is_defended_and_its_other_numbers_stay(tmp_path: Path) -> None:
    place = Place(tmp_path, **DGP)
    content = place.ask(app_of())
    assert 0.03 < moved(place, content) < 0.08
    assert dict(content["metrics"]) == {"num-examples": 32} and content["prunella"]["applied"] == ["dgp"]
    listed = Place(tmp_path / "listed", **DGP, metrics="train_loss")
    assert dict(listed.ask(app_of())["metrics"]) == {"num-examples": 32, "train_loss": 0.5}


def test_a_defend_of_the_app_s_own_defends_nothing_twice_and_lists_nothing(tmp_path: Path) -> None:
    bare, own = Place(tmp_path / "a", **DGP), Place(tmp_path / "b", **DGP)
    alone, both = bare.ask(app_of()), own.ask(app_of(mods=[Defend(metrics=("train_loss",))]))
    for name, tensor in alone["arrays"].to_torch_state_dict().items():
        assert torch.equal(tensor, both["arrays"].to_torch_state_dict()[name])
    assert dict(both["metrics"]) == {"num-examples": 32}


def test_the_loop_works_behind_the_gate_and_an_app_without_it_is_refused(tmp_path: Path) -> None:
    place = Place(tmp_path, **NOISE)
    assert place.ask(app_of(guarded, mods=[Defend()]))["prunella"]["applied"] == ["dp-sgd"]
    assert "works inside the training loop" in place.refused(app_of())


def test_a_mod_that_puts_the_raw_update_back_is_refused(tmp_path: Path) -> None:
    raw: dict[str, torch.Tensor] = {}

    def trained_beside(model: nn.Module, message: Message, context: Context) -> None:
        other = Net()
        other.load_state_dict(model.state_dict())
        plain(other, message, context)
        raw.update(other.state_dict())
        guarded(model, message, context)

    def undo(message: Message, context: Context, call_next: Any) -> Message:
        reply = call_next(message, context)
        reply.content["arrays"] = ArrayRecord(raw)
        return reply

    app = app_of(trained_beside, mods=[undo, Defend()])
    assert "is not what protected() left" in Place(tmp_path, **NOISE).refused(app)
    place = Place(tmp_path / "dgp", **DGP)
    assert moved(place, place.ask(app_of(lambda m, *_: plain(m, *_) and raw.update(m.state_dict())))) < 0.08


def test_past_the_budget_the_reason_is_told_and_no_update(tmp_path: Path) -> None:
    place = Place(tmp_path, require="dp-sgd, noise-multiplier>=8", **{"epsilon-budget": 2.0})
    place.ask(app_of(guarded))
    assert "past privacy.epsilon-budget = 2" in place.refused(app_of(guarded))

    def stubborn(model: nn.Module, message: Message, context: Context) -> None:
        try:
            guarded(model, message, context)
        except DefenseError as error:
            error.args = (PRIVATE,)
            raise

    assert "past privacy.epsilon-budget = 2" in place.refused(app_of(stubborn))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"defenses": "none"}, "leave defenses = 'none' out"),
        ({"dgp.bottom": 0.5}, "dgp.bottom of 0.9 or more; the run has 0.5"),
        ({"defenses": "this:KEEP"}, "defenses of this release"),
    ],
)
def test_a_run_that_asks_for_less_is_refused(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    assert words in Place(tmp_path, config, **DGP).refused(app_of())
    Place(tmp_path / "more", {"defenses": "dgp", "dgp.bottom": 0.92}, **DGP).ask(app_of())


def with_record(name: str, record: Any) -> Content:
    def content(model: nn.Module) -> RecordDict:
        made = usual(model)
        made[name] = record
        return made

    return content


def renamed(model: nn.Module) -> RecordDict:
    return RecordDict({PRIVATE: ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": 1})})


def other_names(model: nn.Module) -> RecordDict:
    return RecordDict({"arrays": ArrayRecord({**model.state_dict(), PRIVATE: torch.zeros(1)})})


def other_shape(model: nn.Module) -> RecordDict:
    return RecordDict({"arrays": ArrayRecord({n: torch.zeros(0, 4711) for n in model.state_dict()})})


@pytest.mark.parametrize(
    ("kind", "content", "words"),
    [
        ("train", with_record("more", ArrayRecord({"x": torch.ones(3)})), "one record of arrays, named 'arrays'"),
        ("train", with_record("notes", ConfigRecord({"said": PRIVATE})), "one record of numbers"),
        ("train", with_record("prunella", ConfigRecord({"said": PRIVATE})), "one record of numbers"),
        ("train", with_record("more", MetricRecord({"x": 1.0})), "one record of numbers"),
        ("train", with_record("metrics", MetricRecord({"num-examples": 0.4711})), "must be a whole number"),
        ("train", with_record("metrics", MetricRecord({"num-examples": 2**40})), "must be a whole number"),
        ("train", renamed, "named 'arrays'"),
        ("train", other_names, "the names of those received"),
        ("train", other_shape, "the shapes and types"),
        ("evaluate", usual, "answer without arrays"),
        ("query", usual, "answer without arrays"),
    ],
)
def test_an_answer_with_anything_else_in_it_is_refused(tmp_path: Path, kind: str, content: Content, words: str) -> None:
    assert words in Place(tmp_path, **DGP).refused(app_of(content=content), kind)


def shouts(model: nn.Module, message: Message, context: Context) -> None:
    raise PrunellaError(PRIVATE)


def test_what_an_app_raises_or_calls_an_error_is_one_text(tmp_path: Path) -> None:
    place = Place(tmp_path, **DGP)
    for kind in ("train", "evaluate", "query"):
        assert place.refused(app_of(shouts), kind) == FAILED
    app = ClientApp()
    app.train()(lambda message, context: Message(Error(4711, PRIVATE), reply_to=message))
    assert place.refused(app) == FAILED


def test_an_app_cannot_tell_by_the_word_that_ends_a_first_mask(tmp_path: Path) -> None:
    def settled(model: nn.Module, message: Message, context: Context) -> None:
        raise Settled(PRIVATE)

    assert "own log says why" in Place(tmp_path, **DGP).refused(app_of(settled))


def test_a_context_that_the_app_has_changed_changes_nothing(tmp_path: Path) -> None:
    place = Place(tmp_path, **DGP)

    def loosens(model: nn.Module, message: Message, context: Context) -> None:
        context.node_config["require"] = ""
        context.node_config["metrics"] = "train_loss"
        context.run_config["dgp.bottom"] = 0.0
        message.metadata.__dict__["_group_id"] = PRIVATE
        plain(model, message, context)

    content = place.ask(app_of(loosens))
    assert moved(place, content) < 0.08 and dict(content["metrics"]) == {"num-examples": 32}
    assert place.context.node_config == place.node
    place.context.node_config["require"] = ""
    assert "another node configuration" in place.refused(app_of())


def test_the_signs_of_zeros_and_the_order_of_arrays_tell_nothing(tmp_path: Path) -> None:
    place = Place(tmp_path, **DGP)
    place.sent = {**place.sent, "fc2.bias": torch.zeros(10)}

    def signed(model: nn.Module) -> RecordDict:
        state = dict(reversed(model.state_dict().items()))
        state["fc2.bias"] = torch.tensor([0.0, -0.0] * 5)
        return RecordDict({"arrays": ArrayRecord(state), "metrics": MetricRecord({"num-examples": 1})})

    arrays = place.ask(app_of(content=signed))["arrays"].to_torch_state_dict()
    assert list(arrays) == list(place.sent)
    assert not bool(torch.signbit(arrays["fc2.bias"]).any())


def test_an_app_of_the_older_api_is_told_what_to_do(tmp_path: Path) -> None:
    place = Place(tmp_path, **DGP)
    content = RecordDict({"fitins.parameters": ArrayRecord(place.sent), "fitins.config": ConfigRecord()})
    with pytest.raises(PrunellaError, match="Message API only: port the app"):
        Gate(app_of(), place.node)(Message(content, 5, "train"), place.context)


def test_a_mod_that_promises_the_server_a_norm_is_refused(tmp_path: Path) -> None:
    app = app_of(mods=[fixedclipping_mod])
    assert "approve the app without it" in Place(tmp_path, **DGP).refused(app)
