import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from prunella.attacks.membership import MODEL, UPDATES, WORST, Seen, candidate_scores
from prunella.attacks.score.membership import compare, found
from prunella.core.errors import AttackError
from prunella.core.trees import Tree
from prunella.tasks.data import load_public
from prunella.tasks.examples import Examples
from prunella.tasks.per_example import per_example_gradients
from prunella.tasks.task import Task, initial
from prunella.tasks.training import Sgd, loss_and_gradient, sgd_step

TASK = Task("cnn", (1, 8, 8), 10)
NET = TASK.build()


def digits() -> Examples:
    data = load_public("digits", None)
    assert data is not None
    return data


def trained(on: Examples, steps: int, start: Tree | None = None) -> tuple[Tree, Tree]:
    """Weights before and after ``steps`` of gradient descent on all of ``on``."""
    begin = params = initial(TASK, 0)[0] if start is None else start
    for _ in range(steps):
        params = sgd_step(params, loss_and_gradient(NET, params, {}, on.x, on.y)[1], {}, Sgd(0.25), None)[0]
    return begin, params


def seen(before: Tree, after: Tree) -> Seen:
    return Seen(before, {}, {name: after[name] - before[name] for name in before})


@pytest.fixture(scope="module")
def overtrained() -> tuple[Examples, Examples, list[Seen]]:
    """Forty digits with labels drawn at random, learned by heart: only membership tells their labels."""
    data = digits()
    data = Examples(data.x[:240], torch.randint(10, (240,), generator=torch.Generator().manual_seed(0)))
    members, outsiders = data.take(torch.arange(40)), data.take(torch.arange(40, 240))
    middle = trained(members, 60)
    return members, outsiders, [seen(*middle), seen(*trained(members, 240, middle[1]))]


def both(members: Examples, outsiders: Examples) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.cat([members.x, outsiders.x]), torch.cat([members.y, outsiders.y])


def test_of_a_model_that_learned_by_heart_every_score_names_the_members(overtrained) -> None:
    members, outsiders, rounds = overtrained
    found_by = candidate_scores(NET, 10, rounds, *both(members, outsiders))
    assert set(found_by) == MODEL | UPDATES
    apart = {name: compare(scores[:40], scores[40:]) for name, scores in found_by.items()}
    assert all(found([each]) for each in apart.values())
    assert apart["local"].auc > 0.9 and apart["drop"].auc > 0.9


def test_of_a_model_that_others_trained_no_score_does(overtrained) -> None:
    """The same rounds with candidates of which none was trained on."""
    _, outsiders, rounds = overtrained
    scores = candidate_scores(NET, 10, rounds, outsiders.x, outsiders.y)
    assert not found([compare(each[:40], each[40:]) for each in scores.values()])


def test_losses_and_cosines_are_those_of_the_definitions() -> None:
    data = digits().take(torch.arange(12))
    one = seen(*trained(digits().take(torch.arange(6)), 3))
    one.update["0.0.weight" if "0.0.weight" in one.update else next(iter(one.update))].zero_()
    layer = next(name for name in reversed(one.update) if name.endswith("weight"))
    one.update[layer][:, ::2] = 0  # withheld
    found_by = candidate_scores(NET, 10, [one], data.x, data.y)
    local = {name: one.params[name] + one.update[name] for name in one.params}
    with torch.no_grad():
        losses = [
            cross_entropy(torch.func.functional_call(NET, p, (data.x,)), data.y, reduction="none")
            for p in (one.params, local)
        ]
    assert torch.allclose(found_by["model"], -losses[0], atol=1e-5)
    assert torch.allclose(found_by["local"], -losses[1], atol=1e-5)
    assert torch.allclose(found_by["drop"], losses[0] - losses[1], atol=1e-5)
    (gradients,) = per_example_gradients(NET, one.params, {}, data.x, data.y)
    arrived = gradients[layer] * (one.update[layer] != 0)
    cosine = torch.cosine_similarity(-arrived.flatten(1), one.update[layer].flatten()[None])
    assert torch.allclose(found_by["alignment"], cosine, atol=1e-5)


def test_rounds_add_up_and_the_last_is_the_model(overtrained) -> None:
    members, _, rounds = overtrained
    first, last, all_of_them = (
        candidate_scores(NET, 10, r, members.x, members.y) for r in ([rounds[0]], [rounds[1]], rounds)
    )
    for name in ("drop", "alignment"):
        assert torch.allclose(all_of_them[name], first[name] + last[name], atol=1e-5)
    for name in ("model", "local"):
        assert torch.equal(all_of_them[name], last[name])


def test_a_score_that_is_not_finite_is_the_lowest_and_no_error() -> None:
    data = digits().take(torch.arange(4))
    broken = {name: torch.full_like(p, float("nan")) for name, p in initial(TASK, 0)[0].items()}
    scores = candidate_scores(NET, 10, [Seen(broken, {}, broken)], data.x, data.y)
    assert all(bool((each == -WORST).all()) for each in scores.values())


def test_a_model_without_a_linear_end_has_no_alignment_and_no_round_no_scores() -> None:
    net = nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten())
    params = {name: p.detach() for name, p in net.named_parameters()}
    data = digits().take(torch.arange(4))
    assert set(candidate_scores(net, 10, [Seen(params, {}, params)], data.x, data.y)) == {"model", "local", "drop"}
    with pytest.raises(AttackError, match="at least one round"):
        candidate_scores(net, 10, [], data.x, data.y)
