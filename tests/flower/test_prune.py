"""Prune around Flower's strategies: the schemes' own masks, Flower's own bits, and what travels."""

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedProx, FedYogi
from torch import nn

from prunella.benchmarks.engine.inprocess import FIRST_NODE
from prunella.core.config import Run
from prunella.core.errors import ConfigError
from prunella.core.randomness import stream
from prunella.core.trees import Tree, apply_mask
from prunella.flower.defend import Defend
from prunella.flower.nodes import masked
from prunella.flower.prunable import prunable_names
from prunella.flower.prune import Prune
from prunella.pruning.scores import magnitude, random
from prunella.pruning.selection import keep_by_score
from prunella.strategies.fed_ltp_one_shot import FedLTPOneShot
from prunella.strategies.round.server_model import ServerModel
from prunella.strategies.tickets import TicketSettings
from prunella.tasks.examples import Examples
from prunella.tasks.task import Task, initial, prunable
from prunella.wire.encode import encode, encode_mask
from tests.flower.foreign import Net, Seen, load, make, plain, run, tree
from tests.flower.test_defend import Norm, Odd

WEIGHTS = {"conv.weight", "fc1.weight", "fc2.weight"}
TASK = Task("tests.flower.foreign:Net", (1, 8, 8), 10)
QUIET: dict[str, Any] = {"fraction_evaluate": 0.0}


def mixed(config: dict[str, Any]) -> ClientApp:
    """Client 100 has the Mod, client 101 has not."""
    with_mod, without = make([Defend()]), make([])
    app = ClientApp()

    def choose(message: Message, context: Any) -> Message:
        return (with_mod if context.node_config["partition-id"] == 0 else without)(message, context)

    app.train()(choose)
    app.evaluate()(choose)
    return app


@pytest.mark.parametrize("mods", ["without", "mixed", "with"])
@pytest.mark.parametrize("strategy", [FedAvg, FedProx, FedAdam, FedYogi], ids=lambda s: s.__name__)
def test_at_rate_0_it_is_flower_s_own_strategy_bit_for_bit(strategy: type, mods: str, tmp_path: Path) -> None:
    apps = {"without": make([]), "mixed": mixed({}), "with": make([Defend()])}
    bare = run(make([]), tmp_path / "a", {}, strategy(**QUIET), rounds=3, build=Net)
    layer = Prune(strategy(**QUIET), "magnitude", rate=0.0)
    pruned = run(apps[mods], tmp_path / "b", {"defenses": "none"}, layer, rounds=3)
    for name, tensor in tree(bare.arrays).items():
        assert torch.equal(tensor, tree(pruned.arrays)[name]), name
    assert len(layer._nodes.held) == {"without": 0, "mixed": 1, "with": 2}[mods]


def test_batch_norm_travels_coded_and_bit_for_bit(tmp_path: Path) -> None:
    """Its counter becomes a float when it is averaged."""
    results = []
    for place, mods, wrap in (("a", [], lambda s: s), ("b", [Defend()], lambda s: Prune(s, "magnitude", rate=0.0))):
        done = run(make(mods, build=Norm), tmp_path / place, {"defenses": "none"}, wrap(FedAvg(**QUIET)), 3, build=Norm)
        results.append(tree(done.arrays))
    assert list(results[0]) == list(results[1])
    assert all(torch.equal(results[0][n], results[1][n]) for n in results[0])


@pytest.mark.parametrize("strategy", [FedAvg, FedAdam])
def test_fed_ltp_s_ticket_is_our_own_server_s_and_all_clients_start_from_it(strategy: type, tmp_path: Path) -> None:
    received: list[Tree] = []

    def look(model: nn.Module, message: Message, context: Any) -> Any:
        received.append({n: t.clone() for n, t in model.state_dict().items()})
        return plain(model, message, context)

    public, net, params = load(5), TASK.build(), initial(TASK, 0)[0]
    layer = Prune(strategy(**QUIET), "fed-ltp-one-shot", 0.6, task=TASK, public=public, tickets=2, iterations=5, seed=4)
    seen = Seen()
    run(make([Defend()], look), tmp_path, {"defenses": "none"}, layer, rounds=2, tamper=seen)
    known = ServerModel(net, TASK.shape, tuple(params), prunable(net), Examples(*public), TASK)
    own = FedLTPOneShot(Run(rate=0.6, seed=4), known, TicketSettings(tickets=2, iterations=5))
    weights, mask = own.first_model(params, cast("Any", None), [])
    assert layer.mask is not None and not seen.errors
    for name in params:
        assert torch.equal(received[0][name], weights[name]) and torch.equal(received[1][name], weights[name])
        assert torch.equal(layer.mask[name], mask[name]) and not bool(received[2][name][~mask[name]].any())


@pytest.mark.parametrize("scheme", ["random", "magnitude", "synflow", "snip", "grasp"])
def test_masks_are_the_scheme_s_and_hold_both_ways(scheme: str, tmp_path: Path) -> None:
    received: list[Tree] = []

    def look(model: nn.Module, message: Message, context: Any) -> Any:
        received.append({n: t.clone() for n, t in model.state_dict().items()})
        return plain(model, message, context)

    given: dict[str, Any] = {"model": Net(), "shape": (1, 8, 8), "public": load(5)}
    given |= {"ramp_rounds": 2} if scheme == "magnitude" else {}
    layer = Prune(FedAvg(**QUIET), scheme, rate=0.5, seed=3, **given)
    done = run(make([Defend()], look), tmp_path, {"defenses": "none"}, layer, rounds=3)
    assert layer.mask is not None and abs(layer.density - 0.5) < 0.01
    for name, tensor in tree(done.arrays).items():
        assert torch.equal(tensor, torch.where(layer.mask[name], tensor, 0.0))
        assert name in WEIGHTS or bool(layer.mask[name].all())
    last = received[-1]
    zeros = sum(int((last[n] == 0).sum()) for n in WEIGHTS) / sum(last[n].numel() for n in WEIGHTS)
    assert abs(zeros - 0.5) < 0.01, "what was sent is pruned"
    if scheme == "random":
        scores = random(last, stream(3, purpose="random-mask"))
        assert all(torch.equal(m, layer.mask[n]) for n, m in keep_by_score(scores, WEIGHTS, 0.5, "layer").items())


def test_magnitude_s_mask_is_of_what_the_strategy_averaged(tmp_path: Path) -> None:
    averaged = run(make([]), tmp_path / "a", {}, FedAvg(**QUIET))
    layer = Prune(FedAvg(**QUIET), "magnitude", rate=0.4, ramp_rounds=1)
    pruned = run(make([]), tmp_path / "b", {}, layer)
    mask = keep_by_score(magnitude(tree(averaged.arrays)), WEIGHTS, 0.4)
    wanted = apply_mask(tree(averaged.arrays), mask)
    assert all(torch.equal(wanted[name], tensor) for name, tensor in tree(pruned.arrays).items())


@pytest.mark.parametrize("strategy", [FedAdam, FedYogi], ids=lambda s: s.__name__)
def test_a_server_s_momentum_moves_no_pruned_weight(strategy: type, tmp_path: Path) -> None:
    layer = Prune(strategy(**QUIET, beta_1=0.9), "magnitude", rate=0.5, ramp_rounds=3)
    done = run(mixed({}), tmp_path, {"defenses": "dgp"}, layer, rounds=4)
    assert layer.mask is not None
    arrays = tree(done.arrays)
    assert all(bool((arrays[name][~layer.mask[name]] == 0).all()) for name in WEIGHTS)
    assert 0.45 < sum(int((arrays[n] == 0).sum()) for n in WEIGHTS) / sum(arrays[n].numel() for n in WEIGHTS) < 0.55


def test_who_has_the_mod_is_sent_what_our_own_server_would_send(tmp_path: Path) -> None:
    """Bytes of a coded message are the codec's for these weights under this mask, and shrink with the rate."""
    layer = Prune(FedAvg(**QUIET), "random", rate=0.8)
    run(make([Defend()]), tmp_path / "a", {"defenses": "dgp"}, layer, rounds=1)
    dense = layer.bytes_down
    seen: list[Message] = []
    told: dict[int, Any] = {}

    def keep(messages: Any, *order: Any) -> list[Message]:
        result = before(messages, *order)
        seen.extend(result)
        told.update(layer._nodes.sent)
        return result

    layer = Prune(FedAvg(**QUIET), "random", rate=0.8)
    before = layer._outgoing
    layer._outgoing = keep  # type: ignore[method-assign]
    run(make([Defend()]), tmp_path / "b", {"defenses": "dgp"}, layer, rounds=3)
    assert layer.mask is not None
    first, third = seen[0].content["prunella"]["mask"], seen[4].content["arrays"]["tree"].data
    weights = tree(told[FIRST_NODE]["arrays"])
    assert len(third) == len(encode(weights, layer.mask, layer.mask)), "the client holds the mask"
    assert first == encode_mask(layer.mask), "before, its bits are beside the dense model"
    assert len(third) < 0.3 * dense / 2
    up = layer.bytes_up
    full = Prune(FedAvg(**QUIET), "random", rate=0.0)
    run(make([Defend()]), tmp_path / "c", {"defenses": "none"}, full, rounds=3)
    assert up < 0.6 * full.bytes_up


def test_training_and_evaluation_share_the_mask(tmp_path: Path) -> None:
    seen, layer = Seen(), Prune(FedAvg(), "magnitude", rate=0.5, ramp_rounds=2)
    run(make([Defend()]), tmp_path, {"defenses": "dgp"}, layer, rounds=4, tamper=seen)
    assert not seen.errors and len(seen.replies) == 16


def test_a_client_that_forgot_its_mask_is_sent_it_again(tmp_path: Path) -> None:
    layer = Prune(FedAvg(**QUIET), "random", rate=0.5)
    seen = Seen()
    forgot = 0

    def lose(model: nn.Module, message: Message, context: Any) -> Any:
        nonlocal forgot
        forgot += 1
        if forgot == 4:  # the second client of the second round
            for path in (tmp_path / "1" / "flower" / "runs").glob("*/mask.safetensors"):
                path.unlink()
        return plain(model, message, context)

    run(make([Defend()], lose), tmp_path, {"defenses": "dgp"}, layer, rounds=5, tamper=seen)
    failed = [reply.metadata.src_node_id for reply in seen.replies if reply.has_error()]
    assert failed == [FIRST_NODE + 1] and len(seen.trained(FIRST_NODE + 1)) == 4


def test_a_coded_answer_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    def spoil(reply: Message) -> Message:
        for record in reply.content.array_records.values():
            if "tree" in record and reply.metadata.src_node_id == FIRST_NODE:
                array = record["tree"]
                array.data = array.data[:-9]
        return reply

    counted: list[int] = []

    class Counting(FedAvg):
        def aggregate_train(self, server_round, replies):
            replies = list(replies)
            counted.append(len(replies))
            return super().aggregate_train(server_round, replies)

    run(make([Defend()]), tmp_path, {"defenses": "dgp"}, Prune(Counting(**QUIET), "random"), rounds=4, tamper=spoil)
    assert counted == [2, 1, 2, 1], "dense again after a bad answer, then coded and bad again"


def test_metrics_that_not_all_tell_are_left_out(tmp_path: Path) -> None:
    """Flower's strategies aggregate nothing where the names differ."""
    done = run(mixed({}), tmp_path, {"defenses": "dgp"}, Prune(FedAvg(), "magnitude"), rounds=2)
    assert len(done.train_metrics_clientapp) == 2 and "train_loss" not in done.train_metrics_clientapp[1]
    alone = run(make([]), tmp_path / "b", {}, Prune(FedAvg(), "magnitude"), rounds=1)
    assert "train_loss" in alone.train_metrics_clientapp[1]


def test_one_prune_is_for_one_model(tmp_path: Path) -> None:
    layer = Prune(FedAvg(fraction_evaluate=0.0), "random", rate=0.5)
    run(make([Defend()]), tmp_path / "a", {"defenses": "dgp"}, layer)
    other = ArrayRecord({"else.weight": Array(torch.rand(4, 4).numpy())})
    with pytest.raises(ConfigError, match="make one for each start"):
        run(make([Defend()]), tmp_path / "b", {"defenses": "dgp"}, layer, start=other)


def test_what_is_not_prunable_is_left_alone() -> None:
    state = {name: tensor for name, tensor in Odd().state_dict().items()}
    assert prunable_names(state, Odd()) == {"body.weight"}, "not tied, not frozen"
    assert prunable_names(state, None) == {"body.weight", "frozen.weight"}
    assert prunable_names(dict(Norm().state_dict()), None) == WEIGHTS == prunable_names(dict(Net().state_dict()), Net())
    lora = {"base.q.lora_A.weight": torch.randn(4, 8), "tok_embeddings.weight": torch.randn(9, 4), "b": torch.ones(3)}
    assert prunable_names(lora, None) == {"base.q.lora_A.weight"}
    with pytest.raises(ConfigError, match="nothing to prune"):
        prunable_names({"0": torch.randn(3, 3)}, None)


@pytest.mark.parametrize(
    ("scheme", "more", "told"),
    [
        ("fedavg", {}, "does not know fedavg: choose one of random"),
        ("fed-ltp-iterative", {"public": load(5)}, "task=Task"),
        ("fed-ltp-one-shot", {"model": Net(), "shape": (1, 8, 8), "public": load(5)}, "task=Task"),
        ("fed-ltp-one-shot", {"task": TASK}, "nobody's secret"),
        ("prunefl", {"cost": "flops"}, "counts multiply-adds in the model"),
        ("magnitud", {}, "did you mean 'magnitude'"),
        ("synflow", {}, "needs the model and the shape"),
        ("random", {"granularity": "filter"}, "random of whole filters needs the model and the shape"),
        ("snip", {"model": Net(), "shape": (1, 8, 8)}, "nobody's secret"),
        ("magnitude", {"ramp": 3}, "unknown setting 'magnitude.ramp'"),
        ("magnitude", {"rate": 1.0}, "rate"),
    ],
)
def test_what_does_not_work_is_told_at_once(scheme: str, more: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Prune(FedAvg(), scheme, **more)


def test_a_full_mask_codes_no_copy() -> None:
    layer = Prune(FedAvg(), "magnitude", rate=0.0)
    record = ArrayRecord(Net().state_dict())
    layer._begin(1, record, ConfigRecord(), cast("Any", None))
    assert layer.mask is not None and masked(record, layer.mask) is record and layer.density == 1
