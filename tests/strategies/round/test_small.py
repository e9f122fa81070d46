"""Training the small network is training the dense one under the mask: every tensor, over steps, to rounding."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from prunella.core.config import Run
from prunella.core.randomness import rehearsal, stream
from prunella.core.trees import Mask, Tree, apply_mask, full_mask, map_trees
from prunella.privacy import DEFENSES
from prunella.privacy.chain import ChainState, build_chain, flatten_state, start
from prunella.pruning.channels import channel_groups
from prunella.pruning.filters import keep_channels
from prunella.pruning.scores import magnitude
from prunella.pruning.selection import keep_by_score
from prunella.pruning.widths import sub_mask
from prunella.strategies import STRATEGIES, scheme_settings
from prunella.strategies.round.local import LocalResult, Procedure, Received, local_update
from prunella.strategies.round.plan import LocalPlan, RoundContext
from prunella.strategies.round.small import small_network
from prunella.tasks.examples import Examples
from prunella.tasks.task import FrozenNormTask, Task, initial, prunable
from prunella.tasks.training import Sgd

SHAPE = (3, 16, 16)


class Mobile(nn.Module):
    """A depthwise convolution, batch norm after a residual sum (of channels with something to say), a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.after, self.depth = nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, groups=8)
        self.last = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        x = torch.relu(self.after(x + self.second(x)))
        logits: Tensor = self.last(self.depth(x).mean((2, 3)))
        return logits


def moved(tree: Tree, seed: int) -> Tree:
    """Tensors as training leaves them, in double precision: biases, norms and statistics that are nobody's default."""
    g = stream(seed, purpose="moved")
    return {n: t.double() + 0.3 * torch.rand(t.shape, generator=g).double() * (t.ndim < 2) for n, t in tree.items()}


def setting(task: Task, mask: Mask, chain: str = "none", decay: float = 0.01) -> tuple[Any, ...]:
    params, buffers = initial(task, 0)
    received = Received(apply_mask(moved(params, 0), mask), mask, moved(buffers, 1))
    g = stream(2, purpose="images")
    batches = [
        Examples(torch.rand(5, *task.shape, generator=g).double(), torch.randint(10, (5,), generator=g))
        for _ in range(3)
    ]
    built = build_chain([chain], {})
    state = start(built, batches[0].x, received.params, {}, rehearsal(0, purpose="fit"))
    procedure = Procedure(task.build().double(), Sgd(0.05, 0.9, decay), built, shape=task.shape)
    return procedure, received, batches, state


def both(procedure: Procedure, received: Received, batches: list[Examples], state: Any) -> list[LocalResult]:
    """A round with the small network where there is one, and the dense one's."""
    shapes = (procedure.shape, None)
    return [
        local_update(replace(procedure, shape=shape), received, iter(batches), state, rehearsal(0, purpose="x"))
        for shape in shapes
    ]


def filters(task: Task, rate: float = 0.6) -> Mask:
    module, (params, _) = task.build(), initial(task, 0)
    return keep_channels(magnitude(params), channel_groups(module, task.shape), prunable(module), rate, "layer")


def require_same(small: LocalResult, dense: LocalResult, but: frozenset[str] = frozenset()) -> None:
    assert small.small and not dense.small and small.steps == dense.steps and small.applied == dense.applied
    pairs = [(getattr(small.outgoing, tree), getattr(dense.outgoing, tree)) for tree in ("local", "update")]
    for ours, theirs in [*pairs, (small.buffers, dense.buffers)]:
        assert list(ours) == list(theirs)
        assert all(torch.allclose(ours[n], theirs[n], rtol=1e-9, atol=1e-10) for n in ours.keys() - but)
    assert all(torch.equal(small.outgoing.shared[n], bits) for n, bits in dense.outgoing.shared.items() if n not in but)


@pytest.mark.parametrize(
    ("model", "side"), [("cnn", 16), ("lenet", 32), ("vgg11-bn", 32), ("resnet18", 16), (f"{__name__}:Mobile", 16)]
)
def test_a_round_is_the_dense_masked_networks_tensor_by_tensor(model: str, side: int) -> None:
    """Momentum and weight decay; in double precision, so that only rounding is between them."""
    task = Task(model, (3, side, side), 10)
    asked = setting(task, filters(task))
    small, dense = both(*asked)
    require_same(small, dense)
    before, mask = asked[1].params, asked[1].mask
    for name, kept in mask.items():  # the control: what lives was trained, by far more than may lie between them
        assert float((dense.outgoing.local[name] - before[name])[kept].abs().max()) > 1e-6, name


@pytest.mark.parametrize("width", [0.3, 0.5])
def test_so_is_a_round_under_a_mask_of_filters_inside_a_sub_model(width: float) -> None:
    task = Task("cnn", SHAPE, 10)
    mask = sub_mask(task.build(), SHAPE, width)
    require_same(*both(*setting(task, mask)))
    both_masks = map_trees(torch.logical_and, mask, filters(task))
    require_same(*both(*setting(task, both_masks)))


def require_same_state(small: LocalResult, dense: LocalResult, but: frozenset[str] = frozenset()) -> None:
    ours, theirs = flatten_state(small.state), flatten_state(dense.state)
    assert list(ours) == list(theirs)
    for name, tensor in ours.items():
        if name.rpartition("/")[2] not in but:
            assert torch.allclose(tensor.double(), theirs[name].double(), rtol=1e-9, atol=1e-10), name


@pytest.mark.parametrize("defense", [name for name, entry in DEFENSES.items() if entry.stage != "gradient"])
def test_defenses_of_images_and_updates_see_what_they_saw(defense: str) -> None:
    task = Task("cnn", SHAPE, 10)
    small, dense = both(*setting(task, filters(task), defense))
    require_same(small, dense)
    require_same_state(small, dense)


@pytest.mark.parametrize("defense", [name for name, entry in DEFENSES.items() if entry.stage == "gradient"])
def test_a_defense_that_sees_gradients_gets_the_dense_networks(defense: str) -> None:
    task = Task("precode-cnn" if defense == "precode" else "cnn", SHAPE, 10)
    mask = filters(Task("cnn", SHAPE, 10)) if defense != "precode" else full_mask(initial(task, 0)[0])
    result, dense = both(*setting(task, mask, defense))
    assert not result.small
    assert all(torch.equal(result.outgoing.update[n], t) for n, t in dense.outgoing.update.items())


@pytest.mark.parametrize(("model", "side"), [("cnn", 16), ("vgg11-bn", 32), ("resnet10", 16)])
def test_priprune_learns_the_same_in_rounds_that_go_on_from_its_state(model: str, side: int) -> None:
    """Two rounds of three steps under a mask that shrinks; what it withheld rejoins, beside weights that moved on.

    The gradient of a bias ahead of batch norm is zero but for rounding, which PriPrune divides by itself: what it
    decides there, and the running mean that follows, is left out. The logits do not depend on it.
    """
    task = Task(model, (3, side, side), 10)
    norms = [name.rpartition(".")[0] for name in initial(task, 0)[1] if name.endswith("mean")] if "vgg" in model else []
    biases = {f"0.{int(norm.rpartition('.')[2]) - 1}.bias" for norm in norms}
    but = frozenset(biases | {f"{norm}.running_mean" for norm in norms})
    states: list[ChainState] = []
    for number, rate in enumerate((0.3, 0.6)):
        procedure, received, batches, fresh = setting(task, filters(task, rate), "priprune")
        received = replace(received, params=apply_mask(moved(received.params, number), received.mask))
        results = [
            local_update(
                replace(procedure, shape=shape), received, iter(batches), state, rehearsal(0, round=number, purpose="x")
            )
            for shape, state in zip((procedure.shape, None), states or (fresh, fresh), strict=True)
        ]
        require_same(*results, but)
        require_same_state(*results, but)
        states = [result.state for result in results]
        squares, state = results[1].importance, states[1]["priprune"]
        assert biases == {name for name, each in squares.items() if float(each.max()) < 1e-22}
        held, kept = (sum(int(t.sum()) for n, t in m.items() if n not in but) for m in (state["held"], received.mask))
        assert 0.01 < held / kept < 0.5  # the control: some stay home, and some leave


def test_single_weights_leave_no_small_network_and_their_gradients_are_told() -> None:
    task = Task("cnn", SHAPE, 10)
    params, _ = initial(task, 0)
    mask = keep_by_score(magnitude(params), prunable(task.build()), 0.6)
    for kept in (mask, full_mask(params)):
        small, dense = both(*setting(task, kept))
        assert not small.small
        assert all(torch.equal(small.importance[n], t) for n, t in dense.importance.items())


def test_the_gradients_of_weights_that_read_a_dead_channel_are_the_one_thing_that_is_lost() -> None:
    """So that schemes that grow weights back name no shape."""
    task = Task("cnn", SHAPE, 10)
    mask = filters(task)
    small, dense = both(*setting(task, mask))
    assert any(bool(t[~mask[n]].any()) for n, t in dense.importance.items())
    assert not any(bool(t[~mask[n]].any()) for n, t in small.importance.items())
    assert all(torch.allclose(small.importance[n][k], dense.importance[n][k], atol=1e-10) for n, k in mask.items())


class Auxiliary(Mobile):
    """One more reader of the first layer's channels, in training mode alone."""

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = super().forward(x)
        return logits + self.first(x).mean((1, 2, 3))[:, None] * torch.arange(10) if self.training else logits


class Dropping(Mobile):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Dropout(0.5))


class Whole(Mobile):
    """Batch norm whose statistics are the mean over all batches."""

    def __init__(self) -> None:
        super().__init__()
        self.after = nn.BatchNorm2d(8, momentum=None)


@pytest.mark.parametrize("model", ["Auxiliary", "Dropping", "Whole"])
def test_where_the_answers_differ_the_dense_network_is_trained(model: str) -> None:
    task = Task(f"{__name__}:{model}", SHAPE, 10)
    mask = filters(Task(f"{__name__}:Mobile", SHAPE, 10))
    mask = {name.replace("first.", "first.0.") if model == "Dropping" else name: m for name, m in mask.items()}
    result, _ = both(*setting(task, mask))
    assert not result.small


def test_frozen_batch_norm_is_left_to_the_dense_network() -> None:
    plain, frozen = Task("resnet10", SHAPE, 10), FrozenNormTask("resnet10", SHAPE, 10)
    params, buffers = initial(plain, 0)
    mask = filters(plain)
    found = [small_network(t.build(), SHAPE, apply_mask(params, mask), buffers, mask) for t in (plain, frozen)]
    assert found[0] is not None and found[1] is None


def test_the_network_it_trains_is_the_size_of_the_mask() -> None:
    task = Task("resnet10", SHAPE, 10)
    params, buffers = initial(task, 0)
    mask = filters(task)
    small = small_network(task.build(), SHAPE, apply_mask(params, mask), buffers, mask)
    assert small is not None
    cut = small.cut(params)
    assert all(cut[n].numel() == int(mask[n].sum()) for n in prunable(task.build()))
    assert {n: p.shape for n, p in small.module.named_parameters()} == {n: t.shape for n, t in cut.items()}
    back = small.back(apply_mask(params, mask), cut)
    assert all(torch.equal(back[n], t) for n, t in apply_mask(params, mask).items())


def test_dead_biases_decay_and_dead_statistics_follow_them() -> None:
    """In closed form: without momentum a bias shrinks by the same factor each step, and the mean follows it."""
    task = Task("vgg11-bn", (3, 32, 32), 10)
    params, buffers = initial(task, 0)
    mask = filters(task)
    small = small_network(task.build(), task.shape, apply_mask(params, mask), buffers, mask)
    assert small is not None
    dead = ~mask["0.0.weight"].flatten(1).any(1)
    rate, decay, steps = 0.1, 0.5, 3
    after, stats = small.aged(params, buffers, mask, Sgd(rate, 0.0, decay), steps)
    assert torch.allclose(after["0.0.bias"][dead], params["0.0.bias"][dead] * (1 - rate * decay) ** steps)
    assert torch.equal(after["0.0.bias"][~dead], params["0.0.bias"][~dead])
    mean, factor = torch.zeros(int(dead.sum())), 1.0
    for _ in range(steps):
        mean, factor = 0.9 * mean + 0.1 * factor * params["0.0.bias"][dead], factor * (1 - rate * decay)
    assert torch.allclose(stats["0.1.running_mean"][dead], mean)
    assert torch.allclose(stats["0.1.running_var"][dead], torch.full_like(mean, 0.9**steps))


def told(kind: str) -> dict[str, set[str]]:
    """Which network trains, by the table of docs/schemes.md whose first column is ``kind``."""
    page = (Path(__file__).parents[3] / "docs" / "schemes.md").read_text()
    table = page.split(f"| {kind} | network | why |\n")[1].split("\n\n")[0]
    rows = [line.split("|") for line in table.splitlines()]
    return {name: set(re.findall("small|dense", row[2])) for row in rows for name in re.findall("`([^`]+)`", row[1])}


def network(name: str) -> set[str]:
    """Which network a scheme's clients train in its first rounds."""
    part, settings = STRATEGIES[name].client, scheme_settings(name, {})
    tells = part.sends_importance or (lambda settings, round: False)
    params, seen = {"w": torch.rand(4, 4)}, set()
    for number in range(1, 41):
        names = frozenset(params)
        here = RoundContext(Run(), settings, number, params, full_mask(params), names, {}, dict, lambda _: 0.0)
        how = LocalPlan() if part.plan is None else part.plan(here)
        small = how.readjust is None and how.power is None and not tells(settings, number)  # ``Session.procedure_of``
        seen.add("small" if small else "dense")
    return seen


def test_the_page_says_of_every_defense_and_scheme_which_network_trains() -> None:
    """What the words mean is held by the tests above, for every defense; of your own the table says both."""
    assert told("defense") == {name: {"dense" if build_chain([name], {}).watches else "small"} for name in DEFENSES}
    assert told("scheme") == {name: network(name) for name in STRATEGIES}
