"""Schemes whose clients take part, in somebody else's app: our own client is the oracle, bit for bit."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from torch import nn
from torch.nn.functional import cross_entropy

import prunella.flower.loop as loop_of_apps
from prunella.client.planted import PlantedCheck
from prunella.core.config import parse_run
from prunella.core.errors import ConfigError, WireError
from prunella.core.randomness import PrivateGenerator
from prunella.core.trees import Mask, Tree, apply_mask, count, full_mask, map_trees, zeros_like
from prunella.flower.arrays import EXACT
from prunella.flower.defend import Defend
from prunella.flower.layer import fill
from prunella.flower.loop import protected
from prunella.flower.prune import Prune
from prunella.flower.scheme import LocalScheme, SchemeOrder
from prunella.privacy.chain import build_chain, start
from prunella.pruning.channels import channel_groups
from prunella.pruning.feddst import vote
from prunella.pruning.prunefl import reconfigure, weight_cost
from prunella.pruning.prunefl_filters import of_channels
from prunella.pruning.selection import density
from prunella.strategies.feddst import FedDSTSettings, plan
from prunella.strategies.prunefl import MaskRule, PruneFL, PruneFLSettings, initial_mask, with_limit
from prunella.strategies.round.local import LocalResult, Procedure, Received, local_update
from prunella.strategies.round.plan import LocalPlan, RoundContext
from prunella.strategies.round.replies import Contribution, build_reply
from prunella.tasks.examples import Examples
from prunella.tasks.training import Sgd
from prunella.wire.records import from_coded, from_dense, mask_from_coded, record_bytes, to_coded, to_dense
from tests.flower.foreign import RATE, Net, Seen, batches, make, plain, run, tree
from tests.flower.test_defend import store

NAMES = frozenset({"conv.weight", "fc1.weight", "fc2.weight"})
GROUPS = channel_groups(Net(), (1, 8, 8))
MODEL: dict[str, Any] = {"model": Net(), "shape": (1, 8, 8)}
Loop = Callable[[nn.Module, Message, Context], Any]


def guarded(model: nn.Module, message: Message, context: Context) -> Any:
    optimizer, guard = torch.optim.SGD(model.parameters(), lr=RATE), protected(message, context, model)
    for x, y in batches(int(context.node_config["partition-id"])):
        guard.step(x, y, cross_entropy, optimizer)


def by_hand(model: nn.Module, message: Message, context: Context) -> Any:
    optimizer, guard = torch.optim.SGD(model.parameters(), lr=RATE), protected(message, context, model)
    for x, y in batches(int(context.node_config["partition-id"])):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        guard.gradients()
        optimizer.step()


class Wire(Seen):
    """As they came: the server puts what the strategy is to see in their place."""

    def __call__(self, reply: Message) -> Message:
        self.replies.append(copy.copy(reply))
        return reply


class Looked(FedAvg):
    """Keeps what it is asked to send."""

    def __init__(self) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.sent: list[Tree] = []
        self.made: dict[int, Tree] = {}

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        arrays, metrics = super().aggregate_train(server_round, replies)
        self.made[server_round] = {} if arrays is None else tree(arrays)
        return arrays, metrics

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        self.sent.append(tree(arrays))
        return super().configure_train(server_round, arrays, config, grid)


class Watched(Prune):
    """Keeps the mask of every round."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.masks: list[Mask] = []
        self.down: list[int] = []

    def configure_train(self, *given: Any) -> Any:
        messages = list(super().configure_train(*given))
        assert self.mask is not None
        self.masks.append(self.mask)
        records = [record for message in messages for record in message.content.array_records.values()]
        self.down.append(sum(map(record_bytes, records)))
        return messages


def steps(client: int) -> Iterator[Examples]:
    return (Examples(x, y) for x, y in batches(client))


def ours(client: int, received: Tree, mask: Mask, state: Any, chain: Any, how: LocalPlan) -> LocalResult:
    """The same round of Prunella's own client."""
    draws = PrivateGenerator(bytes(32))
    state = start(chain, torch.empty(0), received, state, draws)
    got = Received(received, mask, {})
    return local_update(Procedure(Net(), Sgd(RATE), chain), got, steps(client), state, draws, how)


def federation(
    loop: Loop, folder: Path, scheme: str, rounds: int, defenses: str = "dgp", **more: Any
) -> tuple[Watched, Looked, Seen]:
    node = {key: more.pop(key) for key in ("require",) if key in more}
    looked, seen = Looked(), Wire()
    layer = Watched(looked, scheme, rate=0.3, **{**MODEL, **more})
    run(make([Defend()], loop), folder, {"defenses": defenses}, layer, rounds=rounds, tamper=seen, **node)
    return layer, looked, seen


def equal(one: Tree, other: Tree) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


SETTINGS: dict[str, Any] = {"initial_interval": 2, "initial_steps": 4, "adjust_interval": 2, "prunable_share": 0.5}


@pytest.mark.parametrize("granularity", ["weight", "filter"])
@pytest.mark.parametrize("loop", [guarded, by_hand])
def test_prunefl_s_first_mask_is_our_own_client_s(loop: Loop, granularity: str, tmp_path: Path) -> None:
    layer, looked, _ = federation(loop, tmp_path, "prunefl", 1, granularity=granularity, **SETTINGS)
    settings = with_limit(PruneFLSettings(**SETTINGS), 0.3)
    cost = weight_cost(Net(), (1, 8, 8), NAMES, "flops")
    received, chain = looked.sent[0], build_chain(["dgp"], {})
    draws = PrivateGenerator(bytes(32))
    state = start(chain, torch.empty(0), received, {}, draws)
    procedure, got = Procedure(Net(), Sgd(RATE), chain), Received(received, full_mask(received), {})
    groups = GROUPS if granularity == "filter" else ()
    first = initial_mask(MaskRule(settings, cost, groups), procedure, got, steps(0), state, draws)
    assert of_channels(first, GROUPS, NAMES) == (granularity == "filter")
    assert equal(first, layer.masks[0]) and count(first) < count(full_mask(first))
    assert equal(apply_mask(looked.sent[1], first), looked.sent[1]), "what is sent afterwards is under it"


@pytest.mark.parametrize("loop", [guarded, by_hand])
@pytest.mark.parametrize("defenses", ["dgp", "none"])
def test_prunefl_s_importances_masks_and_error_feedback_are_our_own_client_s(
    loop: Loop, defenses: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted, note = list[Contribution](), PruneFL.note
    monkeypatch.setattr(PruneFL, "note", lambda self, each: note(self, noted.append(each) or each))
    layer, looked, seen = federation(loop, tmp_path, "prunefl", 3, defenses, **SETTINGS)
    assert not seen.errors
    # Undefended, a zero inside the mask is a gradient of zero, and counts.
    told = [(each.applied, each.shared.keys() >= NAMES) for each in noted if each.importance is not None]
    assert told == [((defenses,), defenses == "none")] * 2
    settings, cost = with_limit(PruneFLSettings(**SETTINGS), 0.3), weight_cost(Net(), (1, 8, 8), NAMES, "flops")
    states: list[Any] = [{}, {}]
    chain, totals = build_chain([defenses], {}), []
    for round in (1, 2):
        received, mask = looked.sent[round], layer.masks[round - 1]
        done = [ours(client, received, mask, states[client], chain, LocalPlan()) for client in (0, 1)]
        states = [each.state for each in done]
        for client, each in enumerate(done):
            answer = seen.trained(100 + client)[round - 1 + (client == 0)]
            assert ("prunella-importance" in answer.array_records) == (round == 2)
            if round == 2:
                assert_no_larger(answer, build_reply(each, mask, NAMES))
                like = {name: torch.empty_like(received[name]) for name in NAMES}
                told, _ = from_coded(answer["prunella-importance"], like)
                assert equal(dict(told), {name: each.importance[name] for name in told})
                totals.append({n: each.importance.get(n, torch.zeros(())) for n in received})
    kept = store(tmp_path, 0).load(3).state
    if defenses == "dgp":
        assert equal(kept["dgp"]["error"], states[0]["dgp"]["error"])
    weights = [map_trees(lambda t: (t != 0).double() * 32, {n: t[n] for n in NAMES}) for t in totals]
    mean = {
        n: sum(t[n].double() * w[n] for t, w in zip(totals, weights, strict=True))
        / (weights[0][n] + weights[1][n]).clamp(min=1)
        for n in NAMES
    }
    averaged = apply_mask(looked.made[2], layer.masks[1])
    moved = reconfigure(averaged, {**zeros_like(averaged), **mean}, layer.masks[1], cost, settings, 2)
    assert equal(moved, layer.masks[2]) and not equal(moved, layer.masks[1])


def test_prunefl_moves_whole_filters_of_somebody_else_s_model(tmp_path: Path) -> None:
    layer, looked, seen = federation(guarded, tmp_path, "prunefl", 4, granularity="filter", **SETTINGS)
    assert not seen.errors and not equal(layer.masks[2], layer.masks[1])
    assert all(of_channels(mask, GROUPS, NAMES) and density(mask, NAMES) <= 0.7 for mask in layer.masks)
    assert equal(apply_mask(looked.sent[3], layer.masks[3]), looked.sent[3])


def assert_no_larger(answer: RecordDict, own: dict[str, ArrayRecord]) -> None:
    """A coded answer is at most 1 % larger than our own client's, but for the weights that a difference would round:
    few, and a fixed cost that shows beside a model of 2,000 weights only. Our own server rounds them."""
    mine = sum(record_bytes(record) for record in own.values())
    sizes = {name: record_bytes(record) for name, record in answer.array_records.items()}
    assert sizes.pop(EXACT, 0) < 400
    assert sum(sizes.values()) <= 1.01 * mine


@pytest.mark.parametrize("defenses", ["none", "dgp", "top-k"])
@pytest.mark.parametrize("scheme", ["magnitude", "random"])
def test_messages_are_as_small_as_between_our_own_server_and_client(scheme: str, defenses: str, tmp_path: Path) -> None:
    """Both ways, for the same weights, mask and defense, once both sides hold the mask."""
    more = {"ramp_rounds": 1} if scheme == "magnitude" else {}
    layer, looked, seen = federation(guarded, tmp_path, scheme, 3, defenses, **more)
    assert not seen.errors
    own, mask, received = to_coded(looked.sent[2], layer.masks[2], layer.masks[2]), layer.masks[2], looked.sent[2]
    assert layer.down[2] == 2 * record_bytes(own)
    saved = store(tmp_path, 0).load(3).state
    done = ours(0, received, mask, saved, build_chain([defenses], {}), LocalPlan())
    assert_no_larger(seen.trained(100)[2], build_reply(done, mask, frozenset()))


def test_a_mask_that_moves_half_way_begins_no_round_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fed-spa drew its mask anew, and rows that the move made parallel were not looked at."""
    asked, numbers, made = list[tuple[Any, ...]](), list[int](), loop_of_apps.Step
    monkeypatch.setattr(PlantedCheck, "allows", lambda self, *given: asked.append(given[3:]) or True)
    monkeypatch.setattr(loop_of_apps, "Step", lambda **given: numbers.append(given["number"]) or made(**given))
    _, _, seen = federation(guarded, tmp_path, "feddst", 1, adjust_interval=1, local_steps=4)
    assert not seen.errors
    steps = len(numbers) // 2  # of each of two clients
    assert numbers == [*range(steps)] * 2 and steps > 3
    assert [each[0] for each in asked] == [*range(1, steps)] * 2
    assert [sum(begins for _, begins in half) for half in (asked[: steps - 1], asked[steps - 1 :])] == [1, 1]


def test_feddst_s_moves_and_error_feedback_are_our_own_client_s(tmp_path: Path) -> None:
    given: dict[str, Any] = {"adjust_interval": 2, "end_round": 9, "alpha": 0.4}
    layer, looked, seen = federation(guarded, tmp_path, "feddst", 3, local_steps=4, **given)
    assert not seen.errors
    settings, chain = FedDSTSettings(**given), build_chain(["dgp"], {})
    config = parse_run({"strategy": "feddst", "rate": 0.3, "local-steps": 4})
    state: Any = {}
    for round in (1, 2):
        received, mask = looked.sent[round - 1], layer.masks[round - 1]
        how = plan(RoundContext(config, settings, round, received, mask, NAMES, {}, dict, lambda _: 0.0))
        done = ours(0, received, mask, state, chain, how)
        state = done.state
        answer = seen.trained(100)[round - 1]
        assert ("prunella-base" in answer.array_records) == (round == 2)
        if round == 2:
            assert_no_larger(answer, build_reply(done, mask, frozenset()))
            assert equal(mask_from_coded(answer["prunella-base"], received, mask), done.base)
            assert not equal(done.base, mask)
    assert equal(store(tmp_path, 0).load(3).state["dgp"]["error"], state["dgp"]["error"])
    bases = [mask_from_coded(seen.trained(n)[1]["prunella-base"], received, mask) for n in (100, 101)]
    holders = map_trees(torch.logical_or, *bases)
    counts = {name: count({name: mask[name]}) for name in NAMES}
    assert equal(layer.masks[2], vote(looked.made[2], holders, mask, counts))


def test_who_holds_a_weight_decides_its_mean() -> None:
    torch.manual_seed(0)
    trees = [{"w": torch.randn(3, 4), "b": torch.randn(3)} for _ in range(2)]
    bases = [{"w": torch.rand(3, 4) > 0.5, "b": torch.ones(3, dtype=torch.bool)} for _ in range(2)]
    contents = [_content(apply_mask(t, b)) for t, b in zip(trees, bases, strict=True)]
    previous = {"w": torch.randn(3, 4), "b": torch.randn(3)}
    fill(list(zip(contents, bases, (1.0, 3.0), strict=True)), previous)
    one, other = (from_dense(content["arrays"]) for content in contents)
    mean = {name: (one[name] + 3 * other[name]) / 4 for name in one}
    for name in one:
        weight = bases[0][name] * 1.0 + bases[1][name] * 3.0
        total = trees[0][name] * bases[0][name] + 3 * trees[1][name] * bases[1][name]
        assert torch.allclose(
            mean[name], torch.where(weight > 0, total / weight.clamp(min=1), previous[name]), atol=1e-6
        )


def _content(weights: Tree) -> Any:
    return RecordDict({"arrays": to_dense(weights)})


@pytest.mark.parametrize(
    ("scheme", "more"), [("prunefl", {"adjust_interval": 1}), ("feddst", {"adjust_interval": 1, "local_steps": 4})]
)
def test_an_app_without_the_loop_is_told_the_lines(scheme: str, more: dict[str, Any], tmp_path: Path) -> None:
    _, _, seen = federation(plain, tmp_path, scheme, 1, **more)
    assert seen.errors and all(f"{scheme} works inside the training loop" in told for told in seen.errors)
    assert "guard = protected(msg, context, model)" in seen.errors[0]


def test_an_owner_s_update_defense_lets_no_gradients_and_no_mask_leave(tmp_path: Path) -> None:
    """As our own client: PruneFL goes on without, FedDST is refused, and no first mask is made."""
    layer, _, seen = federation(plain, tmp_path / "a", "prunefl", 2, require="dgp", adjust_interval=1)
    assert ["no mask of this client's making" in told for told in seen.errors] == [True, True]
    importance = {n: t for n, t in tree_of(seen.trained()[1]).items()}
    assert importance.keys() == NAMES and not any(bool(t.any()) for t in importance.values())
    assert layer.density == 1
    _, _, seen = federation(guarded, tmp_path / "b", "feddst", 1, require="dgp", adjust_interval=1, local_steps=4)
    assert "send no masks of their own" in seen.errors[0] and not seen.trained()


def tree_of(answer: Any) -> Tree:
    like = {name: torch.empty_like(p) for name, p in Net().named_parameters() if name in NAMES}
    return dict(from_coded(answer["prunella-importance"], like)[0])


def test_a_loop_that_ends_before_the_mask_can_move_is_refused(tmp_path: Path) -> None:
    _, _, seen = federation(guarded, tmp_path, "prunefl", 1, initial_interval=9)
    assert "moves the mask after 9 local steps, and the loop took 4" in seen.errors[0]
    assert "give the server's Prune a smaller initial_interval" in seen.errors[0]
    _, _, seen = federation(guarded, tmp_path / "b", "feddst", 1, adjust_interval=1, local_steps=50)
    assert "the loop took 4" in seen.errors[0] and "a smaller local_steps" in seen.errors[0]


def test_clients_without_the_mod_train_along(tmp_path: Path) -> None:
    """They are never asked for what they cannot do, and see no record of ours once it is known."""
    kinds: list[tuple[int, set[str]]] = []

    def look(model: nn.Module, message: Message, context: Context) -> Any:
        kinds.append((int(context.node_config["partition-id"]), set(message.content)))
        return (guarded if context.node_config["partition-id"] == 0 else plain)(model, message, context)

    with_mod, without, app = make([Defend()], look), make([], look), ClientApp()

    def choose(message: Message, context: Any) -> Message:
        return (with_mod if context.node_config["partition-id"] == 0 else without)(message, context)

    app.train()(choose)
    layer = Watched(Looked(), "prunefl", rate=0.3, **MODEL, **{**SETTINGS, "adjust_interval": 1})
    done = run(app, tmp_path, {"defenses": "dgp"}, layer, rounds=4)
    assert layer.density <= 0.7 and not equal(layer.masks[1], layer.masks[2])
    arrays, mask = tree(done.arrays), layer.mask
    assert mask is not None and equal(apply_mask(arrays, mask), arrays)
    assert {"prunella" in names for client, names in kinds if client == 0} == {False}
    assert ["prunella" in names for client, names in kinds if client == 1] == [True, False, False, False]


def test_at_rate_0_nobody_is_asked_for_anything(tmp_path: Path) -> None:
    bare = run(make([]), tmp_path / "a", {}, FedAvg(fraction_evaluate=0.0), rounds=2)
    for scheme in ("prunefl", "feddst"):
        layer = Prune(FedAvg(fraction_evaluate=0.0), scheme, rate=0.0, adjust_interval=1)
        done = run(make([Defend()]), tmp_path / scheme, {"defenses": "none"}, layer, rounds=2)
        assert equal(tree(bare.arrays), tree(done.arrays))


def test_a_bad_mask_or_importance_is_left_out(tmp_path: Path) -> None:
    def spoil(reply: Message) -> Message:
        if not reply.has_error() and reply.metadata.src_node_id == 100:
            for name in {"mask", "prunella-importance"} & set(reply.content):
                reply.content[name] = ArrayRecord({"tree": next(iter(reply.content[name].values()))})
                reply.content[name]["tree"].data = reply.content[name]["tree"].data[:-3]
        return reply

    layer = Watched(Looked(), "prunefl", rate=0.3, **MODEL, **SETTINGS)
    run(make([Defend()], guarded), tmp_path, {"defenses": "none"}, layer, rounds=3, tamper=spoil)
    assert layer.density < 1, "the second client made the first mask"
    assert not equal(layer.masks[2], layer.masks[1]), "and its importances moved it"


def test_an_order_is_read_back_and_nonsense_is_refused() -> None:
    channels = ((2, ("a",), (), ("b", "c")),)
    order = SchemeOrder(
        "prunefl", 4, 0.3, 5, ("a.weight",), (1.0,), '{"prunefl.adjust-interval": 2}', channels=channels
    )
    assert SchemeOrder.read(ConfigRecord(order.record())) == order and order.importance
    assert not SchemeOrder.read(None).scheme and not SchemeOrder.read(ConfigRecord({"mask": b"x"})).scheme
    for text in ("{", "[1]", '{"names": [], "costs": [], "round": -1}', '{"names": 3, "costs": []}'):
        with pytest.raises(WireError, match="cannot be read"):
            SchemeOrder.read(ConfigRecord({"scheme": text}))
    with pytest.raises(ConfigError, match="unknown setting"):
        SchemeOrder.read(ConfigRecord(SchemeOrder("prunefl", settings='{"prunefl.x": 2}').record()))


def test_gradients_are_gathered_only_where_something_is_asked() -> None:
    params = {"w": torch.ones(2)}
    idle = LocalScheme.of(SchemeOrder(), params, full_mask(params), frozenset())
    idle.observe(params)
    assert not idle.squares and idle.after_step(params, full_mask(params)) is None
