"""Layers around strategies of Flower's older API: what they do around one of the Message API, to the same bits."""

from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.common import FitIns, Parameters, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import FedAdam, FedAvg, FedAvgM, FedXgbBagging, Strategy
from flwr.serverapp.strategy import FedAvg as NewFedAvg

from prunella.attacks.trace import load_trace
from prunella.core.errors import ConfigError
from prunella.core.trees import Tree
from prunella.flower.defend import Defend
from prunella.flower.layer import Layer
from prunella.flower.loop import protected
from prunella.flower.older import Inner, Outer, arrays_of, parameters_of
from prunella.flower.prune import Prune
from prunella.flower.record import Record, Recorder, Training, record
from prunella.flower.robust import Robust
from prunella.tasks.task import Task
from tests.flower import foreign
from tests.flower.foreign import Net
from tests.flower.test_legacy import Normed, make, serve, start

NAMES = dict(enumerate(Net().state_dict()))
TASK = Task("tests.flower.foreign:Net", (1, 8, 8), 10)


def older(kind: type[Strategy] = FedAvg, build: Any = Net, **more: Any) -> Any:
    return kind(**{"initial_parameters": start(build), "fraction_evaluate": 0.0, "min_available_clients": 2} | more)


def named(tree: Tree) -> Tree:
    return {NAMES[int(at)]: tensor for at, tensor in tree.items()}


def equal(a: Tree, b: Tree) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def begun() -> Tree:
    """The first model."""
    return dict(arrays_of(start()).to_torch_state_dict())


def modern(folder: Path, layer: Any, config: dict[str, Any], rounds: int, loop: Any = foreign.plain) -> Tree:
    mods = [Defend()] if config else []
    return foreign.tree(foreign.run(foreign.make(mods, loop), folder, config, layer, rounds=rounds).arrays)


@pytest.mark.parametrize("kind", [FedAvg, FedAdam, FedAvgM])
def test_at_rate_0_the_result_is_the_strategys_own(kind: type[Strategy], tmp_path: Path) -> None:
    more = {"server_momentum": 0.5} if kind is FedAvgM else {}
    bare, _ = serve(make(), older(kind, **more), tmp_path / "a", {}, rounds=3)
    layer = Layer(Prune(older(kind, **more), "magnitude", rate=0.0, model=Net()))
    found, _ = serve(make(), layer, tmp_path / "b", {}, rounds=3)
    assert equal(bare, found) and any(not torch.equal(bare[at], tensor) for at, tensor in begun().items())


@pytest.mark.parametrize("scheme", ["magnitude", "synflow"])
@pytest.mark.parametrize("defenses", ["", "dgp"])
def test_it_prunes_as_around_a_strategy_of_the_message_api(scheme: str, defenses: str, tmp_path: Path) -> None:
    config, given = ({"defenses": defenses} if defenses else {}), {"model": Net(), "shape": (1, 8, 8)}
    layer: Any = Prune(older(), scheme, rate=0.5, **given)
    found, seen = serve(make(mods=[Defend()] if defenses else []), layer, tmp_path / "a", config, rounds=3)
    assert not seen.errors and isinstance(layer, Outer) and 0.49 < layer.density < 0.82
    assert layer.strategy.fraction_fit == 1.0, "settings of the inner strategy can be read"
    new = Prune(NewFedAvg(fraction_evaluate=0.0), scheme, rate=0.5, **given)
    want = modern(tmp_path / "b", new, config, 3)
    assert layer.density == new.density
    for name, tensor in named(found).items():
        torch.testing.assert_close(tensor, want[name], rtol=1e-5, atol=1e-6)
        assert torch.equal(tensor == 0, want[name] == 0)
    assert abs(layer.bytes_down / new.bytes_down - 1) < 0.01 and abs(layer.bytes_up / new.bytes_up - 1) < 0.01


def test_prunefl_s_clients_make_the_mask_and_send_squared_gradients_as_in_the_message_api(tmp_path: Path) -> None:
    """Without names: the same masks as under the module's, and the trace has what the client sent."""
    config, given = {"defenses": "dgp"}, {"initial_interval": 2, "initial_steps": 4, "adjust_interval": 1}
    layer: Any = Record(
        Prune(older(), "prunefl", rate=0.3, model=Net(), **given), tmp_path / "traces", TASK, Training(0.1, 8)
    )
    found, seen = serve(make(guarded=True, mods=[Defend()]), layer, tmp_path / "a", config, rounds=2)
    assert not seen.errors
    new = Prune(NewFedAvg(fraction_evaluate=0.0), "prunefl", rate=0.3, **given)
    modern(tmp_path / "b", Record(new, tmp_path / "theirs", TASK, Training(0.1, 8)), config, 2, inside)
    assert {NAMES[int(at)]: int(kept.sum()) for at, kept in layer.mask.items()} == {
        name: int(kept.sum()) for name, kept in new.mask.items()
    }
    assert layer.density == new.density < 0.71
    for name in (f"round-00000{number}-node-{node}.safetensors" for number in (1, 2) for node in (100, 101)):
        (mine, _, _), (theirs, _, _) = (load_trace(tmp_path / each / name, TASK) for each in ("traces", "theirs"))
        assert mine.importance is not None and theirs.importance is not None and mine.mask and mine.shared
        assert equal(mine.importance, theirs.importance) and equal(mine.mask, theirs.mask or {})
        assert any(bool(squares.any()) for squares in mine.importance.values())
        assert mine.defenses == ("dgp",) and not any(bool((mine.shared[n] & ~mine.mask[n]).any()) for n in mine.mask)


def inside(model: Any, message: Any, context: Any) -> None:
    optimizer, guard = torch.optim.SGD(model.parameters(), lr=foreign.RATE), protected(message, context, model)
    for x, y in foreign.batches(int(context.node_config["partition-id"])):
        guard.step(x, y, torch.nn.functional.cross_entropy, optimizer)


def test_evaluations_come_back_as_the_strategy_makes_them(tmp_path: Path) -> None:
    def mean(told: Any) -> Any:
        return {"accuracy": sum(count * each["accuracy"] for count, each in told) / sum(count for count, _ in told)}

    layer: Any = Prune(
        older(fraction_evaluate=1.0, evaluate_metrics_aggregation_fn=mean), "random", rate=0.3, model=Net()
    )
    serve(make(mods=[Defend(metrics=("loss", "accuracy"))]), layer, tmp_path, {"defenses": "none"}, rounds=2)
    assert layer.inner.loss == 0.5 and layer.inner.metrics == {"accuracy": 0.75}


class Wrapper(FedAvg):
    """A strategy around another, as Flower's wrappers for differential privacy are."""

    def __init__(self, inner: Any, how: str) -> None:
        super().__init__(initial_parameters=start(), fraction_evaluate=0.0, min_available_clients=2)
        self.inner, self.how = inner, how
        self.told: list[Any] = []

    def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> Any:
        asked = self.inner.configure_fit(server_round, parameters, client_manager)
        for _, ins in asked:
            ins.config["clipping_norm"] = 0.5
            if self.how == "model":
                ins.parameters = ndarrays_to_parameters([2 * each for each in parameters_to_ndarrays(ins.parameters)])
        return asked

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        self.told += failures
        for _, result in results if self.how == "update" else ():
            result.parameters = ndarrays_to_parameters([0 * each for each in parameters_to_ndarrays(result.parameters)])
        return self.inner.aggregate_fit(server_round, results, failures)


def test_what_stands_outside_may_change_an_answer_and_no_model(tmp_path: Path) -> None:
    """To clients that are sent coded messages, too: what was clipped is what is averaged."""
    layer: Any = Prune(older(), "random", rate=0.3, model=Net())
    found, seen = serve(make(mods=[Defend()]), Wrapper(layer, "update"), tmp_path / "a", {"defenses": "dgp"}, rounds=2)
    assert not seen.errors and not any(bool(tensor.any()) for tensor in found.values())
    wrapper = Wrapper(Prune(older(), "random", rate=0.3, model=Net()), "model")
    _, seen = serve(make(), wrapper, tmp_path / "b", {})
    assert not seen.replies and all("outside of Prune" in str(failure) for failure in wrapper.told) and wrapper.told


class Workflow(Wrapper):
    """As Flower's workflows do, it sends what layers made by itself, without their proxies."""

    def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> Any:
        asked = self.inner.configure_fit(server_round, parameters, client_manager)
        self.asked = {proxy.node_id: proxy for proxy, _ in asked}
        return [(proxy._proxy, ins) for proxy, ins in asked]

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        found = [(self.asked[proxy.node_id], result) for proxy, result in results]
        return self.inner.aggregate_fit(server_round, found, failures)


def test_who_sends_the_messages_himself_has_clients_without_defend(tmp_path: Path) -> None:
    layer: Any = Prune(older(), "random", rate=0.3, model=Net())
    found, seen = serve(make(mods=[Defend()]), Workflow(layer, ""), tmp_path, {"defenses": "dgp"}, rounds=2)
    assert not seen.errors and any(not torch.equal(found[at], tensor) for at, tensor in begun().items())
    for at, kept in layer.mask.items():
        assert not bool(found[at][~kept].any())


class Strict(FedAvg):
    """What it was told, and what failed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(accept_failures=False, **options)
        self.seen: list[tuple[int, list[Any]]] = []

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        self.seen.append((len(results), failures))
        return super().aggregate_fit(server_round, results, failures)


@pytest.mark.parametrize("kind", ["shape", "names", "count", "lost", "code"])
def test_an_answer_that_does_not_fit_is_a_failure(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def spoil(reply: Any) -> Any:
        if reply.metadata.src_node_id != 101:
            return reply
        content = reply.content
        record = content.array_records["fitres.parameters"]
        if kind == "shape":
            record["0"] = arrays_of(ndarrays_to_parameters([torch.zeros(3).numpy()]))["0"]
        elif kind == "names":
            record["9"] = record.pop("0")
        elif kind == "count":
            content["fitres.num_examples"]["num_examples"] = -4
        elif kind == "code":
            content["fitres.status"]["code"] = 5
        return None if kind == "lost" else reply

    layer: Any = Prune(older(Strict), "random", rate=0.3, model=Net())
    found, _ = serve(make(), layer, tmp_path, {}, rounds=2, spoil=spoil)
    assert [(count, len(failures)) for count, failures in layer.seen] == [(1, 1)] * 2
    assert "node 101" in caplog.text or kind == "code", "the log says which and why"
    assert equal(found, begun()), "a strategy that accepts no failure keeps its model"


def test_layers_stand_in_the_order_that_works() -> None:
    how: Any = ("traces", TASK, Training(0.1, 8))
    both: Any = Robust(Prune(older(), "random", model=Net()))
    assert [type(each).__name__ for each in both.layer.inside] == ["Prune"]
    for kind in (older, NewFedAvg):
        with pytest.raises(ConfigError, match=r"Record stands inside of Prune: write Record\(Prune\("):
            Prune(Robust(Record(kind(), *how)), "random")
        with pytest.raises(ConfigError, match="Prune stands inside of Prune"):
            Prune(Prune(kind(), "random"), "random")


def test_the_recorder_of_a_plain_strategy_sees_no_mask_and_is_refused_beside_prune() -> None:
    recorder = Recorder(TASK, Path("traces"), Training(0.1, 8))
    for recorded in (Robust(record(NewFedAvg(), recorder)), record(Robust(NewFedAvg()), recorder)):
        with pytest.raises(ConfigError, match=r"record\(\.\.\.\) stands inside of Prune"):
            Prune(recorded, "random")
    pruned: Any = Prune(NewFedAvg(), "random", model=Net())
    with pytest.raises(ConfigError, match=r"write Record\(Prune\(\.\.\.\), folder"):
        record(pruned, recorder)


def test_what_cannot_be_pruned_says_what_to_write(tmp_path: Path) -> None:
    boosted = FedXgbBagging(initial_parameters=Parameters([b"{}"], ""), fraction_evaluate=0.0)
    for strategy, told in (
        (Prune(boosted, "random"), "no arrays, so there is nothing to average"),
        (Prune(older(), "random"), r"give it the model, as model=Net\(\)"),
        (Prune(older(), "prunefl", model=Net(), shape=(1, 8, 8)), "leave shape= out"),
        (Prune(older(build=Normed), "random", model=Net()), "7 arrays without names"),
    ):
        with pytest.raises(ConfigError, match=told):
            serve(make(), strategy, tmp_path, {})


def test_a_server_without_a_superlink_is_refused() -> None:
    inner = Inner(older())
    bare: Any = type("Bare", (), {"cid": "1"})()
    with pytest.raises(ConfigError, match="flwr run"):
        inner._messages("fitins", "train", [(bare, FitIns(start(), {}))])


def test_parameters_there_and_back_are_the_same_bytes() -> None:
    assert parameters_of(arrays_of(start())) == start()
