"""The scheme that Prune was told: Fed-LTP's models are our own server's, one for each client."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg
from torch import nn

from prunella.core.config import Run
from prunella.core.errors import ConfigError
from prunella.core.randomness import stream
from prunella.core.trees import Mask, Tree, apply_mask, count
from prunella.flower.defend import Defend
from prunella.flower.prune import Prune
from prunella.flower.setup import SCHEMES
from prunella.privacy.chain import build_chain
from prunella.strategies import STRATEGIES
from prunella.strategies.fed_ltp_iterative import FedLTPIterative, IterativeSettings, deal
from prunella.strategies.round.plan import LocalPlan
from prunella.strategies.round.replies import build_reply
from prunella.strategies.round.roster import Member
from prunella.strategies.round.server_model import ServerModel
from prunella.tasks.examples import Examples
from prunella.tasks.task import Task, initial, prunable
from prunella.wire.records import record_bytes, to_coded
from tests.flower.foreign import load, make, plain, run, tree
from tests.flower.test_defend import store
from tests.flower.test_scheme import Looked, Watched, Wire, assert_no_larger, equal, guarded, ours

TASK = Task("tests.flower.foreign:Net", (1, 8, 8), 10)
SETTINGS: dict[str, Any] = {"tickets": 2, "iterations": 5, "further": 0.4}
GIVEN: dict[str, Any] = {"task": TASK, "public": load(5), "seed": 4, **SETTINGS}


@pytest.mark.parametrize(
    ("scheme", "given", "told"),
    [
        (0.3, {}, "a scheme is a name"),
        ("magnitude", {"model": TASK.build}, "write model=Net()"),
        ("synflow", {"model": TASK.build(), "shape": (1, 1, 8, 8)}, "write shape=(3, 32, 32)"),
        ("snip", {"public": [load(5), load(6), load(7)]}, "public are two tensors"),
        ("snip", {"public": (load(5)[0], load(5)[1].float())}, "labels [N] as whole numbers"),
        ("snip", {"public": (load(5)[0], load(5)[1][:3])}, "public are two tensors"),
    ],
)
def test_what_is_of_another_kind_is_refused_at_once(scheme: Any, given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        Prune(FedAvg(), scheme, **{"model": TASK.build(), "shape": TASK.shape, **given})


def models(count: int) -> tuple[Tree, list[Mask]]:
    """What our own server sends in the first round: weights, and the masks of its models."""
    net, params = TASK.build(), initial(TASK, 0)[0]
    known = ServerModel(net, TASK.shape, tuple(params), prunable(net), Examples(*load(5)), TASK)
    own = FedLTPIterative(Run(rate=0.5, seed=4), known, IterativeSettings(**SETTINGS))
    weights, _ = own.first_model(params, cast("Any", None), [Member(n, n) for n in range(count)])
    return weights, own.models(params)


def received_by(loop: Callable[..., Any]) -> tuple[Callable[..., Any], dict[int, list[Tree]]]:
    received: dict[int, list[Tree]] = {0: [], 1: []}

    def look(model: nn.Module, message: Message, context: Context) -> Any:
        weights = {n: t.clone() for n, t in model.state_dict().items()}
        received[int(context.node_config["partition-id"])].append(weights)
        return loop(model, message, context)

    return look, received


@pytest.mark.parametrize("defenses", ["none", "dgp"])
def test_every_client_trains_our_own_server_s_model_as_our_own_client_does(defenses: str, tmp_path: Path) -> None:
    look, received = received_by(guarded)
    looked, seen = Looked(), Wire()
    layer = Watched(looked, "fed-ltp-iterative", 0.5, **GIVEN)
    run(make([Defend()], look), tmp_path, {"defenses": defenses}, layer, rounds=3, tamper=seen)
    assert not seen.errors
    _, *sents = looked.sent  # the strategy is asked once more at first, for how many clients it will send to
    weights, masks = models(2)
    slots = deal([100, 101], set(), 2, stream(4, round=1, purpose="slots"))
    assert count(masks[1]) < count(masks[0]) and sorted(slots.values()) == [0, 1]
    assert layer.mask is not None and equal(layer.mask, masks[0]), "the largest is everybody's"
    down, chain = 0, build_chain([defenses], {})
    for client in (0, 1):
        mask, state = masks[slots[100 + client]], {}
        for round in (0, 1, 2):
            sent = apply_mask(sents[round], mask)
            assert equal(received[client][round], sent)
            done = ours(client, sent, mask, state, chain, LocalPlan())
            state = done.state
            if round:
                assert_no_larger(seen.trained(100 + client)[round], build_reply(done, mask, frozenset()))
        down += record_bytes(to_coded(sent, mask, mask))
        if defenses == "dgp":
            assert equal(store(tmp_path, client).load(4).state["dgp"]["error"], state["dgp"]["error"])
    assert equal(sents[0], weights) and layer.down[2] == down


def test_in_a_mixed_federation_each_holds_its_own_model_and_a_weight_is_the_mean_of_those_who_hold_it(
    tmp_path: Path,
) -> None:
    """The second client has no Mod: it trains dense, and what it trained outside of its model does not count."""
    look, received = received_by(plain)
    with_mod, without, app = make([Defend()], look), make([], look), ClientApp()

    def choose(message: Message, context: Any) -> Message:
        return (with_mod if context.node_config["partition-id"] == 0 else without)(message, context)

    app.train()(choose)
    looked, seen = Looked(), Wire()
    layer = Prune(looked, "fed-ltp-iterative", 0.5, **GIVEN)
    done = run(app, tmp_path, {"defenses": "none"}, layer, rounds=2, tamper=seen)
    assert not seen.errors
    _, masks = models(2)
    slots = deal([100, 101], set(), 2, stream(4, round=1, purpose="slots"))
    own = [masks[slots[100 + client]] for client in (0, 1)]
    for client in (0, 1):
        assert all(equal(weights, apply_mask(weights, own[client])) for weights in received[client])
    answers = [tree(seen.trained(100 + client)[0]["arrays"]) for client in (0, 1)]
    assert not equal(answers[1], apply_mask(answers[1], own[1])), "without the Mod all weights move"
    for name in masks[0]:
        values = torch.stack([answer[name] for answer in answers])
        holds = torch.stack([mask[name].float() for mask in own])
        mean = (values * holds).sum(0) / holds.sum(0).clamp(min=1)
        assert torch.allclose(looked.made[1][name], torch.where(holds.sum(0) > 0, mean, 0.0), atol=1e-6)
    assert equal(tree(done.arrays), apply_mask(tree(done.arrays), masks[0]))


def test_a_client_keeps_its_model_and_newcomers_get_others(tmp_path: Path) -> None:
    """Also where more clients are asked in a later round than in the first."""

    class One(FedAdam):
        def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
            asked = list(super().configure_train(server_round, arrays, config, grid))
            return [m for m in asked if server_round > 1 or m.metadata.dst_node_id == 101]

    look, received = received_by(plain)
    layer = Prune(One(fraction_evaluate=0.0), "fed-ltp-iterative", 0.5, slots=3, **GIVEN)
    run(make([Defend()], look), tmp_path, {"defenses": "none"}, layer, rounds=3)
    kept = [[{n: t != 0 for n, t in each.items()} for each in received[client]] for client in (0, 1)]
    assert len(kept[0]) == 2 and len(kept[1]) == 3
    assert all(count(mask) == count(kept[1][0]) for mask in kept[1])
    assert count(kept[0][0]) == count(kept[0][1]) != count(kept[1][0])
    assert 0.1 < layer.density < 0.5


def test_at_rate_0_nobody_has_a_mask(tmp_path: Path) -> None:
    bare = run(make([]), tmp_path / "a", {}, FedAvg(fraction_evaluate=0.0), rounds=2)
    for scheme, more in (("fed-ltp-iterative", GIVEN), ("lotteryfl", {})):
        layer = Prune(FedAvg(fraction_evaluate=0.0), scheme, 0.0, **more)
        done = run(make([Defend()]), tmp_path / scheme, {"defenses": "none"}, layer, rounds=2)
        assert equal(tree(bare.arrays), tree(done.arrays))


def test_it_takes_all_schemes_that_prune() -> None:
    """FedTiny's clients score candidates before the first round, and SparsyFed's take steps of their own: the layer
    asks for neither."""
    assert set(SCHEMES) == STRATEGIES.keys() - {"fedavg", "fedtiny", "sparsyfed"}
