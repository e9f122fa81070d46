import dataclasses

import pytest
import torch
from torch import Tensor, nn

from prunella.attacks import ATTACKS
from prunella.attacks.engine import matching
from prunella.attacks.engine.known_dropout import KnownDropout, dropout_before_linear, factors
from prunella.attacks.engine.matching import in_training_mode, target_of
from prunella.attacks.portfolio import Portfolio
from prunella.attacks.score.leakage import psnr
from prunella.core.randomness import stream
from prunella.core.trees import Tree
from prunella.core.types import PrivateBatch, ServerView
from prunella.tasks.models.layers import Shape
from prunella.tasks.task import Task, initial


class Small(nn.Module):
    """As PyTorch's example for MNIST: dropout, flattened, before a linear layer."""

    def __init__(self, p: float, side: int) -> None:
        super().__init__()
        self.front = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, 1), nn.ReLU())
        self.drop, self.head = nn.Dropout(p), nn.Linear(4 * side**2, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.flatten(self.drop(self.front(x)), 1))


def small(shape: Shape, classes: int) -> nn.Module:
    return Small(0.5, shape[1])


def undropped(shape: Shape, classes: int) -> nn.Module:
    return Small(0.0, shape[1])


def named(model: str, side: int = 8) -> Task:
    return Task(f"tests.attacks.engine.test_known_dropout:{model}", (1, side, side), 10)


def trained_on(task: Task, truth: PrivateBatch) -> tuple[ServerView, Tensor]:
    """A client's update of one step with dropout, and what dropout multiplied the units of the first image by."""
    module, (params, buffers) = task.build().train(), initial(task, 0)
    module.load_state_dict(params | buffers)
    drawn: list[Tensor] = []
    hook = module.drop.register_forward_hook(
        lambda _, given, out: drawn.append(torch.where(given[0] > 0, out / given[0], 0))
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        nn.functional.cross_entropy(module(truth.x), truth.y).backward()
    hook.remove()
    update: Tree = {name: -0.1 * p.grad for name, p in module.named_parameters() if p.grad is not None}
    size = len(truth.y)
    view = ServerView(params, update, buffers=buffers, steps=1, batch_size=size, num_examples=size, learning_rate=0.1)
    return view, drawn[0][0].flatten()


@pytest.fixture
def dropping() -> Task:
    return named("small")


def fixed(view: ServerView, task: Task) -> nn.Module:
    return target_of(view, task.build(), True, 16).module.get_submodule("drop")


def test_the_mask_is_the_one_that_was_drawn(dropping, batch) -> None:
    view, drawn = trained_on(dropping, batch(0))
    layer = fixed(view, dropping)
    assert isinstance(layer, KnownDropout) and torch.allclose(layer.factor, drawn)
    assert set(layer.factor.tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("decay", [1e-4, 1e-2])
def test_weights_that_decay_leave_the_mask_to_be_read(dropping, batch, decay: float) -> None:
    """What is taken away of the weights leaves rounding in every column of a float32 difference."""
    view, drawn = trained_on(dropping, batch(0))
    after = {n: view.params[n] + u - 0.1 * decay * view.params[n] for n, u in view.update.items()}
    update = {n: after[n] - view.params[n] for n in view.update}
    layer = fixed(dataclasses.replace(view, update=update, weight_decay=decay), dropping)
    assert isinstance(layer, KnownDropout) and torch.allclose(layer.factor, drawn)


def test_the_image_is_rebuilt_and_from_another_s_update_it_is_not(dropping, same_label) -> None:
    truth, other = same_label
    attack = Portfolio(passes=3000, iterations=300, restarts=1)
    for shown in (truth, other):
        view = trained_on(dropping, shown)[0]
        found = ATTACKS["portfolio"].reconstruct(view, dropping, attack, stream(0, purpose="attack"))
        assert (psnr(truth.x, found.x)[0] > 35) == (shown is truth) and found.explained
        assert found.y.tolist() == truth.y.tolist()


@pytest.mark.slow
def test_photographs_with_the_mask_and_without(photographs, monkeypatch) -> None:
    """As docs/attacks.md says of others: at 14 x 14 pixels."""
    task, attack = named("small", 14), Portfolio(passes=4000)
    both, figures = photographs("mnist", 2), dict[str, list[float]](mask=[], none=[])
    both = PrivateBatch(nn.functional.interpolate(both.x, size=14, mode="bilinear", antialias=True), both.y)
    for kind in figures:
        for image in range(2):
            truth = PrivateBatch(both.x[image : image + 1], both.y[image : image + 1])
            view = trained_on(task, truth)[0]
            found = ATTACKS["portfolio"].reconstruct(view, task, attack, stream(0, purpose="attack"))
            figures[kind].append(round(psnr(truth.x, found.x)[0], 1))
        monkeypatch.setattr(matching, "fix_dropout", lambda *_: None)
    print("PSNR in dB:", figures)
    assert all(told > untold + 15 for told, untold in zip(figures["mask"], figures["none"], strict=True))


def test_without_the_mask_it_is_not(dropping, batch) -> None:
    """The control: the same view, said to be behind a defense of which nobody knows what it withheld."""
    view = dataclasses.replace(trained_on(dropping, batch(0))[0], defenses=("top-k",))
    assert isinstance(fixed(view, dropping), nn.Dropout)
    sgi = ATTACKS["sgi"]
    found = sgi.reconstruct(view, dropping, sgi.settings(iterations=200, labels_tried=1), stream(0, purpose="attack"))
    assert psnr(batch(0).x, found.x)[0] < 20 and found.objective > 0.01


def test_several_images_several_steps_noise_and_no_dropout_are_left_as_they_are(dropping, batch) -> None:
    view = trained_on(dropping, batch(0))[0]
    draw = stream(0, purpose="noise")
    noisy = {n: u + 0.1 * u.std() * torch.randn(u.shape, generator=draw) for n, u in view.update.items()}
    left = [trained_on(dropping, batch(0, 2))[0]]
    left += [
        dataclasses.replace(view, **each)
        for each in ({"steps": 2}, {"update": noisy}, {"batch_size": 4, "num_examples": 4})
    ]
    for each in left:
        layer = fixed(each, dropping)
        assert isinstance(layer, nn.Dropout) and not layer.training
    never = named("undropped")
    assert isinstance(fixed(trained_on(never, batch(0))[0], never), nn.Dropout)


def test_columns_of_which_nothing_arrived_keep_the_mean(dropping, batch) -> None:
    view, drawn = trained_on(dropping, batch(0))
    shared = {n: torch.ones_like(u, dtype=torch.bool) for n, u in view.update.items()}
    shared["head.weight"][:, :100] = False
    view = dataclasses.replace(
        view, shared=shared, update={n: u * shared[n] for n, u in view.update.items()}, defenses=("random",)
    )
    factor = fixed(view, dropping).factor
    assert bool((factor[:100] == 1).all()) and torch.allclose(factor[100:], drawn[100:])


def test_fewer_zeros_than_dropout_leaves_are_no_draw() -> None:
    gradient = torch.ones(3, 100)
    assert factors(gradient, gradient == 1, 0.5) is None
    assert factors(gradient[:, :64], gradient[:, :64] == 1, 0.1) is not None, "one draw of 848 keeps all"
    assert factors(gradient, gradient == 1, 0.1) is None
    gradient[:, :45] = 0
    assert factors(gradient, torch.ones(3, 100, dtype=torch.bool), 0.5).tolist() == [0.0] * 45 + [2.0] * 55
    assert factors(torch.zeros(3, 100), torch.ones(3, 100, dtype=torch.bool), 0.5) is None


def test_only_a_dropout_right_before_a_linear_layer_counts() -> None:
    shared = nn.Dropout()
    twice = nn.Sequential(nn.Linear(4, 4), shared, nn.Linear(4, 4), shared, nn.Linear(4, 2))
    between = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Tanh(), nn.Linear(4, 2))
    assert dropout_before_linear(twice) == dropout_before_linear(between) == []
    assert dropout_before_linear(Small(0.5, 8)) == [("drop", "head")]


def test_tokens_keep_what_one_row_would_have() -> None:
    layer = KnownDropout(torch.tensor([0.0, 2.0]))
    assert layer(torch.ones(3, 2)).tolist() == [[0.0, 2.0]] * 3
    assert torch.equal(layer(torch.ones(3, 5, 2)), torch.ones(3, 5, 2))


def test_attention_draws_nothing() -> None:
    """Its dropout is no layer, but a number."""
    attention = in_training_mode(nn.ModuleList([nn.MultiheadAttention(8, 2, dropout=0.5), nn.MultiheadAttention(8, 2)]))
    assert [layer.training for layer in attention] == [False, True]
    x = torch.randn(3, 1, 8)
    assert torch.equal(attention[0](x, x, x)[0], attention[0](x, x, x)[0])
