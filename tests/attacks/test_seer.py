"""SEER on MNIST at 14x14: weights learnt with a secret decoder, in seconds."""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import avg_pool2d, cross_entropy

from prunella.attacks import ATTACKS
from prunella.attacks.score.control import undefended_view
from prunella.attacks.score.leakage import psnr
from prunella.attacks.seer import Decoder, Planting, Seer, brightness, layer_read, load, mapped_gradients, plant, save
from prunella.client.planted import planted_layers
from prunella.core.errors import AttackError
from prunella.core.randomness import rehearsal, stream
from prunella.core.trees import Tree
from prunella.core.types import PrivateBatch, ServerView
from prunella.tasks.examples import Examples
from prunella.tasks.models.layers import Shape, with_head
from prunella.tasks.task import Task, initial
from prunella.tasks.training import Sgd, evaluate, loss_and_gradient, sgd_step

ATTACK = ATTACKS["seer"]
BATCH = 8


def dense(shape: Shape, classes: int) -> nn.Module:
    return with_head(nn.Sequential(), shape, [128, 64], classes)


TASK = Task(f"{__name__}:dense", (1, 14, 14), 10)


@dataclasses.dataclass(frozen=True)
class Planted:
    params: Tree
    decoder: Decoder
    attack: Seer
    public: Examples


@pytest.fixture(scope="session")
def images(photographs: Callable[..., PrivateBatch]) -> Examples:
    found = photographs("mnist", 4900)
    return Examples(avg_pool2d(found.x, 2), found.y)


@pytest.fixture(scope="module")
def planted(images: Examples, tmp_path_factory: pytest.TempPathFactory) -> Planted:
    public, file = images.take(torch.arange(4400)), tmp_path_factory.mktemp("seer") / "decoder.safetensors"
    planting = Planting(batch=BATCH, steps=400, width=256)
    params, decoder = plant(TASK.build(), initial(TASK, 0)[0], public, stream(0, purpose="plant"), planting)
    save(file, decoder)
    return Planted(params, decoder, Seer(prior=str(file)), public)


@pytest.fixture(scope="module")
def held(planted: Planted, images: Examples) -> list[PrivateBatch]:
    """Batches of images that nothing was learnt from: the first of each has the property, no other has."""
    x, y = images.x[4400:], images.y[4400:]
    bright = brightness(x) > planted.decoder.cut
    wanted, others = bright.nonzero().flatten(), (~bright).nonzero().flatten()
    order = others[torch.randperm(len(others), generator=stream(0, purpose="others"))]
    rows = [torch.cat([one[None], order[i * (BATCH - 1) :][: BATCH - 1]]) for i, one in enumerate(wanted[:24])]
    return [PrivateBatch(x[at], y[at]) for at in rows]


def read(view: ServerView, attack: Seer) -> Tensor:
    found = ATTACK.reconstruct(view, TASK, attack, stream(0, purpose="attack"))
    assert found.x.shape == (1, 1, 14, 14) and found.y is None and found.fit is None
    return found.x


def mean_psnr(truth: Tensor, found: Tensor) -> float:
    return sum(psnr(truth, found)) / len(truth)


def test_the_bright_image_comes_out_of_a_batch_and_a_wrong_view_shows_another(planted, held) -> None:
    """Nearer than the mean bright image of its class, than what another batch gives, and than honest weights do."""
    truth = torch.cat([one.x[:1] for one in held])
    found = torch.cat([read(undefended_view(TASK, planted.params, {}, one), planted.attack) for one in held])
    public = planted.public
    bright = brightness(public.x) > planted.decoder.cut
    means = torch.stack([public.x[bright & (public.y == one.y[0])].mean(dim=0) for one in held])
    honest = torch.cat([read(undefended_view(TASK, initial(TASK, 0)[0], {}, one), planted.attack) for one in held])
    near = {"found": found, "mean": means, "wrong": found.roll(1, 0), "honest": honest}
    scores = {name: mean_psnr(truth, x) for name, x in near.items()}
    print(scores)
    assert len(held) == 24 and scores["found"] > max(scores["mean"], scores["wrong"], scores["honest"]) + 2, scores
    nearest = torch.cdist(found.flatten(1), truth.flatten(1)).argmin(dim=1)
    assert int((nearest == torch.arange(24)).sum()) >= 20
    others = [max(psnr(x[None], y[None])[0] for x in one.x[1:]) for one, y in zip(held, found, strict=True)]
    assert sum(others) / 24 < scores["found"] - 2


def test_the_model_learns_and_no_check_of_the_client_notices(planted, images) -> None:
    assert evaluate(TASK.build(), planted.params, {}, images.x[4400:], images.y[4400:]).accuracy > 0.7
    for seed in range(3):
        draw = rehearsal(seed, purpose="probes")
        assert planted_layers(TASK.build(), planted.params, {}, TASK.shape, TASK.classes, draw) == []


def loudness(params: Tree, own: Examples, value: Tensor) -> float:
    """What a client can ask of the weights with its own examples and a statistic: of the direction of the first linear
    layer's loss gradients in which those with the largest eighth of it are loudest, how many times as loud they are.
    Half of the examples choose the direction, the others answer."""
    module, seen = TASK.build(), list[Tensor]()
    leaves = {name: p.clone().requires_grad_() for name, p in params.items()}
    with module.get_submodule(layer_read(module)).register_forward_hook(lambda _, __, out: seen.append(out)):
        loss = cross_entropy(functional_call(module, leaves, (own.x,)), own.y, reduction="sum")
    (slope,) = torch.autograd.grad(loss, seen)
    top, chooses = value > value.quantile(1 - 1 / BATCH), torch.arange(len(value)) % 2 == 0
    a, b = (slope[chooses & which].T @ slope[chooses & which] / int(which.sum()) for which in (top, ~top))
    root = torch.linalg.cholesky(b + 1e-4 * b.trace() / len(b) * torch.eye(len(b)))
    half = torch.linalg.solve_triangular(root, a, upper=False)
    whole = torch.linalg.solve_triangular(root, half.T, upper=False)
    direction = torch.linalg.solve_triangular(root.T, torch.linalg.eigh(whole)[1][:, -1:], upper=True)[:, 0]
    said = (slope @ direction).square()
    return float(said[~chooses & top].mean() / said[~chooses & ~top].mean())


def learnt_honestly(public: Examples, classes: int) -> Tree:
    """Weights after 300 steps on the images of the first ``classes`` classes."""
    module, (params, buffers), draw = TASK.build(), initial(TASK, 0), stream(0, purpose="training")
    seen, velocity = (public.y < classes).nonzero().flatten(), dict[str, Tensor]()
    for _ in range(300):
        rows = seen[torch.randint(len(seen), (64,), generator=draw)]
        _, gradient, buffers = loss_and_gradient(module, params, buffers, public.x[rows], public.y[rows])
        params, velocity = sgd_step(params, gradient, velocity, Sgd(0.05, 0.9), None)
    return params


def test_loudness_tells_no_planted_model_from_an_honest_one(planted, images) -> None:
    """Why no client asks: planted weights are louder than honest ones for their property, but honest ones that never
    saw a class are louder still for a client's few images of it."""
    own = images.take(torch.arange(4400, len(images)))
    honest, partial = learnt_honestly(planted.public, 10), learnt_honestly(planted.public, 9)
    few = own.take(torch.cat([(own.y != 9).nonzero().flatten()[:280], (own.y == 9).nonzero().flatten()[:40]]))
    few = few.take(torch.randperm(len(few), generator=stream(0, purpose="order")))
    found = {
        "planted": loudness(planted.params, own, brightness(own.x)),
        "honest": loudness(honest, own, brightness(own.x)),
        "honest, never saw a class": loudness(partial, few, (few.y == 9) + 0.1 * brightness(few.x)),
    }
    print(found)
    assert 3 * found["honest"] < found["planted"] < found["honest, never saw a class"] / 3, found


def test_the_map_of_single_examples_adds_up_to_that_of_the_gradient(planted, held) -> None:
    module, truth = TASK.build(), held[0]
    params = {name: p.clone().requires_grad_() for name, p in planted.params.items()}
    mapped, _ = mapped_gradients(module, params, planted.decoder, truth.x, truth.y)
    view = undefended_view(TASK, planted.params, {}, truth)
    gradient = view.update[f"{layer_read(module)}.weight"] / -(view.learning_rate or 1.0)
    torch.testing.assert_close(mapped.detach().mean(dim=0), planted.decoder.secret @ gradient, atol=1e-5, rtol=1e-3)


def test_neither_the_batch_s_size_nor_the_rate_matters(planted, held) -> None:
    view = undefended_view(TASK, planted.params, {}, held[0])
    told = dataclasses.replace(view, learning_rate=7.0)
    torch.testing.assert_close(read(view, planted.attack), read(told, planted.attack), atol=1e-4, rtol=0)


def test_another_property_and_the_generator_decide(images) -> None:
    public, quick = images.take(torch.arange(400)), Planting(batch=4, steps=3, width=8)
    start = initial(TASK, 0)[0]
    made = [plant(TASK.build(), start, public, stream(seed, purpose="plant"), quick) for seed in (0, 0, 1)]
    assert torch.equal(made[0][1].secret, made[1][1].secret) and not torch.equal(made[0][1].secret, made[2][1].secret)
    assert all(torch.equal(start[n], p) for n, p in initial(TASK, 0)[0].items())
    _, dark = plant(TASK.build(), start, public, stream(0, purpose="plant"), quick, lambda x: -brightness(x))
    share = float((-brightness(public.x) > dark.cut).float().mean())
    assert dark.cut < 0 and share == pytest.approx(1 / 4, abs=0.03)


def test_what_cannot_be_read_or_planted_is_said(planted, held) -> None:
    view, public = undefended_view(TASK, planted.params, {}, held[0]), planted.public
    draw = stream(0, purpose="plant")
    with pytest.raises(AttackError, match="prunella.attacks.seer.plant"):
        ATTACK.reconstruct(view, TASK, Seer(), draw)
    with pytest.raises(AttackError, match="for another model than cnn"):
        load(planted.attack, Task("cnn", (1, 14, 14), 10))
    ATTACK.ready(planted.attack, TASK)
    nothing = dataclasses.replace(view, update={n: torch.zeros_like(u) for n, u in view.update.items()})
    with pytest.raises(AttackError, match="nothing arrived"):
        ATTACK.reconstruct(nothing, TASK, planted.attack, draw)
    with pytest.raises(AttackError, match="batch norm"):
        norm = Task("cnn-bn", (1, 14, 14), 10)
        plant(norm.build(), initial(norm, 0)[0], public, draw)
    with pytest.raises(AttackError, match="too few"):
        plant(TASK.build(), initial(TASK, 0)[0], public.take(torch.arange(8)), draw)
    tokens = nn.Sequential(nn.Linear(14, 10), nn.Flatten(), nn.Linear(140, 10))
    weights = {name: p.detach() for name, p in tokens.named_parameters()}
    with pytest.raises(AttackError, match="one row for an image"):
        plant(tokens, weights, public, draw, Planting(batch=4, steps=1, width=8))
    normed = nn.Sequential(nn.Flatten(), nn.utils.parametrizations.weight_norm(nn.Linear(196, 10)))
    with pytest.raises(AttackError, match="needs a linear layer"):
        layer_read(normed)
    with pytest.raises(AttackError, match="too few"):
        plant(TASK.build(), initial(TASK, 0)[0], public.take(torch.arange(60)), draw, Planting(batch=512))
    with pytest.raises(AttackError, match="needs a linear layer"):
        layer_read(nn.Conv2d(1, 1, 1))
