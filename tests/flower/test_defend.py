"""Defend around apps that know nothing of it: what leaves is what Prunella's own client would let out."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, arrays_size_mod, fixedclipping_mod, message_size_mod
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, FedAvg, FedXgbBagging
from torch import nn

from prunella.client.state import ClientStore
from prunella.core.randomness import PrivateGenerator
from prunella.core.trees import Tree, add, full_mask, subtract
from prunella.flower.defend import Defend
from prunella.flower.prune import Prune
from prunella.privacy.chain import build_chain, start
from prunella.strategies.round.local import Procedure, Received, local_update
from prunella.tasks.examples import Examples
from prunella.tasks.training import Sgd
from tests.flower.foreign import RATE, Net, Seen, batches, load, make, plain, run, tree


def ours(names: list[str], received: Tree, state: Any, raw: Any = None) -> tuple[Tree, Any, Tree]:
    """What Prunella's own client makes of the same round: update, state, and where it shares."""
    chain = build_chain(names, raw or {})
    like = {name: p.detach() for name, p in Net().named_parameters()}
    draws = PrivateGenerator(bytes(32))
    state = start(chain, torch.empty(0), like, state, draws)
    steps = (Examples(x, y) for x, y in batches(0))
    got = Received(received, full_mask(received), {})
    done = local_update(Procedure(Net(), Sgd(RATE), chain), got, steps, state, draws)
    return done.outgoing.update, done.state, done.outgoing.shared


def store(folder: Path, client: int = 0) -> ClientStore:
    return ClientStore(folder / str(client) / "flower", "run-1-train")


@pytest.mark.parametrize("names", [["dgp"], ["top-k"], ["largest"], ["none"]], ids=lambda names: names[0])
def test_what_leaves_is_what_our_own_client_sends_bit_for_bit(names: list[str], tmp_path: Path) -> None:
    """Masks, updates and error feedback over three rounds, of defenses that draw nothing."""
    seen = Seen()
    sent: list[Tree] = []

    class Looked(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            sent.append(tree(arrays))
            return super().configure_train(server_round, arrays, config, grid)

    strategy = Looked(fraction_evaluate=0.0)
    run(make([Defend()], plain), tmp_path, {"defenses": names[0]}, strategy, rounds=3, tamper=seen)
    assert not seen.errors
    state: Any = {}
    for received, reply in zip(sent, seen.trained(), strict=True):
        update, state, shared = ours(names, received, state)
        arrived = tree(reply["arrays"])
        whole = add(received, update)
        for name, tensor in arrived.items():
            assert torch.allclose(tensor, whole[name], rtol=0, atol=1e-7)
            assert torch.equal((tensor != received[name]) & ~shared[name], torch.zeros_like(shared[name]))
    kept = store(tmp_path).load(4).state
    for link, trees in state.items():
        for kind, kept_tree in trees.items():
            for name, tensor in kept_tree.items():
                assert torch.equal(kept[link][kind][name], tensor), (link, kind, name)


def test_dgp_withholds_four_fifths_and_none_withholds_nothing(tmp_path: Path) -> None:
    changed = {}
    for names in ("dgp", "none"):
        seen = Seen()
        run(make([Defend()]), tmp_path / names, {"defenses": names}, tamper=seen)
        torch.manual_seed(0)
        first = Net().state_dict()
        arrived = tree(seen.trained()[0]["arrays"])
        changed[names] = sum(int((arrived[n] != first[n]).sum()) for n in first) / sum(
            t.numel() for t in first.values()
        )
    assert 0.15 < changed["dgp"] < 0.25 and changed["none"] > 0.95


def test_without_a_defense_the_federation_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    bare = run(make([]), tmp_path / "a", {}, rounds=2)
    defended = run(make([Defend()]), tmp_path / "b", {"defenses": "none"}, rounds=2)
    for name, tensor in tree(bare.arrays).items():
        assert torch.equal(tensor, tree(defended.arrays)[name])


def test_only_listed_numbers_leave(tmp_path: Path) -> None:
    seen = Seen()
    config = {"defenses": "dgp"}
    app = make([Defend(metrics=("train_loss", "secret"))])
    run(app, tmp_path, config, FedAvg(), tamper=seen)
    trained, evaluated = seen.replies[0].content, seen.replies[-1].content
    assert set(trained["metrics"]) == {"num-examples", "train_loss"} and set(trained.config_records) == {"prunella"}
    assert trained["prunella"]["applied"] == ["dgp"]
    assert set(evaluated["metrics"]) == {"num-examples"} and not evaluated.array_records
    seen = Seen()
    run(app, tmp_path / "own", config, tamper=seen, metrics="nothing")
    assert set(seen.replies[0].content["metrics"]) == {"num-examples"}, "the site's own list wins"


def test_the_stricter_of_run_and_site_wins(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], str, str | None]] = [
        ({"defenses": "none"}, "dgp, dgp.bottom=0.9", None),
        ({"defenses": "dgp", "dgp.bottom": 0.5}, "dgp.bottom=0.9", None),
        ({}, "dgp.bottom=0.9", None),
        ({"defenses": "top-k"}, "dgp.bottom=0.9", "no update defense but dgp"),
        ({"defenses": "top-k,dgp"}, "dgp.bottom=0.9", "no update defense but dgp"),
        ({"defenses": "somebody.else:THEIRS"}, "dgp", "cannot be imported"),
        ({"defenses": "none"}, "dgp, batch-size=16", "no app but Prunella's own tells"),
    ]
    for number, (config, require, refused) in enumerate(cases):
        seen, place = Seen(), tmp_path / str(number)
        run(make([Defend()]), place, config, tamper=seen, require=require)
        if refused is not None:
            assert refused in seen.errors[0]
            continue
        torch.manual_seed(0)
        first, arrived = Net().state_dict(), tree(seen.trained()[0]["arrays"])
        moved = sum(int((arrived[n] != first[n]).sum()) for n in first) / sum(t.numel() for t in first.values())
        assert 0.03 < moved < 0.08, "bottom 0.9 and top 0.05"


class Norm(Net):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(torch.sigmoid(self.fc1(torch.sigmoid(self.norm(self.conv(x))).flatten(1))))


def test_statistics_pass_and_a_site_with_conditions_keeps_them(tmp_path: Path) -> None:
    seen = Seen()
    run(make([Defend()], build=Norm), tmp_path, {"defenses": "dgp"}, rounds=2, tamper=seen, build=Norm)
    assert not seen.errors
    last = tree(seen.trained()[1]["arrays"])
    assert int(last["norm.num_batches_tracked"]) == 8 and bool((last["norm.running_var"] != 1).all())
    run(make([Defend()], build=Norm), tmp_path / "b", {}, tamper=seen, build=Norm, require="dgp")
    assert "without buffers" in seen.errors[0]


class Odd(nn.Module):
    """Half precision, a frozen layer, an output tied to the embedding, and a table of integers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 16).half()
        self.body = nn.Linear(64, 16).half()
        self.frozen = nn.Linear(64, 64).half().requires_grad_(False)
        self.head = nn.Linear(16, 10, bias=False).half()
        self.head.weight = self.embed.weight
        self.register_buffer("table", torch.arange(7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.frozen(x.flatten(1).half()))
        return self.head(torch.tanh(self.body(x)))


@pytest.mark.parametrize("names", ["dgp", "random", "top-k,mask-hiding"])
def test_half_precision_tied_and_frozen_weights(names: str, tmp_path: Path) -> None:
    seen, settings = Seen(), {"defenses": names}
    start = ArrayRecord(Odd().state_dict())
    run(make([Defend()], build=Odd), tmp_path, settings, rounds=2, clients=2, tamper=seen, build=Odd, start=start)
    assert not seen.errors
    sent, arrived = tree(start), tree(seen.trained()[0]["arrays"])
    assert {n: t.dtype for n, t in arrived.items()} == {n: t.dtype for n, t in sent.items()}
    assert torch.equal(arrived["frozen.weight"], sent["frozen.weight"]) and torch.equal(arrived["table"], sent["table"])
    assert torch.equal(arrived["head.weight"], arrived["embed.weight"]), "tied weights were defended once"
    assert 0 < int((arrived["body.weight"] != sent["body.weight"]).sum())
    state = store(tmp_path).load(9)
    assert set(state.scheme["tracked"]) == {"embed.weight", "body.weight", "body.bias"}


def test_tied_weights_begin_as_one_where_a_defense_kept_some_back(tmp_path: Path) -> None:
    seen: list[Tree] = []

    def look(model: nn.Module, message: Message, context: Context) -> Any:
        seen.append(tree(message.content["arrays"]))
        return plain(model, message, context)

    start = ArrayRecord(Odd().state_dict())
    run(make([Defend()], look, build=Odd), tmp_path, {"defenses": "random"}, rounds=2, build=Odd, start=start)
    for given in seen:
        assert torch.equal(given["embed.weight"], given["head.weight"])
    assert not torch.equal(seen[2]["embed.weight"], seen[3]["embed.weight"]), "each client put its own weights back"


def test_bfloat16_travels_as_float32_since_flower_has_no_other_way(tmp_path: Path) -> None:
    def as_float(model: nn.Module) -> ArrayRecord:
        return ArrayRecord({name: tensor.float() for name, tensor in model.state_dict().items()})

    class Brain(Net):
        def __init__(self) -> None:
            super().__init__()
            self.bfloat16()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.bfloat16()).float()

    with pytest.raises(TypeError, match="BFloat16"):
        ArrayRecord(Brain().state_dict())
    seen = Seen()
    app = make([Defend()], build=Brain, arrays=as_float)
    run(app, tmp_path, {"defenses": "dgp"}, rounds=2, tamper=seen, start=as_float(Brain()))
    assert not seen.errors and len(seen.trained()) == 2


def refused(tmp_path: Path, config: dict[str, Any], mods: list[Any], **node: Any) -> str:
    seen = Seen()
    options = {key: node.pop(key) for key in ("loop", "arrays", "build") if key in node}
    run(make(mods, **options), tmp_path, config, tamper=seen, build=options.get("build", Net), **node)
    (first, *_) = seen.errors
    assert not seen.trained()
    return first


def leaky(model: nn.Module, message: Message, context: Context) -> Any:
    raise ValueError(f"patient Ada Lovelace has pixel {load(0)[0][0, 0, 3, 3]}")


def nan(model: nn.Module, message: Message, context: Context) -> Any:
    model.fc1.weight.data[0, 0] = float("nan")


def integers(model: nn.Module) -> ArrayRecord:
    """A careless quantisation: as integers, weights would pass every defense."""
    tensors = {name: t.numpy() for name, t in model.state_dict().items()}
    return ArrayRecord({n: Array((t * 1000).astype("int32") if n == "fc1.weight" else t) for n, t in tensors.items()})


def counting(model: nn.Module) -> ArrayRecord:
    """A metric's state, registered as a buffer: how many of a class there were."""
    return ArrayRecord({n: Array((t + 3).numpy() if n == "seen" else t.numpy()) for n, t in model.state_dict().items()})


class Counting(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))


def encoded(model: nn.Module) -> ArrayRecord:
    return ArrayRecord({n: Array("float32", tuple(t.shape), "mine", b"123") for n, t in model.state_dict().items()})


def clipping(message: Message, context: Context, call_next: Any) -> Message:
    reply = fixedclipping_mod(message, context, call_next)
    if reply.has_error():  # under the node's own number, as each has in a process of its own
        raise ValueError(reply.error.reason)
    return reply


clipping.__name__ = "fixedclipping_mod"


@pytest.mark.parametrize(
    ("config", "mods", "more", "told"),
    [
        ({}, [Defend()], {}, "no defense is named"),
        ({"defenses": "dpg"}, [Defend()], {}, "did you mean 'dgp'"),
        ({"defenses": "dgp", "dgp.bottm": 0.5}, [Defend()], {}, "did you mean 'dgp.bottom'"),
        ({"defenses": "adgp"}, [Defend()], {}, "Prune(strategy, scheme, rate, run_config=context.run_config)"),
        ({"defenses": "leakage-guard"}, [Defend()], {}, "on the images; docs/choose.md"),
        ({"defenses": "priprune"}, [Defend()], {}, "guard.step(x, y, loss, optimizer)"),
        ({"defenses": "dp-sgd"}, [Defend()], {}, "guard = protected(msg, context, model)"),
        ({"defenses": "soteria,dgp"}, [Defend()], {}, "soteria works inside the training loop"),
        ({"defenses": "dgp"}, [Defend(), clipping], {}, "mods=[fixedclipping_mod, Defend()]"),
        ({"defenses": "dgp"}, [Defend(), Defend()], {}, "Defend stands twice"),
        ({"defenses": "dgp"}, [Defend], {}, "write ClientApp(mods=[Defend()])"),
        ({"defenses": "dgp"}, [Defend()], {"loop": nan}, "fc1.weight is not finite"),
        ({"defenses": "dgp"}, [Defend()], {"arrays": integers}, "no defense works on it"),
        ({"defenses": "dgp"}, [Defend()], {"arrays": counting, "build": Counting}, "no defense works on it"),
        ({"defenses": "dgp"}, [Defend()], {"arrays": encoded}, "cannot be read"),
        ({"defenses": "dgp"}, [Defend()], {"arrays": lambda m: ArrayRecord([])}, "differs from the model received"),
        ({"defenses": "dgp"}, [Defend()], {"epsilon-budget": 1.0}, "only with a defense with an ε"),
    ],
)
def test_careless_and_malicious_uses_are_refused(config, mods, more, told, tmp_path: Path) -> None:
    assert told in refused(tmp_path, config, mods, **more)


def test_boosted_trees_are_refused_before_the_app_is_asked(tmp_path: Path) -> None:
    """As Flower's quick start for XGBoost sends them: bytes, and at first none."""
    asked, seen, app = [], Seen(), ClientApp(mods=[Defend()])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        asked.append(message)
        return Message(message.content, reply_to=message)

    begin = ArrayRecord([np.frombuffer(b"", dtype=np.uint8)])
    run(app, tmp_path, {"defenses": "none"}, FedXgbBagging(fraction_evaluate=0.0), tamper=seen, start=begin)
    assert "boosted trees" in seen.errors[0] and not asked


def test_what_an_app_raises_stays_on_the_client(tmp_path: Path) -> None:
    said = refused(tmp_path, {"defenses": "dgp"}, [Defend()], loop=leaky)
    assert "Lovelace" not in said and "pixel" not in said and "own log" in said


def test_flower_s_other_mods_stand_on_either_side(tmp_path: Path) -> None:
    noisy = LocalDpMod(clipping_norm=1.0, sensitivity=0.1, epsilon=1.0, delta=1e-5)
    for number, mods in enumerate([[noisy, Defend()], [Defend(), noisy], [arrays_size_mod, Defend(), arrays_size_mod]]):
        seen = Seen()
        run(make(mods), tmp_path / str(number), {"defenses": "dgp"}, rounds=2, tamper=seen)
        assert not seen.errors and len(seen.trained()) == 2


@pytest.mark.parametrize("chain", ["dgp", "adgp"])
def test_flower_s_size_mod_counts_what_comes_and_what_leaves(chain: str, tmp_path: Path) -> None:
    """Coded and dense, of training and evaluation: it cannot count a config record with an empty value."""
    seen, config = Seen(), {"defenses": chain}
    strategy = Prune(FedAvg(), "magnitude", rate=0.5, ramp_rounds=1, run_config=config)
    run(make([message_size_mod, Defend()]), tmp_path, config, strategy, rounds=3, tamper=seen)
    assert not seen.errors and len(seen.replies) == 3 * 2 * 2


def test_a_clipping_mod_before_it_works(tmp_path: Path) -> None:
    seen = Seen()

    class Clipping(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            config["clipping_norm"] = 1e-3
            return super().configure_train(server_round, arrays, config, grid)

    run(make([clipping, Defend()]), tmp_path, {"defenses": "dgp"}, Clipping(fraction_evaluate=0.0), tamper=seen)
    torch.manual_seed(0)
    update = subtract(tree(seen.trained()[0]["arrays"]), Net().state_dict())
    assert sum(float(t.square().sum()) for t in update.values()) ** 0.5 < 1.01e-3


def test_behind_a_clipping_mod_a_pruned_model_goes_on_as_flower_would_send_it(tmp_path: Path) -> None:
    """The mod bears no codes and no second config record: two replies fail, and none after them."""
    seen = Seen()
    clipped = DifferentialPrivacyClientSideFixedClipping(FedAvg(fraction_evaluate=0.0), 0.1, 1.0, 2)
    strategy = Prune(clipped, "magnitude", rate=0.5, ramp_rounds=1)
    found = run(make([clipping, Defend()]), tmp_path, {"defenses": "dgp"}, strategy, rounds=8, tamper=seen)
    failed = [reply.has_error() for reply in seen.replies]
    per_round = [failed[i : i + 2] for i in range(0, len(failed), 2)]
    assert len(per_round) == 8 and sum(any(each) for each in per_round) == 2 and not any(per_round[-1])
    weight = tree(found.arrays)["fc1.weight"]
    assert 0.3 < float((weight == 0).float().mean()) < 0.7


def test_secure_aggregation_is_refused(tmp_path: Path) -> None:
    class Secure(FedAvg):
        def configure_train(self, *args):
            for message in super().configure_train(*args):
                message.content["secaggplus_configs"] = ConfigRecord({"stage": "setup"})
                yield message

    assert "secure aggregation" in refused(
        tmp_path, {"defenses": "dgp"}, [Defend()], strategy=Secure(fraction_evaluate=0.0)
    )


def test_draws_are_the_site_s_own_and_follow_the_question(tmp_path: Path) -> None:
    """The same question is answered alike, so that asking again averages nothing away; two sites draw differently."""
    answers = []
    for place in ("a", "a", "b"):
        seen = Seen()
        home = tmp_path / place
        if place == "b":
            (home / "0" / "flower").mkdir(parents=True)
        run(make([Defend()]), home, {"defenses": "random"}, tamper=seen)
        answers.append(tree(seen.trained()[0]["arrays"])["fc1.weight"])
    assert torch.equal(answers[0], answers[1]) and not torch.equal(answers[0], answers[2])


@pytest.mark.parametrize("names", ["none", "dgp"])
def test_planted_weights_are_refused_though_the_app_shows_no_model(names: str, tmp_path: Path) -> None:
    def imprinted() -> nn.Module:
        net = Net()
        with torch.no_grad():
            net.fc1.weight[:] = torch.rand(1, 96)
        return net

    seen = Seen()
    run(make([Defend()], plain, imprinted), tmp_path, {"defenses": names}, tamper=seen, build=imprinted)
    assert "would copy single examples into its update (imprint in fc1.weight)" in seen.errors[0] and not seen.trained()
