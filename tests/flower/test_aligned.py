"""ADGP in somebody else's app: our own client and server are the oracles."""

from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg

from prunella.client.state import ClientStore
from prunella.core.errors import ConfigError
from prunella.core.randomness import PrivateGenerator
from prunella.core.trees import Mask, Tree, apply_mask, count, full_mask, intersect, size
from prunella.flower.aligned import require_untied
from prunella.flower.arrays import MARK, is_coded, open_answer
from prunella.flower.defend import Defend
from prunella.flower.prune import Prune
from prunella.privacy.adgp import AlignedPruning, set_size, with_locations
from prunella.privacy.chain import build_chain, start
from prunella.strategies.round.plan import LocalPlan
from prunella.strategies.round.replies import build_reply
from prunella.wire.encode import decode_mask, encode_mask
from prunella.wire.records import from_dense, record_bytes, to_coded
from tests.flower.foreign import Net, make, plain, run, tree
from tests.flower.test_defend import Norm, store
from tests.flower.test_scheme import Looked, Watched, Wire, assert_no_larger, equal, guarded, ours

CONFIG = {"defenses": "adgp", "adgp.keep": 0.15}
ADGP = AlignedPruning(keep=0.15)


class Sets(Watched):
    """Keeps what is said beside the model of every round, by node."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **{"run_config": CONFIG, **more})
        self.marks: list[dict[int, ConfigRecord]] = []
        self.whole: list[dict[int, Tree]] = []
        self.bytes: list[dict[int, int]] = []

    def configure_train(self, *given: Any) -> Any:
        messages = list(super().configure_train(*given))
        sent = {message.metadata.dst_node_id: message.content for message in messages}
        self.marks.append({node: content.config_records.get(MARK, ConfigRecord()) for node, content in sent.items()})
        self.bytes.append({n: sum(map(record_bytes, c.array_records.values())) for n, c in sent.items()})
        self.whole.append({node: tree(self._nodes.sent[node]["arrays"]) for node in sent})
        return messages

    def set_of(self, round: int) -> Mask:
        (coded,) = {mark["locations"] for mark in self.marks[round].values() if "locations" in mark}
        assert isinstance(coded, bytes)
        return decode_mask(coded, self.masks[round], self.masks[round])


def aligned(folder: Path, rounds: int, loop: Any = guarded, scheme: str = "random", **more: Any) -> Any:
    looked, seen, app = more.pop("strategy", Looked()), Wire(), more.pop("app", None)
    build, rate, clients = more.pop("build", Net), more.pop("rate", 0.3), more.pop("clients", 2)
    layer = Sets(looked, scheme, rate, **more)
    run(app or make([Defend()], loop, build), folder, CONFIG, layer, rounds, clients, tamper=seen, build=build)
    return layer, looked, seen


@pytest.mark.parametrize(("loop", "rate"), [(guarded, 0.3), (plain, 0.0)], ids=["guarded", "update"])
def test_what_leaves_and_error_feedback_are_our_own_client_s_bit_for_bit(
    loop: Any, rate: float, tmp_path: Path
) -> None:
    """An app without the loop knows nothing of masks."""
    layer, looked, seen = aligned(tmp_path, 4, loop, rate=rate)
    assert not seen.errors
    chain = build_chain(["adgp"], {"adgp.keep": 0.15})
    states: list[Any] = [{}, {}]
    for round in range(4):
        mask, received, locations = layer.masks[round], looked.sent[round], layer.set_of(round)
        for name, kept in mask.items():
            assert int(locations[name].sum()) == set_size(int(kept.sum()), ADGP)
        proposals = []
        for client in (0, 1):
            state = states[client] or start(chain, torch.empty(0), received, {}, PrivateGenerator(bytes(32)))
            state = {"adgp": with_locations(state["adgp"], locations, mask, ADGP)}
            done = ours(client, received, mask, state, chain, LocalPlan())
            states[client] = done.state
            answer = seen.trained(100 + client)[round]
            told = open_answer(answer, received, mask) if is_coded(answer) else from_dense(answer["arrays"])
            arrived = {n: (told[n] != received[n]) for n in told}
            assert equal(intersect(arrived, locations), arrived), "inside the set"
            change = {n: told[n] - received[n] for n in told}
            assert all(torch.allclose(change[n], done.outgoing.update[n], atol=1e-6) for n in change)
            if round:
                assert_no_larger(answer, build_reply(done, mask, frozenset()))
            if "locations" in answer[MARK]:
                assert equal(decode_mask(answer[MARK]["locations"], mask, mask), done.state["adgp"]["proposal"])
                proposals.append(done.state["adgp"]["proposal"])
        assert len(proposals) == 1, "one client names the next set"
        if round < 3:
            assert equal(layer.set_of(round + 1), proposals[0])
    for client in (0, 1):
        assert equal(store(tmp_path, client).load(5).state["adgp"]["error"], states[client]["adgp"]["error"])


def test_only_what_changed_inside_the_set_is_sent_and_every_client_has_the_whole_model(tmp_path: Path) -> None:
    """In as many bytes as between our own server and client. The mean of three equal weights is not always theirs."""
    received: list[Tree] = []

    def look(model: Any, message: Message, context: Context) -> Any:
        received.append({n: t.clone() for n, t in model.state_dict().items()})
        return guarded(model, message, context)

    layer, looked, seen = aligned(tmp_path, 4, look, clients=3)
    assert not seen.errors
    for round in (1, 2, 3):
        mask, places = layer.masks[round], intersect(layer.set_of(round - 1), layer.masks[round])
        own = record_bytes(to_coded(apply_mask(looked.sent[round], places), places, places))
        assert set(layer.bytes[round].values()) == {own} and all("digest" in m for m in layer.marks[round].values())
        assert own < 0.6 * record_bytes(to_coded(looked.sent[round], mask, mask))
        for client in (0, 1, 2):
            assert equal(received[3 * round + client], looked.sent[round])


@pytest.mark.parametrize("strategy", [FedAvg, FedAdam])
def test_batch_norm_a_mask_that_moves_and_a_server_s_momentum_leave_all_with_one_model(
    strategy: Any, tmp_path: Path
) -> None:
    """They are sent it whole where something moved outside of the set."""
    received: dict[int, list[Tree]] = {0: [], 1: []}

    def look(model: Any, message: Message, context: Context) -> Any:
        client = int(context.node_config["partition-id"])
        received[client].append({n: t.clone() for n, t in model.state_dict().items()})
        return plain(model, message, context)

    for rate, ramp, build in ((0.0, 1, Norm), (0.4, 2, Net)):
        received = {0: [], 1: []}
        layer, _, seen = aligned(
            tmp_path / str(ramp), 4, look, "magnitude", rate=rate, ramp_rounds=ramp, build=build,
            strategy=strategy(fraction_evaluate=0.0),
        )  # fmt: skip
        assert not seen.errors
        changes = [["digest" in mark for mark in marks.values()] for marks in layer.marks]
        assert changes[0] == [False, False] and (changes[3] == [True, True]) == (strategy is FedAvg)
        for round in range(4):
            for client in (0, 1):
                sent = {n: t.to(received[client][round][n].dtype) for n, t in layer.whole[round][100 + client].items()}
                assert equal(received[client][round], sent)


def test_in_a_mixed_federation_the_model_is_sent_whole(tmp_path: Path) -> None:
    """A client without Defend moves weights outside of every set."""
    names: list[set[str]] = []
    with_mod, app = make([Defend()]), ClientApp()

    def look(model: Any, message: Message, context: Context) -> Any:
        names.append(set(message.content))
        return plain(model, message, context)

    without = make([], look)

    def choose(message: Message, context: Any) -> Message:
        return (with_mod if context.node_config["partition-id"] == 0 else without)(message, context)

    app.train()(choose)
    layer, _, seen = aligned(tmp_path, 3, app=app)
    assert not seen.errors and names[0] >= {"prunella"} and not any("prunella" in each for each in names[1:])
    assert not any("digest" in mark for marks in layer.marks for mark in marks.values())
    assert [is_coded(answer) for answer in seen.trained(100)] == [False, True, True]
    assert all("asked" in marks[100] for marks in layer.marks[1:]), "who has no Mod is not asked"


@pytest.mark.parametrize("words", ["no model to apply it to", "is not the one that the server has"])
def test_a_client_that_lost_its_model_costs_one_reply_and_gets_the_whole_next(words: str, tmp_path: Path) -> None:
    seen, layer = Wire(), Sets(Looked(), "random", 0.3)

    def lose(reply: Message) -> Message:
        seen(reply)
        if reply.metadata.src_node_id == 100 and len(seen.trained(100)) == 2 and not seen.errors:
            (found,) = (tmp_path / "0" / "flower" / "runs").glob("*/model.safetensors")
            held = ClientStore(tmp_path / "0" / "flower", found.parent.name)
            kept = held.model()
            assert kept is not None
            if "no model" in words:
                found.unlink()
            else:
                held.save_model({n: t + 1 for n, t in kept[0].items()}, kept[1])
        return reply

    run(make([Defend()], guarded), tmp_path, CONFIG, layer, 5, tamper=lose)
    assert len(seen.errors) == 1 and words in seen.errors[0]
    assert len(seen.trained(100)) == 4
    assert ["digest" in marks[100] for marks in layer.marks] == [False, True, True, False, True]


@pytest.mark.parametrize("lie", ["set", "values"])
def test_a_liar_s_set_is_replaced_and_its_values_outside_are_left_out(lie: str, tmp_path: Path) -> None:
    def spoil(reply: Message) -> Message:
        if reply.has_error() or MARK not in reply.content.config_records:
            return reply
        mark = reply.content[MARK]
        if lie == "set" and "locations" in mark:
            every = full_mask({n: torch.zeros(t.shape) for n, t in Net().state_dict().items()})
            mark["locations"] = encode_mask(every)
        if lie == "values" and reply.metadata.src_node_id == 101:
            weights = {n: t + 1 for n, t in tree(reply.content["arrays"]).items()}
            reply.content["arrays"] = type(reply.content["arrays"])(weights)
        return reply

    layer = Sets(looked := Looked(), "random", 0.0)
    run(make([Defend()]), tmp_path, CONFIG, layer, 2, tamper=spoil)
    assert layer._aligned is not None
    sets = layer._aligned.sets
    if lie == "set":
        assert sets.refused == 2
        assert len(sets.past) == 2 and all(count(each) < size(each) for each in sets.past)
    else:
        made = looked.made[1]
        assert max(float((made[n] - layer.whole[0][100][n]).abs().max()) for n in made) < 0.5


def test_schemes_with_masks_of_single_clients_are_refused_and_a_run_without_adgp_has_no_sets() -> None:
    with pytest.raises(ConfigError, match="adgp needs one mask for all clients: choose another scheme than feddst"):
        Prune(FedAvg(), "feddst", run_config=CONFIG)
    with pytest.raises(ConfigError, match="did you mean 'adgp.keep'"):
        Prune(FedAvg(), "random", run_config={"defenses": "adgp", "adgp.kep": 0.1})
    assert Prune(FedAvg(), "random", run_config={"defenses": "dgp"})._aligned is None


def test_tied_weights_are_refused_before_anybody_trains() -> None:
    """Each name would have a set of its own, and every answer be thrown away. Equal by chance are zeros alone."""
    weight = torch.rand(3, 4)
    require_untied({"a": weight, "b": torch.zeros(3, 4), "c": torch.zeros(3, 4), "d": torch.rand(3, 4)})
    with pytest.raises(ConfigError, match="adgp takes no tied weights, and out is emb"):
        require_untied({"emb": weight, "out": weight.clone()})
