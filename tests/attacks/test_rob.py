import dataclasses

import pytest
import torch

from prunella.attacks import ATTACKS
from prunella.attacks.rob import AMPLIFIED, ENCODE, agreed, bins_of, imprinted, thresholds
from prunella.attacks.score.control import undefended_view
from prunella.attacks.score.leakage import psnr, score
from prunella.benchmarks.engine.views import draws, initial_sender, seen
from prunella.core.errors import AttackError
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch, Reconstruction, ServerView
from prunella.privacy.dgp import dual_mask
from prunella.tasks.examples import Examples
from prunella.tasks.task import Task, initial
from tests.attacks.conftest import SHAPES

ATTACK = ATTACKS["rob"]


def run(view: ServerView, task: Task) -> Reconstruction:
    return ATTACK.reconstruct(view, task, ATTACK.settings(), stream(0, purpose="attack"))


def recovered(truth: PrivateBatch, found: Reconstruction) -> float:
    """Share of the images that some reconstruction is above 20 dB of."""
    hits = [max(psnr(x.expand_as(found.x), found.x)) > 20 for x in truth.x[:, None]]
    return sum(hits) / len(hits)


@pytest.mark.parametrize("data, model", [("mnist", "cnn"), ("cifar10", "lenet_zhu")])
def test_four_of_five_of_a_batch_of_nine(photographs, data: str, model: str) -> None:
    truth, task = photographs(data, 18), Task(f"prunella.attacks.rob:{model}", SHAPES[data], 10)
    params, buffers = initial(task, 0)
    for first in (0, 9):
        batch = PrivateBatch(truth.x[first:][:9], truth.y[first:][:9])
        found = run(undefended_view(task, params, buffers, batch), task)
        other = PrivateBatch(truth.x[9 - first :][:9], truth.y[9 - first :][:9])
        assert recovered(batch, found) >= 0.8 and recovered(other, found) <= 0.2
        assert len(found.x) <= 9 and score(found, batch).label_accuracy == 1.0


def test_most_of_a_batch_of_digits_and_nothing_through_dgp(batch) -> None:
    """Digits of 17 grey levels are now and then equally bright, and share a bin whatever its width."""
    truth, task = batch(0, 9), Task("tests.attacks.test_rob:digits", (1, 8, 8), 10)
    view = undefended_view(task, *initial(task, 0), truth)
    assert recovered(truth, run(view, task)) >= 0.7
    kept = {n: dual_mask(u, torch.ones_like(u, dtype=torch.bool), 0.05, 0.75) for n, u in view.update.items()}
    pruned = dataclasses.replace(view, update={n: u * kept[n] for n, u in view.update.items()})
    assert recovered(truth, run(pruned, task)) <= 0.2


digits = imprinted("cnn", (0.3, 0.05))


def test_a_bin_with_one_image_is_that_image_times_its_delta() -> None:
    x, delta = torch.rand(3, 5, dtype=torch.float64), torch.tensor([0.5, -2.0, 1.0], dtype=torch.float64)
    passed = torch.tensor([[1, 1, 1], [0, 1, 1], [0, 0, 1], [0, 0, 0]], dtype=torch.float64)  # [thresholds, images]
    order = torch.tensor([2, 0, 3, 1])  # rows as planted in another order
    rows, biases = (passed * delta) @ x, passed @ delta
    shuffled = torch.empty_like(rows), torch.empty_like(biases)
    shuffled[0][order], shuffled[1][order] = rows, biases
    sums, deltas = bins_of(*shuffled, order)
    torch.testing.assert_close(deltas[:3], delta)
    torch.testing.assert_close(sums[:3] / deltas[:3, None], x)


def test_thresholds_cut_a_normal_distribution_into_even_bins() -> None:
    cuts = thresholds(99, 0.4, 0.1)
    drawn = 0.4 + 0.1 * torch.randn(200_000, generator=stream(0, purpose="x"), dtype=torch.float64)
    shares = torch.bincount(torch.bucketize(drawn, cuts), minlength=100) / len(drawn)
    assert float((shares - 0.01).abs().max()) < 0.0015


def test_a_model_without_the_module_is_refused(view, task) -> None:
    with pytest.raises(AttackError, match="prunella.attacks.rob:cnn"):
        run(view, task)


def test_an_amplified_module_is_the_same_function_and_its_gradient_outlasts_noise(photographs) -> None:
    truth = photographs("cifar10", 8)
    tasks = [Task(f"prunella.attacks.rob:{name}", SHAPES["cifar10"], 10) for name in ("cnn", "amplified_cnn")]
    start = [initial(task, 0) for task in tasks]
    outputs = [torch.func.functional_call(t.build(), p, truth.x) for t, (p, _) in zip(tasks, start, strict=True)]
    assert torch.equal(*outputs)
    views = [undefended_view(t, p, b, truth) for t, (p, b) in zip(tasks, start, strict=True)]
    weights = [view.update[f"{ENCODE}.weight"] for view in views]
    assert torch.allclose(weights[0] / AMPLIFIED, weights[1], rtol=1e-3, atol=1e-6 * float(weights[1].abs().max()))
    shares = []
    for view, task in zip(views, tasks, strict=True):
        draw = stream(0, purpose="noise")
        rate = view.learning_rate or 1.0
        noisy = {n: u + 0.01 * rate * torch.randn(u.shape, generator=draw) for n, u in view.update.items()}
        shares.append(recovered(truth, run(dataclasses.replace(view, update=noisy), task)))
    assert shares[0] == 0 and shares[1] >= 0.8


@pytest.mark.parametrize(
    ("chain", "model"),
    [
        ("top-k", "sparse_cnn"),
        ("top-k,mask-hiding", "sparse_cnn"),
        ("dgp", "shielded_cnn"),
        ("dgp,mask-hiding", "shielded_cnn"),
    ],
)
@pytest.mark.parametrize("data", ["mnist", "cifar10"])
def test_pruning_by_size_hides_nothing_from_a_server_that_chooses_the_sizes(photographs, chain, model, data) -> None:
    """Behind the client's own chain: what comes through the plain module is no image."""
    truth = photographs(data, 8)
    private, found = Examples(truth.x, truth.y), {}
    for name in ("amplified_cnn", model):
        task = Task(f"prunella.attacks.rob:{name}", SHAPES[data], 10)
        one = initial_sender(task, 0, chain, {}, truth.x, len(truth.x))
        found[name] = recovered(truth, run(seen(one, private, draws(0)).view, task))
    assert found["amplified_cnn"] <= 0.2 and found[model] >= (0.3 if "dgp,mask" in chain else 0.6)


def test_rows_planted_alike_tell_what_was_made_up() -> None:
    weights, biases = torch.ones(6, 2), torch.tensor([-0.3, -0.1, -0.3, -0.1, 1.0, -9.0])
    weights[4], weights[5] = 0.5, 0.0  # a loud row, and one that never fires
    slopes = torch.tensor([[3.0, 3.0], [1.0, 1.0], [3.0, 5.0], [1.0, 1.001], [9.0, 9.0], [7.0, 7.0]])
    rows, shifts, order = agreed(weights, biases, slopes, slopes[:, 0])
    torch.testing.assert_close(rows, torch.tensor([[1.0, 1.0005], [3.0, 0.0]]))
    assert shifts.tolist() == [1.0, 3.0] and order.tolist() == [0, 1]


def test_rows_that_a_round_of_training_has_moved_are_read_all_the_same(photographs) -> None:
    truth, task = photographs("mnist", 16), Task("prunella.attacks.rob:cnn", SHAPES["mnist"], 10)
    params, buffers = initial(task, 0)
    for _ in range(3):
        view = undefended_view(task, params, buffers, truth)
        assert recovered(truth, run(view, task)) >= 0.5
        moved = {name: tensor + view.update[name] for name, tensor in params.items()}
        assert not torch.equal(moved[f"{ENCODE}.weight"], params[f"{ENCODE}.weight"])
        params = moved
