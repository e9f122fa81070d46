"""The loop's defenses in somebody else's loop."""

from collections import OrderedDict
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.optimizer import _global_optimizer_pre_hooks
from torch.utils.data import DataLoader, TensorDataset

from prunella.attacks.rob import Imprint
from prunella.client.accounts import Accounts
from prunella.client.state import ClientStore
from prunella.core.errors import ConfigError
from prunella.core.randomness import PrivateGenerator
from prunella.core.trees import Tree, full_mask
from prunella.flower import defend
from prunella.flower.defend import Defend
from prunella.flower.loop import images_of, protected
from prunella.flower.question import StepQuestion
from prunella.privacy.accounting import Privacy
from prunella.privacy.chain import build_chain, start
from prunella.strategies.round.local import Procedure, Received, local_update
from prunella.tasks.examples import Examples
from prunella.tasks.training import Sgd
from tests.flower.foreign import BATCH, RATE, Net, Seen, batches, load, make, plain, run, tree
from tests.flower.test_defend import store

ALL = 4
dp_sgd = import_module("prunella.privacy.dp_sgd")  # whose name in the package is the defense's


def planted_in(model: nn.Module, x: Any, draw: PrivateGenerator) -> list[str]:
    return StepQuestion(model, draw).refused(x)


def client(context: Context) -> int:
    return int(context.node_config["partition-id"])


def guarded(model: nn.Module, message: Message, context: Context) -> Any:
    """The two lines."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    with protected(message, context, model, load(client(context))[0]) as guard:
        for x, y in batches(client(context)):
            loss = guard.step(x, y, cross_entropy, optimizer)
    return None if loss is None else loss.item()


def by_hand(model: nn.Module, message: Message, context: Context) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    with protected(message, context, model, load(client(context))[0]) as guard:
        for x, y in batches(client(context)):
            optimizer.zero_grad()
            cross_entropy(model(guard.images(x)), y).backward()
            guard.gradients()
            optimizer.step()


def poisson(model: nn.Module, message: Message, context: Context) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    loader = DataLoader(TensorDataset(*load(client(context))), batch_size=BATCH)
    with protected(message, context, model) as guard:
        for x, y in guard.loader(loader):
            guard.step(x, y, cross_entropy, optimizer)


def trained(loop: Any, folder: Path, defenses: str, **more: Any) -> Seen:
    seen = Seen()
    rounds = more.pop("rounds", 1)
    node = {key: more.pop(key) for key in ("require", "epsilon-budget") if key in more}
    run(make([Defend()], loop), folder, {"defenses": defenses, **more}, rounds=rounds, tamper=seen, **node)
    return seen


def moved(seen: Seen) -> int:
    torch.manual_seed(0)
    first, after = Net().state_dict(), tree(seen.trained()[0]["arrays"])
    return sum(int((first[name] != after[name]).sum()) for name in first)


@pytest.mark.parametrize("loop", [guarded, by_hand])
def test_without_a_defense_of_the_loop_it_is_the_plain_loop(loop: Any, tmp_path: Path) -> None:
    for names in ("none", "dgp"):
        bare, through = trained(plain, tmp_path / names, names), trained(loop, tmp_path / f"{names}-2", names)
        assert not through.errors
        one, other = (tree(seen.trained()[0]["arrays"]) for seen in (bare, through))
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_priprune_is_our_own_client_s_but_for_rounding(tmp_path: Path) -> None:
    """A defense that watches gradients. The first round draws nothing that an answer depends on."""
    settings = {"priprune.lambda-sha": 0.0, "priprune.lambda-acc": 0.0, "priprune.initial-alpha": 0.499}
    seen = trained(guarded, tmp_path, "priprune", **settings)
    assert not seen.errors
    torch.manual_seed(0)
    params = {name: p.detach().clone() for name, p in Net().named_parameters()}
    chain = build_chain(["priprune"], settings)
    draws = PrivateGenerator(bytes(32))
    state = start(chain, torch.empty(0), params, {}, draws)
    steps = (Examples(x, y) for x, y in batches(0))
    ours = local_update(
        Procedure(Net(), Sgd(RATE), chain), Received(params, full_mask(params), {}), steps, state, draws
    )
    kept = store(tmp_path).load(9).state["priprune"]
    arrived = tree(seen.trained()[0]["arrays"])
    for name, alpha in ours.state["priprune"]["alpha"].items():
        assert torch.allclose(kept["alpha"][name], alpha, atol=1e-6)
        withheld = ~ours.outgoing.shared[name]
        assert torch.equal(arrived[name][withheld], params[name][withheld])
        assert torch.allclose(arrived[name], params[name] + ours.outgoing.update[name], atol=1e-6)
    assert 0 < sum(int((~m).sum()) for m in ours.outgoing.shared.values())


@pytest.mark.parametrize(
    "names", ["gaussian", "outpost", "soteria", "channel-natural", "channel-white,gaussian,dgp", "priprune"]
)
def test_every_kind_of_loop_defense_works_and_changes_the_update(names: str, tmp_path: Path) -> None:
    seen = trained(guarded, tmp_path / "a", names, rounds=2)
    assert not seen.errors and seen.trained()[0]["prunella"]["applied"] == names.split(",")
    bare = trained(plain, tmp_path / "b", "none")
    one, other = (tree(s.trained()[0]["arrays"]) for s in (seen, bare))
    assert any(not torch.equal(one[name], other[name]) for name in one)
    loud = {name: float((one[name] - other[name]).abs().max()) for name in one}
    assert max(loud.values()) > 1e-5


def test_gaussian_noise_by_hand_has_its_variance(tmp_path: Path) -> None:
    """Of four steps at learning rate 0.1: 0.1 * sqrt(4) * deviation."""
    noisy = trained(by_hand, tmp_path / "a", "gaussian", **{"gaussian.deviation": 5.0})
    bare = trained(plain, tmp_path / "b", "none")
    one, other = (tree(s.trained()[0]["arrays"]) for s in (noisy, bare))
    first = torch.cat([(one[n] - other[n]).flatten() for n in one])
    assert 0.9 < float(first.std()) / (0.1 * 2 * 5.0) < 1.1


def test_dp_sgd_clips_every_example_and_adds_noise(tmp_path: Path) -> None:
    """The update of one step is bounded by learning rate times clip, and its noise is clip * multiplier / batch."""

    def once(model: nn.Module, message: Message, context: Context) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        x, y = load(client(context), BATCH)
        with protected(message, context, model) as guard:
            assert guard.step(x, y, cross_entropy, optimizer) is None

    torch.manual_seed(0)
    first = Net().state_dict()
    for noise, low, high in ((0.1, 0.0, 0.055), (40.0, 0.9 * 4.0, 1.1 * 4.0)):
        seen = trained(once, tmp_path / str(noise), "dp-sgd", **{"dp-sgd.clip": 0.8, "dp-sgd.noise-multiplier": noise})
        assert not seen.errors
        after = tree(seen.trained()[0]["arrays"])
        step = torch.cat([(after[n] - first[n]).flatten() for n in first])
        assert low <= float(step.std()) <= high
        assert set(seen.trained()[0]["metrics"]) == {"num-examples"}, "no loss leaves under an ε"


def spent(folder: Path) -> tuple[float | None, list[Any]]:
    accounts = Accounts(folder / "0" / "flower", torch.zeros(1, dtype=torch.int64))
    ledger = accounts.ledger()
    return ledger.epsilon(Privacy()), list(ledger.charges)


def test_every_step_is_charged_with_the_sampling_that_is_known(tmp_path: Path) -> None:
    settings = {"dp-sgd.noise-multiplier": 4.0}
    trained(poisson, tmp_path / "a", "dp-sgd", **settings)
    trained(guarded, tmp_path / "b", "dp-sgd", **settings)
    low, sampled = spent(tmp_path / "a")
    high, whole = spent(tmp_path / "b")
    assert [(c.steps, c.noise, c.sampling) for c in sampled] == [(ALL, 4.0, 0.25)]
    assert [(c.steps, c.noise, c.sampling) for c in whole] == [(8, 4.0, 1.0)], (
        "charged in blocks, without amplification"
    )
    assert low is not None and high is not None and low < high
    trained(poisson, tmp_path / "a", "dp-sgd", **settings)
    assert len(spent(tmp_path / "a")[1]) == 2, "a message asked again draws anew and is charged anew"


def test_a_batch_of_one_s_own_is_not_paid_by_poisson_steps(tmp_path: Path) -> None:
    def both(model: nn.Module, message: Message, context: Context) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        loader = DataLoader(TensorDataset(*load(client(context))), batch_size=BATCH)
        x, y = load(client(context), BATCH)
        with protected(message, context, model) as guard:
            for drawn, labels in guard.loader(loader):
                guard.step(drawn, labels, cross_entropy, optimizer)
                guard.step(x, y, cross_entropy, optimizer)

    trained(both, tmp_path, "dp-sgd", **{"dp-sgd.noise-multiplier": 4.0})
    assert sorted((c.steps, c.sampling) for c in spent(tmp_path)[1]) == [(ALL, 0.25), (8, 1.0)]


def test_an_example_that_stands_in_a_batch_twice_stops_the_update_under_an_epsilon_alone(tmp_path: Path) -> None:
    def twice(model: nn.Module, message: Message, context: Context) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        x, y = load(client(context), BATCH)
        with protected(message, context, model) as guard:
            guard.step(torch.cat([x, x[:1]]), torch.cat([y, y[:1]]), cross_entropy, optimizer)

    seen = trained(twice, tmp_path / "a", "dp-sgd", **{"dp-sgd.noise-multiplier": 4.0})
    assert seen.errors and not seen.trained()
    assert not trained(twice, tmp_path / "b", "dgp").errors


def test_past_the_budget_no_step_is_taken(tmp_path: Path) -> None:
    settings = {"dp-sgd.noise-multiplier": 2.0, "epsilon-budget": 2.0}
    seen = trained(poisson, tmp_path, "dp-sgd", rounds=4, **settings)
    done = len(seen.trained())
    assert 0 < done < 4 and "past privacy.epsilon-budget" in seen.errors[0]
    total, charges = spent(tmp_path)
    assert len(charges) == done and total is not None and total <= 2.0
    heuristic = trained(plain, tmp_path / "b", "dgp", **{"privacy.epsilon-budget": 2.0})
    assert "had an ε" in heuristic.errors[0]


def outside(model: nn.Module, message: Message, context: Context) -> Any:
    guarded(model, message, context)
    plain(model, message, context)


def before(model: nn.Module, message: Message, context: Context) -> Any:
    plain(model, message, context)
    guarded(model, message, context)


def between(model: nn.Module, message: Message, context: Context) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    with protected(message, context, model) as guard:
        for x, y in batches(client(context)):
            guard.step(x, y, cross_entropy, optimizer)
            cross_entropy(model(x), y).backward()
            optimizer.step()


def afterwards(model: nn.Module, message: Message, context: Context) -> Any:
    """A second epoch that nobody converted."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    with protected(message, context, model) as guard:
        guard.step(*next(batches(client(context))), cross_entropy, optimizer)
        plain(model, message, context)


def around_versions(model: nn.Module, message: Message, context: Context) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    with protected(message, context, model) as guard:
        for x, y in batches(client(context)):
            guard.step(x, y, cross_entropy, optimizer)
            next(model.parameters()).data.sub_(0.1)


def nested(model: nn.Module, message: Message, context: Context) -> Any:
    with protected(message, context, model), protected(message, context, model):
        pass


def joined(model: nn.Module, message: Message, context: Context) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    loader = DataLoader(TensorDataset(*load(client(context))), batch_size=BATCH)
    with protected(message, context, model) as guard:
        held = list(guard.loader(loader)) * 3
        guard.step(torch.cat([x for x, _ in held]), torch.cat([y for _, y in held]), cross_entropy, optimizer)


def empty(model: nn.Module, message: Message, context: Context) -> Any:
    with protected(message, context, model):
        plain(model, message, context)


def twice(model: nn.Module, message: Message, context: Context) -> Any:
    guarded(model, message, context)
    guarded(model, message, context)


def fitless(model: nn.Module, message: Message, context: Context) -> Any:
    with protected(message, context, model):
        pass


def unshown(model: nn.Module, message: Message, context: Context) -> Any:
    with protected(message, context, model, load(0)[0]) as guard:
        x, y = next(batches(0))
        cross_entropy(model(x), y).backward()
        guard.gradients()


def half_by_hand(model: nn.Module, message: Message, context: Context) -> Any:
    """Every second step was forgotten."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    guard = protected(message, context, model)
    for number, (x, y) in enumerate(batches(client(context))):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        if number % 2 == 0:
            guard.gradients()
        optimizer.step()


def moved_by_hand(model: nn.Module, message: Message, context: Context) -> Any:
    by_hand(model, message, context)
    with torch.no_grad():
        next(model.parameters()).sub_(0.1)


def in_between(model: nn.Module, message: Message, context: Context) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    guard = protected(message, context, model)
    for x, y in batches(client(context)):
        cross_entropy(model(x), y).backward()
        guard.gradients()
        optimizer.step()
        with torch.no_grad():
            next(model.parameters()).sub_(0.1)


def closure(model: nn.Module, message: Message, context: Context) -> Any:
    """An optimiser that takes gradients of its own, which no defense sees."""
    optimizer = torch.optim.LBFGS(model.parameters(), lr=RATE)
    guard = protected(message, context, model)
    x, y = next(batches(client(context)))

    def again() -> torch.Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        return loss

    again()
    guard.gradients()
    optimizer.step(again)


def swallowed(model: nn.Module, message: Message, context: Context) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    guard = protected(message, context, model)
    for x, y in batches(client(context)):
        try:
            guard.step(x, y[:1], cross_entropy, optimizer)
        except ValueError:
            pass


def stepless(model: nn.Module, message: Message, context: Context) -> Any:
    return by_hand(model, message, context)


@pytest.mark.parametrize(
    ("loop", "names", "told"),
    [
        (plain, "gaussian", "guard.step(x, y, loss, optimizer)"),
        (empty, "gaussian", "without guard.gradients() before it"),
        (half_by_hand, "gaussian", "without guard.gradients() before it"),
        (half_by_hand, "dgp", "without guard.gradients() before it"),
        (closure, "gaussian", "takes gradients of its own"),
        (swallowed, "dgp", "the loop failed"),
        (outside, "gaussian", "not what protected() left"),
        (before, "gaussian", "not as received"),
        (between, "gaussian", "without guard.gradients() before it"),
        (afterwards, "gaussian", "without guard.gradients() before it"),
        (afterwards, "dp-sgd", "without guard.gradients() before it"),
        (in_between, "gaussian", "moved outside guard.step"),
        (moved_by_hand, "gaussian", "not what protected() left"),
        (around_versions, "dp-sgd", "moved outside guard.step"),
        (twice, "gaussian", "entered twice"),
        (nested, "dp-sgd", "entered twice"),
        (joined, "dp-sgd", "a batch as it was drawn"),
        (fitless, "channel-white", "protected(msg, context, model, loader)"),
        (unshown, "channel-white", "guard.gradients() without guard.images(x)"),
        (stepless, "dp-sgd", "write guard.step"),
        (stepless, "soteria", "write guard.step"),
    ],
)
def test_careless_loops_are_refused(loop: Any, names: str, told: str, tmp_path: Path) -> None:
    seen = trained(loop, tmp_path, names)
    assert told in seen.errors[0] and not seen.trained()


def proximal(model: nn.Module, message: Message, context: Context) -> Any:
    """FedProx's loss."""
    optimizer, first = torch.optim.SGD(model.parameters(), lr=RATE), [p.detach().clone() for p in model.parameters()]

    def loss(answer: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        far = sum(((p - q) ** 2).sum() for p, q in zip(model.parameters(), first, strict=True))
        return cross_entropy(answer, y) + far

    with protected(message, context, model) as guard:
        for x, y in batches(client(context)):
            guard.step(x, y, loss, optimizer)


def test_a_loss_of_weights_is_left_out_under_no_epsilon_but_refused_before_it_is_charged(tmp_path: Path) -> None:
    seen = trained(proximal, tmp_path / "a", "dp-sgd")
    assert "depends on weights as well" in seen.errors[0] and not spent(tmp_path / "a")[1]
    assert not trained(proximal, tmp_path / "b", "gaussian").errors


class Noisy(nn.Module):
    """Noise on what it is given, from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn = torch.Generator()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(x.shape[1:], generator=self.drawn)


@pytest.mark.parametrize("loop", [guarded, poisson])
def test_a_model_that_draws_from_a_generator_of_its_own_has_no_epsilon(loop: Any, tmp_path: Path) -> None:
    def build() -> nn.Module:
        return nn.Sequential(OrderedDict(noise=Noisy(), net=Net()))

    seen = Seen()
    run(make([Defend()], loop, build), tmp_path, {"defenses": "dp-sgd"}, tamper=seen, build=build)
    assert "a generator of its own" in seen.errors[0] and not seen.trained()
    assert bool(spent(tmp_path)[1]) is (loop is poisson)  # which pays before anybody shows it the model


def dropping() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 10))


@pytest.mark.parametrize("named", [False, True])
def test_with_dropout_one_example_moves_the_clipped_sum_by_no_more_than_the_clip(
    named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An app's own seed, set before every step, is not what it draws from: it would begin all masks in batch order."""
    monkeypatch.setattr("prunella.tasks.per_example.any_seed", lambda: 3)
    sums: list[torch.Tensor] = []
    plainly = dp_sgd.clipped_sum

    def noted(*given: Any) -> Tree:
        total = plainly(*given)
        sums.append(torch.cat([t.flatten() for t in total.values()]))
        return total

    def loop_from(first: int) -> Any:
        def loop(model: nn.Module, message: Message, context: Context) -> Any:
            optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
            x, y = load(0, 64)
            with protected(message, context, model) as guard:
                torch.manual_seed(0)
                shown = {"input": x[first:]} if named else x[first:]
                guard.step(shown, y[first:], cross_entropy, optimizer)

        return loop

    monkeypatch.setattr(dp_sgd, "clipped_sum", noted)
    config = {"defenses": "dp-sgd", "dp-sgd.clip": 0.5}
    for first in (0, 1):
        seen = Seen()
        app = make([Defend()], loop_from(first), dropping)
        run(app, tmp_path / str(first), config, tamper=seen, build=dropping)
        assert not seen.errors
    with_it, _, without, _ = sums  # of two clients with the same rows
    assert 0.49 < float((with_it - without).norm()) <= 0.5


@pytest.mark.parametrize(("loop", "told"), [(guarded, "batch norm"), (by_hand, "write guard.step")])
def test_what_no_epsilon_allows_is_refused_before_it_is_charged(loop: Any, told: str, tmp_path: Path) -> None:
    def normed(model: nn.Module, message: Message, context: Context) -> Any:
        model.norm = nn.BatchNorm1d(3, affine=False, track_running_stats=False)
        return loop(model, message, context)

    seen = trained(normed if loop is guarded else loop, tmp_path, "dp-sgd")
    assert told in seen.errors[0] and not spent(tmp_path)[1]
    assert {path.read_text().strip() for path in tmp_path.rglob("failures.json")} == {"0"}


@pytest.mark.parametrize("names", ["none", "gaussian"])
def test_the_guard_closes_with_the_answer_and_looks_at_no_optimiser_any_more(names: str, tmp_path: Path) -> None:
    def open_ended(model: nn.Module, message: Message, context: Context) -> Any:
        guard = protected(message, context, model)
        for x, y in batches(client(context)):
            guard.step(x, y, cross_entropy, torch.optim.SGD(model.parameters(), lr=RATE))
        kept.append(model)

    kept: list[nn.Module] = []
    seen = trained(open_ended, tmp_path, names)
    assert not seen.errors and moved(seen) > 0
    torch.optim.SGD(kept[0].parameters(), lr=RATE).step()
    assert not _global_optimizer_pre_hooks
    trained(half_by_hand, tmp_path / "b", names)
    assert not _global_optimizer_pre_hooks, "nor after a refusal"


def test_two_optimisers_of_a_loop_of_one_s_own_share_a_step(tmp_path: Path) -> None:
    def parted(model: nn.Module, message: Message, context: Context) -> Any:
        both = [torch.optim.SGD(part, lr=RATE) for part in (model.conv.parameters(), [*model.parameters()][2:])]
        guard = protected(message, context, model)
        for x, y in batches(client(context)):
            model.zero_grad()
            cross_entropy(model(x), y).backward()
            guard.gradients()
            for optimizer in both:
                optimizer.step()

    seen, bare = trained(parted, tmp_path / "a", "none"), trained(plain, tmp_path / "b", "none")
    assert not seen.errors
    one, other = (tree(each.trained()[0]["arrays"]) for each in (seen, bare))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_site_bounds_the_steps_over_which_noise_averages_out(tmp_path: Path) -> None:
    seen = trained(guarded, tmp_path, "gaussian", require="gaussian, local-steps=3")
    assert "3 local steps" in seen.errors[0] and not seen.trained()


def test_without_the_mod_it_says_so(tmp_path: Path) -> None:
    seen = Seen()
    run(make([], guarded), tmp_path, {}, tamper=seen)
    assert "mods=[Defend()]" in seen.errors[0]


def batched(rows: Any) -> list[dict[str, torch.Tensor]]:
    """Batches as Flower Datasets yields them."""
    return [{"img": x, "label": y} for x, y in rows]


def test_a_loader_of_dicts_is_read_like_one_of_pairs(tmp_path: Path) -> None:
    def of(data: Any) -> Any:
        def loop(model: nn.Module, message: Message, context: Context) -> Any:
            optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
            with protected(message, context, model, data(client(context))) as guard:
                for x, y in batches(client(context)):
                    guard.step(x, y, cross_entropy, optimizer)

        return loop

    named = trained(of(lambda at: batched(batches(at))), tmp_path / "a", "channel-white")
    pairs = trained(of(lambda at: list(batches(at))), tmp_path / "b", "channel-white")
    assert not named.errors and not pairs.errors
    kept = [ClientStore(tmp_path / run / "0" / "flower", "run-1-train").load(2).state for run in ("a", "b")]
    one, other = (state["channel-white"]["channel"] for state in kept)
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_channel_is_fitted_anew_where_a_loader_has_other_images(tmp_path: Path) -> None:
    """Augmented, or more of them; in another order they are the same."""
    came = [0, 0]

    def loop(model: nn.Module, message: Message, context: Context) -> Any:
        at, data = client(context), list(batches(client(context)))
        came[at] += 1
        data = [data, data[::-1], [(x.square(), y) for x, y in data]][came[at] - 1]
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        with protected(message, context, model, data) as guard:
            for x, y in data:
                guard.step(x, y, cross_entropy, optimizer)

    seen = trained(loop, tmp_path, "channel-white", rounds=3)
    assert not seen.errors
    kept = [ClientStore(tmp_path / "0" / "flower", "run-1-train").load(round).state for round in (2, 3, 4)]
    one, two, three = (state["channel-white"]["channel"]["factor"] for state in kept)
    assert torch.equal(one, two) and not torch.equal(one, three)


def test_a_batch_whose_images_cannot_be_told_is_refused() -> None:
    x, y = load(0)
    with pytest.raises(ConfigError, match="which of a batch are the images"):
        images_of({"left": x, "right": x, "label": y})
    assert images_of({"label": y, "img": x}) is x


class Residual(Net):
    """Two biases that begin at zero and always get the same gradient, as batch norm's on both sides of a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(64, 10), nn.Linear(64, 10)
        for layer in (self.one, self.two):
            nn.init.zeros_(layer.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + self.one(x.flatten(1)) + self.two(x.flatten(1))


def test_parameters_that_are_equal_by_chance_are_defended_each(tmp_path: Path) -> None:
    seen = Seen()
    run(make([Defend()], guarded, Residual), tmp_path, {"defenses": "priprune"}, rounds=2, tamper=seen, build=Residual)
    assert not seen.errors and len(seen.trained()) == 2
    assert {"one.bias", "two.bias"} <= store(tmp_path).load(99).state["priprune"]["withheld"].keys()


def imprinted() -> nn.Module:
    """The app's network behind Rob's module, whose brightness is that of the digits."""
    torch.manual_seed(0)
    return nn.Sequential(OrderedDict([("imprint", Imprint((1, 8, 8), 64, 0.3, 0.1)), ("model", Net())]))


def undeterred(model: nn.Module, message: Message, context: Context) -> Any:
    """Goes on with the next batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    guard = protected(message, context, model)
    for x, y in batches(client(context)):
        with suppress(Exception):
            guard.step(x, y, cross_entropy, optimizer)


def unseen(model: nn.Module, message: Message, context: Context) -> Any:
    """Shows the guard no batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    with protected(message, context, model) as guard:
        for x, y in batches(client(context)):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            guard.gradients()
            optimizer.step()


@pytest.mark.parametrize("loop", [guarded, by_hand, poisson, undeterred, unseen])
@pytest.mark.parametrize("names", ["none", "dgp"])
def test_a_planted_model_is_refused_before_the_first_step(
    loop: Any, names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defend, "refuse_imprint", lambda received, site: None)  # it would be refused already
    seen = Seen()
    run(make([Defend()], loop, imprinted), tmp_path, {"defenses": names}, tamper=seen, build=imprinted)
    told = "the loop failed" if loop is undeterred else "would copy single images into its update (imprint in imprint"
    assert told in seen.errors[0] and not seen.trained()


def test_asking_the_model_leaves_it_and_the_draws_of_the_loop_as_they_were() -> None:
    """With dropout, batch norm and another precision."""
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(144, 32), nn.ReLU(),
        nn.Linear(32, 10),
    ).double()  # fmt: skip
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(1)
    drawn = torch.get_rng_state()
    assert planted_in(model, torch.ones(2, 3, 8, 8).double(), PrivateGenerator(bytes(32))) == []
    assert torch.equal(torch.get_rng_state(), drawn) and model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    "x", [torch.ones(2, 64), {"input_ids": torch.ones(2, 4).long()}, torch.ones(2, 1, 8, 8).long()]
)
def test_where_batches_are_no_images_weights_are_looked_at(x: Any) -> None:
    draw = PrivateGenerator(bytes(32))
    found = planted_in(imprinted(), x, draw)
    assert found == ["imprint in imprint.encode"] and planted_in(Net(), x, draw) == []


def test_tied_weights_and_weights_made_of_others_are_asked_about_too() -> None:
    """Rows along one line, in a layer that shares its weight, and in one whose weight is no parameter."""
    draw, row = PrivateGenerator(bytes(32)), torch.rand(1, 64)
    first, second, last = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)
    model = nn.Sequential(nn.Flatten(), first, nn.ReLU(), second, nn.ReLU(), last)
    second.weight = first.weight
    assert planted_in(model, torch.ones(2, 1, 8, 8), draw) == []
    with torch.no_grad():
        first.weight[:24] = row
        first.bias[:] = second.bias[:] = torch.linspace(-5, 5, 64)
    assert planted_in(model, torch.ones(2, 1, 8, 8), draw)[:2] == ["imprint in 1", "imprint in 3"]
    second.weight = nn.Parameter(torch.rand(64, 64) - 0.5)
    nn.utils.parametrizations.weight_norm(first)
    assert "imprint in 1" in planted_in(model, torch.ones(2, 1, 8, 8), draw)


def test_of_a_model_that_takes_more_than_images_weights_are_looked_at() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = imprinted()

        def forward(self, x: torch.Tensor, age: torch.Tensor) -> torch.Tensor:
            return self.net(x) + age

    found = planted_in(Two(), torch.ones(2, 1, 8, 8), PrivateGenerator(bytes(32)))
    assert found == ["imprint in net.imprint.encode"]
