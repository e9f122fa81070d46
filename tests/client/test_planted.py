from dataclasses import replace

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from prunella.client.planted import (
    NOT_FINITE,
    PROBES,
    PlantedCheck,
    Response,
    bins,
    heard,
    planted_layers,
    probes,
    refuse_planted,
    respond,
    traps,
)
from prunella.core.errors import DefenseError
from prunella.core.randomness import PrivateGenerator, rehearsal, stream
from prunella.core.trees import Tree, full_mask
from prunella.privacy.chain import build_chain, start
from prunella.privacy.imprint import imprint_layers
from prunella.strategies.round.local import PLAIN, LocalResult, Procedure, Received, local_update
from prunella.strategies.round.plan import LocalPlan
from prunella.tasks.examples import Examples
from prunella.tasks.models import MODELS
from prunella.tasks.models.layers import Shape
from prunella.tasks.task import Task, initial
from prunella.tasks.training import Sgd, evaluate, loss_and_gradient, sgd_step

HEAVY = {"vgg16", "alexnet", "conv-6", "conv-4", "conv-1", "vgg-11", "vgg11-bn", "vgg-9", "vgg-6", "precode-resnet18"}
SHAPES = {"conv": (1, 28, 28), "ltp-": (1, 28, 28), "prec": (1, 16, 16)}


def draw(seed: int = 0) -> PrivateGenerator:
    return rehearsal(seed, purpose="probes")


def found(task: Task, params: Tree, buffers: Tree, seed: int = 0) -> list[str]:
    return planted_layers(task.build(), params, buffers, task.shape, task.classes, draw(seed))


def pruned(params: Tree, keep: float, by_size: bool) -> Tree:
    """The weights without all but ``keep`` of each tensor that has more than one dimension."""
    drawn = stream(0, purpose="mask")
    scores = {n: p.abs() if by_size else torch.rand(p.shape, generator=drawn) for n, p in params.items()}
    cuts = {n: s.flatten().kthvalue(max(1, int(s.numel() * (1 - keep)))).values for n, s in scores.items()}
    return {n: p * (scores[n] > cuts[n]) if p.ndim > 1 else p for n, p in params.items()}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in HEAVY else n for n in sorted(MODELS)])
def test_honest_models_pass_dense_or_pruned(name: str) -> None:
    task = Task(name, SHAPES.get(name[:4], (3, 32, 32)), 10)
    params, buffers = initial(task, 0)
    for i, weights in enumerate((params, pruned(params, 0.7, False), pruned(params, 0.02, True))):
        assert found(task, weights, buffers, i) == []


@pytest.mark.parametrize("model", ["cnn", "tests.attacks.test_scale_mia:plain", "tests.attacks.test_scale_mia:small"])
def test_a_model_that_learned_passes_and_so_does_one_that_never_saw_most_classes(model: str) -> None:
    bunch, task = load_digits(), Task(model, (1, 8, 8), 10)
    x, y = torch.tensor(bunch.images / 16, dtype=torch.float32)[:, None], torch.tensor(bunch.target)
    module = task.build()
    for classes in (10, 2):
        seen = (y < classes).nonzero().flatten()
        params, buffers = initial(task, 0)
        for step in range(100):
            rows = seen[(32 * step + torch.arange(32)) % len(seen)]
            _, gradient, buffers = loss_and_gradient(module, params, buffers, x[rows], y[rows])
            params, _ = sgd_step(params, gradient, {}, Sgd(0.3), None)
        assert evaluate(module, params, buffers, x[seen], y[seen]).accuracy > 0.9
        for weights in (params, pruned(params, 0.3, True), pruned(params, 0.02, True)):
            assert found(task, weights, buffers) == []


PLANTED = {
    "prunella.attacks.rob:cnn": "bins in imprint.encode",
    "prunella.attacks.loki:cnn": "bins in loki.imprint.encode",
    "prunella.attacks.rob:amplified_cnn": "bins in imprint.encode",
    "prunella.attacks.rob:sparse_cnn": "bins in imprint.encode",
    "prunella.attacks.rob:shielded_cnn": "bins in imprint.encode",
    "prunella.attacks.loki:amplified_cnn": "bins in loki.imprint.encode",
    "tests.attacks.test_scale_mia:mlp": "bins in 2.0",
    "tests.attacks.test_scale_mia:amplified": "bins in 2.0",
    "tests.attacks.test_scale_mia:conv": "bins in 2.0",
    "prunella.attacks.fishing:cnn": "silenced classes in 2.0",
    "prunella.attacks.fishing:lenet_zhu": "silenced classes in 2.0",
}


@pytest.mark.parametrize("model", PLANTED)
def test_every_planting_is_named_and_refused_whatever_the_probes(model: str) -> None:
    task = Task(model, (1, 28, 28), 10)
    params, buffers = initial(task, 0)
    for seed in range(2):
        assert PLANTED[model] in found(task, params, buffers, seed)
    with pytest.raises(DefenseError, match=PLANTED[model]):
        refuse_planted(task.build(), params, buffers, task.shape, task.classes, draw())


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_noise_that_hides_rows_from_a_look_at_the_weights_does_not_hide_what_they_do(shape: Shape) -> None:
    task, name = Task("prunella.attacks.rob:cnn", shape, 10), "imprint.encode.weight"
    params, buffers = initial(task, 0)
    noise = torch.randn(params[name].shape, generator=stream(0, purpose="noise"))
    noisy = {**params, name: params[name] * (1 + 0.7 * noise)}
    assert "imprint.encode" not in imprint_layers(task.build(), noisy, draw())
    assert "bins in imprint.encode" in found(task, noisy, buffers)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_few_bins_among_honest_rows_permuted_and_rescaled(shape: Shape) -> None:
    task = Task("prunella.attacks.rob:cnn", shape, 10)
    params, buffers = initial(task, 0)
    drawn = stream(0, purpose="rows")
    names = [f"imprint.{which}" for which in ("encode.weight", "encode.bias", "decode.weight")]
    weight, bias, columns = (params[name].clone() for name in names)
    kept = torch.linspace(0, len(bias) - 1, 24).long()
    honest = torch.ones(len(bias), dtype=torch.bool).index_fill(0, kept, False)
    weight[honest] = torch.randn(weight[honest].shape, generator=drawn) / weight.shape[1] ** 0.5
    bias[honest] = 0
    columns[:, honest] = torch.randn(columns[:, honest].shape, generator=drawn) / len(bias)
    order, size = torch.randperm(len(bias), generator=drawn), torch.rand(len(bias), generator=drawn) + 0.5
    changed = ((weight * size[:, None])[order], (bias * size)[order], (columns / size)[:, order])
    assert "bins in imprint.encode" in found(task, {**params, **dict(zip(names, changed, strict=True))}, buffers)


def test_a_probe_that_overflows_hides_nothing() -> None:
    """A row that is infinite on bright images only, which the client does not have, would hide what the others show."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    params = {name: p.detach().clone() for name, p in net.named_parameters()}
    params["1.weight"][0], params["1.bias"][0], params["3.weight"][:, 0] = 1e20, -1e20 * 64 * 0.55, 1e20
    assert "values that are not finite" in planted_layers(net, params, {}, (1, 8, 8), 10, draw())


def test_weights_that_diverged_are_refused_for_what_they_are() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    params = {name: torch.full_like(p.detach(), 3e38) for name, p in net.named_parameters()}
    with pytest.raises(DefenseError, match="not finite: not trained. Start a new run") as caught:
        refuse_planted(net, params, {}, (1, 8, 8), 10, draw())
    assert "copy" not in str(caught.value)


@pytest.mark.parametrize("size", [1e-25, 1e12])
def test_no_size_of_the_rows_hides_them(size: float) -> None:
    """relu(s a) / s is relu(a): gradients grow by 1 / s, and their squares beyond float32."""
    task = Task("prunella.attacks.rob:cnn", (1, 28, 28), 10)
    params, buffers = initial(task, 0)
    scaled = {n: p * size if "imprint.encode" in n else p for n, p in params.items()}
    scaled["imprint.decode.weight"] = params["imprint.decode.weight"] / size
    seen = found(task, scaled, buffers)
    assert {"imprint in imprint.encode", "bins in imprint.encode"} <= set(seen)


def test_rows_with_bins_of_their_own_are_traps() -> None:
    """relu(1 - |h - t_k| / width): every unit responds to one brightness, and nothing needs to be subtracted."""
    slope = torch.eye(PROBES).repeat(1, 3) * torch.rand(3 * PROBES)
    assert traps(slope) == 1.0 and traps(torch.ones(PROBES, 5)) == 0.0 and traps(torch.zeros(PROBES, 5)) == 0.0
    mixed = torch.cat([slope[:, :10], torch.ones(PROBES, 30), torch.zeros(PROBES, 7)], dim=1)
    assert traps(mixed) == 0.25, "rows that nothing moves do not count"


def test_bins_are_counted_as_the_obvious_loop_over_all_pairs_counts_them() -> None:
    """Twenty thresholds on one line and forty rows of noise: those that isolate a probe are found."""
    drawn = stream(0, purpose="bins")
    level = torch.linspace(0, 1, 32)
    out = level[:, None] - torch.linspace(0.1, 0.9, 20)
    delta = 0.5 + torch.rand(32, 1, generator=drawn)
    honest = torch.randn(32, 40, generator=drawn)
    given = Response(torch.cat([out, honest], dim=1), torch.cat([delta * (out > 0), honest.relu()], dim=1))
    rows, singled = bins(given)
    alone = [(out[:, i] > 0) ^ (out[:, i + 1] > 0) for i in range(19)]
    expected = {int(each.nonzero()) for each in alone if int(each.sum()) == 1}
    assert expected and singled >= len(expected) and 6 <= rows <= 20
    assert bins(Response(honest, honest.relu())) == (0, 0)


def test_what_is_heard_equals_the_norms_that_autograd_gives() -> None:
    drawn = stream(0, purpose="heard")
    features, weight = torch.randn(5, 7, generator=drawn), torch.randn(4, 7, generator=drawn)
    norms = []
    for row in features:
        for y in range(4):
            leaf = row.clone().requires_grad_()
            nn.functional.cross_entropy((weight @ leaf)[None], torch.tensor([y])).backward()
            norms.append(leaf.grad.norm())
    n = torch.stack(norms).double()
    assert heard(features @ weight.T, weight) == pytest.approx(float(n.sum() ** 2 / (20 * n.square().sum())), rel=1e-4)
    assert heard(torch.zeros(5, 4), torch.zeros(4, 7)) == 1.0


def test_probes_are_smooth_of_all_brightnesses_and_never_the_same() -> None:
    made, again = probes(200, (3, 32, 32), draw(0)), probes(200, (3, 32, 32), draw(1))
    assert made.shape == (200, 3, 32, 32) and 0 <= float(made.min()) <= float(made.max()) <= 1
    assert not torch.equal(made, again) and float(made.mean((1, 2, 3)).std()) > 0.15

    def rough(x: torch.Tensor) -> float:
        return float(x.diff(dim=-1).square().mean() / x.var((1, 2, 3)).mean())

    assert rough(made) < 1 < rough(torch.rand(100, 3, 32, 32))


def test_the_model_its_mode_and_its_buffers_stay_as_they_are() -> None:
    task = Task("vgg11-bn", (3, 32, 32), 10)
    module, (params, buffers) = task.build().eval(), initial(task, 0)
    before = {n: t.clone() for n, t in {**params, **buffers, **module.state_dict()}.items()}
    x, y = probes(4, task.shape, draw()), torch.zeros(4, dtype=torch.int64)
    respond(module, params, buffers, x, y)
    after = {**params, **buffers, **module.state_dict()}
    assert not module.training and all(torch.equal(after[n], t) for n, t in before.items())
    assert not any(layer._forward_hooks for layer in module.modules())


class Tokens(nn.Module):
    """A linear layer on every row of the image, and a convolution in place of the last linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.last = nn.Linear(8, 8), nn.Conv2d(1, 10, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.last(self.each(x).relu()).flatten(1)
        return logits


def test_a_model_of_another_kind_is_looked_at_as_far_as_it_goes() -> None:
    module = Tokens()
    params = {name: p.detach() for name, p in module.named_parameters()}
    assert planted_layers(module, params, {}, (1, 8, 8), 10, draw()) == []


@pytest.mark.parametrize("low, high", [(0.0, 0.5), (0.12, 0.14), (0.3, 0.31)])
@pytest.mark.parametrize("constant", [True, False])
def test_thresholds_between_few_probes_are_seen_also_where_they_are_no_biases(
    low: float, high: float, constant: bool
) -> None:
    """Forty rows that read the mean brightness, between values that a server knows its victims to have; the thresholds
    are biases, or weights of an input that is always 1."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 300), nn.ReLU(), nn.Linear(300, 10)
    )
    params = {name: p.detach().clone() for name, p in net.named_parameters()}
    assert planted_layers(net, params, {}, (1, 28, 28), 10, draw()) == []
    means = torch.zeros(14, 14, 14, 2, 14, 2)
    for row in range(14):
        for column in range(14):
            means[row, column, row, :, column] = 0.25
    params["1.weight"], params["1.bias"] = torch.zeros(400, 784), torch.zeros(400)
    params["1.weight"][:196], params["1.bias"][196] = means.reshape(196, 784), 1.0
    at = torch.linspace(low, high, 40)
    params["3.weight"][:40], params["3.bias"][:] = 0, 0
    params["3.weight"][:40, :196] = 1 / 196
    if constant:
        params["3.weight"][:40, 196] = -at
    else:
        params["3.bias"][:40] = -at
    assert "imprint in 3" in planted_layers(net, params, {}, (1, 28, 28), 10, draw())


def test_weight_decay_makes_no_honest_model_look_planted() -> None:
    """Of rows that it puts on one line there are enough, but their thresholds go with them."""
    torch.manual_seed(0)
    digits = load_digits()
    x, y = torch.tensor(digits.images[:, None] / 16, dtype=torch.float32), torch.tensor(digits.target)
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 200), nn.Sigmoid(), nn.Linear(200, 100), nn.Sigmoid(), nn.Linear(100, 10)
    )
    adam, drawn = torch.optim.Adam(net.parameters(), 0.01, weight_decay=5e-4), stream(0, purpose="batches")
    for _ in range(3000):
        at = torch.randint(len(x), (32,), generator=drawn)
        adam.zero_grad()
        nn.functional.cross_entropy(net(x[at]), y[at]).backward()
        adam.step()
    params = {name: p.detach() for name, p in net.named_parameters()}
    unit = nn.functional.normalize(params["1.weight"])
    assert int(((unit @ unit.T).abs() >= 0.9).sum(dim=1).max()) >= 16
    assert planted_layers(net, params, {}, (1, 8, 8), 10, draw()) == []


@pytest.mark.parametrize("rows", [0.0, 0.3])
def test_bins_that_noise_hides_from_the_probes_are_refused_for_their_parallel_rows(rows: float) -> None:
    """Noise on the columns that read the rows, and on the rows."""
    task, drawn = Task("prunella.attacks.rob:cnn", (1, 28, 28), 10), stream(0, purpose="noise")
    params, buffers = initial(task, 0)
    read, measure = params["imprint.decode.weight"], params["imprint.encode.weight"]
    blurred = read + 0.03 * read.abs().mean() * torch.randn(read.shape, generator=drawn)
    turned = measure * (1 + rows * torch.randn(measure.shape, generator=drawn))
    both = {**params, "imprint.decode.weight": blurred, "imprint.encode.weight": turned}
    assert found(task, both, buffers) == ["imprint in imprint.encode"]


def dormant() -> tuple[Task, Tree]:
    """Bins that nothing reaches, since no probe has a slope where the last layer is zero; the first step fills it."""
    task, rows, last = Task("prunella.attacks.rob:cnn", (1, 28, 28), 10), "imprint.encode.weight", "model.2.0.weight"
    params, _ = initial(task, 0)
    noise = torch.randn(params[rows].shape, generator=stream(0, purpose="noise"))
    return task, {**params, rows: params[rows] * (1 + 0.7 * noise), last: torch.zeros_like(params[last])}


def trained(procedure: Procedure, received: Tree, plan: LocalPlan = PLAIN) -> LocalResult:
    images = probes(48, (1, 28, 28), draw(1))
    steps = [Examples(x, torch.arange(16) % 10) for x in images.split(16)]
    state = start(procedure.chain, torch.empty(0), received, {}, draw())
    return local_update(procedure, Received(received, full_mask(received), {}), iter(steps), state, draw(), plan)


def test_no_step_is_taken_from_a_model_that_the_step_before_made_copy() -> None:
    task, params = dormant()
    assert found(task, params, {}) == []
    plain = Procedure(task.build(), Sgd(0.05), build_chain(["none"], {}))
    check = PlantedCheck(task.shape, 10, draw(), params)
    ended, whole = trained(replace(plain, allows=check.allows), params), trained(plain, params)
    assert (ended.steps, whole.steps, check.ended) == (1, 3, ["bins in imprint.encode"])
    copied = "imprint.encode.weight"
    assert not ended.outgoing.update[copied].any() and whole.outgoing.update[copied].any()
    assert not check.allows(task.build(), initial(Task("cnn", (1, 28, 28), 10), 0)[0], {}, 2, False)  # it stays ended


def test_an_honest_round_is_what_it_is_without_the_question() -> None:
    task = Task("conv-1", (1, 28, 28), 10)
    params, _ = initial(task, 0)
    plain = Procedure(task.build(), Sgd(0.1, 0.9, 0.01), build_chain(["none"], {}))
    asked = trained(replace(plain, allows=PlantedCheck(task.shape, 10, draw()).allows), params)
    whole = trained(plain, params)
    assert asked.steps == whole.steps == 3
    assert all(torch.equal(asked.outgoing.update[n], whole.outgoing.update[n]) for n in params)


def test_weights_that_training_begins_from_and_that_nobody_sent_are_asked_about() -> None:
    """As PriPrune composes them, of what it withheld in an earlier round."""
    task = Task("prunella.attacks.rob:cnn", (1, 28, 28), 10)
    planted, _ = initial(task, 0)
    rows = "imprint.encode.weight"
    sent = {**planted, rows: 0.02 * torch.randn(planted[rows].shape, generator=stream(0, purpose="rows"))}
    assert found(task, sent, {}) == []
    check = PlantedCheck(task.shape, 10, draw(), sent)
    procedure = Procedure(task.build(), Sgd(0.05), build_chain(["none"], {}), allows=check.allows)
    assert trained(procedure, sent, LocalPlan(start=planted)).steps == 0 and "bins in imprint.encode" in check.ended


def test_rows_that_a_mask_made_parallel_half_way_are_looked_at() -> None:
    """FedDST's, where what hid the rows was small: the bins themselves are blurred for the probes."""
    task = Task("prunella.attacks.rob:cnn", (1, 28, 28), 10)
    planted, _ = initial(task, 0)
    rows, read = "imprint.encode.weight", planted["imprint.decode.weight"]
    noise = torch.randn(read.shape, generator=stream(0, purpose="noise"))
    blurred = {**planted, "imprint.decode.weight": read + 0.03 * read.abs().mean() * noise}
    sent = {**blurred, rows: 0.02 * torch.randn(planted[rows].shape, generator=stream(0, purpose="rows"))}
    check = PlantedCheck(task.shape, 10, draw(), sent)
    procedure = Procedure(task.build(), Sgd(0.05), build_chain(["none"], {}), allows=check.allows)
    plan = LocalPlan(readjust=lambda params, squares, mask: (blurred, mask), before=1)
    assert trained(procedure, sent, plan).steps == 1 and check.ended == ["imprint in imprint.encode"]


def test_what_is_not_finite_passes_no_step() -> None:
    task = Task("cnn", (1, 28, 28), 10)
    params, _ = initial(task, 0)
    check = PlantedCheck(task.shape, 10, draw())
    assert check.allows(task.build(), params, {}, 1, False)
    assert not check.allows(task.build(), {n: p * torch.inf for n, p in params.items()}, {}, 2, False)
    assert check.ended == [NOT_FINITE]


def test_activations_in_place_are_asked_what_the_same_ones_out_of_place_are() -> None:
    """torchvision's mobilenet_v3_small was refused by PyTorch: the layer's own output was written over."""
    one, other = (
        nn.Sequential(
            nn.Flatten(), nn.Linear(64, 20), nn.Hardswish(inplace), nn.Dropout(0.0, inplace), nn.Linear(20, 10)
        )
        for inplace in (True, False)
    )
    other.load_state_dict(one.state_dict())
    x, y = torch.rand(6, 1, 8, 8, generator=stream(0, purpose="x")), torch.arange(6)
    found = [respond(each, dict(each.named_parameters()), {}, x, y) for each in (one, other)]
    (logits, last, hidden), (same, name, others) = found
    assert torch.equal(logits, same) and last == name == "4" and hidden.keys() == others.keys() == {"1"}
    assert torch.equal(hidden["1"].out, others["1"].out) and torch.equal(hidden["1"].slope, others["1"].slope)
