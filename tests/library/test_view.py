"""A gradient in every form is one view; an update of several steps is the one its SGD made; a mistake names its fix."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from prunella.attacks.engine.matching import dummy_gradient, target_gradient, target_of
from prunella.attacks.engine.objectives import flatten
from prunella.core.errors import AttackError, ConfigError
from prunella.core.randomness import stream
from prunella.library.view import view

X = torch.rand(2, 1, 8, 8, generator=stream(0, purpose="image"))
Y = torch.tensor([3, 5])


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(72, 10))


def test_a_gradient_may_come_in_three_forms() -> None:
    model = net()
    cross_entropy(model(X), Y).backward()
    named = {name: p.grad for name, p in model.named_parameters()}
    for given in (None, named, [p.grad for p in model.parameters()]):
        found = view(model, given, batch=2)
        assert (found.task.shape, found.task.classes) == ((1, 8, 8), 10)
        for name, tensor in target_gradient(found.seen).items():
            assert torch.equal(tensor, named[name])
        assert found.seen.num_examples == found.seen.batch_size == 2 and found.seen.labels is None
    assert view(model, named, labels=[3, 5]).seen.batch_size == 2 and "update" in repr(found)


def test_the_update_of_several_steps_is_explained_by_its_own_images() -> None:
    """At the truth the objective of an attack is zero: the steps are replayed as they were made."""
    model, before = net(), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5, weight_decay=0.01)
    for image, label in zip(X, Y, strict=True):
        optimizer.zero_grad()
        cross_entropy(model(image[None]), label[None]).backward()
        optimizer.step()
    after, start = dict(model.named_parameters()), dict(before.named_parameters())
    moved = {name: after[name].detach() - start[name].detach() for name in start}
    sgd = {"learning_rate": 0.05, "momentum": 0.5, "weight_decay": 0.01}
    found = view(before, update=moved, batch=1, steps=2, labels=Y, **sgd)
    from prunella.attacks.engine.local_steps import linearised

    target = target_of(found.seen, found.task.build(), True, 16)
    guess, _ = linearised(target, X, Y)
    torch.testing.assert_close(guess, target.flat, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("fine_tuned", [True, False])
def test_batch_norm_is_matched_in_the_mode_that_the_model_stands_in(fine_tuned: bool) -> None:
    """At the truth the gradient is explained; by the other mode it is not."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
    model(X * 3)  # statistics that are not those of a fresh layer
    model.train(not fine_tuned)
    cross_entropy(model(X), Y).backward()

    def missed(mode: bool) -> float:
        found = view(model.train(mode), labels=Y)
        target = target_of(found.seen, found.task.build(), True, 16)
        guess = flatten(dummy_gradient(target, X, Y))
        return float((guess - target.flat).norm() / target.flat.norm())

    assert missed(not fine_tuned) < 1e-5 < 0.1 < missed(fine_tuned)


def test_batch_norms_may_stand_in_different_modes() -> None:
    torch.manual_seed(0)
    first, second = nn.BatchNorm2d(4), nn.BatchNorm2d(2)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), first, nn.Tanh(), nn.Conv2d(4, 2, 3), second, nn.Flatten(), nn.Linear(32, 10)
    )
    model(X * 3)
    first.eval()
    cross_entropy(model(X), Y).backward()
    found = view(model, labels=Y)
    target = target_of(found.seen, found.task.build(), True, 16)
    torch.testing.assert_close(flatten(dummy_gradient(target, X, Y)), target.flat, rtol=1e-3, atol=1e-6)
    assert "1 of 2 batch norms in evaluation mode" in repr(found)


def test_mistakes_name_their_fix() -> None:
    model = net()
    with pytest.raises(ConfigError, match=r"loss.backward\(\)"):
        view(model, batch=1)
    cross_entropy(model(X), Y).backward()
    good = {name: p.grad for name, p in model.named_parameters()}
    for keywords, told in (
        ({}, "batch="),
        ({"gradient": list(good.values())[:-1], "batch": 1}, "4 parameters"),
        ({"gradient": {**good, "more": X}, "batch": 1}, "'more'"),
        ({"update": good, "batch": 1}, "learning_rate="),
        ({"batch": 1, "steps": 2}, "update="),
        ({"batch": 0}, "at least 1"),
        ({"update": good, "learning_rate": 0.1, "batch": 1, "steps": 0}, "at least 1"),
    ):
        with pytest.raises(ConfigError, match=told):
            view(model, **keywords)  # type: ignore[arg-type]
    with pytest.raises(AttackError, match="0.weight"):
        view(model, {**good, "0.weight": X}, batch=1)
    with pytest.raises(AttackError, match="zero everywhere"):
        view(model, {name: torch.zeros_like(t) for name, t in good.items()}, batch=1)
