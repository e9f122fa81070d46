"""LotteryFL in somebody else's app: our own client is the oracle, bit for bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message
from torch import nn
from torch.nn.functional import cross_entropy

from prunella.client.accounts import Accounts
from prunella.core.config import parse_run
from prunella.core.trees import Mask, Tree, apply_mask, count, full_mask, map_trees
from prunella.flower.arrays import is_coded, open_answer
from prunella.flower.defend import Defend
from prunella.flower.loop import protected
from prunella.flower.prune import Prune
from prunella.privacy.chain import build_chain
from prunella.pruning.prunefl_filters import of_channels
from prunella.strategies.lotteryfl import LotteryFLSettings, plan
from prunella.strategies.round.plan import RoundContext
from prunella.strategies.round.replies import build_reply
from prunella.tasks.training import evaluate
from prunella.wire.records import from_dense, mask_from_coded, record_bytes, to_coded
from tests.flower.foreign import RATE, Net, Seen, batches, load, make, plain, run
from tests.flower.test_defend import Norm, store
from tests.flower.test_scheme import GROUPS, MODEL, NAMES, Looked, Watched, Wire, assert_no_larger, equal, guarded, ours

# Of its held-out images the untrained model labels 10 % of the first client's right and 7.5 % of the second's.
SETTINGS: dict[str, Any] = {"accuracy": 0.09, "step": 0.3, "rewind": True}


def held_out(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    return load(client + 8, 40)


def test_of(client: int, model: nn.Module) -> float:
    """As an app has it: it knows nothing of weights by name."""
    assert not model.training
    x, y = held_out(client)
    return float((model(x).argmax(dim=1) == y).float().mean())


test_of.__test__ = False  # type: ignore[attr-defined]


def lottery(model: nn.Module, message: Message, context: Context) -> Any:
    client = int(context.node_config["partition-id"])
    guard = protected(message, context, model, accuracy=lambda net: test_of(client, net))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for x, y in batches(client):
        guard.step(x, y, cross_entropy, optimizer)


def lotteries(folder: Path, rounds: int, defenses: str, **more: Any) -> tuple[Watched, Looked, Seen]:
    looked, seen, build = Looked(), Wire(), more.pop("build", Net)
    layer = Watched(looked, "lotteryfl", rate=0.6, **{**SETTINGS, **more})
    run(make([Defend()], lottery, build), folder, {"defenses": defenses}, layer, rounds, tamper=seen, build=build)
    return layer, looked, seen


@pytest.mark.parametrize("rewind", [True, False])
@pytest.mark.parametrize(("defenses", "granularity"), [("none", "weight"), ("dgp", "weight"), ("none", "filter")])
def test_its_masks_updates_and_error_feedback_are_our_own_client_s(
    defenses: str, granularity: str, rewind: bool, tmp_path: Path
) -> None:
    more = {"rewind": rewind, "granularity": granularity}
    layer, looked, seen = lotteries(tmp_path, 4, defenses, **MODEL, **more)
    assert not seen.errors
    settings, chain = LotteryFLSettings(**{**SETTINGS, **more}), build_chain([defenses], {})
    config = parse_run({"strategy": "lotteryfl", "rate": 0.6})
    first, shrank = looked.sent[0], [0, 0]
    states: list[Any] = [{}, {}]
    held: list[Mask] = [full_mask(first), full_mask(first)]
    kept: list[dict[str, Tree]] = [{}, {}]
    for round in (1, 2, 3, 4):
        updates = []
        for client in (0, 1):
            mask, received = held[client], apply_mask(looked.sent[round - 1], held[client])
            x, y = held_out(client)
            context = RoundContext(
                *(config, settings, round, received, mask, NAMES, kept[client]),
                lambda: first,
                lambda weights, x=x, y=y: evaluate(Net(), weights, {}, x, y).accuracy,
                lambda: GROUPS,
            )
            how = plan(context)
            done = ours(client, received, mask, states[client], chain, how)
            states[client], kept[client], held[client] = done.state, how.keep, done.base
            answer = seen.trained(100 + client)[round - 1]
            moved = "prunella-base" in answer.array_records
            assert moved == (count(done.base) < count(mask))
            shrank[client] += moved
            if moved:
                assert equal(mask_from_coded(answer["prunella-base"], received, mask), done.base)
            told = open_answer(answer, received, mask) if is_coded(answer) else from_dense(answer["arrays"])
            if defenses == "none":
                assert equal(apply_mask(told, done.base), done.outgoing.local)
            else:
                change = map_trees(lambda a, b, s: torch.where(s, a - b, 0.0), told, received, done.outgoing.shared)
                assert all(torch.allclose(change[n], done.outgoing.update[n], atol=1e-6) for n in change)
            if is_coded(answer):
                assert_no_larger(answer, build_reply(done, mask, frozenset()))
            updates.append(done.outgoing.update)
        # Our own server's mean: over those who hold a weight, and the weight itself where nobody does.
        holders = map_trees(lambda a, b: a.float() + b.float(), *held)
        total = map_trees(torch.add, *updates)
        mean = map_trees(lambda w, t, n: w + t / n.clamp(min=1), looked.sent[round - 1], total, holders)
        assert all(torch.allclose(looked.made[round][n], mean[n], atol=1e-6) for n in mean)
    assert all(of_channels(mask, GROUPS, NAMES) == (granularity == "filter") for mask in held)
    assert min(shrank) > 0 and max(shrank) > 1 and not equal(held[0], held[1]), shrank
    if defenses == "dgp":
        assert equal(store(tmp_path, 0).load(5).state["dgp"]["error"], states[0]["dgp"]["error"])
    assert equal(store(tmp_path, 1).load(5).scheme["mask"], held[1])


def test_each_client_is_sent_its_own_mask_s_weights_in_as_many_bytes_as_by_our_own_server(tmp_path: Path) -> None:
    layer, looked, seen = lotteries(tmp_path, 4, "none")
    bases = []
    for node in (100, 101):
        mask = full_mask(looked.sent[0])
        for round, answer in enumerate(seen.trained(node)[:3]):
            if "prunella-base" in answer.array_records:
                mask = mask_from_coded(answer["prunella-base"], looked.sent[round], mask)
        bases.append(mask)
    own = [record_bytes(to_coded(apply_mask(looked.sent[3], mask), mask, mask)) for mask in bases]
    assert layer.down[3] == sum(own), "nobody is sent a mask that it chose itself"
    assert 0.39 < layer.density < 1 and not equal(*bases)


@pytest.mark.parametrize("rewind", [True, False])
def test_who_comes_later_is_told_where_the_run_began(rewind: bool, tmp_path: Path) -> None:
    """With batch norm, whose counter is a float by then. It prunes in its second round, or at once
    where it does not go back."""
    starts: list[Tree] = []

    class Late(Looked):
        def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
            asked = list(super().configure_train(server_round, arrays, config, grid))
            return [m for m in asked if server_round > 2 or m.metadata.dst_node_id == 100]

    def careless(model: nn.Module) -> float:
        model.train()(load(8)[0])
        return 1.0

    def look(model: nn.Module, message: Message, context: Context) -> Any:
        client = int(context.node_config["partition-id"])
        before = {n: b.clone() for n, b in model.named_buffers()}
        guard = protected(message, context, model, accuracy=careless)
        assert model.training and equal(dict(model.named_buffers()), before)
        if client:
            starts.append({n: p.detach().clone() for n, p in model.named_parameters()})
        guard.step(*next(batches(client)), cross_entropy, torch.optim.SGD(model.parameters(), lr=RATE))

    seen, late = Wire(), Late()
    layer = Watched(late, "lotteryfl", rate=0.9, **{**SETTINGS, "rewind": rewind})
    run(make([Defend()], look, Norm), tmp_path, {"defenses": "none"}, layer, 5, tamper=seen, build=Norm)
    assert not seen.errors
    first = late.sent[0]
    moved = ["prunella-base" in answer.array_records for answer in seen.trained(101)]
    assert moved == [not rewind, True, True]
    assert [is_coded(answer) for answer in seen.trained(101)] == [False, True, True], "the server could read each"
    if not rewind:
        return
    assert not equal(starts[0], {n: first[n] for n in starts[0]})
    for start in starts[1:]:
        assert all(torch.equal(start[n], torch.where(start[n] != 0, first[n], 0.0)) for n in start)
        assert any(bool((start[n] == 0).any()) for n in start)


def test_an_app_without_a_score_or_with_none_that_is_a_share_is_told_the_line(tmp_path: Path) -> None:
    told: list[list[str]] = []
    for place, loop in (
        ("a", plain),
        ("b", guarded),
        ("c", lambda model, message, context: protected(message, context, model, accuracy=lambda net: 40)),
    ):
        seen = Wire()
        layer = Watched(Looked(), "lotteryfl", rate=0.6, **SETTINGS)
        run(make([Defend()], loop), tmp_path / place, {"defenses": "none"}, layer, tamper=seen)
        told.append(seen.errors)
    assert "lotteryfl works inside the training loop" in told[0][0]
    assert "accuracy=test), where test(model) is the share" in told[1][0]
    assert "a share of examples, from 0 to 1" in told[2][0]


@pytest.mark.parametrize(
    ("defenses", "node", "words"),
    [("dp-sgd", {}, "which no ε covers"), ("dgp", {"require": "dgp"}, "without scores of held-out examples")],
)
def test_scores_of_held_out_examples_leave_no_site_with_conditions(
    defenses: str, node: dict[str, Any], words: str, tmp_path: Path
) -> None:
    seen = Wire()
    layer = Watched(Looked(), "lotteryfl", rate=0.6, **SETTINGS)
    run(make([Defend()], lottery), tmp_path, {"defenses": defenses}, layer, tamper=seen, **node)
    assert len(seen.errors) == 2 and all(words in each for each in seen.errors)


def test_a_mask_that_tells_of_held_out_examples_leaves_the_account_without_an_epsilon(tmp_path: Path) -> None:
    """Whatever covers the update: without the scheme, the channel's nats do."""
    for place, scheme, covered in (("a", "random", True), ("b", "lotteryfl", False)):
        more = SETTINGS if scheme == "lotteryfl" else {}
        run(
            make([Defend()], lottery),
            tmp_path / place,
            {"defenses": "channel-natural"},
            Prune(Looked(), scheme, **more),
        )
        home = store(tmp_path / place).home
        assert Accounts(home, torch.zeros(1, dtype=torch.int64)).ledger().covered == covered
