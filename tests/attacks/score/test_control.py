import dataclasses
from functools import partial

import pytest
import torch
from torch import nn

from prunella.attacks import ATTACKS
from prunella.attacks.engine.inversion import Inversion, reconstruct
from prunella.attacks.score.control import (
    PSNR_FLOOR,
    made_by,
    matched_view,
    normalised_by,
    rebuilt_control,
    undefended_view,
)
from prunella.attacks.score.leakage import Leakage, score
from prunella.attacks.sgi import Sgi
from prunella.core.randomness import rehearsal, stream
from prunella.core.trees import Tree, full_mask, zeros_like
from prunella.core.types import PrivateBatch, ServerView
from prunella.privacy.chain import build_chain
from prunella.strategies.round.local import Procedure, Received, local_update
from prunella.tasks.examples import Examples
from prunella.tasks.normalisation import USUAL
from prunella.tasks.task import ModuleTask, Task, initial
from prunella.tasks.training import Sgd, loss_and_gradient
from tests.attacks.engine.test_readings import UNLIKE, stepped, view_of, wrongly

TILT = 0.12  # a cosine of 0.993


def rebuilt(task: Task, state: tuple[Tree, Tree], truth: PrivateBatch, attack: Inversion, seed: int = 0) -> Leakage:
    view = undefended_view(task, *state, truth)
    return score(reconstruct(view, task, attack, stream(seed, purpose="control")), truth)


@pytest.mark.parametrize("which", ["fresh", "trained"])
def test_ten_of_ten_digits_are_rebuilt(which, task, batch, request) -> None:
    state = request.getfixturevalue(which)
    for i in range(which == "trained", 10, 2):
        leakage = rebuilt(task, state, batch(i, 1), Sgi(), seed=i)
        assert leakage.label_accuracy == 1.0 and leakage.psnr.mean >= PSNR_FLOOR


def test_a_weak_attack_stays_below_the_floor(task, fresh, batch) -> None:
    weak = dataclasses.replace(Sgi(), iterations=1)
    assert rebuilt(task, fresh, batch(0, 1), weak).psnr.mean < PSNR_FLOOR


def test_the_control_needs_the_label_and_the_picture() -> None:
    good = {"label_accuracy": 1.0, "images": 1, "psnr": {"worst": 20.0, "random": 6.0, "other": 9.0}}
    assert rebuilt_control(good)
    assert not rebuilt_control({**good, "label_accuracy": 0.0}) and not rebuilt_control(
        {**good, "label_accuracy": None}
    )
    for worst, other in ((17.9, 9.0), (20.0, 14.1)):
        assert not rebuilt_control({**good, "psnr": {"worst": worst, "random": 6.0, "other": other}})


def test_the_view_is_one_step_of_sgd_and_names_no_labels(task, fresh, batch) -> None:
    truth = batch(0, 1)
    view = undefended_view(task, *fresh, truth)
    _, gradient, _ = loss_and_gradient(task.build(), *fresh, truth.x, truth.y)
    assert view.labels is None and view.learning_rate is not None
    for name, update in view.update.items():
        torch.testing.assert_close(update, -view.learning_rate * gradient[name])


@pytest.mark.parametrize("model", ["cnn", "resnet10"])
def test_a_matched_view_is_what_a_client_without_a_defense_sends(model: str, batch) -> None:  # noqa: ANN001
    task = Task(model, (1, 8, 8), 10)
    params, buffers = initial(task, 0)
    used = [batch(0, 3), batch(3, 3)]
    like = ServerView(
        params, params, buffers=buffers, received_buffers=buffers, steps=2, batch_size=3, learning_rate=0.1,
        momentum=0.9, weight_decay=0.01, num_examples=6,
    )  # fmt: skip
    procedure = Procedure(task.build(), Sgd(0.1, 0.9, 0.01), build_chain(["none"], {}))
    received = Received(params, full_mask(params), buffers)
    shown = iter([Examples(each.x, each.y) for each in used])
    sent = local_update(procedure, received, shown, {"none": {}}, rehearsal(0, purpose="x"))
    view = matched_view(task, like, used)
    for ours, theirs in ((view.update, sent.outgoing.update), (view.received_buffers, sent.buffers)):
        assert ours.keys() == theirs.keys()
        for name, tensor in ours.items():
            torch.testing.assert_close(tensor, theirs[name])
    assert (view.steps, view.batch_size, view.defenses) == (2, 3, ("none",))


def test_colour_images_of_cifar10_on_zhu_s_lenet(photographs) -> None:
    truth, task = photographs("cifar10"), Task("lenet-zhu", (3, 32, 32), 10)
    settings = dataclasses.replace(ATTACKS["idlg"].settings(), iterations=200)
    leakage = rebuilt(task, initial(task, seed=0), truth, settings)
    assert leakage.label_accuracy == 1.0 and leakage.psnr.mean >= PSNR_FLOOR and leakage.ssim.mean > 0.7


def test_an_update_is_of_the_images_whose_training_gives_it(task, fresh, batch) -> None:  # noqa: ANN001
    """In whatever order its steps were; not of the same images turned, nor of others of the same classes. Behind a
    defense, and of a model that draws, nobody can tell."""
    truth, other = batch(0, 8), batch(40, 8)
    start = dataclasses.replace(undefended_view(task, *fresh, truth), batch_size=2, steps=4, learning_rate=0.05)
    parts = [PrivateBatch(*each) for each in zip(truth.x.split(2), truth.y.split(2), strict=True)]
    for view in (matched_view(task, start, parts[::-1]), undefended_view(task, *fresh, truth)):
        assert made_by(task, view, truth) is True
        assert made_by(task, view, PrivateBatch(truth.x.flip(-1), truth.y)) is False
        assert made_by(task, view, PrivateBatch(other.x, truth.y)) is False
        assert made_by(task, dataclasses.replace(view, defenses=("dgp",)), other) is None
    coded = Task("precode-cnn", (1, 8, 8), 10)
    frozen = max(view.update, key=lambda name: float(view.update[name].norm()))
    still = dataclasses.replace(view, update={n: t * (n != frozen) for n, t in view.update.items()})
    assert made_by(task, still, truth) is True, "a frozen layer"
    assert made_by(task, still, PrivateBatch(truth.x.flip(-1), truth.y)) is False
    assert made_by(task, dataclasses.replace(view, update=zeros_like(view.update)), truth) is None
    assert made_by(coded, undefended_view(coded, *initial(coded, 0), truth), truth) is None


def test_a_stranger_s_image_made_no_update_though_much_of_it_is_the_same_for_all(batch) -> None:
    """Behind sigmoids nearly all of an update is the same whatever the image is."""
    torch.manual_seed(0)
    first, last = nn.Conv2d(1, 12, 3, padding=1, stride=2), nn.Linear(192, 10)
    net = nn.Sequential(first, nn.Sigmoid(), nn.Conv2d(12, 12, 3, padding=1), nn.Sigmoid(), nn.Flatten(), last)
    task, own = ModuleTask("sigmoid", (1, 8, 8), 10, net), batch(0, 1)
    view = view_of(task, own.x, own.y)
    assert made_by(task, view, own) is True
    others = [batch(seed, 1) for seed in range(1, 6)]
    strangers = [*(other.x for other in others), torch.zeros_like(own.x), torch.rand_like(own.x)]
    assert [made_by(task, view, PrivateBatch(x, (own.y + 1) % 10)) for x in strangers] == [False] * 7


@pytest.mark.parametrize("loss", UNLIKE)
def test_one_image_made_an_update_whatever_its_loss(task, batch, loss) -> None:
    own, other = batch(0, 1), batch(1, 1)
    view = view_of(task, own.x, own.y, loss)
    assert made_by(task, view, own) is True
    assert made_by(task, view, PrivateBatch(other.x, own.y)) is False
    assert made_by(task, view, PrivateBatch(own.x.flip(-1), own.y)) is False


@pytest.mark.parametrize("steps", [1, 2])
def test_images_that_were_normalised_are_known_by_how(task: Task, fresh, batch, steps: int) -> None:  # noqa: ANN001
    own, other = batch(0, 4), batch(4, 4)
    for normal in USUAL[:2]:
        ((mean,), (std,)), start = normal, undefended_view(task, *fresh, own)
        start = dataclasses.replace(start, batch_size=4 // steps, steps=steps, learning_rate=0.05)
        parts = zip(own.x.split(4 // steps), own.y.split(4 // steps), strict=True)
        view = matched_view(task, start, [PrivateBatch((x - mean) / std, y) for x, y in parts])
        assert normalised_by(task, view, own) == normal and (steps > 1 or made_by(task, view, own) is False)
        assert normalised_by(task, matched_view(task, start, [own]), own) is None, "as they are"
        for x in (other.x, own.x.flip(-1)):
            assert normalised_by(task, view, PrivateBatch(x, own.y)) is None


def test_a_network_that_normalises_by_itself_tells_of_no_way(batch) -> None:  # noqa: ANN001
    """There all ways make one update, and rounding would say which of them it was."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.InstanceNorm2d(1), nn.Flatten(), nn.Linear(64, 10))
    task, own = ModuleTask("by itself", (1, 8, 8), 10, net), batch(0, 4)
    start = dataclasses.replace(undefended_view(task, *initial(task, 0), own), batch_size=2, steps=2, learning_rate=0.1)
    parts = [PrivateBatch(*each) for each in zip(own.x.split(2), own.y.split(2), strict=True)]
    view = matched_view(task, start, parts[::-1])
    assert made_by(task, view, own) is True and normalised_by(task, view, own) is None


def test_a_way_that_explains_hardly_more_than_none_is_not_named(batch) -> None:  # noqa: ANN001
    """Nearly one update whatever the way, and what hides a part of it takes all but one under the bound."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.InstanceNorm2d(1, eps=0.4), nn.Flatten(), nn.Linear(64, 10))
    task, own, ((mean,), (std,)) = ModuleTask("nearly by itself", (1, 8, 8), 10, net), batch(0, 4), USUAL[0]
    start = dataclasses.replace(undefended_view(task, *initial(task, 0), own), learning_rate=0.1)
    made = [matched_view(task, start, [PrivateBatch(x, own.y)]).update for x in (own.x, (own.x - mean) / std)]
    plain, normal = (torch.cat([part.double().flatten() for part in update.values()]) for update in made)
    span = torch.linalg.qr(torch.stack([plain, normal], 1)).Q
    hidden = rehearsal(0, purpose="hidden").normal(len(plain)).double()
    hidden -= span @ (span.T @ hidden)
    seen = normal / normal.norm() + TILT * hidden / hidden.norm()
    assert torch.cosine_similarity(seen, plain, 0) < 0.99 < torch.cosine_similarity(seen, normal, 0)
    sizes = [part.numel() for part in made[0].values()]
    parts = [part.view_as(made[0][name]).float() for name, part in zip(made[0], seen.split(sizes), strict=True)]
    view = dataclasses.replace(start, update=dict(zip(made[0], parts, strict=True)))
    assert normalised_by(task, view, own) is None


def test_a_step_of_another_optimizer_was_made_by_its_own_images_alone(task: Task, batch) -> None:  # noqa: ANN001
    own, other = batch(0, 1), batch(1, 1)
    view = stepped(task, own.x, own.y, partial(torch.optim.AdamW, lr=1e-3))
    assert made_by(task, view, own) is True and made_by(task, view, other) is False
    answered = wrongly(view_of(task, own.x, own.y), lambda p, u: u)
    assert made_by(task, answered, own) is True and made_by(task, answered, other) is False
