"""Robust around Flower's strategies: a liar moves nothing, and without one the rule is the rule."""

from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg

from prunella.benchmarks.engine.inprocess import FIRST_NODE
from prunella.core.errors import ConfigError
from prunella.flower.defend import Defend
from prunella.flower.prune import Prune
from prunella.flower.robust import Robust
from tests.flower.foreign import Net, Seen, make, run, tree

QUIET: dict[str, Any] = {"fraction_evaluate": 0.0}


def lie(reply: Message) -> Message:
    if reply.metadata.src_node_id == FIRST_NODE and "tree" not in reply.content["arrays"]:
        state = tree(reply.content["arrays"])
        reply.content["arrays"] = ArrayRecord({name: tensor + 1e6 for name, tensor in state.items()})
        reply.content["metrics"]["num-examples"] = 10**9
    return reply


def test_the_median_is_of_the_replies_coordinate_by_coordinate(tmp_path: Path) -> None:
    seen = Seen()
    replies: list[Any] = []

    def keep(reply: Message) -> Message:
        replies.append(tree(reply.content["arrays"]))
        return seen(reply)

    found = tree(run(make([]), tmp_path, {}, Robust(FedAvg(**QUIET)), clients=3, tamper=keep).arrays)
    for name, tensor in found.items():
        wanted = torch.stack([each[name] for each in replies]).median(0).values
        assert torch.allclose(tensor.float(), wanted, atol=1e-6)


@pytest.mark.parametrize("strategy", [FedAvg, FedAdam], ids=lambda s: s.__name__)
def test_one_liar_of_three_moves_nothing_far(strategy: type, tmp_path: Path) -> None:
    torch.manual_seed(0)
    first = Net().state_dict()
    for rule, wrap in (("median", True), ("trimmed-mean", True), ("none", False)):
        made = Robust(strategy(**QUIET), rule) if wrap else strategy(**QUIET)
        found = tree(run(make([]), tmp_path / rule, {}, made, clients=3, tamper=lie).arrays)
        far = max(float((found[name] - first[name]).abs().max()) for name in found)
        assert far < 0.5 if wrap or strategy is FedAdam else far > 1e5


@pytest.mark.parametrize(
    ("dtype", "count"), [("bool", 10**9), ("uint8", 16), ("complex64", 16), ("float32", float("nan")),
                         ("float32", -20), ("float32", None), ("float32", [1, 2])]
)  # fmt: skip
@pytest.mark.parametrize("under_a_mask", [False, True])
def test_a_liar_s_types_and_counts_change_nothing(dtype: str, count: Any, under_a_mask: bool, tmp_path: Path) -> None:
    """Such a reply is left out; three others outvote one liar without it."""
    torch.manual_seed(0)
    first = Net().state_dict()

    def spoil(reply: Message) -> Message:
        if reply.metadata.src_node_id == FIRST_NODE and "tree" not in reply.content["arrays"]:
            state = {name: tensor.numpy().astype(dtype) for name, tensor in tree(reply.content["arrays"]).items()}
            reply.content["arrays"] = ArrayRecord({name: Array(each) for name, each in state.items()})
            reply.content["metrics"]["num-examples"] = count or 1
            if count is None:
                del reply.content["metrics"]["num-examples"]
        return reply

    robust: Any = Robust(FedAvg(**QUIET))
    made = Prune(robust, "random", rate=0.0) if under_a_mask else robust
    found = tree(run(make([]), tmp_path, {}, made, clients=4, tamper=spoil).arrays)
    assert 0 < max(float((found[name] - first[name]).abs().max()) for name in found) < 0.5


def test_the_norm_bound_bounds_the_damage(tmp_path: Path) -> None:
    torch.manual_seed(0)
    first = Net().state_dict()
    made = Robust(FedAvg(**QUIET), "norm-bound", norm=0.5)
    found = tree(run(make([]), tmp_path, {}, made, clients=3, tamper=lie).arrays)
    assert sum(float((found[n] - first[n]).square().sum()) for n in found) ** 0.5 <= 0.5 + 1e-4


def test_below_the_quorum_the_model_stays(tmp_path: Path) -> None:
    torch.manual_seed(0)
    first = Net().state_dict()

    def spoil(reply: Message) -> Message:
        if reply.metadata.src_node_id == FIRST_NODE:
            reply.content["metrics"]["num-examples"] = -1
        return reply

    found = tree(run(make([]), tmp_path, {}, Robust(FedAvg(**QUIET)), clients=3, tamper=spoil).arrays)
    assert all(torch.allclose(found[name].float(), first[name], atol=1e-7) for name in found)


@pytest.mark.parametrize("under_a_mask", [False, True])
def test_a_round_that_asks_too_few_to_outvote_the_liars_ends_the_run(under_a_mask: bool, tmp_path: Path) -> None:
    """Otherwise it would end as any other, with the weights that it began with."""
    robust: Any = Robust(FedAvg(**QUIET), "trimmed-mean", liars=5)
    made = Prune(robust, "random", rate=0.5) if under_a_mask else robust
    words = "asks 3 clients, and 11 answers are needed .* min_train_nodes=11 .* liars=1"
    with pytest.raises(ConfigError, match=words):
        run(make([]), tmp_path / "five", {}, made, clients=3)
    with pytest.raises(ConfigError, match=r"asks 2 clients, and 3 answers .* older API\)$"):
        run(make([]), tmp_path / "one", {}, Robust(FedAvg(**QUIET)), clients=2)
    run(make([]), tmp_path / "none", {}, Robust(FedAvg(**QUIET), "norm-bound"), clients=2)  # which outvotes nobody


def test_a_later_round_in_which_clients_are_away_ends_nothing(tmp_path: Path) -> None:
    class Thinned(FedAvg):
        def configure_train(self, server_round: int, *given: Any) -> Any:
            return list(super().configure_train(server_round, *given))[: 3 if server_round < 2 else 2]

    done = [
        tree(run(make([]), tmp_path / str(rounds), {}, Robust(Thinned(**QUIET)), rounds=rounds, clients=3).arrays)
        for rounds in (1, 2)
    ]
    assert all(torch.allclose(done[0][name].float(), done[1][name].float(), atol=1e-6) for name in done[0])


@pytest.mark.parametrize("outside", [True, False])
def test_under_a_mask_in_either_order(outside: bool, tmp_path: Path) -> None:
    inner: Any = FedAvg(**QUIET)
    layer = Robust(Prune(inner, "random", rate=0.5)) if outside else Prune(Robust(inner), "random", rate=0.5)
    done = run(make([Defend()]), tmp_path, {"defenses": "dgp"}, layer, rounds=3, clients=3, tamper=lie)
    mask = layer.mask  # a layer hands on what the strategy inside has
    found = tree(done.arrays)
    assert all(bool((found[name][~mask[name]] == 0).all()) for name in found)
    assert max(float(t.abs().max()) for t in found.values()) < 5


def test_a_reply_that_is_no_model_is_left_out(tmp_path: Path) -> None:
    def spoil(reply: Message) -> Message:
        if reply.metadata.src_node_id == FIRST_NODE:
            reply.content["arrays"] = ArrayRecord({"x": reply.content["arrays"]["fc2.bias"]})
        return reply

    done = run(make([]), tmp_path, {}, Robust(FedAvg(**QUIET)), clients=4, tamper=spoil)
    assert set(tree(done.arrays)) == set(Net().state_dict())


def test_unknown_rules_and_settings_are_told_at_once() -> None:
    with pytest.raises(ConfigError, match="did you mean 'median'"):
        Robust(FedAvg(), "medan")
    with pytest.raises(ConfigError, match="unknown setting 'median.lyars'"):
        Robust(FedAvg(), "median", lyars=2)


def renamed(content: RecordDict) -> RecordDict:
    return RecordDict({"weights" if name == "arrays" else name: record for name, record in content.items()})


def of_other_metrics(content: RecordDict) -> RecordDict:
    return RecordDict({"m2" if name == "metrics" else name: record for name, record in content.items()})


def a_list(content: RecordDict) -> RecordDict:
    return RecordDict({**content, "metrics": MetricRecord({**content["metrics"], "train_loss": [1.0, 2.0, 3.0]})})


def not_finite(content: RecordDict) -> RecordDict:
    state = {**tree(content["arrays"]), "fc1.weight": torch.full_like(tree(content["arrays"])["fc1.weight"], torch.inf)}
    return RecordDict({**content, "arrays": ArrayRecord(state)})


def whole_numbers(content: RecordDict) -> RecordDict:
    state = {name: (100 * tensor).long() for name, tensor in tree(content["arrays"]).items()}
    return RecordDict({**content, "arrays": ArrayRecord(state)})


@pytest.mark.parametrize("spoil", [renamed, of_other_metrics, a_list, not_finite, whole_numbers])
@pytest.mark.parametrize("layers", ["prune", "robust", "both"])
def test_one_answer_of_another_form_ends_no_run(spoil: Any, layers: str, tmp_path: Path) -> None:
    """Flower's strategies end the run, or average it; either layer leaves it out."""
    strategy: Any = FedAvg(**QUIET)
    strategy = strategy if layers == "prune" else Robust(strategy)
    strategy = strategy if layers == "robust" else Prune(strategy, "magnitude", rate=0.5)

    def one(reply: Message) -> Message:
        mine = {name: record for name, record in reply.content.items() if name != "notes"}
        mine["metrics"] = MetricRecord({key: n for key, n in mine["metrics"].items() if key != "secret"})
        plain = RecordDict(mine)
        reply.content = spoil(plain) if reply.metadata.src_node_id == FIRST_NODE else plain
        return reply

    torch.manual_seed(0)
    first = Net().state_dict()
    found = tree(run(make([]), tmp_path, {}, strategy, rounds=2, clients=4, tamper=one).arrays)
    assert 0 < max(float((found[name] - first[name]).abs().max()) for name in found) < 0.5


class Positions(Net):
    """A mean makes floats of its table, which clients answer as integers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("positions", torch.arange(3))


@pytest.mark.parametrize("layers", ["prune", "robust", "robust(prune)", "prune(robust)"])
def test_a_table_of_integers_and_a_record_that_one_alone_has_keep_nobody_out(
    layers: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    strategy: Any = FedAvg(**QUIET)
    for layer in reversed(layers.rstrip(")").split("(")):
        strategy = Robust(strategy) if layer == "robust" else Prune(strategy, "random", rate=0.5)

    def one(reply: Message) -> Message:
        if reply.metadata.src_node_id == FIRST_NODE:
            reply.content["prunella-beside"] = ArrayRecord()
        return reply

    for mods in ([], [Defend()]):
        app, folder = make(mods, build=Positions), tmp_path / str(len(mods))
        done = run(app, folder, {"defenses": "none"}, strategy, 3, 3, one, build=Positions)
        assert torch.equal(tree(done.arrays)["positions"].float(), torch.arange(3).float())
    assert "left out" not in caplog.text
